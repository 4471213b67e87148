package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// podCertSigner is the JSON policy of the public signer of that name (github.com/ohartwig/pod-cert-signer, policy/policy.go and
// issuer/issuer.go of v0.4.0; releases before that have no usage server-and-client and look less closely at DNS names). It is read
// by the same decoder into a struct of the same shape, so that what the signer makes of repeated keys, of their case and of null is
// what is decided by here.
type podCertSigner struct {
	SignerName         string               `json:"signerName"`
	TrustDomain        string               `json:"trustDomain"`
	DNSNamesAnnotation string               `json:"dnsNamesAnnotation"`
	Lifetime           lifetime             `json:"lifetime"`
	RefreshAt          float64              `json:"refreshAt"`
	KeyTypes           []string             `json:"keyTypes"`
	Grants             []podCertSignerGrant `json:"grants"`

	index index
}

// podCertSignerGrant is one entry of grants[].
type podCertSignerGrant struct {
	Namespace      string   `json:"namespace"`
	ServiceAccount string   `json:"serviceAccount"`
	Usage          string   `json:"usage"`
	OU             string   `json:"ou,omitempty"`
	DNSNames       []string `json:"dnsNames,omitempty"`
}

// lifetime is a Go duration, written like "24h".
type lifetime time.Duration

// UnmarshalJSON takes nothing but a string: the signer reads a bare number as a mistake, too.
func (l *lifetime) UnmarshalJSON(raw []byte) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("lifetime %s: write a duration in quotes, like \"24h\"", raw)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("lifetime %q: write a duration like \"24h\"", s)
	}
	*l = lifetime(d)
	return nil
}

// shortestLifetime is what kube-apiserver accepts at least (Kubernetes 1.37, pkg/apis/certificates/validation/validation.go).
const shortestLifetime = time.Hour

func parsePodCertSigner(text []byte) (Policy, error) {
	p := &podCertSigner{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(p); err != nil {
		return nil, fmt.Errorf("pod-cert-signer policy: %w", err)
	}
	// More, and not a second Decode that ends in io.EOF: the signer asks no more than this.
	if decoder.More() {
		return nil, errors.New("pod-cert-signer policy: something follows the JSON object: remove it")
	}
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("pod-cert-signer policy: %w", err)
	}
	for i, g := range p.Grants {
		p.index.add(g.ServiceAccount, g.Namespace, i)
	}
	return p, nil
}

// validate has the rules without which the signer does not start.
func (p *podCertSigner) validate() error {
	if p.SignerName == "" {
		return errors.New("signerName is empty")
	}
	if p.TrustDomain == "" || strings.ContainsAny(p.TrustDomain, "/:") {
		return fmt.Errorf("trustDomain %q: write a host name without scheme, port or path", p.TrustDomain)
	}
	domain, name, _ := strings.Cut(p.DNSNamesAnnotation, "/")
	if !strings.Contains(domain, ".") || name == "" {
		return fmt.Errorf("dnsNamesAnnotation %q: write a key with a domain, like example.com/dns-names", p.DNSNamesAnnotation)
	}
	if time.Duration(p.Lifetime) < shortestLifetime {
		return fmt.Errorf("lifetime %s: Kubernetes accepts no certificate for less than an hour", time.Duration(p.Lifetime))
	}
	if p.RefreshAt < 0.17 || p.RefreshAt > 0.83 {
		return fmt.Errorf("refreshAt %v: write a part of the lifetime from 0.17 to 0.83", p.RefreshAt)
	}
	if len(p.KeyTypes) == 0 {
		return errors.New("keyTypes is empty")
	}
	for _, k := range p.KeyTypes {
		if !slices.Contains(keyTypes, k) {
			return fmt.Errorf("keyTypes: %q is none of %s", k, strings.Join(keyTypes, ", "))
		}
	}
	for i := range p.Grants {
		if err := p.Grants[i].validate(); err != nil {
			return fmt.Errorf("grants[%d]: %w", i, err)
		}
	}
	return nil
}

