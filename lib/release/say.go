package release

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// say announces what ended and what may need a person: once for each message, as a log line and as an Event on the Application.
func (w *Watcher) say(ctx context.Context, k key, h *held, o *Observed, d *Decision) {
	for m, how := range d.Ended {
		w.Log.Info("hold ended", "application", k.String(), "hold", m.Name, "outcome", how, "why", d.Why)
		switch how {
		case ManualSync:
			w.tell(ctx, o.Application, h, needs(NeedsSync, 0, "every grant is loaded and the manifests are fresh: sync the Application"))
		case SyncFailed:
			w.tell(ctx, o.Application, h, needs(FailedSync, 0, "%s: it is not retried; correct it, or sync again", d.Why))
		case Lost:
			w.tell(ctx, o.Application, h, needs(LostSync, 0, "%s: sync the Application", d.Why))
		}
	}
	for _, m := range d.Hangs {
		w.tell(ctx, o.Application, h, needs(OperationHangs, 0, "the sync operation waits for %s to become healthy, which it does not before the hold ends: nothing may be in a later wave than the marker; argocd app terminate-op ends it, and then it can be synced again", m))
	}
	var soon time.Time
	h.trouble = map[Marker]string{}
	for _, m := range o.Markers() {
		past, ok := h.memory[m]
		if !ok || past.Ended != "" || !past.Fresh.IsZero() {
			continue
		}
		if t := o.refused(m); t != nil {
			w.tell(ctx, o.Application, h, t)
		}
		_, trouble := w.judge(o.Application, h, m)
		if trouble == nil {
			continue
		}
		if trouble.signer != nil {
			if elsewhere := w.heldUp(o.Application, trouble.signer); elsewhere != nil {
				trouble = elsewhere
			}
			// What others do with the policy is no change of this Application.
			w.work.AddAfter(k, lookElsewhere)
		}
		if due := past.Since.Add(trouble.After); w.Now().Before(due) {
			if soon.IsZero() || due.Before(soon) {
				soon = due
			}
			continue
		}
		h.trouble[m] = trouble.Reason
		w.tell(ctx, o.Application, h, trouble)
	}
	if !soon.IsZero() {
		w.work.AddAfter(k, soon.Sub(w.Now()))
	}
}

// lookElsewhere is how often the Applications are looked through for a grant that nobody has.
const lookElsewhere = 30 * time.Second

// refused: Argo CD may not apply the marker, and then it applies nothing (AppProject), or hides the hold.
func (o *Observed) refused(m Marker) *Trouble {
	s := o.Status.OperationState
	if s == nil {
		return nil
	}
	if r := s.result(m); r != nil && r.Status == "SyncFailed" {
		return needs(MarkerRefused, 0, "%s cannot be applied: %s: allow %s/%s in the AppProject, and install the Hold resource", m, r.Message, m.Group, m.Kind)
	}
	return nil
}

// tell says something once, until something else is said for the same reason.
func (w *Watcher) tell(ctx context.Context, a *Application, h *held, t *Trouble) {
	if h.said[t.Reason] == t.Message {
		return
	}
	h.said[t.Reason] = t.Message
	w.event(ctx, a, t)
}

// event logs what may need a person and makes an Event on the Application. Its name has in it what it says and the hour, so that a watcher
// that starts anew says nothing twice.
func (w *Watcher) event(ctx context.Context, a *Application, t *Trouble) {
	name := a.Metadata.Namespace + "/" + a.Metadata.Name
	w.metrics.said.WithLabelValues(t.Reason).Inc()
	w.Log.Warn("needs a person", "application", name, "reason", t.Reason, "message", t.Message)
	now := w.Now().UTC().Format(time.RFC3339)
	sum := sha256.Sum256([]byte(a.Metadata.UID + t.Reason + t.Message + now[:len("2006-01-02T15")]))
	event := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "Event",
		"metadata":   map[string]any{"name": eventPrefix(a.Metadata.Name) + hex.EncodeToString(sum[:8]), "namespace": a.Metadata.Namespace},
		"involvedObject": map[string]any{
			"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "namespace": a.Metadata.Namespace, "name": a.Metadata.Name, "uid": a.Metadata.UID,
		},
		"type": "Warning", "reason": t.Reason, "message": cut(t.Message), "source": map[string]any{"component": "grantfirst"},
		"firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
	}}
	// The API server is asked after the lock is free: an Event is no reason to wait.
	go func() {
		ctx, cancel := context.WithTimeout(ctx, eventTimeout)
		defer cancel()
		if _, err := w.Own.Client.Resource(events).Namespace(a.Metadata.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
			w.Log.Warn("an Event could not be made", "application", name, "error", err)
		}
	}()
}

const eventTimeout = 10 * time.Second

// eventPrefix leaves room in a name for what tells Events apart.
func eventPrefix(application string) string {
	return application[:min(len(application), 200)] + ".grantfirst-"
}

// cut keeps an Event's message within what the API server takes (1024 bytes).
func cut(message string) string {
	const most = 1000
	if len(message) <= most {
		return message
	}
	runes := []rune(message[:most])
	return string(slices.Clip(runes[:len(runes)-1])) + "…"
}
