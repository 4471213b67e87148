package e2e_test

import (
	"context"
	"regexp"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

var projects = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "appprojects"}

// newProject makes a project like the default one, with what else its spec has, and returns its name.
func newProject(t *testing.T, more string) string {
	t.Helper()
	i := install(t)
	project := &unstructured.Unstructured{}
	err := yaml.Unmarshal([]byte(`apiVersion: argoproj.io/v1alpha1
kind: AppProject
metadata: {generateName: windows-}
spec:
  clusterResourceWhitelist: [{group: '*', kind: '*'}]
  destinations: [{namespace: '*', server: '*'}]
  sourceRepos: ['*']
  `+more+"\n"), &project.Object)
	if err != nil {
		t.Fatal(err)
	}
	client := i.objects.Resource(projects).Namespace(space)
	made, err := client.Create(t.Context(), project, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Delete(context.Background(), made.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return made.GetName()
}

// The windows of a project. Each minute an hour begins in which nothing may be synced; or a minute once a year.
const (
	shut = `[{kind: deny, schedule: '* * * * *', duration: 1h, applications: ['*']}]`
	open = `[{kind: deny, schedule: '0 0 1 1 *', duration: 1m, applications: ['*']}]`
)

func (i *installation) setWindows(t *testing.T, project, windows string) {
	t.Helper()
	patch, err := yaml.YAMLToJSON([]byte("spec: {syncWindows: " + windows + "}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.objects.Resource(projects).Namespace(space).Patch(t.Context(), project, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

var patches = regexp.MustCompile(`msg=(arm|refresh|sync|terminate|toggle) `)

// patched is how often the watcher has patched the Application, by its log.
func (a *app) patched() int {
	a.shop.Helper()
	n := 0
	for _, line := range a.watcherLog() {
		if patches.MatchString(line) {
			n++
		}
	}
	return n
}

func TestAClosedSyncWindowIsWaitedForWithFewPatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ when, automated string }{
		{"the sync is automated", "prune: true"},
		{"the sync is automated and heals itself", "prune: true, selfHeal: true"},
	} {
		t.Run(c.when, func(t *testing.T) {
			scenario(t, "17")
			project := newProject(t, "syncWindows: "+open)
			s := newShop(t, setup{application: application{automated: c.automated, project: project}})
			s.switchOn()
			s.awaitHeld()
			s.isHeld()
			s.setWindows(t, project, shut)
			s.says("the window is closed")
			s.load()
			s.stays(45*time.Second, "nothing is synced", func() bool { return s.serve() && len(s.markers()) == 1 })
			if n := s.patched(); n == 0 || n >= 5 {
				t.Errorf("%d patches by the watcher, want fewer than five, and at least the one that refreshes", n)
			}
			s.says("the watcher has patched it %d times", s.patched())
			s.setWindows(t, project, open)
			s.says("the window is open")
			s.refresh("normal") // Argo CD looks every three minutes
			s.isReleased(1)
			if n := s.patched(); n >= 5 {
				t.Errorf("%d patches by the watcher, want fewer than five", n)
			}
			by, _, _ := unstructured.NestedMap(s.application().Object, "status", "operationState", "operation", "initiatedBy")
			s.says("the sync was begun by %v", by)
		})
	}
}

func TestAWindowThatIsClosedBeforeTheCommitKeepsItOut(t *testing.T) {
	scenario(t, "17")
	project := newProject(t, "syncWindows: "+open)
	s := newShop(t, setup{application: application{automated: "prune: true", project: project}})
	s.setWindows(t, project, shut)
	s.switchOn()
	s.await("the Application is out of sync", func() bool { return s.last() != settled })
	s.stays(30*time.Second, "nothing is synced", func() bool { return s.serve() && len(s.markers()) == 0 && !s.granted() })
	if n := s.patched(); n >= 5 {
		t.Errorf("%d patches by the watcher, want fewer than five", n)
	}
	s.says("the watcher has patched it %d times", s.patched())
	s.setWindows(t, project, open)
	s.refresh("normal")
	s.awaitHeld()
	s.isHeld()
	s.load()
	s.isReleased(1)
}
