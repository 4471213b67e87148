package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

func TestDirectoryTakesWhatArgoCDTakes(t *testing.T) {
	tree := archive(`
-- app/a.yaml --
kind: A
-- app/b.yml --
kind: B
-- app/c.json --
{"kind": "C"}
-- app/d.YAML --
kind: Never
-- app/README.md --
no manifest
-- app/sub/e.yaml --
kind: E
-- app/sub/deep/f.yaml --
kind: F
-- app/.hidden.yaml --
kind: Hidden
-- app/.git/refs/heads/x.yaml --
kind: Never
-- other/g.yaml --
kind: G
-- app/link.yaml --
-> ../other/g.yaml
-- app/linked --
-> ../other
-- app/linked.yaml --
-> ../other
`)
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"yaml, yml and json of the directory itself in lexical order":      {want: ".hidden.yaml a.yaml b.yml c.json link.yaml"},
		"with recurse also those of subdirectories, but not through links": {o: Options{Recurse: true}, want: ".hidden.yaml a.yaml b.yml c.json link.yaml sub/deep/f.yaml sub/e.yaml"},
		"include takes only what matches":                                  {o: Options{Recurse: true, Include: "*.yml"}, want: "b.yml"},
		"exclude leaves out what matches":                                  {o: Options{Recurse: true, Exclude: "sub/*"}, want: ".hidden.yaml a.yaml b.yml c.json link.yaml"},
		"a star of include also matches slashes":                           {o: Options{Recurse: true, Include: "*.yaml"}, want: ".hidden.yaml a.yaml link.yaml sub/deep/f.yaml sub/e.yaml"},
		"braces are alternatives":                                          {o: Options{Recurse: true, Include: "{b.*,sub/deep/*}"}, want: "b.yml sub/deep/f.yaml"},
		"exclude wins over include":                                        {o: Options{Recurse: true, Include: "{a,b}.*", Exclude: "a.yaml"}, want: "b.yml"},
		"a pattern is not anchored to the file's own name":                 {o: Options{Recurse: true, Include: "e.yaml"}, want: ""},
		"an include with dots cannot leave the directory":                  {o: Options{Recurse: true, Include: "../other/*"}, want: ""},
		"an include that matches nothing gives an empty stream":            {o: Options{Include: "*.xml"}, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			repo, _ := onDisk(t, tree)
			r, err := Render(repo, "app", c.o)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range r.Origins {
				got = append(got, strings.TrimPrefix(o.Path, "app/"))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("files %v, want %s", got, c.want)
			}
		})
	}
	t.Run("a pattern that does not compile is an error that names it", func(t *testing.T) {
		repo, _ := onDisk(t, tree)
		_, err := Render(repo, "app", Options{Exclude: "[a"})
		wantError(t, err, "exclude", "[a")
	})
	t.Run("a link to a directory that is named like a manifest is passed over and said", func(t *testing.T) {
		repo, _ := onDisk(t, tree)
		r, err := Render(repo, "app", Options{})
		if err != nil || len(r.Skipped) != 1 || r.Skipped[0].Path != "app/linked.yaml" {
			t.Errorf("%v, %v", r, err)
		}
	})
}

