package config

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

// good is the example of docs/configuration.md with everything set.
const good = `apiVersion: grantfirst.dev/v1alpha1
kind: Config
mode: observe
signers:
  - signerName: example.com/workload
    namespace: pod-cert-signer
    policy:
      configMap: {namePrefix: pod-cert-signer-}
      key: policy.json
      format: pod-cert-signer
    podSelector: app.kubernetes.io/name=pod-cert-signer
    evidence: podVolumes
  - signerName: example.org/*
    namespace: other-signer
    policy:
      configMap: {selector: "role=policy,tier in (a, b)"}
      key: grants.yaml
      format: cel
      granted: policy.grants.exists(g, g == demand.serviceAccount)
    podSelector: app=other
    evidence: report
unknownSigner: allow
hold:
  marker: Deployment
  alwaysEmit:
    - {group: "", kind: ConfigMap, namespace: shop, labelSelector: "early=true"}
overrides:
  - projects: [sandbox-*]
    applications: ["team-?_*"]
    mode: enforce
    marker: Hold
allowEmpty: true
argocdNamespace: gitops
readTimeout: 20s
clusters:
- {name: eu, projects: [p], applications: [a], destinations: ["https://eu"], kubeconfig: /eu.yaml, context: eu}
- {name: here, applications: [b], inCluster: true}
`

