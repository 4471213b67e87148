package policy

import (
	"strings"
	"testing"

	"sigs.k8s.io/json"

	"github.com/grantfirst/grantfirst/lib/demand"
)

func mustRead(t testing.TB, granted, object string) *Resource {
	t.Helper()
	f, err := CompileResource(granted)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.UnmarshalCaseSensitivePreserveInts([]byte(object), &m); err != nil {
		t.Fatal(err)
	}
	return f.Read(m)
}

func TestAResourceGrantsByItsExpression(t *testing.T) {
	const listed = "object.spec.grants.exists(g, g.namespace == demand.namespace && g.serviceAccount == demand.serviceAccount)"
	for name, c := range map[string]struct {
		granted, object string
		want            Decision
		message         string
	}{
		"true is granted":                           {listed, `{"spec": {"grants": [{"namespace": "shop", "serviceAccount": "web"}]}}`, Granted, ""},
		"false is refused":                          {listed, `{"spec": {"grants": [{"namespace": "shop", "serviceAccount": "db"}]}}`, NotGranted, "the granted expression is false for ServiceAccount shop/web"},
		"an object without a spec is unknown":       {listed, `{}`, Unknown, "no such key: spec"},
		"a spec of another shape is unknown":        {listed, `{"spec": []}`, Unknown, "cannot be evaluated"},
		"the metadata of the object may be used":    {"object.metadata.namespace == demand.namespace", `{"metadata": {"namespace": "shop"}}`, Granted, ""},
		"an expression that costs much is unknown":  {"[1,2,3,4,5,6,7,8,9].all(a, object.l.all(b, object.l.all(c, object.l.all(d, b + c + d >= 0))))", `{"l": [` + strings.Repeat("1,", 99) + `1]}`, Unknown, "cost limit"},
		"an expression that gives text is unknown":  {"object.spec", `{"spec": "true"}`, Unknown, "gives string"},
		"a fraction compares with the demand's int": {"object.spec.days * 86400.0 >= demand.maxExpirationSeconds", `{"spec": {"days": 1.5}}`, Granted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			reason := ""
			if c.want == NotGranted {
				reason = NoGrant
			}
			expect(t, mustRead(t, c.granted, c.object).Decide(ask(nil)), c.want, reason, c.message)
		})
	}
}

func TestAResourceIsLoadedOnlyWhereTheExpressionIsTrue(t *testing.T) {
	const (
		byGeneration = "object.status.observedGeneration == object.metadata.generation"
		byPod        = "object.status.byPod.exists(p, p.id == pod.metadata.name && p.observedGeneration == object.metadata.generation)"
	)
	for name, c := range map[string]struct {
		loaded, object string
		// why is a part of the reason; empty for loaded.
		why    string
		perPod bool
	}{
		"the generation was observed":                        {byGeneration, `{"metadata": {"generation": 3}, "status": {"observedGeneration": 3}}`, "", false},
		"an older generation was observed":                   {byGeneration, `{"metadata": {"generation": 3}, "status": {"observedGeneration": 2}}`, "the loaded expression is false", false},
		"there is no status yet":                             {byGeneration, `{"metadata": {"generation": 1}}`, "no such key: status", false},
		"there is no generation in the status yet":           {byGeneration, `{"metadata": {"generation": 1}, "status": {}}`, "no such key: observedGeneration", false},
		"the status has another shape":                       {byGeneration, `{"metadata": {"generation": 1}, "status": []}`, "cannot be evaluated", false},
		"a generation as text is not one":                    {byGeneration, `{"metadata": {"generation": 1}, "status": {"observedGeneration": "1"}}`, "the loaded expression is false", false},
		"this pod has observed it":                           {byPod, `{"metadata": {"generation": 3}, "status": {"byPod": [{"id": "gate-0", "observedGeneration": 2}, {"id": "gate-1", "observedGeneration": 3}]}}`, "", true},
		"this pod has observed an older one, and others not": {byPod, `{"metadata": {"generation": 3}, "status": {"byPod": [{"id": "gate-0", "observedGeneration": 3}, {"id": "gate-1", "observedGeneration": 2}]}}`, "false", true},
		"this pod is not in the status":                      {byPod, `{"metadata": {"generation": 3}, "status": {"byPod": [{"id": "gate-0", "observedGeneration": 3}]}}`, "false", true},
		"a condition of the generation":                      {"object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True' && c.observedGeneration == object.metadata.generation)", `{"metadata": {"generation": 1}, "status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}}`, "", false},
		"text is not true":                                   {"object.status.loaded", `{"status": {"loaded": "true"}}`, "gives string and not true or false", false},
		"all that is known of the pod": {"pod.metadata.namespace == 'gate' && pod.metadata.uid == 'u' && pod.metadata.labels['app'] == 'gate' && has(pod.metadata.labels.app) && pod.spec.nodeName == 'n'",
			`{}`, "", true},
		"a label that the pod has not": {"pod.metadata.labels['tier'] == 'x'", `{}`, "no such key: tier", true},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := CompileLoaded(c.loaded)
			if err != nil {
				t.Fatal(err)
			}
			if l.PerPod != c.perPod {
				t.Errorf("looks at the pod: %v", l.PerPod)
			}
			why := l.WhyNot(mustRead(t, "true", c.object), &Pod{Name: "gate-1", Namespace: "gate", UID: "u", Labels: map[string]string{"app": "gate"}, Node: "n"})
			if !strings.Contains(why, c.why) || (why == "") != (c.why == "") || strings.Contains(why, "\n") {
				t.Errorf("got %q, want %q in it", why, c.why)
			}
		})
	}
}

