package argocd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheModuleRequiresTheRelease(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(V2.Folder, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\t"+V2.Module+" v") {
		t.Errorf("%s/go.mod does not require %s", V2.Folder, V2.Module)
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
