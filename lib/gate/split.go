package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// block is a run of lines that a change replaces: old lines of the base from line at on (counted from 0) become new ones.
type block struct {
	path string
	at   int
	// old is how many lines of the base go.
	old int
	new []string
	// from is the line of the head, from 1, that the new ones begin at.
	from int
	// whole is the file as it is at the head, where it has no lines (binary); gone that it is not there.
	whole []byte
	gone  bool
	// said is what it is to a person, where the new lines are not the head's as they stand.
	said *Move
}

func (b *block) move() Move {
	if b.said != nil {
		return *b.said
	}
	m := Move{Path: b.path, Text: strings.Join(b.new, "")}
	if len(b.new) > 0 {
		m.From, m.To = b.from, b.from+len(b.new)-1
	}
	return m
}

var hunk = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@`)

// likeness is what makes no difference between two lines: each has git's options for it. The coarsest comes first.
var likenesses = [][]string{{"--ignore-all-space", "--ignore-cr-at-eol"}, {"--ignore-cr-at-eol"}, nil}

// blocks gives what a change does to one file, with git's options of what makes no difference. Lines that are only added are taken apart
// where a new YAML document begins. Where line ends make no difference the new lines have those of the base.
func (g *Gate) blocks(base, head *git.Tree, name string, likeness []string) ([]block, error) {
	after, err := plain(head, name)
	if err != nil {
		return nil, err
	}
	before, err := plain(base, name)
	if err != nil {
		return nil, err
	}
	if slices.Contains(after, 0) || slices.Contains(before, 0) || after == nil {
		return []block{{path: name, whole: after, gone: after == nil}}, nil
	}
	patch, err := g.Repository.Diff(base.ID, head.ID, append([]string{"-U0"}, likeness...), name)
	if err != nil {
		return nil, err
	}
	old, lines := strings.SplitAfter(string(before), "\n"), strings.SplitAfter(string(after), "\n")
	fit := func(b block) block { return b }
	if likeness != nil {
		fit = fitting(old, lines)
	}
	var out []block
	for line := range strings.Lines(string(patch)) {
		m := hunk.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		count := func(s string) int {
			if s == "" {
				return 1
			}
			n, _ := strconv.Atoi(s)
			return n
		}
		at, _ := strconv.Atoi(m[1])
		from, _ := strconv.Atoi(m[3])
		b := block{path: name, at: at, old: count(m[2]), from: from}
		if b.old > 0 {
			b.at-- // of lines that are only added, the number is that of the line before
		}
		if n := count(m[4]); n > 0 && from > 0 && from-1+n <= len(lines) {
			b.new = lines[from-1 : from-1+n]
		}
		for _, b := range b.apart() {
			out = append(out, fit(b))
		}
	}
	return out, nil
}

// fitting gives new lines the line ends of the old file, where those are all the same, and the depth that the line before them has there.
func fitting(old, lines []string) func(block) block {
	text := strings.Join(old, "")
	all, windows := strings.Count(text, "\n"), strings.Count(text, "\r\n")
	return func(b block) block {
		said := b.move()
		shift := 0
		if b.at > 0 && b.at <= len(old) && b.from > 1 && b.from-2 < len(lines) && strings.TrimSpace(old[b.at-1]) == strings.TrimSpace(lines[b.from-2]) && strings.TrimSpace(old[b.at-1]) != "" {
			shift = indent(old[b.at-1:b.at]) - indent(lines[b.from-2:b.from-1])
		}
		b.new = slices.Clone(b.new)
		for i, line := range b.new {
			if body, ok := strings.CutSuffix(line, "\n"); ok && all > 0 && (windows == 0 || windows == all) {
				body = strings.TrimSuffix(body, "\r")
				if line = body + "\n"; windows > 0 {
					line = body + "\r\n"
				}
			}
			if depth := indent([]string{line}); depth < empty && shift != 0 {
				line = strings.Repeat(" ", max(depth+shift, 0)) + line[depth:]
			}
			b.new[i] = line
		}
		if !slices.Equal(b.new, lines[max(b.from-1, 0):max(b.from-1, 0)+len(b.new)]) {
			b.said = &said
		}
		return b
	}
}

// apart splits a block of lines that are only added at the separators of documents.
func (b block) apart() []block {
	if b.old > 0 {
		return []block{b}
	}
	var out []block
	start := 0
	for i := 1; i <= len(b.new); i++ {
		if i == len(b.new) || strings.TrimRight(b.new[i], " \r\n") == "---" {
			part := b
			part.new, part.from = b.new[start:i], b.from+start
			out = append(out, part)
			start = i
		}
	}
	return out
}

// plain is a file as git has it, nil where there is none.
func plain(t *git.Tree, name string) ([]byte, error) {
	e, err := t.Find(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if e.Kind == git.Folder || e.Kind == git.Submodule {
		return nil, nil
	}
	data, err := t.Blob(e.ID)
	if data == nil {
		data = []byte{}
	}
	return data, err
}

// with gives the base with some blocks applied.
func (g *Gate) with(base *git.Tree, blocks []block) (files map[string][]byte, err error) {
	files = map[string][]byte{}
	byPath := map[string][]block{}
	for _, b := range blocks {
		byPath[b.path] = append(byPath[b.path], b)
	}
	for name, list := range byPath {
		if list[0].gone || list[0].whole != nil {
			files[name] = list[0].whole
			continue
		}
		before, err := plain(base, name)
		if err != nil {
			return nil, err
		}
		lines := strings.SplitAfter(string(before), "\n")
		slices.SortStableFunc(list, func(a, b block) int {
			if a.at != b.at {
				return a.at - b.at
			}
			return a.from - b.from
		})
		var out bytes.Buffer
		done := 0
		for _, b := range list {
			for ; done < b.at && done < len(lines); done++ {
				out.WriteString(lines[done])
			}
			if n := out.Len(); n > 0 && len(b.new) > 0 && out.Bytes()[n-1] != '\n' {
				out.WriteByte('\n')
			}
			for _, line := range b.new {
				out.WriteString(line)
			}
			done = max(done, b.at+b.old)
		}
		for ; done < len(lines); done++ {
			out.WriteString(lines[done])
		}
		files[name] = append([]byte{}, out.Bytes()...)
	}
	return files, nil
}

// grants reports whether all of the demands are granted at the merge base with some blocks applied to it.
func (g *Gate) grants(ctx context.Context, base *git.Tree, blocks []block, demands []*Finding) (bool, error) {
	files, err := g.with(base, blocks)
	if err != nil {
		return false, err
	}
	id, err := g.Repository.Overlay(base.ID, files)
	if err != nil {
		return false, err
	}
	s, err := g.newSide(ctx, g.Repository.Tree(id))
	if errors.Is(err, ErrNothing) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	roots := g.withPolicies(s.roots)
	if err := g.renderAll(ctx, roots); err != nil {
		return false, err
	}
	standing := policiesOf(g, roots)
	for _, f := range demands {
		a, _ := standing.of(f.Cluster, g.Config.Signer(f.SignerName)).answer(&f.demand)
		if a.Decision != policy.Granted {
			return false, nil
		}
	}
	return true, nil
}

// fewest gives a set of blocks of which none can be left out, or nil where not even all of them do.
func (g *Gate) fewest(ctx context.Context, base *git.Tree, blocks []block, demands []*Finding) ([]block, error) {
	ok, err := g.grants(ctx, base, blocks, demands)
	if err != nil || !ok {
		return nil, err
	}
	for size := (len(blocks) + 1) / 2; ; size = (size + 1) / 2 {
		for i := 0; i < len(blocks); {
			fewer := slices.Concat(blocks[:i], blocks[min(i+size, len(blocks)):])
			ok, err := g.grants(ctx, base, fewer, demands)
			if err != nil {
				return nil, err
			}
			if ok {
				blocks = fewer
			} else {
				i += size
			}
		}
		if size <= 1 {
			return blocks, nil
		}
	}
}

// candidates are the blocks of a change that may hold grants, the likely ones first: those of files that policy objects are rendered from.
func (g *Gate) candidates(ctx context.Context, base, head *git.Tree, likeness []string) (likely, all []block, err error) {
	changed, err := g.Repository.Changed(base.ID, head.ID)
	if err != nil {
		return nil, nil, err
	}
	s, err := g.newSide(ctx, head)
	if err != nil {
		return nil, nil, err
	}
	var printing []*root
	for _, r := range g.withPolicies(s.roots) {
		if r.broken == nil && len(g.render(r).policies) > 0 {
			printing = append(printing, r)
		}
	}
	for _, name := range changed {
		if name == "" {
			continue
		}
		blocks, err := g.blocks(base, head, name, likeness)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, blocks...)
		if slices.ContainsFunc(printing, func(r *root) bool { return r.path == name || !r.closure.above[name] && r.closure.covers(name) }) {
			likely = append(likely, blocks...)
		}
	}
	return likely, all, nil
}

// first finds the blocks that grant all of the demands, nil where there are none.
func (g *Gate) first(ctx context.Context, base, head *git.Tree, demands []*Finding) ([]block, error) {
	for _, likeness := range likenesses {
		likely, all, err := g.candidates(ctx, base, head, likeness)
		if err != nil {
			return nil, err
		}
		for _, blocks := range [][]block{likely, all} {
			if blocks, err = g.fewest(ctx, base, blocks, demands); err != nil || blocks != nil {
				return blocks, err
			}
		}
	}
	return nil, nil
}

// plan is what to ship first.
type plan struct {
	// blocks make the first part of the merge base; files and tree are what comes out.
	blocks []block
	files  map[string][]byte
	tree   string
	// alone is the check of the first part.
	alone *Report
	// beside: what the new lines replace stays.
	beside bool
}

// plan finds the lines of a change that grant what it ships together with workloads, so that they alone are green. The error is an ErrNoSplit
// where there are none.
func (g *Gate) plan(ctx context.Context, r *Report, together []*Finding) (*plan, error) {
	base, head := g.Repository.Tree(r.Base.Tree), g.Repository.Tree(r.Head.Tree)
	blocks, err := g.first(ctx, base, head, together)
	if err != nil {
		return nil, err
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("%w: no lines of this change alone grant %s for ServiceAccount %s/%s at the merge base", ErrNoSplit, together[0].SignerName, together[0].Namespace, together[0].ServiceAccount)
	}
	p, err := g.judged(ctx, r, base, blocks)
	if err != nil || !p.alone.Violated() {
		return p, err
	}
	// Lines that are replaced take the old grant away with the new one: both may stay for now.
	for _, w := range ways() {
		instead, ok, err := g.instead(base, head, blocks, w)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if granted, err := g.grants(ctx, base, instead, together); err != nil {
			return nil, err
		} else if !granted {
			continue
		}
		other, err := g.judged(ctx, r, base, instead)
		if err != nil {
			return nil, err
		}
		if !other.alone.Violated() && !other.alone.Uncertain() {
			other.beside = true
			return other, nil
		}
	}
	for _, f := range p.alone.Findings {
		if f.Violates() {
			return nil, fmt.Errorf("%w: the grant cannot be told from the rest by lines, since with those that hold it this would be red: %s (%s:%d): %s", ErrNoSplit, f.Object, f.Path, f.Line, f.Message)
		}
	}
	return p, nil
}

// instead replaces every block that takes lines away by what a way makes of it; ok is false where there is none of which it can.
func (g *Gate) instead(base, head *git.Tree, blocks []block, w way) (out []block, ok bool, err error) {
	for _, b := range blocks {
		if b.old == 0 || len(b.new) == 0 || b.whole != nil || b.gone {
			out = append(out, b)
			continue
		}
		var t lineText
		for tree, lines := range map[*git.Tree]*[]string{base: &t.base, head: &t.head} {
			text, err := plain(tree, b.path)
			if err != nil {
				return nil, false, err
			}
			*lines = strings.SplitAfter(string(text), "\n")
		}
		if b.at+b.old > len(t.base) || b.from < 1 || b.from-1+len(b.new) > len(t.head) {
			return nil, false, nil
		}
		n, can := w(t, b)
		if !can {
			return nil, false, nil
		}
		// Two blocks of one entry are that entry twice.
		if !slices.ContainsFunc(out, func(o block) bool {
			return o.path == n.path && o.at == n.at && o.old == n.old && slices.Equal(o.new, n.new)
		}) {
			out = append(out, n)
		}
		ok = true
	}
	return out, ok, nil
}

// judged checks the merge base with some blocks.
func (g *Gate) judged(ctx context.Context, r *Report, base *git.Tree, blocks []block) (*plan, error) {
	p := &plan{blocks: blocks}
	var err error
	if p.files, err = g.with(base, blocks); err != nil {
		return nil, err
	}
	if p.tree, err = g.Repository.Overlay(base.ID, p.files); err != nil {
		return nil, err
	}
	p.alone, err = g.Compare(ctx, r.Base, git.Commit{ID: r.Base.ID, Tree: p.tree})
	return p, err
}

// Moves fills in what to ship first, for each finding of a report that says so.
func (g *Gate) Moves(ctx context.Context, r *Report) error {
	together := slices.DeleteFunc(r.together(), func(f *Finding) bool { return f.behind })
	if len(together) == 0 {
		return nil
	}
	if len(r.Bases) > 1 {
		for _, f := range together {
			f.Message += ": there are several merge bases, so merge the target branch into this one before anything is split"
		}
		return nil
	}
	p, err := g.plan(ctx, r, together)
	if errors.Is(err, ErrNoSplit) {
		for _, f := range together {
			f.Message += "; " + strings.TrimPrefix(err.Error(), ErrNoSplit.Error()+": ") + ": write that first change by hand"
		}
		return nil
	}
	if err != nil {
		return err
	}
	// What each of them needs; where there are many, the same for all.
	const most = 20
	base := g.Repository.Tree(r.Base.Tree)
	own := map[string][]block{}
	for _, f := range together {
		needs := p.blocks
		if len(needs) > 1 && len(together) <= most {
			key := f.Cluster + fmt.Sprint(f.demand.SignerName, f.demand.Namespace, f.demand.ServiceAccount, f.demand.KeyType)
			if _, ok := own[key]; !ok {
				if own[key], err = g.fewest(ctx, base, needs, []*Finding{f}); err != nil {
					return err
				}
			}
			needs = own[key]
		}
		var where []string
		for i := range needs {
			m := needs[i].move()
			f.Move = append(f.Move, m)
			where = append(where, m.String())
		}
		beside := ""
		if p.beside {
			beside = ", beside what it replaces"
		}
		f.Message += ": move " + strings.Join(where, " and ") + " to a first merge request" + beside + " (grantfirst split writes it)"
	}
	return nil
}

// String names the lines.
func (m *Move) String() string {
	switch {
	case m.From == 0:
		return "what goes out of " + m.Path
	case m.From == m.To:
		return fmt.Sprintf("line %d of %s", m.From, m.Path)
	}
	return fmt.Sprintf("lines %d to %d of %s", m.From, m.To, m.Path)
}

func (r *Report) together() []*Finding {
	var out []*Finding
	for i := range r.Findings {
		if r.Findings[i].Verdict == ShipsTogether {
			out = append(out, &r.Findings[i])
		}
	}
	return out
}

// Split is a change in two: a patch for the merge base with the grants alone, and what the gate says about both parts.
type Split struct {
	// Patch is what git apply takes at the merge base.
	Patch []byte
	// First is the check of the patch, Rest that of what is left after it.
	First, Rest *Report
}

// ErrNoSplit: there is nothing to be shipped first, or it cannot be told from the rest.
var ErrNoSplit = errors.New("nothing to split")

// Split makes a patch of the lines that grant what a change ships together with workloads.
func (g *Gate) Split(ctx context.Context, r *Report) (*Split, error) {
	together := r.together()
	if len(together) == 0 {
		return nil, fmt.Errorf("%w: no grant ships together with the workload that needs it", ErrNoSplit)
	}
	if i := slices.IndexFunc(together, func(f *Finding) bool { return f.behind }); i >= 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoSplit, together[i].Message)
	}
	p, err := g.plan(ctx, r, together)
	if err != nil {
		return nil, err
	}
	s := &Split{First: p.alone}
	// The git command makes the patch, and knows only what is in objects.
	id, err := g.Repository.With(r.Base.Tree, p.files)
	if err != nil {
		return nil, err
	}
	if s.Patch, err = g.Repository.Diff(r.Base.Tree, id, []string{"-U3"}); err != nil {
		return nil, err
	}
	s.Rest, err = g.Compare(ctx, git.Commit{ID: r.Base.ID, Tree: id}, r.Head)
	return s, err
}
