package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// round is a change like that of switchOn which can come any number of times: each has a ServiceAccount of its own, so a demand that is new.
func (s *shop) round(n int) {
	s.Helper()
	s.remember()
	files := map[string]string{"app/web.yaml": strings.Replace(workload, "serviceAccountName: web", "serviceAccountName: "+account(n), 1) + certificate}
	var grants []string
	for i := 1; i <= n; i++ {
		grants = append(grants, strings.Replace(grant, `"web"`, `"`+account(i)+`"`, 1))
		files["app/account.yaml"] += "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: " + account(i) + "}\n"
	}
	files["app/policy.yaml"] = policy(grants...)
	s.push(fmt.Sprintf("the workload has a certificate as %s, and may have it", account(n)), files)
}

func account(n int) string { return fmt.Sprintf("web-%d", n) }

// isRound waits for the end of a round and checks that all of it was well: hooks ran once.
func (s *shop) isRound(n int) {
	s.Helper()
	s.await("the pods of "+account(n)+" run", func() bool {
		pods := s.pods()
		for _, p := range pods {
			if p.Spec.ServiceAccountName != account(n) || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
				return false
			}
		}
		return len(pods) == 2
	})
	s.isDone()
}

// isDone is isReleased for where it is not known how often the hold was synced: somebody's refresh finds a marker that says other things.
func (s *shop) isDone() {
	s.Helper()
	s.awaitSwitched()
	s.awaitSettled()
	s.hooksRan(1)
	if m := s.markers(); len(m) > 0 {
		s.Errorf("%d markers are left", len(m))
	}
}

// syncs counts the operations that have applied the workload from now on: full ones and partial ones.
func (s *shop) syncs() (full, partial func() int) {
	s.Helper()
	before := text(s.application(), "status", "operationState", "startedAt")
	all := map[string]bool{}
	s.app.listen(func(o *unstructured.Unstructured) {
		at := text(o, "status", "operationState", "startedAt")
		results, _, _ := unstructured.NestedSlice(o.Object, "status", "operationState", "syncResult", "resources")
		some, _, _ := unstructured.NestedSlice(o.Object, "status", "operationState", "operation", "sync", "resources")
		for _, r := range results {
			if r := r.(map[string]any); r["kind"] == "Deployment" && r["name"] == "web" && at != before {
				s.mutex.Lock()
				all[at] = len(some) > 0
				s.mutex.Unlock()
			}
		}
	})
	count := func(partial bool) int {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		n := 0
		for _, is := range all {
			if is == partial {
				n++
			}
		}
		return n
	}
	return func() int { return count(false) }, func() int { return count(true) }
}

// disturb refreshes the Application hard, as anybody may, at random moments until the function that it returns is called. That says how
// often.
func (s *shop) disturb() (stop func() int) {
	s.Helper()
	done, n := make(chan struct{}), 0
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Duration(rand.IntN(400)) * time.Millisecond):
			}
			patch := []byte(`{"metadata":{"annotations":{"argocd.argoproj.io/refresh":"hard"}}}`)
			_, err := s.objects.Resource(applications).Namespace(space).Patch(s.Context(), s.app.name, "application/merge-patch+json", patch, metav1.PatchOptions{})
			if err != nil {
				s.Error(err)
				return
			}
			n++
		}
	})
	return func() int {
		close(done)
		wait.Wait()
		s.says("refreshed hard by somebody else: %d times", n)
		return n
	}
}

func TestAnothersHardRefreshAtTheMomentOfReleaseChangesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ when, automated string }{
		{"the sync is automated", "prune: true"},
		{"the sync is automated and heals itself", "prune: true, selfHeal: true"},
	} {
		t.Run(c.when, func(t *testing.T) {
			scenario(t, "23")
			s := newShop(t, setup{application: application{automated: c.automated}})
			full, partial := s.syncs()
			for n := 1; n <= 3; n++ {
				s.round(n)
				s.awaitHeld()
				s.isHeld()
				s.load(0)
				stop := s.disturb()
				s.load(1)
				s.await("the release has begun", func() bool { return !s.held() })
				stop()
				s.isRound(n)
			}
			s.stays(5*time.Second, "nothing more happens", func() bool { return s.last() == settled })
			// A partial one may come before a full one where somebody's refresh found it released during a sync that was still held: Argo CD and
			// the watcher begin at the same moment then (docs/release.md).
			s.says("%d full syncs of the workload and %d partial ones", full(), partial())
			if full() != 3 {
				t.Errorf("%d full syncs of the workload, want three", full())
			}
			s.hooksRan(1) // since the last round
		})
	}
}

// What comes of a hard refresh without the watcher: where an Application heals itself, a partial sync.
func TestWithoutTheWatcherAHardRefreshSkipsTheHooks(t *testing.T) {
	scenario(t, "23")
	s := newShop(t, setup{application: application{byHand: true, automated: "prune: true, selfHeal: true"}})
	s.switchOn()
	s.awaitHeld()
	s.isHeld()
	s.load()
	s.refresh("hard")
	s.awaitSwitched()
	s.awaitSettled()
	s.hooksRan(0)
	if n, want := s.history(), s.before.history+1; n != want {
		t.Errorf("%d entries of history, want %d: a partial sync leaves none", n, want)
	}
}
