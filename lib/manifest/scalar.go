package manifest

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	yamlv2 "go.yaml.in/yaml/v2"
)

// key gives a key's name, or nil if it is no string but a number, a boolean or null. It is not ok for a merge key, and where only
// the library can tell.
func (t *tree) key(n *node) (name []byte, ok bool) {
	name = t.text[n.start:n.end]
	if n.form == plain {
		if !numeric(name[0]) {
			if _, is := word(string(name)); is {
				return nil, true
			}
			return name, string(name) != "<<"
		}
		v, ok := resolve(string(name))
		if _, is := v.(string); !is {
			return nil, ok
		}
		return name, ok
	}
	if body := name[1 : len(name)-1]; !special(body, name[0]) {
		return body, true
	}
	s, ok := unquote(name)
	return []byte(s), ok
}

// numeric reports whether a scalar that begins so may be a number.
func numeric(c byte) bool { return '0' <= c && c <= '9' || c == '+' || c == '-' || c == '.' }

// decode gives the value of a node that was parsed wholly, as it is after Argo CD's two readings (see object). It is not ok
// where the tree does not tell.
func (t *tree) decode(n *node) (any, bool) {
	if n.marked {
		return nil, false
	}
	switch n.form {
	case absent:
		return nil, true
	case plain:
		s, _ := t.scalar(n)
		return resolve(s)
	case blockMap, flowMap:
		m := map[string]any{}
		for i := n.child; i != 0; {
			key := &t.nodes[i]
			value := &t.nodes[key.next]
			name, ok := t.key(key)
			if !ok || name == nil {
				return nil, false
			}
			if m[string(name)], ok = t.decode(value); !ok {
				return nil, false
			}
			i = value.next
		}
		return m, true
	case blockSeq, flowSeq:
		list := []any{}
		for i := n.child; i != 0; i = t.nodes[i].next {
			v, ok := t.decode(&t.nodes[i])
			if !ok {
				return nil, false
			}
			list = append(list, v)
		}
		return list, true
	}
	return t.scalar(n)
}

// scalar gives the text of a scalar node as libyaml reads it. It is not ok for collections and absent nodes, and for texts that
// Argo CD's second reading changes or refuses (see object): those with characters that are not printable in YAML.
func (t *tree) scalar(n *node) (string, bool) {
	text := t.text[n.start:n.end]
	switch n.form {
	case plain:
		for i := range text {
			if text[i] == '\n' {
				return fold(text), true
			}
		}
		return string(text), true
	case single, double:
		return unquote(text)
	case literal, folded:
		return blockText(t.text[n.start:n.col], n.form == literal), true
	}
	return "", false
}

// fold joins the lines of a plain scalar.
func fold(text []byte) string {
	out := make([]byte, 0, len(text))
	breaks := 0
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		line = trim(line)
		if len(line) == 0 {
			breaks++
			continue
		}
		out = appendBreaks(out, breaks)
		out = append(out, line...)
		breaks = 1
	}
	return string(out)
}

// appendBreaks appends what libyaml makes of so many line breaks between two texts.
func appendBreaks(out []byte, breaks int) []byte {
	if breaks == 1 {
		return append(out, ' ')
	}
	for ; breaks > 1; breaks-- {
		out = append(out, '\n')
	}
	return out
}

func trim(s []byte) []byte {
	for len(s) > 0 && isBlank(s[0]) {
		s = s[1:]
	}
	return trimRight(s)
}

