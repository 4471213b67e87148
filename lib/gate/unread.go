package gate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/manifest"
)

// unread is a podCertificate source that is in no pod spec, such as one in the extraVolumes of a custom resource: a controller makes pods of
// it, and how is not written there.
type unread struct {
	demand.Demand
	// path is where in the object it stands: keys, and indices in brackets.
	path []string
	// readable: a ServiceAccount is named around it, as web or {name: web}. That is who asks, so it is a demand like any other.
	readable bool
	// text is the digest of its document.
	text  string
	place place
}

// at is the path as people write it.
func (u *unread) at() string { return strings.ReplaceAll(strings.Join(u.path, "."), ".[", "[") }

// bystander: objects in which a podCertificate source is no pod's. A policy engine's rules match and change the pods of others, the values of
// an Application are judged as what its chart makes of them, and a definition only describes.
func (g *Gate) bystander(h manifest.Head, destination string) bool {
	group := h.Group()
	switch group {
	case "apiextensions.k8s.io", "admissionregistration.k8s.io", "certificates.k8s.io":
		return true
	case "argoproj.io":
		return h.Kind == "Application" || h.Kind == "ApplicationSet"
	}
	for _, engine := range []string{"kyverno.io", "gatekeeper.sh"} {
		if group == engine || strings.HasSuffix(group, "."+engine) {
			return true
		}
	}
	return slices.ContainsFunc(g.readers, func(r reader) bool { return r.is(h, cmp.Or(h.Namespace, destination)) })
}

// unreadIn gives the sources of a document that lib/demand does not take for a pod's.
func (g *Gate) unreadIn(doc *manifest.Document, destination string) ([]unread, error) {
	if !doc.MayHave(word) {
		return nil, nil
	}
	heads, err := doc.Heads()
	if err != nil {
		return nil, err
	}
	objects, err := doc.Decode()
	if err != nil {
		return nil, err
	}
	var out []unread
	for item, object := range objects {
		if item >= len(heads) || g.bystander(heads[item], destination) {
			continue
		}
		w := looseWalk{}
		w.value(object, nil)
		for _, l := range w.found {
			u := unread{path: l.path, text: digest(string(doc.Raw))}
			if found, err := demand.InObject(l.asPod(object), destination); err == nil && len(found) == 1 {
				u.Demand, u.readable = found[0], l.account != ""
			}
			if u.Object, u.Document, u.Item, u.Volume = heads[item].ID, doc.Number, item, l.volume; !u.readable {
				u.ServiceAccount = ""
			}
			out = append(out, u)
		}
	}
	return out, nil
}

// loose is one such source with what is around it.
type loose struct {
	path            []string
	volume, account string
	certificate     map[string]any
}

// asPod is the object as if it had a pod spec with the source.
func (l *loose) asPod(object map[string]any) map[string]any {
	sources := []any{map[string]any{word: l.certificate}}
	spec := map[string]any{"volumes": []any{map[string]any{"name": l.volume, "projected": map[string]any{"sources": sources}}}}
	if l.account != "" {
		spec["serviceAccountName"] = l.account
	}
	return map[string]any{"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": object["metadata"], "spec": spec}
}

// looseWalk finds sources in no pod spec.
type looseWalk struct {
	found []loose
	// around are the maps on the way, the innermost last.
	around []map[string]any
}

func (w *looseWalk) value(v any, path []string) {
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			w.value(item, append(path, "["+strconv.Itoa(i)+"]"))
		}
	case map[string]any:
		w.around = append(w.around, v)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if certificate, ok := v[key].(map[string]any); ok && key == word && isSourceOf(certificate, path) && !inPodSpec(path) {
				w.found = append(w.found, w.loose(certificate, append(path, key)))
				continue
			}
			w.value(v[key], append(path, key))
		}
		w.around = w.around[:len(w.around)-1]
	}
}

// isSourceOf tells a source from a mere key of that name: it names its signer, or is one of a list of sources.
func isSourceOf(certificate map[string]any, path []string) bool {
	_, names := certificate["signerName"].(string)
	return names || len(path) > 1 && path[len(path)-2] == "sources" && strings.HasPrefix(path[len(path)-1], "[")
}

// inPodSpec: lib/demand finds what is at volumes[].projected.sources[].
func inPodSpec(path []string) bool {
	n := len(path)
	return n >= 5 && path[n-5] == "volumes" && strings.HasPrefix(path[n-4], "[") && path[n-3] == "projected" && path[n-2] == "sources" && strings.HasPrefix(path[n-1], "[")
}

func (w *looseWalk) loose(certificate map[string]any, path []string) loose {
	l, named := loose{path: slices.Clone(path), certificate: certificate}, false
	for _, m := range slices.Backward(w.around) {
		if _, ok := m["projected"]; ok && l.volume == "" {
			l.volume, _ = m["name"].(string)
		}
		for _, key := range []string{"serviceAccountName", "serviceAccount"} {
			if v, ok := m[key]; ok && !named {
				// The nearest counts also where it cannot be read: what is further out is somebody else's.
				l.account, named = accountOf(v), true
			}
		}
	}
	return l
}

// accountOf reads web and {name: web}; empty where neither stands there.
func accountOf(v any) string {
	if m, ok := v.(map[string]any); ok {
		v = m["name"]
	}
	name, _ := v.(string)
	return name
}

// unreadable are findings about sources in no pod spec. before are those of the merge base.
func (j *judgement) unreadable(roots []*root, before map[string]bool, untouched bool) {
	for _, r := range roots {
		if r.broken != nil {
			continue
		}
		for _, u := range j.gate.render(r).unread {
			l := &located{&found{Demand: u.Demand, text: u.text, place: u.place}, r}
			of := ""
			if u.SignerName != "" {
				of = " of signer " + u.SignerName
			}
			f := j.finding(l, Unknown, j.head, "a podCertificate%s at %s is in no pod spec and has no serviceAccountName around it, so it cannot be told who will ask, and the plugin does not hold it back either: "+
				"find out which ServiceAccount its pods have, see that it is granted at the merge base, and merge this by hand", of, u.at())
			if f.Existing = untouched || before[l.objectKey()+l.text]; f.Existing {
				f.Message = fmt.Sprintf("%s; this change does not touch the object", f.Message)
			}
			j.place(f, l)
		}
	}
}

// unreadBefore gives the objects of the merge base with such sources, as they are there.
func (j *judgement) unreadBefore(roots []*root) map[string]bool {
	before := map[string]bool{}
	for _, r := range roots {
		if r.broken != nil {
			continue
		}
		for _, u := range j.gate.render(r).unread {
			l := &located{&found{Demand: u.Demand, text: u.text}, r}
			before[l.objectKey()+l.text] = true
		}
	}
	return before
}
