package gate

import (
	"path"
	"slices"
	"strings"

	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/gate/git"
)

const word = "podCertificate"

// lineIn gives how many lines are before the demand's source in the text of its document: the podCertificate after the volume's name, or the
// nearest before it, since YAML has no order.
func lineIn(text []byte, d *demand.Demand) int {
	return lineOf(strings.Split(string(text), "\n"), d)
}

func lineOf(lines []string, d *demand.Demand) int {
	var names []int
	for i, line := range lines {
		if named(line, d.Volume) {
			names = append(names, i)
		}
	}
	best, distance := -1, 0
	for i, line := range lines {
		if !strings.Contains(line, word) {
			continue
		}
		if best < 0 {
			best, distance = i, 2*len(lines)
		}
		for _, n := range names {
			away := i - n
			if away < 0 {
				away = len(lines) - away // rather after the name than before
			}
			if away < distance {
				best, distance = i, away
			}
		}
	}
	return max(best, 0)
}

// named: the line gives something this name.
func named(line, name string) bool {
	_, rest, ok := strings.Cut(line, "name:")
	if !ok {
		_, rest, ok = strings.Cut(line, `"name":`)
	}
	rest = strings.TrimLeft(rest, " \"'")
	return ok && name != "" && strings.HasPrefix(rest, name) && (len(rest) == len(name) || strings.ContainsAny(rest[len(name):len(name)+1], " \"',}\r\n#"))
}

// locate gives the file and the line where a person changes a demand. What a tool has put together is looked for among the files that it could
// read: the document that looks most like it.
func (g *Gate) locate(l *located) (string, int) {
	if l.root.chart != "" {
		return l.root.file()
	}
	if l.place.path != "" {
		return l.place.path, l.place.line
	}
	best, line, most := "", 0, 0
	look := func(name string, e git.Entry) {
		if !isSource(e.Name) && !isSource(name) || !g.entryMayHave(e, word) {
			return
		}
		text, err := g.Repository.Blob(e.ID)
		if err != nil {
			return
		}
		for _, p := range piecesOf(text) {
			if n := l.looksLike(name, string(p.text)); n > most {
				best, most, line = name, n, 1+p.before+lineIn(p.text, &l.Demand)
			}
		}
	}
	for _, name := range slices.Sorted(keysOf(l.root.closure.members)) {
		if l.root.closure.members[name] == absent {
			continue
		}
		e, err := l.root.closure.tree.Find(name)
		if err != nil {
			continue
		}
		g.eachFile(name, e, !l.root.closure.listings[name], look)
	}
	if best != "" {
		return best, line
	}
	return l.root.file()
}

// file is the one that a person looks at first: that which says how the folder is rendered, else the Application's.
func (r *root) file() (string, int) {
	if r.chart != "" {
		return r.path, max(r.line, 1)
	}
	for _, name := range []string{"kustomization.yaml", "kustomization.yml", "Kustomization", "Chart.yaml"} {
		if _, err := r.closure.tree.Find(path.Join(r.dir, name)); err == nil {
			return path.Join(r.dir, name), 1
		}
	}
	return r.path, max(r.line, 1)
}

// eachFile calls look for a file, or for those in a folder.
func (g *Gate) eachFile(name string, e git.Entry, deep bool, look func(string, git.Entry)) {
	if e.Kind != git.Folder {
		look(name, e)
		return
	}
	entries, err := g.Repository.Entries(e.ID)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Kind != git.Folder || deep {
			g.eachFile(path.Join(name, e.Name), e, deep, look)
		}
	}
}

func isSource(name string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json", ".tpl":
		return true
	}
	return false
}

// looksLike says how much a document looks like what the demand came from; 0 where the demand cannot be in it.
func (l *located) looksLike(name, doc string) int {
	if !strings.Contains(doc, word) {
		return 0
	}
	score := 1
	if _, rest, ok := strings.Cut(l.place.source, "/"); ok && path.Join(l.root.dir, rest) == name {
		score += 16
	}
	if strings.Contains(doc, "kind: "+l.Object.Kind) || strings.Contains(doc, `"kind": "`+l.Object.Kind) {
		score += 4
	}
	for line := range strings.Lines(doc) {
		if named(line, l.Object.Name) {
			score += 4
			break
		}
		// A prefix or suffix is added to what is written.
		if _, rest, ok := strings.Cut(line, "name:"); ok {
			if written := strings.Trim(strings.TrimSpace(rest), `"'`); len(written) > 2 && strings.Contains(l.Object.Name, written) {
				score += 2
				break
			}
		}
	}
	if asWord(doc, l.Volume) {
		score += 2
	}
	if strings.Contains(doc, l.SignerName) {
		score++
	}
	if asWord(doc, l.ServiceAccount) {
		score++
	}
	return score
}

// asWord reports whether a name is in a text other than as a part of a longer one.
func asWord(text, name string) bool {
	const more = "abcdefghijklmnopqrstuvwxyz0123456789-."
	for name != "" {
		before, after, ok := strings.Cut(text, name)
		if !ok {
			return false
		}
		if (before == "" || !strings.Contains(more, before[len(before)-1:])) && (after == "" || !strings.Contains(more, after[:1])) {
			return true
		}
		text = after
	}
	return false
}
