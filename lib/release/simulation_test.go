package release

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// flavour is what an Argo CD and an Application in it are like.
type flavour struct {
	name   string
	policy string
	// rolling: an ApplicationSet rolls it out; old is that of Argo CD up to v3.2, which starts syncs at any revision, with what the last
	// operation left.
	rolling, old bool
	// sleepy: auto-sync never starts at a revision that it has compared before (several sources, up to v3.1).
	sleepy bool
	manual bool
}

var flavours = []flavour{
	{name: "heals itself", policy: `{"automated":{"prune":true,"selfHeal":true}}`},
	{name: "does not heal itself", policy: `{"automated":{"prune":true}}`},
	{name: "no prune", policy: `{"automated":{"selfHeal":true}}`},
	{name: "neither", policy: `{"automated":{}}`},
	{name: "several sources before v3.2", policy: `{"automated":{"prune":true}}`, sleepy: true},
	{name: "RollingSync up to v3.2", policy: `{}`, rolling: true, old: true},
	{name: "RollingSync since v3.3", policy: `{"automated":{"enabled":false,"prune":true}}`, rolling: true},
	{name: "manual", policy: `{}`, manual: true},
}

// output is what the plugin printed for a revision.
type output struct {
	revision int
	held     bool
}

// argo is a model of Argo CD and one Application, as docs/release.md says that it behaves. Everything that takes time there is two steps
// here, and others come between them.
type argo struct {
	flavour
	*rand.Rand
	now time.Time

	app      Application
	versions []Application // as the API server had them, for watchers that lag
	head     int
	granted  bool
	// applied is the revision of which the workload is live, and marker the one of whose hold the marker is live, 0 for none.
	applied, marker int
	cache           map[int]output

	wantsRefresh  bool
	refreshing    *refresh
	wakes         bool
	running       *output
	full          bool
	revision      int
	prune         bool
	fails         bool
	operations    int
	hooks         map[int]int
	compared      map[int]bool
	rolled        map[string]bool
	foreignNormal int
	log           []string
}

type refresh struct {
	hard      bool
	attempted bool
	failed    bool
	out       output
}

func (a *argo) say(format string, args ...any) {
	a.log = append(a.log, a.now.Format("05.000 ")+fmt.Sprintf(format, args...))
}

func (a *argo) chance(percent int) bool { return a.IntN(100) < percent }

// write is one change of the Application on the API server.
func (a *argo) write(do func(*Application)) {
	next := clone(&a.app)
	do(&next)
	next.Metadata.ResourceVersion = fmt.Sprint(len(a.versions) + 1)
	a.app = next
	a.versions = append(a.versions, next)
	if a.app.Operation != nil {
		// The event that would begin the operation is sometimes used up before the operation is seen.
		a.wakes = a.wakes || !a.chance(10)
	}
	if a.app.Metadata.Annotations[annotationRefresh] != "" {
		a.wantsRefresh = true
	}
}

func clone(a *Application) Application {
	c := *a
	c.Metadata.Annotations = maps.Clone(a.Metadata.Annotations)
	c.Status.Resources = slices.Clone(a.Status.Resources)
	c.Status.History = slices.Clone(a.Status.History)
	if s := a.Status.OperationState; s != nil {
		state := *s
		state.SyncResult.Resources = slices.Clone(s.SyncResult.Resources)
		c.Status.OperationState = &state
	}
	return c
}

// generate is the plugin: the first revision needs no grant, later ones do.
func (a *argo) generate(revision int) output {
	return output{revision, revision > 1 && !a.granted}
}

func (a *argo) manifests(revision int, hard bool) output {
	if out, ok := a.cache[revision]; ok && !hard {
		return out
	}
	out := a.generate(revision)
	a.cache[revision] = out
	return out
}

