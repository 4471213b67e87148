package loaded

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

const aPod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pcs-1", "namespace": "pcs"}}`
const aConfigMap = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "policy", "namespace": "pcs"}, "data": {"k": "v"}}`

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReadTakesWhatKubectlPrints(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"single objects in JSON": {"a.json": aPod, "b.json": aConfigMap},
		"single objects in YAML": {"a.yaml": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: pcs-1\n  namespace: pcs\n", "b.yml": aConfigMap},
		"a list in YAML":         {"a.yaml": "apiVersion: v1\nkind: List\nitems:\n- " + aPod + "\n- " + aConfigMap + "\nmetadata:\n  resourceVersion: \"\"\n"},
		"a list in JSON":         {"a.json": `{"apiVersion": "v1", "kind": "List", "items": [` + aPod + `,` + aConfigMap + `]}`},
		"a list in a list":       {"a.json": `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "List", "items": [` + aPod + `]},` + aConfigMap + `]}`},
		"lists of one kind":      {"a.json": `{"apiVersion": "v1", "kind": "PodList", "items": [` + aPod + `]}`, "b.json": `{"apiVersion": "v1", "kind": "ConfigMapList", "items": [` + aConfigMap + `]}`},
		"a stream of documents":  {"a.yaml": "---\n" + aPod + "\n---\n# nothing\n---\n" + aConfigMap + "\n"},
		"other kinds beside them": {"a.yaml": aPod + "\n---\n" + aConfigMap + "\n---\napiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: web}\n" +
			"---\napiVersion: v1\nkind: List\nitems: []\n---\napiVersion: metrics.k8s.io/v1beta1\nkind: Pod\nmetadata: {name: x}\n---\napiVersion: example.com/v1\nkind: PolicyList\nitems: [{apiVersion: example.com/v1, kind: Policy}]\n"},
		"folders below":          {"a/b/c.yaml": aPod, "a/d.yaml": aConfigMap, "a/notes.txt": "{"},
		"the same objects twice": {"a.json": aPod, "b.json": `{"apiVersion": "v1", "kind": "List", "items": [` + aPod + `,` + aConfigMap + `]}`},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Read(write(t, files))
			if err != nil {
				t.Fatal(err)
			}
			o, err := s.Objects(context.Background(), &config.Signer{Namespace: "pcs"})
			if err != nil {
				t.Fatal(err)
			}
			if len(o.Pods) != 1 || o.Pods[0].Name != "pcs-1" || len(o.ConfigMaps) != 1 || o.ConfigMaps[0].Data["k"] != "v" && name != "single objects in YAML" {
				t.Errorf("got %+v", o)
			}
			o, err = s.Objects(context.Background(), &config.Signer{Namespace: "other"})
			if err != nil || len(o.Pods)+len(o.ConfigMaps) != 0 {
				t.Errorf("another namespace: got %+v, %v", o, err)
			}
		})
	}
}

func TestReadNamesWhatItCannotRead(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"a broken file":                 {map[string]string{"good.json": aPod, "bad.yaml": "kind: [\n"}, []string{"bad.yaml: document 1"}},
		"an empty file":                 {map[string]string{"empty.yaml": ""}, []string{"empty.yaml: ", "empty"}},
		"a broken document":             {map[string]string{"a.yaml": aPod + "\n---\nkind: {\n"}, []string{"a.yaml: document 2"}},
		"a broken pod":                  {map[string]string{"a.json": `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pcs-1", "namespace": "pcs"}, "spec": []}`}, []string{"a.json: document 1", "Pod pcs/pcs-1: "}},
		"a broken item":                 {map[string]string{"a.json": `{"apiVersion": "v1", "kind": "List", "items": [` + aPod + `, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "policy", "namespace": "pcs"}, "data": {"k": 1}}]}`}, []string{"a.json: document 1", "item 2: ConfigMap pcs/policy: "}},
		"an item that is no object":     {map[string]string{"a.json": `{"apiVersion": "v1", "kind": "List", "items": [1]}`}, []string{"a.json: document 1", "item 1"}},
		"an object without a kind":      {map[string]string{"a.yaml": "replicas: 2\n"}, []string{"a.yaml: document 1", "kind"}},
		"an object without a namespace": {map[string]string{"a.json": `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pcs-1"}}`}, []string{"a.json: document 1", "Pod pcs-1: it has no name or no namespace"}},
		"a repeated key":                {map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy, namespace: pcs}\ndata: {k: a}\ndata: {k: b}\n"}, []string{"a.yaml: document 1", "data"}},
		"an object that is another one elsewhere": {map[string]string{"after.json": strings.Replace(aConfigMap, `"v"`, `"w"`, 1), "before.json": aConfigMap},
			[]string{"before.json: document 1", "ConfigMap pcs/policy: it is another one in ", "after.json: a snapshot shows one moment"}},
		"a custom resource that is another one elsewhere": {map[string]string{"after.json": strings.Replace(aPolicy, `993}`, `994}`, 1), "before.json": aPolicy},
			[]string{"before.json: document 1", "policy.example.com/SignerPolicy shop/web: it is another one in ", "after.json: a snapshot shows one moment"}},
		"two moments": {map[string]string{"a.json": anAbout, "b.json": strings.Replace(anAbout, "10:00", "10:01", 1)},
			[]string{"b.json: document 1", "a second Snapshot, after that in ", "a.json: a snapshot shows one moment"}},
		"a moment that is none":           {map[string]string{"a.json": strings.Replace(anAbout, "10:00:00Z", "ten", 1)}, []string{"a.json: document 1", "Snapshot: "}},
		"a Snapshot of a later version's": {map[string]string{"a.json": strings.Replace(anAbout, "kubeVersion", "cubeVersion", 1)}, []string{"a.json: document 1", `unknown field "cubeVersion"`, "as grantfirst snapshot wrote it"}},
		"a folder without any file":       {map[string]string{"notes.txt": "x"}, []string{"no .yaml, .yml or .json file in it"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(write(t, c.files))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %s, want %q in it", err, want)
				}
			}
		})
	}
	if _, err := Read(filepath.Join(t.TempDir(), "nothing.yaml")); err == nil || !strings.Contains(err.Error(), "nothing.yaml") {
		t.Errorf("a file that does not exist: %v", err)
	}
}

