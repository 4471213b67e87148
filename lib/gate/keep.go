package gate

import (
	"slices"
	"strings"
)

// Lines that are replaced take an old grant away with the new one. The ways below let both stay. Each is a guess about the text of which it
// is tried whether it grants everything and takes nothing away, so none has to be right for every format.

// lineText is a file at both sides, by lines.
type lineText struct{ base, head []string }

// way gives what to do in place of a block so that what it replaces stays; ok is false where it does not apply.
type way func(t lineText, b block) (instead block, ok bool)

// deepest is how many enclosing entries are tried: a grant that is an entry itself may have lists of its own.
const deepest = 3

func ways() []way {
	all := []way{keepLines, keepLinesWithComma}
	for level := range deepest {
		all = append(all,
			func(t lineText, b block) (block, bool) { return keepBraces(t, b, level) },
			func(t lineText, b block) (block, bool) { return keepItem(t, b, level) })
	}
	return all
}

// keepLines has the new lines after the old ones: each is an entry of its own.
func keepLines(t lineText, b block) (block, bool) {
	return inserted(b, b.at+b.old, b.new), true
}

// keepLinesWithComma is for the last entry of a JSON list or a YAML flow sequence.
func keepLinesWithComma(t lineText, b block) (block, bool) {
	last := t.base[b.at+b.old-1]
	text := strings.TrimRight(last, " \r\n")
	if text == "" || strings.ContainsAny(text[len(text)-1:], ",[{") {
		return b, false
	}
	said := b.move()
	b.said = &said
	b.at, b.old, b.new = b.at+b.old-1, 1, slices.Concat([]string{text + "," + last[len(text):]}, b.new)
	return b, true
}

// keepBraces repeats the entry in braces that the change is in, level more of them around it, after the old one.
func keepBraces(t lineText, b block, level int) (block, bool) {
	old, new := strings.Join(t.base[b.at:b.at+b.old], ""), strings.Join(b.new, "")
	same := commonPrefix(old, new)
	tail := commonPrefix(reversed(old[same:]), reversed(new[same:]))
	before, after := len(strings.Join(t.base[:b.at], "")), len(strings.Join(t.head[:b.from-1], ""))
	base, head := strings.Join(t.base, ""), strings.Join(t.head, "")
	from, to, ok := inBraces(base, before+same, before+len(old)-tail, level)
	headFrom, headTo, okHead := inBraces(head, after+same, after+len(new)-tail, level)
	if !ok || !okHead {
		return b, false
	}
	between := ", "
	if line := base[strings.LastIndex(base[:from], "\n")+1 : from]; strings.TrimSpace(line) == "" {
		between = ",\n" + line
		if strings.Contains(base[from:], "\r\n") {
			between = ",\r\n" + line
		}
	}
	// The lines that the old entry ends on, with the new one after it.
	first, last := strings.Count(base[:to], "\n"), to-strings.LastIndex(base[:to], "\n")-1
	line := t.base[first]
	said := b.move()
	b.said = &said
	b.at, b.old = first, 1
	b.new = strings.SplitAfter(line[:last]+between+head[headFrom:headTo]+line[last:], "\n")
	if b.new[len(b.new)-1] == "" {
		b.new = b.new[:len(b.new)-1]
	}
	return b, true
}

// inBraces gives the braces around a part of a text. Quotes are not looked at.
func inBraces(text string, from, to, level int) (start, end int, ok bool) {
	depth := level
	for start = from - 1; start >= 0; start-- {
		if text[start] == '}' {
			depth++
		} else if text[start] == '{' {
			if depth == 0 {
				break
			}
			depth--
		}
	}
	depth = level
	for end = to; end < len(text); end++ {
		if text[end] == '{' {
			depth++
		} else if text[end] == '}' {
			if depth == 0 {
				break
			}
			depth--
		}
	}
	return start, end + 1, start >= 0 && end < len(text)
}

// keepItem repeats the item of a YAML block sequence that the change is in, level more of them around it, after the old one.
func keepItem(t lineText, b block, level int) (block, bool) {
	from, to, ok := inItem(t.base, b.at, b.at+b.old, level)
	headFrom, headTo, okHead := inItem(t.head, b.from-1, b.from-1+len(b.new), level)
	if !ok || !okHead || from == to {
		return b, false
	}
	b.from = headFrom + 1
	return inserted(b, to, t.head[headFrom:headTo]), true
}

// inItem gives the lines of the list item around some lines.
func inItem(lines []string, from, to, level int) (start, end int, ok bool) {
	for start = from; start >= 0 && start < len(lines); start-- {
		depth, item := dash(lines[start])
		if !item || start < from && depth >= indent(lines[from:max(to, from+1)]) {
			continue
		}
		if level--; level >= 0 {
			from, to = start, max(to, start+1)
			continue
		}
		for end = max(to, start+1); end < len(lines); end++ {
			if d := indent(lines[end : end+1]); d <= depth {
				break
			}
		}
		for end > start+1 && strings.TrimSpace(lines[end-1]) == "" {
			end--
		}
		return start, end, true
	}
	return 0, 0, false
}

// dash gives how deep a line is that begins an item.
func dash(line string) (depth int, item bool) {
	text := strings.TrimLeft(line, " ")
	return len(line) - len(text), strings.HasPrefix(text, "- ") || strings.TrimRight(text, "\r\n") == "-"
}

const empty = 1 << 30

// indent is the least depth of lines that are not empty.
func indent(lines []string) int {
	least := empty
	for _, line := range lines {
		if text := strings.TrimLeft(line, " "); strings.TrimSpace(text) != "" {
			least = min(least, len(line)-len(text))
		}
	}
	return least
}

// inserted is a block that only adds lines.
func inserted(b block, at int, lines []string) block {
	b.at, b.old, b.new = at, 0, lines
	return b
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}
