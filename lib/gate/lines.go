package gate

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// demandLines gives for each of a document's demands, in their order, and for each of those that are in no pod spec after them, how many lines
// are before its podCertificate in the document's text. Lists are read object by object.
func demandLines(text []byte, demands []demand.Demand, more []unread) []int {
	items := objectNodes(text)
	out := make([]int, len(demands)+len(more))
	near := func(d *demand.Demand) int {
		part := piece{text: text}
		if pieces := cut(text, items); d.Item < len(pieces) {
			part = pieces[d.Item]
		}
		return part.before + lineIn(part.text, d)
	}
	for i := range more {
		u := &more[i]
		out[len(demands)+i] = near(&u.Demand)
		if u.Item < len(items) {
			if key := keyAt(items[u.Item], u.path); key != nil {
				out[len(demands)+i] = key.Line - 1
			}
		}
	}
	var lines []int
	for i := range demands {
		d := &demands[i]
		k := 0 // how many demands of the same object come before
		for k < i && demands[i-k-1].Item == d.Item {
			k++
		}
		if k == 0 {
			lines = nil
			if d.Item < len(items) {
				s := sourceWalk{budget: maxNodes}
				s.value(items[d.Item])
				if lines = s.lines; s.budget <= 0 {
					lines = nil
				}
			}
		}
		if k < len(lines) {
			out[i] = lines[k] - 1
			continue
		}
		out[i] = near(d)
	}
	return out
}

// objectNodes gives the objects of a document as a YAML reader sees them: itself, or those of a list. None where it is not YAML.
func objectNodes(text []byte) []*yaml.Node {
	var doc yaml.Node
	if yaml.Unmarshal(text, &doc) != nil || len(doc.Content) != 1 {
		return nil
	}
	object := doc.Content[0]
	if items := resolved(valueOf(object, "items")); items != nil && items.Kind == yaml.SequenceNode {
		return items.Content
	}
	return []*yaml.Node{object}
}

// piece is a part of a text, and how many lines are before it.
type piece struct {
	text   []byte
	before int
}

// cut gives the lines of each object of a list; objects that share a line have all of it.
func cut(text []byte, items []*yaml.Node) []piece {
	if len(items) < 2 {
		return []piece{{text: text}}
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	var out []piece
	for i, item := range items {
		from, to := item.Line-1, len(lines)
		if i+1 < len(items) {
			to = max(items[i+1].Line-1, from+1)
		}
		if from < 0 || from >= len(lines) || to > len(lines) {
			return []piece{{text: text}}
		}
		out = append(out, piece{bytes.Join(lines[from:to], nil), from})
	}
	return out
}

// resolved follows an alias.
func resolved(n *yaml.Node) *yaml.Node {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// valueOf gives the value of a key of a mapping, of keys that come twice the last; nil where there is none.
func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	v, _ := entryOf(mapping, key)
	return v
}

func entryOf(mapping *yaml.Node, key string) (value, at *yaml.Node) {
	if mapping = resolved(mapping); mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := len(mapping.Content) - 2; i >= 0; i -= 2 {
		if mapping.Content[i].Value == key {
			return resolved(mapping.Content[i+1]), mapping.Content[i]
		}
	}
	return nil, nil
}

// keyAt gives the key at the end of a path.
func keyAt(n *yaml.Node, path []string) (key *yaml.Node) {
	for _, step := range path {
		if inner, ok := strings.CutPrefix(step, "["); ok {
			n = resolved(n)
			i, err := strconv.Atoi(strings.TrimSuffix(inner, "]"))
			if err != nil || n == nil || n.Kind != yaml.SequenceNode || i < 0 || i >= len(n.Content) {
				return nil
			}
			n, key = n.Content[i], nil
			continue
		}
		if n, key = entryOf(n, step); key == nil {
			return nil
		}
	}
	return key
}

// maxNodes is how many nodes of one object are looked at: aliases can make few lines very many.
const maxNodes = 1 << 20

// sourceWalk finds podCertificate sources where lib/demand does, and in the same order, but as they stand in the text. Merge keys are not
// followed: what comes out then are fewer lines than demands.
type sourceWalk struct {
	lines  []int
	budget int
}

func (s *sourceWalk) value(n *yaml.Node) {
	if n = resolved(n); n == nil || s.budget <= 0 {
		return
	}
	s.budget--
	switch n.Kind {
	case yaml.SequenceNode:
		for _, item := range n.Content {
			s.value(item)
		}
	case yaml.MappingNode:
		if volumes := valueOf(n, "volumes"); volumes != nil && volumes.Kind == yaml.SequenceNode {
			for _, volume := range volumes.Content {
				s.volume(volume)
			}
		}
		var keys []string
		for i := 0; i+1 < len(n.Content); i += 2 {
			keys = append(keys, n.Content[i].Value)
		}
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			s.value(valueOf(n, key))
		}
	}
}

func (s *sourceWalk) volume(volume *yaml.Node) {
	sources := valueOf(valueOf(volume, "projected"), "sources")
	if sources == nil || sources.Kind != yaml.SequenceNode {
		return
	}
	for _, source := range sources.Content {
		if v, key := entryOf(source, word); v != nil && v.Tag != "!!null" {
			s.lines = append(s.lines, key.Line)
		}
	}
}

// piecesOf cuts a file at its separators, and lists into their objects.
func piecesOf(text []byte) []piece {
	var out []piece
	at := 0
	for doc := range bytes.SplitSeq(text, []byte("\n---")) {
		parts := []piece{{text: doc}}
		if strings.Contains(string(doc), "items") {
			parts = cut(doc, objectNodes(doc))
		}
		for _, p := range parts {
			p.before += at
			out = append(out, p)
		}
		at += bytes.Count(doc, []byte("\n")) + 1
	}
	return out
}
