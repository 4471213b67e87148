package release

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	mark  = Marker{"grantfirst.dev", "Hold", "shop", "grantfirst-0123456789-none"}
)

// world is one Application seen by one watcher, by a clock of its own. What the watcher does it does not do to the Application: tests
// say what becomes of it.
type world struct {
	*testing.T
	o      Observed
	memory Memory
	now    time.Time
	rv     int
}

// newWorld has an Application that was just synced, held, by its own auto-sync.
func newWorld(t *testing.T) *world {
	w := &world{T: t, now: start, memory: Memory{}, rv: 100, o: Observed{Application: &Application{}, Holds: map[Marker]Hold{}, MayBegin: true}}
	a := w.o.Application
	a.Metadata.Name, a.Metadata.Namespace = "web", "argocd"
	w.policy(`{"automated":{"prune":true,"selfHeal":true}}`)
	w.changed()
	w.compared("c1", statusSynced)
	w.status("history", `[{"id":4,"revision":"c0"},{"id":5,"revision":"c1"}]`)
	w.heldOperation("t1")
	w.rendered()
	w.hold("sha256:d1", No)
	return w
}

func (w *world) changed() {
	w.rv++
	w.o.Metadata.ResourceVersion = strconv.Itoa(w.rv)
}

func (w *world) into(v any, text string) {
	w.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		w.Fatal(err)
	}
	w.changed()
}

func (w *world) policy(text string) {
	w.o.Spec.SyncPolicy = nil
	w.into(&w.o.Spec, `{"syncPolicy":`+text+`}`)
}

func (w *world) status(field, text string) {
	switch field {
	case "history":
		w.o.Status.History = nil
	case "resources":
		w.o.Status.Resources = nil
	case "operationState":
		w.o.Status.OperationState = nil
	}
	w.into(&w.o.Status, `{"`+field+`":`+text+`}`)
}

func (w *world) compared(revision, status string) {
	w.o.Status.Sync.Revision, w.o.Status.Sync.Status = revision, status
	w.changed()
}

func (w *world) hold(digest string, loaded Loaded) {
	w.o.Holds[mark] = Hold{Digest: digest, Loaded: loaded, Evidence: w.o.Holds[mark].Evidence}
}

func (w *world) evidence() {
	h := w.o.Holds[mark]
	h.Evidence++
	w.o.Holds[mark] = h
}

const workload = `{"group":"apps","kind":"Deployment","namespace":"shop","name":"web","status":"Synced"}`

