package doctor

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/lib/config"
)

// Plugin is the name by which Applications ask for grantfirst (plugin.yaml).
const Plugin = "grantfirst"

// Metadata is what is looked at of every object's.
type Metadata struct {
	Name            string                  `json:"name"`
	Namespace       string                  `json:"namespace"`
	Labels          map[string]string       `json:"labels"`
	Annotations     map[string]string       `json:"annotations"`
	OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
}

// Application is what is looked at of an Argo CD Application (argoproj.io/v1alpha1).
type Application struct {
	Metadata Metadata `json:"metadata"`
	Spec     struct {
		Project     string             `json:"project"`
		Destination config.Destination `json:"destination"`
		Source      *Source            `json:"source"`
		Sources     []Source           `json:"sources"`
		// SourceHydrator: up to Argo CD v3.2 its dry source has no plugin of its own.
		SourceHydrator *struct {
			DrySource Source `json:"drySource"`
		} `json:"sourceHydrator"`
		SyncPolicy *struct {
			Automated *struct {
				Enabled *bool `json:"enabled"`
				Prune   bool  `json:"prune"`
			} `json:"automated"`
		} `json:"syncPolicy"`
	} `json:"spec"`
	Status struct {
		OperationState *struct {
			Phase      string `json:"phase"`
			Message    string `json:"message"`
			SyncResult struct {
				Resources []struct {
					Name      string `json:"name"`
					Status    string `json:"status"`
					HookPhase string `json:"hookPhase"`
				} `json:"resources"`
			} `json:"syncResult"`
		} `json:"operationState"`
	} `json:"status"`
}

// Source is one source of an Application.
type Source struct {
	RepoURL string `json:"repoURL"`
	Path    string `json:"path"`
	Chart   string `json:"chart"`
	Ref     string `json:"ref"`
	Plugin  *struct {
		Name string `json:"name"`
	} `json:"plugin"`
}

// ApplicationSet is what is looked at of one.
type ApplicationSet struct {
	Metadata Metadata `json:"metadata"`
	Spec     struct {
		Strategy *struct {
			Type string `json:"type"`
		} `json:"strategy"`
	} `json:"spec"`
}

func (s *Source) protected() bool { return s != nil && s.Plugin != nil && s.Plugin.Name == Plugin }

// renders: one that only lends its files to others does not.
func (s *Source) renders() bool { return s.Ref == "" || s.Path != "" || s.Chart != "" }

func (a *Application) sources() []Source {
	if len(a.Spec.Sources) > 0 {
		return a.Spec.Sources
	}
	if a.Spec.Source != nil {
		return []Source{*a.Spec.Source}
	}
	return nil
}

// protected: one of its sources uses the plugin.
func (a *Application) protected() bool {
	h := a.Spec.SourceHydrator
	return h != nil && h.DrySource.protected() || slices.ContainsFunc(a.sources(), func(s Source) bool { return s.protected() })
}

// String is the name as people write it.
func (a *Application) String() string { return a.Metadata.Namespace + "/" + a.Metadata.Name }

// instance is the name that Argo CD gives to plugins (pkg/apis/application/v1alpha1/types.go InstanceName).
func (i *Installation) instance(a *Application) string {
	if a.Metadata.Namespace == i.Namespace {
		return a.Metadata.Name
	}
	return a.Metadata.Namespace + "_" + a.Metadata.Name
}

// protected gives the Applications of this Argo CD that use the plugin.
func (i *Installation) protected() []*Application {
	var all []*Application
	ours := i.ours()
	for n := range i.Applications {
		if a := &i.Applications[n]; a.protected() && ours(a.Metadata.Namespace) {
			all = append(all, a)
		}
	}
	return all
}

// ours: this Argo CD looks after Applications of that namespace (util/security/application_namespaces.go). Where it is not known which those
// are, they are all.
func (i *Installation) ours() func(namespace string) bool {
	object, c := i.program("argocd-application-controller")
	if c == nil {
		return func(string) bool { return true }
	}
	s := i.settingOf(object, c, "application-namespaces", "ARGOCD_APPLICATION_NAMESPACES")
	if s.unread != "" {
		return func(string) bool { return true }
	}
	known := map[string]bool{i.Namespace: true}
	return func(namespace string) bool {
		is, ok := known[namespace]
		if !ok {
			is = slices.ContainsFunc(strings.Split(strings.Join(s.values, ","), ","), func(pattern string) bool { return namespaceFits(strings.TrimSpace(pattern), namespace) })
			known[namespace] = is
		}
		return is
	}
}

// namespaceFits: between slashes a pattern is a regular expression (util/glob/list.go).
func namespaceFits(pattern, namespace string) bool {
	if expression, ok := strings.CutPrefix(pattern, "/"); ok && strings.HasSuffix(expression, "/") {
		r, err := regexp.Compile(strings.TrimSuffix(expression, "/"))
		return err == nil && r.MatchString(namespace)
	}
	return pattern != "" && globs([]string{pattern}, namespace)
}

func (i *Installation) placement(a *Application) config.Placement {
	return config.Placement{Project: a.Spec.Project, Application: i.instance(a), Destination: &a.Spec.Destination}
}

// rolled: an ApplicationSet with RollingSync made it, which switches automation off in it and syncs it itself (argo-cd applicationset
// controllers/applicationset_controller.go).
func (i *Installation) rolled(a *Application) bool {
	return slices.ContainsFunc(a.Metadata.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "ApplicationSet" && slices.ContainsFunc(i.ApplicationSets, func(s ApplicationSet) bool {
			return s.Metadata.Namespace == a.Metadata.Namespace && s.Metadata.Name == o.Name && s.Spec.Strategy != nil && s.Spec.Strategy.Type == "RollingSync"
		})
	})
}

