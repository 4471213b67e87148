package applications

import (
	"errors"
	"path"
	"strings"
)

// pathspec is what git ls-files selects files by (gitglossary, "pathspec"), which is how Argo CD finds the files of a git generator as long
// as its new globbing is not switched on: a file, or all in a folder, or a pattern in which * and ? match a slash too.
type pathspec struct {
	text string
	wild bool
}

func newPathspec(text string) (pathspec, error) {
	if strings.HasPrefix(text, ":") {
		return pathspec{}, errors.New("pathspec magic, which is not read here: name files by a pattern without it")
	}
	folder := strings.HasSuffix(text, "/")
	text = path.Clean(text)
	if text == ".." || strings.HasPrefix(text, "../") || path.IsAbs(text) {
		return pathspec{}, errors.New("it is outside of the repository")
	}
	if text == "." {
		return pathspec{}, nil
	}
	if folder {
		text += "/"
	}
	return pathspec{text, strings.ContainsAny(text, `*?[\`)}, nil
}

func (s pathspec) matches(name string) bool {
	if rest, ok := strings.CutPrefix(name, s.text); ok && (s.text == "" || rest == "" || rest[0] == '/' || strings.HasSuffix(s.text, "/")) {
		return true
	}
	return s.wild && wildmatch(s.text, name)
}

// wildmatch is git's wildmatch.c without WM_PATHNAME. As every * may match anything, only the last one that was passed has to be taken back.
func wildmatch(pattern, name string) bool {
	p, n := 0, 0
	starP, starN := -1, 0
	for n < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			p++
			starP, starN = p, n
			continue
		}
		if next, ok := matchOne(pattern, p, name[n]); ok {
			p, n = next, n+1
			continue
		}
		if starP < 0 {
			return false
		}
		starN++
		p, n = starP, starN
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// matchOne matches one byte with what is at p of the pattern, and gives where the next begins.
func matchOne(pattern string, p int, c byte) (next int, ok bool) {
	if p >= len(pattern) {
		return p, false
	}
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '\\':
		return p + 2, p+1 < len(pattern) && pattern[p+1] == c
	case '[':
		return matchSet(pattern, p+1, c)
	}
	return p + 1, pattern[p] == c
}

// matchSet matches what is in brackets. One that does not end matches nothing.
func matchSet(pattern string, p int, c byte) (next int, ok bool) {
	negated := p < len(pattern) && (pattern[p] == '!' || pattern[p] == '^')
	if negated {
		p++
	}
	in := false
	for first := true; ; first = false {
		if p >= len(pattern) {
			return p, false
		}
		if pattern[p] == ']' && !first {
			return p + 1, in != negated
		}
		if class, rest, ok := strings.Cut(pattern[min(p+2, len(pattern)):], ":]"); ok && strings.HasPrefix(pattern[p:], "[:") && !strings.Contains(class, "]") {
			in = in || inClass(class, c)
			p = len(pattern) - len(rest)
			continue
		}
		low, at := setByte(pattern, p)
		high := low
		if at+1 < len(pattern) && pattern[at] == '-' && pattern[at+1] != ']' {
			high, at = setByte(pattern, at+1)
		}
		in = in || low <= c && c <= high
		p = at
	}
}

func setByte(pattern string, p int) (c byte, next int) {
	if pattern[p] == '\\' && p+1 < len(pattern) {
		p++
	}
	return pattern[p], p + 1
}

func inClass(class string, c byte) bool {
	lower, upper, digit := 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9'
	switch class {
	case "alnum":
		return lower || upper || digit
	case "alpha":
		return lower || upper
	case "blank":
		return c == ' ' || c == '\t'
	case "cntrl":
		return c < ' ' || c == 0x7f
	case "digit":
		return digit
	case "graph":
		return '!' <= c && c <= '~'
	case "lower":
		return lower
	case "print":
		return ' ' <= c && c <= '~'
	case "punct":
		return '!' <= c && c <= '~' && !lower && !upper && !digit
	case "space":
		return c == ' ' || '\t' <= c && c <= '\r'
	case "upper":
		return upper
	case "xdigit":
		return digit || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
	}
	return false
}
