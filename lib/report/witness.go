package report

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What the sidecar takes for granted about a node and a signer. docs/report.md says why.
const (
	// settle: what has been running and ready for this long has read its policy.
	settle = 5 * time.Second
	// startLag: container runtimes note the start of a process after it, and may be held up in between.
	startLag = 5 * time.Second
	// statusLag: so far can a pod's status be behind its containers.
	statusLag = 10 * time.Second
	// maxTexts is the number of texts that are kept, to know again what an endpoint shows.
	maxTexts = 8
)

// moment is now, by two clocks.
type moment struct {
	// wall is the node's clock, which is also that of the container runtime. It can be set, forward and back.
	wall time.Time
	// elapsed is since the sidecar began, by a clock that nobody sets.
	elapsed time.Duration
}

// instance is one start of the signer's container, as the pod's status has it.
type instance struct {
	id       string
	restarts int32
	ready    bool
	started  time.Time
	// before is when the instance before it ended, and zero where that is not known.
	before time.Time
}

func (i instance) is(other instance) bool { return i.id == other.id && i.restarts == other.restarts }

// instanceIn is the instance that runs, if any does.
func instanceIn(pod *corev1.Pod, container string) (instance, bool) {
	for _, s := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if s.Name != container || s.State.Running == nil || s.ContainerID == "" {
			continue
		}
		i := instance{id: s.ContainerID, restarts: s.RestartCount, ready: s.Ready, started: s.State.Running.StartedAt.Time}
		if last := s.LastTerminationState.Terminated; last != nil && last.ContainerID != i.id && !last.FinishedAt.Time.After(i.started) {
			i.before = last.FinishedAt.Time
		}
		return i, true
	}
	return instance{}, false
}

// beganAfter reports whether the instance's process began after that time of the node's clock. The end of the instance before it is
// surely earlier than its own start; the time of its start may have been noted late. Both are cut to seconds.
func (i instance) beganAfter(t time.Time) bool {
	second := t.Truncate(time.Second)
	return i.before.Truncate(time.Second).After(second) || !i.started.Truncate(time.Second).Before(t.Add(startLag))
}

// claim is what is certain: that text is in force in that instance.
type claim struct {
	id         string
	text       *text
	generation string // of the volume, when it was made
	// surviving: only that the instance did not exit shows it.
	surviving bool
}

// witness knows what happened to volume and container, in the order in which it was seen, and concludes what is loaded. It never
// concludes what an unlucky order of events could make wrong; docs/report.md has the reasons.
type witness struct {
	// poll is how often the signer looks whether to exit because its policy has changed; 0 if it never exits for that.
	poll time.Duration

	// latest is the latest time that the node's clock has ever shown: what it shows after it was set back says nothing.
	latest time.Time

	generation string
	// text is what is in the volume, and nil while that cannot be read.
	text *text
	// arrived and arrivedElapsed are when the generation was seen first: it had come before.
	arrived        time.Time
	arrivedElapsed time.Duration
	// looked is when the last look at the volume began: until then it was as it is here.
	looked time.Duration
	// texts are the last ones that the volume had.
	texts []*text

	instance instance
	// steady is since when each look has found this instance running and ready.
	steady time.Duration
	// reset: its times are later than the clock was when it ran, so the clock was set back, and they say nothing.
	reset bool

	// recalled is what the sidecar before this one has claimed, if anything.
	recalled *corev1.ConfigMap
	claim    claim
	// stayed says which instance did not exit although its policy had changed, and is empty while that has not happened.
	stayed string
}

func (w *witness) tick(m moment) {
	if wall := m.wall.Round(0); wall.After(w.latest) {
		w.latest = wall
	}
}

// seesVolume takes what a look at the volume has found; raw is nil where the policy cannot be read. It reports whether that is news.
func (w *witness) seesVolume(generation string, raw []byte, began, ended moment) bool {
	w.tick(began)
	w.tick(ended)
	w.looked = began.elapsed
	same := raw == nil && w.text == nil || raw != nil && w.text != nil && bytes.Equal(raw, w.text.raw)
	if generation == w.generation && same {
		return false
	}
	// A text that was away and is back is a new arrival, even where nobody saw it go.
	w.generation, w.arrived, w.arrivedElapsed = generation, w.latest, ended.elapsed
	if raw == nil {
		w.text = nil
		return true
	}
	i := slices.IndexFunc(w.texts, func(t *text) bool { return bytes.Equal(t.raw, raw) })
	if i >= 0 {
		w.text = w.texts[i]
		w.texts = slices.Delete(w.texts, i, i+1)
	} else {
		w.text = &text{raw: raw}
		w.text.prepare()
	}
	w.texts = append(w.texts, w.text)
	w.texts = w.texts[max(0, len(w.texts)-maxTexts):]
	return true
}

