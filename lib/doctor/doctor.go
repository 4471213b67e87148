// Package doctor finds out what is wrong with an installation of grantfirst in Argo CD.
//
// In goes an Installation: the objects of Argo CD's namespace, Applications, AppProjects, and what was seen in each cluster that they
// deploy to. Out come findings, each with what to do about it. Examine is pure: no cluster, no clock, no environment. Read is the edge
// that fetches an Installation from API servers; it lists and gets, and asks who may do what (SubjectAccessReviews, which store
// nothing). Neither ever changes anything, and Secrets are not read.
//
// Where a rule is Argo CD's, its file is named (argo-cd v2.14.21; the same in v3.2.11 unless it says otherwise).
package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// Severity says how bad a finding is.
type Severity string

// Severities, the worst first. Unknown: it could not be told whether something is wrong. Info: nothing is, but it is worth knowing.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Unknown Severity = "unknown"
	Info    Severity = "info"
)

var severities = []Severity{Error, Warning, Unknown, Info}

// Finding is one thing that was found out about an installation.
type Finding struct {
	// ID names the check, and stays the same from release to release (docs/doctor.md lists all).
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	// Object is what it is about.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Fix is a command, or what to write where; empty where there is nothing to do.
	Fix string `json:"fix,omitempty"`
}

// Object is one object that was asked for. Value is nil where it is not there; where Read is false, that could not be told.
type Object[T any] struct {
	Read  bool
	Value *T
}

// Installation is what was read of one. A nil list was not read; one that is there and empty was.
type Installation struct {
	// Namespace is Argo CD's.
	Namespace string
	// Now is the time by the API server's clock; zero where that is not known.
	Now time.Time
	// Config is the configuration that the rest is judged by; nil where there is none, or none that can be understood.
	Config *config.Config
	// Given is the configuration that a person named instead of the one in the cluster; nil where that was not the case.
	Given *config.Config

	Deployments  []appsv1.Deployment
	StatefulSets []appsv1.StatefulSet
	Pods         []corev1.Pod
	// ConfigMaps of Argo CD's namespace, by name.
	ConfigMaps map[string]Object[corev1.ConfigMap]
	// Lease is the one by which a watcher leads.
	Lease Object[coordinationv1.Lease]

	// Applications of all namespaces; with OnlyOwn, those of Argo CD's namespace alone.
	Applications    []Application
	OnlyOwn         bool
	ApplicationSets []ApplicationSet
	Projects        []Project

	// Clusters that Applications deploy to, as far as the configuration says; Argo CD's own is the first.
	Clusters []Cluster
	// Rights that were asked for, and whether they are there. Those that could not be asked are missing.
	Rights map[Right]bool
	// Unread is what could not be read, and why.
	Unread []Unread
}

// Unread is something that could not be read, so that what depends on it could not be told.
type Unread struct {
	What, Why, Fix string
}

// Cluster is one that Applications deploy to.
type Cluster struct {
	// Name is that of the configuration.
	Name string
	// Of is how the configuration says it is reached; InCluster for Argo CD's own.
	Of config.Cluster
	// Kind is the CustomResourceDefinition of the marker.
	Kind  Object[Kind]
	Holds []hold.Hold
	// Evidence is what the signers there have loaded, by signerName. Signers that could not be read are missing.
	Evidence map[string]policy.Evidence
}

// examination collects findings about an installation.
type examination struct {
	*Installation
	findings []Finding
}

func (e *examination) find(severity Severity, id, object, fix, format string, args ...any) {
	e.findings = append(e.findings, Finding{ID: id, Severity: severity, Object: object, Message: fmt.Sprintf(format, args...), Fix: fix})
}

// Examine gives what is to be said about an installation, the worst first.
func Examine(i *Installation) []Finding {
	e := &examination{Installation: i}
	for _, u := range i.Unread {
		e.find(Unknown, "unread", u.What, u.Fix, "%s", u.Why)
	}
	e.sidecarChecks()
	e.configChecks()
	e.rightsChecks()
	e.markerChecks()
	e.projectChecks()
	e.signerChecks()
	e.watcherChecks()
	e.applicationChecks()
	e.repositoryChecks()
	e.timeoutChecks()
	e.holdChecks()
	e.overrideChecks()
	slices.SortStableFunc(e.findings, func(a, b Finding) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
	return e.findings
}

// Worst is the severity that an installation as a whole has: Unknown only where nothing worse is known, and empty where all is well.
func Worst(findings []Finding) Severity {
	worst := Severity("")
	for _, f := range findings {
		if f.Severity != Info && (worst == "" || slices.Index(severities, f.Severity) < slices.Index(severities, worst)) {
			worst = f.Severity
		}
	}
	return worst
}

// some names the first few of many.
func some(names []string) string {
	const most = 5
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func (e *examination) configMap(name string) (cm *corev1.ConfigMap, read bool) {
	o := e.ConfigMaps[name]
	return o.Value, o.Read
}
