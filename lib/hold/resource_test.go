package hold

import (
	"fmt"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
)

const grantedByObject = "demand.serviceAccount == object.spec.serviceAccount"

// custom is a policy object of the render that grants one ServiceAccount.
func custom(name, serviceAccount string) string {
	return fmt.Sprintf("apiVersion: policy.example.com/v1\nkind: SignerPolicy\nmetadata: {name: %s}\nspec: {serviceAccount: %s}\n", name, serviceAccount)
}

// customLive is the same in the cluster. notLoaded says why the replicas have not loaded it.
func customLive(t testing.TB, name, serviceAccount, notLoaded string) policy.Alternative {
	t.Helper()
	f, err := policy.CompileResource(grantedByObject)
	if err != nil {
		t.Fatal(err)
	}
	p := f.Read(map[string]any{"spec": map[string]any{"serviceAccount": serviceAccount}})
	return policy.Alternative{Object: policy.Object{Kind: "SignerPolicy", Name: name, Generation: 2, Policy: p}, NotLoaded: notLoaded}
}

// customEvidence is of one replica that has loaded those objects that say nothing else.
func customEvidence(all ...policy.Alternative) policy.Evidence {
	e := policy.Evidence{Kind: config.Status, Replicas: []policy.Replica{{Pod: "a", Policy: policy.Alternatives(all)}}}
	for _, o := range all {
		o.NotLoaded = ""
		e.Live = append(e.Live, o)
	}
	return e
}

// customInput is input with a signer whose policy is in custom resources.
func customInput(t testing.TB, text string, e policy.Evidence, change func(*config.Resource)) Input {
	t.Helper()
	in := input(t, text, e)
	s := &in.Config.Signers[0]
	s.Evidence = config.Status
	s.Policy = config.Policy{
		Resource: &config.Resource{APIVersion: "policy.example.com/v1", Kind: "SignerPolicy", Resource: "signerpolicies"},
		Format:   policy.FormatCEL, Granted: grantedByObject, Loaded: "true",
	}
	if change != nil {
		change(s.Policy.Resource)
	}
	return in
}

func TestACustomResourceOfTheRenderAloneGrantsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		text     string
		evidence policy.Evidence
		message  string
	}{
		"there is none in the cluster":                 {docs(custom("web", "web"), deployment), customEvidence(), "granted by SignerPolicy web, not loaded yet: pod a: no grant"},
		"those in the cluster grant others":            {docs(custom("web", "web"), deployment), customEvidence(customLive(t, "api", "api", "")), "granted by SignerPolicy web, not loaded yet: pod a: SignerPolicy api (generation 2): "},
		"that in the cluster is older":                 {docs(custom("web", "web"), deployment), customEvidence(customLive(t, "web", "api", "")), "granted by SignerPolicy web, not loaded yet"},
		"that in the cluster is not loaded":            {docs(custom("web", "web"), deployment), customEvidence(customLive(t, "web", "web", "status is old")), "granted by SignerPolicy web, not known to be loaded: pod a: SignerPolicy web (generation 2) is not known to be loaded: status is old"},
		"several are fine, they are alternatives":      {docs(custom("api", "api"), custom("web", "web"), deployment), customEvidence(), "granted by SignerPolicy web, not loaded yet"},
		"the grant is only in the cluster":             {deployment, customEvidence(customLive(t, "web", "web", "status is old")), "granted by SignerPolicy web (generation 2), not known to be loaded"},
		"no policy grants it, of which there is one":   {docs(custom("api", "api"), deployment), customEvidence(), "no policy grants it, waiting does not help: add the grant to SignerPolicy api: "},
		"no policy grants it, of which there are more": {docs(custom("api", "api"), deployment), customEvidence(customLive(t, "db", "db", "")), "no policy grants it, waiting does not help: add the grant to one of 2 policy objects"},
		"the render takes the grant away": {docs(custom("web", "api"), deployment), customEvidence(customLive(t, "web", "web", "status is old")),
			"no policy grants it, waiting does not help: add the grant to SignerPolicy web: "},
		"there is no policy object at all": {deployment, customEvidence(), "no SignerPolicy of this signer in this render or in the cluster"},
		"another version of the API is not read": {docs(strings.Replace(custom("web", "web"), "/v1", "/v1beta1", 1), deployment), customEvidence(),
			"SignerPolicy web does not parse and will never be loaded: it is of version policy.example.com/v1beta1: write it as policy.example.com/v1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustMake(t, customInput(t, c.text, c.evidence, nil))
			if !p.Held || !strings.Contains(p.WaitingFor(), c.message) {
				t.Errorf("held %v, waits for %q, want %q in it", p.Held, p.WaitingFor(), c.message)
			}
			objects, err := p.Objects()
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range objects {
				if o.Kind == "SignerPolicy" && (o.Action != Emit || o.Why != "policy object of signer example.com/workload") {
					t.Errorf("%s: %s, %s", o.ID, o.Action, o.Why)
				}
				if o.Kind == "Deployment" && o.Action != Withhold {
					t.Errorf("%s: %s", o.ID, o.Action)
				}
			}
		})
	}
}

