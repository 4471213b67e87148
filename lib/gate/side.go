package gate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/gate/applications"
	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/render"
	"github.com/grantfirst/grantfirst/plugin"
)

// root is one thing to render: a source of an Application, or a folder.
type root struct {
	// application is its name as messages have it, empty for a folder without one; cluster is where it goes.
	application, cluster string
	dir                  string
	options              render.Options
	closure              *closure
	// key addresses all that the render depends on; with the cluster it says which roots are the same on both sides.
	key string
	// chart is the one of a registry that it is, NAME-VERSION. Its files are in no repository.
	chart string
	// broken says why it cannot be rendered whatever is in it.
	broken error
	// path and line are where the Application stands.
	path string
	line int
}

func (r *root) placed() string { return r.cluster + "\x00" + r.key }

// String names the root in messages.
func (r *root) String() string {
	if r.application == "" {
		return r.dir
	}
	if r.chart != "" {
		return fmt.Sprintf("Application %s (chart %s)", r.application, r.chart)
	}
	return fmt.Sprintf("Application %s (%s)", r.application, r.dir)
}

// side is one tree with all its roots.
type side struct {
	tree  *git.Tree
	roots []*root
	// placed has the roots by what they are.
	placed map[string]*root
	// unknown is what could not be expanded.
	unknown []Finding
	// elsewhere are the sources in other repositories, by the Application and the source itself.
	elsewhere map[string]elsewhere
	// charts are the registries that charts come from, by NAME-VERSION.
	charts map[string]string
}

// elsewhere is a source of an Application that is not in this repository.
type elsewhere struct {
	application, set, what, path string
	line                         int
	// pull says how to get it, where it is a chart of a registry; broken why it cannot be read though it is there.
	pull   string
	broken error
	// revision is the one of this repository that is not in this clone.
	revision string
}

// passesOver: nobody wants to know about it.
func (g *Gate) passesOver(e *elsewhere) bool {
	return g.ignores(e.application) || e.set != "" && g.ignores(e.set)
}

// sides remembers the trees that were looked at last.
type sides struct {
	mu    sync.Mutex
	known map[string]*lazySide
	order []string
}

type lazySide struct {
	once sync.Once
	side *side
	err  error
}

// maxSides is how many trees are remembered: in a history each is the head of one step and the base of the next.
const maxSides = 32

func (g *Gate) side(ctx context.Context, tree string) (*side, error) {
	g.sides.mu.Lock()
	l, ok := g.sides.known[tree]
	if !ok {
		if g.sides.known == nil {
			g.sides.known = map[string]*lazySide{}
		}
		if len(g.sides.order) == maxSides {
			delete(g.sides.known, g.sides.order[0])
			g.sides.order = g.sides.order[1:]
		}
		l = &lazySide{}
		g.sides.known[tree] = l
		g.sides.order = append(g.sides.order, tree)
	}
	g.sides.mu.Unlock()
	l.once.Do(func() { l.side, l.err = g.newSide(ctx, g.Repository.Tree(tree)) })
	return l.side, l.err
}

func (g *Gate) newSide(ctx context.Context, tree *git.Tree) (*side, error) {
	s := &side{tree: tree, placed: map[string]*root{}, elsewhere: map[string]elsewhere{}, charts: map[string]string{}}
	b := &building{gate: g, side: s, repository: g.applicationsIn(tree), named: map[string]bool{}}
	var err error
	if len(g.Paths) > 0 {
		err = b.fromPaths(ctx)
	} else {
		err = b.fromManifests(ctx)
	}
	return s, err
}

func (g *Gate) applicationsIn(tree *git.Tree) *applications.Repository {
	return &applications.Repository{Tree: tree, Own: g.isOwn, Branch: func(revision string) bool { return isBranch(g.Repository, revision) }}
}

// isOwn reports whether a repoURL means this repository. Where the repository has no name, any may be it.
func (g *Gate) isOwn(url string) bool {
	return len(g.own) == 0 || g.own[canonical(url)]
}

