package manifest

import (
	"bytes"
	"strings"
	"sync"
)

// An ordinary document is one that a small parser reads with certainty: block and flow collections, all scalar styles,
// comments; no complex keys, no tabs as indentation, no directives, no line breaks other than LF and CRLF. Anchors, aliases
// and tags are passed over; a node that has one is marked, and whoever needs its value goes the long way.
//
// The parser knows where things stand, which a YAML library does not tell, and it is more than ten times as fast. It accepts a text
// only if go.yaml.in/yaml/v2 (what sigs.k8s.io/yaml uses, and so Argo CD) reads it the same: whatever it is not sure of, it
// refuses, and that is never an error but the long way. FuzzOrdinary holds it to that.

type form uint8

const (
	absent form = iota // no node at all: null
	plain
	single
	double
	literal
	folded
	alias
	blockMap
	blockSeq
	flowMap
	flowSeq
)

// node is one node of an ordinary document; nodes refer to each other by index, 0 is none.
type node struct {
	form   form
	marked bool // has an anchor or a tag, or is an alias
	// start and end are offsets in the text; a block scalar ends with its last line, before the line break.
	start, end int32
	next       int32
	child      int32 // first child; in mappings keys and values take turns
	// col is the column of a block collection; of a block scalar, the offset at which the next line that is not its own begins.
	col int32
	// dash is the offset of the "-" before an item of a block sequence.
	dash int32
}

// depth says which nodes the parser keeps. The node of every value of a kept mapping is there, with its place and form.
type depth uint8

const (
	nothing depth = iota // only see whether the text is ordinary
	object               // the mapping of an object: its metadata in full, its items if it is a list
	listed               // the items of a list, each as an object
	wholly               // everything
)

// value gives the depth for the value of a key.
func (d depth) value(key []byte) depth {
	switch {
	case d == wholly || d == object && string(key) == "metadata":
		return wholly
	case d == object && string(key) == "items":
		return listed
	}
	return nothing
}

// item gives the depth for the items of a sequence.
func (d depth) item() depth {
	switch d {
	case wholly:
		return wholly
	case listed:
		return object
	}
	return nothing
}

type tree struct {
	text  []byte
	nodes []node
	root  node
	// rest is where content goes on after a root in flow style, or the end of the text.
	rest int
	// json: a root in flow style is JSON, too; pure: and nothing is around it but white space.
	json, pure bool

	pos int
	// indent is the column of the significant line at whose first character pos stands, -1 at the end of the text.
	indent int
	// ended is the end of the last token.
	ended int
	level int
	// inBlock: the root is in block style.
	inBlock bool
}

// maxLevel bounds the nesting of ordinary documents, maxKey the length of a key (libyaml allows 1024 characters, and counts
// those of the JSON spelling in Argo CD's second reading), maxText that of the document.
const (
	maxLevel = 100
	maxKey   = 150
	maxText  = 1 << 30
)

var trees = sync.Pool{New: func() any { return new(tree) }}

// ordinary parses text, which must be valid UTF-8 of characters printable in YAML. It returns nil if the text is not
// ordinary. The caller frees the tree.
func ordinary(text []byte, d depth) *tree {
	t := trees.Get().(*tree)
	*t = tree{text: text, nodes: append(t.nodes[:0], node{}), json: true}
	if len(text) > maxText || !t.document(d) {
		t.free()
		return nil
	}
	return t
}

func (t *tree) free() {
	t.text = nil
	if cap(t.nodes) < 1<<16 {
		trees.Put(t)
	}
}

func (t *tree) document(d depth) (ok bool) {
	t.pos = len(bom(t.text))
	if !t.line() {
		return false
	}
	if t.indent < 0 {
		t.rest = len(t.text)
		return true
	}
	if t.text[t.pos] == '{' {
		if t.root, ok = t.flow(d); !ok {
			return false
		}
		t.pure = t.json
		if t.rest, ok = t.gap(t.pos); !ok {
			return false
		}
		t.json, t.pure = t.pure, t.json
		return t.rest == len(t.text) || t.text[t.rest] == '{'
	}
	t.inBlock = true
	if t.root, ok = t.block(-1, d); !ok || t.indent >= 0 {
		return false
	}
	t.rest = len(t.text)
	return t.root.form == blockMap || t.root.form == blockSeq
}

