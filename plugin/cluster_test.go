package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/grantfirst/grantfirst/lib/policy"
)

// api is an API server as far as a plugin asks one: by path, what it answers.
type api struct {
	*httptest.Server
	answers map[string]http.HandlerFunc

	mutex sync.Mutex
	asked []string
}

const (
	podsPath        = "/api/v1/namespaces/signer/pods"
	configMapsPath  = "/api/v1/namespaces/signer/configmaps"
	applicationPath = "/apis/argoproj.io/v1alpha1/namespaces/argocd/applications/web"
	overridesPath   = "/api/v1/namespaces/argocd/configmaps/" + OverridesName

	// serverTime is the Date of all its answers.
	serverTime = "Sun, 29 Nov 2026 10:00:00 GMT"
)

func newAPI(t *testing.T, answers map[string]http.HandlerFunc) *api {
	t.Helper()
	a := &api{answers: answers}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mutex.Lock()
		a.asked = append(a.asked, r.URL.Path)
		a.mutex.Unlock()
		w.Header().Set("Date", serverTime)
		if answer, ok := a.answers[r.URL.Path]; ok {
			answer(w, r)
			return
		}
		// As a real one says it.
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		status(http.StatusNotFound, "NotFound", fmt.Sprintf(`, "details": {"name": %q}`, name))(w, r)
	}))
	t.Cleanup(a.Close)
	return a
}

func body(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, text)
	}
}

func status(code int, reason, more string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "said so", "reason": %q, "code": %d%s}`, reason, code, more)
	}
}

// list is a Kubernetes list of these items.
func list(kind string, items ...string) http.HandlerFunc {
	return body(fmt.Sprintf(`{"kind": %q, "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [%s]}`, kind, strings.Join(items, ",")))
}

func signerPod(name string) string {
	return fmt.Sprintf(`{"metadata": {"name": %[1]q, "namespace": "signer", "uid": "uid-%[1]s", "labels": {"app": "signer"}},
		"spec": {"nodeName": "n", "containers": [{"name": "signer", "env": [{"name": "PASSWORD", "value": "hunter2"}]}]},
		"status": {"phase": "Running", "containerStatuses": [{"name": "signer", "containerID": "id-%[1]s", "state": {"running": {"startedAt": "2026-11-29T09:00:00Z"}}}]}}`, name)
}

func reportOf(pod, text string) string {
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf(`{"metadata": {"name": "grantfirst-report-%[1]s", "namespace": "signer", "labels": {"grantfirst.dev/report": "v1"},
		"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": %[1]q, "uid": "uid-%[1]s"}]},
		"data": {"signerName": "example.com/a", "container": "signer", "containerID": "id-%[1]s", "policy": %[2]q, "revision": "sha256:%[3]s"}}`,
		pod, text, hex.EncodeToString(sum[:]))
}

const (
	granting = "[{namespace: shop, serviceAccount: web}]"
	refusing = "[]"
	revision = "1111111111111111111111111111111111111111"
	source   = `{"repoURL": "https://git.example/r", "path": "app", "targetRevision": "main", "plugin": {"name": "grantfirst"}}`
)

func policyObject(text string) string {
	return fmt.Sprintf(`{"metadata": {"name": "p", "namespace": "signer"}, "data": {"k": %q}}`, text)
}

// applicationObject has the revision that is rendered as its last sync where it is released.
func applicationObject(destination string, released bool) string {
	history := ""
	if released {
		history = fmt.Sprintf(`{"id": 1, "revision": %q, "source": %s}`, revision, source)
	}
	return fmt.Sprintf(`{"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": {"name": "web", "namespace": "argocd"},
		"spec": {"project": "default", "destination": {"server": %q, "namespace": "shop"}, "source": %s},
		"status": {"history": [%s]}}`, destination, source, history)
}

const ownDestination = "https://kubernetes.default.svc"

// healthy is a cluster in which all is well: two replicas that have loaded the text.
func healthy(text string, released bool) map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		podsPath:        list("PodList", signerPod("s-1"), signerPod("s-2")),
		configMapsPath:  list("ConfigMapList", policyObject(text), reportOf("s-1", text), reportOf("s-2", text)),
		applicationPath: body(applicationObject(ownDestination, released)),
	}
}

const reporting = configuration + "signers: [{signerName: example.com/a, namespace: signer, policy: {configMap: {name: p}, key: k, format: grants}, podSelector: app=signer, evidence: report}]\n"

