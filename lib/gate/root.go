package gate

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/render"
)

// rendered is what the gate keeps of a render.
type rendered struct {
	// err says why there is none; line is that of the file path where it is known.
	err  error
	path string
	line int

	demands      []found
	unread       []unread
	policies     []policyObject
	applications []document
}

// found is a demand of a render.
type found struct {
	demand.Demand
	// text is the digest of its document.
	text string
	// onDelete: it is in a hook that runs on deletion. hook: it is in a hook of any kind.
	onDelete, hook bool
	place          place
}

// place is where something stands: a file and a line, or only a hint where that has to be looked for.
type place struct {
	path string
	line int
	// source is the template of a chart, as helm names it.
	source string
}

// renders has every render that was made, by the root's key.
type renders struct {
	mu    sync.Mutex
	known map[string]*lazyRender
	count atomic.Int64
}

type lazyRender struct {
	once     sync.Once
	rendered *rendered
}

// render gives a root rendered; the same one is rendered once.
func (g *Gate) render(r *root) *rendered {
	g.renders.mu.Lock()
	l, ok := g.renders.known[r.key]
	if !ok {
		if g.renders.known == nil {
			g.renders.known = map[string]*lazyRender{}
		}
		l = &lazyRender{}
		g.renders.known[r.key] = l
	}
	g.renders.mu.Unlock()
	l.once.Do(func() {
		g.renders.count.Add(1)
		l.rendered = g.renderNow(r)
	})
	return l.rendered
}

// renderAll renders several roots at once, each once.
func (g *Gate) renderAll(ctx context.Context, roots []*root) error {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(len(roots), parallel()) {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(roots) {
					return
				}
				if roots[i].broken == nil {
					g.render(roots[i])
				}
			}
		})
	}
	workers.Wait()
	return ctx.Err()
}

func (g *Gate) renderNow(r *root) *rendered {
	out := &rendered{path: r.dir}
	files := &confined{Tree: r.closure.tree, closure: r.closure}
	result, err := render.Render(files, r.dir, r.options)
	if files.outside != "" {
		// Whatever came out, it may depend on what is not in the key.
		err = fmt.Errorf("%s: it reads %s, which it was not known to depend on: please report this", r.dir, files.outside)
	}
	if err != nil {
		out.err = err
		return out
	}
	stream, err := manifest.Parse(result.Stream)
	if errors.Is(err, manifest.ErrEmpty) {
		return out
	}
	if err == nil {
		err = out.read(g, r, stream, result)
	}
	if err != nil {
		out.err = err
		var e *manifest.Error
		if errors.As(err, &e) {
			if p, before := at(result.Origins, e.Line); p != "" {
				out.path, out.line = p, e.Line-before
			}
		}
	}
	return out
}

// read takes out of a stream what the gate needs of it.
func (out *rendered) read(g *Gate, r *root, stream *manifest.Stream, result *render.Result) error {
	demands, err := demand.InStream(stream, r.options.Namespace)
	if err != nil {
		return err
	}
	for _, doc := range stream.Documents {
		n := slices.IndexFunc(demands, func(d demand.Demand) bool { return d.Document != doc.Number })
		if n < 0 {
			n = len(demands)
		}
		own := demands[:n]
		demands = demands[n:]
		more, err := g.unreadIn(doc, r.options.Namespace)
		if err != nil {
			return err
		}
		if err := out.inDocument(doc, own, more, result); err != nil {
			return err
		}
	}
	if out.policies, err = g.policiesIn(stream, r.options.Namespace); err != nil {
		return err
	}
	for i := range out.policies {
		doc := stream.Documents[out.policies[i].document-1]
		if p, before := at(result.Origins, doc.Line); p != "" {
			out.policies[i].place = place{path: p, line: doc.Line - before}
		}
	}
	out.applications, err = documentsOf(stream, func(line int) (string, int) {
		if p, before := at(result.Origins, line); p != "" {
			return p, before
		}
		// The lines of what a tool prints are in no file.
		if r.chart != "" {
			return r.path, line - max(r.line, 1)
		}
		return r.dir, line
	})
	return err
}

// inDocument takes the demands of one document.
func (out *rendered) inDocument(doc *manifest.Document, demands []demand.Demand, more []unread, result *render.Result) error {
	if len(demands)+len(more) == 0 {
		return nil
	}
	heads, err := doc.Heads()
	if err != nil {
		return err
	}
	p, before := at(result.Origins, doc.Line)
	var lines []int
	if p != "" {
		lines = demandLines(doc.Raw, demands, more)
	}
	text, source := digest(string(doc.Raw)), helmSource(doc.Raw)
	all := slices.Clone(demands)
	for i := range more {
		all = append(all, more[i].Demand)
	}
	for i, d := range all {
		annotations := heads[d.Item].Annotations
		never, onDelete := hold.Hook(annotations)
		if never {
			continue // its author keeps Argo CD from applying it
		}
		at := place{source: source}
		if p != "" {
			at = place{path: p, line: firstLine(doc) - before + lines[i]}
		}
		if i >= len(demands) && !more[i-len(demands)].readable {
			u := more[i-len(demands)]
			u.place = at
			out.unread = append(out.unread, u)
			continue
		}
		out.demands = append(out.demands, found{Demand: d, text: text, onDelete: onDelete, hook: annotations["argocd.argoproj.io/hook"]+annotations["helm.sh/hook"] != "", place: at})
	}
	return nil
}

