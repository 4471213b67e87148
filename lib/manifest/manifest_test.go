package manifest

import (
	"bytes"
	"errors"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// split gives the numbers, lines and texts of the documents of a stream.
func split(t *testing.T, raw string) (docs []Document) {
	t.Helper()
	s, err := Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range s.Documents {
		docs = append(docs, Document{Number: d.Number, Line: d.Line, Raw: d.Raw})
	}
	return docs
}

func TestParseSplitsAStreamIntoDocuments(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	for name, tt := range map[string]struct {
		raw  string
		want []Document
	}{
		"one document without a separator":                    {"kind: A\n", []Document{{Number: 1, Line: 1, Raw: []byte("kind: A\n")}}},
		"the last line needs no line end":                     {"kind: A\n---\nkind: B", []Document{{Number: 1, Line: 1, Raw: []byte("kind: A\n")}, {Number: 2, Line: 3, Raw: []byte("kind: B")}}},
		"empty, null and comment-only documents do not count": {"---\n---\n# c\n---\nnull\n---\nkind: A\n---\n\n---\n", []Document{{Number: 1, Line: 7, Raw: []byte("kind: A\n")}}},
		"the line is that of the first content":               {"# c\n\n  # d\nkind: A\n", []Document{{Number: 1, Line: 4, Raw: []byte("# c\n\n  # d\nkind: A\n")}}},
		"a separator may have a comment":                      {"--- # c\nkind: A\n---\t\nkind: B\n--- #d\n", []Document{{Number: 1, Line: 2, Raw: []byte("kind: A\n")}, {Number: 2, Line: 4, Raw: []byte("kind: B\n")}}},
		"a separator may be followed by a comment at once":    {"kind: A\n---# c\nkind: B\n", []Document{{Number: 1, Line: 1, Raw: []byte("kind: A\n")}, {Number: 2, Line: 3, Raw: []byte("kind: B\n")}}},
		"lines may end in CRLF":                               {"kind: A\r\n---\r\nkind: B\r\n", []Document{{Number: 1, Line: 1, Raw: []byte("kind: A\r\n")}, {Number: 2, Line: 3, Raw: []byte("kind: B\r\n")}}},
		"a byte order mark may begin the stream":              {"\ufeffkind: A\n---\nkind: B\n", []Document{{Number: 1, Line: 1, Raw: []byte("\ufeffkind: A\n")}, {Number: 2, Line: 3, Raw: []byte("kind: B\n")}}},
		"a byte order mark may begin a document":              {"kind: A\n---\n\ufeffkind: B\n", []Document{{Number: 1, Line: 1, Raw: []byte("kind: A\n")}, {Number: 2, Line: 3, Raw: []byte("\ufeffkind: B\n")}}},
		"dashes inside a block scalar are text":               {"kind: A\nx: |\n  a\n  ---\n  b\n", []Document{{Number: 1, Line: 1, Raw: []byte("kind: A\nx: |\n  a\n  ---\n  b\n")}}},
		"lines may have any length":                           {"kind: A\nx: " + long + "\n---\nkind: B\n", []Document{{Number: 1, Line: 1, Raw: []byte("kind: A\nx: " + long + "\n")}, {Number: 2, Line: 4, Raw: []byte("kind: B\n")}}},
		"JSON documents may follow each other":                {"{\"kind\":\"A\"}\n {\"kind\":\"B\"}{\"kind\":\n\"C\"}", []Document{{Number: 1, Line: 1, Raw: []byte("{\"kind\":\"A\"}\n ")}, {Number: 2, Line: 2, Raw: []byte("{\"kind\":\"B\"}")}, {Number: 3, Line: 2, Raw: []byte("{\"kind\":\n\"C\"}")}}},
		"JSON documents may have separators":                  {"{\"kind\":\"A\"}\n---\n{\"kind\":\"B\"}\n", []Document{{Number: 1, Line: 1, Raw: []byte("{\"kind\":\"A\"}\n")}, {Number: 2, Line: 3, Raw: []byte("{\"kind\":\"B\"}\n")}}},
		"three dots may end a document":                       {"kind: A\n...\n---\nkind: B\n", []Document{{Number: 1, Line: 1, Raw: []byte("kind: A\n...\n")}, {Number: 2, Line: 4, Raw: []byte("kind: B\n")}}},
		"a directive is taken where Argo CD takes it":         {"%YAML 1.1\r---\rkind: A\n", []Document{{Number: 1, Line: 1, Raw: []byte("%YAML 1.1\r---\rkind: A\n")}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := split(t, tt.raw); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
			checkParse(t, []byte(tt.raw))
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		raw      string
		document int
		line     int
		text     string
	}{
		"text after a separator":                           {"kind: A\n--- kind: B\n", 2, 2, "content on the line of its separator"},
		"text glued to a separator":                        {"kind: A\n----\n", 2, 2, "content on the line of its separator"},
		"a comment glued to a separator that YAML reads":   {"---# c\nkind: A\n", 1, 1, "put a space after ---"},
		"content after three dots":                         {"kind: A\n...\nkind: B\n", 1, 1, "Argo CD would drop it"},
		"a document behind a carriage return":              {"kind: A\r---\rkind: B\n", 1, 1, "Argo CD would drop it"},
		"a directive before a separator":                   {"%YAML 1.1\n---\nkind: A\n", 1, 1, "take the directive (%) out"},
		"a directive in the middle":                        {"kind: A\n%YAML 1.1\n---\nkind: B\n", 1, 1, "Argo CD would drop it"},
		"content behind a flow mapping":                    {"kind: A\n---\n{kind: B}\n{kind: C}\n", 2, 4, "Argo CD would drop it"},
		"JSON behind JSON in a YAML stream":                {"---\n{\"kind\":\"A\"}{\"kind\":\"B\"}\n", 1, 2, "Argo CD would drop it"},
		"YAML behind JSON without a separator":             {"{\"kind\":\"A\"}\nkind: B\n", 2, 2, "Argo CD would drop it"},
		"a null byte":                                      {"kind: A\nx: \x00\n", 1, 2, "UTF-16"},
		"a control character":                              {"kind: A\n---\nkind: B\nx: \x1b[0m\n", 2, 4, "U+001B"},
		"a delete character":                               {"kind: A\nx: \x7f\n", 1, 2, "U+007F"},
		"a C1 control character":                           {"kind: A\nx: \u009b\n", 1, 2, "U+009B"},
		"UTF-16 with a mark":                               {"\xff\xfek\x00i\x00", 1, 1, "UTF-16"},
		"UTF-16 without a mark":                            {"k\x00i\x00n\x00d\x00", 1, 1, "UTF-16"},
		"UTF-32 with a mark":                               {"\x00\x00\xfe\xffk\x00\x00\x00", 1, 1, "UTF-32"},
		"Latin-1":                                          {"kind: A\nx: caf\xe9\n", 1, 2, "UTF-8"},
		"a log line":                                       {"level=info msg=\"rendering\"\n---\nkind: A\n", 1, 1, `another tool printed it`},
		"a log line before a document":                     {"level=info\nkind: A\n", 1, 2, "another tool printed it"},
		"a log line behind a document":                     {"kind: A\nmetadata:\n  name: x\nDone.\n", 1, 5, "another tool printed it"},
		"a sequence":                                       {"kind: A\n---\n# c\n- a\n", 2, 4, "a list, not an object"},
		"a number":                                         {"17\n", 1, 1, "not an object"},
		"an object without a kind":                         {"kind: A\n---\nmetadata:\n  name: x\n", 2, 3, "no kind"},
		"an object with a kind that is no string":          {"kind: 1\n", 1, 1, "no kind"},
		"an object with a boolean kind":                    {"kind: yes\n", 1, 1, "no kind"},
		"an object whose last kind is null":                {"kind: A\nkind:\n", 1, 1, "no kind"},
		"an object whose kind is only inside a string":     {"x: \"\nkind: A\n\"\n", 1, 1, "no kind"},
		"an object whose kind is in a string that goes on": {"x: \"\nkind: A\ny: \"\n", 1, 1, "no kind"},
		"an object whose kind is in single quotes":         {"x: '\nkind: A\ny: '\n", 1, 1, "no kind"},
		"an object whose kind is in braces":                {"x: {\nkind: A\n }\n", 1, 1, "no kind"},
		"an object whose kind is in brackets":              {"x: [{\nkind: A\n }]\n", 1, 1, "no kind"},
		"an object whose kind is in a flow collection":     {"x: {\nkind: A\n}\n", 1, 1, "no kind"},
		"an object whose kind is in a block scalar":        {"x: |\n kind: A\n", 1, 1, "no kind"},
		"an object whose kind a merge key takes away":      {"kind: A\n<<: {kind: 1}\n", 1, 1, "no kind"},
		"a list item without a kind":                       {"kind: L\nitems:\n- kind: A\n- metadata: {}\n", 1, 1, "item 2: no kind"},
		"a list item that is no object":                    {"kind: L\nitems: [{kind: A}, x]\n", 1, 1, "item 2: not an object"},
		"a bad item of a list in a list":                   {"kind: L\nitems:\n- kind: M\n  items: [{kind: A}, {}]\n", 1, 1, "item 1, item 2: no kind"},
		"a bad item in JSON":                               {`{"kind":"L","items":[{"kind":"A"},{}]}`, 1, 1, "item 2: no kind"},
		"keys that are one in JSON":                        {"\"kind\": A\n? 1\n: a\n\"1\": b\n", 1, 1, "two keys of one mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tt.raw))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v", err)
			}
			if e.Document != tt.document || e.Line != tt.line || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v\nwant document %d, line %d, %q", err, tt.document, tt.line, tt.text)
			}
			if want := "document " + strconv.Itoa(tt.document) + ", line " + strconv.Itoa(tt.line) + ": "; !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%v does not begin %q", err, want)
			}
			if e.Fix == "" {
				t.Errorf("%v does not say what to do", err)
			}
		})
	}
}

