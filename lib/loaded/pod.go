package loaded

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/grantfirst/grantfirst/lib/policy"
)

// state of a container, as far as answering requests goes.
type state int

const (
	// notStarted: it has never run.
	notStarted state = iota
	// ended: it has run, does not now, and will be started again (a crash loop, a restart on change).
	ended
	running
)

// stateOf a container. A pod that has come further than Pending without saying anything about a container is taken to run it: then
// nothing is concluded from its absence.
func stateOf(pod *corev1.Pod, container string) (state, *corev1.ContainerStatus) {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range statuses {
			st := &statuses[i]
			switch {
			case st.Name != container:
			case st.State.Running != nil:
				return running, st
			case st.State.Terminated != nil || st.LastTerminationState.Terminated != nil || st.RestartCount > 0:
				return ended, st
			default:
				return notStarted, st
			}
		}
	}
	if pod.Status.Phase == "" || pod.Status.Phase == corev1.PodPending {
		return notStarted, nil
	}
	return running, nil
}

// furthest is the state of the container among these that got furthest, and the first start among those that run (zero where the pod
// does not tell).
func furthest(pod *corev1.Pod, containers []string) (state, time.Time) {
	best, first := notStarted, time.Time{}
	for _, name := range containers {
		s, status := stateOf(pod, name)
		if s == running {
			var at time.Time
			if status != nil {
				at = status.State.Running.StartedAt.Time
			}
			if best != running || at.Before(first) {
				first = at
			}
		}
		best = max(best, s)
	}
	return best, first
}