func TestParseReadsEveryField(t *testing.T) {
	got, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	core := ""
	want := &Config{
		APIVersion: "grantfirst.dev/v1alpha1",
		Kind:       "Config",
		Mode:       Observe,
		Signers: []Signer{{
			SignerName:  "example.com/workload",
			Namespace:   "pod-cert-signer",
			Policy:      Policy{ConfigMap: ConfigMap{NamePrefix: "pod-cert-signer-"}, Key: "policy.json", Format: "pod-cert-signer"},
			PodSelector: "app.kubernetes.io/name=pod-cert-signer",
			Evidence:    PodVolumes,
		}, {
			SignerName: "example.org/*",
			Namespace:  "other-signer",
			Policy: Policy{ConfigMap: ConfigMap{Selector: "role=policy,tier in (a, b)"}, Key: "grants.yaml", Format: "cel",
				Granted: "policy.grants.exists(g, g == demand.serviceAccount)"},
			PodSelector: "app=other",
			Evidence:    Report,
		}},
		UnknownSigner: UnknownAllow,
		Hold:          Hold{Marker: MarkerDeployment, AlwaysEmit: []Select{{Group: &core, Kind: "ConfigMap", Namespace: "shop", LabelSelector: "early=true"}}},
		Overrides:     []Override{{Projects: []string{"sandbox-*"}, Applications: []string{"team-?_*"}, Mode: Enforce, Marker: MarkerHold}},
		AllowEmpty:    true,
		Clusters: []Cluster{
			{Name: "eu", Projects: []string{"p"}, Applications: []string{"a"}, Destinations: []string{"https://eu"}, Kubeconfig: "/eu.yaml", Context: "eu"},
			{Name: "here", Applications: []string{"b"}, InCluster: true},
		},
		ArgoCDNamespace: "gitops",
		ReadTimeout:     "20s",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseReadsJSONTheSame(t *testing.T) {
	got, err := Parse([]byte("{\n\t\"apiVersion\": \"grantfirst.dev/v1alpha1\",\n\t\"kind\": \"Config\",\n\t\"hold\": {\"marker\": \"Deployment\"}\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Hold.Marker != MarkerDeployment {
		t.Errorf("marker: got %q", got.Hold.Marker)
	}
}

func TestWhatIsLeftOutHasTheDefaults(t *testing.T) {
	for name, text := range map[string]string{
		"nothing but apiVersion and kind": "apiVersion: grantfirst.dev/v1alpha1\nkind: Config\n",
		"fields without a value":          "apiVersion: grantfirst.dev/v1alpha1\nkind: Config\nmode:\nsigners:\nhold:\noverrides: null\nallowEmpty: ~\n",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if want := Default(); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
	d := Default()
	if d.Mode != Enforce || d.UnknownSigner != UnknownHold || d.Hold.Marker != MarkerHold || d.AllowEmpty || d.Signers != nil {
		t.Errorf("the defaults are not the strict ones: %+v", d)
	}
}

// broken is good with one text replaced.
func broken(t *testing.T, old, replacement string) string {
	t.Helper()
	if strings.Count(good, old) != 1 {
		t.Fatalf("%q is %d times in the example", old, strings.Count(good, old))
	}
	return strings.Replace(good, old, replacement, 1)
}

func TestParseSaysWhatIsWrongWhereAndWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		old, replacement string
		// want are all problems, in order.
		want []string
	}{
		"another apiVersion is refused": {"grantfirst.dev/v1alpha1", "grantfirst.dev/v1", []string{
			`apiVersion: "grantfirst.dev/v1" is not known here: set grantfirst.dev/v1alpha1 (line 1)`}},
		"a missing kind is named": {"kind: Config\n", "", []string{`kind: missing: set Config (line 1)`}},
		"an unknown mode names those that exist": {"mode: observe", "mode: Observe", []string{
			`mode: "Observe" is not known here: use enforce or observe (line 3)`}},
		"an unknown top-level field names those that exist": {"allowEmpty: true", "allowempty: true", []string{
			"allowempty: unknown field: use one of apiVersion, kind, mode, signers, unknownSigner, hold, overrides, clusters, argocdNamespace, readTimeout, allowEmpty (line 32)"}},
		"an unknown field deep inside has its path": {"key: policy.json", "kee: policy.json", []string{
			"signers[0].policy.key: missing: name the key of the ConfigMap that has the policy text, such as policy.json (line 7)",
			"signers[0].policy.kee: unknown field: use one of configMap, key, resource, format, granted, loaded (line 9)"}},
		"field names are case-sensitive": {"{namePrefix: pod-cert-signer-}", "{nameprefix: pod-cert-signer-}", []string{
			"signers[0].policy.configMap.nameprefix: unknown field: use one of name, namePrefix, selector (line 8)",
			"signers[0].policy.configMap: want exactly one of name, namePrefix and selector, not 0 (line 8)"}},
		"a repeated field is refused": {"mode: observe", "mode: observe\nmode: enforce", []string{"mode: is there twice: keep one (line 4)"}},
		"a field repeated through other quoting is refused": {"mode: observe", "mode: observe\n\"mo\\x64e\": enforce", []string{
			"mode: is there twice: keep one (line 4)"}},
		"a repeated field deep inside has its path": {"evidence: podVolumes", "evidence: podVolumes\n    evidence: report", []string{
			"signers[0].evidence: is there twice: keep one (line 13)"}},
		"a merge key is an unknown field": {"allowEmpty: true", "<<: {allowEmpty: true}", []string{
			"<<: unknown field: use one of apiVersion, kind, mode, signers, unknownSigner, hold, overrides, clusters, argocdNamespace, readTimeout, allowEmpty (line 32)"}},
		"a number where a string is wanted says to quote it": {"key: policy.json", "key: 1.5", []string{
			"signers[0].policy.key: want a string: put 1.5 in quotes (line 9)"}},
		"a string where a boolean is wanted is refused": {"allowEmpty: true", "allowEmpty: 'yes'", []string{
			`allowEmpty: want true or false, not "yes" (line 32)`}},
		"YAML 1.1's yes is no boolean": {"allowEmpty: true", "allowEmpty: yes", []string{
			`allowEmpty: want true or false, not "yes" (line 32)`}},
		"a mapping where a list is wanted is refused": {"projects: [sandbox-*]", "projects: {a: b}", []string{
			"overrides[0].projects: want a list, not a mapping (line 28)"}},
		"a list where a mapping is wanted is refused": {"configMap: {namePrefix: pod-cert-signer-}", "configMap: [pod-cert-signer-]", []string{
			"signers[0].policy.configMap: want a mapping, not a list (line 8)"}},
		"a list where a string is wanted is refused": {"mode: observe", "mode: [observe]", []string{
			"mode: want a string, not a list (line 3)"}},
		"a list as a key is refused": {"mode: observe", "? [mode]\n: observe", []string{
			"a list as a key: use one of apiVersion, kind, mode, signers, unknownSigner, hold, overrides, clusters, argocdNamespace, readTimeout, allowEmpty"}},

		"a signer name needs a domain": {"example.com/workload", "workload", []string{
			`signers[0].signerName: "workload" is no signer name: use domain/name as in example.com/workload, or a prefix of that with * at the end (line 5)`}},
		"a signer name needs a domain with a dot": {"example.com/workload", "example/workload", []string{
			`signers[0].signerName: "example/workload" is no signer name: use domain/name as in example.com/workload, or a prefix of that with * at the end (line 5)`}},
		"a signer name has one slash": {"example.com/workload", "example.com/a/b", []string{
			`signers[0].signerName: "example.com/a/b" is no signer name: use domain/name as in example.com/workload, or a prefix of that with * at the end (line 5)`}},
		"a signer name has no capitals": {"example.com/workload", "example.com/Workload", []string{
			`signers[0].signerName: "example.com/Workload" is no signer name: use domain/name as in example.com/workload, or a prefix of that with * at the end (line 5)`}},
		"a star is allowed at the end only": {"example.com/workload", "'*.com/workload'", []string{
			`signers[0].signerName: "*.com/workload" is no signer name: use domain/name as in example.com/workload, or a prefix of that with * at the end (line 5)`}},
		"a star alone is refused": {"example.com/workload", "'*'", []string{
			"signers[0].signerName: * alone would be every signer there is: name a domain, and say with unknownSigner what happens to the rest (line 5)"}},
		"the same signer name twice is refused": {"example.com/workload", "example.org/*", []string{
			"signers[1].signerName: example.org/* is already signers[0]: keep one (line 13)"}},
		"a signer without a name is refused": {"signerName: example.com/workload\n    ", "", []string{
			"signers[0].signerName: missing: use domain/name as in example.com/workload, or a prefix of that with * at the end (line 5)"}},
		"a namespace is required": {"    namespace: pod-cert-signer\n", "", []string{
			"signers[0].namespace: missing: name the namespace that the signer runs in (line 5)"}},
		"a namespace is a DNS label": {"namespace: pod-cert-signer\n", "namespace: pod.cert\n", []string{
			`signers[0].namespace: "pod.cert" is no namespace: use lower-case letters, digits and -, 63 at most (line 6)`}},
		"two ways to find the policy are refused": {"{namePrefix: pod-cert-signer-}", "{namePrefix: pod-cert-signer-, name: policy}", []string{
			"signers[0].policy.configMap: want exactly one of name, namePrefix and selector, not 2 (line 8)"}},
		"a ConfigMap name is a DNS name": {"{namePrefix: pod-cert-signer-}", "{name: Policy}", []string{
			`signers[0].policy.configMap.name: "Policy" is no name of a ConfigMap: use lower-case letters, digits, - and . (line 8)`}},
		"a ConfigMap prefix begins a DNS name": {"{namePrefix: pod-cert-signer-}", "{namePrefix: policy_}", []string{
			`signers[0].policy.configMap.namePrefix: "policy_" begins no name of a ConfigMap: use lower-case letters, digits, - and . (line 8)`}},
		"a broken ConfigMap selector is refused": {`"role=policy,tier in (a, b)"`, `"role in (a"`, []string{
			`signers[1].policy.configMap.selector: "role in (a" is no label selector: unable to parse requirement: found '', expected: ',' or ')' (line 16)`}},
		"a ConfigMap key is one": {"key: policy.json", "key: a/b", []string{
			`signers[0].policy.key: "a/b" is no key of a ConfigMap: use letters, digits, -, _ and . (line 9)`}},
		"an unknown format names those that exist": {"format: pod-cert-signer", "format: opa", []string{
			`signers[0].policy.format: "opa" is not known here: use pod-cert-signer, grants or cel (line 10)`}},
		"a format is required": {"      format: pod-cert-signer\n", "", []string{
			"signers[0].policy.format: missing: use pod-cert-signer, grants or cel (line 7)"}},
		"granted without cel is refused": {"format: cel", "format: grants", []string{
			"signers[1].policy.granted: only format cel reads it: remove it, or set format: cel (line 19)"}},
		"cel without granted is refused": {"      granted: policy.grants.exists(g, g == demand.serviceAccount)\n", "", []string{
			"signers[1].policy.granted: missing: format cel needs a CEL expression over policy and demand that is true for what is granted (line 15)"}},
		"a broken CEL expression is refused": {"g == demand.serviceAccount", "g == demand.servicAccount", []string{
			"signers[1].policy.granted: granted: ERROR"}},
		"a pod selector is required": {"    podSelector: app=other\n", "", []string{
			"signers[1].podSelector: missing: give the labels of the signer's pods, such as app.kubernetes.io/name=pod-cert-signer (line 13)"}},
		"a broken pod selector is refused": {"podSelector: app=other", "podSelector: ','", []string{
			`signers[1].podSelector: "," is no label selector: found ',', expected: !, identifier, or 'end of string' (line 20)`}},
		"evidence status with a ConfigMap asks for the resource": {"evidence: report", "evidence: status", []string{
			"signers[1].policy.resource: missing: evidence status needs the apiVersion, kind and resource of custom resources, in place of configMap and key (line 15)"}},
		"evidence settle asks for how long": {"evidence: report", "evidence: settle", []string{
			"signers[1].settle: missing: say with seconds for how long a policy object must not have changed to be taken as loaded (line 13)"}},
		"unknown evidence names what exists": {"evidence: report", "evidence: hope", []string{
			`signers[1].evidence: "hope" is not known here: use report, podVolumes, status or settle (line 21)`}},
		"evidence is required": {"    evidence: report\n", "", []string{
			"signers[1].evidence: missing: use report, podVolumes, status or settle (line 13)"}},

		"an unknown word for unknownSigner names those that exist": {"unknownSigner: allow", "unknownSigner: ignore", []string{
			`unknownSigner: "ignore" is not known here: use hold, allow or error (line 22)`}},
		"an unknown marker names those that exist": {"marker: Deployment", "marker: Job", []string{
			`hold.marker: "Job" is not known here: use Hold or Deployment (line 24)`}},
		"a selection of everything is refused": {`{group: "", kind: ConfigMap, namespace: shop, labelSelector: "early=true"}`, "{}", []string{
			"hold.alwaysEmit[0]: selects everything, so that nothing would ever be held: give group, kind, namespace or labelSelector (line 26)"}},
		"a group with a version is refused": {`group: ""`, "group: apps/v1", []string{
			`hold.alwaysEmit[0].group: "apps/v1" is no API group: give it without a version, as in networking.k8s.io, or "" for the core group (line 26)`}},
		"a kind is a word": {"kind: ConfigMap", "kind: Config-Map*", []string{
			`hold.alwaysEmit[0].kind: "Config-Map*" is no kind: write it as in a manifest, such as NetworkPolicy (line 26)`}},
		"a pattern where a namespace is wanted is refused": {"namespace: shop", "namespace: shop-*", []string{
			`hold.alwaysEmit[0].namespace: "shop-*" is no namespace: use lower-case letters, digits and -, 63 at most (line 26)`}},
		"a broken label selector is refused": {`labelSelector: "early=true"`, `labelSelector: "!"`, []string{
			`hold.alwaysEmit[0].labelSelector: "!" is no label selector: unable to parse requirement: found '', expected: identifier (line 26)`}},
		"a label selector of everything is refused": {`labelSelector: "early=true"`, `labelSelector: " "`, []string{
			`hold.alwaysEmit[0].labelSelector: " " selects everything: name a label (line 26)`}},
		"a pod selector of everything is refused": {"podSelector: app=other", `podSelector: " "`, []string{
			"signers[1].podSelector: missing: give the labels of the signer's pods, such as app.kubernetes.io/name=pod-cert-signer (line 20)"}},
		"an override that matches nothing is refused": {"projects: [sandbox-*]\n    applications: [\"team-?_*\"]", "projects: []", []string{
			"overrides[0]: matches nothing: give projects or applications (line 28)"}},
		"an override that changes nothing is refused": {"    mode: enforce\n    marker: Hold\n", "", []string{
			"overrides[0]: changes nothing: give mode or marker (line 28)"}},
		"an override's mode is checked": {"mode: enforce", "mode: off", []string{
			`overrides[0].mode: "off" is not known here: use enforce or observe (line 30)`}},
		"an override's marker is checked": {"marker: Hold\n", "marker: hold\n", []string{
			`overrides[0].marker: "hold" is not known here: use Hold or Deployment (line 31)`}},
		"a broken pattern is refused": {"[sandbox-*]", "['[a-']", []string{
			`overrides[0].projects[0]: "[a-" is no pattern: use *, ? and [a-z], and a backslash before one that is meant as itself (line 28)`}},
		"an empty pattern is refused": {`["team-?_*"]`, `[""]`, []string{
			"overrides[0].applications[0]: an empty pattern: name one, or use * for all (line 29)"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse([]byte(broken(t, c.old, c.replacement)))
			if got != nil {
				t.Error("a configuration came back with the error")
			}
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want Problems", err)
			}
			var lines []string
			for _, p := range problems {
				lines = append(lines, p.String())
			}
			same := len(lines) == len(c.want)
			for i := 0; same && i < len(lines); i++ {
				same = lines[i] == c.want[i] || strings.HasPrefix(c.want[i], "signers[1].policy.granted: granted: ERROR") && strings.HasPrefix(lines[i], c.want[i])
			}
			if !same {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(c.want, "\n"))
			}
			if err.Error() != strings.Join(lines, "\n") {
				t.Errorf("the error is not its problems: %s", err)
			}
		})
	}
}