// sidecar is the call that Argo CD makes, with that API server.
func sidecar(t *testing.T, a *api, config string) *Request {
	t.Helper()
	return sidecarAt(t, a.URL, config)
}

func sidecarAt(t *testing.T, server, config string) *Request {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\nusers: [{name: u, user: {token: t}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n", server)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"ARGOCD_APP_NAME": "web", "ARGOCD_APP_NAMESPACE": "shop", "ARGOCD_APP_REVISION": revision, "ARGOCD_APP_SOURCE_REPO_URL": "https://git.example/r",
		"ARGOCD_APP_SOURCE_PATH": "app", "ARGOCD_APP_SOURCE_TARGET_REVISION": "main", "KUBECONFIG": kubeconfig, "TMPDIR": t.TempDir(),
	}
	return request(t, map[string]string{"config.yaml": config, "app/a.yaml": demanding}, env)
}

func plan(t *testing.T, r *Request) *Outcome {
	t.Helper()
	out, err := r.Plan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhatAllReplicasHaveLoadedGoesOutAsItIs(t *testing.T) {
	a := newAPI(t, healthy(granting, false))
	out := plan(t, sidecar(t, a, reporting))
	if text, _ := out.Bytes(); string(text) != demanding || out.Held || len(out.Warnings) > 0 {
		t.Errorf("held %v, warnings %q\n%s", out.Held, out.Warnings, text)
	}
}

// The number of requests must not grow with what is rendered, and a render without demands must not need a cluster at all.
func TestRequestsDoNotGrowWithWorkloads(t *testing.T) {
	for name, test := range map[string]struct {
		demands int
		want    []string
	}{
		"no demand, no request": {0, nil},
		"one demand":            {1, []string{overridesPath, configMapsPath, podsPath, applicationPath}},
		"a thousand demands":    {1000, []string{overridesPath, configMapsPath, podsPath, applicationPath}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, healthy(refusing, false))
			r := sidecar(t, a, reporting)
			var stream strings.Builder
			stream.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n")
			for i := range test.demands {
				fmt.Fprintf(&stream, "---\n%s", strings.ReplaceAll(demanding, "web", fmt.Sprintf("web-%d", i)))
			}
			if err := os.WriteFile(filepath.Join(r.Path, "a.yaml"), []byte(stream.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			if out := plan(t, r); out.Held != (test.demands > 0) {
				t.Errorf("held %v", out.Held)
			}
			slices.Sort(a.asked)
			if !slices.Equal(a.asked, test.want) {
				t.Errorf("asked %q, want %q", a.asked, test.want)
			}
		})
	}
}

// Whatever goes wrong, Argo CD gets manifests: the new is held with the reason, the released goes out.
func TestWhatCannotBeReadIsUnknownAndNeverAnError(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	broken := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, `{"kind": "PodList", `)
	}
	for name, test := range map[string]struct {
		path   string
		answer http.HandlerFunc
		why    string
	}{
		"pods forbidden":                         {podsPath, status(403, "Forbidden", ""), "reading pods in namespace signer: the API server forbids it (403): apply the RBAC of examples/argocd"},
		"ConfigMaps forbidden":                   {configMapsPath, status(403, "Forbidden", ""), "reading configmaps in namespace signer: the API server forbids it (403)"},
		"an expired token":                       {podsPath, status(401, "Unauthorized", ""), "does not accept the credentials (401)"},
		"overload that does not end":             {podsPath, retryLater(http.StatusTooManyRequests), "the API server is overloaded (429)"},
		"an error of the API server's":           {podsPath, status(500, "InternalError", ""), "the API server has an error of its own (500)"},
		"an API server that is starting":         {podsPath, retryLater(http.StatusServiceUnavailable), "the API server has an error of its own (503)"},
		"garbage":                                {podsPath, body("\x00\x01garbage"), "the API server's answer cannot be understood"},
		"a login page":                           {podsPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>log in</html>") }, "the API server's answer cannot be understood"},
		"another list than asked for":            {podsPath, list("ConfigMapList"), "the API server's answer cannot be understood"},
		"an object instead of a list":            {podsPath, body(`{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "x"}}`), "the API server's answer cannot be understood"},
		"a status instead of a list":             {podsPath, body(`{"kind": "Status", "apiVersion": "v1", "status": "Success"}`), "the API server's answer cannot be understood"},
		"an empty object":                        {podsPath, body(`{}`), "the API server's answer cannot be understood"},
		"an answer that is broken off":           {podsPath, broken, "the API server broke off its answer"},
		"ConfigMaps that are broken off":         {configMapsPath, broken, "the API server broke off its answer"},
		"a connection that is closed at once":    {podsPath, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "the API server broke off its answer"},
		"no signer and no policy at all":         {podsPath, list("PodList"), ""},
		"overload for longer than there is time": {podsPath, retryIn(http.StatusTooManyRequests, "1"), "the API server is overloaded (429)"},
		"a start for longer than there is time":  {podsPath, retryIn(http.StatusServiceUnavailable, "1"), "the API server has an error of its own (503)"},
		"an API server that never answers":       {podsPath, hang, "the API server did not answer in time (readTimeout)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, released := range []bool{false, true} {
				answers := healthy(granting, released)
				answers[test.path] = test.answer
				if test.why == "" {
					answers[configMapsPath] = list("ConfigMapList")
				}
				r := sidecar(t, newAPI(t, answers), reporting)
				switch {
				case strings.Contains(name, "never"):
					r.Timeout = 200 * time.Millisecond
				case strings.Contains(name, "longer"), strings.Contains(name, "closed"):
					// Enough for the first answer on any machine, and over before client-go has tried ten times.
					r.Timeout = 3 * time.Second
				}
				out := plan(t, r)
				if out.Held == released {
					t.Errorf("released before %v, held %v", released, out.Held)
				}
				d := out.Demands[0]
				if d.Decision != policy.Unknown || !strings.Contains(d.Message, test.why) {
					t.Errorf("%s %q, want %q", d.Decision, d.Message, test.why)
				}
				if text, _ := out.Bytes(); !released && !strings.Contains(strings.ReplaceAll(strings.Join(strings.Fields(string(text)), " "), "''", "'"), test.why) {
					t.Errorf("the marker does not say %q:\n%s", test.why, text)
				}
			}
		})
	}
}

