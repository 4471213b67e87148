package release

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// scrape gives the lines of all metrics but the buckets of histograms.
func scrape(t *testing.T, w *Watcher) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(w); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(text.String()), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "#") || strings.Contains(line, "_bucket{")
	})
}

func expectMetrics(t *testing.T, w *Watcher, want ...string) {
	t.Helper()
	got := scrape(t, w)
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("no %s in\n%s", line, strings.Join(got, "\n"))
		}
	}
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t)
		c.onPatch = c.argoCD
		c.signer(grantsNone)
		c.held("web")
		w := c.watch(t, nil)
		after(30 * time.Second)
		// What a second one loads makes the first one's policy no newer.
		c.replica("signer-2")
		c.loads("signer-2", grantsNone)
		after(time.Minute)
		none := policy.Revision([]byte(grantsNone))
		expectMetrics(t, w,
			`grantfirst_hold_age_seconds{application="web",hold="grantfirst-0000000000-none",namespace="argocd",signer="example.com/workload"} 89.9`,
			`grantfirst_hold_needs_person{application="web",hold="grantfirst-0000000000-none",namespace="argocd",reason="NobodyGrants"} 1`,
			`grantfirst_events_total{reason="NobodyGrants"} 1`,
			`grantfirst_evidence_readable{cluster="of Argo CD",signer="example.com/workload"} 1`,
			`grantfirst_replica_loaded_timestamp_seconds{cluster="of Argo CD",evidence="report",pod="signer-1",revision="`+none+`",signer="example.com/workload",strength="proof"} 9.466848e+08`,
			`grantfirst_releases_in_flight 0`)
		c.put(configMaps, `{apiVersion: v1, kind: ConfigMap, metadata: {name: grantfirst-overrides, namespace: argocd}, data: {web: '[{until: "2000-01-01T02:00:00Z", reason: INC-42}]'}}`)
		after(10 * time.Second)
		expectMetrics(t, w,
			`grantfirst_override_until_timestamp_seconds{application="web",namespace="argocd"} 9.46692e+08`,
			`grantfirst_unproven_demands_total{signer="example.com/workload",why="override"} 1`,
			`grantfirst_releases_total{outcome="released"} 1`,
			`grantfirst_release_begin_seconds_count 1`,
			`grantfirst_release_begin_seconds_sum 0`,
			`grantfirst_release_duration_seconds_sum 0.3`)
		c.loads("signer-1", grants("web"))
		c.loads("signer-2", grants("web"))
		after(3 * time.Hour)
		got := strings.Join(scrape(t, w), "\n")
		for _, gone := range []string{"grantfirst_hold_", "grantfirst_override", none} {
			if strings.Contains(got, gone) {
				t.Errorf("still %s in\n%s", gone, got)
			}
		}
	})
}

func TestARefreshThatIsRepeatedIsOneBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t)
		c.signer(grants("web"))
		c.held("web")
		w := c.watch(t, nil)
		after(10 * time.Second)
		if n := len(c.refreshes()); n < 2 {
			t.Fatalf("refreshed %d times, want it repeated", n)
		}
		expectMetrics(t, w, `grantfirst_release_begin_seconds_count 1`, `grantfirst_releases_in_flight 1`)
	})
}

func TestWhatOnlyWaitsForASyncWindowIsNoHoldAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t)
		c.signer(grants("web"))
		c.held("web")
		c.put(projects, `{apiVersion: argoproj.io/v1alpha1, kind: AppProject, metadata: {name: frozen, namespace: argocd},
			spec: {syncWindows: [{kind: deny, schedule: "0 0 * * *", duration: 24h, applications: ["*"]}]}}`)
		c.put(applications, strings.NewReplacer("project: default", "project: frozen", "sync: {status: Synced", "sync: {status: OutOfSync",
			"namespace: shop, name: web}", "namespace: shop, name: web, status: OutOfSync}",
			"name: "+markerOf("web")+", status: Synced}\n", "name: "+markerOf("web")+", status: OutOfSync, requiresPruning: true}\n").Replace(named(heldApplication, "web")))
		w := c.watch(t, nil)
		after(time.Minute)
		w.mutex.Lock()
		n := len(w.held)
		w.mutex.Unlock()
		if got := strings.Join(scrape(t, w), "\n"); n != 1 || strings.Contains(got, "grantfirst_hold_") {
			t.Errorf("%d Applications are looked after, want one that is not counted as held:\n%s", n, got)
		}
	})
}

func TestMetricsOfWhatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t)
		c.onPatch = c.argoCD
		c.refuse(1, apierrors.NewForbidden(applications.GroupResource(), "web", nil))
		c.signer(grants("web"))
		c.held("web")
		w := c.watch(t, nil)
		after(10 * time.Second)
		expectMetrics(t, w, `grantfirst_errors_total{reason="Forbidden",what="release"} 1`)
	})
}

func TestStrengthOfEvidence(t *testing.T) {
	known := policy.Replica{Policy: policy.Alternatives{}}
	for evidence, want := range map[string]string{config.Report: "proof", config.PodVolumes: "proof", config.Status: "controller", config.Settle: "assumption"} {
		s := &config.Signer{Evidence: evidence}
		if got := strength(s, &known); got != want {
			t.Errorf("%s is %s, want %s", evidence, got, want)
		}
		if got := strength(s, &policy.Replica{Problem: "no report"}); got != "none" {
			t.Errorf("%s that cannot be told is %s", evidence, got)
		}
	}
}
