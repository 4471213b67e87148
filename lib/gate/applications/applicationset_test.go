package applications

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const plainTemplate = `
  template:
    metadata: {name: '{{.name}}'}
    spec:
      project: default
      destination: {server: 'https://kubernetes.default.svc', namespace: shop}
      source: {repoURL: 'https://example.com/repo.git', path: '{{.name}}'}
`

// set is an ApplicationSet with goTemplate, of the given generators and the template above.
func set(generators string) string {
	return "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: tenants, namespace: argocd}\nspec:\n  goTemplate: true\n  generators:\n" +
		generators + plainTemplate
}

func expandText(t testing.TB, r *Repository, text string) (names []string, unknown []Unknown) {
	t.Helper()
	found, unknown := r.InStream([]byte(text), "sets/tenants.yaml")
	for _, f := range found {
		names = append(names, f.Name)
	}
	return names, unknown
}

func TestWhatCannotBeExpandedIsUnknownByNameAndTheRestIsExpanded(t *testing.T) {
	const rest = "\n  - list: {elements: [{name: rest}]}"
	git := func(more string) string {
		return "  - git: {repoURL: 'https://example.com/repo.git', revision: HEAD, directories: [{path: apps/*}], " + more + "}"
	}
	for name, test := range map[string]struct{ generators, why string }{
		"clusters are not in a repository":                       {"  - clusters: {}", "generator 1, clusters: the clusters are known to Argo CD"},
		"a server of source code is not asked for repositories":  {"  - scmProvider: {github: {organization: x}}", "generator 1, scmProvider: "},
		"a server of source code is not asked for pull requests": {"  - pullRequest: {github: {owner: x}}", "generator 1, pullRequest: "},
		"a plugin is not asked":                                  {"  - plugin: {configMapRef: {name: x}}", "generator 1, plugin: "},
		"the decision of a cluster is not in a repository":       {"  - clusterDecisionResource: {configMapRef: x}", "generator 1, clusterDecisionResource: "},
		"a generator that there is not":                          {"  - lists: {elements: []}", "generator 1 is none that Argo CD knows"},
		"a generator in a matrix is named with its place":        {"  - matrix: {generators: [{list: {elements: [{a: b}]}}, {clusters: {}}]}", "generator 1, matrix: its generator 2: clusters: "},
		"a generator in a merge is named with its place":         {"  - merge: {mergeKeys: [a], generators: [{clusters: {}}, {list: {elements: [{a: b}]}}]}", "generator 1, merge: its generator 1: clusters: "},
		"files of another repository":                            {"  - git: {repoURL: 'https://example.com/other.git', revision: HEAD, directories: [{path: '*'}]}", "generator 1, git: it reads repository https://example.com/other.git"},
		"a repository that is not known before Argo CD runs":     {"  - git: {repoURL: '{{.repo}}', revision: HEAD, directories: [{path: '*'}]}", "it reads repository {{.repo}}"},
		"a git generator without directories and files":          {"  - git: {repoURL: 'https://example.com/repo.git', revision: HEAD}", "it has neither directories nor files"},
		"pathspec magic":                                                  {"  - git: {repoURL: 'https://example.com/repo.git', files: [{path: ':(glob)**/x'}]}", "pathspec magic"},
		"files outside of the repository":                                 {"  - git: {repoURL: 'https://example.com/repo.git', files: [{path: ../x}]}", "outside of the repository"},
		"a pattern of directories that Argo CD passes over":               {"  - git: {repoURL: 'https://example.com/repo.git', directories: [{path: 'apps/['}]}", `path "apps/["`},
		"values that cannot be rendered":                                  {git("values: {a: '{{.x'}"), "values.a: "},
		"a template that gives something else each time":                  {git("values: {a: '{{now}}'}"), "not the same every time"},
		"a date of the moment":                                            {git("values: {a: '{{date \"2006\" \"x\"}}'}"), "depends on the time"},
		"random text":                                                     {git("values: {a: '{{randAlpha 5}}'}"), "not the same every time"},
		"a name that is none":                                             {"  - list: {elements: [{name: No_Name}]}", `an Application named "No_Name"`},
		"an Application without a destination":                            {"  - list: {elements: [{name: a}], template: {metadata: {name: a}, spec: {project: '', destination: {name: x}}}}", "has a name and a server"},
		"a template that breaks some function":                            {"  - list: {elements: [{name: a}], template: {metadata: {name: '{{repeat -1 \"x\"}}'}, spec: {project: '', destination: {}}}}", "negative Repeat count"},
		"a template that calls itself":                                    {git(`values: {a: '{{define "x"}}{{template "x"}}{{end}}{{template "x"}}'}`), "exceeded maximum template depth"},
		"a map that is put into itself":                                   {git(`values: {a: '{{$d := dict}}{{$x := set $d "d" $d}}{{$d}}'}`), "more text, or take more steps"},
		"a loop of a billion turns":                                       {git(`values: {a: '{{range 1000000000}}{{end}}'}`), "more text, or take more steps"},
		"loops in loops":                                                  {git(`values: {a: '{{range until 1000}}{{range until 1000}}{{range until 1000}}{{range until 1000}}{{end}}{{end}}{{end}}{{end}}'}`), "more text, or take more steps"},
		"templates that call each other again and again":                  {git(`values: {a: '{{define "a"}}{{range 99}}{{template "b"}}{{end}}{{end}}{{define "b"}}{{range 99}}{{template "c"}}{{end}}{{end}}{{define "c"}}{{range 9999}}{{end}}{{end}}{{template "a"}}'}`), "more text, or take more steps"},
		"text that doubles":                                               {git(`values: {a: '{{$x := "x"}}{{range until 60}}{{$x = print $x $x}}{{end}}'}`), "more text, or take more steps"},
		"escapes that double":                                             {git(`values: {a: '{{$x := "\\"}}{{range until 60}}{{$x = js $x}}{{end}}'}`), "more text, or take more steps"},
		"a list that doubles":                                             {git(`values: {a: '{{$x := list 1}}{{range until 60}}{{$x = concat $x $x}}{{end}}'}`), "more text, or take more steps"},
		"a map with itself in it again and again":                         {git(`values: {a: '{{$x := dict}}{{range until 60}}{{$x = dict "a" $x "b" $x}}{{end}}'}`), "more text, or take more steps"},
		"text that is repeated a billion times":                           {git(`values: {a: '{{repeat 1000000000 "x"}}'}`), "more text, or take more steps"},
		"a list of a billion":                                             {git(`values: {a: '{{until 1000000000}}'}`), "more text, or take more steps"},
		"a list that passes the greatest number":                          {git(`values: {a: '{{untilStep 9223372036854775800 9223372036854775807 10}}'}`), "more text, or take more steps"},
		"a sequence of a billion":                                         {git(`values: {a: '{{seq 1 1000000000}}'}`), "more text, or take more steps"},
		"text that is filled up with a billion spaces":                    {git(`values: {a: '{{indent 1000000000 "x"}}'}`), "more text, or take more steps"},
		"numbers that are printed with a million places, again and again": {git(`values: {a: '{{printf "%1000000d%1000000d%1000000d" 1 1 1}}'}`), "more text, or take more steps"},
		"a text that is put in place of every letter":                     {git(`values: {a: '{{replace "x" (repeat 99999 "y") (repeat 99999 "x")}}'}`), "more text, or take more steps"},
		"a text that a regular expression puts in place of every letter":  {git(`values: {a: '{{regexReplaceAll "x" (repeat 99999 "x") (repeat 99999 "y")}}'}`), "more text, or take more steps"},
		"a list that is joined by a long text":                            {git(`values: {a: '{{join (repeat 99999 "y") (until 99999)}}'}`), "more text, or take more steps"},
		"lines that are wrapped by a long text":                           {git(`values: {a: '{{wrapWith 1 (repeat 99999 "y") (repeat 99999 "x ")}}'}`), "more text, or take more steps"},
		"more Applications than are looked at":                            {"  - list: {elementsYaml: '" + "[" + strings.TrimSuffix(strings.Repeat("{name: a},", maxApplications+1), ",") + "]" + "'}", "more than 20000"},
		"more sets of parameters in a matrix than are looked at":          {"  - matrix: {generators: [&l {list: {elementsYaml: '[" + strings.TrimSuffix(strings.Repeat("{name: a},", 1000), ",") + "]'}}, *l]}", "more than 20000"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Repository{
				Tree: fstest.MapFS{"apps/web/x.yaml": {Data: []byte("a: b")}},
				Own:  func(url string) bool { return url == "https://example.com/repo.git" },
			}
			names, unknown := expandText(t, r, set(test.generators+rest))
			if !slices.Equal(names, []string{"rest"}) {
				t.Errorf("the rest is not expanded: %v", names)
			}
			if len(unknown) != 1 || !strings.Contains(unknown[0].Why, test.why) || strings.Contains(unknown[0].Why, step) || len(unknown[0].Why) > 1000 {
				t.Fatalf("%.3000v, want one that says %q", unknown, test.why)
			}
			u := unknown[0]
			if u.Object != "ApplicationSet argocd/tenants" || u.Path != "sets/tenants.yaml" || u.Line != 1 {
				t.Errorf("it is said of %s at %s:%d", u.Object, u.Path, u.Line)
			}
		})
	}
}

