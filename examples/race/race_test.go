package race_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/examples/internal/testcluster"
)

// The environment of a race: how many tries with grantfirst (a fifth as many without), the seed that it prints, and how many tries at
// the same time.
const (
	triesVariable    = "GRANTFIRST_RACE_TRIES"
	seedVariable     = "GRANTFIRST_RACE_SEED"
	parallelVariable = "GRANTFIRST_RACE_PARALLEL"
)

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// disturbance is what happens to a signer's replica in the middle of a change.
type disturbance struct {
	after time.Duration
	kind  string
	// replica is which one, counted round.
	replica int
	// lasts is for how long a process is stopped.
	lasts time.Duration
}

func (d disturbance) String() string {
	return fmt.Sprintf("%s replica %d after %s", d.kind, d.replica, d.after.Round(time.Millisecond))
}

// Kinds of disturbance.
const (
	restartContainer = "restart"
	deletePod        = "delete"
	// deleteAll is what people do to a signer that is to load something.
	deleteAll   = "delete all"
	stopProcess = "stop"
)

// plan is all that is left to chance in one try, but for the machine.
type plan struct {
	shape
	// first is when grantfirst is first asked.
	first        time.Duration
	disturbances []disturbance
	random       *rand.Rand
}

// newPlan depends on seed and try only, so that one try can be repeated.
func newPlan(seed, try uint64) plan {
	r := rand.New(rand.NewPCG(seed, try))
	p := plan{random: r, first: upTo(r, 1500*time.Millisecond)}
	p.shape = shape{
		signers: []int{1, 2, 2, 2, 2, 2, 2, 3}[r.IntN(8)], pods: 2, hashed: r.IntN(2) == 0, evidence: "report",
		onChange: []string{"exit", "reload"}[r.IntN(2)],
		poll:     fmt.Sprintf("%dms", 50+r.IntN(900)),
		starts:   []string{"0", "0", fmt.Sprintf("%.1f", 2*r.Float64())}[r.IntN(3)],
	}
	if p.hashed && r.IntN(4) > 0 {
		p.evidence = "podVolumes"
	}
	p.recreate, p.checksum = r.IntN(4) == 0, !p.hashed && r.IntN(3) == 0
	for range r.IntN(5) {
		p.disturbances = append(p.disturbances, disturbance{
			after: max(0, p.first-500*time.Millisecond+upTo(r, 3*time.Second)), replica: r.IntN(p.signers),
			kind: []string{restartContainer, restartContainer, deletePod, deletePod, deleteAll, stopProcess}[r.IntN(6)], lasts: upTo(r, 3*time.Second),
		})
	}
	return p
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// outcome is what became of one try.
type outcome struct {
	held   int
	denied []string
}

func TestTheRaceIsNeverLostWithGrantfirst(t *testing.T) {
	tries, o := race(t, number(t, triesVariable, 20), false)
	if o.held < int(tries) {
		t.Errorf("held %d times in %d tries, want once in each at least", o.held, tries)
	}
	if len(o.denied) > 0 {
		t.Errorf("%d denials", len(o.denied))
	}
}

func TestTheRaceIsLostWithoutGrantfirst(t *testing.T) {
	_, o := race(t, max(5, number(t, triesVariable, 20)/5), true)
	if len(o.denied) == 0 {
		t.Error("no denial: this race proves nothing")
	}
}

func race(life *testing.T, tries uint64, plain bool) (uint64, outcome) {
	life.Helper()
	c := testcluster.Connect(life)
	answers := watchAnswers(life, c)
	seed := number(life, seedVariable, uint64(time.Now().UnixNano()))
	life.Logf("%d tries, %s=%d", tries, seedVariable, seed)
	begun := time.Now()
	var mutex sync.Mutex
	var sum outcome
	lost := 0
	queue := make(chan uint64)
	var workers sync.WaitGroup
	for range number(life, parallelVariable, 8) {
		workers.Go(func() {
			for try := range queue {
				life.Run(fmt.Sprintf("try %d", try), func(t *testing.T) {
					p := newPlan(seed, try)
					p.plain = plain
					o := p.try(t, life, c, answers)
					mutex.Lock()
					defer mutex.Unlock()
					sum.held += o.held
					sum.denied = append(sum.denied, o.denied...)
					if len(o.denied) > 0 {
						lost++
					}
				})
			}
		})
	}
	for try := range tries {
		queue <- try
	}
	close(queue)
	workers.Wait()
	life.Logf("%d tries in %s: pods denied in %d, held %d times by generate", tries, time.Since(begun).Round(time.Second), lost, sum.held)
	return tries, sum
}

// try makes the change once, as fast as it goes, while the signer is disturbed.
func (p *plan) try(t, life *testing.T, c *testcluster.Cluster, answers *answers) outcome {
	a := newApp(t, life, c, answers, p.shape)
	ctx, cancel := context.WithCancel(t.Context())
	var disturbing sync.WaitGroup
	// Before the deployments go: nobody is told to restart what is gone, and no process stays stopped.
	t.Cleanup(func() { cancel(); disturbing.Wait() })
	for _, d := range p.disturbances {
		disturbing.Go(func() { a.disturb(ctx, d) })
	}

	var o outcome
	wait(ctx, p.first)
	before := a.list(a.shop, "web")
	for {
		stream := a.generate("after")
		if !releases(stream) {
			o.held++
			a.untouched(before)
		}
		a.apply(stream)
		if releases(stream) {
			break
		}
		wait(ctx, upTo(p.random, 700*time.Millisecond))
	}
	a.tells("released")
	a.await("the new pods run, or one is denied", func() (bool, error) {
		// Most pods are answered by another replica in time. That is luck, and none is counted on.
		if _, behind := a.inForce(); len(behind) > 0 && !p.plain && !t.Failed() {
			t.Errorf("released while %s decided by the old policy", strings.Join(behind, ", "))
			a.tells("behind: %v", behind)
		}
		if o.denied = answers.denied(a.shop); len(o.denied) > 0 {
			return true, nil
		}
		return a.rolledOut(a.shop, "web", a.pods)
	})
	if len(o.denied) > 0 && !p.plain {
		t.Errorf("denied: %s", strings.Join(o.denied, "\n"))
	}
	return o
}

// disturb does what may happen to a replica at any time.
func (a *app) disturb(ctx context.Context, d disturbance) {
	wait(ctx, d.after)
	pods, err := a.CoreV1().Pods(a.signing).List(ctx, metav1.ListOptions{LabelSelector: "app=signer"})
	if err != nil || len(pods.Items) == 0 {
		a.tells("%s: no replica: %v", d, err)
		return
	}
	pod := pods.Items[d.replica%len(pods.Items)].Name
	switch d.kind {
	case restartContainer:
		err = a.Exit(ctx, a.signing, pod, "signer", 0)
	case deletePod:
		if err = a.CoreV1().Pods(a.signing).Delete(ctx, pod, metav1.DeleteOptions{}); apierrors.IsNotFound(err) {
			err = testcluster.ErrGone
		}
	case deleteAll:
		err = a.CoreV1().Pods(a.signing).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=signer"})
	case stopProcess:
		err = a.stopFor(ctx, pod, d.lasts)
	}
	a.tells("%s (%s): %v", d, pod, err)
	if err != nil && ctx.Err() == nil && !errors.Is(err, testcluster.ErrGone) {
		a.Errorf("%s: %v", d, err)
	}
}

// stopFor stops the signer's process in a pod for a while.
func (a *app) stopFor(ctx context.Context, pod string, d time.Duration) error {
	containers, err := a.Containers(ctx, a.signing, pod)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if c.Name == "signer" && c.PID != 0 && c.State == "running" {
			if err := syscall.Kill(c.PID, syscall.SIGSTOP); err != nil {
				return testcluster.ErrGone
			}
			a.tells("stopped process %d of pod %s for %s", c.PID, pod, d)
			wait(ctx, d)
			if err := syscall.Kill(c.PID, syscall.SIGCONT); err != nil {
				return testcluster.ErrGone
			}
			return nil
		}
	}
	return testcluster.ErrGone
}
