package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime of every certificate: longer than anybody leaves a cluster up.
const lifetime = 365 * 24 * time.Hour

// authority signs the cluster's certificates. Its key never leaves memory.
type authority struct {
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	valid time.Time // start of all lifetimes
}

// newAuthority makes a CA. Certificates are valid from an hour before now, for
// clocks that are set back.
func newAuthority(now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{key: key, valid: now.Add(-time.Hour)}
	template := a.template(pkix.Name{CommonName: "grantfirst-test-ca"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

func (a *authority) template(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // crypto/rand.Reader never returns an error
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: a.valid, NotAfter: a.valid.Add(lifetime)}
}

// issue makes a key and its certificate, both as PEM. With addresses it is a
// server's certificate, else a client's.
func (a *authority) issue(subject pkix.Name, dnsNames []string, addresses []net.IP) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := a.template(subject)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.DNSNames, template.IPAddresses = dnsNames, addresses
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(addresses) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(private)
	return certPEM(der), key, err
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// user is somebody whom the API server knows by a certificate.
type user struct {
	file   string // name of the kubeconfig
	name   string
	groups []string
}

// Users of the cluster's own parts have the names and groups that Kubernetes'
// default roles and the Node authorizer expect.
var users = []user{
	{adminFile, "grantfirst-test-admin", []string{"system:masters"}},
	{controllerManager + ".kubeconfig", "system:kube-controller-manager", nil},
	{scheduler + ".kubeconfig", "system:kube-scheduler", nil},
	{hollowNode + ".kubeconfig", "system:node:" + nodeName, []string{"system:nodes"}},
}

const (
	adminFile   = "admin.kubeconfig"
	caFile      = "ca.crt"
	servingFile = "serving"         // .crt and .key: API server, controller manager and scheduler
	tokenFile   = "service-account" // .key and .pub: signs the ServiceAccounts' tokens
)

// writePKI fills dir with keys, certificates and kubeconfigs for an API server
// at the given URL. It returns the CA's certificate.
func writePKI(dir, server string, now time.Time) (*x509.Certificate, error) {
	ca, err := newAuthority(now)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	write := func(name string, data []byte, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return os.WriteFile(filepath.Join(dir, name), data, 0o600)
	}
	if err := write(caFile, certPEM(ca.cert.Raw), nil); err != nil {
		return nil, err
	}

	cert, key, err := ca.issue(pkix.Name{CommonName: "grantfirst-test"},
		[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		[]net.IP{net.IPv4(127, 0, 0, 1)})
	if err := write(servingFile+".crt", cert, err); err != nil {
		return nil, err
	}
	if err := write(servingFile+".key", key, nil); err != nil {
		return nil, err
	}

	token, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := keyPEM(token)
	if err := write(tokenFile+".key", private, err); err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(token.Public())
	if err := write(tokenFile+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), err); err != nil {
		return nil, err
	}

	for _, u := range users {
		cert, key, err := ca.issue(pkix.Name{CommonName: u.name, Organization: u.groups}, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", u.file, err)
		}
		text, err := kubeconfig(server, certPEM(ca.cert.Raw), cert, key)
		if err := write(u.file, text, err); err != nil {
			return nil, err
		}
	}
	return ca.cert, nil
}

// kubeconfig has everything inside, so that the file can be copied. JSON is
// YAML too, and needs no module.
func kubeconfig(server string, ca, cert, key []byte) ([]byte, error) {
	type object = map[string]any
	const name = "grantfirst-test"
	return json.MarshalIndent(object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": name,
		"clusters":        []object{{"name": name, "cluster": object{"server": server, "certificate-authority-data": ca}}},
		"users":           []object{{"name": name, "user": object{"client-certificate-data": cert, "client-key-data": key}}},
		"contexts":        []object{{"name": name, "context": object{"cluster": name, "user": name}}},
	}, "", "  ")
}