// hanging is what Argo CD says of an operation that waits for a marker, which it does for ever (gitops-engine pkg/sync/sync_context.go).
var hanging = regexp.MustCompile(`waiting for healthy state of .*/(grantfirst-[0-9a-f]{10}-(?:[0-9a-f]{10}|none))\b`)

// hangs gives the marker that an operation waits for; empty where it waits for none. Between two waves Argo CD names in the same words what is
// only to be applied next, so it must have applied the marker.
func (a *Application) hangs() string {
	o := a.Status.OperationState
	if o == nil || o.Phase != "Running" {
		return ""
	}
	marker := hanging.FindStringSubmatch(o.Message)
	if marker == nil {
		return ""
	}
	for _, r := range o.SyncResult.Resources {
		if r.Name == marker[1] && r.Status == "Synced" && r.HookPhase == "Running" {
			return marker[1]
		}
	}
	return ""
}

func (e *examination) applicationChecks() {
	if e.Applications == nil {
		return
	}
	protected := e.protected()
	if len(protected) == 0 {
		e.find(Info, "no-applications", "Applications", "in an Application: spec.source.plugin: {name: "+Plugin+"}", "none of %d uses the plugin", len(e.Applications))
	}
	var unpruned, manual, hydrated []string
	lost := map[string][]string{}
	for _, a := range protected {
		name := a.String()
		if a.Spec.SourceHydrator != nil {
			hydrated = append(hydrated, name)
		}
		e.severalSources(a)
		if e.Config != nil {
			if _, err := e.Config.Cluster(e.placement(a)); err != nil {
				lost[err.Error()] = append(lost[err.Error()], name)
			}
		}
		if marker := a.hangs(); marker != "" {
			e.find(Error, "operation-hangs", "Application "+name,
				fmt.Sprintf(`kubectl patch application %s -n %s --type merge -p '{"status":{"operationState":{"phase":"Terminating"}}}'; then take what is in a later sync wave than the marker, or a PostSync hook of another source, out of its way`,
					a.Metadata.Name, a.Metadata.Namespace),
				"its operation waits for marker %s to become healthy, which it never does", marker)
		}
		if e.rolled(a) {
			continue
		}
		switch p := a.Spec.SyncPolicy; {
		case p == nil || p.Automated == nil || p.Automated.Enabled != nil && !*p.Automated.Enabled:
			manual = append(manual, name)
		case !p.Automated.Prune:
			unpruned = append(unpruned, name)
		}
	}
	if hydrated != nil {
		e.find(Warning, "hydrated", "Applications "+some(hydrated), "protect the branch that is hydrated in CI, or take spec.sourceHydrator out",
			"the source hydrator commits what the plugin prints to Git, so nothing is held there")
	}
	for _, why := range sortedKeys(lost) {
		e.find(Error, "cluster-unknown", "Applications "+some(lost[why]), "add to the configuration: clusters: [{name: …, destinations: [\"…\"], kubeconfig: …}] (docs/cluster.md)",
			"everything that asks for a certificate is held: %s", why)
	}
	if unpruned != nil {
		e.find(Info, "prune-off", "Applications "+some(unpruned), "", "%d are synced without prune: the watcher deletes their markers after a hold", len(unpruned))
	}
	if manual != nil {
		e.find(Info, "manual-sync", "Applications "+some(manual), "", "%d are synced by hand: after a hold the watcher refreshes them, and a person has to sync", len(manual))
	}
}

// severalSources: each source is held by itself, and what renders without the plugin is not held at all.
func (e *examination) severalSources(a *Application) {
	var without []string
	for n, s := range a.Spec.Sources {
		if s.renders() && !s.protected() {
			without = append(without, fmt.Sprintf("%d (%s)", n, path.Join(s.RepoURL, s.Path, s.Chart)))
		}
	}
	if without != nil {
		e.find(Warning, "source-without-plugin", "Application "+a.String(), "give each source that has workloads plugin: {name: "+Plugin+"}",
			"uses the plugin in some of its sources only; not in %s: workloads there are never held", strings.Join(without, ", "))
	}
}

// holdChecks looks for markers that nobody will ever remove.
func (e *examination) holdChecks() {
	if e.Applications == nil || e.OnlyOwn {
		return
	}
	// Those of another Argo CD may be called without their namespace.
	known := map[string]bool{}
	for n := range e.Applications {
		a := &e.Applications[n]
		known[e.instance(a)], known[a.Metadata.Name] = true, true
	}
	for _, c := range e.Clusters {
		for _, h := range c.Holds {
			if !known[h.Spec.Application] {
				e.find(Warning, "hold-left", c.object("Hold "+h.Metadata.Namespace+"/"+h.Metadata.Name),
					fmt.Sprintf("unless another Argo CD deploys there: kubectl delete hold %s -n %s%s", h.Metadata.Name, h.Metadata.Namespace, c.flags()),
					"its Application %q is gone", h.Spec.Application)
			}
		}
	}
}

// object names an object of the cluster.
func (c *Cluster) object(name string) string {
	if c.Of.InCluster {
		return name
	}
	return name + " in cluster " + c.Name
}

// flags are those of kubectl that mean the cluster.
func (c *Cluster) flags() string {
	if c.Of.InCluster {
		return ""
	}
	flags := " --kubeconfig " + c.Of.Kubeconfig
	if c.Of.Context != "" {
		flags += " --context " + c.Of.Context
	}
	return flags
}
