package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/grantfirst/grantfirst/examples/internal/testcluster"
	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/loaded"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// live is one test's part of a running cluster: a namespace of its own, in which signer and workloads live.
type live struct {
	*testing.T
	*testcluster.Cluster
	namespace, signerName string
}

func onCluster(t *testing.T) *live {
	l := &live{T: t, Cluster: testcluster.Connect(t)}
	l.namespace = l.Namespace(t, "signer-")
	l.signerName = "example.test/" + l.namespace
	rights, err := os.ReadFile("rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	shipped := strings.NewReplacer("example.com/workload", l.signerName, "example-signer", l.namespace).Replace(string(rights))
	t.Cleanup(func() {
		_ = l.RbacV1().ClusterRoleBindings().Delete(context.Background(), l.namespace, metav1.DeleteOptions{})
		_ = l.RbacV1().ClusterRoles().Delete(context.Background(), l.namespace, metav1.DeleteOptions{})
	})
	if err := l.Apply(t.Context(), []byte(shipped)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web", "late"} {
		_, err := l.CoreV1().ServiceAccounts(l.namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// await asks until check says yes, and returns how long that took.
func (l *live) await(what string, check func() (bool, error)) time.Duration {
	l.Helper()
	begun := time.Now()
	err := wait.PollUntilContextTimeout(l.Context(), 50*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) { return check() })
	if err != nil {
		l.Fatalf("never: %s: %v\n%s%s", what, err, l.Events(context.Background(), l.namespace), l.logs())
	}
	return time.Since(begun)
}

// events are what was said about a pod.
func (l *live) events(pod string) string {
	var out strings.Builder
	for line := range strings.Lines(l.Events(context.Background(), l.namespace)) {
		if strings.Contains(line, " Pod "+pod+": ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// control speaks to the node's control socket.
func (l *live) control(method, path string, body, answer any) error {
	return l.Control(context.Background(), method, path, body, answer)
}

// logs are what the signers wrote.
func (l *live) logs() string { return l.Logs(context.Background(), l.namespace) }

func (l *live) get(pod string) *corev1.Pod {
	l.Helper()
	p, err := l.CoreV1().Pods(l.namespace).Get(l.Context(), pod, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return p
}

// text is a policy that grants these ServiceAccounts of the namespace.
func (l *live) text(serviceAccounts ...string) string {
	var grants []string
	for _, name := range serviceAccounts {
		grants = append(grants, fmt.Sprintf(`{"namespace": %q, "serviceAccount": %q, "usage": "client"}`, l.namespace, name))
	}
	return fmt.Sprintf(`{"signerName": %q, "trustDomain": "example.test", "dnsNamesAnnotation": "example.test/dns-names", "lifetime": "1h",
  "refreshAt": 0.5, "keyTypes": ["ECDSAP256"], "grants": [%s]}`, l.signerName, strings.Join(grants, ", "))
}

func (l *live) policy(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "policy"}, Data: map[string]string{"policy.json": text}}
}

// signers starts replicas of the signer.
func (l *live) signers(replicas int, flags ...string) {
	l.Helper()
	binary := filepath.Join(l.TempDir(), "signer")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		l.Fatalf("%v\n%s", err, out)
	}
	image := "example.test/" + l.namespace + "/signer"
	err := l.control("PUT", "/images", map[string]any{"name": image, "files": map[string]string{"/signer": binary}, "entrypoint": []string{"/signer"}, "uid": 65532}, nil)
	if err != nil {
		l.Fatal(err)
	}
	if _, err := l.CoreV1().ConfigMaps(l.namespace).Create(l.Context(), l.policy(l.text("web")), metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
	yes := true
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	for i := range replicas {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("signer-%d", i), Labels: map[string]string{"app": "signer"}},
			Spec: corev1.PodSpec{
				ServiceAccountName: l.namespace,
				SecurityContext:    &corev1.PodSecurityContext{RunAsNonRoot: &yes, FSGroup: new(int64)},
				Containers: []corev1.Container{{
					Name: "signer", Image: image + ":v1",
					Args: append([]string{"--policy", "/policy/policy.json", "--poll", "200ms", "--report", "--healthz", "$(POD_IP):8080"}, flags...),
					Env: []corev1.EnvVar{
						field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"), field("POD_IP", "status.podIP"), {Name: "CONTAINER_NAME", Value: "signer"},
					},
					VolumeMounts:    []corev1.VolumeMount{{Name: "policy", MountPath: "/policy"}},
					SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: &yes},
					ReadinessProbe:  &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}},
				}},
				Volumes: []corev1.Volume{{Name: "policy", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "policy"}}}}},
			},
		}
		if _, err := l.CoreV1().Pods(l.namespace).Create(l.Context(), pod, metav1.CreateOptions{}); err != nil {
			l.Fatal(err)
		}
	}
	for i := range replicas {
		l.await("the signer is ready", func() (bool, error) {
			for _, c := range l.get(fmt.Sprintf("signer-%d", i)).Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					return true, nil
				}
			}
			return false, nil
		})
	}
}

