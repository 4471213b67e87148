package loaded

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// resources are the custom resources that are a signer's policy objects.
type resources struct {
	loaded policy.Loaded
	// standing has all of them as they stand, in the order of namespace and name; read has the same, nil where one cannot be read.
	standing policy.Alternatives
	read     []*policy.Resource
	// observed is what the status says of itself, for messages.
	observed []string
	// forAll is what all replicas have loaded, where the loaded expression does not look at the pod.
	forAll policy.Alternatives
}

func readResources(s *config.Signer, objects []map[string]any) (*resources, error) {
	which := s.Policy.Resource
	if which == nil {
		return nil, fmt.Errorf("evidence %s needs policy.resource", config.Status)
	}
	if objects == nil {
		return nil, fmt.Errorf("no %s of %s was read: give --live the output of kubectl get %s.%s -A -o yaml as well, or that of grantfirst snapshot",
			which.Kind, which.APIVersion, which.Resource, which.Group())
	}
	format, err := policy.CompileResource(s.Policy.Granted)
	if err != nil {
		return nil, err
	}
	all := &resources{}
	if all.loaded, err = policy.CompileLoaded(s.Policy.Loaded); err != nil {
		return nil, err
	}
	var own []unstructured.Unstructured
	for _, o := range objects {
		u := unstructured.Unstructured{Object: o}
		if which.Matches(u.GroupVersionKind().Group, u.GetKind(), u.GetNamespace(), u.GetLabels()) {
			own = append(own, u)
		}
	}
	slices.SortStableFunc(own, func(a, b unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	for _, u := range own {
		o := policy.Alternative{Object: policy.Object{Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(), Generation: u.GetGeneration()}}
		var read *policy.Resource
		if u.GetAPIVersion() == which.APIVersion {
			read = format.Read(u.Object)
			o.Policy = read
		} else {
			o.Problem = fmt.Sprintf("it is of version %s, and policy.resource of signer %s says %s", u.GetAPIVersion(), s.SignerName, which.APIVersion)
		}
		// It still grants, but nobody knows for how long.
		if at, _, _ := unstructured.NestedFieldNoCopy(u.Object, "metadata", "deletionTimestamp"); at != nil {
			o.NotLoaded = "it is being deleted"
		}
		// What replicas have observed one by one is not summed up there.
		observed := ""
		if n, ok, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration"); ok && !all.loaded.PerPod {
			observed = fmt.Sprintf(" (status.observedGeneration %d)", n)
		}
		all.standing, all.read, all.observed = append(all.standing, o), append(all.read, read), append(all.observed, observed)
	}
	if !all.loaded.PerPod {
		all.forAll = all.loadedBy(&policy.Pod{})
	}
	return all, nil
}

// loadedBy tells which of the objects the pod has loaded.
func (r *resources) loadedBy(pod *policy.Pod) policy.Alternatives {
	if r.forAll != nil {
		return r.forAll
	}
	out := slices.Clone(r.standing)
	for i := range out {
		if r.read[i] == nil || out[i].NotLoaded != "" {
			continue
		}
		if why := r.loaded.WhyNot(r.read[i], pod); why != "" {
			out[i].NotLoaded = why + r.observed[i]
		}
	}
	return out
}

// byStatus judges a pod by what the status of the policy objects says about it, or about the signer as a whole. A pod of which no
// container runs will load them as they stand.
func (e *evaluation) byStatus(pod *corev1.Pod, r *policy.Replica) {
	s, _ := furthest(pod, namesOf(lasting(pod)))
	if r.Pending = s != running; r.Pending {
		r.Policy = e.resources.standing
		return
	}
	r.Policy = e.resources.loadedBy(&policy.Pod{
		Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID), Labels: pod.Labels, Node: pod.Spec.NodeName,
	})
}
