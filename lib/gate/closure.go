package gate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/render"
)

// closure is all of a tree that a render can read, found without rendering. Rendering is confined to it, so that a root whose closure is the
// same on both sides cannot come out differently.
type closure struct {
	tree *git.Tree
	// members are paths with the id of what is there: whole folders, single files, links, and "absent" where nothing is.
	members map[string]string
	// listings are folders of which only what is directly in them counts, without their folders.
	listings map[string]bool
	above    map[string]bool
}

const absent = "absent"

// closureOf gives what rendering dir with these options can read. It errs on the side of more.
func (g *Gate) closureOf(tree *git.Tree, dir string, o *render.Options) *closure {
	c := &closure{tree: tree, members: map[string]string{}, listings: map[string]bool{}, above: map[string]bool{}}
	w := &walk{closure: c, gate: g, open: map[string]bool{}}
	dir = path.Clean(dir)
	if _, e, _, err := tree.Resolve(dir); err == nil && e.Kind == git.Folder && g.isPlain(e.ID, o) {
		w.listing(dir)
	} else {
		w.add(dir)
		w.kustomization(dir)
	}
	for _, list := range [][]string{o.ValueFiles, values(o.SetFiles)} {
		for _, name := range list {
			name = expand(o, name)
			if i := strings.IndexAny(name, render.GlobCharacters); i >= 0 {
				// All that it may match, so that the root counts as changed where that has.
				name = path.Dir(name[:i] + "x")
			}
			if path.IsAbs(name) {
				w.add(path.Join(".", strings.TrimLeft(name, "/")))
			} else {
				w.add(path.Join(dir, name))
			}
		}
	}
	for _, pattern := range o.Components {
		fixed, _, _ := strings.Cut(pattern, "*")
		if fixed != pattern {
			fixed = path.Dir(fixed + "x")
		}
		w.reference(dir, fixed)
	}
	for name := range c.members {
		for up := path.Dir(name); ; up = path.Dir(up) {
			c.above[up] = true
			if up == "." {
				break
			}
		}
	}
	return c
}

// isPlain: the folder is rendered as a directory, and without those in it.
func (g *Gate) isPlain(id string, o *render.Options) bool {
	if o.Recurse || o.Render != "" && o.Render != render.Auto && o.Render != render.Directory {
		return false
	}
	entries, err := g.Repository.Entries(id)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Name == "Chart.yaml" || isKustomization(e.Name) {
			return o.Render == render.Directory
		}
	}
	return true
}

func isKustomization(name string) bool {
	return name == "kustomization.yaml" || name == "kustomization.yml" || name == "Kustomization"
}

func values(list []render.Assignment) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.Value)
	}
	return out
}

func expand(o *render.Options, s string) string {
	if o.Env == nil {
		return s
	}
	return os.Expand(s, func(name string) string {
		if name == "$" {
			return "$"
		}
		return o.Env[name]
	})
}

// walk collects the members of a closure.
type walk struct {
	*closure
	gate *Gate
	// open are the kustomizations that have been looked at, and folders whose links have been followed.
	open map[string]bool
}

// add takes a path with all that is below it, the links on the way and what links below lead to.
func (w *walk) add(name string) (real string, e git.Entry, ok bool) {
	if !fs.ValidPath(name) {
		return "", git.Entry{}, false
	}
	real, e, passed, err := w.tree.Resolve(name)
	for _, link := range passed {
		if l, err := w.tree.Find(link); err == nil {
			w.members[link] = l.ID
		}
	}
	if err != nil {
		w.members[name] = absent
		if real != "" {
			w.members[real] = absent
		}
		return "", git.Entry{}, false
	}
	w.members[real] = e.ID
	if e.Kind == git.Folder && !w.open["links "+real] {
		w.open["links "+real] = true
		for _, link := range w.gate.scans.linksIn(w.gate.Repository, e.ID) {
			w.add(path.Join(real, link))
		}
	}
	return real, e, true
}

