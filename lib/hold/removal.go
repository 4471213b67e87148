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

// policyObject is a policy object of the render, or one that the render deletes.
type policyObject struct {
	policy.Object
	signer *config.Signer
	id     manifest.ID
	// document is 0 where the render deletes it.
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
		rendered, err := p.rendered(s)
		if err != nil {
			return err
		}
		rendered = append(rendered, p.deleted(s, rendered)...)
		for _, w := range rendered {
			if w.Policy == nil {
				continue
			}
			if reason, ok := w.annotations[AnnotationRevoke]; ok {
				p.Revoked = append(p.Revoked, fmt.Sprintf("%s takes grants away at once: %s", w.id, reason))
				continue
			}
			held := false
			for _, a := range p.in.Asking {
				if !asks(a) {
					continue
				}
				if !p.takesAway(w, rendered, &a.Demand) {
					continue
				}
				answer := w.Policy.Decide(&a.Demand)
				if answer.Decision != policy.NotGranted {
					continue
				}
				p.Removals = append(p.Removals, Removal{Object: w.id, Signer: s, Asker: a, Message: fmt.Sprintf(
					"%s takes away the grant of %s for %s/%s that pod %s still uses (%s): it stays until no pod asks; %s",
					w.id, s.SignerName, a.Demand.Namespace, a.Demand.ServiceAccount, a.Pod, answer.Reason, w.howToRevoke())})
				held = true
			}
			if held {
				p.heldPolicies = append(p.heldPolicies, w)
			}
		}
	}
	return nil
}

func (o *policyObject) howToRevoke() string {
	if o.document == 0 {
		return fmt.Sprintf("to revoke at once, put it back without the grant and with the annotation %s", AnnotationRevoke)
	}
	return fmt.Sprintf("annotate it %s to revoke at once", AnnotationRevoke)
}

// deleted are the custom resources that grant by themselves and that the render takes away as a whole, as far as that can be told: where
// the Application has several sources, another one may have them.
func (p *Plan) deleted(s *config.Signer, rendered []*policyObject) []*policyObject {
	if s.Policy.Resource == nil || p.in.Sources > 1 {
		return nil
	}
	var out []*policyObject
	for _, o := range p.evidence(s).Live {
		isRendered := slices.ContainsFunc(rendered, func(r *policyObject) bool { return r.is(&o.Object) })
		at := slices.IndexFunc(p.in.Tracked, func(r Resource) bool { return !r.Hook && isTrackedAs(s, &o.Object, r) })
		if isRendered || at < 0 {
			continue
		}
		gone := o.Object
		gone.Policy = deleted{}
		id := manifest.ID{APIVersion: s.Policy.Resource.APIVersion, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
		out = append(out, &policyObject{Object: gone, signer: s, id: id})
	}
	return out
}

// isTrackedAs reports whether an entry of status.resources is the custom resource.
func isTrackedAs(s *config.Signer, o *policy.Object, r Resource) bool {
	return r.Group == s.Policy.Resource.Group() && r.Kind == o.Kind && r.Namespace == o.Namespace && r.Name == o.Name
}

// deleted is the policy of an object that will be gone.
type deleted struct{}

// Decide refuses everything.
func (deleted) Decide(*demand.Demand) policy.Answer {
	return policy.Answer{Decision: policy.NotGranted, Reason: policy.NoGrant, Message: "it is deleted"}
}

// takesAway reports whether a demand is granted now that a policy object of the render may take the grant away from. A custom resource
// takes away what it grants itself as it stands, unless another one grants that before and after: until then a new one is not loaded.
func (p *Plan) takesAway(w *policyObject, rendered []*policyObject, d *demand.Demand) bool {
	e := p.evidence(w.signer)
	if w.signer.Policy.Resource == nil {
		return grantedSomewhere(e, d)
	}
	at := slices.IndexFunc(e.Live, func(o policy.Alternative) bool { return w.is(&o.Object) })
	if at < 0 || e.Live[at:at+1].Granting(d) == nil {
		return false
	}
	for i := range e.Live {
		if i == at || e.Live[i:i+1].Granting(d) == nil {
			continue
		}
		after := slices.IndexFunc(rendered, func(r *policyObject) bool { return r.is(&e.Live[i].Object) })
		if after < 0 || rendered[after].Policy != nil && rendered[after].Policy.Decide(d).Decision == policy.Granted {
			return false
		}
	}
	return true
}

// grantedSomewhere reports whether a demand is granted now by any replica or by the live policy object.
func grantedSomewhere(e *policy.Evidence, d *demand.Demand) bool {
	grants := func(decider policy.Policy) bool {
		return decider != nil && decider.Decide(d).Decision == policy.Granted
	}
	return e.Live.Granting(d) != nil ||
		slices.ContainsFunc(e.Replicas, func(r policy.Replica) bool { return grants(r.Policy) })
}

// heldByRemoval reports whether an object must stay because a policy object does: the object itself, and in the signer's namespace
// whatever names it, so that no signer pod comes up with a policy that is not there.
func (p *Plan) heldByRemoval(doc *manifest.Document, item int, h manifest.Head) (bool, error) {
	for _, w := range p.heldPolicies {
		if doc.Number == w.document && item == w.item {
			return true, nil
		}
		// With other labels it is in the render and yet no policy object any more.
		if w.document == 0 && p.isSame(w, h) {
			return true, nil
		}
		// Nothing mounts a custom resource.
		if w.signer.Policy.Resource != nil || p.namespaceOf(h.Namespace) != w.signer.Namespace {
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

// isSame reports whether an object of the render is the policy object, whatever its labels.
func (p *Plan) isSame(w *policyObject, h manifest.Head) bool {
	r := w.signer.Policy.Resource
	return h.Group() == r.Group() && h.Kind == r.Kind && h.Name == w.Name && (r.Namespace == "" || p.namespaceOf(h.Namespace) == w.Namespace)
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
	for _, w := range p.heldPolicies {
		s := w.signer
		if w.document == 0 && isTrackedAs(s, &w.Object, r) {
			return true
		}
		// Labels are not known of what is only tracked, so with a selector every ConfigMap of the signer's namespace stays. A custom resource
		// replaces no other.
		if s.Policy.Resource == nil && r.Group == "" && r.Kind == "ConfigMap" && r.Namespace == s.Namespace &&
			(s.Policy.ConfigMap.Selector != "" || s.Policy.ConfigMap.Matches(r.Name, nil)) {
			return true
		}
	}
	return false
}