// building finds the roots of one tree.
type building struct {
	gate       *Gate
	side       *side
	repository *applications.Repository
	// named are the Applications that roots print, and printing those roots.
	named    map[string]bool
	printing []*root
	// foreign counts the sources that are not in this repository, and similar those that may be all the same.
	foreign, similar int
}

func (b *building) fromPaths(ctx context.Context) error {
	for _, p := range b.gate.Paths {
		if _, err := b.side.tree.Stat(p); errors.Is(err, fs.ErrNotExist) {
			continue // it may be there on the other side
		} else if err != nil {
			return err
		}
		b.follow(ctx, b.gate.folder(b.side.tree, p))
	}
	return nil
}

// folder is a root that no Application deploys.
func (g *Gate) folder(tree *git.Tree, dir string) *root {
	r := &root{dir: dir, path: dir, options: render.Options{Namespace: g.Namespace, KubeVersion: g.KubeVersion, APIVersions: g.APIVersions}}
	g.address(tree, r)
	return r
}

// address finds out what the root can read and makes its key.
func (g *Gate) address(tree *git.Tree, r *root) {
	r.closure = g.closureOf(tree, r.dir, &r.options)
	options, _ := json.Marshal(r.options)
	broken := ""
	if r.broken != nil {
		broken = r.broken.Error()
	}
	r.key = digest(r.dir + "\x00" + string(options) + "\x00" + broken + "\x00" + r.closure.key())
}

// follow takes a root, and the Applications that it prints.
func (b *building) follow(ctx context.Context, r *root) {
	if _, known := b.side.placed[r.placed()]; known {
		return
	}
	b.side.placed[r.placed()] = r
	b.side.roots = append(b.side.roots, r)
	if r.broken != nil || !b.gate.mayHave(r, "argoproj") || !b.gate.mayHave(r, "Application") {
		return
	}
	rendered := b.gate.render(r)
	if rendered.err != nil || len(rendered.applications) == 0 {
		return // what cannot be rendered is judged later
	}
	b.printing = append(b.printing, r)
	for _, doc := range rendered.applications {
		found, unknown := b.inDocument(doc)
		for _, a := range found {
			b.named[a.found.Namespace+"/"+a.found.Name] = true
			b.take(ctx, a)
		}
		for _, u := range unknown {
			b.unknown(u)
		}
	}
}

// app is a found Application, read as far as that does not depend on the tree.
type app struct {
	found   applications.Found
	name    string
	cluster string
	sources []appSource
	err     error
}

type appSource struct {
	plugin.Source
	options render.Options
	broken  error
}

// inDocument gives the Applications of one document. What is written as such depends on nothing else and is read once.
func (b *building) inDocument(doc document) ([]*app, []applications.Unknown) {
	key := fmt.Sprintf("%s %d %s", digest(string(doc.text)), doc.line, doc.path)
	if known, ok := b.gate.manifest.found.Load(key); ok {
		return known.([]*app), nil
	}
	found, unknown := b.repository.InStream(doc.text, doc.path)
	var out []*app
	for _, f := range found {
		f.Line += doc.line
		out = append(out, b.gate.readApplication(f))
	}
	for i := range unknown {
		unknown[i].Line += doc.line
	}
	if !doc.set && len(unknown) == 0 {
		b.gate.manifest.found.Store(key, out)
	}
	return out, unknown
}

func (b *building) unknown(u applications.Unknown) {
	b.cannot(Finding{Path: u.Path, Line: u.Line, set: strings.TrimPrefix(u.Object, "ApplicationSet "), manifest: u.Manifest, Message: fmt.Sprintf("%s cannot be expanded: %s", u.Object, u.Why)})
}

// cannot notes what could not be told, once: it may stand in a file and be printed by a root as well.
func (b *building) cannot(f Finding) {
	f.Verdict = Unknown
	if !slices.ContainsFunc(b.side.unknown, func(o Finding) bool {
		return o.Path == f.Path && o.Application == f.Application && o.Message == f.Message
	}) {
		b.side.unknown = append(b.side.unknown, f)
	}
}

