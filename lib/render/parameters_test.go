package render

import (
	"encoding/json"
	"reflect"
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
 {"name": "commonLabels", "map": {"l": "1"}}, {"name": "commonAnnotations", "map": {"n": "1"}}, {"name": "patches", "array": ["path: p.yaml"]}, {"name": "components", "array": ["c"]}]`
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
			if p.render == "" || p.render == kind {
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
				wantError(t, err, dir, "parameter "+p.name, "is for "+p.render, "rendered as "+kind)
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

func TestAnnounce(t *testing.T) {
	repo := archive("-- dir/a.yaml --\n" + someYAML + "-- kus/kustomization.yaml --\nnamePrefix: p-\n-- bad/kustomization.yaml --\n{\n-- chart/Chart.yaml --\n" + someChart)
	for dir, want := range map[string]string{
		"dir":   "render recurse include exclude",
		"kus":   "render images namePrefix nameSuffix commonLabels commonAnnotations patches components",
		"bad":   "render images namePrefix nameSuffix commonLabels commonAnnotations patches components",
		"chart": "render releaseName valueFiles ignoreMissingValueFiles values set setString setFile skipCrds",
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
		i := slices.IndexFunc(list, func(p Parameter) bool { return p.Name == "namePrefix" })
		if list[i].String != "p-" {
			t.Errorf("%+v", list[i])
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
