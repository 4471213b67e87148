package e2e_test

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// forget takes away what Argo CD has cached, as time does.
func (i *installation) forget(t *testing.T) {
	t.Helper()
	c, err := net.Dial("tcp", "127.0.0.1:6379")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Inline commands (redis.io, protocol specification); the password is in given.
	if _, err := c.Write([]byte("AUTH of-no-use\r\nFLUSHALL\r\n")); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(c)
	for _, of := range []string{"AUTH", "FLUSHALL"} {
		if line, err := answers.ReadString('\n'); err != nil || !strings.HasPrefix(line, "+OK") {
			t.Fatalf("redis: %s: %q, %v", of, line, err)
		}
	}
}

// restart deletes the pod of a Deployment at once, as a node does that is lost.
func (i *installation) restart(t *testing.T, name string) {
	t.Helper()
	now := int64(0)
	err := i.CoreV1().Pods(space).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name})
	if err != nil {
		t.Fatal(err)
	}
}

func (i *installation) awaitRollout(t *testing.T, name string) {
	t.Helper()
	if err := poll(t.Context(), name+" is ready", func() (bool, error) { return i.rolledOut(context.WithoutCancel(t.Context()), space, name) }); err != nil {
		t.Fatal(err)
	}
}

func TestAHoldOutlivesRepoServerAndCache(t *testing.T) {
	for _, c := range []struct{ when, automated string }{
		{"the sync is automated", "prune: true"},
		{"the sync is automated and heals itself", "prune: true, selfHeal: true"},
	} {
		t.Run(c.when, func(t *testing.T) {
			alone(t, "13")
			s := newShop(t, setup{application: application{automated: c.automated}})
			s.round(1)
			s.awaitHeld()
			s.isHeld()
			s.restart(t, "argocd-repo-server")
			s.forget(t)
			s.awaitRollout(t, "argocd-repo-server")
			s.says("repo-server is another, and the cache is empty")
			s.refresh("normal")
			s.stays(8*time.Second, "it is held", func() bool { return s.serve() && len(s.markers()) == 1 })
			s.load()
			s.isRound(1)

			s.round(2)
			s.awaitHeld()
			s.isHeld()
			s.load(0)
			s.restart(t, "argocd-repo-server")
			s.forget(t)
			s.says("repo-server is away and the cache empty when the last replica loads")
			s.load(1)
			s.isRound(2)
		})
	}
}
