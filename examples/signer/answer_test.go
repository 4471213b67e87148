package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const policyText = `{
  "signerName": "example.com/workload", "trustDomain": "example.org", "dnsNamesAnnotation": "example.com/dns-names",
  "lifetime": "12h", "refreshAt": 0.5, "keyTypes": ["ECDSAP256", "ED25519"],
  "grants": [
    {"namespace": "team-*", "serviceAccount": "web", "usage": "client", "ou": "any team"},
    {"namespace": "team-a*", "serviceAccount": "web", "usage": "client", "ou": "never reached"},
    {"namespace": "team-a", "serviceAccount": "web", "usage": "server", "dnsNames": ["web.team-a.svc", "www.team-a.svc"]},
    {"namespace": "shop", "serviceAccount": "both", "usage": "server-and-client", "dnsNames": ["both.shop.svc"]}
  ]}`

// now has a part of a second, which certificates have not.
var now = time.Date(2026, 11, 29, 10, 0, 0, 600_000_000, time.UTC)

func rulesOf(t *testing.T, text string) *rules {
	t.Helper()
	r, err := parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func developmentCA(t *testing.T) *authority {
	t.Helper()
	ca, err := newAuthority(now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func key(t *testing.T, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// asks is the request of a kubelet for a pod of ServiceAccount web in namespace team-a.
func asks(t *testing.T, key crypto.Signer) *certificatesv1.PodCertificateRequest {
	t.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	day := int32(86400)
	return &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "req-1"},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/workload", ServiceAccountName: "web", PodName: "web-1", MaxExpirationSeconds: &day, StubPKCS10Request: csr,
		},
	}
}

func TestWhatIsDeniedAndWhy(t *testing.T) {
	ca, r, p256 := developmentCA(t), rulesOf(t, policyText), key(t, elliptic.P256())
	noAccount := func(q *certificatesv1.PodCertificateRequest) { q.Spec.ServiceAccountName = "other" }
	badCSR := func(q *certificatesv1.PodCertificateRequest) { q.Spec.StubPKCS10Request = []byte("no CSR") }
	badSignature := func(q *certificatesv1.PodCertificateRequest) {
		csr := q.Spec.StubPKCS10Request
		csr[len(csr)-1] ^= 1
	}
	p384 := func(q *certificatesv1.PodCertificateRequest) {
		q.Spec.StubPKCS10Request = asks(t, key(t, elliptic.P384())).Spec.StubPKCS10Request
	}
	names := func(list string) func(q *certificatesv1.PodCertificateRequest) {
		return func(q *certificatesv1.PodCertificateRequest) {
			q.Spec.UnverifiedUserAnnotations = map[string]string{"example.com/dns-names": list}
		}
	}
	tooShort := func(q *certificatesv1.PodCertificateRequest) {
		n := int32(3599)
		q.Spec.MaxExpirationSeconds = &n
	}
	type change = func(*certificatesv1.PodCertificateRequest)
	for name, c := range map[string]struct {
		changes []change
		reason  string
	}{
		"no grant for the ServiceAccount":                          {[]change{noAccount}, "NoGrant"},
		"no grant for the namespace":                               {[]change{func(q *certificatesv1.PodCertificateRequest) { q.Namespace = "tea" }}, "NoGrant"},
		"what is no CSR":                                           {[]change{badCSR}, "InvalidStubPKCS10Request"},
		"a CSR that somebody else has signed":                      {[]change{badSignature}, "InvalidStubPKCS10Request"},
		"a key type that the policy has not":                       {[]change{p384}, "UnsupportedKeyType"},
		"a DNS name that is not granted":                           {[]change{names("db.team-a.svc")}, "DNSNameNotGranted"},
		"one such name among good ones":                            {[]change{names("web.team-a.svc, db.team-a.svc")}, "DNSNameNotGranted"},
		"a DNS name for a client":                                  {[]change{names("web.team-b.svc"), func(q *certificatesv1.PodCertificateRequest) { q.Namespace = "team-b" }}, "DNSNameNotGranted"},
		"a lifetime that Kubernetes would not take":                {[]change{tooShort}, "InvalidMaxExpiration"},
		"the missing grant counts before the CSR":                  {[]change{noAccount, badCSR, names("db.team-a.svc")}, "NoGrant"},
		"the CSR counts before the DNS names":                      {[]change{badCSR, names("db.team-a.svc")}, "InvalidStubPKCS10Request"},
		"the CSR counts before the key type":                       {[]change{p384, badSignature}, "InvalidStubPKCS10Request"},
		"the key type counts before the DNS names":                 {[]change{p384, names("db.team-a.svc")}, "UnsupportedKeyType"},
		"the DNS names count before the lifetime":                  {[]change{names("db.team-a.svc"), tooShort}, "DNSNameNotGranted"},
		"names so long that Kubernetes would refuse the condition": {[]change{names(strings.Repeat("é", 30000))}, "DNSNameNotGranted"},
	} {
		t.Run(name, func(t *testing.T) {
			q := asks(t, p256)
			for _, change := range c.changes {
				change(q)
			}
			status, err := answer(q, r, ca, now)
			if err != nil {
				t.Fatal(err)
			}
			if len(status.Conditions) != 1 {
				t.Fatalf("status %+v", status)
			}
			got := status.Conditions[0]
			if got.Type != "Denied" || got.Reason != c.reason || got.Status != metav1.ConditionTrue || !got.LastTransitionTime.Time.Equal(now) || got.Message == "" || len(got.Message) > 2000 {
				t.Errorf("got %+v, want %s", got, c.reason)
			}
			// Kubernetes takes nothing else in a denial.
			if status.CertificateChain != "" || status.NotBefore != nil || status.NotAfter != nil || status.BeginRefreshAt != nil {
				t.Errorf("status %+v", status)
			}
		})
	}
}

func TestAPolicyOfAnotherSignerDecidesNothing(t *testing.T) {
	q := asks(t, key(t, elliptic.P256()))
	q.Spec.SignerName = "example.com/other"
	if status, err := answer(q, rulesOf(t, policyText), developmentCA(t), now); err == nil {
		t.Errorf("decided: %+v", status)
	}
}

// chain gives leaf and CA of an issued certificate, and checks that the CA has signed it.
func chain(t *testing.T, status *certificatesv1.PodCertificateRequestStatus) (leaf, ca *x509.Certificate) {
	t.Helper()
	if len(status.Conditions) != 1 || status.Conditions[0].Type != "Issued" {
		t.Fatalf("status %+v", status)
	}
	var all []*x509.Certificate
	for rest := []byte(status.CertificateChain); len(rest) > 0; {
		block, after := pem.Decode(rest)
		if block == nil || block.Type != "CERTIFICATE" {
			t.Fatalf("chain %s", status.CertificateChain)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		all, rest = append(all, c), after
	}
	if len(all) != 2 {
		t.Fatalf("%d certificates, want leaf and CA", len(all))
	}
	roots := x509.NewCertPool()
	roots.AddCert(all[1])
	if _, err := all[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Fatal(err)
	}
	return all[0], all[1]
}

func TestWhatStandsInACertificate(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	client, server := x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	for name, c := range map[string]struct {
		key                       crypto.Signer
		namespace, account, asked string
		usages                    []x509.ExtKeyUsage
		names                     []string
		ou                        []string
	}{
		"a server that asks for no name has all": {key(t, elliptic.P256()), "team-a", "web", "", []x509.ExtKeyUsage{server}, []string{"web.team-a.svc", "www.team-a.svc"}, nil},
		"or those that it asks for":              {ed, "team-a", "web", " www.team-a.svc,, ", []x509.ExtKeyUsage{server}, []string{"www.team-a.svc"}, nil},
		"a client, by the first prefix":          {ed, "team-ab", "web", "", []x509.ExtKeyUsage{client}, nil, []string{"any team"}},
		"a server that is a client too":          {ed, "shop", "both", "", []x509.ExtKeyUsage{client, server}, []string{"both.shop.svc"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			q := asks(t, c.key)
			q.Namespace, q.Spec.ServiceAccountName = c.namespace, c.account
			q.Spec.UnverifiedUserAnnotations = map[string]string{"example.com/dns-names": c.asked}
			status, err := answer(q, rulesOf(t, policyText), developmentCA(t), now)
			if err != nil {
				t.Fatal(err)
			}
			leaf, ca := chain(t, status)
			if !leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(c.key.Public()) {
				t.Error("another key")
			}
			if !slices.Equal(leaf.ExtKeyUsage, c.usages) || !slices.Equal(leaf.DNSNames, c.names) || !slices.Equal(leaf.Subject.OrganizationalUnit, c.ou) {
				t.Errorf("usages %v, names %v, OU %v", leaf.ExtKeyUsage, leaf.DNSNames, leaf.Subject.OrganizationalUnit)
			}
			if want := "spiffe://example.org/ns/" + c.namespace + "/sa/" + c.account; len(leaf.URIs) != 1 || leaf.URIs[0].String() != want {
				t.Errorf("URIs %v, want %s", leaf.URIs, want)
			}
			if !status.NotBefore.Time.Equal(leaf.NotBefore) || !status.NotAfter.Time.Equal(leaf.NotAfter) {
				t.Errorf("status %v to %v, certificate %v to %v", status.NotBefore, status.NotAfter, leaf.NotBefore, leaf.NotAfter)
			}
			if leaf.IsCA || !strings.Contains(ca.Subject.String(), "DEVELOPMENT") {
				t.Errorf("leaf is a CA: %v; CA %s", leaf.IsCA, ca.Subject)
			}
		})
	}
}

// Kubernetes 1.37, pkg/apis/certificates/validation/validation.go.
func TestTimesAreThoseThatKubernetesTakes(t *testing.T) {
	for _, lifetime := range []time.Duration{time.Hour, time.Hour + time.Millisecond, 90 * time.Minute, 24 * time.Hour, 91 * 24 * time.Hour} {
		for _, refreshAt := range []float64{0.17, 0.5, 0.83} {
			for _, caLives := range []time.Duration{time.Hour + time.Second, 100 * 24 * time.Hour} {
				from, refresh, until := times(now, lifetime, refreshAt, now.Truncate(time.Second).Add(caLives))
				lives := until.Sub(from)
				if from.After(now) || now.Sub(from) >= time.Second || lives < time.Hour || lives > lifetime || lives > 24*time.Hour || lives > caLives {
					t.Errorf("%v %v %v: %v to %v", lifetime, refreshAt, caLives, from, until)
				}
				if refresh.Sub(from) < 10*time.Minute || until.Sub(refresh) < 10*time.Minute {
					t.Errorf("%v %v %v: refresh %v of %v to %v", lifetime, refreshAt, caLives, refresh, from, until)
				}
				if from.Nanosecond() != 0 || until.Nanosecond() != 0 || refresh.Nanosecond() != 0 {
					t.Errorf("%v %v %v: parts of a second", lifetime, refreshAt, caLives)
				}
			}
		}
	}
}

func TestTheLifetimeIsTheLeastOfAllLimits(t *testing.T) {
	for name, c := range map[string]struct {
		policy string
		asked  int32
		want   time.Duration
	}{
		"the policy's":      {"12h", 86400, 12 * time.Hour},
		"the pod's":         {"12h", 7200, 2 * time.Hour},
		"the signer's own":  {"100h", 7862400, 24 * time.Hour},
		"an hour, at least": {"12h", 3600, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			q := asks(t, key(t, elliptic.P256()))
			q.Spec.MaxExpirationSeconds = &c.asked
			status, err := answer(q, rulesOf(t, strings.Replace(policyText, "12h", c.policy, 1)), developmentCA(t), now)
			if err != nil {
				t.Fatal(err)
			}
			if leaf, _ := chain(t, status); leaf.NotAfter.Sub(leaf.NotBefore) != c.want {
				t.Errorf("%v to %v", leaf.NotBefore, leaf.NotAfter)
			}
		})
	}
}

func TestACAThatIsAboutToEndFailsRequests(t *testing.T) {
	ca := developmentCA(t)
	status, err := answer(asks(t, key(t, elliptic.P256())), rulesOf(t, policyText), ca, ca.certificate.NotAfter.Add(-time.Hour+time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if c := status.Conditions; len(c) != 1 || c[0].Type != "Failed" || c[0].Reason != "CertificateAuthorityExpired" || status.CertificateChain != "" {
		t.Errorf("status %+v", status)
	}
}

func TestKeyTypesAreKubernetesNames(t *testing.T) {
	r, err := rsa.GenerateKey(rand.Reader, 3072)
	if err != nil {
		t.Fatal(err)
	}
	for want, public := range map[string]any{
		"RSA3072": r.Public(), "ECDSAP256": key(t, elliptic.P256()).Public(), "ECDSAP384": key(t, elliptic.P384()).Public(), "ECDSAP521": key(t, elliptic.P521()).Public(),
		"ED25519": ed25519.PublicKey{}, "": "no key",
	} {
		if got := keyType(public); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// The two readings of a policy, package policy's for the decision and this package's for the certificate, must find the same grant.
func TestAGrantIsFoundExactlyWhereThePolicyHasOne(t *testing.T) {
	r := rulesOf(t, policyText)
	for _, namespace := range []string{"team-", "team-a", "team-ab", "team-b", "team", "shop", "", "team-*", "team-a*"} {
		for _, account := range []string{"web", "both", "", "other"} {
			q := asks(t, key(t, elliptic.P256()))
			q.Namespace, q.Spec.ServiceAccountName = namespace, account
			status, err := answer(q, r, developmentCA(t), now)
			if err != nil {
				t.Fatal(err)
			}
			if found := r.grantFor(namespace, account) != nil; found != (status.Conditions[0].Type == "Issued") {
				t.Errorf("%s/%s: found %v, %+v", namespace, account, found, status.Conditions[0])
			}
		}
	}
}

func pemOf(t *testing.T, subject string, isCA bool) (certificate, private []byte) {
	t.Helper()
	k := key(t, elliptic.P256())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: subject}, NotBefore: now, NotAfter: now.AddDate(1, 0, 0),
		IsCA: isCA, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(encode(der)), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func TestACAFromFilesSaysThatItIsForDevelopment(t *testing.T) {
	certificate, private := pemOf(t, "Team shop's Development CA", true)
	ca, err := readAuthority(certificate, private)
	if err != nil {
		t.Fatal(err)
	}
	status, err := answer(asks(t, key(t, elliptic.P256())), rulesOf(t, policyText), ca, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, got := chain(t, status); fmt.Sprint(got.Subject) != "CN=Team shop's Development CA" {
		t.Errorf("issued by %s", got.Subject)
	}

	production, itsKey := pemOf(t, "Example Root CA", true)
	leaf, leafKey := pemOf(t, "development leaf", false)
	for want, files := range map[string][2][]byte{
		`the subject does not say "development"`: {production, itsKey},
		"the certificate is not that of a CA":    {leaf, leafKey},
		"private key does not match":             {certificate, itsKey},
		"failed to find":                         {nil, nil},
	} {
		if _, err := readAuthority(files[0], files[1]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