// fromManifests takes the Applications of the tree, or else every folder that can be rendered.
func (b *building) fromManifests(ctx context.Context) error {
	files := b.gate.manifest.files(b.gate.Repository, b.side.tree.ID)
	var all []*app
	var unknown []applications.Unknown
	for _, f := range files {
		found, u := b.inFile(f)
		all, unknown = append(all, found...), append(unknown, u...)
	}
	if len(all)+len(unknown) == 0 {
		if b.discoverPrinting(ctx); len(b.printing) == 0 {
			b.discover(ctx)
		}
		return nil
	}
	// What a root that prints Applications reads counts as it prints it: a base of an overlay is none by itself. Those are known only when
	// all have been followed, so what they make superfluous is taken back.
	type mine struct {
		*app
		roots []*root
	}
	var taken []mine
	for _, f := range all {
		from := len(b.side.roots)
		b.take(ctx, f)
		taken = append(taken, mine{f, slices.Clone(b.side.roots[from:])})
	}
	b.discoverPrinting(ctx)
	gone := map[*root]bool{}
	for _, t := range taken {
		if b.read(t.found.Path) && !b.named[t.found.Namespace+"/"+t.found.Name] {
			for _, r := range t.roots {
				gone[r] = true
			}
			maps.DeleteFunc(b.side.elsewhere, func(_ string, e elsewhere) bool { return e.path == t.found.Path && e.line == t.found.Line })
		}
	}
	b.side.roots = slices.DeleteFunc(b.side.roots, func(r *root) bool { return gone[r] })
	maps.DeleteFunc(b.side.placed, func(_ string, r *root) bool { return gone[r] })
	for _, u := range unknown {
		if !b.read(u.Path) {
			b.unknown(u)
		}
	}
	if len(b.side.roots) == 0 && b.foreign > 0 && len(b.side.unknown) == b.similar {
		return fmt.Errorf("%w: %d sources of Applications, and none has a repoURL of this repository (%s): name it as the Applications do with --repo-url", ErrNothing,
			b.foreign, cmp.Or(strings.Join(slices.Sorted(maps.Keys(b.gate.own)), ", "), "it has no remote"))
	}
	return nil
}

// read reports whether a root that prints Applications has a file among what it reads.
func (b *building) read(file string) bool {
	return slices.ContainsFunc(b.printing, func(r *root) bool { return !r.closure.above[file] && r.closure.covers(file) })
}

// inFile gives the Applications of one file.
func (b *building) inFile(f fileRef) (found []*app, unknown []applications.Unknown) {
	key := f.path + "\x00" + f.blob
	docs, ok := b.gate.manifest.documents.Load(key)
	if !ok {
		text, err := b.side.tree.ReadFile(f.path)
		if err == nil {
			docs, err = applicationDocuments(text, f.path)
		}
		if err != nil {
			return nil, []applications.Unknown{{Path: f.path, Line: 1, Object: f.path, Why: err.Error()}}
		}
		b.gate.manifest.documents.Store(key, docs)
	}
	for _, doc := range docs.([]document) {
		f, u := b.inDocument(doc)
		found, unknown = append(found, f...), append(unknown, u...)
	}
	return found, unknown
}

// document is one with Applications or ApplicationSets in it; line is how many lines are before its text.
type document struct {
	text []byte
	path string
	line int
	set  bool
}

// applicationDocuments picks out of a stream what Argo CD's own kinds are in.
func applicationDocuments(text []byte, path string) ([]document, error) {
	if !textMayHave(text, "argoproj") || !textMayHave(text, "Application") {
		return nil, nil
	}
	stream, err := manifest.Parse(text)
	if errors.Is(err, manifest.ErrEmpty) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return documentsOf(stream, func(int) (string, int) { return path, 0 })
}

// documentsOf picks them out of a parsed stream; at gives the file that a line of the stream is in, and how many lines are before that file's.
func documentsOf(stream *manifest.Stream, at func(line int) (string, int)) ([]document, error) {
	var out []document
	for _, doc := range stream.Documents {
		if !doc.MayHave("argoproj") || !doc.MayHave("Application") {
			continue
		}
		heads, err := doc.Heads()
		if err != nil {
			return nil, err
		}
		d := document{text: doc.Raw}
		is := false
		for _, h := range heads {
			if h.Group() == "argoproj.io" && (h.Kind == "Application" || h.Kind == "ApplicationSet") {
				is, d.set = true, d.set || h.Kind == "ApplicationSet"
			}
		}
		if is {
			var before int
			d.path, before = at(doc.Line)
			d.line = firstLine(doc) - 1 - before
			out = append(out, d)
		}
	}
	return out, nil
}

