package render

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
)

// archive makes a tree of txtar text. A file whose content is "-> target" is a symlink.
func archive(text string) fstest.MapFS {
	tree := fstest.MapFS{}
	for _, f := range txtar.Parse([]byte(text)).Files {
		entry := &fstest.MapFile{Data: f.Data, Mode: 0o644}
		if target, ok := strings.CutPrefix(string(f.Data), "-> "); ok {
			entry.Data, entry.Mode = []byte(strings.TrimSuffix(target, "\n")), fs.ModeSymlink|0o777
		}
		tree[f.Name] = entry
	}
	return tree
}

// onDisk writes such a tree below a directory that has a neighbour, to see what would get out, and opens it.
func onDisk(t testing.TB, tree fstest.MapFS) (repo fs.FS, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "repo")
	for name, f := range tree {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if f.Mode&fs.ModeSymlink != 0 {
			err = os.Symlink(string(f.Data), file)
		} else {
			err = os.WriteFile(file, f.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return opened(t, dir), dir
}

// opened is what Open gives for a repository root.
func opened(t testing.TB, dir string) fs.FS {
	t.Helper()
	repo, sub, err := Open(dir, ".")
	if err != nil || sub != "." {
		t.Fatal(sub, err)
	}
	t.Cleanup(func() {
		c := repo.(*checkout)
		c.root.Close()
		if c.last != nil {
			c.last.Close()
		}
	})
	return repo
}

// own is this package's test repository.
func own(t testing.TB) fs.FS {
	t.Helper()
	return opened(t, filepath.Join("testdata", "repo"))
}

// shared opens a folder of data that lies beside the project, where it is there.
func shared(t testing.TB, folder string) fs.FS {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "shared", filepath.FromSlash(folder))
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("%s is not here: it is data beside the project", dir)
	}
	return opened(t, dir)
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

// wantSame shows where two texts part.
func wantSame(t *testing.T, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	g, w := strings.SplitAfter(string(got), "\n"), strings.SplitAfter(string(want), "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("line %d is different:\n%swant\n%s", i+1, strings.Join(g[i:min(i+5, len(g))], ""), strings.Join(w[i:min(i+5, len(w))], ""))
		}
	}
	t.Fatalf("%d lines, want %d", len(g), len(w))
}

const (
	someYAML  = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	someChart = "apiVersion: v2\nname: a\nversion: 0.1.0\n"
)

