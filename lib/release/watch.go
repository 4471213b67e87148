package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/grantfirst/grantfirst/lib/config"
)

// Watcher is the controller that ends holds. It lists and watches, and polls nothing.
type Watcher struct {
	Config *config.Config
	// Own is the cluster that Argo CD runs in.
	Own Cluster
	// Elsewhere reaches the other clusters of the configuration.
	Elsewhere func(*config.Cluster) (Cluster, error)
	// Namespace is Argo CD's own. Namespaces are those of the Applications to look after, and Labels selects among them; without
	// Namespaces all are.
	Namespace  string
	Namespaces []string
	Labels     string
	// MaxInFlight is how many releases are begun at a time.
	MaxInFlight int
	Log         *slog.Logger
	// Now is the clock of the protocol.
	Now func() time.Time

	own          *watched
	clusters     map[string]*watched
	applications []*inventory
	sets         []*inventory
	projects     *inventory
	overrides    *inventory
	work         workqueue.TypedRateLimitingInterface[key]
	evidence     workqueue.TypedRateLimitingInterface[signerOf]
	chores       workqueue.TypedRateLimitingInterface[chore]

	mutex   sync.Mutex
	metrics *metrics
	// overridden counts the changes of the overrides.
	overridden uint64
	held       map[key]*held
	// announced are the messages about overrides that were said, by Application.
	announced map[key]map[string]bool
	// ready is true once everything that decisions about Applications need has been read.
	ready bool
	// batches is above 0 while many holds are being looked at: who is first is known when all have been.
	batches int
}

// key names an Application.
type key struct{ namespace, name string }

func (k key) String() string { return k.namespace + "/" + k.name }

// signerOf names a signer of a cluster.
type signerOf struct {
	cluster *watched
	signer  *config.Signer
}

// held is an Application with holds, or one whose release is not over.
type held struct {
	memory Memory
	// application is what was decided about last, read once for each version.
	application *Application
	waiting     map[Marker]*waiting
	waitingAt   map[Marker]string
	// busy: a patch is under way, and memory will be what comes of it.
	busy bool
	// place: it has one of the places of releases that may begin. wants: it would like to have one, since when, and how much.
	place, wants bool
	since        time.Time
	rank         int
	said         map[string]string
	// trouble is the reason why a hold needs a person, as long as it does.
	trouble map[Marker]string
}

// Ranks of releases that want to begin.
const (
	rankRolling = iota
	rankLoaded
	rankUnclear
)

const workers = 8

// Run works until the context ends, which is no error.
func (w *Watcher) Run(ctx context.Context) error {
	if err := w.prepare(); err != nil {
		return err
	}
	defer w.work.ShutDown()
	defer w.evidence.ShutDown()
	defer w.chores.ShutDown()
	var wait sync.WaitGroup
	defer wait.Wait()
	all := slices.Concat(w.applications, w.sets, []*inventory{w.projects, w.overrides})
	for _, c := range w.clusters {
		all = append(all, c.all()...)
	}
	for _, i := range all {
		w.observe(i)
		wait.Go(func() { i.RunWithContext(ctx) })
	}
	go func() { <-ctx.Done(); w.work.ShutDown(); w.evidence.ShutDown(); w.chores.ShutDown() }()
	for _, c := range w.clusters {
		for s := range c.evidence {
			// Where there is nothing to read there is no change either that would say so.
			wait.Go(func() {
				if cache.WaitForCacheSync(ctx.Done(), c.of(s)[0].HasSynced, c.of(s)[1].HasSynced) {
					w.evidence.Add(signerOf{c, s})
				}
			})
		}
		wait.Go(func() {
			if cache.WaitForCacheSync(ctx.Done(), c.holds.HasSynced) {
				w.again(func(h *held) bool { return w.cluster(h.application) == c })
			}
		})
	}
	needed := slices.Concat(w.applications, w.sets, []*inventory{w.projects, w.overrides})
	for _, i := range needed {
		if !cache.WaitForCacheSync(ctx.Done(), i.HasSynced) {
			return nil
		}
	}
	w.mutex.Lock()
	w.ready = true
	w.mutex.Unlock()
	w.Log.Info("watching", "clusters", len(w.clusters), "signers", len(w.Config.Signers))
	wait.Go(func() {
		for w.nextEvidence(ctx) {
		}
	})
	wait.Go(func() {
		for w.nextChore(ctx) {
		}
	})
	for range workers {
		wait.Go(func() {
			for w.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

// Ready says whether everything that decisions need has been read.
func (w *Watcher) Ready() bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.ready
}

func (w *Watcher) prepare() error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.metrics = newMetrics()
	w.held, w.announced = map[key]*held{}, map[key]map[string]bool{}
	w.work = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](20*time.Millisecond, time.Minute))
	w.evidence = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[signerOf](20*time.Millisecond, time.Minute))
	w.chores = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[chore](time.Second, time.Minute))
	w.own = newWatched("of Argo CD", w.Own, w.Config)
	w.clusters = map[string]*watched{"": w.own}
	for i := range w.Config.Clusters {
		c := &w.Config.Clusters[i]
		if c.InCluster || w.clusters[access(c)] != nil {
			continue
		}
		of, err := w.Elsewhere(c)
		if err != nil {
			return fmt.Errorf("cluster %s of the configuration: %w", c.Name, err)
		}
		w.clusters[access(c)] = newWatched(c.Name, of, w.Config)
	}
	namespaces := w.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, n := range namespaces {
		w.applications = append(w.applications, newInventory(w.Own.Client, applications, n, w.Labels, ""))
		w.sets = append(w.sets, newInventory(w.Own.Client, applicationSets, n, "", ""))
	}
	w.projects = newInventory(w.Own.Client, projects, w.Namespace, "", "")
	w.overrides = newInventory(w.Own.Client, configMaps, w.Namespace, "", "metadata.name="+overridesName)
	w.onChange()
	return nil
}

