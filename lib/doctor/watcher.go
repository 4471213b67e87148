package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// WatcherName is that of the watcher's Lease (package release has the same) and, as shipped, of its Deployment and its ServiceAccount.
const WatcherName = "grantfirst-watch"

// watcher is the Deployment that runs grantfirst watch, and its container.
func (i *Installation) watcher() (*appsv1.Deployment, *corev1.Container) {
	for n := range i.Deployments {
		d := &i.Deployments[n]
		for at := range d.Spec.Template.Spec.Containers {
			c := &d.Spec.Template.Spec.Containers[at]
			ours := d.Labels[labelName] == WatcherName || strings.Contains(c.Image, Plugin)
			if ours && slices.Contains(slices.Concat(c.Command, c.Args), "watch") {
				return d, c
			}
		}
	}
	return nil, nil
}

// watched are the namespaces whose Applications the watcher looks after; all means all.
func (i *Installation) watched(c *corev1.Container) (namespaces []string, all bool) {
	namespaces = flagOf(c, "applications-in")
	if len(namespaces) == 0 {
		namespaces = []string{i.Namespace}
	}
	return namespaces, slices.Contains(namespaces, "*")
}

func (e *examination) watcherChecks() {
	alive := e.leaseCheck()
	if e.Deployments == nil {
		return
	}
	const apply = "kubectl apply -n %s -f watch-rights.yaml -f watch.yaml   # of examples/argocd"
	d, c := e.watcher()
	if d == nil {
		if alive {
			e.find(Info, "watcher-elsewhere", "Lease "+e.Namespace+"/"+WatcherName, "", "a watcher leads, and no Deployment here runs it: its flags and rights are not known")
		} else {
			e.find(Error, "watcher-missing", "namespace "+e.Namespace, fmt.Sprintf(apply, e.Namespace), "no Deployment runs grantfirst watch: no hold ends by itself")
		}
		return
	}
	replicas := int32(1)
	if d.Spec.Replicas != nil {
		replicas = *d.Spec.Replicas
	}
	describe := fmt.Sprintf("kubectl describe deployment %s -n %s; kubectl logs deployment/%[1]s -n %[2]s", d.Name, d.Namespace)
	switch ready := d.Status.ReadyReplicas; {
	case replicas == 0:
		e.find(Error, "watcher-not-ready", nameOf(d), fmt.Sprintf("kubectl scale deployment %s -n %s --replicas=2", d.Name, d.Namespace), "has 0 replicas: no hold ends by itself")
	case ready == 0:
		e.find(Error, "watcher-not-ready", nameOf(d), describe, "none of %d replicas is ready: no hold ends by itself", replicas)
	case ready < replicas:
		e.find(Warning, "watcher-not-ready", nameOf(d), describe, "%d of %d replicas are ready", ready, replicas)
	}
	if name, _ := e.configIn(); name != "" {
		if _, own, _ := configSource(&d.Spec.Template.Spec, c); own != name {
			e.find(Warning, "watcher-config", nameOf(d), "mount ConfigMap "+name+" at /etc/grantfirst, as in watch.yaml of examples/argocd", "has its configuration from %q, and the plugin from ConfigMap %s", own, name)
		}
	}
	if n := flagOf(c, "namespace"); len(n) > 0 && n[len(n)-1] != e.Namespace {
		e.find(Error, "watcher-namespace", nameOf(d), "--namespace="+e.Namespace, "looks after Argo CD in namespace %s", n[len(n)-1])
	}
	e.overseen(d, c)
}

// overseen: every Application with the plugin is one that the watcher looks after.
func (e *examination) overseen(d *appsv1.Deployment, c *corev1.Container) {
	namespaces, all := e.watched(c)
	var selector labels.Selector
	if s := flagOf(c, "selector"); len(s) > 0 {
		var err error
		if selector, err = labels.Parse(s[len(s)-1]); err != nil {
			e.find(Error, "watcher-selector", nameOf(d), "correct --selector", "--selector %q: %v", s[len(s)-1], err)
		}
	}
	outside := map[string][]string{}
	var unselected []string
	for _, a := range e.protected() {
		switch n := a.Metadata.Namespace; {
		case !all && !slices.Contains(namespaces, n):
			outside[n] = append(outside[n], a.String())
		case selector != nil && !selector.Matches(labels.Set(a.Metadata.Labels)):
			unselected = append(unselected, a.String())
		}
	}
	for _, n := range sortedKeys(outside) {
		e.find(Error, "watcher-applications-in", nameOf(d), fmt.Sprintf("args: [watch, --applications-in=%s, --applications-in=%s]; kubectl apply -n %[2]s -f watch-application-rights.yaml", strings.Join(namespaces, ", --applications-in="), n),
			"does not look after namespace %s: nothing releases %s", n, some(outside[n]))
	}
	if unselected != nil {
		e.find(Error, "watcher-selector", nameOf(d), "label them, or change --selector", "its --selector leaves out Applications with the plugin, and nothing releases them: %s", some(unselected))
	}
}

// leaseCheck says whether a watcher leads.
func (e *examination) leaseCheck() (alive bool) {
	if !e.Lease.Read {
		return false
	}
	object, fix := "Lease "+e.Namespace+"/"+WatcherName, fmt.Sprintf("kubectl logs deployment/%s -n %s", WatcherName, e.Namespace)
	l := e.Lease.Value
	switch {
	case l == nil:
		e.find(Error, "watcher-not-leading", object, fix, "is not there: no watcher has ever led")
		return false
	case l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil:
		e.find(Error, "watcher-not-leading", object, fix, "no watcher leads: the last one gave it back")
		return false
	case e.Now.IsZero():
		e.find(Unknown, "watcher-not-leading", object, fix, "it is not known what time it is there, so that it cannot be told whether %s still leads", *l.Spec.HolderIdentity)
		return false
	}
	// The API server's date is cut to seconds.
	if age := e.Now.Sub(l.Spec.RenewTime.Time).Truncate(time.Second); age > time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second {
		e.find(Error, "watcher-not-leading", object, fix, "%s last said %s ago that it leads, which counts for %d s: no hold ends by itself", *l.Spec.HolderIdentity, age, *l.Spec.LeaseDurationSeconds)
		return false
	}
	return true
}
