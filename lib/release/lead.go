package release

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Lease is the name of the Lease by which one of several watchers leads.
const Lease = "grantfirst-watch"

// ErrLost means that another watcher leads, or that the API server could not be told in time that this one does.
var ErrLost = errors.New("it no longer leads: another watcher does, or the API server did not answer")

// Election is how one of several watchers comes to lead.
type Election struct {
	Client    coordinationv1.LeasesGetter
	Namespace string
	// Identity tells the watchers apart.
	Identity string
	Log      *slog.Logger
}

// While does the work while this process leads, and gives the Lease back when the context ends. The error is that of the work, or
// ErrLost, after which the process should end: what it had under way may not be its own any more.
func (e *Election) While(ctx context.Context, work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, logr.FromSlogHandler(e.Log.Handler())))
	defer cancel()
	ended, began := make(chan error, 1), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: Lease},
			Client:     e.Client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		},
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				close(began)
				e.Log.Info("leading", "identity", e.Identity)
				ended <- work(ctx)
				cancel()
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				if identity != e.Identity {
					e.Log.Info("another leads", "identity", identity)
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(ctx)
	told := ctx.Err() != nil
	cancel()
	select {
	case <-began:
		err = <-ended
	default:
	}
	if err == nil && !told {
		err = ErrLost
	}
	return err
}
