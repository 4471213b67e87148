package report

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// scene is a volume, a container and a node's clock, which a witness sees every second.
type scene struct {
	*testing.T
	witness
	clock      moment
	generation int
	policy     string
	container  instance
	runs       bool
	probe      time.Duration
}

// stage begins at ten, with policy A and a container that has not started.
func stage(t *testing.T, poll time.Duration) *scene {
	s := &scene{T: t, witness: witness{poll: poll}, clock: moment{wall: time.Date(2026, 11, 29, 10, 0, 0, 400_000_000, time.UTC)}}
	s.swap("A")
	return s
}

// swap puts a policy into the volume, and look sees it.
func (s *scene) swap(policy string) { s.generation, s.policy = s.generation+1, policy }

func (s *scene) look() {
	s.seesVolume(fmt.Sprint(s.generation), []byte(s.policy), s.clock, s.clock)
	s.seesInstance(s.container, s.runs, s.clock)
	s.concludes(s.probe)
}

// pass lets seconds go by, with a look after each.
func (s *scene) pass(seconds int) {
	for range seconds {
		s.clock.wall, s.clock.elapsed = s.clock.wall.Add(time.Second), s.clock.elapsed+time.Second
		s.look()
	}
}

// starts is the container's next instance. It is not looked at yet.
func (s *scene) starts(id string) {
	s.container, s.runs = instance{id: id, restarts: s.container.restarts + 1, ready: true, started: s.clock.wall.Truncate(time.Second), before: s.container.before}, true
}

func (s *scene) ends() {
	s.container.before, s.runs = s.clock.wall.Truncate(time.Second), false
}

func (s *scene) claimed() string {
	if s.claim.id == "" {
		return "nothing"
	}
	return s.claim.id + " has " + string(s.claim.text.raw)
}

func (s *scene) want(claimed string) {
	s.Helper()
	if got := s.claimed(); got != claimed {
		s.Fatalf("%s after the start: claimed that %s, want that %s", s.clock.elapsed, got, claimed)
	}
}

// exits is the poll time of a signer that exits on changes; window is the time after which it would have.
const (
	exits  = 30 * time.Second
	window = 70
)