// overridesName is the ConfigMap with the admin's overrides (docs/cluster.md).
const overridesName = "grantfirst-overrides"

func access(c *config.Cluster) string { return c.Kubeconfig + "\x00" + c.Context }

func (w *Watcher) observe(i *inventory) {
	_ = i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, context.Canceled) {
			w.metrics.failed("watch "+i.what, err)
			w.Log.Warn("cannot be watched", "what", i.what, "error", err)
		}
	})
}

// onChange says what is looked at again when something changes.
func (w *Watcher) onChange() {
	for _, i := range w.applications {
		_ = i.AddIndexers(cache.Indexers{byNamespace: indexPolicies(w.Config)})
		// Nobody here asks who manages a field, and of thousands of Applications that is much.
		_ = i.SetTransform(func(o any) (any, error) {
			if u, ok := o.(*unstructured.Unstructured); ok {
				u.SetManagedFields(nil)
			}
			return o, nil
		})
		i.onChange(func(o *unstructured.Unstructured) {
			k := key{o.GetNamespace(), o.GetName()}
			if w.concerns(k, o) {
				w.work.Add(k)
			}
		})
		i.onDelete(w.gone)
	}
	for _, i := range w.sets {
		i.onChange(func(o *unstructured.Unstructured) {
			w.again(func(h *held) bool {
				return h.application != nil && h.application.Metadata.Namespace == o.GetNamespace() && h.application.setName() == o.GetName()
			})
		})
	}
	w.projects.onChange(func(o *unstructured.Unstructured) {
		w.again(func(h *held) bool { return h.application != nil && h.application.Spec.Project == o.GetName() })
	})
	w.overrides.onChange(func(*unstructured.Unstructured) {
		w.mutex.Lock()
		w.overridden++
		w.mutex.Unlock()
		w.again(func(*held) bool { return true })
		w.overridesChanged()
	})
	for _, c := range w.clusters {
		c.holds.onChange(func(o *unstructured.Unstructured) {
			if application, _, _ := unstructured.NestedString(o.Object, "spec", "application"); application != "" {
				w.work.Add(w.named(application))
			}
		})
		for s := range c.evidence {
			for _, i := range c.of(s) {
				i.onChange(func(*unstructured.Unstructured) { w.evidence.Add(signerOf{c, s}) })
			}
		}
	}
}

// named is the Application of this name as Argo CD gives it to plugins.
func (w *Watcher) named(instance string) key {
	if namespace, name, ok := strings.Cut(instance, "_"); ok {
		return key{namespace, name}
	}
	return key{w.Namespace, instance}
}

func (w *Watcher) instance(k key) string {
	if k.namespace == w.Namespace {
		return k.name
	}
	return k.namespace + "_" + k.name
}

// concerns: it has a marker, or had one. Most Applications never have, and are not even decoded.
func (w *Watcher) concerns(k key, o *unstructured.Unstructured) bool {
	w.mutex.Lock()
	known := w.held[k] != nil
	w.mutex.Unlock()
	if known {
		return true
	}
	status, _ := o.Object["status"].(map[string]any)
	resources, _ := status["resources"].([]any)
	return slices.ContainsFunc(resources, func(r any) bool {
		resource, _ := r.(map[string]any)
		name, _ := resource["name"].(string)
		return strings.HasPrefix(name, "grantfirst-") && markerName.MatchString(name)
	})
}

