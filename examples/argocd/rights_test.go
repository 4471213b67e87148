package argocd_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// rules are what a user may do in a namespace (and, where that is a matter of no namespace, everywhere), a line for each verb and kind.
func (i *installation) rules(of *kubernetes.Clientset, namespace string) map[string]bool {
	i.Helper()
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	review, err := of.AuthorizationV1().SelfSubjectRulesReviews().Create(i.Context(), review, metav1.CreateOptions{})
	if err != nil {
		i.Fatal(err)
	}
	rules := map[string]bool{}
	for _, r := range review.Status.ResourceRules {
		names := r.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, verb := range r.Verbs {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, name := range names {
						rules[strings.TrimSpace(fmt.Sprintf("%s %s/%s %s", verb, group, resource, name))] = true
					}
				}
			}
		}
	}
	for _, r := range review.Status.NonResourceRules {
		for _, verb := range r.Verbs {
			for _, url := range r.NonResourceURLs {
				rules[verb+" "+url] = true
			}
		}
	}
	return rules
}

// everybody has these rights (Kubernetes 1.37 plugin/pkg/auth/authorizer/rbac/bootstrappolicy: system:basic-user, system:discovery,
// system:public-info-viewer, system:service-account-issuer-discovery, system:cluster-trust-bundle-discovery).
var everybody = regexp.MustCompile(`^(create auth[a-z]+\.k8s\.io/self[a-z]+reviews|(get|list|watch) certificates\.k8s\.io/clustertrustbundles|` +
	`get /(api|apis|openapi|healthz|livez|readyz|version|\.well-known/openid-configuration|openid/v1/jwks)(/|/\*)?)$`)

// rights are what shipped files give a ServiceAccount in each of these namespaces, beyond what it could do without them.
func (i *installation) rights(namespace, account string, namespaces []string, ship func()) func() map[string][]string {
	i.Helper()
	client := i.as(namespace, account)
	before := map[string]map[string]bool{}
	for _, n := range namespaces {
		before[n] = i.rules(client, n)
		for rule := range before[n] {
			if !everybody.MatchString(rule) {
				i.Errorf("without the shipped files, %s may already: %s", account, rule)
			}
		}
	}
	ship()
	return func() map[string][]string {
		added := map[string][]string{}
		for _, n := range namespaces {
			for rule := range i.rules(client, n) {
				if !before[n][rule] {
					added[n] = append(added[n], rule)
				}
			}
			slices.Sort(added[n])
		}
		return added
	}
}

// awaitRights: the API server takes a moment to know of new rules.
func (i *installation) awaitRights(got func() map[string][]string, want map[string][]string) {
	i.Helper()
	var last map[string][]string
	for range 50 {
		if last = got(); maps.EqualFunc(last, want, slices.Equal) {
			return
		}
		i.settle()
	}
	i.Errorf("rights:\n  %v\nwant:\n  %v", last, want)
}

// settle gives the API server time to see what it was told: a write to etcd, and its way back.
func (i *installation) settle() {
	i.Helper()
	i.apply(fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settle, namespace: %s}\n", i.team))
	if err := i.CoreV1().ConfigMaps(i.team).Delete(i.Context(), "settle", metav1.DeleteOptions{}); err != nil {
		i.Fatal(err)
	}
}

// everywhere are the namespaces in which rights are compared: those that have to do with it, and two that have not.
func (i *installation) everywhere() []string {
	return []string{i.argocd, i.signing, i.team, "default", "kube-system"}
}

func (i *installation) pluginRights() map[string][]string {
	return map[string][]string{
		i.argocd:  {"get /configmaps grantfirst-overrides", "get argoproj.io/applications"},
		i.signing: {"list /configmaps", "list /pods"},
		i.team:    {"get argoproj.io/applications"},
	}
}

