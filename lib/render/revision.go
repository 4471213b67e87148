package render

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// ErrNoRevision says that a commit, or something in its tree, is not in the repository at hand: the clone is shallow or
// partial, or history was rewritten.
var ErrNoRevision = errors.New("not in this repository")

// Revision gives the files of a commit without checking it out: the same view as Open gives of a working copy, but for
// submodules, whose content is not part of a commit, and for .git itself.
//
// gitDir is a .git directory, a .git file (worktree, submodule) or a bare repository; loose objects, packs and alternates
// are read. revision is a full commit id (40 hex digits) or the name of a branch, remote branch or tag. A commit that is
// not there is an ErrNoRevision; so is an object that is missing later, on reading.
//
// Nothing is read ahead: the cost is the index of each pack (about 32 bytes for every object in it) plus the trees on
// the way to a file plus the files asked for.
func Revision(gitDir, revision string) (fs.FS, error) {
	own, common, err := gitDirs(gitDir)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", gitDir, err)
	}
	shared := cache.NewObjectLRUDefault()
	objects := &objects{refs: []*filesystem.Storage{filesystem.NewStorage(osfs.New(own), shared)}}
	if own != common {
		objects.refs = append(objects.refs, filesystem.NewStorage(osfs.New(common), shared))
	}
	for _, dir := range objectDirs(filepath.Join(common, "objects"), 0) {
		objects.stores = append(objects.stores, filesystem.NewStorage(osfs.New(filepath.Dir(dir)), shared))
	}
	commit, err := objects.find(revision)
	if err != nil {
		return nil, missing(err, common, revision)
	}
	root, err := objects.treeOf(commit)
	if err != nil {
		return nil, missing(err, common, revision)
	}
	return &tree{objects: objects, root: root, trees: map[plumbing.Hash][]entry{}}, nil
}

// missing makes the error about a commit say why it may be missing and what brings it.
func missing(err error, common, revision string) error {
	if !errors.Is(err, ErrNoRevision) {
		return fmt.Errorf("revision %s: %w", revision, err)
	}
	if _, shallow := os.Stat(filepath.Join(common, "shallow")); shallow == nil {
		return fmt.Errorf("revision %s is %w, which is a shallow clone: clone it in full (git fetch --unshallow)", revision, err)
	}
	return fmt.Errorf("revision %s is %w: it was never fetched, or history was rewritten (git fetch origin %s brings it back where the server still has it)", revision, err, revision)
}

// gitDirs follows a .git file and gives the repository's own directory and the one that worktrees share
// (gitrepository-layout(5): gitdir, commondir).
func gitDirs(gitDir string) (own, common string, err error) {
	info, err := os.Stat(gitDir)
	if err != nil {
		return "", "", err
	}
	if !info.IsDir() {
		text, err := os.ReadFile(gitDir)
		if err != nil {
			return "", "", err
		}
		target, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: ")
		if !ok {
			return "", "", errors.New("neither a directory nor a gitdir file")
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(gitDir), target)
		}
		gitDir = target
	}
	common = gitDir
	if text, err := os.ReadFile(filepath.Join(gitDir, "commondir")); err == nil {
		common = strings.TrimSpace(string(text))
		if !filepath.IsAbs(common) {
			common = filepath.Join(gitDir, common)
		}
	}
	if _, err := os.Stat(filepath.Join(common, "objects")); err != nil {
		return "", "", fmt.Errorf("not a git repository: %w", err)
	}
	return gitDir, common, nil
}

// maxAlternates is how deep alternates of alternates are followed, as git does.
const maxAlternates = 5

// objectDirs lists an object directory and its alternates. go-git follows alternates too, but resolves relative ones
// against the wrong directory.
func objectDirs(dir string, depth int) []string {
	dirs := []string{dir}
	text, err := os.ReadFile(filepath.Join(dir, "info", "alternates"))
	if err != nil || depth == maxAlternates {
		return dirs
	}
	for _, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSuffix(line, "\r"); line == "" || line[0] == '#' {
			continue
		}
		if !filepath.IsAbs(line) {
			line = filepath.Join(dir, line)
		}
		for _, d := range objectDirs(line, depth+1) {
			if !slices.Contains(dirs, d) {
				dirs = append(dirs, d)
			}
		}
	}
	return dirs
}

// objects reads git objects. go-git's storage is not safe for concurrent use, an fs.FS is.
type objects struct {
	mu           sync.Mutex
	stores, refs []*filesystem.Storage
}

func (o *objects) read(kind plumbing.ObjectType, id plumbing.Hash) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.stores {
		obj, err := s.EncodedObject(kind, id)
		if errors.Is(err, plumbing.ErrObjectNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind, id, err)
		}
		r, err := obj.Reader()
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind, id, err)
		}
		defer r.Close()
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind, id, err)
		}
		return data, nil
	}
	return nil, fmt.Errorf("%s %s: %w", kind, id, ErrNoRevision)
}

func (o *objects) size(id plumbing.Hash) (int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.stores {
		if n, err := s.EncodedObjectSize(id); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("blob %s: %w", id, ErrNoRevision)
}

// find gives the id that a revision names, by git's own order of places (gitrevisions(7)).
func (o *objects) find(revision string) (plumbing.Hash, error) {
	if plumbing.IsHash(revision) {
		return plumbing.NewHash(revision), nil
	}
	for _, rule := range plumbing.RefRevParseRules {
		name := plumbing.ReferenceName(fmt.Sprintf(rule, revision))
		for range maxLinks {
			ref := o.ref(name)
			if ref == nil {
				break
			}
			if ref.Type() == plumbing.HashReference {
				return ref.Hash(), nil
			}
			name = ref.Target()
		}
	}
	return plumbing.ZeroHash, ErrNoRevision
}

func (o *objects) ref(name plumbing.ReferenceName) *plumbing.Reference {
	for _, s := range o.refs {
		if ref, err := s.Reference(name); err == nil {
			return ref
		}
	}
	return nil
}

// treeOf gives the root tree of a commit or of what an annotated tag points to. Only the first header line is wanted;
// decoding through go-git's plumbing/object would bring OpenPGP into every start of the program.
func (o *objects) treeOf(id plumbing.Hash) (plumbing.Hash, error) {
	for range maxLinks {
		commit, err := o.read(plumbing.CommitObject, id)
		if err == nil {
			return header(commit, "tree ")
		}
		if !errors.Is(err, ErrNoRevision) {
			return plumbing.ZeroHash, err
		}
		tag, errTag := o.read(plumbing.TagObject, id)
		if errTag != nil {
			return plumbing.ZeroHash, ErrNoRevision
		}
		if id, err = header(tag, "object "); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	return plumbing.ZeroHash, errors.New("too many tags of tags")
}

func header(object []byte, key string) (plumbing.Hash, error) {
	line, _, _ := bytes.Cut(object, []byte("\n"))
	value, ok := bytes.CutPrefix(line, []byte(key))
	if !ok || !plumbing.IsHash(string(value)) {
		return plumbing.ZeroHash, fmt.Errorf("broken object: its first line is not %q and an id", key)
	}
	return plumbing.NewHash(string(value)), nil
}
