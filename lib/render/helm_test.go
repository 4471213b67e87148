package render

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// The golden files of TestHelmTemplate and TestKustomizeEdit are what the commands themselves print. To make them again,
// build helm v3.22.0 and kustomize v5.8.1 and run
//
//	go test ./lib/render -run 'TestHelmTemplate|TestKustomizeEdit' -helm /path/to/helm -kustomize /path/to/kustomize
//
// helm must be built as its Makefile does, with
// -ldflags "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37".
var (
	helmCommand      = flag.String("helm", "", "helm command to make the golden files with")
	kustomizeCommand = flag.String("kustomize", "", "kustomize command to make the golden files with")
)

// golden compares with a file below testdata/golden, or with what the commands print now.
func golden(t *testing.T, name string, got []byte, commands ...*exec.Cmd) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name+".yaml")
	if commands != nil {
		var out []byte
		for _, c := range commands {
			var stderr bytes.Buffer
			c.Stderr = &stderr
			var err error
			if out, err = c.Output(); err != nil {
				t.Fatalf("%s: %v\n%s", c, err, stderr.String())
			}
		}
		if err := os.WriteFile(file, out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, got, want)
}

// TestHelmTemplate compares with "helm template", called as Argo CD calls it.
func TestHelmTemplate(t *testing.T) {
	assign := func(pairs ...string) (list []Assignment) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, Assignment{pairs[i], pairs[i+1]})
		}
		return list
	}
	for name, c := range map[string]struct {
		o Options
		// args are those of the command, where they do not follow from the options.
		args []string
	}{
		"helm-defaults":  {},
		"helm-release":   {o: Options{ReleaseName: "till", Application: "team_web", Namespace: "shop"}},
		"helm-app-name":  {o: Options{Application: "team_web", Namespace: "shop"}, args: []string{"--name-template", "web"}},
		"helm-cluster":   {o: Options{KubeVersion: "v1.31.2k3s1", APIVersions: []string{"example.com/v1", "example.com/v1/Widget"}}},
		"helm-subcharts": {o: Options{Values: "sessions: {enabled: true, size: 1Mi}\ntags: {extras: true}\nmetrics: {port: 1}\nglobal: {region: south}\n"}},
		"helm-no-crds":   {o: Options{SkipCRDs: true, Values: "cache: {enabled: false}\n"}},
		"helm-values": {o: Options{
			ValueFiles: []string{"production.yaml", "/env/region.yaml", "nowhere.yaml"}, IgnoreMissingValueFiles: true,
			Values:     "image: example.com/shop:2\nlabels: {tier: back, owner: me}\n",
			SetValues:  assign("cache.size", "1Gi", "greeting", "hello, {{ .Values.image }}", "labels.list", "{a,b}"),
			SetStrings: assign("note", "1"),
			SetFiles:   assign("note", "/env/motd.txt"),
		}},
		"helm-namespace":   {o: Options{Namespace: "dest", OwnNamespace: "shop"}},
		"helm-own-cluster": {o: Options{KubeVersion: "1.31.2", APIVersions: []string{"example.com/v1"}, OwnKubeVersion: "v1.29.1+k3s1", OwnAPIVersions: []string{"b/v1,example.com/v1/Widget"}}},
		"helm-skip-tests":  {o: Options{SkipTests: true}},
		"helm-skip-schema": {o: Options{SkipSchemaValidation: true, Values: "replicas: none\n"}},
		"helm-null":        {o: Options{Values: "note: null\nlabels: {a: 1}\n", SetValues: assign("replicas", "null", "labels.a", "null")}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Render(own(t), "charts/shop", c.o)
			if err != nil {
				t.Fatal(err)
			}
			if *helmCommand == "" {
				golden(t, name, r.Stream)
				return
			}
			golden(t, name, r.Stream, helmTemplate(t, filepath.Join("testdata", "repo"), "charts/shop", c.o, c.args...))
		})
	}
	for chart, values := range map[string][]string{"apps": nil, "blue-green": nil, "helm-guestbook": {"values-production.yaml"}} {
		t.Run("real chart "+chart, func(t *testing.T) {
			if *helmCommand == "" {
				t.Skip("compared only where -helm names the command: the output is not ours to keep here")
			}
			o := Options{Application: "book", Namespace: "dest", ValueFiles: values}
			r, err := Render(shared(t, "corpus/example-apps"), chart, o)
			if err != nil {
				t.Fatal(err)
			}
			want, err := helmTemplate(t, filepath.Join("..", "..", "..", "shared", "corpus", "example-apps"), chart, o).Output()
			if err != nil {
				t.Fatal(err)
			}
			wantSame(t, r.Stream, want)
		})
	}
}