func TestParseReportsEveryProblemAtOnce(t *testing.T) {
	_, err := Parse([]byte(`apiVersion: v1
kind: Configuration
mode: on
signers:
  - signerName: workload
    namespace: 7
    policy: {}
    colour: red
  - evidence: settle
    policy: none
unknownSigner: drop
hold: {alwaysEmit: [{}]}
overrides: [{}]
`))
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatalf("got %v, want Problems", err)
	}
	var paths []string
	for _, p := range problems {
		paths = append(paths, p.Path)
	}
	want := "apiVersion kind mode signers[0].signerName signers[0].evidence signers[0].podSelector signers[0].namespace " +
		"signers[0].policy.configMap signers[0].policy.key signers[0].policy.format signers[0].colour " +
		"signers[1].signerName signers[1].namespace signers[1].settle signers[1].podSelector signers[1].policy unknownSigner hold.alwaysEmit[0] overrides[0] overrides[0]"
	if got := strings.Join(paths, " "); got != want {
		t.Errorf("got  %s\nwant %s\n%s", got, want, err)
	}
}

func TestParseRefusesWhatIsNoConfigurationAtAll(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"an empty file says that it is empty":        {"", "the configuration is empty: "},
		"a file of comments says that it is empty":   {"# nothing\n\n", "the configuration is empty: "},
		"a null document says that it is empty":      {"--- ~\n", "the configuration is empty: "},
		"a list is refused":                          {"- a\n", "want a mapping, not a list"},
		"a word is refused":                          {"config\n", `want a mapping, not "config"`},
		"a second document is refused":               {"kind: Config\n---\nkind: Config\n", "line 2: a second document: keep one"},
		"broken YAML is refused with its line":       {"kind: Config\n\tmode: x\n", "not YAML: line 2: "},
		"broken YAML after the document is refused":  {"kind: Config\n---\n[\n", "not YAML: "},
		"an undefined anchor is refused":             {"kind: *nothing\n", "not YAML: "},
		"an anchor that contains itself is no crash": {"signers: &s [*s]\n", "signers[0]: want a mapping, not a list"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want Problems", err)
			}
			if !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %s, want it to begin with %s", err, c.want)
			}
		})
	}
}

