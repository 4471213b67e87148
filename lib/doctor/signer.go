package doctor

import (
	"fmt"
	"strings"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// signerChecks say what each replica has loaded, and where that cannot be known.
func (e *examination) signerChecks() {
	if e.Config == nil {
		return
	}
	for n := range e.Clusters {
		c := &e.Clusters[n]
		for i := range e.Config.Signers {
			s := &e.Config.Signers[i]
			if evidence, ok := c.Evidence[s.SignerName]; ok {
				e.signer(c, s, &evidence)
			}
		}
	}
}

func (e *examination) signer(c *Cluster, s *config.Signer, evidence *policy.Evidence) {
	object := c.object("signer " + s.SignerName)
	look := fmt.Sprintf("kubectl get pods,configmaps -n %s%s", s.Namespace, c.flags())
	if evidence.Problem != "" {
		e.find(Error, "signer-unknown", object, look, "it cannot be told what it has loaded: %s", evidence.Problem)
		return
	}
	if evidence.Unproven {
		e.find(Info, "signer-unproven", object, "evidence: report or podVolumes (docs/configuration.md)", "evidence %s is an assumption, no proof", s.Evidence)
	}
	if len(evidence.Live) == 0 {
		e.find(Error, "policy-missing", object, look, "there is no policy object: %s", wanted(s))
	}
	for i := range evidence.Live {
		if o := &evidence.Live[i]; o.Problem != "" {
			// Without its revision: the object of a finding stays the same.
			name := policy.Object{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
			e.find(Error, "policy-broken", c.object(name.String()), "correct it in Git", "is no policy that signer %s can use: %s", s.SignerName, o.Problem)
		}
	}
	if len(evidence.Replicas) == 0 {
		e.find(Error, "signer-without-replicas", object, fmt.Sprintf("start it, or correct podSelector in the configuration: kubectl get pods -n %s%s --show-labels", s.Namespace, c.flags()),
			"has no live replica, so that every new demand is held: %s", evidence.Searched)
		return
	}
	var known []string
	for i := range evidence.Replicas {
		r := &evidence.Replicas[i]
		if r.Policy == nil {
			e.find(Error, "replica-unknown", c.object("Pod "+s.Namespace+"/"+r.Pod), "docs/configuration.md#evidence, docs/report.md", "it cannot be told what it has loaded, so that signer %s grants nothing new: %s", s.SignerName, r.Problem)
			continue
		}
		known = append(known, r.String())
	}
	if known != nil {
		e.find(Info, "signer-loaded", object, "", "by %s: %s", s.Evidence, strings.Join(known, ", "))
	}
}

// wanted says which policy objects the configuration means.
func wanted(s *config.Signer) string {
	p := &s.Policy
	if r := p.Resource; r != nil {
		return fmt.Sprintf("none of kind %s.%s with selector %q in namespace %q", r.Resource, r.Group(), r.Selector, r.Namespace)
	}
	which := fmt.Sprintf("with labels %q", p.ConfigMap.Selector)
	switch {
	case p.ConfigMap.Name != "":
		which = p.ConfigMap.Name
	case p.ConfigMap.NamePrefix != "":
		which = "whose name begins with " + p.ConfigMap.NamePrefix
	}
	return fmt.Sprintf("no ConfigMap %s in namespace %s has key %s", which, s.Namespace, p.Key)
}