// bom is the byte order mark at the start of a text.
func bom(text []byte) []byte {
	if bytes.HasPrefix(text, []byte("\ufeff")) {
		return text[:3]
	}
	return nil
}

// add keeps a node and links it behind last, a child of the same parent, or as the parent's first child.
func (t *tree) add(parent *node, last *int32, n node) {
	i := int32(len(t.nodes))
	t.nodes = append(t.nodes, n)
	if *last == 0 {
		parent.child = i
	} else {
		t.nodes[*last].next = i
	}
	*last = i
}

// blank reports whether white space or the end of the text stands at i.
func (t *tree) blank(i int) bool {
	return i >= len(t.text) || isBlank(t.text[i]) || t.text[i] == '\n'
}

// line goes from the start of a line to the first character of the next line that is neither blank nor comment.
func (t *tree) line() bool {
	text, i := t.text, t.pos
	for {
		start := i
		for i < len(text) && text[i] == ' ' {
			i++
		}
		if i == len(text) {
			t.pos, t.indent = i, -1
			return true
		}
		switch text[i] {
		case '\n', '\r':
		case '#':
		case '\t':
			return false
		default:
			t.pos, t.indent = i, i-start
			return i > start || !t.marker(i)
		}
		if i = t.eol(i); i == len(text) {
			t.pos, t.indent = i, -1
			return true
		}
		i++
	}
}

// marker reports whether the line that starts at i is a directive, or begins a document or ends one.
func (t *tree) marker(i int) bool {
	rest := t.text[i:]
	return len(rest) > 0 && rest[0] == '%' || len(rest) > 2 && (string(rest[:3]) == "---" || string(rest[:3]) == "...")
}

// eol gives the offset of the next LF, or the end of the text.
func (t *tree) eol(i int) int {
	if j := bytes.IndexByte(t.text[i:], '\n'); j >= 0 {
		return i + j
	}
	return len(t.text)
}

// close goes from the end of a node in a line to the next significant line; only a comment may come before the line's end.
func (t *tree) close() bool {
	text, i := t.text, t.blanks(t.pos)
	if i < len(text) {
		switch text[i] {
		case '#':
			if text[i-1] != ' ' && text[i-1] != '\t' {
				return false
			}
		case '\n', '\r':
		default:
			return false
		}
		i = t.eol(i)
		if i < len(text) {
			i++
		}
	}
	t.pos = i
	return t.line()
}

// block parses the node that begins with a significant line deeper than parent, the column of the collection around it.
func (t *tree) block(parent int, d depth) (node, bool) {
	if t.text[t.pos] == '-' && t.blank(t.pos+1) {
		return t.sequence(t.indent, false, d)
	}
	return t.content(t.indent, parent, true, false, d)
}

// content parses the node that begins at pos, in column col, up to the next significant line. As value of a mapping (value)
// it cannot be a mapping in the same line; else it can be one (key).
func (t *tree) content(col, parent int, key, value bool, d depth) (n node, ok bool) {
	start := t.pos
	switch c := t.text[t.pos]; c {
	case '&', '!':
		if !t.properties() {
			return n, false
		}
		if t.pos < len(t.text) && t.text[t.pos] != '\n' && t.text[t.pos] != '\r' && t.text[t.pos] != '#' {
			n, ok = t.content(0, parent, false, false, d)
		} else if ok = t.close(); ok {
			switch {
			case t.indent > parent:
				if c := t.text[t.pos]; c == '&' || c == '!' || c == '*' {
					return n, false
				}
				n, ok = t.block(parent, d)
			case value && t.indent == parent && t.text[t.pos] == '-' && t.blank(t.pos+1):
				n, ok = t.sequence(parent, true, d)
			default:
				n = node{start: int32(t.ended), end: int32(t.ended)}
			}
		}
		n.marked = true
		return n, ok && n.form != alias
	case '*':
		if t.pos = t.name(t.pos + 1); t.pos == start+1 || !t.blank(t.pos) {
			return n, false
		}
		n = node{form: alias, marked: true}
	case '|', '>':
		return t.blockScalar(parent)
	case '{', '[':
		if n, ok = t.flow(d); !ok {
			return n, false
		}
	case '"', '\'':
		if _, ok := t.quoted(); !ok {
			return n, false
		}
		n = node{form: single}
		if c == '"' {
			n.form = double
		}
		if after := t.spaces(t.pos); after < len(t.text) && t.text[after] == ':' {
			if !key {
				return n, false
			}
			t.pos = start
			return t.mapping(col, d)
		}
	default:
		colon, ok := t.plain(false)
		if !ok {
			return n, false
		}
		if colon {
			if !key {
				return n, false
			}
			t.pos = start
			return t.mapping(col, d)
		}
		return t.plainLines(start, parent)
	}
	t.ended = t.pos
	n.start, n.end = int32(start), int32(t.pos)
	return n, t.close()
}

