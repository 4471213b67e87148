package release

import (
	"time"
	_ "time/tzdata" // the image has no zones

	"github.com/gobwas/glob"
	"github.com/robfig/cron/v3"
)

// window is a sync window of an AppProject: spec.syncWindows (argo-cd v2.14 and v3.2 pkg/apis/application/v1alpha1/types.go).
type window struct {
	Kind         string   `json:"kind"`
	Schedule     string   `json:"schedule"`
	Duration     string   `json:"duration"`
	TimeZone     string   `json:"timeZone"`
	Applications []string `json:"applications"`
	Namespaces   []string `json:"namespaces"`
	Clusters     []string `json:"clusters"`
	// AndOperator is new in Argo CD v3; without it one list that fits is enough.
	AndOperator bool `json:"andOperator"`
}

// fits is Argo CD's rule for which Applications a window is about.
func (w *window) fits(a *Application) bool {
	d := &a.Spec.Destination
	any, all := false, true
	for _, of := range []struct{ patterns, names []string }{
		{w.Applications, []string{a.Metadata.Name}},
		{w.Clusters, []string{d.Name, d.Server}},
		{w.Namespaces, []string{d.Namespace}},
	} {
		if len(of.patterns) == 0 {
			continue
		}
		matches := matchesOne(of.patterns, of.names)
		any, all = any || matches, all && matches
	}
	return any && (all || !w.AndOperator)
}

func matchesOne(patterns, names []string) bool {
	for _, p := range patterns {
		// What is no pattern matches nothing there either.
		compiled, err := glob.Compile(p)
		for _, name := range names {
			if err == nil && name != "" && compiled.Match(name) {
				return true
			}
		}
	}
	return false
}

// closed says whether sync windows keep Argo CD from syncing by itself now, and when that may be otherwise. Windows that it cannot understand
// keep it from any sync, for good.
func closed(windows []window, a *Application, now time.Time) (is bool, until time.Time) {
	denied, allowed, allows := false, false, false
	for i := range windows {
		w := &windows[i]
		if !w.fits(a) {
			continue
		}
		active, changes, err := w.at(now)
		if err != nil {
			return true, time.Time{}
		}
		denied = denied || active && w.Kind == "deny"
		allowed = allowed || active && w.Kind == "allow"
		allows = allows || w.Kind == "allow"
		// A schedule that never comes (30 February) is always active there, and changes nothing.
		if changes.After(now) && (until.IsZero() || changes.Before(until)) {
			until = changes
		}
	}
	return denied || allows && !allowed, until
}

// at says whether the window is active, and when it begins or ends next.
func (w *window) at(now time.Time) (active bool, changes time.Time, err error) {
	schedule, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(w.Schedule)
	if err != nil {
		return false, time.Time{}, err
	}
	duration, err := time.ParseDuration(w.Duration)
	if err != nil {
		return false, time.Time{}, err
	}
	// A zone that is not known counts as UTC there, too.
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	now = now.In(zone)
	if began := schedule.Next(now.Add(-duration)); began.Before(now) {
		return true, began.Add(duration), nil
	}
	return false, schedule.Next(now), nil
}