func trimRight(s []byte) []byte {
	for len(s) > 0 && isBlank(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

// special reports whether the inside of quotes is not just its text.
func special(body []byte, quote byte) bool {
	for _, c := range body {
		if c == '\n' || c == '\\' && quote == '"' || c == quote {
			return true
		}
	}
	return false
}

// unquote reads a quoted scalar, quotes included, that the parser has accepted.
func unquote(text []byte) (string, bool) {
	quote, body := text[0], text[1:len(text)-1]
	if !special(body, quote) {
		return string(body), true
	}
	out := make([]byte, 0, len(body))
	for i := 0; i < len(body); {
		switch c := body[i]; {
		case c == '\'' && quote == '\'':
			out = append(out, c)
			i += 2
		case c == '\\' && quote == '"':
			size, _ := escape(body[i:])
			switch e := body[i+1]; e {
			case '\n', '\r':
				i += size
				breaks := 0
				i, breaks = breaksFrom(body, i)
				if breaks > 0 {
					out = appendBreaks(out, breaks+1)
				}
				continue
			case 'x', 'u', 'U':
				r, _ := hex(body[i+2 : i+size])
				if r >= 0x7f && !(r >= 0xa0 && r < 0xfeff || r > 0xfeff && r <= 0xfffd || r > 0xffff) {
					return "", false
				}
				out = utf8.AppendRune(out, r)
			case 'N':
				return "", false
			case 'L':
				out = append(out, "\u2028"...)
			case 'P':
				out = append(out, "\u2029"...)
			case '_':
				out = append(out, "\u00a0"...)
			default:
				out = append(out, escaped[e])
			}
			i += size
		case isBlank(c) || c == '\n':
			end, breaks := breaksFrom(body, i)
			if breaks == 0 {
				out = append(out, body[i:end]...)
			}
			out = appendBreaks(out, breaks)
			i = end
		default:
			out = append(out, c)
			i++
		}
	}
	return string(out), true
}

// breaksFrom gives the end of the white space at i and the number of line breaks in it.
func breaksFrom(s []byte, i int) (end, breaks int) {
	for ; i < len(s) && (isBlank(s[i]) || s[i] == '\n'); i++ {
		if s[i] == '\n' {
			breaks++
		}
	}
	return i, breaks
}

// escape gives the length of the escape sequence, of libyaml's, at the start of s.
func escape(s []byte) (size int, ok bool) {
	if len(s) < 2 {
		return 0, false
	}
	digits := 0
	switch s[1] {
	case '0', 'a', 'b', 't', '\t', 'n', 'v', 'f', 'r', 'e', ' ', '"', '\'', '\\', 'N', '_', 'L', 'P', '\n':
		return 2, true
	case '\r':
		return 3, len(s) > 2 && s[2] == '\n'
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	default:
		return 0, false
	}
	if len(s) < 2+digits {
		return 0, false
	}
	r, ok := hex(s[2 : 2+digits])
	return 2 + digits, ok && utf8.ValidRune(r)
}

func hex(s []byte) (r rune, ok bool) {
	for _, c := range s {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		if r > utf8.MaxRune {
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

var escaped = [256]byte{'0': 0, 'a': '\a', 'b': '\b', 't': '\t', '\t': '\t', 'n': '\n', 'v': '\v', 'f': '\f', 'r': '\r', 'e': 0x1b,
	' ': ' ', '"': '"', '\'': '\'', '\\': '\\'}

// blockText reads a block scalar that the parser has accepted, header and trailing blank lines included.
func blockText(text []byte, literal bool) string {
	keep, strip := false, false
	if len(text) > 1 {
		keep, strip = text[1] == '+', text[1] == '-'
	}
	nl := bytes.IndexByte(text, '\n')
	if nl < 0 {
		return ""
	}
	text = text[nl+1:]
	out := make([]byte, 0, len(text))
	indent, breaks := 0, 0
	started, wasBlank := false, false
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if len(line) > 0 && line[len(line)-1] == '\r' {
			line = line[:len(line)-1]
		}
		column := 0
		for column < len(line) && line[column] == ' ' {
			column++
		}
		if column == len(line) && (indent == 0 || column <= indent) {
			breaks++
			continue
		}
		if indent == 0 {
			indent = column
		}
		line = line[indent:]
		isBlank := line[0] == ' ' || line[0] == '\t'
		switch {
		case !started:
			for ; breaks > 0; breaks-- {
				out = append(out, '\n')
			}
		case literal || wasBlank || isBlank:
			for ; breaks > 0; breaks-- {
				out = append(out, '\n')
			}
		default:
			out = appendBreaks(out, breaks)
		}
		out = append(out, line...)
		started, wasBlank, breaks = true, isBlank, 1
	}
	switch {
	case strip:
	case keep:
		for ; breaks > 0; breaks-- {
			out = append(out, '\n')
		}
	case started:
		out = append(out, '\n')
	}
	return string(out)
}

// word gives the value of a plain scalar that is a boolean or null in YAML 1.1.
func word(s string) (value any, is bool) {
	if len(s) > 5 {
		return nil, false
	}
	switch s {
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		return true, true
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		return false, true
	case "~", "null", "Null", "NULL":
		return nil, true
	}
	return nil, false
}

// resolve gives the value of a plain scalar in YAML 1.1 as go.yaml.in/yaml/v2 reads it (resolve.go), as it is after Argo CD's
// two readings. It is not ok for what JSON cannot hold, or where only the library itself can tell.
func resolve(s string) (any, bool) {
	c := s[0]
	if !numeric(c) {
		if v, is := word(s); is {
			return v, true
		}
		return s, true
	}
	if len(s) < 18 && (c >= '1' && c <= '9' || len(s) == 1 && c == '0') {
		n := int64(0)
		for i := 0; ; i++ {
			if i == len(s) {
				return n, true
			}
			if s[i] < '0' || s[i] > '9' {
				break
			}
			n = n*10 + int64(s[i]-'0')
		}
	}
	// Neither a number nor a time has other characters than these.
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			if strings.IndexByte("+-._: abcdefinoptxzABCDEFINOPTXZ", s[i]) < 0 {
				return s, true
			}
		}
	}
	if len(s) > 200 {
		return nil, false
	}
	var list []any
	if err := yamlv2.Unmarshal([]byte("- "+s+"\n"), &list); err != nil || len(list) != 1 {
		return nil, false
	}
	switch v := list[0].(type) {
	case int:
		return int64(v), true
	case uint64:
		return float64(v), true
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, false
		}
		text, _ := json.Marshal(v)
		if i, err := strconv.ParseInt(string(text), 10, 64); err == nil {
			return i, true
		}
		return v, true
	case int64, string, bool, nil:
		return v, true
	}
	return nil, false
}