// firstLine is the line of the stream that the document's text begins with: Line is that of its first content.
func firstLine(doc *manifest.Document) int {
	line := doc.Line
	for text := range bytes.Lines(doc.Raw) {
		if t := bytes.TrimSpace(text); len(t) > 0 && t[0] != '#' {
			break
		}
		line--
	}
	return line
}

// readApplication finds out all about an Application that its tree does not matter for.
func (g *Gate) readApplication(f applications.Found) *app {
	out := &app{found: f, name: f.Name}
	if f.Namespace != "" && f.Namespace != g.controlPlane() {
		out.name = f.Namespace + "/" + f.Name
	}
	a, err := g.application(f)
	if err != nil {
		out.err = err
		return out
	}
	sources := a.Spec.Sources
	if len(sources) == 0 && a.Spec.Source != nil {
		sources = []plugin.Source{*a.Spec.Source}
	}
	if len(sources) == 0 {
		out.err = errors.New("it has no source")
	}
	out.cluster = g.clusterOf(a)
	for i, s := range sources {
		if s.Ref != "" && s.Path == "" && s.Chart == "" {
			continue // it only lends its files
		}
		source := appSource{Source: s}
		source.options, source.broken = a.RenderOptions(i, g.controlPlane(), noRevision)
		source.options.KubeVersion, source.options.APIVersions = g.KubeVersion, g.APIVersions
		if i := slices.IndexFunc(source.options.ValueFiles, render.IsGlob); i >= 0 && source.broken == nil {
			source.broken = fmt.Errorf("value file %s: Argo CD v3.4 and later take it for a glob, older ones for a name, and it is not read here: name the files", source.options.ValueFiles[i])
		}
		if s.Plugin != nil && s.Plugin.Name != "" && s.Plugin.Name != "grantfirst" && !strings.HasPrefix(s.Plugin.Name, "grantfirst-v") {
			source.broken = fmt.Errorf("it is rendered by plugin %s, which is not run here", s.Plugin.Name)
		}
		out.sources = append(out.sources, source)
	}
	return out
}

// take makes the roots of one Application.
func (b *building) take(ctx context.Context, a *app) {
	if a.err != nil {
		b.cannot(Finding{Application: a.name, Path: a.found.Path, Line: a.found.Line, Message: fmt.Sprintf("Application %s: %v", a.name, a.err)})
		return
	}
	for i := range a.sources {
		s := &a.sources[i]
		tree, ok := b.treeOf(&s.Source)
		if !ok {
			e := elsewhere{application: a.name, set: a.found.Set, what: sourceName(&s.Source), path: a.found.Path, line: a.found.Line}
			if s.Chart != "" && b.gate.Charts != nil {
				r, tree, err := b.chartRoot(a, s)
				if err == nil {
					b.gate.address(tree, r)
					b.follow(ctx, r)
					continue
				}
				if !errors.Is(err, errNoChart) {
					e.broken = err
				}
			}
			if s.Chart != "" {
				e.pull = pull(&s.Source, b.gate.chartsDir())
			}
			if s.Chart == "" && b.gate.isOwn(s.RepoURL) {
				e.revision = s.TargetRevision
			}
			b.foreign++
			if b.looksOwn(&s.Source) && !b.gate.passesOver(&e) {
				b.similar++
				b.cannot(Finding{Application: a.name, Path: a.found.Path, Line: a.found.Line, Message: fmt.Sprintf(
					"Application %s: %s is not one of this repository's URLs, but has its name, and the path is here: say so with --repo-url %[2]s, or pass over what is elsewhere with --elsewhere ignore", a.name, s.RepoURL)})
			}
			b.side.elsewhere[a.name+"\x00"+s.Raw] = e
			continue
		}
		r := &root{application: a.name, cluster: a.cluster, dir: path.Clean(cmp.Or(strings.TrimLeft(s.Path, "/"), ".")), path: a.found.Path, line: a.found.Line, options: s.options, broken: s.broken}
		if name := overriding(tree, r.dir, strings.ReplaceAll(a.name, "/", "_")); name != "" && r.broken == nil {
			r.broken = fmt.Errorf("%s: Argo CD merges it into the source, which is not done here: look at what it changes yourself", name)
		}
		b.gate.address(tree, r)
		b.follow(ctx, r)
	}
}

