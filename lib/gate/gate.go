// Package gate tells before a merge what would hang after it.
//
// In go two trees of a repository (the merge base and the head) and the admin's configuration, out come findings: for every certificate
// that a pod template asks for at the head, whether it was granted at the merge base already. A grant that arrives with the same change does
// not count, since it may be loaded too late. The package renders as the plugin does (lib/render, with the plugin's own reading of
// Applications), decides as the plugin does (lib/policy), touches no work tree and writes nothing. What it cannot tell is Unknown, never
// fine.
//
// Roots (what is rendered) are addressed by the content of all that they can read, so what both sides share is rendered once, and what a
// change does not touch is not rendered unless its policies or, where policies change, its demands are needed. docs/check.md is the
// reference for users.
package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// Verdict is what the gate says about one demand.
type Verdict string

// Verdicts.
const (
	// OK: granted at the merge base, and still at the head.
	OK Verdict = "ok"
	// Missing: granted nowhere.
	Missing Verdict = "missing"
	// Denied: a grant is there and refuses (key type, DNS names, usage, lifetime).
	Denied Verdict = "denied"
	// ShipsTogether: granted only at the head.
	ShipsTogether Verdict = "ships-together"
	// Revoked: the head takes away a grant that is still used, there or by what runs now.
	Revoked Verdict = "revoked-while-used"
	// Unprotected: a hook on deletion asks, which nothing can hold. A warning.
	Unprotected Verdict = "unprotected"
	// Unknown: it could not be told.
	Unknown Verdict = "unknown"
)

// Violates reports whether the verdict alone makes a change red.
func (v Verdict) Violates() bool {
	return v == Missing || v == Denied || v == ShipsTogether || v == Revoked
}

// Finding is one verdict, and where a person finds what it is about.
type Finding struct {
	Verdict        Verdict
	SignerName     string
	Namespace      string
	ServiceAccount string
	KeyType        string
	// Object and Volume are where the demand stands; Object.Kind is empty where an Unknown is not about an object.
	Object manifest.ID
	Volume string
	// Application is its name, empty for what is rendered without one. Cluster is its destination.
	Application, Cluster string
	// Path is a slash path below the repository root and Line counts from 1 in it; 0 where only the file is known.
	Path    string
	Line    int
	Message string
	// Existing: the object is the same at the merge base, and it was no better there, so this change makes nothing worse.
	Existing bool
	// Move says what to ship first, for ShipsTogether.
	Move []Move

	demand demand.Demand
	side   *side
	// set is the name of the ApplicationSet that could not be expanded, and manifest all of it.
	set, manifest string
	// behind: the target branch grants it by now.
	behind bool
}

// Move is a block of lines to move to a first merge request. From and To count from 1 in the file as it is at the head; they are 0 where
// lines must go, which are then those of the merge base.
type Move struct {
	Path     string
	From, To int
	Text     string
}

// Violates reports whether the finding makes the change red.
func (f *Finding) Violates() bool { return f.Verdict.Violates() && !f.Existing }

// Report is what became of one change.
type Report struct {
	// Base and Head are what was compared; Bases has all of several merge bases.
	Base, Head git.Commit
	Bases      []git.Commit
	Findings   []Finding
	// Rendered counts the renders that were made, Shared the roots that are the same on both sides.
	Rendered, Shared int
	// Elsewhere are sources of Applications that are not in this repository and the same on both sides.
	Elsewhere []string
}

// Violated reports whether the change must not be merged.
func (r *Report) Violated() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Violates() })
}

// Uncertain reports whether something could not be told.
func (r *Report) Uncertain() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Verdict == Unknown && !f.Existing })
}

// External decides demands for a signer whose policy objects are not in the repository.
type External interface {
	// Decide is the answer for a signer of the configuration; ok is false where nothing is known of that signer.
	Decide(ctx context.Context, s *config.Signer, d *demand.Demand) (a policy.Answer, ok bool)
}

