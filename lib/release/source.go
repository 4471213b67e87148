package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/loaded"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// Resources that are watched.
var (
	holds           = schema.GroupVersionResource{Group: hold.Group, Version: "v1alpha1", Resource: "holds"}
	applications    = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applications"}
	applicationSets = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applicationsets"}
	projects        = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "appprojects"}
	pods            = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	configMaps      = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	events          = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	deployments     = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// Cluster is a cluster to be watched. Now is the time by its API server's clock.
type Cluster struct {
	Client dynamic.Interface
	Now    func() time.Time
}

// inventory is a set of objects that is kept up to date.
type inventory struct {
	what string
	cache.SharedIndexInformer
}

func newInventory(client dynamic.Interface, of schema.GroupVersionResource, namespace, labels, fields string) *inventory {
	tweak := func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = labels, fields }
	what := of.Resource
	if of.Group != "" {
		what += "." + of.Group
	}
	if namespace != "" {
		what += " in namespace " + namespace
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, of, namespace, 0, cache.Indexers{}, tweak).Informer()
	return &inventory{what, informer}
}

func (i *inventory) onChange(do func(*unstructured.Unstructured)) {
	handle := handler(do)
	// An informer takes handlers for as long as it has not been stopped.
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, o any) { handle(o) }, DeleteFunc: handle})
}

func (i *inventory) onDelete(do func(*unstructured.Unstructured)) {
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: handler(do)})
}

// handler takes what an informer hands out; an object that went while nobody watched is handed out as it was seen last.
func handler(do func(*unstructured.Unstructured)) func(any) {
	return func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		if o, ok := object.(*unstructured.Unstructured); ok {
			do(o)
		}
	}
}

func (i *inventory) get(namespace, name string) *unstructured.Unstructured {
	o, ok, _ := i.GetStore().GetByKey(strings.TrimPrefix(namespace+"/"+name, "/"))
	if !ok {
		return nil
	}
	return o.(*unstructured.Unstructured)
}

// watched is a cluster with all that is watched in it: holds everywhere, and what each signer is judged by. It is a loaded.Source.
type watched struct {
	name string
	Cluster
	holds *inventory
	// pods and policies are by namespace, resources by signer.
	pods, configMaps map[string]*inventory
	resources        map[*config.Signer]*inventory
	evidence         map[*config.Signer]*evidence
}

// evidence is what a signer has loaded as far as was read. Generation counts its changes; 0 is never read.
type evidence struct {
	policy.Evidence
	generation uint64
	signature  string
	// since is when each replica was first seen to decide by the policy that it has now, by pod.
	since map[string]time.Time
}

func newWatched(name string, of Cluster, c *config.Config) *watched {
	w := &watched{
		name: name, Cluster: of, holds: newInventory(of.Client, holds, "", "", ""),
		pods: map[string]*inventory{}, configMaps: map[string]*inventory{}, resources: map[*config.Signer]*inventory{}, evidence: map[*config.Signer]*evidence{},
	}
	for i := range c.Signers {
		s := &c.Signers[i]
		w.evidence[s] = &evidence{Evidence: policy.Evidence{Kind: s.Evidence, Problem: "its objects have not been read yet"}}
		if w.pods[s.Namespace] == nil {
			w.pods[s.Namespace] = newInventory(of.Client, pods, s.Namespace, "", "")
		}
		if r := s.Policy.Resource; r != nil {
			group, version, _ := strings.Cut(r.APIVersion, "/")
			namespace := r.Namespace
			if namespace == config.AllNamespaces {
				namespace = ""
			}
			w.resources[s] = newInventory(of.Client, schema.GroupVersionResource{Group: group, Version: version, Resource: r.Resource}, namespace, r.Selector, "")
		} else if w.configMaps[s.Namespace] == nil {
			w.configMaps[s.Namespace] = newInventory(of.Client, configMaps, s.Namespace, "", "")
		}
	}
	return w
}

// of gives what a signer is judged by.
func (w *watched) of(s *config.Signer) []*inventory {
	if r := w.resources[s]; r != nil {
		return []*inventory{w.pods[s.Namespace], r}
	}
	return []*inventory{w.pods[s.Namespace], w.configMaps[s.Namespace]}
}

// all gives everything that is watched.
func (w *watched) all() []*inventory {
	all := []*inventory{w.holds}
	for s := range w.evidence {
		all = append(all, w.of(s)...)
	}
	slices.SortFunc(all, func(a, b *inventory) int { return strings.Compare(a.what, b.what) })
	return slices.Compact(all)
}

