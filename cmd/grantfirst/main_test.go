package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"grantfirst": func() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs the real command line: one script in testdata/script for each behaviour.
func TestScripts(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("EXAMPLES", examples)
			return nil
		},
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"commit": commit, "expand": expand},
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
	})
}

// commit DIR VAR records all files of a repository, made where there is none, and puts the commit's id into $VAR.
func commit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: commit DIR VAR")
	}
	dir := ts.MkAbs(args[0])
	repo, err := git.PlainOpen(dir)
	if err != nil {
		repo, err = git.PlainInit(dir, false)
	}
	ts.Check(err)
	tree, err := repo.Worktree()
	ts.Check(err)
	ts.Check(tree.AddWithOptions(&git.AddOptions{All: true}))
	id, err := tree.Commit("a change", &git.CommitOptions{
		AllowEmptyCommits: true,
		Author:            &object.Signature{Name: "a", Email: "a@example.com", When: time.Unix(1, 0)},
	})
	ts.Check(err)
	ts.Setenv(args[1], id.String())
}

// expand FILE... replaces $NAME in files by the script's variables.
func expand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: expand FILE...")
	}
	for _, name := range args {
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(os.Expand(ts.ReadFile(name), ts.Getenv)), 0o600))
	}
}