func TestFilesThatAreNotManifests(t *testing.T) {
	const other = "-- app/other.yaml --\nkind: Other\n"
	for name, c := range map[string]struct {
		tree string
		o    Options
		skip string
		err  []string
	}{
		"jsonnet is refused by name": {
			tree: "-- app/a.jsonnet --\n{}\n", err: []string{"app/a.jsonnet", "jsonnet", "exclude", "generate -"}},
		"jsonnet that is excluded is fine": {
			tree: "-- app/a.jsonnet --\n{}\n", o: Options{Exclude: "*.jsonnet"}},
		"a dangling symlink is refused by name": {
			tree: "-- app/a.yaml --\n-> nowhere.yaml\n", err: []string{"app/a.yaml", "does not exist", "exclude"}},
		"a dangling symlink that is excluded is fine": {
			tree: "-- app/a.yaml --\n-> nowhere.yaml\n", o: Options{Exclude: "a.yaml"}},
		"a symlink to itself is refused by name": {
			tree: "-- app/a.yaml --\n-> a.yaml\n", err: []string{"app/a.yaml", "links"}},
		"a file with Argo CD's marker is passed over": {
			tree: "-- app/a.yaml --\n# +argocd:skip-file-rendering\n" + someYAML, skip: "app/a.yaml"},
		"a YAML file without an object is passed over as in Argo CD": {
			tree: "-- app/values.yaml --\nreplicas: 1\n", skip: "app/values.yaml"},
		"a YAML file that does not parse and looks like nothing is passed over as in Argo CD": {
			tree: "-- app/t.yaml --\n{{ .Values.x }}\n", skip: "app/t.yaml"},
		"a file that does not parse and looks like a resource is left to the parser": {
			tree: "-- app/t.yaml --\napiVersion: v1\nkind: {{ x }\nmetadata: {}\n"},
		"a file with a good document before a bad one is left to the parser": {
			tree: "-- app/t.yaml --\nkind: A\n---\nnothing: here\n"},
		"a JSON file without an object is left to the parser": {
			tree: "-- app/package.json --\n{\"name\": \"x\"}\n"},
		"a file of comments is kept": {
			tree: "-- app/c.yaml --\n# nothing\n"},
		"UTF-16 is left to the parser": {
			tree: "-- app/u.yaml --\n\xff\xfek\x00i\x00n\x00d\x00\n"},
	} {
		t.Run(name, func(t *testing.T) {
			repo, _ := onDisk(t, archive(c.tree+other))
			r, err := Render(repo, "app", c.o)
			if c.err != nil {
				wantError(t, err, c.err...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var skipped []string
			for _, s := range r.Skipped {
				skipped = append(skipped, s.Path)
			}
			if strings.Join(skipped, " ") != c.skip {
				t.Errorf("skipped %v, want %s", r.Skipped, c.skip)
			}
			wantFiles := 2
			if c.skip != "" || c.o.Exclude != "" {
				wantFiles = 1
			}
			if len(r.Origins) != wantFiles {
				t.Errorf("files %v, want %d", r.Origins, wantFiles)
			}
		})
	}
}

func TestJoin(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		want  string
		lines []int
	}{
		"no file gives nothing":                            {},
		"empty files give nothing":                         {files: []string{"", ""}},
		"one file is its own stream":                       {files: []string{"\xef\xbb\xbfa: 1\r\n---\r\nb: 2"}, want: "\xef\xbb\xbfa: 1\r\n---\r\nb: 2", lines: []int{1}},
		"one JSON file is its own stream":                  {files: []string{"{}"}, want: "{}", lines: []int{1}},
		"a separator goes between two files":               {files: []string{"a: 1\n", "b: 2\n"}, want: "a: 1\n---\nb: 2\n", lines: []int{1, 3}},
		"a missing last newline is added before another":   {files: []string{"a: 1", "b: 2"}, want: "a: 1\n---\nb: 2", lines: []int{1, 3}},
		"a file's own separator is enough":                 {files: []string{"a: 1\n", "---\nb: 2\n", "--- # c\nc: 3\n", "---"}, want: "a: 1\n---\nb: 2\n--- # c\nc: 3\n---", lines: []int{1, 2, 4, 6}},
		"a line of more than dashes is no separator":       {files: []string{"a: 1\n", "----\n", "---x\n"}, want: "a: 1\n---\n----\n---\n---x\n", lines: []int{1, 3, 5}},
		"a comment before the separator is a document":     {files: []string{"a: 1\n", "# c\n---\nb: 2\n"}, want: "a: 1\n---\n# c\n---\nb: 2\n", lines: []int{1, 3}},
		"CRLF is kept":                                     {files: []string{"a: 1\r\n", "---\r\nb: 2\r\n"}, want: "a: 1\r\n---\r\nb: 2\r\n", lines: []int{1, 2}},
		"a byte order mark stays where the stream begins":  {files: []string{"\xef\xbb\xbfa: 1\n", "\xef\xbb\xbfb: 2\n"}, want: "\xef\xbb\xbfa: 1\n---\nb: 2\n", lines: []int{1, 3}},
		"an empty file between leaves no trace":            {files: []string{"a: 1\n", "", "b: 2\n"}, want: "a: 1\n---\nb: 2\n", lines: []int{1, 3}},
		"JSON first and something after gets a separator":  {files: []string{" {}\n", "b: 2\n"}, want: "---\n {}\n---\nb: 2\n", lines: []int{2, 4}},
		"JSON first loses its byte order mark":             {files: []string{"\xef\xbb\xbf{}", "{}"}, want: "---\n{}\n---\n{}", lines: []int{2, 4}},
		"JSON later is a document of its own":              {files: []string{"a: 1\n", "{}"}, want: "a: 1\n---\n{}", lines: []int{1, 3}},
		"surrogates of JSON become the character they are": {files: []string{"a: 1\n", `{"a":"\ud83d\ude00 \\ud83d\ude00 \u00e9 \/"}`}, want: "a: 1\n---\n" + `{"a":"` + "\U0001f600" + ` \\ud83d\ude00 \u00e9 \/"}`, lines: []int{1, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			var files []manifestFile
			for _, text := range c.files {
				files = append(files, manifestFile{"x", []byte(text)})
			}
			stream, origins := join(files)
			var lines []int
			for _, o := range origins {
				lines = append(lines, o.Line)
			}
			if string(stream) != c.want || !slices.Equal(lines, c.lines) {
				t.Errorf("stream %q, lines %v; want %q, %v", stream, lines, c.want, c.lines)
			}
		})
	}
}

// decoded reads a stream as kubectl and Argo CD do; bad tells that it ended in an error.
func decoded(stream []byte) (docs []string, bad bool) {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096)
	for {
		var v any
		err := d.Decode(&v)
		if errors.Is(err, io.EOF) {
			return docs, false
		}
		if err != nil {
			return docs, true
		}
		if v != nil {
			text, _ := json.Marshal(v)
			docs = append(docs, string(text))
		}
	}
}

