package argocd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// argoCDs is what an installation of Argo CD has, as far as the component patches it. Its images are none that the node knows, so nothing
// really runs in them.
const argoCDs = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: argocd-repo-server, labels: {app.kubernetes.io/name: argocd-repo-server}}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: argocd-repo-server}}
  template:
    metadata: {labels: {app.kubernetes.io/name: argocd-repo-server}}
    spec:
      serviceAccountName: argocd-repo-server
      automountServiceAccountToken: false
      containers:
      - name: argocd-repo-server
        image: example.test/argocd
        args: [/usr/local/bin/argocd-repo-server]
        volumeMounts: [{name: tmp, mountPath: /tmp}, {name: plugins, mountPath: /home/argocd/cmp-server/plugins}]
      volumes: [{name: tmp, emptyDir: {}}, {name: var-files, emptyDir: {}}, {name: plugins, emptyDir: {}}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: argocd-application-controller, labels: {app.kubernetes.io/name: argocd-application-controller}}
spec:
  replicas: 0
  serviceName: argocd-application-controller
  selector: {matchLabels: {app.kubernetes.io/name: argocd-application-controller}}
  template:
    metadata: {labels: {app.kubernetes.io/name: argocd-application-controller}}
    spec:
      containers: [{name: argocd-application-controller, image: example.test/argocd, args: [/usr/local/bin/argocd-application-controller]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: argocd-cm}
`

const argoCDKinds = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.argoproj.io, annotations: {api-approved.kubernetes.io: "https://example.test"}}
spec:
  group: argoproj.io
  scope: Namespaced
  names: {kind: KIND, plural: PLURAL}
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

const checkedApplication = `---
apiVersion: argoproj.io/v1alpha1
kind: AppProject
metadata: {name: default, namespace: ARGOCD}
spec: {}
---
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: web, namespace: ARGOCD}
spec:
  project: default
  destination: {server: "https://kubernetes.default.svc", namespace: shop}
  source: SOURCE
  syncPolicy: {automated: {prune: true}}
