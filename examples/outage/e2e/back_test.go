package e2e_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// kept is an object of the first revision that the change deletes and the old pods may need.
const kept = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\ndata: {a: b}\n"

// newShopWithMore is a shop whose change deletes something, too.
func newShopWithMore(t *testing.T, automated string) *shop {
	t.Helper()
	files := usual()
	files["app/kept.yaml"] = kept
	return newShop(t, setup{application: application{automated: automated}, files: files})
}

func (s *shop) switchOnAndDelete() {
	s.Helper()
	s.push("the workload has a certificate, and may have it; it needs no ConfigMap any more", map[string]string{
		"app/policy.yaml": policy(grant), "app/web.yaml": workload + certificate, "app/kept.yaml": gone,
	})
}

// uid of the ConfigMap that the change deletes, empty where it is gone.
func (s *shop) kept() string {
	s.Helper()
	c, err := s.CoreV1().ConfigMaps("shop-"+s.name).Get(s.Context(), "kept", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		s.Fatal(err)
	}
	return string(c.UID)
}

// granted reports whether the live policy has the workload's grant.
func (s *shop) granted() bool {
	s.Helper()
	c, err := s.CoreV1().ConfigMaps("signing-"+s.name).Get(s.Context(), "policy", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return strings.Contains(c.Data["policy.json"], "shop-"+s.name)
}

// revert undoes the newest commit.
func (s *shop) revert() {
	s.Helper()
	s.git("revert", "--no-edit", "HEAD")
	s.says("git: %s: %s", s.git("rev-parse", "--short", "HEAD"), s.git("log", "-1", "--format=%s"))
	for _, a := range s.apps {
		a.refresh("normal")
	}
}

func TestARevertDuringTheHoldLeavesEverythingAsItWas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ when, automated string }{
		{"the sync is automated", "prune: true"},
		{"the sync is automated and heals itself", "prune: true, selfHeal: true"},
		{"the sync is automated and prunes nothing", "prune: false"},
	} {
		t.Run(c.when, func(t *testing.T) {
			scenario(t, "19")
			s := newShopWithMore(t, c.automated)
			kept := s.kept()
			s.switchOnAndDelete()
			s.awaitHeld()
			s.isHeld()
			if !s.granted() {
				t.Errorf("the grant is not applied during the hold")
			}
			s.revert()
			s.await("the marker is gone and the grant withdrawn", func() bool { return len(s.markers()) == 0 && !s.granted() })
			s.awaitSettled()
			s.load()
			s.stays(5*time.Second, "everything is as it was", func() bool { return s.last() == settled && s.serve() && s.kept() == kept && len(s.markers()) == 0 })
			s.hooksRan(1) // for the commit that reverts
		})
	}
}

func TestARevertAfterTheReleaseIsAnOrdinarySync(t *testing.T) {
	scenario(t, "19")
	s := newShopWithMore(t, "prune: true")
	s.switchOnAndDelete()
	s.awaitHeld()
	s.isHeld()
	s.load()
	s.isReleased(1)
	s.remember()
	s.revert()
	s.await("the pods without a certificate run", s.withoutCertificate)
	s.awaitSettled()
	s.hooksRan(1)
	if s.granted() || s.kept() == "" || len(s.markers()) > 0 {
		t.Errorf("granted: %t, the ConfigMap is back: %t, %d markers; want everything as at first", s.granted(), s.kept() != "", len(s.markers()))
	}
}

func (s *shop) withoutCertificate() bool {
	s.Helper()
	pods := s.pods()
	for i := range pods {
		if len(pods[i].Spec.Volumes) > 0 || !ready(&pods[i]) || pods[i].DeletionTimestamp != nil {
			return false
		}
	}
	return len(pods) == 2
}

// entries are those of the history, the oldest first.
func (a *app) entries() []map[string]any {
	a.shop.Helper()
	all, _, _ := unstructured.NestedSlice(a.application().Object, "status", "history")
	var out []map[string]any
	for _, e := range all {
		out = append(out, e.(map[string]any))
	}
	return out
}

// rollback is that of the UI: it switches automation off and asks for a sync of an entry of the history, with what it says of the source
// and without hooks (argo-cd v2.14 server/application/application.go Rollback, util/argo/argo.go SetAppOperation). It returns when
// that is over.
func (a *app) rollback(entry map[string]any) {
	s := a.shop
	s.Helper()
	a.patch(`{"spec":{"syncPolicy":{"automated":null}}}`)
	s.await("no operation runs", func() bool {
		app := a.application()
		_, stands := app.Object["operation"]
		return !stands && text(app, "status", "operationState", "phase") != "Running"
	})
	app := a.application()
	options, _, _ := unstructured.NestedSlice(app.Object, "spec", "syncPolicy", "syncOptions")
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": app.GetResourceVersion()},
		"status":   map[string]any{"operationState": nil},
		"operation": map[string]any{
			"initiatedBy": map[string]any{"username": "admin"},
			"sync": map[string]any{
				"revision": entry["revision"], "source": entry["source"], "prune": true, "syncOptions": options,
				"syncStrategy": map[string]any{"apply": map[string]any{}},
			},
		},
	})
	if err != nil {
		s.Fatal(err)
	}
	a.patch(string(patch))
	s.await("the rollback is over", func() bool {
		app := a.application()
		by, _, _ := unstructured.NestedString(app.Object, "status", "operationState", "operation", "initiatedBy", "username")
		return by == "admin" && text(app, "status", "operationState", "phase") == "Succeeded"
	})
}

