package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/grantfirst/grantfirst/lib/policy"
)

// rules is a policy that is in force. Whether a certificate is granted is package policy's to say, as it is for grantfirst; what stands
// in it is this file's.
type rules struct {
	policy.Policy
	text []byte
	document
}

// document has the fields of a pod-cert-signer policy (github.com/ohartwig/pod-cert-signer) that certificates are made by.
type document struct {
	SignerName         string  `json:"signerName"`
	TrustDomain        string  `json:"trustDomain"`
	DNSNamesAnnotation string  `json:"dnsNamesAnnotation"`
	Lifetime           string  `json:"lifetime"`
	RefreshAt          float64 `json:"refreshAt"`
	Grants             []grant `json:"grants"`

	lifetime time.Duration
}

type grant struct {
	Namespace      string   `json:"namespace"`
	ServiceAccount string   `json:"serviceAccount"`
	Usage          string   `json:"usage"`
	OU             string   `json:"ou"`
	DNSNames       []string `json:"dnsNames"`
}

// parse reads a policy. All that is wrong with one is found by package policy.
func parse(text []byte) (*rules, error) {
	format, err := policy.Compile(policy.FormatPodCertSigner, "")
	if err != nil {
		return nil, err
	}
	r := &rules{text: text}
	if r.Policy, err = format.Parse(text); err != nil {
		return nil, err
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&r.document); err != nil {
		return nil, fmt.Errorf("pod-cert-signer policy: %w", err)
	}
	if r.lifetime, err = time.ParseDuration(r.Lifetime); err != nil {
		return nil, fmt.Errorf("pod-cert-signer policy: %w", err)
	}
	return r, nil
}

// grantFor is the grant that a ServiceAccount's certificates are made by: one for exactly its namespace, else the first prefix in the
// file.
func (d *document) grantFor(namespace, serviceAccount string) *grant {
	var byPrefix *grant
	for i := range d.Grants {
		g := &d.Grants[i]
		if g.ServiceAccount != serviceAccount {
			continue
		}
		if g.Namespace == namespace {
			return g
		}
		prefix, isPrefix := strings.CutSuffix(g.Namespace, "*")
		if isPrefix && byPrefix == nil && strings.HasPrefix(namespace, prefix) {
			byPrefix = g
		}
	}
	return byPrefix
}

// names are the DNS names of a certificate: those that the pod asks for, else all that are granted.
func (g *grant) names(asked string) []string {
	var names []string
	for name := range strings.SplitSeq(asked, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	if names == nil {
		return g.DNSNames
	}
	return names
}
