package release

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// fakeCluster is an API server in memory that counts versions and refuses patches of an old one.
type fakeCluster struct {
	testing.TB
	*dynamicfake.FakeDynamicClient
	mutex   sync.Mutex
	rv      int
	patches []patched
	deleted []string
	// onPatch is Argo CD.
	onPatch func(name string, patch string)
}

type patched struct {
	name, body string
	at         time.Time
}

func newFakeCluster(t testing.TB) *fakeCluster {
	kinds := map[schema.GroupVersionResource]string{
		holds: "HoldList", applications: "ApplicationList", applicationSets: "ApplicationSetList", projects: "AppProjectList",
		pods: "PodList", configMaps: "ConfigMapList", events: "EventList", deployments: "DeploymentList",
	}
	c := &fakeCluster{TB: t, FakeDynamicClient: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds), rv: 100}
	c.PrependReactor("patch", "applications", func(action clienttesting.Action) (bool, runtime.Object, error) {
		p := action.(clienttesting.PatchAction)
		return c.patch(p)
	})
	c.PrependReactor("delete", "holds", func(action clienttesting.Action) (bool, runtime.Object, error) {
		d := action.(clienttesting.DeleteActionImpl)
		live, err := c.Tracker().Get(holds, d.Namespace, d.Name)
		if err == nil && (d.DeleteOptions.Preconditions == nil || *d.DeleteOptions.Preconditions.UID != live.(*unstructured.Unstructured).GetUID()) {
			err = apierrors.NewConflict(holds.GroupResource(), d.Name, nil)
		}
		c.mutex.Lock()
		c.deleted = append(c.deleted, d.Name)
		c.mutex.Unlock()
		return err != nil, nil, err
	})
	return c
}

func (c *fakeCluster) patch(p clienttesting.PatchAction) (bool, runtime.Object, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	live, err := c.Tracker().Get(applications, p.GetNamespace(), p.GetName())
	if err != nil {
		return true, nil, err
	}
	var guard struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(p.GetPatch(), &guard); err != nil || p.GetPatchType() != types.MergePatchType {
		c.Errorf("patch %s: %v", p.GetPatch(), err)
	}
	if guard.Metadata.ResourceVersion != live.(*unstructured.Unstructured).GetResourceVersion() {
		return true, nil, apierrors.NewConflict(applications.GroupResource(), p.GetName(), nil)
	}
	body := &unstructured.Unstructured{}
	if err := json.Unmarshal(p.GetPatch(), &body.Object); err != nil {
		c.Error(err)
	}
	next := live.(*unstructured.Unstructured).DeepCopy()
	merge(next.Object, body.Object)
	c.rv++
	next.SetResourceVersion(strconv.Itoa(c.rv))
	if err := c.Tracker().Update(applications, next, next.GetNamespace()); err != nil {
		c.Error(err)
	}
	c.patches = append(c.patches, patched{p.GetName(), string(p.GetPatch()), time.Now()})
	if c.onPatch != nil {
		go c.onPatch(p.GetName(), string(p.GetPatch()))
	}
	return true, next, nil
}

// merge is RFC 7386 for objects.
func merge(into, patch map[string]any) {
	for k, v := range patch {
		inner, ok := v.(map[string]any)
		switch {
		case v == nil:
			delete(into, k)
		case ok:
			of, _ := into[k].(map[string]any)
			if of == nil {
				of = map[string]any{}
			}
			merge(of, inner)
			into[k] = of
		default:
			into[k] = v
		}
	}
}

// put makes an object or changes it.
func (c *fakeCluster) put(of schema.GroupVersionResource, text string) {
	c.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		c.Fatalf("%v\n%s", err, text)
	}
	raw, err := json.Marshal(o.Object)
	if err == nil {
		err = o.UnmarshalJSON(raw)
	}
	if err != nil {
		c.Fatal(err)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.rv++
	o.SetResourceVersion(strconv.Itoa(c.rv))
	if _, err := c.Tracker().Get(of, o.GetNamespace(), o.GetName()); err != nil {
		err = c.Tracker().Create(of, o, o.GetNamespace())
		if err != nil {
			c.Fatal(err)
		}
		return
	}
	if err := c.Tracker().Update(of, o, o.GetNamespace()); err != nil {
		c.Fatal(err)
	}
}

func (c *fakeCluster) done() []patched {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return slices.Clone(c.patches)
}