func TestAStreamWithoutContentIsEmpty(t *testing.T) {
	for _, raw := range []string{"", "\n", "---\n", "# c\n", "---\nnull\n---\n# c\n", "\ufeff", "\ufeff\n# c"} {
		if _, err := Parse([]byte(raw)); !errors.Is(err, ErrEmpty) || !strings.Contains(err.Error(), "empty") {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func TestBytesAreThoseThatCameIn(t *testing.T) {
	for _, raw := range oddities {
		s, err := Parse([]byte(raw))
		if err != nil || s.json && s.mixed {
			continue
		}
		if got := s.Bytes(); string(got) != raw {
			t.Errorf("got %q, want %q", got, raw)
		}
	}
}

func TestAStreamThatBeginsWithJSONAndGoesOnAsYAMLGetsSeparators(t *testing.T) {
	for raw, want := range map[string]string{
		"{\"kind\":\"A\"}\n":                                "{\"kind\":\"A\"}\n",
		"{\"kind\":\"A\"}{\"kind\":\"B\"}":                  "{\"kind\":\"A\"}{\"kind\":\"B\"}",
		"{kind: A}\n":                                       "{kind: A}\n",
		"---\n{\"kind\":\"A\"}\n---\nkind: B\n":             "---\n{\"kind\":\"A\"}\n---\nkind: B\n",
		"{\"kind\":\"A\"}\n---\nkind: B\n":                  "---\n{\"kind\":\"A\"}\n---\nkind: B\n",
		"\n\t{\"kind\":\"A\"}\n---\n":                       "---\n{\"kind\":\"A\"}\n---\n",
		"{kind: A}\n---\nkind: B\n":                         "---\n{kind: A}\n---\nkind: B\n",
		"{\"kind\":\"A\"} {\"kind\":\"B\"}\n---\nkind: C\n": "---\n{\"kind\":\"A\"} \n---\n{\"kind\":\"B\"}\n---\nkind: C\n",
		"{\"kind\":\"A\"} # c\n":                            "---\n{\"kind\":\"A\"} # c\n",
	} {
		s, err := Parse([]byte(raw))
		if err != nil {
			t.Errorf("%q: %v", raw, err)
			continue
		}
		if got := string(s.Bytes()); got != want {
			t.Errorf("%q: got %q, want %q", raw, got, want)
		}
		if got, err := s.Rewrite(nil); err != nil || string(got) != want {
			t.Errorf("%q: rewritten to %q, %v", raw, got, err)
		}
		checkParse(t, []byte(raw))
	}
}

func TestDecodeReadsScalarsAsArgoCDDoes(t *testing.T) {
	for text, want := range map[string]any{
		"9007199254740993": int64(9007199254740993), "18446744073709551615": 1.8446744073709552e19, "1e3": int64(1000), "0o17": int64(15), "017": int64(15), "08": int64(8),
		"0x1F": int64(31), "1_000": int64(1000), "y": true, "on": true, "No": false, "~": nil, "": nil, "1.50": 1.5, "2001-01-01": "2001-01-01", "12:30:45": "12:30:45", "10.0.0.1": "10.0.0.1",
		"1Gi": "1Gi", "-1": int64(-1), "+1": int64(1), "-": nil, "1e21": 1e21, "\"1\"": "1", "-0": int64(0), "a # b": "a", "a#b": "a#b", "0b11": int64(3), ":x": ":x", "a\tb": "a\tb",
	} {
		if text == "-" {
			continue
		}
		s, err := Parse([]byte("kind: A\nx: " + text + "\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		objs, err := s.Documents[0].Decode()
		if err != nil || !reflect.DeepEqual(objs[0]["x"], want) {
			t.Errorf("%s: got %#v (%v), want %#v", text, objs[0]["x"], err, want)
		}
		checkParse(t, s.Bytes())
	}
}

func TestHeadsOf(t *testing.T) {
	id := func(kind, name string) Head { return Head{ID: ID{Kind: kind, Name: name}} }
	for name, tt := range map[string]struct {
		raw  string
		want []Head
	}{
		"an object":                                {"apiVersion: apps/v1\nkind: A\nmetadata:\n  name: web\n  namespace: s\n  labels: {a: b}\n  annotations:\n    c: \"d\"\n", []Head{{ID: ID{"apps/v1", "A", "s", "web"}, Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}}},
		"an object with a generateName":            {"kind: A\nmetadata: {generateName: g-}\n", []Head{{ID: ID{Kind: "A"}, GenerateName: "g-"}}},
		"an object whose name is a number":         {"kind: A\nmetadata: {name: 1}\n", []Head{id("A", "")}},
		"an object with a label that is no string": {"kind: A\nmetadata: {name: web, labels: {a: 1}, annotations: {}}\n", []Head{{ID: ID{Kind: "A", Name: "web"}, Annotations: map[string]string{}}}},
		"an object with metadata null":             {"kind: A\nmetadata: null\n", []Head{id("A", "")}},
		"an object with metadata twice":            {"kind: A\nmetadata: {name: web}\nmetadata: {name: api}\n", []Head{id("A", "api")}},
		"an object with anchors":                   {"kind: A\nmetadata: &m {name: web}\nx: *m\n", []Head{id("A", "web")}},
		"an object with merge keys":                {"kind: A\nx: &m {name: web}\nmetadata: {<<: *m}\n", []Head{id("A", "web")}},
		"a list":                                   {"kind: List\nitems:\n- kind: A\n  metadata: {name: web}\n- {kind: B}\n", []Head{id("A", "web"), id("B", "")}},
		"a typed list":                             {"kind: AList\nitems:\n- kind: A\n", []Head{id("A", "")}},
		"lists in lists":                           {"kind: L\nitems:\n- kind: L\n  items: [{kind: A}, {kind: B}]\n- kind: C\n", []Head{id("A", ""), id("B", ""), id("C", "")}},
		"a list with items null":                   {"kind: List\nitems: null\n", []Head{}},
		"a list with no items":                     {"kind: List\nitems: []\n", []Head{}},
		"an object with items null and a spec":     {"kind: A\nitems: null\nspec: {}\n", []Head{id("A", "")}},
		"an object whose items are no array":       {"kind: A\nitems: {a: b}\n", []Head{id("A", "")}},
		"JSON":                                     {`{"kind":"A","metadata":{"name":"\u0077eb"}}`, []Head{id("A", "web")}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse([]byte(tt.raw))
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.Documents[0].Heads()
			if err != nil || len(got)+len(tt.want) > 0 && !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %#v (%v)\nwant %#v", got, err, tt.want)
			}
			sameHeads(t, s.Documents[0])
		})
	}
}

func TestHeadsAndDecodeRefuseAnAPIVersionThatHidesTheKind(t *testing.T) {
	for _, raw := range []string{"apiVersion: a/b/c\nkind: A\n", "kind: L\nitems:\n- apiVersion: a/b/c\n  kind: A\n"} {
		s, err := Parse([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{second(s.Documents[0].Heads()), second(s.Documents[0].Decode())} {
			if err == nil || !strings.Contains(err.Error(), `apiVersion "a/b/c"`) {
				t.Errorf("%q: %v", raw, err)
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestMayHaveSeesEverySpelling(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want bool
	}{
		"a key":                                      {"podCertificate: x", true},
		"a part of a text":                           {"x: xpodCertificatex", true},
		"hexadecimal escapes":                        {`"pod\x43ertificate": x`, true},
		"Unicode escapes":                            {`"\u0070odCertificate": x`, true},
		"long Unicode escapes":                       {`"podCertificat\U00000065": x`, true},
		"a line joined by a backslash":               {"x: \"podCert\\\n    ificate\"", true},
		"a line joined by two backslashes":           {"x: \"podCert\\\n  \\\n    ificate\"", true},
		"base64 under a tag":                         {"x: !!binary cG9kQ2VydGlmaWNhdGU=", true},
		"base64 under a verbatim tag":                {"x: !<tag:yaml.org,2002:binary> cG9kQ2VydGlmaWNhdGU=", true},
		"nothing of it":                              {"x: y", false},
		"other case":                                 {"podcertificate: x", false},
		"lines folded with a space":                  {"x: podCerti\n  ficate", false},
		"a regular expression":                       {`x: "\\d+\\.podCert\\w"`, false},
		"escapes of other characters":                {`x: "\u003cb\u003e podC \x3e \n"`, false},
		"lines joined where the word does not go on": {"x: \"--flag p\\\n  --other\"", false},
		"an exclamation":                             {"x: Hello!", false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse([]byte("kind: A\n" + tt.text + "\n"))
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Documents[0].MayHave("podCertificate"); got != tt.want {
				t.Errorf("got %v", got)
			}
			checkMayHave(t, s.raw)
		})
	}
}

func TestMayHaveProvesNothingOfWordsThatYAMLWrites(t *testing.T) {
	s, err := Parse([]byte("kind: A\nx: {yes: 0x10}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"", "true", "16", "two words", "a-b"} {
		if !s.Documents[0].MayHave(word) {
			t.Errorf("%q", word)
		}
	}
}

func TestParseKeepsLittleBesidesTheStream(t *testing.T) {
	raw := bytes.Repeat([]byte("---\napiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n"+strings.Repeat("  field: value\n", 16)), 20_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s, err := Parse(raw)
	runtime.ReadMemStats(&after)
	if err != nil || len(s.Documents) != 20_000 {
		t.Fatal(err)
	}
	if share := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(raw)); share > 0.3 {
		t.Errorf("allocates %.2f of the stream", share)
	} else {
		t.Logf("allocates %.2f of the stream", share)
	}
}

func TestABigDocumentIsReadInOneGo(t *testing.T) {
	raw := append([]byte("kind: A\ndata:\n  x: |\n"), bytes.Repeat([]byte("    some text that goes on\n"), 2<<20)...)
	raw = append(raw, "---\nkind: B\n"...)
	s, err := Parse(raw)
	if err != nil || len(s.Documents) != 2 || s.Documents[0].MayHave("podCertificate") {
		t.Fatal(err)
	}
	if out, err := s.Rewrite([]Edit{{Document: 1, Annotations: map[string]string{"a": "b"}}}); err != nil || len(out) != len(raw)+len("metadata:\n  annotations:\n    a: \"b\"\n") {
		t.Error(len(out), err)
	}
}
