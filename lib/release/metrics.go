package release

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// metrics are what is counted; what can be read off the state at any time is not kept but collected (docs/watch.md has all of them).
type metrics struct {
	releases, said, errors, unproven *prometheus.CounterVec
	beginning, releasing             prometheus.Histogram
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grantfirst_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "grantfirst_" + name, Help: help, Buckets: buckets})
	}
	return &metrics{
		releases: counter("releases_total", "Holds that ended, by how.", "outcome"),
		said:     counter("events_total", "Messages that were made as Events on Applications, by reason.", "reason"),
		errors:   counter("errors_total", "Requests that failed, by what they were for and the API server's reason.", "what", "reason"),
		unproven: counter("unproven_demands_total", "Demands that a hold waited for and that were let go without proof, by signer and why: settle, override, unknownSigner.", "signer", "why"),
		beginning: histogram("release_begin_seconds", "From when every grant of a hold was seen to be loaded to when its release began.",
			[]float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300}),
		releasing: histogram("release_duration_seconds", "From the beginning of a release to its end.", []float64{0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900, 3600}),
	}
}

func (m *metrics) failed(what string, err error) {
	reason := string(apierrors.ReasonForError(err))
	if reason == "" {
		reason = "Unknown"
	}
	m.errors.WithLabelValues(what, reason).Inc()
}

var (
	descHold = prometheus.NewDesc("grantfirst_hold_age_seconds", "Age of each hold that is in force, once for each signer that it waits for.",
		[]string{"namespace", "application", "hold", "signer"}, nil)
	descPerson = prometheus.NewDesc("grantfirst_hold_needs_person", "1 for each hold that ends only when a person acts, by reason.",
		[]string{"namespace", "application", "hold", "reason"}, nil)
	descInFlight = prometheus.NewDesc("grantfirst_releases_in_flight", "Releases that have begun and take one of the places.", nil, nil)
	descWaiting  = prometheus.NewDesc("grantfirst_releases_waiting", "Releases that wait for a place.", nil, nil)
	descReplica  = prometheus.NewDesc("grantfirst_replica_loaded_timestamp_seconds",
		"Since when each replica of a signer has been seen to decide by this policy. Strength is proof (report, podVolumes), controller (status), assumption (settle) or none, where it cannot be told.",
		[]string{"cluster", "signer", "pod", "revision", "evidence", "strength"}, nil)
	descReadable = prometheus.NewDesc("grantfirst_evidence_readable", "1 where it can be read what the signer has loaded, 0 where not.", []string{"cluster", "signer"}, nil)
	descOverride = prometheus.NewDesc("grantfirst_override_until_timestamp_seconds", "When the override of an Application runs out that does so last; only those in force.", []string{"namespace", "application"}, nil)
)

// Describe says nothing in advance: which metrics there are depends on what is held.
func (w *Watcher) Describe(chan<- *prometheus.Desc) {}

// Collect gives all metrics as they are now. A watcher that does not lead has none.
func (w *Watcher) Collect(out chan<- prometheus.Metric) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.metrics == nil {
		return
	}
	for _, c := range []prometheus.Collector{w.metrics.releases, w.metrics.said, w.metrics.errors, w.metrics.unproven, w.metrics.beginning, w.metrics.releasing} {
		c.Collect(out)
	}
	gauge := func(of *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, value, labels...)
	}
	places, waiting := 0, 0
	for k, h := range w.held {
		switch {
		case h.place:
			places++
		case h.wants:
			waiting++
		}
		w.collectHolds(k, h, gauge)
	}
	gauge(descInFlight, float64(places))
	gauge(descWaiting, float64(waiting))
	for _, c := range w.clusters {
		for s, e := range c.evidence {
			collectEvidence(c, s, e, gauge)
		}
	}
	w.collectOverrides(gauge)
}

func (w *Watcher) collectHolds(k key, h *held, gauge func(*prometheus.Desc, float64, ...string)) {
	for m, past := range h.memory {
		if past.Ended != "" || !past.Fresh.IsZero() {
			continue
		}
		since := past.Since
		signers := map[string]bool{}
		if of := h.waiting[m]; of != nil {
			if !of.created.IsZero() {
				since = of.created
			}
			for i := range of.demands {
				signers[of.demands[i].SignerName] = true
			}
		} else {
			signers[""] = true
		}
		for signer := range signers {
			gauge(descHold, w.Now().Sub(since).Seconds(), k.namespace, k.name, m.Name, signer)
		}
		if reason := h.trouble[m]; reason != "" {
			gauge(descPerson, 1, k.namespace, k.name, m.Name, reason)
		}
	}
}

func collectEvidence(c *watched, s *config.Signer, e *evidence, gauge func(*prometheus.Desc, float64, ...string)) {
	readable := 1.0
	if e.Problem != "" {
		readable = 0
	}
	gauge(descReadable, readable, c.name, s.SignerName)
	for i := range e.Replicas {
		r := &e.Replicas[i]
		gauge(descReplica, float64(e.since[r.Pod].Unix()), c.name, s.SignerName, r.Pod, r.Revision, s.Evidence, strength(s, r))
	}
}

// count counts what was done, and what ended. The memory of before is still that of the Application.
func (w *Watcher) count(h *held, d *Decision, next Memory) {
	now := w.Now()
	for m, how := range d.Ended {
		w.metrics.releases.WithLabelValues(string(how)).Inc()
		if begun := h.memory[m].Begun; !begun.IsZero() {
			w.metrics.releasing.Observe(now.Sub(begun).Seconds())
		}
	}
	after := next[d.Marker]
	if d.Do != Refresh || after.Begun.IsZero() || !h.memory[d.Marker].Begun.IsZero() || after.Loaded.IsZero() {
		return
	}
	w.metrics.beginning.Observe(now.Sub(after.Loaded).Seconds())
	of, c := h.waiting[d.Marker], w.cluster(h.application)
	if of == nil || c == nil {
		return
	}
	overrides := readOverrides(w.overrides.get(w.Namespace, overridesName), of.application)
	for i := range of.demands {
		if why := unproven(&of.demands[i], w.Config, overrides, c); why != "" {
			w.metrics.unproven.WithLabelValues(of.demands[i].SignerName, why).Inc()
		}
	}
}

// unproven says why a demand may go though it is not proven that its grant is loaded; empty where it is.
func unproven(d *waitingDemand, c *config.Config, overrides []override, in *watched) string {
	s := c.Signer(d.SignerName)
	switch {
	case slices.ContainsFunc(overrides, func(o override) bool { return o.fits(&d.Demand, in.Now()) }):
		return "override"
	case s == nil:
		return "unknownSigner"
	case in.evidence[s].Unproven:
		return "settle"
	}
	return ""
}

// strength of the evidence of what a replica has loaded (docs/design.md section 5).
func strength(s *config.Signer, r *policy.Replica) string {
	switch {
	case r.Policy == nil || r.Problem != "":
		return "none"
	case s.Evidence == config.Settle:
		return "assumption"
	case s.Evidence == config.Status:
		return "controller"
	}
	return "proof"
}

func (w *Watcher) collectOverrides(gauge func(*prometheus.Desc, float64, ...string)) {
	now := w.own.Now()
	for application, all := range readAllOverrides(w.overrides.get(w.Namespace, overridesName)) {
		last := time.Time{}
		for i := range all {
			if until, ok := all[i].inForce(now); ok && until.After(last) {
				last = until
			}
		}
		if !last.IsZero() {
			k := w.named(application)
			gauge(descOverride, float64(last.Unix()), k.namespace, k.name)
		}
	}
}
