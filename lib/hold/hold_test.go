package hold

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// The grants format is the shortest way to write what a replica decides by.
const (
	grantsWeb    = "[{namespace: shop, serviceAccount: web}]"
	grantsNobody = "[]"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web # the shop
  namespace: shop
spec:
  template:
    spec:
      serviceAccountName: web
      volumes:
      - name: tls
        projected:
          sources:
          - podCertificate: {signerName: example.com/workload, keyType: ED25519, credentialBundlePath: t}
`

const policyObjectWeb = `apiVersion: v1
kind: ConfigMap
metadata: {name: policy, namespace: signer}
data:
  grants.yaml: "` + grantsWeb + `"
`

const service = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 443}]}
`

func docs(d ...string) string { return strings.Join(d, "---\n") }

func parseStream(t testing.TB, text string) *manifest.Stream {
	t.Helper()
	s, err := manifest.Parse([]byte(text))
	if errors.Is(err, manifest.ErrEmpty) {
		return &manifest.Stream{}
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func grants(t testing.TB, text string) policy.Policy {
	t.Helper()
	f, err := policy.Compile("grants", "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// replicas makes evidence of pods a, b, … that have loaded the given policy texts; "?" is a text that is not known.
func replicas(t testing.TB, texts ...string) policy.Evidence {
	t.Helper()
	e := policy.Evidence{Kind: config.PodVolumes}
	for i, text := range texts {
		r := policy.Replica{Pod: string(rune('a' + i))}
		if text == "?" {
			r.Problem = "its ConfigMap is gone"
		} else {
			r.Policy, r.Revision = grants(t, text), policy.Revision([]byte(text))
		}
		e.Replicas = append(e.Replicas, r)
	}
	return e
}

func live(t testing.TB, e policy.Evidence, text string) policy.Evidence {
	e.Live = policy.Alternatives{{Object: policy.Object{Kind: "ConfigMap", Namespace: "signer", Name: "policy", Revision: policy.Revision([]byte(text)), Policy: grants(t, text)}}}
	return e
}

func testConfig() *config.Config {
	c := config.Default()
	c.Signers = []config.Signer{{
		SignerName: "example.com/workload",
		Namespace:  "signer",
		Policy:     config.Policy{ConfigMap: config.ConfigMap{NamePrefix: "policy"}, Key: "grants.yaml", Format: "grants"},
		Evidence:   config.PodVolumes,
	}}
	return c
}

// input is a source in the namespace shop whose signer has the given evidence.
func input(t testing.TB, text string, e policy.Evidence) Input {
	t.Helper()
	c := testConfig()
	in := Input{
		Application: "web", Namespace: "shop", Source: "repo//web", Config: c,
		Mode: config.Enforce, Marker: config.MarkerHold, Sources: 1,
		Evidence: map[*config.Signer]policy.Evidence{&c.Signers[0]: e},
	}
	in.render(t, text)
	return in
}

// render sets the stream and its demands.
func (in *Input) render(t testing.TB, text string) {
	t.Helper()
	in.Stream = parseStream(t, text)
	var err error
	if in.Demands, err = demand.InStream(in.Stream, in.Namespace); err != nil {
		t.Fatal(err)
	}
}

func mustMake(t testing.TB, in Input) *Plan {
	t.Helper()
	p, err := Make(in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustBytes(t testing.TB, p *Plan) string {
	t.Helper()
	b, err := p.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// actions gives "Kind/name: action" for every object of a plan.
func actions(t testing.TB, p *Plan) []string {
	t.Helper()
	objects, err := p.Objects()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, o := range objects {
		name := o.Name
		if o.Action == Mark {
			name = "*"
		}
		out = append(out, fmt.Sprintf("%s/%s: %s", o.Kind, name, o.Action))
	}
	return out
}

func expectActions(t *testing.T, p *Plan, want ...string) {
	t.Helper()
	if got := strings.Join(actions(t, p), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("actions:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// entry is a history entry that rendered text.
func entry(t testing.TB, revision, text string) Entry {
	return Entry{Key: Key(revision, "{}"), Render: func() (*manifest.Stream, error) { return parseStream(t, text), nil }}
}

func unreadable(revision, why string) Entry {
	return Entry{Key: Key(revision, "{}"), Render: func() (*manifest.Stream, error) { return nil, errors.New(why) }}
}

func markerOf(in Input, key string) Resource {
	return Resource{Group: Group, Version: "v1alpha1", Kind: "Hold", Namespace: "shop", Name: markerPrefix(in.Application, in.Source) + key}
}

func TestMake(t *testing.T) {
	broken := policy.Evidence{Kind: config.PodVolumes, Problem: "the API server does not answer"}
	released := []Entry{entry(t, "r0", docs(deployment))}
	tests := map[string]struct {
		evidence policy.Evidence
		past     []Entry
		held     bool
		message  string
	}{
		"a demand that every replica grants is not held":                        {replicas(t, grantsWeb, grantsWeb), nil, false, ""},
		"one replica with the old policy is enough to hold":                     {replicas(t, grantsWeb, grantsNobody), nil, true, "pod b"},
		"a refusal holds what was released before, too":                         {replicas(t, grantsWeb, grantsNobody), released, true, "pod b"},
		"a refusal outweighs an unknown replica":                                {replicas(t, "?", grantsNobody), released, true, "pod b"},
		"an unknown replica holds what is new":                                  {replicas(t, grantsWeb, "?"), nil, true, "its ConfigMap is gone"},
		"an unknown replica does not hold what was released before":             {replicas(t, grantsWeb, "?"), released, false, ""},
		"evidence that cannot be read holds what is new":                        {broken, nil, true, "the API server does not answer"},
		"evidence that cannot be read does not hold what was released before":   {broken, released, false, ""},
		"without a replica what is new is held":                                 {live(t, replicas(t), grantsWeb), nil, true, "would only wait"},
		"without a replica what was released is judged by the live object":      {live(t, replicas(t), grantsWeb), released, false, ""},
		"without a replica the live object's refusal holds what was released":   {live(t, replicas(t), grantsNobody), released, true, ""},
		"a released render that cannot be had makes the demand new":             {broken, []Entry{unreadable("r0", "shallow clone")}, true, ""},
		"only the newest entry counts as released, not one before it":           {broken, []Entry{entry(t, "r1", service), entry(t, "r0", deployment)}, true, ""},
		"the same demand of another object was released before, so it is known": {broken, []Entry{entry(t, "r0", strings.ReplaceAll(deployment, "name: web # the shop", "name: other"))}, false, ""},
		"another key type is another demand":                                    {broken, []Entry{entry(t, "r0", strings.ReplaceAll(deployment, "ED25519", "RSA3072"))}, true, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text := docs(deployment, service)
			in := input(t, text, test.evidence)
			in.Past = test.past
			p := mustMake(t, in)
			if p.Held != test.held {
				t.Fatalf("held = %v, want %v: %+v", p.Held, test.held, p.Demands)
			}
			if !p.Held && mustBytes(t, p) != text {
				t.Errorf("not byte for byte:\n%s", mustBytes(t, p))
			}
			if !strings.Contains(p.WaitingFor(), test.message) {
				t.Errorf("waits for %q, want it to contain %q", p.WaitingFor(), test.message)
			}
		})
	}
}

func TestAnEntryOfTheSameRevisionNeedsNoRender(t *testing.T) {
	in := input(t, deployment, policy.Evidence{Problem: "no answer"})
	in.Past = []Entry{{Key: Key("r0", "{}"), Current: true, Render: func() (*manifest.Stream, error) { return nil, errors.New("no .git") }}}
	if p := mustMake(t, in); p.Held {
		t.Errorf("what is already synced was held: %s", p.WaitingFor())
	}
}

// A held sync writes history like any other, so the newest entries during a hold were not released.
func TestNewDuringAHoldIsWhatTheMarkersEntryLacks(t *testing.T) {
	noAnswer := policy.Evidence{Problem: "no answer"}
	entries := []Entry{entry(t, "r2", docs(deployment, service)), entry(t, "r1", deployment), entry(t, "r0", service)}
	tests := map[string]struct {
		marker string
		past   []Entry
		held   bool
	}{
		"a demand of two held syncs is still new":                  {Key("r0", "{}"), entries, true},
		"a demand that the released entry has is not new":          {Key("r1", "{}"), entries, false},
		"nothing was ever released":                                {noRelease, entries, true},
		"the released entry is no longer in the history":           {Key("gone", "{}"), entries, true},
		"a marker of another form is no marker, the newest counts": {"zzz", entries, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(t, deployment, noAnswer)
			in.Past = test.past
			in.Tracked = []Resource{markerOf(in, test.marker)}
			p := mustMake(t, in)
			if p.Held != test.held {
				t.Fatalf("held = %v, want %v", p.Held, test.held)
			}
			if p.Held && !strings.HasSuffix(p.marker.name, "-"+test.marker) {
				t.Errorf("the marker is %s, it must go on naming %s", p.marker.name, test.marker)
			}
		})
	}
}

func TestAnotherSourcesMarkerSaysNothing(t *testing.T) {
	in := input(t, deployment, policy.Evidence{Problem: "no answer"})
	in.Past = []Entry{entry(t, "r0", deployment)}
	other := in
	other.Source = "repo//other"
	in.Tracked = []Resource{markerOf(other, noRelease)}
	if p := mustMake(t, in); p.Held {
		t.Error("another source's hold made this source's demands new")
	}
}

func TestAForgedMarkerIsRefused(t *testing.T) {
	prefix := markerPrefix("web", "repo//web")
	escaped := strings.Replace(prefix, "grantfirst", `gr\x61ntfirst`, 1)
	tests := map[string]struct {
		manifest string
		refused  bool
	}{
		"a Hold with the name of this source's marker":       {"apiVersion: grantfirst.dev/v1alpha1\nkind: Hold\nmetadata: {name: " + prefix + "none}\n", true},
		"with the name in an escape":                         {"apiVersion: grantfirst.dev/v1alpha1\nkind: Hold\nmetadata: {name: \"" + escaped + "none\"}\n", true},
		"a Deployment with the name of this source's marker": {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: " + prefix + Key("r", "{}") + "}\n", true},
		"a ConfigMap that only mentions it":                  {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + prefix + "none}\n", false},
		"a Hold of another name is an ordinary object":       {"apiVersion: grantfirst.dev/v1alpha1\nkind: Hold\nmetadata: {name: mine}\n", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Make(input(t, docs(service, test.manifest), replicas(t)))
			if errors.Is(err, ErrForged) != test.refused {
				t.Errorf("error %v, want refused = %v", err, test.refused)
			}
		})
	}
}

func TestUnknownSigner(t *testing.T) {
	foreign := strings.ReplaceAll(deployment, "example.com/workload", "other.example/ca")
	released := []Entry{entry(t, "r0", foreign)}
	tests := map[string]struct {
		mode config.UnknownSigner
		past []Entry
		held bool
		err  string
	}{
		"hold: a new demand waits":               {config.UnknownHold, nil, true, ""},
		"hold: what was released before goes on": {config.UnknownHold, released, false, ""},
		"allow: it goes out":                     {config.UnknownAllow, nil, false, ""},
		"error: the object is named":             {config.UnknownError, nil, false, `apps/Deployment shop/web: volume "tls"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(t, foreign, replicas(t))
			in.Config.UnknownSigner = test.mode
			in.Past = test.past
			p, err := Make(in)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || p.Held != test.held {
				t.Errorf("held = %v, %v", p.Held, err)
			}
			if len(p.Demands) != 1 || p.Demands[0].Reason != ReasonUnknownSigner || p.Demands[0].Decision != policy.Unknown {
				t.Errorf("demands: %+v", p.Demands)
			}
		})
	}
}

func TestWaitingForTellsForgottenFromNotLoaded(t *testing.T) {
	tests := map[string]struct {
		text     string
		evidence policy.Evidence
		want     string
		wanted   bool
	}{
		"the grant is in this render":              {docs(deployment, policyObjectWeb), live(t, replicas(t, grantsNobody), grantsNobody), "granted by ConfigMap signer/policy", true},
		"the grant is in the live policy object":   {deployment, live(t, replicas(t, grantsNobody), grantsWeb), "not loaded yet", true},
		"nobody grants it":                         {deployment, live(t, replicas(t, grantsNobody), grantsNobody), "no policy grants it, waiting does not help", false},
		"this render's policy does not parse":      {docs(deployment, strings.ReplaceAll(policyObjectWeb, "[{", "[{[")), replicas(t, grantsNobody), "does not parse and will never be loaded", false},
		"there is no policy object at all":         {deployment, replicas(t, grantsNobody), "no policy object of this signer", false},
		"it is granted but not known to be loaded": {deployment, live(t, replicas(t, "?"), grantsWeb), "not known to be loaded", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := mustMake(t, input(t, test.text, test.evidence))
			if !p.Held || !strings.Contains(p.WaitingFor(), test.want) {
				t.Errorf("held %v: %s, want %q", p.Held, p.WaitingFor(), test.want)
			}
			if got := p.Demands[0].Wanted != ""; got != test.wanted {
				t.Errorf("wanted revision %q", p.Demands[0].Wanted)
			}
		})
	}
}

func TestTwoPolicyObjectsOfOneSignerAreAnError(t *testing.T) {
	_, err := Make(input(t, docs(deployment, policyObjectWeb, strings.ReplaceAll(policyObjectWeb, "name: policy", "name: policy-2")), replicas(t, grantsNobody)))
	if err == nil || !strings.Contains(err.Error(), "ConfigMap signer/policy-2: a second policy object") {
		t.Errorf("error %v", err)
	}
}

func TestObserveNeverHoldsAndNeverFails(t *testing.T) {
	for name, text := range map[string]string{
		"what would be held":     docs(deployment, service),
		"what would be an error": docs(deployment, policyObjectWeb, strings.ReplaceAll(policyObjectWeb, "name: policy", "name: policy-2")),
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, text, replicas(t, grantsNobody))
			in.Mode = config.Observe
			p := mustMake(t, in)
			if mustBytes(t, p) != text {
				t.Errorf("not the plain render:\n%s", mustBytes(t, p))
			}
			if !p.Held && p.Problem == "" {
				t.Error("neither a hold nor a problem is reported")
			}
			if _, err := p.Objects(); err != nil {
				t.Errorf("objects: %v", err)
			}
		})
	}
}

func TestOnlyWhatCanBeHeldHolds(t *testing.T) {
	annotate := func(key, value string) string {
		return strings.Replace(deployment, "  namespace: shop\n", "  namespace: shop\n  annotations: {"+key+": \""+value+"\"}\n", 1)
	}
	tests := map[string]struct {
		manifest string
		held     bool
	}{
		"a workload in the signer's own namespace": {strings.ReplaceAll(deployment, "namespace: shop", "namespace: signer"), false},
		"a hook that runs on deletion":             {annotate(annotationHook, "PostDelete"), false},
		"a Helm hook that runs on deletion":        {annotate(annotationHelmHook, "pre-delete"), false},
		"an object that its author skips":          {annotate(annotationHook, "Skip"), false},
		"a hook of the sync":                       {annotate(annotationHook, "PreSync"), true},
		"a Helm hook":                              {annotate(annotationHelmHook, "pre-install,pre-upgrade"), true},
		"Skip beside another type is a hook":       {annotate(annotationHook, "Skip,PostSync"), true},
		"skip in lower case is no Skip":            {annotate(annotationHook, "skip"), true},
		"a deletion hook that also runs on syncs":  {annotate(annotationHelmHook, "pre-install, post-delete"), true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if p := mustMake(t, input(t, docs(service, test.manifest), replicas(t, grantsNobody))); p.Held != test.held {
				t.Errorf("held = %v", p.Held)
			}
		})
	}
}

func TestWhatItsAuthorSkipsAsksForNothing(t *testing.T) {
	skipped := strings.Replace(deployment, "  namespace: shop\n", "  namespace: shop\n  annotations: {argocd.argoproj.io/hook: Skip}\n", 1)
	if p := mustMake(t, input(t, skipped, replicas(t, grantsNobody))); len(p.Demands) != 0 {
		t.Errorf("demands of pods that will never be made: %+v", p.Demands)
	}
}

func TestTheSameInputsGiveTheSameBytes(t *testing.T) {
	text := docs(deployment, service, policyObjectWeb)
	first := mustBytes(t, mustMake(t, input(t, text, replicas(t, grantsNobody, "?"))))
	for range 20 {
		if again := mustBytes(t, mustMake(t, input(t, text, replicas(t, grantsNobody, "?")))); again != first {
			t.Fatalf("other bytes:\n%s\nthan before:\n%s", again, first)
		}
	}
}

func asker(pod, serviceAccount string) demand.Asker {
	return demand.Asker{Pod: pod, Demand: demand.Demand{SignerName: "example.com/workload", Namespace: "shop", ServiceAccount: serviceAccount, KeyType: "ED25519"}}
}
