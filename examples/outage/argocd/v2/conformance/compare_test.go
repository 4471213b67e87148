package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/argoproj/argo-cd/v2/pkg/apis/application/v1alpha1"
	argodiff "github.com/argoproj/argo-cd/v2/util/argo/diff"
	"github.com/argoproj/argo-cd/v2/util/argo/normalizers"
)

// degraded is a Deployment that is out of order.
func degraded(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	o := named(t, deployment, name)
	o.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}}}
	return o
}

// status is what Argo CD says of an Application (release_test.go has the rest).
func status(t *testing.T, data map[string]string, allowed *v1alpha1.AppProject, live, targets []*unstructured.Unstructured) (v1alpha1.SyncStatusCode, health.HealthStatusCode) {
	t.Helper()
	objects := map[kube.ResourceKey]*unstructured.Unstructured{}
	for _, o := range newCluster(t, live...).live {
		objects[kube.GetResourceKey(o)] = o
	}
	var manifests []string
	for _, o := range targets {
		text, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, string(text))
	}
	source := v1alpha1.ApplicationSource{RepoURL: "https://git.example/shop", Path: "app"}
	app := &v1alpha1.Application{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "argocd"},
		Spec: v1alpha1.ApplicationSpec{
			Project: "default", Source: &source, Destination: v1alpha1.ApplicationDestination{Server: v1alpha1.KubernetesInternalAPIServerAddr, Namespace: "shop"},
		},
	}
	return compare(t, data, app, allowed, objects, manifests)
}

func anything() *v1alpha1.AppProject {
	return &v1alpha1.AppProject{Spec: v1alpha1.AppProjectSpec{
		SourceRepos: []string{"*"}, Destinations: []v1alpha1.ApplicationDestination{{Server: "*", Namespace: "*"}},
		ClusterResourceWhitelist: []metav1.GroupKind{{Group: "*", Kind: "*"}},
	}}
}

func TestWhatIsSkippedCountsNeitherForSyncStatusNorForHealth(t *testing.T) {
	hold := named(t, holdObject, "grantfirst-0123456789-none")
	changed := func(annotations ...string) *unstructured.Unstructured {
		o := named(t, deployment, "web", annotations...)
		o.Object["spec"].(map[string]any)["replicas"] = int64(7)
		return o
	}
	for _, test := range []struct {
		name          string
		live, targets []*unstructured.Unstructured
		sync          v1alpha1.SyncStatusCode
		health        health.HealthStatusCode
	}{
		{"an Application that is held: the marker alone counts",
			[]*unstructured.Unstructured{degraded(t, "web"), named(t, configMap, "old"), hold}, []*unstructured.Unstructured{changed(skip), named(t, deployment, "new", skip), named(t, configMap, "old", skip), hold},
			v1alpha1.SyncStatusCodeSynced, health.HealthStatusSuspended},
		{"without a marker it looks as if all were well",
			[]*unstructured.Unstructured{degraded(t, "web")}, []*unstructured.Unstructured{changed(skip), named(t, deployment, "new", skip)},
			v1alpha1.SyncStatusCodeSynced, health.HealthStatusHealthy},
		{"the same objects that are not skipped",
			[]*unstructured.Unstructured{degraded(t, "web")}, []*unstructured.Unstructured{changed()},
			v1alpha1.SyncStatusCodeOutOfSync, health.HealthStatusDegraded},
		{"a marker that has not been applied yet",
			[]*unstructured.Unstructured{named(t, deployment, "web")}, []*unstructured.Unstructured{named(t, deployment, "web", skip), hold},
			v1alpha1.SyncStatusCodeOutOfSync, health.HealthStatusMissing},
		{"a marker that is to be pruned, as the watcher waits for it",
			[]*unstructured.Unstructured{hold}, nil,
			v1alpha1.SyncStatusCodeOutOfSync, health.HealthStatusSuspended},
	} {
		t.Run(test.name, func(t *testing.T) {
			targets := append(test.targets, named(t, configMap, "grants"))
			sync, state := status(t, shipped(t), anything(), append(test.live, named(t, configMap, "grants")), targets)
			if sync != test.sync || state != test.health {
				t.Errorf("%s and %s, want %s and %s", sync, state, test.sync, test.health)
			}
		})
	}
}

