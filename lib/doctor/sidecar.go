package doctor

import (
	"cmp"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/grantfirst/grantfirst/lib/config"
)

// Where Argo CD's parts are found by, and where a sidecar has to have what it shares with repo-server (manifests/base/repo-server, the
// same labels in the Helm chart; docs/operator-manual/config-management-plugins.md).
const (
	labelName         = "app.kubernetes.io/name"
	repoServerName    = "argocd-repo-server"
	cmpServer         = "argocd-cmp-server"
	entrypoint        = "/var/run/argocd/" + cmpServer
	varFiles          = "/var/run/argocd"
	pluginSockets     = "/home/argocd/cmp-server/plugins"
	argoCDUser        = 999
	serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// Where the plugin finds its configuration (package plugin has the same).
const (
	configVariable = "GRANTFIRST_CONFIG"
	configFile     = "/etc/grantfirst/config.yaml"
	// ConfigMapName is the ConfigMap with the configuration where no sidecar says otherwise.
	ConfigMapName = "grantfirst-config"
)

const patchRepoServer = "kubectl patch deployment %s -n %s --patch-file repo-server.yaml   # of examples/argocd"

func (i *Installation) repoServer() *appsv1.Deployment {
	at := slices.IndexFunc(i.Deployments, func(d appsv1.Deployment) bool { return d.Labels[labelName] == repoServerName })
	if at < 0 {
		return nil
	}
	return &i.Deployments[at]
}

// containers of a pod that go on running.
func containers(p *corev1.PodSpec) []corev1.Container {
	all := slices.Clone(p.Containers)
	for _, c := range p.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

func runs(c *corev1.Container, program string) bool {
	return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(word string) bool { return path.Base(word) == program })
}

// sidecar is the plugin's container: the one that is called so, else the one that has grantfirst's image or configuration.
func sidecar(p *corev1.PodSpec) *corev1.Container {
	all := containers(p)
	for _, is := range []func(corev1.Container) bool{
		func(c corev1.Container) bool { return c.Name == Plugin },
		func(c corev1.Container) bool { return strings.Contains(path.Base(c.Image), Plugin) },
		func(c corev1.Container) bool { return mountOf(&c, path.Dir(configFile)) != nil },
	} {
		if at := slices.IndexFunc(all, is); at >= 0 {
			return &all[at]
		}
	}
	return nil
}

func mountOf(c *corev1.Container, dir string) *corev1.VolumeMount {
	for i := range c.VolumeMounts {
		if path.Clean(c.VolumeMounts[i].MountPath) == dir {
			return &c.VolumeMounts[i]
		}
	}
	return nil
}

func volumeOf(p *corev1.PodSpec, name string) *corev1.Volume {
	for i := range p.Volumes {
		if p.Volumes[i].Name == name {
			return &p.Volumes[i]
		}
	}
	return nil
}

func variable(c *corev1.Container, name string) *corev1.EnvVar {
	// Of several the last counts.
	for i := range slices.Backward(c.Env) {
		if c.Env[i].Name == name {
			return &c.Env[i]
		}
	}
	return nil
}

func nameOf(d *appsv1.Deployment) string { return "Deployment " + d.Namespace + "/" + d.Name }

func (e *examination) sidecarChecks() {
	if e.Deployments == nil {
		return
	}
	d := e.repoServer()
	if d == nil {
		e.find(Error, "repo-server-missing", "namespace "+e.Namespace, "name Argo CD's namespace with --namespace", "has no Deployment with label %s=%s", labelName, repoServerName)
		return
	}
	fix := fmt.Sprintf(patchRepoServer, d.Name, d.Namespace)
	pod := &d.Spec.Template.Spec
	c := sidecar(pod)
	if c == nil {
		e.find(Error, "sidecar-missing", nameOf(d), fix, "has no container %s: Applications with plugin %s fail", Plugin, Plugin)
		return
	}
	wrong := func(id, format string, args ...any) {
		e.find(Error, id, nameOf(d)+" container "+c.Name, fix, format, args...)
	}
	if len(c.Command) == 0 || path.Base(c.Command[0]) != cmpServer {
		wrong("sidecar-entrypoint", "command is %q, not %s: Argo CD cannot ask it", c.Command, entrypoint)
	}
	e.sharedVolumes(pod, c, wrong)
	e.temporaryFolder(pod, c, wrong)
	switch user := runAsUser(pod, c); {
	case user == nil:
		e.find(Warning, "sidecar-user", nameOf(d)+" container "+c.Name, fix, "runAsUser is not set: it has to be %d, or repo-server may not use the plugin's socket", argoCDUser)
	case *user != argoCDUser:
		wrong("sidecar-user", "runAsUser is %d, not %d: repo-server may not use the plugin's socket", *user, argoCDUser)
	}
	if variable(c, "KUBECONFIG") == nil && !hasToken(pod, c) {
		wrong("sidecar-token", "no ServiceAccount token and ca.crt at %s, and the pod mounts none by itself: it cannot read the cluster, and holds all that is new", serviceAccountDir)
	}
	e.podChecks(d, c)
}

// sharedVolumes: cmp-server's program comes by one volume, and its socket goes by another, both repo-server's.
func (e *examination) sharedVolumes(pod *corev1.PodSpec, c *corev1.Container, wrong func(id, format string, args ...any)) {
	if mountOf(c, varFiles) == nil {
		wrong("sidecar-volume", "nothing is mounted at %s, where %s comes from: mount volume var-files", varFiles, cmpServer)
	}
	own := mountOf(c, pluginSockets)
	if own == nil {
		wrong("sidecar-volume", "nothing is mounted at %s, where repo-server looks for the plugin's socket: mount volume plugins", pluginSockets)
		return
	}
	for _, other := range pod.Containers {
		if m := mountOf(&other, pluginSockets); runs(&other, repoServerName) && m != nil && m.Name != own.Name {
			wrong("sidecar-volume", "has volume %s at %s, and repo-server %s: mount the same", own.Name, pluginSockets, m.Name)
		}
	}
}

// temporaryFolder: cmp-server empties its folder in /tmp when it starts (cmpserver/server.go), and the plugin keeps there what it last
// read of Applications.
func (e *examination) temporaryFolder(pod *corev1.PodSpec, c *corev1.Container, wrong func(id, format string, args ...any)) {
	tmp := mountOf(c, "/tmp")
	if tmp == nil {
		if c.SecurityContext != nil && c.SecurityContext.ReadOnlyRootFilesystem != nil && *c.SecurityContext.ReadOnlyRootFilesystem {
			wrong("sidecar-tmp", "nothing is mounted at /tmp and the root filesystem is read-only: repositories cannot be unpacked")
		}
		return
	}
	if v := volumeOf(pod, tmp.Name); v == nil || v.EmptyDir == nil {
		wrong("sidecar-tmp", "volume %s at /tmp is no emptyDir: what the plugin remembers must not outlive or leave its pod", tmp.Name)
	}
	for _, other := range slices.Concat(pod.Containers, pod.InitContainers) {
		if other.Name != c.Name && slices.ContainsFunc(other.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == tmp.Name }) {
			wrong("sidecar-tmp", "volume %s at /tmp is also that of container %s, which could forge or lose what the plugin remembers: give it its own", tmp.Name, other.Name)
			return
		}
	}
}

