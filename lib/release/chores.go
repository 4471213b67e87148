package release

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/grantfirst/grantfirst/lib/policy"
)

// chore is work that belongs to no hold of an Application.
type chore struct {
	do chores
	of key
	// cluster and marker are those of a sweep.
	cluster *watched
	marker  Marker
}

type chores string

const (
	// regenerate has manifests made anew that were released before a policy changed, and are not synced yet.
	regenerate chores = "regenerate"
	// sweep deletes the marker of an Application that is gone.
	sweep chores = "sweep"
	// announce says which overrides of an Application have come into force or run out.
	announce chores = "announce"
)

const (
	// staggered is between two Applications of many that are regenerated, which costs Argo CD a render each.
	staggered = 200 * time.Millisecond
	// cascades is how long Argo CD, or whoever deletes an Application, has for its objects.
	cascades = 30 * time.Second
)

func (w *Watcher) nextChore(ctx context.Context) bool {
	c, shutdown := w.chores.Get()
	if shutdown {
		return false
	}
	defer w.chores.Done(c)
	var err error
	switch c.do {
	case regenerate:
		err = w.regenerate(ctx, c.of)
	case sweep:
		err = w.sweepOrphan(ctx, &c)
	case announce:
		w.announce(ctx, c.of)
	}
	if err == nil || w.chores.NumRequeues(c) >= 10 {
		w.chores.Forget(c)
	} else {
		w.chores.AddRateLimited(c)
	}
	if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) {
		w.failed(string(c.do), c.of, err)
	}
	return true
}

// failed logs what will be tried again.
func (w *Watcher) failed(what string, k key, err error) {
	w.metrics.failed(what, err)
	w.Log.Warn("could not be done", "what", what, "application", k.String(), "error", err)
}

// replaced says whether a replica decides by a policy that none decided by before: a grant may have fallen away.
func replaced(before, after *policy.Evidence) bool {
	return slices.ContainsFunc(after.Replicas, func(r policy.Replica) bool {
		return r.Policy != nil && !slices.ContainsFunc(before.Replicas, func(b policy.Replica) bool { return b.Policy != nil && identity(&b) == identity(&r) })
	})
}

// identity is that of the policy that a replica decides by.
func identity(r *policy.Replica) string {
	all, ok := r.Policy.(policy.Alternatives)
	if !ok {
		return r.Revision
	}
	var s strings.Builder
	for i := range all {
		fmt.Fprintf(&s, "%s %d %q\n", all[i].Object.String(), all[i].Object.Generation, all[i].NotLoaded)
	}
	return s.String()
}

// policyReplaced has all Applications of the cluster regenerated that are not synced yet. Which of them demand what the policy granted before is
// only known to the plugin.
func (w *Watcher) policyReplaced(c *watched) {
	n := time.Duration(0)
	for _, i := range w.applications {
		for _, object := range i.GetStore().List() {
			o := object.(*unstructured.Unstructured)
			k := key{o.GetNamespace(), o.GetName()}
			if w.stale(k, o, c) != nil {
				w.chores.AddAfter(chore{do: regenerate, of: k}, n*staggered)
				n++
			}
		}
	}
}

// stale gives the Application where the manifests that Argo CD has of it were made by the plugin, are not synced, and nobody is about to
// sync them or looks after them: those with holds are released and taken back by the protocol.
func (w *Watcher) stale(k key, o *unstructured.Unstructured, c *watched) *Application {
	if text, _, _ := unstructured.NestedString(o.Object, "status", "sync", "status"); text != statusOutOfSync || w.held[k] != nil || !usesPlugin(o) {
		return nil
	}
	a, err := Read(o)
	if err != nil || a.Metadata.DeletionTimestamp != nil || !a.idle() || a.onlyPrunesLeft() || len(a.Markers()) > 0 {
		return nil
	}
	if of := w.cluster(a); of == nil || c != nil && of != c {
		return nil
	}
	return a
}

// usesPlugin: the plugin may go by its name, by its name and version, or be found by Argo CD.
func usesPlugin(o *unstructured.Unstructured) bool {
	spec, _ := o.Object["spec"].(map[string]any)
	sources, _ := spec["sources"].([]any)
	return slices.ContainsFunc(append(slices.Clone(sources), spec["source"]), func(s any) bool {
		source, _ := s.(map[string]any)
		plugin, uses := source["plugin"].(map[string]any)
		name, _ := plugin["name"].(string)
		return uses && (name == "" || name == "grantfirst" || strings.HasPrefix(name, "grantfirst-"))
	})
}

