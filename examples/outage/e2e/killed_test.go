package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/examples/internal/testcluster"
)

// killings is how often a watcher is killed at least.
const killings = 50

// kill kills watchers at random moments until the context ends, and counts. One in three is killed while it starts; the others at most three
// seconds after it has begun to lead, else none would get to do anything on a slow machine. Mostly it is the process, which the kubelet starts
// again; at times the pod goes as with a lost node, so that another has to wait for the Lease to run out.
func (i *installation) kill(ctx context.Context, t *testing.T, killed *atomic.Int64) {
	pause := func(most time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(rand.N(most)):
			return true
		}
	}
	for n := 0; ; n++ {
		var name string
		for name == "" {
			if !pause(time.Second) {
				return
			}
			pods, err := i.CoreV1().Pods(space).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=grantfirst-watch"})
			if err != nil || len(pods.Items) == 0 {
				continue
			}
			if n%3 == 0 {
				name = pods.Items[rand.IntN(len(pods.Items))].Name
			}
			for _, p := range pods.Items {
				if n%3 != 0 && i.watching(ctx, p.Name) {
					name = p.Name
				}
			}
		}
		if n%3 != 0 && !pause(3*time.Second) {
			return
		}
		var err error
		if n%15 == 14 {
			now := int64(0)
			err = i.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		} else {
			err = i.Exit(ctx, space, name, "watch", 137)
		}
		switch {
		case err == nil:
			killed.Add(1)
		case errors.Is(err, testcluster.ErrGone), apierrors.IsNotFound(err), ctx.Err() != nil:
		default:
			t.Error(err)
			return
		}
	}
}

// watching: the watcher in the pod leads and has read all it needs, as its log says.
func (i *installation) watching(ctx context.Context, pod string) bool {
	on, err := i.Containers(ctx, space, pod)
	if err != nil || len(on) == 0 || on[0].State != "running" {
		return false
	}
	text, err := os.ReadFile(on[0].Log)
	return err == nil && bytes.Contains(text, []byte("msg=watching"))
}

func TestEveryHoldEndsOnceThoughWatchersAreKilledAllTheTime(t *testing.T) {
	alone(t, "11")
	var killed, ended atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() { installed.kill(ctx, t, &killed) })
	t.Run("shops", func(t *testing.T) {
		for i, automated := range []string{"prune: true", "prune: true, selfHeal: true", "prune: false", "prune: true, selfHeal: true"} {
			t.Run(fmt.Sprintf("%d automated with %s", i+1, automated), func(t *testing.T) {
				t.Parallel()
				s := newShop(t, setup{application: application{automated: automated}})
				full, partial := s.syncs()
				n := 1
				for ; !t.Failed() && (killed.Load() < killings || n <= 2); n++ {
					s.round(n)
					s.awaitHeld()
					s.isHeld()
					s.load()
					s.isRound(n)
					ended.Add(1)
				}
				s.stays(5*time.Second, "nothing more happens", func() bool { return s.last() == settled })
				if full() != n-1 || partial() != 0 {
					t.Errorf("%d full syncs of the workload and %d partial ones, want one for each of %d holds and none", full(), partial(), n-1)
				}
				s.hooksRan(1) // since the last round
			})
		}
	})
	cancel()
	wait.Wait()
	if n := killed.Load(); n < killings && !t.Failed() {
		t.Errorf("watchers were killed %d times, want %d", n, killings)
	}
	t.Logf("watchers were killed %d times while %d holds ended", killed.Load(), ended.Load())
	installed.awaitRollout(t, "grantfirst-watch")
}
