package release

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/grantfirst/grantfirst/lib/config"
)

// BenchmarkDecided measures the time from the last replica's report to the decision about the last of 1,000 held Applications, and to the
// first refresh. docs/performance.md has the limit: 2 s.
func BenchmarkDecided(b *testing.B) {
	const many = 1000
	conf, err := config.Parse([]byte(configuration))
	if err != nil {
		b.Fatal(err)
	}
	c := newFakeCluster(b)
	c.signer(grantsNone)
	all := make([]string, many)
	for i := range all {
		all[i] = fmt.Sprint("web-", i)
		c.held(all[i])
	}
	w := &Watcher{Config: conf, Own: Cluster{c, time.Now}, Namespace: "argocd", MaxInFlight: 10, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now}
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() { _ = w.Run(ctx) })
	// decided counts the holds that want to begin, or have.
	decided := func() int {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		n := 0
		for _, h := range w.held {
			if h.wants || h.place {
				n++
			}
		}
		return n
	}
	until := func(is func() bool) time.Duration {
		began := time.Now()
		for !is() {
			runtime.Gosched()
		}
		return time.Since(began)
	}
	until(func() bool {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		return len(w.held) == many && len(w.evidenceOf(0).Replicas) == 1
	})
	var last, first time.Duration
	for b.Loop() {
		before := len(c.done())
		c.loads("signer-1", grants(all...))
		last += until(func() bool { return decided() >= many })
		first += until(func() bool { return len(c.done()) > before })
		b.StopTimer()
		c.loads("signer-1", grantsNone)
		until(func() bool { return decided() == 0 })
		b.StartTimer()
	}
	b.ReportMetric(float64(last.Milliseconds())/float64(b.N), "ms-to-decide-1000")
	b.ReportMetric(float64((last+first).Milliseconds())/float64(b.N), "ms-to-first-refresh")
	cancel()
	wait.Wait()
}

func (w *Watcher) evidenceOf(i int) *evidence { return w.own.evidence[&w.Config.Signers[i]] }
