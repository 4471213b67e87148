package argocd_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// documents reads each document of a file strictly, and gives the first of that kind.
func documentOf(t *testing.T, file, kind string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(doc, "\nkind: "+kind+"\n") {
			if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
				t.Fatalf("%s: %s: %v", file, kind, err)
			}
			return
		}
	}
	t.Fatalf("%s has no %s", file, kind)
}

func TestTheShippedWatcherIsTwoRestrictedPodsThatAreProbed(t *testing.T) {
	var deployment appsv1.Deployment
	documentOf(t, "watch.yaml", "Deployment", &deployment)
	pod := deployment.Spec.Template.Spec
	if *deployment.Spec.Replicas != 2 || len(pod.Containers) != 1 || !slices.Equal(pod.Containers[0].Args, []string{"watch"}) {
		t.Errorf("replicas %d, containers %v", *deployment.Spec.Replicas, pod.Containers)
	}
	c := pod.Containers[0]
	s := c.SecurityContext
	if !*s.RunAsNonRoot || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Contains(s.Capabilities.Drop, "ALL") || pod.SecurityContext.SeccompProfile == nil {
		t.Errorf("security context %+v", s)
	}
	if c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
		t.Errorf("probes %v %v, resources %v", c.LivenessProbe, c.ReadinessProbe, c.Resources)
	}
	var budget policyv1.PodDisruptionBudget
	documentOf(t, "watch.yaml", "PodDisruptionBudget", &budget)
	if budget.Spec.MaxUnavailable.IntValue() != 1 || budget.Spec.Selector.MatchLabels["app.kubernetes.io/name"] != deployment.Spec.Template.Labels["app.kubernetes.io/name"] {
		t.Errorf("budget %+v", budget.Spec)
	}
}

func TestTheWatcherWritesOnlyWhatItMust(t *testing.T) {
	writes := map[string][]string{
		"applications": {"patch"}, "events": {"create"}, "leases": {"create", "update"}, "holds": {"delete"},
	}
	for _, of := range []struct{ file, kind string }{
		{"watch-rights.yaml", "Role"}, {"watch-rights.yaml", "ClusterRole"}, {"watch-signer-rights.yaml", "Role"}, {"watch-application-rights.yaml", "Role"},
	} {
		var role rbacv1.ClusterRole
		documentOf(t, of.file, of.kind, &role)
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if !slices.Contains([]string{"get", "list", "watch"}, verb) && !slices.Contains(writes[resource], verb) {
						t.Errorf("%s: %s %s", of.file, verb, resource)
					}
				}
				if strings.HasPrefix(resource, "secrets") || strings.Contains(resource, "*") {
					t.Errorf("%s: %s", of.file, resource)
				}
			}
		}
	}
}