func retryLater(code int) http.HandlerFunc { return retryIn(code, "0") }

func retryIn(code int, seconds string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", seconds)
		reason := map[int]string{429: "TooManyRequests", 503: "ServiceUnavailable"}[code]
		status(code, reason, "")(w, r)
	}
}

func TestAnAPIServerThatWantsToBeAskedLaterIsAskedAgain(t *testing.T) {
	answers := healthy(granting, false)
	pods, times := answers[podsPath], 0
	answers[podsPath] = func(w http.ResponseWriter, r *http.Request) {
		if times++; times < 4 {
			retryLater(http.StatusTooManyRequests)(w, r)
			return
		}
		pods(w, r)
	}
	if out := plan(t, sidecar(t, newAPI(t, answers), reporting)); out.Held || times != 4 {
		t.Errorf("held %v after %d attempts: %s", out.Held, times, out.WaitingFor())
	}
}

// A list of several pages that grew too old between two of them is begun anew.
func TestAListIsReadToItsEnd(t *testing.T) {
	page := func(more, pod string) string {
		return fmt.Sprintf(`{"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": %q}, "items": [%s]}`, more, pod)
	}
	for name, second := range map[string]http.HandlerFunc{
		"the second page": body(page("", signerPod("s-2"))),
		"a list gone old": status(410, "Expired", ""),
	} {
		t.Run(name, func(t *testing.T) {
			answers := healthy(granting, false)
			whole := answers[podsPath]
			// Only the replica of the second page refuses.
			answers[configMapsPath] = list("ConfigMapList", policyObject(granting), reportOf("s-1", granting), reportOf("s-2", refusing))
			answers[podsPath] = func(w http.ResponseWriter, r *http.Request) {
				switch query := r.URL.Query(); {
				case query.Get("continue") != "":
					second(w, r)
				case query.Get("limit") != "":
					body(page("token", signerPod("s-1")))(w, r)
				default:
					whole(w, r)
				}
			}
			out := plan(t, sidecar(t, newAPI(t, answers), reporting))
			if !out.Held || !strings.Contains(out.WaitingFor(), "pod s-2") {
				t.Errorf("held %v: %s", out.Held, out.WaitingFor())
			}
		})
	}
}

func TestWithoutAnyCredentialsTheNewIsHeldAndTheReasonSaid(t *testing.T) {
	r := sidecarAt(t, "http://127.0.0.1:1", reporting)
	out := plan(t, r)
	if !out.Held || !strings.Contains(out.WaitingFor(), "the API server cannot be reached: connection refused") {
		t.Errorf("%v: %s", out.Held, out.WaitingFor())
	}
	text, err := out.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	again, err := plan(t, r).Bytes()
	if err != nil || string(again) != string(text) {
		t.Errorf("two renders of the same state differ: %v\n%s\n%s", err, text, again)
	}
}

