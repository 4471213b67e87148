package hold

import (
	"fmt"
	"maps"
	"slices"

	"github.com/grantfirst/grantfirst/lib/manifest"
)

// Action is what a plan does with one object.
type Action string

const (
	// Emit: it goes out as it is, to be applied.
	Emit Action = "emit"
	// Withhold: it goes out with Skip, so that Argo CD neither applies nor prunes it.
	Withhold Action = "hold"
	// Omit: it is left out; only hooks are, because Argo CD never prunes a live hook.
	Omit Action = "omit"
	// Keep: this render lacks it, the last released one had it, and it goes out with Skip so that it is not pruned.
	Keep Action = "keep"
	// Mark: the marker.
	Mark Action = "marker"
)

// Object is one object of the stream and what becomes of it.
type Object struct {
	manifest.ID
	Action Action
	Why    string
}

// object is an object of the render at hand.
type object struct {
	Object
	document, item int
	// annotations to set; nil leaves the bytes alone.
	annotations map[string]string
	wave        int
	// applied objects are those that a sync during the hold applies.
	applied bool
	// target objects are those that Argo CD compares and prunes, which hooks are not.
	target bool
}

// place decides for every object of a held stream what it goes out as (docs/design.md section 4).
func (p *Plan) place() error {
	roles, err := p.signerRoles()
	if err != nil {
		return err
	}
	// One text and one map for all: a stream may have a hundred thousand objects.
	waitsFor := p.waitsFor()
	why, skip := "waits for "+waitsFor, map[string]string{annotationHook: hookSkip, AnnotationWaitingFor: waitsFor}
	for _, doc := range p.in.Stream.Documents {
		heads, err := doc.Heads()
		if err != nil {
			return err
		}
		for item, h := range heads {
			o := object{Object: Object{ID: h.ID}, document: doc.Number, item: item}
			if o.Name == "" {
				o.Name = h.GenerateName
			}
			removal, err := p.heldByRemoval(doc, item, h)
			if err != nil {
				return err
			}
			because, emitted := p.emitted(h)
			if !emitted {
				because, emitted = roles[roleKey(h.Group(), h.Kind, p.namespaceOf(h.Namespace), h.Name)]
			}
			switch kind := kindOfHook(h.Annotations); {
			case kind == hookNever:
				o.Action, o.Why, o.target = Emit, "skipped by its author", true
			case kind == hookOnDelete:
				o.Action, o.Why = Emit, "runs when the Application is deleted"
			case kind == hookMixed:
				o.Action, o.Why, o.annotations = Emit, "runs when the Application is deleted; its part in a sync waits", onlyDelete(h.Annotations)
			case kind == hookOnSync:
				o.Action, o.Why = Omit, "a hook runs in a full sync only, and that comes with the release"
			case (emitted || !p.switching) && !removal:
				if !emitted {
					because = "only a policy object waits, not this"
				}
				o.Action, o.Why, o.target, o.applied, o.wave = Emit, because, true, true, wave(h.Annotations)
			default:
				o.Action, o.Why, o.target = Withhold, why, true
				if o.annotations, err = readable(doc, item, h, skip); err != nil {
					return err
				}
			}
			p.objects = append(p.objects, o)
		}
	}
	if p.keepers, err = p.keep(skip); err != nil {
		return err
	}
	p.marker, err = p.newMarker(p.highestWave())
	return err
}

// readable adds to the annotations of a held object the author's own that are no strings, as strings: with one null among them Argo CD
// v2.14 takes the object to have no annotations at all (apimachinery v0.31 unstructured.GetAnnotations), so it would not see the Skip;
// with a number no version does.
func readable(doc *manifest.Document, item int, h manifest.Head, annotations map[string]string) (map[string]string, error) {
	if len(h.Annotations) > 0 || !doc.MayHave("annotations") {
		return annotations, nil
	}
	values, err := doc.Decode()
	if err != nil {
		return nil, err
	}
	odd := oddAnnotations(values[item])
	if len(odd) == 0 {
		return annotations, nil
	}
	maps.Copy(odd, annotations)
	return odd, nil
}

// oddAnnotations gives the annotations of an object that are no strings, as strings.
func oddAnnotations(object map[string]any) map[string]string {
	odd := map[string]string{}
	meta, _ := object["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	for key, value := range annotations {
		if _, ok := value.(string); ok {
			continue
		}
		odd[key] = ""
		if value != nil {
			odd[key] = fmt.Sprint(value)
		}
	}
	return odd
}

// highestWave is the highest wave in which anything is applied during the hold.
func (p *Plan) highestWave() int {
	var waves []int
	for _, o := range p.objects {
		if o.applied {
			waves = append(waves, o.wave)
		}
	}
	if len(waves) == 0 {
		return 0
	}
	return slices.Max(waves)
}

