package loaded

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/hasher"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"
)

// texts are contents that JSON, YAML and base64 write in different ways.
var texts = map[string]string{
	"empty":            "",
	"a line":           "[]",
	"lines":            newText,
	"no last line end": strings.TrimSuffix(newText, "\n"),
	"HTML":             "<a href=\"x\">&amp;</a>\u2028",
	"CRLF":             "a\r\nb\r\n",
	"tabs":             "\ta:\t b \n",
	"looks like null":  "null",
	"not Latin":        "прошу",
}

// binaries have lengths around kustomize's lines of base64: 51 bytes are 68 characters, 52 are 72, 105 are 140.
var binaries = []int{1, 51, 52, 53, 104, 105, 106, 1000}

func binary(n int) string {
	return "\xff" + strings.Repeat("\x00\x80", n)[:n-1]
}

func TestTheHashIsThatOfAKustomizeBuild(t *testing.T) {
	build := func(t *testing.T, kustomization string, files map[string]string) *corev1.ConfigMap {
		t.Helper()
		fs := filesys.MakeFsInMemory()
		for name, text := range files {
			if err := fs.WriteFile("/"+name, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := fs.WriteFile("/kustomization.yaml", []byte(kustomization)); err != nil {
			t.Fatal(err)
		}
		m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, "/")
		if err != nil {
			t.Fatal(err)
		}
		text, err := m.AsYaml()
		if err != nil {
			t.Fatal(err)
		}
		cm := &corev1.ConfigMap{}
		if err := yaml.UnmarshalStrict(text, cm); err != nil {
			t.Fatal(err)
		}
		return cm
	}
	check := func(t *testing.T, cm *corev1.ConfigMap) {
		t.Helper()
		if !isContentHashed(cm) {
			t.Errorf("the hash of %s is not recognised", cm.Name)
		}
		cm.Data = map[string]string{"policy.yaml": "other"}
		if isContentHashed(cm) {
			t.Errorf("%s has the hash of another content too", cm.Name)
		}
	}
	const generator = "configMapGenerator: [{name: policy, files: [policy.yaml]}]\n"
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			check(t, build(t, generator, map[string]string{"policy.yaml": text}))
		})
	}
	for _, n := range binaries {
		t.Run("binary", func(t *testing.T) {
			cm := build(t, generator, map[string]string{"policy.yaml": binary(n)})
			if len(cm.BinaryData) != 1 {
				t.Fatal("not binary")
			}
			check(t, cm)
		})
	}
	t.Run("text and binary", func(t *testing.T) {
		check(t, build(t, "configMapGenerator: [{name: policy, files: [policy.yaml, b]}]\n", map[string]string{"policy.yaml": newText, "b": binary(77)}))
	})
	t.Run("with a prefix, a suffix, labels, a namespace and immutable", func(t *testing.T) {
		cm := build(t, "namePrefix: a-\nnameSuffix: -z\nnamespace: pcs\nlabels: [{pairs: {a: b}}]\ngeneratorOptions: {immutable: true}\n"+generator, map[string]string{"policy.yaml": newText})
		if !strings.HasPrefix(cm.Name, "a-policy-z-") || !isTrue(cm.Immutable) {
			t.Fatalf("not what it should be: %+v", cm)
		}
		check(t, cm)
	})
}

func TestTheHashIsThatOfKustomizesHasher(t *testing.T) {
	cm := corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "policy"}, Data: texts}
	text, err := yaml.Marshal(cm)
	if err != nil {
		t.Fatal(err)
	}
	node, err := kyaml.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := (&hasher.Hasher{}).Hash(node)
	if err != nil {
		t.Fatal(err)
	}
	cm.Name = "policy-" + sum
	if !isContentHashed(&cm) {
		t.Errorf("%s is not recognised", cm.Name)
	}
}

// TestTheHashIsThatOfKubectl has names that kubectl create configmap --append-hash gives: computed by the rule of
// kubectl/pkg/util/hash (Kubernetes 1.37), whose own test vectors are the first three.
func TestTheHashIsThatOfKubectl(t *testing.T) {
	yes := true
	for name, c := range map[string]struct {
		cm     corev1.ConfigMap
		suffix string
	}{
		"no data":   {corev1.ConfigMap{Data: map[string]string{}}, "42745tchd9"},
		"one key":   {corev1.ConfigMap{Data: map[string]string{"one": ""}}, "9g67k2htb6"},
		"three":     {corev1.ConfigMap{Data: map[string]string{"two": "2", "one": "", "three": "3"}}, "f5h7t85m9b"},
		"no field":  {corev1.ConfigMap{}, ""},
		"immutable": {corev1.ConfigMap{Data: map[string]string{"two": "2", "one": "", "three": "3"}, Immutable: &yes}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			content := map[string]any{"kind": "ConfigMap", "name": "policy", "data": c.cm.Data}
			if c.suffix != "" {
				content["name"] = ""
				if got := contentHash(content); got != c.suffix {
					t.Errorf("got %s, want %s", got, c.suffix)
				}
				content["name"] = "policy"
			}
			if c.cm.Immutable != nil {
				content["immutable"] = *c.cm.Immutable
			}
			c.cm.Name = "policy-" + contentHash(content)
			if !isContentHashed(&c.cm) {
				t.Errorf("%s is not recognised", c.cm.Name)
			}
			c.cm.Name = "other-" + contentHash(content)
			if isContentHashed(&c.cm) {
				t.Error("the name does not count")
			}
		})
	}
}

func TestANameWithoutAHashIsNone(t *testing.T) {
	for _, name := range []string{"", "-", "policy", "t2gfffmf2g", "-t2gfffmf2g", "policy.t2gfffmf2g", "policy-t2gfffmf2gx", "policy-T2GFFFMF2G"} {
		if isContentHashed(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"policy.yaml": oldText}}) {
			t.Errorf("%q is taken for one", name)
		}
	}
}