func (w *Watcher) again(concerned func(*held) bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for k, h := range w.held {
		if concerned(h) {
			w.work.Add(k)
		}
	}
}

// setName is the ApplicationSet that owns the Application; empty where none does.
func (a *Application) setName() string {
	for _, o := range a.Metadata.OwnerReferences {
		if o.Kind == "ApplicationSet" && strings.HasPrefix(o.APIVersion, "argoproj.io/") {
			return o.Name
		}
	}
	return ""
}

// nextEvidence finds out what one signer has loaded, and decides about all that wait for it before any of them begins.
func (w *Watcher) nextEvidence(ctx context.Context) bool {
	of, shutdown := w.evidence.Get()
	if shutdown {
		return false
	}
	defer w.evidence.Done(of)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	before := of.cluster.evidence[of.signer]
	if of.cluster.reevaluate(ctx, of.signer) {
		e := of.cluster.evidence[of.signer]
		if before.generation > 0 && replaced(&before.Evidence, &e.Evidence) {
			w.policyReplaced(of.cluster)
		}
		if now := summary(&e.Evidence); now != summary(&before.Evidence) {
			w.Log.Info("loaded", "signer", of.signer.SignerName, "cluster", of.cluster.name, "replicas", now)
		}
		w.batches++
		for k, h := range w.held {
			if w.cluster(h.application) == of.cluster && h.asks(of.signer, w.Config) {
				w.look(k, h)
			}
		}
		w.batches--
		w.begin()
	}
	if settling(of.signer, of.cluster.evidence[of.signer]) {
		w.evidence.AddAfter(of, settleAgain)
	}
	return true
}

// settleAgain is when evidence is looked at again that time alone may change.
const settleAgain = 5 * time.Second

// asks: one of its holds waits for the signer, or for what cannot be told.
func (h *held) asks(s *config.Signer, c *config.Config) bool {
	if h.application == nil {
		return true
	}
	for _, m := range h.application.Markers() {
		waits := h.waiting[m]
		if waits == nil {
			return true
		}
		for i := range waits.demands {
			if c.Signer(waits.demands[i].SignerName) == s {
				return true
			}
		}
	}
	return false
}

// cluster is where the Application deploys to; nil where that is not known.
func (w *Watcher) cluster(a *Application) *watched {
	if a == nil {
		return nil
	}
	k := key{a.Metadata.Namespace, a.Metadata.Name}
	c, err := w.Config.Cluster(config.Placement{Project: a.Spec.Project, Application: w.instance(k), Destination: &a.Spec.Destination.Destination})
	switch {
	case err != nil:
		return nil
	case c.InCluster:
		return w.own
	}
	return w.clusters[access(c)]
}

// look decides about a held Application without doing anything yet. What there is to do is left to a worker.
func (w *Watcher) look(k key, h *held) {
	o := w.observed(k, h)
	if o == nil || h.busy {
		w.work.Add(k)
		return
	}
	next, d := Decide(o, h.memory, w.Now())
	if d.Do != None || len(d.Ended) > 0 {
		w.work.Add(k)
		return
	}
	h.memory = next
	w.place(h, o, &d)
	if !d.Again.IsZero() {
		w.work.AddAfter(k, d.Again.Sub(w.Now()))
	}
}

// place keeps who has a place among the releases that have begun, and who would like to have one.
func (w *Watcher) place(h *held, o *Observed, d *Decision) {
	h.wants, h.since = d.Wants, d.Since
	h.rank = rankLoaded
	switch {
	case o.RollingSync != nil:
		h.rank = rankRolling
	case !slices.ContainsFunc(slices.Collect(maps.Values(o.Holds)), func(h Hold) bool { return h.Loaded == Yes }):
		h.rank = rankUnclear
	}
	if h.place && !d.InFlight && !(d.Wants && o.MayBegin) {
		h.place = false
	}
}

// begin gives the free places away: children of a RollingSync first, then the oldest hold.
func (w *Watcher) begin() {
	if w.batches > 0 {
		return
	}
	free := w.MaxInFlight
	var wants []key
	for k, h := range w.held {
		switch {
		case h.place:
			free--
		case h.wants:
			wants = append(wants, k)
		}
	}
	if free <= 0 || len(wants) == 0 {
		return
	}
	slices.SortFunc(wants, func(a, b key) int {
		x, y := w.held[a], w.held[b]
		return cmp.Or(cmp.Compare(x.rank, y.rank), x.since.Compare(y.since), strings.Compare(a.String(), b.String()))
	})
	for _, k := range wants[:min(free, len(wants))] {
		h := w.held[k]
		h.place, h.wants = true, false
		w.work.Add(k)
	}
}