// Bytes is the stream for Argo CD. Where nothing is held, or in mode observe, it is the render byte for byte.
func (p *Plan) Bytes() ([]byte, error) {
	if !p.Held || p.Observe {
		return p.in.Stream.Bytes(), nil
	}
	var edits []manifest.Edit
	for _, o := range p.objects {
		switch {
		case o.Action == Omit:
			edits = append(edits, manifest.Edit{Document: o.document, Item: o.item, Drop: true})
		case o.annotations != nil:
			edits = append(edits, manifest.Edit{Document: o.document, Item: o.item, Annotations: o.annotations})
		}
	}
	extra := make([][]byte, 0, len(p.keepers)+1)
	for _, k := range p.keepers {
		extra = append(extra, k.manifest)
	}
	return p.in.Stream.Rewrite(edits, append(extra, p.marker.manifest)...)
}

// Applied is only what would be applied during the hold, for kubectl, which knows no Skip: no held objects, no keepers (kubectl prunes
// nothing) and no marker.
func (p *Plan) Applied() ([]byte, error) {
	if !p.Held || p.Observe {
		return p.in.Stream.Bytes(), nil
	}
	var edits []manifest.Edit
	for _, o := range p.objects {
		if !o.applied {
			edits = append(edits, manifest.Edit{Document: o.document, Item: o.item, Drop: true})
		}
	}
	if len(edits) == len(p.objects) {
		return nil, nil
	}
	return p.in.Stream.Rewrite(edits)
}

// Objects lists every object of the stream, the keepers and the marker, and what becomes of each.
func (p *Plan) Objects() ([]Object, error) {
	var out []Object
	if !p.Held {
		for _, doc := range p.in.Stream.Documents {
			heads, err := doc.Heads()
			if err != nil {
				return nil, err
			}
			for _, h := range heads {
				out = append(out, Object{ID: h.ID, Action: Emit, Why: "nothing is held"})
			}
		}
		return out, nil
	}
	for _, o := range p.objects {
		out = append(out, o.Object)
	}
	for _, k := range p.keepers {
		out = append(out, Object{ID: k.id, Action: Keep, Why: k.why})
	}
	return append(out, Object{
		ID:     manifest.ID{APIVersion: p.marker.apiVersion, Kind: p.marker.kind, Namespace: p.marker.namespace, Name: p.marker.name},
		Action: Mark,
		Why:    "makes the hold visible",
	}), nil
}

// signerRoles finds the roles and bindings of ServiceAccounts in a signer's namespace: without them a signer that comes with this very
// render would never load anything.
func (p *Plan) signerRoles() (map[string]string, error) {
	out := map[string]string{}
	isBinding := func(h manifest.Head) bool {
		return h.Group() == rbacGroup && (h.Kind == "RoleBinding" || h.Kind == "ClusterRoleBinding")
	}
	for _, doc := range p.in.Stream.Documents {
		// ClusterRoleBinding has the word in it, too.
		if !doc.MayHave("RoleBinding") {
			continue
		}
		heads, err := doc.Heads()
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(heads, isBinding) {
			continue
		}
		values, err := doc.Decode()
		if err != nil {
			return nil, err
		}
		for i, h := range heads {
			if !isBinding(h) {
				continue
			}
			signer, ok := p.signerOfSubjects(values[i])
			if !ok {
				continue
			}
			why := fmt.Sprintf("rights of a ServiceAccount in the namespace of signer %s", signer)
			namespace := p.namespaceOf(h.Namespace)
			out[roleKey(rbacGroup, h.Kind, namespace, h.Name)] = why
			ref, _ := values[i]["roleRef"].(map[string]any)
			kind, _ := ref["kind"].(string)
			name, _ := ref["name"].(string)
			out[roleKey(rbacGroup, kind, namespace, name)] = why
		}
	}
	return out, nil
}

const rbacGroup = "rbac.authorization.k8s.io"

func roleKey(group, kind, namespace, name string) string {
	if kind == "ClusterRole" || kind == "ClusterRoleBinding" {
		namespace = ""
	}
	return group + "/" + kind + "/" + namespace + "/" + name
}

func (p *Plan) signerOfSubjects(binding map[string]any) (signerName string, ok bool) {
	subjects, _ := binding["subjects"].([]any)
	for _, s := range subjects {
		subject, _ := s.(map[string]any)
		if subject["kind"] != "ServiceAccount" {
			continue
		}
		for i := range p.in.Config.Signers {
			if subject["namespace"] == p.in.Config.Signers[i].Namespace {
				return p.in.Config.Signers[i].SignerName, true
			}
		}
	}
	return "", false
}
