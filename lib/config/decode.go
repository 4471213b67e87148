package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder fills a Config from YAML nodes and notes everything that does not fit, with path and line. (encoding/json and the YAML
// decoders stop at the first value of a wrong type, and the way of sigs.k8s.io/yaml over JSON drops repeated keys and lines.)
type decoder struct {
	problems Problems
	// lines has the line of every path that is in the file.
	lines map[string]int
	// unreadable has the paths whose values are of a wrong type.
	unreadable []string
}

// document gives the root of the only document in data.
func document(data []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) || err == nil && (len(doc.Content) == 0 || isNull(doc.Content[0])) {
		return nil, errors.New("the configuration is empty: that is most likely a mistake; an intended one says at least " +
			"apiVersion: " + APIVersion + " and kind: " + Kind)
	}
	if err != nil {
		return nil, fmt.Errorf("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	switch err := d.Decode(&next); {
	case err == nil:
		return nil, fmt.Errorf("line %d: a second document: keep one", next.Line)
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return doc.Content[0], nil
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

func (d *decoder) add(path, format string, args ...any) {
	d.problems = append(d.problems, Problem{Path: path, Line: d.line(path), Text: fmt.Sprintf(format, args...)})
}

// mistyped notes a value of a wrong type. It stays empty, so what validation makes of that would only be an echo.
func (d *decoder) mistyped(path, format string, args ...any) {
	d.add(path, format, args...)
	d.unreadable = append(d.unreadable, path)
}

func (d *decoder) isEcho(path string) bool {
	return slices.ContainsFunc(d.unreadable, func(u string) bool { return within(path, u) || within(u, path) })
}

// within reports whether a path is the other one or below it.
func within(path, other string) bool {
	rest, ok := strings.CutPrefix(path, other)
	return ok && (other == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// line is that of the path, or of what is around it where the path itself is not in the file.
func (d *decoder) line(path string) int {
	for {
		if line, ok := d.lines[path]; ok || path == "" {
			return line
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// value decodes a node into v. The depth is bounded by the types, whatever the aliases in the file do.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if _, ok := d.lines[path]; !ok {
		d.lines[path] = n.Line
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if isNull(n) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path)
	case reflect.String:
		if n.Kind != yaml.ScalarNode {
			d.mistyped(path, "want a string, not %s", kindOf(n))
		} else if n.ShortTag() != "!!str" {
			d.mistyped(path, "want a string: put %s in quotes", n.Value)
		} else {
			v.SetString(n.Value)
		}
	case reflect.Bool:
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
			d.mistyped(path, "want true or false, not %s", kindOf(n))
			return
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Int64:
		number, err := strconv.ParseInt(n.Value, 10, 64)
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil {
			d.mistyped(path, "want a whole number, not %s", kindOf(n))
			return
		}
		v.SetInt(number)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.mistyped(path, "want a list, not %s", kindOf(n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Struct:
		d.mapping(n, v, path)
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.mistyped(path, "want a mapping, not %s", kindOf(n))
		return
	}
	fields := map[string]int{}
	var names []string
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = i
		names = append(names, name)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		at := key.Value
		if path != "" {
			at = path + "." + key.Value
		}
		field, known := fields[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			d.add(path, "%s as a key: use one of %s", kindOf(key), strings.Join(names, ", "))
		case seen[key.Value]:
			d.problems = append(d.problems, Problem{Path: at, Line: key.Line, Text: "is there twice: keep one"})
		case !known:
			d.problems = append(d.problems, Problem{Path: at, Line: key.Line, Text: "unknown field: use one of " + strings.Join(names, ", ")})
		default:
			d.lines[at] = key.Line
			d.value(n.Content[i+1], v.Field(field), at)
		}
		seen[key.Value] = true
	}
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%q", n.Value)
}
