package render

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestParametersAsArgoCDPassesThem(t *testing.T) {
	const text = `[
 {"name": "render", "string": "helm"}, {"name": "recurse", "string": "true"}, {"name": "include", "string": "*.yaml"}, {"name": "exclude", "string": "x"},
 {"name": "releaseName", "string": "r"}, {"name": "valueFiles", "array": ["a.yaml", "/b.yaml"]}, {"name": "ignoreMissingValueFiles", "string": "true"},
 {"name": "values", "string": "a: 1\n"}, {"name": "set", "map": {"b": "2", "a": "1"}}, {"name": "setString", "array": ["z=1", "a=b=c"]}, {"name": "setFile", "map": {"f": "x"}},
 {"name": "skipCrds", "string": "true"}, {"name": "images", "array": ["web:1"]}, {"name": "namePrefix", "string": "p-"}, {"name": "nameSuffix", "string": "-s"},
 {"name": "commonLabels", "map": {"l": "1"}}, {"name": "commonAnnotations", "map": {"n": "1"}}, {"name": "patches", "array": ["path: p.yaml"]}, {"name": "components", "array": ["c"]},
 {"name": "skipTests", "string": "true"}, {"name": "skipSchemaValidation", "string": "true"}, {"name": "kubeVersion", "string": "1.31"}, {"name": "apiVersions", "array": ["a/v1"]}, {"name": "namespace", "string": "ns"},
 {"name": "replicas", "map": {"web": "3"}}, {"name": "forceCommonLabels", "string": "true"}, {"name": "forceCommonAnnotations", "string": "true"}, {"name": "labelWithoutSelector", "string": "true"},
 {"name": "labelIncludeTemplates", "string": "true"}, {"name": "commonAnnotationsEnvsubst", "string": "true"}, {"name": "ignoreMissingComponents", "string": "true"}]`
	var params []ParameterValue
	if err := json.Unmarshal([]byte(text), &params); err != nil {
		t.Fatal(err)
	}
	var o Options
	if err := o.Set(params); err != nil {
		t.Fatal(err)
	}
	want := Options{
		Render: Helm, Recurse: true, Include: "*.yaml", Exclude: "x",
		ReleaseName: "r", ValueFiles: []string{"a.yaml", "/b.yaml"}, IgnoreMissingValueFiles: true, Values: "a: 1\n",
		SetValues: []Assignment{{"a", "1"}, {"b", "2"}}, SetStrings: []Assignment{{"z", "1"}, {"a", "b=c"}}, SetFiles: []Assignment{{"f", "x"}},
		SkipCRDs: true, Images: []string{"web:1"}, NamePrefix: "p-", NameSuffix: "-s",
		CommonLabels: map[string]string{"l": "1"}, CommonAnnotations: map[string]string{"n": "1"}, Patches: []string{"path: p.yaml"}, Components: []string{"c"},
		SkipTests: true, SkipSchemaValidation: true, OwnKubeVersion: "1.31", OwnAPIVersions: []string{"a/v1"}, OwnNamespace: "ns",
		Replicas: []Assignment{{"web", "3"}}, ForceCommonLabels: true, ForceCommonAnnotations: true, LabelWithoutSelector: true,
		LabelIncludeTemplates: true, CommonAnnotationsEnvsubst: true, IgnoreMissingComponents: true,
	}
	if !reflect.DeepEqual(o, want) {
		t.Errorf("got  %+v\nwant %+v", o, want)
	}
	if len(params) != len(parameters) {
		t.Errorf("%d of %d parameters are tested", len(params), len(parameters))
	}
}

func TestParametersThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		params string
		err    []string
	}{
		"a name that is not known lists the known": {`[{"name": "valuesFiles", "array": []}]`, []string{`"valuesFiles"`, "valueFiles", "namePrefix"}},
		"names are told apart by case":             {`[{"name": "skipCRDs", "string": "true"}]`, []string{`"skipCRDs"`, "skipCrds"}},
		"a name given twice":                       {`[{"name": "values", "string": "a"}, {"name": "values", "string": "b"}]`, []string{"values", "twice"}},
		"a list where a string is wanted":          {`[{"name": "values", "array": ["a"]}]`, []string{"values", "want a string"}},
		"a map where a string is wanted":           {`[{"name": "values", "map": {"a": "b"}}]`, []string{"values", "want a string"}},
		"a string where a list is wanted":          {`[{"name": "valueFiles", "string": "a.yaml"}]`, []string{"valueFiles", "want a list"}},
		"a list where a map is wanted":             {`[{"name": "commonLabels", "array": ["a=b"]}]`, []string{"commonLabels", "want a map"}},
		"a string where assignments are wanted":    {`[{"name": "set", "string": "a=b"}]`, []string{"set", "want a map", "name=value"}},
		"an assignment without an equals sign":     {`[{"name": "set", "array": ["a"]}]`, []string{"set", `"a"`, "name=value"}},
		"two types at once":                        {`[{"name": "set", "array": ["a=b"], "map": {"a": "b"}}]`, []string{"set", "want a map"}},
		"no value at all":                          {`[{"name": "recurse"}]`, []string{"recurse", "true"}},
		"a truth that is neither true nor false":   {`[{"name": "recurse", "string": "yes"}]`, []string{"recurse", `"yes"`}},
	} {
		t.Run(name, func(t *testing.T) {
			var params []ParameterValue
			if err := json.Unmarshal([]byte(c.params), &params); err != nil {
				t.Fatal(err)
			}
			wantError(t, new(Options).Set(params), c.err...)
		})
	}
	t.Run("false and empty leave the default", func(t *testing.T) {
		o, no, empty := Options{}, "false", ""
		if err := o.Set([]ParameterValue{{Name: "recurse", String: &no}, {Name: "skipCrds", String: &empty}}); err != nil || !reflect.DeepEqual(o, Options{}) {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

func TestAParameterOfAnotherKindIsRefused(t *testing.T) {
	repo := archive("-- dir/a.yaml --\n" + someYAML + "-- kus/kustomization.yaml --\nresources: [a.yaml]\n-- kus/a.yaml --\n" + someYAML + "-- chart/Chart.yaml --\n" + someChart + "-- chart/templates/a.yaml --\n" + someYAML)
	dirs := map[string]string{"dir": Directory, "kus": Kustomize, "chart": Helm}
	for _, p := range parameters {
		for dir, kind := range dirs {
			if p.fits(kind) {
				continue
			}
			t.Run(p.name+" is refused for "+kind, func(t *testing.T) {
				var o Options
				switch f := p.field(&o).(type) {
				case *string:
					*f = "x"
				case *bool:
					*f = true
				case *[]string:
					*f = []string{"x"}
				case *map[string]string:
					*f = map[string]string{"x": "y"}
				case *[]Assignment:
					*f = []Assignment{{"x", "y"}}
				default:
					t.Fatalf("a field of type %T", f)
				}
				_, err := Render(repo, dir, o)
				wantError(t, err, dir, "parameter "+p.name, "is for "+strings.Join(p.render, " and "), "rendered as "+kind)
			})
		}
	}
	t.Run("an empty value says nothing and is no error", func(t *testing.T) {
		o := Options{ValueFiles: []string{}, CommonLabels: map[string]string{}, SetValues: []Assignment{}}
		if _, err := Render(repo, "dir", o); err != nil {
			t.Error(err)
		}
	})
}

func TestEveryParameterIsInTheDocumentation(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "parameters.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parameters {
		if kinds := cmp.Or(strings.Join(p.render, ", "), "all"); !regexp.MustCompile("(?m)^\\| `" + p.name + "` \\| [^|]* \\| " + kinds + " \\| ").Match(text) {
			t.Errorf("%s, for %s, is not in the table", p.name, kinds)
		}
	}
}

func TestAnnounce(t *testing.T) {
	repo := archive("-- dir/a.yaml --\n" + someYAML + "-- kus/kustomization.yaml --\nnamePrefix: p-\nnamespace: ns\n-- bad/kustomization.yaml --\n{\n-- chart/Chart.yaml --\n" + someChart)
	for dir, want := range map[string]string{
		"dir":   "render recurse include exclude",
		"kus":   "render namespace images namePrefix nameSuffix replicas commonLabels forceCommonLabels labelWithoutSelector labelIncludeTemplates commonAnnotations forceCommonAnnotations commonAnnotationsEnvsubst patches components ignoreMissingComponents",
		"bad":   "render namespace images namePrefix nameSuffix replicas commonLabels forceCommonLabels labelWithoutSelector labelIncludeTemplates commonAnnotations forceCommonAnnotations commonAnnotationsEnvsubst patches components ignoreMissingComponents",
		"chart": "render releaseName valueFiles ignoreMissingValueFiles values set setString setFile skipCrds skipTests skipSchemaValidation kubeVersion apiVersions namespace",
	} {
		t.Run(dir+" is announced what fits it, with types that Set takes", func(t *testing.T) {
			list, err := Announce(repo, dir)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range list {
				names = append(names, p.Name)
				v := ParameterValue{Name: p.Name}
				switch p.CollectionType {
				case "string":
					v.String = &p.String
				case "array":
					v.Array = []string{}
				case "map":
					v.Map = map[string]string{}
				}
				if err := new(Options).Set([]ParameterValue{v}); err != nil {
					t.Error(err)
				}
				if p.Title == "" || p.Tooltip == "" {
					t.Errorf("%s has no title or tooltip", p.Name)
				}
			}
			if strings.Join(names, " ") != want {
				t.Errorf("announced %v, want %s", names, want)
			}
		})
	}
	t.Run("what a kustomization has is the default", func(t *testing.T) {
		list, err := Announce(repo, "kus")
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"namePrefix": "p-", "namespace": "ns"} {
			i := slices.IndexFunc(list, func(p Parameter) bool { return p.Name == name })
			if list[i].String != want {
				t.Errorf("%+v", list[i])
			}
		}
	})
	t.Run("the JSON has Argo CD's names", func(t *testing.T) {
		text, err := json.Marshal(Parameter{Name: "n", Title: "t", Tooltip: "o", Required: true, ItemType: "i", CollectionType: "c", String: "s", Array: []string{"a"}, Map: map[string]string{"m": "v"}})
		if want := `{"name":"n","title":"t","tooltip":"o","required":true,"itemType":"i","collectionType":"c","string":"s","array":["a"],"map":{"m":"v"}}`; err != nil || string(text) != want {
			t.Errorf("%s", text)
		}
	})
	t.Run("a directory that is not there is an error", func(t *testing.T) {
		if _, err := Announce(repo, "nowhere"); err == nil {
			t.Error("no error")
		}
	})
}

// FuzzParameters renders with whatever parameters an Application has.
func FuzzParameters(f *testing.F) {
	for _, s := range []string{
		`[{"name": "replicas", "map": {"web": "3"}}, {"name": "namespace", "string": "x"}, {"name": "labelWithoutSelector", "string": "true"}, {"name": "commonLabels", "map": {"a": "\"b\""}}]`,
		`[{"name": "replicas", "array": ["web=3", "a=b=c", "="]}, {"name": "forceCommonAnnotations", "string": "true"}, {"name": "commonAnnotations", "map": {"": "$x"}}, {"name": "commonAnnotationsEnvsubst", "string": "true"}]`,
		`[{"name": "components", "array": ["../c", "../[", "", "/", "../../..", "*"]}, {"name": "ignoreMissingComponents", "string": "true"}]`,
		`[{"name": "commonLabels", "map": {"a": "b"}}, {"name": "labelWithoutSelector", "string": "true"}, {"name": "labelIncludeTemplates", "string": "true"}, {"name": "forceCommonLabels", "string": "true"}]`,
		`[{"name": "kubeVersion", "string": "v1.31.2+k3s1"}, {"name": "apiVersions", "array": ["a/v1,b/v1", ""]}, {"name": "skipTests", "string": "true"}, {"name": "skipSchemaValidation", "string": "true"}, {"name": "namespace", "string": "x"}]`,
		`[{"name": "images", "array": ["web:1", "@"]}, {"name": "patches", "array": ["path: p.yaml"]}, {"name": "namePrefix", "string": "p-"}]`,
	} {
		f.Add(s)
	}
	repo := archive("-- kus/kustomization.yaml --\nresources: [a.yaml]\nlabels: [{}, {includeTemplates: true}]\n-- kus/a.yaml --\n" + someYAML + "-- c/kustomization.yaml --\nkind: Component\n-- chart/Chart.yaml --\n" + someChart + "-- chart/templates/a.yaml --\n" + someYAML + "-- chart/values.schema.json --\n{}\n")
	f.Fuzz(func(t *testing.T, text string) {
		var params []ParameterValue
		if json.Unmarshal([]byte(text), &params) != nil {
			return
		}
		o := Options{Env: map[string]string{"x": "y"}}
		if o.Set(params) != nil {
			return
		}
		for _, dir := range []string{"kus", "chart"} {
			one, err := Render(repo, dir, o)
			if err != nil {
				continue
			}
			if two, err := Render(repo, dir, o); err != nil || string(two.Stream) != string(one.Stream) {
				t.Errorf("%s: another time %v:\n%s\nthen\n%s", dir, err, one.Stream, two.Stream)
			}
		}
	})
}
