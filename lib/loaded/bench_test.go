package loaded

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// fleet is a signer with 100 replicas in a namespace with 2,000 ConfigMaps, half of them of the policy's name, with 100 grants each.
func fleet(evidence string) (*config.Signer, *Objects) {
	const replicas, configMaps, grants = 100, 2000, 100
	signer := &config.Signer{SignerName: "example.com/workload", Namespace: "pcs", Evidence: evidence, PodSelector: "app=pcs",
		Policy: config.Policy{ConfigMap: config.ConfigMap{NamePrefix: "policy-"}, Key: "policy.yaml", Format: policy.FormatGrants}}
	var text strings.Builder
	for i := range grants {
		fmt.Fprintf(&text, "- {namespace: team-%d, serviceAccount: web}\n", i)
	}
	made := metav1.NewTime(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC))
	o := &Objects{}
	names := []string{}
	for i := range configMaps - replicas {
		cm := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pcs", CreationTimestamp: made}, Data: map[string]string{"policy.yaml": fmt.Sprintf("# %d\n%s", i, text.String())}}
		cm.Name = fmt.Sprintf("other-%d", i)
		if i%2 == 0 {
			cm.Name = "policy-" + contentHash(map[string]any{"kind": "ConfigMap", "name": "", "data": cm.Data})
			names = append(names, cm.Name)
		}
		o.ConfigMaps = append(o.ConfigMaps, cm)
	}
	for i := range replicas {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "pcs", Name: fmt.Sprintf("pcs-%d", i), UID: types.UID(fmt.Sprint("u", i)), Labels: map[string]string{"app": "pcs"}, CreationTimestamp: made}}
		pod.Spec.NodeName = fmt.Sprint("n", i%10)
		pod.Spec.Containers = []corev1.Container{{Name: "signer", VolumeMounts: []corev1.VolumeMount{{Name: "policy", MountPath: "/etc/policy"}}}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "policy", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: names[i%3]}}}}}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "signer", ContainerID: fmt.Sprint("c", i), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: made}}}}
		o.Pods = append(o.Pods, pod)
		loaded := o.ConfigMaps[i%3].Data["policy.yaml"]
		o.ConfigMaps = append(o.ConfigMaps, corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "pcs", Name: "grantfirst-report-" + pod.Name, Labels: map[string]string{ReportLabel: ReportVersion},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}},
			Data: map[string]string{ReportSignerName: signer.SignerName, ReportContainer: "signer", ReportContainerID: fmt.Sprint("c", i),
				ReportPolicy: loaded, ReportRevision: policy.Revision([]byte(loaded))},
		})
	}
	return signer, o
}

func BenchmarkEvaluate(b *testing.B) {
	for _, evidence := range []string{config.PodVolumes, config.Report} {
		b.Run(evidence, func(b *testing.B) {
			signer, o := fleet(evidence)
			b.ReportAllocs()
			for b.Loop() {
				e := Evaluate(signer, o)
				if len(e.Replicas) != 100 || e.Replicas[0].Policy == nil {
					b.Fatalf("%+v", e.Replicas[0])
				}
			}
		})
	}
}

// BenchmarkSnapshot reads the fleet as kubectl get pods,configmaps -o yaml and -o json print it.
func BenchmarkSnapshot(b *testing.B) {
	_, o := fleet(config.Report)
	list := map[string]any{"apiVersion": "v1", "kind": "List"}
	var items []any
	for i := range o.Pods {
		o.Pods[i].APIVersion, o.Pods[i].Kind = "v1", "Pod"
		items = append(items, &o.Pods[i])
	}
	for i := range o.ConfigMaps {
		o.ConfigMaps[i].APIVersion, o.ConfigMaps[i].Kind = "v1", "ConfigMap"
		items = append(items, &o.ConfigMaps[i])
	}
	list["items"] = items
	inJSON, err := json.Marshal(list)
	if err != nil {
		b.Fatal(err)
	}
	inYAML, err := yaml.JSONToYAML(inJSON)
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string][]byte{"json": inJSON, "yaml": inYAML} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				s := emptySnapshot()
				if err := s.add("fleet", text); err != nil || len(s.pods) != 100 || len(s.configMaps) != 2000 {
					b.Fatal(len(s.pods), len(s.configMaps), err)
				}
			}
		})
	}
}