func TestAnchorsAreFollowed(t *testing.T) {
	c, err := Parse([]byte("apiVersion: grantfirst.dev/v1alpha1\nkind: Config\noverrides:\n- {projects: &p [a, b], mode: observe}\n- {applications: *p, marker: Deployment}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Overrides[1].Applications; len(got) != 2 || got[1] != "b" {
		t.Errorf("got %v", got)
	}
}

// FuzzParse: CEL makes coverage vary from run to run, so that minimizing takes for ever; -fuzzminimizetime 10x ends it.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(otherEvidence))
	f.Add([]byte(""))
	f.Add([]byte("signers: &s [*s]\n"))
	f.Add([]byte("a: &a [x]\n? *a\n: y\n"))
	f.Add([]byte(`{"apiVersion": "grantfirst.dev/v1alpha1", "kind": "Config"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v and %v", c, err)
		}
		var problems Problems
		if err != nil && (!errors.As(err, &problems) || len(problems) == 0 || err.Error() == "") {
			t.Fatalf("an error that says nothing: %#v", err)
		}
		if err == nil {
			c.Signer("example.com/workload")
			c.For("default", "web")
		}
	})
}

func TestTheExampleOfTheReferenceShowsTheDefaults(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	got, err := Parse([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Signers) != 1 || got.Signer("example.com/workload") == nil {
		t.Errorf("the signer: %+v", got.Signers)
	}
	got.Signers, got.Overrides, got.Hold.AlwaysEmit = nil, nil, nil
	if want := Default(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
