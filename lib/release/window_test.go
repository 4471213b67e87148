package release

import (
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// Monday noon, UTC.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestSyncWindows(t *testing.T) {
	for name, c := range map[string]struct {
		windows string
		closed  bool
		until   time.Duration // from noon; 0 for not known
	}{
		"without windows nothing is closed":                     {``, false, 0},
		"a deny window closes while it lasts":                   {`[{kind: deny, schedule: "0 11 * * *", duration: 2h, applications: [web]}]`, true, time.Hour},
		"and not before it begins":                              {`[{kind: deny, schedule: "30 12 * * *", duration: 2h, applications: [web]}]`, false, 30 * time.Minute},
		"an allow window that is not open closes":               {`[{kind: allow, schedule: "0 22 * * *", duration: 1h, applications: [web]}]`, true, 10 * time.Hour},
		"and lets it sync while it lasts":                       {`[{kind: allow, schedule: "0 11 * * *", duration: 90m, applications: [web]}]`, false, 30 * time.Minute},
		"one allow window that is open is enough":               {`[{kind: allow, schedule: "0 22 * * *", duration: 1h, applications: [web]}, {kind: allow, schedule: "0 11 * * *", duration: 90m, applications: [web]}]`, false, 30 * time.Minute},
		"but a deny window wins":                                {`[{kind: allow, schedule: "0 11 * * *", duration: 4h, applications: [web]}, {kind: deny, schedule: "0 11 * * *", duration: 2h, applications: [web]}]`, true, time.Hour},
		"a window of other Applications closes nothing":         {`[{kind: deny, schedule: "* * * * *", duration: 1h, applications: ["api-*"]}]`, false, 0},
		"an Application fits by a pattern":                      {`[{kind: deny, schedule: "0 11 * * *", duration: 2h, applications: ["w*"]}]`, true, time.Hour},
		"by its namespace":                                      {`[{kind: deny, schedule: "0 11 * * *", duration: 2h, applications: [api], namespaces: [shop]}]`, true, time.Hour},
		"by its cluster":                                        {`[{kind: deny, schedule: "0 11 * * *", duration: 2h, clusters: ["https://kubernetes.*"]}]`, true, time.Hour},
		"with the AND operator all lists that are there count":  {`[{kind: deny, schedule: "0 11 * * *", duration: 2h, applications: [api], namespaces: [shop], andOperator: true}]`, false, 0},
		"and all of them fit":                                   {`[{kind: deny, schedule: "0 11 * * *", duration: 2h, applications: [web], namespaces: [shop], andOperator: true}]`, true, time.Hour},
		"a window without lists is about nothing":               {`[{kind: deny, schedule: "0 11 * * *", duration: 2h}]`, false, 0},
		"a zone is that of the schedule":                        {`[{kind: deny, schedule: "0 20 * * *", duration: 2h, timeZone: Asia/Tokyo, applications: [web]}]`, true, time.Hour},
		"a zone that is not known is UTC":                       {`[{kind: deny, schedule: "0 11 * * *", duration: 2h, timeZone: Mars/Olympus, applications: [web]}]`, true, time.Hour},
		"what Argo CD cannot understand lets nothing sync":      {`[{kind: deny, schedule: soon, duration: 2h, applications: [web]}]`, true, 0},
		"nor does a duration":                                   {`[{kind: allow, schedule: "* * * * *", duration: long, applications: [web]}]`, true, 0},
		"a schedule that never comes is active, as Argo CD has": {`[{kind: deny, schedule: "0 0 30 2 *", duration: 1h, applications: [web]}]`, true, 0},
		"what is no pattern fits nothing":                       {`[{kind: deny, schedule: "0 11 * * *", duration: 2h, applications: ["[web"]}]`, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var windows []window
			if err := yaml.UnmarshalStrict([]byte(c.windows), &windows); err != nil {
				t.Fatal(err)
			}
			a := &Application{}
			a.Metadata.Name, a.Spec.Destination.Namespace, a.Spec.Destination.Server = "web", "shop", "https://kubernetes.default.svc"
			is, until := closed(windows, a, noon)
			want := time.Time{}
			if c.until != 0 {
				want = noon.Add(c.until)
			}
			if is != c.closed || !until.Equal(want) {
				t.Errorf("closed %t until %s, want %t until %s", is, until, c.closed, want)
			}
		})
	}
}
