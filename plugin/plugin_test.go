package plugin

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func TestMain(m *testing.M) {
	// As the command does: what client-go has to say comes back as an error.
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// request is a call on a fresh repository with the given files; env stands for the environment.
func request(t *testing.T, files map[string]string, env map[string]string) *Request {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, ".git"), 0o700); err != nil {
		t.Fatal(err)
	}
	return &Request{
		Path:   filepath.Join(dir, "app"),
		Config: filepath.Join(dir, "config.yaml"),
		Getenv: func(key string) string { return env[key] },
	}
}

const (
	configuration = "apiVersion: grantfirst.dev/v1alpha1\nkind: Config\n"
	demanding     = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {serviceAccountName: web, volumes: [{name: tls, projected: {sources: [{podCertificate: {signerName: example.com/a, keyType: ED25519}}]}}]}\n"
	application   = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: web, namespace: argocd}\n"
)

func TestNamesComeFromFlagsThenEnvironmentThenApplication(t *testing.T) {
	files := map[string]string{
		"config.yaml": configuration, "app/a.yaml": demanding,
		"application.yaml": application + "spec: {destination: {namespace: from-application}, source: {path: app}}\n",
	}
	env := map[string]string{"ARGOCD_APP_NAME": "from-env", "ARGOCD_APP_NAMESPACE": "from-env"}
	for name, test := range map[string]struct {
		env            map[string]string
		flag           bool
		app, namespace string
	}{
		"the Application alone":       {nil, false, "web", "from-application"},
		"the environment before that": {env, false, "from-env", "from-env"},
		"flags before all":            {env, true, "from-flag", "from-flag"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, files, test.env)
			r.Application = filepath.Join(filepath.Dir(r.Config), "application.yaml")
			if test.flag {
				r.App, r.Namespace = "from-flag", "from-flag"
			}
			out, err := r.Plan(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if out.Application != test.app || out.Namespace != test.namespace || out.Demands[0].Namespace != test.namespace {
				t.Errorf("%s in %s, demand in %s", out.Application, out.Namespace, out.Demands[0].Namespace)
			}
		})
	}
}

func TestTheHydratorGetsThePlainRender(t *testing.T) {
	r := request(t, map[string]string{
		"config.yaml": configuration, "app/a.yaml": demanding,
		"application.yaml": application + "spec: {sourceHydrator: {drySource: {}}, source: {path: app}}\n",
	}, nil)
	r.Application = filepath.Join(filepath.Dir(r.Config), "application.yaml")
	out, err := r.Plan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	text, err := out.Bytes()
	if err != nil || string(text) != demanding {
		t.Errorf("a hold would be committed to Git: %v\n%s", err, text)
	}
	if len(out.Warnings) != 1 || !strings.Contains(out.Warnings[0], "hydrator") {
		t.Errorf("warnings %q", out.Warnings)
	}
}

func TestObserveLetsOutWhatCannotBeUnderstood(t *testing.T) {
	broken := strings.Replace(demanding, "signerName: example.com/a, ", "", 1)
	for name, test := range map[string]struct {
		mode string
		err  string
	}{
		"enforce refuses it and names the file": {"", "app/a.yaml"},
		"observe prints the plain render":       {"mode: observe\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, map[string]string{"config.yaml": configuration + test.mode, "app/a.yaml": broken}, nil)
			out, err := r.Plan(context.Background())
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := out.Bytes(); string(text) != broken || out.Problem == "" {
				t.Errorf("problem %q, out\n%s", out.Problem, text)
			}
		})
	}
}

// The author points the source elsewhere and back: the held sync in between was not released.
func TestAHeldSyncIsNotReleasedByPointingTheSourceElsewhere(t *testing.T) {
	sync := func(id, path string) string {
		return "  - {id: " + id + ", revision: \"" + strings.Repeat(id, 40) + "\", source: {repoURL: r, path: " + path + ", plugin: {name: grantfirst}}}\n"
	}
	r := request(t, map[string]string{
		"config.yaml": configuration + "signers: [{signerName: example.com/a, namespace: signer, policy: {configMap: {name: p}, key: k, format: grants}, podSelector: a=b, evidence: podVolumes}]\n",
		"app/a.yaml":  demanding,
		"application.yaml": application + "spec: {destination: {namespace: shop}, source: {repoURL: r, path: app, plugin: {name: grantfirst}}}\nstatus:\n  history:\n" +
			sync("1", "app") + sync("2", "other"),
	}, nil)
	r.Application = filepath.Join(filepath.Dir(r.Config), "application.yaml")
	c := &call{Request: r, at: -1}
	if err := c.prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	past := c.past()
	if len(past) != 2 {
		t.Fatalf("%d entries", len(past))
	}
	// The newest sync counts, wherever it pointed; here its commit cannot be had, so the demand is new.
	if _, err := past[0].Render(); err == nil {
		t.Error("the newest entry rendered nothing")
	}
	out, err := r.Plan(context.Background())
	if err != nil || !out.Held {
		t.Errorf("not held: %v", err)
	}
}

func TestASourceThatTheApplicationDidNotHaveRenderedNothing(t *testing.T) {
	r := request(t, map[string]string{
		"config.yaml": configuration, "app/a.yaml": demanding,
		"application.yaml": application + "spec: {sources: [{repoURL: r, path: app}, {repoURL: r, path: other}]}\n" +
			"status: {history: [{id: 1, revision: a, source: {repoURL: r, path: other}}]}\n",
	}, nil)
	r.Application = filepath.Join(filepath.Dir(r.Config), "application.yaml")
	c := &call{Request: r, at: -1}
	if err := c.prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	stream, err := c.past()[0].Render()
	if err != nil || len(stream.Documents) != 0 {
		t.Errorf("%v, %v", stream, err)
	}
}

func TestSourcesOfOneApplicationAreToldApart(t *testing.T) {
	id := func(t *testing.T, path string, sources string) string {
		t.Helper()
		r := request(t, map[string]string{
			"config.yaml": configuration, "app/a.yaml": demanding, "other/a.yaml": demanding,
			"application.yaml": application + "spec: {sources: " + sources + "}\n",
		}, nil)
		root := filepath.Dir(r.Config)
		r.Application, r.Path = filepath.Join(root, "application.yaml"), filepath.Join(root, path)
		c := &call{Request: r, at: -1}
		if err := c.prepare(context.Background()); err != nil {
			t.Fatal(err)
		}
		return c.sourceID()
	}
	two := "[{repoURL: r, path: app, targetRevision: main}, {repoURL: r, path: other, targetRevision: main}]"
	if id(t, "app", two) == id(t, "other", two) {
		t.Error("two sources have the same identity")
	}
	branch := "[{repoURL: r, path: app, targetRevision: v2}, {repoURL: r, path: other, targetRevision: main}]"
	if id(t, "app", two) != id(t, "app", branch) {
		t.Error("following another branch makes another source, and its hold is lost")
	}
}
