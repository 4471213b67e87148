package doctor

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/policy"
)

var now = time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)

// shipped reads the documents of a file of examples/argocd.
func shipped(t testing.TB, file string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples/argocd", file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n---\n")
}

func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	into := new(T)
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return into
}

// argoCDs is what Argo CD's own manifests say of repo-server, as far as it matters here.
const argoCDs = `
metadata: {name: argocd-repo-server, namespace: argocd, labels: {app.kubernetes.io/name: argocd-repo-server}}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: argocd-repo-server}}
  template:
    metadata: {labels: {app.kubernetes.io/name: argocd-repo-server}}
    spec:
      serviceAccountName: argocd-repo-server
      automountServiceAccountToken: false
      initContainers:
      - {name: copyutil, volumeMounts: [{name: var-files, mountPath: /var/run/argocd}]}
      containers:
      - name: argocd-repo-server
        args: [/usr/local/bin/argocd-repo-server]
        env:
        - {name: ARGOCD_REPO_SERVER_PLUGIN_TAR_EXCLUSIONS, valueFrom: {configMapKeyRef: {name: argocd-cmd-params-cm, key: reposerver.plugin.tar.exclusions, optional: true}}}
        - {name: ARGOCD_REPO_SERVER_PLUGIN_USE_MANIFEST_GENERATE_PATHS, valueFrom: {configMapKeyRef: {name: argocd-cmd-params-cm, key: reposerver.plugin.use.manifest.generate.paths, optional: true}}}
        volumeMounts: [{name: tmp, mountPath: /tmp}, {name: plugins, mountPath: /home/argocd/cmp-server/plugins}]
      volumes: [{name: tmp, emptyDir: {}}, {name: var-files, emptyDir: {}}, {name: plugins, emptyDir: {}}]
`

const controller = `
metadata: {name: argocd-application-controller, namespace: argocd}
spec:
  template:
    spec:
      containers:
      - name: argocd-application-controller
        args: [/usr/local/bin/argocd-application-controller]
        env:
        - {name: ARGOCD_APPLICATION_NAMESPACES, valueFrom: {configMapKeyRef: {name: argocd-cmd-params-cm, key: application.namespaces, optional: true}}}
        - {name: ARGOCD_APPLICATION_CONTROLLER_REPO_SERVER_TIMEOUT_SECONDS, valueFrom: {configMapKeyRef: {name: argocd-cmd-params-cm, key: controller.repo.server.timeout.seconds, optional: true}}}
`

const configuration = `
apiVersion: grantfirst.dev/v1alpha1
kind: Config
signers:
- signerName: example.com/workload
  namespace: pcs
  policy: {configMap: {name: policy}, key: policy.yaml, format: grants}
  podSelector: app=pcs
  evidence: report
`

func application(t testing.TB, name, spec string) Application {
	t.Helper()
	a := parse[Application](t, "spec: {project: default, destination: {server: \"https://kubernetes.default.svc\"}, syncPolicy: {automated: {prune: true}}}\n")
	merged := parse[Application](t, spec)
	a.Metadata.Name, a.Metadata.Namespace = name, "argocd"
	a.Metadata.Annotations, a.Metadata.Labels, a.Metadata.OwnerReferences = merged.Metadata.Annotations, merged.Metadata.Labels, merged.Metadata.OwnerReferences
	if merged.Metadata.Namespace != "" {
		a.Metadata.Namespace = merged.Metadata.Namespace
	}
	a.Spec.Source, a.Spec.Sources, a.Spec.SourceHydrator = merged.Spec.Source, merged.Spec.Sources, merged.Spec.SourceHydrator
	if merged.Spec.Source == nil && merged.Spec.Sources == nil {
		a.Spec.Source = parse[Source](t, "{path: app, plugin: {name: grantfirst}}")
	}
	if merged.Spec.SyncPolicy != nil {
		a.Spec.SyncPolicy = merged.Spec.SyncPolicy
	}
	if merged.Spec.Destination != (config.Destination{}) {
		a.Spec.Destination = merged.Spec.Destination
	}
	a.Status = merged.Status
	return *a
}

type always struct{}

func (always) Decide(*demand.Demand) policy.Answer { return policy.Answer{Decision: policy.Granted} }

// healthy is the shipped installation with one Application and one signer, in which nothing is wrong.
func healthy(t testing.TB) *Installation {
	t.Helper()
	base, err := yaml.YAMLToJSON([]byte(argoCDs))
	if err != nil {
		t.Fatal(err)
	}
	patch, err := yaml.YAMLToJSON([]byte(shipped(t, "repo-server.yaml")[0]))
	if err != nil {
		t.Fatal(err)
	}
	patched, err := strategicpatch.StrategicMergePatch(base, patch, appsv1.Deployment{})
	if err != nil {
		t.Fatal(err)
	}
	repoServer := parse[appsv1.Deployment](t, string(patched))
	watcher := parse[appsv1.Deployment](t, shipped(t, "watch.yaml")[0])
	watcher.Namespace, watcher.Status.ReadyReplicas = "argocd", 2
	ready := corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "argocd-repo-server", Ready: true}, {Name: "grantfirst", Ready: true}},
	}
	argocdCM := parse[corev1.ConfigMap](t, shipped(t, "argocd-cm.yaml")[0])
	identity, seconds := "grantfirst-watch-1", int32(15)
	kind := parse[Kind](t, shipped(t, "hold-crd.yaml")[0])
	kind.Status.Conditions = []metav1.Condition{{Type: "Established", Status: metav1.ConditionTrue}}
	i := &Installation{
		Namespace:    "argocd",
		Now:          now,
		Deployments:  []appsv1.Deployment{*repoServer, *watcher},
		StatefulSets: []appsv1.StatefulSet{*parse[appsv1.StatefulSet](t, controller)},
		Pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "argocd-repo-server-1", Namespace: "argocd", Labels: repoServer.Spec.Template.Labels}, Spec: *repoServer.Spec.Template.Spec.DeepCopy(), Status: ready,
		}},
		ConfigMaps: map[string]Object[corev1.ConfigMap]{
			"argocd-cm":            {true, argocdCM},
			"argocd-cmd-params-cm": {true, &corev1.ConfigMap{Data: map[string]string{"application.namespaces": "team, squad-*"}}},
			"grantfirst-config":    {true, &corev1.ConfigMap{Data: map[string]string{"config.yaml": configuration}}},
			"grantfirst-overrides": {Read: true},
		},
		Lease: Object[coordinationv1.Lease]{true, &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &identity, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now.Add(-3 * time.Second)},
		}}},
		Applications:    []Application{application(t, "web", "")},
		ApplicationSets: []ApplicationSet{},
		Projects:        []Project{*parse[Project](t, "metadata: {name: default, namespace: argocd}")},
		Clusters: []Cluster{{
			Name: "in-cluster", Of: config.Cluster{InCluster: true}, Kind: Object[Kind]{true, kind}, Holds: []hold.Hold{},
			Evidence: map[string]policy.Evidence{"example.com/workload": {
				Kind: "report", Replicas: []policy.Replica{{Pod: "pcs-1", Policy: always{}, Revision: policy.Revision(nil)}},
				Live: policy.Alternatives{{Object: policy.Object{Kind: "ConfigMap", Namespace: "pcs", Name: "policy", Policy: always{}}}},
			}},
		}},
		Rights: map[Right]bool{},
	}
	i.readConfig()
	for _, r := range i.rulings() {
		i.Rights[r.Right] = !r.excess
	}
	return i
}