func TestARevisionIsThisTreeOnlyIfItFollowsABranch(t *testing.T) {
	branch := func(revision string) bool { return revision == "main" }
	for name, test := range map[string]struct {
		revision string
		branch   func(string) bool
		known    bool
	}{
		"none is that of the branch": {"", branch, true},
		"HEAD is that of the branch": {"HEAD", branch, true},
		"a branch":                   {"main", branch, true},
		"a tag":                      {"v1.2.3", branch, false},
		"a commit":                   {"0123456789abcdef0123456789abcdef01234567", branch, false},
		"a branch, where nobody knows the branches":           {"main", nil, true},
		"a commit, where nobody knows the branches":           {"0123456789abcdef0123456789abcdef01234567", nil, false},
		"a shortened commit, where nobody knows the branches": {"0123456", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Repository{Tree: fstest.MapFS{"apps/web/x.yaml": {}}, Branch: test.branch}
			_, unknown := expandText(t, r, set("  - git: {repoURL: x, revision: '"+test.revision+"', directories: [{path: apps/*}], template: {metadata: {name: '{{.path.basename}}'}, spec: {project: x, destination: {}, source: {repoURL: x, path: x}}}}"))
			if known := len(unknown) == 0; known != test.known {
				t.Errorf("known: %v, want %v: %v", known, test.known, unknown)
			}
			if !test.known && (len(unknown) == 0 || !strings.Contains(unknown[0].Why, test.revision)) {
				t.Errorf("it does not name the revision: %v", unknown)
			}
		})
	}
}

