package manifest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

// Parse splits a stream into its documents and judges each: it must be an object with a kind, or a list of such. The error is
// an *Error, or wraps ErrEmpty. The stream keeps raw, and does not copy it.
//
// A document that begins with a block mapping is judged by the beginnings of its lines, as long as those leave no doubt;
// then a YAML syntax error further down is left for Argo CD to report. In all else the verdict is that of decoding it.
func Parse(raw []byte) (*Stream, error) {
	p := parser{raw: raw, stream: &Stream{raw: raw}, line: 1, startLine: 1}
	// GuessJSONStream in apimachinery pkg/util/yaml/decoder.go; gitops-engine lets it look 4096 bytes ahead. Unicode's other
	// white space before "{" makes it JSON there, which then fails; here such a stream is YAML.
	text := bytes.TrimLeft(raw, " \t\r\n")
	if start := len(raw) - len(text); len(text) > 0 && text[0] == '{' && start < 4096 {
		p.stream.json, p.start = true, start
		p.line += bytes.Count(raw[:start], []byte("\n"))
	}
	if err := p.run(); err != nil {
		return nil, err
	}
	if len(p.stream.Documents) == 0 {
		return nil, fmt.Errorf("%w: no document in it has content", ErrEmpty)
	}
	if p.stream.mixed {
		for _, d := range p.stream.Documents {
			d.json = false
		}
	}
	return p.stream, nil
}

// state says what the lines of a document have shown so far.
type state uint8

const (
	blank    state = iota // nothing but blank lines and comments
	opened                // a block mapping, without a kind yet
	kinded                // a block mapping with a kind
	doubtful              // the lines alone do not tell
)

