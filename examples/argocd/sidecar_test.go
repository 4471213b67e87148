package argocd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The container of repo-server.yaml on a real kubelet, with the volumes and the user that it ships with. Only what Argo CD's own program
// would start is started directly.
func TestTheShippedSidecarReadsTheClusterByTheTokenThatItMounts(t *testing.T) {
	i := newInstallation(t)
	i.shipRights()
	i.signer()
	configuration, err := os.ReadFile(filepath.Join(i.dir, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// Argo CD's namespace is not given: the sidecar knows its own.
	withoutNamespace := strings.ReplaceAll(string(configuration), "argocdNamespace: "+i.argocd+"\n", "")
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "grantfirst-config"}, Data: map[string]string{"config.yaml": withoutNamespace}}
	if _, err := i.CoreV1().ConfigMaps(i.argocd).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	image := "example.test/" + i.argocd + "/grantfirst"
	err = i.Image(t.Context(), image, map[string]string{
		"/grantfirst": program(t, "grantfirst"), "/repo/app/web.yaml": filepath.Join(i.dir, "repo/app/web.yaml"),
	}, 0, "/nothing")
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	readYAML(t, "repo-server.yaml", &deployment)

	// call is the log of one: what it prints and what it says, together.
	call := func(app string) string {
		i.Helper()
		spec := *deployment.Spec.Template.Spec.DeepCopy()
		no := false
		spec.AutomountServiceAccountToken, spec.ServiceAccountName, spec.RestartPolicy = &no, repoServer, corev1.RestartPolicyNever
		for _, name := range []string{"var-files", "plugins"} { // Argo CD's
			spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		}
		c := &spec.Containers[0]
		c.Image, c.Command, c.Args = image+":dev", []string{"/grantfirst"}, []string{"generate", "/repo/app"}
		for _, v := range i.environment(app, "", "unused") {
			name, value, _ := strings.Cut(v, "=")
			if strings.HasPrefix(name, "ARGOCD_") || strings.HasPrefix(name, "KUBE_") {
				c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
			}
		}
		pod, err := i.CoreV1().Pods(i.argocd).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "repo-server-"}, Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		i.await("the call is over: "+pod.Name, func() (bool, error) {
			pod, err := i.CoreV1().Pods(i.argocd).Get(t.Context(), pod.Name, metav1.GetOptions{})
			if err == nil && pod.Status.Phase == corev1.PodFailed {
				t.Fatalf("%+v\n%s", pod.Status.ContainerStatuses, i.Logs(t.Context(), i.argocd))
			}
			return err == nil && pod.Status.Phase == corev1.PodSucceeded, err
		})
		containers, err := i.Containers(t.Context(), i.argocd, pod.Name)
		if err != nil || len(containers) != 1 {
			t.Fatalf("%v, error %v", containers, err)
		}
		log, err := os.ReadFile(containers[0].Log)
		if err != nil {
			t.Fatal(err)
		}
		return string(log)
	}
	if log, want := call("fresh"), i.workload("web", "shop")+"grantfirst: fresh: 1 demands, nothing held\n"; log != want {
		t.Errorf("all is granted, but it said:\n%s", log)
	}
	i.grants("other")
	i.await("the signer has loaded it", func() (bool, error) { return strings.Contains(i.report().Data["policy"], "other"), nil })
	if log := call("web"); !strings.Contains(log, "no grant for ServiceAccount shop/web") || strings.Contains(log, "reading") {
		t.Errorf("nothing is granted, but it said:\n%s", log)
	}
}
