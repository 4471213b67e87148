package gate

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/grantfirst/grantfirst/lib/gate/git"
)

// Replayed is one step of a history, judged.
type Replayed struct {
	git.Step
	// Report is nil where the step could not be judged at all; Err then says why.
	Report *Report
	Err    error
}

// Replay judges every step of a branch: what each commit on it, merge or not, did to the one before. done is called after each step, from
// several goroutines. Only the error of ctx is returned: what goes wrong in a step is that step's.
func (g *Gate) Replay(ctx context.Context, steps []git.Step, done func()) ([]Replayed, error) {
	out := make([]Replayed, len(steps))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range parallel() {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(steps) {
					return
				}
				out[i] = Replayed{Step: steps[i]}
				if steps[i].Before.Tree == steps[i].After.Tree {
					out[i].Report = &Report{Base: steps[i].Before, Head: steps[i].After, Bases: []git.Commit{steps[i].Before}}
				} else {
					out[i].Report, out[i].Err = g.Compare(ctx, steps[i].Before, steps[i].After)
				}
				done()
			}
		})
	}
	workers.Wait()
	return out, ctx.Err()
}

// Renders is how many renders were made so far.
func (g *Gate) Renders() int { return int(g.renders.count.Load()) }
