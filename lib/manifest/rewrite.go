package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Edit is a change to one object: Document is the document's Number, Item the index of the object's Head among the document's.
type Edit struct {
	Document, Item int
	// Annotations are set, or replaced where the object has them. Characters that YAML cannot carry (control characters
	// above U+007E, what is not UTF-8) become U+FFFD.
	Annotations map[string]string
	// Drop leaves the object out: the document, or the item of a list; a list of which nothing is left goes, too.
	Drop bool
}

// Rewrite gives the stream with the edits applied and the extra documents appended. Documents without an edit keep their bytes,
// and of annotated ones changes only what must: comments, order, quoting and numbers stay. Where an annotation cannot be
// put in its place with certainty (an alias, a tag or a merge key on the way to it, YAML that is not ordinary), the document
// becomes JSON: what Argo CD reads, plus the annotations. The stream may come out empty.
//
// The error is that of Heads for an edited document, or it is about an edit of an object that is not there.
func (s *Stream) Rewrite(edits []Edit, extra ...[]byte) ([]byte, error) {
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b Edit) int {
		if a.Document != b.Document {
			return a.Document - b.Document
		}
		return a.Item - b.Item
	})
	size := len(s.raw) + len(separator)
	for _, e := range edits {
		for k, v := range e.Annotations {
			size += len(k) + len(v) + 64
		}
	}
	for _, text := range extra {
		size += len(separator) + len(text) + 1
	}
	w := writer{stream: s, out: make([]byte, 0, size), yaml: !s.json || s.mixed || len(extra) > 0}
	for _, d := range s.Documents {
		n := 0
		for n < len(edits) && edits[n].Document <= d.Number {
			n++
		}
		if err := w.document(d, edits[:n]); err != nil {
			return nil, err
		}
		edits = edits[n:]
	}
	if len(edits) > 0 {
		return nil, fmt.Errorf("edit of document %d: the stream has %d", edits[0].Document, len(s.Documents))
	}
	w.out = append(w.out, s.raw[w.from:]...)
	for _, text := range extra {
		w.out = appendLine(w.out, nil)
		w.out = append(w.out, separator...)
		w.out = appendLine(w.out, text)
	}
	return w.out, nil
}

// writer puts the new stream together.
type writer struct {
	stream *Stream
	out    []byte
	from   int // offset in the old stream of what is not copied yet
	// yaml: the new stream is YAML to Argo CD, not a sequence of JSON values.
	yaml bool
}

// document copies the stream up to the end of a document, with the edits applied.
func (w *writer) document(d *Document, edits []Edit) error {
	if d.bare && w.yaml {
		if w.from = max(w.from, w.stream.Documents[0].at); w.from < d.at {
			w.out = appendLine(w.out, w.stream.raw[w.from:d.at])
		}
		w.out = append(w.out, separator...)
		w.from = d.at
	}
	if len(edits) == 0 {
		return nil
	}
	if edits[0].Document != d.Number {
		return fmt.Errorf("edit of document %d: documents count from 1", edits[0].Document)
	}
	raw, end := w.stream.raw, d.at+len(d.Raw)
	text, dropped, err := d.edited(edits)
	switch {
	case err != nil:
		return err
	case dropped && fragile(raw[end:]):
		w.out = append(append(w.out, raw[w.from:d.at]...), "#\n"...)
	case dropped:
		if start := w.stream.starts(d); start > w.from {
			w.out = append(w.out, raw[w.from:start]...)
		}
	case text.json != nil:
		w.out = append(w.out, raw[w.from:d.at]...)
		if d.at == 0 && !d.bare {
			w.out = append(w.out, separator...)
		}
		w.out = append(append(w.out, text.json...), '\n')
	default:
		for _, s := range text.splices {
			w.out = append(append(w.out, raw[w.from:d.at+s.from]...), s.text...)
			w.from = d.at + s.to
		}
		return nil
	}
	w.from = end
	return nil
}

// fragile reports whether what follows a document relies on there being one: a separator that is none to YAML, or a byte
// order mark after it, is taken by Argo CD's decoder only where the separator ends a document (see chunk).
func fragile(rest []byte) bool {
	if !bytes.HasPrefix(rest, []byte("---")) {
		return false
	}
	end := bytes.IndexByte(rest, '\n') + 1
	return !proper(rest) || end > 0 && len(bom(rest[end:])) > 0
}

