package conformance_test

import (
	"testing"
	"time"

	clustercache "github.com/argoproj/gitops-engine/pkg/cache"
	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/gitops-engine/pkg/utils/kube/kubetest"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubectl/pkg/util/openapi"

	"github.com/argoproj/argo-cd/v2/controller"
	statecache "github.com/argoproj/argo-cd/v2/controller/cache"
	"github.com/argoproj/argo-cd/v2/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v2/util/argo"
	"github.com/argoproj/argo-cd/v2/util/argo/normalizers"
	"github.com/argoproj/argo-cd/v2/util/db"
)

// What is not the same for every release of Argo CD: here that of v2.14.

// emptyVariable: an Application's variable without a value is not passed on.
const emptyVariable = "is not set"

// liveState is the controller's view of a cluster.
type liveState struct {
	statecache.LiveStateCache
	objects map[kube.ResourceKey]*unstructured.Unstructured
}

func (*liveState) IsNamespaced(string, schema.GroupKind) (bool, error) { return true, nil }

func (*liveState) GetClusterCache(string) (clustercache.ClusterCache, error) {
	return &clusterCache{}, nil
}

func (l *liveState) GetManagedLiveObjs(*v1alpha1.Application, []*unstructured.Unstructured) (map[kube.ResourceKey]*unstructured.Unstructured, error) {
	return l.objects, nil
}

type clusterCache struct{ clustercache.ClusterCache }

func (*clusterCache) IsNamespaced(schema.GroupKind) (bool, error) { return true, nil }

func (*clusterCache) GetGVKParser() *managedfields.GvkParser { return nil }

func (*clusterCache) GetOpenAPISchema() openapi.Resources { return nil }

// compare is the controller's comparison.
func compare(t *testing.T, data map[string]string, app *v1alpha1.Application, project *v1alpha1.AppProject, live map[kube.ResourceKey]*unstructured.Unstructured, manifests []string) (v1alpha1.SyncStatusCode, health.HealthStatusCode) {
	t.Helper()
	manager, client := settingsOf(t, data)
	state := controller.NewAppStateManager(db.NewDB("argocd", manager, client), nil, nil, "argocd", &kubetest.MockKubectlCmd{}, nil, manager, &liveState{objects: live}, nil, nil, nil,
		time.Minute, argo.NewResourceTracking(), false, 0, false, normalizers.IgnoreNormalizerOpts{})
	result, err := state.CompareAppState(app, project, []string{""}, app.Spec.GetSources(), true, true, manifests, false, false)
	if err != nil {
		t.Fatal(err)
	}
	return result.GetSyncStatus().Status, result.GetHealthStatus().Status
}
