package e2e_test

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

var applicationSets = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applicationsets"}

// rolling makes three Applications, one for each step.
const rolling = `apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: $NAME, namespace: argocd}
spec:
  goTemplate: true
  generators:
  - list: {elements: [{step: one}, {step: two}, {step: three}]}
  strategy:
    type: RollingSync
    rollingSync:
      steps:
      - matchExpressions: [{key: step, operator: In, values: [one]}]
      - matchExpressions: [{key: step, operator: In, values: [two]}]
      - matchExpressions: [{key: step, operator: In, values: [three]}]
  syncPolicy: {preserveResourcesOnDeletion: true}
  template:
    metadata:
      name: $NAME-{{.step}}
      labels: {step: '{{.step}}'}
    spec:
      project: default
      source:
        repoURL: $URL/$NAME
        targetRevision: main
        path: '{{.step}}'
        plugin: {name: grantfirst}
      destination: {server: https://kubernetes.default.svc, namespace: shop-$NAME}
      syncPolicy:
        automated: {prune: true}
        syncOptions: [CreateNamespace=true]
`

// stages are the Applications of an ApplicationSet that goes step by step.
type stages struct {
	*shop
	// app of the shop is the first; these are the others.
	two, three *app
}

// newStages makes a shop of three Applications: a workload with its hooks first, and a ConfigMap in each of the two that follow. The policy
// is in the folder of the one that is named.
func newStages(t *testing.T, policyIn string) *stages {
	t.Helper()
	s := &stages{shop: newShop(t, setup{bare: true, files: map[string]string{
		"one/web.yaml": workload, "one/hooks.yaml": hooks, policyIn + "/policy.yaml": policy(),
		"two/turn.yaml": turn("two", "before"), "three/turn.yaml": turn("three", "before"),
	}})}
	s.app, s.two, s.three = s.adopt(s.name+"-one"), s.adopt(s.name+"-two"), s.adopt(s.name+"-three")
	var set map[string]any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(s.replace(rolling), "$URL", s.url)), &set); err != nil {
		t.Fatal(err)
	}
	client := s.objects.Resource(applicationSets).Namespace(space)
	if _, err := client.Create(t.Context(), &unstructured.Unstructured{Object: set}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Before its Applications, which it would make again.
		orphan := metav1.DeletePropagationOrphan
		if err := client.Delete(context.Background(), s.name, metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
			t.Error(err)
		}
	})
	s.awaitDone()
	s.awaitSigners()
	s.remember()
	return s
}

// turn is a ConfigMap by which it is seen whether a step was taken.
func turn(name, text string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {turn: " + text + "}\n"
}

// took is what the turn of a step says.
func (s *stages) took(name string) string {
	s.Helper()
	c, err := s.CoreV1().ConfigMaps("shop-"+s.name).Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return c.Data["turn"]
}

func (s *stages) awaitDone() {
	s.Helper()
	s.await("all steps are Synced and Healthy", func() bool {
		return s.last() == settled && s.two.last() == settled && s.three.last() == settled && s.steps() == "Healthy Healthy Healthy"
	})
}

// steps are what the ApplicationSet says of its Applications, in their order.
func (s *stages) steps() string {
	s.Helper()
	set, err := s.objects.Resource(applicationSets).Namespace(space).Get(s.Context(), s.name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	all, _, _ := unstructured.NestedSlice(set.Object, "status", "applicationStatus")
	var out []string
	for _, a := range []*app{s.app, s.two, s.three} {
		for _, status := range all {
			if status := status.(map[string]any); status["application"] == a.name {
				out = append(out, status["status"].(string))
			}
		}
	}
	return strings.Join(out, " ")
}

func TestAHeldStepHoldsTheStepsBehindIt(t *testing.T) {
	scenario(t, "12")
	s := newStages(t, "one")
	s.record("held-step")
	s.push("each step has something new, and the first a grant and its switch", map[string]string{
		"one/policy.yaml": policy(grant), "one/web.yaml": workload + certificate,
		"two/turn.yaml": turn("two", "after"), "three/turn.yaml": turn("three", "after"),
	})
	s.awaitHeld()
	s.isHeld()
	// Without a marker the next step begins 2 to 3 seconds after.
	s.stays(10*time.Second, "the steps behind it wait", func() bool {
		return s.held() && s.serve() && s.took("two") == "before" && s.took("three") == "before"
	})
	s.says("the ApplicationSet says: %s", s.steps())
	s.load()
	s.await("the second step is taken", func() bool {
		taken := s.took("two") == "after"
		if pods := s.pods(); taken && (len(pods) == 0 || len(pods[0].Spec.Volumes) == 0) {
			t.Fatalf("the second step is taken before the first is released")
		}
		if s.took("three") == "after" && !taken {
			t.Fatalf("the third step is taken before the second")
		}
		return taken
	})
	// How many syncs there were is not counted: the ApplicationSet controller may start a second one of what is synced already, with grantfirst
	// or without.
	s.isDone()
	s.await("the third step is taken", func() bool { return s.took("three") == "after" })
	s.awaitDone()
}

func TestAGrantInALaterStepIsReportedByName(t *testing.T) {
	scenario(t, "12")
	s := newStages(t, "two")
	s.push("the first step has the switch, the second the grant", map[string]string{
		"one/web.yaml": workload + certificate, "two/policy.yaml": policy(grant), "three/turn.yaml": turn("three", "after"),
	})
	s.awaitHeld()
	s.isHeld()
	s.await("an Event says which Application has the grant, and that its step comes later", func() bool {
		for _, e := range s.events("GrantInLaterStep") {
			if strings.Contains(e, s.two.name) && strings.Contains(e, "step 2") {
				return true
			}
		}
		return false
	})
	if !s.held() || !s.serve() || s.took("three") != "before" {
		t.Errorf("the Application is %s, the old pods serve: %t, the third step: %s; want it held and nothing begun", s.last(), s.serve(), s.took("three"))
	}
	// What the Event says can be done: a person syncs the Application with the grant.
	s.two.sync()
	s.await("the grant is there", func() bool {
		c, err := s.CoreV1().ConfigMaps("signing-"+s.name).Get(t.Context(), "policy", metav1.GetOptions{})
		return err == nil && strings.Contains(c.Data["policy.json"], "shop-"+s.name)
	})
	s.load()
	s.isDone()
	s.await("the third step is taken", func() bool { return s.took("three") == "after" })
	s.awaitDone()
}
