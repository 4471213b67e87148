package render

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/ignore"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"k8s.io/client-go/dynamic"
)

// defaultKubeVersion is what the helm command assumes without --kube-version: that of the client-go it was built with,
// which is that of this module (helm v3.22 Makefile, k8sVersionMinor).
const defaultKubeVersion = "v1.37.0"

// helm is "helm template" of the chart in dir as Argo CD runs it (v2.14 reposerver/repository/repository.go,
// helmTemplate): with --include-crds unless skipCrds, hooks and tests included. The steps are those of helm's own
// action.Install (v3.22 pkg/action/install.go), which itself would cost every start of the program 34 ms of CPU.
func helm(repo fs.FS, dir string, o *Options) (*Result, error) {
	name, err := o.releaseName()
	if err != nil {
		return nil, err
	}
	capabilities, err := o.capabilities()
	if err != nil {
		return nil, err
	}
	c, err := loadChart(repo, dir)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", dir, err)
	}
	values, err := o.helmValues(repo, dir)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", dir, err)
	}
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		return nil, fmt.Errorf("chart %s: dependencies: %w", dir, err)
	}
	if want := c.Metadata.KubeVersion; want != "" && !chartutil.IsCompatibleRange(want, capabilities.KubeVersion.Version) {
		return nil, fmt.Errorf("chart %s: its Chart.yaml wants kubeVersion %s, the Kubernetes version is %s", dir, want, capabilities.KubeVersion.Version)
	}
	installed := chartutil.ReleaseOptions{Name: name, Namespace: cmp.Or(o.OwnNamespace, o.Namespace, "default"), Revision: 1, IsInstall: true}
	top, err := chartutil.ToRenderValuesWithSchemaValidation(c, values, installed, capabilities, true)
	if err != nil {
		return nil, fmt.Errorf("chart %s: values: %w", dir, err)
	}
	if !o.SkipSchemaValidation {
		if err := validate(c, top["Values"]); err != nil {
			return nil, fmt.Errorf("chart %s: values do not fit values.schema.json: %w", dir, err)
		}
	}
	var called lookup
	files, err := engine.RenderWithClientProvider(c, top, &called)
	if called.what != "" {
		return nil, fmt.Errorf(`chart %s: a template calls lookup for %s, which has no answer when a chart is rendered from Git alone: switch that part of the chart off by its values, or pipe "helm template" into "grantfirst generate -" (%w)`, dir, called.what, err)
	}
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", dir, err)
	}
	stream, err := printChart(c, files, o)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", dir, err)
	}
	return &Result{Stream: stream}, nil
}

// releaseName is the Application's name without its namespace, as in Argo CD (v2.14 util/argo/argo.go,
// ParseInstanceName); outside Argo CD, without a name, it is helm's own "release-name".
func (o *Options) releaseName() (string, error) {
	name := o.ReleaseName
	if name == "" {
		name = o.Application
		if _, rest, ok := strings.Cut(name, "_"); ok {
			name = rest
		}
	}
	if name == "" {
		name = "release-name"
	}
	if err := chartutil.ValidateReleaseName(name); err != nil {
		return "", fmt.Errorf("helm release %q: %w; set the parameter releaseName", name, err)
	}
	return name, nil
}

func (o *Options) capabilities() (*chartutil.Capabilities, error) {
	version := cmp.Or(o.OwnKubeVersion, o.KubeVersion, defaultKubeVersion)
	// Like helm, ParseKubeVersion drops what follows the patch number: "+k3s1", and "k3s1" as Argo CD v2 passes it.
	v, err := chartutil.ParseKubeVersion(version)
	if err != nil {
		return nil, fmt.Errorf("version %q of Kubernetes: %w", version, err)
	}
	c := chartutil.DefaultCapabilities.Copy()
	c.KubeVersion = *v
	served := o.APIVersions
	if len(o.OwnAPIVersions) > 0 {
		// helm's --api-versions, by which Argo CD hands over each, takes a list.
		served = strings.Split(strings.Join(o.OwnAPIVersions, ","), ",")
	}
	c.APIVersions = slices.Concat(c.APIVersions, chartutil.VersionSet(served))
	return c, nil
}

// lookup stands where helm's template function of that name would ask a cluster. The error that it returns ends the
// rendering; "helm template" would go on with nothing found, and print manifests for a cluster that does not exist.
type lookup struct{ what string }

func (l *lookup) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	l.what = apiVersion + " " + kind
	return nil, false, errors.New("there is no cluster")
}

