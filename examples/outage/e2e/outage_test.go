package e2e_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestWithoutGrantfirstOneCommitWithGrantAndSwitchEndsInStuckPods(t *testing.T) {
	scenario(t, "1")
	title("WITHOUT GRANTFIRST", "One commit gives a workload a certificate, and its signer the grant for it. The workload's Deployment has strategy Recreate.")
	s := newShop(t, setup{application: application{plain: true, automated: "prune: true"}})
	s.switchOn()
	s.isStuck()
	s.load()
	running := 0
	for _, p := range s.pods() {
		if p.Status.Phase == corev1.PodRunning {
			running++
		}
	}
	s.says("the signers have the grant by now, and %d of %d pods run: the others stay stuck until somebody deletes them", running, len(s.pods()))
	if running > 0 {
		t.Errorf("%d pods run, want none: Recreate has ended the old ones, and the new ones are stuck", running)
	}
}

func TestTheGrantGoesFirstAndTheOldPodsServeUntilItIsLoaded(t *testing.T) {
	scenario(t, "1")
	s := newShop(t, setup{application: application{byHand: true, automated: "prune: true"}})
	s.switchOn()
	s.awaitHeld()
	s.isHeld()
	s.load()
	if !s.serve() || !s.held() {
		t.Errorf("no hand was moved, but the Application is %s and the old pods serve: %t", s.last(), s.serve())
	}
	s.refresh("hard")
	s.await("a fresh comparison wants the workload and the end of the marker", func() bool { return strings.HasPrefix(s.last(), "OutOfSync") })
	s.patch(`{"status":{"operationState":null},"operation":{"sync":{"prune":true,"revision":"` + s.git("rev-parse", "HEAD") + `","syncOptions":["CreateNamespace=true"]}}}`)
	s.isReleased(1)
}

func TestTheWatcherReleasesWithoutAnyHand(t *testing.T) {
	for _, c := range []struct {
		when, automated string
		polls           []string
	}{
		{"the sync is automated", "prune: true", automatic},
		{"the sync is automated and heals itself", "prune: true, selfHeal: true", nil},
		{"the sync is automated and prunes nothing", "prune: false", nil},
		{"the sync is automated, heals itself and prunes nothing", "prune: false, selfHeal: true", nil},
	} {
		t.Run(c.when, func(t *testing.T) {
			scenario(t, "5")
			title("WITH GRANTFIRST", "The same commit, and the Application names the plugin; "+c.when+".")
			s := newShop(t, setup{application: application{automated: c.automated}, polls: c.polls})
			s.switchOn()
			if c.polls == nil {
				s.awaitHeld()
				s.isHeld()
				s.load()
			}
			s.isReleased(1)
			if s.heldFor() == 0 {
				t.Error("it was never held")
			}
		})
	}
}

// isStuck waits for the outage.
func (s *shop) isStuck() {
	s.Helper()
	s.await("the kubelet says that a denial is final", func() bool {
		return slices.ContainsFunc(s.denied(), func(d string) bool {
			return strings.Contains(d, "FailedMount") && strings.Contains(d, `PodCertificateRequest was permanently denied: reason="NoGrant"`)
		})
	})
}

// marker is the entry in status.resources by which people see the hold; nil where there is none.
func (a *app) marker() map[string]any {
	a.shop.Helper()
	resources, _, _ := unstructured.NestedSlice(a.application().Object, "status", "resources")
	for _, r := range resources {
		if r := r.(map[string]any); r["kind"] == "Hold" {
			return r
		}
	}
	return nil
}

// reason is what Argo CD shows people of a hold.
func (a *app) reason() string {
	a.shop.Helper()
	if text(a.application(), "status", "resourceHealthSource") == "appTree" {
		// Argo CD 3 keeps it in its own cache, from the marker by the same health check.
		for _, m := range a.shop.markers() {
			return text(&m, "spec", "waitingFor")
		}
	}
	message, _, _ := unstructured.NestedString(a.marker(), "health", "message")
	return message
}

// isHeld checks what can be seen during a hold: all that was there before is there still.
func (s *shop) isHeld() {
	s.Helper()
	if !s.serve() {
		s.Errorf("the old pods do not serve during the hold")
	}
	reason := s.reason()
	s.says("the reason in Argo CD: %s", reason)
	if !strings.Contains(reason, "shop-"+s.name+"/web") {
		s.Errorf("the marker in status.resources: %v, want the reason as its health's message", s.marker())
	}
	if m := s.markers(); len(m) != 1 {
		s.Errorf("%d markers, want one", len(m))
	}
	if !maps.Equal(s.counted(), s.before.hooks) {
		s.Errorf("hooks during the hold: %s, want those of before: %v", s.ran(), s.before.hooks)
	}
}

// isReleased waits for the end and checks that all of it was well. held is how many syncs there were during the hold.
func (s *shop) isReleased(held int) {
	s.Helper()
	s.awaitSwitched()
	s.awaitSettled()
	s.hooksRan(1)
	if m := s.markers(); len(m) > 0 {
		s.Errorf("%d markers are left", len(m))
	}
	if n, want := s.history(), s.before.history+held+1; n != want {
		s.Errorf("%d entries of history, want %d: one for each sync during the hold and one for the release", n, want)
	}
}

// awaitSwitched waits until all of the workload runs with its certificate.
func (s *shop) awaitSwitched() {
	s.Helper()
	s.await("the new pods run", func() bool {
		pods := s.pods()
		for _, p := range pods {
			if p.Status.Phase != corev1.PodRunning || len(p.Spec.Volumes) != 1 || p.DeletionTimestamp != nil {
				return false
			}
		}
		return len(pods) == 2
	})
}

// hooksRan checks that each hook ran so often since remember, and never failed.
func (s *shop) hooksRan(times int) {
	s.Helper()
	for name, n := range s.counted() {
		was := s.before.hooks[name]
		if n.succeeded-was.succeeded != times || n.were-was.were != times {
			s.Errorf("hook %s: there were %d more and %d succeeded, want %d of each", name, n.were-was.were, n.succeeded-was.succeeded, times)
		}
	}
}
