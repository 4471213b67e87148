package config

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// otherEvidence has the kinds of evidence that good does not have.
const otherEvidence = `apiVersion: grantfirst.dev/v1alpha1
kind: Config
signers:
  - signerName: policy.example.com/workload
    namespace: gate
    policy:
      resource:
        apiVersion: policy.example.com/v1
        kind: SignerPolicy
        resource: signerpolicies
        namespace: "*"
        selector: tier=prod
      format: cel
      granted: demand.serviceAccount in object.spec.serviceAccounts
      loaded: object.status.byPod.exists(p, p.id == pod.metadata.name && p.observedGeneration == object.metadata.generation)
    podSelector: app=gate
    evidence: status
  - signerName: example.org/*
    namespace: approver
    policy:
      configMap: {name: approver-policy}
      key: policy.yaml
      format: grants
    podSelector: app=approver
    evidence: settle
    settle: {seconds: 180, restarts: true}
`

func TestParseReadsCustomResourcesAndSettling(t *testing.T) {
	c, err := Parse([]byte(otherEvidence))
	if err != nil {
		t.Fatal(err)
	}
	want := []Signer{{
		SignerName: "policy.example.com/workload",
		Namespace:  "gate",
		Policy: Policy{
			Resource: &Resource{APIVersion: "policy.example.com/v1", Kind: "SignerPolicy", Resource: "signerpolicies", Namespace: "*", Selector: "tier=prod"},
			Format:   "cel",
			Granted:  "demand.serviceAccount in object.spec.serviceAccounts",
			Loaded:   "object.status.byPod.exists(p, p.id == pod.metadata.name && p.observedGeneration == object.metadata.generation)",
		},
		PodSelector: "app=gate",
		Evidence:    Status,
	}, {
		SignerName:  "example.org/*",
		Namespace:   "approver",
		Policy:      Policy{ConfigMap: ConfigMap{Name: "approver-policy"}, Key: "policy.yaml", Format: "grants"},
		PodSelector: "app=approver",
		Evidence:    Settle,
		Settle:      &Settling{Seconds: 180, Restarts: true},
	}}
	if !reflect.DeepEqual(c.Signers, want) {
		t.Errorf("got  %+v\nwant %+v", c.Signers, want)
	}
	if got := c.Signers[1].Settle.For(); got != 3*time.Minute {
		t.Errorf("settles for %s", got)
	}
}