// listing takes a folder without the folders in it.
func (w *walk) listing(dir string) {
	real, e, passed, err := w.tree.Resolve(dir)
	for _, link := range passed {
		if l, err := w.tree.Find(link); err == nil {
			w.members[link] = l.ID
		}
	}
	if err != nil {
		w.members[dir] = absent
		return
	}
	entries, err := w.gate.Repository.Entries(e.ID)
	if err != nil {
		w.members[real] = e.ID
		return
	}
	w.listings[real] = true
	var list strings.Builder
	for _, e := range entries {
		if e.Kind == git.Folder {
			e.ID = ""
		}
		fmt.Fprintf(&list, "%d %s %s\x00", e.Kind, e.ID, e.Name)
		if e.Kind == git.Link {
			w.add(path.Join(real, e.Name))
		}
	}
	w.members[real] = digest(list.String())
}

// kustomization follows what a kustomization in dir refers to: every text in it that is a path of something that is there. Files of a
// kustomization lie below it (kustomize's load restrictions), so what matters are other folders.
func (w *walk) kustomization(dir string) {
	real, e, _, err := w.tree.Resolve(dir)
	if err != nil || e.Kind != git.Folder || w.open[real] {
		return
	}
	w.open[real] = true
	entries, err := w.gate.Repository.Entries(e.ID)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !isKustomization(e.Name) {
			continue
		}
		_, at, _, err := w.tree.Resolve(path.Join(real, e.Name))
		if err != nil {
			continue
		}
		for _, text := range w.gate.scans.references(w.gate.Repository, at.ID) {
			w.reference(real, text)
		}
	}
}

// reference follows one text of a kustomization. What is not there and would be below it is covered by the folder already.
func (w *walk) reference(dir, text string) {
	name := path.Join(dir, text)
	if path.IsAbs(text) || !fs.ValidPath(name) {
		return
	}
	if _, _, _, err := w.tree.Resolve(name); err != nil && !strings.HasPrefix(text, "..") {
		return
	}
	if real, e, ok := w.add(name); ok && e.Kind == git.Folder {
		w.kustomization(real)
	}
}

// key addresses the closure by its content.
func (c *closure) key() string {
	var list strings.Builder
	for _, name := range slices.Sorted(keysOf(c.members)) {
		fmt.Fprintf(&list, "%s\x00%s\x00", name, c.members[name])
	}
	return digest(list.String())
}

func keysOf[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// covers reports whether a path is in the closure, or on the way to something that is.
func (c *closure) covers(name string) bool {
	if c.above[name] || name == "." {
		return true
	}
	if _, ok := c.members[name]; ok {
		return true
	}
	if c.listings[path.Dir(name)] {
		return true
	}
	for up := path.Dir(name); ; up = path.Dir(up) {
		// Below what is absent, or a file, there is nothing.
		if _, ok := c.members[up]; ok && !c.listings[up] {
			return true
		}
		if up == "." {
			return false
		}
	}
}

// confined shows a closure to a render, and nothing else.
type confined struct {
	*git.Tree
	closure *closure
	mu      sync.Mutex
	// outside is the first path that was asked for and is not in the closure.
	outside string
}

var errOutsideClosure = errors.New("outside of what this root is known to depend on")

func (c *confined) check(op, name string) error {
	if c.closure.covers(name) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outside == "" {
		c.outside = name
	}
	return &fs.PathError{Op: op, Path: name, Err: errOutsideClosure}
}

func (c *confined) Open(name string) (fs.File, error) {
	if err := c.check("open", name); err != nil {
		return nil, err
	}
	return c.Tree.Open(name)
}

func (c *confined) ReadFile(name string) ([]byte, error) {
	if err := c.check("open", name); err != nil {
		return nil, err
	}
	return c.Tree.ReadFile(name)
}

func (c *confined) Lstat(name string) (fs.FileInfo, error) {
	if err := c.check("lstat", name); err != nil {
		return nil, err
	}
	return c.Tree.Lstat(name)
}

func (c *confined) Stat(name string) (fs.FileInfo, error) {
	if err := c.check("stat", name); err != nil {
		return nil, err
	}
	return c.Tree.Stat(name)
}

func (c *confined) ReadLink(name string) (string, error) {
	if err := c.check("readlink", name); err != nil {
		return "", err
	}
	return c.Tree.ReadLink(name)
}

// ReadDir lists only what is in the closure: a folder on the way to it has nothing else in it.
func (c *confined) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := c.check("readdir", name); err != nil {
		return nil, err
	}
	if _, member := c.closure.members[name]; !member && c.closure.listings[path.Dir(name)] && !c.closure.above[name] {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errOutsideClosure}
	}
	list, err := c.Tree.ReadDir(name)
	if err != nil || !c.closure.above[name] {
		return list, err
	}
	return slices.DeleteFunc(list, func(e fs.DirEntry) bool { return !c.closure.covers(path.Join(name, e.Name())) }), nil
}

