package doctor

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gobwas/glob"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/hold"
)

// Argo CD's ConfigMaps, and the keys of argocd-cm that are looked at (util/settings/settings.go).
const (
	argocdCM     = "argocd-cm"
	paramsCM     = "argocd-cmd-params-cm"
	healthKey    = "resource.customizations.health." + hold.Group + "_" + config.MarkerHold
	oldHealthKey = "resource.customizations"
	exclusions   = "resource.exclusions"
	inclusions   = "resource.inclusions"
	globals      = "globalProjects"
)

// healthCheck is the text of examples/argocd/argocd-cm.yaml (a test compares them).
const healthCheck = `local message = "waits for a grant"
if obj.spec ~= nil and obj.spec.waitingFor ~= nil and obj.spec.waitingFor ~= "" then
  message = obj.spec.waitingFor
end
return {status = "Suspended", message = message}
`

// Kind is what is looked at of the CustomResourceDefinition of Hold.
type Kind struct {
	Spec struct {
		Scope    string `json:"scope"`
		Versions []struct {
			Name   string `json:"name"`
			Served bool   `json:"served"`
		} `json:"versions"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// Project is what is looked at of an AppProject.
type Project struct {
	Metadata Metadata `json:"metadata"`
	Spec     struct {
		NamespaceResourceWhitelist []metav1.GroupKind `json:"namespaceResourceWhitelist"`
		NamespaceResourceBlacklist []metav1.GroupKind `json:"namespaceResourceBlacklist"`
	} `json:"spec"`
}

func sortedKeys[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }

// markerOf is the kind of the marker that an Application would have.
func (e *examination) markerOf(a *Application) schema.GroupKind {
	if _, marker := e.Config.For(a.Spec.Project, e.instance(a)); marker == config.MarkerDeployment {
		return schema.GroupKind{Group: "apps", Kind: config.MarkerDeployment}
	}
	return schema.GroupKind{Group: hold.Group, Kind: config.MarkerHold}
}

// ofCluster gives the Applications with the plugin that deploy to a cluster.
func (e *examination) ofCluster(c *Cluster) []*Application {
	var all []*Application
	for _, a := range e.protected() {
		if of, err := e.Config.Cluster(e.placement(a)); err == nil && of.InCluster == c.Of.InCluster && of.Kubeconfig == c.Of.Kubeconfig && of.Context == c.Of.Context {
			all = append(all, a)
		}
	}
	return all
}

func (e *examination) markerChecks() {
	if e.Config == nil {
		return
	}
	anywhere := false
	for n := range e.Clusters {
		c := &e.Clusters[n]
		apps := e.ofCluster(c)
		used := len(apps) == 0 && e.Config.Hold.Marker == config.MarkerHold ||
			slices.ContainsFunc(apps, func(a *Application) bool { return e.markerOf(a).Kind == config.MarkerHold })
		if used {
			anywhere = true
			e.kindCheck(c)
		}
	}
	if anywhere {
		e.healthCheck()
	}
	e.exclusionChecks()
}

func (e *examination) kindCheck(c *Cluster) {
	const name = "holds." + hold.Group
	object, fix := c.object("CustomResourceDefinition "+name), "kubectl apply -f hold-crd.yaml"+c.flags()+"   # of examples/argocd"
	k := c.Kind.Value
	if !c.Kind.Read {
		return
	}
	if k == nil {
		e.find(Error, "hold-kind-missing", object, fix, "is not there: a sync with a hold fails, grants included")
		return
	}
	served := false
	for _, v := range k.Spec.Versions {
		served = served || v.Name == "v1alpha1" && v.Served
	}
	if !served {
		e.find(Error, "hold-kind-broken", object, fix, "does not serve v1alpha1")
	}
	if k.Spec.Scope != "Namespaced" {
		e.find(Error, "hold-kind-broken", object, fix, "its scope is %s, not Namespaced", k.Spec.Scope)
	}
	at := slices.IndexFunc(k.Status.Conditions, func(c metav1.Condition) bool { return c.Type == "Established" })
	if at < 0 || k.Status.Conditions[at].Status != metav1.ConditionTrue {
		e.find(Error, "hold-kind-broken", object, fix, "is not Established: the API server does not serve it (yet)")
	}
}

// healthCheck: without it Argo CD gives a Hold no health, and a RollingSync goes on to its next step (util/lua/lua.go GetHealthScript).
func (e *examination) healthCheck() {
	cm, read := e.configMap(argocdCM)
	if !read {
		return
	}
	object := "ConfigMap " + e.Namespace + "/" + argocdCM
	fix := fmt.Sprintf("kubectl patch configmap %s -n %s --patch-file argocd-cm.yaml   # of examples/argocd", argocdCM, e.Namespace)
	if cm == nil {
		e.find(Error, "hold-health-missing", object, fix, "is not there")
		return
	}
	text, ok := cm.Data[healthKey]
	if !ok || text == "" {
		// The older form has all kinds in one key.
		var all map[string]struct {
			HealthLua string `json:"health.lua"`
		}
		if yaml.Unmarshal([]byte(cm.Data[oldHealthKey]), &all) == nil {
			text = all[hold.Group+"/"+config.MarkerHold].HealthLua
		}
	}
	switch {
	case text == "":
		e.find(Error, "hold-health-missing", object, fix, "has no health check for Hold (key %s): an Application with a hold is Healthy, and a RollingSync goes on", healthKey)
	case lines(text) != lines(healthCheck):
		e.find(Warning, "hold-health-differs", object, fix, "the health check for Hold is not the shipped one: a hold must be Suspended, and its message say what it waits for")
	}
}

// lines leaves out what makes no difference.
func lines(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			all = append(all, line)
		}
	}
	return strings.Join(all, "\n")
}

// filtered is one entry of resource.exclusions and resource.inclusions (util/settings/filtered_resource.go).
type filtered struct {
	APIGroups []string `json:"apiGroups"`
	Kinds     []string `json:"kinds"`
	Clusters  []string `json:"clusters"`
}

func globs(patterns []string, text string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		g, err := glob.Compile(pattern)
		return err == nil && g.Match(text)
	})
}

func (f *filtered) matches(gk schema.GroupKind, cluster string) bool {
	kind := len(f.Kinds) == 0 || slices.Contains(f.Kinds, "*") || slices.Contains(f.Kinds, gk.Kind)
	return kind && globs(f.APIGroups, gk.Group) && globs(f.Clusters, cluster)
}

// hides: Argo CD neither applies nor sees such objects (util/settings/resources_filter.go IsExcludedResource). key is the one that is why.
func hides(excluded, included []filtered, gk schema.GroupKind, cluster string) (key string) {
	fits := func(f filtered) bool { return f.matches(gk, cluster) }
	switch {
	case slices.ContainsFunc(excluded, fits):
		return exclusions
	case slices.ContainsFunc(included, fits):
		return ""
	case slices.ContainsFunc(included, func(f filtered) bool { return globs(f.Clusters, cluster) }):
		return inclusions
	}
	return ""
}

// ownServer is how Argo CD calls the cluster that it runs in.
const ownServer = "https://kubernetes.default.svc"

func (e *examination) exclusionChecks() {
	cm, _ := e.configMap(argocdCM)
	if cm == nil {
		return
	}
	object := "ConfigMap " + e.Namespace + "/" + argocdCM
	read := func(key string) (all []filtered) {
		if err := yaml.Unmarshal([]byte(cm.Data[key]), &all); err != nil {
			e.find(Error, "exclusions-broken", object+" key "+key, "kubectl edit configmap "+argocdCM+" -n "+e.Namespace, "Argo CD cannot read it: %v", err)
		}
		return all
	}
	excluded, included := read(exclusions), read(inclusions)
	type hidden struct{ key, kind, cluster string }
	found := map[hidden][]string{}
	for _, a := range e.protected() {
		server := a.Spec.Destination.Server
		if a.Spec.Destination.Name == "in-cluster" {
			server = ownServer
		}
		if server == "" {
			// Patterns are for servers, and which one has this name stands in a Secret. Entries for all clusters count.
			server = "\x00"
		}
		gk := e.markerOf(a)
		if key := hides(excluded, included, gk, server); key != "" {
			at := hidden{key, gk.String(), a.Spec.Destination.String()}
			found[at] = append(found[at], a.String())
		}
	}
	if len(e.protected()) == 0 {
		gk := schema.GroupKind{Group: hold.Group, Kind: config.MarkerHold}
		if e.Config.Hold.Marker == config.MarkerDeployment {
			gk = schema.GroupKind{Group: "apps", Kind: config.MarkerDeployment}
		}
		if key := hides(excluded, included, gk, ownServer); key != "" {
			found[hidden{key, gk.String(), ownServer}] = []string{"none yet"}
		}
	}
	for at, apps := range found {
		e.find(Error, "marker-excluded", object+" key "+at.key, "kubectl edit configmap "+argocdCM+" -n "+e.Namespace+": let "+at.kind+" through",
			"hides the marker %s in cluster %s: holds are not seen, and nothing releases them (Applications: %s)", at.kind, at.cluster, some(apps))
	}
}

// projectChecks: one object of a kind that its AppProject does not allow makes Argo CD refuse the whole sync, grants included.
func (e *examination) projectChecks() {
	if e.Config == nil || e.Projects == nil {
		return
	}
	type use struct {
		project string
		gk      schema.GroupKind
	}
	users := map[use][]string{}
	for _, a := range e.protected() {
		u := use{a.Spec.Project, e.markerOf(a)}
		users[u] = append(users[u], a.String())
	}
	for u, apps := range users {
		at := slices.IndexFunc(e.Projects, func(p Project) bool { return p.Metadata.Name == u.project })
		if at < 0 {
			continue
		}
		p := &e.Projects[at]
		object := "AppProject " + p.Metadata.Namespace + "/" + p.Metadata.Name
		whitelist, blacklist := e.lists(p)
		if whitelist != nil && !inList(whitelist, u.gk) {
			e.find(Error, "project-refuses-marker", object, fmt.Sprintf("add to spec.namespaceResourceWhitelist: {group: %s, kind: %s}", u.gk.Group, u.gk.Kind),
				"its namespaceResourceWhitelist has no %s: a sync with a hold fails, grants included (Applications: %s)", u.gk, some(apps))
		}
		if inList(blacklist, u.gk) {
			e.find(Error, "project-refuses-marker", object, fmt.Sprintf("take %s out of spec.namespaceResourceBlacklist", u.gk),
				"its namespaceResourceBlacklist has %s: a sync with a hold fails, grants included (Applications: %s)", u.gk, some(apps))
		}
	}
}

// lists are those of a project and of the global ones that it inherits from (util/argo/argo.go GetGlobalProjects, mergeVirtualProject).
func (e *examination) lists(p *Project) (whitelist, blacklist []metav1.GroupKind) {
	whitelist, blacklist = p.Spec.NamespaceResourceWhitelist, p.Spec.NamespaceResourceBlacklist
	cm, _ := e.configMap(argocdCM)
	if cm == nil {
		return whitelist, blacklist
	}
	var all []struct {
		ProjectName   string               `json:"projectName"`
		LabelSelector metav1.LabelSelector `json:"labelSelector"`
	}
	if yaml.Unmarshal([]byte(cm.Data[globals]), &all) != nil {
		return whitelist, blacklist
	}
	for _, g := range all {
		selector, err := metav1.LabelSelectorAsSelector(&g.LabelSelector)
		if err != nil || g.ProjectName == p.Metadata.Name || !selector.Matches(labels.Set(p.Metadata.Labels)) {
			continue
		}
		for i := range e.Projects {
			if o := &e.Projects[i]; o.Metadata.Name == g.ProjectName {
				whitelist = append(slices.Clip(whitelist), o.Spec.NamespaceResourceWhitelist...)
				blacklist = append(slices.Clip(blacklist), o.Spec.NamespaceResourceBlacklist...)
			}
		}
	}
	return whitelist, blacklist
}

// inList is Argo CD's isResourceInList (pkg/apis/application/v1alpha1/types.go).
func inList(list []metav1.GroupKind, gk schema.GroupKind) bool {
	return slices.ContainsFunc(list, func(item metav1.GroupKind) bool {
		kind, kindErr := filepath.Match(item.Kind, gk.Kind)
		group, groupErr := filepath.Match(item.Group, gk.Group)
		return kind && group && kindErr == nil && groupErr == nil
	})
}

// setting is what a program of Argo CD's gets by a flag, else by an environment variable.
type setting struct {
	// values are those of a flag that was repeated, or the one of the variable.
	values []string
	isFlag bool
	// where it is set, and how it is written there.
	where string
	// unread is the ConfigMap that the variable comes from, where that was not read.
	unread string
}

func (s *setting) last() string {
	if len(s.values) == 0 {
		return ""
	}
	return s.values[len(s.values)-1]
}

// settingOf: without a flag only the variable counts.
func (i *Installation) settingOf(object string, c *corev1.Container, flag, name string) setting {
	if values := flagOf(c, flag); flag != "" && values != nil {
		return setting{values: values, isFlag: true, where: object + ": --" + flag}
	}
	v := variable(c, name)
	switch {
	case v == nil:
		return setting{}
	case v.ValueFrom == nil:
		return setting{values: []string{v.Value}, where: object + ": " + name}
	case v.ValueFrom.ConfigMapKeyRef == nil:
		return setting{}
	}
	ref := v.ValueFrom.ConfigMapKeyRef
	cm := i.ConfigMaps[ref.Name]
	if !cm.Read {
		return setting{where: object + ": " + name, unread: ref.Name}
	}
	if cm.Value == nil || cm.Value.Data[ref.Key] == "" {
		return setting{}
	}
	return setting{values: []string{cm.Value.Data[ref.Key]}, where: "ConfigMap " + i.Namespace + "/" + ref.Name + ": " + ref.Key}
}

// setting is the same, and says where it could not be told. What is unread of Argo CD's own ConfigMaps was said before.
func (e *examination) setting(object string, c *corev1.Container, flag, name string) setting {
	s := e.settingOf(object, c, flag, name)
	if s.unread != "" && s.unread != paramsCM && s.unread != argocdCM {
		e.find(Unknown, "setting-unknown", object, fmt.Sprintf("kubectl get configmap %s -n %s -o yaml", s.unread, e.Namespace), "%s comes from ConfigMap %s, which is not read here", name, s.unread)
	}
	return s
}

// flagOf gives all values that a flag has on a container's command line. Without one it is true.
func flagOf(c *corev1.Container, flag string) []string {
	var values []string
	words := slices.Concat(c.Command, c.Args)
	for i, word := range words {
		value, ok := strings.CutPrefix(word, "--"+flag)
		switch {
		case !ok:
		case strings.HasPrefix(value, "="):
			values = append(values, value[1:])
		case value == "" && i+1 < len(words) && !strings.HasPrefix(words[i+1], "--"):
			values = append(values, words[i+1])
		case value == "":
			values = append(values, "true")
		}
	}
	return values
}

// gitFiles stand for what the plugin needs of a repository's history, relative to its root.
var gitFiles = []string{
	".git", ".git/HEAD", ".git/config", ".git/refs", ".git/objects", ".git/objects/pack", ".git/objects/pack/pack-0.pack", ".git/objects/pack/pack-0.idx",
	".git/objects/01", ".git/objects/01/23456789012345678901234567890123456789",
}

// repositoryChecks: without the history of the repository no keeper can be made, and what Git no longer has cannot be kept during a hold.
func (e *examination) repositoryChecks() {
	d := e.repoServer()
	if d == nil {
		return
	}
	pod := &d.Spec.Template.Spec
	at := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return runs(&c, repoServerName) })
	if at < 0 {
		return
	}
	const lost = "during a hold, what a commit deletes can then not be kept from being pruned, and the render is refused"
	s := e.setting(nameOf(d), &pod.Containers[at], "plugin-tar-exclude", "ARGOCD_REPO_SERVER_PLUGIN_TAR_EXCLUSIONS")
	patterns := s.values
	if !s.isFlag {
		patterns = strings.Split(s.last(), ";")
	}
	for _, pattern := range patterns {
		if pattern = strings.TrimSpace(pattern); pattern == "" {
			continue
		}
		// Argo CD matches like this, and leaves out folders with all that is in them (util/io/files/tar.go).
		if _, err := filepath.Match(pattern, ".git"); err != nil {
			e.find(Error, "tar-exclusions-broken", s.where, "correct it", "%q is no pattern: Argo CD sends no repository to any plugin", pattern)
			continue
		}
		if i := slices.IndexFunc(gitFiles, func(file string) bool { ok, _ := filepath.Match(pattern, file); return ok }); i >= 0 {
			e.find(Warning, "git-excluded", s.where, "take "+strconv.Quote(pattern)+" out", "%q keeps %s of the repository from the plugin: %s", pattern, gitFiles[i], lost)
		}
	}
	s = e.setting(nameOf(d), &pod.Containers[at], "plugin-use-manifest-generate-paths", "ARGOCD_REPO_SERVER_PLUGIN_USE_MANIFEST_GENERATE_PATHS")
	if !strings.EqualFold(s.last(), "true") {
		return
	}
	var without []string
	for _, a := range e.protected() {
		if !wholeRepository(a) {
			without = append(without, a.String())
		}
	}
	if without != nil {
		e.find(Warning, "git-excluded", s.where, "set it to false, or add / to annotation "+generatePaths+" of these Applications",
			"only the paths of annotation %s are sent to the plugin, without .git: %s (Applications: %s)", generatePaths, lost, some(without))
	}
}

const generatePaths = "argocd.argoproj.io/manifest-generate-paths"

// wholeRepository: Argo CD sends the folder that all paths of the annotation and the Application's own have in common
// (reposerver/repository/utils.go getApplicationRootPath).
func wholeRepository(a *Application) bool {
	annotation := strings.Trim(a.Metadata.Annotations[generatePaths], ";")
	if annotation == "" {
		return true
	}
	for _, s := range a.sources() {
		if !s.protected() || s.Chart != "" {
			continue
		}
		folder := func(p string) string { first, _, _ := strings.Cut(path.Clean("/" + p)[1:], "/"); return first }
		own, whole := folder(s.Path), false
		for p := range strings.SplitSeq(annotation, ";") {
			if p == "" {
				continue
			}
			if !strings.HasPrefix(p, "/") {
				p = path.Join(s.Path, p)
			}
			whole = whole || folder(p) != own
		}
		if own != "" && !whole {
			return false
		}
	}
	return true
}

// What the plugin allows itself (package plugin, deadline).
const (
	execVariable = "ARGOCD_EXEC_TIMEOUT"
	execTimeout  = 60 * time.Second
	timeToDecide = 5 * time.Second
)

// timeoutChecks: a plugin that is cut off is an error, which Argo CD caches, where it would have been a hold.
func (e *examination) timeoutChecks() {
	d := e.repoServer()
	if d == nil || e.Config == nil {
		return
	}
	c := sidecar(&d.Spec.Template.Spec)
	if c == nil {
		return
	}
	exec := execTimeout
	s := e.setting(nameOf(d)+" container "+c.Name, c, "", execVariable)
	if text := s.last(); text != "" {
		t, err := time.ParseDuration(text)
		if err != nil || t <= 0 {
			e.find(Warning, "exec-timeout", s.where, execVariable+"=90s", "%q is no duration: the plugin goes by %s", text, execTimeout)
		} else {
			exec = t
		}
	}
	reading, deciding := e.Config.Timeout(), min(timeToDecide, exec/4)
	if exec-deciding < reading {
		e.find(Warning, "exec-timeout", s.where, fmt.Sprintf("%s=%s or more, or a shorter readTimeout", execVariable, reading+timeToDecide),
			"%s leaves the plugin %s to read clusters, less than its readTimeout of %s: what it cannot read in time is unknown, and holds what is new", exec, exec-deciding, reading)
		reading = exec - deciding
	}
	for _, caller := range []struct{ program, name, key string }{
		{"argocd-application-controller", "ARGOCD_APPLICATION_CONTROLLER_REPO_SERVER_TIMEOUT_SECONDS", "controller.repo.server.timeout.seconds"},
		{"argocd-server", "ARGOCD_SERVER_REPO_SERVER_TIMEOUT_SECONDS", "server.repo.server.timeout.seconds"},
	} {
		object, c := e.program(caller.program)
		if c == nil {
			continue
		}
		s := e.setting(object, c, "repo-server-timeout-seconds", caller.name)
		// 0 is no limit (reposerver/apiclient/clientset.go); what is no number is as if it were not there (util/env).
		seconds, err := strconv.Atoi(strings.TrimSpace(s.last()))
		if limit := time.Duration(seconds) * time.Second; err == nil && seconds > 0 && limit < reading+deciding {
			e.find(Warning, "repo-server-timeout", s.where, fmt.Sprintf("%s: %q in ConfigMap %s, or %s=%s in the sidecar", caller.key, "60", paramsCM, execVariable, limit),
				"%s gives up after %s, and the plugin reads clusters for up to %s: it would be cut off, which is an error where it would have been a hold", caller.program, limit, reading)
		}
	}
}

// program finds one of Argo CD's by what it runs.
func (i *Installation) program(name string) (object string, c *corev1.Container) {
	in := func(kind string, of *metav1.ObjectMeta, pod *corev1.PodSpec) bool {
		at := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return runs(&c, name) })
		if at >= 0 {
			object, c = kind+" "+of.Namespace+"/"+of.Name, &pod.Containers[at]
		}
		return at >= 0
	}
	_ = slices.ContainsFunc(i.Deployments, func(d appsv1.Deployment) bool { return in("Deployment", &d.ObjectMeta, &d.Spec.Template.Spec) }) ||
		slices.ContainsFunc(i.StatefulSets, func(s appsv1.StatefulSet) bool { return in("StatefulSet", &s.ObjectMeta, &s.Spec.Template.Spec) })
	return object, c
}
