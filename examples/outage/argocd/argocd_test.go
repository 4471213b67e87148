package argocd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEachModuleRequiresItsRelease(t *testing.T) {
	for _, r := range []Release{V2, V3} {
		text, err := os.ReadFile(filepath.Join(r.Folder, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\t"+r.Module+" v") {
			t.Errorf("%s/go.mod does not require %s", r.Folder, r.Module)
		}
	}
}

func TestWhatGoesIntoTheProgramIsInItsKey(t *testing.T) {
	dir := t.TempDir()
	files := []string{"go.mod", "go.sum", "main.go"}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	keys := map[string]string{}
	for _, changed := range append([]string{"nothing"}, files...) {
		if changed != "nothing" {
			if err := os.WriteFile(filepath.Join(dir, changed), []byte("// changed\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		key, err := V2.key(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := keys[key]; ok {
			t.Errorf("the key is the same after a change of %s as after one of %s", changed, other)
		}
		keys[key] = changed
	}
}