// spaces gives the offset after the spaces at i.
func (t *tree) spaces(i int) int {
	for i < len(t.text) && t.text[i] == ' ' {
		i++
	}
	return i
}

// blanks gives the offset after the spaces and tabs at i.
func (t *tree) blanks(i int) int {
	for i < len(t.text) && (t.text[i] == ' ' || t.text[i] == '\t') {
		i++
	}
	return i
}

// name gives the offset after the letters, digits, "-" and "_" at i.
func (t *tree) name(i int) int {
	for i < len(t.text) && (isWord(t.text[i]) || t.text[i] == '-') {
		i++
	}
	return i
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}

// properties passes over at most one anchor and one tag, and the spaces after each.
func (t *tree) properties() bool {
	var anchor, tag bool
	for t.pos < len(t.text) {
		i := t.pos
		switch t.text[i] {
		case '&':
			if i = t.name(i + 1); anchor || i == t.pos+1 {
				return false
			}
			anchor = true
		case '!':
			i++
			if i < len(t.text) && t.text[i] == '!' {
				if i++; t.blank(i) {
					return false
				}
			}
			for i < len(t.text) && (isWord(t.text[i]) || strings.IndexByte("-./:", t.text[i]) >= 0) {
				i++
			}
			if tag {
				return false
			}
			tag = true
		default:
			return true
		}
		if !t.blank(i) {
			return false
		}
		t.ended = i
		t.pos = t.spaces(i)
	}
	return true
}

// deeper counts a level of nesting.
func (t *tree) deeper() bool {
	t.level++
	return t.level <= maxLevel
}

// mapping parses a block mapping whose first key is at pos, in column col.
func (t *tree) mapping(col int, d depth) (n node, ok bool) {
	if !t.deeper() {
		return n, false
	}
	n = node{form: blockMap, start: int32(t.pos), col: int32(col)}
	var last int32
	for {
		key, ok := t.blockKey()
		if !ok {
			return n, false
		}
		sub := d
		if d == object {
			name, _ := t.key(&key)
			sub = d.value(name)
		}
		value, ok := t.value(col, sub)
		if !ok {
			return n, false
		}
		if d == object || d == wholly {
			t.add(&n, &last, key)
			t.add(&n, &last, value)
		}
		if t.indent != col {
			break
		}
	}
	n.end = int32(t.ended)
	t.level--
	return n, t.indent < col
}

// blockKey parses a key of a block mapping and the colon after it.
func (t *tree) blockKey() (n node, ok bool) {
	n.start = int32(t.pos)
	switch t.text[t.pos] {
	case '"', '\'':
		n.form = single
		if t.text[t.pos] == '"' {
			n.form = double
		}
		lines, ok := t.quoted()
		if !ok || lines {
			return n, false
		}
		n.end = int32(t.pos)
		t.pos = t.spaces(t.pos)
		if t.pos == len(t.text) || t.text[t.pos] != ':' || !t.blank(t.pos+1) {
			return n, false
		}
	default:
		n.form = plain
		colon, ok := t.plain(false)
		if !ok || !colon {
			return n, false
		}
		n.end = int32(t.ended)
	}
	t.pos++
	t.ended = t.pos
	return n, n.end-n.start <= maxKey
}