// refreshes are the names of what was refreshed, in order.
func (c *fakeCluster) refreshes() []string {
	var names []string
	for _, p := range c.done() {
		if strings.Contains(p.body, `"hard"`) {
			names = append(names, p.name)
		}
	}
	return names
}

// swept are the markers that were deleted, in order.
func (c *fakeCluster) swept() []string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return slices.Clone(c.deleted)
}

func (c *fakeCluster) told() []string {
	list, err := c.Tracker().List(events, schema.GroupVersionKind{Version: "v1", Kind: "Event"}, "argocd")
	if err != nil {
		c.Fatal(err)
	}
	var all []string
	for _, o := range list.(*unstructured.UnstructuredList).Items {
		all = append(all, fmt.Sprint(o.Object["reason"], ": ", o.Object["message"]))
	}
	slices.Sort(all)
	return all
}

const configuration = `
apiVersion: grantfirst.dev/v1alpha1
kind: Config
signers:
- signerName: example.com/workload
  namespace: signer
  policy: {configMap: {name: policy}, key: policy.yaml, format: grants}
  podSelector: app=signer
  evidence: report
`

func (c *fakeCluster) policy(text string) {
	c.put(configMaps, `{apiVersion: v1, kind: ConfigMap, metadata: {name: policy, namespace: signer, uid: p}, data: {policy.yaml: `+strconv.Quote(text)+`}}`)
}

func (c *fakeCluster) replica(name string) {
	c.put(pods, `{apiVersion: v1, kind: Pod, metadata: {name: `+name+`, namespace: signer, uid: u-`+name+`, labels: {app: signer}}, spec: {containers: [{name: signer}]},
		status: {phase: Running, containerStatuses: [{name: signer, containerID: "c://`+name+`", state: {running: {startedAt: "2026-11-29T11:00:00Z"}}}]}}`)
}

// loads publishes what a replica has loaded.
func (c *fakeCluster) loads(name, text string) {
	c.put(configMaps, `{apiVersion: v1, kind: ConfigMap, metadata: {name: report-`+name+`, namespace: signer, uid: r-`+name+`, labels: {grantfirst.dev/report: v1},
		ownerReferences: [{apiVersion: v1, kind: Pod, name: `+name+`, uid: u-`+name+`}]},
		data: {signerName: example.com/workload, container: signer, containerID: "c://`+name+`", policy: `+strconv.Quote(text)+`, revision: "`+policy.Revision([]byte(text))+`", loadedAt: "2026-11-29T11:59:00Z"}}`)
}

const heldApplication = `
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: NAME, namespace: argocd, uid: app-NAME}
spec:
  project: default
  destination: {server: https://kubernetes.default.svc, namespace: shop}
  source: {repoURL: https://git.example/shop.git, path: NAME, plugin: {name: grantfirst}}
  syncPolicy: {automated: {prune: true}}
status:
  sync: {status: Synced, revision: c1}
  history: [{id: 1, revision: c1}]
  operationState: {phase: Succeeded, startedAt: "2026-11-29T11:58:00Z", operation: {sync: {}}, syncResult: {resources: [{group: grantfirst.dev, kind: Hold, namespace: shop, name: MARKER, status: Synced}]}}
  resources:
  - {group: grantfirst.dev, version: v1alpha1, kind: Hold, namespace: shop, name: MARKER, status: Synced}
  - {group: apps, version: v1, kind: Deployment, namespace: shop, name: NAME}
`

const freshApplication = `
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: NAME, namespace: argocd, uid: app-NAME}
spec:
  project: default
  destination: {server: https://kubernetes.default.svc, namespace: shop}
  syncPolicy: {automated: {prune: true}}
status:
  sync: {status: Synced, revision: c1}
  history: [{id: 1, revision: c1}, {id: 2, revision: c1}]
  operationState: {phase: Succeeded, startedAt: "2026-11-29T12:00:00Z", operation: {sync: {}}, syncResult: {resources: [{group: grantfirst.dev, kind: Hold, namespace: shop, name: MARKER, status: Pruned}]}}
  resources:
  - {group: apps, version: v1, kind: Deployment, namespace: shop, name: NAME, status: Synced}
`