var errNotRead = errors.New("not read yet")

// Objects gives what the signer is judged by, as it was when the last change was seen.
func (w *watched) Objects(_ context.Context, s *config.Signer) (*loaded.Objects, error) {
	for _, i := range w.of(s) {
		if !i.HasSynced() {
			return nil, fmt.Errorf("%s: %w", i.what, errNotRead)
		}
	}
	o := &loaded.Objects{At: w.Now()}
	var err error
	if o.Pods, err = typed[corev1.Pod](w.pods[s.Namespace]); err != nil {
		return nil, err
	}
	if r := w.resources[s]; r != nil {
		o.Resources = []map[string]any{}
		for _, object := range r.GetStore().List() {
			o.Resources = append(o.Resources, object.(*unstructured.Unstructured).Object)
		}
		return o, nil
	}
	o.ConfigMaps, err = typed[corev1.ConfigMap](w.configMaps[s.Namespace])
	return o, err
}

func typed[T any](i *inventory) ([]T, error) {
	list := i.GetStore().List()
	all := make([]T, len(list))
	for n, o := range list {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.(*unstructured.Unstructured).Object, &all[n]); err != nil {
			return nil, fmt.Errorf("%s: %w", i.what, err)
		}
	}
	return all, nil
}

// reevaluate finds out anew what a signer has loaded, and says whether that is something else than before.
func (w *watched) reevaluate(ctx context.Context, s *config.Signer) bool {
	before := w.evidence[s]
	objects, err := w.Objects(ctx, s)
	if err != nil {
		return false
	}
	e := &evidence{Evidence: loaded.Evaluate(s, objects), generation: before.generation}
	if e.signature = signature(&e.Evidence); e.signature != before.signature || before.generation == 0 {
		e.generation++
	}
	e.since = map[string]time.Time{}
	for i := range e.Replicas {
		r := &e.Replicas[i]
		e.since[r.Pod] = w.Now()
		at := slices.IndexFunc(before.Replicas, func(b policy.Replica) bool { return b.Pod == r.Pod })
		if at >= 0 && (before.Replicas[at].Policy == nil) == (r.Policy == nil) && identity(&before.Replicas[at]) == identity(r) {
			e.since[r.Pod] = before.since[r.Pod]
		}
	}
	w.evidence[s] = e
	return e.generation != before.generation
}

// settling: the evidence becomes another by time alone.
func settling(s *config.Signer, e *evidence) bool {
	return s.Evidence == config.Settle && slices.ContainsFunc(e.Replicas, func(r policy.Replica) bool { return r.Problem != "" })
}

// signature has in it all that a decision can depend on.
func signature(e *policy.Evidence) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%q", e.Problem)
	objects := func(all policy.Alternatives) {
		for i := range all {
			o := &all[i]
			fmt.Fprintf(&s, " [%s %q %q]", o.Object.String(), o.Problem, o.NotLoaded)
		}
	}
	for i := range e.Replicas {
		r := &e.Replicas[i]
		fmt.Fprintf(&s, "\n%q %q %q %v %v", r.Pod, r.Revision, r.Problem, r.Pending, r.Terminating)
		if all, ok := r.Policy.(policy.Alternatives); ok {
			objects(all)
		}
	}
	objects(e.Live)
	return s.String()
}

// summary is what each replica has loaded, for a log.
func summary(e *policy.Evidence) string {
	if e.Problem != "" {
		return e.Problem
	}
	all := make([]string, 0, len(e.Replicas))
	for i := range e.Replicas {
		r := &e.Replicas[i]
		has := r.Revision
		if cut := len("sha256:") + 12; len(has) > cut {
			has = has[:cut]
		}
		switch {
		case r.Policy == nil:
			has = r.Problem
		case r.Pending:
			has += " when it starts"
		case has == "":
			has = "its policy objects"
		}
		all = append(all, r.Pod+": "+has)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// Clock tells the time of an API server by the dates of its answers.
type Clock struct {
	ahead atomic.Int64
}

// Saw takes the Date header of an answer.
func (c *Clock) Saw(date time.Time) {
	// A date is cut to seconds: what seems to be up to a second behind may not be.
	if ahead := time.Until(date); ahead > 0 || ahead < -time.Second {
		c.ahead.Store(int64(ahead))
	}
}

// Now is the time there.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }
