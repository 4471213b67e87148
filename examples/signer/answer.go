package main

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/policy"
)

const (
	// longestLifetime is this signer's own limit: what a development CA has signed is soon worth nothing.
	longestLifetime = 24 * time.Hour
	// shortestLifetime is the least that kube-apiserver takes (Kubernetes 1.37, pkg/apis/certificates/validation/validation.go).
	shortestLifetime = time.Hour
	// leastMargin is what must lie between beginRefreshAt and either end (same file).
	leastMargin = 10 * time.Minute
)

// Reasons that are not package policy's.
const (
	invalidRequest   = "InvalidStubPKCS10Request"
	authorityExpired = "CertificateAuthorityExpired"
	issued           = "Issued"
)

// answer gives the status that decides a request. The order of the checks is that of pod-cert-signer: no grant, the CSR, and then what
// else the policy says. An error is none of the pod's, and may be gone at the next try.
func answer(request *certificatesv1.PodCertificateRequest, r *rules, ca *authority, now time.Time) (*certificatesv1.PodCertificateRequestStatus, error) {
	spec := &request.Spec
	d := &demand.Demand{
		SignerName: spec.SignerName, Namespace: request.Namespace, ServiceAccount: spec.ServiceAccountName,
		MaxExpirationSeconds: demand.DefaultMaxExpirationSeconds, UserAnnotations: spec.UnverifiedUserAnnotations,
	}
	if spec.MaxExpirationSeconds != nil {
		d.MaxExpirationSeconds = int64(*spec.MaxExpirationSeconds)
	}
	csr, problem := x509.ParseCertificateRequest(spec.StubPKCS10Request)
	if problem == nil {
		d.KeyType = keyType(csr.PublicKey)
		problem = csr.CheckSignature()
	}

	verdict := r.Decide(d)
	switch {
	case verdict.Decision == policy.NotGranted && verdict.Reason == policy.NoGrant:
		return denied(verdict.Reason, verdict.Message, now), nil
	case verdict.Decision == policy.Unknown:
		return nil, fmt.Errorf("not decided: %s", verdict.Message)
	case problem != nil:
		return denied(invalidRequest, problem.Error(), now), nil
	case verdict.Decision != policy.Granted:
		return denied(verdict.Reason, verdict.Message, now), nil
	}
	g := r.grantFor(d.Namespace, d.ServiceAccount)
	if g == nil {
		return nil, fmt.Errorf("not decided: the policy grants ServiceAccount %s/%s and has no grant for it", d.Namespace, d.ServiceAccount)
	}

	from, refresh, until := times(now, min(r.lifetime, time.Duration(d.MaxExpirationSeconds)*time.Second), r.RefreshAt, ca.certificate.NotAfter)
	if until.Sub(from) < shortestLifetime {
		return final(certificatesv1.PodCertificateRequestConditionTypeFailed, authorityExpired,
			fmt.Sprintf("the CA's own certificate ends %s: restart the signer with another one", ca.certificate.NotAfter.UTC().Format(time.RFC3339)), now), nil
	}
	leaf, err := g.template(r, d, from, until)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca.certificate, csr.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate: %w", err)
	}
	status := final(certificatesv1.PodCertificateRequestConditionTypeIssued, issued, "by a DEVELOPMENT CA", now)
	status.CertificateChain = encode(der) + ca.pem
	status.NotBefore, status.BeginRefreshAt, status.NotAfter = &metav1.Time{Time: from}, &metav1.Time{Time: refresh}, &metav1.Time{Time: until}
	return status, nil
}

// times are those of a certificate that begins now. They are whole seconds, because certificates have no others.
func times(now time.Time, lifetime time.Duration, refreshAt float64, caEnds time.Time) (from, refresh, until time.Time) {
	from = now.UTC().Truncate(time.Second)
	until = from.Add(min(lifetime, longestLifetime).Truncate(time.Second))
	if until.After(caEnds) {
		until = caEnds.UTC()
	}
	refresh = from.Add(time.Duration(refreshAt * float64(until.Sub(from)))).Truncate(time.Second)
	if earliest := from.Add(leastMargin); refresh.Before(earliest) {
		refresh = earliest
	}
	if latest := until.Add(-leastMargin); refresh.After(latest) {
		refresh = latest
	}
	return from, refresh, until
}

// template is the certificate of a pod: whose it is stands in its URI, a SPIFFE ID.
func (g *grant) template(r *rules, d *demand.Demand, from, until time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: serial, NotBefore: from, NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		Subject:  pkix.Name{CommonName: d.ServiceAccount + "." + d.Namespace},
		URIs:     []*url.URL{{Scheme: "spiffe", Host: r.TrustDomain, Path: "/ns/" + d.Namespace + "/sa/" + d.ServiceAccount}},
		DNSNames: g.names(d.UserAnnotations[r.DNSNamesAnnotation]),
	}
	// Longer ones are not valid (RFC 5280 appendix A.1, ub-common-name), and nothing depends on it.
	if len(leaf.Subject.CommonName) > 64 {
		leaf.Subject.CommonName = ""
	}
	if g.OU != "" {
		leaf.Subject.OrganizationalUnit = []string{g.OU}
	}
	if g.Usage != "server" {
		leaf.ExtKeyUsage = append(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if g.Usage != "client" {
		leaf.ExtKeyUsage = append(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return leaf, nil
}

func denied(reason, message string, now time.Time) *certificatesv1.PodCertificateRequestStatus {
	return final(certificatesv1.PodCertificateRequestConditionTypeDenied, reason, message, now)
}

// longestMessage keeps a status from being refused for what the pod's owner has written into an annotation (Kubernetes takes 32 KiB).
const longestMessage = 1000

// final is a status that nobody may change any more.
func final(kind, reason, message string, now time.Time) *certificatesv1.PodCertificateRequestStatus {
	if len(message) > longestMessage {
		message = message[:longestMessage] + "…"
	}
	message = strings.ToValidUTF8(message, "")
	return &certificatesv1.PodCertificateRequestStatus{Conditions: []metav1.Condition{{
		Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now),
	}}}
}

// keyType is Kubernetes' name for the type of a public key, and empty for one that the kubelet does not make (Kubernetes 1.37,
// core/v1 PodCertificateProjection.keyType).
func keyType(key any) string {
	switch key := key.(type) {
	case ed25519.PublicKey:
		return "ED25519"
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA%d", key.N.BitLen())
	case *ecdsa.PublicKey:
		return fmt.Sprintf("ECDSAP%d", key.Curve.Params().BitSize)
	}
	return ""
}
