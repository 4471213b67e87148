package loaded

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/lib/policy"
)

// bySettling takes a pod to have loaded a policy object that has not changed for a while. That proves nothing: the evidence is Unproven.
func (e *evaluation) bySettling(pod *corev1.Pod, r *policy.Replica) {
	m := e.mounted(pod)
	if m.absent {
		// The signer reads the object by the API.
		m = mount{object: e.newest, containers: namesOf(lasting(pod))}
		m.problem = fmt.Sprintf("namespace %s has no policy object of signer %s: check policy.configMap in the configuration", e.signer.Namespace, e.signer.SignerName)
	}
	if m.object == nil {
		s, _ := furthest(pod, namesOf(lasting(pod)))
		r.Pending = s != running
		r.Problem = m.problem
		return
	}
	s, started := furthest(pod, m.containers)
	r.Pending = s != running
	why := e.whyNotSettled(m.object)
	if why == "" && s == running && e.signer.Settle.Restarts {
		why = whyNotRestarted(m.object, started)
	}
	switch {
	case why == "":
		e.decidesBy(r, m.object.text, m.object.revision(), m.object.String())
	case s != running:
		e.judgeAtStart(pod, r, m.object)
	default:
		r.Problem = why
	}
}

// whyNotSettled says why the object may not be taken to be loaded yet; empty where it may. What it says is the same at whatever time the
// objects are read, so that a marker does not change while it waits.
func (e *evaluation) whyNotSettled(o *object) string {
	// The time of a change and that of reading are both cut to seconds, so what seems to be a second may be less.
	const cut = time.Second
	if e.at.IsZero() {
		return fmt.Sprintf("it is not known when %s was read, so it cannot be told for how long it has not changed: use the output of grantfirst snapshot", o)
	}
	owns := func(f metav1.ManagedFieldsEntry) bool { return ownsContent(&f) }
	dateless := func(f metav1.ManagedFieldsEntry) bool { return ownsContent(&f) && f.Time == nil }
	if o.CreationTimestamp.IsZero() || !slices.ContainsFunc(o.ManagedFields, owns) || slices.ContainsFunc(o.ManagedFields, dateless) {
		return fmt.Sprintf("%s does not show when it changed last: read it with its managedFields (kubectl get --show-managed-fields)", o)
	}
	changed := o.changed()
	settled := changed.Add(e.signer.Settle.For() + cut)
	switch {
	case changed.After(e.at):
		return fmt.Sprintf("%s changed at %s, and that was still to come when it was read: check the clocks of the API servers", o, stamp(changed))
	case e.at.Before(settled):
		return fmt.Sprintf("%s changed at %s, and is taken to be loaded from %s on, unless it changes again (settle.seconds: %d)",
			o, stamp(changed), stamp(settled), e.signer.Settle.Seconds)
	}
	return ""
}

// whyNotRestarted says why a container that loads the object only at its start may have done so before the last change.
func whyNotRestarted(o *object, started time.Time) string {
	changed := o.changed()
	switch {
	case started.IsZero():
		return fmt.Sprintf("%s changed at %s, and the pod does not say when its container started: wait until it does", o, stamp(changed))
	// Both times are cut to seconds: in the same one either may have come first.
	case !started.After(changed):
		return fmt.Sprintf("%s changed at %s, and its container runs since %s: it is taken to load it when it restarts; if it does not, delete the pod, or check settle.restarts in the configuration",
			o, stamp(changed), stamp(started))
	}
	return ""
}
