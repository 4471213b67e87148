package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// slow is an API server that keeps the plugin waiting: a priority level without any seat, in which requests queue until they are given up
// (kubernetes.io/docs/concepts/cluster-administration/flow-control).
const slow = `apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: grantfirst-slow}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 0
    lendablePercent: 0
    borrowingLimitPercent: 0
    limitResponse: {type: Queue, queuing: {queues: 1, handSize: 1, queueLengthLimit: 1000}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: grantfirst-slow}
spec:
  priorityLevelConfiguration: {name: grantfirst-slow}
  matchingPrecedence: 2
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {namespace: argocd, name: argocd-repo-server}}]
    resourceRules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*'], namespaces: ['*'], clusterScope: true}]
    nonResourceRules: [{nonResourceURLs: ['*'], verbs: ['*']}]
`

// slowDown makes the API server slow for the plugin until the function that it returns is called.
func (i *installation) slowDown(t *testing.T) (stop func()) {
	t.Helper()
	if err := i.Apply(t.Context(), []byte(slow)); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		for _, resource := range []string{"flowschemas", "prioritylevelconfigurations"} {
			of := schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: resource}
			if err := i.objects.Resource(of).Delete(context.Background(), "grantfirst-slow", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

// scale sets how many pods each signer has and waits for that.
func (s *shop) scale(n int) {
	s.Helper()
	for i := range 2 {
		patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, n)
		_, err := s.AppsV1().Deployments("signing-"+s.name).Patch(s.Context(), fmt.Sprintf("signer-%d", i), "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
		if err != nil {
			s.Fatal(err)
		}
	}
	s.await(fmt.Sprintf("each signer has %d pods", n), func() bool { return len(s.signers()) == 2*n })
}

// image is what the workload's pods are to run.
func (s *shop) image() string {
	s.Helper()
	d, err := s.AppsV1().Deployments("shop-"+s.name).Get(s.Context(), "web", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return d.Spec.Template.Spec.Containers[0].Image
}

// deploys has another image deployed, and nothing else.
func (s *shop) deploys(image string) {
	s.Helper()
	s.push("another image: "+image, map[string]string{"app/web.yaml": strings.Replace(workload, "example.test/web:v1", image, 1) + certificate})
	s.await("it is deployed", func() bool { return s.image() == image })
}

func TestReleasedApplicationsGoOnDeployingWithoutSignersAndWithASlowAPIServer(t *testing.T) {
	alone(t, "22")
	// Without hooks: one behind the workload would keep the sync until its pods run, and they wait for signers.
	files := usual()
	delete(files, "app/hooks.yaml")
	s := newShop(t, setup{application: application{automated: "prune: true"}, files: files})
	s.switchOn()
	s.awaitHeld()
	s.isHeld()
	s.load()
	s.isReleased(1)
	other := newShop(t, setup{application: application{automated: "prune: true"}})

	s.scale(0)
	s.deploys("example.test/web:v2")
	stop := s.slowDown(t)
	begun := time.Now()
	s.deploys("example.test/web:v3")
	s.says("with a slow API server that took %.1f s", time.Since(begun).Seconds())

	// What is new has to wait.
	other.scale(0)
	other.switchOn()
	other.awaitHeld()
	other.isHeld()
	other.stays(15*time.Second, "what is new waits", func() bool { return other.held() && other.serve() })
	stop()
	s.scale(1)
	other.scale(1)
	s.awaitSwitched()
	s.awaitSettled()
	other.isDone()
}
