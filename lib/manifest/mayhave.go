package manifest

import (
	"bytes"
	"strings"
)

// MayHave reports whether the document could contain the word as a key or in a scalar, in whatever spelling. False is a proof
// that nothing in Decode's result contains it; true is no more than a reason to look.
//
// A word that does not stand in the text can come out of it by an escape in double quotes (\x, \u, \U, or a line break after a
// backslash), or as base64 under a tag. An alias or a merge key only repeats what stands elsewhere, and every other way of
// folding lines puts white space between them. There is no proof for words that are not letters, digits and underscores, or
// that YAML itself writes for others (true for yes, numbers).
func (d *Document) MayHave(word string) bool {
	text := d.Raw
	if !plainWord(word) || contains(text, word) {
		return true
	}
	for i := 0; ; i++ {
		j := bytes.IndexByte(text[i:], '\\')
		if j < 0 {
			break
		}
		if i += j; escapes(text, i, word) {
			return true
		}
	}
	for i := 0; ; i++ {
		j := bytes.IndexByte(text[i:], '!')
		if j < 0 {
			return bytes.Contains(text, []byte("%TAG"))
		}
		if i += j; i+1 < len(text) && (text[i+1] == '!' || text[i+1] == '<') {
			return true
		}
	}
}

// plainWord reports whether a word comes out of a document only if it was written there: not what YAML makes of "no" as a key.
func plainWord(word string) bool {
	if strings.Contains("true false inf nan", word) || word[0] <= '9' {
		return false
	}
	for i := range len(word) {
		if !isWord(word[i]) {
			return false
		}
	}
	return true
}

// contains looks for the word by its capital letters, which are rare in manifests.
func contains(text []byte, word string) bool {
	pivot := 0
	for i := range len(word) {
		if 'A' <= word[i] && word[i] <= 'Z' {
			pivot = i
		}
	}
	for i := pivot; i < len(text); i++ {
		j := bytes.IndexByte(text[i:], word[pivot])
		if j < 0 {
			return false
		}
		i += j
		if start := i - pivot; start+len(word) <= len(text) && string(text[start:start+len(word)]) == word {
			return true
		}
	}
	return false
}

// escapes reports whether the backslash at i can begin an escape that is part of the word.
func escapes(text []byte, i int, word string) bool {
	rest := text[i+1:]
	if len(rest) == 0 {
		return false
	}
	digits := 0
	switch rest[0] {
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	case '\n', '\r', 0xc2, 0xe2: // a line break, or what may be one
		return joins(text[:i], rest, word)
	default:
		return false
	}
	if len(rest) < 1+digits {
		return false
	}
	r, ok := hex(rest[1 : 1+digits])
	return ok && r < 0x80 && bytes.IndexByte([]byte(word), byte(r)) >= 0
}

// joins reports whether a word can come from the end of one line and the start of the next that has content: before ends with
// a part of it, after goes on with the next letter, or with an escape.
func joins(before, after []byte, word string) bool {
	after = bytes.TrimLeft(after, " \t\r\n")
	if len(after) == 0 {
		return false
	}
	for k := 1; k < len(word); k++ {
		if (after[0] == word[k] || after[0] == '\\' || after[0] >= 0x80) && bytes.HasSuffix(before, []byte(word[:k])) {
			return true
		}
	}
	return false
}