// Gate judges changes of one repository. It is safe for concurrent use.
type Gate struct {
	Repository *git.Repository
	Config     *config.Config
	// Paths are what is rendered, slash paths below the root; where there are none, Applications are looked for, and where there are none of
	// those either, folders that can be rendered.
	Paths []string
	// Namespace is the destination of what no Application deploys.
	Namespace string
	// URLs are more names of this repository, as Applications may have it, beside those of its remotes.
	URLs []string
	// External knows policies that are not in the repository; nil where there is nothing of the kind.
	External External
	// IgnoreElsewhere passes over changed sources of Applications that are not in this repository, of which nothing can be told, and over
	// ApplicationSets that need something elsewhere.
	IgnoreElsewhere bool
	// Ignore does that for Applications and ApplicationSets of these names, as path.Match has them; with a slash in it a pattern is of
	// namespace and name.
	Ignore []string
	// Charts are those of registries; nil where there are none.
	Charts *Charts
	// KubeVersion and APIVersions are those of the cluster, for charts.
	KubeVersion string
	APIVersions []string

	once     sync.Once
	broken   error
	own      map[string]bool
	readers  []reader
	renders  renders
	scans    scans
	sides    sides
	manifest manifests
}

// ignores reports whether what is elsewhere is passed over for an Application or ApplicationSet.
func (g *Gate) ignores(name string) bool {
	return g.IgnoreElsewhere || slices.ContainsFunc(g.Ignore, func(pattern string) bool {
		if !strings.Contains(pattern, "/") {
			ok, _ := path.Match(pattern, path.Base(name))
			return ok
		}
		if !strings.Contains(name, "/") {
			name = g.controlPlane() + "/" + name
		}
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

func (g *Gate) prepare() error {
	g.once.Do(func() {
		g.own = map[string]bool{}
		for _, url := range slices.Concat(g.Repository.Remotes(), g.URLs) {
			g.own[canonical(url)] = true
		}
		g.readers, g.broken = newReaders(g.Config)
	})
	return g.broken
}

// Check judges the change from the merge bases of target and head to head.
func (g *Gate) Check(ctx context.Context, target, head git.Commit) (*Report, error) {
	bases, err := g.Repository.MergeBases(target, head)
	if err != nil {
		return nil, err
	}
	var all *Report
	for _, base := range bases {
		r, err := g.Compare(ctx, base, head)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = r
			continue
		}
		all.add(r, base)
	}
	all.Bases = bases
	if all.Violated() && target.ID != bases[0].ID {
		g.behind(ctx, all, target)
	}
	return all, g.anything(ctx, bases[0], head)
}

// behind says of what is red whether the target branch grants it by now.
func (g *Gate) behind(ctx context.Context, r *Report, target git.Commit) {
	s, err := g.side(ctx, target.Tree)
	if err != nil {
		return // it is the target that has to be judged then, not this change
	}
	roots := g.withPolicies(s.roots)
	if g.renderAll(ctx, roots) != nil {
		return
	}
	standing := policiesOf(g, roots)
	for i := range r.Findings {
		f := &r.Findings[i]
		signer := g.Config.Signer(f.SignerName)
		if signer == nil || f.Existing || f.Verdict != ShipsTogether && f.Verdict != Missing && f.Verdict != Denied {
			continue
		}
		if a, _ := standing.of(f.Cluster, signer).answer(&f.demand); a.Decision == policy.Granted {
			f.behind = true
			f.Message = fmt.Sprintf("%s for ServiceAccount %s/%s is granted in the target branch by now, but not at the merge base: merge the target branch into this one, and check again", f.SignerName, f.Namespace, f.ServiceAccount)
		}
	}
}

// anything makes sure that there is something to be judged: with a misspelt path everything would be green.
func (g *Gate) anything(ctx context.Context, base, head git.Commit) error {
	for _, p := range g.Paths {
		_, errBase := g.Repository.Tree(base.Tree).Stat(p)
		_, errHead := g.Repository.Tree(head.Tree).Stat(p)
		if errBase != nil && errHead != nil {
			return fmt.Errorf("%w: %s is neither at the merge base nor at the head", ErrNothing, p)
		}
	}
	for _, c := range []git.Commit{base, head} {
		s, err := g.side(ctx, c.Tree)
		if err != nil || len(s.roots)+len(s.unknown)+len(s.elsewhere) > 0 {
			return err
		}
	}
	return fmt.Errorf("%w: there is no Application and no folder with manifests in this repository: name what is rendered as PATH", ErrNothing)
}

// add takes the worse of two verdicts about the same demand: what is granted at one merge base only may not be there yet.
func (r *Report) add(other *Report, base git.Commit) {
	at := map[string]int{}
	for i := range r.Findings {
		at[r.Findings[i].identity()] = i
	}
	for _, f := range other.Findings {
		i, ok := at[f.identity()]
		if !ok {
			r.Findings = append(r.Findings, f)
			continue
		}
		if severity(&f) > severity(&r.Findings[i]) {
			f.Message += fmt.Sprintf(" (there are several merge bases, and this is so at %s: merge the target branch into this one)", base.ID[:min(10, len(base.ID))])
			r.Findings[i] = f
		}
	}
	r.Rendered += other.Rendered
	r.sort()
}

func severity(f *Finding) int {
	switch {
	case f.Violates():
		return 3
	case f.Verdict == Unknown && !f.Existing:
		return 2
	case f.Verdict != OK:
		return 1
	}
	return 0
}

func (f *Finding) identity() string {
	return fmt.Sprintf("%s|%s|%s|%s|%s|%s|%s", f.SignerName, f.Namespace, f.ServiceAccount, f.KeyType, f.Object, f.Volume, f.Application+f.Cluster)
}

func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(-cmp.Compare(severity(&a), severity(&b)), cmp.Compare(a.Application, b.Application), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Object.String(), b.Object.String()), cmp.Compare(a.Volume, b.Volume), cmp.Compare(a.Verdict, b.Verdict), cmp.Compare(a.Message, b.Message))
	})
}

