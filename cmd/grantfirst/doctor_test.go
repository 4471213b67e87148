package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// consult runs grantfirst doctor with an API server that answers like this.
func consult(t *testing.T, answer http.HandlerFunc, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}],
  contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code = run(append([]string{"grantfirst", "doctor", "--kubeconfig", kubeconfig}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// empty has no object of any kind.
func empty(w http.ResponseWriter, r *http.Request) {
	if strings.Count(r.URL.Path, "/") > 3 && (strings.Contains(r.URL.Path, "/configmaps/") || strings.Contains(r.URL.Path, "/leases/") || strings.Contains(r.URL.Path, "customresourcedefinitions/")) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
		return
	}
	fmt.Fprint(w, `{"kind": "AnyList", "items": []}`)
}

func TestDoctorEndsWithOneWhenSomethingIsWrong(t *testing.T) {
	code, stdout, stderr := consult(t, empty, "--namespace", "gitops")
	if code != exitFound || stderr != "" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	for _, want := range []string{
		"error    repo-server-missing  namespace gitops\n         has no Deployment with label app.kubernetes.io/name=argocd-repo-server\n         fix: name Argo CD's namespace with --namespace\n",
		"error    config-missing  ConfigMap gitops/grantfirst-config\n", "error    watcher-missing  ", "info     no-applications  ", "\nnamespace gitops: errors ",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("it does not say %q:\n%s", want, stdout)
		}
	}
}

func TestTheJSONOfDoctorHasEveryFinding(t *testing.T) {
	code, stdout, _ := consult(t, empty, "-o", "json")
	var got struct {
		Namespace                        string
		Errors, Warnings, Unknown, Infos int
		Findings                         []map[string]string
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	if code != exitFound || got.Namespace != "argocd" || got.Errors == 0 || got.Infos == 0 || len(got.Findings) != got.Errors+got.Warnings+got.Unknown+got.Infos {
		t.Errorf("exit code %d, %+v", code, got)
	}
	if f := got.Findings[0]; f["id"] == "" || f["severity"] != "error" || f["object"] == "" || f["message"] == "" || f["fix"] == "" {
		t.Errorf("%v", f)
	}
}

func TestDoctorEndsWithTwoWhenItCouldNotTell(t *testing.T) {
	code, stdout, stderr := consult(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "nobody may", "reason": "Forbidden", "code": 403}`)
	})
	if code != exitCouldNotTell || stderr != "grantfirst: not everything could be told: see above\n" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	if !strings.Contains(stdout, "unknown  unread  Deployments in namespace argocd\n         nobody may\n         fix: kubectl auth can-i list deployments.apps -n argocd\n") {
		t.Error(stdout)
	}
}
