package release

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Times of the protocol (docs/release.md has what they were measured against).
const (
	// firstRepeat and lastRepeat are the shortest and the longest wait between two hard refreshes of one release.
	firstRepeat = time.Second
	lastRepeat  = time.Minute
	// stands is how long a fresh comparison stands before we start the sync ourselves, standsRolling the same where the ApplicationSet
	// controller may be about to.
	stands        = time.Second
	standsRolling = 5 * time.Second
	// standsNewer is the same for a revision that was never synced, which Argo CD syncs like any other, unless it had been compared before.
	standsNewer = 10 * time.Second
	// lostAfter is how long an operation stands that nobody begins before Argo CD is woken.
	lostAfter = 1500 * time.Millisecond
	// settles is how long the marker of a new hold has to become live before its demands count as not readable.
	settles = 5 * time.Second
	// settlesLive is how long evidence stays unclear before the plugin is asked about a hold whose demands can be read.
	settlesLive = 10 * time.Second
	// flightTime is for how long a release takes one of the places of those that may be begun at a time.
	flightTime = time.Minute
	// enough is how often an Application is refreshed because something changed that cannot be judged here, and how often after a grant
	// fell away: another refresh in flight can swallow one, and the plugin may stand by its answer.
	enough = 3
)

// Outcome is how a hold ended.
type Outcome string

// Outcomes. After each of them grantfirst starts nothing more for the hold.
const (
	// Released: a full sync ran on the fresh manifests and succeeded.
	Released Outcome = "released"
	// SyncFailed: a full sync ran on the fresh manifests and failed. That is the Application's own failure.
	SyncFailed Outcome = "syncFailed"
	// AlreadySynced: without the hold there was nothing left to sync.
	AlreadySynced Outcome = "alreadySynced"
	// Superseded: Git moved on to a revision without a hold, which the ApplicationSet controller syncs in its turn.
	Superseded Outcome = "superseded"
	// ManualSync: the manifests are fresh, and a person has to start the sync.
	ManualSync Outcome = "manualSync"
	// Lost: the one sync that was started ran on old manifests; a person has to start another.
	Lost Outcome = "lost"
	// Deleted: the Application goes.
	Deleted Outcome = "deleted"
)

// Memory is what was done for the holds of one Application. Without it the protocol starts again from what the cluster shows.
type Memory map[Marker]Past

// Past is what was done for one hold.
type Past struct {
	Digest string
	// Since is when the hold was first seen.
	Since time.Time
	// Revision of the last comparison that rendered the marker; Synced is true where everything else was in sync with it.
	Revision string
	Synced   bool
	// History is the newest entry of status.history that the hold may have written, -1 for none; Held is when the last operation
	// started that ran on the held manifests.
	History int64
	Held    string

	// Loaded is since when every grant is loaded; zero where one is not.
	Loaded time.Time
	// Begun is when the release began, Refreshed when it refreshed last, and Refreshes how often. Cleared: the annotation was removed
	// since, so that the next refresh is a change.
	Begun, Refreshed time.Time
	Refreshes        int
	Cleared          bool
	// Evidence is that of the last look at a hold of which it cannot be told whether it is over, and Changed when it became that.
	Evidence uint64
	Changed  time.Time
	// Forgotten: nothing was remembered when comparisons already no longer rendered the marker.
	Forgotten bool
	// Fresh is since when comparisons no longer render the marker. The half of regenerating is over then.
	Fresh time.Time
	// Closed: sync windows kept Argo CD from syncing at the last look; Opened is when they let it again.
	Closed bool
	Opened time.Time
	// Started: the one sync that a hold may have from us was started. Full: a full sync on fresh manifests was seen to succeed.
	Started, Full bool
	// Stands is since when an operation stands that nobody begins; Woken counts what was done about it.
	Stands time.Time
	Woken  int
	// Terminated is the start of the operation that was ended because it waited for the marker.
	Terminated string
	// WasLoaded: every grant was loaded at some time, for all that is known. Withdrawn counts the refreshes after one fell away.
	WasLoaded bool
	Withdrawn int
	// Asked counts the refreshes since Evidence changed, for a hold whose demands cannot be read.
	Asked int
	// Swept is when the marker was deleted.
	Swept time.Time
	// On is the resourceVersion that was patched last, and Acted when.
	On    string
	Acted time.Time
	Ended Outcome
}

