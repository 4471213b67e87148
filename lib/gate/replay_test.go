package gate_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/grantfirst/grantfirst/lib/gate"
)

// imports makes history by git fast-import, thousands of commits in a second.
type imports struct {
	bytes.Buffer
	mark, time int
	main       string
}

func (i *imports) commit(branch, message, from, merge string, files map[string]string) string {
	i.mark++
	i.time += 60
	fmt.Fprintf(i, "commit refs/heads/%s\nmark :%d\ncommitter a <a@example.com> %d +0000\ndata %d\n%s\n", branch, i.mark, 1_700_100_000+i.time, len(message), message)
	fmt.Fprintf(i, "from %s\n", from)
	if merge != "" {
		fmt.Fprintf(i, "merge %s\n", merge)
	}
	for name, text := range files {
		if text == "" {
			fmt.Fprintf(i, "D %s\n", name)
			continue
		}
		fmt.Fprintf(i, "M 100644 inline %s\ndata %d\n%s\n", name, len(text), text)
	}
	return fmt.Sprintf(":%d", i.mark)
}

// merge makes a commit on a branch of its own and merges it.
func (i *imports) merge(message string, files map[string]string) {
	topic := i.commit("topic", message, i.main, "", files)
	i.main = i.commit("main", "Merge: "+message, i.main, topic, files)
}

func (i *imports) run(r *repo) {
	r.Helper()
	cmd := exec.Command("git", "fast-import", "--quiet", "--force")
	cmd.Dir = r.dir
	cmd.Stdin = &i.Buffer
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("git fast-import: %v\n%s", err, out)
	}
	r.git("reset", "--quiet", "--hard", "main")
}

// history has that many merges; the outage and what put it right are in the middle.
func history(t testing.TB, merges int) (r *repo, outage int) {
	t.Helper()
	r = shop(t)
	i := &imports{main: "refs/heads/main^0"}
	outage = merges / 2
	grants := []string{grant("shop", "web"), grant("store", "store"), grant("chart", "chart"), grant("tenant-*", "app")}
	for n := range merges {
		switch {
		case n == outage:
			grants = append(grants, grant("shop", "api"))
			i.merge("certificates for api", map[string]string{policyFile: policyJSON(grants...), "shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
		case n == outage+1:
			i.merge("revert", map[string]string{"shop/api.yaml": ""})
		case n == outage+2:
			i.merge("certificates for api, again", map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
		case n%10 == 0:
			grants = append(grants, grant(fmt.Sprint("ns-", n), "app"))
			i.merge("grant", map[string]string{policyFile: policyJSON(grants...)})
		case n%10 == 1 && n != outage+1:
			i.merge("its workload", map[string]string{fmt.Sprintf("apps/ns-%d.yaml", n-1): application(fmt.Sprint("ns-", n-1), fmt.Sprint("ns-", n-1), fmt.Sprint("ns-", n-1), ""), fmt.Sprintf("ns-%d/app.yaml", n-1): deployment("app", "app", "example.com/workload", "ECDSAP256")})
		case n%2 == 0:
			i.merge("another image", map[string]string{"shop/web.yaml": strings.Replace(deployment("web", "web", "example.com/workload", "ECDSAP256"), "app:1", fmt.Sprint("app:", n), 1)})
		default:
			i.merge("another image", map[string]string{"store/base/deploy.yaml": strings.Replace(deployment("store", "store", "example.com/workload", "ECDSAP256"), "app:1", fmt.Sprint("app:", n), 1)})
		}
	}
	i.run(r)
	return r, outage
}

func replay(t testing.TB, r *repo) (*gate.Gate, []gate.Replayed) {
	t.Helper()
	g := newGate(t, r)
	steps, err := g.Repository.Steps(context.Background(), "main")
	if err != nil {
		t.Fatal(err)
	}
	var done atomic.Int64
	replayed, err := g.Replay(context.Background(), steps, func() { done.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	if int(done.Load()) != len(steps) {
		t.Errorf("%d steps were said to be done, of %d", done.Load(), len(steps))
	}
	return g, replayed
}

func TestReplayFindsTheOutageAmongAThousandMergesAndNothingElse(t *testing.T) {
	merges := 1000
	if testing.Short() {
		merges = 50
	}
	r, outage := history(t, merges)
	g, replayed := replay(t, r)
	if len(replayed) != merges {
		t.Fatalf("%d steps, want %d", len(replayed), merges)
	}
	var red []string
	for i, s := range replayed {
		switch {
		case s.Err != nil:
			t.Fatalf("step %d: %v", i, s.Err)
		case s.Report.Uncertain():
			t.Fatalf("step %d: %q", i, lines(s.Report))
		case s.Report.Violated():
			red = append(red, fmt.Sprintf("%d %s %v", i, s.Subject, lines(s.Report)))
		}
		if !s.Merge {
			t.Errorf("step %d is no merge", i)
		}
	}
	expected := []string{fmt.Sprintf("%d Merge: certificates for api [ships-together example.com/workload shop/api api shop/api.yaml:15 [shop]]", outage)}
	if !slices.Equal(red, expected) {
		t.Errorf("red were\n%s\nwant\n%s", strings.Join(red, "\n"), expected[0])
	}
	// Each merge changes one root, or the policy, which everything that may ask is held against.
	if n := g.Renders(); n > 2*merges {
		t.Errorf("%d renders for %d merges", n, merges)
	}
	t.Logf("%d merges, %d renders", merges, g.Renders())
}

// Run with -bench to see how long a thousand merges take.
func BenchmarkReplay(b *testing.B) {
	r, _ := history(b, 1000)
	for b.Loop() {
		g, _ := replay(b, r)
		b.ReportMetric(float64(g.Renders()), "renders")
	}
}