// reconfigure makes the ConfigMap say something else.
func (i *Installation) reconfigure(t *testing.T, text string) {
	t.Helper()
	i.ConfigMaps["grantfirst-config"].Value.Data["config.yaml"] = text
	i.readConfig()
	if i.Config == nil {
		t.Fatalf("no configuration:\n%s", text)
	}
}

func (i *Installation) grantAll() {
	for _, r := range i.rulings() {
		if _, ok := i.Rights[r.Right]; !ok {
			i.Rights[r.Right] = !r.excess
		}
	}
}

func (i *Installation) pod() *corev1.PodSpec { return &i.Deployments[0].Spec.Template.Spec }

func (i *Installation) params() map[string]string { return i.ConfigMaps[paramsCM].Value.Data }

func (i *Installation) settings() map[string]string { return i.ConfigMaps[argocdCM].Value.Data }

func (i *Installation) override(text string) {
	i.ConfigMaps[OverridesName] = Object[corev1.ConfigMap]{true, &corev1.ConfigMap{Data: map[string]string{"web": text}}}
}

func replaceMount(c *corev1.Container, at, volume string) {
	for n := range c.VolumeMounts {
		if c.VolumeMounts[n].MountPath == at {
			c.VolumeMounts[n].Name = volume
		}
	}
}

func without(c *corev1.Container, at string) {
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == at })
}

// lines of findings: severity, id, object and message.
func said(findings []Finding) []string {
	var all []string
	for _, f := range findings {
		all = append(all, string(f.Severity)+" "+f.ID+" "+f.Object+": "+f.Message+" ["+f.Fix+"]")
	}
	return all
}

