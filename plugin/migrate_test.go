package plugin

import (
	"reflect"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/render"
)

const oldApplication = `# the shop
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: web, namespace: argocd}
spec:
  project: default # for now
  source:
    repoURL: https://git.example/r
    path: app
    targetRevision: main
    SOURCE
  destination: {server: https://kubernetes.default.svc, namespace: shop}
`

// What a migrated source asks for is what the source asked Argo CD's own tools for.
func TestAMigratedSourceRendersTheSame(t *testing.T) {
	for name, source := range map[string]string{
		"helm":                 `helm: {releaseName: r, valueFiles: [a.yaml, "$ARGOCD_APP_NAME/b.yaml"], values: "b: 1", parameters: [{name: c, value: "2"}, {name: d, value: "3", forceString: true}], fileParameters: [{name: e, path: f}], skipCrds: true, ignoreMissingValueFiles: true}`,
		"helm with all fields": `helm: {skipTests: true, skipSchemaValidation: true, namespace: ns, kubeVersion: "1.31", apiVersions: [a/v1, b/v1], version: v3, passCredentials: true}`,
		"helm with an object":  `helm: {valuesObject: {a: {b: [1, "2"]}}}`,
		"kustomize":            `kustomize: {images: ["a=b:c"], namePrefix: p-, nameSuffix: -s, commonLabels: {a: b}, commonAnnotations: {c: d}, patches: [{patch: "- op: remove\n  path: /x\n", target: {kind: Deployment}}], components: [../c]}`,
		"kustomize with all fields": `kustomize: {namespace: ns, replicas: [{name: web, count: 3}, {name: api, count: "4"}, {name: web, count: "{{.count}}"}], commonLabels: {a: b}, forceCommonLabels: true, labelWithoutSelector: true, labelIncludeTemplates: true,
      commonAnnotations: {c: $x/y}, forceCommonAnnotations: true, commonAnnotationsEnvsubst: true, components: [../c], ignoreMissingComponents: true, version: v4.5.7, kubeVersion: "1.31", apiVersions: [a/v1]}`,
		"a directory as Argo CD writes it": `directory: {recurse: true, jsonnet: {}}`,
		"directory":                        `directory: {recurse: true, include: "*.yaml", exclude: x}`,
		"nothing but the source":           ``,
	} {
		t.Run(name, func(t *testing.T) {
			old := strings.Replace(oldApplication, "    SOURCE\n", map[bool]string{true: "", false: "    " + source + "\n"}[source == ""], 1)
			m, err := Migrate([]byte(old))
			if err != nil || len(m.Left) > 0 || m.Migrated != 1 {
				t.Fatalf("%v, %+v", err, m)
			}
			options := func(text []byte) (o render.Options, a *Application) {
				t.Helper()
				a, err := ReadApplication(text)
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Spec.Source.options(&o); err != nil {
					t.Fatal(err)
				}
				return o, a
			}
			want, _ := options([]byte(old))
			got, a := options(m.Stream)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%+v\nwant\n%+v", got, want)
			}
			s := a.Spec.Source
			if s.Plugin == nil || s.Plugin.Name != "grantfirst" || len(s.Helm)+len(s.Kustomize)+len(s.Directory) > 0 || s.Path != "app" || s.TargetRevision != "main" {
				t.Errorf("%s", s.Raw)
			}
			for _, kept := range []string{"# the shop", "# for now", "namespace: shop"} {
				if !strings.Contains(string(m.Stream), kept) {
					t.Errorf("%q is gone:\n%s", kept, m.Stream)
				}
			}
			if again, err := Migrate(m.Stream); err != nil || again.Migrated != 0 || len(again.Left) > 0 || string(again.Stream) != string(m.Stream) {
				t.Errorf("not the same the second time: %v\n%s", err, again.Stream)
			}
		})
	}
}

func TestWhatCannotBeMigratedStaysAndIsSaid(t *testing.T) {
	for name, test := range map[string]struct{ source, why string }{
		"a field without a parameter":   {"helm: {unheardOf: true}", `unknown field "unheardOf"`},
		"values of another source":      {"helm: {valueFiles: [$values/a.yaml]}", "valueFiles: $values/a.yaml is in another source"},
		"value files by a glob":         {"helm: {valueFiles: ['values/*.yaml']}", "valueFiles: Argo CD v3.4 and later expand globs"},
		"jsonnet":                       {"directory: {jsonnet: {tlas: [{name: a, value: b}]}}", "source.directory.jsonnet: jsonnet is not rendered here"},
		"jsonnet of another type":       {"directory: {jsonnet: {tlas: x}}", "source.directory"},
		"replicas that are no number":   {"kustomize: {replicas: [{name: a, count: 1.5}]}", "source.kustomize"},
		"a chart repository":            {"chart: x", "chart: a chart repository has no history"},
		"another plugin":                {"plugin: {name: other}", `uses plugin "other" already`},
		"a field that is of wrong type": {"helm: 1", "source.helm"},
	} {
		t.Run(name, func(t *testing.T) {
			old := strings.Replace(oldApplication, "SOURCE", test.source, 1)
			m, err := Migrate([]byte(old))
			if err != nil || m.Migrated != 0 || len(m.Left) != 1 || !strings.Contains(m.Left[0], test.why) {
				t.Fatalf("%v, %+v", err, m)
			}
			before, _ := ReadApplication([]byte(old))
			after, err := ReadApplication(m.Stream)
			if err != nil || before.Spec.Source.Raw != after.Spec.Source.Raw {
				t.Errorf("%v: changed:\n%s", err, m.Stream)
			}
		})
	}
}