func TestOneFaultOfEveryApplicationIsOneUnknown(t *testing.T) {
	elements := strings.TrimSuffix(strings.Repeat("{x: y},", 100), ",")
	names, unknown := expandText(t, &Repository{}, strings.Replace(set("  - list: {elements: ["+elements+"]}"), "goTemplate: true", "goTemplate: true\n  goTemplateOptions: [missingkey=error]", 1))
	if len(names) != 0 || len(unknown) != 1 {
		t.Errorf("%v %v", names, unknown)
	}
	names, unknown = expandText(t, &Repository{}, set("  - list: {elementsYaml: '["+strings.TrimSuffix(strings.Repeat("{name: same},", 100), ",")+"]'}"))
	if len(names) != 1 || len(unknown) != 1 {
		t.Errorf("%v %v", names, unknown)
	}
	var many strings.Builder
	for i := range 50 {
		many.WriteString("{name: _" + strings.Repeat("x", i) + "},")
	}
	_, unknown = expandText(t, &Repository{}, set("  - list: {elementsYaml: '["+strings.TrimSuffix(many.String(), ",")+"]'}"))
	if len(unknown) != maxFaults+1 || !strings.Contains(unknown[maxFaults].Why, "and 40 more") {
		t.Errorf("%v", unknown)
	}
}

