package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestThePKIFitsTogether(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	ca, err := writePKI(dir, "https://127.0.0.1:1", now)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	verify := func(t *testing.T, pair tls.Certificate, usage x509.ExtKeyUsage, host string) *x509.Certificate {
		t.Helper()
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Time{now.Add(-30 * time.Minute), now, now.Add(300 * 24 * time.Hour)} {
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
				t.Errorf("at %v for %q: %v", at, host, err)
			}
		}
		return leaf
	}

	serving, err := tls.LoadX509KeyPair(filepath.Join(dir, "serving.crt"), filepath.Join(dir, "serving.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "kubernetes.default.svc"} {
		verify(t, serving, x509.ExtKeyUsageServerAuth, host)
	}

	for _, u := range users {
		t.Run(u.file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(dir, u.file))
			if err != nil {
				t.Fatal(err)
			}
			var config struct {
				Clusters []struct{ Cluster map[string]any }
				Users    []struct{ User map[string][]byte }
			}
			if err := json.Unmarshal(text, &config); err != nil {
				t.Fatal(err)
			}
			if got := config.Clusters[0].Cluster["server"]; got != "https://127.0.0.1:1" {
				t.Errorf("server %v", got)
			}
			pair, err := tls.X509KeyPair(config.Users[0].User["client-certificate-data"], config.Users[0].User["client-key-data"])
			if err != nil {
				t.Fatal(err)
			}
			subject := verify(t, pair, x509.ExtKeyUsageClientAuth, "").Subject
			if subject.CommonName != u.name || !slices.Equal(subject.Organization, u.groups) {
				t.Errorf("user %s of %v, want %s of %v", subject.CommonName, subject.Organization, u.name, u.groups)
			}
		})
	}

	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v: others must not read keys", f.Name(), info.Mode(), err)
		}
	}
}
