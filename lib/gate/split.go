package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
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
	// keep leaves the old lines where they are, before the new ones.
	keep bool
}

func (b *block) move() Move {
	m := Move{Path: b.path, Text: strings.Join(b.new, "")}
	if len(b.new) > 0 {
		m.From, m.To = b.from, b.from+len(b.new)-1
	}
	return m
}

var hunk = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@`)

// blocks gives what a change does to one file. Lines that are only added are taken apart where a new YAML document begins.
func (g *Gate) blocks(base, head *git.Tree, name string) ([]block, error) {
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
	patch, err := g.Repository.Diff(base.ID, head.ID, 0, name)
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(string(after), "\n")
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
		out = append(out, b.apart()...)
	}
	return out, nil
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
			if b.keep {
				for ; done < b.at+b.old && done < len(lines); done++ {
					out.WriteString(separated(lines[done], name, done == b.at+b.old-1))
				}
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

// separated gives the last of lines that stay a comma where JSON needs one before what comes after it.
func separated(line, name string, last bool) string {
	text := strings.TrimRight(line, " \r\n")
	if !last || path.Ext(name) != ".json" || text == "" || strings.HasSuffix(text, ",") || strings.HasSuffix(text, "[") || strings.HasSuffix(text, "{") {
		return line
	}
	return text + "," + line[len(text):]
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
	var roots []*root
	for _, r := range s.roots {
		if slices.ContainsFunc(g.readers, func(p reader) bool { return g.mayHave(r, p.word()) }) {
			roots = append(roots, r)
		}
	}
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
func (g *Gate) candidates(ctx context.Context, base, head *git.Tree) (likely, all []block, err error) {
	changed, err := g.Repository.Changed(base.ID, head.ID)
	if err != nil {
		return nil, nil, err
	}
	s, err := g.newSide(ctx, head)
	if err != nil {
		return nil, nil, err
	}
	var printing []*root
	for _, r := range s.roots {
		if r.broken == nil && slices.ContainsFunc(g.readers, func(p reader) bool { return g.mayHave(r, p.word()) }) && len(g.render(r).policies) > 0 {
			printing = append(printing, r)
		}
	}
	for _, name := range changed {
		if name == "" {
			continue
		}
		blocks, err := g.blocks(base, head, name)
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

// first finds the blocks that grant all of the demands.
func (g *Gate) first(ctx context.Context, base, head *git.Tree, demands []*Finding) ([]block, error) {
	likely, all, err := g.candidates(ctx, base, head)
	if err != nil {
		return nil, err
	}
	blocks, err := g.fewest(ctx, base, likely, demands)
	if err != nil || blocks != nil {
		return blocks, err
	}
	return g.fewest(ctx, base, all, demands)
}

// Moves fills in what to ship first, for each finding of a report that says so.
func (g *Gate) Moves(ctx context.Context, r *Report) error {
	together := r.together()
	if len(together) == 0 {
		return nil
	}
	base, head := g.Repository.Tree(r.Base.Tree), g.Repository.Tree(r.Head.Tree)
	blocks, err := g.first(ctx, base, head, together)
	if err != nil {
		return err
	}
	// What each of them needs; where there are many, the same for all.
	const most = 20
	own := map[string][]block{}
	for _, f := range together {
		needs := blocks
		if len(blocks) > 1 && len(together) <= most {
			key := f.Cluster + fmt.Sprint(f.demand.SignerName, f.demand.Namespace, f.demand.ServiceAccount, f.demand.KeyType)
			if _, ok := own[key]; !ok {
				if own[key], err = g.fewest(ctx, base, blocks, []*Finding{f}); err != nil {
					return err
				}
			}
			needs = own[key]
		}
		if len(needs) == 0 {
			f.Message += "; which lines grant it could not be told"
			continue
		}
		var where []string
		for i := range needs {
			m := needs[i].move()
			f.Move = append(f.Move, m)
			where = append(where, m.String())
		}
		f.Message += ": move " + strings.Join(where, " and ") + " to a first merge request (grantfirst split writes it)"
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

// Split finds the lines of a change that grant what it ships together with workloads.
func (g *Gate) Split(ctx context.Context, r *Report) (*Split, error) {
	together := r.together()
	if len(together) == 0 {
		return nil, fmt.Errorf("%w: no grant ships together with the workload that needs it", ErrNoSplit)
	}
	base, head := g.Repository.Tree(r.Base.Tree), g.Repository.Tree(r.Head.Tree)
	blocks, err := g.first(ctx, base, head, together)
	if err != nil {
		return nil, err
	}
	if blocks == nil {
		return nil, fmt.Errorf("%w: no lines of this change alone grant %s for ServiceAccount %s/%s at the merge base", ErrNoSplit, together[0].SignerName, together[0].Namespace, together[0].ServiceAccount)
	}
	s, err := g.splitAt(ctx, r, base, blocks)
	if err != nil || !s.First.Violated() {
		return s, err
	}
	// Lines that are replaced take the old grant away with the new one: both may stay for now.
	kept := slices.Clone(blocks)
	for i := range kept {
		kept[i].keep = kept[i].old > 0
	}
	if ok, err := g.grants(ctx, base, kept, together); err != nil || !ok {
		return s, errors.Join(err, g.inseparable(s))
	}
	if s, err = g.splitAt(ctx, r, base, kept); err != nil || !s.First.Violated() {
		return s, err
	}
	return s, g.inseparable(s)
}

func (g *Gate) inseparable(s *Split) error {
	for _, f := range s.First.Findings {
		if f.Violates() {
			return fmt.Errorf("%w: the grant cannot be told from the rest by lines, since with those that hold it this would be red: %s (%s:%d): %s", ErrNoSplit, f.Object, f.Path, f.Line, f.Message)
		}
	}
	return nil
}

func (g *Gate) splitAt(ctx context.Context, r *Report, base *git.Tree, blocks []block) (*Split, error) {
	files, err := g.with(base, blocks)
	if err != nil {
		return nil, err
	}
	id, err := g.Repository.With(base.ID, files)
	if err != nil {
		return nil, err
	}
	s := &Split{}
	if s.Patch, err = g.Repository.Diff(base.ID, id, 3); err != nil {
		return nil, err
	}
	middle := git.Commit{ID: r.Base.ID, Tree: id}
	if s.First, err = g.Compare(ctx, r.Base, middle); err != nil {
		return nil, err
	}
	s.Rest, err = g.Compare(ctx, middle, r.Head)
	return s, err
}