// Decision is what to do next, and what there is to say.
type Decision struct {
	Do Action
	// Marker is the hold that it is done for.
	Marker Marker
	// Why is for the log.
	Why string
	// Again is when to look again though nothing changes; zero for not at all.
	Again time.Time
	// InFlight: a release has begun and takes a place. Wants: one would begin if it might; Since is then when its hold was first seen.
	InFlight, Wants bool
	Since           time.Time
	// Ended are the holds that ended just now.
	Ended map[Marker]Outcome
	// Otherwise is the memory where the action was not done: with what was seen, without what was to be done.
	Otherwise Memory
	// Hangs are the markers that an operation waits for, which it would for ever.
	Hangs []Marker
}

// Decide is the protocol: what is to be done about the holds of an Application. The memory that it returns is right once the action was
// done; where that was refused or could not be, it is Otherwise of the decision. Decide changes neither of its arguments.
func Decide(o *Observed, memory Memory, now time.Time) (Memory, Decision) {
	next := maps.Clone(memory)
	if next == nil {
		next = Memory{}
	}
	all := Decision{Otherwise: maps.Clone(next)}
	if o.Metadata.DeletionTimestamp != nil {
		for m, past := range memory {
			if past.Ended == "" {
				all.end(m, Deleted)
			}
		}
		return Memory{}, all
	}
	for _, m := range o.holds(memory) {
		past, seen := next[m]
		if !seen {
			past = Past{Since: now, History: -1}
		}
		d := decision{Observed: o, marker: m, entry: o.entry(m), hold: o.Holds[m], past: past, now: now}
		if d.hold.Loaded == "" {
			d.hold.Loaded = Unknown
		}
		before := d.past
		d.decide()
		if d.Do != None && all.Do != None {
			// One patch at a time: this hold's turn comes when the next change is seen.
			d.past, d.Decision = d.seen, Decision{Again: now.Add(firstRepeat), InFlight: d.InFlight}
		}
		if d.past.Ended != "" && d.past.Ended != before.Ended {
			all.end(m, d.past.Ended)
		}
		next[m] = d.past
		if all.Otherwise[m] = d.past; d.Do != None {
			all.Otherwise[m] = d.seen
		}
		if d.entry == nil && d.past.Ended != "" {
			delete(next, m)
			delete(all.Otherwise, m)
		}
		all.add(&d.Decision)
	}
	return next, all
}

