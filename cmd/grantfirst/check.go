package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/gate"
	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/lib/gate/output"
	"github.com/grantfirst/grantfirst/lib/loaded"
	"github.com/grantfirst/grantfirst/plugin"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "say before a merge which pods would ask for what is not granted yet",
		ArgsUsage: "[PATH...]",
		Description: `Renders what Argo CD would deploy from this repository, at the head and at the merge base of base and head, and looks whether every
certificate that pods will ask for is granted at the merge base already: a grant that ships with its workload may be loaded too late.
The work tree is not touched. Without PATH the Applications and ApplicationSets of the repository say what is rendered. docs/check.md is
the reference.

Exit code 1 when something violates, 2 when it could not tell.

Examples:
  grantfirst check --base origin/main --config grantfirst.yaml
  grantfirst check --base origin/main --head worktree --config grantfirst.yaml
  grantfirst check --base origin/main --config grantfirst.yaml -o text -o gitlab=gl-code-quality-report.json
  grantfirst check --base origin/main --config grantfirst.yaml --policy ../signer/overlays/production --namespace shop deploy`,
		Flags: append(gateFlags(), revisionFlags("")...),
		Action: func(c *cli.Context) error {
			outputs, err := newOutputs(c)
			if err != nil {
				return err
			}
			g, done, err := newGate(c, c.Args().Slice())
			if err != nil {
				return err
			}
			defer done()
			base, head, err := revisions(c, g)
			if err != nil {
				return err
			}
			r, err := g.Check(c.Context, base, head)
			if err != nil {
				return err
			}
			if err := g.Moves(c.Context, r); err != nil {
				return err
			}
			if err := outputs.write(c, r); err != nil {
				return err
			}
			return exitOf(r)
		},
	}
}

// errCouldNotTell ends a verb that has said so already.
var errCouldNotTell = errors.New("could not tell")

func exitOf(r *gate.Report) error {
	switch {
	case r.Violated():
		return errFound
	case r.Uncertain():
		return errCouldNotTell
	}
	return nil
}

// gateFlags are the flags of every verb that judges changes.
func gateFlags() []cli.Flag {
	return []cli.Flag{
		configFlag(),
		&cli.StringSliceFlag{Name: "policy", Usage: "`FILE|DIR` with policy objects that are not in this repository, rendered as the plugin would; may be repeated"},
		&cli.StringSliceFlag{Name: "live", Usage: "`FILE|DIR` with the cluster's objects, as grantfirst snapshot prints them, for policies that are only there; may be repeated"},
		&cli.StringFlag{Name: "kubeconfig", Usage: "`FILE` that says how to reach a cluster, for policies that are only there"},
		&cli.StringFlag{Name: "context", Usage: "`NAME` of the context in it (default: the current one)"},
		&cli.StringFlag{Name: "namespace", Usage: "destination `NAMESPACE` of what no Application deploys"},
		&cli.StringSliceFlag{Name: "repo-url", Usage: "`URL` that Applications have for this repository, beside those of its remotes; may be repeated"},
		&cli.StringSliceFlag{Name: "elsewhere", Usage: "`WHAT` to make of changed Applications whose source is not in this repository, and of ApplicationSets that cannot be expanded from it: unknown (the default), ignore, or ignore=GLOB for those of that name; may be repeated"},
		&cli.StringFlag{Name: "charts", Usage: "`DIR` with charts of registries, as helm pull -d DIR writes them: sources that are such a chart are rendered from it"},
		&cli.StringFlag{Name: "kube-version", Usage: "`VERSION` of Kubernetes for charts (default: that of --live, else 1.37)"},
	}
}