func TestASourceThatIsNotWrittenOutInItsPlaceStaysAndIsSaid(t *testing.T) {
	for name, test := range map[string]struct{ spec, why string }{
		"no source":                  {"{source: }", "spec.source: not a mapping of its own"},
		"an alias":                   {"{x: &a {path: p}, source: *a}", "spec.source: not a mapping of its own"},
		"fields of another mapping":  {"{x: &a {helm: {releaseName: r}}, source: {<<: *a, path: p}}", "spec.source: it takes fields from elsewhere"},
		"an alias among the sources": {"{x: &a {path: p}, sources: [*a]}", "spec.sources[0]: not a mapping of its own"},
		"an alias of the sources":    {"{x: &a [{path: p}], sources: *a}", "spec.sources: not a list of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Migrate([]byte("kind: Application\nmetadata: {name: web}\nspec: " + test.spec + "\n"))
			if err != nil || m.Migrated != 0 || len(m.Left) != 1 || !strings.Contains(m.Left[0], test.why) || strings.Contains(string(m.Stream), "plugin") {
				t.Fatalf("%v, %+v\n%s", err, m, m.Stream)
			}
		})
	}
}

func TestMigrateTakesSetsAndSeveralSources(t *testing.T) {
	m, err := Migrate([]byte(`apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: all}
spec:
  goTemplate: true
  template:
    spec:
      sources:
      - {repoURL: r, path: '{{.path}}', helm: {values: '{{ .values }}'}}
      - {repoURL: r, ref: values}
      - {repoURL: r, path: x, plugin: {name: grantfirst}}
---
kind: ConfigMap
metadata: {name: c}
---
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: hydrated}
spec: {sourceHydrator: {drySource: {}}}
---
`))
	if err != nil || m.Migrated != 1 || len(m.Left) != 2 {
		t.Fatalf("%v, %+v", err, m)
	}
	for i, want := range []string{"document 2, ConfigMap c: neither", "document 3, Application hydrated: spec.sourceHydrator"} {
		if !strings.HasPrefix(m.Left[i], want) {
			t.Errorf("%q, want %q", m.Left[i], want)
		}
	}
	if !strings.Contains(string(m.Stream), "string: '{{ .values }}'") {
		t.Errorf("the template is not a string any more:\n%s", m.Stream)
	}
}

func TestWhatSaysNothingToThePluginIsLeftOutAndSaid(t *testing.T) {
	for source, want := range map[string][]string{
		"helm: {passCredentials: true, version: v3}":                         {"passCredentials: nothing is downloaded"},
		"kustomize: {version: v4.5.7, kubeVersion: v1.31, apiVersions: [a]}": {"version v4.5.7: the plugin has one kustomize", "kubeVersion, apiVersions: they are for helmCharts"},
		"kustomize: {namespace: ns}":                                         nil,
	} {
		t.Run(source, func(t *testing.T) {
			m, err := Migrate([]byte(strings.Replace(oldApplication, "SOURCE", source, 1)))
			if err != nil || m.Migrated != 1 || len(m.Left) > 0 || len(m.Void) != len(want) {
				t.Fatalf("%v, %+v", err, m)
			}
			for i, w := range want {
				if !strings.HasPrefix(m.Void[i], "document 1, Application web: spec.source: "+w) {
					t.Errorf("%q, want %q", m.Void[i], w)
				}
			}
		})
	}
}

func TestATemplateOfAGeneratorIsSaid(t *testing.T) {
	m, err := Migrate([]byte(`apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: all}
spec:
  generators:
  - matrix:
      generators:
      - list:
          elements: [{a: b}]
          template: {metadata: {}, spec: {source: {kustomize: {namePrefix: x-}}}}
      - git: {template: {metadata: {}, spec: {destination: {}, project: p}}}
  template: {spec: {source: {repoURL: r, path: p}}}
`))
	if err != nil || m.Migrated != 1 || len(m.Left) != 1 || m.Left[0] != "document 1, ApplicationSet all: line 10: the template of a generator sets a source: give it the plugin's form by hand" {
		t.Fatalf("%v, %+v", err, m)
	}
}

func FuzzMigrate(f *testing.F) {
	f.Add([]byte(oldApplication))
	f.Add([]byte("kind: Application\nspec: {source: {kustomize: {namespace: ns, replicas: [{name: web, count: \"3\"}], labelWithoutSelector: true, version: v5}}}\n"))
	f.Add([]byte("kind: Application\nspec: {source: {helm: {namespace: ns, skipTests: true, apiVersions: [a/v1], passCredentials: true}}}\n"))
	f.Add([]byte("kind: Application\nspec: {source: {directory: {jsonnet: {tlas: []}}}}\n"))
	f.Add([]byte("kind: Application\nspec: {source: [a], sources: {a: b}}\n"))
	f.Add([]byte("kind: Application\nspec: {source: {helm: {valuesObject: {1: 2, [a]: b}}}}\n"))
	f.Add([]byte("kind: Application\nspec: &a {source: *a}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Migrate(data)
		if err != nil {
			return
		}
		if again, err := Migrate(m.Stream); err != nil || again.Migrated != 0 {
			t.Errorf("not migrated once and for all: %v\n%s", err, m.Stream)
		}
	})
}
