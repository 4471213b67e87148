package render

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// entry is one line of a git tree.
type entry struct {
	name string
	mode filemode.FileMode
	id   plumbing.Hash
}

// parseTree reads a git tree object: mode, space, name, NUL, 20 bytes of id, and so on. The result is in the order of
// io/fs, which is not git's.
func parseTree(data []byte) ([]entry, error) {
	var entries []entry
	for len(data) > 0 {
		head, rest, ok := bytes.Cut(data, []byte{0})
		mode, name, okName := bytes.Cut(head, []byte(" "))
		if !ok || !okName || len(rest) < len(plumbing.ZeroHash) {
			return nil, errors.New("broken tree object")
		}
		m, err := filemode.New(string(mode))
		if err != nil {
			return nil, fmt.Errorf("broken tree object: %w", err)
		}
		// A name with a slash, or one that means another directory, cannot come from git itself.
		if s := string(name); s == "" || s == "." || s == ".." || strings.Contains(s, "/") {
			return nil, fmt.Errorf("broken tree object: a file named %q", s)
		}
		e := entry{name: string(name), mode: m}
		copy(e.id[:], rest)
		entries = append(entries, e)
		data = rest[len(e.id):]
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return entries, nil
}

// tree is the fs.FS of one commit. It follows symlinks inside the tree and refuses to leave it, as os.Root does.
type tree struct {
	*objects
	root plumbing.Hash

	known sync.Mutex
	trees map[plumbing.Hash][]entry
}

func (t *tree) entries(id plumbing.Hash) ([]entry, error) {
	t.known.Lock()
	defer t.known.Unlock()
	if e, ok := t.trees[id]; ok {
		return e, nil
	}
	data, err := t.read(plumbing.TreeObject, id)
	if err != nil {
		return nil, err
	}
	e, err := parseTree(data)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", id, err)
	}
	t.trees[id] = e
	return e, nil
}

var errSubmodule = errors.New("a submodule, whose content is not part of the commit: copy what is rendered into the repository")

// find gives the entry at name without following any symlink.
func (t *tree) find(name string) (entry, error) {
	at := entry{name: ".", mode: filemode.Dir, id: t.root}
	if name == "." {
		return at, nil
	}
	for _, part := range strings.Split(name, "/") {
		if at.mode == filemode.Submodule {
			return entry{}, fmt.Errorf("%s is %w", at.name, errSubmodule)
		}
		if at.mode != filemode.Dir {
			return entry{}, fs.ErrNotExist
		}
		entries, err := t.entries(at.id)
		if err != nil {
			return entry{}, err
		}
		i, ok := slices.BinarySearchFunc(entries, part, func(e entry, name string) int { return strings.Compare(e.name, name) })
		if !ok {
			return entry{}, fs.ErrNotExist
		}
		at = entries[i]
	}
	return at, nil
}

// at gives the entry at name with all symlinks resolved.
func (t *tree) at(op, name string) (entry, error) {
	if !fs.ValidPath(name) {
		return entry{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	e, err := t.find(name)
	if err != nil || e.mode == filemode.Symlink {
		real, errLink := resolve(t, name)
		if errLink != nil {
			return entry{}, &fs.PathError{Op: op, Path: name, Err: cause(errLink)}
		}
		e, err = t.find(real)
	}
	if err != nil {
		return entry{}, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return e, nil
}

// cause strips the path that an error already names, so that it is not said twice.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Lstat implements fs.ReadLinkFS.
func (t *tree) Lstat(name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: fs.ErrInvalid}
	}
	e, err := t.find(name)
	if errors.Is(err, fs.ErrNotExist) {
		// A directory on the way may be a symlink.
		var dir string
		if dir, err = resolve(t, path.Dir(name)); err == nil {
			e, err = t.find(path.Join(dir, path.Base(name)))
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: cause(err)}
	}
	return fileInfo{t, e}, nil
}

// ReadLink implements fs.ReadLinkFS.
func (t *tree) ReadLink(name string) (string, error) {
	info, err := t.Lstat(name)
	if err != nil {
		return "", err
	}
	e := info.(fileInfo).entry
	if e.mode != filemode.Symlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	target, err := t.read(plumbing.BlobObject, e.id)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(target), nil
}

// Stat implements fs.StatFS.
func (t *tree) Stat(name string) (fs.FileInfo, error) {
	e, err := t.at("stat", name)
	if err != nil {
		return nil, err
	}
	e.name = path.Base(name)
	return fileInfo{t, e}, nil
}

// ReadFile implements fs.ReadFileFS.
func (t *tree) ReadFile(name string) ([]byte, error) {
	e, err := t.at("open", name)
	if err != nil {
		return nil, err
	}
	switch e.mode {
	case filemode.Submodule:
		err = errSubmodule
	case filemode.Dir:
		err = errors.New("is a directory")
	default:
		var data []byte
		if data, err = t.read(plumbing.BlobObject, e.id); err == nil {
			return data, nil
		}
	}
	return nil, &fs.PathError{Op: "read", Path: name, Err: err}
}

// ReadDir implements fs.ReadDirFS.
func (t *tree) ReadDir(name string) ([]fs.DirEntry, error) {
	e, err := t.at("open", name)
	if err != nil {
		return nil, err
	}
	switch e.mode {
	case filemode.Submodule:
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errSubmodule}
	case filemode.Dir:
	default:
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a directory")}
	}
	entries, err := t.entries(e.id)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	list := make([]fs.DirEntry, len(entries))
	for i, e := range entries {
		list[i] = fileInfo{t, e}
	}
	return list, nil
}

// Open implements fs.FS. A file is read in full at once: git stores it compressed.
func (t *tree) Open(name string) (fs.File, error) {
	info, err := t.Stat(name)
	if err != nil {
		return nil, err
	}
	f := &file{info: info}
	if info.IsDir() {
		f.entries, err = t.ReadDir(name)
		return f, err
	}
	data, err := t.ReadFile(name)
	if err != nil {
		return nil, err
	}
	f.data = bytes.NewReader(data)
	return f, nil
}

// file is an open file or directory of a tree; data is nil for a directory.
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

// fileInfo is the fs.FileInfo and fs.DirEntry of an entry. A commit records no times.
type fileInfo struct {
	tree *tree
	entry
}

func (i fileInfo) Name() string               { return i.name }
func (i fileInfo) IsDir() bool                { return i.Mode().IsDir() }
func (i fileInfo) Type() fs.FileMode          { return i.Mode().Type() }
func (i fileInfo) Info() (fs.FileInfo, error) { return i, nil }
func (i fileInfo) ModTime() time.Time         { return time.Time{} }
func (i fileInfo) Sys() any                   { return nil }

// Size is looked up only when asked for, since it costs a read in the pack. It is 0 for a blob that is missing; reading
// the file gives the error.
func (i fileInfo) Size() int64 {
	if !i.mode.IsFile() {
		return 0
	}
	n, _ := i.tree.size(i.id)
	return n
}

// Mode shows a submodule as a directory, as it is in a working copy.
func (i fileInfo) Mode() fs.FileMode {
	switch i.mode {
	case filemode.Dir, filemode.Submodule:
		return fs.ModeDir | 0o755
	case filemode.Symlink:
		return fs.ModeSymlink | 0o777
	case filemode.Executable:
		return 0o755
	}
	return 0o644
}

var _ interface {
	fs.ReadFileFS
	fs.ReadDirFS
	fs.StatFS
	fs.ReadLinkFS
} = (*tree)(nil)
