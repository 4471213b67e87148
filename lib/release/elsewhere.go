package release

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/grantfirst/grantfirst/lib/config"
)

// byNamespace is an index of the Applications that have objects in the namespaces of policy objects, by that namespace.
const byNamespace = "policyNamespace"

// indexPolicies finds those in which some policy object is out of sync. It is asked about every Application at every change, so nothing is
// decoded.
func indexPolicies(c *config.Config) func(any) ([]string, error) {
	return func(object any) ([]string, error) {
		o, ok := object.(*unstructured.Unstructured)
		if !ok {
			return nil, nil
		}
		status, _ := o.Object["status"].(map[string]any)
		resources, _ := status["resources"].([]any)
		var namespaces []string
		for _, r := range resources {
			resource, _ := r.(map[string]any)
			if resource["status"] != statusOutOfSync || resource["requiresPruning"] == true {
				continue
			}
			group, _ := resource["group"].(string)
			kind, _ := resource["kind"].(string)
			namespace, _ := resource["namespace"].(string)
			name, _ := resource["name"].(string)
			for i := range c.Signers {
				if holdsPolicy(&c.Signers[i], group, kind, namespace, name) && !slices.Contains(namespaces, namespace) {
					namespaces = append(namespaces, namespace)
				}
			}
		}
		return namespaces, nil
	}
}

// holdsPolicy says whether an object is, or may be, one of the signer's policy objects. Labels of it are not known.
func holdsPolicy(s *config.Signer, group, kind, namespace, name string) bool {
	if r := s.Policy.Resource; r != nil {
		of, _, _ := strings.Cut(r.APIVersion, "/")
		return group == of && kind == r.Kind && (r.Namespace == config.AllNamespaces || r.Namespace == namespace)
	}
	c := &s.Policy.ConfigMap
	return group == "" && kind == "ConfigMap" && namespace == s.Namespace && (c.Name == "" || c.Name == name) && strings.HasPrefix(name, c.NamePrefix)
}

// heldUp says which Application has changes of the signer's policy objects that are not synced, and why they are not: the grant that is
// missing may be among them. It is nil where there is none, or where the next sync is a matter of seconds.
func (w *Watcher) heldUp(a *Application, s *config.Signer) *Trouble {
	namespaces := []string{s.Namespace}
	if r := s.Policy.Resource; r != nil {
		namespaces = []string{r.Namespace}
		if r.Namespace == config.AllNamespaces {
			namespaces = w.indexed()
		}
	}
	for _, i := range w.applications {
		for _, n := range namespaces {
			found, _ := i.GetIndexer().ByIndex(byNamespace, n)
			for _, object := range found {
				of, err := Read(object.(*unstructured.Unstructured))
				if err != nil || w.cluster(of) != w.cluster(a) {
					continue
				}
				at := slices.IndexFunc(of.Status.Resources, func(r Resource) bool {
					return r.Status == statusOutOfSync && !r.RequiresPruning && holdsPolicy(s, r.Group, r.Kind, r.Namespace, r.Name)
				})
				if at < 0 {
					continue
				}
				r := &of.Status.Resources[at]
				if t := w.notSynced(a, of, fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name)); t != nil {
					return t
				}
			}
		}
	}
	return w.laterWave(a)
}

func (w *Watcher) indexed() []string {
	var all []string
	for _, i := range w.applications {
		all = append(all, i.GetIndexer().ListIndexFuncValues(byNamespace)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// notSynced says why an Application does not sync what it has of a policy.
func (w *Watcher) notSynced(held, of *Application, object string) *Trouble {
	name := of.Metadata.Namespace + "/" + of.Metadata.Name
	if of.Metadata.UID == held.Metadata.UID {
		name = "this Application"
	}
	has := fmt.Sprintf("%s of %s has changes that are not synced", object, name)
	trouble := func(after time.Duration, format string, args ...any) *Trouble {
		return &Trouble{Reason: GrantNotSynced, Message: has + fmt.Sprintf(format, args...), After: after}
	}
	set := of.setName()
	mine, its := w.step(held, held.setName()), w.step(of, set)
	switch {
	case its > 0 && its > mine && mine > 0 && set == held.setName() && of.Metadata.Namespace == held.Metadata.Namespace:
		t := trouble(10*time.Second, ", and it comes in step %d of ApplicationSet %s, after this Application in step %d: neither ends. Move the grant to an earlier step, or sync %s by hand", its, set, mine, name)
		t.Reason = GrantInLaterStep
		return t
	case its > 0 && w.waits(of, set):
		return trouble(time.Minute, ": it waits for its step in ApplicationSet %s", set)
	case its == 0 && !of.automated():
		return trouble(time.Minute, ", and it is synced by hand: sync it")
	}
	if s := of.Status.OperationState; s.failed() {
		return trouble(time.Minute, ": its sync failed: %s", s.Message)
	}
	if is, until := closed(w.windows(of), of, w.Now()); is {
		if until.IsZero() {
			return trouble(time.Minute, ": the sync windows of project %s keep it", of.Spec.Project)
		}
		return trouble(time.Minute, ": the sync windows of project %s keep it until %s at least", of.Spec.Project, until.UTC().Format(time.RFC3339))
	}
	if of.idle() && its == 0 {
		// With several sources of one repository Argo CD up to v3.1 can compare two revisions at once, and leave it at that.
		return trouble(2*time.Minute, ": nothing syncs it, though it is automated. Sync it")
	}
	return nil
}

// step is the number of the Application's step in an ApplicationSet that goes step by step; 0 where there is none.
func (w *Watcher) step(a *Application, set string) int {
	if set == "" {
		return 0
	}
	r := w.rollingSync(key{a.Metadata.Namespace, a.Metadata.Name}, set)
	if r == nil {
		return 0
	}
	n, _ := strconv.Atoi(r.Step)
	return n
}

func (w *Watcher) waits(a *Application, set string) bool {
	r := w.rollingSync(key{a.Metadata.Namespace, a.Metadata.Name}, set)
	return r != nil && r.Status == "Waiting"
}

// laterWave: the Application that this one is an object of waits for it before it applies its later waves, and the grant may be in one.
func (w *Watcher) laterWave(a *Application) *Trouble {
	id, _, _ := strings.Cut(a.Metadata.Annotations["argocd.argoproj.io/tracking-id"], ":")
	if id == "" {
		id = a.Metadata.Labels["app.kubernetes.io/instance"]
	}
	if id == "" {
		return nil
	}
	object := w.application(w.named(id))
	if object == nil {
		return nil
	}
	parent, err := Read(object)
	if err != nil {
		return nil
	}
	s := parent.Status.OperationState
	if s == nil || s.Phase != phaseRunning || !strings.Contains(s.Message, "waiting for healthy state of argoproj.io/Application/"+a.Metadata.Name) {
		return nil
	}
	return needs(GrantInLaterWave, time.Minute, "Application %s/%s waits for this one to be healthy before it applies what is in later sync waves: if the grant is there, neither ends. Move it to an earlier wave, or sync its Application by hand",
		parent.Metadata.Namespace, parent.Metadata.Name)
}