// next takes one Application one step further.
func (w *Watcher) next(ctx context.Context) bool {
	k, shutdown := w.work.Get()
	if shutdown {
		return false
	}
	defer w.work.Done(k)
	if err := w.process(ctx, k); err != nil {
		w.work.AddRateLimited(k)
		if apierrors.IsConflict(err) {
			w.metrics.failed("release", err)
		} else if ctx.Err() == nil {
			w.failed("release", k, err)
		}
		return true
	}
	w.work.Forget(k)
	return true
}

func (w *Watcher) process(ctx context.Context, k key) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	h := w.held[k]
	if h == nil {
		h = &held{said: map[string]string{}}
	}
	o := w.observed(k, h)
	if o == nil {
		delete(w.held, k)
		w.begin()
		return nil
	}
	now := w.Now()
	next, d := Decide(o, h.memory, now)
	if len(next) > 0 || len(h.memory) > 0 {
		w.held[k] = h
	}
	if d.Do != None {
		h.busy = true
		w.mutex.Unlock()
		err := w.do(ctx, o, h, &d)
		w.mutex.Lock()
		h.busy = false
		if err != nil {
			// After a conflict the next try needs the place, too. Whatever else went wrong may last, and others can use it.
			h.memory = d.Otherwise
			if h.place = h.place && apierrors.IsConflict(err); !h.place {
				w.begin()
			}
			return err
		}
	}
	w.count(h, &d, next)
	h.memory = next
	w.place(h, o, &d)
	w.say(ctx, k, h, o, &d)
	if len(next) == 0 {
		delete(w.held, k)
	}
	w.begin()
	if !d.Again.IsZero() {
		w.work.AddAfter(k, d.Again.Sub(now))
	}
	return nil
}

// do is one patch. A conflict means that the Application is not what was decided about: look again.
func (w *Watcher) do(ctx context.Context, o *Observed, h *held, d *Decision) error {
	a := o.Application
	log := w.Log.With("application", a.Metadata.Namespace+"/"+a.Metadata.Name, "hold", d.Marker.Name, "why", d.Why)
	if d.Do == DeleteMarker {
		err := w.deleteMarker(ctx, a, h, d.Marker)
		if err == nil {
			log.Info("deleted the marker")
		}
		return err
	}
	patch, err := Patch(d.Do, o)
	if err != nil {
		return err
	}
	_, err = w.Own.Client.Resource(applications).Namespace(a.Metadata.Namespace).
		Patch(ctx, a.Metadata.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "grantfirst"})
	if err == nil {
		log.Info(string(d.Do), "resourceVersion", a.Metadata.ResourceVersion)
	}
	return err
}

func (w *Watcher) deleteMarker(ctx context.Context, a *Application, h *held, m Marker) error {
	c := w.cluster(a)
	if c == nil {
		return fmt.Errorf("marker %s: the cluster of the Application is not configured", m)
	}
	of := holds
	if m.Group == "apps" {
		of = deployments
	}
	_, err := deleteLive(ctx, c.Client.Resource(of).Namespace(m.Namespace), m.Name, func(*unstructured.Unstructured) bool { return true })
	if apierrors.IsForbidden(err) {
		// Trying again every second would not help; after a minute it is tried again.
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.tell(ctx, a, h, needs(MarkerLeft, 0, "%s is left over, and the watcher may not delete it: kubectl delete %s -n %s %s", m, strings.ToLower(m.Kind), m.Namespace, m.Name))
		return nil
	}
	return err
}

// deleteLive deletes an object as it stands, if it is the one that is meant. One that is gone, or another by now, is no error.
func deleteLive(ctx context.Context, client dynamic.ResourceInterface, name string, meant func(*unstructured.Unstructured) bool) (deleted bool, err error) {
	live, err := client.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		if !meant(live) {
			return false, nil
		}
		uid := live.GetUID()
		err = client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}

// observed is the Application as it is known now with all that a decision needs; nil where it is gone or has never been held.
func (w *Watcher) observed(k key, h *held) *Observed {
	object := w.application(k)
	if object == nil {
		return nil
	}
	if h.application == nil || h.application.Metadata.ResourceVersion != object.GetResourceVersion() {
		a, err := Read(object)
		if err != nil {
			w.Log.Warn("cannot be understood", "application", k.String(), "error", err)
			return nil
		}
		h.application = a
	}
	a := h.application
	if len(h.memory) == 0 && len(a.Markers()) == 0 {
		return nil
	}
	o := &Observed{Application: a, MayBegin: h.place, Holds: map[Marker]Hold{}}
	o.Closed, o.ClosedUntil = closed(w.windows(a), a, w.Now())
	if name := a.setName(); name != "" {
		o.RollingSync = w.rollingSync(k, name)
	}
	for _, m := range a.Markers() {
		o.Holds[m], _ = w.judge(a, h, m)
	}
	return o
}

