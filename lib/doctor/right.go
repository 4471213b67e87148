package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/grantfirst/grantfirst/lib/config"
)

// Right is something that a ServiceAccount of Argo CD's namespace may do, or may not, in Argo CD's own cluster.
type Right struct {
	Account string
	// Namespace is empty for all of them.
	Namespace, Verb, Group, Resource, Name string
}

// CanI is how a person asks for it; namespace is Argo CD's.
func (r Right) CanI(namespace string) string {
	where := "-n " + r.Namespace
	if r.Namespace == "" {
		where = "-A"
	}
	return fmt.Sprintf("kubectl auth can-i %s %s %s --as=%s", r.Verb, r.what(), where, r.user(namespace))
}

func (r Right) user(namespace string) string {
	return "system:serviceaccount:" + namespace + ":" + r.Account
}

// what is the resource as kubectl names it.
func (r Right) what() string {
	what := r.Resource
	if r.Group != "" {
		what += "." + r.Group
	}
	if r.Name != "" {
		what += "/" + r.Name
	}
	return what
}

// ruling is a right that is needed, or one that is too much.
type ruling struct {
	Right
	who string
	// file of examples/argocd gives the right; where the installation needs another form of it, it says so.
	file   string
	excess bool
}

// rulings are what examples/argocd/README.md says of the plugin, and the watcher's files of examples/argocd of the watcher.
func (i *Installation) rulings() []ruling {
	if i.Config == nil {
		return nil
	}
	var all []ruling
	add := func(who, account, file, namespace, group, resource, name string, verbs ...string) {
		for _, verb := range verbs {
			all = append(all, ruling{Right: Right{account, namespace, verb, group, resource, name}, who: who, file: file})
		}
	}
	if d := i.repoServer(); d != nil {
		const who = "sidecar"
		account := cmp.Or(d.Spec.Template.Spec.ServiceAccountName, "default")
		add(who, account, "rbac.yaml", i.Namespace, "argoproj.io", "applications", "", "get")
		add(who, account, "rbac.yaml", i.Namespace, "", "configmaps", "grantfirst-overrides", "get")
		for _, n := range i.namespacesOf(i.protected()) {
			add(who, account, "application-rbac.yaml", n, "argoproj.io", "applications", "", "get")
		}
		i.evidenceRights(who, account, "signer-rbac.yaml", add, "list")
		for _, r := range []Right{
			{account, i.Namespace, "list", "argoproj.io", "applications", ""},
			{account, i.Namespace, "get", "", "secrets", ""},
			{account, "", "list", "", "pods", ""},
		} {
			all = append(all, ruling{Right: r, who: who, file: "rbac.yaml", excess: true})
		}
	}
	if d, c := i.watcher(); d != nil {
		const who = "watcher"
		account := cmp.Or(d.Spec.Template.Spec.ServiceAccountName, "default")
		look := []string{"get", "list", "watch"}
		add(who, account, "watch-rights.yaml", i.Namespace, "argoproj.io", "appprojects", "", look...)
		add(who, account, "watch-rights.yaml", i.Namespace, "", "configmaps", "grantfirst-overrides", look...)
		add(who, account, "watch-rights.yaml", i.Namespace, "coordination.k8s.io", "leases", "", "create")
		add(who, account, "watch-rights.yaml", i.Namespace, "coordination.k8s.io", "leases", WatcherName, "get", "update")
		add(who, account, "watch-rights.yaml", "", "grantfirst.dev", "holds", "", "get", "list", "watch", "delete")
		namespaces, everywhere := i.watched(c)
		if everywhere {
			namespaces = []string{""}
		}
		for _, n := range namespaces {
			file := "watch-application-rights.yaml"
			switch n {
			case "":
				file += " (as a ClusterRole and a ClusterRoleBinding, for --applications-in=*)"
			case i.Namespace:
				file = "watch-rights.yaml"
			}
			add(who, account, file, n, "argoproj.io", "applications", "", append(look, "patch")...)
			add(who, account, file, n, "argoproj.io", "applicationsets", "", look...)
			add(who, account, file, n, "", "events", "", "create")
		}
		i.evidenceRights(who, account, "watch-signer-rights.yaml", add, "list", "watch")
	}
	return all
}

// namespacesOf are those of Applications outside Argo CD's own.
func (i *Installation) namespacesOf(apps []*Application) []string {
	var all []string
	for _, a := range apps {
		if n := a.Metadata.Namespace; n != i.Namespace && !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

// evidenceRights are for the signers in Argo CD's own cluster. Elsewhere the user of a kubeconfig reads, and Read has tried.
func (i *Installation) evidenceRights(who, account, file string, add func(who, account, file, namespace, group, resource, name string, verbs ...string), verbs ...string) {
	if len(i.Clusters) == 0 || !i.Clusters[0].Of.InCluster {
		return
	}
	seen := map[string]bool{}
	for n := range i.Config.Signers {
		s := &i.Config.Signers[n]
		if !seen[s.Namespace] {
			add(who, account, file, s.Namespace, "", "pods", "", verbs...)
		}
		seen[s.Namespace] = true
		if r := s.Policy.Resource; r != nil {
			namespace := r.Namespace
			if namespace == config.AllNamespaces {
				namespace = ""
			}
			add(who, account, file+" with a rule for "+r.Resource+"."+r.Group(), namespace, r.Group(), r.Resource, "", verbs...)
		} else if !seen[s.Namespace+"/configmaps"] {
			add(who, account, file, s.Namespace, "", "configmaps", "", verbs...)
			seen[s.Namespace+"/configmaps"] = true
		}
	}
}

func (e *examination) rightsChecks() {
	type group struct{ who, account, file, namespace string }
	missing, unasked := map[group][]string{}, map[string][]string{}
	var order []group
	var excess []ruling
	for _, r := range e.rulings() {
		allowed, asked := e.Rights[r.Right]
		switch {
		case !asked:
			unasked[r.Account] = append(unasked[r.Account], r.CanI(e.Namespace))
		case r.excess && allowed:
			excess = append(excess, r)
		case !r.excess && !allowed:
			g := group{r.who, r.Account, r.file, r.Namespace}
			if missing[g] == nil {
				order = append(order, g)
			}
			missing[g] = append(missing[g], r.Verb+" "+r.what())
		}
	}
	for _, g := range order {
		where, fix := "in namespace "+g.namespace, fmt.Sprintf("kubectl apply -n %s -f %s   # of examples/argocd", g.namespace, g.file)
		if g.namespace == "" {
			where, fix = "in all namespaces", fmt.Sprintf("kubectl apply -n %s -f %s   # of examples/argocd", e.Namespace, g.file)
		}
		if e.Namespace != "argocd" {
			fix += ", with namespace " + e.Namespace + " in its subjects"
		}
		e.find(Error, g.who+"-rights", "ServiceAccount "+e.Namespace+"/"+g.account, fix, "%s may not: %s", where, strings.Join(missing[g], ", "))
	}
	for _, r := range excess {
		e.find(Info, "sidecar-excess-rights", "ServiceAccount "+e.Namespace+"/"+r.Account, "take it away, unless another plugin needs it", "may %s %s, which the plugin does not need: %s", r.Verb, r.what(), r.CanI(e.Namespace))
	}
	for _, account := range sortedKeys(unasked) {
		e.find(Unknown, "rights-unknown", "ServiceAccount "+e.Namespace+"/"+account, strings.Join(unasked[account], "; "), "what it may do could not be asked")
	}
}
