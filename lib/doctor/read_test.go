package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/grantfirst/grantfirst/lib/config"
)

// api is an API server as far as doctor asks one.
type api struct {
	*httptest.Server
	// objects are by path: a text is one object, a list of texts the items of a list.
	objects map[string]any
	// answers are instead of objects.
	answers map[string]http.HandlerFunc

	mutex sync.Mutex
	asked []string
}

func newAPI(t testing.TB) *api {
	t.Helper()
	a := &api{objects: map[string]any{}, answers: map[string]http.HandlerFunc{}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mutex.Lock()
	a.asked = append(a.asked, r.Method+" "+r.URL.Path)
	a.mutex.Unlock()
	w.Header().Set("Date", "Sun, 29 Nov 2026 10:00:00 GMT")
	w.Header().Set("Content-Type", "application/json")
	if answer, ok := a.answers[r.URL.Path]; ok {
		answer(w, r)
		return
	}
	switch o := a.objects[r.URL.Path].(type) {
	case string:
		fmt.Fprint(w, o)
	case []string:
		fmt.Fprintf(w, `{"kind": "AnyList", "items": [%s]}`, strings.Join(o, ","))
	default:
		refuse(http.StatusNotFound, "NotFound")(w, r)
	}
}

func refuse(code int, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "it is said to be %s", "reason": %q, "code": %d}`, strings.ToLower(reason), reason, code)
	}
}

func toJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const (
	inArgoCD  = "/api/v1/namespaces/argocd/"
	appsPath  = "/apis/apps/v1/namespaces/argocd/"
	argoPath  = "/apis/argoproj.io/v1alpha1/"
	holdsPath = "/apis/grantfirst.dev/v1alpha1/holds"
	crdPath   = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/holds.grantfirst.dev"
	askPath   = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// serving is an API server with the healthy installation.
func serving(t testing.TB) *api {
	t.Helper()
	a, i := newAPI(t), healthy(t)
	a.objects[appsPath+"deployments"] = []string{toJSON(t, i.Deployments[0]), toJSON(t, i.Deployments[1])}
	a.objects[appsPath+"statefulsets"] = []string{toJSON(t, i.StatefulSets[0])}
	a.objects[inArgoCD+"pods"] = []string{toJSON(t, i.Pods[0])}
	for name, cm := range i.ConfigMaps {
		if cm.Value != nil {
			a.objects[inArgoCD+"configmaps/"+name] = toJSON(t, cm.Value)
		}
	}
	a.objects["/apis/coordination.k8s.io/v1/namespaces/argocd/leases/grantfirst-watch"] = toJSON(t, i.Lease.Value)
	a.objects[argoPath+"applications"] = []string{toJSON(t, i.Applications[0])}
	a.objects[argoPath+"applicationsets"] = []string{}
	a.objects[argoPath+"namespaces/argocd/appprojects"] = []string{toJSON(t, i.Projects[0])}
	a.objects[crdPath] = toJSON(t, i.Clusters[0].Kind.Value)
	a.objects[holdsPath] = []string{}
	a.objects["/api/v1/namespaces/pcs/pods"] = `{"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "pcs-1", "namespace": "pcs", "uid": "u", "labels": {"app": "pcs"}},
		"spec": {"containers": [{"name": "pcs"}]}, "status": {"phase": "Running", "containerStatuses": [{"name": "pcs", "containerID": "c", "state": {"running": {"startedAt": "2026-11-29T09:00:00Z"}}}]}}]}`
	a.objects["/api/v1/namespaces/pcs/configmaps"] = `{"kind": "ConfigMapList", "apiVersion": "v1", "items": [{"metadata": {"name": "policy", "namespace": "pcs"}, "data": {"policy.yaml": "[]"}},
		{"metadata": {"name": "r", "namespace": "pcs", "labels": {"grantfirst.dev/report": "v1"}, "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "pcs-1", "uid": "u"}]},
		"data": {"signerName": "example.com/workload", "container": "pcs", "containerID": "c", "policy": "[]", "revision": "sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"}}]}`
	a.answers[askPath] = func(w http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			t.Error(err)
		}
		q, account := review.Spec.ResourceAttributes, strings.TrimPrefix(review.Spec.User, "system:serviceaccount:argocd:")
		review.Status.Allowed = i.Rights[Right{account, q.Namespace, q.Verb, q.Group, q.Resource, q.Name}]
		fmt.Fprint(w, toJSON(t, review))
	}
	return a
}

func (a *api) access() *Access {
	return &Access{Own: &rest.Config{Host: a.URL}, Namespace: "argocd", Elsewhere: func(*config.Cluster) (*rest.Config, error) { return nil, errors.New("no such file") }}
}

func examine(t *testing.T, a *Access) []string {
	t.Helper()
	i, err := Read(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	return said(Examine(i))
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	want = append(want, "info signer-loaded ")
	if len(got) != len(want) {
		t.Errorf("%d findings, want %d", len(got), len(want))
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, w) }) {
			t.Errorf("it does not say: %s", w)
		}
	}
	if t.Failed() {
		t.Log(strings.Join(got, "\n"))
	}
}

func TestAHealthyInstallationIsReadByFewRequestsThatChangeNothing(t *testing.T) {
	a := serving(t)
	expect(t, examine(t, a.access()))
	for _, request := range a.asked {
		if !strings.HasPrefix(request, "GET ") && request != "POST "+askPath {
			t.Errorf("it asked for %s", request)
		}
		if strings.Contains(request, "secrets") {
			t.Errorf("it asked for %s", request)
		}
	}
	if reads := slices.DeleteFunc(a.asked, func(r string) bool { return strings.HasPrefix(r, "POST ") }); len(reads) > 16 {
		t.Errorf("%d reads: %v", len(reads), reads)
	}
}

func TestWhatIsForbiddenIsAFindingAndTheRestGoesOn(t *testing.T) {
	forbidden := refuse(http.StatusForbidden, "Forbidden")
	for _, test := range []struct {
		name  string
		paths []string
		want  []string
	}{
		{"Deployments", []string{appsPath + "deployments"}, []string{"unknown unread Deployments in namespace argocd: it is said to be forbidden [kubectl auth can-i list deployments.apps -n argocd]"}},
		{"pods", []string{inArgoCD + "pods"}, []string{"unknown unread Pods in namespace argocd: it is said to be forbidden [kubectl auth can-i list pods -n argocd]"}},
		{"StatefulSets", []string{appsPath + "statefulsets"}, []string{"unknown unread StatefulSets in namespace argocd"}},
		{"AppProjects", []string{argoPath + "namespaces/argocd/appprojects"}, []string{"unknown unread AppProjects in namespace argocd: it is said to be forbidden [kubectl auth can-i list appprojects.argoproj.io -n argocd]"}},
		{"Applications everywhere", []string{argoPath + "applications"}, []string{"unknown unread Applications of all namespaces: it is said to be forbidden [kubectl auth can-i list applications.argoproj.io -A]"}},
		{"Applications", []string{argoPath + "applications", argoPath + "namespaces/argocd/applications"}, []string{"unknown unread Applications of all namespaces", "unknown unread Applications in namespace argocd"}},
		{"a ConfigMap", []string{inArgoCD + "configmaps/argocd-cm"}, []string{"unknown unread ConfigMap argocd/argocd-cm: it is said to be forbidden [kubectl auth can-i get configmaps/argocd-cm -n argocd]"}},
		{"the Lease", []string{"/apis/coordination.k8s.io/v1/namespaces/argocd/leases/grantfirst-watch"}, []string{"unknown unread Lease argocd/grantfirst-watch"}},
		{"the Hold kind, where Holds may be listed", []string{crdPath}, nil},
		{"Holds", []string{holdsPath}, []string{"unknown unread Holds of all namespaces"}},
		{"Holds and their kind", []string{holdsPath, crdPath}, []string{"unknown unread Holds of all namespaces", "unknown unread CustomResourceDefinition holds.grantfirst.dev"}},
		{"rights", []string{askPath}, []string{"unknown rights-unknown ServiceAccount argocd/argocd-repo-server", "unknown rights-unknown ServiceAccount argocd/grantfirst-watch"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := serving(t)
			a.objects[argoPath+"namespaces/argocd/applications"] = a.objects[argoPath+"applications"]
			if slices.Contains(test.paths, argoPath+"applications") {
				// Whether its Application is gone cannot be told either.
				a.objects[holdsPath] = []string{`{"metadata": {"name": "h", "namespace": "shop"}, "spec": {"application": "team_web"}}`}
			}
			for _, path := range test.paths {
				a.answers[path] = forbidden
			}
			expect(t, examine(t, a.access()), test.want...)
		})
	}
	t.Run("a signer", func(t *testing.T) {
		a := serving(t)
		a.answers["/api/v1/namespaces/pcs/configmaps"] = forbidden
		got := examine(t, a.access())
		if len(got) != 1 || !strings.HasPrefix(got[0], "unknown unread signer example.com/workload: reading configmaps in namespace pcs: the API server forbids it (403)") {
			t.Error(got)
		}
	})
}

func TestAKindThatIsNotServedIsNotThere(t *testing.T) {
	a := serving(t)
	a.answers[crdPath] = refuse(http.StatusForbidden, "Forbidden")
	delete(a.objects, holdsPath)
	expect(t, examine(t, a.access()), "error hold-kind-missing ")
}

func TestTheConfigurationIsTheOneThatIsMounted(t *testing.T) {
	a, i := serving(t), healthy(t)
	volumeOf(i.pod(), "grantfirst-config").ConfigMap.Name = "grantfirst-config-7h2"
	volumeOf(&i.Deployments[1].Spec.Template.Spec, "grantfirst-config").ConfigMap.Name = "grantfirst-config-7h2"
	a.objects[appsPath+"deployments"] = []string{toJSON(t, i.Deployments[0]), toJSON(t, i.Deployments[1])}
	a.objects[inArgoCD+"configmaps/grantfirst-config-7h2"] = a.objects[inArgoCD+"configmaps/grantfirst-config"]
	delete(a.objects, inArgoCD+"configmaps/grantfirst-config")
	expect(t, examine(t, a.access()))
}

func TestAClusterWithoutAccessIsAFinding(t *testing.T) {
	a := serving(t)
	access := a.access()
	var err error
	if access.Config, err = config.Parse([]byte(configuration + "clusters: [{name: eu, destinations: [eu], kubeconfig: /k/eu.yaml}]\n")); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, access), "unknown unread cluster eu: no such file [run it where /k/eu.yaml is, as in the sidecar: kubectl exec -n argocd", "warning config-differs ")
}

func TestAnotherClusterIsReadByItsOwnAccess(t *testing.T) {
	a, eu := serving(t), serving(t)
	a.objects[inArgoCD+"configmaps/grantfirst-config"] = toJSON(t, map[string]any{"data": map[string]string{
		"config.yaml": configuration + "clusters: [{name: eu, destinations: [eu], kubeconfig: /k/eu.yaml}, {name: eu-2, destinations: [eu2], kubeconfig: /k/eu.yaml}]\n",
	}})
	delete(eu.objects, crdPath)
	delete(eu.objects, holdsPath)
	access := a.access()
	access.Elsewhere = func(c *config.Cluster) (*rest.Config, error) {
		if c.Kubeconfig != "/k/eu.yaml" {
			t.Errorf("asked for %+v", c)
		}
		return &rest.Config{Host: eu.URL}, nil
	}
	expect(t, examine(t, access), "error hold-kind-missing CustomResourceDefinition holds.grantfirst.dev in cluster eu: ", "info signer-loaded signer example.com/workload in cluster eu: ")
}

func TestALongListComesInPagesAndIsBegunAnewWhenItGrewTooOld(t *testing.T) {
	a := serving(t)
	pages := 0
	a.answers[argoPath+"applications"] = func(w http.ResponseWriter, r *http.Request) {
		pages++
		q := r.URL.Query()
		switch {
		case q.Get("continue") == "" && q.Get("limit") == "500":
			fmt.Fprint(w, `{"kind": "ApplicationList", "metadata": {"continue": "2"}, "items": [{"metadata": {"name": "old"}}]}`)
		case q.Get("continue") == "2":
			refuse(http.StatusGone, "Expired")(w, r)
		case q.Get("limit") == "":
			fmt.Fprint(w, `{"kind": "ApplicationList", "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}`)
		}
	}
	i, err := Read(context.Background(), a.access())
	if err != nil {
		t.Fatal(err)
	}
	if pages != 3 || len(i.Applications) != 2 || i.Applications[0].Metadata.Name != "a" {
		t.Errorf("%d pages, %+v", pages, i.Applications)
	}
}

