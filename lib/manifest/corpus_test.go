package manifest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

const shared = "../../../shared"

// corpus gives the plain YAML files of the shared corpus; chart templates are none.
func corpus(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(shared+"/corpus", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".yaml") && !strings.HasSuffix(path, ".yml") || strings.Contains(path, "/templates/") {
			return err
		}
		raw, err := os.ReadFile(path)
		files[path] = raw
		return err
	})
	if err != nil {
		t.Skipf("the shared corpus is not here: %v", err)
	}
	return files
}

func TestCorpusLeavesAsItCameAndItsHeadsAreThoseOfDecode(t *testing.T) {
	for path, raw := range corpus(t) {
		s, err := Parse(raw)
		if err != nil {
			switch base := filepath.Base(path); {
			case base == "Chart.yaml" || base == "kustomization.yaml" || base == "requirements.yaml" || strings.HasPrefix(base, "values"):
				continue // no manifests
			}
			t.Errorf("%s: %v", path, err)
			continue
		}
		if !bytes.Equal(s.Bytes(), raw) {
			t.Errorf("%s: changed", path)
		}
		got, err := decodeAll(s)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		want, err := argo(raw)
		if err != nil {
			t.Errorf("%s: Argo CD: %v", path, err)
		}
		same(t, path, got, want)
		for _, d := range s.Documents {
			sameHeads(t, d)
			if tree := ordinary(d.Raw, wholly); tree == nil {
				t.Errorf("%s: document %d is not ordinary", path, d.Number)
			} else if _, ok := tree.decode(&tree.root); !ok {
				t.Errorf("%s: document %d is decoded slowly", path, d.Number)
			}
		}
		if len(raw) < 100_000 { // or it takes minutes under the race detector
			checkRewrite(t, raw, 0x5555555555555555, "x", true)
			checkRewrite(t, raw, 0x9249249249249249, "y", false)
		}
	}
}

func TestCasesSplitAndLeaveAsTheyCame(t *testing.T) {
	files, _ := filepath.Glob(shared + "/cases/*.txtar")
	if len(files) == 0 {
		t.Skip("the shared cases are not here")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var raw, want []byte
			for _, f := range a.Files {
				switch f.Name {
				case "in.yaml":
					raw = f.Data
				case "want.json":
					want = f.Data
				}
			}
			s, err := Parse(raw)
			if bytes.Contains(want, []byte(`"error"`)) {
				if err == nil {
					t.Fatal("no error")
				}
				if _, text, _ := strings.Cut(string(want), `"error": "`); !strings.Contains(err.Error(), strings.Split(text, `"`)[0]) {
					t.Errorf("%v, want %s", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantBytes := raw
			if bytes.HasPrefix(raw, []byte("{")) && bytes.Contains(raw, []byte("\n---")) {
				wantBytes = append([]byte("---\n"), raw...)
			}
			if got := s.Bytes(); !bytes.Equal(got, wantBytes) {
				t.Errorf("got %q\nwant %q", got, wantBytes)
			}
			got, err := decodeAll(s)
			if err != nil {
				t.Fatal(err)
			}
			objs, err := argo(raw)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "objects", got, objs)
		})
	}
}
