package loaded

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
)

// That Evaluate gives the same for it is shown by TestEvaluate, for each of its cases.
func TestEssentialHasNothingThatMayBeASecret(t *testing.T) {
	const secret = "hunter2"
	s := &config.Signer{Namespace: "signer", PodSelector: "app=signer", Policy: config.Policy{ConfigMap: config.ConfigMap{Name: "policy"}, Key: "k"}}
	annotations := map[string]string{corev1.LastAppliedConfigAnnotation: secret}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "signer", Labels: map[string]string{"app": "signer"}, Annotations: annotations}}
	pod.Spec.Containers = []corev1.Container{{Name: "signer", Command: []string{secret}, Args: []string{secret}, Env: []corev1.EnvVar{{Name: "A", Value: secret}}}}
	pod.Spec.InitContainers = pod.Spec.Containers
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{VolumeAttributes: map[string]string{"a": secret}}}}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: secret}, Waiting: &corev1.ContainerStateWaiting{Message: secret}}
	pod.Status = corev1.PodStatus{Message: secret, ContainerStatuses: []corev1.ContainerStatus{{Name: "signer", State: ended, LastTerminationState: ended}}}
	configMap := func(name string) corev1.ConfigMap {
		return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "signer", Annotations: annotations}, Data: map[string]string{"k": "text of " + name}}
	}
	unrelated := configMap("unrelated")
	unrelated.Data["k"] = secret
	resource := map[string]any{"metadata": map[string]any{"name": "r", "annotations": map[string]any{corev1.LastAppliedConfigAnnotation: secret, "kept": "yes"}}}

	got := Essential(s, &Objects{Pods: []corev1.Pod{pod}, ConfigMaps: []corev1.ConfigMap{configMap("policy"), unrelated}, Resources: []map[string]any{resource}})
	text, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), secret) {
		t.Errorf("it is there:\n%s", text)
	}
	for _, kept := range []string{"text of policy", "kept: \"yes\""} {
		if !strings.Contains(string(text), kept) {
			t.Errorf("%q is not there:\n%s", kept, text)
		}
	}
	if resource["metadata"].(map[string]any)["annotations"].(map[string]any)[corev1.LastAppliedConfigAnnotation] != secret {
		t.Error("what was given was changed")
	}
}

// What snapshot writes, Read takes.
func TestEssentialCanBeReadAgain(t *testing.T) {
	s := &config.Signer{SignerName: "example.com/a", Namespace: "signer", PodSelector: "app=signer", Policy: config.Policy{ConfigMap: config.ConfigMap{Name: "policy"}, Key: "k"}}
	o := Essential(s, &Objects{
		Pods:       []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "signer"}}},
		ConfigMaps: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "policy", Namespace: "signer"}}},
	})
	var stream strings.Builder
	for _, object := range []any{&o.Pods[0], &o.ConfigMaps[0]} {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		stream.WriteString("---\n" + string(text))
	}
	file := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(file, []byte(stream.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	snapshot, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	again, err := snapshot.Objects(t.Context(), s)
	if err != nil || len(again.Pods) != 1 || len(again.ConfigMaps) != 1 {
		t.Errorf("%v, %v", again, err)
	}
}
