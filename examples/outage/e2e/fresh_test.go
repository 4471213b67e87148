package e2e_test

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// second is another workload.
func second() string {
	return strings.NewReplacer("name: web", "name: api", "app: web", "app: api", "serviceAccountName: web", "serviceAccountName: api", "web:v1", "api:v1").Replace(workload)
}

// theSigner is all that a signer needs, as an Application brings it: namespace, rights, also those of grantfirst, and the signer.
func (s *shop) theSigner() string {
	s.Helper()
	stream := "apiVersion: v1\nkind: Namespace\nmetadata: {name: signing-$NAME}\n---\n" + s.signer()
	for _, file := range []string{"signer-rbac.yaml", "watch-signer-rights.yaml"} {
		text, err := os.ReadFile("../../argocd/" + file)
		if err != nil {
			s.Fatal(err)
		}
		stream += "---\n" + strings.ReplaceAll(string(text), "\nmetadata:\n", "\nmetadata:\n  namespace: signing-$NAME\n")
	}
	return stream
}

const both = grant + `, {"namespace": "shop-$NAME", "serviceAccount": "api", "usage": "client"}`

func TestANewApplicationBringsTheSignerItsRightsItsPolicyAndTwoWorkloads(t *testing.T) {
	scenario(t, "3")
	s := newShop(t, setup{fresh: true, files: map[string]string{
		"app/web.yaml": workload + certificate, "app/api.yaml": second() + certificate, "app/hooks.yaml": hooks, "app/policy.yaml": policy(both),
	}})
	s.commit("the signer", map[string]string{"app/signer.yaml": s.theSigner()})
	s.app = s.create(s.name, application{automated: "prune: true"})
	// While the signer starts the Application is not Suspended but Progressing, which is worse.
	s.await("there is a marker", func() bool { return len(s.markers()) > 0 })
	if p := append(s.pods(), s.podsOf("api")...); len(p) > 0 {
		t.Errorf("%d pods beside the marker", len(p))
	}
	s.bothCome()
	if n := s.history(); n != 2 {
		t.Errorf("%d entries of history, want 2: held and released", n)
	}
}

func TestTheSignerMayComeWithALaterApplication(t *testing.T) {
	scenario(t, "3")
	s := newShop(t, setup{fresh: true, files: map[string]string{
		"app/web.yaml": workload + certificate, "app/api.yaml": second() + certificate, "app/hooks.yaml": hooks, "signer/policy.yaml": policy(both),
	}})
	s.commit("the signer", map[string]string{"signer/signer.yaml": s.theSigner()})
	s.app = s.create(s.name, application{automated: "prune: true"})
	s.awaitHeld()
	if p := s.pods(); len(p) > 0 {
		t.Errorf("%d pods before there is a signer", len(p))
	}
	s.create(s.name+"-signer", application{automated: "prune: true", paths: []string{"signer"}})
	s.bothCome()
}

// bothCome waits until both workloads run with their certificates.
func (s *shop) bothCome() {
	s.Helper()
	s.awaitSwitched()
	s.await("the pods of the second workload run, too", func() bool {
		n := 0
		for _, p := range s.podsOf("api") {
			if p.Status.Phase == corev1.PodRunning && len(p.Spec.Volumes) == 1 {
				n++
			}
		}
		return n == 2
	})
	s.awaitSettled()
	s.hooksRan(1)
	if m := s.markers(); len(m) > 0 {
		s.Errorf("%d markers are left", len(m))
	}
}