func TestParseSaysWhatIsWrongWithCustomResourcesAndSettling(t *testing.T) {
	for name, c := range map[string]struct {
		old, replacement string
		// want has a part of each problem, in order.
		want []string
	}{
		"a resource without any field names what is missing": {"        apiVersion: policy.example.com/v1\n        kind: SignerPolicy\n        resource: signerpolicies\n", "", []string{
			"signers[0].policy.resource.apiVersion: missing: write group/version as in policy.example.com/v1 (line 7)",
			"signers[0].policy.resource.kind: missing: write it as in a manifest, such as SignerPolicy (line 7)",
			"signers[0].policy.resource.resource: missing: write the plural of the kind as kubectl api-resources prints it, such as signerpolicies (line 7)"}},
		"the core group has no policy objects but ConfigMaps": {"policy.example.com/v1", "v1", []string{
			`signers[0].policy.resource.apiVersion: "v1" is not that of a custom resource: write group/version as in policy.example.com/v1 (line 8)`}},
		"a kind of Kubernetes itself is no policy object": {"policy.example.com/v1", "apps/v1", []string{
			`signers[0].policy.resource.apiVersion: "apps/v1" is not that of a custom resource`}},
		"a kind of a group of Kubernetes itself is no policy object": {"policy.example.com/v1", "networking.k8s.io/v1", []string{
			`signers[0].policy.resource.apiVersion: "networking.k8s.io/v1" is not that of a custom resource`}},
		"a group without a version is refused": {"policy.example.com/v1", "policy.example.com", []string{
			`signers[0].policy.resource.apiVersion: "policy.example.com" is not that of a custom resource`}},
		"a path in place of a version is refused": {"policy.example.com/v1", "policy.example.com/v1/x", []string{
			`signers[0].policy.resource.apiVersion: "policy.example.com/v1/x" is not that of a custom resource`}},
		"a kind is a word": {"kind: SignerPolicy", "kind: Signer Policy", []string{
			`signers[0].policy.resource.kind: "Signer Policy" is no kind`}},
		"the plural is no path": {"resource: signerpolicies", "resource: ../secrets", []string{
			`signers[0].policy.resource.resource: "../secrets" is no resource: write the plural of the kind`}},
		"the plural is in lower case": {"resource: signerpolicies", "resource: SignerPolicies", []string{
			`signers[0].policy.resource.resource: "SignerPolicies" is no resource`}},
		"a pattern for namespaces is refused": {`namespace: "*"`, `namespace: "team-*"`, []string{
			`signers[0].policy.resource.namespace: "team-*" is no namespace: name one, write "*" for all, or leave it out for a kind that has none (line 11)`}},
		"a broken selector is refused": {"selector: tier=prod", `selector: "!"`, []string{
			`signers[0].policy.resource.selector: "!" is no label selector`}},
		"other formats than cel are refused": {"format: cel", "format: grants", []string{
			"signers[0].policy.format: custom resources are read with CEL only: set format: cel (line 13)"}},
		"granted is required": {"      granted: demand.serviceAccount in object.spec.serviceAccounts\n", "", []string{
			"signers[0].policy.granted: missing: give a CEL expression over object and demand"}},
		"granted is about object and not about policy": {"object.spec.serviceAccounts", "policy.spec.serviceAccounts", []string{
			"signers[0].policy.granted: granted: ERROR: <input>:1:26: undeclared reference to 'policy'"}},
		"granted knows no pod": {"object.spec.serviceAccounts", "pod.metadata.labels", []string{
			"signers[0].policy.granted: granted: ERROR"}},
		"granted must be able to be true": {"demand.serviceAccount in object.spec.serviceAccounts", "demand.serviceAccount", []string{
			`signers[0].policy.granted: granted: the expression "demand.serviceAccount" gives string: write one that gives true or false (line 14)`}},
		"loaded is required": {"      loaded: object.status.byPod.exists(p, p.id == pod.metadata.name && p.observedGeneration == object.metadata.generation)\n", "", []string{
			"signers[0].policy.loaded: missing: give a CEL expression over object and pod"}},
		"loaded knows no demand": {"p.id == pod.metadata.name", "p.id == demand.namespace", []string{
			"signers[0].policy.loaded: loaded: ERROR"}},
		"a misspelt field of the pod is found": {"pod.metadata.name", "pod.metadata.nmae", []string{
			"signers[0].policy.loaded: loaded: ERROR"}},
		"loaded must be able to be true": {"object.status.byPod.exists(p, p.id == pod.metadata.name && p.observedGeneration == object.metadata.generation)", "pod.metadata.name", []string{
			`signers[0].policy.loaded: loaded: the expression "pod.metadata.name" gives string`}},
		"a pod selector is required for custom resources, too": {"    podSelector: app=gate\n", "", []string{
			"signers[0].podSelector: missing: give the labels of the signer's pods"}},
		"custom resources have no key": {"      format: cel\n", "      format: cel\n      key: policy.yaml\n", []string{
			"signers[0].policy.key: custom resources have none: remove it (line 14)"}},
		"a ConfigMap beside a resource is refused": {"      format: cel\n", "      format: cel\n      configMap: {name: a}\n", []string{
			"signers[0].policy.configMap: the policy is in custom resources (resource, evidence: status): give one of the two (line 14)"}},
		"custom resources need evidence status": {"evidence: status", "evidence: report", []string{
			"signers[0].evidence: report needs ConfigMaps, and policy.resource names custom resources: use status (line 17)"}},
		"loaded is refused for a ConfigMap": {"      format: grants\n", "      format: grants\n      loaded: 'true'\n", []string{
			"signers[1].policy.loaded: only custom resources have it: remove it, or give policy.resource and evidence: status (line 24)"}},
		"settle is refused for other evidence": {"evidence: settle", "evidence: report", []string{
			"signers[1].settle: only evidence settle reads it: remove it, or set evidence: settle (line 26)"}},
		"seconds are required": {"{seconds: 180, restarts: true}", "{restarts: true}", []string{
			"signers[1].settle.seconds: say for how many seconds a policy object must not have changed"}},
		"no seconds at all would assume everything": {"seconds: 180", "seconds: 0", []string{
			"signers[1].settle.seconds: say for how many seconds a policy object must not have changed"}},
		"negative seconds are refused": {"seconds: 180", "seconds: -1", []string{
			"signers[1].settle.seconds: say for how many seconds a policy object must not have changed"}},
		"seconds are a whole number": {"seconds: 180", "seconds: 1.5", []string{
			`signers[1].settle.seconds: want a whole number, not "1.5" (line 26)`}},
		"seconds have no unit": {"seconds: 180", "seconds: 180s", []string{
			`signers[1].settle.seconds: want a whole number, not "180s" (line 26)`}},
		"seconds that no clock counts are refused": {"seconds: 180", "seconds: 99999999999999999999", []string{
			`signers[1].settle.seconds: want a whole number, not "99999999999999999999" (line 26)`}},
		"more than a day is refused": {"seconds: 180", "seconds: 86401", []string{
			"signers[1].settle.seconds: 86401 is more than a day: nothing would ever be released (line 26)"}},
		"restarts is true or false": {"restarts: true", "restarts: always", []string{
			`signers[1].settle.restarts: want true or false, not "always" (line 26)`}},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Count(otherEvidence, c.old) != 1 {
				t.Fatalf("%q is %d times in the example", c.old, strings.Count(otherEvidence, c.old))
			}
			_, err := Parse([]byte(strings.Replace(otherEvidence, c.old, c.replacement, 1)))
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want Problems", err)
			}
			same := len(problems) == len(c.want)
			for i := 0; same && i < len(problems); i++ {
				same = strings.HasPrefix(problems[i].String(), c.want[i])
			}
			if !same {
				t.Errorf("got:\n%s\nwant:\n%s", err, strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestTheSignersOfTheReferenceAreRead(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	evidence := map[string]bool{}
	for _, block := range strings.Split(string(page), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		switch {
		case strings.HasPrefix(text, "signers:"):
		case strings.HasPrefix(text, "    policy:\n"):
			text = "signers:\n  - signerName: example.com/x\n    namespace: x\n" + text + "    podSelector: a=b\n    evidence: status\n"
		default:
			continue
		}
		c, err := Parse([]byte("apiVersion: grantfirst.dev/v1alpha1\nkind: Config\n" + text))
		if err != nil {
			t.Errorf("%s\n%s", err, text)
			continue
		}
		evidence[c.Signers[0].Evidence] = true
	}
	if !evidence[Status] || !evidence[Settle] {
		t.Errorf("found %v", evidence)
	}
}

func TestAResourceMatchesWhatTheAdminNamed(t *testing.T) {
	prod := map[string]string{"tier": "prod"}
	for name, c := range map[string]struct {
		resource               Resource
		group, kind, namespace string
		labels                 map[string]string
		want                   bool
	}{
		"a kind without namespaces matches":                           {Resource{}, "policy.example.com", "SignerPolicy", "", nil, true},
		"a kind without namespaces matches whatever namespace it has": {Resource{}, "policy.example.com", "SignerPolicy", "shop", nil, true},
		"another group does not match":                                {Resource{}, "policy.example.org", "SignerPolicy", "", nil, false},
		"another kind does not match":                                 {Resource{}, "policy.example.com", "SignerPolicyBinding", "", nil, false},
		"the namespace matches":                                       {Resource{Namespace: "gate"}, "policy.example.com", "SignerPolicy", "gate", nil, true},
		"another namespace does not match":                            {Resource{Namespace: "gate"}, "policy.example.com", "SignerPolicy", "shop", nil, false},
		"all namespaces match":                                        {Resource{Namespace: "*"}, "policy.example.com", "SignerPolicy", "shop", nil, true},
		"the labels match":                                            {Resource{Selector: "tier=prod"}, "policy.example.com", "SignerPolicy", "", prod, true},
		"other labels do not match":                                   {Resource{Selector: "tier=dev"}, "policy.example.com", "SignerPolicy", "", prod, false},
		"no labels do not match":                                      {Resource{Selector: "tier=prod"}, "policy.example.com", "SignerPolicy", "", nil, false},
		"a selector that cannot be read matches nothing":              {Resource{Selector: "!"}, "policy.example.com", "SignerPolicy", "", prod, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.resource.APIVersion, c.resource.Kind = "policy.example.com/v1", "SignerPolicy"
			if got := c.resource.Matches(c.group, c.kind, c.namespace, c.labels); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
