package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestAManualApplicationIsRefreshedAndSyncedByAPerson(t *testing.T) {
	scenario(t, "5")
	s := newShop(t, setup{})
	s.switchOn()
	s.await("the new revision is to be synced", func() bool { return strings.HasPrefix(s.last(), "OutOfSync") })
	s.sync()
	s.awaitHeld()
	s.isHeld()
	s.load()
	s.await("the watcher has had it compared with fresh manifests", func() bool { return strings.HasPrefix(s.last(), "OutOfSync") })
	s.await("an Event says that it can be synced", func() bool { return s.told("ManualSync") != "" })
	s.says("the Event: %s", s.told("ManualSync"))
	if !s.serve() {
		t.Error("nobody has synced, but the old pods do not serve")
	}
	s.sync()
	s.isReleased(1)
}

// Argo CD's documentation has a patch of the operation alone for kubectl. v2.14 then takes the results of the held sync for its own, and waits
// for the marker that the manifests no longer have.
func TestASyncByKubectlThatTakesTheHeldOneForItsOwnIsSaidAndCanBeEnded(t *testing.T) {
	scenario(t, "5")
	if !install(t).isV2(t) {
		t.Skip("this is v2's alone")
	}
	s := newShop(t, setup{})
	s.switchOn()
	s.sync()
	s.awaitHeld()
	s.load()
	s.await("an Event says that it can be synced", func() bool { return s.told("ManualSync") != "" })
	s.patch(`{"operation":{"sync":{"prune":true,"syncOptions":["CreateNamespace=true"]}}}`)
	s.await("an Event says that the operation hangs", func() bool { return s.told("OperationHangs") != "" })
	s.says("the Event: %s", s.told("OperationHangs"))
	if !s.serve() {
		t.Error("the operation hangs, but the old pods do not serve")
	}
	s.patch(`{"status":{"operationState":{"phase":"Terminating"}}}`) // argocd app terminate-op
	s.await("the operation is over", func() bool { return strings.HasSuffix(s.last(), "Failed") })
	s.sync()
	s.isReleased(1)
}

// newer gives hooks another image: a live Job cannot be changed into that.
func newer(hooks string) string { return strings.ReplaceAll(hooks, "hook:v1", "hook:v2") }

func TestWithServerSideDiffAHoldIsNoErrorThoughAHookOfTheLastSyncIsLive(t *testing.T) {
	scenario(t, "6")
	files := usual()
	files["app/old.yaml"] = settings("old") + "---\n" + service
	s := newShop(t, setup{files: files, application: application{automated: "prune: true, selfHeal: true", annotations: map[string]string{
		"argocd.argoproj.io/compare-options": "ServerSideDiff=true",
	}}})
	s.push("the workload has a certificate, and may have it; hooks have another image; two objects go", map[string]string{
		"app/policy.yaml": policy(grant), "app/web.yaml": workload + certificate, "app/hooks.yaml": newer(hooks), "app/old.yaml": gone,
	})
	s.awaitHeld()
	s.isHeld()
	s.refreshed("hard")
	s.isHeld()
	if !s.exists("old") {
		t.Error("what the commit deletes is gone during the hold")
	}
	s.noConditions()
	s.load()
	s.isReleased(1)
	s.await("what the commit deletes is gone", func() bool { return !s.exists("old") })
}

const service = `apiVersion: v1
kind: Service
metadata: {name: old}
spec: {selector: {app: web}, ports: [{port: 443}]}
`

// noConditions checks that Argo CD has no complaint.
func (s *shop) noConditions() {
	s.Helper()
	conditions, _, _ := unstructured.NestedSlice(s.application().Object, "status", "conditions")
	if len(conditions) > 0 {
		s.Errorf("conditions of the Application: %v", conditions)
	}
}