func TestAnApplicationSetThatCannotBeReadIsUnknown(t *testing.T) {
	for name, text := range map[string]string{
		"generators that are no list":        "generators: {list: {}}",
		"a template of the wrong type":       "generators: []\n  template: {metadata: {name: [a]}}",
		"a text where a template has a bool": "generators: []\n  template: {spec: {syncPolicy: {automated: {prune: '{{.prune}}'}}}}",
		"an option that there is not":        "goTemplate: true\n  goTemplateOptions: [missingkey=warn]\n  generators: []",
	} {
		t.Run(name, func(t *testing.T) {
			_, unknown := expandText(t, &Repository{Tree: fstest.MapFS{}}, "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: a}\nspec:\n  "+text+"\n")
			if len(unknown) != 1 {
				t.Errorf("%v", unknown)
			}
		})
	}
}

// closed is a tree with a folder that cannot be looked into, as submodules cannot.
type closed struct {
	fstest.MapFS
	folder string
}

var errClosed = errors.New("a submodule")

func (c closed) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == c.folder {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errClosed}
	}
	return c.MapFS.ReadDir(name)
}

func (c closed) ReadFile(name string) ([]byte, error) {
	if name == c.folder {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errClosed}
	}
	return c.MapFS.ReadFile(name)
}

func TestASubmoduleIsUnknownOnlyWhereAPatternCanReachIntoIt(t *testing.T) {
	tree := closed{fstest.MapFS{"apps/web/x.yaml": {}, "apps/lib/y.yaml": {}, "other/x/y.yaml": {}}, "apps/lib"}
	for name, test := range map[string]struct {
		generator string
		known     bool
	}{
		"it is a folder itself":                    {"directories: [{path: apps/*}]", true},
		"a pattern goes one further":               {"directories: [{path: apps/*/*}]", false},
		"a pattern goes into another folder":       {"directories: [{path: other/*}]", true},
		"an exclusion needs not be known":          {"directories: [{path: apps/*}, {path: 'apps/*/*', exclude: true}]", true},
		"files do not come from submodules":        {"files: [{path: 'apps/*.yaml'}]", true},
		"a pattern of files matches the submodule": {"files: [{path: 'apps/*'}]", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, unknown := expandText(t, &Repository{Tree: tree}, set("  - git: {repoURL: x, "+test.generator+", template: {metadata: {name: '{{.path.basename}}'}, spec: {project: x, destination: {}, source: {repoURL: x, path: x}}}}"))
			if known := len(unknown) == 0; known != test.known {
				t.Errorf("known: %v, want %v: %v", known, test.known, unknown)
			}
			if !test.known && (len(unknown) == 0 || !strings.Contains(unknown[0].Why, "apps/lib: a submodule")) {
				t.Errorf("it does not name the submodule: %v", unknown)
			}
		})
	}
}

func TestSymlinksToFoldersAreNoFolders(t *testing.T) {
	tree := fstest.MapFS{"apps/web/x.yaml": {Data: []byte("name: x")}, "apps/link": {Data: []byte("web"), Mode: fs.ModeSymlink}}
	names, unknown := expandText(t, &Repository{Tree: tree}, set("  - git: {repoURL: x, directories: [{path: apps/*}], template: {metadata: {name: '{{.path.basename}}'}, spec: {project: x, destination: {}, source: {repoURL: x, path: x}}}}"))
	if !slices.Equal(names, []string{"web"}) || len(unknown) != 0 {
		t.Errorf("%v %v", names, unknown)
	}
}