// value parses the value of a key of the block mapping in column col, from after the colon to the next significant line.
func (t *tree) value(col int, d depth) (n node, ok bool) {
	colon := t.pos
	if t.pos = t.blanks(t.pos); t.pos < len(t.text) {
		switch t.text[t.pos] {
		case '\n', '\r', '#':
		default:
			return t.content(0, col, false, true, d)
		}
	}
	switch {
	case !t.close():
		return n, false
	case t.indent > col:
		return t.block(col, d)
	case t.indent == col && t.text[t.pos] == '-' && t.blank(t.pos+1):
		return t.sequence(col, true, d)
	}
	return node{start: int32(colon), end: int32(colon)}, true
}

// sequence parses a block sequence whose first dash is at pos, in column col. An indentless one stands in the column of its
// mapping, and ends with the mapping's next key.
func (t *tree) sequence(col int, indentless bool, d depth) (n node, ok bool) {
	if !t.deeper() {
		return n, false
	}
	n = node{form: blockSeq, start: int32(t.pos), col: int32(col)}
	var last int32
	for {
		dash := t.pos
		t.pos++
		t.ended = t.pos
		t.pos = t.spaces(t.pos)
		item := node{start: int32(t.ended), end: int32(t.ended)}
		var ok bool
		switch {
		case t.pos == len(t.text) || t.text[t.pos] == '\n' || t.text[t.pos] == '\r' || t.text[t.pos] == '#':
			if ok = t.close(); ok && t.indent > col {
				item, ok = t.block(col, d.item())
			}
		case t.text[t.pos] == '-' && t.blank(t.pos+1):
			item, ok = t.sequence(col+t.pos-dash, false, d.item())
		default:
			item, ok = t.content(col+t.pos-dash, col, true, false, d.item())
		}
		if !ok {
			return n, false
		}
		if d == listed || d == wholly {
			item.dash = int32(dash)
			t.add(&n, &last, item)
		}
		if t.indent != col {
			ok = t.indent < col
		} else if t.text[t.pos] == '-' && t.blank(t.pos+1) {
			continue
		} else {
			ok = indentless
		}
		n.end = int32(t.ended)
		t.level--
		return n, ok
	}
}