// overriding gives the file that Argo CD merges into a source, which Image Updater writes; empty where there is none (argo-cd v2.14
// reposerver/repository/repository.go mergeSourceParameters). Outside Argo CD's namespace an Application goes by namespace_name.
func overriding(tree *git.Tree, dir, application string) string {
	for _, name := range []string{".argocd-source.yaml", ".argocd-source-" + application + ".yaml"} {
		if _, err := tree.Stat(path.Join(dir, name)); err == nil {
			return path.Join(dir, name)
		}
	}
	return ""
}

// looksOwn: a repository of the same name, with the path of the source in this tree, may well be this one by another URL.
func (b *building) looksOwn(s *plugin.Source) bool {
	if s.Chart != "" || s.Path == "" || b.gate.isOwn(s.RepoURL) {
		return false
	}
	if _, err := b.side.tree.Stat(path.Clean(strings.TrimLeft(s.Path, "/"))); err != nil {
		return false
	}
	for own := range b.gate.own {
		if path.Base(own) == path.Base(canonical(s.RepoURL)) {
			return true
		}
	}
	return false
}

// sourceName says where a source is that is not here.
func sourceName(s *plugin.Source) string {
	what := s.RepoURL
	switch {
	case s.Chart != "":
		what += " chart " + s.Chart
	case s.Path != "":
		what += " path " + s.Path
	}
	if s.TargetRevision != "" {
		what += " at " + s.TargetRevision
	}
	return what
}

// noRevision stands for the commit in the build environment ($ARGOCD_APP_REVISION): with the real one every commit would change everything.
const noRevision = "0000000000000000000000000000000000000000"

func (g *Gate) controlPlane() string { return cmp.Or(g.Config.ArgoCDNamespace, "argocd") }

// application reads a found Application. Value files of another source of this repository ($ref/…) become those of the repository, and a
// dry source of the source hydrator is what it renders.
func (g *Gate) application(f applications.Found) (*plugin.Application, error) {
	spec := maps.Clone(f.Spec)
	if hydrator, ok := spec["sourceHydrator"].(map[string]any); ok && spec["source"] == nil {
		spec["source"] = hydrator["drySource"]
		delete(spec, "sourceHydrator")
	}
	if sources, ok := spec["sources"].([]any); ok {
		spec["sources"] = g.withoutRefs(sources)
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
		"metadata": map[string]any{"name": f.Name, "namespace": f.Namespace}, "spec": spec,
	})
	if err != nil {
		return nil, err
	}
	a := &plugin.Application{}
	return a, applications.Unquoted(json.Unmarshal(text, a))
}

func (g *Gate) withoutRefs(sources []any) []any {
	own := map[string]bool{}
	for _, s := range sources {
		source, _ := s.(map[string]any)
		ref, _ := source["ref"].(string)
		url, _ := source["repoURL"].(string)
		if revision, _ := source["targetRevision"].(string); ref != "" && g.isOwn(url) && isBranch(g.Repository, revision) {
			own["$"+ref] = true
		}
	}
	out := slices.Clone(sources)
	for i, s := range sources {
		source, _ := s.(map[string]any)
		helm, _ := source["helm"].(map[string]any)
		files, _ := helm["valueFiles"].([]any)
		if len(own) == 0 || len(files) == 0 {
			continue
		}
		helm, source, files = maps.Clone(helm), maps.Clone(source), slices.Clone(files)
		for j, f := range files {
			name, _ := f.(string)
			if ref, rest, ok := strings.Cut(name, "/"); ok && own[ref] {
				files[j] = "/" + rest
			}
		}
		helm["valueFiles"], source["helm"], out[i] = files, helm, source
	}
	return out
}