func (w *world) rendered() {
	w.status("resources", `[{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+mark.Name+`","status":"Synced"},{"group":"apps","kind":"Deployment","namespace":"shop","name":"web"}]`)
}

// notLive: rendered, and never applied.
func (w *world) notLive() {
	w.status("resources", `[{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+mark.Name+`","status":"OutOfSync"}]`)
	w.compared(w.o.Status.Sync.Revision, statusOutOfSync)
	w.hold("", Unknown)
}

// freshlyCompared: the comparison that a release is waiting for.
func (w *world) freshlyCompared() {
	w.status("resources", `[{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+mark.Name+`","status":"OutOfSync","requiresPruning":true},
		{"group":"apps","kind":"Deployment","namespace":"shop","name":"web","status":"OutOfSync"}]`)
	w.compared(w.o.Status.Sync.Revision, statusOutOfSync)
}

func (w *world) onlyTheMarkerIsLeft() {
	w.status("resources", `[{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+mark.Name+`","status":"OutOfSync","requiresPruning":true},`+workload+`]`)
	w.compared(w.o.Status.Sync.Revision, statusOutOfSync)
}

func (w *world) markerGone(status string) {
	w.status("resources", `[`+workload+`]`)
	w.compared(w.o.Status.Sync.Revision, status)
}

func (w *world) heldOperation(at string) {
	w.status("operationState", `{"phase":"Succeeded","startedAt":"`+at+`","operation":{"sync":{}},
		"syncResult":{"resources":[{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+mark.Name+`","status":"Synced","hookPhase":"Running"}]}}`)
}

func (w *world) operation(phase, at string) {
	w.status("operationState", `{"phase":"`+phase+`","startedAt":"`+at+`","message":"one or more tasks","operation":{"sync":{}}}`)
}

// fullSync of fresh manifests that pruned the marker, or passed it over.
func (w *world) fullSync(at, of string) {
	w.status("operationState", `{"phase":"Succeeded","startedAt":"`+at+`","operation":{"sync":{}},
		"syncResult":{"resources":[{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+mark.Name+`","status":"`+of+`"}]}}`)
}

func (w *world) partialSync(at string) {
	w.status("operationState", `{"phase":"Succeeded","startedAt":"`+at+`","operation":{"sync":{"resources":[{"kind":"Deployment","name":"web"}]}},
		"syncResult":{"resources":[{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+mark.Name+`","status":"Pruned"}]}}`)
}

// noOperation is what Arm and Refresh leave.
func (w *world) noOperation() {
	w.o.Status.OperationState = nil
	w.changed()
}

func (w *world) annotate(value string) {
	w.o.Metadata.Annotations = nil
	if value != "" {
		w.o.Metadata.Annotations = map[string]string{annotationRefresh: value}
	}
	w.changed()
}

func (w *world) after(d time.Duration) { w.now = w.now.Add(d) }

func (w *world) decide() Decision {
	before := maps.Clone(w.memory)
	next, d := Decide(&w.o, w.memory, w.now)
	if !maps.Equal(before, w.memory) {
		w.Fatal("Decide has changed the memory that it was given")
	}
	w.memory = next
	return d
}

// expect decides, and wants this to be done.
func (w *world) expect(want Action) Decision {
	w.Helper()
	d := w.decide()
	if d.Do != want {
		w.Fatalf("does %q (%s), want %q", d.Do, d.Why, want)
	}
	return d
}

func (w *world) expectEnd(want Outcome) Decision {
	w.Helper()
	d := w.decide()
	if got := d.Ended[mark]; got != want {
		w.Fatalf("ends with %q (%s, does %q), want %q", got, d.Why, d.Do, want)
	}
	return d
}

// refreshed has a release that is done with its first patch.
func refreshed(t *testing.T) *world {
	w := newWorld(t)
	w.noOperation()
	w.expect(None)
	w.hold("sha256:d1", Yes)
	w.expect(Refresh)
	w.annotate("hard")
	return w
}

// compared has one that Argo CD has compared with fresh manifests.
func comparedFresh(t *testing.T) *world {
	w := refreshed(t)
	w.after(300 * time.Millisecond)
	w.annotate("")
	w.freshlyCompared()
	return w
}

// operationWaits is one that names the marker as what it waits for; result is what it did with the marker, empty for nothing.
func operationWaits(phase, result string) string {
	results, of := "[]", "Running"
	if name, finished := strings.CutSuffix(result, " and over"); finished {
		result, of = name, "Succeeded"
	}
	if result != "" {
		results = `[{"group":"grantfirst.dev","kind":"Hold","namespace":"` + mark.Namespace + `","name":"` + mark.Name + `","status":"` + result + `","hookPhase":"` + of + `"}]`
	}
	return `{"phase":"` + phase + `","startedAt":"t2","message":"waiting for healthy state of grantfirst.dev/Hold/` + mark.Name + ` and 1 more resources","syncResult":{"resources":` + results + `}}`
}

func TestProtocol(t *testing.T) {
	for name, run := range map[string]func(*testing.T){
		"a held Application that heals itself is armed after every operation, once": func(t *testing.T) {
			w := newWorld(t)
			w.expect(Arm)
			w.noOperation()
			w.after(time.Second)
			w.expect(None)
			w.heldOperation("t2")
			w.expect(Arm)
		},
		"one that does not heal itself is not armed, because Argo CD would repair drift of the grants": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{"automated":{"prune":true}}`)
			w.expect(None)
		},
		"a child of a RollingSync is armed": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{}`)
			w.o.RollingSync = &RollingSync{Status: "Progressing"}
			w.expect(Arm)
		},
		"nothing is armed while an operation runs": func(t *testing.T) {
			w := newWorld(t)
			w.operation(phaseRunning, "t2")
			w.expect(None)
		},
		"nothing is armed while an operation stands": func(t *testing.T) {
			w := newWorld(t)
			w.o.Operation = map[string]any{}
			w.expect(None)
		},
		"nothing is armed before the held manifests are synced": func(t *testing.T) {
			w := newWorld(t)
			w.compared("c2", statusOutOfSync)
			w.expect(None)
		},
		"a manual Application is not armed": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{}`)
			w.expect(None)
		},
		"when every grant is loaded it is refreshed, and Argo CD starts the sync": func(t *testing.T) {
			w := comparedFresh(t)
			if d := w.expect(None); !d.InFlight || !d.Again.After(w.now) {
				t.Errorf("takes a place %v, looks again at %s", d.InFlight, d.Again)
			}
			w.operation(phaseRunning, "t2")
			w.after(10 * time.Second)
			w.expect(None)
			w.fullSync("t2", "Pruned")
			w.markerGone(statusSynced)
			if d := w.expectEnd(Released); d.InFlight {
				t.Error("still takes a place")
			}
			if len(w.memory) != 0 {
				t.Errorf("remembers %v", w.memory)
			}
		},
		"where the comparison became fresh during one more held sync, the full one begins as that ends: Argo CD would only heal a part": func(t *testing.T) {
			for policy, want := range map[string]Action{`{"automated":{"prune":true,"selfHeal":true}}`: Sync, `{"automated":{"prune":true}}`: None} {
				w := newWorld(t)
				w.policy(policy)
				w.expect(map[Action]Action{Sync: Arm, None: None}[want])
				w.operation(phaseRunning, "t2")
				w.hold("sha256:d1", Yes)
				w.freshlyCompared()
				w.expect(None)
				w.after(100 * time.Millisecond)
				w.status("history", `[{"id":4,"revision":"c0"},{"id":5,"revision":"c1"},{"id":6,"revision":"c1"}]`)
				w.heldOperation("t2")
				w.expect(want)
			}
		},
		"how long a release had to wait for its turn is known": func(t *testing.T) {
			w := newWorld(t)
			w.noOperation()
			w.o.MayBegin = false
			w.hold("sha256:d1", Yes)
			loaded := w.now
			w.expect(None)
			w.after(5 * time.Second)
			w.expect(None)
			w.o.MayBegin = true
			w.expect(Refresh)
			if p := w.memory[mark]; !p.Loaded.Equal(loaded) || !p.Begun.Equal(w.now) {
				t.Errorf("loaded at %s and begun at %s, want %s and %s", p.Loaded, p.Begun, loaded, w.now)
			}
		},
		"a refresh that has not been taken up is repeated after a second, as a change": func(t *testing.T) {
			w := refreshed(t)
			w.after(900 * time.Millisecond)
			w.expect(None)
			w.after(100 * time.Millisecond)
			w.expect(Toggle)
			w.annotate("")
			w.expect(Refresh)
		},
		"a refresh that another one has swallowed is repeated, each time later": func(t *testing.T) {
			w := refreshed(t)
			for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
				w.annotate("")
				w.after(wait*time.Second - time.Millisecond)
				w.expect(None)
				w.after(time.Millisecond)
				w.expect(Refresh)
			}
		},
		"while an operation runs nothing is refreshed": func(t *testing.T) {
			w := refreshed(t)
			w.annotate("")
			w.operation(phaseRunning, "t2")
			w.after(time.Minute)
			w.expect(None)
		},
		"after a fresh comparison nothing is refreshed any more": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.o.Closed = true
			for range 100 {
				w.after(time.Minute)
				w.expect(None)
			}
		},
		"a comparison that could not be made is none, whatever it lists": func(t *testing.T) {
			w := refreshed(t)
			w.annotate("")
			w.freshlyCompared()
			w.compared("c1", "Unknown")
			w.after(time.Second)
			w.expect(Refresh)
		},
		"a hold whose grants are loaded is released though Argo CD could not compare, in its turn": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{"automated":{"prune":true}}`)
			w.expect(None)
			w.compared("c1", "Unknown")
			w.expect(None)
			w.hold("sha256:d1", Yes)
			w.o.MayBegin = false
			if d := w.expect(None); !d.Wants {
				t.Error("does not want to begin")
			}
			w.o.MayBegin = true
			w.expect(Refresh)
		},
		"and by a watcher that remembers nothing the held sync is not taken for the release's": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{"automated":{"prune":true}}`)
			w.compared("c1", "Unknown")
			w.hold("sha256:d1", Yes)
			w.expect(Refresh)
			w.freshlyCompared()
			w.after(time.Second)
			w.expect(None)
			w.after(standsNewer)
			w.expect(Sync)
		},
		"a marker that is not applied because its revision is not synced yet asks the plugin nothing": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{"automated":{"prune":true}}`)
			w.notLive()
			w.status("history", `[{"id":4,"revision":"c0"}]`)
			for range 10 {
				w.evidence()
				w.after(time.Minute)
				w.expect(None)
			}
			w.operation(phaseFailed, "t3")
			w.expect(Refresh)
		},
		"nor does one that sync windows keep from being synced, before they let it": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{"automated":{"prune":true}}`)
			w.notLive()
			w.o.Closed, w.o.ClosedUntil = true, w.now.Add(time.Hour)
			w.expect(None)
			w.evidence()
			w.after(time.Minute)
			w.expect(None)
			w.o.Closed = false
			w.expect(Refresh)
		},
		"the sync is started when the comparison has stood for a second and nothing runs": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.after(999 * time.Millisecond)
			w.expect(None)
			w.after(time.Millisecond)
			w.expect(Sync)
		},
		"for a child of a RollingSync without automated, after five": func(t *testing.T) {
			w := comparedFresh(t)
			w.policy(`{}`)
			w.o.RollingSync = &RollingSync{Status: "Progressing"}
			w.expect(None)
			w.after(4999 * time.Millisecond)
			w.expect(None)
			w.after(time.Millisecond)
			w.expect(Sync)
		},
		"for a child of a RollingSync that is switched off, after one": func(t *testing.T) {
			w := comparedFresh(t)
			w.policy(`{"automated":{"enabled":false,"prune":true}}`)
			w.o.RollingSync = &RollingSync{Status: "Progressing"}
			w.expect(None)
			w.after(time.Second)
			w.expect(Sync)
		},
		"a child of a RollingSync whose step has not come is left to the ApplicationSet controller": func(t *testing.T) {
			w := comparedFresh(t)
			w.policy(`{"automated":{"enabled":false,"prune":true}}`)
			w.o.RollingSync = &RollingSync{Status: "Waiting"}
			w.expect(None)
			w.after(time.Hour)
			if d := w.expect(None); d.InFlight {
				t.Error("takes a place")
			}
		},
		"with sync windows an automated Application is left to Argo CD": func(t *testing.T) {
			w := comparedFresh(t)
			w.o.Closed = true
			w.after(time.Hour)
			if d := w.expect(None); d.InFlight {
				t.Error("takes a place")
			}
		},
		"when they let it sync again Argo CD is woken, and the sync is started where it still does not": func(t *testing.T) {
			w := comparedFresh(t)
			w.o.Closed, w.o.ClosedUntil = true, w.now.Add(time.Hour)
			if d := w.expect(None); !d.Again.Equal(w.o.ClosedUntil) {
				t.Errorf("looks again at %s", d.Again)
			}
			w.after(time.Hour)
			w.o.Closed = false
			w.expect(Toggle)
			w.annotate("")
			w.after(9 * time.Second)
			w.expect(None)
			w.after(time.Second)
			w.expect(Sync)
		},
		"our own sync is started once": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.after(time.Second)
			w.expect(Sync)
			w.after(100 * time.Millisecond)
			w.expect(None)
			w.operation(phaseRunning, "t2")
			w.heldOperation("t2")
			w.after(2 * time.Second)
			w.expectEnd(Lost)
			w.after(time.Hour)
			w.expect(None)
		},
		"a full sync that failed is the Application's own failure": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.operation(phaseRunning, "t2")
			w.expect(None)
			w.operation(phaseFailed, "t2")
			w.expectEnd(SyncFailed)
			w.after(time.Hour)
			w.expect(None)
		},
		"a full sync that failed is seen as such without any memory": func(t *testing.T) {
			w := comparedFresh(t)
			w.operation(phaseFailed, "t2")
			w.memory = nil
			w.expectEnd(SyncFailed)
			w.after(time.Hour)
			w.expect(None)
		},
		"the operation that ran on held manifests is not taken for the release, without any memory": func(t *testing.T) {
			w := comparedFresh(t)
			w.heldOperation("t1")
			w.memory = nil
			w.expect(Sync)
		},
		"an operation that says Succeeded after the refresh, and applied the marker, ran on held manifests": func(t *testing.T) {
			w := refreshed(t)
			w.annotate("")
			w.heldOperation("t2")
			w.after(time.Second)
			w.expect(Refresh)
		},
		"one that ran on held manifests while the comparison became fresh is not the release": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.heldOperation("t2")
			w.status("history", `[{"id":5,"revision":"c1"},{"id":6,"revision":"c1"}]`)
			w.after(time.Second)
			w.expect(Sync)
		},
		"a partial sync runs no hooks, so a full one follows": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.partialSync("t2")
			w.markerGone(statusSynced)
			w.after(time.Second)
			w.expect(Sync)
			w.fullSync("t3", "Pruned")
			w.status("history", `[{"id":5,"revision":"c1"},{"id":6,"revision":"c1"}]`)
			w.expectEnd(Released)
		},
		"a partial sync that pruned the marker came instead of a full one, whatever the history has": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.partialSync("t2")
			w.status("history", `[{"id":5,"revision":"c1"},{"id":6,"revision":"c1"}]`)
			w.markerGone(statusSynced)
			w.after(time.Second)
			w.expect(Sync)
		},
		"what was seen is remembered though the patch was refused, and what was to be done is not": func(t *testing.T) {
			w := newWorld(t)
			w.noOperation()
			w.hold("sha256:d1", Yes)
			d := w.expect(Refresh)
			if p := d.Otherwise[mark]; p.Refreshes != 0 || !p.Begun.IsZero() || p.On != "" || p.History != 5 || p.Revision != "c1" || !p.Synced {
				t.Errorf("remembers %+v", p)
			}
		},
		"a partial sync after a full one is Argo CD's own repair": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.status("operationState", `{"phase":"Succeeded","startedAt":"t3","operation":{"sync":{"resources":[{"kind":"Deployment","name":"web"}]}},
				"syncResult":{"resources":[{"group":"apps","kind":"Deployment","namespace":"shop","name":"web","status":"Synced"}]}}`)
			w.status("history", `[{"id":5,"revision":"c1"},{"id":6,"revision":"c1"}]`)
			w.markerGone(statusSynced)
			w.expectEnd(Released)
		},
		"a dry run is no sync": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.status("operationState", `{"phase":"Succeeded","startedAt":"t2","operation":{"sync":{"dryRun":true}}}`)
			w.after(time.Second)
			w.expect(Sync)
		},
		"an operation that stands and that nobody begins is woken after a second and a half": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.after(time.Second)
			w.expect(Sync)
			w.o.Operation = map[string]any{}
			w.changed()
			w.expect(None)
			w.after(1499 * time.Millisecond)
			w.expect(None)
			w.after(time.Millisecond)
			w.expect(Toggle)
			w.annotate("normal")
			w.after(1500 * time.Millisecond)
			w.expect(None)
			w.after(1500 * time.Millisecond)
			w.expect(Toggle)
		},
		"an operation that waits for the marker although it is released is ended, once, and the release goes on": func(t *testing.T) {
			w := newWorld(t)
			w.hold("sha256:d1", Yes)
			w.status("operationState", operationWaits("Running", "Synced"))
			if d := w.expect(Terminate); len(d.Hangs) != 1 {
				t.Error("does not say so")
			}
			w.status("operationState", operationWaits("Terminating", "Synced"))
			w.after(time.Second)
			w.expect(None)
			w.operation(phaseFailed, "t2")
			w.expect(Refresh)
		},
		"also where the comparison is fresh already": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.status("operationState", operationWaits("Running", "Synced"))
			w.expect(Terminate)
			w.operation(phaseFailed, "t2")
			w.after(time.Second)
			w.expect(Sync)
		},
		"one that waits for the marker during the hold is said and left": func(t *testing.T) {
			w := newWorld(t)
			w.status("operationState", operationWaits("Running", "Synced"))
			if d := w.expect(None); len(d.Hangs) != 1 {
				t.Error("does not say so")
			}
		},
		"one that has only to apply the marker next, or to prune it, is left to go on": func(t *testing.T) {
			for _, result := range []string{"", "Pruned", "PruneSkipped", "Synced and over"} {
				w := comparedFresh(t)
				w.status("operationState", operationWaits("Running", result))
				if d := w.expect(None); len(d.Hangs) > 0 {
					t.Errorf("result %q: says that it hangs", result)
				}
			}
		},
		"one that a person started on a manual Application is said and left": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{}`)
			w.hold("sha256:d1", Yes)
			w.expect(Refresh)
			w.freshlyCompared()
			w.after(time.Second)
			w.expectEnd(ManualSync)
			w.status("operationState", operationWaits("Running", "Synced"))
			if d := w.expect(None); len(d.Hangs) != 1 {
				t.Error("does not say so")
			}
		},
		"a manual Application is refreshed and not synced": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{}`)
			w.hold("sha256:d1", Yes)
			w.expect(Refresh)
			w.freshlyCompared()
			w.after(time.Second)
			w.expectEnd(ManualSync)
			w.after(time.Hour)
			w.expect(None)
			w.fullSync("t9", "Pruned")
			w.markerGone(statusSynced)
			w.expectEnd(Released)
		},
		"so is one whose automation was switched off": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{"automated":{"enabled":false,"prune":true}}`)
			w.hold("sha256:d1", Yes)
			w.expect(Refresh)
			w.freshlyCompared()
			w.after(time.Second)
			w.expectEnd(ManualSync)
		},
		"with prune off the marker is deleted after the sync, and once": func(t *testing.T) {
			w := comparedFresh(t)
			w.policy(`{"automated":{}}`)
			w.expect(None)
			w.fullSync("t2", "PruneSkipped")
			w.expectEnd(Released)
			w.onlyTheMarkerIsLeft()
			w.expect(DeleteMarker)
			w.after(59 * time.Second)
			w.changed()
			w.expect(None)
		},
		"with prune on the marker is pruned by the sync, ours if there is no other": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.onlyTheMarkerIsLeft()
			w.after(time.Second)
			w.expect(Sync)
		},
		"a sync that would prune everything is not ours to start": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.status("resources", `[{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+mark.Name+`","status":"OutOfSync","requiresPruning":true}]`)
			w.after(time.Hour)
			w.expect(None)
		},
		"a marker that is left by a sync without prune of the ApplicationSet controller is deleted": func(t *testing.T) {
			w := comparedFresh(t)
			w.policy(`{}`)
			w.o.RollingSync = &RollingSync{Status: "Progressing", Prune: true}
			w.expect(None)
			w.fullSync("t2", "PruneSkipped")
			w.onlyTheMarkerIsLeft()
			w.expect(DeleteMarker)
		},
		"a revert during the hold needs no release": func(t *testing.T) {
			w := newWorld(t)
			w.noOperation()
			w.expect(None)
			w.compared("c0-again", statusOutOfSync)
			w.freshlyCompared()
			w.after(standsNewer - time.Millisecond)
			w.expect(None)
			w.fullSync("t2", "Pruned")
			w.status("history", `[{"id":5,"revision":"c1"},{"id":6,"revision":"c0-again"}]`)
			w.markerGone(statusSynced)
			w.expectEnd(Released)
		},
		"with prune off the marker that a revert leaves is deleted": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{"automated":{}}`)
			w.expect(None)
			w.compared("c0-again", statusOutOfSync)
			w.onlyTheMarkerIsLeft()
			w.expect(DeleteMarker)
		},
		"a revert in an Application that is synced by hand leaves a marker to delete, without any memory": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{}`)
			w.compared("c0-again", statusOutOfSync)
			w.onlyTheMarkerIsLeft()
			w.expect(DeleteMarker)
		},
		"a failed sync leaves the marker": func(t *testing.T) {
			w := comparedFresh(t)
			w.policy(`{"automated":{}}`)
			w.expect(None)
			w.operation(phaseFailed, "t2")
			w.expectEnd(SyncFailed)
		},
		"a newer revision without a hold is synced by Argo CD, and by us where it fails to for ten seconds": func(t *testing.T) {
			w := refreshed(t)
			w.annotate("")
			w.compared("c2", statusOutOfSync)
			w.freshlyCompared()
			w.expect(None)
			w.after(standsNewer - time.Millisecond)
			w.expect(None)
			w.after(time.Millisecond)
			w.expect(Sync)
		},
		"and in a RollingSync by the ApplicationSet controller, in its turn": func(t *testing.T) {
			w := refreshed(t)
			w.policy(`{"automated":{"enabled":false,"prune":true}}`)
			w.o.RollingSync = &RollingSync{Status: "Progressing"}
			w.annotate("")
			w.compared("c2", statusOutOfSync)
			w.freshlyCompared()
			w.expectEnd(Superseded)
			w.after(time.Hour)
			w.expect(None)
		},
		"a newer revision that still needs the hold is the same hold while the same demands wait": func(t *testing.T) {
			w := newWorld(t)
			w.noOperation()
			w.expect(None)
			w.compared("c2", statusSynced)
			w.heldOperation("t2")
			w.expect(Arm)
			w.noOperation()
			w.hold("sha256:d1", Yes)
			w.after(time.Second)
			w.expect(Refresh)
			w.freshlyCompared()
			w.after(time.Second)
			w.expect(None)
			w.after(time.Second)
			w.expect(Sync)
		},
		"a revision that was not synced yet, held, is left to the ApplicationSet controller": func(t *testing.T) {
			w := newWorld(t)
			w.policy(`{"automated":{"enabled":false,"prune":true}}`)
			w.o.RollingSync = &RollingSync{Status: "Progressing"}
			w.noOperation()
			w.compared("c2", statusOutOfSync)
			w.hold("sha256:d1", Yes)
			w.expect(Refresh)
			w.after(time.Second)
			w.freshlyCompared()
			w.after(time.Hour)
			w.expect(None)
		},
		"where nothing is left to sync the hold is over": func(t *testing.T) {
			w := refreshed(t)
			w.markerGone(statusSynced)
			w.expectEnd(AlreadySynced)
		},
		"an Application that is being deleted is never patched": func(t *testing.T) {
			w := refreshed(t)
			w.into(&w.o.Metadata, `{"deletionTimestamp":"2026-11-29T12:00:00Z"}`)
			w.after(time.Hour)
			w.expectEnd(Deleted)
			w.expect(None)
		},
		"a hold that never became live is refreshed when evidence has changed": func(t *testing.T) {
			w := newWorld(t)
			w.noOperation()
			w.notLive()
			w.after(settles)
			w.expect(None)
			w.evidence()
			w.after(settles)
			w.expect(Refresh)
			for range 2 {
				w.changed()
				w.after(time.Minute)
				w.expect(Refresh)
			}
			w.changed()
			w.after(time.Hour)
			if d := w.expect(None); d.InFlight || !d.Again.IsZero() {
				t.Errorf("takes a place %v, looks again at %s", d.InFlight, d.Again)
			}
			w.evidence()
			w.expect(Refresh)
			w.markerGone(statusSynced)
			w.after(time.Second)
			w.expectEnd(AlreadySynced)
		},
		"a hold of which it is unclear whether it is over is refreshed when that stays so, and again at once when it is over": func(t *testing.T) {
			w := newWorld(t)
			w.noOperation()
			w.hold("sha256:d1", Unknown)
			w.evidence()
			w.expect(None)
			w.after(settlesLive - time.Millisecond)
			w.expect(None)
			w.evidence()
			w.after(time.Millisecond)
			w.expect(None)
			w.after(settlesLive)
			w.expect(Refresh)
			w.changed()
			w.hold("sha256:d1", Yes)
			w.expect(Refresh)
		},
		"a hold that becomes live in time is not refreshed for not being so": func(t *testing.T) {
			w := newWorld(t)
			w.notLive()
			w.expect(None)
			w.after(time.Second)
			w.rendered()
			w.hold("sha256:d1", No)
			w.after(time.Hour)
			w.expect(None)
		},
		"a release waits for its turn": func(t *testing.T) {
			w := newWorld(t)
			w.o.MayBegin = false
			w.noOperation()
			w.expect(None)
			w.after(time.Second)
			w.hold("sha256:d1", Yes)
			if d := w.expect(None); !d.Wants || d.InFlight || d.Since != start {
				t.Errorf("wants %v, takes a place %v, since %s", d.Wants, d.InFlight, d.Since)
			}
			w.o.MayBegin = true
			if d := w.expect(Refresh); !d.InFlight || d.Wants {
				t.Errorf("takes a place %v, wants %v", d.InFlight, d.Wants)
			}
		},
		"one that has begun is not held up by others": func(t *testing.T) {
			w := refreshed(t)
			w.o.MayBegin = false
			w.annotate("")
			w.after(time.Second)
			w.expect(Refresh)
		},
		"after a minute a release takes no place any more": func(t *testing.T) {
			w := refreshed(t)
			w.after(flightTime)
			if d := w.decide(); d.InFlight {
				t.Error("takes a place")
			}
		},
		"a grant that is lost before the comparison ends the release": func(t *testing.T) {
			w := refreshed(t)
			w.annotate("")
			w.hold("sha256:d1", No)
			w.after(time.Hour)
			w.expect(None)
			w.hold("sha256:d1", Yes)
			w.expect(Refresh)
		},
		"a grant that is lost before the sync takes the release back": func(t *testing.T) {
			w := comparedFresh(t)
			w.o.Closed = true
			w.expect(None)
			w.after(time.Minute)
			w.hold("sha256:d1", No)
			w.expect(Refresh)
			w.rendered()
			w.compared("c1", statusSynced)
			w.after(time.Minute)
			w.expect(None)
			w.hold("sha256:d1", Yes)
			w.expect(Refresh)
		},
		"also for a manual Application that nobody has synced yet, without any memory": func(t *testing.T) {
			w := comparedFresh(t)
			w.policy(`{}`)
			w.heldOperation("t1")
			w.memory = nil
			w.hold("sha256:d1", No)
			w.expect(Refresh)
		},
		"not after the sync has run": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.hold("sha256:d1", No)
			w.fullSync("t2", "PruneSkipped")
			w.expectEnd(Released)
		},
		"not while it is only unknown whether the grant is loaded": func(t *testing.T) {
			w := comparedFresh(t)
			w.o.Closed = true
			w.expect(None)
			w.hold("sha256:d1", Unknown)
			w.after(time.Minute)
			w.expect(None)
		},
		"where the plugin lets it go all the same, it is refreshed three times and never synced by us": func(t *testing.T) {
			w := comparedFresh(t)
			w.expect(None)
			w.hold("sha256:d1", No)
			for range enough {
				w.after(time.Minute)
				w.changed()
				w.expect(Refresh)
			}
			w.after(time.Hour)
			w.changed()
			w.expect(None)
		},
		"a rollback while held switches automation off: no release": func(t *testing.T) {
			w := newWorld(t)
			w.noOperation()
			w.expect(None)
			w.policy(`{}`)
			w.notLive()
			w.status("history", `[{"id":5,"revision":"c1"},{"id":6,"revision":"c0"}]`)
			w.expect(None)
		},
		"what was patched is not patched again before it has been seen": func(t *testing.T) {
			w := newWorld(t)
			w.expect(Arm)
			w.expect(None)
			w.after(firstRepeat)
			w.expect(Arm)
		},
		"another digest is another hold": func(t *testing.T) {
			w := newWorld(t)
			w.expect(Arm)
			w.memory[mark] = with(w.memory[mark], func(p *Past) { p.Started = true })
			w.after(time.Minute)
			w.hold("sha256:d2", No)
			w.decide()
			if p := w.memory[mark]; p.Started || p.Since == start || p.Digest != "sha256:d2" {
				t.Errorf("remembers %+v", p)
			}
		},
		"of two holds of one Application one is patched for at a time": func(t *testing.T) {
			w := newWorld(t)
			other := mark
			other.Name = "grantfirst-aaaaaaaaaa-none"
			w.noOperation()
			w.status("resources", `[{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+mark.Name+`","status":"Synced"},
				{"group":"grantfirst.dev","kind":"Hold","namespace":"shop","name":"`+other.Name+`","status":"Synced"}]`)
			w.hold("sha256:d1", Yes)
			w.o.Holds[other] = Hold{Digest: "sha256:e1", Loaded: Yes}
			if d := w.expect(Refresh); d.Marker != mark {
				t.Errorf("for %s", d.Marker)
			}
			if w.memory[other].Refreshes != 0 || w.memory[mark].Refreshes != 1 {
				t.Errorf("remembers %+v", w.memory)
			}
		},
	} {
		t.Run(name, run)
	}
}

func with(p Past, do func(*Past)) Past {
	do(&p)
	return p
}
