package config

import (
	"strings"
	"testing"
)

func TestSignerIsTheExactOneElseTheLongestPrefix(t *testing.T) {
	c := &Config{Signers: []Signer{
		{SignerName: "example.com/*"}, {SignerName: "example.com/work*"}, {SignerName: "example.com/workload"}, {SignerName: "example.com/workload-*"},
	}}
	for name, want := range map[string]string{
		"example.com/workload":   "example.com/workload",
		"example.com/workload-a": "example.com/workload-*",
		"example.com/workload-":  "example.com/workload-*",
		"example.com/workloads":  "example.com/work*",
		"example.com/other":      "example.com/*",
		"example.com/":           "example.com/*",
		"example.comx/other":     "",
		"example.org/workload":   "",
		"":                       "",
	} {
		got := ""
		if s := c.Signer(name); s != nil {
			got = s.SignerName
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestTheFirstOverrideThatSetsAFieldWins(t *testing.T) {
	c := Default()
	c.Overrides = []Override{
		{Projects: []string{"sandbox-*"}, Marker: MarkerDeployment},
		{Applications: []string{"*-demo"}, Mode: Observe},
		{Projects: []string{"sandbox-*", "team-a"}, Applications: []string{"web", "team-a_*"}, Mode: Enforce, Marker: MarkerHold},
		{Projects: []string{"sandbox-*", "team-a"}, Mode: Observe},
	}
	for name, c2 := range map[string]struct {
		project, application string
		mode                 Mode
		marker               string
	}{
		"no override matches: the file's own":           {"default", "web", Enforce, MarkerHold},
		"one that sets only the marker leaves the mode": {"sandbox-1", "web", Enforce, MarkerDeployment},
		"mode and marker come from different overrides": {"sandbox-1", "x-demo", Observe, MarkerDeployment},
		"the later one wins where the earlier is quiet": {"sandbox-1", "x", Observe, MarkerDeployment},
		"projects and applications must both match":     {"team-a", "team-a_web", Enforce, MarkerHold},
		"one of two lists is not enough":                {"team-b", "team-a_web", Enforce, MarkerHold},
		"an unknown project is matched by no name":      {"", "web", Enforce, MarkerHold},
		"applications alone match in any project":       {"", "x-demo", Observe, MarkerHold},
	} {
		t.Run(name, func(t *testing.T) {
			mode, marker := c.For(c2.project, c2.application)
			if mode != c2.mode || marker != c2.marker {
				t.Errorf("got %s and %s, want %s and %s", mode, marker, c2.mode, c2.marker)
			}
		})
	}
}

func TestAnOverrideWithoutPatternsMatchesNothing(t *testing.T) {
	c := Default()
	c.Overrides = []Override{{Mode: Observe}}
	if mode, _ := c.For("", ""); mode != Enforce {
		t.Errorf("got %s", mode)
	}
}

func TestPatternsMatchWholeNames(t *testing.T) {
	for name, c := range map[string]struct {
		pattern, name string
		want          bool
	}{
		"a name matches itself":                      {"web", "web", true},
		"a part does not match":                      {"web", "web-1", false},
		"a star matches nothing too":                 {"web*", "web", true},
		"a star matches a slash":                     {"*web", "team/web", true},
		"a star matches across slashes":              {"a*z", "a/b/c/z", true},
		"a question mark matches a slash":            {"team?web", "team/web", true},
		"a slash matches only itself":                {"team/web", "team_web", false},
		"a slash matches itself":                     {"team/*", "team/web", true},
		"a question mark matches exactly one":        {"web-?", "web-", false},
		"a class matches":                            {"web-[0-9]", "web-7", true},
		"a backslash takes the meaning from a star":  {`web\*`, "webx", false},
		"many stars are no trouble":                  {strings.Repeat("*a", 50), strings.Repeat("a", 5000) + "b", false},
		"a star matches the empty name of a project": {"*", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := anyFits([]string{c.pattern}, c.name); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestConfigMapMatches(t *testing.T) {
	for name, c := range map[string]struct {
		m      ConfigMap
		name   string
		labels map[string]string
		want   bool
	}{
		"a name matches exactly":                   {ConfigMap{Name: "policy"}, "policy", nil, true},
		"a name matches no longer one":             {ConfigMap{Name: "policy"}, "policy-2", nil, false},
		"a prefix matches a longer name":           {ConfigMap{NamePrefix: "policy-"}, "policy-2", nil, true},
		"a prefix matches nothing else":            {ConfigMap{NamePrefix: "policy-"}, "my-policy-2", nil, false},
		"a selector matches labels":                {ConfigMap{Selector: "a=b"}, "x", map[string]string{"a": "b"}, true},
		"a selector does not match other labels":   {ConfigMap{Selector: "a=b"}, "x", map[string]string{"a": "c"}, false},
		"a broken selector matches nothing":        {ConfigMap{Selector: "a in ("}, "x", nil, false},
		"nothing matches where nothing is written": {ConfigMap{}, "x", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.m.Matches(c.name, c.labels); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