// lasting are the containers that run as long as the pod does: the regular ones, and init containers that restart always
// (sidecars, Kubernetes 1.29 and later). Ephemeral ones are for debugging.
func lasting(pod *corev1.Pod) []*corev1.Container {
	var all []*corev1.Container
	for i := range pod.Spec.Containers {
		all = append(all, &pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

func namesOf(containers []*corev1.Container) []string {
	names := make([]string, len(containers))
	for i := range containers {
		names[i] = containers[i].Name
	}
	return names
}

// mount is the policy object that a pod gets through its volumes.
type mount struct {
	// object is nil where there is none or where it cannot be told which; problem then says why.
	object  *object
	problem string
	// absent: the pod has no volume that names a policy object.
	absent bool
	// containers that see the policy text.
	containers []string
	// optional: the pod would also have started without the object.
	optional bool
}

// reference is one use of a ConfigMap in a volume.
type reference struct {
	volume, configMap string
	items             []corev1.KeyToPath
	optional          bool
	// over are the references that come later in the same projected volume: at the same path theirs wins (Kubernetes 1.37,
	// pkg/volume/projected collectData). What Secrets put there cannot be seen and is taken not to hide the policy.
	over []reference
}

func references(pod *corev1.Pod) []reference {
	var all []reference
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if c := v.ConfigMap; c != nil {
			all = append(all, reference{volume: v.Name, configMap: c.Name, items: c.Items, optional: isTrue(c.Optional)})
		}
		if v.Projected == nil {
			continue
		}
		var in []reference
		for j := range v.Projected.Sources {
			if c := v.Projected.Sources[j].ConfigMap; c != nil {
				in = append(in, reference{volume: v.Name, configMap: c.Name, items: c.Items, optional: isTrue(c.Optional)})
			}
		}
		for j := range in {
			in[j].over = in[j+1:]
		}
		all = append(all, in...)
	}
	return all
}

func isTrue(b *bool) bool { return b != nil && *b }

// file is the path in the volume at which the reference puts the policy key.
func (r *reference) file(key string) (string, bool) {
	if len(r.items) == 0 {
		return key, true
	}
	for _, item := range r.items {
		if item.Key == key {
			return path.Clean(item.Path), true
		}
	}
	return "", false
}

// puts reports whether the reference may put something at this path of the volume.
func (r *reference) puts(file string, o *object) bool {
	for _, item := range r.items {
		if path.Clean(item.Path) == file {
			return true
		}
	}
	if len(r.items) > 0 {
		return false
	}
	if o == nil {
		return !r.optional
	}
	_, ok := valueOf(o.ConfigMap, file)
	return ok
}

// mounted finds the policy object that the pod's volumes name and the containers that see its text.
func (e *evaluation) mounted(pod *corev1.Pod) mount {
	key := e.signer.Policy.Key
	var found []reference
	var names, missing, without, hidden []string
	for _, r := range references(pod) {
		o := e.objects[r.configMap]
		switch {
		case o == nil && e.maybePolicy(&r):
			missing = append(missing, r.configMap)
		case o == nil || !o.matches:
		case !o.hasKey:
			without = append(without, r.configMap)
		default:
			if _, ok := r.file(key); !ok {
				hidden = append(hidden, r.configMap)
				continue
			}
			found = append(found, r)
			if !slices.Contains(names, r.configMap) {
				names = append(names, r.configMap)
			}
		}
	}
	in := func(name string) string { return "ConfigMap " + e.signer.Namespace + "/" + name }
	switch {
	case len(missing) > 0:
		return mount{problem: fmt.Sprintf("its volume names %s, which does not exist: bring it back, or delete the pod", in(missing[0]))}
	case len(names) > 1:
		return mount{problem: fmt.Sprintf("its volumes name two policy objects, %s and %s, and it cannot be told which one it decides by: keep one, or use evidence: report", in(names[0]), names[1])}
	case len(names) == 1:
		return e.seen(pod, found)
	case len(without) > 0:
		return mount{problem: fmt.Sprintf("its volume names %s, which has no key %q: check policy.key of signer %s in the configuration", in(without[0]), key, e.signer.SignerName)}
	case len(hidden) > 0:
		return mount{problem: fmt.Sprintf("its volume takes some keys of %s, but not %q: check policy.key of signer %s in the configuration", in(hidden[0]), key, e.signer.SignerName)}
	}
	return mount{absent: true, problem: fmt.Sprintf("none of its volumes names a policy object of signer %s: check policy.configMap and podSelector in the configuration, or use evidence: report", e.signer.SignerName)}
}

// maybePolicy reports whether a ConfigMap that does not exist might have been a policy object. By name that can be told; its labels
// are gone with it, but what a running pod can do without is taken to be none.
func (e *evaluation) maybePolicy(r *reference) bool {
	m := &e.signer.Policy.ConfigMap
	if m.Selector != "" {
		return !r.optional
	}
	return m.Matches(r.configMap, nil)
}

// seen finds the containers that see the text; all references are to the same policy object.
func (e *evaluation) seen(pod *corev1.Pod, found []reference) mount {
	m := mount{object: e.objects[found[0].configMap]}
	problem := func(format string, args ...any) mount {
		return mount{problem: fmt.Sprintf(format, args...)}
	}
	for i := range found {
		r := &found[i]
		file, _ := r.file(e.signer.Policy.Key)
		m.optional = m.optional || r.optional
		for j := range r.over {
			if over := &r.over[j]; over.configMap != r.configMap && over.puts(file, e.objects[over.configMap]) {
				return problem("its volume %q puts ConfigMap %s over %s, and it cannot be told which text it decides by: use two volumes", r.volume, over.configMap, m.object)
			}
		}
		for _, c := range lasting(pod) {
			for _, vm := range c.VolumeMounts {
				if vm.Name != r.volume {
					continue
				}
				if vm.SubPathExpr != "" {
					return problem("container %s mounts volume %q with subPathExpr, and it cannot be told which file it sees: use subPath", c.Name, r.volume)
				}
				sub := path.Clean(vm.SubPath)
				if (vm.SubPath == "" || sub == "." || sub == file || strings.HasPrefix(file, sub+"/")) && !slices.Contains(m.containers, c.Name) {
					m.containers = append(m.containers, c.Name)
				}
			}
		}
	}
	if len(m.containers) == 0 {
		return problem("it names %s, but no container that keeps running mounts it: mount it into the signer's container, or use evidence: report", m.object)
	}
	return m
}

// watchLag is how long before a pod was made a policy object must have changed for that pod to get the new text for certain: times are cut
// to seconds, API servers have clocks of their own, and a kubelet may learn of the object later than of the pod.
const watchLag = 10 * time.Second

// judgeAtStart judges a container that does not run by the policy object as it stands, which it will load when it starts. The kubelet
// fills the volume before that, and does not wait for the newest text (Kubernetes 1.37, pkg/kubelet/volumemanager): so where the object
// is not seen to have changed well before the pod was made, it is not known whether the container will start with the text before that.
func (e *evaluation) judgeAtStart(pod *corev1.Pod, r *policy.Replica, o *object) {
	if o == nil {
		r.Problem = fmt.Sprintf("its container is not running, and namespace %s has no policy object of signer %s that it could start with", e.signer.Namespace, e.signer.SignerName)
		return
	}
	made := pod.CreationTimestamp.Time
	if changed := o.changed(); pod.Spec.NodeName != "" && !made.IsZero() && changed.Add(watchLag).After(made) && !o.contentHashed() {
		when := "after"
		if !changed.After(made) {
			when = "shortly before"
		}
		r.Problem = fmt.Sprintf("its container is not running, and may start with a text older than %s, which changed at %s, %s the pod was made at %s: wait until it runs; if it does not, delete the pod",
			o, stamp(changed), when, stamp(made))
		return
	}
	if isTrue(o.Immutable) && !o.contentHashed() {
		if why := e.whyStale(pod, o); why != "" {
			r.Problem = why
			return
		}
	}
	e.decidesBy(r, o.text, o.revision(), o.String())
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