func TestWhatIsClaimed(t *testing.T) {
	for name, c := range map[string]struct {
		poll time.Duration
		play func(*scene)
	}{
		"a text that was there well before the start is loaded, once the instance has had time to read it": {0, func(s *scene) {
			s.look()
			s.pass(6)
			s.starts("x")
			s.pass(5)
			s.want("nothing")
			s.pass(1)
			s.want("x has A")
		}},
		"a start in the second of the arrival proves nothing, ever": {0, func(s *scene) {
			s.look()
			s.starts("x")
			s.pass(10_000)
			s.want("nothing")
		}},
		"nor does a start in a later second that the runtime may have noted late": {0, func(s *scene) {
			s.look()
			s.pass(5)
			s.starts("x")
			s.pass(10_000)
			s.want("nothing")
		}},
		"a text that comes after the start is not that of a signer that never exits": {0, func(s *scene) {
			s.look()
			s.pass(6)
			s.starts("x")
			s.pass(6)
			s.want("x has A")
			s.swap("B")
			s.pass(10_000)
			s.want("x has A")
		}},
		"an instance that began before the sidecar is never claimed without a poll time": {0, func(s *scene) {
			s.starts("x")
			s.clock.wall = s.clock.wall.Add(time.Hour)
			s.look()
			s.pass(10_000)
			s.want("nothing")
		}},
		"an instance that would have exited by now has the text in the volume": {exits, func(s *scene) {
			s.look()
			s.starts("x")
			s.pass(window)
			s.want("nothing")
			s.pass(1)
			s.want("x has A")
		}},
		"a text that comes while the instance starts is claimed only when it would have exited": {exits, func(s *scene) {
			s.look()
			s.pass(20)
			s.starts("x")
			s.pass(2)
			s.swap("B") // x may have read it or not
			s.pass(window)
			s.want("nothing")
			s.pass(1)
			s.want("x has B")
		}},
		"a text that comes before the settling is over takes the proof away": {0, func(s *scene) {
			s.look()
			s.pass(20)
			s.starts("x")
			s.pass(5)
			s.swap("B")
			s.pass(10_000)
			s.want("nothing")
		}},
		"after the exit the next instance has the new text, and the earlier one never": {exits, func(s *scene) {
			s.look()
			s.pass(20)
			s.starts("x")
			s.pass(20)
			s.want("x has A")
			s.swap("B")
			s.pass(25)
			s.want("x has A")
			s.ends()
			s.pass(1)
			s.want("x has A")
			s.starts("y")
			s.pass(5)
			s.want("x has A")
			s.pass(1)
			s.want("y has B")
		}},
		"the end of the instance before in a later second is enough, however soon after the text": {0, func(s *scene) {
			s.look()
			s.starts("x")
			s.pass(20)
			s.swap("B")
			s.pass(1)
			s.clock.wall = s.clock.wall.Add(600 * time.Millisecond) // the next second
			s.ends()
			s.starts("y")
			s.pass(6)
			s.want("y has B")
		}},
		"the end of the instance before in the second of the arrival is not": {0, func(s *scene) {
			s.look()
			s.starts("x")
			s.pass(20)
			s.swap("B")
			s.pass(1)
			s.clock.wall = s.clock.wall.Add(599 * time.Millisecond)
			s.ends()
			s.starts("y")
			s.pass(10_000)
			s.want("nothing")
		}},
		"back to the first text before the signer looks: it keeps what it has": {exits, func(s *scene) {
			s.look()
			s.pass(20)
			s.starts("x")
			s.pass(20)
			s.swap("B")
			s.pass(10)
			s.swap("A")
			s.pass(10_000)
			s.want("x has A")
		}},
		"back to the first text while an instance starts: it waits again": {exits, func(s *scene) {
			s.look()
			s.pass(20)
			s.starts("x")
			s.pass(3)
			s.swap("B")
			s.pass(3)
			s.swap("A")
			s.pass(window)
			s.want("nothing")
			s.pass(1)
			s.want("x has A")
		}},
		"a text that came and went between two looks counts as well": {0, func(s *scene) {
			s.look()
			s.pass(20)
			s.swap("B")
			s.starts("x") // reads B
			s.swap("A")
			s.pass(10_000)
			s.want("nothing")
		}},
		"other files of the volume change nothing about a claim": {exits, func(s *scene) {
			s.look()
			s.pass(20)
			s.starts("x")
			s.pass(20)
			s.generation++
			s.pass(10_000)
			s.want("x has A")
		}},
		"a crash loop is claimed when an instance lasts": {0, func(s *scene) {
			s.look()
			for i := range 5 {
				s.pass(20)
				s.starts(fmt.Sprint("x", i))
				s.pass(3)
				s.ends()
			}
			s.want("nothing")
			s.pass(20)
			s.starts("y")
			s.pass(6)
			s.want("y has A")
		}},
		"an instance that is not ready is not claimed, and its time begins when it is": {exits, func(s *scene) {
			s.look()
			s.starts("x")
			s.container.ready = false
			s.pass(1000)
			s.want("nothing")
			s.container.ready = true
			s.pass(window)
			s.want("nothing")
			s.pass(1)
			s.want("x has A")
		}},
		"a hanging instance is given the time in which its probe finds that out": {exits, func(s *scene) {
			s.probe = 100 * time.Second
			s.look()
			s.starts("x")
			s.pass(140)
			s.want("nothing")
			s.container.ready = false
			s.pass(1000)
			s.want("nothing")
		}},
		"an instance that stays although its text is gone: what its start proves holds, what its staying proves never again": {exits, func(s *scene) {
			s.look()
			s.pass(20)
			s.starts("x")
			s.pass(20)
			s.swap("B")
			s.pass(1000)
			s.want("x has A")
			if s.stays() == nil {
				s.Error("nothing is said about it")
			}
			s.ends()
			s.starts("y")
			s.clock.wall = s.clock.wall.Add(time.Minute)
			s.swap("C")
			s.pass(10_000)
			s.want("x has A") // which says nothing about y
			if err := s.stays(); err != nil {
				s.Errorf("said about y, too: %v", err)
			}
		}},
		"an instance that stays although its text is gone, and had it only by staying: nothing is known": {exits, func(s *scene) {
			s.look()
			s.starts("x")
			s.pass(window + 1)
			s.want("x has A")
			s.swap("B")
			s.pass(window)
			s.want("x has A")
			s.pass(10_000)
			s.want("nothing")
		}},
		"an unreadable policy is no other one": {exits, func(s *scene) {
			s.look()
			s.pass(20)
			s.starts("x")
			s.pass(20)
			for range 500 {
				s.clock.wall, s.clock.elapsed = s.clock.wall.Add(time.Second), s.clock.elapsed+time.Second
				s.seesVolume("none", nil, s.clock, s.clock)
				s.seesInstance(s.container, true, s.clock)
				s.concludes(0)
			}
			s.want("x has A")
			if s.stays() != nil || s.next() != "" {
				s.Errorf("stays: %v, next %q", s.stays(), s.next())
			}
		}},
		"a clock set back after a start makes it no later than a text": {0, func(s *scene) {
			s.look()
			s.pass(2)
			s.starts("x")
			s.pass(20)
			s.clock.wall = s.clock.wall.Add(-time.Hour)
			s.swap("B")
			s.pass(10_000)
			s.want("nothing")
		}},
		"a clock set back before the sidecar began: times that are still to come say nothing, not even when they have come": {0, func(s *scene) {
			s.starts("x") // with A, whatever the volume has later
			s.container.before = s.container.started
			s.clock.wall = s.clock.wall.Add(-time.Hour)
			s.swap("B")
			s.look()
			s.pass(10_000)
			s.want("nothing")
		}},
		"a clock set back while the API server was away: a start that was not seen in time is no later than a text either": {0, func(s *scene) {
			away := func(seconds int) {
				for range seconds {
					s.clock.wall, s.clock.elapsed = s.clock.wall.Add(time.Second), s.clock.elapsed+time.Second
					s.seesVolume(fmt.Sprint(s.generation), []byte(s.policy), s.clock, s.clock)
				}
			}
			s.look()
			away(3)
			s.starts("x") // reads A
			away(20)
			s.clock.wall = s.clock.wall.Add(-time.Minute)
			s.swap("B")
			away(100)
			s.pass(10_000)
			s.want("nothing")
		}},
		"a clock set forward does not shorten the time in which an instance would exit, nor that of reading": {exits, func(s *scene) {
			s.look()
			s.pass(2)
			s.starts("x")
			s.pass(1)
			s.clock.wall = s.clock.wall.Add(time.Hour)
			s.pass(window - 1)
			s.want("nothing")
			s.pass(2)
			s.want("x has A")
		}},
	} {
		t.Run(name, func(t *testing.T) { c.play(stage(t, c.poll)) })
	}
}