const outOfSync = `
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: NAME, namespace: argocd, uid: app-NAME}
spec:
  project: default
  destination: {server: https://kubernetes.default.svc, namespace: shop}
  source: {repoURL: https://git.example/shop.git, path: NAME, plugin: {name: grantfirst}}
status:
  sync: {status: OutOfSync, revision: c1}
  operationState: {phase: Succeeded, startedAt: "2026-11-29T12:00:00Z", operation: {sync: {}}}
  resources:
  - {group: apps, version: v1, kind: Deployment, namespace: shop, name: NAME, status: OutOfSync}
`

func markerOf(name string) string { return "grantfirst-" + hex10(name) + "-none" }

// hex10 is no hash, but tells the names of these tests apart.
func hex10(name string) string {
	digits := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, name)
	return strings.Repeat("0", 10-len(digits)) + digits
}

func named(text, name string) string {
	return strings.NewReplacer("NAME", name, "MARKER", markerOf(name)).Replace(text)
}

func (c *fakeCluster) held(name string) {
	c.put(holds, named(`
apiVersion: grantfirst.dev/v1alpha1
kind: Hold
metadata: {name: MARKER, namespace: shop, uid: hold-NAME}
spec:
  application: NAME
  signer: example.com/workload
  waitingFor: a grant
  digest: sha256:NAME
  demands:
  - {signerName: example.com/workload, namespace: shop, serviceAccount: NAME, keyType: ECDSAP256, object: apps/Deployment shop/NAME, volume: tls, message: m,
     replicas: [{pod: signer-1, decision: notGranted}]}
`, name))
	c.put(applications, named(heldApplication, name))
}

const grantsNone = "[]"

func grants(names ...string) string {
	return "- {namespace: shop, serviceAccount: " + strings.Join(names, "}\n- {namespace: shop, serviceAccount: ") + "}\n"
}