func TestALoadedCustomResourceGrants(t *testing.T) {
	text := docs(custom("web", "web"), deployment)
	p := mustMake(t, customInput(t, text, customEvidence(customLive(t, "web", "web", ""), customLive(t, "api", "api", "old")), nil))
	if p.Held || mustBytes(t, p) != text || p.Demands[0].Evidence != config.Status {
		t.Errorf("held %v: %s", p.Held, p.WaitingFor())
	}
}

// Only what the admin calls policy goes out early.
func TestWhichCustomResourcesGoOutDuringAHold(t *testing.T) {
	in := func(namespace string) string {
		return strings.Replace(custom("web", "web"), "name: web", "name: web, namespace: "+namespace, 1)
	}
	labelled := strings.Replace(custom("web", "web"), "name: web", "name: web, labels: {tier: prod}", 1)
	for name, c := range map[string]struct {
		manifest string
		change   func(*config.Resource)
		want     Action
	}{
		"of a kind without namespaces all do":                   {custom("web", "web"), nil, Emit},
		"of a kind without namespaces, whatever they write":     {in("elsewhere"), nil, Emit},
		"of the namespace that is named":                        {in("gate"), func(r *config.Resource) { r.Namespace = "gate" }, Emit},
		"not of another namespace":                              {in("elsewhere"), func(r *config.Resource) { r.Namespace = "gate" }, Withhold},
		"the destination's namespace counts where none is":      {custom("web", "web"), func(r *config.Resource) { r.Namespace = "shop" }, Emit},
		"not where the destination is another namespace":        {custom("web", "web"), func(r *config.Resource) { r.Namespace = "gate" }, Withhold},
		"of all namespaces":                                     {in("elsewhere"), func(r *config.Resource) { r.Namespace = "*" }, Emit},
		"with the labels that are asked for":                    {labelled, func(r *config.Resource) { r.Selector = "tier=prod" }, Emit},
		"not without the labels that are asked for":             {custom("web", "web"), func(r *config.Resource) { r.Selector = "tier=prod" }, Withhold},
		"another version of the API is the same kind":           {strings.Replace(custom("web", "web"), "/v1", "/v1beta1", 1), nil, Emit},
		"not the kind of that name in another group":            {strings.Replace(custom("web", "web"), "example.com", "example.org", 1), nil, Withhold},
		"not another kind of the group":                         {strings.Replace(custom("web", "web"), "SignerPolicy", "Other", 1), nil, Withhold},
		"not as a hook, which a hold leaves out":                {strings.Replace(custom("web", "web"), "name: web", "name: web, annotations: {argocd.argoproj.io/hook: PreSync}", 1), nil, Omit},
		"a ConfigMap in a workload's namespace is none of them": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n", nil, Withhold},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustMake(t, customInput(t, docs(deployment, c.manifest), customEvidence(), c.change))
			objects, err := p.Objects()
			if err != nil {
				t.Fatal(err)
			}
			if objects[1].Action != c.want {
				t.Errorf("%s: %s (%s), want %s", objects[1].ID, objects[1].Action, objects[1].Why, c.want)
			}
		})
	}
}

