package hold

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/manifest"
)

// keeper is an object that only prevents a prune.
type keeper struct {
	id       manifest.ID
	why      string
	manifest []byte
}

// objectKey is an object's identity for Argo CD, which does not compare versions.
type objectKey struct{ group, kind, namespace, name string }

func (r Resource) key() objectKey { return objectKey{r.Group, r.Kind, r.Namespace, r.Name} }

// keep makes a keeper of everything that an earlier render of this source had, this one has not, and the Application still tracks.
//
// Each is the object as it was rendered then, since a bare stub fails the dry run under ServerSideDiff, and a failed comparison keeps
// even the grants from being applied (seen on argo-cd v2.14 and v3.5). What the render lacks is never taken from status.resources alone:
// with several sources that would swallow the other sources' objects.
func (p *Plan) keep(annotations map[string]string) ([]keeper, error) {
	missing := p.missing()
	if len(missing) == 0 {
		return nil, nil
	}
	var out []keeper
	var problems []error
	reached := false
	for i, entry := range p.base.held() {
		stream, err := renderOf(entry, p.in.Stream)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		reached = reached || i == p.base.at
		kept, err := p.keepersFrom(stream, missing, annotations)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		out = append(out, kept...)
	}
	complete := len(problems) == 0 && (reached || p.base.marked && p.base.key == noRelease)
	if complete || len(missing) == 0 {
		// What is left is not this source's: another source made it.
		return out, nil
	}
	stubs, err := p.stubs(missing, annotations, problems)
	return append(out, stubs...), err
}

// keysOf gives the identities under which Argo CD may track an object of a render: it puts the destination namespace into namespaced
// objects that have none, and takes the namespace away from objects that can have none.
func (p *Plan) keysOf(id manifest.ID) []objectKey {
	k := objectKey{id.Group(), id.Kind, id.Namespace, id.Name}
	switch {
	case id.Namespace == "":
		return []objectKey{k, {k.group, k.kind, p.in.Namespace, k.name}}
	case clusterScoped(k.group, k.kind):
		return []objectKey{k, {k.group, k.kind, "", k.name}}
	}
	return []objectKey{k}
}

// missing gives what the Application tracks, would prune, and this render does not have.
func (p *Plan) missing() map[objectKey]Resource {
	has := map[objectKey]bool{}
	for _, o := range p.objects {
		if !o.target {
			continue
		}
		for _, k := range p.keysOf(o.ID) {
			has[k] = true
		}
	}
	missing := map[objectKey]Resource{}
	for _, r := range p.in.Tracked {
		if _, isMarker := p.in.markerBase(r.Group, r.Kind, r.Name); isMarker || r.Hook || r.Group == Group || has[r.key()] || !p.switching && !p.keptByRemoval(r) {
			continue
		}
		missing[r.key()] = r
	}
	return missing
}

// keepersFrom takes the missing objects that one earlier render had, and removes them from missing.
func (p *Plan) keepersFrom(stream *manifest.Stream, missing map[objectKey]Resource, annotations map[string]string) ([]keeper, error) {
	var out []keeper
	for _, doc := range stream.Documents {
		heads, err := doc.Heads()
		if err != nil {
			return nil, err
		}
		var values []map[string]any
		for i, h := range heads {
			keys := p.keysOf(h.ID)
			at := slices.IndexFunc(keys, func(k objectKey) bool { _, ok := missing[k]; return ok })
			if hook := kindOfHook(h.Annotations); at < 0 || hook != hookNone && hook != hookNever {
				continue
			}
			if values == nil {
				if values, err = doc.Decode(); err != nil {
					return nil, err
				}
			}
			// The version that was rendered then may no longer be served; the tracked one is.
			if version := missing[keys[at]].Version; version != "" {
				values[i]["apiVersion"] = strings.TrimPrefix(h.Group()+"/"+version, "/")
			}
			text, err := withAnnotations(values[i], annotations)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", h.ID, err)
			}
			delete(missing, keys[at])
			out = append(out, keeper{id: h.ID, why: "deleted in this revision; stays until the release", manifest: text})
		}
	}
	return out, nil
}

func withAnnotations(object map[string]any, annotations map[string]string) ([]byte, error) {
	meta, _ := object["metadata"].(map[string]any)
	all, _ := meta["annotations"].(map[string]any)
	if all == nil {
		all = map[string]any{}
		meta["annotations"] = all
	}
	for k, v := range oddAnnotations(object) {
		all[k] = v
	}
	for k, v := range annotations {
		all[k] = v
	}
	return yaml.Marshal(object)
}

// bareKinds may be written without any field of their own.
var bareKinds = []string{"/ConfigMap", "/ServiceAccount", "/LimitRange", "/ResourceQuota", rbacGroup + "/Role", rbacGroup + "/ClusterRole"}

// stubs stands in for what can no longer be rendered. A bare stub prevents the prune just as well, but is not a valid object, which
// ServerSideDiff does not take.
func (p *Plan) stubs(missing map[objectKey]Resource, annotations map[string]string, problems []error) ([]keeper, error) {
	keys := make([]objectKey, 0, len(missing))
	for k := range missing {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b objectKey) int {
		return slices.Compare([]string{a.group, a.kind, a.namespace, a.name}, []string{b.group, b.kind, b.namespace, b.name})
	})
	why := "its last released revision is no longer in the Application's history"
	if len(problems) > 0 {
		why = problems[0].Error()
	}
	var out []keeper
	for _, k := range keys {
		r := missing[k]
		id := manifest.ID{APIVersion: r.Version, Kind: r.Kind, Namespace: r.Namespace, Name: r.Name}
		if r.Group != "" {
			id.APIVersion = r.Group + "/" + r.Version
		}
		if p.in.Sources > 1 {
			return nil, fmt.Errorf("%s: cannot tell whether this source deletes it or another source of the Application has it: %s: %s", id, why, historyAdvice)
		}
		if p.in.ServerSideDiff && !slices.Contains(bareKinds, r.Group+"/"+r.Kind) {
			return nil, fmt.Errorf("%s: deleted while the Application is held, and cannot be kept from being pruned because %s: %s, or put the object back until the release",
				id, why, historyAdvice)
		}
		meta := map[string]any{"name": r.Name}
		if r.Namespace != "" {
			meta["namespace"] = r.Namespace
		}
		text, err := withAnnotations(map[string]any{"apiVersion": id.APIVersion, "kind": id.Kind, "metadata": meta}, annotations)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
		out = append(out, keeper{id: id, why: "deleted in this revision; kept by its name alone because " + why, manifest: text})
	}
	return out, nil
}

const historyAdvice = "let the plugin see the repository's .git with its history (no tar exclusion, no shallow clone)"