// watcher in the bubble of a test; it ends with the test.
func (c *fakeCluster) watch(t *testing.T, change func(*Watcher)) *Watcher {
	t.Helper()
	conf, err := config.Parse([]byte(configuration))
	if err != nil {
		t.Fatal(err)
	}
	w := &Watcher{Config: conf, Own: Cluster{c, time.Now}, Namespace: "argocd", MaxInFlight: 10, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now}
	if change != nil {
		change(w)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

func after(d time.Duration) {
	time.Sleep(d) // of the bubble's clock
	synctest.Wait()
}

// argoCD answers a hard refresh with fresh manifests, synced, some time later.
func (c *fakeCluster) argoCD(name, patch string) {
	if strings.Contains(patch, `"hard"`) {
		time.Sleep(300 * time.Millisecond)
		c.put(applications, named(freshApplication, name))
	}
}

func (c *fakeCluster) signer(text string) {
	c.replica("signer-1")
	c.policy(text)
	c.loads("signer-1", text)
}

func TestWatcher(t *testing.T) {
	for name, run := range map[string]func(*testing.T, *fakeCluster){
		"a hold is released when every replica has loaded the grant, and forgotten": func(t *testing.T, c *fakeCluster) {
			c.onPatch = c.argoCD
			c.signer(grantsNone)
			c.held("web")
			w := c.watch(t, nil)
			after(10 * time.Second)
			if got := c.done(); len(got) != 0 || !w.Ready() {
				t.Fatalf("ready %v, patched %v", w.Ready(), got)
			}
			c.policy(grants("web"))
			after(10 * time.Second)
			if got := c.done(); len(got) != 0 {
				t.Fatalf("released before the replica has loaded: %v", got)
			}
			c.loads("signer-1", grants("web"))
			after(10 * time.Second)
			if got := c.refreshes(); !slices.Equal(got, []string{"web"}) || len(c.done()) != 1 {
				t.Errorf("patched %v", c.done())
			}
			w.mutex.Lock()
			defer w.mutex.Unlock()
			if len(w.held) != 0 {
				t.Errorf("remembers %v", w.held)
			}
		},
		"a hold is not released while one of two replicas has the old policy": func(t *testing.T, c *fakeCluster) {
			c.signer(grants("web"))
			c.replica("signer-2")
			c.loads("signer-2", grantsNone)
			c.held("web")
			c.watch(t, nil)
			after(time.Hour)
			if got := c.done(); len(got) != 0 {
				t.Errorf("patched %v", got)
			}
		},
		"a demand that nobody grants is said after a minute, once": func(t *testing.T, c *fakeCluster) {
			c.signer(grantsNone)
			c.held("web")
			c.watch(t, nil)
			after(50 * time.Second)
			if got := c.told(); len(got) != 0 {
				t.Errorf("told %q", got)
			}
			after(time.Hour)
			if got := c.told(); len(got) != 1 || !strings.HasPrefix(got[0], NobodyGrants) || !strings.Contains(got[0], "shop/web") {
				t.Errorf("told %q", got)
			}
		},
		"an unknown signer is said at once": func(t *testing.T, c *fakeCluster) {
			c.held("web")
			c.watch(t, func(w *Watcher) { w.Config.Signers[0].SignerName = "example.com/other" })
			after(time.Second)
			if got := c.told(); len(got) != 1 || !strings.HasPrefix(got[0], UnknownSigner) {
				t.Errorf("told %q", got)
			}
		},
		"an override lets the plugin be asked": func(t *testing.T, c *fakeCluster) {
			c.onPatch = c.argoCD
			c.signer(grantsNone)
			c.held("web")
			c.watch(t, nil)
			after(time.Minute)
			c.put(configMaps, `{apiVersion: v1, kind: ConfigMap, metadata: {name: grantfirst-overrides, namespace: argocd},
				data: {web: '[{until: "2000-01-01T02:00:00Z", reason: INC-42}]'}}`)
			after(time.Second)
			if got := c.refreshes(); len(got) != 1 {
				t.Errorf("refreshed %v", got)
			}
		},
		"an override that has run out does not": func(t *testing.T, c *fakeCluster) {
			c.signer(grantsNone)
			c.held("web")
			c.put(configMaps, `{apiVersion: v1, kind: ConfigMap, metadata: {name: grantfirst-overrides, namespace: argocd},
				data: {web: '[{until: "1999-12-31T02:00:00Z", reason: INC-42}]'}}`)
			c.watch(t, nil)
			after(time.Minute)
			if got := c.done(); len(got) != 0 {
				t.Errorf("patched %v", got)
			}
		},
		"Applications of other projects and clusters are left alone where their cluster is not known": func(t *testing.T, c *fakeCluster) {
			c.signer(grants("web"))
			c.held("web")
			c.put(applications, strings.Replace(named(heldApplication, "web"), "https://kubernetes.default.svc", "https://elsewhere.example", 1))
			c.watch(t, nil)
			after(time.Hour)
			if got := c.done(); len(got) != 0 {
				t.Errorf("patched %v", got)
			}
			if got := c.told(); len(got) != 1 || !strings.Contains(got[0], "elsewhere.example") {
				t.Errorf("told %q", got)
			}
		},
		"a child of a RollingSync is armed": func(t *testing.T, c *fakeCluster) {
			c.signer(grantsNone)
			c.held("web")
			c.put(applicationSets, `{apiVersion: argoproj.io/v1alpha1, kind: ApplicationSet, metadata: {name: fleet, namespace: argocd}, spec: {strategy: {type: RollingSync}}}`)
			c.put(applications, strings.NewReplacer("uid: app-web", "uid: app-web, ownerReferences: [{apiVersion: argoproj.io/v1alpha1, kind: ApplicationSet, name: fleet, uid: f}]").
				Replace(named(heldApplication, "web")))
			c.watch(t, nil)
			after(time.Minute)
			if got := c.done(); len(got) != 1 || strings.Contains(got[0].body, "hard") {
				t.Errorf("patched %v", got)
			}
		},
		"the marker that is left where pruning is off is deleted": func(t *testing.T, c *fakeCluster) {
			c.signer(grants("web"))
			c.held("web")
			c.put(applications, strings.NewReplacer("{prune: true}", "{}", "name: "+markerOf("web")+", status: Synced}\n", "name: "+markerOf("web")+", status: OutOfSync, requiresPruning: true}\n").
				Replace(named(heldApplication, "web")))
			c.watch(t, nil)
			after(time.Minute)
			if !slices.Contains(c.swept(), markerOf("web")) {
				t.Errorf("deleted %v, patched %v", c.swept(), c.done())
			}
		},
		"an Application that is not synced yet is regenerated when a signer loads another policy": func(t *testing.T, c *fakeCluster) {
			c.signer(grants("web"))
			c.put(applications, named(outOfSync, "web"))
			c.put(applications, strings.Replace(named(outOfSync, "plain"), "plugin: {name: grantfirst}", "plugin: {name: other}", 1))
			c.put(applications, strings.Replace(named(outOfSync, "synced"), "sync: {status: OutOfSync", "sync: {status: Synced", 1))
			c.put(applications, strings.Replace(named(outOfSync, "running"), "phase: Succeeded", "phase: Running", 1))
			c.put(applications, strings.Replace(named(outOfSync, "elsewhere"), "https://kubernetes.default.svc", "https://elsewhere.example", 1))
			c.put(applications, strings.Replace(named(outOfSync, "leaving"), "uid: app-leaving", `uid: app-leaving, finalizers: [x], deletionTimestamp: "2026-11-29T12:00:00Z"`, 1))
			c.watch(t, nil)
			after(time.Hour)
			c.replica("signer-2")
			c.loads("signer-2", grants("web"))
			after(time.Hour)
			if got := c.done(); len(got) != 0 {
				t.Fatalf("no policy changed, and it patched %v", got)
			}
			c.loads("signer-2", grantsNone)
			after(time.Hour)
			if got := c.done(); len(got) != 1 || got[0].name != "web" || strings.Contains(got[0].body, "operationState") {
				t.Errorf("patched %v", got)
			}
		},
		"the marker of an Application that was deleted alone is deleted, and not that of another": func(t *testing.T, c *fakeCluster) {
			c.signer(grantsNone)
			c.held("web")
			c.held("api1")
			c.watch(t, nil)
			after(time.Hour)
			if err := c.Tracker().Delete(applications, "argocd", "web"); err != nil {
				t.Fatal(err)
			}
			after(cascades - time.Second)
			if len(c.swept()) != 0 {
				t.Errorf("deleted %v before Argo CD could", c.swept())
			}
			after(time.Minute)
			if !slices.Equal(c.swept(), []string{markerOf("web")}) {
				t.Errorf("deleted %v", c.swept())
			}
		},
		"and not where the Application is there again, or its marker is another's": func(t *testing.T, c *fakeCluster) {
			c.signer(grantsNone)
			c.held("web")
			c.held("api1")
			c.watch(t, nil)
			after(time.Hour)
			for _, name := range []string{"web", "api1"} {
				if err := c.Tracker().Delete(applications, "argocd", name); err != nil {
					t.Fatal(err)
				}
			}
			c.put(holds, `{apiVersion: grantfirst.dev/v1alpha1, kind: Hold, metadata: {name: `+markerOf("api1")+`, namespace: shop, uid: u}, spec: {application: other, demands: []}}`)
			after(time.Second)
			c.held("web")
			after(time.Hour)
			if len(c.swept()) != 0 {
				t.Errorf("deleted %v", c.swept())
			}
		},
		"an override is announced, once, and that it has run out": func(t *testing.T, c *fakeCluster) {
			c.signer(grants("web"))
			c.put(applications, named(freshApplication, "web"))
			c.put(configMaps, `{apiVersion: v1, kind: ConfigMap, metadata: {name: grantfirst-overrides, namespace: argocd},
				data: {web: '[{until: "2000-01-01T02:00:00Z", reason: INC-42}, {until: "1999-01-01T02:00:00Z", reason: INC-1}, {until: soon, reason: INC-2}]', api: "what?"}}`)
			c.watch(t, nil)
			after(time.Minute)
			want := []string{
				"Overridden: every demand may go past grants that are not loaded until 2000-01-01T02:00:00Z: INC-42",
				"OverrideInvalid: entry 3 of key web of ConfigMap argocd/grantfirst-overrides does not count: it needs until, in RFC 3339, and reason",
			}
			slices.Sort(want)
			if got := c.told(); !slices.Equal(got, want) {
				t.Errorf("told %q", got)
			}
			after(2 * time.Hour)
			want = append(want, "OverrideOver: the override of every demand ran out at 2000-01-01T02:00:00Z: what is synced from now on needs its grants")
			slices.Sort(want)
			if got := c.told(); !slices.Equal(got, want) {
				t.Errorf("told %q", got)
			}
		},
		"a watcher that starts anew says nothing twice": func(t *testing.T, c *fakeCluster) {
			c.signer(grantsNone)
			c.held("web")
			c.watch(t, nil)
			c.watch(t, nil)
			after(2 * time.Minute)
			if got := c.told(); len(got) != 1 {
				t.Errorf("told %q", got)
			}
		},
		"of many holds the oldest begin first, and ten at a time": func(t *testing.T, c *fakeCluster) {
			var mutex sync.Mutex
			flying, most := 0, 0
			c.onPatch = func(name, patch string) {
				mutex.Lock()
				flying++
				most = max(most, flying)
				mutex.Unlock()
				time.Sleep(300 * time.Millisecond)
				mutex.Lock()
				flying--
				mutex.Unlock()
				c.put(applications, named(freshApplication, name))
			}
			c.signer(grantsNone)
			c.watch(t, nil)
			var all []string
			for i := range 100 {
				all = append(all, fmt.Sprint("web-", 199-i))
				c.held(all[i])
				after(time.Second)
			}
			c.loads("signer-1", grants(all...))
			after(time.Minute)
			if got := c.refreshes(); len(got) != 100 || most != 10 {
				t.Errorf("%d refreshes, %d at a time", len(got), most)
			}
			began := c.refreshes()
			for i, name := range began {
				if at := slices.Index(all, name); at/10 > i/10+1 {
					t.Errorf("%s is number %d to be held, and number %d to begin", name, at, i)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeCluster(t)
				run(t, c)
			})
		})
	}
}

// refused lets the API server refuse the first patches of an Application.
func (c *fakeCluster) refuse(times int, err error) {
	c.PrependReactor("patch", "applications", func(clienttesting.Action) (bool, runtime.Object, error) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		times--
		return times >= 0, nil, err
	})
}

