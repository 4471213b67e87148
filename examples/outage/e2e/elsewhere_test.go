package e2e_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apart are the usual files with the policy in a folder of its own.
func apart() map[string]string {
	return map[string]string{"app/web.yaml": workload, "app/hooks.yaml": hooks, "policy/policy.yaml": policy()}
}

func TestTheGrantMayBeInAnotherApplicationThanTheWorkload(t *testing.T) {
	scenario(t, "2")
	s, of := newApart(t, application{automated: "prune: true"})
	s.remember()
	s.commit("the workload has a certificate, and may have it", map[string]string{"policy/policy.yaml": policy(grant), "app/web.yaml": workload + certificate})
	s.app.refresh("normal")
	s.app.discovered()
	s.awaitHeld()
	s.isHeld()
	of.refresh("normal")
	of.discovered()
	s.await("the policy is applied", func() bool { return s.applied("policy", "shop-"+s.name) })
	if !s.serve() {
		t.Error("the old pods do not serve after the policy was applied")
	}
	s.load()
	s.isReleased(1)
	if held := of.heldFor(); held > 0 {
		t.Errorf("the Application with the policy was held for %s", held)
	}
}

func TestWithoutGrantfirstAGrantInAnotherApplicationComesTooLate(t *testing.T) {
	scenario(t, "2")
	s, of := newApart(t, application{automated: "prune: true", plain: true})
	s.commit("the workload has a certificate, and may have it", map[string]string{"policy/policy.yaml": policy(grant), "app/web.yaml": workload + certificate})
	s.app.refresh("normal")
	of.refresh("normal")
	s.isStuck()
}

// newApart is a shop whose policy is deployed by an Application of its own.
func newApart(t *testing.T, with application) (*shop, *app) {
	t.Helper()
	var of *app
	s := newShop(t, setup{application: with, files: apart(), also: func(s *shop) {
		with.paths = []string{"policy"}
		of = s.create(s.name+"-policy", with)
	}})
	return s, of
}

func TestOfTwoSourcesOneHasTheGrantAndTheOtherTheSwitchAndEachDeletesAnObject(t *testing.T) {
	scenario(t, "18")
	files := apart()
	files["policy/old.yaml"], files["app/old.yaml"] = settings("old-policy"), settings("old-web")
	s := newShop(t, setup{files: files, application: application{automated: "prune: true", paths: []string{"policy", "app"}}})
	// No comparison is under way that would see one source before the commit and the other after it. Up to v3.1 Argo CD does not sync such a
	// mixture again by itself.
	s.refreshed("normal")
	s.push("the workload has a certificate, and may have it", map[string]string{
		"policy/policy.yaml": policy(grant), "app/web.yaml": workload + certificate, "policy/old.yaml": gone, "app/old.yaml": gone,
	})
	s.awaitHeld()
	s.isHeld()
	// Each source is held by itself, and nothing in the first asks for a certificate.
	s.await("what the other source deletes is gone", func() bool { return !s.exists("old-policy") })
	if !s.exists("old-web") {
		t.Error("what the held source deletes is gone during the hold")
	}
	s.load()
	s.isReleased(1)
	s.await("what the held source deletes is gone", func() bool { return !s.exists("old-web") })
}

// settings is a ConfigMap.
func settings(name string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {colour: blue}\n"
}

// exists reports whether a ConfigMap is in the workload's namespace.
func (s *shop) exists(configMap string) bool {
	s.Helper()
	_, err := s.CoreV1().ConfigMaps("shop-"+s.name).Get(s.Context(), configMap, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		s.Fatal(err)
	}
	return err == nil
}
