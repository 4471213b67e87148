package render

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	return r.FS(), sub, nil
}

// Locate finds the root of the repository that dir lies in, and the slash path of dir below it:
//
//   - sourcePath, the Application's spec.source.path, is where dir lies by definition, so where dir ends in it the rest
//     is the root. It goes first: in Argo CD it is exactly the copy that the plugin was given, also inside a submodule,
//     and no .git that somebody left above the copy can widen it;
//   - else the nearest directory from dir upwards that has a .git;
//   - else, without a sourcePath, the current directory where dir lies in it;
//   - else dir itself.
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
	if cwd, err := os.Getwd(); err == nil && sourcePath == "" {
		if rel, err := filepath.Rel(cwd, own); err == nil && filepath.IsLocal(rel) {
			return cwd
		}
	}
	return own
}
