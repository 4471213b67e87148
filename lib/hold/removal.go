package hold

import (
	"fmt"
	"slices"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// AnnotationRevoke on a policy object lets it take away grants that are still used. Its value is the reason, for people.
const AnnotationRevoke = Group + "/revoke"

// Removal is a grant that the render takes away while live pods still ask for it (docs/design.md section 7).
type Removal struct {
	Object  manifest.ID
	Signer  *config.Signer
	Asker   demand.Asker
	Message string
}

// policyObject is a policy object of the render.
type policyObject struct {
	policy.Object
	id             manifest.ID
	document, item int
	annotations    map[string]string
}

// findRemovals looks for grants that the render's policy objects lack, that a replica or the live object still has, and that a live pod
// asks for. Such a policy object stays as it is until nobody asks; everything else goes out, since the pods end by it.
func (p *Plan) findRemovals() error {
	for i := range p.in.Config.Signers {
		s := &p.in.Config.Signers[i]
		asks := func(a demand.Asker) bool { return p.in.Config.Signer(a.Demand.SignerName) == s }
		if !slices.ContainsFunc(p.in.Asking, asks) {
			continue
		}
		w, err := p.wanted(s)
		if err != nil {
			return err
		}
		if w == nil || w.Policy == nil {
			continue
		}
		if reason, ok := w.annotations[AnnotationRevoke]; ok {
			p.Revoked = append(p.Revoked, fmt.Sprintf("%s takes grants away at once: %s", w.id, reason))
			continue
		}
		for _, a := range p.in.Asking {
			if !asks(a) {
				continue
			}
			answer := w.Policy.Decide(&a.Demand)
			if answer.Decision != policy.NotGranted || !grantedSomewhere(p.evidence(s), &a.Demand) {
				continue
			}
			p.Removals = append(p.Removals, Removal{Object: w.id, Signer: s, Asker: a, Message: fmt.Sprintf(
				"%s takes away the grant of %s for %s/%s that pod %s still uses (%s): it stays until no pod asks; annotate it %s to revoke at once",
				w.id, s.SignerName, a.Demand.Namespace, a.Demand.ServiceAccount, a.Pod, answer.Reason, AnnotationRevoke)})
			p.heldPolicies[s] = w
		}
	}
	return nil
}

// grantedSomewhere reports whether a demand is granted now by any replica or by the live policy object.
func grantedSomewhere(e *policy.Evidence, d *demand.Demand) bool {
	grants := func(decider policy.Policy) bool {
		return decider != nil && decider.Decide(d).Decision == policy.Granted
	}
	return e.Live != nil && grants(e.Live.Policy) ||
		slices.ContainsFunc(e.Replicas, func(r policy.Replica) bool { return grants(r.Policy) })
}

// heldByRemoval reports whether an object must stay because a policy object does: the object itself, and in the signer's namespace
// whatever names it, so that no signer pod comes up with a policy that is not there.
func (p *Plan) heldByRemoval(doc *manifest.Document, item int, h manifest.Head) (bool, error) {
	for s, w := range p.heldPolicies {
		if doc.Number == w.document && item == w.item {
			return true, nil
		}
		if p.namespaceOf(h.Namespace) != s.Namespace {
			continue
		}
		values, err := doc.Decode()
		if err != nil {
			return false, err
		}
		if names(values[item], w.Name) {
			return true, nil
		}
	}
	return false, nil
}

// names reports whether a text anywhere in a decoded value is the name.
func names(value any, name string) bool {
	switch v := value.(type) {
	case string:
		return v == name
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return names(e, name) })
	case map[string]any:
		for _, e := range v {
			if names(e, name) {
				return true
			}
		}
	}
	return false
}

// keptByRemoval reports whether a tracked object that the render lacks is the policy object that a held one would replace.
func (p *Plan) keptByRemoval(r Resource) bool {
	for s := range p.heldPolicies {
		// Labels are not known of what is only tracked, so with a selector every ConfigMap of the signer's namespace stays.
		if r.Group == "" && r.Kind == "ConfigMap" && r.Namespace == s.Namespace &&
			(s.Policy.ConfigMap.Selector != "" || s.Policy.ConfigMap.Matches(r.Name, nil)) {
			return true
		}
	}
	return false
}