// workload starts a pod that asks for a certificate.
func (l *live) workload(name, serviceAccount string) {
	l.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			ServiceAccountName: serviceAccount,
			Containers:         []corev1.Container{{Name: "main", Image: "example.test/web:v1", VolumeMounts: []corev1.VolumeMount{{Name: "tls", MountPath: "/tls"}}}},
			Volumes: []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{SignerName: l.signerName, KeyType: "ECDSAP256", CredentialBundlePath: "bundle.pem"}}},
			}}}},
		},
	}
	if _, err := l.CoreV1().Pods(l.namespace).Create(l.Context(), pod, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
}

func (l *live) awaitRunning(pod string) time.Duration {
	l.Helper()
	return l.await(pod+" is Running", func() (bool, error) { return l.get(pod).Status.Phase == corev1.PodRunning, nil })
}

// evidence is what grantfirst makes of the reports.
func (l *live) evidence() policy.Evidence {
	l.Helper()
	pods, err := l.CoreV1().Pods(l.namespace).List(l.Context(), metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	configMaps, err := l.CoreV1().ConfigMaps(l.namespace).List(l.Context(), metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return loaded.Evaluate(&config.Signer{
		SignerName: l.signerName, Namespace: l.namespace, PodSelector: "app=signer", Evidence: config.Report,
		Policy: config.Policy{ConfigMap: config.ConfigMap{Name: "policy"}, Key: "policy.json", Format: policy.FormatPodCertSigner},
	}, &loaded.Objects{Pods: pods.Items, ConfigMaps: configMaps.Items})
}

func (l *live) awaitGranted(serviceAccount string) time.Duration {
	l.Helper()
	d := &demand.Demand{SignerName: l.signerName, Namespace: l.namespace, ServiceAccount: serviceAccount, KeyType: "ECDSAP256", MaxExpirationSeconds: 86400}
	return l.await("all reports grant "+serviceAccount, func() (bool, error) {
		e := l.evidence()
		return len(e.Replicas) > 0 && e.Decide(d, true).Decision == policy.Granted, nil
	})
}

func TestOnTheCluster(t *testing.T) {
	for name, c := range map[string]struct {
		replicas int
		onChange string
		restarts int32
	}{
		"one replica that exits when its policy changes": {1, onChangeExit, 1},
		"two replicas that reload":                       {2, onChangeReload, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := onCluster(t)
			l.signers(c.replicas, "--on-change", c.onChange)
			t.Logf("reported %v after Ready", l.awaitGranted("web").Round(time.Millisecond))

			for i := range 3 {
				l.workload(fmt.Sprintf("web-%d", i), "web")
			}
			for i := range 3 {
				t.Logf("Running after %v more", l.awaitRunning(fmt.Sprintf("web-%d", i)).Round(time.Millisecond))
			}

			l.workload("late-1", "late")
			l.await("the kubelet says that late-1 is denied for good", func() (bool, error) {
				return strings.Contains(l.events("late-1"), `PodCertificateRequest was permanently denied: reason="NoGrant"`), nil
			})
			list, err := l.CertificatesV1().PodCertificateRequests(l.namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, request := range list.Items {
				want := certificatesv1.PodCertificateRequestConditionTypeIssued
				if request.Spec.ServiceAccountName == "late" {
					want = certificatesv1.PodCertificateRequestConditionTypeDenied
				}
				if got := request.Status.Conditions; len(got) != 1 || got[0].Type != want {
					t.Errorf("request of %s: %+v, want %s", request.Spec.PodName, got, want)
				}
			}
			if len(list.Items) != 4 {
				t.Errorf("%d requests, want one for each pod", len(list.Items))
			}

			if _, err := l.CoreV1().ConfigMaps(l.namespace).Update(t.Context(), l.policy(l.text("web", "late")), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Logf("reported %v after the change", l.awaitGranted("late").Round(time.Millisecond))
			l.workload("late-2", "late")
			l.awaitRunning("late-2")
			for i := range c.replicas {
				status := l.get(fmt.Sprintf("signer-%d", i)).Status.ContainerStatuses[0]
				if status.RestartCount != c.restarts {
					t.Errorf("%d restarts, want %d\n%s", status.RestartCount, c.restarts, l.logs())
				}
				if ended := status.LastTerminationState.Terminated; ended != nil && ended.ExitCode != 0 {
					t.Errorf("exit code %d", ended.ExitCode)
				}
			}
			if strings.Contains(l.events("late-2"), "denied") {
				t.Errorf("events %s", l.events("late-2"))
			}
		})
	}
}
