package git

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Kind is what an entry of a tree is.
type Kind uint8

// Kinds.
const (
	File Kind = iota
	Executable
	Folder
	Link
	Submodule
)

// Entry is one name in a tree. ID is that of its content.
type Entry struct {
	Name string
	Kind Kind
	ID   string
}

// Entries gives what is directly in a tree, in the order of names (io/fs's, which is not git's). They must not be changed.
func (r *Repository) Entries(tree string) ([]Entry, error) {
	if known, ok := r.trees.Load(tree); ok {
		return known.([]Entry), nil
	}
	kind, data, err := r.reader.object(tree)
	if err != nil {
		return nil, err
	}
	if kind != "tree" {
		return nil, fmt.Errorf("%s is a %s, not a tree", tree, kind)
	}
	entries, err := parse(data, len(tree)/2)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", tree, err)
	}
	r.trees.Store(tree, entries)
	return entries, nil
}

// parse reads a tree object: mode, space, name, NUL, and the id in size bytes, again and again.
func parse(data []byte, size int) ([]Entry, error) {
	var entries []Entry
	for len(data) > 0 {
		head, rest, ok := bytes.Cut(data, []byte{0})
		mode, name, okName := bytes.Cut(head, []byte(" "))
		if !ok || !okName || len(rest) < size {
			return nil, errors.New("broken tree object")
		}
		e := Entry{Name: string(name), ID: hex.EncodeToString(rest[:size])}
		switch string(mode) {
		case "40000", "040000":
			e.Kind = Folder
		case "100755":
			e.Kind = Executable
		case "100644", "100664":
		case "120000":
			e.Kind = Link
		case "160000":
			e.Kind = Submodule
		default:
			return nil, fmt.Errorf("broken tree object: mode %q", mode)
		}
		// A name with a slash, or one that means another folder, cannot come from git itself.
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.Contains(e.Name, "/") {
			return nil, fmt.Errorf("broken tree object: a file named %q", e.Name)
		}
		entries = append(entries, e)
		data = rest[size:]
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

// Tree is the fs.FS of one tree. It follows symlinks inside the tree and never leaves it.
type Tree struct {
	*Repository
	ID string
}

// Tree gives the files of a tree by its id.
func (r *Repository) Tree(id string) *Tree { return &Tree{r, id} }

// Reasons why a file cannot be read.
var (
	ErrSubmodule = errors.New("a submodule, whose content is not part of the commit: copy what is rendered into the repository")
	ErrLFS       = errors.New("a Git LFS pointer, whose content is not here: git lfs fetch it, or keep manifests out of LFS")
	ErrOutside   = errors.New("leaves the repository root")
)

// Find gives the entry at a slash path without following any symlink. The error is fs.ErrNotExist where there is none.
func (t *Tree) Find(name string) (Entry, error) {
	at := Entry{Name: ".", Kind: Folder, ID: t.ID}
	if name == "." {
		return at, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		if at.Kind == Submodule {
			return Entry{}, fmt.Errorf("%s is %w", at.Name, ErrSubmodule)
		}
		if at.Kind != Folder {
			return Entry{}, fs.ErrNotExist
		}
		entries, err := t.Entries(at.ID)
		if err != nil {
			return Entry{}, err
		}
		i, ok := slices.BinarySearchFunc(entries, part, func(e Entry, name string) int { return strings.Compare(e.Name, name) })
		if !ok {
			return Entry{}, fs.ErrNotExist
		}
		at = entries[i]
	}
	return at, nil
}

// maxLinks is how many symlinks one path may pass, as on Linux (path_resolution(7)).
const maxLinks = 40

// Resolve follows all symlinks on the way to name. passed are the paths of those links.
func (t *Tree) Resolve(name string) (real string, e Entry, passed []string, err error) {
	done, todo := ".", strings.Split(name, "/")
	e = Entry{Name: ".", Kind: Folder, ID: t.ID}
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if done == "." {
				return "", Entry{}, passed, ErrOutside
			}
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		if e, err = t.Find(next); err != nil {
			return next, Entry{}, passed, err
		}
		if e.Kind != Link {
			done = next
			continue
		}
		if passed = append(passed, next); len(passed) > maxLinks {
			return "", Entry{}, passed, fmt.Errorf("symlink %s: more than %d links", next, maxLinks)
		}
		target, err := t.Blob(e.ID)
		if err != nil {
			return "", Entry{}, passed, err
		}
		if path.IsAbs(string(target)) {
			return "", Entry{}, passed, fmt.Errorf("symlink %s -> %s %w", next, target, ErrOutside)
		}
		todo = append(strings.Split(string(target), "/"), todo...)
	}
	if done == "." {
		return ".", Entry{Name: ".", Kind: Folder, ID: t.ID}, passed, nil
	}
	e, err = t.Find(done)
	return done, e, passed, err
}

func (t *Tree) at(op, name string) (Entry, error) {
	if !fs.ValidPath(name) {
		return Entry{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	_, e, _, err := t.Resolve(name)
	if err != nil {
		return Entry{}, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return e, nil
}

// Lstat implements fs.ReadLinkFS.
func (t *Tree) Lstat(name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: fs.ErrInvalid}
	}
	e, err := t.Find(name)
	if errors.Is(err, fs.ErrNotExist) {
		// A folder on the way may be a symlink.
		var dir string
		if dir, _, _, err = t.Resolve(path.Dir(name)); err == nil {
			e, err = t.Find(path.Join(dir, path.Base(name)))
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	return info{t, e}, nil
}

// ReadLink implements fs.ReadLinkFS.
func (t *Tree) ReadLink(name string) (string, error) {
	i, err := t.Lstat(name)
	if err != nil {
		return "", err
	}
	e := i.(info).Entry
	if e.Kind != Link {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	target, err := t.Blob(e.ID)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(target), nil
}

// Stat implements fs.StatFS.
func (t *Tree) Stat(name string) (fs.FileInfo, error) {
	e, err := t.at("stat", name)
	if err != nil {
		return nil, err
	}
	e.Name = path.Base(name)
	return info{t, e}, nil
}

// ReadFile implements fs.ReadFileFS. A pointer of Git LFS is read as what it points to, if that is in the clone.
func (t *Tree) ReadFile(name string) ([]byte, error) {
	e, err := t.at("open", name)
	if err != nil {
		return nil, err
	}
	var data []byte
	switch e.Kind {
	case Submodule:
		err = ErrSubmodule
	case Folder:
		err = errors.New("is a directory")
	default:
		if data, err = t.Blob(e.ID); err == nil && IsLFS(data) {
			data, err = t.largeFile(data)
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return slices.Clone(data), nil
}

// lfsVersion begins every pointer (git-lfs docs/spec.md).
const lfsVersion = "version https://git-lfs.github.com/spec/v1\n"

// IsLFS reports whether a file is only a pointer of Git LFS.
func IsLFS(data []byte) bool {
	return len(data) < 1024 && bytes.HasPrefix(data, []byte(lfsVersion))
}

func (t *Tree) largeFile(pointer []byte) ([]byte, error) {
	for line := range strings.Lines(string(pointer)) {
		oid, ok := strings.CutPrefix(strings.TrimSpace(line), "oid sha256:")
		if _, err := hex.DecodeString(oid); ok && err == nil && len(oid) == 64 {
			data, err := os.ReadFile(filepath.Join(t.common, "lfs", "objects", oid[:2], oid[2:4], oid))
			if err == nil {
				return data, nil
			}
		}
	}
	return nil, ErrLFS
}

// ReadDir implements fs.ReadDirFS.
func (t *Tree) ReadDir(name string) ([]fs.DirEntry, error) {
	e, err := t.at("open", name)
	if err != nil {
		return nil, err
	}
	switch e.Kind {
	case Submodule:
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: ErrSubmodule}
	case Folder:
	default:
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a directory")}
	}
	entries, err := t.Entries(e.ID)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	list := make([]fs.DirEntry, len(entries))
	for i, e := range entries {
		list[i] = info{t, e}
	}
	return list, nil
}

// Open implements fs.FS.
func (t *Tree) Open(name string) (fs.File, error) {
	i, err := t.Stat(name)
	if err != nil {
		return nil, err
	}
	f := &file{info: i}
	if i.IsDir() {
		f.entries, err = t.ReadDir(name)
		return f, err
	}
	data, err := t.ReadFile(name)
	f.data = bytes.NewReader(data)
	return f, err
}

// file is an open file or folder; data is nil for a folder.
type file struct {
	info    fs.FileInfo
	data    *bytes.Reader
	entries []fs.DirEntry
}

func (f *file) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *file) Close() error               { return nil }

func (f *file) Read(p []byte) (int, error) {
	if f.data == nil {
		return 0, &fs.PathError{Op: "read", Path: f.info.Name(), Err: errors.New("is a directory")}
	}
	return f.data.Read(p)
}

func (f *file) ReadDir(n int) ([]fs.DirEntry, error) {
	if f.data != nil {
		return nil, &fs.PathError{Op: "readdir", Path: f.info.Name(), Err: errors.New("not a directory")}
	}
	if n > 0 && len(f.entries) == 0 {
		return nil, io.EOF
	}
	if n <= 0 || n > len(f.entries) {
		n = len(f.entries)
	}
	list := f.entries[:n:n]
	f.entries = f.entries[n:]
	return list, nil
}

// info is the fs.FileInfo and fs.DirEntry of an entry. A tree records no times.
type info struct {
	tree *Tree
	Entry
}

func (i info) Name() string               { return i.Entry.Name }
func (i info) IsDir() bool                { return i.Mode().IsDir() }
func (i info) Type() fs.FileMode          { return i.Mode().Type() }
func (i info) Info() (fs.FileInfo, error) { return i, nil }
func (i info) ModTime() time.Time         { return time.Time{} }
func (i info) Sys() any                   { return nil }

// Size is 0 for a file that is missing; reading it gives the error.
func (i info) Size() int64 {
	if i.Kind != File && i.Kind != Executable {
		return 0
	}
	data, _ := i.tree.Blob(i.ID)
	return int64(len(data))
}

// Mode shows a submodule as a folder, as it is in a work tree.
func (i info) Mode() fs.FileMode {
	switch i.Kind {
	case Folder, Submodule:
		return fs.ModeDir | 0o755
	case Link:
		return fs.ModeSymlink | 0o777
	case Executable:
		return 0o755
	}
	return 0o644
}

var _ interface {
	fs.ReadFileFS
	fs.ReadDirFS
	fs.StatFS
	fs.ReadLinkFS
} = (*Tree)(nil)