func TestAnInstanceIsReadFromTheStatus(t *testing.T) {
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		ended  string // the containerID of the instance that ended
		after  time.Duration
		before time.Time
	}{
		"the one before ended before":                   {"containerd://s0", -time.Second, at.Add(-time.Second)},
		"in the same second":                            {"containerd://s0", 0, at},
		"afterwards: the clock was set back in between": {"containerd://s0", time.Second, time.Time{}},
		"what ended is this very one":                   {"containerd://s1", -time.Second, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := signerPod()
			s := running("signer", "containerd://s1", at)
			s.RestartCount, s.Ready = 3, true
			s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ContainerID: c.ended, FinishedAt: metav1.NewTime(at.Add(c.after))}
			pod.Status.ContainerStatuses[1] = s
			want := instance{id: "containerd://s1", restarts: 3, ready: true, started: at, before: c.before}
			if got, runs := instanceIn(pod, "signer"); !runs || got != want {
				t.Errorf("got %+v, %v, want %+v", got, runs, want)
			}
		})
	}
}

// TestNoClaimIsEverWrong plays a signer that exits on changes, a kubelet and a node at random: late notes of starts and ends, a status
// that lags, policies that come at any moment and go back, crashes, sidecars that pause or are restarted.
func TestNoClaimIsEverWrong(t *testing.T) {
	claims, right := 0, 0
	for seed := range int64(400) {
		p := newPlay(seed)
		for p.at < 20*time.Minute {
			p.step(t)
		}
		p.calm = true
		for p.at < 24*time.Minute {
			p.step(t)
		}
		if p.w.claim.id == p.process.id {
			right++
		}
		claims += p.claims
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d claims", claims)
	if claims < 400*5 || right < 395 {
		t.Errorf("%d claims, and %d of 400 plays end with one about what runs", claims, right)
	}
}

const poll = 10 * time.Second

// play is the truth and what there is to see of it.
type play struct {
	*rand.Rand
	at    time.Duration
	begin time.Time
	calm  bool

	policy     string
	generation int

	process   process
	loaded    map[string]string // by instance
	restarts  int32
	restartAt time.Duration

	shown  []view
	lag    time.Duration
	w      *witness
	began  time.Duration
	next   time.Duration
	claims int
}

type process struct {
	id             string
	readAt, noteAt time.Duration
	nextPoll       time.Duration
	crashAt        time.Duration
}

// view is what the status has from some time on.
type view struct {
	at   time.Duration
	i    instance
	runs bool
}

func newPlay(seed int64) *play {
	p := &play{Rand: rand.New(rand.NewSource(seed)), begin: time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC), loaded: map[string]string{}, policy: "A", generation: 1}
	p.w = &witness{poll: poll}
	return p
}

