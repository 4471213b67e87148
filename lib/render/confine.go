package render

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// ErrOutside says that a path, a symlink or a value file would leave the repository root. Absolute symlinks are outside
// too, wherever they point: the same tree rendered in another place would read another file.
var ErrOutside = errors.New("leaves the repository root")

// maxLinks is how many symlinks one path may pass, as on Linux (path_resolution(7)).
const maxLinks = 40

// resolve gives the path that name has after every symlink in it has been followed, all of them inside repo.
// The file system behind Open refuses to leave the root by itself; resolve says so in the same words for the working
// copy and for a commit, and tells kustomize where a file really lies.
func resolve(repo fs.FS, name string) (string, error) {
	done, todo, links, link := ".", strings.Split(name, "/"), 0, ""
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if done == "." && link != "" {
				return "", fmt.Errorf("%s %w", link, ErrOutside)
			}
			if done == "." {
				return "", ErrOutside
			}
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		info, err := fs.Lstat(repo, next)
		if err != nil {
			return "", &fs.PathError{Op: "open", Path: next, Err: cause(err)}
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if len(todo) > 0 && !info.IsDir() {
				return "", &fs.PathError{Op: "open", Path: next, Err: fs.ErrNotExist}
			}
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("symlink %s: more than %d links", next, maxLinks)
		}
		target, err := fs.ReadLink(repo, next)
		if err != nil {
			return "", err
		}
		link = fmt.Sprintf("symlink %s -> %s", next, target)
		if path.IsAbs(target) {
			return "", fmt.Errorf("%s %w", link, ErrOutside)
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return done, nil
}

// below joins a path that somebody wrote in dir, where a leading slash means the repository root as in Argo CD (v2.14
// util/io/path/resolved.go).
func below(dir, name string) (string, error) {
	if path.IsAbs(name) {
		dir, name = ".", strings.TrimLeft(name, "/")
	}
	p := path.Join(dir, name)
	if !fs.ValidPath(p) {
		return "", ErrOutside
	}
	return p, nil
}

func stat(repo fs.FS, name string) (fs.FileInfo, error) {
	real, err := resolve(repo, name)
	if err != nil {
		return nil, err
	}
	return fs.Stat(repo, real)
}

func readFile(repo fs.FS, name string) ([]byte, error) {
	real, err := resolve(repo, name)
	if err != nil {
		return nil, err
	}
	return fs.ReadFile(repo, real)
}
