package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/rogpeppe/go-internal/txtar"
)

// seeds are the cases of the shared folder, where it is, and the oddities of the tables.
func seeds(f *testing.F) { seedsWith(f, func(text []byte) { f.Add(text) }) }

func seedsWith(f *testing.F, add func([]byte)) {
	files, _ := filepath.Glob("../../../shared/cases/*.txtar")
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, in := range a.Files {
			if in.Name == "in.yaml" {
				add(in.Data)
			}
		}
	}
	files, _ = filepath.Glob("testdata/seeds/*")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		add(text)
	}
	for _, s := range oddities {
		add([]byte(s))
	}
}

func decodeAll(s *Stream) ([]map[string]any, error) {
	var all []map[string]any
	for _, d := range s.Documents {
		objs, err := d.Decode()
		if err != nil {
			return nil, err
		}
		all = append(all, objs...)
	}
	return all, nil
}

func same(t *testing.T, what string, got, want []map[string]any) {
	t.Helper()
	if len(got) == 0 && len(want) == 0 || reflect.DeepEqual(got, want) {
		return
	}
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	t.Errorf("%s:\n got %s\nwant %s", what, g, w)
}

// FuzzParse: what Parse and Decode accept, Argo CD reads as the same objects in the same order; what they refuse, Argo CD
// refuses too, but for the reasons that the package documents.
func FuzzParse(f *testing.F) {
	seeds(f)
	f.Fuzz(checkParse)
}

func checkParse(t *testing.T, raw []byte) {
	s, err := Parse(raw)
	var got []map[string]any
	if err == nil {
		got, err = decodeAll(s)
	}
	want, wantErr := argo(raw)
	if err != nil {
		if wantErr == nil && len(want) > 0 && !ours(err) && !guessedJSON(raw) && !onlyAsJSON(raw) {
			t.Errorf("refused (%v), but Argo CD reads %v", err, want)
		}
		return
	}
	if wantErr == nil {
		same(t, "as it came", got, want)
	} else if !s.json || !s.mixed {
		t.Fatalf("accepted %v, but Argo CD says %v", got, wantErr)
	}
	want, wantErr = argo(s.Bytes())
	if wantErr != nil {
		t.Fatalf("accepted %v, but Argo CD says %v", got, wantErr)
	}
	same(t, "Bytes", got, want)
}

// guessedJSON reports whether only Argo CD takes a stream for JSON, for "{" behind white space that is not ASCII.
func guessedJSON(raw []byte) bool {
	trimmed := bytes.TrimLeftFunc(raw, unicode.IsSpace)
	return bytes.HasPrefix(trimmed, []byte("{")) && len(trimmed) < len(bytes.TrimLeft(raw, " \t\r\n"))
}

// onlyAsJSON reports whether Argo CD reads a stream only if it takes its start for JSON. 2.14 then fails at the first separator;
// what comes after it must be right as YAML, too (see Bytes).
func onlyAsJSON(raw []byte) bool {
	trimmed := bytes.TrimLeft(raw, " \t\r\n")
	if !bytes.HasPrefix(trimmed, []byte("{")) || !bytes.Contains(trimmed, []byte("\n---")) {
		return false
	}
	_, err := argo(append([]byte(separator), trimmed...))
	return err != nil
}

// ours are the errors for what Argo CD would take, but not as it was meant.
func ours(err error) bool {
	if errors.Is(err, errTrailing) {
		return true
	}
	for _, s := range []string{"not UTF-8", "control character", "content on the line", "not a separator", "item ", "two keys", "take the directive"} {
		if strings.Contains(err.Error(), s) {
			return true
		}
	}
	return false
}

// FuzzOrdinary: a text that the small parser takes for ordinary is YAML, and what it decodes is what Argo CD does.
func FuzzOrdinary(f *testing.F) {
	seeds(f)
	f.Fuzz(checkOrdinary)
}

func checkOrdinary(t *testing.T, raw []byte) {
	d := Document{Raw: raw}
	if odd(raw) || bytes.Contains(raw, []byte("---")) {
		return
	}
	tr := ordinary(raw, wholly)
	if tr == nil {
		return
	}
	rest := tr.rest
	got, ok := tr.decode(&tr.root)
	form := tr.root.form
	tr.free()
	if rest < len(raw) {
		d.Raw = raw[:rest]
	}
	want, err := d.object()
	if err != nil {
		if ok {
			t.Fatalf("decoded %v, but Argo CD says %v", got, err)
		}
		return
	}
	if !ok {
		return
	}
	if m, isMap := got.(map[string]any); isMap {
		same(t, "ordinary", []map[string]any{m}, []map[string]any{want})
	} else if want != nil {
		t.Fatalf("decoded %v (%d), want %v", got, form, want)
	}
	if null, err := d.readable(); err != nil || null != (form == absent) {
		t.Fatalf("null %v, %v", null, err)
	}
}

// odd reports what Parse would not hand to the small parser.
func odd(raw []byte) bool {
	for i, r := range string(raw) {
		if r == '\r' && (i+1 == len(raw) || raw[i+1] != '\n') || r == 0x85 || r == 0x2028 || r == 0x2029 || r == 0xfeff ||
			r < 0x20 && r != '\n' && r != '\r' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0xfffe || r == 0xffff || r == 0xfffd {
			return true
		}
	}
	return false
}

// FuzzShortcut: the verdict of Parse on a document is that of decoding it, but for a syntax error that it leaves to Argo CD.
func FuzzShortcut(f *testing.F) {
	seeds(f)
	f.Fuzz(checkShortcut)
}