// at gives the file that a line of the stream is in, and how many lines of the stream are before it.
func at(origins []render.Origin, line int) (string, int) {
	for _, o := range slices.Backward(origins) {
		if o.Line <= line {
			return o.Path, o.Line - 1
		}
	}
	return "", 0
}

// helmSource is the template that helm says a document is from.
func helmSource(raw []byte) string {
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(line, "# Source: "); ok {
			return strings.TrimSpace(name)
		}
		if t := strings.TrimSpace(line); t != "" && t[0] != '#' {
			break
		}
	}
	return ""
}

// discover takes every folder that can be rendered and that no other one refers to.
func (b *building) discover(ctx context.Context) {
	tools, plain := b.discovered()
	for _, dir := range slices.Concat(tools, plain) {
		b.follow(ctx, b.gate.folder(b.side.tree, dir))
	}
}

// discoverPrinting takes kustomizations and charts that print Applications and that no Application is known to deploy: somebody made the
// first one of an app of apps by hand.
func (b *building) discoverPrinting(ctx context.Context) {
	deployed := map[string]bool{}
	for _, r := range b.side.roots {
		deployed[r.dir] = true
	}
	tools, _ := b.discovered()
	for _, dir := range tools {
		if deployed[dir] || b.read(dir) {
			continue
		}
		r := b.gate.folder(b.side.tree, dir)
		if !b.gate.mayHave(r, "argoproj") || !b.gate.mayHave(r, "Application") {
			continue
		}
		if rendered := b.gate.render(r); rendered.err != nil || len(rendered.applications) > 0 {
			b.follow(ctx, r)
		}
	}
}

// discovered gives the folders that can be rendered, by a tool and as plain manifests, without those that another one refers to.
func (b *building) discovered() (tools, others []string) {
	var kustomizations, charts, plain []string
	b.folders(".", b.side.tree.ID, &kustomizations, &charts, &plain)
	referred := map[string]bool{}
	for _, dir := range kustomizations {
		real, e, _, err := b.side.tree.Resolve(dir)
		if err != nil || e.Kind != git.Folder {
			continue
		}
		entries, err := b.gate.Repository.Entries(e.ID)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if !isKustomization(e.Name) || e.Kind == git.Folder {
				continue
			}
			if b.isComponent(path.Join(real, e.Name)) {
				referred[dir] = true
			}
			for _, text := range b.gate.scans.references(b.gate.Repository, e.ID) {
				if name := path.Join(dir, text); name != dir && !path.IsAbs(text) {
					referred[name] = true
				}
			}
		}
	}
	within := func(dir string, above []string) bool {
		return slices.ContainsFunc(above, func(a string) bool { return a == "." || strings.HasPrefix(dir+"/", a+"/") })
	}
	for _, dir := range slices.Concat(kustomizations, charts, plain) {
		// A folder whose manifests a kustomization names is a part of that.
		if referred[dir] || slices.Contains(plain, dir) && (within(dir, kustomizations) || b.filesReferred(dir, referred)) {
			continue
		}
		if slices.Contains(plain, dir) {
			others = append(others, dir)
		} else {
			tools = append(tools, dir)
		}
	}
	return tools, others
}

func (b *building) filesReferred(dir string, referred map[string]bool) bool {
	for name := range referred {
		if path.Dir(name) == dir {
			return true
		}
	}
	return false
}

func (b *building) isComponent(file string) bool {
	data, err := b.side.tree.ReadFile(file)
	var k struct{ Kind string }
	return err == nil && yaml.Unmarshal(data, &k) == nil && k.Kind == "Component"
}

// folders sorts the folders of a tree by what they can be rendered as.
func (b *building) folders(dir, tree string, kustomizations, charts, plain *[]string) {
	entries, err := b.gate.Repository.Entries(tree)
	if err != nil {
		return
	}
	has := func(is func(string) bool) bool {
		return slices.ContainsFunc(entries, func(e git.Entry) bool { return e.Kind != git.Folder && is(e.Name) })
	}
	switch {
	case has(isKustomization):
		*kustomizations = append(*kustomizations, dir)
	case has(func(name string) bool { return name == "Chart.yaml" }):
		*charts = append(*charts, dir)
		return
	case has(isManifestName):
		*plain = append(*plain, dir)
	}
	for _, e := range entries {
		// Folders like .github hold no manifests.
		if e.Kind == git.Folder && !strings.HasPrefix(e.Name, ".") {
			b.folders(path.Join(dir, e.Name), e.ID, kustomizations, charts, plain)
		}
	}
}