func TestDetection(t *testing.T) {
	for name, c := range map[string]struct {
		tree   string
		dir    string
		render string
		want   string
		err    []string
	}{
		"a directory of manifests is rendered as a directory":        {tree: "-- a/x.yaml --\n" + someYAML, dir: "a", want: Directory},
		"a kustomization.yaml is rendered with kustomize":            {tree: "-- kustomization.yaml --\nnamePrefix: a-\nresources: [x.yaml]\n-- x.yaml --\n" + someYAML, dir: ".", want: Kustomize},
		"a kustomization.yml is rendered with kustomize":             {tree: "-- kustomization.yml --\nresources: [x.yaml]\n-- x.yaml --\n" + someYAML, dir: ".", want: Kustomize},
		"a Kustomization is rendered with kustomize":                 {tree: "-- Kustomization --\nresources: [x.yaml]\n-- x.yaml --\n" + someYAML, dir: ".", want: Kustomize},
		"a Chart.yaml is rendered with helm":                         {tree: "-- Chart.yaml --\n" + someChart, dir: ".", want: Helm},
		"kustomize wins over helm as in Argo CD":                     {tree: "-- Chart.yaml --\n" + someChart + "-- kustomization.yaml --\nresources: [x.yaml]\n-- x.yaml --\n" + someYAML, dir: ".", want: Kustomize},
		"a chart below the directory does not matter":                {tree: "-- x.yaml --\n" + someYAML + "-- sub/Chart.yaml --\n" + someChart, dir: ".", want: Directory},
		"a symlinked kustomization counts":                           {tree: "-- a/kustomization.yaml --\n-> ../k.yaml\n-- k.yaml --\nresources: [x.yaml]\n-- a/x.yaml --\n" + someYAML, dir: "a", want: Kustomize, err: []string{"kustomize"}},
		"what is asked for wins over what would be detected":         {tree: "-- Chart.yaml --\n" + someChart, dir: ".", render: Directory, want: Directory},
		"a file is rendered as a directory of one file":              {tree: "-- a.txt --\n" + someYAML, dir: "a.txt", want: Directory},
		"kustomize without a kustomization is an error":              {tree: "-- x.yaml --\n" + someYAML, dir: ".", render: Kustomize, err: []string{"no kustomization.yaml"}},
		"helm without a chart is an error":                           {tree: "-- x.yaml --\n" + someYAML, dir: ".", render: Helm, err: []string{"no Chart.yaml"}},
		"helm of a file is an error":                                 {tree: "-- x.yaml --\n" + someYAML, dir: "x.yaml", render: Helm, err: []string{"no Chart.yaml"}},
		"an unknown way to render is an error that lists the known":  {tree: "-- x.yaml --\n" + someYAML, dir: ".", render: "jsonnet", err: []string{"jsonnet", "auto, directory, kustomize or helm"}},
		"a directory that is not there is an error that names it":    {tree: "-- x.yaml --\n" + someYAML, dir: "apps/web", err: []string{"apps/web"}},
		"an absolute directory is an error":                          {tree: "-- x/a.yaml --\n" + someYAML, dir: "/x", err: []string{"leaves the repository root"}},
		"a directory above the root is an error":                     {tree: "-- x.yaml --\n" + someYAML, dir: "../other", err: []string{"../other", "leaves the repository root"}},
		"a directory by a symlink that leaves the root is an error":  {tree: "-- x --\n-> ../other\n", dir: "x", err: []string{"leaves the repository root"}},
		"a directory by an absolute symlink is an error":             {tree: "-- x --\n-> /etc\n", dir: "x", err: []string{"leaves the repository root"}},
		"a Chart.yaml by a symlink that leaves the root is an error": {tree: "-- Chart.yaml --\n-> /etc/passwd\n", dir: ".", err: []string{"Chart.yaml", "leaves the repository root"}},
	} {
		t.Run(name, func(t *testing.T) {
			repo, _ := onDisk(t, archive(c.tree))
			r, err := Render(repo, c.dir, Options{Render: c.render})
			if c.err != nil {
				wantError(t, err, c.err...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Render != c.want {
				t.Errorf("rendered as %s, want %s", r.Render, c.want)
			}
		})
	}
}

// TestNothingLeavesTheRoot holds every way out of the repository shut, in the working copy and in a commit alike: the
// neighbour "secret" lies beside the root of the working copy, and "inside" is a file that may be read.
func TestNothingLeavesTheRoot(t *testing.T) {
	const kustomization = "-- app/kustomization.yaml --\n"
	const chart = "-- app/Chart.yaml --\n" + someChart + "-- app/templates/a.yaml --\nkind: A\nx: {{ .Values.x | quote }}\n"
	set := func(name, value string) Options { return Options{SetFiles: []Assignment{{name, value}}} }
	for name, c := range map[string]struct {
		tree string
		o    Options
		// inside: the same in reach, which must work.
		inside bool
	}{
		"directory: a symlink to a file beside the root":                  {tree: "-- app/a.yaml --\n-> ../../secret/a.yaml\n"},
		"directory: an absolute symlink":                                  {tree: "-- app/a.yaml --\n-> /etc/hostname\n"},
		"directory: an absolute symlink to what the root has too":         {tree: "-- app/a.yaml --\n-> /b/c.yaml\n-- app/b/c.yaml --\n" + someYAML + "-- b/c.yaml --\n" + someYAML},
		"directory: a chain of symlinks that ends outside":                {tree: "-- app/a.yaml --\n-> ../x/b.yaml\n-- x/b.yaml --\n-> c.yaml\n-- x/c.yaml --\n-> ../../secret/a.yaml\n"},
		"directory: a symlink through a directory link that ends outside": {tree: "-- app/a.yaml --\n-> ../x/a.yaml\n-- x --\n-> ../secret\n"},
		"directory: a symlink that is outside for a moment only":          {tree: "-- app/a.yaml --\n-> ../../repo/inside.yaml\n-- inside.yaml --\n" + someYAML},
		"directory: a symlink inside the root":                            {tree: "-- app/a.yaml --\n-> ../x/b.yaml\n-- x/b.yaml --\n-> ../inside.yaml\n-- inside.yaml --\n" + someYAML, inside: true},

		"kustomize: a resource beside the root":             {tree: kustomization + "resources: [../../secret/a.yaml]\n"},
		"kustomize: a base beside the root":                 {tree: kustomization + "resources: [../../secret]\n"},
		"kustomize: a base by too many dots":                {tree: kustomization + "resources: [../../../../inside]\n-- inside/kustomization.yaml --\nresources: [a.yaml]\n-- inside/a.yaml --\n" + someYAML},
		"kustomize: an absolute resource":                   {tree: kustomization + "resources: [/etc/hostname]\n"},
		"kustomize: a file beside the kustomization":        {tree: kustomization + "resources: [../inside.yaml]\n-- inside.yaml --\n" + someYAML},
		"kustomize: a resource by a symlink":                {tree: kustomization + "resources: [a.yaml]\n-- app/a.yaml --\n-> ../../secret/a.yaml\n"},
		"kustomize: a resource by a symlink in the root":    {tree: kustomization + "resources: [a.yaml]\n-- app/a.yaml --\n-> ../inside.yaml\n-- inside.yaml --\n" + someYAML},
		"kustomize: a base by a symlink":                    {tree: kustomization + "resources: [../base]\n-- base --\n-> ../secret\n"},
		"kustomize: a generator's file":                     {tree: kustomization + "configMapGenerator: [{name: a, files: [x=../../secret/a.yaml]}]\n"},
		"kustomize: a generator's file by a symlink":        {tree: kustomization + "configMapGenerator: [{name: a, files: [a.txt]}]\n-- app/a.txt --\n-> /etc/hostname\n"},
		"kustomize: a generator's env file":                 {tree: kustomization + "configMapGenerator: [{name: a, envs: [../../secret/a.env]}]\n"},
		"kustomize: a patch file":                           {tree: kustomization + "resources: [a.yaml]\npatches: [{path: ../../secret/a.yaml}]\n-- app/a.yaml --\n" + someYAML},
		"kustomize: a patch file of a parameter":            {tree: kustomization + "resources: [a.yaml]\n-- app/a.yaml --\n" + someYAML, o: Options{Patches: []string{"path: ../../secret/a.yaml"}}},
		"kustomize: a component of a parameter":             {tree: kustomization + "resources: [a.yaml]\n-- app/a.yaml --\n" + someYAML, o: Options{Components: []string{"../../secret"}}},
		"kustomize: an absolute component of a parameter":   {tree: kustomization + "resources: [a.yaml]\n-- app/a.yaml --\n" + someYAML, o: Options{Components: []string{"/etc"}}},
		"kustomize: an openapi schema":                      {tree: kustomization + "resources: [a.yaml]\nopenapi: {path: ../../secret/a.yaml}\n-- app/a.yaml --\n" + someYAML},
		"kustomize: a transformer configuration":            {tree: kustomization + "resources: [a.yaml]\nconfigurations: [../../secret/a.yaml]\n-- app/a.yaml --\n" + someYAML},
		"kustomize: a base in the root":                     {tree: kustomization + "resources: [../inside]\n-- inside/kustomization.yaml --\nresources: [a.yaml]\n-- inside/a.yaml --\n" + someYAML, inside: true},
		"kustomize: a base by a symlink in the root":        {tree: kustomization + "resources: [../base]\n-- base --\n-> x/inside\n-- x/inside/kustomization.yaml --\nresources: [a.yaml]\n-- x/inside/a.yaml --\n" + someYAML, inside: true},
		"kustomize: a component of a parameter in the root": {tree: kustomization + "resources: [a.yaml]\n-- app/a.yaml --\n" + someYAML + "-- inside/kustomization.yaml --\nkind: Component\nnamePrefix: x-\n", o: Options{Components: []string{"../inside"}}, inside: true},

		"helm: a value file beside the root":                {tree: chart, o: Options{ValueFiles: []string{"../../secret/a.yaml"}}},
		"helm: a value file by too many dots":               {tree: chart + "-- inside.yaml --\nx: y\n", o: Options{ValueFiles: []string{"../../../inside.yaml"}}},
		"helm: a value file from the root and out of it":    {tree: chart + "-- secret/a.yaml --\nx: y\n", o: Options{ValueFiles: []string{"/../secret/a.yaml"}}},
		"helm: a value file by a symlink":                   {tree: chart + "-- app/a.yaml --\n-> ../../secret/a.yaml\n", o: Options{ValueFiles: []string{"a.yaml"}}},
		"helm: a value file by an absolute symlink":         {tree: chart + "-- a.yaml --\n-> /etc/hostname\n", o: Options{ValueFiles: []string{"/a.yaml"}}},
		"helm: a missing value file outside is no excuse":   {tree: chart, o: Options{ValueFiles: []string{"../../nowhere.yaml"}, IgnoreMissingValueFiles: true}},
		"helm: a setFile beside the root":                   {tree: chart, o: set("x", "../../secret/a.yaml")},
		"helm: an absolute setFile is below the root":       {tree: chart + "-- secret/a.yaml --\nx: y\n", o: set("x", "/../secret/a.yaml")},
		"helm: a setFile by a symlink":                      {tree: chart + "-- app/a.txt --\n-> ../../secret/a.yaml\n", o: set("x", "a.txt")},
		"helm: a template by a symlink":                     {tree: chart + "-- app/templates/b.yaml --\n-> ../../../secret/a.yaml\n"},
		"helm: a template by an absolute symlink":           {tree: chart + "-- app/templates/b.yaml --\n-> /etc/hostname\n"},
		"helm: a directory by a symlink":                    {tree: chart + "-- app/charts --\n-> ../../secret\n"},
		"helm: a directory link that leads back":            {tree: chart + "-- app/files --\n-> ../app\n"},
		"helm: a schema that names a file of the machine":   {tree: chart + "-- app/values.schema.json --\n{\"$ref\": \"file:///etc/hostname\"}\n"},
		"helm: a schema that names a file without a scheme": {tree: chart + "-- app/values.schema.json --\n{\"$ref\": \"/etc/hostname\"}\n"},
		"helm: a schema that names a URL":                   {tree: chart + "-- app/values.schema.json --\n{\"$ref\": \"https://127.0.0.1:1/x.json\"}\n"},
		"helm: a .helmignore by a symlink":                  {tree: chart + "-- app/.helmignore --\n-> /etc/hostname\n"},
		"helm: a value file in the root":                    {tree: chart + "-- inside.yaml --\nx: y\n", o: Options{ValueFiles: []string{"/inside.yaml", "../inside.yaml"}}, inside: true},
		"helm: a value file by a symlink in the root":       {tree: chart + "-- app/a.yaml --\n-> ../inside.yaml\n-- inside.yaml --\nx: y\n", o: Options{ValueFiles: []string{"a.yaml"}}, inside: true},
		"helm: a template by a symlink in the root":         {tree: chart + "-- app/templates/b.yaml --\n-> ../../inside.yaml\n-- inside.yaml --\nkind: B\n", inside: true},
		"helm: a setFile in the root":                       {tree: chart + "-- inside.txt --\ny\n", o: set("x", "/inside.txt"), inside: true},
	} {
		t.Run(name, func(t *testing.T) {
			tree := archive(c.tree)
			repo, dir := onDisk(t, tree)
			secret := filepath.Join(filepath.Dir(dir), "secret")
			if err := os.Mkdir(secret, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"a.yaml": "kind: SecretKeyring\n", "a.env": "A=SecretKeyring\n", "kustomization.yaml": "kind: Component\nresources: [a.yaml]\n"} {
				if err := os.WriteFile(filepath.Join(secret, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for where, repo := range map[string]fs.FS{"working copy": repo, "commit": committed(t, tree)} {
				r, err := Render(repo, "app", c.o)
				switch {
				case c.inside && err != nil:
					t.Errorf("%s: %v", where, err)
				case c.inside && len(r.Stream) == 0:
					t.Errorf("%s: nothing rendered", where)
				case !c.inside && err == nil:
					t.Errorf("%s: no error, but\n%s", where, r.Stream)
				case !c.inside && strings.Contains(err.Error(), "Keyring"):
					t.Errorf("%s: the error tells what is outside: %v", where, err)
				}
			}
		})
	}
}

func TestEscapesAreErrOutside(t *testing.T) {
	const chart = "-- app/Chart.yaml --\n" + someChart
	for name, c := range map[string]struct {
		tree string
		o    Options
	}{
		"a symlink of the directory rendering": {tree: "-- app/a.yaml --\n-> ../../x.yaml\n"},
		"a value file":                         {tree: chart, o: Options{ValueFiles: []string{"../../x.yaml"}}},
		"a setFile":                            {tree: chart, o: Options{SetFiles: []Assignment{{"x", "../../x"}}}},
		"a template":                           {tree: chart + "-- app/templates/b.yaml --\n-> ../../../x.yaml\n"},
		"a base":                               {tree: "-- app/kustomization.yaml --\nresources: [../../x]\n"},
		"a generator's file":                   {tree: "-- app/kustomization.yaml --\nconfigMapGenerator: [{name: a, files: [a.txt]}]\n-- app/a.txt --\n-> ../../x\n"},
		"a component":                          {tree: "-- app/kustomization.yaml --\nnamePrefix: a\n", o: Options{Components: []string{"../../x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			repo, _ := onDisk(t, archive(c.tree))
			if _, err := Render(repo, "app", c.o); !errors.Is(err, ErrOutside) {
				t.Errorf("error %v is not ErrOutside", err)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	tree := archive(`
-- a/b/c --
x
-- link --
-> a/b
-- a/link --
-> ../link/c
-- out --
-> a/../../x
-- back --
-> link/../../a/b
-- loop --
-> loop
`)
	for name, want := range map[string]string{
		".": ".", "a/b/c": "a/b/c", "link/c": "a/b/c", "a/link": "a/b/c", "link/../b/./c": "a/b/c", "a/..": ".",
		"back/c": "a/b/c", // .. after a link means the directory that the link led to
		"..":     "", "../a": "", "a/../../a": "", "a/b/c/d": "", "none": "", "out": "", "loop": "",
	} {
		got, err := resolve(tree, name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s is resolved to %q (%v), want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"..", "../a", "a/../../a", "out"} {
		if _, err := resolve(tree, name); !errors.Is(err, ErrOutside) {
			t.Errorf("%s: %v is not ErrOutside", name, err)
		}
	}
}

// FuzzResolve lets links point anywhere: what they are resolved to is inside and no link.
func FuzzResolve(f *testing.F) {
	f.Add("a/b/c", "../d", "e/../..")
	f.Add("a/l", "b", "../l")
	f.Add("d/f", "/etc", "x/../../..")
	f.Fuzz(func(t *testing.T, name, one, two string) {
		tree := fstest.MapFS{
			"a/b":   {Data: []byte(one), Mode: fs.ModeSymlink},
			"d":     {Data: []byte(two), Mode: fs.ModeSymlink},
			"e/f/g": {Data: []byte("x")},
		}
		real, err := resolve(tree, name)
		if err != nil {
			return
		}
		if !fs.ValidPath(real) {
			t.Fatalf("%q is resolved to %q", name, real)
		}
		if info, err := fs.Lstat(tree, real); err != nil || info.Mode()&fs.ModeSymlink != 0 {
			t.Errorf("%q is resolved to %q, which is %v (%v)", name, real, info, err)
		}
	})
}

func TestOpenFindsTheRoot(t *testing.T) {
	base := t.TempDir()
	for _, dir := range []string{"git/.git", "git/apps/web", "git/sub/apps/web", "plain/apps/web"} {
		if err := os.MkdirAll(filepath.Join(base, filepath.FromSlash(dir)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"git/sub/.git", "git/apps/web/a.yaml"} {
		if err := os.WriteFile(filepath.Join(base, filepath.FromSlash(file)), []byte("gitdir: x\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct{ cwd, dir, sourcePath, root, sub string }{
		"the nearest directory with a .git is the root": {dir: "git/apps/web", root: "git", sub: "apps/web"},
		"the root itself": {dir: "git", root: "git", sub: "."},
		"a .git file of a submodule or worktree counts":                         {dir: "git/sub/apps/web", root: "git/sub", sub: "apps/web"},
		"a file is below its repository too":                                    {dir: "git/apps/web/a.yaml", root: "git", sub: "apps/web/a.yaml"},
		"the Application's path gives the root without .git":                    {dir: "plain/apps/web", sourcePath: "apps/web", root: "plain", sub: "apps/web"},
		"the Application's path may be written with slashes around":             {dir: "plain/apps/web", sourcePath: "/apps/web/", root: "plain", sub: "apps/web"},
		"the Application's path wins over a submodule's .git":                   {dir: "git/sub/apps/web", sourcePath: "sub/apps/web", root: "git", sub: "sub/apps/web"},
		"the Application's path wins over a .git further up":                    {dir: "git/apps/web", sourcePath: "web", root: "git/apps", sub: "web"},
		"the Application's path . is the directory itself":                      {dir: "plain/apps/web", sourcePath: ".", root: "plain/apps/web", sub: "."},
		"half a name at the end of the path does not count":                     {dir: "plain/apps/web", sourcePath: "b", root: "plain/apps/web", sub: "."},
		"another Application's path does not count":                             {dir: "git/apps/web", sourcePath: "x/y", root: "git", sub: "apps/web"},
		"without any of it the current directory is the root":                   {cwd: "plain", dir: "plain/apps/web", root: "plain", sub: "apps/web"},
		"a directory that the current one does not hold sees what is beside it": {cwd: "git", dir: "plain/apps/web", root: "plain/apps", sub: "web"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(filepath.Join(base, filepath.FromSlash(c.cwd)))
			root, sub, err := Locate(filepath.Join(base, filepath.FromSlash(c.dir)), c.sourcePath)
			if err != nil {
				t.Fatal(err)
			}
			if want := filepath.Join(base, filepath.FromSlash(c.root)); root != want || sub != c.sub {
				t.Errorf("root %s, sub %s; want %s, %s", root, sub, want, c.sub)
			}
			repo, sub, err := Open(filepath.Join(base, filepath.FromSlash(c.dir)), c.sourcePath)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fs.Stat(repo, sub); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("what it opens refuses to leave the root by itself too", func(t *testing.T) {
		repo, dir := onDisk(t, archive("-- a/out --\n-> ../../secret\n-- a/etc --\n-> /etc/hostname\n-- dir --\n-> ../other\n"))
		for _, file := range []string{"secret", "other/x"} {
			file = filepath.Join(filepath.Dir(dir), filepath.FromSlash(file))
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("x"), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"a/out", "a/etc", "dir/x", "../secret"} {
			if text, err := fs.ReadFile(repo, name); err == nil {
				t.Errorf("%s: %q", name, text)
			}
			if _, err := fs.Stat(repo, name); err == nil {
				t.Errorf("%s: no error of Stat", name)
			}
			if f, err := repo.Open(name); err == nil {
				f.Close()
				t.Errorf("%s: no error of Open", name)
			}
		}
		if list, err := fs.ReadDir(repo, "dir"); err == nil {
			t.Errorf("dir: %v", list)
		}
	})
	t.Run("a directory that is not there is an error", func(t *testing.T) {
		if _, _, err := Open(filepath.Join(base, "nowhere"), ""); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	})
}

// TestRealManifestsRender renders manifests that nobody here wrote.
func TestRealManifestsRender(t *testing.T) {
	corpus := shared(t, "corpus")
	for dir, want := range map[string]string{
		"example-apps/apps":                Helm,
		"example-apps/blue-green":          Helm,
		"example-apps/guestbook":           Directory,
		"example-apps/helm-guestbook":      Helm,
		"example-apps/helm-hooks":          Directory,
		"example-apps/kustomize-guestbook": Kustomize,
		"example-apps/pre-post-sync":       Kustomize,
		"example-apps/sock-shop":           Kustomize,
		"example-apps/sync-waves":          Directory,
		"kube-prometheus":                  Directory,
		"argo-cd-install.yaml":             Directory,
	} {
		t.Run(dir, func(t *testing.T) {
			r, err := Render(corpus, dir, Options{Application: "team_app", Namespace: "dest"})
			if err != nil {
				t.Fatal(err)
			}
			if r.Render != want || len(r.Stream) == 0 || len(r.Skipped) > 0 {
				t.Errorf("rendered as %s, %d bytes, skipped %v", r.Render, len(r.Stream), r.Skipped)
			}
			again, err := Render(corpus, dir, Options{Application: "team_app", Namespace: "dest"})
			if err != nil || !slices.Equal(r.Stream, again.Stream) {
				t.Errorf("the second time it is different (%v)", err)
			}
		})
	}
	t.Run("every file of kube-prometheus is in the stream byte for byte", func(t *testing.T) {
		r, err := Render(corpus, "kube-prometheus", Options{})
		if err != nil {
			t.Fatal(err)
		}
		files, err := fs.Glob(corpus, "kube-prometheus/*.yaml")
		if err != nil || len(files) != len(r.Origins) {
			t.Fatalf("%d files, %d origins, %v", len(files), len(r.Origins), err)
		}
		lines := strings.SplitAfter(string(r.Stream), "\n")
		for _, o := range r.Origins {
			text, err := fs.ReadFile(corpus, o.Path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(strings.Join(lines[o.Line-1:], ""), string(text)) {
				t.Errorf("%s does not begin at line %d", o.Path, o.Line)
			}
		}
	})
}