// Compare judges the change from base to head, which need not be its ancestor.
func (g *Gate) Compare(ctx context.Context, base, head git.Commit) (*Report, error) {
	if err := g.prepare(); err != nil {
		return nil, err
	}
	j := &judgement{gate: g, report: &Report{Base: base, Head: head, Bases: []git.Commit{base}}}
	var err error
	if j.base, err = g.side(ctx, base.Tree); err != nil {
		return nil, fmt.Errorf("the merge base: %w", err)
	}
	if j.head, err = g.side(ctx, head.Tree); err != nil {
		return nil, err
	}
	if err := j.judge(ctx); err != nil {
		return nil, err
	}
	j.report.sort()
	return j.report, nil
}

// ErrNothing: there is nothing in the tree to be judged.
var ErrNothing = errors.New("nothing to render")

// canonical makes the spellings of a repository's URL one: without scheme, user, port of ssh, .git and case of the host.
func canonical(url string) string {
	url = strings.TrimSuffix(strings.TrimRight(strings.TrimSpace(url), "/"), ".git")
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		// host:path, as scp has it
		if host, path, ok := strings.Cut(url, ":"); ok && !strings.Contains(host, "/") {
			rest = host + "/" + strings.TrimPrefix(path, "/")
		} else {
			return url
		}
	}
	host, path, _ := strings.Cut(rest, "/")
	if _, after, ok := strings.Cut(host, "@"); ok {
		host = after
	}
	if scheme == "ssh" || scheme == "https" || scheme == "http" {
		name, port, _ := strings.Cut(host, ":")
		if port == "22" || port == "443" && scheme == "https" || port == "80" && scheme == "http" {
			host = name
		}
	}
	return strings.ToLower(host) + "/" + path
}
