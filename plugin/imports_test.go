package plugin_test

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func list(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	slices.Sort(lines)
	return slices.Compact(lines)
}

const module = "github.com/grantfirst/grantfirst"

// The core decides by its inputs alone (docs/design.md section 8).
func TestTheCoreHasNoClockNoEnvironmentAndNoCluster(t *testing.T) {
	for _, core := range []string{"manifest", "demand", "policy", "config", "hold"} {
		for _, imported := range list(t, "-f", `{{join .Imports "\n"}}`, "./lib/"+core) {
			if slices.Contains([]string{"os", "net", "net/http", "io/fs", "math/rand", "math/rand/v2"}, imported) {
				t.Errorf("lib/%s imports %s", core, imported)
			}
		}
		for _, file := range list(t, "-f", `{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}`, "./lib/"+core) {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			// Durations may be parsed, but nothing may ask what time it is.
			if bytes.Contains(source, []byte("time.Now")) || bytes.Contains(source, []byte("time.Since")) {
				t.Errorf("%s reads the clock", file)
			}
		}
		for _, dependency := range list(t, "-deps", "./lib/"+core) {
			if strings.HasPrefix(dependency, "k8s.io/client-go/") {
				t.Errorf("lib/%s depends on %s", core, dependency)
			}
		}
	}
}

func TestImportsPointOneWay(t *testing.T) {
	allowed := map[string][]string{
		"manifest": nil,
		"demand":   {"manifest"},
		"policy":   {"demand"},
		"config":   {"policy"},
		"hold":     {"config", "demand", "manifest", "policy"},
		"loaded":   {"config", "demand", "manifest", "policy"},
		"render":   nil,
		"report":   nil,
		"release":  {"config", "demand", "hold", "loaded", "policy"},
		"doctor":   {"config", "hold", "loaded", "policy"},
		// The gate judges what the sidecar will print, so it has the plugin's own reading of Applications.
		"gate":              {"config", "demand", "gate/applications", "gate/git", "hold", "loaded", "manifest", "plugin", "policy", "render"},
		"gate/applications": nil,
		"gate/git":          nil,
		"gate/output":       {"gate"},
	}
	for _, path := range list(t, "./lib/...") {
		name := strings.TrimPrefix(path, module+"/lib/")
		want, known := allowed[name]
		if !known {
			t.Errorf("lib/%s is in no rule: add it here and to docs/design.md section 8", name)
		}
		for _, imported := range list(t, "-f", `{{join .Imports "\n"}}`, path) {
			if to, ours := strings.CutPrefix(imported, module+"/"); ours && !slices.Contains(want, strings.TrimPrefix(to, "lib/")) {
				t.Errorf("lib/%s imports %s", name, to)
			}
		}
	}
	for _, imported := range list(t, "-f", `{{join .Imports "\n"}}`, "./plugin") {
		if strings.HasPrefix(imported, module+"/cmd") {
			t.Errorf("plugin imports %s", imported)
		}
	}
}

// Every sync starts the binary, and every package in it costs its initialisation: argo-cd's alone 60 ms. So what generate depends on is
// listed, and a verb that needs more must not bring it into plugin.
func TestThePathOfGenerateDoesNotGrow(t *testing.T) {
	const file = "testdata/modules.txt"
	modules := list(t, "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./plugin")
	got := strings.Join(modules, "\n") + "\n"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modules {
		if !slices.Contains(strings.Fields(string(want)), m) {
			t.Errorf("generate now depends on %s: keep it out, or measure what it costs and run the tests with UPDATE=1", m)
		}
	}
}
