package e2e_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
)

var nothing = fields.Everything()

func TestWithoutGrantfirstOneCommitWithGrantAndSwitchEndsInStuckPods(t *testing.T) {
	s := newShop(t, "plain", false, "prune: true")
	s.switchOn()
	s.await("the kubelet says that a denial is final", func() bool {
		for _, d := range s.denied() {
			if strings.Contains(d, "FailedMount") && strings.Contains(d, `PodCertificateRequest was permanently denied: reason="NoGrant"`) {
				return true
			}
		}
		return false
	})
	s.await("the signers have the grant", s.loaded)
	running := 0
	for _, p := range s.pods() {
		if p.Status.Phase == corev1.PodRunning {
			running++
		}
	}
	if running > 0 {
		t.Errorf("%d pods run, want none: Recreate has ended the old ones, and the new ones are stuck", running)
	}
}

func TestTheGrantGoesFirstAndTheOldPodsServeUntilItIsLoaded(t *testing.T) {
	s := newShop(t, "hand", true, "prune: true")
	before := s.pods()
	s.switchOn()
	s.await("the Application is held", s.held)
	s.isHeld(before)
	s.await("the signers have the grant", s.loaded)
	if !s.serve(before) || !s.held() {
		t.Errorf("no hand was moved, but the Application is %s and the old pods serve: %t", s.last(), s.serve(before))
	}
	s.refresh("hard")
	s.await("a fresh comparison wants the workload and the end of the marker", func() bool { return strings.HasPrefix(s.last(), "OutOfSync") })
	s.patch(`{"status":{"operationState":null},"operation":{"sync":{"prune":true,"revision":"` + s.git("rev-parse", "HEAD") + `","syncOptions":["CreateNamespace=true"]}}}`)
	s.isReleased()
}

func TestTheWatcherReleasesWithoutAnyHand(t *testing.T) {
	install(t).watchers(t, 2)
	defer installed.watchers(t, 0)
	for _, c := range []struct{ when, name, automated string }{
		{"the sync is automated", "watched", "prune: true"},
		{"the sync is automated and heals itself", "healing", "prune: true, selfHeal: true"},
		{"the sync is automated and prunes nothing", "keeping", "prune: false"},
	} {
		t.Run(c.when, func(t *testing.T) {
			s := newShop(t, c.name, true, c.automated)
			before := s.pods()
			s.switchOn()
			s.await("the Application is held", s.held)
			s.isHeld(before)
			s.isReleased()
		})
	}
}

// isHeld checks what can be seen during a hold.
func (s *shop) isHeld(before []corev1.Pod) {
	s.Helper()
	if !s.serve(before) {
		s.Errorf("the old pods do not serve during the hold")
	}
	app := s.application()
	var marker map[string]any
	resources, _, _ := unstructured.NestedSlice(app.Object, "status", "resources")
	for _, r := range resources {
		if r := r.(map[string]any); r["kind"] == "Hold" {
			marker = r
		}
	}
	message, _, _ := unstructured.NestedString(marker, "health", "message")
	s.says("the reason in Argo CD: %s", message)
	if !strings.Contains(message, "shop-"+s.name+"/web") {
		s.Errorf("the marker in status.resources: %v, want the reason as its health's message", marker)
	}
	if m := s.markers(); len(m) != 1 {
		s.Errorf("%d markers, want one", len(m))
	}
	if got, want := s.ran(), "before 1/1, after 1/1"; got != want {
		s.Errorf("hooks during the hold: %s, want those of the first sync: %s", got, want)
	}
}

// isReleased waits for the end and checks that all of it was well.
func (s *shop) isReleased() {
	s.Helper()
	s.await("the new pods run", func() bool {
		for _, p := range s.pods() {
			if p.Status.Phase != corev1.PodRunning || len(p.Spec.Volumes) != 1 || p.DeletionTimestamp != nil {
				return false
			}
		}
		return len(s.pods()) == 2
	})
	s.await("the Application is Synced and Healthy", func() bool { return s.last() == settled })
	if got, want := s.ran(), "before 2/2, after 2/2"; got != want {
		s.Errorf("hooks: %s, want one more of each for the release: %s", got, want)
	}
	if m := s.markers(); len(m) > 0 {
		s.Errorf("%d markers are left", len(m))
	}
	if d := s.denied(); len(d) > 0 {
		s.Errorf("denied:\n%s", strings.Join(d, "\n"))
	}
	history, _, _ := unstructured.NestedSlice(s.application().Object, "status", "history")
	if len(history) != 3 {
		s.Errorf("%d entries of history, want three: at first, held, released", len(history))
	}
}

// loaded reports whether every signer says that it has the grant.
func (s *shop) loaded() bool {
	s.Helper()
	list, err := s.CoreV1().ConfigMaps("signing-"+s.name).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	reports := 0
	for _, c := range list.Items {
		if c.Name == "policy" || c.Name == "kube-root-ca.crt" {
			continue
		}
		if !strings.Contains(c.Data["policy"], "shop-"+s.name) {
			return false
		}
		reports++
	}
	return reports >= 2
}
