package plugin

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/render"
)

func TestReadApplication(t *testing.T) {
	for name, test := range map[string]struct{ text, err string }{
		"an Application":                  {"apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: web}\n", ""},
		"another kind is refused":         {"apiVersion: argoproj.io/v1alpha1\nkind: AppProject\n", "not an argoproj.io Application"},
		"another group is refused":        {"apiVersion: app.k8s.io/v1beta1\nkind: Application\n", "not an argoproj.io Application"},
		"a list is refused":               {"apiVersion: v1\nkind: List\nitems: []\n", "not an argoproj.io Application"},
		"what is no YAML is refused":      {"a: [", "yaml"},
		"a source of the wrong type, too": {"apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec: {source: 1}\n", "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadApplication([]byte(test.text))
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

func TestInstanceName(t *testing.T) {
	for name, test := range map[string]struct{ namespace, want string }{
		"in Argo CD's own namespace it is the name": {"argocd", "web"},
		"elsewhere the namespace comes first":       {"team", "team_web"},
		"without a namespace it is the name":        {"", "web"},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Application{}
			a.Metadata.Name, a.Metadata.Namespace = "web", test.namespace
			if got := a.instanceName(controlPlaneNamespace); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

func TestOriginFindsTheSource(t *testing.T) {
	const repo = "https://git.example/r.git"
	two := []Source{{RepoURL: repo, Path: "a"}, {RepoURL: repo, Path: "b/"}}
	for name, test := range map[string]struct {
		origin  origin
		sources []Source
		want    int
		err     string
	}{
		"by path":                                   {origin{path: "b"}, two, 1, ""},
		"by repository and path":                    {origin{repoURL: repo, path: "./a"}, two, 0, ""},
		"none has the path":                         {origin{path: "c"}, two, -1, ""},
		"none has the repository":                   {origin{repoURL: "other", path: "a"}, two, -1, ""},
		"two alike are told apart by revision":      {origin{path: "a", targetRevision: "v2"}, []Source{{Path: "a", TargetRevision: "v1"}, {Path: "a", TargetRevision: "v2"}}, 1, ""},
		"two alike in all are an error":             {origin{path: "a"}, []Source{{Path: "a"}, {Path: "a"}}, -1, "give one of them another path"},
		"a source that only lends files is none":    {origin{path: "."}, []Source{{Ref: "values"}, {Path: "."}}, 1, ""},
		"a chart of a chart repository has no path": {origin{repoURL: "charts", path: ""}, []Source{{RepoURL: "charts", Chart: "web"}}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.origin.find(test.sources)
			if got != test.want || test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("%d, %v; want %d, %q", got, err, test.want, test.err)
			}
		})
	}
}

func TestASourceKeepsAllOfItsTextForComparison(t *testing.T) {
	read := func(text string) string {
		var s Source
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		return s.Raw
	}
	if read(`{"path":"a","repoURL":"r","plugin":{"name":"x"}}`) != read(`{"plugin":{"name":"x"}, "repoURL":"r","path":"a"}`) {
		t.Error("the order of keys makes a difference")
	}
	if read(`{"path":"a","unheardOf":1}`) == read(`{"path":"a","unheardOf":2}`) {
		t.Error("a field that is not read makes no difference")
	}
}

// Before it moved to the plugin an Application used Argo CD's own tools; its history must render as it did then.
func TestSourceOptionsOfArgoCDsOwnTools(t *testing.T) {
	for name, test := range map[string]struct {
		source string
		want   render.Options
		err    string
	}{
		"a plain directory": {`{}`, render.Options{}, ""},
		"directory":         {`{"directory":{"recurse":true,"include":"*.yaml","exclude":"x"}}`, render.Options{Render: "directory", Recurse: true, Include: "*.yaml", Exclude: "x"}, ""},
		"helm": {
			`{"helm":{"releaseName":"r","valueFiles":["a.yaml"],"values":"b: 1","parameters":[{"name":"c","value":"2"},{"name":"d","value":"3","forceString":true}],"fileParameters":[{"name":"e","path":"f"}],"skipCrds":true,"ignoreMissingValueFiles":true}}`,
			render.Options{
				Render: "helm", ReleaseName: "r", ValueFiles: []string{"a.yaml"}, Values: "b: 1", SkipCRDs: true, IgnoreMissingValueFiles: true,
				SetValues: []render.Assignment{{Name: "c", Value: "2"}}, SetStrings: []render.Assignment{{Name: "d", Value: "3"}}, SetFiles: []render.Assignment{{Name: "e", Value: "f"}},
			}, "",
		},
		"helm with an object of values": {`{"helm":{"values":"a: 1","valuesObject":{"b":2}}}`, render.Options{Render: "helm", Values: "b: 2\n"}, ""},
		"kustomize": {
			`{"kustomize":{"images":["a=b:1"],"namePrefix":"p-","nameSuffix":"-s","commonLabels":{"l":"1"},"commonAnnotations":{"n":"2"},"components":["c"],"patches":[{"patch":"x","target":{"kind":"K"}}]}}`,
			render.Options{
				Render: "kustomize", Images: []string{"a=b:1"}, NamePrefix: "p-", NameSuffix: "-s", CommonLabels: map[string]string{"l": "1"},
				CommonAnnotations: map[string]string{"n": "2"}, Components: []string{"c"}, Patches: []string{"patch: x\ntarget:\n  kind: K\n"},
			}, "",
		},
		"all else that helm is told": {
			`{"helm":{"namespace":"n","skipTests":true,"skipSchemaValidation":true,"kubeVersion":"1.31","apiVersions":["a/v1"],"passCredentials":true,"version":"v3"}}`,
			render.Options{Render: "helm", OwnNamespace: "n", SkipTests: true, SkipSchemaValidation: true, OwnKubeVersion: "1.31", OwnAPIVersions: []string{"a/v1"}}, "",
		},
		"all else that kustomize is told": {
			`{"kustomize":{"namespace":"n","replicas":[{"name":"a","count":1},{"name":"b","count":"{{.count}}"}],"forceCommonLabels":true,"forceCommonAnnotations":true,"labelWithoutSelector":true,"labelIncludeTemplates":true,"commonAnnotationsEnvsubst":true,"ignoreMissingComponents":true,"version":"v5","kubeVersion":"1.31","apiVersions":["a/v1"]}}`,
			render.Options{
				Render: "kustomize", OwnNamespace: "n", Replicas: []render.Assignment{{Name: "a", Value: "1"}, {Name: "b", Value: "{{.count}}"}}, ForceCommonLabels: true, ForceCommonAnnotations: true,
				LabelWithoutSelector: true, LabelIncludeTemplates: true, CommonAnnotationsEnvsubst: true, IgnoreMissingComponents: true,
			}, "",
		},
		"a directory as Argo CD writes it":                 {`{"directory":{"recurse":true,"jsonnet":{}}}`, render.Options{Render: "directory", Recurse: true}, ""},
		"jsonnet is an error":                              {`{"directory":{"jsonnet":{"tlas":[{"name":"a","value":"b"}]}}}`, render.Options{}, "jsonnet"},
		"what the plugin has no parameter for is an error": {`{"kustomize":{"unheardOf":[{"name":"a","count":1}]}}`, render.Options{}, "unheardOf"},
		"plugin parameters":                                {`{"plugin":{"name":"grantfirst","parameters":[{"name":"recurse","string":"true"}]}}`, render.Options{Recurse: true}, ""},
		"an unknown plugin parameter is an error":          {`{"plugin":{"name":"grantfirst","parameters":[{"name":"recurs","string":"true"}]}}`, render.Options{}, "recurs"},
	} {
		t.Run(name, func(t *testing.T) {
			var s Source
			if err := json.Unmarshal([]byte(test.source), &s); err != nil {
				t.Fatal(err)
			}
			var got render.Options
			err := s.options(&got)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("%v\n%+v\nwant\n%+v", err, got, test.want)
			}
		})
	}
}
