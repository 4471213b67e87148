package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	log "github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/argoproj/argo-cd/v3/applicationset/controllers/template"
	"github.com/argoproj/argo-cd/v3/applicationset/generators"
	"github.com/argoproj/argo-cd/v3/applicationset/utils"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
)

var update = flag.Bool("update", false, "write what Argo CD generates into the cases")

// cases are lib/gate's, each a repository with one ApplicationSet and what Argo CD makes of it. They are those of this release only: the
// gate expands as this one does (lib/gate/applications says what is different in 2.14).
const cases = "../../../../../lib/gate/applications/testdata/argocd"

// outcome is what a case wants.
type outcome struct {
	// Error: Argo CD changes no Application, because some of them cannot be generated.
	Error        bool          `json:"error"`
	Applications []application `json:"applications"`
}

type application struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Spec        any               `json:"spec"`
}

func TestApplicationSetsAreExpandedAsTheCasesOfTheGateHaveThem(t *testing.T) {
	log.SetLevel(log.PanicLevel)
	files, err := filepath.Glob(cases + "/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sections, order := archive(string(text))
			dir := t.TempDir()
			for name, content := range sections {
				if name == "want.json" || name == "" {
					continue
				}
				at := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			git(t, dir, "init", "-q")
			git(t, dir, "add", "-A")
			got, err := json.MarshalIndent(expand(t, dir, sections["appset.yaml"]), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			if *update {
				sections["want.json"] = string(got)
				if !slices.Contains(order, "want.json") {
					order = append(order, "want.json")
				}
				var out strings.Builder
				out.WriteString(sections[""])
				for _, name := range order {
					out.WriteString("-- " + name + " --\n" + sections[name])
				}
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := sections["want.json"]; want != string(got) {
				t.Errorf("the case wants\n%s\nand Argo CD gives\n%s", want, got)
			}
		})
	}
}

func expand(t *testing.T, dir, text string) outcome {
	var set v1alpha1.ApplicationSet
	if err := yaml.Unmarshal([]byte(text), &set); err != nil {
		t.Fatal(err)
	}
	simple := map[string]generators.Generator{"List": generators.NewListGenerator(), "Git": generators.NewGitGenerator(checkout{t, dir}, "argocd")}
	with := func(inner map[string]generators.Generator) map[string]generators.Generator {
		out := maps.Clone(simple)
		out["Matrix"], out["Merge"] = generators.NewMatrixGenerator(inner), generators.NewMergeGenerator(inner)
		return out
	}
	apps, err := generateApplications(set, with(with(simple)))
	out := outcome{Error: err != nil, Applications: []application{}}
	names := map[string]bool{}
	for _, app := range apps {
		d := app.Spec.Destination
		// What validateGeneratedApplications or the API server does not take.
		if names[app.Name] || len(validation.IsDNS1123Subdomain(app.Name)) > 0 || (d.Name == "") == (d.Server == "") {
			out.Error = true
			continue
		}
		names[app.Name] = true
		text, err := json.Marshal(app.Spec)
		if err != nil {
			t.Fatal(err)
		}
		var spec any
		// The gate leaves out what is empty.
		if err := json.Unmarshal(bytes.ReplaceAll(bytes.ReplaceAll(text, []byte(`,"jsonnet":{}`), nil), []byte(`"jsonnet":{},`), nil), &spec); err != nil {
			t.Fatal(err)
		}
		out.Applications = append(out.Applications, application{app.Name, app.Namespace, app.Annotations, spec})
	}
	slices.SortFunc(out.Applications, func(a, b application) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// generateApplications makes an error of a panic, as Reconcile does.
func generateApplications(set v1alpha1.ApplicationSet, with map[string]generators.Generator) (apps []v1alpha1.Application, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	apps, _, err = template.GenerateApplications(log.NewEntry(log.StandardLogger()), set, with, &utils.Render{}, projects{})
	return apps, err
}

// projects is a cluster in which every AppProject exists.
type projects struct{ client.Client }

func (projects) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// checkout answers as the repo server does (reposerver/repository, util/git) of the one repository there is.
type checkout struct {
	t   *testing.T
	dir string
}

func (r checkout) GetFiles(_ context.Context, _, _, _, pattern string, _, _ bool) (map[string][]byte, error) {
	if pattern == "" {
		pattern = "."
	}
	cmd := exec.Command("git", "ls-files", "--full-name", "-z", "--", pattern)
	cmd.Dir = r.dir
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, name := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		if files[name], err = os.ReadFile(filepath.Join(r.dir, name)); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func (r checkout) GetDirectories(context.Context, string, string, string, bool, bool) ([]string, error) {
	var out []string
	return out, filepath.WalkDir(r.dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		if rel, err := filepath.Rel(r.dir, name); err != nil {
			return err
		} else if rel != "." {
			out = append(out, rel)
		}
		return nil
	})
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// archive reads the txtar format: what is before the first file is under the empty name.
func archive(text string) (map[string]string, []string) {
	sections, order, name := map[string]string{}, []string(nil), ""
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(strings.TrimSpace(rest), " --") {
			name = strings.TrimSuffix(strings.TrimSpace(rest), " --")
			order = append(order, name)
			sections[name] = ""
			continue
		}
		sections[name] += line
	}
	return sections, order
}
