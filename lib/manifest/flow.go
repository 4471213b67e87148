package manifest

import "strings"

// gap passes over white space and comments inside or after a flow collection.
func (t *tree) gap(i int) (int, bool) {
	text := t.text
	for ; i < len(text); i++ {
		switch text[i] {
		case ' ', '\r':
		case '\t':
			// At the start of a line, a tab is an error where it is no deeper than the block collection around.
			if t.level == 0 || t.inBlock {
				return i, false
			}
		case '\n':
			if t.marker(i + 1) {
				return i, false
			}
		case '#':
			if c := text[i-1]; c != ' ' && c != '\n' {
				return i, false
			}
			t.json = false
			i = t.eol(i) - 1
		default:
			return i, true
		}
	}
	return i, true
}

// flow parses the flow collection that begins at pos.
func (t *tree) flow(d depth) (n node, ok bool) {
	if !t.deeper() {
		return n, false
	}
	n = node{form: flowSeq, start: int32(t.pos)}
	end, keep := byte(']'), d == listed || d == wholly
	if t.text[t.pos] == '{' {
		n.form, end, keep = flowMap, '}', d == object || d == wholly
	}
	var last int32
	t.pos++
	for first := true; ; first = false {
		if t.pos, ok = t.gap(t.pos); !ok || t.pos == len(t.text) {
			return n, false
		}
		if t.text[t.pos] == end {
			t.json = t.json && first
			break
		}
		sub := d.item()
		if n.form == flowMap {
			key, ok := t.flowKey()
			if !ok {
				return n, false
			}
			name, _ := t.key(&key)
			sub = d.value(name)
			if keep {
				t.add(&n, &last, key)
			}
			if t.pos, ok = t.gap(t.pos); !ok || t.pos == len(t.text) {
				return n, false
			}
		}
		value := node{start: int32(t.ended), end: int32(t.ended)}
		if c := t.text[t.pos]; n.form == flowMap && (c == ',' || c == '}') {
			t.json = false
		} else if value, ok = t.flowNode(sub); !ok {
			return n, false
		}
		if keep {
			t.add(&n, &last, value)
		}
		if t.pos, ok = t.gap(t.pos); !ok || t.pos == len(t.text) {
			return n, false
		}
		if t.text[t.pos] == end {
			break
		}
		if t.text[t.pos] != ',' {
			return n, false
		}
		t.pos++
	}
	t.pos++
	t.level--
	t.ended = t.pos
	n.end = int32(t.pos)
	return n, true
}

// flowKey parses a key of a flow mapping and the colon after it.
func (t *tree) flowKey() (n node, ok bool) {
	n = node{form: plain, start: int32(t.pos)}
	switch t.text[t.pos] {
	case '"', '\'':
		if n.form = double; t.text[t.pos] == '\'' {
			n.form, t.json = single, false
		}
		lines, ok := t.quoted()
		if !ok || lines {
			return n, false
		}
		n.end = int32(t.pos)
		t.pos = t.spaces(t.pos)
		if t.pos == len(t.text) || t.text[t.pos] != ':' {
			return n, false
		}
	default:
		t.json = false
		colon, ok := t.plain(true)
		if !ok || !colon {
			return n, false
		}
		n.end = int32(t.ended)
	}
	t.pos++
	t.ended = t.pos
	return n, n.end-n.start <= maxKey
}

// flowNode parses a node inside a flow collection.
func (t *tree) flowNode(d depth) (n node, ok bool) {
	if t.pos == len(t.text) {
		return n, false
	}
	n = node{form: plain, start: int32(t.pos)}
	switch c := t.text[t.pos]; c {
	case '{', '[':
		return t.flow(d)
	case '"', '\'':
		n.form = double
		if c == '\'' {
			n.form, t.json = single, false
		}
		if _, ok := t.quoted(); !ok {
			return n, false
		}
	case '&', '!':
		t.json = false
		if !t.properties() {
			return n, false
		}
		if t.pos == len(t.text) || strings.IndexByte("*,]}\n\r#", t.text[t.pos]) >= 0 {
			return n, false
		}
		n, ok = t.flowNode(d)
		n.marked = true
		return n, ok
	case '*':
		t.json = false
		i := t.name(t.pos + 1)
		if i == t.pos+1 || !t.blank(i) && t.text[i] != ',' && t.text[i] != ']' && t.text[i] != '}' {
			return n, false
		}
		n.form, n.marked = alias, true
		t.pos, t.ended = i, i
	default:
		if colon, ok := t.plain(true); !ok || colon {
			return n, false
		}
		t.json = t.json && jsonLiteral(t.text[n.start:t.ended])
	}
	n.end = int32(t.ended)
	return n, true
}

// jsonLiteral reports whether s is a number, true, false or null in JSON.
func jsonLiteral(s []byte) bool {
	switch string(s) {
	case "true", "false", "null":
		return true
	}
	digits := func() bool {
		n := len(s)
		for len(s) > 0 && '0' <= s[0] && s[0] <= '9' {
			s = s[1:]
		}
		return len(s) < n
	}
	if len(s) > 0 && s[0] == '-' {
		s = s[1:]
	}
	if zero := len(s) > 0 && s[0] == '0'; zero {
		s = s[1:]
	} else if !digits() {
		return false
	}
	if len(s) > 0 && s[0] == '.' {
		if s = s[1:]; !digits() {
			return false
		}
	}
	if len(s) > 0 && (s[0] == 'e' || s[0] == 'E') {
		if s = s[1:]; len(s) > 0 && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if !digits() {
			return false
		}
	}
	return len(s) == 0
}