func TestExpressionsOverResourcesAreCheckedWhenCompiled(t *testing.T) {
	_, err := CompileResource("object.spec.all(g, g == demand.nmespace)")
	for _, want := range []string{"granted: ", "1:31", "may use object and demand.signerName"} {
		expectError(t, err, want)
	}
	_, err = CompileLoaded("object.status.id == pod.metadata.nmae")
	for _, want := range []string{"loaded: ", "1:33", "may use object and pod.metadata.name"} {
		expectError(t, err, want)
	}
	_, err = CompileLoaded("1 + 1")
	expectError(t, err, `"1 + 1" gives int: write one that gives true or false`)
}

func TestAlternativesDecide(t *testing.T) {
	object := func(name string, p Policy, notLoaded string) Alternative {
		return Alternative{Object{Kind: "SignerPolicy", Name: name, Generation: 3, Policy: p}, notLoaded}
	}
	unreadable := object("x", nil, "")
	unreadable.Problem = "it is of version v1beta1"
	for name, c := range map[string]struct {
		all     Alternatives
		want    Decision
		reason  string
		message string
	}{
		"one that grants is enough":                                         {Alternatives{object("a", no, ""), object("b", yes, "")}, Granted, "", ""},
		"one that grants is enough, whatever is not loaded beside it":       {Alternatives{object("a", no, "old"), object("b", yes, "")}, Granted, "", ""},
		"one that grants is enough, whatever cannot be told beside it":      {Alternatives{object("a", puzzled, ""), object("b", yes, "")}, Granted, "", ""},
		"the only one refuses":                                              {Alternatives{object("a", no, "")}, NotGranted, NoGrant, "SignerPolicy a (generation 3): no grant for shop/web"},
		"the reason of the only one counts":                                 {Alternatives{object("a", badKey, "")}, NotGranted, UnsupportedKeyType, "key type"},
		"all refuse":                                                        {Alternatives{object("a", no, ""), object("b", no, "")}, NotGranted, NoGrant, "2 policy objects: none grants it for ServiceAccount shop/web"},
		"there is none":                                                     {Alternatives{}, NotGranted, NoGrant, "there is no policy object"},
		"one that would grant is not loaded":                                {Alternatives{object("a", yes, "generation 2")}, Unknown, "", "SignerPolicy a (generation 3) is not known to be loaded: generation 2"},
		"one that would not grant now is not loaded and may grant as yet":   {Alternatives{object("a", no, "generation 2")}, Unknown, "", "a (generation 3) is not known to be loaded"},
		"of those not loaded the one that would grant is named":             {Alternatives{object("a", no, "old"), object("b", yes, "older"), object("c", yes, "oldest")}, Unknown, "", "SignerPolicy b (generation 3) is not known to be loaded: older"},
		"of those not loaded the first is named where none would grant":     {Alternatives{object("a", no, "old"), object("b", no, "older")}, Unknown, "", "SignerPolicy a"},
		"one refuses and the other cannot be told":                          {Alternatives{object("a", no, ""), object("b", puzzled, "")}, Unknown, "", "SignerPolicy b (generation 3): cost limit"},
		"one cannot be read":                                                {Alternatives{unreadable, object("b", no, "")}, Unknown, "", "SignerPolicy x (generation 3) cannot be read: it is of version v1beta1"},
		"what would grant and is not loaded is named before what is broken": {Alternatives{unreadable, object("b", yes, "old")}, Unknown, "", "SignerPolicy b"},
		"what is broken is named before what would not grant":               {Alternatives{object("a", no, "old"), unreadable}, Unknown, "", "SignerPolicy x"},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, c.all.Decide(ask(nil)), c.want, c.reason, c.message)
		})
	}
}

