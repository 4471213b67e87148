package e2e_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// mounts are volumes of the workload: its settings.
const mounts = `        volumeMounts: [{name: settings, mountPath: /settings}]
      volumes:
      - name: settings
        configMap: {name: settings}
`

func TestThreeCommitsDuringOneHoldTakeNothingAwayFromTheOldPods(t *testing.T) {
	scenario(t, "4")
	files := usual()
	files["app/web.yaml"], files["app/settings.yaml"] = workload+mounts, settings("settings")
	s := newShop(t, setup{files: files, application: application{automated: "prune: true"}})
	next := func(message string, files map[string]string) {
		s.push(message, files)
		s.awaitHeld()
		s.isHeld()
		if !s.exists("settings") {
			t.Error("the ConfigMap that the old pods mount is gone")
		}
	}
	next("grant and switch; the workload no longer needs its settings", map[string]string{
		"app/policy.yaml": policy(grant), "app/web.yaml": workload + certificate, "app/settings.yaml": gone,
	})
	next("another image", map[string]string{"app/web.yaml": strings.ReplaceAll(workload, "web:v1", "web:v2") + certificate})
	s.refreshed("hard")
	if s.isHeld(); !s.exists("settings") {
		t.Error("after a hard refresh the ConfigMap that the old pods mount is gone")
	}
	next("a further ConfigMap", map[string]string{"app/more.yaml": settings("more")})
	if s.exists("more") {
		t.Error("what a later commit adds goes out during the hold")
	}
	// One of the old pods has to start anew, and finds what it mounts.
	if err := s.CoreV1().Pods("shop-"+s.name).Delete(t.Context(), s.pods()[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.await("the successor of an old pod runs", func() bool {
		pods := s.pods()
		for _, p := range pods {
			if !ready(&p) || p.DeletionTimestamp != nil || p.Spec.Containers[0].Image != "example.test/web:v1" {
				return false
			}
		}
		return len(pods) == 2
	})
	// The later commits change nothing of what goes out during the hold, so there was one sync.
	s.load()
	s.isReleased(1)
	if s.exists("settings") || !s.exists("more") {
		t.Errorf("after the release the old ConfigMap is there: %t, and the new one: %t", s.exists("settings"), s.exists("more"))
	}
	for _, p := range s.pods() {
		if p.Spec.Containers[0].Image != "example.test/web:v2" {
			t.Errorf("pod %s has image %s, want that of the second commit", p.Name, p.Spec.Containers[0].Image)
		}
	}
}

func TestAForgottenGrantIsNamedAndALaterCommitBringsIt(t *testing.T) {
	scenario(t, "10")
	s := newShop(t, setup{application: application{automated: "prune: true"}})
	s.push("the workload has a certificate; the grant was forgotten", map[string]string{"app/web.yaml": workload + certificate})
	s.awaitHeld()
	s.isHeld()
	var message string
	s.await("an Event on the Application says that nobody grants it", func() bool {
		message = s.told("NobodyGrants")
		return message != ""
	})
	s.says("the Event: %s", message)
	for _, part := range []string{"example.test/" + s.name, "shop-" + s.name, "web"} {
		if !strings.Contains(message, part) {
			t.Errorf("the Event says %q, want it to name %s", message, part)
		}
	}
	s.isHeld()
	s.push("the grant", map[string]string{"app/policy.yaml": policy(grant)})
	s.await("the policy is applied", func() bool { return s.applied("policy", "shop-"+s.name) })
	s.awaitHeld()
	s.load()
	s.isReleased(2)
}

func TestAnUnrelatedEditOfThePolicyInFlightHoldsNobody(t *testing.T) {
	scenario(t, "14")
	s := newShop(t, setup{application: application{automated: "prune: true"}})
	s.switchOn()
	s.awaitHeld()
	s.load()
	s.isReleased(1)
	s.remember()
	held := s.heldFor()
	// One edit is live and not loaded when the workload changes, another comes with that commit.
	s.push("the grant of another", map[string]string{"app/policy.yaml": policy(grant, unrelated)})
	s.await("the policy is applied", func() bool { return s.applied("policy", "elsewhere") })
	s.awaitSettled()
	s.push("the grant of a third, and a new image", map[string]string{
		"app/policy.yaml": policy(grant, unrelated, strings.ReplaceAll(unrelated, "other", "third")), "app/web.yaml": strings.ReplaceAll(workload, "web:v1", "web:v2") + certificate,
	})
	s.await("the new image runs", func() bool {
		pods := s.pods()
		for _, p := range pods {
			if !ready(&p) || p.DeletionTimestamp != nil || p.Spec.Containers[0].Image != "example.test/web:v2" {
				return false
			}
		}
		return len(pods) == 2
	})
	s.awaitSettled()
	s.hooksRan(2)
	if strings.Contains(s.policies(), "elsewhere") {
		t.Error("a signer has loaded the edit: it was not in flight, and this proves nothing")
	}
	if now := s.heldFor(); now > held {
		t.Errorf("held for %s, want no hold", now-held)
	}
}

func TestDeletingTheApplicationDuringAHoldRemovesEverything(t *testing.T) {
	scenario(t, "20")
	files := usual()
	files["app/old.yaml"] = settings("old")
	s := newShop(t, setup{files: files, application: application{automated: "prune: true, selfHeal: true", edit: func(o *unstructured.Unstructured) {
		o.SetFinalizers([]string{"resources-finalizer.argocd.argoproj.io"})
	}}})
	s.push("the workload has a certificate, and may have it", map[string]string{
		"app/policy.yaml": policy(grant), "app/web.yaml": workload + certificate, "app/old.yaml": gone,
	})
	s.awaitHeld()
	s.isHeld()
	if !s.exists("old") {
		t.Error("what the commit deletes is gone during the hold")
	}
	client := s.objects.Resource(applications).Namespace(space)
	if err := client.Delete(t.Context(), s.app.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.await("the Application is gone", func() bool {
		_, err := client.Get(t.Context(), s.app.name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if m := s.markers(); len(m) > 0 {
		t.Errorf("%d markers are left", len(m))
	}
	s.await("no pod and no ConfigMap is left", func() bool { return len(s.pods()) == 0 && !s.exists("old") })
	if _, err := s.CoreV1().ConfigMaps("signing-"+s.name).Get(t.Context(), "policy", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the policy: %v, want it to be gone", err)
	}
	if _, err := s.AppsV1().Deployments("shop-"+s.name).Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Deployment: %v, want it to be gone", err)
	}
}

func TestTheReleaseWaitsForTheSlowerOfTwoReplicas(t *testing.T) {
	scenario(t, "9")
	s := newShop(t, setup{application: application{automated: "prune: true, selfHeal: true"}})
	s.switchOn()
	s.awaitHeld()
	s.load(0)
	// Anybody's hard refresh brings the marker up to date, which is a sync that is still held.
	s.refreshed("hard")
	s.await("the marker says that one replica has the grant and the other has not", func() bool { return s.verdicts() == "granted notGranted" })
	s.await("that is synced, and held", func() bool { return s.held() && s.history() == s.before.history+2 })
	s.isHeld()
	s.load(1)
	s.isReleased(2)
}

// verdicts are what the marker says that the signer's replicas make of the demand.
func (s *shop) verdicts() string {
	s.Helper()
	var all []string
	for _, m := range s.markers() {
		demands, _, _ := unstructured.NestedSlice(m.Object, "spec", "demands")
		for _, d := range demands {
			replicas, _, _ := unstructured.NestedSlice(d.(map[string]any), "replicas")
			for _, r := range replicas {
				all = append(all, r.(map[string]any)["decision"].(string))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// told is the message of an Event with that reason on the Application, empty where there is none.
func (a *app) told(reason string) string {
	a.shop.Helper()
	list, err := a.shop.CoreV1().Events(space).List(a.shop.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Application,involvedObject.name=" + a.name + ",reason=" + reason})
	if err != nil {
		a.shop.Fatal(err)
	}
	var newest *corev1.Event
	for i := range list.Items {
		if e := &list.Items[i]; newest == nil || newest.LastTimestamp.Before(&e.LastTimestamp) {
			newest = e
		}
	}
	if newest == nil {
		return ""
	}
	return newest.Message
}

// refreshed asks Argo CD to compare again and waits until it has. What it says of the time has seconds.
func (s *shop) refreshed(kind string) {
	s.Helper()
	before := text(s.application(), "status", "reconciledAt")
	s.await("Argo CD has compared again", func() bool {
		now := s.application()
		if text(now, "status", "reconciledAt") != before {
			return now.GetAnnotations()["argocd.argoproj.io/refresh"] == ""
		}
		if now.GetAnnotations()["argocd.argoproj.io/refresh"] == "" {
			s.refresh(kind)
		}
		return false
	})
}

// applied reports whether the live policy has that word.
func (s *shop) applied(configMap, word string) bool {
	s.Helper()
	c, err := s.CoreV1().ConfigMaps("signing-"+s.name).Get(s.Context(), configMap, metav1.GetOptions{})
	return err == nil && strings.Contains(c.Data["policy.json"], word)
}

// policies are the texts that the signers say they have loaded.
func (s *shop) policies() string {
	s.Helper()
	pods, err := s.CoreV1().Pods("signing-"+s.name).List(s.Context(), metav1.ListOptions{LabelSelector: "app=signer"})
	if err != nil {
		s.Fatal(err)
	}
	var all string
	for _, p := range pods.Items {
		all += s.reports(p.Name)
	}
	return all
}