func TestReadTakesAFileWhateverItsName(t *testing.T) {
	s, err := Read(filepath.Join(write(t, map[string]string{"live": aPod}), "live"))
	if err != nil || len(s.pods) != 1 {
		t.Errorf("got %v, %v", s, err)
	}
}

const aPolicy = `{"apiVersion": "policy.example.com/v1", "kind": "SignerPolicy", "metadata": {"name": "web", "namespace": "shop", "generation": 9007199254740993}}`

func customSigner(signerName string) *config.Signer {
	return &config.Signer{SignerName: signerName, Namespace: "pcs", Evidence: config.Status,
		Policy: config.Policy{Resource: &config.Resource{APIVersion: "policy.example.com/v1", Kind: "SignerPolicy", Resource: "signerpolicies", Namespace: "*"}}}
}

func TestReadTakesOtherKindsToo(t *testing.T) {
	another := strings.Replace(aPolicy, `"web"`, `"api"`, 1)
	for name, files := range map[string]map[string]string{
		"single objects":           {"a.json": aPolicy, "b.yaml": another},
		"a list as kubectl's":      {"a.json": `{"apiVersion": "v1", "kind": "List", "items": [` + aPolicy + `,` + another + `]}`},
		"a list as the API's":      {"a.json": `{"apiVersion": "policy.example.com/v1", "kind": "SignerPolicyList", "items": [` + aPolicy + `,` + another + `]}`},
		"the same twice":           {"a.json": aPolicy, "b.json": strings.ReplaceAll(aPolicy, ": ", ":"), "c.json": another},
		"other versions and kinds": {"a.json": aPolicy + "\n---\n" + another + "\n---\n" + strings.Replace(aPolicy, "/v1", "/v1beta1", 1) + "\n---\n" + strings.Replace(aPolicy, "SignerPolicy", "Binding", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Read(write(t, files))
			if err != nil {
				t.Fatal(err)
			}
			all := s.Other("policy.example.com/v1", "SignerPolicy")
			if len(all) != 2 || !strings.Contains(string(all[0]), `"api"`) || !strings.Contains(string(all[1]), `"web"`) {
				t.Errorf("got %s", all)
			}
			if other := s.Other("policy.example.com/v2", "SignerPolicy"); other != nil {
				t.Errorf("got %s", other)
			}
			o, err := s.Objects(t.Context(), customSigner("example.com/workload"))
			if err != nil || len(o.Resources) != 2 {
				t.Fatalf("got %+v, %v", o, err)
			}
			if generation := o.Resources[1]["metadata"].(map[string]any)["generation"]; generation != int64(9007199254740993) {
				t.Errorf("the generation is %v", generation)
			}
			if !o.At.IsZero() {
				t.Errorf("read at %s", o.At)
			}
		})
	}
}