func TestARollbackDuringTheHoldToWhatRunsEndsItUntilAutomationIsBack(t *testing.T) {
	scenario(t, "19")
	s := newShopWithMore(t, "prune: true")
	kept := s.kept()
	s.switchOnAndDelete()
	s.awaitHeld()
	s.isHeld()
	s.rollback(s.entries()[0])
	s.await("the marker is gone and the grant withdrawn", func() bool { return len(s.markers()) == 0 && !s.granted() })
	s.load()
	s.stays(5*time.Second, "nothing else has changed", func() bool {
		return s.serve() && s.kept() == kept && len(s.markers()) == 0 && maps.Equal(s.counted(), s.before.hooks)
	})
	s.patch(`{"spec":{"syncPolicy":{"automated":{"prune":true}}}}`)
	s.awaitHeld()
	s.isHeld()
	s.load()
	s.awaitSwitched()
	s.awaitSettled()
	s.hooksRan(1)
	if m := s.markers(); len(m) > 0 || s.kept() != "" {
		t.Errorf("%d markers are left, the ConfigMap is there: %t; want the change done", len(m), s.kept() != "")
	}
}

func TestARollbackDuringTheHoldToTheHeldEntryLeavesAPersonToSync(t *testing.T) {
	scenario(t, "19")
	s := newShopWithMore(t, "prune: true")
	kept := s.kept()
	s.switchOnAndDelete()
	s.awaitHeld()
	s.isHeld()
	s.rollback(s.entries()[1])
	s.stays(5*time.Second, "nothing has changed", func() bool { return s.serve() && s.kept() == kept && s.granted() && len(s.markers()) == 1 })
	s.load()
	s.await("an Event says that a person has to sync", func() bool { return len(s.events("ManualSync")) > 0 })
	s.says("the Event: %s", s.events("ManualSync")[0])
	s.stays(5*time.Second, "nobody syncs it", func() bool { return s.serve() && s.kept() == kept && maps.Equal(s.counted(), s.before.hooks) })
	s.sync()
	s.awaitSwitched()
	s.awaitSettled()
	s.hooksRan(1)
	if m := s.markers(); len(m) > 0 || s.kept() != "" {
		t.Errorf("%d markers are left, the ConfigMap is there: %t; want the change done", len(m), s.kept() != "")
	}
}

func TestARollbackAfterTheReleaseToTheHeldEntryUndoesNothingAndToTheOneBeforeEverything(t *testing.T) {
	scenario(t, "19")
	s := newShopWithMore(t, "prune: true")
	s.switchOnAndDelete()
	s.awaitHeld()
	s.isHeld()
	s.load()
	s.isReleased(1)
	s.remember()
	s.rollback(s.entries()[1])
	s.stays(5*time.Second, "nothing has changed", func() bool { return s.serve() && s.granted() && s.kept() == "" && len(s.markers()) == 0 })
	s.rollback(s.entries()[0])
	s.await("the pods without a certificate run", s.withoutCertificate)
	if s.granted() || s.kept() == "" || len(s.markers()) > 0 {
		t.Errorf("granted: %t, the ConfigMap is back: %t, %d markers; want everything as at first", s.granted(), s.kept() != "", len(s.markers()))
	}
	if !maps.Equal(s.counted(), s.before.hooks) {
		t.Errorf("hooks: %s, want none: a rollback runs none", s.ran())
	}
}

// Of two commits during one hold only the second is ever released. Argo CD has the held manifests of the first in its cache for a day, and a
// hard refresh generates those of the newest commit only.
func TestARollbackToACommitThatWasHeldTillTheNextGetsItsHeldManifests(t *testing.T) {
	scenario(t, "19")
	s := newShopWithMore(t, "prune: true")
	s.switchOnAndDelete()
	s.awaitHeld()
	s.isHeld()
	first := s.entries()[1]
	s.push("another image, too", map[string]string{"app/web.yaml": strings.Replace(workload, "example.test/web:v1", "example.test/web:v2", 1) + certificate})
	// There is nothing to sync: what is not held is as it was.
	s.awaitHeld()
	s.isHeld()
	s.load()
	s.isReleased(1)
	s.remember()
	s.rollback(first)
	s.stays(8*time.Second, "nothing has changed", func() bool { return s.serve() && s.image() == "example.test/web:v2" && s.granted() && s.kept() == "" })
	s.says("%d markers, the Application is %s", len(s.markers()), s.last())
	s.await("no marker is left", func() bool { return len(s.markers()) == 0 })
	s.patch(`{"spec":{"syncPolicy":{"automated":{"prune":true}}}}`)
	s.await("it is as Git says", func() bool { return strings.HasPrefix(s.last(), "Synced Healthy") })
	if !s.serve() || s.image() != "example.test/web:v2" {
		t.Errorf("the image is %s, the pods are those of before: %t; want nothing changed", s.image(), s.serve())
	}
}
