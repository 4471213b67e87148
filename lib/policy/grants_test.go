package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/demand"
)

func TestGrantsDecide(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		ask     func(*demand.Demand)
		want    Decision
		reason  string
		message string
	}{
		"namespace and ServiceAccount are enough":                 {"- {namespace: shop, serviceAccount: web}", nil, Granted, "", ""},
		"JSON is read as well":                                    {`[{"namespace": "shop", "serviceAccount": "web"}]`, nil, Granted, "", ""},
		"an empty list grants nothing":                            {"[]", nil, NotGranted, NoGrant, "shop/web"},
		"another namespace is not granted":                        {"- {namespace: shop-2, serviceAccount: web}", nil, NotGranted, NoGrant, ""},
		"another ServiceAccount is not granted":                   {"- {namespace: shop, serviceAccount: web-2}", nil, NotGranted, NoGrant, ""},
		"a prefix grants what begins with it":                     {"- {namespace: sh*, serviceAccount: web}", nil, Granted, "", ""},
		"a prefix grants nothing that only contains it":           {"- {namespace: ho*, serviceAccount: web}", nil, NotGranted, NoGrant, ""},
		"the signer may be named":                                 {"- {namespace: shop, serviceAccount: web, signerName: example.com/workload}", nil, Granted, "", ""},
		"a grant for another signer is none":                      {"- {namespace: shop, serviceAccount: web, signerName: example.com/other}", nil, NotGranted, NoGrant, ""},
		"a key type of the list is granted":                       {"- {namespace: shop, serviceAccount: web, keyTypes: [ED25519, ECDSAP256]}", nil, Granted, "", ""},
		"a key type that is not in the list is refused":           {"- {namespace: shop, serviceAccount: web, keyTypes: [ED25519, RSA3072]}", nil, NotGranted, UnsupportedKeyType, "RSA3072, ED25519"},
		"a missing key type is refused even where all are taken":  {"- {namespace: shop, serviceAccount: web}", func(d *demand.Demand) { d.KeyType = "" }, NotGranted, UnsupportedKeyType, ""},
		"an unknown key type is refused even where all are taken": {"- {namespace: shop, serviceAccount: web}", func(d *demand.Demand) { d.KeyType = "DSA1024" }, NotGranted, UnsupportedKeyType, ""},
		"any entry may grant, whatever stands before it": {`
- {namespace: shop, serviceAccount: web, keyTypes: [ED25519]}
- {namespace: shop, serviceAccount: web, keyTypes: [ECDSAP256]}`, nil, Granted, "", ""},
		"a prefix adds to what an exact namespace grants": {`
- {namespace: shop, serviceAccount: web, keyTypes: [ED25519]}
- {namespace: s*, serviceAccount: web}`, nil, Granted, "", ""},
		"a longer prefix adds to what a shorter one grants": {`
- {namespace: s*, serviceAccount: web, keyTypes: [ED25519]}
- {namespace: sho*, serviceAccount: web, keyTypes: [ECDSAP256]}`, nil, Granted, "", ""},
		"key types of another signer's entry do not add": {`
- {namespace: shop, serviceAccount: web, keyTypes: [ED25519]}
- {namespace: shop, serviceAccount: web, signerName: example.com/other}`, nil, NotGranted, UnsupportedKeyType, "ED25519"},
		"anchors and comments are YAML": {`
# who may have what
- &web {namespace: s*, serviceAccount: web}
- {<<: *web, signerName: example.com/other}`, nil, Granted, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, mustParse(t, FormatGrants, "", c.text).Decide(ask(c.ask)), c.want, c.reason, c.message)
		})
	}
}