func (a *argo) beginRefresh() {
	hard := a.app.Metadata.Annotations[annotationRefresh] == "hard"
	a.wantsRefresh = false
	a.refreshing = &refresh{hard: hard, out: a.manifests(a.head, hard)}
	switch s := a.app.Status.OperationState; {
	case a.running != nil:
		a.refreshing.attempted, a.refreshing.failed = a.running.revision == a.head, true
	case s.completed():
		a.refreshing.attempted, a.refreshing.failed = s.Message == fmt.Sprint(a.head), s.Phase != phaseSucceeded
	}
	a.say("refresh begins hard=%v held=%v", hard, a.refreshing.out.held)
}

func (a *argo) endRefresh() {
	r := a.refreshing
	a.refreshing = nil
	revision := fmt.Sprint(r.out.revision)
	status := a.compare(r.out)
	first := !a.compared[r.out.revision]
	if a.app.Operation == nil {
		a.compared[r.out.revision] = true // else it misses the revision, which is none of our business
	}
	a.say("refresh ends: %s held=%v %s", revision, r.out.held, status)
	a.write(func(app *Application) {
		delete(app.Metadata.Annotations, annotationRefresh)
		app.Status.Sync.Revision, app.Status.Sync.Status = revision, status
		app.Status.Resources = a.resources(r.out)
	})
	if status == statusSynced || a.app.Operation != nil || !a.app.automated() || a.sleepy && !first {
		return
	}
	if !a.app.Spec.SyncPolicy.Automated.Prune && a.app.onlyPrunesLeft() {
		return
	}
	var parts []any
	if r.attempted {
		if !a.app.selfHeals() || r.failed {
			return
		}
		parts = []any{"web"}
	}
	a.say("auto-sync, parts %v", parts)
	a.operate(parts, a.app.Spec.SyncPolicy.Automated.Prune, r.out.revision)
}

// operate clears what the last operation left, as Argo CD's own SetAppOperation does.
func (a *argo) operate(parts []any, prune bool, revision int) {
	a.full, a.prune, a.revision = parts == nil, prune, revision
	a.write(func(app *Application) {
		app.Operation, app.Status.OperationState = map[string]any{"parts": parts}, nil
	})
}

func (a *argo) compare(out output) string {
	if out.held && a.marker != 0 || !out.held && a.marker == 0 && a.applied == out.revision {
		return statusSynced
	}
	return statusOutOfSync
}

func (a *argo) resources(out output) []Resource {
	marker := Resource{Group: mark.Group, Kind: mark.Kind, Namespace: mark.Namespace, Name: mark.Name, Status: statusOutOfSync}
	web := Resource{Group: "apps", Kind: "Deployment", Name: "web"}
	switch {
	case out.held:
		if a.marker != 0 {
			marker.Status = statusSynced
		}
		return []Resource{marker, web}
	default:
		web.Status = statusSynced
		if a.applied != out.revision {
			web.Status = statusOutOfSync
		}
		if a.marker == 0 {
			return []Resource{web}
		}
		marker.RequiresPruning = true
		return []Resource{marker, web}
	}
}

// leftMarker: the operation applied the marker, and goes on waiting for it if another one begins where it left off.
func leftMarker(s *OperationState) bool {
	return s != nil && s.Phase == phaseSucceeded && slices.ContainsFunc(s.SyncResult.Resources, func(r Result) bool {
		return r.Name == mark.Name && r.Status == statusSynced
	})
}

func waits(name string) string {
	return "waiting for healthy state of grantfirst.dev/Hold/" + name + " and 1 more resources"
}

func (a *argo) beginOperation() {
	a.wakes = false
	stale := a.app.Status.OperationState
	a.operations++
	started := fmt.Sprint("op", a.operations)
	hangs := a.old && a.marker != 0 && leftMarker(stale)
	if a.revision == 0 {
		a.revision = a.head
	}
	a.rolled[fmt.Sprint(a.revision)] = true
	out := a.manifests(a.revision, false)
	a.running = &out
	a.say("operation %s begins: full=%v held=%v hangs=%v", started, a.full, out.held, hangs)
	a.write(func(app *Application) {
		s := &OperationState{Phase: phaseRunning, StartedAt: started}
		if !a.full {
			s.Operation.Sync.Resources = []any{"web"}
		}
		// Between two waves Argo CD says the same of what it has only to do next.
		if s.Message = waits(mark.Name); hangs {
			s.SyncResult.Resources = []Result{{Group: mark.Group, Kind: mark.Kind, Namespace: mark.Namespace, Name: mark.Name, Status: resultSynced, HookPhase: phaseRunning}}
		}
		app.Status.OperationState = s
	})
}