// newText is a document's text with edits: the old one with splices, or a new one in JSON.
type newText struct {
	splices []splice
	json    []byte
}

// splice puts text in the place of that between two offsets.
type splice struct {
	from, to int
	text     string
}

// edited applies the edits of one document.
func (d *Document) edited(edits []Edit) (text newText, dropped bool, err error) {
	if edits[0].Item < 0 {
		return text, false, fmt.Errorf("edit of item %d of document %d: items count from 0", edits[0].Item, d.Number)
	}
	if !d.odd {
		if t := ordinary(d.Raw, object); t != nil {
			defer t.free()
			e := editor{tree: t, edits: edits, eol: "\n"}
			if i := bytes.IndexByte(d.Raw, '\n'); i > 0 && d.Raw[i-1] == '\r' {
				e.eol = "\r\n"
			}
			if dropped, ok := e.object(&t.root); ok {
				if len(e.edits) > 0 {
					return text, false, d.noItem(e.edits[0].Item, e.item)
				}
				slices.SortStableFunc(e.splices, func(a, b splice) int { return a.from - b.from })
				return newText{splices: e.splices}, dropped, nil
			}
		}
	}
	root, err := d.root()
	if err != nil {
		return text, false, err
	}
	item := 0
	rest, kept := edit(root, &item, edits)
	if len(rest) > 0 {
		return text, false, d.noItem(rest[0].Item, item)
	}
	if !kept {
		return text, true, nil
	}
	text.json, err = printable(root)
	return text, false, err
}

func (d *Document) noItem(item, items int) error {
	return fmt.Errorf("edit of item %d of document %d: it has %d objects", item, d.Number, items)
}

// edit applies the edits to a decoded object or list, counting its objects, and gives back those that are for later ones.
func edit(obj map[string]any, item *int, edits []Edit) (rest []Edit, kept bool) {
	items, has := obj["items"]
	if list, ok := items.([]any); ok {
		left := make([]any, 0, len(list))
		for _, v := range list {
			if edits, kept = edit(v.(map[string]any), item, edits); kept {
				left = append(left, v)
			}
		}
		obj["items"] = left
		return edits, len(left) > 0 || len(list) == 0
	}
	if has && items == nil && obj["spec"] == nil && obj["status"] == nil && len(flatten(nil, obj)) == 0 {
		return edits, true
	}
	kept = true
	for ; len(edits) > 0 && edits[0].Item == *item; edits = edits[1:] {
		kept = kept && !edits[0].Drop
		if len(edits[0].Annotations) == 0 {
			continue
		}
		annotations := child(child(obj, "metadata"), "annotations")
		for k, v := range edits[0].Annotations {
			annotations[k] = writable(v)
		}
	}
	*item++
	return edits, kept
}

// child gives the mapping under a key, and makes one if there is something else.
func child(m map[string]any, key string) map[string]any {
	c, ok := m[key].(map[string]any)
	if !ok {
		c = map[string]any{}
		m[key] = c
	}
	return c
}