func helmTemplate(t *testing.T, root, dir string, o Options, args ...string) *exec.Cmd {
	cmd := exec.Command(*helmCommand, slices.Concat([]string{"template", "."}, args, helmArgs(t, o, root))...)
	cmd.Dir = filepath.Join(root, filepath.FromSlash(dir))
	cmd.Env = []string{"HOME=" + t.TempDir()}
	return cmd
}

// helmArgs is how Argo CD turns spec.source.helm into arguments (v2.14 util/helm/cmd.go).
func helmArgs(t *testing.T, o Options, root string) (args []string) {
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	add := func(flag, value string) {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	file := func(name string) string {
		if strings.HasPrefix(name, "/") {
			return filepath.Join(root, name)
		}
		return name
	}
	switch {
	case o.ReleaseName != "":
		add("--name-template", o.ReleaseName)
	case !strings.Contains(o.Application, "_"):
		add("--name-template", o.Application)
	}
	add("--namespace", cmp.Or(o.OwnNamespace, o.Namespace))
	add("--kube-version", cmp.Or(o.OwnKubeVersion, o.KubeVersion))
	for _, a := range o.SetValues {
		add("--set", a.Name+"="+escape(a.Value))
	}
	for _, a := range o.SetStrings {
		add("--set-string", a.Name+"="+escape(a.Value))
	}
	for _, a := range o.SetFiles {
		add("--set-file", a.Name+"="+file(a.Value))
	}
	for _, name := range o.ValueFiles {
		if name != "nowhere.yaml" {
			add("--values", file(name))
		}
	}
	if o.Values != "" {
		values := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(values, []byte(o.Values), 0o644); err != nil {
			t.Fatal(err)
		}
		add("--values", values)
	}
	served := o.OwnAPIVersions
	if len(served) == 0 {
		served = o.APIVersions
	}
	for _, v := range served {
		add("--api-versions", v)
	}
	if !o.SkipCRDs {
		args = append(args, "--include-crds")
	}
	if o.SkipSchemaValidation {
		args = append(args, "--skip-schema-validation")
	}
	if o.SkipTests {
		args = append(args, "--skip-tests")
	}
	return args
}

func TestHelmIsTheSameEveryTime(t *testing.T) {
	// Two subcharts with CRDs and a map in the loader between them.
	tree := archive("-- Chart.yaml --\n" + someChart)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		tree["charts/"+name+"/Chart.yaml"] = &fstest.MapFile{Data: []byte("apiVersion: v2\nname: " + name + "\nversion: 0.1.0\n")}
		tree["charts/"+name+"/crds/crd.yaml"] = &fstest.MapFile{Data: []byte("kind: " + name + "\n")}
	}
	first, err := Render(tree, ".", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := Render(tree, ".", Options{})
		if err != nil || !bytes.Equal(again.Stream, first.Stream) {
			t.Fatalf("%v\n%s\nthen\n%s", err, first.Stream, again.Stream)
		}
	}
}