func runAsUser(pod *corev1.PodSpec, c *corev1.Container) *int64 {
	if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
		return c.SecurityContext.RunAsUser
	}
	if pod.SecurityContext != nil {
		return pod.SecurityContext.RunAsUser
	}
	return nil
}

// hasToken: what client-go needs in a pod (rest.InClusterConfig) is there.
func hasToken(pod *corev1.PodSpec, c *corev1.Container) bool {
	m := mountOf(c, serviceAccountDir)
	if m == nil {
		return pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken
	}
	v := volumeOf(pod, m.Name)
	if v == nil || v.Projected == nil {
		return v != nil && v.Secret != nil
	}
	token, ca := false, false
	for _, s := range v.Projected.Sources {
		token = token || s.ServiceAccountToken != nil && s.ServiceAccountToken.Path == "token"
		ca = ca || s.ClusterTrustBundle != nil && s.ClusterTrustBundle.Path == "ca.crt" ||
			s.ConfigMap != nil && (len(s.ConfigMap.Items) == 0 || slices.ContainsFunc(s.ConfigMap.Items, func(k corev1.KeyToPath) bool { return k.Path == "ca.crt" }))
	}
	return token && ca
}

// podChecks: what the Deployment says is what runs.
func (e *examination) podChecks(d *appsv1.Deployment, c *corev1.Container) {
	if e.Pods == nil {
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		selector = labels.Nothing()
	}
	var old []string
	found := false
	for i := range e.Pods {
		p := &e.Pods[i]
		if !selector.Matches(labels.Set(p.Labels)) || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		found = true
		if !slices.ContainsFunc(containers(&p.Spec), func(of corev1.Container) bool { return of.Name == c.Name }) {
			old = append(old, p.Name)
			continue
		}
		if why := notReady(p, c.Name); why != "" {
			e.find(Error, "pod-not-ready", "Pod "+p.Namespace+"/"+p.Name, fmt.Sprintf("kubectl describe pod %s -n %s; kubectl logs %[1]s -n %[2]s -c %s", p.Name, p.Namespace, c.Name), "%s", why)
		}
	}
	if old != nil {
		e.find(Warning, "pod-without-sidecar", "Pods "+some(old), fmt.Sprintf("kubectl rollout status deployment/%s -n %s", d.Name, d.Namespace), "have no container %s yet: they were made before it was added", c.Name)
	}
	if !found {
		e.find(Error, "pod-not-ready", nameOf(d), fmt.Sprintf("kubectl describe deployment %s -n %s", d.Name, d.Namespace), "has no pods")
	}
}

