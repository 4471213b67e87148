package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// authority is a certificate authority for development.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	pem         string
}

// newAuthority makes one that exists in memory only.
func newAuthority(now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of the CA: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "grantfirst example signer: DEVELOPMENT CA, do not trust"},
		NotBefore:    now.Add(-time.Minute), NotAfter: now.AddDate(0, 1, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of the CA: %w", err)
	}
	return authorityOf(der, key)
}

// readAuthority takes one from PEM. It must say of itself that it is for development: this program is not to be trusted with the key of
// any other.
func readAuthority(certificate, key []byte) (*authority, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("CA: the key cannot sign")
	}
	a, err := authorityOf(pair.Certificate[0], signer)
	if err != nil {
		return nil, err
	}
	subject := a.certificate.Subject.String()
	if !a.certificate.IsCA {
		return nil, fmt.Errorf("CA %s: the certificate is not that of a CA: make it with basicConstraints CA:TRUE", subject)
	}
	if !strings.Contains(strings.ToLower(subject), "development") {
		return nil, fmt.Errorf("CA %s: the subject does not say \"development\": this signer is for nothing else, make a CA for it", subject)
	}
	return a, nil
}

func authorityOf(der []byte, key crypto.Signer) (*authority, error) {
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	return &authority{certificate, key, encode(der)}, nil
}

func encode(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}
