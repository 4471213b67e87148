package policy

import (
	"strings"
	"sync"
	"testing"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// ask is the demand that most tests vary.
func ask(change func(*demand.Demand)) *demand.Demand {
	d := &demand.Demand{
		SignerName:           "example.com/workload",
		Namespace:            "shop",
		ServiceAccount:       "web",
		KeyType:              "ECDSAP256",
		MaxExpirationSeconds: demand.DefaultMaxExpirationSeconds,
	}
	if change != nil {
		change(d)
	}
	return d
}

func mustParse(t testing.TB, format, granted, text string) Policy {
	t.Helper()
	f, err := Compile(format, granted)
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// expect checks decision, reason and part of the message; a granted answer has neither of the latter.
func expect(t *testing.T, a Answer, want Decision, reason, message string) {
	t.Helper()
	if a.Decision != want || a.Reason != reason || !strings.Contains(a.Message, message) {
		t.Errorf("got %s %q %q, want %s %q and a message with %q", a.Decision, a.Reason, a.Message, want, reason, message)
	}
	if want == Granted && a.Message != "" {
		t.Errorf("granted has the message %q", a.Message)
	}
	if want != Granted && a.Message == "" {
		t.Error("the answer does not say why")
	}
}

func expectError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one with %q", err, want)
	}
}

func TestCompile(t *testing.T) {
	for name, c := range map[string]struct{ format, granted, want string }{
		"an unknown format is named together with the known ones":  {"rego", "", "pod-cert-signer, grants or cel"},
		"an expression beside a format that takes none is refused": {"grants", "true", "takes no granted expression"},
		"format cel without an expression is refused":              {"cel", "", "needs a granted expression"},
		"a misspelt field of the demand is found at once":          {"cel", "demand.serviceAcount == 'web'", "undeclared reference"},
		"a syntax error has its position":                          {"cel", "policy.a ==", "1:12"},
		"an expression that cannot be a boolean is refused":        {"cel", "demand.namespace", "gives string"},
		"a comparison of different types is refused":               {"cel", "demand.namespace == 5", "no matching overload"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(c.format, c.granted)
			expectError(t, err, c.want)
		})
	}
}

func TestRevisionIsTheDigestOfTheText(t *testing.T) {
	const want = "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	if got := Revision([]byte("foo")); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPoliciesMayBeAskedFromManyGoroutines(t *testing.T) {
	for _, p := range []Policy{
		mustParse(t, FormatPodCertSigner, "", signerPolicy(`{"namespace": "s*", "serviceAccount": "web", "usage": "client"}`)),
		mustParse(t, FormatGrants, "", "- {namespace: s*, serviceAccount: web}"),
		mustParse(t, FormatCEL, "policy.map(k, policy[k]).exists(l, demand.serviceAccount in l)", "shop: [web]\nother: [db]"),
	} {
		e := &Evidence{Replicas: []Replica{{Pod: "b", Policy: p}, {Pod: "a", Policy: p}}}
		var asking sync.WaitGroup
		for range 8 {
			asking.Go(func() {
				for range 20 {
					expect(t, e.Decide(ask(nil), true).Answer, Granted, "", "")
				}
			})
		}
		asking.Wait()
	}
}

func BenchmarkCompileCEL(b *testing.B) {
	for b.Loop() {
		if _, err := Compile(FormatCEL, "policy.exists(g, g.namespace == demand.namespace && g.serviceAccount == demand.serviceAccount)"); err != nil {
			b.Fatal(err)
		}
	}
}
