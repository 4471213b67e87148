// Package config reads the admin's configuration file.
//
// In go the bytes of the file, out comes a validated Config or one error that lists every problem with its path. The package opens no
// file and knows no default location: that is the edge's business. docs/configuration.md is the reference for admins.
package config

import (
	"path"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// The apiVersion and kind of the file.
const (
	APIVersion = "grantfirst.dev/v1alpha1"
	Kind       = "Config"
)

// Config is the admin's configuration, kind Config of grantfirst.dev/v1alpha1.
type Config struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Mode       Mode     `json:"mode,omitempty"`
	Signers    []Signer `json:"signers,omitempty"`
	// UnknownSigner says what happens when a pod asks a signer that is not configured.
	UnknownSigner UnknownSigner `json:"unknownSigner,omitempty"`
	Hold          Hold          `json:"hold,omitempty"`
	Overrides     []Override    `json:"overrides,omitempty"`
	// Clusters are the destinations of Applications other than Argo CD's own cluster, and how to reach them.
	Clusters []Cluster `json:"clusters,omitempty"`
	// ArgoCDNamespace is that of Argo CD's control plane: default the namespace of the plugin's own pod, else argocd.
	ArgoCDNamespace string `json:"argocdNamespace,omitempty"`
	// ReadTimeout is how long all reading from clusters may take together, as a Go duration: default 10s.
	ReadTimeout string `json:"readTimeout,omitempty"`
	// AllowEmpty lets an empty render through; with prune on it wipes the Application.
	AllowEmpty bool `json:"allowEmpty,omitempty"`
}

// Mode is enforce (hold) or observe (print the plain render and report what would be held).
type Mode string

const (
	Enforce Mode = "enforce"
	Observe Mode = "observe"
)

// UnknownSigner is hold, allow or error.
type UnknownSigner string

const (
	UnknownHold  UnknownSigner = "hold"
	UnknownAllow UnknownSigner = "allow"
	UnknownError UnknownSigner = "error"
)

// Evidence kinds (docs/design.md section 5).
const (
	Report     = "report"
	PodVolumes = "podVolumes"
	Status     = "status"
	Settle     = "settle"
)

// Signer is one signer: which demands it answers, what it decides by, and how to tell what it has loaded.
type Signer struct {
	// SignerName is the exact name, or a prefix that ends in *.
	SignerName string `json:"signerName"`
	// Namespace is the signer's own: nothing in it is ever held.
	Namespace   string `json:"namespace"`
	Policy      Policy `json:"policy"`
	PodSelector string `json:"podSelector"`
	Evidence    string `json:"evidence"`
	// Settle is for evidence settle, and nil for the others.
	Settle *Settling `json:"settle,omitempty"`
}

// Settling says when a policy object that has not changed any more is taken to be loaded.
type Settling struct {
	// Seconds that the object must not have changed for.
	Seconds int64 `json:"seconds"`
	// Restarts: the signer loads a policy only when its container starts, so that must have been after the change.
	Restarts bool `json:"restarts,omitempty"`
}

// For is Seconds as a duration.
func (s *Settling) For() time.Duration { return time.Duration(s.Seconds) * time.Second }

// Policy says where the policy of a signer is and how to read it: in the text of ConfigMaps, or in custom resources (Resource is set).
type Policy struct {
	ConfigMap ConfigMap `json:"configMap,omitempty"`
	Key       string    `json:"key,omitempty"`
	Resource  *Resource `json:"resource,omitempty"`
	// Format is pod-cert-signer, grants or cel; custom resources have cel.
	Format string `json:"format"`
	// Granted is the CEL expression for format cel only: over policy and demand, for custom resources over object and demand.
	Granted string `json:"granted,omitempty"`
	// Loaded is the CEL expression over object and pod that is true where the pod has loaded the custom resource as it stands.
	Loaded string `json:"loaded,omitempty"`
}

// Resource selects the custom resources that are a signer's policy objects.
type Resource struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Resource is the plural, as it stands in the path of the API.
	Resource string `json:"resource"`
	// Namespace is that of the objects, * for those of all namespaces, and empty for a kind that has none.
	Namespace string `json:"namespace,omitempty"`
	// Selector is a label selector; without it all objects of the kind are policy objects.
	Selector string `json:"selector,omitempty"`
}

// AllNamespaces as the namespace of a Resource selects the objects of every namespace.
const AllNamespaces = "*"

// ConfigMap selects the policy objects in the signer's namespace; exactly one field is set.
type ConfigMap struct {
	Name       string `json:"name,omitempty"`
	NamePrefix string `json:"namePrefix,omitempty"`
	Selector   string `json:"selector,omitempty"`
}

// Marker kinds.
const (
	MarkerHold       = "Hold"
	MarkerDeployment = "Deployment"
)