func (p *play) upTo(d time.Duration) time.Duration { return time.Duration(p.Int63n(int64(d))) }

func (p *play) wall(d time.Duration) time.Time { return p.begin.Add(d) }

func (p *play) step(t *testing.T) {
	p.at += 100 * time.Millisecond
	if !p.calm && p.Intn(150) == 0 || p.generation == 1 && p.at > time.Second {
		p.policy, p.generation = string(rune('A'+p.Intn(3))), p.generation+1
	}
	p.signer()
	p.sidecar(t)
}

func (p *play) signer() {
	x := &p.process
	switch {
	case x.id == "" && p.at >= p.restartAt:
		p.restarts++
		*x = process{id: fmt.Sprint("x", p.restarts), readAt: p.at + p.upTo(4*time.Second), noteAt: p.at + p.upTo(p.mostly(time.Second, 4900*time.Millisecond)), crashAt: 1 << 62}
		if !p.calm && p.Intn(4) == 0 {
			x.crashAt = p.at + p.upTo(20*time.Second)
		}
		before := time.Time{}
		if n := len(p.shown); n > 0 {
			before = p.shown[n-1].i.before
		}
		p.shown = append(p.shown, view{x.noteAt, instance{id: x.id, restarts: p.restarts, ready: true, started: p.wall(x.noteAt).Truncate(time.Second), before: before}, true})
	case x.id == "":
	case p.at >= x.readAt && p.loaded[x.id] == "":
		p.loaded[x.id], x.nextPoll = p.policy, p.at+poll
	case p.at >= x.crashAt && p.at > x.noteAt, p.loaded[x.id] != "" && p.at >= x.nextPoll && p.at > x.noteAt && p.loaded[x.id] != p.policy:
		i := p.shown[len(p.shown)-1].i
		i.before = p.wall(p.at).Truncate(time.Second)
		p.shown = append(p.shown, view{p.at, i, false})
		*x, p.restartAt = process{}, p.at+p.upTo(p.mostly(time.Second, 15*time.Second))
	case p.loaded[x.id] != "" && p.at >= x.nextPoll:
		x.nextPoll += poll
	}
}

func (p *play) mostly(often, seldom time.Duration) time.Duration {
	if p.Intn(2) == 0 {
		return often
	}
	return seldom
}

func (p *play) sidecar(t *testing.T) {
	if p.at < p.next {
		return
	}
	p.next = p.at + time.Second
	switch p.Intn(100) {
	case 0:
		p.next += p.upTo(20 * time.Second) // it pauses
	case 1: // it is restarted, and finds its report
		s := Settings{Namespace: "pcs", Pod: "pcs-1", Container: "signer", SignerName: "s"}
		have, _ := s.object("u1", p.w.claim.id, state{text: p.w.claim.text})
		p.w, p.began = &witness{poll: poll, recalled: have}, p.at
	}
	now := moment{p.wall(p.at), p.at - p.began}
	p.w.seesVolume(fmt.Sprint(p.generation), []byte(p.policy), now, now)
	p.lag = min(p.upTo(statusLag-2*time.Second), p.lag+time.Second)
	for i := len(p.shown) - 1; i >= 0; i-- {
		if v := p.shown[i]; v.at <= p.at-p.lag {
			p.w.seesInstance(v.i, v.runs, now)
			break
		}
	}
	was := p.w.claim.text
	p.w.concludes(0)
	if c := p.w.claim; c.text != was && c.id != "" {
		p.claims++
		// The status may still show one that has ended without having read anything.
		if loaded := p.loaded[c.id]; string(c.text.raw) != loaded && (loaded != "" || c.id == p.process.id) {
			t.Errorf("%s after the start: claimed that %s has %s, and it has %s", p.at, c.id, c.text.raw, p.loaded[c.id])
		}
	}
}
