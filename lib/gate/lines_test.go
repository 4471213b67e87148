package gate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// inList makes one list of objects, in block style.
func inList(objects ...string) string {
	list := "apiVersion: v1\nkind: List\nitems:\n"
	for _, o := range objects {
		list += "- " + strings.ReplaceAll(strings.TrimSuffix(o, "\n"), "\n", "\n  ") + "\n"
	}
	return list
}

func asJSON(t *testing.T, text, indent string) string {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.MarshalIndent(v, "", indent)
	if err != nil {
		t.Fatal(err)
	}
	return string(out) + "\n"
}

// lineWith is the line, from 1, on which a text stands for the nth time.
func lineWith(t *testing.T, text, what string, nth int) int {
	t.Helper()
	for i, line := range strings.Split(text, "\n") {
		if strings.Contains(line, what) {
			if nth--; nth == 0 {
				return i + 1
			}
		}
	}
	t.Fatalf("no %q in\n%s", what, text)
	return 0
}

// Each object of a list is found where it stands itself, though all have a volume of the same name.
func TestAFindingIsAtTheLineOfItsOwnObject(t *testing.T) {
	a, b := deployment("a", "a", "example.com/workload", "ECDSAP256"), deployment("b", "b", "example.com/workload", "ECDSAP256")
	flow := func(name string) string {
		return fmt.Sprintf("{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s}, spec: {template: {spec: {serviceAccountName: %[1]s, volumes: [{name: tls, projected: {sources: [\n"+
			"    {podCertificate: {signerName: example.com/workload, keyType: ECDSAP256}}]}}]}}}}", name)
	}
	noName := strings.Replace(inList(a, b), "      - name: tls\n        projected:", "      - projected:", 1)
	for name, c := range map[string]struct {
		file  string
		files map[string]string
	}{
		"a list in block style":                   {"shop/l.yaml", map[string]string{"shop/l.yaml": inList(a, b)}},
		"after another document and a comment":    {"shop/l.yaml", map[string]string{"shop/l.yaml": "# why\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n# these\n\n" + inList(a, b)}},
		"a list in flow style":                    {"shop/l.yaml", map[string]string{"shop/l.yaml": "{apiVersion: v1, kind: List, items: [\n  " + flow("a") + ",\n  " + flow("b") + "]}\n"}},
		"a list of a kind":                        {"shop/l.yaml", map[string]string{"shop/l.yaml": strings.Replace(strings.Replace(inList(a, b), "kind: List", "kind: DeploymentList", 1), "v1", "apps/v1", 1)}},
		"JSON with spaces":                        {"shop/l.json", map[string]string{"shop/l.json": asJSON(t, inList(a, b), "  ")}},
		"JSON with tabs":                          {"shop/l.json", map[string]string{"shop/l.json": asJSON(t, inList(a, b), "\t")}},
		"Windows line ends":                       {"shop/l.yaml", map[string]string{"shop/l.yaml": strings.ReplaceAll(inList(a, b), "\n", "\r\n")}},
		"a volume whose name comes after":         {"shop/l.yaml", map[string]string{"shop/l.yaml": strings.Replace(inList(a, b), "      - name: tls\n        projected:", "      - name: other\n        emptyDir: {}\n      - name: tls\n        projected:", 1)}},
		"a list in an overlay":                    {"k/l.yaml", map[string]string{"apps/k.yaml": application("k", "k", "shop", ""), "k/kustomization.yaml": "resources: [l.yaml]\nnameSuffix: -x\n", "k/l.yaml": inList(a, b)}},
		"a list in an overlay, as JSON":           {"k/l.json", map[string]string{"apps/k.yaml": application("k", "k", "shop", ""), "k/kustomization.yaml": "resources: [l.json]\n", "k/l.json": asJSON(t, inList(a, b), "  ")}},
		"two volumes of which one has no name":    {"shop/l.yaml", map[string]string{"shop/l.yaml": noName}},
		"volumes that an alias repeats elsewhere": {"shop/l.yaml", map[string]string{"shop/l.yaml": strings.Replace(inList(a, b), "      volumes:\n", "      volumes: &v\n", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := shop(t)
			r.branch("change", func() { r.write(c.files) })
			text := c.files[c.file]
			var expected []string
			for i, object := range []string{"a", "b"} {
				line := lineWith(t, text, "podCertificate", i+1)
				if strings.Contains(c.files["k/kustomization.yaml"], "nameSuffix") {
					object += "-x"
				}
				app := "shop"
				if strings.HasPrefix(c.file, "k/") {
					app = "k"
				}
				expected = append(expected, fmt.Sprintf("missing example.com/workload shop/%s %s %s:%d [%s]", strings.TrimSuffix(object, "-x"), object, c.file, line, app))
			}
			want(t, check(t, newGate(t, r), "main", "change"), expected...)
		})
	}
}

func TestAVolumeThatIsAnAliasIsFoundWhereItIsWritten(t *testing.T) {
	r := shop(t)
	r.branch("change", func() {
		r.write(map[string]string{"shop/l.yaml": "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n  spec:\n    serviceAccountName: a\n    volumes: &v\n    - name: tls\n      projected: {sources: [{podCertificate: {signerName: example.com/workload, keyType: ECDSAP256}}]}\n" +
			"- apiVersion: v1\n  kind: Pod\n  metadata: {name: b}\n  spec: {serviceAccountName: b, volumes: *v}\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: c}\n  spec:\n    serviceAccountName: c\n    volumes:\n    - name: tls\n      projected: {sources: [{podCertificate: {signerName: example.com/workload, keyType: ECDSAP256}}]}\n"})
	})
	want(t, check(t, newGate(t, r), "main", "change"),
		"missing example.com/workload shop/a a shop/l.yaml:11 [shop]",
		"missing example.com/workload shop/b b shop/l.yaml:11 [shop]",
		"missing example.com/workload shop/c c shop/l.yaml:23 [shop]")
}
