package conformance_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	gosync "sync"
	"testing"

	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/sync"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/gitops-engine/pkg/utils/kube/kubetest"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/openapi"
	"sigs.k8s.io/yaml"

	"github.com/argoproj/argo-cd/v2/util/lua"
	"github.com/argoproj/argo-cd/v2/util/settings"
)

// project is the root of grantfirst's repository.
const project = "../../../../.."

// object reads one from YAML.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	// As from an API server, numbers are those of JSON.
	raw, err := json.Marshal(o.Object)
	if err == nil {
		err = o.UnmarshalJSON(raw)
	}
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return o
}

const (
	configMap  = "{apiVersion: v1, kind: ConfigMap, metadata: {name: NAME, namespace: shop, annotations: {ANNOTATIONS}}, data: {k: v}}"
	deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: NAME, namespace: shop, annotations: {ANNOTATIONS}},
  spec: {replicas: 1, selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: i}]}}}}`
	job = `{apiVersion: batch/v1, kind: Job, metadata: {name: NAME, namespace: shop, annotations: {ANNOTATIONS}},
  spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`
	holdObject = `{apiVersion: grantfirst.dev/v1alpha1, kind: Hold, metadata: {name: NAME, namespace: shop, annotations: {ANNOTATIONS}},
  spec: {application: web, waitingFor: a grant, digest: d}}`
	skip = `argocd.argoproj.io/hook: Skip`
)

func named(t *testing.T, text, name string, annotations ...string) *unstructured.Unstructured {
	t.Helper()
	return object(t, strings.NewReplacer("NAME", name, "ANNOTATIONS", strings.Join(annotations, ", ")).Replace(text))
}

// settingsOf are Argo CD's with this argocd-cm.
func settingsOf(t *testing.T, data map[string]string) (*settings.SettingsManager, *fake.Clientset) {
	t.Helper()
	part := map[string]string{"app.kubernetes.io/part-of": "argocd"}
	client := fake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "argocd-cm", Namespace: "argocd", Labels: part}, Data: data},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "argocd-secret", Namespace: "argocd", Labels: part}, Data: map[string][]byte{"admin.password": nil, "server.secretkey": nil}},
	)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return settings.NewSettingsManager(ctx, client, "argocd"), client
}

// shipped is what examples/argocd puts into argocd-cm.
func shipped(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(project + "/examples/argocd/argocd-cm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cm corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &cm); err != nil {
		t.Fatal(err)
	}
	return cm.Data
}

// healthBy gives the health checks that Argo CD has with this argocd-cm.
func healthBy(t *testing.T, data map[string]string) health.HealthOverride {
	t.Helper()
	manager, _ := settingsOf(t, data)
	overrides, err := manager.GetResourceOverrides()
	if err != nil {
		t.Fatal(err)
	}
	return lua.ResourceHealthOverrides(overrides)
}

func TestAHoldIsSuspendedWithItsReason(t *testing.T) {
	hold := named(t, holdObject, "h")
	for name, test := range map[string]struct {
		data map[string]string
		want *health.HealthStatus
	}{
		"with the shipped health check": {shipped(t), &health.HealthStatus{Status: health.HealthStatusSuspended, Message: "a grant"}},
		"without it there is no health": {nil, nil},
	} {
		got, err := health.GetResourceHealth(hold, healthBy(t, test.data))
		if err != nil || (got == nil) != (test.want == nil) || got != nil && *got != *test.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	delete(hold.Object, "spec")
	if got, err := health.GetResourceHealth(hold, healthBy(t, shipped(t))); err != nil || got.Status != health.HealthStatusSuspended || got.Message == "" {
		t.Errorf("without a spec: %v, %v", got, err)
	}
}

func TestAPausedDeploymentWithoutReplicasIsSuspendedBeforeAnyControllerHasSeenIt(t *testing.T) {
	marker := named(t, deployment, "m")
	marker.Object["spec"].(map[string]any)["paused"] = true
	marker.Object["spec"].(map[string]any)["replicas"] = int64(0)
	if got, err := health.GetResourceHealth(marker, nil); err != nil || got.Status != health.HealthStatusSuspended {
		t.Errorf("%v, %v", got, err)
	}
}

// cluster is what a sync sees of one, and what it did to it.
type cluster struct {
	*httptest.Server
	mutex gosync.Mutex
	live  map[kube.ResourceKey]*unstructured.Unstructured
	did   []string
}

func newCluster(t *testing.T, live ...*unstructured.Unstructured) *cluster {
	t.Helper()
	c := &cluster{live: map[kube.ResourceKey]*unstructured.Unstructured{}}
	kinds := map[string][]metav1.APIResource{
		"/api/v1":                       {{Name: "configmaps", Kind: "ConfigMap"}, {Name: "services", Kind: "Service"}},
		"/apis/apps/v1":                 {{Name: "deployments", Kind: "Deployment"}},
		"/apis/batch/v1":                {{Name: "jobs", Kind: "Job"}},
		"/apis/grantfirst.dev/v1alpha1": {{Name: "holds", Kind: "Hold"}},
	}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resources, ok := kinds[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		for i := range resources {
			resources[i].Namespaced, resources[i].Verbs = true, metav1.Verbs{"get", "list", "watch", "create", "patch", "update", "delete"}
		}
		version := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/"), "/api/")
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version, APIResources: resources})
	}))
	t.Cleanup(c.Close)
	for _, o := range live {
		c.add(o)
	}
	return c
}

func (c *cluster) add(o *unstructured.Unstructured) {
	o = o.DeepCopy()
	o.SetUID(types.UID(o.GetKind() + "/" + o.GetName()))
	c.live[kube.GetResourceKey(o)] = o
}

func (c *cluster) note(what string, o string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.did = append(c.did, what+" "+o)
}

// kubectl is what Argo CD changes a cluster with.
type kubectl struct {
	*kubetest.MockKubectlCmd
	cluster *cluster
}

func (k *kubectl) ManageResources(*rest.Config, openapi.Resources) (kube.ResourceOperations, func(), error) {
	return &operations{&kubetest.MockResourceOps{}, k.cluster}, func() {}, nil
}

func (k *kubectl) DeleteResource(_ context.Context, _ *rest.Config, gvk schema.GroupVersionKind, name, namespace string, _ metav1.DeleteOptions) error {
	k.cluster.note("prune", gvk.Kind+"/"+name)
	k.cluster.mutex.Lock()
	defer k.cluster.mutex.Unlock()
	delete(k.cluster.live, kube.NewResourceKey(gvk.Group, gvk.Kind, namespace, name))
	return nil
}

type operations struct {
	*kubetest.MockResourceOps
	cluster *cluster
}

func (o *operations) ApplyResource(_ context.Context, obj *unstructured.Unstructured, dryRun cmdutil.DryRunStrategy, _, _, _ bool, _ string) (string, error) {
	if dryRun != cmdutil.DryRunNone {
		return "", nil
	}
	o.cluster.note("apply", obj.GetKind()+"/"+obj.GetName())
	o.cluster.mutex.Lock()
	defer o.cluster.mutex.Unlock()
	o.cluster.add(obj)
	return "", nil
}

type allNamespaced struct{}

func (allNamespaced) IsNamespaced(schema.GroupKind) (bool, error) { return true, nil }

// sync is an operation: Argo CD calls Sync again and again with what is live by then. It ends after some rounds in which nothing happens.
func (c *cluster) sync(t *testing.T, targets ...*unstructured.Unstructured) (common.OperationPhase, string) {
	t.Helper()
	override := healthBy(t, shipped(t))
	phase, message, results := common.OperationRunning, "", []common.ResourceSyncResult(nil)
	for range 6 {
		live := map[kube.ResourceKey]*unstructured.Unstructured{}
		for key, o := range c.live {
			live[key] = o.DeepCopy()
		}
		var copies []*unstructured.Unstructured
		for _, o := range targets {
			copies = append(copies, o.DeepCopy())
		}
		at := &rest.Config{Host: c.URL}
		context, cleanup, err := sync.NewSyncContext("rev", sync.Reconcile(copies, live, "shop", allNamespaced{}), at, at, &kubectl{&kubetest.MockKubectlCmd{}, c}, "shop", nil,
			sync.WithOperationSettings(false, true, false, false), sync.WithHealthOverride(override), sync.WithLogr(logr.Discard()),
			sync.WithInitialState(phase, message, results, metav1.Now()))
		if err != nil {
			t.Fatal(err)
		}
		context.Sync()
		phase, message, results = context.GetState()
		cleanup()
		if phase.Completed() {
			break
		}
	}
	if phase != common.OperationSucceeded {
		for _, r := range results {
			t.Logf("%s %s: %s", r.ResourceKey.String(), r.Status, r.Message)
		}
	}
	slices.Sort(c.did)
	return phase, message
}

// does compares what a sync did, in any order.
func (c *cluster) does(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(c.did, want) {
		t.Errorf("it did %q, want %q", c.did, want)
	}
}

func TestWhatIsSkippedIsNeitherAppliedNorPruned(t *testing.T) {
	c := newCluster(t, named(t, deployment, "web"), named(t, configMap, "kept"), named(t, configMap, "gone"), named(t, configMap, "stub"))
	changed := named(t, deployment, "web", skip)
	changed.Object["spec"].(map[string]any)["replicas"] = int64(7)
	stub := object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: stub, namespace: shop, annotations: {"+skip+"}}}")
	phase, message := c.sync(t, named(t, configMap, "grants"), changed, named(t, configMap, "kept", skip), stub, named(t, deployment, "new", skip))
	if phase != common.OperationSucceeded {
		t.Errorf("%s: %s", phase, message)
	}
	c.does(t, "apply ConfigMap/grants", "prune ConfigMap/gone")
}

func TestOnlySkipAloneSkips(t *testing.T) {
	for annotation, want := range map[string][]string{
		// Both are hooks that are nobody's: what is live is extra.
		"argocd.argoproj.io/hook: skip": {"prune ConfigMap/a"},
		"argocd.argoproj.io/hook: none": {"prune ConfigMap/a"},
		"argocd.argoproj.io/hook: Skip": nil,
	} {
		t.Run(annotation, func(t *testing.T) {
			c := newCluster(t, named(t, configMap, "a"), named(t, configMap, "b"))
			c.sync(t, named(t, configMap, "a", annotation), named(t, configMap, "b"))
			c.does(t, append(want, "apply ConfigMap/b")...)
		})
	}
}

func TestSkipBeatsHelmsHooks(t *testing.T) {
	c := newCluster(t, named(t, job, "migrate", "helm.sh/hook: pre-install"))
	if phase, message := c.sync(t, named(t, job, "migrate", "helm.sh/hook: pre-install", skip), named(t, job, "other", "helm.sh/hook: post-install", skip), named(t, configMap, "grants")); phase != common.OperationSucceeded {
		t.Errorf("%s: %s", phase, message)
	}
	c.does(t, "apply ConfigMap/grants")
}

func TestHooksThatAreLeftOutAreNotPruned(t *testing.T) {
	c := newCluster(t, named(t, job, "migrate", "argocd.argoproj.io/hook: PreSync"), named(t, job, "chart", "helm.sh/hook: pre-upgrade"), named(t, job, "plain"))
	if phase, message := c.sync(t, named(t, configMap, "grants")); phase != common.OperationSucceeded {
		t.Errorf("%s: %s", phase, message)
	}
	c.does(t, "apply ConfigMap/grants", "prune Job/plain")
}

func wave(n int) string { return fmt.Sprintf(`argocd.argoproj.io/sync-wave: "%d"`, n) }

func TestAMarkerInTheHighestWaveLetsTheOperationEnd(t *testing.T) {
	const marker = "grantfirst-0123456789-none"
	for name, of := range map[string]*unstructured.Unstructured{
		"Hold": named(t, holdObject, marker, wave(2)), "Deployment": named(t, strings.Replace(deployment, "replicas: 1", "replicas: 0, paused: true", 1), marker, wave(2)),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			phase, message := c.sync(t, named(t, configMap, "early", wave(-1)), named(t, configMap, "grants", wave(2)), of, named(t, deployment, "web", skip, wave(9)))
			if phase != common.OperationSucceeded {
				t.Errorf("%s: %s", phase, message)
			}
			c.does(t, "apply ConfigMap/early", "apply ConfigMap/grants", "apply "+name+"/"+marker)
		})
	}
}

// The words are those by which the watcher and doctor recognise it.
func TestAMarkerInALowerWaveHangsTheOperation(t *testing.T) {
	c := newCluster(t)
	phase, message := c.sync(t, named(t, holdObject, "grantfirst-0123456789-none"), named(t, configMap, "grants", wave(1)))
	if want := "waiting for healthy state of grantfirst.dev/Hold/grantfirst-0123456789-none"; phase != common.OperationRunning || message != want {
		t.Errorf("%s: %s", phase, message)
	}
	c.does(t, "apply Hold/grantfirst-0123456789-none")
}

func TestAPostSyncHookBehindAMarkerHangsTheOperation(t *testing.T) {
	c := newCluster(t)
	phase, message := c.sync(t, named(t, holdObject, "grantfirst-0123456789-none"), named(t, job, "after", "argocd.argoproj.io/hook: PostSync"))
	if phase != common.OperationRunning || !strings.Contains(message, "waiting for healthy state of") {
		t.Errorf("%s: %s", phase, message)
	}
}

func TestAMarkerThatIsGoneFromGitIsPruned(t *testing.T) {
	c := newCluster(t, named(t, holdObject, "grantfirst-0123456789-none"), named(t, deployment, "web"))
	if phase, message := c.sync(t, named(t, deployment, "web")); phase != common.OperationSucceeded {
		t.Errorf("%s: %s", phase, message)
	}
	c.does(t, "apply Deployment/web", "prune Hold/grantfirst-0123456789-none")
}
