package config

import (
	"strings"
	"testing"
	"time"
)

func TestTheClusterOfAnApplication(t *testing.T) {
	c, err := Parse([]byte(`apiVersion: grantfirst.dev/v1alpha1
kind: Config
clusters:
  - {name: one, applications: [one-*], kubeconfig: /k}
  - {name: project, projects: [p], applications: [two], kubeconfig: /k}
  - {name: eu, destinations: ["https://eu*", eu], kubeconfig: /k, context: x}
  - {name: here, applications: [three], inCluster: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	server := func(s string) *Destination { return &Destination{Server: s} }
	for name, test := range map[string]struct {
		of        Placement
		want, err string
	}{
		"by its name alone, whatever else is not known":           {Placement{Application: "one-a"}, "one", ""},
		"by its project and name":                                 {Placement{Application: "two", Project: "p"}, "project", ""},
		"another project goes on to the next":                     {Placement{Application: "two", Project: "q", Destination: server("https://eu.example")}, "eu", ""},
		"a project that is not known is not passed over":          {Placement{Application: "two", Destination: server("https://eu.example")}, "", "project is not known, and clusters[1] (project)"},
		"by the destination's server":                             {Placement{Application: "x", Destination: server("https://eu.example")}, "eu", ""},
		"by the destination's name":                               {Placement{Application: "x", Destination: &Destination{Name: "eu"}}, "eu", ""},
		"a destination that is not known is not passed over":      {Placement{Application: "three"}, "", "destination is not known, and clusters[2] (eu)"},
		"a later entry, once the destination is known":            {Placement{Application: "three", Destination: server("https://x")}, "here", ""},
		"Argo CD's own cluster needs no entry":                    {Placement{Application: "x", Destination: server("https://kubernetes.default.svc")}, "in-cluster", ""},
		"nor by its name":                                         {Placement{Application: "x", Destination: &Destination{Name: "in-cluster"}}, "in-cluster", ""},
		"any other destination needs one":                         {Placement{Application: "x", Destination: server("https://us.example")}, "", "https://us.example is not Argo CD's own cluster"},
		"a server that only looks like Argo CD's own":             {Placement{Application: "x", Destination: server("https://kubernetes.default.svc.evil")}, "", "is not Argo CD's own"},
		"a name beside another server does not make it one's own": {Placement{Application: "x", Destination: &Destination{Server: "https://us.example", Name: "in-cluster"}}, "", "is not Argo CD's own"},
		"an empty destination is none":                            {Placement{Application: "x", Destination: &Destination{}}, "", "is not Argo CD's own"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.Cluster(test.of)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("%v, %v, want %q", got, err, test.err)
				}
				return
			}
			if err != nil || got.Name != test.want {
				t.Errorf("%v, %v, want %s", got, err, test.want)
			}
		})
	}
	if _, err := Default().Cluster(Placement{Application: "x", Project: "p"}); err == nil {
		t.Error("without entries and without the destination some cluster is known")
	}
}

func TestWhatIsWrongWithClustersAndTimes(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"an entry that matches nothing":  {"clusters: [{name: a, kubeconfig: /k}]", "clusters[0]: matches nothing: give projects, applications or destinations"},
		"an entry without a name":        {"clusters: [{applications: [a], kubeconfig: /k}]", "clusters[0].name: missing"},
		"an entry without credentials":   {"clusters: [{name: a, applications: [a]}]", "clusters[0].kubeconfig: missing"},
		"two kinds of credentials":       {"clusters: [{name: a, applications: [a], kubeconfig: /k, inCluster: true}]", "clusters[0]: inCluster and kubeconfig"},
		"a pattern that is none":         {"clusters: [{name: a, destinations: ['[']  , kubeconfig: /k}]", "clusters[0].destinations[0]"},
		"a time that is none":            {"readTimeout: soon", `readTimeout: "soon" is no duration`},
		"a time longer than Argo CD's":   {"readTimeout: 5m", "readTimeout: 5m is not between 1s and 45s"},
		"no time at all":                 {"readTimeout: 0s", "readTimeout: 0s is not between"},
		"a namespace that cannot be one": {"argocdNamespace: Argo_CD", `argocdNamespace: "Argo_CD" is no namespace`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte("apiVersion: grantfirst.dev/v1alpha1\nkind: Config\n" + test.text + "\n"))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	if d := Default().Timeout(); d != 10*time.Second {
		t.Errorf("the default is %s", d)
	}
}
