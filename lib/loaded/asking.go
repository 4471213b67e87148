package loaded

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// Asking gives the demands of all live pods in the snapshot, of whatever namespace, in the order of their names. Pods that have ended
// ask for nothing any more.
func (s *Snapshot) Asking() ([]demand.Asker, error) {
	var out []demand.Asker
	for _, pod := range s.pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || !asks(&pod) {
			continue
		}
		name := pod.Namespace + "/" + pod.Name
		text, err := json.Marshal(&pod)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", name, err)
		}
		var object map[string]any
		if err := json.Unmarshal(text, &object); err != nil {
			return nil, fmt.Errorf("pod %s: %w", name, err)
		}
		demands, err := demand.InObject(object, pod.Namespace)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", name, err)
		}
		for _, d := range demands {
			out = append(out, demand.Asker{Pod: name, Demand: d})
		}
	}
	slices.SortStableFunc(out, func(a, b demand.Asker) int { return cmp.Compare(a.Pod, b.Pod) })
	return out, nil
}

func asks(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool { return p.PodCertificate != nil })
	})
}