// Hold configures what a hold looks like.
type Hold struct {
	Marker     string   `json:"marker,omitempty"`
	AlwaysEmit []Select `json:"alwaysEmit,omitempty"`
}

// Select picks objects; an empty field matches all.
type Select struct {
	Group         *string `json:"group,omitempty"`
	Kind          string  `json:"kind,omitempty"`
	Namespace     string  `json:"namespace,omitempty"`
	LabelSelector string  `json:"labelSelector,omitempty"`
}

// Override changes mode or marker for the Applications it matches; of several that match, the first that sets a field wins.
type Override struct {
	Projects     []string `json:"projects,omitempty"`
	Applications []string `json:"applications,omitempty"`
	Mode         Mode     `json:"mode,omitempty"`
	Marker       string   `json:"marker,omitempty"`
}

// Default is the configuration that an admin who wrote nothing would have: it enforces, knows no signer and holds what asks one.
func Default() *Config {
	c := &Config{APIVersion: APIVersion, Kind: Kind}
	c.fillIn()
	return c
}

func (c *Config) fillIn() {
	if c.Mode == "" {
		c.Mode = Enforce
	}
	if c.UnknownSigner == "" {
		c.UnknownSigner = UnknownHold
	}
	if c.Hold.Marker == "" {
		c.Hold.Marker = MarkerHold
	}
	if c.ReadTimeout == "" {
		c.ReadTimeout = defaultReadTimeout.String()
	}
}

// Signer gives the signer that answers demands for this name: the one of exactly that name, else the one with the longest prefix of
// it. It is nil for a signer that is not configured.
func (c *Config) Signer(signerName string) *Signer {
	var best *Signer
	for i := range c.Signers {
		s := &c.Signers[i]
		if s.SignerName == signerName {
			return s
		}
		if s.Answers(signerName) && (best == nil || len(s.SignerName) > len(best.SignerName)) {
			best = s
		}
	}
	return best
}

// Answers reports whether the signer's name, or the prefix that stands for it, covers this one.
func (s *Signer) Answers(signerName string) bool {
	prefix, isPrefix := strings.CutSuffix(s.SignerName, "*")
	return s.SignerName == signerName || isPrefix && strings.HasPrefix(signerName, prefix)
}

// Matches reports whether a ConfigMap of the signer's namespace is one of its policy objects. It does not look at the policy key:
// a match without it carries no policy.
func (m *ConfigMap) Matches(name string, objectLabels map[string]string) bool {
	switch {
	case m.Name != "":
		return name == m.Name
	case m.NamePrefix != "":
		return strings.HasPrefix(name, m.NamePrefix)
	case m.Selector != "":
		selector, err := labels.Parse(m.Selector)
		return err == nil && selector.Matches(labels.Set(objectLabels))
	}
	return false
}

// Group is the API group of the kind.
func (r *Resource) Group() string {
	group, _, _ := strings.Cut(r.APIVersion, "/")
	return group
}

// Matches reports whether an object is one of the signer's policy objects, whatever version of the API it is written in. A namespace
// that is written on a kind that has none means nothing.
func (r *Resource) Matches(group, kind, namespace string, objectLabels map[string]string) bool {
	if group != r.Group() || kind != r.Kind {
		return false
	}
	if r.Namespace != "" && r.Namespace != AllNamespaces && r.Namespace != namespace {
		return false
	}
	selector, err := labels.Parse(r.Selector)
	return err == nil && selector.Matches(labels.Set(objectLabels))
}

// For gives mode and marker kind of an Application, by its AppProject and its name as Argo CD gives it to plugins ("name", or
// "namespace_name" outside Argo CD's own namespace). project is empty where it is not known (Argo CD v2 does not tell plugins).
func (c *Config) For(project, application string) (Mode, string) {
	var mode Mode
	var marker string
	for i := range c.Overrides {
		o := &c.Overrides[i]
		if !o.matches(project, application) {
			continue
		}
		if mode == "" {
			mode = o.Mode
		}
		if marker == "" {
			marker = o.Marker
		}
	}
	if mode == "" {
		mode = c.Mode
	}
	if marker == "" {
		marker = c.Hold.Marker
	}
	return mode, marker
}

// matches: every list that is given must have a pattern that fits.
func (o *Override) matches(project, application string) bool {
	return (len(o.Projects) > 0 || len(o.Applications) > 0) &&
		(len(o.Projects) == 0 || anyFits(o.Projects, project)) &&
		(len(o.Applications) == 0 || anyFits(o.Applications, application))
}

func anyFits(patterns []string, name string) bool {
	for _, pattern := range patterns {
		if ok, _ := path.Match(noSlash(pattern), noSlash(name)); ok {
			return true
		}
	}
	return false
}

// noSlash keeps path.Match from treating "/" as a border that * does not cross: names are no paths.
func noSlash(s string) string {
	return strings.ReplaceAll(s, "/", "\x00")
}