// seesInstance takes what the pod's status says of the container.
func (w *witness) seesInstance(i instance, runs bool, at moment) {
	w.tick(at)
	if !runs {
		w.instance = instance{}
		return
	}
	if !i.is(w.instance) {
		w.reset = false
	}
	if !i.is(w.instance) || !w.instance.ready {
		w.steady = at.elapsed
	}
	w.instance = i
	if now := at.wall.Add(time.Second); i.started.After(now) || i.before.After(now) {
		w.reset = true
	}
}

// concludes decides about an instance that can load another policy only by being restarted. One that hangs is not ready any more after
// the time probe.
func (w *witness) concludes(probe time.Duration) {
	i := w.instance
	if i.id == "" || !i.ready || w.text == nil {
		return
	}
	survived := w.poll > 0 && w.looked-max(w.arrivedElapsed, w.steady) >= w.poll+max(w.poll, probe)+statusLag
	switch {
	case w.claim.id == i.id:
		if survived && !bytes.Equal(w.claim.text.raw, w.text.raw) {
			w.distrust()
		}
	case w.recalls(i):
		w.claims(w.text, true)
	case !w.reset && i.beganAfter(w.arrived) && w.looked-w.steady >= settle:
		w.claims(w.text, false)
	case survived && w.stayed == "":
		w.claims(w.text, true)
	}
}

// distrust: the signer should have exited and has not, so that nothing follows from its not exiting, now and later.
func (w *witness) distrust() {
	w.stayed = w.instance.id
	w.recalled = nil
	if w.claim.surviving {
		w.claim = claim{}
	}
}

// stays says what is wrong while an instance runs that should have exited.
func (w *witness) stays() error {
	if w.stayed == "" || w.stayed != w.instance.id {
		return nil
	}
	return fmt.Errorf("the container still runs although its policy changed more than two polls (%s) ago: if it hangs, restart it; if it does not exit on changes, leave out --poll", w.poll)
}

func (w *witness) claims(t *text, surviving bool) {
	loaded := *t
	loaded.at = w.instance.started
	w.claim = claim{w.instance.id, &loaded, w.generation, surviving}
}

// recalls reports whether the sidecar before this one has claimed the very text that is in the volume for this instance.
func (w *witness) recalls(i instance) bool {
	have, t := w.recalled, w.text
	return have != nil && have.Data[keyContainerID] == i.id && have.Data[keyRevision] == t.revision &&
		have.Data[keyPolicy] == t.plain && bytes.Equal(have.BinaryData[keyPolicyGzip], t.packed)
}

// answers takes the revision that the instance has shown, for signers that load a new policy in place.
func (w *witness) answers(revision string) error {
	i := slices.IndexFunc(w.texts, func(t *text) bool { return t.revision == revision })
	if i < 0 {
		w.claim = claim{}
		return fmt.Errorf("the signer shows revision %s, which is that of no text that this reporter has seen in the volume: it shows %s", revision, cmp.Or(w.next(), "none"))
	}
	if t := w.texts[i]; w.claim.id != w.instance.id || w.claim.text.revision != revision {
		w.claims(t, false)
		w.claim.text.at = w.latest
	}
	w.claim.generation = w.generation
	return nil
}

// silent: the instance did not show a revision. While the volume is as it was when it last did, it can have loaded nothing else.
func (w *witness) silent() {
	if w.claim.generation != w.generation || w.claim.id != w.instance.id || w.claim.text.revision != w.next() {
		w.claim = claim{}
	}
}

// next is the revision of what an instance would load that started now, and empty where that is not known.
func (w *witness) next() string {
	if w.text == nil {
		return ""
	}
	return w.text.revision
}

// settled reports whether there is nothing to wait for.
func (w *witness) settled() bool {
	return w.instance.id != "" && w.claim.id == w.instance.id && w.claim.text.revision == w.next()
}