// holds are the markers that are listed or remembered, in a fixed order.
func (o *Observed) holds(memory Memory) []Marker {
	all := o.Markers()
	for m := range memory {
		if o.entry(m) == nil {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b Marker) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

func (d *Decision) end(m Marker, how Outcome) {
	if d.Ended == nil {
		d.Ended = map[Marker]Outcome{}
	}
	d.Ended[m] = how
}

func (d *Decision) add(of *Decision) {
	if of.Do != None {
		d.Do, d.Marker = of.Do, of.Marker
	}
	if d.Why == "" || of.Do != None {
		d.Why = of.Why
	}
	d.again(of.Again)
	d.InFlight = d.InFlight || of.InFlight
	if of.Wants && (!d.Wants || of.Since.Before(d.Since)) {
		d.Wants, d.Since = true, of.Since
	}
	d.Hangs = append(d.Hangs, of.Hangs...)
}

func (d *Decision) again(at time.Time) {
	if !at.IsZero() && (d.Again.IsZero() || at.Before(d.Again)) {
		d.Again = at
	}
}

// decision is that about one hold while it is made.
type decision struct {
	*Observed
	Decision
	marker Marker
	// entry is the marker's in status.resources; nil where it is gone.
	entry *Resource
	hold  Hold
	past  Past
	// seen is past as far as it is only what was seen.
	seen Past
	now  time.Time
}

func (d *decision) do(action Action, why string, args ...any) {
	d.Do, d.Decision.Marker, d.Why = action, d.marker, fmt.Sprintf(why, args...)
}

func (d *decision) wait(until time.Time, why string, args ...any) {
	d.Why = fmt.Sprintf(why, args...)
	d.again(until)
}

func (d *decision) end(how Outcome, why string, args ...any) {
	d.past.Ended, d.Why = how, fmt.Sprintf(why, args...)
}

func (d *decision) decide() {
	d.seen = d.past
	if seen := d.past.Acted.Add(firstRepeat); d.past.On == d.Metadata.ResourceVersion && d.now.Before(seen) {
		// This is what was patched, seen once more. A patch that changed nothing leaves it like that.
		d.wait(seen, "waits to see what was patched")
		d.InFlight = !d.past.Begun.IsZero() && d.past.Ended == ""
		return
	}
	switch {
	case d.hold.Loaded != Yes:
		d.past.Loaded = time.Time{}
	case d.past.Loaded.IsZero():
		d.past.Loaded = d.now
	}
	d.past.WasLoaded = d.past.WasLoaded || d.hold.Loaded == Yes
	rendered := d.entry != nil && !d.entry.RequiresPruning
	switch {
	case !d.compared():
		d.notCompared()
	case rendered:
		d.held()
	default:
		d.fresh()
	}
	if d.Do != None && d.Do != DeleteMarker {
		d.past.On, d.past.Acted = d.Metadata.ResourceVersion, d.now
	}
	begun := !d.past.Begun.IsZero() && d.past.Ended == "" && d.now.Before(d.past.Begun.Add(flightTime))
	d.InFlight = begun && !d.blocked()
	if d.InFlight {
		d.again(d.past.Begun.Add(flightTime))
	}
}

// blocked: the sync of a fresh Application waits for something that may take long.
func (d *decision) blocked() bool {
	return !d.past.Fresh.IsZero() && (d.Closed || d.beforeStep())
}

// notCompared: Argo CD could not generate manifests, so nothing that it lists says anything, and it may not look again for minutes. A live
// hold whose grants are loaded can be released all the same, and a release that has not seen a fresh comparison goes on asking for one.
func (d *decision) notCompared() {
	switch {
	case !d.past.Fresh.IsZero() || d.past.Ended != "":
		d.Why = "Argo CD could not compare"
	case d.hold.Loaded == Yes:
		d.release()
	case d.past.Begun.IsZero() || d.hold.Loaded == No:
		d.Why = "Argo CD could not compare"
	case d.idle():
		d.refresh("Argo CD could not compare")
	}
}

// held: the manifests that Argo CD has are held.
func (d *decision) held() {
	d.remember()
	switch d.hold.Loaded {
	case Yes:
		d.release()
		return
	case No:
		d.notBegun()
	case Unknown:
		if d.askPlugin() {
			return
		}
	}
	if s := d.Status.OperationState; s.waitsFor(d.marker) {
		d.Hangs = append(d.Hangs, d.marker)
	}
	armable := d.selfHeals() || d.RollingSync != nil
	if armable && d.Status.Sync.Status == statusSynced && d.idle() && d.Status.OperationState != nil {
		d.do(Arm, "held: whoever refreshes it shall start a full sync")
	}
}

// remember keeps what was seen while the marker was rendered, to tell it from what comes after.
func (d *decision) remember() {
	p := &d.past
	if p.Ended != "" || d.hold.Digest != "" && p.Digest != "" && d.hold.Digest != p.Digest {
		*p = Past{Since: d.now, History: -1, Loaded: p.Loaded}
	}
	if d.hold.Digest != "" {
		p.Digest = d.hold.Digest
	}
	p.Fresh, p.Withdrawn = time.Time{}, 0
	p.Synced = p.Synced && p.Revision == d.revision() || d.Status.Sync.Status == statusSynced
	p.Revision = d.revision()
	p.History, _ = d.synced()
	if s := d.Status.OperationState; s.completed() {
		p.Held = s.StartedAt
	}
	d.seen = *p
}

// notBegun forgets a release that had begun: a grant is missing again.
func (d *decision) notBegun() {
	d.past.Begun, d.past.Refreshed, d.past.Refreshes, d.past.Cleared = time.Time{}, time.Time{}, 0, false
	d.Why = "held: not every grant is loaded"
}

func (d *decision) release() {
	switch s := d.Status.OperationState; {
	case s.waitsFor(d.marker):
		d.Hangs = append(d.Hangs, d.marker)
		d.terminate()
	case !d.idle():
		d.pending()
	case d.past.Begun.IsZero() && !d.MayBegin:
		d.wants("every grant is loaded")
	default:
		if d.past.Asked > 0 {
			// Those refreshes were for less, and this one need not wait for them.
			d.past.Asked, d.past.Refreshes = 0, 0
		}
		d.refresh("every grant is loaded")
	}
}

func (d *decision) wants(why string) {
	d.Wants, d.Since, d.Why = true, d.past.Since, why+": waits for its turn"
}

// askPlugin has manifests regenerated whose demands cannot be read, when something has changed that they may depend on.
func (d *decision) askPlugin() bool {
	p := &d.past
	if p.Evidence != d.hold.Evidence {
		p.Evidence, p.Asked, p.Changed = d.hold.Evidence, 0, d.now
	}
	settled := p.Since.Add(settles)
	if d.hold.Digest != "" {
		settled = p.Changed.Add(settlesLive)
	}
	switch {
	case p.Evidence == 0:
		d.Why = "held: what the signers have loaded has not been read yet"
		return false
	case d.hold.Digest == "" && !d.historyHas() && !d.manual() && !d.Status.OperationState.failed():
		d.Why = "held: what it waits for is known when this is synced"
		return false
	case d.Closed:
		d.wait(d.ClosedUntil, "held: sync windows of its project keep it from syncing")
		return false
	case p.Asked == enough:
		d.Why = "held: what it waits for cannot be told, and nothing has changed"
		// What takes a place is over: it was answered, and the answer is a hold.
		p.Begun = time.Time{}
		return false
	case d.now.Before(settled):
		d.wait(settled, "held: what it waits for may become known")
		return false
	case !d.idle():
		d.pending()
		return d.Do != None
	case p.Begun.IsZero() && !d.MayBegin:
		d.wants("something has changed that the plugin may decide by")
		return false
	}
	d.refresh("what it waits for cannot be told, and something has changed")
	if d.Do == Refresh {
		p.Asked++
	}
	return d.Do != None
}

// refresh is the patch of the half that regenerates, as often as it takes, but each time later.
func (d *decision) refresh(why string) {
	p := &d.past
	repeat := p.Refreshed.Add(backoff(p.Refreshes))
	_, annotated := d.Metadata.Annotations[annotationRefresh]
	switch {
	case p.Refreshes > 0 && d.now.Before(repeat):
		d.wait(repeat, "refreshed: waits for a comparison with fresh manifests")
	case p.Refreshes > 0 && annotated && !p.Cleared:
		p.Cleared = true
		d.do(Toggle, "the refresh has not been taken up: the next one must be a change")
	default:
		if p.Begun.IsZero() {
			p.Begun = d.now
		}
		p.Refreshed, p.Refreshes, p.Cleared = d.now, p.Refreshes+1, false
		d.do(Refresh, "%s", why)
	}
}

func backoff(n int) time.Duration {
	if n == 0 {
		return 0
	}
	return min(firstRepeat<<min(n-1, 10), lastRepeat)
}

// terminate ends the operation that waits for the marker, once.
func (d *decision) terminate() {
	s := d.Status.OperationState
	if d.manual() || d.past.Terminated == s.StartedAt {
		d.Why = "an operation waits for the marker"
		return
	}
	d.past.Terminated = s.StartedAt
	d.do(Terminate, "an operation waits for the marker, which never becomes healthy")
}

// pending wakes Argo CD where an operation stands and nobody begins it. With sync windows it may well have to stand.
func (d *decision) pending() {
	p := &d.past
	if d.Operation == nil || d.Status.OperationState.running() || d.manual() || d.Closed {
		p.Stands, p.Woken = time.Time{}, 0
		d.Why = "an operation runs"
		return
	}
	if p.Stands.IsZero() {
		p.Stands = d.now
	}
	lost := p.Stands.Add(min(lostAfter<<min(p.Woken, 10), lastRepeat))
	if d.now.Before(lost) {
		d.wait(lost, "an operation stands that has not begun")
		return
	}
	p.Stands, p.Woken = d.now, p.Woken+1
	d.do(Toggle, "an operation stands and nobody begins it")
}

// fresh: the manifests that Argo CD has are no longer held. It is not refreshed again, but to take a release back.
func (d *decision) fresh() {
	p := &d.past
	if p.Fresh.IsZero() {
		p.Fresh = d.now
		if p.Revision == "" {
			// Nothing is remembered: the newest entry of the history is that of the held sync, for all that is known.
			p.History, p.Revision = d.synced()
			p.Synced, p.WasLoaded, p.Forgotten = true, true, true
		}
	}
	if p.Digest == "" {
		p.Digest = d.hold.Digest
	}
	if d.hold.Loaded == No && d.withdraw() {
		return
	}
	if !d.idle() {
		if s := d.Status.OperationState; s.waitsFor(d.marker) {
			d.Hangs = append(d.Hangs, d.marker)
			if p.Ended != "" && p.Ended != Superseded {
				return
			}
			if d.terminate(); d.Do == Terminate {
				// Whoever started it will not start it again.
				p.Ended = ""
			}
			return
		}
		if p.Ended == "" {
			d.pending()
		}
		return
	}
	p.Stands, p.Woken = time.Time{}, 0
	if d.sawOperation(); p.Ended == "" {
		d.seen = *p
	}
	if d.sweep() || p.Ended != "" {
		return
	}
	d.start()
}

// sawOperation ends the hold where the operation that ran last, or the history, shows the full sync on fresh manifests.
func (d *decision) sawOperation() {
	p, s := &d.past, d.Status.OperationState
	newest, at := d.synced()
	held := p.History
	if !p.Synced {
		// The hold may have written one more than was seen.
		held++
	}
	switch {
	case s != nil && d.onHeld(s):
		p.Held, p.History = s.StartedAt, newest
	case s != nil && s.Phase == phaseSucceeded && s.full(), newest > held && at == d.revision() && !d.prunedInPart():
		p.Full = true
		if p.Ended == "" || p.Ended == ManualSync || p.Ended == Superseded {
			d.end(Released, "a full sync on fresh manifests succeeded")
		}
	case s != nil && s.full():
		if p.Ended == "" && !d.terminated(s) {
			d.end(SyncFailed, "a full sync on fresh manifests failed: %s", s.Message)
		}
	}
}

func (d *decision) terminated(s *OperationState) bool {
	return d.past.Terminated != "" && d.past.Terminated == s.StartedAt
}

// onHeld: the operation ran on held manifests, whatever the comparison says now. Those have the marker among what is applied; what ran
// on fresh ones may have pruned it, or have passed it over because pruning is off.
func (d *decision) onHeld(s *OperationState) bool {
	if s.StartedAt == d.past.Held {
		return true
	}
	if r := s.result(d.marker); r != nil {
		return r.Status != resultPruned && r.Status != resultPruneSkipped
	}
	// A full sync on fresh manifests that succeeded did something with a live marker.
	return d.entry != nil && s.Phase == phaseSucceeded && s.full()
}

// sweep deletes the marker that nothing renders any more, where Argo CD will not.
func (d *decision) sweep() bool {
	if d.entry == nil || !d.onlyPrunesLeft() || d.past.Ended == "" && d.hooksMissing() {
		return false
	}
	if d.prunes() && !d.past.Full && !d.manual() || d.now.Before(d.past.Swept.Add(lastRepeat)) {
		return false
	}
	d.past.Swept = d.now
	if d.past.Ended == "" {
		d.end(AlreadySynced, "nothing is left to sync")
	}
	d.do(DeleteMarker, "nothing renders the marker any more, and Argo CD does not prune it")
	d.again(d.now.Add(lastRepeat))
	return true
}

// withdraw has manifests regenerated that were released, but not synced before a grant fell away.
func (d *decision) withdraw() bool {
	p := &d.past
	if p.Ended != "" && p.Ended != ManualSync || !p.WasLoaded || p.Revision != d.revision() || d.onlyPrunesLeft() || !d.idle() {
		return false
	}
	if s := d.Status.OperationState; s != nil && s.full() && !d.onHeld(s) && !d.terminated(s) {
		return false
	}
	if p.Withdrawn == enough {
		d.Why = "a grant has fallen away before the sync, and the plugin lets it go all the same"
		return true
	}
	if p.Withdrawn == 0 {
		p.Refreshes, p.Cleared, p.Begun = 0, false, time.Time{}
	}
	d.refresh("a grant has fallen away before the sync")
	if d.Do == Refresh {
		p.Begun, p.Withdrawn = time.Time{}, p.Withdrawn+1
	}
	return true
}

// hooksMissing: what ran last was a partial sync on fresh manifests. It runs no hooks, and what it leaves looks synced.
func (d *decision) hooksMissing() bool {
	s := d.Status.OperationState
	return s != nil && s.partial() && !d.onHeld(s) && !d.manual()
}

// prunedInPart: it was the partial sync that pruned the marker, so there was no full one on fresh manifests before, whatever the history
// has: that may be the held one, seen late.
func (d *decision) prunedInPart() bool {
	s := d.Status.OperationState
	if s == nil || !s.partial() {
		return false
	}
	r := s.result(d.marker)
	return r != nil && r.Status == resultPruned
}

// start sees to the one full sync: Argo CD's, else ours.
func (d *decision) start() {
	p, partial := &d.past, d.hooksMissing()
	ready, newer := p.Fresh.Add(d.standing()), p.Revision != d.revision()
	notSynced := !p.Synced && !d.historyHas()
	if newer || notSynced {
		ready = p.Fresh.Add(standsNewer)
	}
	if opened := p.Opened.Add(standsNewer); opened.After(ready) {
		ready = opened
	} else if d.healsInPart() {
		ready = d.now
	}
	switch {
	case d.Status.Sync.Status == statusSynced && !partial:
		d.end(AlreadySynced, "nothing is left to sync")
	case d.manual():
		d.end(ManualSync, "a person has to start the sync")
	case newer && d.RollingSync != nil && !p.Forgotten && p.Terminated == "":
		d.end(Superseded, "revision %s needs no hold, and the ApplicationSet controller syncs it in its turn", d.revision())
	case d.onlyPrunesLeft() && !partial && !d.prunes():
		d.end(AlreadySynced, "nothing is left to sync but to prune, and that is off")
	case d.allRequirePruning():
		d.Why = "everything would be pruned: that is left to Argo CD and to people"
	case d.Closed:
		p.Closed = true
		d.wait(d.ClosedUntil, "waits for the sync windows of its project to let it sync")
	case p.Closed:
		// Argo CD looks by itself only every few minutes, and when it looks it syncs.
		p.Closed, p.Opened = false, d.now
		d.do(Toggle, "the sync windows of its project let it sync now")
	case d.beforeStep():
		d.Why = "waits for its step in the ApplicationSet"
	case p.Started:
		d.end(Lost, "the sync that was started ran on held manifests")
	case notSynced && d.RollingSync != nil && p.Terminated == "":
		d.Why = "waits for the ApplicationSet controller to sync a new revision"
	case d.now.Before(ready):
		d.wait(ready, "waits for Argo CD to start the sync")
	default:
		p.Started = true
		d.do(Sync, "nothing else starts the sync")
	}
}

// healsInPart: the sync that Argo CD would start is a partial one, and it does so at once. It has just attempted the revision, but with
// manifests that were still held, while the fresh ones came of a refresh during that sync.
func (d *decision) healsInPart() bool {
	s := d.Status.OperationState
	return d.selfHeals() && d.RollingSync == nil && s != nil && s.full() && d.onHeld(s) && d.historyHas()
}

// historyHas: the revision was synced before, held.
func (d *decision) historyHas() bool {
	_, at := d.synced()
	return at == d.revision()
}