func (a *argo) endOperation() {
	s := a.app.Status.OperationState
	out := *a.running
	terminated := s.Phase == phaseTerminating
	if len(s.SyncResult.Resources) > 0 && !terminated {
		return
	}
	a.running = nil
	phase, result := phaseSucceeded, Result{Group: mark.Group, Kind: mark.Kind, Namespace: mark.Namespace, Name: mark.Name}
	switch {
	case terminated:
		phase, result.Status = phaseFailed, statusSynced
	case out.held:
		a.marker, result.Status = out.revision, statusSynced
	case a.fails && a.full:
		phase, result.Name = phaseFailed, "hook"
		a.hooks[out.revision]++
	default:
		if a.full {
			a.hooks[out.revision]++
		}
		a.applied = out.revision
		if a.marker != 0 {
			result.Status = resultPruneSkipped
			if a.prune {
				a.marker, result.Status = 0, resultPruned
			}
		} else {
			result.Name = "web"
		}
	}
	a.say("operation ends: %s, marker %s", phase, result.Status)
	a.write(func(app *Application) {
		app.Operation = nil
		done := app.Status.OperationState
		done.Phase, done.Message = phase, fmt.Sprint(out.revision)
		done.SyncResult.Resources = []Result{result}
		if phase == phaseSucceeded && a.full {
			id, _ := app.synced()
			app.Status.History = append(app.Status.History, struct {
				ID        int64    `json:"id"`
				Revision  string   `json:"revision"`
				Revisions []string `json:"revisions"`
			}{id + 1, fmt.Sprint(out.revision), nil})
		}
	})
	a.wantsRefresh = true
}

// step lets one of the things happen that may.
func (a *argo) step() {
	var may []func()
	if a.refreshing != nil {
		may = append(may, a.endRefresh)
	} else if a.wantsRefresh {
		may = append(may, a.beginRefresh)
	}
	if a.running != nil {
		may = append(may, a.endOperation)
	} else if a.app.Operation != nil && a.wakes {
		may = append(may, a.beginOperation)
	}
	if a.rolling && a.app.idle() && a.app.Status.Sync.Status == statusOutOfSync {
		revision, s := a.app.Status.Sync.Revision, a.app.Status.OperationState
		if a.old && !a.wantsRefresh && a.refreshing == nil && (s == nil || leftMarker(s)) || !a.rolled[revision] {
			may = append(may, func() {
				a.say("ApplicationSet starts a sync")
				a.full, a.prune, a.revision, a.rolled[revision] = true, !a.old, 0, true
				stale := a.app.Status.OperationState
				a.write(func(app *Application) {
					app.Operation = map[string]any{}
					if !a.old {
						stale = nil
					}
					app.Status.OperationState = stale
				})
			})
		}
	}
	if a.foreignNormal > 0 && a.chance(10) {
		a.foreignNormal--
		value := "normal"
		if a.chance(30) {
			value = "hard"
		}
		may = append(may, func() {
			a.say("somebody refreshes: %s", value)
			a.write(func(app *Application) { app.Metadata.Annotations = map[string]string{annotationRefresh: value} })
		})
	}
	if len(may) > 0 {
		may[a.IntN(len(may))]()
	}
}

