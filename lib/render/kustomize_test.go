package render

import (
	"cmp"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// build is "kustomize build" of a directory on the disk.
func build(t testing.TB, dir string) []byte {
	t.Helper()
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified
	building.Lock()
	defer building.Unlock()
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := objects.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestKustomizeBuild(t *testing.T) {
	t.Run("of an overlay with bases, components, generators, patches and replacements is that of the library on the disk", func(t *testing.T) {
		r, err := Render(own(t), "apps/web/prod", Options{})
		if err != nil {
			t.Fatal(err)
		}
		wantSame(t, r.Stream, build(t, filepath.Join("testdata", "repo", "apps", "web", "prod")))
	})
	for _, dir := range []string{"kustomize-guestbook", "pre-post-sync", "sock-shop"} {
		t.Run("of real manifests is that of the library on the disk: "+dir, func(t *testing.T) {
			r, err := Render(shared(t, "corpus"), "example-apps/"+dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			wantSame(t, r.Stream, build(t, filepath.Join("..", "..", "..", "shared", "corpus", "example-apps", dir)))
		})
	}
	for name, tree := range map[string]string{
		"a base by a symlink in the root":     "-- app/kustomization.yaml --\nresources: [../base, a.yaml]\n-- base --\n-> x/y\n-- x/y/kustomization.yaml --\nresources: [b.yaml]\n-- x/y/b.yaml --\nkind: B\napiVersion: v1\nmetadata: {name: b}\n-- app/a.yaml --\n-> sub/a.yaml\n-- app/sub/a.yaml --\n" + someYAML,
		"a base that says where it came from": "-- app/kustomization.yaml --\nbuildMetadata: [originAnnotations, transformerAnnotations]\nnamePrefix: x-\nresources: [../base]\n-- base/kustomization.yaml --\nresources: [a.yaml]\n-- base/a.yaml --\n" + someYAML,
		"builtin transformers in files":       "-- app/kustomization.yaml --\nresources: [a.yaml]\ntransformers: [t.yaml, t]\n-- app/a.yaml --\n" + someYAML + "-- app/t.yaml --\napiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: p}\npath: p.yaml\ntarget: {kind: ConfigMap}\n-- app/p.yaml --\n- {op: add, path: /data, value: {site: 'https://example.com/'}}\n-- app/t/kustomization.yaml --\nresources: [l.yaml]\n-- app/t/l.yaml --\napiVersion: builtin\nkind: AnnotationsTransformer\nmetadata: {name: l}\nannotations: {docs: 'https://example.com/docs'}\nfieldSpecs: [{path: metadata/annotations, create: true}]\n",
		"a schema and configurations":         "-- app/kustomization.yaml --\nresources: [a.yaml]\nconfigurations: [c.yaml]\ncrds: [crd.json]\nnameSuffix: -x\n-- app/a.yaml --\n" + someYAML + "-- app/c.yaml --\nnameReference:\n- kind: ConfigMap\n  fieldSpecs: [{path: spec/ref, kind: Widget}]\n-- app/crd.json --\n{\"x\": {\"Schema\": {\"properties\": {}}}}\n",
	} {
		t.Run("with "+name+" is that of the library on the disk", func(t *testing.T) {
			repo, dir := onDisk(t, archive(tree))
			r, err := Render(repo, "app", Options{})
			if err != nil {
				t.Fatal(err)
			}
			wantSame(t, r.Stream, build(t, filepath.Join(dir, "app")))
		})
	}
}

// TestKustomizeEdit compares with "kustomize edit" and "kustomize build", called as Argo CD calls them.
func TestKustomizeEdit(t *testing.T) {
	words := strings.Fields
	for name, c := range map[string]struct {
		// dir is below apps/web, prod where it is empty.
		dir string
		o   Options
		// edits are the commands; a patch has none, Argo CD writes it into the file.
		edits [][]string
		patch string
	}{
		"kustomize-plain":       {},
		"kustomize-names":       {o: Options{NamePrefix: "dev-", NameSuffix: "-v2"}, edits: [][]string{words("set nameprefix -- dev-"), words("set namesuffix -- -v2")}},
		"kustomize-images":      {o: Options{Images: []string{"proxy=registry.example.com/proxy:3@sha256:24a0c4b4a4c0eb97a1aabb8e29f18e917d05abfe1b7a7c07857230879ce7d3d3", "web=*:2.1"}}, edits: [][]string{words("set image proxy=registry.example.com/proxy:3@sha256:24a0c4b4a4c0eb97a1aabb8e29f18e917d05abfe1b7a7c07857230879ce7d3d3 web=*:2.1")}},
		"kustomize-image-tag":   {o: Options{Images: []string{"web:3", "other:1"}}, edits: [][]string{words("set image web:3 other:1")}},
		"kustomize-labels":      {o: Options{CommonLabels: map[string]string{"tier": "front", "owner": "me"}}, edits: [][]string{words("add label tier:front owner:me")}},
		"kustomize-annotations": {o: Options{CommonAnnotations: map[string]string{"a.example.com/b": "c: d"}}, edits: [][]string{{"add", "annotation", "a.example.com/b:c: d"}}},
		"kustomize-components":  {o: Options{Components: []string{"../components/*", "../components/debug"}}, edits: [][]string{words("add component ../components/debug ../components/metrics")}},
		"kustomize-patches": {o: Options{Patches: []string{"target: {kind: Deployment}\npatch: |-\n  - {op: replace, path: /spec/replicas, value: 9}\n", "path: replicas.yaml"}},
			patch: "  - target: {kind: Deployment}\n    patch: |-\n      - {op: replace, path: /spec/replicas, value: 9}\n  - path: replicas.yaml\n"},

		"kustomize-staging":      {dir: "staging"},
		"kustomize-namespace":    {dir: "staging", o: Options{Namespace: "dest", OwnNamespace: "store"}, edits: [][]string{words("set namespace -- store")}},
		"kustomize-replicas":     {dir: "staging", o: Options{Replicas: []Assignment{{"web", "7"}, {"web", "+5"}}}, edits: [][]string{words("set replicas web=7 web=5")}},
		"kustomize-force-labels": {dir: "staging", o: Options{CommonLabels: map[string]string{"stage": "no", "owner": "me"}, ForceCommonLabels: true}, edits: [][]string{words("add label --force stage:no owner:me")}},
		"kustomize-labels-without-selector": {dir: "staging", o: Options{CommonLabels: map[string]string{"stage2": "no", "owner": "me"}, LabelWithoutSelector: true},
			edits: [][]string{words("add label --without-selector stage2:no owner:me")}},
		"kustomize-labels-without-selector-forced": {dir: "staging", o: Options{CommonLabels: map[string]string{"tier": "front", "owner": "me"}, LabelWithoutSelector: true, ForceCommonLabels: true},
			edits: [][]string{words("add label --force --without-selector tier:front owner:me")}},
		"kustomize-labels-in-templates": {dir: "staging", o: Options{CommonLabels: map[string]string{"cost": "2", "owner": "me"}, LabelWithoutSelector: true, LabelIncludeTemplates: true, ForceCommonLabels: true},
			edits: [][]string{words("add label --force --without-selector --include-templates cost:2 owner:me")}},
		"kustomize-labels-in-templates-first": {o: Options{CommonLabels: map[string]string{"cost": "2", "owner": "me"}, LabelWithoutSelector: true, LabelIncludeTemplates: true},
			edits: [][]string{words("add label --without-selector --include-templates cost:2 owner:me")}},
		"kustomize-force-annotations": {dir: "staging", o: Options{CommonAnnotations: map[string]string{"owner": "me"}, ForceCommonAnnotations: true}, edits: [][]string{words("add annotation --force owner:me")}},
		"kustomize-environment": {o: Options{CommonAnnotations: map[string]string{"app": "$ARGOCD_APP_NAME-$NONE"}, CommonAnnotationsEnvsubst: true, Env: map[string]string{"ARGOCD_APP_NAME": "web"}},
			edits: [][]string{words("add annotation app:web-")}},
		"kustomize-quotes": {o: Options{CommonAnnotations: map[string]string{"a": `"b"`, "c": `"`, "d": `"e" f`, "g": `h"`, "i": `""`}, CommonLabels: map[string]string{"a": `"b"`}},
			edits: [][]string{{"add", "label", `a:"b"`}, {"add", "annotation", `a:"b"`, `c:"`, `d:"e" f`, `g:h"`, `i:""`}}},
		"kustomize-missing-components": {dir: "staging", o: Options{Components: []string{"../components/metrics", "../components/nothing", "../components/d*", "../../../../outside", "https://example.com/x"}, IgnoreMissingComponents: true},
			edits: [][]string{words("add component ../components/metrics")}},
		"kustomize-all": {dir: "staging", o: Options{
			NamePrefix: "a-", OwnNamespace: "store", Images: []string{"web:2"}, Replicas: []Assignment{{"worker", "1"}}, CommonLabels: map[string]string{"x": "y"}, CommonAnnotations: map[string]string{"x": "y"}, Components: []string{"../components/debug"},
		}, edits: [][]string{words("set nameprefix -- a-"), words("set image web:2"), words("set replicas worker=1"), words("add label x:y"), words("add annotation x:y"), words("set namespace -- store"), words("add component ../components/debug")}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := cmp.Or(c.dir, "prod")
			r, err := Render(own(t), "apps/web/"+dir, c.o)
			if err != nil {
				t.Fatal(err)
			}
			if *kustomizeCommand == "" {
				golden(t, name, r.Stream)
				return
			}
			root := t.TempDir()
			if err := os.CopyFS(root, os.DirFS(filepath.Join("testdata", "repo"))); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(root, "apps", "web", dir)
			run := func(args ...string) *exec.Cmd {
				cmd := exec.Command(*kustomizeCommand, args...)
				cmd.Dir = at
				return cmd
			}
			var commands []*exec.Cmd
			for _, e := range c.edits {
				commands = append(commands, run(append([]string{"edit"}, e...)...))
			}
			if c.patch != "" {
				file := filepath.Join(at, "kustomization.yaml")
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				text = []byte(strings.Replace(string(text), "replacements:", c.patch+"replacements:", 1))
				if err := os.WriteFile(file, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden(t, name, r.Stream, append(commands, run("build", "."))...)
		})
	}
}

func TestKustomizeParametersLeaveTheRepositoryAlone(t *testing.T) {
	tree := archive("-- app/kustomization.yaml --\nresources: [a.yaml]\n-- app/a.yaml --\n" + someYAML)
	repo, _ := onDisk(t, tree)
	if _, err := Render(repo, "app", Options{NamePrefix: "x-"}); err != nil {
		t.Fatal(err)
	}
	text, err := fs.ReadFile(repo, "app/kustomization.yaml")
	if err != nil || !slices.Equal(text, tree["app/kustomization.yaml"].Data) {
		t.Errorf("the file is now %q (%v)", text, err)
	}
}

func TestKustomizeRefusals(t *testing.T) {
	const own = "-- app/a.yaml --\n" + someYAML + "-- app/kustomization.yaml --\nresources: [a.yaml]\n"
	const inOverlay = "-- app/kustomization.yaml --\nresources: [../base]\n-- base/kustomization.yaml --\n"
	hint := []string{"is remote", "grantfirst generate -"}
	for name, c := range map[string]struct {
		tree string
		o    Options
		err  []string
	}{
		"helmCharts are refused":                    {tree: own + "helmCharts: [{name: redis, version: 1.0.0, repo: 'https://charts.example.com'}]\n", err: []string{"app/kustomization.yaml", "helmCharts", "redis", "grantfirst generate -"}},
		"helmChartInflationGenerator is refused":    {tree: own + "helmChartInflationGenerator: [{chartName: redis}]\n", err: []string{"app/kustomization.yaml", "helmCharts", "redis"}},
		"helmCharts of a base are refused":          {tree: inOverlay + "helmCharts: [{name: redis}]\n", err: []string{"base/kustomization.yaml", "redis"}},
		"a remote base is refused":                  {tree: "-- app/kustomization.yaml --\nresources:\n- https://github.com/example/repo//base?ref=v1\n", err: append(hint, "app/kustomization.yaml: resources: https://github.com/example/repo//base?ref=v1")},
		"a remote base of a base is refused":        {tree: inOverlay + "bases: [github.com/example/repo//base]\n", err: append(hint, "base/kustomization.yaml: resources: github.com/example/repo//base")},
		"a remote component is refused":             {tree: own + "components: ['git@example.com:x/y.git//c']\n", err: append(hint, "components: git@example.com:x/y.git//c")},
		"a remote patch is refused":                 {tree: own + "patches: [{path: 'https://127.0.0.1:1/p.yaml'}]\n", err: append(hint, "patches: https://127.0.0.1:1/p.yaml")},
		"a remote old-style patch is refused":       {tree: own + "patchesStrategicMerge: ['http://127.0.0.1:1/p.yaml']\n", err: append(hint, "patchesStrategicMerge")},
		"a remote JSON patch is refused":            {tree: own + "patchesJson6902: [{target: {version: v1, kind: ConfigMap, name: a}, path: 'http://127.0.0.1:1/p.yaml'}]\n", err: append(hint, "patchesJson6902")},
		"a remote replacement is refused":           {tree: own + "replacements: [{path: 'https://127.0.0.1:1/r.yaml'}]\n", err: append(hint, "replacements")},
		"a remote schema is refused":                {tree: own + "openapi: {path: 'https://127.0.0.1:1/s.json'}\n", err: append(hint, "openapi")},
		"a remote CRD is refused":                   {tree: own + "crds: ['https://127.0.0.1:1/s.json']\n", err: append(hint, "crds")},
		"a remote configuration is refused":         {tree: own + "configurations: ['https://127.0.0.1:1/s.json']\n", err: append(hint, "configurations")},
		"a remote generator is refused":             {tree: own + "generators: ['https://127.0.0.1:1/s.json']\n", err: append(hint, "generators")},
		"a remote transformer is refused":           {tree: own + "transformers: ['https://127.0.0.1:1/s.json']\n", err: append(hint, "transformers")},
		"a remote validator is refused":             {tree: own + "validators: ['https://127.0.0.1:1/s.json']\n", err: append(hint, "validators")},
		"a remote file of a ConfigMap is refused":   {tree: own + "configMapGenerator: [{name: x, files: ['a=https://127.0.0.1:1/s']}]\n", err: append(hint, "configMapGenerator")},
		"a remote env file of a Secret is refused":  {tree: own + "secretGenerator: [{name: x, env: 'https://127.0.0.1:1/s'}]\n", err: append(hint, "secretGenerator")},
		"a remote path of a builtin is refused":     {tree: own + "transformers: [t.yaml]\n-- app/t.yaml --\nkind: X\n---\napiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: p}\npath: https://127.0.0.1:1/p.yaml\n", err: append(hint, "app/t.yaml: path")},
		"a remote path of an inline one is refused": {tree: own + "generators:\n- |-\n  apiVersion: builtin\n  kind: ConfigMapGenerator\n  metadata: {name: p}\n  files: ['x=https://127.0.0.1:1/p.yaml']\n", err: append(hint, "app/kustomization.yaml: files")},
		"a remote replacement of one is refused":    {tree: own + "transformers: [t.yaml]\n-- app/t.yaml --\napiVersion: builtin\nkind: ReplacementTransformer\nmetadata: {name: p}\nreplacements: [{path: 'https://127.0.0.1:1/p.yaml'}]\n", err: append(hint, "app/t.yaml: path")},
		"a helm generator is refused":               {tree: own + "generators: [g.yaml]\n-- app/g.yaml --\napiVersion: builtin\nkind: HelmChartInflationGenerator\nmetadata: {name: h}\nname: redis\n", err: []string{"app", "helm"}},
		"an exec plugin is refused":                 {tree: own + "transformers: [t.yaml]\n-- app/t.yaml --\napiVersion: example.com/v1\nkind: Evil\nmetadata: {name: p, annotations: {config.kubernetes.io/function: \"exec: {path: /bin/true}\"}}\n", err: []string{"app", "plugin"}},
		"a starlark plugin is refused":              {tree: own + "transformers: [t.yaml]\n-- app/t.yaml --\napiVersion: example.com/v1\nkind: Evil\nmetadata: {name: p, annotations: {config.kubernetes.io/function: \"starlark: {path: a.star}\"}}\n", err: []string{"app", "plugin"}},
		"a container plugin is refused":             {tree: own + "transformers: [t.yaml]\n-- app/t.yaml --\napiVersion: example.com/v1\nkind: Evil\nmetadata: {name: p, annotations: {config.kubernetes.io/function: \"container: {image: x}\"}}\n", err: []string{"app", "plugin"}},
		"two kustomizations are refused":            {tree: own + "-- app/Kustomization --\nresources: [a.yaml]\n", err: []string{"app", "multiple kustomization files"}},
		"an unknown field is named":                 {tree: own + "resource: [b.yaml]\n", err: []string{"app", `"resource"`}},
		"a file that is not there is named":         {tree: own + "crds: [b.yaml]\n", err: []string{"app", "b.yaml"}},

		"a remote component of a parameter is refused":   {tree: own, o: Options{Components: []string{"https://github.com/example/repo//c"}}, err: []string{"parameter components", "https://github.com/example/repo//c", "remote"}},
		"a component of a parameter must be there":       {tree: own, o: Options{Components: []string{"../nothing"}}, err: []string{"parameter components", "nothing", "not exist"}},
		"an image of a parameter must say what changes":  {tree: own, o: Options{Images: []string{"web"}}, err: []string{"parameter images", `"web"`, "name:tag"}},
		"an image of a parameter must have a name":       {tree: own, o: Options{Images: []string{"=web"}}, err: []string{"parameter images", `"=web"`}},
		"a label of a parameter that is there is named":  {tree: own + "commonLabels: {tier: a}\n", o: Options{CommonLabels: map[string]string{"tier": "b"}}, err: []string{"parameter commonLabels", "app/kustomization.yaml", "tier"}},
		"an annotation that is there is named":           {tree: own + "commonAnnotations: {tier: a}\n", o: Options{CommonAnnotations: map[string]string{"tier": "b"}}, err: []string{"parameter commonAnnotations", "tier"}},
		"replicas of a parameter must be a number":       {tree: own, o: Options{Replicas: []Assignment{{"web", "many"}}}, err: []string{"parameter replicas", "web=many", "number"}},
		"replicas of a parameter are of one workload":    {tree: own, o: Options{Replicas: []Assignment{{"a=b", "1"}}}, err: []string{"parameter replicas", "a=b=1"}},
		"replicas of what is not there are refused":      {tree: own, o: Options{Replicas: []Assignment{{"web", "1"}}}, err: []string{"kustomize build app", "web"}},
		"a label must have a name":                       {tree: own, o: Options{CommonLabels: map[string]string{"": "b"}}, err: []string{"parameter commonLabels", "name is empty"}},
		"a label that is there without selectors, too":   {tree: own + "labels: [{pairs: {tier: a}}]\n", o: Options{CommonLabels: map[string]string{"tier": "b"}, LabelWithoutSelector: true}, err: []string{"parameter commonLabels", "tier is already there"}},
		"labels in templates only without selectors":     {tree: own, o: Options{CommonLabels: map[string]string{"tier": "b"}, LabelIncludeTemplates: true}, err: []string{"parameter commonLabels", "labelIncludeTemplates needs labelWithoutSelector"}},
		"a component that cannot be looked at":           {tree: own + "-- app/loop --\n-> loop\n", o: Options{Components: []string{"loop"}, IgnoreMissingComponents: true}, err: []string{"parameter components: loop", "links"}},
		"a patch of a parameter must be an object":       {tree: own, o: Options{Patches: []string{"path: a.yaml", "- op: add"}}, err: []string{"parameter patches", "entry 2"}},
		"a patch of a parameter has no other fields":     {tree: own, o: Options{Patches: []string{"pathh: a.yaml"}}, err: []string{"parameter patches", "entry 1", "pathh"}},
		"a kustomization that a parameter cannot change": {tree: "-- app/kustomization.yaml --\nresource: []\n", o: Options{NamePrefix: "x-"}, err: []string{"app/kustomization.yaml", `"resource"`}},
	} {
		t.Run(name, func(t *testing.T) {
			repo, _ := onDisk(t, archive(c.tree))
			_, err := Render(repo, "app", c.o)
			wantError(t, err, c.err...)
		})
	}
	t.Run("what says how labels are added is fine without labels", func(t *testing.T) {
		repo, _ := onDisk(t, archive(own))
		if _, err := Render(repo, "app", Options{NamePrefix: "x-", LabelIncludeTemplates: true, ForceCommonLabels: true, IgnoreMissingComponents: true}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a URL that is no path is fine", func(t *testing.T) {
		repo, _ := onDisk(t, archive(own+"commonAnnotations: {docs: 'https://example.com/docs'}\npatches:\n- target: {kind: ConfigMap}\n  patch: |-\n    - {op: add, path: /data, value: {repo: 'git@example.com:x/y.git'}}\n"))
		if _, err := Render(repo, "app", Options{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("the build environment is filled into images and labels, not into annotations", func(t *testing.T) {
		repo, _ := onDisk(t, archive("-- app/kustomization.yaml --\nresources: [a.yaml]\n-- app/a.yaml --\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: web, image: web}]}\n"))
		r, err := Render(repo, "app", Options{Env: map[string]string{"ARGOCD_APP_REVISION": "abc"},
			Images: []string{"web:$ARGOCD_APP_REVISION"}, CommonLabels: map[string]string{"rev": "${ARGOCD_APP_REVISION}"}, CommonAnnotations: map[string]string{"cost": "$ARGOCD_APP_REVISION"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"image: web:abc\n", "rev: abc\n", "cost: $ARGOCD_APP_REVISION\n"} {
			if !strings.Contains(string(r.Stream), want) {
				t.Errorf("no %q in\n%s", want, r.Stream)
			}
		}
	})
}

// TestRemote lists the forms that kustomize fetches (kustomize api v0.21.2 internal/git/repospec.go and its tests).
func TestRemote(t *testing.T) {
	for _, entry := range []string{
		"https://github.com/x/y", "http://example.com/a.yaml", "HTTPS://example.com/a.yaml", "https:example.com",
		"git::https://github.com/x/y//z?ref=v1", "GIT::ssh://git@example.com/x/y", "ssh://git@example.com:22/x/y.git", "file:///x/y",
		"git@github.com:x/y.git", "git@github.com/x/y", "org-12345@github.com:x/y", "git::git@example.com:x/y", "me@example.com:/x/y//z",
		"github.com/x/y", "GitHub.com/x/y//z", "github.com:x/y", "git::github.com/x/y",
	} {
		if !remote(entry) {
			t.Errorf("%s is not taken for remote", entry)
		}
	}
	for _, entry := range []string{
		"a.yaml", "../base", "./github.com/x", "a/github.com/x/y", "a@b.yaml", "x/y.git", "apiVersion: v1\nurl: https://example.com", "- op: add", "1@b:c", "",
	} {
		if remote(entry) {
			t.Errorf("%s is taken for remote", entry)
		}
	}
}
