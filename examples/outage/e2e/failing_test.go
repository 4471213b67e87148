package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestAPreSyncHookThatFailsAfterTheReleaseIsRepeatedByTheApplicationAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		when, automated string
		retries         int64
	}{
		{"the sync is automated", "prune: true", 2},
		{"the sync is automated and heals itself", "prune: true, selfHeal: true", 2},
		{"the sync is automated and never retried", "prune: true", 0},
	} {
		t.Run(c.when, func(t *testing.T) {
			scenario(t, "16")
			if err := installed.Image(t.Context(), "example.test/fails", nil, 65532, "/usr/bin/false"); err != nil {
				t.Fatal(err)
			}
			s := newShop(t, setup{application: application{automated: c.automated, edit: func(o *unstructured.Unstructured) {
				retry := map[string]any{"limit": c.retries, "backoff": map[string]any{"duration": "1s", "factor": int64(1), "maxDuration": "1s"}}
				if err := unstructured.SetNestedMap(o.Object, retry, "spec", "syncPolicy", "retry"); err != nil {
					t.Fatal(err)
				}
			}}})
			fails := strings.Replace(strings.Replace(hooks, "example.test/hook", "example.test/fails", 1), "spec: {template", "spec: {backoffLimit: 0, template", 1)
			s.push("grant, switch, and a migration that fails", map[string]string{
				"app/policy.yaml": policy(grant), "app/web.yaml": workload + certificate, "app/hooks.yaml": fails,
			})
			s.awaitHeld()
			s.isHeld()
			s.load()
			s.await("the watcher says that the sync failed", func() bool { return len(s.events("SyncFailed")) > 0 })
			s.says("the Event: %s", s.events("SyncFailed")[0])
			operation := func() string {
				state, _, _ := unstructured.NestedMap(s.application().Object, "status", "operationState")
				return fmt.Sprint(state["startedAt"], state["phase"], state["retryCount"])
			}
			// A retry finds the Job of the try before at times, and counts that as its own.
			first, runs := operation(), s.counted()["before"]
			was := s.before.hooks["before"]
			if n := runs.were - was.were; n < 1 || n > 1+int(c.retries) || runs.succeeded != was.succeeded || s.counted()["after"] != s.before.hooks["after"] || !s.serve() {
				t.Errorf("hooks: %s after %v, the old pods serve: %t; want one failure and at most %d more by the Application's own retries, and nothing else applied", s.ran(), s.before.hooks, s.serve(), c.retries)
			}
			s.stays(15*time.Second, "nobody tries again", func() bool { return operation() == first && s.counted()["before"] == runs && s.serve() })
			s.remember()
			s.push("the migration is corrected", map[string]string{"app/hooks.yaml": hooks})
			s.awaitSwitched()
			s.awaitSettled()
			s.hooksRan(1)
			if m := s.markers(); len(m) > 0 {
				t.Errorf("%d markers are left", len(m))
			}
		})
	}
}
