package git

import (
	"bytes"
	"crypto/sha1" // #nosec G505 -- git's own name for an object, no protection against anybody
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Overlay gives the id of a tree that is another one with some files changed or added: nil removes a file. It is known to this Repository
// only, and nothing is written anywhere; see With for a tree that the git command knows too.
func (r *Repository) Overlay(tree string, files map[string][]byte) (string, error) {
	below := map[string]map[string][]byte{}
	here := map[string][]byte{}
	for name, data := range files {
		if dir, rest, ok := strings.Cut(name, "/"); ok {
			if below[dir] == nil {
				below[dir] = map[string][]byte{}
			}
			below[dir][rest] = data
		} else {
			here[name] = data
		}
	}
	var entries []Entry
	if tree != "" {
		known, err := r.Entries(tree)
		if err != nil {
			return "", err
		}
		entries = slices.Clone(known)
	}
	size := max(len(tree), sha1.Size*2)
	set := func(e Entry, gone bool) {
		i := slices.IndexFunc(entries, func(o Entry) bool { return o.Name == e.Name })
		switch {
		case gone && i >= 0:
			entries = slices.Delete(entries, i, i+1)
		case gone:
		case i >= 0:
			if e.Kind == File && entries[i].Kind == Executable {
				e.Kind = Executable
			}
			entries[i] = e
		default:
			entries = append(entries, e)
		}
	}
	for name, data := range here {
		if data == nil {
			set(Entry{Name: name}, true)
			continue
		}
		id := r.made("blob", data, size)
		r.overlaid.Store(id, slices.Clone(data))
		set(Entry{Name: name, Kind: File, ID: id}, false)
	}
	for dir, files := range below {
		under := ""
		if i := slices.IndexFunc(entries, func(o Entry) bool { return o.Name == dir && o.Kind == Folder }); i >= 0 {
			under = entries[i].ID
		}
		id, err := r.Overlay(under, files)
		if err != nil {
			return "", err
		}
		left, err := r.Entries(id)
		if err != nil {
			return "", err
		}
		set(Entry{Name: dir, Kind: Folder, ID: id}, len(left) == 0)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	id := r.made("tree", encode(entries), size)
	r.trees.Store(id, entries)
	return id, nil
}

// Mount gives the id of a tree that is another one with one more folder, which has a single folder of that content in it. Like Overlay's, it is
// known to this Repository only.
func (r *Repository) Mount(tree, dir, name, folder string) (string, error) {
	known, err := r.Entries(tree)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(known, func(e Entry) bool { return e.Name == dir }) {
		return "", fmt.Errorf("%s: %w", dir, fs.ErrExist)
	}
	inner := []Entry{{Name: name, Kind: Folder, ID: folder}}
	id := r.made("tree", encode(inner), len(tree))
	r.trees.Store(id, inner)
	entries := append(slices.Clone(known), Entry{Name: dir, Kind: Folder, ID: id})
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	id = r.made("tree", encode(entries), len(tree))
	r.trees.Store(id, entries)
	return id, nil
}

// encode writes entries as a tree object, in git's order: folders sort as if they ended in a slash.
func encode(entries []Entry) []byte {
	key := func(e Entry) string {
		if e.Kind == Folder {
			return e.Name + "/"
		}
		return e.Name
	}
	modes := map[Kind]string{File: "100644", Executable: "100755", Folder: "40000", Link: "120000", Submodule: "160000"}
	var out bytes.Buffer
	for _, e := range slices.SortedFunc(slices.Values(entries), func(a, b Entry) int { return strings.Compare(key(a), key(b)) }) {
		id, _ := hex.DecodeString(e.ID)
		fmt.Fprintf(&out, "%s %s\x00%s", modes[e.Kind], e.Name, id)
	}
	return out.Bytes()
}

// made is git's id of an object, of as many digits as the repository's have.
func (r *Repository) made(kind string, data []byte, size int) string {
	text := append(fmt.Appendf(nil, "%s %d\x00", kind, len(data)), data...)
	if size > sha1.Size*2 {
		sum := sha256.Sum256(text)
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(text) // #nosec G401 -- as above
	return hex.EncodeToString(sum[:])
}
