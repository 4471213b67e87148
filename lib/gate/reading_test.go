package gate_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/lib/render"
)

// Why objects are asked of the git command: all files of a tree, by that and by the library that the plugin reads history with.
func BenchmarkReadingATree(b *testing.B) {
	r := shop(b)
	i := &imports{main: "refs/heads/main^0"}
	files := map[string]string{}
	for n := range 5000 {
		files[fmt.Sprintf("ns-%d/app.yaml", n)] = deployment(fmt.Sprint("app-", n), "app", "example.com/workload", "ECDSAP256")
	}
	i.merge("many files", files)
	i.run(r)
	id := r.git("rev-parse", "main")
	all := func(b *testing.B, tree fs.FS) {
		count := 0
		err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				_, err = fs.ReadFile(tree, name)
				count++
			}
			return err
		})
		if err != nil || count < 5000 {
			b.Fatalf("%d files, %v", count, err)
		}
	}
	b.Run("git cat-file", func(b *testing.B) {
		for b.Loop() {
			repository, err := git.Open(r.dir)
			if err != nil {
				b.Fatal(err)
			}
			c, err := repository.Commit(id)
			if err != nil {
				b.Fatal(err)
			}
			all(b, repository.Tree(c.Tree))
			if err := repository.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("go-git", func(b *testing.B) {
		for b.Loop() {
			tree, err := render.Revision(filepath.Join(r.dir, ".git"), id)
			if err != nil {
				b.Fatal(err)
			}
			all(b, tree)
		}
	})
}
