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
	real, _, err := follow(repo, ".", name)
	return real, err
}

// follow resolves name below dir, which is resolved already, and gives what is there too.
func follow(repo fs.FS, dir, name string) (real string, info fs.FileInfo, err error) {
	done, todo, links, link := dir, strings.Split(name, "/"), 0, ""
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if done == "." && link != "" {
				return "", nil, fmt.Errorf("%s %w", link, ErrOutside)
			}
			if done == "." {
				return "", nil, ErrOutside
			}
			done, info = path.Dir(done), nil
			continue
		}
		next := path.Join(done, part)
		if info, err = fs.Lstat(repo, next); err != nil {
			return "", nil, &fs.PathError{Op: "open", Path: next, Err: cause(err)}
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if len(todo) > 0 && !info.IsDir() {
				return "", nil, &fs.PathError{Op: "open", Path: next, Err: fs.ErrNotExist}
			}
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", nil, fmt.Errorf("symlink %s: more than %d links", next, maxLinks)
		}
		target, err := fs.ReadLink(repo, next)
		if err != nil {
			return "", nil, err
		}
		link = fmt.Sprintf("symlink %s -> %s", next, target)
		if path.IsAbs(target) {
			return "", nil, fmt.Errorf("%s %w", link, ErrOutside)
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	if info == nil {
		info, err = fs.Lstat(repo, done)
	}
	return done, info, err
}

// below joins a path that somebody wrote in dir, where a leading slash means the repository root as in Argo CD (v2.14
// util/io/path/resolved.go). Whether the result is inside, resolve tells.
func below(dir, name string) string {
	if path.IsAbs(name) {
		return path.Join(".", strings.TrimLeft(name, "/"))
	}
	return path.Join(dir, name)
}

func stat(repo fs.FS, name string) (fs.FileInfo, error) {
	_, info, err := follow(repo, ".", name)
	return info, err
}

func readFile(repo fs.FS, name string) ([]byte, error) {
	real, err := resolve(repo, name)
	if err != nil {
		return nil, err
	}
	return fs.ReadFile(repo, real)
}