func TestNobodyToAskIsAnError(t *testing.T) {
	for name, access := range map[string]func(a *api) *Access{
		"nothing listens": func(a *api) *Access { a.Close(); return a.access() },
		"no credentials": func(a *api) *Access {
			a.answers[appsPath+"deployments"] = refuse(http.StatusUnauthorized, "Unauthorized")
			return a.access()
		},
	} {
		t.Run(name, func(t *testing.T) {
			i, err := Read(context.Background(), access(serving(t)))
			if err == nil || i != nil {
				t.Errorf("%v, %v", i, err)
			}
		})
	}
}

func TestThereIsOneDeadlineForAll(t *testing.T) {
	a := serving(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	a.answers[inArgoCD+"pods"] = func(_ http.ResponseWriter, r *http.Request) {
		cancel(nil)
		<-r.Context().Done()
	}
	i, err := Read(ctx, a.access())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(i.Unread, func(u Unread) bool { return u.What == "Pods in namespace argocd" }) {
		t.Errorf("%+v", i.Unread)
	}
	over, cancelOver := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancelOver()
	if _, err := Read(over, a.access()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestAnAnswerThatIsNoListIsSaid(t *testing.T) {
	a := serving(t)
	a.objects[inArgoCD+"pods"] = `{"kind": "Pod"}`
	a.objects[appsPath+"statefulsets"] = `<html>`
	expect(t, examine(t, a.access()), `unknown unread Pods in namespace argocd: the API server's answer is a "Pod", not a list`, "unknown unread StatefulSets in namespace argocd: the API server's answer cannot be understood")
}

// BenchmarkFiveThousandApplications reads and judges them, each with 30 resources in its status.
func BenchmarkFiveThousandApplications(b *testing.B) {
	a := serving(b)
	var resources []string
	for n := range 30 {
		resources = append(resources, fmt.Sprintf(`{"group": "apps", "version": "v1", "kind": "Deployment", "namespace": "shop", "name": "web-%d", "status": "Synced", "health": {"status": "Healthy"}}`, n))
	}
	status := strings.Join(resources, ",")
	var page []string
	for n := range 500 {
		page = append(page, fmt.Sprintf(`{"metadata": {"name": "app-%d", "namespace": "argocd"}, "spec": {"project": "default", "destination": {"server": "https://kubernetes.default.svc"},
			"source": {"path": "a", "plugin": {"name": "grantfirst"}}, "syncPolicy": {"automated": {"prune": true}}}, "status": {"resources": [%s]}}`, n, status))
	}
	items := strings.Join(page, ",")
	a.answers[argoPath+"applications"] = func(w http.ResponseWriter, r *http.Request) {
		at := len(r.URL.Query().Get("continue"))
		more := strings.Repeat("x", at+1)
		if at == 9 {
			more = ""
		}
		fmt.Fprintf(w, `{"kind": "ApplicationList", "metadata": {"continue": %q}, "items": [%s]}`, more, items)
	}
	for b.Loop() {
		i, err := Read(context.Background(), a.access())
		if err != nil || len(i.Applications) != 5000 {
			b.Fatal(err)
		}
		if worst := Worst(Examine(i)); worst != "" {
			b.Fatal(worst)
		}
	}
	b.SetBytes(int64(10 * len(items)))
}