// What was released must not freeze because the Application cannot be read.
func TestTheApplicationIsRemembered(t *testing.T) {
	answers := healthy(granting, true)
	a := newAPI(t, answers)
	r := sidecar(t, a, reporting)
	plan(t, r)
	for name, forbidden := range map[string][]string{
		"the Application alone": {applicationPath},
		"everything":            {applicationPath, podsPath, configMapsPath, overridesPath},
	} {
		t.Run(name, func(t *testing.T) {
			a.answers = healthy(granting, true)
			for _, path := range forbidden {
				a.answers[path] = status(403, "Forbidden", "")
			}
			out := plan(t, r)
			if out.Held || !slices.Contains(out.Warnings, "the Application cannot be read, so that what was last read of it counts") {
				t.Errorf("held %v, warnings %q", out.Held, out.Warnings)
			}
		})
	}
	t.Run("a refusal holds all the same", func(t *testing.T) {
		a.answers = healthy(refusing, true)
		a.answers[applicationPath] = status(403, "Forbidden", "")
		if out := plan(t, r); !out.Held {
			t.Error("not held")
		}
	})
	t.Run("nothing is remembered of another Application", func(t *testing.T) {
		other := sidecar(t, a, reporting)
		getenv := other.Getenv
		other.Getenv = func(key string) string {
			return map[string]string{"ARGOCD_APP_NAME": "other", "TMPDIR": r.Getenv("TMPDIR")}[key] + map[bool]string{true: "", false: getenv(key)}[key == "ARGOCD_APP_NAME" || key == "TMPDIR"]
		}
		a.answers = map[string]http.HandlerFunc{strings.ReplaceAll(applicationPath, "web", "other"): status(403, "Forbidden", "")}
		out := plan(t, other)
		if !out.Held || !strings.Contains(out.Demands[0].Message, "it counts as new because the Application is not known (reading Application argocd/other: the API server forbids it (403)") {
			t.Errorf("held %v: %s", out.Held, out.WaitingFor())
		}
	})
}