func TestWithTheShippedRightsThePluginDecidesAndCanDoNothingElse(t *testing.T) {
	i := newInstallation(t)
	rights := i.rights(i.argocd, repoServer, i.everywhere(), i.shipRights)
	i.awaitRights(rights, i.pluginRights())
	i.signer()
	environment := func(app string) []string {
		return i.environment(app, i.kubeconfig(nil, i.token(i.argocd, repoServer)), "tmp")
	}

	t.Run("what is granted goes out as it is, without a word of warning", func(t *testing.T) {
		i := i.with(t)
		out := i.generate(environment("fresh"))
		if want := i.workload("web", "shop"); out.stdout != want || strings.Count(out.stderr, "\n") != 1 {
			t.Errorf("%s\n%s", out.stderr, out.stdout)
		}
	})
	t.Run("what is not granted is held", func(t *testing.T) {
		i := i.with(t)
		i.grants("other")
		i.await("the signer has loaded it", func() (bool, error) { return strings.Contains(i.report().Data["policy"], "other"), nil })
		for _, app := range []string{"fresh", "web"} {
			if out := i.generate(environment(app)); !strings.Contains(out.held, "NoGrant") && !strings.Contains(out.stdout, "NoGrant") || strings.Count(out.stderr, "\n") != 1 {
				t.Errorf("held: %s\n%s", out.held, out.stderr)
			}
		}
	})
	t.Run("an override of the admin is read", func(t *testing.T) {
		i := i.with(t)
		i.apply(fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: grantfirst-overrides, namespace: %s}\ndata: {fresh: '[{until: \"2999-01-01T00:00:00Z\", reason: a drill}]'}\n", i.argocd))
		if out := i.generate(environment("fresh")); out.held != "" || !strings.Contains(out.stderr, "a drill") {
			t.Errorf("held: %s\n%s", out.held, out.stderr)
		}
		if err := i.CoreV1().ConfigMaps(i.argocd).Delete(t.Context(), "grantfirst-overrides", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("an Application of another namespace is read", func(t *testing.T) {
		i := i.with(t)
		i.apply(strings.ReplaceAll(i.replace(application), "namespace: "+i.argocd, "namespace: "+i.team))
		if out := i.generate(environment(i.team + "_web")); strings.Count(out.stderr, "\n") != 1 {
			t.Errorf("held: %s\n%s", out.held, out.stderr)
		}
	})
	t.Run("each of these is forbidden", func(t *testing.T) {
		client := i.as(i.argocd, repoServer)
		for _, a := range []authorizationv1.ResourceAttributes{
			{Verb: "list", Group: "argoproj.io", Resource: "applications", Namespace: i.argocd},
			{Verb: "watch", Group: "argoproj.io", Resource: "applications", Namespace: i.argocd},
			{Verb: "patch", Group: "argoproj.io", Resource: "applications", Namespace: i.argocd, Name: "web"},
			{Verb: "get", Group: "argoproj.io", Resource: "applications", Namespace: i.signing, Name: "web"},
			{Verb: "get", Resource: "configmaps", Namespace: i.argocd, Name: "argocd-cm"},
			{Verb: "list", Resource: "configmaps", Namespace: i.argocd},
			{Verb: "update", Resource: "configmaps", Namespace: i.argocd, Name: "grantfirst-overrides"},
			{Verb: "update", Resource: "configmaps", Namespace: i.signing, Name: "policy"},
			{Verb: "create", Resource: "configmaps", Namespace: i.signing},
			{Verb: "list", Resource: "secrets", Namespace: i.argocd},
			{Verb: "get", Resource: "secrets", Namespace: i.argocd, Name: "argocd-secret"},
			{Verb: "list", Resource: "secrets", Namespace: i.signing},
			{Verb: "list", Resource: "pods"},
			{Verb: "list", Resource: "pods", Namespace: i.argocd},
			{Verb: "create", Resource: "pods", Subresource: "exec", Namespace: i.signing, Name: "signer-0"},
			{Verb: "get", Resource: "pods", Subresource: "log", Namespace: i.signing, Name: "signer-0"},
			{Verb: "create", Resource: "serviceaccounts", Subresource: "token", Namespace: i.argocd, Name: repoServer},
		} {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a}}
			review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
			if err != nil || review.Status.Allowed {
				t.Errorf("%+v: allowed %v, error %v", a, review.Status.Allowed, err)
			}
		}
	})

	// Red, on purpose: one rule too many must be seen by what was asked above.
	t.Run("a rule too many shows", func(t *testing.T) {
		i := i.with(t)
		wide := strings.Replace(shipped(i, "signer-rbac.yaml", i.signing, i.names()), "  - configmaps\n", "  - configmaps\n  - secrets\n", 1)
		i.apply(wide)
		want := i.pluginRights()
		want[i.signing] = append(want[i.signing], "list /secrets")
		i.awaitRights(rights, want)
		i.shipRights()
		i.awaitRights(rights, i.pluginRights())
	})
	for _, missing := range []struct {
		namespace, role, what, held string
	}{
		{i.signing, "grantfirst-evidence", "configmaps in namespace " + i.signing, "the API server forbids it (403): apply the RBAC of examples/argocd"},
		{i.argocd, "grantfirst", "Application " + i.argocd + "/fresh", ""},
	} {
		t.Run("without RoleBinding "+missing.role+" it is said what is forbidden and what to do", func(t *testing.T) {
			i := i.with(t)
			if err := i.RbacV1().RoleBindings(missing.namespace).Delete(t.Context(), missing.role, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			want := i.pluginRights()
			delete(want, missing.namespace)
			i.awaitRights(rights, want)
			out := i.generate(environment("fresh"))
			if out.held == "" || !strings.Contains(out.stderr, missing.what) || !strings.Contains(out.stderr, "forbidden") || !strings.Contains(out.held, missing.held) {
				t.Errorf("held: %s\n%s", out.held, out.stderr)
			}
			i.shipRights()
			i.awaitRights(rights, i.pluginRights())
		})
	}
}

func TestTheRightsOfReporterAndSignerAreNoMoreThanTheyNeed(t *testing.T) {
	i := newInstallation(t)
	t.Run("the reporter's", func(t *testing.T) {
		i := i.with(t)
		i.account(i.signing, "pod-cert-signer")
		rights := i.rights(i.signing, "pod-cert-signer", i.everywhere(), func() {
			i.apply(shipped(i, "reporter-rbac.yaml", i.signing, strings.NewReplacer("namespace: pod-cert-signer\n", "namespace: "+i.signing+"\n")))
		})
		i.awaitRights(rights, map[string][]string{
			i.signing: {"create /configmaps", "get /configmaps", "get /pods", "update /configmaps"},
		})
	})
	t.Run("the signer's", func(t *testing.T) {
		i := i.with(t)
		i.account(i.signing, i.signing)
		everywhere := []string{
			"get certificates.k8s.io/podcertificaterequests", "list certificates.k8s.io/podcertificaterequests", "sign certificates.k8s.io/signers example.test/" + i.signing,
			"update certificates.k8s.io/podcertificaterequests/status", "watch certificates.k8s.io/podcertificaterequests",
		}
		want := map[string][]string{}
		for _, n := range i.everywhere() {
			want[n] = everywhere
		}
		want[i.signing] = slices.Sorted(slices.Values(append([]string{"create /configmaps", "get /configmaps", "get /pods", "update /configmaps"}, everywhere...)))
		i.awaitRights(i.rights(i.signing, i.signing, i.everywhere(), i.shipSigner), want)
	})
}

// Whatever a cluster makes of them, these files must never have such a rule.
func TestTheShippedRightsAreOfOneNamespaceAndNameWhatTheyAllow(t *testing.T) {
	files, err := filepath.Glob("*rbac.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("files %v, error %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range strings.SplitSeq(string(text), "\n---\n") {
			var role rbacv1.Role
			if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
				t.Fatal(err)
			}
			switch role.Kind {
			case "RoleBinding":
				continue
			case "Role":
			default:
				t.Errorf("%s: a %s", file, role.Kind)
			}
			for _, rule := range role.Rules {
				for _, word := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.ResourceNames) {
					if strings.Contains(word, "*") || strings.HasPrefix(word, "secrets") || word == "watch" || word == "delete" || word == "patch" {
						t.Errorf("%s: %v", file, rule)
					}
				}
				if slices.Contains(rule.Resources, "applications") && !slices.Equal(rule.Verbs, []string{"get"}) {
					t.Errorf("%s: Applications can be listed: %v", file, rule)
				}
			}
		}
	}
}