const anAbout = `{"apiVersion": "grantfirst.dev/v1alpha1", "kind": "Snapshot", "takenAt": "2026-11-29T10:00:00Z", "kubeVersion": "v1.37.0", "apiVersions": ["v1", "apps/v1"],
	"problems": [{"signerName": "example.com/broken", "message": "pods in namespace pcs: forbidden"}]}`

func TestASnapshotSaysHowItWasTaken(t *testing.T) {
	s, err := Read(write(t, map[string]string{"a.json": anAbout, "b.json": aPod, "c.json": anAbout}))
	if err != nil {
		t.Fatal(err)
	}
	if s.About == nil || s.About.KubeVersion != "v1.37.0" || len(s.About.APIVersions) != 2 {
		t.Errorf("got %+v", s.About)
	}
	o, err := s.Objects(t.Context(), customSigner("example.com/workload"))
	if err != nil {
		t.Fatal(err)
	}
	if at := o.At.UTC().Format(time.RFC3339); at != "2026-11-29T10:00:00Z" {
		t.Errorf("read at %s", at)
	}
	if o.Resources == nil || len(o.Resources) != 0 {
		t.Errorf("there are no resources, and that was read: got %v", o.Resources)
	}
	if o, err := s.Objects(t.Context(), customSigner("example.com/broken")); err == nil || err.Error() != "pods in namespace pcs: forbidden" || o != nil {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestFilesOfKubectlDoNotShowThatThereAreNoResources(t *testing.T) {
	s, err := Read(write(t, map[string]string{"a.json": aPod}))
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Objects(t.Context(), customSigner("example.com/workload"))
	if err != nil || o.Resources != nil || s.About != nil {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestNothingReadIsAProblemOfTheEvidence(t *testing.T) {
	e := Evaluate(&config.Signer{SignerName: "example.com/workload", Namespace: "pcs", Evidence: config.Report}, nil)
	if !strings.Contains(e.Problem, "nothing of namespace pcs was read: give --live") || e.Kind != config.Report {
		t.Errorf("got %+v", e)
	}
	if v := e.Decide(asking("web"), false); v.Decision != policy.Unknown {
		t.Errorf("got %+v", v)
	}
}

func TestObjectsOfOtherNamespacesDoNotCount(t *testing.T) {
	object := func(name, namespace string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": "pcs"}}
	}
	signer := &config.Signer{SignerName: "example.com/workload", Namespace: "pcs", Evidence: config.Report, PodSelector: "app=pcs",
		Policy: config.Policy{ConfigMap: config.ConfigMap{Name: "policy"}, Key: "policy.yaml", Format: policy.FormatGrants}}
	o := &Objects{
		Pods:       []corev1.Pod{{ObjectMeta: object("a", "pcs")}, {ObjectMeta: object("b", "other")}},
		ConfigMaps: []corev1.ConfigMap{{ObjectMeta: object("policy", "other"), Data: map[string]string{"policy.yaml": newText}}},
	}
	e := Evaluate(signer, o)
	if len(e.Replicas) != 1 || e.Replicas[0].Pod != "a" || e.Replicas[0].Policy != nil || e.Live != nil || e.Problem != "" {
		t.Errorf("got %+v", e)
	}
}