// notReady says why the container, or else its pod, is not.
func notReady(p *corev1.Pod, container string) string {
	for _, s := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		if s.Name != container || s.Ready {
			continue
		}
		switch {
		case s.State.Waiting != nil:
			return fmt.Sprintf("container %s does not run: %s", container, strings.TrimSpace(s.State.Waiting.Reason+" "+s.State.Waiting.Message))
		case s.State.Terminated != nil:
			return fmt.Sprintf("container %s has ended with exit code %d: %s", container, s.State.Terminated.ExitCode, strings.TrimSpace(s.State.Terminated.Reason+" "+s.State.Terminated.Message))
		}
		return "container " + container + " is not ready"
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return strings.TrimSpace("is not ready: " + string(p.Status.Phase) + " " + p.Status.Reason)
}

// configSource is the ConfigMap and the key in which a pod finds the configuration. The volume is nil where none is mounted there.
func configSource(p *corev1.PodSpec, c *corev1.Container) (volume *corev1.Volume, name, key string) {
	file := configFile
	if v := variable(c, configVariable); v != nil && v.Value != "" {
		file = path.Clean(v.Value)
	}
	for _, m := range c.VolumeMounts {
		dir := path.Clean(m.MountPath)
		within, ok := strings.CutPrefix(file, dir+"/")
		switch {
		case file == dir && m.SubPath != "":
			within = m.SubPath
		case !ok:
			continue
		default:
			within = path.Join(m.SubPath, within)
		}
		if volume = volumeOf(p, m.Name); volume == nil {
			continue
		}
		if volume.ConfigMap == nil {
			return volume, "", within
		}
		for _, item := range volume.ConfigMap.Items {
			if item.Path == within {
				within = item.Key
				break
			}
		}
		return volume, volume.ConfigMap.Name, within
	}
	return nil, "", path.Base(file)
}