func checkShortcut(t *testing.T, raw []byte) {
	s, err := Parse(raw)
	if err != nil {
		return
	}
	for _, d := range s.Documents {
		slow := parser{raw: d.Raw, stream: &Stream{json: d.json}}
		c := *d
		err := slow.judgeSlowly(c)
		if err != nil && !strings.Contains(err.Error(), "not readable as YAML") {
			t.Errorf("accepted, but %v", err)
		}
		if err == nil && len(slow.stream.Documents) != 1 {
			t.Errorf("accepted a null document")
		}
	}
}

// FuzzHeads: Heads gives what can be derived from Decode.
func FuzzHeads(f *testing.F) {
	seeds(f)
	f.Fuzz(checkHeads)
}

func checkHeads(t *testing.T, raw []byte) {
	s, err := Parse(raw)
	if err != nil {
		return
	}
	for _, d := range s.Documents {
		sameHeads(t, d)
	}
}

func sameHeads(t *testing.T, d *Document) {
	t.Helper()
	got, err := d.Heads()
	objs, decodeErr := d.Decode()
	if decodeErr != nil {
		return
	}
	if err != nil {
		t.Fatalf("Heads: %v", err)
	}
	if len(got) != len(objs) {
		t.Fatalf("%d heads, %d objects", len(got), len(objs))
	}
	for i, obj := range objs {
		if want := head(obj); !reflect.DeepEqual(got[i], want) {
			t.Errorf("got head %#v\nwant %#v", got[i], want)
		}
	}
}

// FuzzMayHave: what MayHave rules out is not there.
func FuzzMayHave(f *testing.F) {
	seeds(f)
	f.Fuzz(checkMayHave)
}

func checkMayHave(t *testing.T, raw []byte) {
	s, err := Parse(raw)
	if err != nil {
		return
	}
	for _, d := range s.Documents {
		objs, err := d.Decode()
		if err != nil {
			continue
		}
		for _, word := range []string{"podCertificate", "a", "kind", "x1_", "Po"} {
			if !d.MayHave(word) && hasWord(objs, word) {
				t.Errorf("%q is there: %v", word, objs)
			}
		}
	}
}

func hasWord(v any, word string) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, word)
	case []any:
		for _, e := range v {
			if hasWord(e, word) {
				return true
			}
		}
	case []map[string]any:
		for _, e := range v {
			if hasWord(e, word) {
				return true
			}
		}
	case map[string]any:
		for k, e := range v {
			if strings.Contains(k, word) || hasWord(e, word) {
				return true
			}
		}
	}
	return false
}

// FuzzRewrite: the new stream has the old objects without those dropped, with the annotations, and documents that no edit is
// about keep their bytes.
func FuzzRewrite(f *testing.F) {
	seedsWith(f, func(text []byte) {
		f.Add(text, uint64(0x5555555555555555), "x", false)
		f.Add(text, uint64(0x9249249249249249), "b: \"c\"\n", true)
		f.Add(text, uint64(0xaaaaaaaaaaaaaaaa), "", true)
		f.Add(text, uint64(0x1b1b1b1b1b1b1b1b), "\u2028\u0085\xff", false)
	})
	f.Fuzz(checkRewrite)
}

func checkRewrite(t *testing.T, raw []byte, choice uint64, value string, more bool) {
	s, err := Parse(raw)
	if err != nil {
		return
	}
	var edits []Edit
	var want []map[string]any
	touched := map[int]bool{}
	gone := map[int]bool{}
	for _, d := range s.Documents {
		objs, err := d.Decode()
		if err != nil {
			return
		}
		left := 0
		for i, obj := range objs {
			e := Edit{Document: d.Number, Item: i}
			if choice&1 == 1 {
				e.Annotations = map[string]string{"a": value, "grantfirst.dev/held": "y", "no": value}
			}
			e.Drop = choice&6 == 6
			choice = choice>>3 | choice<<61
			if e.Drop || e.Annotations != nil {
				edits = append(edits, e)
				touched[d.Number] = true
			}
			if e.Drop {
				continue
			}
			left++
			for k, v := range e.Annotations {
				child(child(obj, "metadata"), "annotations")[k] = writable(v)
			}
			want = append(want, obj)
		}
		gone[d.Number] = left == 0 && len(objs) > 0
	}
	var extra [][]byte
	if more && !(s.json && !s.mixed && strings.Contains(string(raw), "\\u")) {
		extra = append(extra, []byte("kind: Extra"), []byte("{\"kind\":\"More\"}\n"))
		want = append(want, map[string]any{"kind": "Extra"}, map[string]any{"kind": "More"})
	}
	out, err := s.Rewrite(edits, extra...)
	if err != nil {
		t.Fatalf("Rewrite: %v", err)
	}
	got, err := argo(out)
	if err != nil {
		t.Fatalf("Argo CD says %v of %q", err, out)
	}
	same(t, fmt.Sprintf("rewritten to %q", out), got, want)
	again, err := Parse(out)
	if err != nil {
		if len(want) > 0 {
			t.Fatalf("the new stream: %v: %q", err, out)
		}
		return
	}
	if len(edits) == 0 && len(extra) == 0 && !bytes.Equal(out, s.Bytes()) {
		t.Errorf("no edits, but %q", out)
	}
	i := 0
	for _, d := range s.Documents {
		if gone[d.Number] {
			continue
		}
		if text := again.Documents[i].Raw; !touched[d.Number] && !bytes.Equal(bytes.TrimRight(text, "\n"), bytes.TrimRight(d.Raw, "\n")) {
			t.Errorf("document %d was %q, is %q", d.Number, d.Raw, text)
		}
		i++
	}
}
