package manifest

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write the golden files anew")

var held = map[string]string{"argocd.argoproj.io/hook": "Skip", "grantfirst.dev/held": `waits for "tls"`}

// TestRewrite goes through testdata/rewrite: in is the stream before, out the one after; edits has lines "document item" for an
// object to annotate and "document item drop" for one to leave out; every file called extra is appended. "\r", "\t" and "<no line
// end>" are written out in in and out.
func TestRewrite(t *testing.T) {
	files, err := filepath.Glob("testdata/rewrite/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text := map[string]string{}
			var extra [][]byte
			for _, f := range a.Files {
				text[f.Name] = string(f.Data)
				if f.Name == "extra" {
					extra = append(extra, f.Data)
				}
			}
			var edits []Edit
			for line := range strings.Lines(text["edits"]) {
				f := strings.Fields(line)
				document, _ := strconv.Atoi(f[0])
				item, _ := strconv.Atoi(f[1])
				e := Edit{Document: document, Item: item, Annotations: held}
				if len(f) > 2 {
					e = Edit{Document: document, Item: item, Drop: true}
				}
				edits = append(edits, e)
			}
			s, err := Parse([]byte(invisible(text["in"])))
			if err != nil {
				t.Fatal(err)
			}
			out, err := s.Rewrite(edits, extra...)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := argo(out); err != nil {
				t.Errorf("Argo CD: %v", err)
			}
			got := visible(string(out))
			if *update {
				i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "out" })
				if i < 0 {
					i = len(a.Files)
					a.Files = append(a.Files, txtar.File{Name: "out"})
				}
				a.Files[i].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != text["out"] {
				t.Errorf("got\n%s\nwant\n%s", got, text["out"])
			}
		})
	}
}

func visible(s string) string {
	s = strings.NewReplacer("\r", `\r`, "\t", `\t`, "\ufeff", `<mark>`).Replace(s)
	if !strings.HasSuffix(s, "\n") {
		s += "<no line end>\n"
	}
	return s
}

func invisible(s string) string {
	s = strings.NewReplacer(`\r`, "\r", `\t`, "\t", `<mark>`, "\ufeff").Replace(s)
	return strings.TrimSuffix(s, "<no line end>\n")
}

func TestRewriteRefusesEditsOfWhatIsNotThere(t *testing.T) {
	s, err := Parse([]byte("kind: A\n---\nkind: List\nitems: [{kind: B}]\n---\n? kind\n: C\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []Edit{{Document: 0}, {Document: 4}, {Document: 1, Item: 1}, {Document: 2, Item: 1}, {Document: 1, Item: -1}, {Document: 3, Item: 1}} {
		if _, err := s.Rewrite([]Edit{e}); err == nil {
			t.Errorf("%+v", e)
		}
	}
}

func TestRewriteTakesEditsInAnyOrderAndLeavesThemAlone(t *testing.T) {
	s, err := Parse([]byte("kind: A\n---\nkind: B\n"))
	if err != nil {
		t.Fatal(err)
	}
	edits := []Edit{{Document: 2, Annotations: map[string]string{"a": "1"}}, {Document: 1, Annotations: map[string]string{"b": "2"}}, {Document: 2, Annotations: map[string]string{"c": "3"}}}
	out, err := s.Rewrite(edits)
	want := "metadata:\n  annotations:\n    b: \"2\"\nkind: A\n---\nmetadata:\n  annotations:\n    a: \"1\"\n    c: \"3\"\nkind: B\n"
	if err != nil || string(out) != want || edits[0].Document != 2 {
		t.Errorf("got %q (%v)\nwant %q", out, err, want)
	}
}

func TestAnnotationValuesAreStringsWhateverIsInThem(t *testing.T) {
	s, err := Parse([]byte("kind: A\n"))
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		"": "", "true": "true", "1": "1", "null": "null", "a: b # c": "a: b # c", "\"\\": "\"\\", "line\nline\r\n\ttab": "line\nline\r\n\ttab", "é\u2028😀": "é\u2028😀", "\x00\x1b": "\x00\x1b",
		"\x7f\u0085\ufffe\xff": "\ufffd\ufffd\ufffd\ufffd",
	} {
		out, err := s.Rewrite([]Edit{{Document: 1, Annotations: map[string]string{"a": value}}})
		if err != nil {
			t.Fatal(err)
		}
		objs, err := argo(out)
		if err != nil {
			t.Errorf("%q: %v", value, err)
			continue
		}
		if got := head(objs[0]).Annotations["a"]; got != want {
			t.Errorf("%q: got %q", value, got)
		}
	}
}
