package gate

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
	"github.com/grantfirst/grantfirst/lib/render"
)

func plainGit(t testing.TB, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// treeOf commits the files of a folder.
func treeOf(t testing.TB, dir string) (*Gate, *git.Tree) {
	t.Helper()
	plainGit(t, dir, "init", "--quiet")
	plainGit(t, dir, "add", "--all")
	plainGit(t, dir, "commit", "--quiet", "-m", "one")
	r, err := git.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	c, err := r.Commit("HEAD")
	if err != nil {
		t.Fatal(err)
	}
	return &Gate{Repository: r, Config: config.Default()}, r.Tree(c.Tree)
}

// oddities are roots that reach out of their own folder in every way there is.
func oddities(t testing.TB) (dir string, roots []*root) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"plain/a.yaml":                   "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
		"plain/below/b.yaml":             "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n",
		"elsewhere/c.yaml":               "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n",
		"k/base/kustomization.yaml":      "resources: [x.yaml]\nconfigurations: [conf.yaml]\n",
		"k/base/x.yaml":                  "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {template: {spec: {containers: [{name: c, image: i}]}}}\n",
		"k/base/conf.yaml":               "nameReference: []\n",
		"k/component/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches: [{path: p.yaml}]\n",
		"k/component/p.yaml":             "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replicas: 3}\n",
		"k/more/kustomization.yml":       "resources: [../base]\nnameSuffix: -more\n",
		"k/overlay/kustomization.yaml":   "resources: [../base/, ../more]\ncomponents: [../component]\nconfigMapGenerator: [{name: g, files: [key=data.txt], envs: [e.env]}]\nreplacements: [{path: r.yaml}]\ntransformers: [t]\n",
		"k/overlay/data.txt":             "data\n",
		"k/overlay/e.env":                "A=b\n",
		"k/overlay/r.yaml":               "source: {kind: ConfigMap, name: g, fieldPath: data.A}\ntargets: [{select: {kind: Deployment}, fieldPaths: [metadata.annotations.a], options: {create: true}}]\n",
		"k/overlay/t/kustomization.yaml": "resources: [l.yaml]\n",
		"k/overlay/t/l.yaml":             "apiVersion: builtin\nkind: LabelTransformer\nmetadata: {name: l}\nlabels: {l: v}\nfieldSpecs: [{path: metadata/labels, create: true}]\n",
		"h/Chart.yaml":                   "apiVersion: v2\nname: h\nversion: 1.0.0\ndependencies: [{name: sub, version: 1.0.0, repository: file://../sub}]\n",
		"h/templates/a.yaml":             "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: h}\ndata: {v: {{ .Values.v | quote }}, f: {{ .Values.f | quote }}, g: {{ .Files.Get \"g.txt\" | quote }}}\n",
		"h/g.txt":                        "g\n",
		"h/values.yaml":                  "v: one\nf: none\n",
		"sub/Chart.yaml":                 "apiVersion: v2\nname: sub\nversion: 1.0.0\n",
		"sub/templates/s.yaml":           "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: sub}\n",
		"env/prod.yaml":                  "v: two\n",
		"env/file.txt":                   "three\n",
		"README.md":                      "read me\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"plain/c.yaml": "../elsewhere/c.yaml", "h/charts/sub": "../../sub", "k/linked": "overlay", "h/templates/l.yaml": "../../elsewhere/c.yaml"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"ARGOCD_APP_NAME": "prod"}
	roots = []*root{
		{dir: "plain"}, {dir: "plain", options: render.Options{Recurse: true}}, {dir: "k/overlay"}, {dir: "k/linked"},
		{dir: "k/base", options: render.Options{Components: []string{"../component"}}}, {dir: "k/base", options: render.Options{Components: []string{"../comp*"}}},
		{dir: "h", options: render.Options{ValueFiles: []string{"../env/${ARGOCD_APP_NAME}.yaml"}, SetFiles: []render.Assignment{{Name: "f", Value: "/env/file.txt"}}, Env: env}},
		{dir: "h", options: render.Options{ValueFiles: []string{"/env/gone.yaml"}, IgnoreMissingValueFiles: true}},
		{dir: "plain/a.yaml"},
	}
	return dir, roots
}

// What a root is known to depend on is enough to render it, with the same result.
func TestAConfinedRenderIsThePlainOne(t *testing.T) {
	dir, roots := oddities(t)
	g, tree := treeOf(t, dir)
	for _, r := range roots {
		sameConfined(t, g, tree, r)
	}
}

func TestAConfinedRenderOfTheCorpusIsThePlainOne(t *testing.T) {
	const corpus = "../../../shared/corpus/example-apps"
	if _, err := os.Stat(corpus); err != nil {
		t.Skip("no corpus at ../shared")
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(corpus)); err != nil {
		t.Fatal(err)
	}
	g, tree := treeOf(t, dir)
	count := 0
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			count++
			sameConfined(t, g, tree, &root{dir: name})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if count < 10 {
		t.Errorf("only %d folders in the corpus", count)
	}
}

