// Package git reads commits of a repository without touching its work tree.
//
// In go the folder of a clone and names of revisions, out come trees as file systems whose every entry has git's own id, so that equal
// content is seen to be equal without being read; merge bases; and the steps of a history. A work tree with what is not committed yet
// becomes a tree as git itself would commit it. Everything is asked of the git command (plumbing only: no hook runs, nothing is fetched but
// what a partial clone lacks), which must be installed. Nothing is ever written into the repository: new objects go to a scratch folder.
package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Repository is a clone. It is safe for concurrent use, but for Close.
type Repository struct {
	// Root is the top of the work tree, or the git folder of a bare repository.
	Root string

	bare, shallow bool
	// common is the git folder that work trees share; objects is its object folder.
	common, objects string
	// scratch is where new objects go.
	scratch string

	reader reader
	trees  sync.Map // id -> []Entry
	blobs  blobCache
	// overlaid are the files of trees that git does not know.
	overlaid sync.Map

	tagsOnce     sync.Once
	branchesOnce sync.Once
	tags         map[string]bool
	branches     map[string]bool
}

// Errors that a person ends by fetching more.
var (
	// ErrNoRevision: the clone has no such commit.
	ErrNoRevision = errors.New("not in this clone")
	// ErrShallow: the clone's history ends before the merge base, or before it is certain.
	ErrShallow = errors.New("the clone is shallow")
	// ErrUnrelated: two commits have no ancestor in common.
	ErrUnrelated = errors.New("no common ancestor")
)

