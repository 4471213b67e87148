package loaded

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/grantfirst/grantfirst/lib/policy"
)

// ownName is what to do where a name does not stand for one text.
const ownName = "give each policy text a ConfigMap name of its own (kustomize's name hash does)"

// byVolumes judges a pod by the policy ConfigMap that its volumes name.
func (e *evaluation) byVolumes(pod *corev1.Pod, r *policy.Replica) {
	m := e.mounted(pod)
	if m.object == nil {
		s, _ := furthest(pod, namesOf(lasting(pod)))
		r.Pending = s != running
		r.Problem = m.problem
		return
	}
	s, started := furthest(pod, m.containers)
	r.Pending = s != running
	why := e.whyUnproven(pod, m, s, started)
	switch {
	case why == "":
		e.decidesBy(r, m.object.text, m.object.revision(), m.object.String())
	case s != running:
		e.judgeAtStart(pod, r, m.object)
	default:
		r.Problem = why
	}
}

// whyUnproven says why the object's content is no proof of what the pod has loaded; empty where it is.
//
// A name with the hash of the content stands for one text only. An immutable object keeps its text too, but only from when it became
// immutable, and its name can be given to another one: the kubelet goes on handing out the old content as long as any pod on the node
// uses that name (Kubernetes 1.37, pkg/kubelet/util/manager/watch_based_manager.go; kubernetes/kubernetes#119733, #131589). So it must
// not have changed since the pod was made, and no older pod of the node may use it. A former pod that used it is not seen when it is gone.
func (e *evaluation) whyUnproven(pod *corev1.Pod, m mount, s state, started time.Time) string {
	o := m.object
	if m.optional {
		return fmt.Sprintf("its volume of %s is optional, so it may have started without: remove optional, or use evidence: report", o)
	}
	if o.contentHashed() {
		return ""
	}
	if !isTrue(o.Immutable) {
		return fmt.Sprintf("%s can change in place and does not show what the pod has loaded: %s and set immutable: true, or use evidence: report", o, ownName)
	}
	changed, made := o.changed(), pod.CreationTimestamp.Time
	switch {
	case changed.IsZero() || made.IsZero():
		return fmt.Sprintf("%s or the pod has no creationTimestamp, so it cannot be told which one is older: read both as the API server has them", o)
	case changed.Equal(made) && o.CreationTimestamp.Time.Before(changed):
		return fmt.Sprintf("%s was changed at %s, in the very second in which the pod was made with what may have been another text: delete the pod, and %s", o, stamp(changed), ownName)
	case changed.After(made):
		return fmt.Sprintf("%s was made or changed at %s, after the pod was made at %s with what may have been another text: delete the pod, and %s", o, stamp(changed), stamp(made), ownName)
	case s == running && !started.After(changed):
		return fmt.Sprintf("%s was made or changed at %s, and it cannot be told whether that was before its container started: delete the pod, or %s", o, stamp(changed), ownName)
	}
	return e.whyStale(pod, o)
}

// whyStale says which older pod makes the kubelet hand out the former content of an immutable object that was made again; empty where
// none does. A pod without a node may come to any.
func (e *evaluation) whyStale(pod *corev1.Pod, o *object) string {
	changed := o.changed()
	for _, other := range e.pods {
		if pod.Spec.NodeName != "" && other.Spec.NodeName != pod.Spec.NodeName || !other.CreationTimestamp.Time.Before(changed) {
			continue
		}
		if other == pod || !slices.ContainsFunc(references(other), func(r reference) bool { return r.configMap == o.Name }) {
			continue
		}
		return fmt.Sprintf("%s was made or changed at %s, after pod %s began to use that name, and the kubelet of that pod's node hands out its old content: %s",
			o, stamp(changed), other.Name, ownName)
	}
	return ""
}