func TestACustomResourceThatTakesAGrantAwayWaitsForThePods(t *testing.T) {
	revoked := strings.Replace(custom("web", "nobody"), "name: web", "name: web, annotations: {grantfirst.dev/revoke: stolen key}", 1)
	webLive, twinLive := customLive(t, "web", "web", ""), customLive(t, "twin", "web", "")
	used := []demand.Asker{asker("shop/web-1", "web")}
	inCluster := []Resource{tracked("policy.example.com", "v1", "SignerPolicy", "", "web"), tracked("v1", "", "Service", "shop", "web")}
	released := []Entry{entry(t, "r0", docs(custom("web", "web"), service))}
	for name, c := range map[string]struct {
		text    string
		live    []policy.Alternative
		asking  []demand.Asker
		tracked []Resource
		change  func(*Input)
		want    []string
		message string
	}{
		"the object stays while a pod uses the grant, and all else goes out": {
			text: docs(custom("web", "nobody"), custom("db", "db"), service), live: []policy.Alternative{webLive}, asking: used,
			want:    []string{"SignerPolicy/web: hold", "SignerPolicy/db: emit", "Service/web: emit", "Hold/*: marker"},
			message: "annotate it grantfirst.dev/revoke to revoke at once",
		},
		"the object goes out where no pod uses the grant": {
			text: docs(custom("web", "nobody"), service), live: []policy.Alternative{webLive}, asking: []demand.Asker{asker("shop/api-1", "api")},
			want: []string{"SignerPolicy/web: emit", "Service/web: emit"},
		},
		"an object that did not grant it takes nothing away": {
			text: docs(custom("web", "nobody"), service), live: []policy.Alternative{customLive(t, "web", "api", ""), twinLive}, asking: used,
			want: []string{"SignerPolicy/web: emit", "Service/web: emit"},
		},
		"another object in the cluster goes on granting it": {
			text: docs(custom("web", "nobody"), service), live: []policy.Alternative{webLive, twinLive}, asking: used,
			want: []string{"SignerPolicy/web: emit", "Service/web: emit"},
		},
		"another object of the render granted it before and goes on": {
			text: docs(custom("web", "nobody"), custom("twin", "web")), live: []policy.Alternative{webLive, twinLive}, asking: used,
			want: []string{"SignerPolicy/web: emit", "SignerPolicy/twin: emit"},
		},
		"another object of the render that is to grant it from now on must be there first": {
			text: docs(custom("web", "nobody"), custom("twin", "web")), live: []policy.Alternative{webLive}, asking: used,
			want: []string{"SignerPolicy/web: hold", "SignerPolicy/twin: emit", "Hold/*: marker"},
		},
		"two objects that both take it away both stay": {
			text: docs(custom("web", "nobody"), custom("twin", "nobody")), live: []policy.Alternative{webLive, twinLive}, asking: used,
			want: []string{"SignerPolicy/web: hold", "SignerPolicy/twin: hold", "Hold/*: marker"},
		},
		"an emergency revocation applies at once": {
			text: docs(revoked, service), live: []policy.Alternative{webLive}, asking: used,
			want: []string{"SignerPolicy/web: emit", "Service/web: emit"},
		},
		"an object that the render deletes is kept": {
			text: service, live: []policy.Alternative{webLive}, asking: used, tracked: inCluster,
			want:    []string{"Service/web: emit", "SignerPolicy/web: keep", "Hold/*: marker"},
			message: "to revoke at once, put it back without the grant and with the annotation grantfirst.dev/revoke",
		},
		"an object that the render deletes goes where no pod uses it": {
			text: service, live: []policy.Alternative{webLive}, tracked: inCluster,
			want: []string{"Service/web: emit"},
		},
		"an object that another Application has is not this one's to keep": {
			text: service, live: []policy.Alternative{webLive}, asking: used,
			want: []string{"Service/web: emit"},
		},
		"an object that another source may have is not this one's to keep": {
			text: service, live: []policy.Alternative{webLive}, asking: used, tracked: inCluster, change: func(in *Input) { in.Sources = 2 },
			want: []string{"Service/web: emit"},
		},
		"an object that loses the labels of a policy object stays as it is": {
			text: docs(custom("web", "web"), service), live: []policy.Alternative{webLive}, asking: used, tracked: inCluster,
			change: func(in *Input) { in.Config.Signers[0].Policy.Resource.Selector = "tier=prod" },
			want:   []string{"SignerPolicy/web: hold", "Service/web: emit", "Hold/*: marker"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := customInput(t, c.text, customEvidence(c.live...), nil)
			in.Asking, in.Tracked, in.Past = c.asking, c.tracked, released
			if c.change != nil {
				c.change(&in)
			}
			p := mustMake(t, in)
			expectActions(t, p, c.want...)
			if !strings.Contains(p.WaitingFor(), c.message) || len(p.Removals) > 0 && !strings.Contains(p.WaitingFor(), "pod shop/web-1") {
				t.Errorf("waits for %q, want %q in it", p.WaitingFor(), c.message)
			}
			if strings.Contains(c.text, AnnotationRevoke) && len(p.Revoked) != 1 {
				t.Errorf("not announced: %q", p.Revoked)
			}
			if _, err := manifest.Parse([]byte(mustBytes(t, p))); err != nil {
				t.Error(err)
			}
		})
	}
}
