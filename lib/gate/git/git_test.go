package git_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/grantfirst/grantfirst/lib/gate/git"
)

func run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func clone(t testing.TB) (dir string, r *git.Repository) {
	t.Helper()
	dir = t.TempDir()
	run(t, dir, "init", "--quiet", "--initial-branch=main")
	write(t, dir, "a.yaml", "a\n")
	write(t, dir, "a/b.yaml", "b\n")
	write(t, dir, "a/ö ü.yaml", "c\n")
	write(t, dir, "run", "d\n")
	if err := os.Chmod(filepath.Join(dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../a.yaml", filepath.Join(dir, "a", "link")); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "add", "--all")
	run(t, dir, "commit", "--quiet", "-m", "one")
	return dir, open(t, dir)
}

func open(t testing.TB, dir string) *git.Repository {
	t.Helper()
	r, err := git.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func head(t testing.TB, r *git.Repository) git.Commit {
	t.Helper()
	c, err := r.Commit("HEAD")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestATreeIsAFileSystem(t *testing.T) {
	_, r := clone(t)
	tree := r.Tree(head(t, r).Tree)
	if err := fstest.TestFS(tree, "a.yaml", "a/b.yaml", "a/ö ü.yaml", "run"); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"a/link": "a\n", "a/ö ü.yaml": "c\n"} {
		if got, err := fs.ReadFile(tree, name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"gone", "a.yaml/x", "a/gone/x"} {
		if _, err := tree.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, want that it is not there", name, err)
		}
	}
}

func TestAnOverlayIsTheTreeThatGitWouldMake(t *testing.T) {
	_, r := clone(t)
	tree := head(t, r).Tree
	for name, files := range map[string]map[string][]byte{
		"changed":                {"a/b.yaml": []byte("new\n")},
		"added":                  {"x/y/z.yaml": []byte("new\n"), "a-b": []byte("")},
		"removed":                {"a.yaml": nil},
		"a folder that is empty": {"a/b.yaml": nil, "a/ö ü.yaml": nil, "a/link": nil},
		"an executable":          {"run": []byte("new\n")},
		"nothing":                {},
	} {
		overlay, err := r.Overlay(tree, files)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		with, err := r.With(tree, files)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if overlay != with {
			t.Errorf("%s: the overlay is %s, and git makes %s", name, overlay, with)
		}
	}
}

func TestTheWorkTreeIsWhatAddAllWouldCommit(t *testing.T) {
	dir, r := clone(t)
	write(t, dir, "a.yaml", "changed\n")
	write(t, dir, "new/file.yaml", "new\n")
	write(t, dir, ".gitignore", "*.log\n")
	write(t, dir, "x.log", "ignored\n")
	run(t, dir, "config", "core.autocrlf", "input")
	write(t, dir, "windows.yaml", "one\r\ntwo\r\n")
	if err := os.Remove(filepath.Join(dir, "run")); err != nil {
		t.Fatal(err)
	}
	c, err := r.WorkTree()
	if err != nil {
		t.Fatal(err)
	}
	run(t, dir, "add", "--all")
	if want := run(t, dir, "write-tree"); c.Tree != want || !c.WorkTree {
		t.Errorf("the tree is %s, want %s", c.Tree, want)
	}
	if got, err := fs.ReadFile(r.Tree(c.Tree), "windows.yaml"); err != nil || string(got) != "one\ntwo\n" {
		t.Errorf("line ends: %q, %v", got, err)
	}
}

func TestABareRepositoryAndALinkedWorkTreeAreRead(t *testing.T) {
	dir, r := clone(t)
	want := head(t, r)
	bare := t.TempDir()
	run(t, dir, "clone", "--quiet", "--bare", dir, bare)
	if got := head(t, open(t, bare)); got != want {
		t.Errorf("bare: %v, want %v", got, want)
	}
	linked := filepath.Join(t.TempDir(), "linked")
	run(t, dir, "worktree", "add", "--quiet", "-b", "other", linked)
	write(t, linked, "more.yaml", "x\n")
	l := open(t, linked)
	if got := head(t, l); got != want {
		t.Errorf("linked: %v, want %v", got, want)
	}
	c, err := l.WorkTree()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Tree(c.Tree).Find("more.yaml"); err != nil {
		t.Errorf("the linked work tree lacks its new file: %v", err)
	}
}

func TestAFileOfGitLFSIsReadWhereItIs(t *testing.T) {
	dir, r := clone(t)
	const oid = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
	write(t, dir, "big.yaml", "version https://git-lfs.github.com/spec/v1\noid sha256:"+oid+"\nsize 6\n")
	run(t, dir, "add", "--all")
	run(t, dir, "commit", "--quiet", "-m", "lfs")
	tree := r.Tree(head(t, r).Tree)
	if _, err := tree.ReadFile("big.yaml"); !errors.Is(err, git.ErrLFS) {
		t.Errorf("got %v, want ErrLFS", err)
	}
	write(t, dir, ".git/lfs/objects/58/91/"+oid, "hello\n")
	if got, err := tree.ReadFile("big.yaml"); err != nil || string(got) != "hello\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestUnrelatedHistoriesAreAnError(t *testing.T) {
	dir, r := clone(t)
	before := head(t, r)
	run(t, dir, "checkout", "--quiet", "--orphan", "other")
	run(t, dir, "commit", "--quiet", "-m", "other")
	if _, err := r.MergeBases(before, head(t, r)); !errors.Is(err, git.ErrUnrelated) {
		t.Errorf("got %v, want ErrUnrelated", err)
	}
}

func FuzzTreeObjects(f *testing.F) {
	f.Add([]byte("100644 a\x00" + strings.Repeat("x", 20) + "40000 b\x00" + strings.Repeat("y", 20)))
	f.Add([]byte("120000 \x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := git.Parse(data)
		if err != nil {
			return
		}
		for _, e := range entries {
			if e.Name == "" || strings.Contains(e.Name, "/") || e.Name == ".." {
				t.Errorf("a file named %q", e.Name)
			}
		}
		if bytes.Contains(data, []byte("..\x00")) && bytes.HasPrefix(data, []byte("100644 ..\x00")) {
			t.Error("a name that leads out is accepted")
		}
	})
}