func TestWithServerSideApplyAndServerSideDiffAHoldIsAsWithout(t *testing.T) {
	scenario(t, "6")
	if install(t).isV2(t) {
		t.Skip("v2 cannot apply Deployments server-side on this Kubernetes, as the next test shows")
	}
	s := newShop(t, setup{application: application{automated: "prune: true, selfHeal: true", options: []string{"ServerSideApply=true"}, annotations: map[string]string{
		"argocd.argoproj.io/compare-options": "ServerSideDiff=true",
	}}})
	s.push("the workload has a certificate, and may have it; hooks have another image", map[string]string{
		"app/policy.yaml": policy(grant), "app/web.yaml": workload + certificate, "app/hooks.yaml": newer(hooks),
	})
	s.awaitHeld()
	s.isHeld()
	s.refreshed("hard")
	s.isHeld()
	s.noConditions()
	s.load()
	s.isReleased(1)
}

// Argo CD v2.14 knows no field of Deployments that is newer than Kubernetes 1.31, and compares server-side applied ones by all fields.
func TestWithServerSideApplyV2IsAsBrokenAsWithoutGrantfirst(t *testing.T) {
	scenario(t, "6")
	if !install(t).isV2(t) {
		t.Skip("this is v2's alone")
	}
	for _, plain := range []bool{true, false} {
		s := newShop(t, setup{application: application{plain: plain, automated: "prune: true"}, files: map[string]string{
			"app/hooks.yaml": hooks, "app/policy.yaml": policy(),
		}})
		s.app.patch(`{"spec":{"syncPolicy":{"syncOptions":["CreateNamespace=true","ServerSideApply=true"]}}}`)
		s.push("the workload", map[string]string{"app/web.yaml": workload})
		s.await("Argo CD cannot compare", func() bool {
			return strings.Contains(fmt.Sprint(s.application().Object["status"]), "terminatingReplicas")
		})
	}
}

// isV2 reports whether it is Argo CD v2 that runs.
func (i *installation) isV2(t *testing.T) bool {
	t.Helper()
	d, err := i.AppsV1().Deployments(space).Get(t.Context(), "argocd-repo-server", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return strings.Contains(c.Image, "/argocd:v2.") })
}

func TestWavesAndSyncOptionsKeepTheirMeaning(t *testing.T) {
	for _, c := range []struct {
		when    string
		options []string
	}{
		{"there are waves", nil},
		{"there are waves and PruneLast", []string{"PruneLast=true"}},
		{"there are waves, PruneLast and ApplyOutOfSyncOnly", []string{"PruneLast=true", "ApplyOutOfSyncOnly=true"}},
	} {
		t.Run(c.when, func(t *testing.T) {
			scenario(t, "7")
			files := usual()
			files["app/web.yaml"] = inWave("2", workload)
			files["app/policy.yaml"] = inWave("3", policy())
			files["app/first.yaml"] = inWave("-1", settings("first"))
			files["app/last.yaml"] = inWave("5", settings("last"))
			files["app/old.yaml"] = inWave("1", settings("old"))
			s := newShop(t, setup{files: files, application: application{automated: "prune: true", options: c.options}})
			s.push("the workload has a certificate, and may have it", map[string]string{
				"app/policy.yaml": inWave("3", policy(grant)), "app/web.yaml": inWave("2", workload+certificate), "app/old.yaml": gone,
				"app/last.yaml": inWave("5", strings.ReplaceAll(settings("last"), "blue", "green")),
			})
			s.awaitHeld()
			s.isHeld()
			if !s.exists("old") {
				t.Error("what the commit deletes is gone during the hold")
			}
			s.load()
			s.isReleased(1)
			s.await("what the commit deletes is gone", func() bool { return !s.exists("old") })
		})
	}
}

// inWave puts every object of a stream into a sync wave. Each has its metadata in one line.
func inWave(wave, stream string) string {
	lines := strings.SplitAfter(stream, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "metadata: {") {
			lines[i] = strings.TrimSuffix(line, "}\n") + `, annotations: {argocd.argoproj.io/sync-wave: "` + wave + `"}}` + "\n"
		}
	}
	return strings.Join(lines, "")
}