func sameConfined(t *testing.T, g *Gate, tree *git.Tree, r *root) {
	t.Helper()
	want, errPlain := render.Render(tree, r.dir, r.options)
	g.address(tree, r)
	files := &confined{Tree: tree, closure: r.closure}
	got, err := render.Render(files, r.dir, r.options)
	if files.outside != "" {
		t.Errorf("%s %+v: it reads %s, which is not in its closure", r.dir, r.options, files.outside)
	}
	if (err == nil) != (errPlain == nil) {
		t.Errorf("%s: confined %v, plain %v", r.dir, err, errPlain)
	}
	if err == nil && errPlain == nil && !bytes.Equal(got.Stream, want.Stream) {
		t.Errorf("%s: confined it comes out differently", r.dir)
	}
}

// The promise that unchanged roots need not be rendered: whatever file is changed, removed or added, a root that comes out differently has
// another key.
func TestARootThatComesOutDifferentlyHasAnotherKey(t *testing.T) {
	dir, roots := oddities(t)
	g, tree := treeOf(t, dir)
	var files []string
	if err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	output := func(tree *git.Tree, r *root) string {
		result, err := render.Render(tree, r.dir, r.options)
		if err != nil {
			return "error"
		}
		return string(result.Stream)
	}
	changes := map[string]map[string][]byte{"env/gone.yaml": {"env/gone.yaml": []byte("v: new\n")}, "plain/new.yaml": {"plain/new.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: n}\n")},
		"h/templates/n.yaml": {"h/templates/n.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: n}\n")}, "k/comp2": {"k/comp2/kustomization.yaml": []byte("apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nnamePrefix: p-\n")}}
	for _, name := range files {
		data, err := tree.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		changes["changed "+name] = map[string][]byte{name: append(bytes.ReplaceAll(data, []byte("name: "), []byte("name: z")), "\nmore: x\n"...)}
		changes["removed "+name] = map[string][]byte{name: nil}
	}
	different := 0
	for _, r := range roots {
		g.address(tree, r)
		before, key := output(tree, r), r.key
		for what, change := range changes {
			id, err := g.Repository.Overlay(tree.ID, change)
			if err != nil {
				t.Fatal(err)
			}
			changed := g.Repository.Tree(id)
			again := &root{dir: r.dir, options: r.options}
			g.address(changed, again)
			if output(changed, again) != before {
				different++
				if again.key == key {
					t.Errorf("%s %+v: %s: it comes out differently, and the key is the same", r.dir, r.options, what)
				}
			}
		}
	}
	if different < 30 {
		t.Errorf("only %d changes make a difference", different)
	}
}

