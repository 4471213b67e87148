package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/demand"
)

func TestCELDecides(t *testing.T) {
	const listed = `policy.grants.exists(g, g.namespace == demand.namespace && demand.serviceAccount in g.serviceAccounts)`
	for name, c := range map[string]struct {
		granted, text string
		ask           func(*demand.Demand)
		want          Decision
		reason        string
		message       string
	}{
		"true is granted":                                         {listed, "grants: [{namespace: shop, serviceAccounts: [web]}]", nil, Granted, "", ""},
		"false is refused":                                        {listed, "grants: [{namespace: shop, serviceAccounts: [db]}]", nil, NotGranted, NoGrant, "shop/web"},
		"a policy in JSON is read as well":                        {listed, `{"grants": [{"namespace": "shop", "serviceAccounts": ["web"]}]}`, nil, Granted, "", ""},
		"a policy may be a list":                                  {"policy.exists(g, g == demand.namespace + '/' + demand.serviceAccount)", "- shop/web", nil, Granted, "", ""},
		"a policy keyed by namespace is looked up":                {"demand.serviceAccount in policy[demand.namespace]", "shop: [web]", nil, Granted, "", ""},
		"a boolean out of the policy will do":                     {"policy.all", "all: true", nil, Granted, "", ""},
		"a string out of the policy is unknown":                   {"policy.all", "all: 'true'", nil, Unknown, "", "gives string"},
		"null out of the policy is unknown":                       {"policy.all", "all: null", nil, Unknown, "", "gives null_type"},
		"a field that the policy has not is unknown":              {listed, "{}", nil, Unknown, "", "no such key: grants"},
		"a policy of another shape is unknown":                    {listed, "grants: 5", nil, Unknown, "", "cannot be evaluated"},
		"a policy that is null is unknown":                        {listed, "null", nil, Unknown, "", "cannot be evaluated"},
		"an expression that costs too much is unknown":            {"policy.all(a, policy.all(b, policy.all(c, a + b + c >= 0)))", "[" + strings.Repeat("1,", 999) + "1]", nil, Unknown, "", "cost limit"},
		"the signer is asked for by name":                         {"demand.signerName == policy.signer", "signer: example.com/workload", nil, Granted, "", ""},
		"the key type is compared":                                {"demand.keyType in policy", "[RSA3072]", nil, NotGranted, NoGrant, ""},
		"the lifetime is compared with a number of the policy":    {"demand.maxExpirationSeconds <= policy.seconds", "seconds: 86400", nil, Granted, "", ""},
		"the lifetime is compared with a number of a JSON policy": {"demand.maxExpirationSeconds <= policy.seconds", `{"seconds": 86399}`, nil, NotGranted, NoGrant, ""},
		"the lifetime is compared with a fraction":                {"demand.maxExpirationSeconds <= policy.days * 86400.0", "days: 1.5", nil, Granted, "", ""},
		"user annotations are a map": {"demand.userAnnotations['example.com/dns'].split(',').all(n, n in policy)", "[a.svc, b.svc]",
			func(d *demand.Demand) { d.UserAnnotations = map[string]string{"example.com/dns": "b.svc,a.svc"} }, Granted, "", ""},
		"user annotations that are not there are an empty map": {"size(demand.userAnnotations) == 0 && !('a' in demand.userAnnotations)", "{}", nil, Granted, "", ""},
		"a missing key type is refused unasked":                {"true", "{}", func(d *demand.Demand) { d.KeyType = "" }, NotGranted, UnsupportedKeyType, ""},
		"an unknown key type is refused unasked":               {"true", "{}", func(d *demand.Demand) { d.KeyType = "RSA2048" }, NotGranted, UnsupportedKeyType, ""},
		"a number key of YAML is a string":                     {"policy['8080']", "8080: true", nil, Granted, "", ""},
		"a map of the policy equals a literal":                 {"policy.a == {'b': 1}", "a: {b: 1}", nil, Granted, "", ""},
		"has asks for a field of the policy":                   {"has(policy.a) && !has(policy.b)", "a: 1", nil, Granted, "", ""},
		"a map is gone through by key":                         {"policy.map(k, k) == ['a', 'b', 'c', 'd', 'e', 'f', 'g']", "{g: 1, f: 1, e: 1, d: 1, c: 1, b: 1, a: 1}", nil, Granted, "", ""},
		"annotations are gone through by key": {"demand.userAnnotations.map(k, k) == ['a', 'b', 'c', 'd', 'e']", "{}",
			func(d *demand.Demand) {
				d.UserAnnotations = map[string]string{"e": "", "d": "", "c": "", "b": "", "a": ""}
			}, Granted, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustParse(t, FormatCEL, c.granted, c.text)
			for range 2 {
				expect(t, p.Decide(ask(c.ask)), c.want, c.reason, c.message)
			}
		})
	}
}

func TestCELRefusesTheText(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"when it is empty":                  {"", "empty"},
		"when it is no YAML":                {"a: [", "yaml: "},
		"when a key is there twice":         {"a: 1\na: 2", `"a"`},
		"when a key is there twice in JSON": {`{"a": {"b": 1, "b": 2}}`, `"a.b"`},
		"when two keys are the same string": {"1: a\n'1': b", `"1"`},
		"when a key is null":                {"{null: a}", "not a string"},
		"when a second document follows":    {"a: 1\n---\na: 2", "something follows"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Compile(FormatCEL, "policy.a")
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.Parse([]byte(c.text))
			expectError(t, err, c.want)
		})
	}
}

func TestCELErrorNamesTheExpressionAndThePosition(t *testing.T) {
	_, err := Compile(FormatCEL, "policy.grants.exists(g,\n  g.namespace == demand.nmespace)")
	for _, want := range []string{"2:24", "demand.nmespace", "maxExpirationSeconds"} {
		expectError(t, err, want)
	}
}

func FuzzCEL(f *testing.F) {
	f.Add("policy.grants.exists(g, g.namespace == demand.namespace && demand.keyType in g.keyTypes)", "grants: [{namespace: shop, keyTypes: [ECDSAP256]}]")
	f.Add("demand.userAnnotations.all(k, demand.userAnnotations[k].split(',').all(n, n.matches(policy[k])))", `{"a": "^[a-z]+$"}`)
	f.Add("policy.a ? policy.b == {'c': [1, 2.5]} : policy == null", "a: on\nb: {c: [1, 2.5]}")
	f.Fuzz(func(t *testing.T, granted, text string) {
		format, err := Compile(FormatCEL, granted)
		if err != nil {
			return
		}
		p, err := format.Parse([]byte(text))
		if err != nil {
			return
		}
		d := ask(func(d *demand.Demand) { d.UserAnnotations = map[string]string{"a": "b,c", "d": ""} })
		first := p.Decide(d)
		if first.Decision != Granted && first.Message == "" {
			t.Error("the answer does not say why")
		}
		if again := p.Decide(d); again != first {
			t.Errorf("first %+v, then %+v", first, again)
		}
	})
}

func BenchmarkCEL(b *testing.B) {
	var text strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&text, "- {namespace: team-%d, serviceAccount: web}\n", i)
	}
	p := mustParse(b, FormatCEL, "policy.exists(g, g.namespace == demand.namespace && g.serviceAccount == demand.serviceAccount)", text.String())
	d := ask(nil)
	b.ReportAllocs()
	for b.Loop() {
		p.Decide(d)
	}
}
