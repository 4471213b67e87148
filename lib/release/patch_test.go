package release

import (
	"encoding/json"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestPatches(t *testing.T) {
	const single = `{"metadata":{"resourceVersion":"7"},"spec":{"syncPolicy":{"automated":{"prune":true},"syncOptions":["CreateNamespace=true"],"retry":{"limit":2}}},"status":{"sync":{"revision":"c1"}}}`
	for name, test := range map[string]struct {
		do                Action
		application, want string
		rolling           *RollingSync
	}{
		"arm": {Arm, single, `{"metadata":{"resourceVersion":"7"},"status":{"operationState":null}}`, nil},
		"refresh": {Refresh, single,
			`{"metadata":{"annotations":{"argocd.argoproj.io/refresh":"hard"},"resourceVersion":"7"},"status":{"operationState":null}}`, nil},
		"refresh of a manual Application leaves its last operation to be seen": {Refresh, `{"metadata":{"resourceVersion":"7"}}`,
			`{"metadata":{"annotations":{"argocd.argoproj.io/refresh":"hard"},"resourceVersion":"7"}}`, nil},
		"terminate": {Terminate, single, `{"metadata":{"resourceVersion":"7"},"status":{"operationState":{"phase":"Terminating"}}}`, nil},
		"toggle sets the annotation": {Toggle, single,
			`{"metadata":{"annotations":{"argocd.argoproj.io/refresh":"normal"},"resourceVersion":"7"}}`, nil},
		"toggle removes the annotation": {Toggle, `{"metadata":{"resourceVersion":"7","annotations":{"argocd.argoproj.io/refresh":"hard"}}}`,
			`{"metadata":{"annotations":{"argocd.argoproj.io/refresh":null},"resourceVersion":"7"}}`, nil},
		"sync with the Application's own prune, options and retry": {Sync, single,
			`{"metadata":{"resourceVersion":"7"},"operation":{"initiatedBy":{"automated":true},"retry":{"limit":2},"sync":{"prune":true,"revision":"c1","syncOptions":["CreateNamespace=true"]}},"status":{"operationState":null}}`, nil},
		"sync of several sources": {Sync,
			`{"metadata":{"resourceVersion":"7"},"spec":{"sources":[{"repoURL":"https://a","n":1},{"repoURL":"https://b"}],"syncPolicy":{"automated":{}}},"status":{"sync":{"revisions":["a1","b1"]}}}`,
			`{"metadata":{"resourceVersion":"7"},"operation":{"initiatedBy":{"automated":true},"retry":{"limit":5},"sync":{"revisions":["a1","b1"],"sources":[{"n":1,"repoURL":"https://a"},{"repoURL":"https://b"}]}},"status":{"operationState":null}}`, nil},
		"sync of a child of a RollingSync, Argo CD up to v3.2: prune is in the template": {Sync,
			`{"metadata":{"resourceVersion":"7"},"spec":{"syncPolicy":{}},"status":{"sync":{"revision":"c1"}}}`,
			`{"metadata":{"resourceVersion":"7"},"operation":{"initiatedBy":{"automated":true},"retry":{"limit":5},"sync":{"prune":true,"revision":"c1"}},"status":{"operationState":null}}`,
			&RollingSync{Prune: true}},
		"sync of a child of a RollingSync, later: prune stays where it is": {Sync,
			`{"metadata":{"resourceVersion":"7"},"spec":{"syncPolicy":{"automated":{"enabled":false,"prune":true}}},"status":{"sync":{"revision":"c1"}}}`,
			`{"metadata":{"resourceVersion":"7"},"operation":{"initiatedBy":{"automated":true},"retry":{"limit":5},"sync":{"prune":true,"revision":"c1"}},"status":{"operationState":null}}`,
			&RollingSync{}},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Application{}
			if err := json.Unmarshal([]byte(test.application), a); err != nil {
				t.Fatal(err)
			}
			got, err := Patch(test.do, &Observed{Application: a, RollingSync: test.rolling})
			if err != nil || string(got) != test.want {
				t.Errorf("%v\n got %s\nwant %s", err, got, test.want)
			}
		})
	}
}

func TestWhatIsAMarker(t *testing.T) {
	for name, test := range map[string]struct {
		r    Resource
		want bool
	}{
		"a Hold":                            {Resource{Group: "grantfirst.dev", Kind: "Hold", Name: "grantfirst-0123456789-abcdef0123"}, true},
		"a Hold of what was never released": {Resource{Group: "grantfirst.dev", Kind: "Hold", Name: "grantfirst-0123456789-none"}, true},
		"a paused Deployment":               {Resource{Group: "apps", Kind: "Deployment", Name: "grantfirst-0123456789-none"}, true},
		"a Deployment of somebody":          {Resource{Group: "apps", Kind: "Deployment", Name: "grantfirst-web"}, false},
		"another kind":                      {Resource{Group: "apps", Kind: "StatefulSet", Name: "grantfirst-0123456789-none"}, false},
		"a Hold of another group":           {Resource{Group: "example.com", Kind: "Hold", Name: "grantfirst-0123456789-none"}, false},
		"something after the name":          {Resource{Group: "grantfirst.dev", Kind: "Hold", Name: "grantfirst-0123456789-none-2"}, false},
	} {
		if _, got := test.r.marker(); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Whatever an Application has in it, reading and deciding end without a panic, and a patch is JSON.
func FuzzRead(f *testing.F) {
	seed, err := os.ReadFile("testdata/application.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, true, "yes")
	f.Add([]byte(`{"metadata":{"annotations":{"a":null}},"status":{"operationState":{"operation":{"sync":null}},"history":[null]}}`), false, "no")
	f.Fuzz(func(t *testing.T, text []byte, rolling bool, loaded string) {
		object := map[string]any{}
		if yaml.Unmarshal(text, &object) != nil {
			return
		}
		a, err := Read(&unstructured.Unstructured{Object: object})
		if err != nil {
			return
		}
		o := &Observed{Application: a, Holds: map[Marker]Hold{}, MayBegin: true}
		if rolling {
			o.RollingSync = &RollingSync{}
		}
		for _, m := range a.Markers() {
			o.Holds[m] = Hold{Loaded: Loaded(loaded)}
		}
		var memory Memory
		for i := range 10 {
			var d Decision
			memory, d = Decide(o, memory, start.AddDate(0, 0, i))
			patch, err := Patch(d.Do, o)
			if err != nil || !json.Valid(patch) {
				t.Fatalf("%s: %v", patch, err)
			}
		}
	})
}