// scans remember what is in blobs and trees, by their ids.
type scans struct {
	links, refs, words sync.Map
}

// linksIn gives the symlinks in a tree and below, as paths below it.
func (s *scans) linksIn(r *git.Repository, tree string) []string {
	if known, ok := s.links.Load(tree); ok {
		return known.([]string)
	}
	entries, err := r.Entries(tree)
	if err != nil {
		return nil // reading it says so
	}
	var links []string
	for _, e := range entries {
		switch e.Kind {
		case git.Link:
			links = append(links, e.Name)
		case git.Folder:
			for _, below := range s.linksIn(r, e.ID) {
				links = append(links, e.Name+"/"+below)
			}
		}
	}
	s.links.Store(tree, links)
	return links
}

// references gives every text in a kustomization that might be a path.
func (s *scans) references(r *git.Repository, blob string) []string {
	if known, ok := s.refs.Load(blob); ok {
		return known.([]string)
	}
	data, err := r.Blob(blob)
	if err != nil {
		return nil
	}
	var texts []string
	var value any
	if yaml.Unmarshal(data, &value) == nil {
		collect(value, &texts)
	}
	slices.Sort(texts)
	texts = slices.Compact(texts)
	s.refs.Store(blob, texts)
	return texts
}

func collect(value any, into *[]string) {
	switch v := value.(type) {
	case []any:
		for _, e := range v {
			collect(e, into)
		}
	case map[string]any:
		for _, e := range v {
			collect(e, into)
		}
	case string:
		if v == "" || len(v) > 4096 || strings.ContainsAny(v, "\n\x00") {
			return
		}
		*into = append(*into, v)
		if _, file, ok := strings.Cut(v, "="); ok && file != "" {
			*into = append(*into, file)
		}
	}
}

// mayHave reports whether the text of anything in a closure may have a word in it, in whatever spelling (manifest.Document.MayHave): false is
// a proof, but for what a chart puts together out of parts.
func (g *Gate) mayHave(root *root, word string) bool {
	options, _ := json.Marshal(root.options)
	if textMayHave(options, word) {
		return true
	}
	for name, id := range root.closure.members {
		if id == absent {
			continue
		}
		e, err := root.closure.tree.Find(name)
		if err != nil {
			return true
		}
		if root.closure.listings[name] {
			entries, err := g.Repository.Entries(e.ID)
			if err != nil {
				return true
			}
			for _, e := range entries {
				if e.Kind != git.Folder && g.entryMayHave(e, word) {
					return true
				}
			}
			continue
		}
		if g.entryMayHave(e, word) {
			return true
		}
	}
	return false
}

func (g *Gate) entryMayHave(e git.Entry, word string) bool {
	key := e.ID + " " + word
	if known, ok := g.scans.words.Load(key); ok {
		return known.(bool)
	}
	may := false
	switch e.Kind {
	case git.Link:
		return false // where it leads is a member of its own
	case git.Submodule:
		return true
	case git.Folder:
		entries, err := g.Repository.Entries(e.ID)
		may = err != nil || slices.ContainsFunc(entries, func(e git.Entry) bool { return strings.Contains(e.Name, word) || g.entryMayHave(e, word) })
	default:
		data, err := g.Repository.Blob(e.ID)
		// A packed chart shows nothing of what is in it.
		may = err != nil || git.IsLFS(data) || slices.Contains(data, 0) || textMayHave(data, word)
	}
	g.scans.words.Store(key, may)
	return may
}

// textMayHave is a proof only for plain words; others must stand there as they are.
func textMayHave(data []byte, word string) bool {
	if strings.ContainsFunc(word, func(r rune) bool { return r != '_' && (r < '0' || r > 'z' || r > '9' && r < 'A' || r > 'Z' && r < 'a') }) {
		return bytes.Contains(data, []byte(word))
	}
	return (&manifest.Document{Raw: data}).MayHave(word)
}