// printable encodes as JSON that is YAML, too: with escapes for what YAML does not allow as it is.
func printable(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if !bytes.ContainsFunc(text, unprintable) {
		return text, nil
	}
	var out []byte
	for _, r := range string(text) {
		if unprintable(r) {
			out = fmt.Appendf(out, "\\u%04x", r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out, nil
}

func unprintable(r rune) bool {
	return r >= 0x7f && r < 0xa0 || r == 0xfeff || r == 0xfffe || r == 0xffff
}

// writable replaces what does not survive Argo CD's two readings of a string (see object).
func writable(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	return strings.Map(func(r rune) rune {
		if unprintable(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// quote writes a string in double quotes, in one line, as JSON and YAML alike.
func quote(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) < 0 {
		return `"` + s + `"`
	}
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range writable(s) {
		switch {
		case r == '"' || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case r == '\n':
			out.WriteString(`\n`)
		case r < ' ' || r == 0x2028 || r == 0x2029:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// editor finds the splices for the edits of one ordinary document. Its methods are not ok where the tree does not show for
// certain what an edit would change.
type editor struct {
	tree    *tree
	edits   []Edit // those not applied yet
	item    int    // index of the next object
	eol     string
	splices []splice
}

// object edits an object, or the items of a list. It says whether nothing of it is to be left.
func (e *editor) object(n *node) (dropped, ok bool) {
	t := e.tree
	if n.marked || n.form != blockMap && n.form != flowMap || !t.plainKeys(n) {
		return false, false
	}
	if items := t.field(n, "items"); items != nil {
		if items.marked {
			return false, false
		}
		if items.form == blockSeq || items.form == flowSeq {
			return e.items(items)
		}
		if v, ok := t.decode(items); !ok || v == nil && t.field(n, "spec") == nil && t.field(n, "status") == nil {
			return false, ok
		}
	}
	var annotations map[string]string
	for ; len(e.edits) > 0 && e.edits[0].Item == e.item; e.edits = e.edits[1:] {
		dropped = dropped || e.edits[0].Drop
		if annotations == nil {
			annotations = e.edits[0].Annotations
			continue
		}
		annotations = maps.Clone(annotations)
		maps.Copy(annotations, e.edits[0].Annotations)
	}
	e.item++
	return dropped, dropped || len(annotations) == 0 || e.annotate(n, annotations)
}

// items edits the items of a list, and takes out those that are dropped.
func (e *editor) items(list *node) (dropped, ok bool) {
	var items []*node
	var drop []bool
	kept := -1 // the last item that stays
	for i := list.child; i != 0; i = e.tree.nodes[i].next {
		n := &e.tree.nodes[i]
		gone, ok := e.object(n)
		if !ok {
			return false, false
		}
		if !gone {
			kept = len(items)
		}
		items, drop = append(items, n), append(drop, gone)
	}
	if kept < 0 {
		return len(items) > 0, true
	}
	for i := 0; i < len(items); i++ {
		if !drop[i] {
			continue
		}
		last := i
		for last+1 < len(items) && drop[last+1] {
			last++
		}
		e.take(list.form, items, i, last, i > kept)
		i = last
	}
	return false, true
}

// take takes the items from first to last out of a list; atEnd says that none follows that stays.
func (e *editor) take(form form, items []*node, first, last int, atEnd bool) {
	text := e.tree.text
	if form == flowSeq {
		if atEnd {
			e.splice(items[first-1].end, items[last].end, "")
		} else {
			e.splice(items[first].start, items[last+1].start, "")
		}
		return
	}
	dash := int(items[first].dash)
	line := bytes.LastIndexByte(text[:dash], '\n') + 1
	if len(bytes.TrimLeft(text[line:dash], " ")) > 0 {
		// The list begins in the line of an outer dash; so this is its first item, and one that stays takes its place.
		e.splice(items[first].dash, items[last+1].dash, "")
		return
	}
	for i := first; i <= last; i++ {
		from := bytes.LastIndexByte(text[:items[i].dash], '\n') + 1
		// Blank lines go, too: they would become part of a block scalar that ends the item before.
		to := e.tree.eol(int(items[i].end))
		for to < len(text) {
			next := e.tree.eol(to + 1)
			if len(bytes.Trim(text[to:next], " \r\n")) > 0 || next == len(text) && next == to+1 {
				break
			}
			to = next
		}
		e.splice(int32(from), int32(min(to+1, len(text))), "")
	}
}

func (e *editor) splice(from, to int32, text string) {
	e.splices = append(e.splices, splice{int(from), int(to), text})
}

// annotate sets annotations of one object.
func (e *editor) annotate(obj *node, annotations map[string]string) bool {
	t := e.tree
	keys := slices.Sorted(maps.Keys(annotations))
	under, metadata := t.entry(obj, "metadata")
	if metadata == nil || e.null(metadata) {
		return e.set(obj, nil, metadata, []string{"metadata", "annotations"}, keys, annotations)
	}
	if !e.isMap(metadata) {
		return false
	}
	key, has := t.entry(metadata, "annotations")
	if has == nil || e.null(has) {
		return e.set(metadata, under, has, []string{"annotations"}, keys, annotations)
	}
	if !e.isMap(has) {
		return false
	}
	added := keys[:0]
	for _, k := range keys {
		value := t.field(has, k)
		switch {
		case value == nil:
			if k == "true" || k == "false" || k != "" && numeric(k[0]) {
				return false // a key that is no string may be the same key in JSON
			}
			added = append(added, k)
		case value.marked || value.form == blockMap || value.form == blockSeq:
			return false
		case value.form == absent:
			e.splice(value.start, value.end, " "+quote(annotations[k]))
		default:
			e.splice(value.start, value.end, quote(annotations[k]))
		}
	}
	return len(added) == 0 || e.set(has, key, nil, nil, added, annotations)
}

func (e *editor) isMap(n *node) bool {
	return !n.marked && (n.form == blockMap || n.form == flowMap) && e.tree.plainKeys(n)
}

func (e *editor) null(n *node) bool {
	if n.form != absent && n.form != plain {
		return false
	}
	v, ok := e.tree.decode(n)
	return ok && v == nil
}

// set puts annotations into a mapping, under the keys of path. The mapping is the value of under, if that is not nil; value is the
// node of the first key of path, if it is there, as null.
func (e *editor) set(parent, under, value *node, path, keys []string, annotations map[string]string) bool {
	text, col := e.tree.text, int(parent.col)
	indent := strings.Repeat(" ", col)
	switch {
	case value == nil && parent.form == flowMap:
		s := inFlow(path, keys, annotations)
		if parent.child != 0 {
			if s += ","; text[parent.start+1] != ' ' && text[parent.start+1] != '\n' && text[parent.start+1] != '\r' {
				s += " "
			}
		}
		e.splice(parent.start+1, parent.start+1, s)
	case value == nil && under != nil:
		// Right below the key, so that a comment stays with the entry that it is about.
		line := int32(e.tree.eol(int(under.end)) + 1)
		e.splice(line, line, indent+e.inBlock(col, path, keys, annotations)+e.eol)
	case value == nil:
		first := e.tree.nodes[parent.child].start
		e.splice(first, first, e.inBlock(col, path, keys, annotations)+e.eol+indent)
	case value.form == absent && parent.form == blockMap && e.lineEnds(int(value.start)):
		inner := col + 2
		e.splice(value.start, value.start, e.eol+strings.Repeat(" ", inner)+e.inBlock(inner, path[1:], keys, annotations))
	default:
		s := "{" + inFlow(path[1:], keys, annotations) + "}"
		if value.form == absent {
			s = " " + s
		}
		e.splice(value.start, value.end, s)
	}
	return true
}

// lineEnds reports whether the line has nothing more but spaces.
func (e *editor) lineEnds(i int) bool {
	i = e.tree.spaces(i)
	return i == len(e.tree.text) || e.tree.text[i] == '\n' || e.tree.text[i] == '\r'
}

// inBlock writes annotations under the keys of path, in block style, for the given column; the first line without indentation.
func (e *editor) inBlock(col int, path, keys []string, annotations map[string]string) string {
	var s strings.Builder
	for _, key := range path {
		col += 2
		s.WriteString(key + ":" + e.eol + strings.Repeat(" ", col))
	}
	for i, k := range keys {
		if i > 0 {
			s.WriteString(e.eol + strings.Repeat(" ", col))
		}
		key := k
		if !plainKey(k) {
			key = quote(k)
		}
		s.WriteString(key + ": " + quote(annotations[k]))
	}
	return s.String()
}

// plainKey reports whether a key needs no quotes in block style.
func plainKey(k string) bool {
	if k == "" || !(k[0] >= 'a' && k[0] <= 'z' || k[0] >= 'A' && k[0] <= 'Z') {
		return false
	}
	for i := range len(k) {
		if !isWord(k[i]) && strings.IndexByte("./-", k[i]) < 0 {
			return false
		}
	}
	_, is := word(k)
	return !is
}

// inFlow writes annotations under the keys of path, in flow style that is also JSON.
func inFlow(path, keys []string, annotations map[string]string) string {
	var s strings.Builder
	for _, key := range path {
		s.WriteString(quote(key) + ": {")
	}
	for i, k := range keys {
		if i > 0 {
			s.WriteString(", ")
		}
		s.WriteString(quote(k) + ": " + quote(annotations[k]))
	}
	return s.String() + strings.Repeat("}", len(path))
}