`

// shipAll applies the component to an Argo CD, and the rights where the signer is.
func (i *installation) shipAll(t *testing.T) {
	t.Helper()
	for kind, plural := range map[string]string{"AppProject": "appprojects", "ApplicationSet": "applicationsets"} {
		i.apply(strings.NewReplacer("KIND", kind, "PLURAL", plural).Replace(argoCDKinds))
	}
	config, err := os.ReadFile(filepath.Join(i.dir, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects := component(t, map[string]string{
		"argocd.yaml": argoCDs, "config.yaml": string(config),
		"kustomization.yaml": "namespace: " + i.argocd + "\nresources: [argocd.yaml]\ncomponents: [../grantfirst]\nconfigMapGenerator: [{name: grantfirst-config, files: [config.yaml]}]\n",
	})
	stream, err := objects.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	i.apply(withoutProbes(t, string(stream)))
	i.apply(shipped(i, "signer-rbac.yaml", i.signing, i.names()) + shipped(i, "watch-signer-rights.yaml", i.signing, i.names()))
	i.Cleanup(func() {
		for _, err := range []error{
			i.RbacV1().ClusterRoleBindings().Delete(context.Background(), "grantfirst-watch-holds", metav1.DeleteOptions{}),
			i.RbacV1().ClusterRoles().Delete(context.Background(), "grantfirst-watch-holds", metav1.DeleteOptions{}),
		} {
			if err != nil {
				i.Error(err)
			}
		}
	})
}

// withoutProbes is for pods in which nothing really runs, so that nobody answers.
func withoutProbes(t *testing.T, stream string) string {
	t.Helper()
	var out strings.Builder
	for doc := range strings.SplitSeq(strings.TrimPrefix(stream, "---\n"), "\n---\n") {
		var d appsv1.Deployment
		if strings.Contains(doc, "kind: Deployment\n") {
			if err := yaml.Unmarshal([]byte(doc), &d); err != nil {
				t.Fatal(err)
			}
			c := &d.Spec.Template.Spec.Containers[0]
			c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = nil, nil, nil
			text, err := yaml.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			doc = string(text)
		}
		out.WriteString("---\n" + doc + "\n")
	}
	return out.String()
}

// watch is the real one, with the rights that it ships with, outside its pod. It returns what ends it.
func (i *installation) watch() (end func()) {
	i.Helper()
	kubeconfig := i.kubeconfig(nil, i.token(i.argocd, "grantfirst-watch"))
	command := exec.Command(program(i, "grantfirst"), "watch", "--listen", "", "--namespace", i.argocd, "--kubeconfig", kubeconfig, "--config", filepath.Join(i.dir, "config.yaml"))
	var log bytes.Buffer
	command.Stderr = &log
	if err := command.Start(); err != nil {
		i.Fatal(err)
	}
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil {
			i.Errorf("watch: %v\n%s", err, log.String())
		}
	}
	i.Cleanup(end)
	i.await("the watcher leads", func() (bool, error) {
		lease, err := i.CoordinationV1().Leases(i.argocd).Get(i.Context(), "grantfirst-watch", metav1.GetOptions{})
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "", nil
	})
	return end
}

// consult runs doctor, and gives what it found: "severity id object", without what is only worth knowing.
func (i *installation) consult(kubeconfig string) (found []string, code int, all string) {
	i.Helper()
	command := exec.Command(program(i, "grantfirst"), "doctor", "--namespace", i.argocd, "--kubeconfig", kubeconfig, "-o", "json")
	command.Env = []string{"HOME=" + i.dir}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	stdout, err := command.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		i.Fatal(err)
	}
	var said struct {
		Findings []struct{ ID, Severity, Object, Message, Fix string }
	}
	if err := json.Unmarshal(stdout, &said); err != nil {
		i.Fatalf("%v\n%s%s", err, stdout, stderr.String())
	}
	for _, f := range said.Findings {
		if f.Severity != "info" {
			found = append(found, f.Severity+" "+f.ID+" "+f.Object)
		}
	}
	return found, command.ProcessState.ExitCode(), string(stdout) + stderr.String()
}

// diagnosis waits until doctor finds exactly this: the cluster takes a moment to show what was done to it.
func (i *installation) diagnosis(kubeconfig string, code int, want ...string) {
	i.Helper()
	var found []string
	var got int
	var all string
	deadline := time.After(2 * time.Minute)
	for waiting := true; waiting; {
		if found, got, all = i.consult(kubeconfig); slices.Equal(found, want) && got == code {
			return
		}
		select {
		case <-deadline:
			waiting = false
		case <-time.After(200 * time.Millisecond):
		}
	}
	i.Errorf("exit code %d, want %d; found\n  %s\nwant\n  %s\n%s", got, code, strings.Join(found, "\n  "), strings.Join(want, "\n  "), all)
}

func TestDoctorFindsNothingWrongWithTheShippedInstallationAndNamesWhatIsBroken(t *testing.T) {
	i := newInstallation(t)
	i.shipAll(t)
	i.signer()
	if err := i.CertificatesV1().RESTClient().Delete().AbsPath("/apis/argoproj.io/v1alpha1/namespaces/" + i.argocd + "/applications/fresh").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	i.await("the API server serves AppProjects", func() (bool, error) {
		_, err := i.CertificatesV1().RESTClient().Get().AbsPath("/apis/argoproj.io/v1alpha1/namespaces/" + i.argocd + "/appprojects").DoRaw(t.Context())
		return err == nil, nil
	})
	i.apply(i.replace(checkedApplication))
	end := i.watch()
	for _, name := range []string{"argocd-repo-server", "grantfirst-watch"} {
		i.await(name+" is ready", func() (bool, error) {
			d, err := i.AppsV1().Deployments(i.argocd).Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && d.Status.ReadyReplicas == *d.Spec.Replicas && d.Status.UpdatedReplicas == *d.Spec.Replicas, err
		})
	}
	admin := i.Kubeconfig
	i.diagnosis(admin, 0)
	if t.Failed() {
		return
	}

	patch := func(name, text string) {
		t.Helper()
		if _, err := i.CoreV1().ConfigMaps(i.argocd).Patch(t.Context(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	account := "ServiceAccount " + i.argocd + "/"
	cm := "ConfigMap " + i.argocd + "/argocd-cm"

	t.Run("a right of the plugin is gone", func(t *testing.T) {
		if err := i.RbacV1().RoleBindings(i.signing).Delete(t.Context(), "grantfirst-evidence", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		i.with(t).diagnosis(admin, 1, "error sidecar-rights "+account+"argocd-repo-server")
		i.apply(shipped(t, "signer-rbac.yaml", i.signing, i.names()))
	})
	t.Run("a right of the watcher is gone", func(t *testing.T) {
		if err := i.RbacV1().ClusterRoleBindings().Delete(t.Context(), "grantfirst-watch-holds", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		i.with(t).diagnosis(admin, 1, "error watcher-rights "+account+"grantfirst-watch")
		i.apply(shipped(t, "watch-rights.yaml", i.argocd, i.names()))
	})
	t.Run("the health check is gone", func(t *testing.T) {
		patch("argocd-cm", `{"data": {"`+healthKey+`": null}}`)
		i.with(t).diagnosis(admin, 1, "error hold-health-missing "+cm)
		var shippedCM corev1.ConfigMap
		readYAML(t, "argocd-cm.yaml", &shippedCM)
		text, err := json.Marshal(map[string]any{"data": shippedCM.Data})
		if err != nil {
			t.Fatal(err)
		}
		patch("argocd-cm", string(text))
	})
	t.Run("Argo CD leaves the kind out", func(t *testing.T) {
		patch("argocd-cm", `{"data": {"resource.exclusions": "[{apiGroups: [grantfirst.dev], kinds: ['*'], clusters: ['*']}]"}}`)
		i.with(t).diagnosis(admin, 1, "error marker-excluded "+cm+" key resource.exclusions")
		patch("argocd-cm", `{"data": {"resource.exclusions": null}}`)
	})
	t.Run("the AppProject does not allow the kind", func(t *testing.T) {
		i.apply(i.replace("---\napiVersion: argoproj.io/v1alpha1\nkind: AppProject\nmetadata: {name: default, namespace: ARGOCD}\nspec: {namespaceResourceWhitelist: [{group: apps, kind: Deployment}]}\n"))
		i.with(t).diagnosis(admin, 1, "error project-refuses-marker AppProject "+i.argocd+"/default")
		i.apply(i.replace("---\napiVersion: argoproj.io/v1alpha1\nkind: AppProject\nmetadata: {name: default, namespace: ARGOCD}\nspec: {}\n"))
	})
	t.Run("an override is in force", func(t *testing.T) {
		i.apply(i.replace("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: grantfirst-overrides, namespace: ARGOCD}\ndata: {web: '[{until: \"2999-01-01T00:00:00Z\", reason: INC-1}]'}\n"))
		i.with(t).diagnosis(admin, 1, "warning override-in-force ConfigMap "+i.argocd+"/grantfirst-overrides key web")
		if err := i.CoreV1().ConfigMaps(i.argocd).Delete(t.Context(), "grantfirst-overrides", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("the policy is broken", func(t *testing.T) {
		i := i.with(t)
		i.policy("{")
		i.diagnosis(admin, 1, "error policy-broken ConfigMap "+i.signing+"/policy", "error replica-unknown Pod "+i.signing+"/signer-0")
		i.grants("web")
	})
	t.Run("the sidecar shares a folder", func(t *testing.T) {
		d, err := i.AppsV1().Deployments(i.argocd).Get(t.Context(), "argocd-repo-server", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == "grantfirst" })
		mounts := d.Spec.Template.Spec.Containers[at].VolumeMounts
		tmp := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/tmp" })
		mounts[tmp].Name = "tmp"
		if _, err := i.AppsV1().Deployments(i.argocd).Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		i.with(t).diagnosis(admin, 1, "error sidecar-tmp Deployment "+i.argocd+"/argocd-repo-server container grantfirst")
		d, err = i.AppsV1().Deployments(i.argocd).Get(t.Context(), "argocd-repo-server", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		d.Spec.Template.Spec.Containers[at].VolumeMounts[tmp].Name = "grantfirst-tmp"
		if _, err := i.AppsV1().Deployments(i.argocd).Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("all is well again", func(t *testing.T) { i.with(t).diagnosis(admin, 0) })
	t.Run("the watcher has ended", func(t *testing.T) {
		end()
		i.with(t).diagnosis(admin, 1, "error watcher-not-leading Lease "+i.argocd+"/grantfirst-watch")
	})
	t.Run("somebody without rights is told what he may not see", func(t *testing.T) {
		i := i.with(t)
		found, code, all := i.consult(i.kubeconfig(nil, i.token(i.argocd, "default")))
		if code != 2 || len(found) < 8 || slices.ContainsFunc(found, func(f string) bool { return !strings.HasPrefix(f, "unknown unread ") }) {
			t.Errorf("exit code %d\n%s", code, all)
		}
	})
}