func TestGrantingIsTheFirstObjectThatGrantsLoadedOrNot(t *testing.T) {
	all := Alternatives{
		{Object: Object{Name: "a", Policy: no}}, {Object: Object{Name: "b"}}, {Object: Object{Name: "c", Policy: yes}, NotLoaded: "old"}, {Object: Object{Name: "d", Policy: yes}},
	}
	if o := all.Granting(ask(nil)); o == nil || o.Name != "c" {
		t.Errorf("got %v", o)
	}
	if o := all[:2].Granting(ask(nil)); o != nil {
		t.Errorf("got %v", o)
	}
}

func TestUnprovenEvidenceIsCalledThat(t *testing.T) {
	const says = "; unproven: that it has loaded this is an assumption"
	for name, c := range map[string]struct {
		evidence Evidence
		want     bool
	}{
		"a refusal by an assumed policy":            {Evidence{Unproven: true, Replicas: []Replica{{Pod: "a", Policy: no}}}, true},
		"an assumed policy that cannot tell":        {Evidence{Unproven: true, Replicas: []Replica{{Pod: "a", Policy: puzzled}}}, true},
		"where nothing is assumed nothing is said":  {Evidence{Unproven: true, Replicas: []Replica{{Pod: "a", Problem: "changed"}}}, false},
		"a refusal by a policy that is known to be": {Evidence{Replicas: []Replica{{Pod: "a", Policy: no}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.evidence.Decide(ask(nil), true).Message; strings.Contains(got, says) != c.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

func FuzzResource(f *testing.F) {
	f.Add("demand.namespace in object.spec.namespaces", "object.status.observedGeneration == object.metadata.generation", `{"metadata": {"generation": 1}, "spec": {"namespaces": ["shop"]}, "status": {"observedGeneration": 1}}`)
	f.Add("true", "object.status.byPod.exists(p, p.id == pod.metadata.name)", `{"status": {"byPod": [{"id": "a"}, {}]}}`)
	f.Add("object.a", "pod.metadata.labels[object.b] != ''", `{"a": null, "b": 1}`)
	f.Fuzz(func(t *testing.T, granted, loaded, text string) {
		format, err := CompileResource(granted)
		if err != nil {
			return
		}
		l, err := CompileLoaded(loaded)
		if err != nil {
			return
		}
		var object map[string]any
		if json.UnmarshalCaseSensitivePreserveInts([]byte(text), &object) != nil {
			return
		}
		r := format.Read(object)
		d := ask(func(d *demand.Demand) { d.UserAnnotations = map[string]string{"a": "b"} })
		first := r.Decide(d)
		if first.Decision != Granted && first.Message == "" {
			t.Error("the answer does not say why")
		}
		if again := r.Decide(d); again != first {
			t.Errorf("first %+v, then %+v", first, again)
		}
		all := Alternatives{{Object: Object{Policy: r}}}
		if got := all.Decide(d).Decision; got != first.Decision || (all.Granting(d) != nil) != (got == Granted) {
			t.Errorf("alone it is %s, and as the only alternative %s", first.Decision, got)
		}
		pod := &Pod{Name: "a", Labels: map[string]string{"b": "c", "d": "e"}}
		if why := l.WhyNot(r, pod); why != l.WhyNot(r, pod) || strings.Contains(why, "\n") {
			t.Errorf("it says %q once", why)
		}
	})
}

// BenchmarkAlternatives decides a demand that the last of many objects grants, as it does for every replica.
func BenchmarkAlternatives(b *testing.B) {
	f, err := CompileResource("object.spec.grants.exists(g, g.namespace == demand.namespace && g.serviceAccount == demand.serviceAccount)")
	if err != nil {
		b.Fatal(err)
	}
	object := func(namespace string) map[string]any {
		return map[string]any{"spec": map[string]any{"grants": []any{map[string]any{"namespace": namespace, "serviceAccount": "web"}}}}
	}
	var all Alternatives
	for range 99 {
		all = append(all, Alternative{Object: Object{Kind: "SignerPolicy", Name: "a", Policy: f.Read(object("other"))}})
	}
	all = append(all, Alternative{Object: Object{Kind: "SignerPolicy", Name: "z", Policy: f.Read(object("shop"))}})
	d := ask(nil)
	b.ReportAllocs()
	for b.Loop() {
		if a := all.Decide(d); a.Decision != Granted {
			b.Fatal(a)
		}
	}
}

// BenchmarkCompileResource is what a signer with custom resources costs once.
func BenchmarkCompileResource(b *testing.B) {
	for b.Loop() {
		if _, err := CompileResource("object.spec.grants.exists(g, g.namespace == demand.namespace && g.serviceAccount == demand.serviceAccount)"); err != nil {
			b.Fatal(err)
		}
	}
}