func TestWhatTheAPIServerRefusesIsTriedAgain(t *testing.T) {
	for name, err := range map[string]error{
		"a conflict": apierrors.NewConflict(applications.GroupResource(), "web", nil),
		"an error":   apierrors.NewInternalError(context.DeadlineExceeded),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeCluster(t)
				c.onPatch = c.argoCD
				c.refuse(5, err)
				c.signer(grants("web"))
				c.held("web")
				c.watch(t, nil)
				after(10 * time.Second)
				if got := c.done(); len(got) != 1 {
					t.Errorf("patched %v", got)
				}
			})
		})
	}
}

// The signers that count are those of the cluster that an Application deploys to, and its marker is there, too.
func TestAnApplicationElsewhereIsJudgedByItsOwnCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, elsewhere := newFakeCluster(t), newFakeCluster(t)
		own.onPatch = own.argoCD
		own.signer(grants("web"))
		elsewhere.signer(grantsNone)
		elsewhere.held("web")
		own.put(applications, strings.Replace(named(heldApplication, "web"), "https://kubernetes.default.svc", "https://eu.example.com", 1))
		own.watch(t, func(w *Watcher) {
			w.Config.Clusters = []config.Cluster{{Name: "eu", Destinations: []string{"https://eu.example.com"}, Kubeconfig: "/etc/grantfirst/eu.yaml"}}
			w.Elsewhere = func(*config.Cluster) (Cluster, error) { return Cluster{elsewhere, time.Now}, nil }
		})
		after(time.Minute)
		if got := own.done(); len(got) != 0 {
			t.Fatalf("judged by Argo CD's own cluster: %v", got)
		}
		elsewhere.loads("signer-1", grants("web"))
		after(time.Second)
		if got := own.refreshes(); len(got) != 1 || len(elsewhere.done()) != 0 {
			t.Errorf("patched %v, elsewhere %v", got, elsewhere.done())
		}
	})
}

func TestAnApplicationElsewhereIsNotRegeneratedForTheSignersHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, elsewhere := newFakeCluster(t), newFakeCluster(t)
		own.signer(grants("web"))
		elsewhere.signer(grants("web"))
		own.put(applications, strings.Replace(named(outOfSync, "web"), "https://kubernetes.default.svc", "https://eu.example.com", 1))
		own.watch(t, func(w *Watcher) {
			w.Config.Clusters = []config.Cluster{{Name: "eu", Destinations: []string{"https://eu.example.com"}, Kubeconfig: "/etc/grantfirst/eu.yaml"}}
			w.Elsewhere = func(*config.Cluster) (Cluster, error) { return Cluster{elsewhere, time.Now}, nil }
		})
		after(time.Minute)
		own.loads("signer-1", grantsNone)
		after(time.Minute)
		if got := own.done(); len(got) != 0 {
			t.Fatalf("patched for a signer that it does not ask: %v", got)
		}
		elsewhere.loads("signer-1", grantsNone)
		after(time.Minute)
		if got := own.refreshes(); len(got) != 1 {
			t.Errorf("patched %v, want it regenerated for its own signer", own.done())
		}
	})
}
