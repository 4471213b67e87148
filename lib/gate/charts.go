package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/plugin"
)

// Charts are charts of registries in a folder, as helm pull writes them: NAME-VERSION.tgz, or unpacked in NAME. It is safe for concurrent use.
type Charts struct {
	dir string
	// packed are the versions of each name that may be in archives: a name may end in what looks like a version, so it is the archive that
	// decides.
	packed map[string][]string
	loaded sync.Map
}

// OpenCharts lists what is in a folder. Charts are read when they are needed.
func OpenCharts(dir string) (*Charts, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	c := &Charts{dir: dir, packed: map[string][]string{}}
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), ".tgz")
		for i := 0; ok && i < len(base); i++ {
			if base[i] != '-' {
				continue
			}
			if _, err := semver.NewVersion(base[i+1:]); err == nil {
				c.packed[base[:i]] = append(c.packed[base[:i]], base[i+1:])
			}
		}
	}
	return c, nil
}

// chart is one version of a chart.
type chart struct {
	name, version string
	// folder is the id of the tree of its files.
	folder string
}

// String is NAME-VERSION, as helm calls the archive.
func (c *chart) String() string { return c.name + "-" + c.version }

var errNoChart = errors.New("not there")

// find gives the chart that a source means, with its files known to the repository. A version stands for itself, with or without v; a range for
// the newest that is there, without pre-releases (as argo-cd 3.2 util/versions and helm's IndexFile.Get do among what a registry has).
// The error is an errNoChart where there is none.
func (c *Charts) find(r *git.Repository, s *plugin.Source) (*chart, error) {
	name, revision := path.Base(s.Chart), s.TargetRevision
	if revision == "" {
		revision = "*"
	}
	versions := slices.Clone(c.packed[name])
	unpacked := filepath.Join(c.dir, name)
	about, err := aboutChart(os.ReadFile(filepath.Join(unpacked, "Chart.yaml")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", unpacked, err)
	}
	if err == nil && about.Name == name {
		versions = append(versions, about.Version)
	}
	version, ok := newest(versions, revision)
	if !ok {
		return nil, errNoChart
	}
	file := filepath.Join(c.dir, name+"-"+version+".tgz")
	if !slices.Contains(c.packed[name], version) {
		file = unpacked
	}
	type result struct {
		chart *chart
		err   error
	}
	load, _ := c.loaded.LoadOrStore(file, sync.OnceValue(func() result {
		out, err := read(r, file, name, version)
		return result{out, err}
	}))
	got := load.(func() result)()
	return got.chart, got.err
}

// newest gives the version of a list that a revision means.
func newest(versions []string, revision string) (string, bool) {
	if slices.Contains(versions, revision) {
		return revision, true
	}
	allowed, err := semver.NewConstraint(revision)
	if err != nil {
		return "", false
	}
	best, found := "", (*semver.Version)(nil)
	for _, text := range versions {
		if v, err := semver.NewVersion(text); err == nil && allowed.Check(v) && (found == nil || v.GreaterThan(found)) {
			best, found = text, v
		}
	}
	return best, found != nil
}

func aboutChart(text []byte, err error) (about struct{ Name, Version string }, _ error) {
	if err != nil {
		return about, err
	}
	if err := yaml.Unmarshal(text, &about); err != nil {
		return about, fmt.Errorf("read Chart.yaml: %w", err)
	}
	return about, nil
}

// read takes the files of a chart, packed or not.
func read(r *git.Repository, file, name, version string) (*chart, error) {
	info, err := os.Lstat(file)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		// What it leads to may be in the repository, as it is at the head.
		return nil, fmt.Errorf("%s is a symlink: put the chart itself there", file)
	}
	files, err := filesOf(file, info.IsDir())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	about, err := aboutChart(files["Chart.yaml"], nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if about.Name != name || about.Version != version {
		return nil, fmt.Errorf("%s is chart %s %s, and not what its name says: pull it again", file, about.Name, about.Version)
	}
	folder, err := r.Overlay("", files)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &chart{name, version, folder}, nil
}

func filesOf(file string, unpacked bool) (map[string][]byte, error) {
	files := map[string][]byte{}
	if unpacked {
		return files, fs.WalkDir(os.DirFS(file), ".", func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			if !e.Type().IsRegular() {
				return fmt.Errorf("%s is no file: give the chart packed", name)
			}
			files[name], err = fs.ReadFile(os.DirFS(file), name)
			return err
		})
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	packed, err := loader.LoadArchiveFiles(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	for _, p := range packed {
		if !fs.ValidPath(p.Name) || p.Name == "." {
			return nil, fmt.Errorf("it has a file named %q", p.Name)
		}
		files[p.Name] = bytes.Clone(p.Data)
	}
	return files, nil
}

// mounted is the folder of a tree in which charts of registries are rendered, beside the value files that the tree may have for them.
const mounted = ".charts of registries"

// pull is the command that gets a chart.
func pull(s *plugin.Source, dir string) string {
	if dir == "" {
		dir = "DIR"
	}
	version := ""
	if s.TargetRevision != "" {
		version = " --version " + quoted(s.TargetRevision)
	}
	if rest, ok := strings.CutPrefix(s.RepoURL, "oci://"); ok || !strings.Contains(s.RepoURL, "://") {
		return fmt.Sprintf("helm pull oci://%s/%s%s -d %s", strings.TrimRight(rest, "/"), s.Chart, version, quoted(dir))
	}
	return fmt.Sprintf("helm pull --repo %s %s%s -d %s", quoted(s.RepoURL), s.Chart, version, quoted(dir))
}

// quoted is a word as a shell reads it.
func quoted(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:+@%=,") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (g *Gate) chartsDir() string {
	if g.Charts == nil {
		return ""
	}
	return g.Charts.dir
}

// chartRoot makes the root of a source that is a chart of a registry, with the tree that it is rendered in. The error is that of Charts.find
// where there is no such chart.
func (b *building) chartRoot(a *app, s *appSource) (r *root, tree *git.Tree, err error) {
	c, err := b.gate.Charts.find(b.gate.Repository, &s.Source)
	if err != nil {
		return nil, nil, err
	}
	id, err := b.gate.Repository.Mount(b.side.tree.ID, mounted, c.String(), c.folder)
	if err != nil {
		return nil, nil, err
	}
	r = &root{application: a.name, cluster: a.cluster, dir: path.Join(mounted, c.String()), path: a.found.Path, line: a.found.Line, options: s.options, broken: s.broken, chart: c.String()}
	// Two registries, or two paths of one, may have charts of one name, and the folder has one of them.
	from := strings.TrimSuffix(canonical(s.RepoURL), "/") + "/" + s.Chart
	if other, ok := b.side.charts[r.chart]; !ok {
		b.side.charts[r.chart] = from
	} else if other != from && r.broken == nil {
		r.broken = fmt.Errorf("chart %s comes from %s and from %s here, and %s has one of them", c, other, from, b.gate.Charts.dir)
	}
	return r, b.gate.Repository.Tree(id), nil
}

// registries says of charts that come from another registry than before: their files may be others, and the folder has only one of the two.
func (j *judgement) registries() {
	for _, r := range j.head.roots {
		if r.chart == "" {
			continue
		}
		if before, ok := j.base.charts[r.chart]; ok && before != j.head.charts[r.chart] {
			j.report.Findings = append(j.report.Findings, Finding{Verdict: Unknown, Application: r.application, Cluster: r.cluster, Path: r.path, Line: r.line,
				Message: fmt.Sprintf("%s: chart %s came from %s and comes from %s now, and %s has one of them: see that both are the same, and merge this by hand", r, r.chart, before, j.head.charts[r.chart], j.gate.Charts.dir)})
		}
	}
}
