package loaded

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/grantfirst/grantfirst/lib/config"
)

// Essential gives what Evaluate looks at and no more, to be passed on: no environment, no commands, no ConfigMap that has nothing to
// do with the policy, no annotations of pods and ConfigMaps. Evaluate gives the same for it.
func Essential(s *config.Signer, o *Objects) *Objects {
	out := &Objects{At: o.At}
	selector, err := labels.Parse(s.PodSelector)
	if err != nil {
		selector = labels.Nothing()
	}
	named := map[string]bool{}
	for i := range o.Pods {
		pod := &o.Pods[i]
		if selector.Matches(labels.Set(pod.Labels)) {
			addConfigMapsOf(pod, named)
		}
		out.Pods = append(out.Pods, essentialPod(pod))
	}
	for i := range o.ConfigMaps {
		cm := &o.ConfigMaps[i]
		_, isReport := cm.Labels[ReportLabel]
		if !isReport && !named[cm.Name] && !s.Policy.ConfigMap.Matches(cm.Name, cm.Labels) {
			continue
		}
		out.ConfigMaps = append(out.ConfigMaps, corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: essentialMeta(&cm.ObjectMeta),
			Immutable: cm.Immutable, Data: cm.Data, BinaryData: cm.BinaryData,
		})
	}
	if o.Resources != nil {
		out.Resources = []map[string]any{}
	}
	if len(out.Pods) == 0 && len(out.ConfigMaps) == 0 && len(o.ConfigMaps) > 0 {
		// That the namespace is there, and has nothing of the signer, is evidence as well.
		other := o.ConfigMaps[0]
		out.ConfigMaps = append(out.ConfigMaps, corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: other.Name, Namespace: other.Namespace},
		})
	}
	for _, object := range o.Resources {
		object = maps.Clone(object)
		if meta, ok := object["metadata"].(map[string]any); ok {
			meta = maps.Clone(meta)
			delete(meta, "managedFields")
			if annotations, ok := meta["annotations"].(map[string]any); ok {
				annotations = maps.Clone(annotations)
				delete(annotations, corev1.LastAppliedConfigAnnotation)
				meta["annotations"] = annotations
			}
			object["metadata"] = meta
		}
		out.Resources = append(out.Resources, object)
	}
	return out
}

// essentialMeta keeps managedFields, which tell when content was changed.
func essentialMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, Generation: m.Generation, Labels: m.Labels, OwnerReferences: m.OwnerReferences,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp, ManagedFields: m.ManagedFields,
	}
}

func addConfigMapsOf(pod *corev1.Pod, named map[string]bool) {
	for _, v := range pod.Spec.Volumes {
		if v.ConfigMap != nil {
			named[v.ConfigMap.Name] = true
		}
		if v.Projected == nil {
			continue
		}
		for _, p := range v.Projected.Sources {
			if p.ConfigMap != nil {
				named[p.ConfigMap.Name] = true
			}
		}
	}
}

func essentialPod(pod *corev1.Pod) corev1.Pod {
	out := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: essentialMeta(&pod.ObjectMeta)}
	out.ManagedFields = nil
	out.Spec.NodeName = pod.Spec.NodeName
	for _, v := range pod.Spec.Volumes {
		// Other volumes only have their names: they do not show a policy.
		out.Spec.Volumes = append(out.Spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{ConfigMap: v.ConfigMap, Projected: v.Projected}})
	}
	out.Spec.Containers = essentialContainers(pod.Spec.Containers)
	out.Spec.InitContainers = essentialContainers(pod.Spec.InitContainers)
	out.Status.Phase = pod.Status.Phase
	out.Status.ContainerStatuses = essentialStatuses(pod.Status.ContainerStatuses)
	out.Status.InitContainerStatuses = essentialStatuses(pod.Status.InitContainerStatuses)
	return out
}

func essentialContainers(all []corev1.Container) []corev1.Container {
	out := slices.Clone(all)
	for i, c := range all {
		out[i] = corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, VolumeMounts: c.VolumeMounts}
	}
	return out
}

func essentialStatuses(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	out := slices.Clone(all)
	for i, s := range all {
		out[i] = corev1.ContainerStatus{
			Name: s.Name, RestartCount: s.RestartCount, ContainerID: s.ContainerID,
			State: essentialState(s.State), LastTerminationState: essentialState(s.LastTerminationState),
		}
	}
	return out
}

// essentialState has no messages: a container's last words may be anything.
func essentialState(s corev1.ContainerState) corev1.ContainerState {
	out := corev1.ContainerState{Running: s.Running}
	if s.Waiting != nil {
		out.Waiting = &corev1.ContainerStateWaiting{Reason: s.Waiting.Reason}
	}
	if t := s.Terminated; t != nil {
		out.Terminated = &corev1.ContainerStateTerminated{ExitCode: t.ExitCode, Reason: t.Reason, StartedAt: t.StartedAt, FinishedAt: t.FinishedAt, ContainerID: t.ContainerID}
	}
	return out
}