func TestNothingIsWrongWithTheShippedInstallation(t *testing.T) {
	findings := Examine(healthy(t))
	for _, line := range said(findings) {
		if !strings.HasPrefix(line, "info signer-loaded signer example.com/workload: by report: pod pcs-1 (policy sha256:") {
			t.Error(line)
		}
	}
	if len(findings) != 1 || Worst(findings) != "" {
		t.Errorf("%q in %d findings", Worst(findings), len(findings))
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	deploymentMarker := configuration + "hold: {marker: Deployment}\n"
	elsewhere := configuration + "clusters: [{name: eu, destinations: [\"https://eu.example.com\"], kubeconfig: /k/eu.yaml, context: c}]\n"
	for _, test := range []struct {
		name  string
		wrong func(*testing.T, *Installation)
		// want has the beginning of each finding beside the one of the healthy installation; "…" stands for anything.
		want []string
	}{
		{"no Deployment has the label of repo-server", func(_ *testing.T, i *Installation) { i.Deployments[0].Labels = nil }, []string{"error repo-server-missing namespace argocd: "}},
		{"the Deployment has no sidecar", func(_ *testing.T, i *Installation) { i.pod().Containers = i.pod().Containers[1:] }, []string{"error sidecar-missing Deployment argocd/argocd-repo-server: "}},
		{"the sidecar runs grantfirst itself", func(_ *testing.T, i *Installation) {
			i.pod().Containers[0].Command = []string{"grantfirst"}
		}, []string{`error sidecar-entrypoint Deployment argocd/argocd-repo-server container grantfirst: command is ["grantfirst"]`}},
		{"the sidecar lacks var-files", func(_ *testing.T, i *Installation) { without(&i.pod().Containers[0], varFiles) }, []string{"error sidecar-volume … nothing is mounted at /var/run/argocd,"}},
		{"the sidecar lacks plugins", func(_ *testing.T, i *Installation) { without(&i.pod().Containers[0], pluginSockets) }, []string{"error sidecar-volume … nothing is mounted at /home/argocd/cmp-server/plugins,"}},
		{"the sidecar has another volume for sockets", func(_ *testing.T, i *Installation) {
			replaceMount(&i.pod().Containers[0], pluginSockets, "grantfirst-tmp")
		}, []string{"error sidecar-volume … has volume grantfirst-tmp at /home/argocd/cmp-server/plugins, and repo-server plugins"}},
		{"the sidecar has no /tmp", func(_ *testing.T, i *Installation) { without(&i.pod().Containers[0], "/tmp") }, []string{"error sidecar-tmp … nothing is mounted at /tmp"}},
		{"a writable root filesystem needs no volume at /tmp", func(_ *testing.T, i *Installation) {
			without(&i.pod().Containers[0], "/tmp")
			i.pod().Containers[0].SecurityContext.ReadOnlyRootFilesystem = nil
		}, nil},
		{"the sidecar shares repo-server's /tmp", func(_ *testing.T, i *Installation) { replaceMount(&i.pod().Containers[0], "/tmp", "tmp") }, []string{"error sidecar-tmp … volume tmp at /tmp is also that of container argocd-repo-server"}},
		{"the sidecar's /tmp outlives its pod", func(_ *testing.T, i *Installation) {
			volumeOf(i.pod(), "grantfirst-tmp").VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}
		}, []string{"error sidecar-tmp … volume grantfirst-tmp at /tmp is no emptyDir"}},
		{"the sidecar has another user", func(_ *testing.T, i *Installation) { *i.pod().Containers[0].SecurityContext.RunAsUser = 1000 }, []string{"error sidecar-user … runAsUser is 1000, not 999"}},
		{"the sidecar has the image's user", func(_ *testing.T, i *Installation) { i.pod().Containers[0].SecurityContext.RunAsUser = nil }, []string{"warning sidecar-user … runAsUser is not set"}},
		{"the pod's user counts where the sidecar has none", func(_ *testing.T, i *Installation) {
			i.pod().SecurityContext = &corev1.PodSecurityContext{RunAsUser: i.pod().Containers[0].SecurityContext.RunAsUser}
			i.pod().Containers[0].SecurityContext.RunAsUser = nil
		}, nil},
		{"the sidecar has no token", func(_ *testing.T, i *Installation) { without(&i.pod().Containers[0], serviceAccountDir) }, []string{"error sidecar-token "}},
		{"the sidecar's volume has everything but the token", func(_ *testing.T, i *Installation) {
			v := volumeOf(i.pod(), "grantfirst-token").Projected
			v.Sources = v.Sources[1:]
		}, []string{"error sidecar-token "}},
		{"the sidecar's volume has everything but the certificate", func(_ *testing.T, i *Installation) {
			v := volumeOf(i.pod(), "grantfirst-token").Projected
			v.Sources = v.Sources[:1]
		}, []string{"error sidecar-token "}},
		{"a pod that mounts its token itself needs no volume", func(_ *testing.T, i *Installation) {
			without(&i.pod().Containers[0], serviceAccountDir)
			i.pod().AutomountServiceAccountToken = nil
		}, nil},
		{"a kubeconfig stands for the token", func(_ *testing.T, i *Installation) {
			without(&i.pod().Containers[0], serviceAccountDir)
			i.pod().Containers[0].Env = []corev1.EnvVar{{Name: "KUBECONFIG", Value: "/k"}}
		}, nil},
		{"the sidecar's container does not start", func(_ *testing.T, i *Installation) {
			i.Pods[0].Status.ContainerStatuses[1] = corev1.ContainerStatus{Name: "grantfirst", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}
		}, []string{"error pod-not-ready Pod argocd/argocd-repo-server-1: container grantfirst does not run: ImagePullBackOff"}},
		{"the sidecar's container has ended", func(_ *testing.T, i *Installation) {
			i.Pods[0].Status.ContainerStatuses[1] = corev1.ContainerStatus{Name: "grantfirst", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error"}}}
		}, []string{"error pod-not-ready Pod argocd/argocd-repo-server-1: container grantfirst has ended with exit code 2: Error"}},
		{"the pod is not ready", func(_ *testing.T, i *Installation) { i.Pods[0].Status.Conditions = nil }, []string{"error pod-not-ready Pod argocd/argocd-repo-server-1: is not ready: Running"}},
		{"a pod is from before the sidecar", func(_ *testing.T, i *Installation) { i.Pods[0].Spec.Containers = i.Pods[0].Spec.Containers[1:] }, []string{"warning pod-without-sidecar Pods argocd-repo-server-1: "}},
		{"there is no pod", func(_ *testing.T, i *Installation) { i.Pods = []corev1.Pod{} }, []string{"error pod-not-ready Deployment argocd/argocd-repo-server: has no pods"}},

		{"the sidecar has no configuration", func(_ *testing.T, i *Installation) { without(&i.pod().Containers[0], "/etc/grantfirst") }, []string{"error sidecar-config "}},
		{"the sidecar's configuration is in no ConfigMap", func(_ *testing.T, i *Installation) {
			volumeOf(i.pod(), "grantfirst-config").VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}, []string{"unknown sidecar-config "}},
		{"the configuration is not there", func(_ *testing.T, i *Installation) {
			i.ConfigMaps["grantfirst-config"] = Object[corev1.ConfigMap]{Read: true}
			i.readConfig()
		}, []string{"error config-missing ConfigMap argocd/grantfirst-config: is not there", "-info signer-loaded"}},
		{"the configuration has another key", func(_ *testing.T, i *Installation) {
			i.ConfigMaps["grantfirst-config"].Value.Data = map[string]string{"conf.yml": configuration}
			i.readConfig()
		}, []string{"error config-missing ConfigMap argocd/grantfirst-config: has no key config.yaml, but conf.yml", "-info signer-loaded"}},
		{"items of the volume give the key another name", func(_ *testing.T, i *Installation) {
			i.ConfigMaps["grantfirst-config"].Value.Data = map[string]string{"conf.yml": configuration}
			for _, d := range i.Deployments {
				volumeOf(&d.Spec.Template.Spec, "grantfirst-config").ConfigMap.Items = []corev1.KeyToPath{{Key: "conf.yml", Path: "config.yaml"}}
			}
		}, nil},
		{"the configuration is broken", func(_ *testing.T, i *Installation) {
			i.ConfigMaps["grantfirst-config"].Value.Data["config.yaml"] = "apiVersion: grantfirst.dev/v1alpha1\nkind: Config\nmode: observ\n"
			i.readConfig()
		}, []string{`error config-invalid ConfigMap argocd/grantfirst-config key config.yaml: every render fails: mode: "observ" is not known here`, "-info signer-loaded"}},
		{"the configuration given is not the sidecar's", func(t *testing.T, i *Installation) {
			var err error
			if i.Given, err = config.Parse([]byte(configuration + "mode: observe\n")); err != nil {
				t.Fatal(err)
			}
			i.readConfig()
		}, []string{"warning config-differs ConfigMap argocd/grantfirst-config: ", "info observed-only "}},
		{"the configuration is for another Argo CD", func(t *testing.T, i *Installation) { i.reconfigure(t, configuration+"argocdNamespace: gitops\n") }, []string{"error config-namespace configuration: says argocdNamespace: gitops"}},
		{"no signer is configured", func(t *testing.T, i *Installation) {
			i.reconfigure(t, "apiVersion: grantfirst.dev/v1alpha1\nkind: Config\n")
		}, []string{"warning no-signers ", "-info signer-loaded"}},
		{"nothing is held in mode observe", func(t *testing.T, i *Installation) { i.reconfigure(t, configuration+"mode: observe\n") }, []string{"info observed-only "}},

		{"the sidecar lacks a right", func(_ *testing.T, i *Installation) {
			i.Rights[Right{"argocd-repo-server", "pcs", "list", "", "pods", ""}] = false
			i.Rights[Right{"argocd-repo-server", "pcs", "list", "", "configmaps", ""}] = false
		}, []string{"error sidecar-rights ServiceAccount argocd/argocd-repo-server: in namespace pcs may not: list pods, list configmaps [kubectl apply -n pcs -f signer-rbac.yaml"}},
		{"the watcher lacks rights", func(_ *testing.T, i *Installation) {
			i.Rights[Right{"grantfirst-watch", "", "delete", "grantfirst.dev", "holds", ""}] = false
			i.Rights[Right{"grantfirst-watch", "argocd", "patch", "argoproj.io", "applications", ""}] = false
			i.Rights[Right{"grantfirst-watch", "argocd", "update", "coordination.k8s.io", "leases", "grantfirst-watch"}] = false
		}, []string{
			"error watcher-rights ServiceAccount argocd/grantfirst-watch: in namespace argocd may not: update leases.coordination.k8s.io/grantfirst-watch, patch applications.argoproj.io [kubectl apply -n argocd -f watch-rights.yaml",
			"error watcher-rights ServiceAccount argocd/grantfirst-watch: in all namespaces may not: delete holds.grantfirst.dev [",
		}},
		{"the sidecar may read Secrets", func(_ *testing.T, i *Installation) {
			i.Rights[Right{"argocd-repo-server", "argocd", "get", "", "secrets", ""}] = true
		}, []string{"info sidecar-excess-rights ServiceAccount argocd/argocd-repo-server: may get secrets, which the plugin does not need"}},
		{"the subjects of the shipped files are in namespace argocd", func(_ *testing.T, i *Installation) {
			i.Namespace = "gitops"
			for n := range i.Deployments {
				i.Deployments[n].Namespace = "gitops"
			}
			i.Applications[0].Metadata.Namespace = "gitops"
			i.grantAll()
			i.Rights[Right{"argocd-repo-server", "pcs", "list", "", "pods", ""}] = false
		}, []string{"error sidecar-rights ServiceAccount gitops/argocd-repo-server: … [kubectl apply -n pcs -f signer-rbac.yaml   # of examples/argocd, with namespace gitops in its subjects]"}},
		{"rights cannot be asked", func(_ *testing.T, i *Installation) { clear(i.Rights) }, []string{
			"unknown rights-unknown ServiceAccount argocd/argocd-repo-server: … [kubectl auth can-i get applications.argoproj.io -n argocd --as=system:serviceaccount:argocd:argocd-repo-server; ",
			"unknown rights-unknown ServiceAccount argocd/grantfirst-watch: ",
		}},
		{"an Application elsewhere needs rights there", func(t *testing.T, i *Installation) {
			i.Applications = append(i.Applications, application(t, "api", "metadata: {namespace: team}"))
			i.Deployments[1].Spec.Template.Spec.Containers[0].Args = []string{"watch", "--applications-in=argocd", "--applications-in", "team"}
			for _, r := range i.rulings() {
				if r.Namespace != "team" {
					i.Rights[r.Right] = !r.excess
				} else {
					i.Rights[r.Right] = false
				}
			}
		}, []string{
			"error sidecar-rights … in namespace team may not: get applications.argoproj.io [kubectl apply -n team -f application-rbac.yaml",
			"error watcher-rights … in namespace team may not: get applications.argoproj.io, list applications.argoproj.io, watch applications.argoproj.io, patch applications.argoproj.io, get applicationsets.argoproj.io, list",
		}},
		{"policy resources of all namespaces need a right there", func(t *testing.T, i *Installation) {
			i.reconfigure(t, `
apiVersion: grantfirst.dev/v1alpha1
kind: Config
signers:
- signerName: example.com/workload
  namespace: pcs
  policy: {resource: {apiVersion: p.example.com/v1, kind: Policy, resource: policies, namespace: "*"}, format: cel, granted: "true", loaded: "true"}
  podSelector: app=pcs
  evidence: status
`)
			i.grantAll()
			i.Rights[Right{"argocd-repo-server", "", "list", "p.example.com", "policies", ""}] = false
		}, []string{"error sidecar-rights … in all namespaces may not: list policies.p.example.com [kubectl apply -n argocd -f signer-rbac.yaml with a rule for policies.p.example.com"}},

		{"the Hold kind is not there", func(_ *testing.T, i *Installation) { i.Clusters[0].Kind.Value = nil }, []string{"error hold-kind-missing CustomResourceDefinition holds.grantfirst.dev: "}},
		{"the Hold kind has another version", func(_ *testing.T, i *Installation) { i.Clusters[0].Kind.Value.Spec.Versions[0].Served = false }, []string{"error hold-kind-broken … does not serve v1alpha1"}},
		{"the Hold kind is not established", func(_ *testing.T, i *Installation) { i.Clusters[0].Kind.Value.Status.Conditions = nil }, []string{"error hold-kind-broken … is not Established"}},
		{"the Hold kind has no namespaces", func(_ *testing.T, i *Installation) { i.Clusters[0].Kind.Value.Spec.Scope = "Cluster" }, []string{"error hold-kind-broken … its scope is Cluster"}},
		{"what could not be read of the Hold kind is not missing", func(_ *testing.T, i *Installation) { i.Clusters[0].Kind = Object[Kind]{} }, nil},
		{"argocd-cm has no health check", func(_ *testing.T, i *Installation) { clear(i.settings()) }, []string{"error hold-health-missing ConfigMap argocd/argocd-cm: has no health check"}},
		{"there is no argocd-cm", func(_ *testing.T, i *Installation) { i.ConfigMaps[argocdCM] = Object[corev1.ConfigMap]{Read: true} }, []string{"error hold-health-missing ConfigMap argocd/argocd-cm: is not there"}},
		{"the health check is another one", func(_ *testing.T, i *Installation) { i.settings()[healthKey] = `return {status = "Healthy"}` }, []string{"warning hold-health-differs "}},
		{"spaces and comments make no other health check", func(_ *testing.T, i *Installation) { i.settings()[healthKey] = "-- ours\n\n  " + healthCheck }, nil},
		{"the health check in the older form counts", func(t *testing.T, i *Installation) {
			text, err := yaml.Marshal(map[string]any{"grantfirst.dev/Hold": map[string]string{"health.lua": healthCheck}})
			if err != nil {
				t.Fatal(err)
			}
			clear(i.settings())
			i.settings()[oldHealthKey] = string(text)
		}, nil},
		{"who has Deployments for markers needs no Hold kind", func(t *testing.T, i *Installation) {
			i.reconfigure(t, deploymentMarker)
			i.Clusters[0].Kind.Value = nil
			clear(i.settings())
		}, nil},
		{"another cluster lacks the Hold kind", func(t *testing.T, i *Installation) {
			i.reconfigure(t, elsewhere)
			i.Clusters = append(i.Clusters, Cluster{Name: "eu", Of: i.Config.Clusters[0], Kind: Object[Kind]{Read: true}})
		}, []string{"error hold-kind-missing CustomResourceDefinition holds.grantfirst.dev in cluster eu: … [kubectl apply -f hold-crd.yaml --kubeconfig /k/eu.yaml --context c"}},

		{"an AppProject allows other kinds only", func(_ *testing.T, i *Installation) {
			i.Projects[0].Spec.NamespaceResourceWhitelist = []metav1.GroupKind{{Group: "apps", Kind: "*"}}
		}, []string{"error project-refuses-marker AppProject argocd/default: its namespaceResourceWhitelist has no Hold.grantfirst.dev: … [add to spec.namespaceResourceWhitelist: {group: grantfirst.dev, kind: Hold}]"}},
		{"an AppProject's list may have patterns", func(_ *testing.T, i *Installation) {
			i.Projects[0].Spec.NamespaceResourceWhitelist = []metav1.GroupKind{{Group: "grantfirst.*", Kind: "*"}}
		}, nil},
		{"an AppProject forbids the kind", func(_ *testing.T, i *Installation) {
			i.Projects[0].Spec.NamespaceResourceBlacklist = []metav1.GroupKind{{Group: "*", Kind: "Hold"}}
		}, []string{"error project-refuses-marker AppProject argocd/default: its namespaceResourceBlacklist has Hold.grantfirst.dev"}},
		{"an AppProject forbids the other kind of marker", func(t *testing.T, i *Installation) {
			i.reconfigure(t, deploymentMarker)
			i.Projects[0].Spec.NamespaceResourceBlacklist = []metav1.GroupKind{{Group: "apps", Kind: "Deployment"}}
		}, []string{"error project-refuses-marker AppProject argocd/default: its namespaceResourceBlacklist has Deployment.apps"}},
		{"a global project forbids the kind", func(t *testing.T, i *Installation) {
			i.settings()[globals] = "[{projectName: all, labelSelector: {matchLabels: {tier: a}}}]"
			i.Projects[0].Metadata.Labels = map[string]string{"tier": "a"}
			i.Projects = append(i.Projects, *parse[Project](t, "{metadata: {name: all}, spec: {namespaceResourceBlacklist: [{group: grantfirst.dev, kind: Hold}]}}"))
		}, []string{"error project-refuses-marker AppProject argocd/default: "}},
		{"a global project for others forbids nothing", func(t *testing.T, i *Installation) {
			i.settings()[globals] = "[{projectName: all, labelSelector: {matchLabels: {tier: a}}}]"
			i.Projects = append(i.Projects, *parse[Project](t, "{metadata: {name: all}, spec: {namespaceResourceBlacklist: [{group: grantfirst.dev, kind: Hold}]}}"))
		}, nil},
		{"resource.exclusions hide the marker", func(_ *testing.T, i *Installation) {
			i.settings()[exclusions] = "[{apiGroups: [\"*.dev\"], kinds: [Hold], clusters: [\"*\"]}]"
		}, []string{"error marker-excluded ConfigMap argocd/argocd-cm key resource.exclusions: hides the marker Hold.grantfirst.dev in cluster https://kubernetes.default.svc"}},
		{"a cluster may be given by name", func(t *testing.T, i *Installation) {
			i.settings()[exclusions] = "[{apiGroups: [\"*\"], kinds: [Hold], clusters: [\"https://kubernetes.default.svc\"]}]"
			i.Applications[0] = application(t, "web", "spec: {destination: {name: in-cluster}}")
		}, []string{`error marker-excluded ConfigMap argocd/argocd-cm key resource.exclusions: hides the marker Hold.grantfirst.dev in cluster "in-cluster"`}},
		{"resource.exclusions of all clusters are of named ones, too", func(t *testing.T, i *Installation) {
			i.reconfigure(t, elsewhere)
			i.settings()[exclusions] = "[{kinds: [Hold], clusters: [\"https://*\"]}, {kinds: [Hold], clusters: [\"*\"]}]"
			i.Applications[0] = application(t, "web", "spec: {destination: {name: eu}}")
		}, []string{`error marker-excluded … in cluster "eu"`, "error cluster-unknown "}},
		{"resource.exclusions of another cluster hide nothing", func(_ *testing.T, i *Installation) {
			i.settings()[exclusions] = "[{apiGroups: [\"*\"], kinds: [Hold], clusters: [\"https://192.0.2.*\"]}]"
		}, nil},
		{"resource.inclusions leave the marker out", func(_ *testing.T, i *Installation) { i.settings()[inclusions] = "[{apiGroups: [apps]}]" }, []string{"error marker-excluded ConfigMap argocd/argocd-cm key resource.inclusions: "}},
		{"resource.inclusions have the marker", func(_ *testing.T, i *Installation) {
			i.settings()[inclusions] = "[{apiGroups: [apps]}, {apiGroups: [grantfirst.dev], kinds: [\"*\"]}]"
		}, nil},
		{"the marker would be hidden from the first Application", func(_ *testing.T, i *Installation) {
			i.Applications = []Application{}
			i.settings()[exclusions] = "[{kinds: [Hold]}]"
		}, []string{"error marker-excluded ", "info no-applications "}},
		{"resource.exclusions are broken", func(_ *testing.T, i *Installation) { i.settings()[exclusions] = "{" }, []string{"error exclusions-broken ConfigMap argocd/argocd-cm key resource.exclusions: "}},

		{"a signer's evidence is none", func(_ *testing.T, i *Installation) {
			i.Clusters[0].Evidence["example.com/workload"] = policy.Evidence{Problem: "no pod and no ConfigMap of namespace pcs is there"}
		}, []string{"error signer-unknown signer example.com/workload: it cannot be told what it has loaded: no pod", "-info signer-loaded"}},
		{"a signer has no replicas", func(_ *testing.T, i *Installation) {
			e := i.Clusters[0].Evidence["example.com/workload"]
			e.Replicas, e.Searched = nil, "none of 3 pods"
			i.Clusters[0].Evidence["example.com/workload"] = e
		}, []string{"error signer-without-replicas signer example.com/workload: … none of 3 pods", "-info signer-loaded"}},
		{"a replica has not reported", func(_ *testing.T, i *Installation) {
			e := i.Clusters[0].Evidence["example.com/workload"]
			e.Replicas = append(e.Replicas, policy.Replica{Pod: "pcs-2", Problem: "it has no report"})
			i.Clusters[0].Evidence["example.com/workload"] = e
		}, []string{"error replica-unknown Pod pcs/pcs-2: … it has no report"}},
		{"a policy is broken", func(_ *testing.T, i *Installation) {
			o := &i.Clusters[0].Evidence["example.com/workload"].Live[0]
			o.Problem, o.Revision = "line 3", policy.Revision(nil)
		}, []string{"error policy-broken ConfigMap pcs/policy: is no policy that signer example.com/workload can use: line 3"}},
		{"a policy is not there", func(_ *testing.T, i *Installation) {
			e := i.Clusters[0].Evidence["example.com/workload"]
			e.Live = nil
			i.Clusters[0].Evidence["example.com/workload"] = e
		}, []string{"error policy-missing signer example.com/workload: there is no policy object: no ConfigMap policy in namespace pcs has key policy.yaml"}},
		{"evidence proves nothing", func(_ *testing.T, i *Installation) {
			e := i.Clusters[0].Evidence["example.com/workload"]
			e.Unproven = true
			i.Clusters[0].Evidence["example.com/workload"] = e
		}, []string{"info signer-unproven signer example.com/workload: "}},

		{"there is no watcher", func(_ *testing.T, i *Installation) {
			i.Deployments = i.Deployments[:1]
			i.Lease.Value = nil
		}, []string{"error watcher-not-leading Lease argocd/grantfirst-watch: is not there", "error watcher-missing namespace argocd: "}},
		{"the watcher runs elsewhere", func(_ *testing.T, i *Installation) { i.Deployments = i.Deployments[:1] }, []string{"info watcher-elsewhere "}},
		{"no watcher is ready", func(_ *testing.T, i *Installation) { i.Deployments[1].Status.ReadyReplicas = 0 }, []string{"error watcher-not-ready Deployment argocd/grantfirst-watch: none of 2"}},
		{"one watcher is not ready", func(_ *testing.T, i *Installation) { i.Deployments[1].Status.ReadyReplicas = 1 }, []string{"warning watcher-not-ready Deployment argocd/grantfirst-watch: 1 of 2"}},
		{"the watcher is switched off", func(_ *testing.T, i *Installation) { *i.Deployments[1].Spec.Replicas = 0 }, []string{"error watcher-not-ready Deployment argocd/grantfirst-watch: has 0 replicas"}},
		{"the watcher has died", func(_ *testing.T, i *Installation) { i.Now = now.Add(time.Minute) }, []string{"error watcher-not-leading Lease argocd/grantfirst-watch: grantfirst-watch-1 last said 1m3s ago"}},
		{"the watcher has ended", func(_ *testing.T, i *Installation) { *i.Lease.Value.Spec.HolderIdentity = "" }, []string{"error watcher-not-leading … no watcher leads"}},
		{"the time is not known", func(_ *testing.T, i *Installation) { i.Now = time.Time{} }, []string{"unknown watcher-not-leading "}},
		{"the watcher has another configuration", func(_ *testing.T, i *Installation) {
			volumeOf(&i.Deployments[1].Spec.Template.Spec, "grantfirst-config").ConfigMap.Name = "other"
		}, []string{`warning watcher-config Deployment argocd/grantfirst-watch: has its configuration from "other", and the plugin from ConfigMap grantfirst-config`}},
		{"the watcher is for another Argo CD", func(_ *testing.T, i *Installation) {
			i.Deployments[1].Spec.Template.Spec.Containers[0].Args = []string{"watch", "--namespace", "gitops"}
		}, []string{"error watcher-namespace … looks after Argo CD in namespace gitops"}},
		{"the watcher does not look after a namespace", func(t *testing.T, i *Installation) {
			i.Applications = append(i.Applications, application(t, "api", "metadata: {namespace: team}"))
			i.grantAll()
		}, []string{"error watcher-applications-in Deployment argocd/grantfirst-watch: does not look after namespace team: nothing releases team/api [args: [watch, --applications-in=argocd, --applications-in=team]"}},
		{"the watcher looks after all namespaces", func(t *testing.T, i *Installation) {
			i.Applications = append(i.Applications, application(t, "api", "metadata: {namespace: team}"))
			i.Deployments[1].Spec.Template.Spec.Containers[0].Args = []string{"watch", "--applications-in=*"}
			i.grantAll()
		}, nil},
		{"the watcher's selector leaves an Application out", func(_ *testing.T, i *Installation) {
			i.Deployments[1].Spec.Template.Spec.Containers[0].Args = []string{"watch", "--selector=shard=1"}
		}, []string{"error watcher-selector … leaves out Applications with the plugin, and nothing releases them: argocd/web"}},
		{"the watcher's selector is broken", func(_ *testing.T, i *Installation) {
			i.Deployments[1].Spec.Template.Spec.Containers[0].Args = []string{"watch", "--selector=a b"}
		}, []string{`error watcher-selector … --selector "a b": `}},

		{"an Application of another Argo CD is not looked at", func(t *testing.T, i *Installation) {
			i.Applications = append(i.Applications, application(t, "web", "{metadata: {namespace: theirs}, spec: {destination: {server: \"https://eu\"}}}"))
		}, nil},
		{"this Argo CD has namespaces by patterns", func(t *testing.T, i *Installation) {
			i.params()["application.namespaces"] = "/^sq[a-z]+$/,tea?"
			for _, namespace := range []string{"team", "squad", "squad-1"} {
				i.Applications = append(i.Applications, application(t, "web", "{metadata: {namespace: "+namespace+"}, spec: {destination: {server: \"https://eu\"}}}"))
			}
			i.Deployments[1].Spec.Template.Spec.Containers[0].Args = []string{"watch", "--applications-in=*"}
			i.grantAll()
		}, []string{"error cluster-unknown Applications squad/web, team/web: "}},
		{"all Applications count where it is not known whose they are", func(t *testing.T, i *Installation) {
			i.StatefulSets = nil
			i.Applications = append(i.Applications, application(t, "web", "{metadata: {namespace: theirs}, spec: {destination: {server: \"https://eu\"}}}"))
			i.Deployments[1].Spec.Template.Spec.Containers[0].Args = []string{"watch", "--applications-in=*"}
			i.grantAll()
		}, []string{"error cluster-unknown Applications theirs/web: "}},
		{"many Applications are not all named", func(t *testing.T, i *Installation) {
			for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
				i.Applications = append(i.Applications, application(t, name, "spec: {syncPolicy: {automated: {}}}"))
			}
		}, []string{"info prune-off Applications argocd/a, argocd/b, argocd/c, argocd/d, argocd/e and 2 more: 7 are synced without prune"}},
		{"no Application uses the plugin", func(_ *testing.T, i *Installation) { i.Applications[0].Spec.Source.Plugin = nil }, []string{"info no-applications "}},
		{"an Application is hydrated", func(t *testing.T, i *Installation) {
			i.Applications[0] = application(t, "web", "spec: {source: {path: a}, sourceHydrator: {drySource: {path: a, plugin: {name: grantfirst}}}}")
		}, []string{"warning hydrated Applications argocd/web: "}},
		{"a source does not use the plugin", func(t *testing.T, i *Installation) {
			i.Applications[0] = application(t, "web", "spec: {sources: [{path: a, plugin: {name: grantfirst}}, {repoURL: r, path: b}, {repoURL: values, ref: v}]}")
		}, []string{"warning source-without-plugin Application argocd/web: … not in 1 (r/b): "}},
		{"an Application's cluster is not known", func(t *testing.T, i *Installation) {
			i.Applications = append(i.Applications, application(t, "api", "spec: {destination: {server: \"https://eu\"}}"))
		}, []string{"error cluster-unknown Applications argocd/api: "}},
		{"an Application is not pruned", func(t *testing.T, i *Installation) {
			i.Applications[0] = application(t, "web", "spec: {syncPolicy: {automated: {}}}")
		}, []string{"info prune-off Applications argocd/web: "}},
		{"an Application is synced by hand", func(t *testing.T, i *Installation) {
			i.Applications[0] = application(t, "web", "spec: {syncPolicy: {automated: {enabled: false}}}")
		}, []string{"info manual-sync Applications argocd/web: "}},
		{"the children of a RollingSync are not synced by hand", func(t *testing.T, i *Installation) {
			i.Applications[0] = application(t, "web", "{metadata: {ownerReferences: [{kind: ApplicationSet, name: all}]}, spec: {syncPolicy: {}}}")
			i.ApplicationSets = []ApplicationSet{*parse[ApplicationSet](t, "{metadata: {name: all, namespace: argocd}, spec: {strategy: {type: RollingSync}}}")}
		}, nil},
		{"an operation hangs on a marker", func(t *testing.T, i *Installation) {
			i.Applications[0] = application(t, "web", "status: {operationState: {phase: Running, message: waiting for healthy state of grantfirst.dev/Hold/grantfirst-0123456789-none and 1 more, syncResult: {resources: [{name: grantfirst-0123456789-none, status: Synced, hookPhase: Running}]}}}")
		}, []string{"error operation-hangs Application argocd/web: its operation waits for marker grantfirst-0123456789-none … [kubectl patch application web -n argocd --type merge"}},
		{"an operation is to apply or to prune a marker next", func(t *testing.T, i *Installation) {
			i.Applications[0] = application(t, "web", "status: {operationState: {phase: Running, message: waiting for healthy state of grantfirst.dev/Hold/grantfirst-0123456789-none and 1 more, syncResult: {resources: [{name: grantfirst-0123456789-none, status: Pruned, hookPhase: Running}]}}}")
		}, nil},
		{"an operation waits for something else", func(t *testing.T, i *Installation) {
			i.Applications[0] = application(t, "web", "status: {operationState: {phase: Running, message: waiting for healthy state of apps/Deployment/web}}")
		}, nil},

		{"git is excluded by name", func(_ *testing.T, i *Installation) { i.params()["reposerver.plugin.tar.exclusions"] = "*.md; .git" }, []string{`warning git-excluded ConfigMap argocd/argocd-cmd-params-cm: reposerver.plugin.tar.exclusions: ".git" keeps .git of`}},
		{"git is excluded in part", func(_ *testing.T, i *Installation) {
			i.params()["reposerver.plugin.tar.exclusions"] = ".git/objects/*"
		}, []string{`warning git-excluded … ".git/objects/*" keeps .git/objects/pack`}},
		{"a pattern for folders below does not exclude git", func(_ *testing.T, i *Installation) {
			i.params()["reposerver.plugin.tar.exclusions"] = "**/.git;**/.git/*;.github"
		}, nil},
		{"git is excluded by a flag", func(_ *testing.T, i *Installation) {
			i.params()["reposerver.plugin.tar.exclusions"] = "x"
			i.pod().Containers[1].Args = append(i.pod().Containers[1].Args, "--plugin-tar-exclude", "x", "--plugin-tar-exclude=.g*")
		}, []string{`warning git-excluded Deployment argocd/argocd-repo-server: --plugin-tar-exclude: ".g*" keeps .git`}},
		{"an exclusion is broken", func(_ *testing.T, i *Installation) { i.params()["reposerver.plugin.tar.exclusions"] = "[" }, []string{`error tar-exclusions-broken … "[" is no pattern`}},
		{"a setting comes from elsewhere", func(_ *testing.T, i *Installation) {
			i.pod().Containers[1].Env[0].ValueFrom.ConfigMapKeyRef.Name = "ours"
		}, []string{"unknown setting-unknown Deployment argocd/argocd-repo-server: ARGOCD_REPO_SERVER_PLUGIN_TAR_EXCLUSIONS comes from ConfigMap ours"}},
		{"only some paths are sent", func(t *testing.T, i *Installation) {
			i.params()["reposerver.plugin.use.manifest.generate.paths"] = "True"
			i.Applications[0] = application(t, "web", "metadata: {annotations: {argocd.argoproj.io/manifest-generate-paths: .;/app/base}}")
		}, []string{"warning git-excluded ConfigMap argocd/argocd-cmd-params-cm: reposerver.plugin.use.manifest.generate.paths: only the paths"}},
		{"paths that have nothing in common send all", func(t *testing.T, i *Installation) {
			i.params()["reposerver.plugin.use.manifest.generate.paths"] = "true"
			i.Applications[0] = application(t, "web", "metadata: {annotations: {argocd.argoproj.io/manifest-generate-paths: .;../lib}}")
		}, nil},
		{"an Application without the annotation gets all", func(_ *testing.T, i *Installation) {
			i.params()["reposerver.plugin.use.manifest.generate.paths"] = "true"
		}, nil},

		{"the sidecar's time is no duration", func(_ *testing.T, i *Installation) {
			i.pod().Containers[0].Env = []corev1.EnvVar{{Name: execVariable, Value: "90"}}
		}, []string{`warning exec-timeout … ARGOCD_EXEC_TIMEOUT: "90" is no duration`}},
		{"the sidecar's time is too short to read", func(_ *testing.T, i *Installation) {
			i.pod().Containers[0].Env = []corev1.EnvVar{{Name: execVariable, Value: "12s"}}
		}, []string{"warning exec-timeout … 12s leaves the plugin 9s to read clusters, less than its readTimeout of 10s"}},
		{"the controller gives up before the plugin", func(_ *testing.T, i *Installation) {
			i.params()["controller.repo.server.timeout.seconds"] = "14"
		}, []string{"warning repo-server-timeout ConfigMap argocd/argocd-cmd-params-cm: controller.repo.server.timeout.seconds: argocd-application-controller gives up after 14s, and the plugin reads clusters for up to 10s"}},
		{"0 is no limit, and 15 s are enough", func(_ *testing.T, i *Installation) { i.params()["controller.repo.server.timeout.seconds"] = "0" }, nil},
		{"15 s are enough", func(_ *testing.T, i *Installation) { i.params()["controller.repo.server.timeout.seconds"] = "15" }, nil},

		{"a marker was left", func(_ *testing.T, i *Installation) {
			i.Clusters[0].Holds = []hold.Hold{{Metadata: hold.Metadata{Name: "grantfirst-1", Namespace: "shop"}, Spec: hold.HoldSpec{Application: "gone"}}, {Spec: hold.HoldSpec{Application: "web"}}}
		}, []string{`warning hold-left Hold shop/grantfirst-1: its Application "gone" is gone [unless another Argo CD deploys there: kubectl delete hold grantfirst-1 -n shop]`}},
		{"a marker's Application may be where nobody may look", func(_ *testing.T, i *Installation) {
			i.Clusters[0].Holds = []hold.Hold{{Spec: hold.HoldSpec{Application: "team_gone"}}}
			i.OnlyOwn = true
		}, nil},
		{"an override is in force", func(_ *testing.T, i *Installation) {
			i.override(`[{until: "2026-11-29T11:00:00Z", reason: INC-1}]`)
		}, []string{"warning override-in-force ConfigMap argocd/grantfirst-overrides key web: lets what would be held go until 2026-11-29T11:00:00Z: INC-1 [grantfirst override web --remove]"}},
		{"an override has run out", func(_ *testing.T, i *Installation) { i.override(`[{until: "2026-11-29T10:00:00Z", reason: INC-1}]`) }, []string{"info override-expired "}},
		{"an override is for nobody", func(_ *testing.T, i *Installation) {
			i.override("")
			data := i.ConfigMaps[OverridesName].Value.Data
			data["team_api"] = `[{until: "2026-11-29T09:00:00Z", reason: x}]`
			delete(data, "web")
		}, []string{"warning override-for-nobody ConfigMap argocd/grantfirst-overrides key team_api: ", "info override-expired … [grantfirst override team/api --remove]"}},
		{"an override is no list", func(_ *testing.T, i *Installation) { i.override("until: x") }, []string{"error override-not-understood … nothing of it counts"}},
		{"an override has a second document", func(_ *testing.T, i *Installation) { i.override("[]\n---\n[]") }, []string{"error override-not-understood … nothing of it counts: "}},
		{"an override has a field that nobody knows", func(_ *testing.T, i *Installation) {
			i.override(`[{until: "2026-11-29T11:00:00Z", reason: x, signer: y}]`)
		}, []string{"error override-not-understood … nothing of it counts"}},
		{"an override has no end", func(_ *testing.T, i *Installation) { i.override(`[{until: tomorrow, reason: x}]`) }, []string{"error override-not-understood … entry 1 does not count: until: "}},
		{"an override has no reason", func(_ *testing.T, i *Installation) { i.override(`[{until: "2026-11-29T11:00:00Z", reason: " "}]`) }, []string{"error override-not-understood … entry 1 does not count: it has no reason"}},
		{"an override is there and the time is not known", func(_ *testing.T, i *Installation) {
			i.override(`[{until: "2026-11-29T11:00:00Z", reason: x}]`)
			i.Now = time.Time{}
		}, []string{"unknown watcher-not-leading ", "unknown override-in-force "}},
		{"something could not be read", func(_ *testing.T, i *Installation) {
			i.Unread = []Unread{{"Pods in namespace argocd", "forbidden", "kubectl auth can-i list pods"}}
			i.Pods = nil
		}, []string{"unknown unread Pods in namespace argocd: forbidden [kubectl auth can-i list pods]"}},
		{"nothing could be read", func(_ *testing.T, i *Installation) {
			*i = Installation{Namespace: "argocd", Unread: []Unread{{"all", "forbidden", ""}}}
		}, []string{"unknown unread all: forbidden", "-info signer-loaded"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			i := healthy(t)
			test.wrong(t, i)
			got := said(Examine(i))
			want := append([]string{"info signer-loaded "}, test.want...)
			if at := slices.Index(want, "-info signer-loaded"); at >= 0 {
				want = append(want[1:at], want[at+1:]...)
			}
			unexpected := slices.Clone(got)
			for _, w := range want {
				at := slices.IndexFunc(unexpected, func(line string) bool {
					for n, part := range strings.Split(w, "…") {
						i := strings.Index(line, strings.TrimSpace(part))
						if i < 0 || n == 0 && i > 0 {
							return false
						}
						line = line[i+len(strings.TrimSpace(part)):]
					}
					return true
				})
				if at < 0 {
					t.Errorf("it does not say: %s", w)
					continue
				}
				unexpected = slices.Delete(unexpected, at, at+1)
			}
			for _, line := range unexpected {
				t.Errorf("it says: %s", line)
			}
			for _, line := range got {
				if strings.Contains(line, "%!") {
					t.Error(line)
				}
			}
		})
	}
}