func (g *podCertSignerGrant) validate() error {
	if err := validNamespace(g.Namespace); err != nil {
		return err
	}
	if err := validServiceAccount(g.ServiceAccount); err != nil {
		return err
	}
	switch g.Usage {
	case "client", "server", "server-and-client":
	default:
		return fmt.Errorf("usage %q is none of client, server, server-and-client", g.Usage)
	}
	if !g.serves() && len(g.DNSNames) > 0 {
		return errors.New("a client grant has no dnsNames: remove them or change the usage")
	}
	if g.serves() && len(g.DNSNames) == 0 {
		return fmt.Errorf("a %s grant needs dnsNames", g.Usage)
	}
	for _, name := range g.DNSNames {
		if !isDNSName(name) {
			return fmt.Errorf("dnsNames: %q is not a DNS name in lower case", name)
		}
		if !underSVC(name) {
			return fmt.Errorf("dnsNames: %q is neither under .svc nor under .svc.cluster.local, and only a CA of its own could permit it, "+
				"which is not seen from here: use policy format cel for a signer with such a CA", name)
		}
	}
	return nil
}

func (g *podCertSignerGrant) serves() bool { return g.Usage != "client" }

// isDNSName takes lower-case labels of letters, digits and inner hyphens: no wildcard, no dot at the end.
func isDNSName(name string) bool {
	if len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return false
		}
	}
	return true
}

// underSVC is what the name constraints of the CA permit that the signer makes for itself. From v0.4.0 on the signer holds the names
// against its CA's certificate instead, which is not part of the policy.
func underSVC(name string) bool {
	for _, suffix := range []string{".svc", ".svc.cluster.local"} {
		if host, ok := strings.CutSuffix(name, suffix); ok && host != "" {
			return true
		}
	}
	return false
}

// Decide goes through the signer's checks in the signer's order (issuer.Issue there), because the first that fails gives the reason.
// Its check of the request's CSR is left out: the kubelet makes that, and makes it well.
func (p *podCertSigner) Decide(d *demand.Demand) Answer {
	if d.SignerName != p.SignerName {
		return unknown("the policy is that of signer %s, which answers no requests to %s", p.SignerName, d.SignerName)
	}
	grant := p.lookup(d.ServiceAccount, d.Namespace)
	if grant == nil {
		return refused(NoGrant, "no grant for ServiceAccount %s/%s", d.Namespace, d.ServiceAccount)
	}
	if !slices.Contains(p.KeyTypes, d.KeyType) {
		return refused(UnsupportedKeyType, "key type %q is none of %s", d.KeyType, strings.Join(p.KeyTypes, ", "))
	}
	if a := grant.names(d.UserAnnotations[p.DNSNamesAnnotation]); a.Decision != Granted {
		return a
	}
	// The certificate lives as long as the pod or the policy allows, whichever is less; the policy's own part is validated.
	if d.MaxExpirationSeconds > 0 && d.MaxExpirationSeconds < int64(shortestLifetime/time.Second) {
		return refused(InvalidMaxExpiration, "maxExpirationSeconds %d is less than an hour", d.MaxExpirationSeconds)
	}
	return Answer{Decision: Granted}
}

// lookup gives the grant that decides: an exact namespace wins over prefixes, and of those that match the first in the file.
func (p *podCertSigner) lookup(serviceAccount, namespace string) *podCertSignerGrant {
	if at, ok := p.index.exactly(serviceAccount, namespace); ok {
		return &p.Grants[at]
	}
	first := len(p.Grants)
	for at := range p.index.prefixed(serviceAccount, namespace) {
		first = min(first, at)
	}
	if first == len(p.Grants) {
		return nil
	}
	return &p.Grants[first]
}

// names judges the DNS names that the pod asks for, comma-separated: all of them are in the grant or the whole request is denied. Who
// asks for none gets all.
func (g *podCertSignerGrant) names(asked string) Answer {
	for name := range strings.SplitSeq(asked, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !g.serves() {
			return refused(DNSNameNotGranted, "the grant is for a client and has no DNS names, but %q is asked for", name)
		}
		if !slices.Contains(g.DNSNames, name) {
			return refused(DNSNameNotGranted, "DNS name %q is none of %s", name, strings.Join(g.DNSNames, ", "))
		}
	}
	return Answer{Decision: Granted}
}
