package release

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// oneLease is an API server that has no more than one Lease.
type oneLease struct {
	coordinationv1.LeaseInterface
	mutex sync.Mutex
	lease *v1.Lease
	rv    int
}

func (l *oneLease) Leases(string) coordinationv1.LeaseInterface { return l }

func (l *oneLease) Get(context.Context, string, metav1.GetOptions) (*v1.Lease, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.lease == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, Lease)
	}
	return l.lease.DeepCopy(), nil
}

func (l *oneLease) Create(_ context.Context, lease *v1.Lease, _ metav1.CreateOptions) (*v1.Lease, error) {
	return l.write(lease)
}

func (l *oneLease) Update(_ context.Context, lease *v1.Lease, _ metav1.UpdateOptions) (*v1.Lease, error) {
	return l.write(lease)
}

func (l *oneLease) write(lease *v1.Lease) (*v1.Lease, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.lease != nil && l.lease.ResourceVersion != lease.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, Lease, nil)
	}
	l.rv++
	l.lease = lease.DeepCopy()
	l.lease.ResourceVersion = strconv.Itoa(l.rv)
	return l.lease.DeepCopy(), nil
}

func TestOneOfTwoWatchersLeadsAndTheOtherTakesOverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &oneLease{}
		leads := make(chan string, 2)
		elect := func(ctx context.Context, identity string) <-chan error {
			ended := make(chan error, 1)
			e := &Election{Client: api, Namespace: "argocd", Identity: identity, Log: slog.New(slog.DiscardHandler)}
			go func() {
				ended <- e.While(ctx, func(ctx context.Context) error {
					leads <- identity
					<-ctx.Done()
					return nil
				})
			}()
			return ended
		}
		first, end := context.WithCancel(t.Context())
		one := elect(first, "one")
		if who := <-leads; who != "one" {
			t.Fatalf("%s leads", who)
		}
		second, endSecond := context.WithCancel(t.Context())
		two := elect(second, "two")
		time.Sleep(time.Minute)
		select {
		case who := <-leads:
			t.Fatalf("%s leads, too", who)
		default:
		}
		end()
		if err := <-one; err != nil {
			t.Error(err)
		}
		ended := time.Now()
		if who := <-leads; who != "two" || time.Since(ended) > 5*time.Second {
			t.Errorf("%s leads after %s", who, time.Since(ended))
		}
		// Somebody takes the Lease away, and this one must not go on.
		lease, err := api.Get(t.Context(), Lease, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		other, now := "three", metav1.NewMicroTime(time.Now())
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &other, &now
		if _, err := api.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-two; !errors.Is(err, ErrLost) {
			t.Errorf("ended with %v", err)
		}
		endSecond()
	})
}

func TestTheErrorOfTheWorkIsThatOfTheElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Election{Client: &oneLease{}, Namespace: "argocd", Identity: "one", Log: slog.New(slog.DiscardHandler)}
		broken := errors.New("broken")
		if err := e.While(t.Context(), func(context.Context) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("ended with %v", err)
		}
	})
}