// patch is what the API server does with one of the watcher's patches.
func (a *argo) patch(body []byte) (conflict bool) {
	var p struct {
		Metadata struct {
			ResourceVersion string             `json:"resourceVersion"`
			Annotations     map[string]*string `json:"annotations"`
		} `json:"metadata"`
		Operation *struct {
			Sync struct {
				Prune    bool   `json:"prune"`
				Revision string `json:"revision"`
			} `json:"sync"`
		} `json:"operation"`
		Status map[string]any `json:"status"`
	}
	if err := json.Unmarshal(body, &p); err != nil {
		panic(err)
	}
	if p.Metadata.ResourceVersion != a.app.Metadata.ResourceVersion {
		return true
	}
	next := clone(&a.app)
	for k, v := range p.Metadata.Annotations {
		if next.Metadata.Annotations == nil {
			next.Metadata.Annotations = map[string]string{}
		}
		if delete(next.Metadata.Annotations, k); v != nil {
			next.Metadata.Annotations[k] = *v
		}
	}
	if state, ok := p.Status["operationState"]; ok {
		if state == nil {
			next.Status.OperationState = nil
		} else {
			next.Status.OperationState.Phase = phaseTerminating
		}
	}
	if p.Operation != nil {
		next.Operation, a.full, a.prune = map[string]any{}, true, p.Operation.Sync.Prune
		a.revision, _ = strconv.Atoi(p.Operation.Sync.Revision)
	}
	before, _ := json.Marshal(a.app)
	after, _ := json.Marshal(next)
	if string(before) != string(after) { // A patch that changes nothing is no event.
		a.write(func(app *Application) { *app = next })
	}
	return false
}