// FuzzJoin holds the joined stream to the documents that its files have one by one.
func FuzzJoin(f *testing.F) {
	for _, s := range [][2]string{{"a: 1\n", "b: 2"}, {"{}", "b: 2"}, {"a: |\n  x", "---\nb: 2"}, {"a: 1\r\n", "\xef\xbb\xbfb: 2"}, {"# c", "a: 1"}, {"--- # c\na: 1", "--- \nb"}, {"a: 1\n...\n", "b: 2"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		first, badA := decoded([]byte(a))
		second, badB := decoded([]byte(b))
		stream, _ := join([]manifestFile{{"a", []byte(a)}, {"b", []byte(b)}})
		both, bad := decoded(stream)
		if badA || badB {
			return
		}
		if bad {
			// What cannot be joined is an error, never another document.
			return
		}
		if want := slices.Concat(first, second); !slices.Equal(both, want) {
			t.Errorf("joined %q is read as %q, want %q", stream, both, want)
		}
	})
}

// FuzzUnescapeSurrogates holds the text to the same JSON value.
func FuzzUnescapeSurrogates(f *testing.F) {
	for _, s := range []string{`{"a":"\ud83d\ude00"}`, `{"a":"\\ud83d\ude00 \ud83d \ude00\ud83d"}`, `{"\uD83D\uDE00":"\u00e9\""}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var before, after any
		out := unescapeSurrogates([]byte(text))
		if json.Unmarshal([]byte(text), &before) != nil {
			return
		}
		if err := json.Unmarshal(out, &after); err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%q became %q (%v)", text, out, err)
		}
	})
}