func TestWhatIsWrongComesFirst(t *testing.T) {
	i := healthy(t)
	i.override(`[{until: "2026-11-29T11:00:00Z", reason: INC-1}]`)
	i.Clusters[0].Kind.Value = nil
	i.Unread = []Unread{{"x", "y", ""}}
	findings := Examine(i)
	var got []Severity
	for _, f := range findings {
		got = append(got, f.Severity)
	}
	if !slices.Equal(got, []Severity{Error, Warning, Unknown, Info}) || Worst(findings) != Error {
		t.Errorf("%v, worst %s", got, Worst(findings))
	}
	for severity, findings := range map[Severity][]Finding{Warning: findings[1:], Unknown: findings[2:], "": findings[3:]} {
		if got := Worst(findings); got != severity {
			t.Errorf("worst of %v is %q", said(findings), got)
		}
	}
}

func TestTheHealthCheckIsTheShippedOne(t *testing.T) {
	cm := parse[corev1.ConfigMap](t, shipped(t, "argocd-cm.yaml")[0])
	if got := slices.Collect(maps.Keys(cm.Data)); !slices.Equal(got, []string{healthKey}) || cm.Data[healthKey] != healthCheck {
		t.Errorf("argocd-cm.yaml says %q", cm.Data)
	}
}

