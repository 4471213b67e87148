package render

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gobwas/glob"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// skipMarker anywhere in a file makes Argo CD pass over it (v3.2 reposerver/repository/repository.go,
// skipFileRenderingMarker). v2.14 does not know it; who wrote it meant it.
const skipMarker = "+argocd:skip-file-rendering"

// directory joins the YAML and JSON files of dir in lexical order, as Argo CD's directory source takes them (v2.14
// reposerver/repository/repository.go, findManifests).
func directory(repo fs.FS, dir string, o *Options) (*Result, error) {
	wanted, err := patterns(o)
	if err != nil {
		return nil, err
	}
	// The walk goes through no symlink, so below the real directory every file is where it says.
	real, err := resolve(repo, dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	r := &Result{}
	var files []manifestFile
	err = fs.WalkDir(repo, real, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != real {
			// No commit has a .git: a branch may be called x.yaml, but its file is no manifest.
			if !o.Recurse || d.Name() == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		below := name
		if real != "." {
			below = strings.TrimPrefix(strings.TrimPrefix(name, real), "/")
		}
		shown := path.Join(dir, below)
		switch {
		case d.IsDir():
			return nil
		case name == real:
			// Asked for by name: neither patterns nor the file's ending matter.
		case !isManifest(d.Name()) || !wanted(below):
			return nil
		}
		f, skip, err := read(repo, name, d)
		if err != nil {
			return fmt.Errorf("%s: %w", shown, err)
		}
		if skip != "" {
			r.Skipped = append(r.Skipped, Skipped{Path: shown, Why: skip})
			return nil
		}
		files = append(files, manifestFile{shown, f})
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.Stream, r.Origins = join(files)
	return r, nil
}

type manifestFile struct {
	path string
	data []byte
}

func isManifest(name string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json", ".jsonnet":
		return true
	}
	return false
}

// patterns compiles include and exclude without a separator, so that * crosses slashes, as Argo CD does (v2.14
// util/glob/glob.go). Argo CD takes a pattern that does not compile for one that matches nothing; here it is an error.
func patterns(o *Options) (func(string) bool, error) {
	match := func(parameter, pattern string, unset bool) (func(string) bool, error) {
		if pattern == "" {
			return func(string) bool { return unset }, nil
		}
		g, err := glob.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: pattern %q: %w", parameter, pattern, err)
		}
		return g.Match, nil
	}
	include, err := match("include", o.Include, true)
	if err != nil {
		return nil, err
	}
	exclude, err := match("exclude", o.Exclude, false)
	if err != nil {
		return nil, err
	}
	return func(name string) bool { return include(name) && !exclude(name) }, nil
}

// read gives a file's content, or why it is passed over.
func read(repo fs.FS, name string, d fs.DirEntry) (data []byte, skip string, err error) {
	file := name
	if d.Type()&fs.ModeSymlink != 0 {
		var info fs.FileInfo
		file, info, err = follow(repo, ".", name)
		if errors.Is(err, fs.ErrNotExist) {
			// Argo CD passes over it with a line in its log, and prunes what the file used to hold.
			return nil, "", errors.New("a symlink to a file that does not exist: remove it, or leave it out with the parameter exclude")
		}
		if err != nil {
			return nil, "", err
		}
		if !info.Mode().IsRegular() {
			return nil, "a symlink to something that is not a file", nil
		}
	} else if !d.Type().IsRegular() {
		return nil, "not a regular file", nil
	}
	if path.Ext(name) == ".jsonnet" {
		return nil, "", errors.New(`jsonnet is not rendered here: leave it out with the parameter exclude, commit what it renders to, or pipe that into "grantfirst generate -"`)
	}
	if data, err = fs.ReadFile(repo, file); err != nil {
		return nil, "", err
	}
	if bytes.Contains(data, []byte(skipMarker)) {
		return nil, "it says " + skipMarker, nil
	}
	if path.Ext(name) != ".json" && unrelated(data) {
		return nil, "no Kubernetes object: Argo CD's directory source ignores such a file too", nil
	}
	return data, "", nil
}

// unrelated tells whether Argo CD's directory source would ignore a YAML file: it does not look like a resource, and its
// first document cannot be read as an object (v2.14 reposerver/repository/repository.go, getObjsFromYAMLOrJson). Text
// that Argo CD would convert first (UTF-16) is not ignored: reading the stream refuses it by name.
func unrelated(data []byte) bool {
	if bytes.Contains(data, []byte("apiVersion:")) && bytes.Contains(data, []byte("kind:")) && bytes.Contains(data, []byte("metadata:")) {
		return false
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return false
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(bytes.TrimPrefix(data, bom)), 4096)
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u)
		if errors.Is(err, io.EOF) {
			return false
		}
		if err != nil {
			return true
		}
		if u != nil {
			return false
		}
	}
}

var bom = []byte("\xef\xbb\xbf")

// join makes one stream of the files, byte for byte, in which each begins a new document. A single file is its own
// stream. Between two files there is a newline and, unless the second has its own, a separator line; a byte order mark
// is kept only where the stream begins.
func join(files []manifestFile) ([]byte, []Origin) {
	size := 0
	var full []manifestFile
	for _, f := range files {
		if len(f.data) > 0 {
			full = append(full, f)
			size += len(f.data) + len("\n---\n")
		}
	}
	if len(full) == 0 {
		return nil, nil
	}
	if len(full) == 1 {
		return full[0].data, []Origin{{Line: 1, Path: full[0].path}}
	}
	stream := make([]byte, 0, size)
	origins := make([]Origin, 0, len(full))
	line := 1
	for i, f := range full {
		data := f.data
		if i > 0 || isJSON(data) {
			data = bytes.TrimPrefix(data, bom)
		}
		if i > 0 && stream[len(stream)-1] != '\n' {
			stream = append(stream, '\n')
			line++
		}
		// Argo CD v2.14 reads a stream that begins with a brace as JSON to its end, so the first file needs one too.
		if i > 0 && !beginsDocument(data) || i == 0 && isJSON(data) {
			stream = append(stream, "---\n"...)
			line++
		}
		if isJSON(data) {
			data = unescapeSurrogates(data)
		}
		origins = append(origins, Origin{Line: line, Path: f.path})
		stream = append(stream, data...)
		line += bytes.Count(data, []byte("\n"))
	}
	return stream, origins
}

// beginsDocument tells whether the first line is a separator: three dashes, then at most a comment.
func beginsDocument(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte("---"))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

func isJSON(data []byte) bool {
	return yaml.IsJSONBuffer(bytes.TrimPrefix(data, bom))
}

// unescapeSurrogates writes the pairs of escapes that JSON has for characters beyond U+FFFF as those characters. After a
// separator line JSON is read as YAML, whose escapes know no surrogates. Nothing else of the text changes.
func unescapeSurrogates(data []byte) []byte {
	if !bytes.Contains(data, []byte(`\u`)) {
		return data
	}
	var out []byte
	done := 0
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		if r := utf16.DecodeRune(escaped(data[i:]), escaped(data[min(i+6, len(data)):])); r != utf8.RuneError {
			out = utf8.AppendRune(append(out, data[done:i]...), r)
			i += len(`\ud83d\ude00`) - 1
			done = i + 1
			continue
		}
		i++ // whatever is escaped, it begins no escape itself
	}
	return append(out, data[done:]...)
}

// escaped reads a \uXXXX at the start of data; -1 if there is none.
func escaped(data []byte) rune {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return -1
	}
	r, err := strconv.ParseUint(string(data[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(r)
}