func TestHelmRefusals(t *testing.T) {
	const chart = "-- app/Chart.yaml --\n" + someChart
	for name, c := range map[string]struct {
		tree string
		o    Options
		err  []string
	}{
		"lookup is refused when a template calls it": {
			tree: chart + "-- app/templates/a.yaml --\n{{ $s := lookup \"v1\" \"Secret\" \"shop\" \"token\" }}\n",
			err:  []string{"app", "lookup for v1 Secret", "a/templates/a.yaml:1", "generate -"}},
		"lookup is refused in a helper, in tpl and in a subchart": {
			tree: chart + "-- app/charts/sub/Chart.yaml --\napiVersion: v2\nname: sub\nversion: 0.1.0\n-- app/charts/sub/templates/a.yaml --\n{{ include \"x\" . }}\n-- app/templates/_x.tpl --\n{{ define \"x\" }}{{ tpl \"{{ (lookup \\\"apps/v1\\\" \\\"Deployment\\\" \\\"\\\" \\\"\\\").items }}\" . }}{{ end }}\n",
			err:  []string{"lookup for apps/v1 Deployment"}},
		"a dependency that is not there is refused with the file to commit": {
			tree: chart + "dependencies:\n- {name: redis, version: 18.x.x, repository: https://charts.example.com}\n-- app/Chart.lock --\ndependencies:\n- {name: redis, version: 18.1.2, repository: https://charts.example.com}\n",
			err:  []string{"chart app", "redis", "helm dependency build", "charts/redis-18.1.2.tgz"}},
		"a value file of another source is refused": {
			tree: chart, o: Options{ValueFiles: []string{"$values/prod.yaml"}}, err: []string{"$values/prod.yaml", "another source", "copy the file"}},
		"a value file of another source is refused also where the environment is known": {
			tree: chart, o: Options{ValueFiles: []string{"$values/prod.yaml"}, Env: map[string]string{"ARGOCD_APP_NAME": "web"}}, err: []string{"$values", "another source"}},
		"a value file by URL is refused": {
			tree: chart, o: Options{ValueFiles: []string{"https://example.com/values.yaml"}}, err: []string{"https://example.com/values.yaml", "a URL"}},
		"a setFile by URL is refused": {
			tree: chart, o: Options{SetFiles: []Assignment{{"x", "https://example.com/x"}}}, err: []string{"setFile", "a URL"}},
		"a missing value file is named": {
			tree: chart, o: Options{ValueFiles: []string{"prod.yaml"}}, err: []string{"value file prod.yaml", "open app/prod.yaml", "no such file"}},
		"a value file that is no map is named": {
			tree: chart + "-- app/prod.yaml --\n- a\n", o: Options{ValueFiles: []string{"prod.yaml"}}, err: []string{"value file prod.yaml"}},
		"values that are no map are named": {
			tree: chart, o: Options{Values: "just text"}, err: []string{"parameter values"}},
		"a broken set is named": {
			tree: chart, o: Options{SetValues: []Assignment{{"a[", "1"}}}, err: []string{"parameter set", "a["}},
		"values that the schema forbids are said": {
			tree: chart + "-- app/values.schema.json --\n{\"properties\": {\"replicas\": {\"type\": \"integer\"}}}\n", o: Options{SetStrings: []Assignment{{"replicas", "1"}}},
			err: []string{"values.schema.json", "a:", "/replicas", "want integer"}},
		"values of a subchart that its schema forbids are said": {
			tree: chart + "-- app/charts/sub/Chart.yaml --\napiVersion: v2\nname: sub\nversion: 0.1.0\n-- app/charts/sub/values.schema.json --\n{\"required\": [\"must\"]}\n", o: Options{},
			err: []string{"values.schema.json", "sub:", "must"}},
		"a reference of the schema to a URL is refused": {
			tree: chart + "-- app/values.schema.json --\n{\"$ref\": \"https://127.0.0.1:1/x.json\"}\n", err: []string{"values.schema.json", "https://127.0.0.1:1/x.json", "another document"}},
		"a reference of the schema to a file is refused": {
			tree: chart + "-- app/values.schema.json --\n{\"$ref\": \"defs.json\"}\n-- app/defs.json --\n{}\n", err: []string{"values.schema.json", "defs.json", "another document"}},
		"a schema that does not parse is named": {
			tree: chart + "-- app/values.schema.json --\n{\n", err: []string{"values.schema.json"}},
		"a chart for a newer cluster is refused": {
			tree: chart + "kubeVersion: '>=1.40.0'\n", o: Options{KubeVersion: "1.37.2"}, err: []string{">=1.40.0", "v1.37.2"}},
		"a version that cannot be read is named": {
			tree: chart, o: Options{KubeVersion: "newest"}, err: []string{"newest"}},
		"a version of its own that cannot be read is named": {
			tree: chart, o: Options{KubeVersion: "1.37.2", OwnKubeVersion: "newest"}, err: []string{"newest"}},
		"a chart for a newer version of its own is refused": {
			tree: chart + "kubeVersion: '>=1.30.0'\n", o: Options{KubeVersion: "1.37.2", OwnKubeVersion: "1.29"}, err: []string{">=1.30.0", "v1.29"}},
		"a library chart is refused": {
			tree: chart + "type: library\n", err: []string{"library"}},
		"a release name that helm does not take names the parameter": {
			tree: chart, o: Options{Application: strings.Repeat("a", 54)}, err: []string{"releaseName"}},
		"a template that fails is named with its line": {
			tree: chart + "-- app/templates/a.yaml --\n\n{{ fail \"no luck\" }}\n", err: []string{"chart app", "a/templates/a.yaml:2", "no luck"}},
		"what a template prints must be YAML": {
			tree: chart + "-- app/templates/a.yaml --\na: b: c\n", err: []string{"a/templates/a.yaml"}},
		"a chart without a name is refused": {
			tree: "-- app/Chart.yaml --\nversion: 0.1.0\n", err: []string{"chart app", "name"}},
		"a file that helm does not take is named": {
			tree: chart + "-- app/big.bin --\n" + strings.Repeat("x", 6<<20) + "\n", err: []string{"big.bin", ".helmignore"}},
	} {
		t.Run(name, func(t *testing.T) {
			repo, _ := onDisk(t, archive(c.tree))
			_, err := Render(repo, "app", c.o)
			wantError(t, err, c.err...)
		})
	}
	t.Run("a lookup that is not reached is fine", func(t *testing.T) {
		r, err := Render(archive(chart+"-- app/templates/a.yaml --\n{{ if .Values.never }}{{ lookup \"v1\" \"Secret\" \"\" \"\" }}{{ end }}kind: A\n"), "app", Options{})
		if err != nil || !strings.Contains(string(r.Stream), "kind: A") {
			t.Errorf("%v", err)
		}
	})
	t.Run("a missing value file is ErrNotExist", func(t *testing.T) {
		if _, err := Render(archive(chart), "app", Options{ValueFiles: []string{"x.yaml"}}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	})
}

func TestHelmDetails(t *testing.T) {
	const chart = "-- app/Chart.yaml --\n" + someChart
	const show = chart + "-- app/templates/a.yaml --\nx: {{ .Values.x | toJson }}\nversion: {{ .Capabilities.KubeVersion.Version }}\n"
	for name, c := range map[string]struct {
		tree string
		o    Options
		want []string
	}{
		"Argo CD v2's k3s version is read":    {tree: show, o: Options{KubeVersion: "v1.31.2k3s1"}, want: []string{"version: v1.31.2\n"}},
		"Argo CD v3's version is read":        {tree: show, o: Options{KubeVersion: "1.31.2"}, want: []string{"version: v1.31.2\n"}},
		"a version with a plus is read":       {tree: show, o: Options{KubeVersion: "v1.31.2+k3s1"}, want: []string{"version: v1.31.2\n"}},
		"an empty version of its own is none": {tree: show, o: Options{KubeVersion: "1.31.2", OwnKubeVersion: "", OwnAPIVersions: []string{}}, want: []string{"version: v1.31.2\n"}},
		"API versions of its own replace the cluster's": {tree: chart + "-- app/templates/a.yaml --\nhas: {{ .Capabilities.APIVersions.Has \"a/v1\" }} {{ .Capabilities.APIVersions.Has \"b/v1\" }} {{ .Capabilities.APIVersions.Has \"apps/v1\" }}\n",
			o: Options{APIVersions: []string{"a/v1"}, OwnAPIVersions: []string{"b/v1"}}, want: []string{"has: false true true\n"}},
		"a comma of a set value is part of it":        {tree: show, o: Options{SetValues: []Assignment{{"x", "a,b"}}}, want: []string{`x: "a,b"`}},
		"an escaped comma stays one comma":            {tree: show, o: Options{SetValues: []Assignment{{"x", `a\,b`}}}, want: []string{`x: "a,b"`}},
		"braces make a list":                          {tree: show, o: Options{SetValues: []Assignment{{"x", "{a,b}"}}}, want: []string{`x: ["a","b"]`}},
		"setString keeps a number text":               {tree: show, o: Options{SetStrings: []Assignment{{"x", "1"}}}, want: []string{`x: "1"`}},
		"set does not":                                {tree: show, o: Options{SetValues: []Assignment{{"x", "1"}}}, want: []string{`x: 1`}},
		"the build environment is filled in":          {tree: show, o: Options{SetValues: []Assignment{{"x", "$ARGOCD_APP_NAME-${NONE}$$"}}, Env: map[string]string{"ARGOCD_APP_NAME": "web"}}, want: []string{`x: "web-$"`}},
		"without a build environment nothing is":      {tree: show, o: Options{SetValues: []Assignment{{"x", "$ARGOCD_APP_NAME"}}}, want: []string{`x: "$ARGOCD_APP_NAME"`}},
		"a value file may have the environment first": {tree: show + "-- app/web-1.yaml --\nx: 5\n", o: Options{ValueFiles: []string{"$ARGOCD_APP_NAME-1.yaml"}, Env: map[string]string{"ARGOCD_APP_NAME": "web"}}, want: []string{`x: 5`}},
		"a file with a byte order mark is read":       {tree: show + "-- app/values.yaml --\n\xef\xbb\xbfx: 5\n", want: []string{`x: 5`}},
		"an unknown urn of a schema allows all":       {tree: show + "-- app/values.schema.json --\n{\"$ref\": \"urn:x:y\"}\n", want: []string{`x: null`}},
		"a chart of version 1 has requirements.yaml":  {tree: "-- app/Chart.yaml --\nname: a\nversion: 0.1.0\n-- app/requirements.yaml --\ndependencies:\n- {name: sub, version: 0.1.0, condition: sub.on}\n-- app/values.yaml --\nsub: {on: true}\n-- app/charts/sub/Chart.yaml --\nname: sub\nversion: 0.1.0\n-- app/charts/sub/templates/a.yaml --\nkind: Sub\n", want: []string{"# Source: a/charts/sub/templates/a.yaml\nkind: Sub\n"}},
		"a chart at the root of the repository":       {tree: strings.ReplaceAll(show, "app/", "") + "-- .git/config --\nx\n", want: []string{"x: null"}},
	} {
		t.Run(name, func(t *testing.T) {
			repo, _ := onDisk(t, archive(c.tree))
			dir := "app"
			if _, err := fs.Stat(repo, dir); err != nil {
				dir = "."
			}
			r, err := Render(repo, dir, c.o)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(string(r.Stream), want) {
					t.Errorf("no %q in\n%s", want, r.Stream)
				}
			}
		})
	}
	t.Run("the version assumed without one is that of this module's client-go", func(t *testing.T) {
		mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		minor := strings.Split(strings.TrimPrefix(defaultKubeVersion, "v"), ".")[1]
		if !bytes.Contains(mod, []byte("\tk8s.io/client-go v0."+minor+".")) {
			t.Errorf("%s, but go.mod has another client-go", defaultKubeVersion)
		}
	})
	t.Run("the sorted order of a map of parameters decides", func(t *testing.T) {
		var o Options
		if err := o.Set([]ParameterValue{{Name: "set", Map: map[string]string{"b": "1", "a": "2", "c": "3"}}}); err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(o.SetValues, func(a, b Assignment) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("%v", o.SetValues)
		}
	})
}