// configIn gives the names of the ConfigMap and of the key with the sidecar's configuration, as far as it is in one.
func (i *Installation) configIn() (name, key string) {
	if d := i.repoServer(); d != nil {
		if c := sidecar(&d.Spec.Template.Spec); c != nil {
			if v, name, key := configSource(&d.Spec.Template.Spec, c); v != nil {
				return name, key
			}
		}
	}
	return ConfigMapName, path.Base(configFile)
}

// readConfig takes the configuration out of its ConfigMap, unless one was given.
func (i *Installation) readConfig() {
	if i.Config = i.Given; i.Config != nil {
		return
	}
	name, key := i.configIn()
	if cm := i.ConfigMaps[name].Value; cm != nil {
		// What is wrong with it is said by configChecks.
		i.Config, _ = config.Parse([]byte(cm.Data[key]))
	}
}

func (e *examination) configChecks() {
	if e.Deployments == nil {
		return
	}
	if d := e.repoServer(); d != nil {
		if c := sidecar(&d.Spec.Template.Spec); c != nil {
			switch v, name, _ := configSource(&d.Spec.Template.Spec, c); {
			case v == nil:
				e.find(Error, "sidecar-config", nameOf(d)+" container "+c.Name, fmt.Sprintf(patchRepoServer, d.Name, d.Namespace), "no configuration is mounted at %s: every render fails", path.Dir(configFile))
			case name == "":
				e.find(Unknown, "sidecar-config", nameOf(d)+" container "+c.Name, "name a copy of it with --config", "its configuration is in volume %s, which is no ConfigMap", v.Name)
			}
		}
	}
	e.configMapChecks()
	if e.Config == nil {
		return
	}
	if e.Config.ArgoCDNamespace != "" && e.Config.ArgoCDNamespace != e.Namespace {
		e.find(Error, "config-namespace", "configuration", "argocdNamespace: "+e.Namespace, "says argocdNamespace: %s, and Argo CD is looked at in %s", e.Config.ArgoCDNamespace, e.Namespace)
	}
	if len(e.Config.Signers) == 0 {
		e.find(Warning, "no-signers", "configuration", "signers: […] (docs/configuration.md)", "names no signer: unknownSigner: %s decides about every certificate", e.Config.UnknownSigner)
	}
	if e.Config.Mode == config.Observe {
		e.find(Info, "observed-only", "configuration", "take mode: observe out when grantfirst explain says what you expect", "mode is observe: nothing is held")
	}
}

func (e *examination) configMapChecks() {
	name, key := e.configIn()
	cm, read := e.configMap(name)
	object := "ConfigMap " + e.Namespace + "/" + name
	text, ok := "", false
	if cm != nil {
		text, ok = cm.Data[key]
	}
	switch {
	case name == "" || !read:
		return
	case cm == nil:
		e.find(Error, "config-missing", object, fmt.Sprintf("kubectl create configmap %s -n %s --from-file=%s", name, e.Namespace, key), "is not there: the sidecar cannot start")
		return
	case !ok:
		e.find(Error, "config-missing", object, fmt.Sprintf("kubectl create configmap %s -n %s --from-file=%s --dry-run=client -o yaml | kubectl apply -f -", name, e.Namespace, key), "has no key %s, but %s", key, cmp.Or(some(sortedKeys(cm.Data)), "nothing at all"))
		return
	}
	live, err := config.Parse([]byte(text))
	if err != nil {
		e.find(Error, "config-invalid", object+" key "+key, "kubectl edit configmap "+name+" -n "+e.Namespace, "every render fails: %v", err)
		return
	}
	if e.Given != nil && !reflect.DeepEqual(e.Given, live) {
		e.find(Warning, "config-differs", object, fmt.Sprintf("kubectl create configmap %s -n %s --from-file=%s=FILE --dry-run=client -o yaml | kubectl apply -f -", name, e.Namespace, key),
			"says something else than the configuration given with --config, which all else here is judged by")
	}
}
