package manifest

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// chunk is the text that Argo CD's decoder hands to its YAML library for the document: with LF line ends and a last line end,
// and with the separator line before it where the decoder leaves that in (YAMLReader.Read in apimachinery
// pkg/util/yaml/decoder.go ends a document with a separator only if it has read a line before).
func (d *Document) chunk() []byte {
	c := make([]byte, 0, len(d.Raw)+len(separator)+1)
	if d.led {
		c = append(c, separator...)
	}
	for rest := d.Raw; ; {
		i := bytes.Index(rest, []byte("\r\n"))
		if i < 0 {
			return appendLine(c, rest)
		}
		c = append(append(c, rest[:i]...), '\n')
		rest = rest[i+2:]
	}
}

// readable reports whether the document is null, or else an error if it is not YAML, or if there is more in it than the one
// YAML document that Argo CD reads.
func (d *Document) readable() (null bool, err error) {
	docs := yamlv2.NewDecoder(bytes.NewReader(d.chunk()))
	var first, more any
	if err := docs.Decode(&first); err == io.EOF {
		return true, nil
	} else if err != nil {
		return false, d.syntax(err)
	}
	for {
		if err := docs.Decode(&more); err == io.EOF {
			return first == nil, nil
		} else if err != nil || more != nil {
			return false, &Error{Document: d.Number, Line: d.Line, Err: errTrailing, Fix: "Argo CD would drop it; begin every document with --- on a line of its own, without directives (%) or ..."}
		}
	}
}

// object reads the document as Argo CD does, and gives nil if it is not a mapping. Its plugin server makes JSON of it, and its
// repository server reads that JSON as YAML once more (both by gitops-engine pkg/utils/kube.SplitYAML), then as an
// unstructured object.
func (d *Document) object() (map[string]any, error) {
	text := bytes.TrimSpace(d.Raw)
	if !d.json {
		c := d.chunk()
		var v any
		err := yamlv2.Unmarshal(c, &v)
		if err == nil {
			err = clash(v)
		}
		if err == nil {
			text, err = yaml.YAMLToJSON(c)
		}
		if err != nil {
			return nil, d.syntax(err)
		}
	}
	text, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, d.syntax(err)
	}
	var v any
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &v); err != nil {
		return nil, d.syntax(err)
	}
	obj, _ := v.(map[string]any)
	return obj, nil
}

// clash looks for keys that are two in YAML and one in JSON, such as 1 and "1": sigs.k8s.io/yaml keeps the value of one of them,
// now of this, now of that.
func clash(v any) error {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if err := clash(e); err != nil {
				return err
			}
		}
	case map[any]any:
		names := make(map[string]bool, len(v))
		for k, e := range v {
			name := keyName(k)
			if names[name] {
				return fmt.Errorf("two keys of one mapping are both the key %q in JSON", name)
			}
			names[name] = true
			if err := clash(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// keyName gives the JSON key for a YAML one as sigs.k8s.io/yaml does (convertToJSONableObject in yaml.go).
func keyName(k any) string {
	f, ok := k.(float64)
	switch {
	case !ok:
		return fmt.Sprint(k)
	case math.IsNaN(f):
		return ".nan"
	case math.IsInf(f, 1):
		return ".inf"
	case math.IsInf(f, -1):
		return "-.inf"
	}
	return strconv.FormatFloat(f, 'g', -1, 32)
}

// syntax is the error for a document that the YAML library does not read. Where the library names a line of the document,
// it becomes the stream's.
func (d *Document) syntax(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := d.Line
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if number, what, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(number); err == nil {
				before := bytes.Count(d.Raw[:len(d.Raw)-len(content(d.Raw))], []byte("\n"))
				if line = d.Line - before + n - 1; d.led {
					line--
				}
				text = what
			}
		}
	}
	fix := "correct it; if another tool printed it, send that to stderr"
	if rest := content(d.Raw); len(rest) > 0 && rest[0] == '%' {
		fix = "take the directive (%) out: Argo CD splits the stream at --- before YAML is read, so it stands alone"
	}
	return &Error{Document: d.Number, Line: line, Err: fmt.Errorf("not readable as YAML (it begins %s): %s", excerpt(d.Raw), text), Fix: fix}
}