// plain passes over a plain scalar, or over the part of it in this line. It says whether a colon ended it, and then stands at
// the colon; ended is the scalar's end.
func (t *tree) plain(inFlow bool) (colon, ok bool) {
	text, i := t.text, t.pos
	switch c := text[i]; c {
	case '?', ':':
		if inFlow || t.blank(i+1) {
			return false, false
		}
	case ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`', ' ', '\t', '\n', '\r':
		return false, false
	case '-':
		if i+1 == len(text) || strings.IndexByte(" \t\r\n,[]{}?:#", text[i+1]) >= 0 {
			return false, false
		}
	}
	for ; i < len(text); i++ {
		switch text[i] {
		case '\n', '\r':
			return false, t.plainEnd(i)
		case ':':
			if t.blank(i + 1) {
				return true, t.plainEnd(i)
			}
			if inFlow && i+1 < len(text) && strings.IndexByte(",[]{}?", text[i+1]) >= 0 {
				return false, false
			}
		case '#':
			if isBlank(text[i-1]) {
				return false, t.plainEnd(i)
			}
		case ',', '[', ']', '{', '}':
			if inFlow {
				return false, t.plainEnd(i)
			}
		case '?':
			if inFlow {
				return false, false
			}
		}
	}
	return false, t.plainEnd(i)
}

// plainEnd ends a plain scalar before i.
func (t *tree) plainEnd(i int) bool {
	t.pos = i
	for isBlank(t.text[i-1]) {
		i--
	}
	t.ended = i
	return true
}

// plainLines goes on from the first line of a plain scalar, at whose end pos stands, over the lines that continue it.
func (t *tree) plainLines(start, parent int) (n node, ok bool) {
	n = node{form: plain, start: int32(start), end: int32(t.ended)}
	for {
		comment := t.pos < len(t.text) && t.text[t.pos] == '#'
		if t.pos = t.eol(t.pos); t.pos < len(t.text) {
			t.pos++
		}
		was := t.pos
		if !t.line() {
			return n, false
		}
		if t.indent <= parent {
			return n, true
		}
		// The line continues the scalar, unless a comment came between: then it is an error.
		if comment || bytes.IndexByte(t.text[was:t.pos], '#') >= 0 {
			return n, false
		}
		for i := t.pos; ; i++ {
			if i == len(t.text) || t.text[i] == '\n' || t.text[i] == '\r' || t.text[i] == '#' && isBlank(t.text[i-1]) {
				t.plainEnd(i)
				break
			}
			if t.text[i] == ':' && t.blank(i+1) {
				return n, false
			}
		}
		n.end = int32(t.ended)
	}
}

// quoted passes over a quoted scalar; lines says that it goes over more than one.
func (t *tree) quoted() (lines, ok bool) {
	text, quote := t.text, t.text[t.pos]
	for i := t.pos + 1; i < len(text); i++ {
		switch c := text[i]; c {
		case quote:
			if quote == '\'' && i+1 < len(text) && text[i+1] == '\'' {
				i++
				continue
			}
			t.pos = i + 1
			t.ended = t.pos
			return lines, true
		case '\n':
			if t.marker(i + 1) {
				return true, false
			}
			lines, t.json = true, false
		case '\t':
			t.json = false
		case '\\':
			if quote == '\'' {
				continue
			}
			size, ok := escape(text[i:])
			if !ok {
				return false, false
			}
			switch text[i+1] {
			case '"', '\\', 'b', 'f', 'n', 'r', 't', 'u':
			default:
				t.json = false
			}
			if i += size - 1; text[i] == '\n' {
				if t.marker(i + 1) {
					return true, false
				}
				lines = true
			}
		}
	}
	return false, false
}

// blockScalar parses a literal or folded scalar inside a collection in column parent, up to the next significant line.
func (t *tree) blockScalar(parent int) (n node, ok bool) {
	text := t.text
	n = node{form: literal, start: int32(t.pos)}
	if text[t.pos] == '>' {
		n.form = folded
	}
	t.pos++
	if t.pos < len(text) && (text[t.pos] == '-' || text[t.pos] == '+') {
		t.pos++
	}
	n.end = int32(t.pos)
	i := t.spaces(t.pos)
	if i < len(text) && (text[i] == '#' && i == t.pos || text[i] != '#' && text[i] != '\n' && text[i] != '\r') {
		return n, false
	}
	if i = t.eol(i); i < len(text) {
		i++
	}
	// indent is that of the first line that is not blank; libyaml takes the widest of the blank lines before it, too.
	indent, widest := 0, 0
	for i < len(text) {
		start := i
		i = t.spaces(i)
		if i == len(text) {
			break
		}
		column := i - start
		switch c := text[i]; {
		case c == '\n' || c == '\r':
			if indent == 0 && column > widest {
				widest = column
			}
		case indent == 0 && column <= parent || indent > 0 && column < indent:
			if c == '\t' || indent == 0 && widest > column {
				return n, false
			}
			i = start
			goto end
		default:
			if indent == 0 {
				if indent = column; c == '\t' || widest > column || column == 0 {
					return n, false
				}
			}
			i = t.eol(i)
			n.end = int32(i)
			if text[i-1] == '\r' {
				n.end--
			}
			if i == len(text) {
				goto end
			}
			i++
			continue
		}
		if indent > 0 && column > indent { // blank, but not all of it is indentation
			n.end = int32(i)
		}
		if i = t.eol(i); i < len(text) {
			i++
		}
	}
end:
	n.col = int32(i)
	t.pos, t.ended = i, int(n.end)
	return n, t.line()
}

// field gives the value of a key of a mapping, of duplicates the last, or nil.
func (t *tree) field(n *node, name string) (value *node) {
	_, value = t.entry(n, name)
	return value
}

// entry gives a key of a mapping, of duplicates the last, and its value, or nil.
func (t *tree) entry(n *node, name string) (key, value *node) {
	for i := n.child; i != 0; {
		k := &t.nodes[i]
		if s, ok := t.key(k); ok && s != nil && string(s) == name {
			key, value = k, &t.nodes[k.next]
		}
		i = t.nodes[k.next].next
	}
	return key, value
}

// plainKeys reports whether no key of a mapping can be another than those that field finds.
func (t *tree) plainKeys(n *node) bool {
	for i := n.child; i != 0; i = t.nodes[t.nodes[i].next].next {
		if _, ok := t.key(&t.nodes[i]); !ok {
			return false
		}
	}
	return true
}
