package hold

import (
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/policy"
)

func TestAnOverrideLetsGoWhatItNames(t *testing.T) {
	unknown := policy.Evidence{Kind: config.PodVolumes, Problem: "the API server does not answer"}
	for name, test := range map[string]struct {
		evidence policy.Evidence
		override Override
		held     bool
	}{
		"the whole Application, a refusal":  {replicas(t, grantsNobody), Override{}, false},
		"the whole Application, an unknown": {unknown, Override{}, false},
		"this demand":                       {replicas(t, grantsNobody), Override{SignerName: "example.com/workload", Namespace: "shop", ServiceAccount: "web"}, false},
		"another signer":                    {replicas(t, grantsNobody), Override{SignerName: "example.com/other"}, true},
		"another namespace":                 {replicas(t, grantsNobody), Override{Namespace: "other"}, true},
		"another ServiceAccount":            {replicas(t, grantsNobody), Override{ServiceAccount: "other"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, docs(deployment), test.evidence)
			test.override.Reason, test.override.Until = "INC-1", "noon"
			in.Overrides = []Override{{ServiceAccount: "somebody else"}, test.override}
			p := mustMake(t, in)
			d := p.Demands[0]
			if p.Held != test.held || d.Holds != test.held || (d.Override == nil) != test.held {
				t.Errorf("held %v, demand %+v", p.Held, d)
			}
			if !test.held && (mustBytes(t, p) != docs(deployment) || d.Override.String() != "override until noon: INC-1") {
				t.Errorf("%s:\n%s", d.Override, mustBytes(t, p))
			}
			if d.LetGo() {
				t.Error("it passes for one that was released before")
			}
		})
	}
}

func TestAnOverrideOfAnUnknownSigner(t *testing.T) {
	in := input(t, docs(strings.ReplaceAll(deployment, "example.com/workload", "example.com/other")), replicas(t))
	if p := mustMake(t, in); !p.Held {
		t.Fatal("not held without one")
	}
	in.Overrides = []Override{{Reason: "r", Until: "u"}}
	if p := mustMake(t, in); p.Held {
		t.Error("held")
	}
}

func TestADemandSaysWhyItCountsAsNew(t *testing.T) {
	for name, test := range map[string]struct {
		past    []Entry
		unknown string
		key     string
		want    string
	}{
		"the released render lacks it":         {[]Entry{entry(t, "r0", docs(service))}, "", "", ""},
		"nothing was synced":                   {nil, "", "", "no sync of this source has been released yet"},
		"nothing was released":                 {[]Entry{entry(t, "r0", docs(deployment))}, "", noRelease, "no sync of this source has been released yet"},
		"what was released has scrolled past":  {[]Entry{entry(t, "r0", docs(deployment))}, "", Key("r9", "{}"), "no longer in the Application's history"},
		"what was released cannot be rendered": {[]Entry{unreadable("r0", "no such commit")}, "", "", "cannot be rendered again: no such commit"},
		"the Application could not be read":    {nil, "the Application is away", "", "the Application is away"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, docs(deployment), policy.Evidence{Problem: "away"})
			in.Past, in.PastUnknown = test.past, test.unknown
			if test.key != "" {
				in.Tracked = []Resource{markerOf(in, test.key)}
			}
			p := mustMake(t, in)
			if d := p.Demands[0]; !d.New || !strings.Contains(d.NewBecause, test.want) || test.want == "" && d.NewBecause != "" {
				t.Errorf("new %v because %q", d.New, d.NewBecause)
			}
			if test.unknown != "" && !strings.Contains(p.WaitingFor(), "it counts as new because "+test.unknown) {
				t.Errorf("the hold does not say it: %s", p.WaitingFor())
			}
		})
	}
}

// The Application could not be read when the hold was made, so its marker has the other name.
func TestAMarkerOfTheOtherNameIsTheSameHold(t *testing.T) {
	in := input(t, docs(deployment), policy.Evidence{Problem: "away"})
	in.OtherSource = "other name"
	other := in
	other.Source = in.OtherSource
	// The newest sync is that of the hold itself; taken for a release, its demand would go out.
	in.Past = []Entry{entry(t, "r1", docs(deployment)), entry(t, "r0", docs(service))}
	released := in
	if p := mustMake(t, released); p.Held {
		t.Fatal("held without a marker: the test shows nothing")
	}
	in.Tracked = []Resource{markerOf(other, noRelease)}
	if p := mustMake(t, in); !p.Held || !p.Demands[0].New {
		t.Error("its demand looks released")
	}
	t.Run("the marker of the proper name knows more", func(t *testing.T) {
		in.Tracked = []Resource{markerOf(other, noRelease), markerOf(in, Key("r1", "{}"))}
		if p := mustMake(t, in); p.Held {
			t.Error("held although that entry was released")
		}
	})
	t.Run("it is no keeper", func(t *testing.T) {
		in.Tracked = []Resource{markerOf(other, noRelease)}
		in.Tracked[0].Group, in.Tracked[0].Kind = "apps", "Deployment"
		for _, action := range actions(t, mustMake(t, in)) {
			if strings.Contains(action, string(Keep)) {
				t.Error(action)
			}
		}
	})
	t.Run("a source that ships one is refused", func(t *testing.T) {
		marker := markerOf(other, noRelease)
		in.render(t, docs(deployment, "apiVersion: grantfirst.dev/v1alpha1\nkind: Hold\nmetadata: {name: "+marker.Name+"}\n"))
		if _, err := Make(in); err == nil {
			t.Error("taken")
		}
	})
}

func TestAnOverrideOfTheWholeApplicationLetsGrantsBeTakenAway(t *testing.T) {
	nobody := strings.Replace(policyObjectWeb, grantsWeb, grantsNobody, 1)
	for name, test := range map[string]struct {
		override Override
		held     bool
	}{
		"of the whole Application": {Override{Reason: "INC-1", Until: "noon"}, false},
		"of one demand":            {Override{Reason: "INC-1", Until: "noon", ServiceAccount: "web"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, docs(nobody), live(t, replicas(t, grantsWeb), grantsWeb))
			in.Asking, in.Overrides = []demand.Asker{asker("shop/web-1", "web")}, []Override{test.override}
			p := mustMake(t, in)
			if p.Held != test.held || (len(p.Overridden) == 1) == test.held {
				t.Errorf("held %v, announced %q", p.Held, p.Overridden)
			}
			if !test.held && mustBytes(t, p) != docs(nobody) {
				t.Errorf("out:\n%s", mustBytes(t, p))
			}
		})
	}
}