// content is the text from its first line on that is neither blank nor comment.
func content(text []byte) []byte {
	for rest := text; len(rest) > 0; {
		line := rest
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			line = rest[:i+1]
		}
		if s := bytes.TrimSpace(line); len(s) > 0 && s[0] != '#' {
			return rest
		}
		rest = rest[len(line):]
	}
	return text
}

// Decode gives the document's objects exactly as Argo CD reads them, one for each Head: of duplicate keys the last, scalars by
// YAML 1.1, merge keys merged, integers as int64 where they fit and as float64 otherwise. Every call decodes anew.
func (d *Document) Decode() ([]map[string]any, error) {
	root, err := d.root()
	if err != nil {
		return nil, err
	}
	return flatten(nil, root), nil
}

// validVersion reports whether schema.ParseGroupVersion of apimachinery takes an apiVersion. Where it does not, Argo CD says that
// the kind is missing.
func validVersion(apiVersion string) bool { return strings.Count(apiVersion, "/") < 2 }

// badVersion looks for an apiVersion that is not valid, in an object or in the items of a list.
func badVersion(obj map[string]any) string {
	if apiVersion, _ := obj["apiVersion"].(string); !validVersion(apiVersion) {
		return apiVersion
	}
	items, _ := obj["items"].([]any)
	for _, item := range items {
		if bad := badVersion(item.(map[string]any)); bad != "" {
			return bad
		}
	}
	return ""
}

// root gives the document's one object or list, all items of which are objects.
func (d *Document) root() (map[string]any, error) {
	root, err := d.decode()
	if err != nil {
		return nil, err
	}
	if where, err := wellFormed(root); err != nil {
		return nil, &Error{Document: d.Number, Line: d.Line, Object: where, Err: err, Fix: fixObject}
	}
	if bad := badVersion(root); bad != "" {
		return nil, &Error{Document: d.Number, Line: d.Line, Err: fmt.Errorf("apiVersion %q", bad), Fix: "write group/version, or a version alone"}
	}
	return root, nil
}

// decode gives the document's mapping, or nil if it is something else.
func (d *Document) decode() (map[string]any, error) {
	if !d.odd {
		if t := ordinary(d.Raw, wholly); t != nil {
			v, ok := t.decode(&t.root)
			t.free()
			if obj, isMap := v.(map[string]any); ok && isMap {
				return obj, nil
			}
		}
	}
	return d.object()
}

// wellFormed looks for what is not an object with a kind: obj itself, or an item of it.
func wellFormed(obj map[string]any) (bad string, err error) {
	kind, has := obj["kind"]
	if s, _ := kind.(string); !has {
		return "", errNoKind
	} else if s == "" {
		return "", errBadKind
	}
	items, _ := obj["items"].([]any)
	for i, item := range items {
		m, ok := item.(map[string]any)
		if !ok {
			return itemName(i+1, ""), errNotObject
		}
		if bad, err := wellFormed(m); err != nil {
			return itemName(i+1, bad), err
		}
	}
	return "", nil
}

// flatten takes lists apart, at all levels; Argo CD takes apart one (GenerateManifests in its
// reposerver/repository/repository.go). A list is any object whose items are an array; one whose items are null, and which
// has neither spec nor status, is an empty list.
func flatten(all []map[string]any, obj map[string]any) []map[string]any {
	items, has := obj["items"]
	if list, ok := items.([]any); ok {
		for _, item := range list {
			all = flatten(all, item.(map[string]any))
		}
		return all
	}
	if has && items == nil {
		_, spec := obj["spec"]
		_, status := obj["status"]
		if !spec && !status {
			return all
		}
	}
	return append(all, obj)
}