// Open finds the repository that dir lies in. Close must be called in the end.
func Open(dir string) (*Repository, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return nil, fmt.Errorf("the git command is needed and not there: %w: use an image that has it", err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &Repository{Root: abs}
	var command *CommandError
	out, err := r.run(nil, "rev-parse", "--is-bare-repository", "--is-shallow-repository", "--git-common-dir", "--git-path", "objects")
	if errors.As(err, &command) && strings.Contains(command.Said, "not a git repository") {
		return nil, fmt.Errorf("%s is in no git repository: change to a clone", abs)
	}
	if err != nil {
		return nil, fmt.Errorf("open the repository at %s: %w", dir, err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != 4 {
		return nil, fmt.Errorf("open the repository at %s: git answered %q", dir, out)
	}
	r.bare, r.shallow = lines[0] == "true", lines[1] == "true"
	r.common, r.objects = r.abs(lines[2]), r.abs(lines[3])
	if r.bare {
		r.Root = r.common
	} else {
		top, err := r.run(nil, "rev-parse", "--show-toplevel")
		if err != nil {
			return nil, fmt.Errorf("open the repository at %s: %w", dir, err)
		}
		r.Root = strings.TrimSuffix(string(top), "\n")
	}
	if r.scratch, err = os.MkdirTemp("", "grantfirst-git-"); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(r.scratch, "objects"), 0o700); err != nil {
		return nil, err
	}
	r.reader.command = func() *exec.Cmd { return r.command(r.readingScratch(), "cat-file", "--batch") }
	return r, nil
}

// Close ends what was started and removes the scratch folder.
func (r *Repository) Close() error {
	return errors.Join(r.reader.close(), os.RemoveAll(r.scratch))
}

func (r *Repository) abs(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.Root, path)
}

// command is git in the repository. Git's messages are made plain English, and nothing is asked of a person.
func (r *Repository) command(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command("git", append([]string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"}, args...)...)
	cmd.Dir = r.Root
	cmd.Env = append(os.Environ(), "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0")
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

func (r *Repository) run(env []string, args ...string) ([]byte, error) {
	return r.pipe(nil, env, args...)
}

func (r *Repository) pipe(stdin []byte, env []string, args ...string) ([]byte, error) {
	cmd := r.command(env, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	said := strings.TrimSpace(stderr.String())
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out, &CommandError{Verb: args[0], Code: exit.ExitCode(), Said: said}
	}
	return out, fmt.Errorf("git %s: %w", args[0], err)
}

// CommandError is what git said when it could not do what it was asked.
type CommandError struct {
	Verb string
	Code int
	Said string
}

// Error is git's own words, in one line.
func (e *CommandError) Error() string {
	said := strings.Join(strings.Fields(strings.ReplaceAll(e.Said, "fatal: ", "")), " ")
	if said == "" {
		said = "exit code " + strconv.Itoa(e.Code)
	}
	return "git " + e.Verb + ": " + said
}

// readingScratch has git look for objects in the scratch folder too; writingScratch has it write them there.
func (r *Repository) readingScratch() []string {
	return []string{"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + alternates(filepath.Join(r.scratch, "objects"))}
}

func (r *Repository) writingScratch() []string {
	return []string{
		"GIT_OBJECT_DIRECTORY=" + filepath.Join(r.scratch, "objects"),
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + alternates(r.objects),
		"GIT_INDEX_FILE=" + filepath.Join(r.scratch, "index"),
	}
}

// alternates writes a list of object folders as git(1) reads it, with those that the environment has (a receiving hook's quarantine).
func alternates(dir string) string {
	if strings.ContainsRune(dir, filepath.ListSeparator) || strings.HasPrefix(dir, `"`) {
		dir = strconv.Quote(dir)
	}
	if given := os.Getenv("GIT_ALTERNATE_OBJECT_DIRECTORIES"); given != "" {
		dir += string(filepath.ListSeparator) + given
	}
	return dir
}

// Commit is one commit, or a work tree that is none yet: then ID is that of its parent.
type Commit struct {
	ID, Tree string
	// WorkTree is true for what is not committed.
	WorkTree bool
}

// Commit finds the commit that a revision names, as gitrevisions(7) has it. The error is an ErrNoRevision where there is none.
func (r *Repository) Commit(revision string) (Commit, error) {
	out, err := r.run(nil, "rev-parse", "--verify", "--quiet", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return Commit{}, fmt.Errorf("revision %s is %w: %s", revision, ErrNoRevision, r.howToFetch(revision))
	}
	id := strings.TrimSpace(string(out))
	tree, err := r.run(nil, "rev-parse", "--verify", "--end-of-options", id+"^{tree}")
	if err != nil {
		return Commit{}, fmt.Errorf("revision %s: its tree is %w: %w", revision, ErrNoRevision, err)
	}
	return Commit{ID: id, Tree: strings.TrimSpace(string(tree))}, nil
}

func (r *Repository) howToFetch(revision string) string {
	remote, branch, ok := strings.Cut(revision, "/")
	remotes, _ := r.run(nil, "remote")
	if !ok || !slices.Contains(strings.Fields(string(remotes)), remote) {
		return "fetch it (a tag with git fetch --tags), or name one that is here"
	}
	return fmt.Sprintf("git fetch %s %s:refs/remotes/%s/%s", remote, branch, remote, branch)
}

// MergeBases gives the best common ancestors of two commits, of which there are several only after criss-cross merges. The error is an
// ErrUnrelated, or an ErrShallow, whose message says how deep to fetch.
func (r *Repository) MergeBases(target, head Commit) ([]Commit, error) {
	out, err := r.run(nil, "merge-base", "--all", target.ID, head.ID)
	var command *CommandError
	if errors.As(err, &command) && command.Code == 1 && command.Said == "" {
		if r.shallow {
			return nil, r.tooShallow(head)
		}
		return nil, fmt.Errorf("%s and %s have %w: name another base", short(target.ID), short(head.ID), ErrUnrelated)
	}
	if err != nil {
		return nil, err
	}
	var bases []Commit
	for _, id := range strings.Fields(string(out)) {
		c, err := r.Commit(id)
		if err != nil {
			return nil, err
		}
		bases = append(bases, c)
	}
	return bases, r.certain(target, head, bases)
}

// certain makes sure that a shallow clone does not hide a better merge base: no commit at which it was cut may be newer than those found.
func (r *Repository) certain(target, head Commit, bases []Commit) error {
	if !r.shallow {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(r.common, "shallow"))
	if err != nil {
		return fmt.Errorf("where the shallow clone ends: %w", err)
	}
	args := []string{"rev-list", target.ID, head.ID}
	for _, b := range bases {
		args = append(args, "^"+b.ID)
	}
	out, err := r.run(nil, args...)
	if err != nil {
		return err
	}
	newer := strings.Fields(string(out))
	for _, cut := range strings.Fields(string(text)) {
		if slices.Contains(newer, cut) {
			return r.tooShallow(head)
		}
	}
	return nil
}

func (r *Repository) tooShallow(head Commit) error {
	depth := 0
	if out, err := r.run(nil, "rev-list", "--count", "--first-parent", head.ID); err == nil {
		depth, _ = strconv.Atoi(strings.TrimSpace(string(out)))
	}
	return fmt.Errorf("%w, its history ends after %d commits, before the merge base is certain: fetch more of it, as with "+
		"git fetch --deepen=%d (again until this passes), or all of it with git fetch --unshallow; in GitLab CI set GIT_DEPTH: 0, in GitHub Actions fetch-depth: 0 of actions/checkout",
		ErrShallow, depth, max(50, 4*depth))
}

func short(id string) string { return id[:min(len(id), 10)] }

// WorkTree gives the work tree as it is now, as "git add --all" would have it committed: ignored files are not in it, line ends and LFS files
// are as filters make them. Neither the index nor the repository's objects change.
func (r *Repository) WorkTree() (Commit, error) {
	if r.bare {
		return Commit{}, errors.New("a bare repository has no work tree: name a revision")
	}
	head, err := r.Commit("HEAD")
	if err != nil {
		return Commit{}, err
	}
	env := r.writingScratch()
	index, err := r.run(nil, "rev-parse", "--git-path", "index")
	if err != nil {
		return Commit{}, err
	}
	// The index knows what has not changed since it was read.
	text, err := os.ReadFile(r.abs(strings.TrimSuffix(string(index), "\n")))
	if err == nil {
		err = os.WriteFile(filepath.Join(r.scratch, "index"), text, 0o600)
	} else if errors.Is(err, os.ErrNotExist) {
		_, err = r.run(env, "read-tree", head.ID)
	}
	if err != nil {
		return Commit{}, fmt.Errorf("the work tree's index: %w", err)
	}
	if _, err := r.run(env, "add", "--all", ":/"); err != nil {
		return Commit{}, fmt.Errorf("the work tree: %w", err)
	}
	tree, err := r.run(env, "write-tree")
	if err != nil {
		return Commit{}, fmt.Errorf("the work tree: %w: end the merge first", err)
	}
	return Commit{ID: head.ID, Tree: strings.TrimSpace(string(tree)), WorkTree: true}, nil
}

// Remotes gives the URLs of all remotes.
func (r *Repository) Remotes() []string {
	out, err := r.run(nil, "config", "--get-regexp", `^remote\..*\.(url|pushurl)$`)
	if err != nil {
		return nil // exit code 1: there is none
	}
	var urls []string
	for line := range strings.Lines(string(out)) {
		if _, url, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			urls = append(urls, url)
		}
	}
	return urls
}

// Step is one commit of a branch with the one before it.
type Step struct {
	// Before is the first parent, empty for the first commit of a history.
	Before, After Commit
	// Time is the committer's, as 2006-01-02; Merge says that there is more than one parent.
	Time, Subject string
	Merge         bool
}

// Steps gives the steps of a branch along its first parents, the oldest first, without those that have no parent. arguments are those of
// git-rev-list(1): a revision or a range, --since=DATE.
func (r *Repository) Steps(ctx context.Context, arguments ...string) ([]Step, error) {
	cmd := r.command(nil, append([]string{"log", "--first-parent", "--reverse", "--date=short", "--format=%H%x00%T%x00%P%x00%cd%x00%s"}, arguments...)...)
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, &CommandError{Verb: "log", Code: -1, Said: stderr.String()}
	}
	var steps []Step
	trees := map[string]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\x00")
		if len(f) != 5 {
			return nil, fmt.Errorf("git log: unexpected line %q", line)
		}
		s := Step{After: Commit{ID: f[0], Tree: f[1]}, Time: f[3], Subject: f[4]}
		trees[f[0]] = f[1]
		parents := strings.Fields(f[2])
		if len(parents) == 0 {
			continue
		}
		s.Merge = len(parents) > 1
		if s.Before = (Commit{ID: parents[0], Tree: trees[parents[0]]}); s.Before.Tree == "" {
			if s.Before, err = r.Commit(parents[0]); err != nil {
				return nil, err
			}
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// Shallow reports whether history is cut somewhere.
func (r *Repository) Shallow() bool { return r.shallow }

// Diff gives what differs between two trees in some files, as a patch. options are those of git-diff(1) about context and white space.
func (r *Repository) Diff(before, after string, options []string, files ...string) ([]byte, error) {
	args := []string{"diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/", "--binary", "--full-index"}
	args = append(append(args, options...), before, after, "--")
	for _, f := range files {
		args = append(args, ":(top,literal)"+f)
	}
	return r.run(r.readingScratch(), args...)
}

// Changed lists the paths that differ between two trees.
func (r *Repository) Changed(before, after string) ([]string, error) {
	out, err := r.run(r.readingScratch(), "diff", "--name-only", "--no-renames", "-z", before, after)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"), nil
}

// With gives the id of a tree that is another one with some files in it: nil removes a file. Objects go to the scratch folder.
func (r *Repository) With(tree string, files map[string][]byte) (string, error) {
	env := r.writingScratch()
	env[2] = "GIT_INDEX_FILE=" + filepath.Join(r.scratch, "index-with")
	if _, err := r.run(env, "read-tree", tree); err != nil {
		return "", err
	}
	var list bytes.Buffer
	for _, name := range slices.Sorted(keys(files)) {
		if files[name] == nil {
			fmt.Fprintf(&list, "0 %040d\t%s\x00", 0, name)
			continue
		}
		id, err := r.pipe(append([]byte{}, files[name]...), env, "hash-object", "-w", "--stdin")
		if err != nil {
			return "", err
		}
		mode := "100644"
		if e, err := r.Tree(tree).Find(name); err == nil && e.Kind == Executable {
			mode = "100755"
		}
		fmt.Fprintf(&list, "%s %s\t%s\x00", mode, bytes.TrimSpace(id), name)
	}
	if _, err := r.pipe(list.Bytes(), env, "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	out, err := r.run(env, "write-tree")
	return strings.TrimSpace(string(out)), err
}

func keys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// IsTag reports whether a tag has that name.
func (r *Repository) IsTag(name string) bool {
	r.tagsOnce.Do(func() { r.tags = r.names("strip=2", "refs/tags") })
	return r.tags[name]
}

// IsBranch reports whether a branch has that name, here or at a remote as far as that was fetched.
func (r *Repository) IsBranch(name string) bool {
	r.branchesOnce.Do(func() {
		r.branches = r.names("strip=2", "refs/heads")
		maps.Copy(r.branches, r.names("strip=3", "refs/remotes"))
	})
	return r.branches[name]
}

func (r *Repository) names(strip, below string) map[string]bool {
	names := map[string]bool{}
	out, _ := r.run(nil, "for-each-ref", "--format=%(refname:"+strip+")", below)
	for line := range strings.Lines(string(out)) {
		names[strings.TrimSpace(line)] = true
	}
	return names
}