// What grantfirst doctor warns of (lib/doctor argocd.go).
func TestExclusionsHideAMarker(t *testing.T) {
	hold := named(t, holdObject, "grantfirst-0123456789-none")
	for name, test := range map[string]struct {
		key, value string
		want       health.HealthStatusCode
	}{
		"by group":               {"resource.exclusions", `[{apiGroups: ["grantfirst.*"]}]`, health.HealthStatusHealthy},
		"by kind in all":         {"resource.exclusions", `[{apiGroups: ["*"], kinds: [Hold], clusters: ["*"]}]`, health.HealthStatusHealthy},
		"not in another cluster": {"resource.exclusions", `[{apiGroups: ["*"], kinds: [Hold], clusters: ["https://eu"]}]`, health.HealthStatusSuspended},
		"by inclusions of else":  {"resource.inclusions", `[{apiGroups: [""]}]`, health.HealthStatusHealthy},
		"not by inclusions":      {"resource.inclusions", `[{apiGroups: ["", grantfirst.dev], kinds: ["*"]}]`, health.HealthStatusSuspended},
	} {
		t.Run(name, func(t *testing.T) {
			data := maps.Clone(shipped(t))
			data[test.key] = test.value
			objects := []*unstructured.Unstructured{named(t, configMap, "grants"), hold}
			if test.want == health.HealthStatusHealthy {
				// What is excluded is not in the cache of the cluster either.
				if _, got := status(t, data, anything(), objects[:1], objects); got != test.want {
					t.Errorf("%s", got)
				}
				return
			}
			if _, got := status(t, data, anything(), objects, objects); got != test.want {
				t.Errorf("%s", got)
			}
		})
	}
}

func TestAnAppProjectRefusesAMarkerByItsLists(t *testing.T) {
	hold := schema.GroupKind{Group: "grantfirst.dev", Kind: "Hold"}
	for name, test := range map[string]struct {
		spec v1alpha1.AppProjectSpec
		want bool
	}{
		"no list":               {v1alpha1.AppProjectSpec{}, true},
		"another kind allowed":  {v1alpha1.AppProjectSpec{NamespaceResourceWhitelist: []metav1.GroupKind{{Group: "apps", Kind: "*"}}}, false},
		"patterns allow it":     {v1alpha1.AppProjectSpec{NamespaceResourceWhitelist: []metav1.GroupKind{{Group: "grantfirst.*", Kind: "*"}}}, true},
		"an empty list forbids": {v1alpha1.AppProjectSpec{NamespaceResourceWhitelist: []metav1.GroupKind{}}, false},
		"patterns forbid it":    {v1alpha1.AppProjectSpec{NamespaceResourceBlacklist: []metav1.GroupKind{{Group: "*", Kind: "Hold"}}}, false},
	} {
		if got := (v1alpha1.AppProject{Spec: test.spec}).IsGroupKindPermitted(hold, true); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// dryRunner is an API server's dry-run apply, as far as it looks at what is required.
type dryRunner struct{ asked []string }

func (d *dryRunner) Run(_ context.Context, o *unstructured.Unstructured, _ string) (string, error) {
	d.asked = append(d.asked, o.GetKind()+"/"+o.GetName())
	if _, ok, _ := unstructured.NestedMap(o.Object, "spec", "selector"); !ok && o.GetKind() == "Deployment" {
		return "", errors.New("Deployment.apps is invalid: spec.selector: Required value")
	}
	text, err := json.Marshal(o.Object)
	return string(text), err
}

func TestAKeeperMustBeValidUnderServerSideDiff(t *testing.T) {
	bare := object(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, annotations: {"+skip+"}}}")
	for name, test := range map[string]struct {
		keeper *unstructured.Unstructured
		err    string
	}{
		"a bare stub fails everything": {bare, "spec.selector: Required value"},
		"an old manifest does not":     {named(t, deployment, "web", skip), ""},
		"nor does a bare ConfigMap":    {object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: shop, annotations: {"+skip+"}}}"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			live := named(t, strings.ReplaceAll(map[string]string{"Deployment": deployment, "ConfigMap": configMap}[test.keeper.GetKind()], "annotations: {ANNOTATIONS}", "annotations: {}"), "web")
			runner := &dryRunner{}
			config, err := argodiff.NewDiffConfigBuilder().
				WithDiffSettings([]v1alpha1.ResourceIgnoreDifferences{}, map[string]v1alpha1.ResourceOverride{}, false, normalizers.IgnoreNormalizerOpts{}).
				WithTracking("app.kubernetes.io/instance", "annotation").WithNoCache().WithManager("argocd-controller").
				WithIgnoreMutationWebhook(false).WithServerSideDiff(true).WithServerSideDryRunner(runner).Build()
			if err != nil {
				t.Fatal(err)
			}
			_, err = argodiff.StateDiffs([]*unstructured.Unstructured{live}, []*unstructured.Unstructured{test.keeper}, config)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%v", err)
			}
			if len(runner.asked) != 1 {
				t.Errorf("what is skipped is dry-run %d times", len(runner.asked))
			}
		})
	}
}