func TestNobodyElseCanMakeUsRemember(t *testing.T) {
	a := newAPI(t, healthy(refusing, true))
	r := sidecar(t, a, reporting)
	dir := filepath.Join(r.Getenv("TMPDIR"), fmt.Sprintf("grantfirst-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	c := &call{Request: r}
	if _, err := c.memoryFolder(); err == nil {
		t.Error("a folder that others can write to is taken")
	}
}

// Its author may write whatever Kubernetes takes.
func TestNoApplicationIsUnreadableByItsAuthor(t *testing.T) {
	answers := healthy(granting, false)
	a := newAPI(t, answers)
	r := sidecar(t, a, reporting)
	plan(t, r)
	moved := strings.Replace(applicationObject("https://eu.example.com", false), `"name": "web"`, `"annotations": {"x": "a\u007fb \u0080 \ufffe \ud800 `+"\x7f"+`"}, "name": "web"`, 1)
	answers[applicationPath] = body(moved)
	out := plan(t, r)
	if !out.Held || !strings.Contains(out.WaitingFor(), "https://eu.example.com is not Argo CD's own cluster") {
		t.Errorf("held %v, %q: %s", out.Held, out.Warnings, out.WaitingFor())
	}
}

// What is remembered may be old in every respect.
func TestWhatIsRememberedLetsNothingNewOut(t *testing.T) {
	forbidden := status(403, "Forbidden", "")
	t.Run("the remembered cluster may be another one by now", func(t *testing.T) {
		answers := healthy(granting, false)
		r := sidecar(t, newAPI(t, answers), reporting)
		plan(t, r)
		answers[applicationPath] = forbidden
		if out := plan(t, r); !out.Held || !strings.Contains(out.WaitingFor(), "may deploy to another cluster by now") {
			t.Errorf("held %v: %s", out.Held, out.WaitingFor())
		}
	})
	t.Run("unless the configuration says which one it is", func(t *testing.T) {
		answers := healthy(granting, false)
		r := sidecar(t, newAPI(t, answers), reporting+"clusters: [{name: here, applications: ['*'], inCluster: true}]\n")
		plan(t, r)
		answers[applicationPath] = forbidden
		if out := plan(t, r); out.Held {
			t.Errorf("held: %s", out.WaitingFor())
		}
	})
	for name, between := range map[string]string{
		"a render without any demand": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n",
		"a render with another one":   strings.ReplaceAll(demanding, "serviceAccountName: web", "serviceAccountName: other"),
	} {
		for _, unread := range []bool{false, true} {
			t.Run(fmt.Sprintf("a demand that %s has not had is new again, unread %v", name, unread), func(t *testing.T) {
				answers := healthy(granting, true)
				r := sidecar(t, newAPI(t, answers), reporting)
				file := filepath.Join(r.Path, "a.yaml")
				render := func(text string) *Outcome {
					t.Helper()
					if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
					return plan(t, r)
				}
				render(demanding)
				answers[podsPath] = forbidden
				if unread {
					answers[applicationPath] = forbidden
				}
				if !unread || strings.Contains(between, "ConfigMap") {
					render(between)
				} else {
					render(demanding)
					render(between)
				}
				answers[applicationPath] = forbidden
				if out := render(demanding); !out.Held || !out.Demands[0].New {
					t.Errorf("held %v, new %v", out.Held, out.Demands[0].New)
				}
			})
		}
	}
}

func TestWhatIsRememberedIsThisApplicationAndAFile(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, file string){
		"a symlink": func(t *testing.T, file string) {
			if err := os.Rename(file, file+".real"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(file+".real", file); err != nil {
				t.Fatal(err)
			}
		},
		"a FIFO": func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(file, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"another Application": func(t *testing.T, file string) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(strings.Replace(string(text), `"name":"web"`, `"name":"other"`, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"half of it": func(t *testing.T, file string) {
			if err := os.Truncate(file, 100); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			answers := healthy(granting, true)
			r := sidecar(t, newAPI(t, answers), reporting)
			plan(t, r)
			files, err := filepath.Glob(filepath.Join(r.Getenv("TMPDIR"), "grantfirst-*", "application-*.json"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			spoil(t, files[0])
			for _, path := range []string{applicationPath, podsPath} {
				answers[path] = status(403, "Forbidden", "")
			}
			if out := plan(t, r); !out.Held {
				t.Error("taken")
			}
		})
	}
}

// A credential plugin that hangs does not end with its context.
func TestNothingOutlastsTheDeadline(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	r := sidecarAt(t, server.URL, reporting)
	kubeconfig := r.Getenv("KUBECONFIG")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]\n"+
		"users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: sleep, args: ['4'], interactiveMode: Never}}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Timeout = 200 * time.Millisecond
	// Waited for, the plugin would give no credentials, and that would be the reason.
	if out := plan(t, r); !out.Held || !strings.Contains(out.WaitingFor(), "did not answer in time") {
		t.Errorf("held %v: %s", out.Held, out.WaitingFor())
	}
}

// Argo CD renders an Application before it exists: there is no past then, which is no problem.
func TestAnApplicationThatIsNotThereHasNoPast(t *testing.T) {
	answers := healthy(granting, false)
	delete(answers, applicationPath)
	out := plan(t, sidecar(t, newAPI(t, answers), reporting))
	if !out.Held || !strings.Contains(out.WaitingFor(), "the Application's destination is not known") {
		t.Errorf("held %v: %s", out.Held, out.WaitingFor())
	}
	out = plan(t, sidecar(t, newAPI(t, answers), reporting+"clusters: [{name: here, applications: ['*'], inCluster: true}]\n"))
	if out.Held || len(out.Warnings) > 0 {
		t.Errorf("held %v: %s %q", out.Held, out.WaitingFor(), out.Warnings)
	}
}

// Only the API server's word that this very object is not there means that it has no past.
func TestNoAnswerAboutTheApplicationIsNotThatItIsNotThere(t *testing.T) {
	everywhere := reporting + "clusters: [{name: here, applications: ['*'], inCluster: true}]\n"
	for name, answer := range map[string]http.HandlerFunc{
		"no such kind":                    status(404, "NotFound", ""),
		"a page that is not there":        http.NotFound,
		"another object is not there":     status(404, "NotFound", `, "details": {"name": "other"}`),
		"an Application of another name":  body(strings.Replace(applicationObject(ownDestination, true), `"name": "web"`, `"name": "other"`, 1)),
		"one of another namespace":        body(strings.Replace(applicationObject(ownDestination, true), `"namespace": "argocd"`, `"namespace": "other"`, 1)),
		"one that has another source now": body(strings.Replace(applicationObject(ownDestination, true), `"path": "app"`, `"path": "moved"`, 1)),
		"another kind":                    body(`{"kind": "AppProject", "apiVersion": "argoproj.io/v1alpha1"}`),
	} {
		t.Run(name, func(t *testing.T) {
			answers := healthy(granting, true)
			answers[applicationPath] = answer
			answers[podsPath] = status(403, "Forbidden", "")
			out := plan(t, sidecar(t, newAPI(t, answers), everywhere))
			if !out.Held || len(out.Warnings) < 2 || !strings.Contains(out.Demands[0].NewBecause, "Application") {
				t.Errorf("held %v, new because %q, warnings %q", out.Held, out.Demands[0].NewBecause, out.Warnings)
			}
		})
	}
}

// A guess could find the grant in a cluster that the Application has nothing to do with.
func TestTheClusterIsTheApplicationsAndNeverAGuess(t *testing.T) {
	remote := newAPI(t, healthy(granting, false))
	remoteConfig := sidecar(t, remote, reporting).Getenv("KUBECONFIG")
	entry := "clusters: [{name: remote, destinations: ['https://remote*'], kubeconfig: " + remoteConfig + "}]\n"
	for name, test := range map[string]struct {
		destination, config string
		held                bool
		why                 string
	}{
		"its own cluster, which refuses":                {ownDestination, reporting, true, "no grant for"},
		"another cluster without an entry is a hold":    {"https://remote", reporting, true, "https://remote is not Argo CD's own cluster, and no entry of clusters in the configuration fits it"},
		"another cluster by its entry":                  {"https://remote", reporting + entry, false, ""},
		"an entry for another destination is no answer": {"https://other", reporting + entry, true, "no entry of clusters"},
		"its own cluster beside entries":                {ownDestination, reporting + entry, true, "no grant for"},
		"a kubeconfig that is not there is a hold":      {"https://remote", reporting + "clusters: [{name: remote, destinations: ['https://remote*'], kubeconfig: /does/not/exist}]\n", true, "cluster remote of the configuration"},
		"by the project that the Application has":       {"https://remote", reporting + "clusters: [{name: remote, projects: [default], kubeconfig: " + remoteConfig + "}]\n", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			answers := healthy(refusing, false)
			answers[applicationPath] = body(applicationObject(test.destination, false))
			out := plan(t, sidecar(t, newAPI(t, answers), test.config))
			if out.Held != test.held || !strings.Contains(out.WaitingFor(), test.why) {
				t.Errorf("held %v: %s", out.Held, out.WaitingFor())
			}
		})
	}
}

func TestWithoutTheApplicationItsDestinationIsNotKnown(t *testing.T) {
	answers := healthy(granting, false)
	answers[applicationPath] = status(403, "Forbidden", "")
	out := plan(t, sidecar(t, newAPI(t, answers), reporting))
	if !out.Held || !strings.Contains(out.WaitingFor(), "the Application's destination is not known") {
		t.Errorf("held %v: %s", out.Held, out.WaitingFor())
	}
}

func TestOverridesLetGoForATime(t *testing.T) {
	for name, test := range map[string]struct {
		entries string
		held    bool
		warning string
	}{
		"one in force":                           {`[{until: "2026-11-29T10:00:01Z", reason: INC-1}]`, false, ""},
		"one that has run out":                   {`[{until: "2026-11-29T10:00:00Z", reason: INC-1}]`, true, ""},
		"one for this demand":                    {`[{until: "2026-11-29T11:00:00Z", reason: INC-1, signerName: example.com/a, namespace: shop, serviceAccount: web}]`, false, ""},
		"one for another demand":                 {`[{until: "2026-11-29T11:00:00Z", reason: INC-1, serviceAccount: other}]`, true, ""},
		"one without a reason does not count":    {`[{until: "2026-11-29T11:00:00Z"}]`, true, "give a reason"},
		"one without an end does not count":      {`[{reason: INC-1}]`, true, "until"},
		"what cannot be understood loosens none": {`{until: soon`, true, "nothing of it counts"},
		"an unknown field loosens none":          {`[{until: "2026-11-29T11:00:00Z", reason: INC-1, account: web}]`, true, "nothing of it counts"},
	} {
		t.Run(name, func(t *testing.T) {
			answers := healthy(refusing, false)
			entries, _ := json.Marshal(test.entries)
			answers[overridesPath] = body(fmt.Sprintf(`{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": %q, "namespace": "argocd"}, "data": {"web": %s}}`, OverridesName, entries))
			out := plan(t, sidecar(t, newAPI(t, answers), reporting))
			if out.Held != test.held || !strings.Contains(strings.Join(out.Warnings, " "), test.warning) || test.warning == "" && len(out.Warnings) > 0 {
				t.Errorf("held %v: %s; warnings %q", out.Held, out.WaitingFor(), out.Warnings)
			}
			if !test.held && (out.Demands[0].Override == nil || out.Demands[0].Override.Reason != "INC-1") {
				t.Error("the override is not said")
			}
		})
	}
}

// A hold that was made while the Application could not be read is the same one when it can be again.
func TestAHoldWithoutTheApplicationIsNotTakenForARelease(t *testing.T) {
	answers := healthy(granting, false)
	a := newAPI(t, answers)
	r := sidecar(t, a, reporting)
	a.answers = map[string]http.HandlerFunc{applicationPath: status(403, "Forbidden", ""), podsPath: status(403, "Forbidden", "")}
	out := plan(t, r)
	text, err := out.Bytes()
	if err != nil || !out.Held {
		t.Fatal(out.Held, err)
	}
	_, name, _ := strings.Cut(string(text), "name: grantfirst-")
	name, _, _ = strings.Cut(name, "\n")
	// That hold was synced, and the signer still cannot be read.
	held := strings.Replace(applicationObject(ownDestination, true), `"status": {`, fmt.Sprintf(`"status": {"resources": [{"group": "grantfirst.dev", "version": "v1alpha1", "kind": "Hold", "namespace": "shop", "name": "grantfirst-%s"}],`, name), 1)
	a.answers = map[string]http.HandlerFunc{applicationPath: body(held), podsPath: status(403, "Forbidden", "")}
	if out := plan(t, r); !out.Held || !out.Demands[0].New {
		t.Errorf("held %v, new %v", out.Held, out.Demands[0].New)
	}
}

func TestTheDeadlineIsBeforeArgoCDs(t *testing.T) {
	for name, test := range map[string]struct {
		env     map[string]string
		spent   time.Duration
		timeout time.Duration
		want    time.Duration
	}{
		"that of the configuration":            {map[string]string{"ARGOCD_APP_NAME": "web"}, 0, 0, 10 * time.Second},
		"that of the flag":                     {map[string]string{"ARGOCD_APP_NAME": "web"}, 0, 3 * time.Second, 3 * time.Second},
		"Argo CD's, less time to decide":       {map[string]string{"ARGOCD_APP_NAME": "web"}, 50 * time.Second, 0, 5 * time.Second},
		"Argo CD's own setting":                {map[string]string{"ARGOCD_APP_NAME": "web", "ARGOCD_EXEC_TIMEOUT": "8s"}, 0, 0, 6 * time.Second},
		"a longer one of Argo CD's":            {map[string]string{"ARGOCD_APP_NAME": "web", "ARGOCD_EXEC_TIMEOUT": "3m"}, 100 * time.Second, 0, 10 * time.Second},
		"at least a second":                    {map[string]string{"ARGOCD_APP_NAME": "web"}, 59 * time.Second, 0, time.Second},
		"without Argo CD only one's own":       {nil, 59 * time.Second, 0, 10 * time.Second},
		"a setting that is no time is nothing": {map[string]string{"ARGOCD_APP_NAME": "web", "ARGOCD_EXEC_TIMEOUT": "soon"}, 50 * time.Second, 0, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, map[string]string{"config.yaml": configuration, "app/a.yaml": demanding}, test.env)
			r.Timeout = test.timeout
			now := time.Unix(1000, 0)
			c := &call{Request: r, began: now.Add(-test.spent)}
			if err := c.readConfig(); err != nil {
				t.Fatal(err)
			}
			if got := c.deadline(now).Sub(now); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// A snapshot stands for the cluster: the same bytes come out. Nothing that could be a secret is in it.
func TestASnapshotGivesTheSameBytes(t *testing.T) {
	for name, answers := range map[string]map[string]http.HandlerFunc{
		"held":         healthy(refusing, false),
		"released":     healthy(granting, true),
		"held, a past": healthy(refusing, true),
		"an empty namespace": {podsPath: list("PodList"), configMapsPath: list("ConfigMapList", `{"metadata": {"name": "kube-root-ca.crt", "namespace": "signer"}, "data": {"ca.crt": "x"}}`),
			applicationPath: body(applicationObject(ownDestination, false))},
		"another cluster": {applicationPath: body(applicationObject("https://eu.example.com", false))},
		"pods forbidden":  {podsPath: status(403, "Forbidden", ""), configMapsPath: list("ConfigMapList"), applicationPath: body(applicationObject(ownDestination, false))},
	} {
		t.Run(name, func(t *testing.T) {
			answers["/version"] = body(`{"gitVersion": "v1.37.2"}`)
			answers["/api"] = body(`{"kind": "APIVersions", "versions": ["v1"]}`)
			answers["/apis"] = body(`{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`)
			answers["/api/v1"] = body(`{"kind": "APIResourceList", "groupVersion": "v1", "resources": [{"name": "pods", "kind": "Pod", "namespaced": true}]}`)
			r := sidecar(t, newAPI(t, answers), reporting)
			want, err := plan(t, r).Bytes()
			if err != nil {
				t.Fatal(err)
			}
			stream, warnings, err := r.Snapshot(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(stream), "hunter2") {
				t.Errorf("a secret is in it:\n%s", stream)
			}
			for _, needed := range []string{"takenAt: \"2026-11-29T10:00:00Z\"", "kubeVersion: v1.37.2", "- v1/Pod"} {
				if name != "another cluster" && !strings.Contains(string(stream), needed) {
					t.Errorf("%q is not in it (warnings %q):\n%s", needed, warnings, stream)
				}
			}
			file := filepath.Join(t.TempDir(), "snapshot.yaml")
			if err := os.WriteFile(file, stream, 0o600); err != nil {
				t.Fatal(err)
			}
			offline := &Request{Path: r.Path, Config: r.Config, Live: []string{file}, Getenv: func(string) string { return "" }}
			for _, application := range []string{file, "web", "argocd/web"} {
				offline.Application = application
				got, err := plan(t, offline).Bytes()
				if err != nil || string(got) != string(want) {
					t.Errorf("--application %s: %v\n%s\nwant\n%s", application, err, got, want)
				}
			}
		})
	}
}

func TestAnApplicationByItsName(t *testing.T) {
	answers := healthy(granting, false)
	a := newAPI(t, answers)
	r := sidecar(t, a, reporting)
	kubeconfig := r.Getenv("KUBECONFIG")
	r.Getenv, r.Kubeconfig = func(string) string { return "" }, kubeconfig
	r.Application = "web"
	if out := plan(t, r); out.Held || out.Application != "web" || out.Namespace != "shop" {
		t.Errorf("held %v, %s in %s: %s", out.Held, out.Application, out.Namespace, out.WaitingFor())
	}
	for name, test := range map[string]struct{ application, err string }{
		"one that is not there":    {"other", "reading Application argocd/other: the API server has no such thing (404)"},
		"a file that is not there": {"web.yaml", "no such file"},
		"what is neither":          {"a/b/c", "neither a file nor the name"},
	} {
		t.Run(name, func(t *testing.T) {
			r.Application = test.application
			if _, err := r.Plan(context.Background()); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%v, want %q", err, test.err)
			}
		})
	}
}

func TestAMistakeInTheFlagsIsSaid(t *testing.T) {
	r := sidecar(t, newAPI(t, healthy(granting, true)), reporting)
	kubeconfig := r.Getenv("KUBECONFIG")
	for name, test := range map[string]struct{ kubeconfig, context, err string }{
		"a file that is not there":    {"/does/not/exist", "", "no such file"},
		"a context that is not there": {kubeconfig, "other", `context "other" is in no kubeconfig: use one of c`},
		"without a file, too":         {"", "other", `context "other" is in no kubeconfig: use one of c`},
	} {
		t.Run(name, func(t *testing.T) {
			r.Kubeconfig, r.Context = test.kubeconfig, test.context
			if _, err := r.Plan(context.Background()); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%v, want %q", err, test.err)
			}
		})
	}
}

// The sidecar that cannot read the Application is where a snapshot is needed most.
func TestASnapshotWithoutTheApplicationGivesTheSameBytes(t *testing.T) {
	answers := healthy(granting, true)
	answers[applicationPath] = status(403, "Forbidden", "")
	r := sidecar(t, newAPI(t, answers), reporting)
	want, err := plan(t, r).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	stream, _, err := r.Snapshot(context.Background())
	if err != nil || !strings.Contains(string(stream), "applicationUnknown: ") {
		t.Fatalf("%v\n%s", err, stream)
	}
	file := filepath.Join(t.TempDir(), "snapshot.yaml")
	if err := os.WriteFile(file, stream, 0o600); err != nil {
		t.Fatal(err)
	}
	offline := *r
	offline.Live = []string{file}
	got, err := plan(t, &offline).Bytes()
	if err != nil || string(got) != string(want) {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}