func TestGrantsRefusesTheText(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"when it is empty":                       {"", "empty"},
		"when it is only a comment":              {"# none\n", "empty"},
		"when it is null":                        {"null", "not a list"},
		"when it is a map":                       {"grants: []", "not a list"},
		"when an entry is a string":              {"- shop/web", "[0]: not a map"},
		"when a field is misspelt":               {"- {namespace: a, serviceAccount: b}\n- {namespce: a, serviceAccount: b}", "[1]: namespce: no such field"},
		"when a key is there twice":              {"- namespace: a\n  serviceAccount: b\n  namespace: c", "namespace"},
		"when a key is there twice in JSON":      {`[{"namespace": "a", "serviceAccount": "b", "namespace": "c"}]`, `"[0].namespace"`},
		"when something follows it":              {"- {namespace: a, serviceAccount: b}\n---\n- {namespace: c, serviceAccount: d}", "something follows"},
		"when a word follows it":                 {"[]\nx", "something follows"},
		"when the namespace is missing":          {"- {serviceAccount: b}", "namespace is empty"},
		"when the namespace is a number":         {"- {namespace: 5, serviceAccount: b}", "namespace: 5 is no string"},
		"when the namespace is null":             {"- {namespace: , serviceAccount: b}", "namespace: "},
		"when the namespace is a bare *":         {"- {namespace: '*', serviceAccount: b}", "all of them"},
		"when a * is inside the namespace":       {"- {namespace: a*b, serviceAccount: b}", "last character"},
		"when the ServiceAccount is missing":     {"- {namespace: a}", "serviceAccount"},
		"when the ServiceAccount is a boolean":   {"- {namespace: a, serviceAccount: on}", "serviceAccount: true is no string"},
		"when the ServiceAccount is a prefix":    {"- {namespace: a, serviceAccount: b*}", "serviceAccount"},
		"when the signer is a prefix":            {"- {namespace: a, serviceAccount: b, signerName: example.com/*}", "signerName: write one whole name"},
		"when the signer is empty":               {"- {namespace: a, serviceAccount: b, signerName: ''}", "signerName"},
		"when a key type is unknown":             {"- {namespace: a, serviceAccount: b, keyTypes: [RSA2048]}", "keyTypes: RSA2048 is none of"},
		"when the list of key types is empty":    {"- {namespace: a, serviceAccount: b, keyTypes: []}", "keyTypes"},
		"when the list of key types is a string": {"- {namespace: a, serviceAccount: b, keyTypes: ED25519}", "keyTypes"},
		"when a key is a map":                    {"- {? {a: b} : c}", "invalid map key"},
		"when a key is null":                     {"- {null: a}", "not a string"},
		"when it overrides what is merged":       {"- &a {namespace: a, serviceAccount: b}\n- {<<: *a, namespace: c}", "namespace"},
		"when it is no YAML":                     {"- {namespace: a", "yaml: "},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Compile(FormatGrants, "")
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.Parse([]byte(c.text))
			expectError(t, err, c.want)
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has more than one line: %q", err)
			}
		})
	}
}

func FuzzGrants(f *testing.F) {
	f.Add("- {namespace: shop, serviceAccount: web}\n- {namespace: s*, serviceAccount: web, keyTypes: [ED25519]}", "shop", "web", "ECDSAP256")
	f.Add("- &a {namespace: sh*, serviceAccount: web, signerName: example.com/workload}\n- {<<: *a, keyTypes: [RSA3072]}", "shop", "web", "RSA3072")
	f.Add(`[{"namespace": "shop", "serviceAccount": "web", "signerName": "x"}]`, "shop", "web", "")
	format, err := Compile(FormatGrants, "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, namespace, serviceAccount, keyType string) {
		p, err := format.Parse([]byte(text))
		if err != nil {
			return
		}
		d := ask(func(d *demand.Demand) { d.Namespace, d.ServiceAccount, d.KeyType = namespace, serviceAccount, keyType })
		reason := naiveGrants(t, text, d)
		if a := p.Decide(d); a.Reason != reason || (a.Decision == Granted) != (reason == "") {
			t.Errorf("got %+v, want reason %q", a, reason)
		}
	})
}

// naiveGrants decides by going through the list; the reason is empty for granted.
func naiveGrants(t *testing.T, text string, d *demand.Demand) (reason string) {
	v, err := decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	reason = NoGrant
	for _, item := range v.([]any) {
		g := item.(map[string]any)
		namespace := g["namespace"].(string)
		prefix, ok := strings.CutSuffix(namespace, "*")
		if namespace != d.Namespace && !(ok && strings.HasPrefix(d.Namespace, prefix)) || g["serviceAccount"] != d.ServiceAccount {
			continue
		}
		if signer, ok := g["signerName"]; ok && signer != d.SignerName {
			continue
		}
		if list, ok := g["keyTypes"].([]any); ok && slices.Contains(list, any(d.KeyType)) || !ok && slices.Contains(keyTypes, d.KeyType) {
			return ""
		}
		reason = UnsupportedKeyType
	}
	return reason
}