func revisionFlags(suffix string) []cli.Flag {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "base", Required: true, Usage: "`REVISION` that is merged into, such as origin/main"},
		&cli.StringFlag{Name: "head", Value: "HEAD", Usage: "`REVISION` to be merged, or worktree for the work tree as it is"},
	}
	if suffix != "" {
		return flags
	}
	return append(flags, &cli.StringSliceFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT[=FILE]`: " + strings.Join(output.Names, ", ") + "; may be repeated, one of them without a file (default: text)"})
}

// newGate opens the repository that the current folder is in.
func newGate(c *cli.Context, paths []string) (g *gate.Gate, done func(), err error) {
	all, some, err := elsewhere(c.StringSlice("elsewhere"))
	if err != nil {
		return nil, nil, err
	}
	file := cmp.Or(c.String("config"), os.Getenv("GRANTFIRST_CONFIG"), plugin.DefaultConfig)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %w: name the plugin's with --config, since without signers nothing can be told", err)
	}
	conf, err := config.Parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %s: %w", file, err)
	}
	repository, err := git.Open(".")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = repository.Close()
		}
	}()
	g = &gate.Gate{
		Repository: repository, Config: conf, Namespace: c.String("namespace"), URLs: c.StringSlice("repo-url"),
		IgnoreElsewhere: all, Ignore: some, KubeVersion: c.String("kube-version"),
	}
	if dir := c.String("charts"); dir != "" {
		if err := notOwn(repository, dir); err != nil {
			return nil, nil, fmt.Errorf("--charts: %w: keep charts outside of what is committed", err)
		}
		if g.Charts, err = gate.OpenCharts(dir); err != nil {
			return nil, nil, fmt.Errorf("--charts: %w", err)
		}
	}
	for _, p := range paths {
		if strings.HasPrefix(p, "-") {
			return nil, nil, fmt.Errorf("flags come before paths: put %s before %q", p, paths[0])
		}
		rel, err := below(repository.Root, p)
		if err != nil {
			return nil, nil, err
		}
		g.Paths = append(g.Paths, rel)
	}
	loud := quietened()
	return g, func() {
		loud()
		_ = repository.Close()
	}, external(c, g)
}

// quietened takes standard error from libraries until the returned func is called: kustomize prints its warnings of old fields there for
// every kustomization of every commit. What we say goes to the App's writers.
func quietened() (loud func()) {
	nowhere, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return func() {}
	}
	before := os.Stderr
	os.Stderr = nowhere
	return func() {
		os.Stderr = before
		_ = nowhere.Close()
	}
}

// elsewhere reads what to make of what is not in the repository: whether all of it is passed over, or which names.
func elsewhere(wanted []string) (all bool, some []string, err error) {
	for _, w := range wanted {
		what, glob, ok := strings.Cut(w, "=")
		switch {
		case ok && what == "ignore" && glob != "":
			if _, err := path.Match(glob, ""); err != nil {
				return false, nil, fmt.Errorf("--elsewhere: %q: %w", glob, err)
			}
			some = append(some, glob)
		case w == "ignore":
			all = true
		case w != "unknown":
			return false, nil, fmt.Errorf("--elsewhere: %q is none of unknown, ignore and ignore=GLOB", w)
		}
	}
	return all, some, nil
}

// below gives a path of the command line as a slash path below the root.
func below(root, p string) (string, error) {
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", err
	}
	// The current folder may be reached through a symlink, and git says where it really is.
	if real, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(real, filepath.Base(abs))
	}
	rel, err := filepath.Rel(root, abs)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%s is not in the repository at %s", p, root)
	}
	return filepath.ToSlash(rel), nil
}

// notOwn: what is in this repository is there as it is at the head, and grants count as they are at the merge base.
func notOwn(r *git.Repository, p string) error {
	// What a symlink outside leads to may be here, and what one here leads to is named by the commit.
	if real, err := filepath.EvalSymlinks(p); err == nil && real != p {
		if err := notOwnPath(r, real); err != nil {
			return err
		}
	}
	return notOwnPath(r, p)
}

func notOwnPath(r *git.Repository, p string) error {
	rel, err := below(r.Root, p)
	if err != nil {
		return nil // elsewhere
	}
	head, err := r.Commit("HEAD")
	if err != nil {
		return nil // nothing is committed
	}
	if _, err := r.Tree(head.Tree).Stat(rel); err == nil {
		return fmt.Errorf("%s is in this repository, and would count as it is at the head", p)
	}
	return nil
}

// external finds policies that are not in the repository.
func external(c *cli.Context, g *gate.Gate) error {
	var all gate.Several
	if paths := c.StringSlice("policy"); len(paths) > 0 {
		for _, p := range paths {
			if err := notOwn(g.Repository, p); err != nil {
				return fmt.Errorf("--policy: %w: policies are found there by themselves, as they are at the merge base: leave it out, or where you give paths, give it as one of them", err)
			}
		}
		files, err := g.ReadPolicies(paths...)
		if err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
		all = append(all, files)
	}
	if paths := c.StringSlice("live"); len(paths) > 0 {
		snapshot, err := loaded.Read(paths...)
		if err != nil {
			return fmt.Errorf("live objects: %w", err)
		}
		if a := snapshot.About; a != nil {
			g.KubeVersion, g.APIVersions = cmp.Or(g.KubeVersion, a.KubeVersion), a.APIVersions
		}
		all = append(all, &gate.Live{Source: snapshot})
	}
	if c.String("kubeconfig") != "" || c.String("context") != "" {
		settings, err := reach(c.String("kubeconfig"), c.String("context"))
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		cluster, err := loaded.NewCluster(settings)
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		all = append(all, &gate.Live{Source: cluster})
	}
	if len(all) > 0 {
		g.External = all
	}
	return nil
}

func revisions(c *cli.Context, g *gate.Gate) (base, head git.Commit, err error) {
	if base, err = g.Repository.Commit(c.String("base")); err != nil {
		return base, head, fmt.Errorf("--base: %w", err)
	}
	if c.String("head") == "worktree" {
		head, err = g.Repository.WorkTree()
	} else {
		head, err = g.Repository.Commit(c.String("head"))
	}
	if err != nil {
		err = fmt.Errorf("--head: %w", err)
	}
	return base, head, err
}

// outputs are where a report goes: files by format, and one to standard output.
type outputs []struct{ format, file string }

func newOutputs(c *cli.Context) (outputs, error) {
	wanted := c.StringSlice("output")
	if len(wanted) == 0 {
		wanted = []string{"text"}
	}
	var all outputs
	plain := 0
	for _, o := range wanted {
		format, file, isFile := strings.Cut(o, "=")
		if output.Formats[format] == nil {
			return nil, fmt.Errorf("--output: %q is none of %s", format, strings.Join(output.Names, ", "))
		}
		if isFile && file == "" {
			return nil, fmt.Errorf("--output: %q names no file", o)
		}
		if !isFile {
			plain++
		}
		all = append(all, struct{ format, file string }{format, file})
	}
	if plain > 1 {
		return nil, fmt.Errorf("--output: only one of %s can go to standard output: write FORMAT=FILE for the others", strings.Join(wanted, ", "))
	}
	return all, nil
}

func (all outputs) write(c *cli.Context, r *gate.Report) error {
	for _, o := range slices.Backward(all) {
		var b bytes.Buffer
		if err := output.Formats[o.format](&b, r); err != nil {
			return err
		}
		if o.file != "" {
			if err := os.WriteFile(o.file, b.Bytes(), 0o644); err != nil { // #nosec G306 -- a report for others to read
				return err
			}
			continue
		}
		if _, err := b.WriteTo(c.App.Writer); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	}
	return nil
}