// parser goes over the stream once, eight bytes at a time. It looks at the first character of every line, and at what is not
// printable ASCII.
type parser struct {
	raw    []byte
	stream *Stream
	line   int // number of the line being read
	slab   []Document

	// Of the document being read:
	start     int // offset of its text
	startLine int
	first     int // line of its first content
	state     state
	led, odd  bool
	list      bool // it has items
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

func (p *parser) run() error {
	raw, start := p.raw, p.start
	if len(raw) == 0 {
		return nil
	}
	if err := p.begin(start); err != nil {
		return err
	}
	for i := start; i < len(raw); i += 8 {
		var x uint64
		if i+8 <= len(raw) {
			x = binary.LittleEndian.Uint64(raw[i:])
		} else {
			var tail = [8]byte{' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '}
			copy(tail[:], raw[i:])
			x = binary.LittleEndian.Uint64(tail[:])
		}
		// The high bit of every byte above 0x7e or below 0x20.
		low := x &^ highs
		special := (x | (low + ones) | ^(low + 0x60*ones)) & highs
		for special != 0 {
			at := i + bits.TrailingZeros64(special)>>3
			special &= special - 1
			if c := raw[at]; c == '\n' {
				p.line++
				if at+1 == len(raw) || raw[at+1] == ' ' && p.state >= kinded {
					continue
				}
				if err := p.begin(at + 1); err != nil {
					return err
				}
			} else if c == '\r' {
				if at+1 == len(raw) || raw[at+1] != '\n' {
					p.odd = true
				}
			} else if c != '\t' {
				size, err := p.character(at)
				if err != nil {
					return err
				}
				i = at + size - 8
				break
			}
		}
	}
	return p.flush(len(raw))
}

// character judges a character that is not printable ASCII: it must be one that libyaml takes (readerc.go in
// go.yaml.in/yaml/v2).
func (p *parser) character(at int) (size int, err error) {
	r, size := utf8.DecodeRune(p.raw[at:])
	switch {
	case r == utf8.RuneError && size <= 1:
		err, fix := errors.New("not UTF-8"), "write the manifests in UTF-8"
		if p.raw[at] >= 0xfe {
			err = errors.New("not UTF-8, but probably UTF-16 or UTF-32")
		}
		return 0, p.fail(err, fix)
	case r == 0:
		return 0, p.fail(errors.New("the control character U+0000, which YAML does not allow"), "take it out; if the text is UTF-16 or UTF-32, write it in UTF-8")
	case r < 0x20 || r == 0x7f || r > 0x7f && r < 0xa0 && r != 0x85 || r == 0xfffe || r == 0xffff:
		return 0, p.fail(fmt.Errorf("the control character %U, which YAML does not allow", r), "take it out, or write it as an escape in double quotes")
	case r == 0x85 || r == 0x2028 || r == 0x2029:
		p.odd = true
	case r == 0xfeff:
		p.odd = p.odd || at != p.start || p.led
	}
	return size, nil
}

// fail is an error in the line being read.
func (p *parser) fail(err error, fix string) error {
	return &Error{Document: len(p.stream.Documents) + 1, Line: p.line, Err: err, Fix: fix}
}

// begin looks at the line that starts at i.
func (p *parser) begin(i int) error {
	raw := p.raw
	c := raw[i]
	if c == '-' && bytes.HasPrefix(raw[i:], []byte("---")) {
		return p.separator(i)
	}
	if c == 0xef && i == p.start && !p.led {
		i += len(bom(raw[i:]))
		if i == len(raw) {
			return nil
		}
		c = raw[i]
	}
	switch {
	case c == '\n' || c == '\r' || c == '#' || p.state == doubtful:
		return nil
	case p.state == blank:
		if c == ' ' {
			for i < len(raw) && raw[i] == ' ' {
				i++
			}
			if i == len(raw) || raw[i] == '\n' || raw[i] == '\r' || raw[i] == '#' {
				return nil
			}
			c = '?'
		}
		p.first = p.line
		if !isWord(c) {
			p.state = doubtful
			return nil
		}
		p.state = opened
	case c == ' ' || c == '-' || c == '\t':
		return nil
	case !isWord(c):
		p.state = doubtful
		return nil
	}
	key := i
	for i < len(raw) && (isWord(raw[i]) || raw[i] == '.' || raw[i] == '/' || raw[i] == '-') {
		i++
	}
	if i == len(raw) || raw[i] != ':' || i-key > maxKey || i+1 < len(raw) && !isBlank(raw[i+1]) && raw[i+1] != '\n' {
		p.state = doubtful
		return nil
	}
	switch string(raw[key:i]) {
	case "kind":
		if p.state == opened && !p.odd && kindValue(raw[i+1:]) && closed(raw[p.start:key]) {
			p.state = kinded
		} else {
			p.state = doubtful
		}
	case "items":
		p.list = true
	}
	return nil
}

// kindValue reports whether a line goes on, after a colon, with nothing but a word that is a string to YAML.
func kindValue(rest []byte) bool {
	i := 0
	for i < len(rest) && rest[i] == ' ' {
		i++
	}
	from := i
	for i < len(rest) && isWord(rest[i]) {
		i++
	}
	if i == from || rest[from] <= '9' {
		return false
	}
	if _, is := word(string(rest[from:i])); is {
		return false
	}
	for i < len(rest) && rest[i] == ' ' {
		i++
	}
	return i == len(rest) || rest[i] == '\n' || rest[i] == '\r'
}

// closed reports whether every quoted scalar and every flow collection in the text ends in it: those alone may go on in the
// first column of the next line. The lines of the text that have something there are keys, items of sequences and comments.
func closed(text []byte) bool {
	for _, c := range []byte("\"'{[") {
		if bytes.IndexByte(text, c) >= 0 {
			t := ordinary(text, nothing)
			if t == nil {
				return false
			}
			t.free()
			return true
		}
	}
	return true
}

// separator deals with a line that begins with three dashes, as YAMLReader.Read in apimachinery pkg/util/yaml/decoder.go does.
func (p *parser) separator(i int) error {
	p.stream.mixed = true
	if err := p.flush(i); err != nil {
		return err
	}
	line := p.raw[i:]
	if end := bytes.IndexByte(line, '\n'); end >= 0 {
		line = line[:end+1]
	}
	rest := strings.TrimSpace(string(line[3:]))
	if rest != "" && rest[0] != '#' || strings.ContainsAny(rest, "\r\u0085\u2028\u2029") {
		return p.fail(fmt.Errorf("content on the line of its separator: %s", excerpt(line)), "put --- on a line of its own")
	}
	p.led = i == p.start && !p.led
	if p.led && !proper(line) {
		return p.fail(fmt.Errorf("not a separator to YAML: %s", excerpt(line)), "put a space after ---")
	}
	p.start = i + len(line)
	p.startLine = p.line + 1
	p.state, p.odd, p.list = blank, false, false
	return nil
}

// proper reports whether a separator line is one to YAML, too. "---#" is not.
func proper(line []byte) bool {
	return len(line) == 3 || isBlank(line[3]) || line[3] == '\n'
}

// flush ends the document being read before end, where a separator or the end of the stream stands.
func (p *parser) flush(end int) error {
	if p.start > end {
		return nil
	}
	d := Document{Line: p.first, Raw: p.raw[p.start:end:end], at: p.start, led: p.led, odd: p.odd}
	d.bare = p.stream.json && len(p.stream.Documents) == 0
	switch {
	case p.state == blank && !p.odd:
		return nil
	case p.state == kinded && !p.odd && !p.list:
		p.add(d)
		return nil
	case p.state == blank:
		d.Line = p.startLine
	}
	return p.judge(d)
}

func (p *parser) add(d Document) {
	if len(p.slab) == 0 {
		p.slab = make([]Document, 146) // 8 KiB, a size class of Go's allocator
	}
	d.Number = len(p.stream.Documents) + 1
	p.slab[0] = d
	if docs := p.stream.Documents; len(docs) == cap(docs) {
		// As many as there will be if they go on like this, but never an eighth of the rest's own size.
		more, rest := 64, len(p.raw)-d.at
		if len(docs) >= more {
			more = max(more, min(len(docs)*rest/d.at*9/8, rest/64))
		}
		p.stream.Documents = slices.Grow(docs, more)
	}
	p.stream.Documents = append(p.stream.Documents, &p.slab[0])
	p.slab = p.slab[1:]
}

// judge adds a document of which its lines alone do not tell whether it has an object.
func (p *parser) judge(d Document) error {
	for !d.odd {
		t := ordinary(d.Raw, object)
		if t == nil {
			break
		}
		sure, err := p.verdict(&d, t)
		rest, isJSON, pure := t.rest, t.json && p.stream.json, t.pure
		null := t.root.form == absent
		t.free()
		if !sure {
			break
		}
		if err != nil || null {
			return err
		}
		if d.at > p.start && !isJSON {
			return p.trailing(&d, 0)
		}
		p.stream.mixed = p.stream.mixed || isJSON && !pure
		d.json = isJSON && !p.stream.mixed
		text := d.Raw
		if rest == len(text) {
			p.add(d)
			return nil
		}
		if !isJSON || !pure {
			return p.trailing(&d, rest)
		}
		d.Raw = text[:rest:rest]
		p.add(d)
		p.next(&d, text)
	}
	if text := bytes.TrimLeft(d.Raw, " \t\r\n"); p.stream.json && len(text) > 0 && text[0] == '{' {
		return p.judgeJSON(d)
	}
	return p.judgeSlowly(d)
}

// next makes d the document that follows it in the same text: concatenated JSON.
func (p *parser) next(d *Document, text []byte) {
	d.Line += bytes.Count(content(d.Raw), []byte("\n"))
	d.at += len(d.Raw)
	d.Raw, d.bare, d.json = text[len(d.Raw):], true, false
}

// errTrailing: the YAML parser stops before the end of the text, and what follows is lost.
var errTrailing = errors.New("content after the end of the document")

func (p *parser) trailing(d *Document, at int) error {
	return &Error{Document: len(p.stream.Documents) + 1, Line: d.Line + bytes.Count(content(d.Raw[:at]), []byte("\n")),
		Err: fmt.Errorf("%w (%s)", errTrailing, excerpt(d.Raw[at:])), Fix: "Argo CD would drop it; put --- on a line of its own before it"}
}

// verdict judges an ordinary document. It is not sure where only decoding tells.
func (p *parser) verdict(d *Document, t *tree) (sure bool, err error) {
	switch t.root.form {
	case absent:
		return true, nil
	case blockMap, flowMap:
	default:
		return true, p.object(d, "", errors.New("a list, not an object"))
	}
	where, sure, err := t.wellFormed(&t.root)
	if err != nil {
		err = p.object(d, where, err)
	}
	return sure, err
}

// object is the error for what is not a Kubernetes object.
func (p *parser) object(d *Document, where string, err error) error {
	if where == "" {
		err = fmt.Errorf("%w: %s", err, excerpt(d.Raw))
	}
	return &Error{Document: len(p.stream.Documents) + 1, Line: d.Line, Object: where, Err: err, Fix: fixObject}
}

const fixObject = "it must be a Kubernetes object with apiVersion and kind; if another tool printed it, send that to stderr"

// wellFormed looks for what is not an object with a kind: the mapping itself, or an item of it.
func (t *tree) wellFormed(n *node) (bad string, sure bool, err error) {
	kind, items, ok := t.field(n, "kind"), t.field(n, "items"), t.plainKeys(n)
	if !ok || n.marked || items != nil && items.marked {
		return "", false, nil
	}
	if kind == nil {
		return "", true, errNoKind
	}
	v, sure := t.decode(kind)
	if s, _ := v.(string); !sure || s == "" {
		return "", sure, errBadKind
	}
	if items == nil || items.form != blockSeq && items.form != flowSeq {
		return "", true, nil
	}
	number := 0
	for i := items.child; i != 0; i = t.nodes[i].next {
		number++
		item := &t.nodes[i]
		switch {
		case item.marked:
			return "", false, nil
		case item.form != blockMap && item.form != flowMap:
			return itemName(number, ""), true, errNotObject
		}
		if bad, sure, err := t.wellFormed(item); err != nil || !sure {
			return itemName(number, bad), sure, err
		}
	}
	return "", true, nil
}

// itemName names an item of a list, and what is in it: item 3, item 1.
func itemName(number int, inner string) string {
	if inner != "" {
		inner = ", " + inner
	}
	return fmt.Sprintf("item %d%s", number, inner)
}

var (
	errNoKind    = errors.New("no kind")
	errBadKind   = errors.New("no kind, for its value is not a string (of duplicate keys the last counts; y, on and 1 need quotes)")
	errNotObject = errors.New("not an object")
)

// judgeJSON adds documents of concatenated JSON that are not ordinary YAML.
func (p *parser) judgeJSON(d Document) error {
	values := json.NewDecoder(bytes.NewReader(d.Raw))
	text, from := d.Raw, 0
	for {
		var value json.RawMessage
		if err := values.Decode(&value); err != nil && d.at == p.start {
			return p.judgeSlowly(d)
		} else if err != nil || value[0] != '{' {
			return p.trailing(&d, 0)
		}
		rest := bytes.TrimLeft(text[values.InputOffset():], " \t\r\n")
		end := len(text) - len(rest)
		d.Raw, d.json = text[from:end:end], !p.stream.mixed
		if len(rest) > 0 && rest[0] == '#' {
			d.Raw, d.json, rest = text[from:], false, nil
			p.stream.mixed = true
		}
		if err := p.judgeSlowly(d); err != nil || len(rest) == 0 {
			return err
		}
		p.next(&d, text[from:])
		from = len(text) - len(rest)
	}
}

// judgeSlowly adds a document by decoding it.
func (p *parser) judgeSlowly(d Document) error {
	d.Number = len(p.stream.Documents) + 1
	if !d.json {
		null, err := d.readable()
		if err != nil || null {
			return err
		}
	}
	root, err := d.object()
	if err != nil {
		return err
	}
	if root == nil {
		return p.object(&d, "", errNotObject)
	}
	if where, err := wellFormed(root); err != nil {
		return p.object(&d, where, err)
	}
	p.add(d)
	return nil
}

// excerpt quotes the first line of a text with content.
func excerpt(text []byte) string {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			continue
		}
		const most = 60
		if len(line) > most {
			return fmt.Sprintf("%q…", strings.ToValidUTF8(string(line[:most]), ""))
		}
		return fmt.Sprintf("%q", line)
	}
	return `""`
}