func (w *Watcher) regenerate(ctx context.Context, k key) error {
	w.mutex.Lock()
	object := w.application(k)
	if object == nil {
		w.mutex.Unlock()
		return nil
	}
	a := w.stale(k, object, nil)
	w.mutex.Unlock()
	if a == nil || a.Metadata.Annotations[annotationRefresh] == "hard" {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": a.Metadata.ResourceVersion, "annotations": map[string]any{annotationRefresh: "hard"}}})
	if err != nil {
		return err
	}
	_, err = w.Own.Client.Resource(applications).Namespace(k.namespace).Patch(ctx, k.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "grantfirst"})
	if err == nil {
		w.Log.Info("refresh", "application", k.String(), "why", "what a signer has loaded changed, and this is not synced yet")
	}
	return err
}

// gone has the markers swept of an Application that was deleted, where its objects were not deleted with it.
func (w *Watcher) gone(o *unstructured.Unstructured) {
	a, err := Read(o)
	if err != nil {
		return
	}
	c := w.cluster(a)
	if c == nil {
		return
	}
	for _, m := range a.Markers() {
		w.chores.AddAfter(chore{do: sweep, of: key{o.GetNamespace(), o.GetName()}, cluster: c, marker: m}, cascades)
	}
}

func (w *Watcher) sweepOrphan(ctx context.Context, c *chore) error {
	if c.marker.Group == "apps" || c.cluster.holds.get(c.marker.Namespace, c.marker.Name) == nil || w.application(c.of) != nil {
		return nil
	}
	// The selector may hide it by now.
	_, err := w.Own.Client.Resource(applications).Namespace(c.of.namespace).Get(ctx, c.of.name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	deleted, err := deleteLive(ctx, c.cluster.Client.Resource(holds).Namespace(c.marker.Namespace), c.marker.Name, func(live *unstructured.Unstructured) bool {
		of, _, _ := unstructured.NestedString(live.Object, "spec", "application")
		return of == w.instance(c.of)
	})
	if deleted {
		w.Log.Info("deleted the marker", "application", c.of.String(), "hold", c.marker.Name, "why", "its Application is gone")
	}
	return err
}

// overridesChanged has everything announced that is new in the overrides.
func (w *Watcher) overridesChanged() {
	object := w.overrides.get(w.Namespace, overridesName)
	if object == nil {
		return
	}
	data, _, _ := unstructured.NestedStringMap(object.Object, "data")
	for application := range data {
		w.chores.Add(chore{do: announce, of: w.named(application)})
	}
}

// announce says what lets the Application go past its grants, from when on and how long, and when that is over.
func (w *Watcher) announce(ctx context.Context, k key) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	name := w.instance(k)
	object := w.overrides.get(w.Namespace, overridesName)
	if object == nil {
		return
	}
	text, _, _ := unstructured.NestedString(object.Object, "data", name)
	said := w.announced[k]
	if said == nil {
		said = map[string]bool{}
		w.announced[k] = said
	}
	say := func(t *Trouble) {
		if said[t.Reason+t.Message] {
			return
		}
		said[t.Reason+t.Message] = true
		if object := w.application(k); object != nil {
			if a, err := Read(object); err == nil {
				w.event(ctx, a, t)
				return
			}
		}
		w.Log.Warn("needs a person", "application", k.String(), "reason", t.Reason, "message", t.Message+"; there is no such Application")
	}
	all, err := parseOverrides(text)
	if err != nil {
		say(needs(OverrideInvalid, 0, "key %s of ConfigMap %s/%s cannot be understood, and nothing of it counts: %v: write a list of {until, reason}", name, w.Namespace, overridesName, err))
		return
	}
	now := w.own.Now()
	for i := range all {
		o := &all[i]
		until, inForce := o.inForce(now)
		in := needs(Overridden, 0, "%s may go past grants that are not loaded until %s: %s", o.what(), o.Until, o.Reason)
		switch {
		case until.IsZero() || strings.TrimSpace(o.Reason) == "":
			say(needs(OverrideInvalid, 0, "entry %d of key %s of ConfigMap %s/%s does not count: it needs until, in RFC 3339, and reason", i+1, name, w.Namespace, overridesName))
		case inForce:
			say(in)
			w.chores.AddAfter(chore{do: announce, of: k}, until.Sub(now)+time.Second)
		case said[in.Reason+in.Message]:
			say(needs(OverrideOver, 0, "the override of %s ran out at %s: what is synced from now on needs its grants", o.what(), o.Until))
		}
	}
}

// what the override is about.
func (o *override) what() string {
	var parts []string
	if o.ServiceAccount != "" {
		parts = append(parts, "ServiceAccount "+o.ServiceAccount)
	}
	if o.Namespace != "" {
		parts = append(parts, "namespace "+o.Namespace)
	}
	if o.SignerName != "" {
		parts = append(parts, "signer "+o.SignerName)
	}
	if len(parts) == 0 {
		return "every demand"
	}
	return "demands of " + strings.Join(parts, ", ")
}