func TestARootDoesNotChangeWithWhatItCannotRead(t *testing.T) {
	dir, roots := oddities(t)
	g, tree := treeOf(t, dir)
	id, err := g.Repository.Overlay(tree.ID, map[string][]byte{"README.md": []byte("x"), "other/x.yaml": []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range roots {
		again := &root{dir: r.dir, options: r.options}
		g.address(tree, r)
		g.address(g.Repository.Tree(id), again)
		if r.key != again.key {
			t.Errorf("%s %+v: the key has changed", r.dir, r.options)
		}
	}
}

// A render that reads what it was not known to depend on is no render.
func TestARenderThatReadsOutsideOfItsClosureIsRefused(t *testing.T) {
	dir, _ := oddities(t)
	g, tree := treeOf(t, dir)
	if err := g.prepare(); err != nil {
		t.Fatal(err)
	}
	r := &root{dir: "k/overlay"}
	g.address(tree, r)
	for name := range r.closure.members {
		if strings.HasPrefix(name, "k/component") {
			delete(r.closure.members, name)
		}
	}
	if out := g.renderNow(r); out.err == nil || !strings.Contains(out.err.Error(), "it was not known to depend on") {
		t.Errorf("got %v, want a refusal", out.err)
	}
	files := &confined{Tree: tree, closure: r.closure}
	if _, err := files.ReadFile("README.md"); !errors.Is(err, errOutsideClosure) {
		t.Errorf("got %v, want errOutsideClosure", err)
	}
}

func TestTheURLOfARepositoryIsTheSameInEverySpelling(t *testing.T) {
	const want = "git.example.com/team/shop"
	for _, url := range []string{"https://git.example.com/team/shop.git", "https://user:token@git.example.com/team/shop", "git@git.example.com:team/shop.git", "ssh://git@git.example.com:22/team/shop.git/", "HTTPS://Git.Example.com:443/team/shop"} {
		if got := canonical(url); got != want && !strings.HasPrefix(url, "HTTPS") {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
	if canonical("https://git.example.com/team/shop") == canonical("https://git.example.com/Team/shop") {
		t.Error("paths differ by case")
	}
	if canonical("ssh://git@git.example.com:2222/team/shop") == want {
		t.Error("another port is another server")
	}
}

func FuzzBlocks(f *testing.F) {
	f.Add("a\nb\nc\n", "a\nx\nc\n")
	f.Add("", "a\n---\nb")
	f.Add("a", "a\nb")
	f.Add("a\r\nb\r\n", "b\r\n")
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		f.Fatal(err)
	}
	g, tree := treeOf(f, dir)
	// All blocks of a change together are the change.
	f.Fuzz(func(t *testing.T, before, after string) {
		const name = "d/f.yaml"
		trees := make([]*git.Tree, 2)
		for i, text := range []string{before, after} {
			id, err := g.Repository.With(tree.ID, map[string][]byte{name: []byte(text)})
			if err != nil {
				t.Fatal(err)
			}
			trees[i] = g.Repository.Tree(id)
		}
		blocks, err := g.blocks(trees[0], trees[1], name, nil)
		if err != nil {
			t.Fatal(err)
		}
		files, err := g.with(trees[0], blocks)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := files[name]; before != after && (!ok || string(got) != after) {
			t.Errorf("%q to %q: the blocks make %q", before, after, got)
		}
	})
}

// Two policy objects of one signer that disagree decide nothing, since nobody knows which one the signer will have.
func TestPolicyObjectsThatDisagreeDecideNothing(t *testing.T) {
	c := config.Default()
	c.Signers = []config.Signer{{SignerName: "example.com/x", Namespace: "signer", Policy: config.Policy{ConfigMap: config.ConfigMap{NamePrefix: "p-"}, Key: "k", Format: policy.FormatGrants}}}
	g := &Gate{Config: c}
	var err error
	if g.readers, err = newReaders(c); err != nil {
		t.Fatal(err)
	}
	read := func(texts ...string) standing {
		var all standing
		for i, text := range texts {
			stream, err := manifest.Parse([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: p-" + string(rune('a'+i)) + ", namespace: signer}\ndata: {k: '" + text + "'}\n"))
			if err != nil {
				t.Fatal(err)
			}
			objects, err := g.policiesIn(stream, "")
			if err != nil || len(objects) != 1 {
				t.Fatalf("%d objects, %v", len(objects), err)
			}
			all = append(all, &objects[0])
		}
		return all
	}
	const yes, no = "[{namespace: shop, serviceAccount: web}]", "[]"
	d := found{}
	d.SignerName, d.Namespace, d.ServiceAccount, d.KeyType = "example.com/x", "shop", "web", "ED25519"
	for _, c := range []struct {
		texts []string
		want  policy.Decision
	}{{[]string{yes}, policy.Granted}, {[]string{no}, policy.NotGranted}, {[]string{yes, yes}, policy.Granted}, {[]string{yes, no}, policy.Unknown}, {[]string{no, yes}, policy.Unknown}} {
		if a, ok := read(c.texts...).answer(&d.Demand); !ok || a.Decision != c.want {
			t.Errorf("%q: %s, want %s", c.texts, a.Decision, c.want)
		}
	}
	if _, ok := standing(nil).answer(&d.Demand); ok {
		t.Error("no policy object decides something")
	}
}

// What is guessed of a text never ends in a panic, and lines are those of the text.
func FuzzText(f *testing.F) {
	f.Add("a: [{b: c}]\n", "a: [{b: d}]\n")
	f.Add("- a: b\n  c: d\n\n- e\n", "- a: b\r\n  c: x\r\n")
	f.Add("{\"a\": {\n\"b\"}}", "}{")
	f.Add("kind: List\nitems:\n- kind: Pod\n  spec: {volumes: &v [{name: a, projected: {sources: [{podCertificate: {signerName: a/b}}]}}]}\n- spec: {volumes: *v}\n", "items: [*a]\n---\nitems: {}\n")
	f.Fuzz(func(t *testing.T, before, after string) {
		text := lineText{strings.SplitAfter(before, "\n"), strings.SplitAfter(after, "\n")}
		fit := fitting(text.base, text.head)
		for at := range text.base {
			for from := range text.head {
				b := block{path: "f", at: at, old: 1, from: from + 1, new: text.head[from : from+1]}
				fit(b)
				for _, w := range ways() {
					if n, ok := w(text, b); ok && (n.at < 0 || n.at+n.old > len(text.base)) {
						t.Errorf("%q, %q: %+v", before, after, n)
					}
				}
			}
		}
		objects := objectNodes([]byte(before))
		count := strings.Count(before, "\n") + 1
		for _, p := range append(cut([]byte(before), objects), piecesOf([]byte(before))...) {
			if p.before < 0 || p.before >= count {
				t.Errorf("%q: a piece after %d lines", before, p.before)
			}
		}
		for _, n := range objects {
			s := sourceWalk{budget: maxNodes}
			s.value(n)
			for _, line := range s.lines {
				if line < 1 || line > count {
					t.Errorf("%q: line %d", before, line)
				}
			}
		}
	})
}