// play is one whole history: an Application is held, its grant is loaded, and a watcher that lags and crashes sees to the rest.
func play(of flavour, seed uint64, crashes bool) (problem string, log []string) {
	a := &argo{flavour: of, Rand: rand.New(rand.NewPCG(seed, 1)), now: start, head: 1, applied: 1, cache: map[int]output{}, hooks: map[int]int{}, compared: map[int]bool{1: true}, rolled: map[string]bool{}}
	_ = json.Unmarshal([]byte(`{"syncPolicy":`+of.policy+`}`), &a.app.Spec)
	_ = json.Unmarshal([]byte(`{"history":[{"id":1,"revision":"1"}],"sync":{"status":"Synced","revision":"1"}}`), &a.app.Status)
	a.write(func(*Application) {})
	a.foreignNormal, a.fails = a.IntN(6), a.chance(15)
	a.head, a.wantsRefresh = 2, true
	if of.manual && a.chance(70) {
		a.marker = 2 // somebody has synced the hold
		a.applied = 1
	}
	var memory Memory
	seen, grantedAt, own, refreshes, patches, notIdle := 0, time.Time{}, 0, 0, 0, 0
	regenerated, ended := false, Outcome("")
	grantAt := start.Add(time.Duration(500+a.IntN(9000)) * time.Millisecond)
	commitAt := grantAt.Add(time.Duration(a.IntN(4000)-2000) * time.Millisecond)
	evidence, saw := uint64(1), false
	commits, late := a.chance(25), false
	lostAt, loses := grantAt.Add(time.Duration(100+a.IntN(3000))*time.Millisecond), a.chance(20)
	for a.now.Before(start.Add(5 * time.Minute)) {
		a.now = a.now.Add(time.Duration(20+a.IntN(200)) * time.Millisecond)
		if grantedAt.IsZero() && a.now.After(grantAt) {
			a.granted, grantedAt = true, a.now
			a.say("granted")
		}
		switch {
		case loses && a.granted && a.now.After(lostAt) && !a.now.After(lostAt.Add(10*time.Second)):
			a.granted = false
			a.say("the grant is lost")
		case loses && !a.granted && a.now.After(lostAt.Add(10*time.Second)):
			a.granted = true
			a.say("granted again")
		}
		if commits && a.now.After(commitAt) {
			commits, a.head, a.wantsRefresh = false, 3, true
			a.say("commit 3")
		}
		if a.now.Sub(start) > 3*time.Minute && !late {
			// Argo CD looks at every Application every three minutes.
			late, a.wantsRefresh, a.wakes = true, true, true
		}
		if a.chance(70) {
			a.step()
		}
		if a.chance(60) {
			continue
		}
		if crashes && a.chance(5) {
			memory = nil
			a.say("the watcher is killed")
		}
		seen = max(seen, len(a.versions)-1-a.IntN(3))
		app := clone(&a.versions[seen])
		o := &Observed{Application: &app, MayBegin: true, Holds: map[Marker]Hold{}}
		if of.rolling {
			o.RollingSync = &RollingSync{Status: "Progressing", Prune: true}
		}
		if saw != a.granted {
			saw = a.granted
			evidence++
		}
		h := Hold{Loaded: Unknown}
		if a.marker != 0 {
			h = Hold{Digest: "d", Loaded: No}
			if a.granted {
				h.Loaded = Yes
			}
		}
		h.Evidence = evidence
		o.Holds[mark] = h
		next, d := Decide(o, memory, a.now)
		how := d.Ended[mark]
		switch {
		case d.Do == DeleteMarker:
			if a.marker != 0 {
				a.marker, a.wantsRefresh = 0, true
			}
			a.say("watcher deletes the marker")
		case d.Do != None:
			body, err := Patch(d.Do, o)
			if err != nil {
				return err.Error(), a.log
			}
			idle := a.app.idle()
			standing := a.app.Operation != nil && !a.app.Status.OperationState.running()
			if a.patch(body) {
				a.say("watcher: %s: conflict", d.Do)
				memory = d.Otherwise
				continue
			}
			a.say("watcher: %s: %s", d.Do, d.Why)
			patches++
			switch {
			case d.Do == Sync:
				own++
			case d.Do == Refresh:
				if regenerated && !crashes && !loses && ended == "" {
					return "refreshed after a fresh comparison", a.log
				}
				refreshes++
			}
			if !idle && d.Do != Terminate && (d.Do != Toggle || !standing) {
				notIdle++
			}
		}
		memory = next
		regenerated = !memory[mark].Fresh.IsZero()
		if how != "" {
			ended = how
			a.say("watcher: ended: %s", how)
		}
	}
	final := a.hooks[a.head]
	switch {
	case grantedAt.IsZero():
		return "never granted", a.log
	case notIdle > 0:
		return "patched while an operation ran or stood", a.log
	case own > 1 && !crashes && !loses:
		return fmt.Sprintf("%d operations of our own", own), a.log
	case patches > 60:
		return fmt.Sprintf("%d patches", patches), a.log
	case of.manual:
		if out := a.cache[a.head]; out.held || a.applied == 2 {
			return "a manual Application is not fresh, or was synced", a.log
		}
		return "", a.log
	// Argo CD itself starts a second sync where a refresh was under way since before the first: it does not see that one fail.
	case a.fails && final > 2 && !loses:
		return fmt.Sprintf("a failing hook ran %d times", final), a.log
	case a.fails:
		return "", a.log
	case a.applied != a.head || a.marker != 0 || a.app.Status.Sync.Status != statusSynced || !a.app.idle():
		return fmt.Sprintf("not released: applied %d of %d, marker %d, %s, idle %v", a.applied, a.head, a.marker, a.app.Status.Sync.Status, a.app.idle()), a.log
	case final > 1 && !loses: // else it was held twice
		return fmt.Sprintf("hooks ran %d times", final), a.log
	case final == 0 && !crashes && !loses:
		return "hooks did not run", a.log
	}
	return "", a.log
}

func TestSimulation(t *testing.T) {
	seeds := uint64(60)
	if more := os.Getenv("GRANTFIRST_SEEDS"); more != "" {
		var err error
		if seeds, err = strconv.ParseUint(more, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for _, of := range flavours {
		for _, crashes := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, crashes %v", of.name, crashes), func(t *testing.T) {
				t.Parallel()
				failed := 0
				for seed := range seeds {
					if problem, log := play(of, seed, crashes); problem != "" {
						if failed++; failed == 1 {
							t.Errorf("seed %d: %s\n%s", seed, problem, strings.Join(log, "\n"))
						}
					}
				}
				if failed > 0 {
					t.Errorf("%d of %d", failed, seeds)
				}
			})
		}
	}
}