func TestMatricesAreTheSameWheneverTheyAreExpanded(t *testing.T) {
	text := set(`  - matrix:
      generators:
      - matrix: {generators: [{list: {elements: [{a: x, d: {k: 1}}, {a: z, d: {k: 2}}]}}, {list: {elements: [{b: p, d: {l: 1}}, {b: q}]}}]}
      - merge: {mergeKeys: [c], generators: [{list: {elements: [{c: r, d: {k: 7}}, {c: s}, {c: t}, {c: u}]}}, {list: {elements: [{c: s, d: {m: 1}}, {c: u}]}}]}
      template: {metadata: {name: '{{.a}}-{{.b}}-{{.c}}', annotations: {d: '{{.d}} {{set .d "n" 1}} {{.d | keys}}'}}, spec: {project: x, destination: {}}}
`)
	var first string
	for range 20 {
		found, unknown := (&Repository{}).InStream([]byte(text), "x")
		got, err := json.Marshal(found)
		if err != nil || len(found) != 16 || len(unknown) != 0 {
			t.Fatal(err, len(found), unknown)
		}
		if first == "" {
			first = string(got)
		}
		if string(got) != first {
			t.Fatalf("%s\nand\n%s", first, got)
		}
	}
}

// The examples in Argo CD's repository, if Argo CD's module is there. Each must expand, or say why not.
func TestTheExamplesOfArgoCDExpandOrAreUnknown(t *testing.T) {
	home, _ := os.UserHomeDir()
	dirs, _ := filepath.Glob(filepath.Join(home, "go/pkg/mod/github.com/argoproj/argo-cd/v3@*"))
	if len(dirs) == 0 {
		t.Skip("Argo CD's module is not in the module cache")
	}
	root := os.DirFS(dirs[len(dirs)-1])
	seen, expanded := 0, 0
	err := fs.WalkDir(root, "applicationset/examples", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".yaml" {
			return err
		}
		text, err := fs.ReadFile(root, name)
		if err != nil || !strings.Contains(string(text), "kind: ApplicationSet") {
			return err
		}
		seen++
		r := &Repository{Tree: root, Own: func(url string) bool { return strings.Contains(url, "argoproj/argo-cd") }}
		found, unknown := r.InStream(text, name)
		if len(found)+len(unknown) == 0 {
			t.Errorf("%s gives nothing", name)
		}
		if len(found) > 0 && len(unknown) == 0 {
			expanded++
		}
		var why []string
		for _, u := range unknown {
			why = append(why, u.Why)
		}
		t.Logf("%s: %d Applications, %v", name, len(found), why)
		return nil
	})
	if err != nil || seen < 20 || expanded < 10 {
		t.Errorf("%d of %d expanded: %v", expanded, seen, err)
	}
}

func FuzzExpand(f *testing.F) {
	files, _ := filepath.Glob("testdata/argocd/*.txtar")
	for _, file := range files {
		tree, _ := readCase(f, file)
		text, err := fs.ReadFile(tree, "appset.yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, []byte("name: x\nvalues: {a: b}\n"))
	}
	f.Fuzz(func(t *testing.T, text, file []byte) {
		r := &Repository{Tree: fstest.MapFS{"apps/web/x.yaml": {Data: file}, "tenants/one/config.yaml": {Data: file}, "c/a.yaml": {Data: file}}}
		found, _ := r.InStream(text, "appset.yaml")
		for _, a := range found {
			if a.Name == "" || a.Spec == nil {
				t.Errorf("an Application without name or spec: %v", a)
			}
		}
		if len(found) > maxApplications && strings.Count(string(text), "ApplicationSet") == 1 {
			t.Errorf("%d Applications", len(found))
		}
	})
}
