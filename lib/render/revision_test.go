package render

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// repository is a bare git repository that tests write objects into.
type repository struct {
	t   testing.TB
	dir string
	*filesystem.Storage
}

func newRepository(t testing.TB) *repository {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "x.git")
	if _, err := git.PlainInit(dir, true); err != nil {
		t.Fatal(err)
	}
	return &repository{t, dir, filesystem.NewStorage(osfs.New(dir), cache.NewObjectLRUDefault())}
}

func (r *repository) write(o interface {
	Encode(plumbing.EncodedObject) error
}) plumbing.Hash {
	r.t.Helper()
	e := r.NewEncodedObject()
	if err := o.Encode(e); err != nil {
		r.t.Fatal(err)
	}
	id, err := r.SetEncodedObject(e)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

type blob []byte

func (b blob) Encode(e plumbing.EncodedObject) error {
	e.SetType(plumbing.BlobObject)
	w, err := e.Writer()
	if err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	return w.Close()
}

// treeOf writes the files below dir.
func (r *repository) treeOf(files fstest.MapFS, dir string) plumbing.Hash {
	r.t.Helper()
	list, err := fs.ReadDir(files, dir)
	if err != nil {
		r.t.Fatal(err)
	}
	t := &object.Tree{}
	for _, d := range list {
		name := path.Join(dir, d.Name())
		e := object.TreeEntry{Name: d.Name(), Mode: filemode.Regular}
		switch {
		case d.IsDir():
			e.Mode, e.Hash = filemode.Dir, r.treeOf(files, name)
		case string(files[name].Data) == "submodule\n":
			e.Mode, e.Hash = filemode.Submodule, plumbing.NewHash(strings.Repeat("1", 40))
		default:
			if d.Type()&fs.ModeSymlink != 0 {
				e.Mode = filemode.Symlink
			}
			e.Hash = r.write(blob(files[name].Data))
		}
		t.Entries = append(t.Entries, e)
	}
	sort.Sort(object.TreeEntrySorter(t.Entries))
	return r.write(t)
}

func (r *repository) commit(files fstest.MapFS) string {
	r.t.Helper()
	who := object.Signature{Name: "a", Email: "a@example.com", When: time.Unix(1700000000, 0).UTC()}
	return r.write(&object.Commit{TreeHash: r.treeOf(files, "."), Author: who, Committer: who, Message: "m"}).String()
}

// pack moves all loose objects into one pack.
func (r *repository) pack() {
	r.t.Helper()
	loose, err := filepath.Glob(filepath.Join(r.dir, "objects", "??", "*"))
	if err != nil {
		r.t.Fatal(err)
	}
	var ids []plumbing.Hash
	for _, file := range loose {
		ids = append(ids, plumbing.NewHash(filepath.Base(filepath.Dir(file))+filepath.Base(file)))
	}
	w, err := r.PackfileWriter()
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := packfile.NewEncoder(w, r, false).Encode(ids, 10); err != nil {
		r.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		r.t.Fatal(err)
	}
	for _, file := range loose {
		if err := os.Remove(file); err != nil {
			r.t.Fatal(err)
		}
	}
}

// committed gives the tree as a commit.
func committed(t testing.TB, files fstest.MapFS) fs.FS {
	t.Helper()
	r := newRepository(t)
	repo, err := Revision(r.dir, r.commit(files))
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

var someFiles = archive(`
-- a.yaml --
kind: A
-- a/b.yaml --
kind: B
-- a/c/d.yaml --
kind: D
-- a.b/e.yaml --
kind: E
-- link --
-> a/c
-- a/up --
-> ../a.yaml
`)

func TestACommitAndAWorkingCopyAreFileSystems(t *testing.T) {
	repo, _ := onDisk(t, someFiles)
	t.Run("working copy", func(t *testing.T) { testFS(t, repo) })
	t.Run("commit", func(t *testing.T) { testFS(t, committed(t, someFiles)) })
}

func testFS(t *testing.T, repo fs.FS) {
	if err := fstest.TestFS(repo, "a.yaml", "a/b.yaml", "a/c/d.yaml", "a.b/e.yaml"); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"link/d.yaml": "kind: D\n", "a/up": "kind: A\n", "a/c/d.yaml": "kind: D\n"} {
		if text, err := fs.ReadFile(repo, name); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if target, err := fs.ReadLink(repo, "a/up"); err != nil || target != "../a.yaml" {
		t.Errorf("a/up: %q, %v", target, err)
	}
	if info, err := fs.Lstat(repo, "link/d.yaml"); err != nil || info.Mode() != 0o644 || info.Size() != 8 {
		t.Errorf("link/d.yaml: %v, %v", info, err)
	}
	for _, name := range []string{"b.yaml", "link/x", "nothing/at/all"} {
		if _, err := fs.Stat(repo, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for _, name := range []string{"a.yaml/b", "a/c/d.yaml/e", "../a.yaml", "/a.yaml", "a//b.yaml", ""} {
		if text, err := fs.ReadFile(repo, name); err == nil {
			t.Errorf("%s: no error, but %q", name, text)
		}
	}
}

func TestACommitRendersLikeItsWorkingCopy(t *testing.T) {
	files := fstest.MapFS{}
	repo := own(t)
	if err := fs.WalkDir(repo, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(repo, name)
		files[name] = &fstest.MapFile{Data: data}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	commit := committed(t, files)
	for _, dir := range []string{"charts/shop", "apps/web/prod", "env"} {
		o := Options{}
		if dir == "charts/shop" {
			o.ValueFiles = []string{"/env/region.yaml"}
		}
		want, err := Render(repo, dir, o)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Render(commit, dir, o)
		if err != nil || !slices.Equal(got.Stream, want.Stream) {
			t.Errorf("%s: %v\n%s", dir, err, got.Stream)
		}
	}
}

func TestRevisionFindsACommit(t *testing.T) {
	read := func(t *testing.T, gitDir, revision string) {
		t.Helper()
		repo, err := Revision(gitDir, revision)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := fs.ReadFile(repo, "a/c/d.yaml"); err != nil || string(text) != "kind: D\n" {
			t.Errorf("%q, %v", text, err)
		}
	}
	write := func(t *testing.T, file, text string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	t.Run("in loose objects", func(t *testing.T) {
		r := newRepository(t)
		read(t, r.dir, r.commit(someFiles))
	})
	t.Run("in a pack", func(t *testing.T) {
		r := newRepository(t)
		id := r.commit(someFiles)
		r.pack()
		if packs, _ := filepath.Glob(filepath.Join(r.dir, "objects", "pack", "*.pack")); len(packs) != 1 {
			t.Fatalf("packs: %v", packs)
		}
		if loose, _ := filepath.Glob(filepath.Join(r.dir, "objects", "??", "*")); len(loose) > 0 {
			t.Fatalf("loose objects are left: %v", loose)
		}
		read(t, r.dir, id)
	})
	for name, relative := range map[string]bool{"in an alternate": false, "in an alternate with a relative path": true} {
		t.Run(name, func(t *testing.T) {
			r, other := newRepository(t), newRepository(t)
			objects := filepath.Join(other.dir, "objects")
			if relative {
				var err error
				if objects, err = filepath.Rel(filepath.Join(r.dir, "objects"), objects); err != nil {
					t.Fatal(err)
				}
			}
			write(t, filepath.Join(r.dir, "objects", "info", "alternates"), "# where the rest is\n"+objects+"\n")
			read(t, r.dir, other.commit(someFiles))
		})
	}
	t.Run("by the .git file of a worktree", func(t *testing.T) {
		r := newRepository(t)
		id := r.commit(someFiles)
		write(t, filepath.Join(r.dir, "worktrees", "w", "commondir"), "../..\n")
		write(t, filepath.Join(r.dir, "worktrees", "w", "HEAD"), id+"\n")
		file := write(t, filepath.Join(t.TempDir(), "w", ".git"), "gitdir: "+filepath.Join(r.dir, "worktrees", "w")+"\n")
		read(t, file, id)
		read(t, file, "HEAD")
	})
	t.Run("by the relative .git file of a submodule", func(t *testing.T) {
		r := newRepository(t)
		file := write(t, filepath.Join(filepath.Dir(r.dir), "sub", ".git"), "gitdir: ../x.git\n")
		read(t, file, r.commit(someFiles))
	})
	t.Run("by the name of a branch, a remote branch and an annotated tag", func(t *testing.T) {
		r := newRepository(t)
		id := r.commit(someFiles)
		tag := r.write(&object.Tag{Name: "v1", TargetType: plumbing.CommitObject, Target: plumbing.NewHash(id), Message: "m"})
		for name, to := range map[string]plumbing.Hash{"refs/heads/main": plumbing.NewHash(id), "refs/remotes/origin/main": plumbing.NewHash(id), "refs/tags/v1": tag} {
			if err := r.SetReference(plumbing.NewHashReference(plumbing.ReferenceName(name), to)); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.SetReference(plumbing.NewSymbolicReference(plumbing.HEAD, "refs/heads/main")); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"main", "origin/main", "v1", "refs/tags/v1", "HEAD", tag.String()} {
			read(t, r.dir, name)
		}
	})
}

func TestARevisionThatIsNotThere(t *testing.T) {
	missing := strings.Repeat("a", 40)
	t.Run("is ErrNoRevision and says how to get it", func(t *testing.T) {
		r := newRepository(t)
		_, err := Revision(r.dir, missing)
		wantError(t, err, missing, "never fetched")
		if !errors.Is(err, ErrNoRevision) {
			t.Errorf("%v is not ErrNoRevision", err)
		}
	})
	t.Run("in a shallow clone is ErrNoRevision and says so", func(t *testing.T) {
		r := newRepository(t)
		if err := os.WriteFile(filepath.Join(r.dir, "shallow"), []byte(r.commit(someFiles)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Revision(r.dir, missing)
		wantError(t, err, missing, "shallow clone", "--unshallow")
		if !errors.Is(err, ErrNoRevision) {
			t.Errorf("%v is not ErrNoRevision", err)
		}
	})
	t.Run("is ErrNoRevision by name too", func(t *testing.T) {
		if _, err := Revision(newRepository(t).dir, "no-such-branch"); !errors.Is(err, ErrNoRevision) {
			t.Errorf("%v is not ErrNoRevision", err)
		}
	})
	t.Run("is ErrNoRevision when a file of the commit is missing", func(t *testing.T) {
		r := newRepository(t)
		id := r.commit(someFiles)
		blob := r.write(blob("kind: B\n")).String()
		if err := os.Remove(filepath.Join(r.dir, "objects", blob[:2], blob[2:])); err != nil {
			t.Fatal(err)
		}
		repo, err := Revision(r.dir, id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Render(repo, "a", Options{}); !errors.Is(err, ErrNoRevision) {
			t.Errorf("%v is not ErrNoRevision", err)
		}
		if _, err := Render(repo, "a.b", Options{}); err != nil {
			t.Errorf("what is there does not render: %v", err)
		}
	})
	t.Run("is another error where there is no repository", func(t *testing.T) {
		if _, err := Revision(t.TempDir(), missing); err == nil || errors.Is(err, ErrNoRevision) {
			t.Errorf("%v", err)
		}
	})
	t.Run("is another error where the id is that of a tree", func(t *testing.T) {
		r := newRepository(t)
		if _, err := Revision(r.dir, r.treeOf(someFiles, ".").String()); err == nil {
			t.Error("no error")
		}
	})
}

func TestASubmoduleOfACommitIsAnErrorThatNamesIt(t *testing.T) {
	files := archive("-- app/a.yaml --\nkind: A\n-- app/vendored --\nsubmodule\n")
	repo := committed(t, files)
	_, err := Render(repo, "app", Options{Recurse: true})
	wantError(t, err, "app/vendored", "a submodule")
	_, err = Render(repo, "app/vendored/x", Options{})
	wantError(t, err, "app/vendored", "a submodule")
	if r, err := Render(repo, "app", Options{}); err != nil || string(r.Stream) != "kind: A\n" {
		t.Errorf("without recurse: %v", err)
	}
}

func TestARepositoryMayBeReadByManyAtOnce(t *testing.T) {
	files := fstest.MapFS{}
	for name, f := range someFiles {
		files["dir/"+name] = f
	}
	for name, text := range map[string]string{"kus/kustomization.yaml": "resources: [a.yaml]\n", "kus/a.yaml": someYAML, "chart/Chart.yaml": someChart, "chart/templates/a.yaml": someYAML} {
		files[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	copied, _ := onDisk(t, files)
	for _, repo := range []fs.FS{copied, committed(t, files)} {
		var group sync.WaitGroup
		for i := range 9 {
			group.Go(func() {
				o := Options{Recurse: i%3 == 0}
				if _, err := Render(repo, []string{"dir", "kus", "chart"}[i%3], o); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
}

func FuzzParseTree(f *testing.F) {
	f.Add([]byte("100644 a.yaml\x00aaaaaaaaaaaaaaaaaaaa40000 b\x00bbbbbbbbbbbbbbbbbbbb"))
	f.Add([]byte("40000 ..\x00aaaaaaaaaaaaaaaaaaaa"))
	f.Add([]byte("100644 a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parseTree(data)
		if err != nil {
			return
		}
		for _, e := range entries {
			if !fs.ValidPath(e.name) && strings.ContainsAny(e.name, "/") || e.name == ".." || e.name == "." {
				t.Errorf("a file named %q", e.name)
			}
		}
	})
}