// loadChart reads a chart as helm reads a directory (v3.22 pkg/chart/loader/directory.go).
func loadChart(repo fs.FS, dir string) (*chart.Chart, error) {
	rules := ignore.Empty()
	switch text, err := readFile(repo, path.Join(dir, ignore.HelmIgnore)); {
	case err == nil:
		if rules, err = ignore.Parse(bytes.NewReader(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", ignore.HelmIgnore, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", ignore.HelmIgnore, err)
	}
	rules.AddDefaults()

	w := chartWalk{repo: repo, rules: rules}
	real, err := resolve(repo, dir)
	if err != nil {
		return nil, err
	}
	if err := w.walk(real, ""); err != nil {
		return nil, err
	}
	c, err := loader.LoadFiles(w.files)
	if err != nil {
		return nil, err
	}
	if t := c.Metadata.Type; t != "" && t != "application" {
		return nil, fmt.Errorf("a chart of type %s is for other charts to use and renders nothing itself", t)
	}
	if err := missingDependencies(c); err != nil {
		return nil, err
	}
	sortDependencies(c)
	return c, nil
}

// chartWalk collects the files of a chart in helm's order, following symlinks as long as they stay in the repository.
type chartWalk struct {
	repo  fs.FS
	rules *ignore.Rules
	files []*loader.BufferedFile
	// open are the directories being read, to find a link that leads back to one of them.
	open []string
}

// walk reads the directory that really lies at dir and is called name below the chart.
func (w *chartWalk) walk(dir, name string) error {
	if slices.Contains(w.open, dir) {
		return fmt.Errorf("%s: a symlink leads back to %s", name, dir)
	}
	w.open = append(w.open, dir)
	defer func() { w.open = w.open[:len(w.open)-1] }()

	list, err := fs.ReadDir(w.repo, dir)
	if err != nil {
		return err
	}
	for _, d := range list {
		called := path.Join(name, d.Name())
		// A commit has no .git, and no template asks for it.
		if called == ".git" {
			continue
		}
		at, info := path.Join(dir, d.Name()), fs.FileInfo(listed{d})
		if d.Type()&fs.ModeSymlink != 0 {
			if at, info, err = follow(w.repo, dir, d.Name()); err != nil {
				return fmt.Errorf("%s: %w", called, err)
			}
		}
		if w.rules.Ignore(called, info) {
			continue
		}
		if info.IsDir() {
			if err := w.walk(at, called); err != nil {
				return err
			}
			continue
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s: not a regular file", called)
		}
		data, err := fs.ReadFile(w.repo, at)
		if err != nil {
			return err
		}
		if int64(len(data)) > loader.MaxDecompressedFileSize {
			return fmt.Errorf("%s: helm takes files of at most %d bytes: name it in %s", called, loader.MaxDecompressedFileSize, ignore.HelmIgnore)
		}
		w.files = append(w.files, &loader.BufferedFile{Name: called, Data: bytes.TrimPrefix(data, bom)})
	}
	return nil
}

// listed is what a directory says of a file, which is all that .helmignore asks for, without a look at the file.
type listed struct{ fs.DirEntry }

func (l listed) Mode() fs.FileMode  { return l.Type() }
func (l listed) Size() int64        { return 0 }
func (l listed) ModTime() time.Time { return time.Time{} }
func (l listed) Sys() any           { return nil }

// missingDependencies is helm's action.CheckDependencies: also a dependency that its condition switches off must be
// there.
func missingDependencies(c *chart.Chart) error {
	for _, want := range c.Metadata.Dependencies {
		if slices.ContainsFunc(c.Dependencies(), func(d *chart.Chart) bool { return d.Name() == want.Name }) {
			continue
		}
		version := want.Version
		if c.Lock != nil {
			for _, locked := range c.Lock.Dependencies {
				if locked.Name == want.Name {
					version = locked.Version
				}
			}
		}
		return fmt.Errorf(`dependency %s of Chart.yaml is not in charts/, and nothing is fetched here: run "helm dependency build" and commit charts/%s-%s.tgz`, want.Name, want.Name, version)
	}
	return nil
}

// sortDependencies gives subcharts an order. helm's loader leaves them in that of a Go map, and prints their CRDs in it:
// different bytes on every run.
func sortDependencies(c *chart.Chart) {
	list := slices.Clone(c.Dependencies())
	slices.SortStableFunc(list, func(a, b *chart.Chart) int {
		if n := strings.Compare(a.Name(), b.Name()); n != 0 {
			return n
		}
		return strings.Compare(a.Metadata.Version, b.Metadata.Version)
	})
	c.SetDependencies(list...)
	for _, d := range list {
		sortDependencies(d)
	}
}

// printChart prints what the engine rendered as "helm template" does (v3.22 pkg/action/action.go, renderResources, and
// cmd/helm/template.go): CRDs, manifests in install order, hooks.
func printChart(c *chart.Chart, files map[string]string, o *Options) ([]byte, error) {
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(files, name)
		}
	}
	hooks, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	document := func(b *bytes.Buffer, source, text string) { fmt.Fprintf(b, "---\n# Source: %s\n%s\n", source, text) }
	var first, last bytes.Buffer
	if !o.SkipCRDs {
		for _, crd := range c.CRDObjects() {
			document(&first, crd.Filename, string(crd.File.Data))
		}
	}
	for _, m := range manifests {
		document(&first, m.Name, m.Content)
	}
	for _, h := range hooks {
		if o.SkipTests && slices.Contains(h.Events, release.HookTest) {
			continue
		}
		document(&last, h.Path, h.Manifest)
	}
	return slices.Concat(bytes.TrimSpace(first.Bytes()), []byte("\n"), last.Bytes()), nil
}
