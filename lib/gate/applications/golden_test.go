package applications

import (
	"encoding/json"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/tools/txtar"
)

// The cases in testdata/argocd are repositories with one ApplicationSet each, and want.json is what Argo CD itself makes of it:
// examples/outage/argocd/v3/conformance writes it, and holds it against Argo CD's code.

type outcome struct {
	Error        bool       `json:"error"`
	Applications []expected `json:"applications"`
}

type expected struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Spec        any               `json:"spec"`
}

func TestEveryCaseIsExpandedAsArgoCDExpandsIt(t *testing.T) {
	files, err := filepath.Glob("testdata/argocd/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			tree, want := readCase(t, file)
			found, unknown := Find(tree, []string{"appset.yaml"})
			got := outcome{Error: len(unknown) > 0, Applications: []expected{}}
			for _, f := range found {
				if f.Set != "set" || f.Path != "appset.yaml" || f.Line != 1 {
					t.Errorf("%s is said to stand at %s:%d in %s", f.Name, f.Path, f.Line, f.Set)
				}
				got.Applications = append(got.Applications, expected{f.Name, f.Namespace, f.Annotations, f.Spec})
			}
			slices.SortFunc(got.Applications, func(a, b expected) int { return strings.Compare(a.Name, b.Name) })
			text, err := json.MarshalIndent(got, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			if string(text)+"\n" != want {
				t.Errorf("Argo CD gives\n%s\nand this\n%s\nunknown: %v", want, text, unknown)
			}
		})
	}
}

// readCase gives the repository of a case, and what it wants.
func readCase(t testing.TB, file string) (fs.FS, string) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tree, want := fstest.MapFS{}, ""
	for _, f := range archive.Files {
		if f.Name == "want.json" {
			want = string(f.Data)
			continue
		}
		tree[f.Name] = &fstest.MapFile{Data: f.Data, Mode: 0o644}
	}
	return tree, want
}
