package render

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
)

// Open finds the repository that dir (a directory or a manifest file) lies in and gives its files, confined to the root
// (os.Root), and the slash path of dir below it. The root stays open for the rest of the process. See Locate for
// sourcePath.
func Open(dir, sourcePath string) (repo fs.FS, sub string, err error) {
	root, sub, err := Locate(dir, sourcePath)
	if err != nil {
		return nil, "", err
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, "", fmt.Errorf("open the repository root: %w", err)
	}
	return &checkout{FS: r.FS(), root: r}, sub, nil
}

// checkout is the working copy. os.Root opens every directory on the way to a file again for every file; here the
// directory that was used last stays open, which makes reading a chart of 70 files three times as fast. Both are os.Root,
// so neither leaves the repository.
type checkout struct {
	fs.FS
	root *os.Root

	using sync.Mutex
	dir   string
	last  *os.Root
}

// near gives name by its directory, if that can be opened. The caller holds the lock, and asks the root itself where
// this fails: for the error, and for a symlink that leads out of the directory.
func (c *checkout) near(name string) (dir *os.Root, base string) {
	if !fs.ValidPath(name) || !strings.Contains(name, "/") {
		return c.root, name
	}
	parent, base := path.Split(name)
	if parent != c.dir || c.last == nil {
		dir, err := c.root.OpenRoot(parent)
		if err != nil {
			return c.root, name
		}
		if c.last != nil {
			c.last.Close()
		}
		c.dir, c.last = parent, dir
	}
	return c.last, base
}

// ReadFile implements fs.ReadFileFS.
func (c *checkout) ReadFile(name string) ([]byte, error) {
	c.using.Lock()
	defer c.using.Unlock()
	if dir, base := c.near(name); dir != c.root {
		if data, err := dir.ReadFile(base); err == nil {
			return data, nil
		}
	}
	return fs.ReadFile(c.FS, name)
}

// Lstat implements fs.ReadLinkFS.
func (c *checkout) Lstat(name string) (fs.FileInfo, error) {
	c.using.Lock()
	defer c.using.Unlock()
	if dir, base := c.near(name); dir != c.root {
		if info, err := dir.Lstat(base); err == nil {
			return info, nil
		}
	}
	return fs.Lstat(c.FS, name)
}

// ReadLink implements fs.ReadLinkFS.
func (c *checkout) ReadLink(name string) (string, error) { return fs.ReadLink(c.FS, name) }

// ReadDir implements fs.ReadDirFS.
func (c *checkout) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(c.FS, name) }

// Stat implements fs.StatFS.
func (c *checkout) Stat(name string) (fs.FileInfo, error) { return fs.Stat(c.FS, name) }

// Locate finds the root of the repository that dir lies in, and the slash path of dir below it:
//
//   - sourcePath, the Application's spec.source.path, is where dir lies by definition, so where dir ends in it the rest
//     is the root. It goes first: in Argo CD it is exactly the copy that the plugin was given, also inside a submodule,
//     and no .git that somebody left above the copy can widen it;
//   - else the nearest directory from dir upwards that has a .git;
//   - else, with a sourcePath that does not fit, dir itself;
//   - else the current directory where dir lies in it;
//   - else the directory that dir is in, so that an overlay beside its base renders for a person. Argo CD runs the plugin in
//     dir, so there it is never wider than dir.
func Locate(dir, sourcePath string) (root, sub string, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", "", fmt.Errorf("find the repository root: %w", err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", "", err
	}
	own := abs
	if !info.IsDir() {
		own = filepath.Dir(abs)
	}
	root = findRoot(abs, own, sourcePath)
	sub, err = filepath.Rel(root, abs)
	if err != nil {
		return "", "", fmt.Errorf("find the repository root: %w", err)
	}
	return root, filepath.ToSlash(sub), nil
}

func findRoot(abs, own, sourcePath string) string {
	if sourcePath != "" {
		tail := filepath.Clean(filepath.FromSlash(strings.TrimLeft(sourcePath, "/")))
		if tail == "." {
			return own
		}
		if root, ok := strings.CutSuffix(abs, string(filepath.Separator)+tail); ok {
			if root == "" {
				root = string(filepath.Separator)
			}
			return root
		}
	}
	for dir := own; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if sourcePath != "" {
		return own
	}
	if cwd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(cwd, own); err == nil && filepath.IsLocal(rel) {
			return cwd
		}
	}
	return filepath.Dir(own)
}