// treeOf gives the tree that a source is rendered from: this one, or that of a tag or commit that it is fixed to.
func (b *building) treeOf(s *plugin.Source) (*git.Tree, bool) {
	if s.Chart != "" || !b.gate.isOwn(s.RepoURL) {
		return nil, false
	}
	if isBranch(b.gate.Repository, s.TargetRevision) {
		return b.side.tree, true
	}
	if c, err := b.gate.Repository.Commit("refs/tags/" + s.TargetRevision); err == nil {
		return b.gate.Repository.Tree(c.Tree), true
	}
	if c, err := b.gate.Repository.Commit(s.TargetRevision); err == nil && isCommit(s.TargetRevision) {
		return b.gate.Repository.Tree(c.Tree), true
	}
	return nil, false
}

// isBranch: the revision follows a branch, which this change will be merged into now or later.
func isBranch(r *git.Repository, revision string) bool {
	if revision == "" || revision == "HEAD" || strings.HasPrefix(revision, "refs/heads/") {
		return true
	}
	// A tag may not have been fetched, and what is called like a version is more often one than a branch.
	if strings.HasPrefix(revision, "refs/") || version.MatchString(revision) && !r.IsBranch(revision) {
		return false
	}
	return !isCommit(revision) && !strings.ContainsAny(revision, "*<>=~^ ") && !r.IsTag(revision)
}

var version = regexp.MustCompile(`^v?[0-9]+(\.[0-9]+)*([-+.].*)?$`)

func isCommit(revision string) bool {
	return len(revision) >= 7 && len(revision) <= 64 && strings.Trim(revision, "0123456789abcdef") == ""
}

// clusterOf names the cluster that an Application deploys to: as the configuration does, else by its destination.
func (g *Gate) clusterOf(a *plugin.Application) string {
	d := config.Destination{Server: a.Spec.Destination.Server, Name: a.Spec.Destination.Name}
	if d == (config.Destination{}) {
		return ""
	}
	c, err := g.Config.Cluster(config.Placement{Project: a.Spec.Project, Application: a.Metadata.Name, Destination: &d})
	if err == nil {
		return c.Name
	}
	return cmp.Or(d.Server, d.Name)
}

// manifests remembers where Applications stand.
type manifests struct {
	trees, documents, found, kinds sync.Map
}

type fileRef struct{ path, blob string }

// files gives the files of a tree that may have Applications in them, but for the templates of charts.
func (m *manifests) files(r *git.Repository, tree string) []fileRef {
	if known, ok := m.trees.Load(tree); ok {
		return known.([]fileRef)
	}
	entries, err := r.Entries(tree)
	if err != nil {
		return nil // reading it says so
	}
	chart := slices.ContainsFunc(entries, func(e git.Entry) bool { return e.Name == "Chart.yaml" })
	var out []fileRef
	for _, e := range entries {
		switch e.Kind {
		case git.Folder:
			if chart && (e.Name == "templates" || e.Name == "charts") {
				continue
			}
			for _, f := range m.files(r, e.ID) {
				out = append(out, fileRef{e.Name + "/" + f.path, f.blob})
			}
		case git.File, git.Executable:
			if isManifestName(e.Name) && m.mayBeApplication(r, e.ID) {
				out = append(out, fileRef{e.Name, e.ID})
			}
		}
	}
	m.trees.Store(tree, out)
	return out
}

func isManifestName(name string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func (m *manifests) mayBeApplication(r *git.Repository, blob string) bool {
	if known, ok := m.kinds.Load(blob); ok {
		return known.(bool)
	}
	data, err := r.Blob(blob)
	is := err != nil
	if err == nil && textMayHave(data, "argoproj") && textMayHave(data, "Application") {
		docs, err := applicationDocuments(data, "")
		// What is not YAML and does not even name the kind on a line is something else.
		is = len(docs) > 0 || err != nil && bytes.Contains(data, []byte("kind: Application"))
	}
	m.kinds.Store(blob, is)
	return is
}