// What kubectl apply with the shipped files would give is what is asked for, no more and no less.
func TestTheRightsAskedForAreThoseOfTheShippedFiles(t *testing.T) {
	type grant struct{ account, namespace, verb, group, resource, name string }
	want := map[grant]bool{}
	for file, namespace := range map[string]string{
		"rbac.yaml": "argocd", "signer-rbac.yaml": "pcs", "application-rbac.yaml": "team",
		"watch-rights.yaml": "argocd", "watch-signer-rights.yaml": "pcs", "watch-application-rights.yaml": "team",
	} {
		account := "argocd-repo-server"
		if strings.HasPrefix(file, "watch") {
			account = "grantfirst-watch"
		}
		for _, doc := range shipped(t, file) {
			role := parse[struct {
				Kind  string
				Rules []struct {
					APIGroups, Resources, Verbs, ResourceNames []string
				}
			}](t, doc)
			if role.Kind == "ClusterRole" {
				namespace = ""
			}
			for _, rule := range role.Rules {
				names := rule.ResourceNames
				if names == nil {
					names = []string{""}
				}
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						for _, verb := range rule.Verbs {
							for _, name := range names {
								want[grant{account, namespace, verb, group, resource, name}] = true
							}
						}
					}
				}
			}
		}
	}
	i := healthy(t)
	i.Applications = append(i.Applications, application(t, "api", "metadata: {namespace: team}"))
	i.Deployments[1].Spec.Template.Spec.Containers[0].Args = []string{"watch", "--applications-in=argocd", "--applications-in=team"}
	for _, r := range i.rulings() {
		g := grant{r.Account, r.Namespace, r.Verb, r.Group, r.Resource, r.Name}
		if !r.excess && !want[g] {
			t.Errorf("no shipped file gives %+v", g)
		}
		if r.excess && want[g] {
			t.Errorf("a shipped file gives %+v", g)
		}
		delete(want, g)
	}
	for g := range want {
		t.Errorf("nobody asks for %+v", g)
	}
}
