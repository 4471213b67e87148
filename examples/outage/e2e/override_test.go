package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// signers are the pods of the signers.
func (s *shop) signers() []corev1.Pod {
	s.Helper()
	list, err := s.CoreV1().Pods("signing-"+s.name).List(s.Context(), metav1.ListOptions{LabelSelector: "app=signer"})
	if err != nil {
		s.Fatal(err)
	}
	return list.Items
}

// silence has signers that do not say what they have loaded, and speak has them say it again. Both make new pods.
func (s *shop) silence() {
	s.Helper()
	s.replaceSigners(strings.ReplaceAll(s.signer(), ", --report", ""))
}
func (s *shop) speak() { s.Helper(); s.replaceSigners(s.signer()) }

func (s *shop) replaceSigners(text string) {
	s.Helper()
	before := s.signers()
	s.apply(text)
	s.await("the signers are others", func() bool {
		return !slices.ContainsFunc(s.signers(), func(p corev1.Pod) bool {
			return slices.ContainsFunc(before, func(b corev1.Pod) bool { return b.UID == p.UID })
		})
	})
	s.awaitSigners()
}

// awaitRestarts waits until each signer has ended as often and is there again. Then it has loaded what it ended for.
func (s *shop) awaitRestarts(times int32) {
	s.Helper()
	s.await("the signers have loaded the policy", func() bool {
		return !slices.ContainsFunc(s.signers(), func(p corev1.Pod) bool {
			return !ready(&p) || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].RestartCount < times
		})
	})
}

// grantfirst runs the command as an admin does.
func (s *shop) grantfirst(args ...string) string {
	s.Helper()
	file := filepath.Join(s.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(configuration()), 0o600); err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.Context(), filepath.Join(scratch, "grantfirst"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "GRANTFIRST_CONFIG="+file)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("grantfirst %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	s.says("grantfirst %s: %s", strings.Join(args, " "), out)
	return string(out)
}

func TestAnOverrideLetsAHeldApplicationGoForATime(t *testing.T) {
	scenario(t, "21")
	s := newShop(t, setup{application: application{automated: "prune: true"}, polls: automatic})
	// The emergency: the signers work, but nobody can tell what they have loaded.
	s.silence()
	s.round(1)
	s.awaitHeld()
	s.isHeld()
	s.awaitRestarts(1)
	s.stays(5*time.Second, "it is held", func() bool { return s.held() && s.serve() })

	s.grantfirst("override", s.name, "--for", "45s", "--reason", "INC-42: reports are broken")
	s.isRound(1)
	said := func(reason, what string) bool {
		return slices.ContainsFunc(s.events(reason), func(e string) bool { return strings.Contains(e, what) }) &&
			slices.ContainsFunc(s.watcherLog(), func(line string) bool {
				return strings.Contains(line, "reason="+reason) && strings.Contains(line, what)
			})
	}
	s.await("the override is announced as an Event and in the log", func() bool { return said("Overridden", "INC-42: reports are broken") })
	s.await("its end is announced", func() bool { return said("OverrideOver", "") })

	s.round(2)
	s.awaitHeld()
	s.isHeld()
	s.awaitRestarts(2)
	s.stays(10*time.Second, "a later hold is not let through", func() bool { return s.held() && s.serve() })
	s.speak()
	s.isRound(2)
}