func (w *Watcher) application(k key) *unstructured.Unstructured {
	for _, i := range w.applications {
		if o := i.get(k.namespace, k.name); o != nil {
			return o
		}
	}
	return nil
}

// windows are the sync windows of the Application's project.
func (w *Watcher) windows(a *Application) []window {
	p := w.projects.get(w.Namespace, a.Spec.Project)
	if p == nil {
		return nil
	}
	var project struct {
		Spec struct {
			SyncWindows []window `json:"syncWindows"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(p.Object, &project); err != nil {
		// Argo CD could not use it either.
		return []window{{Applications: []string{"*"}}}
	}
	return project.Spec.SyncWindows
}

// applicationSet is what is looked at in one (argoproj.io/v1alpha1).
type applicationSet struct {
	Spec struct {
		Strategy struct {
			Type string `json:"type"`
		} `json:"strategy"`
		Template struct {
			Spec struct {
				SyncPolicy struct {
					Automated Automated `json:"automated"`
				} `json:"syncPolicy"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
	Status struct {
		ApplicationStatus []struct {
			Application string `json:"application"`
			Status      string `json:"status"`
			Step        string `json:"step"`
		} `json:"applicationStatus"`
	} `json:"status"`
}

// rollingSync is what the ApplicationSet of that name says about the Application, if it is one that goes step by step.
func (w *Watcher) rollingSync(k key, name string) *RollingSync {
	for _, i := range w.sets {
		if object := i.get(k.namespace, name); object != nil {
			return readRollingSync(object, k.name)
		}
	}
	return nil
}

// readRollingSync is what an ApplicationSet says about one of its Applications; nil where it does not go step by step.
func readRollingSync(object *unstructured.Unstructured, application string) *RollingSync {
	set := &applicationSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set); err != nil || set.Spec.Strategy.Type != "RollingSync" {
		return nil
	}
	r := &RollingSync{Prune: set.Spec.Template.Spec.SyncPolicy.Automated.Prune}
	for _, s := range set.Status.ApplicationStatus {
		if s.Application == application {
			r.Status, r.Step = s.Status, s.Step
		}
	}
	return r
}

// judge finds the live marker, and whether what it waits for is loaded.
func (w *Watcher) judge(a *Application, h *held, m Marker) (Hold, *Trouble) {
	k := key{a.Metadata.Namespace, a.Metadata.Name}
	c := w.cluster(a)
	if c == nil {
		return Hold{Loaded: Unknown}, needs(EvidenceUnreadable, 0, "no entry of clusters in the configuration fits destination %s: add one", &a.Spec.Destination.Destination)
	}
	if m.Group != "apps" && !c.holds.HasSynced() {
		return Hold{Loaded: Unknown}, needs(EvidenceUnreadable, time.Minute, "the holds of the cluster cannot be read: install the Hold resource, and let the watcher list and watch it")
	}
	hold := Hold{Loaded: Unknown, Evidence: w.generation(c)}
	object := c.holds.get(m.Namespace, m.Name)
	if object == nil {
		delete(h.waiting, m)
		return hold, nil
	}
	if h.waiting == nil {
		h.waiting, h.waitingAt = map[Marker]*waiting{}, map[Marker]string{}
	}
	if h.waiting[m] == nil || h.waitingAt[m] != object.GetResourceVersion() {
		of, err := readHold(object)
		if err != nil {
			delete(h.waiting, m)
			return hold, needs(EvidenceUnreadable, 0, "%v", err)
		}
		h.waiting[m], h.waitingAt[m] = of, object.GetResourceVersion()
	}
	of := h.waiting[m]
	if of.application != w.instance(k) {
		return hold, nil
	}
	hold.Digest = of.digest
	overrides := readOverrides(w.overrides.get(w.Namespace, overridesName), of.application)
	var trouble *Trouble
	hold.Loaded, trouble = judge(of, w.Config, overrides, c.Now(), func(s *config.Signer) *evidence { return c.evidence[s] })
	return hold, trouble
}

// generation counts everything in a cluster that the plugin may decide by; 0 until something was read.
func (w *Watcher) generation(c *watched) uint64 {
	sum := uint64(0)
	for _, e := range c.evidence {
		sum += e.generation
	}
	if sum == 0 {
		return 0
	}
	return sum + w.overridden
}
