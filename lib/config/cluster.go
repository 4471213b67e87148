package config

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Cluster says how the cluster is reached that some Applications deploy to. Nothing tells a plugin its destination, and an Application
// must not choose credentials, so the admin writes down both. Every list of patterns that is given must have one that fits.
type Cluster struct {
	// Name is for messages.
	Name string `json:"name"`
	// Projects and Applications are patterns for names, as in overrides.
	Projects     []string `json:"projects,omitempty"`
	Applications []string `json:"applications,omitempty"`
	// Destinations are patterns for spec.destination.server or spec.destination.name of the Application.
	Destinations []string `json:"destinations,omitempty"`
	// Kubeconfig is a file that the admin mounted into the sidecar, and Context the one in it to use (default: its current-context).
	Kubeconfig string `json:"kubeconfig,omitempty"`
	Context    string `json:"context,omitempty"`
	// InCluster stands instead of Kubeconfig for the cluster that Argo CD itself runs in.
	InCluster bool `json:"inCluster,omitempty"`
}

// Destination is where an Application deploys to (spec.destination): exactly one of the two is given there.
type Destination struct {
	Server string `json:"server"`
	Name   string `json:"name"`
}

// The destination that is Argo CD's own cluster (argo-cd pkg/apis/application/v1alpha1 KubernetesInternalAPIServerAddr, and the name that
// Argo CD gives it).
const (
	ownServer = "https://kubernetes.default.svc"
	ownName   = "in-cluster"
)

// own is how Argo CD's own cluster is reached.
var own = &Cluster{Name: ownName, InCluster: true}

// Placement is what is known of an Application when its cluster is looked for. An empty Project and a nil Destination are not known.
type Placement struct {
	Project     string
	Application string
	Destination *Destination
}

// Cluster gives the first of the configured clusters that fits an Application, else Argo CD's own where the destination says so. An error
// says why none is known: a guess could find grants in a cluster that has nothing to do with the Application.
func (c *Config) Cluster(of Placement) (*Cluster, error) {
	for i := range c.Clusters {
		cl := &c.Clusters[i]
		if len(cl.Applications) > 0 && !anyFits(cl.Applications, of.Application) {
			continue
		}
		switch {
		case len(cl.Projects) > 0 && of.Project == "":
			return nil, fmt.Errorf("the Application's project is not known, and clusters[%d] (%s) goes by it", i, cl.Name)
		case len(cl.Projects) > 0 && !anyFits(cl.Projects, of.Project):
			continue
		case len(cl.Destinations) > 0 && of.Destination == nil:
			return nil, fmt.Errorf("the Application's destination is not known, and clusters[%d] (%s) goes by it", i, cl.Name)
		case len(cl.Destinations) > 0 && !of.Destination.fits(cl.Destinations):
			continue
		}
		return cl, nil
	}
	switch {
	case of.Destination == nil:
		return nil, errors.New("the Application's destination is not known")
	case of.Destination.Server == ownServer || of.Destination.Server == "" && of.Destination.Name == ownName:
		return own, nil
	}
	return nil, fmt.Errorf("the Application's destination %s is not Argo CD's own cluster, and no entry of clusters in the configuration fits it: add one", of.Destination)
}

func (d *Destination) fits(patterns []string) bool {
	return d.Server != "" && anyFits(patterns, d.Server) || d.Name != "" && anyFits(patterns, d.Name)
}

// String is the server or the name, as the Application has it.
func (d *Destination) String() string {
	if d.Server != "" {
		return d.Server
	}
	return fmt.Sprintf("%q", d.Name)
}

// Limits of ReadTimeout. Argo CD ends a plugin after 60 to 90 seconds unless told otherwise, and rendering takes some of it.
const (
	defaultReadTimeout = 10 * time.Second
	minReadTimeout     = time.Second
	maxReadTimeout     = 45 * time.Second
)

// Timeout is ReadTimeout.
func (c *Config) Timeout() time.Duration {
	// Parse has checked it.
	d, _ := time.ParseDuration(c.ReadTimeout)
	return d
}

func (d *decoder) cluster(at string, c *Cluster) {
	if c.Name == "" {
		d.wrong(at+".name", "missing: say what the cluster is called in messages")
	}
	if len(c.Projects) == 0 && len(c.Applications) == 0 && len(c.Destinations) == 0 {
		d.wrong(at, "matches nothing: give projects, applications or destinations")
	}
	d.patterns(at+".projects", c.Projects)
	d.patterns(at+".applications", c.Applications)
	d.patterns(at+".destinations", c.Destinations)
	switch {
	case c.InCluster && (c.Kubeconfig != "" || c.Context != ""):
		d.wrong(at, "inCluster and kubeconfig: give one of the two")
	case !c.InCluster && c.Kubeconfig == "":
		d.wrong(at+".kubeconfig", "missing: name a file that is mounted into the sidecar, or set inCluster: true")
	}
}

func (d *decoder) reading(c *Config) {
	if c.ReadTimeout != "" {
		t, err := time.ParseDuration(c.ReadTimeout)
		switch {
		case err != nil:
			d.wrong("readTimeout", "%q is no duration: write it as in 10s", c.ReadTimeout)
		case t < minReadTimeout || t > maxReadTimeout:
			d.wrong("readTimeout", "%s is not between %s and %s: Argo CD ends a plugin that takes too long", c.ReadTimeout, minReadTimeout, maxReadTimeout)
		}
	}
	if c.ArgoCDNamespace != "" && len(validation.IsDNS1123Label(c.ArgoCDNamespace)) > 0 {
		d.wrong("argocdNamespace", "%q is no namespace: use lower-case letters, digits and -, 63 at most", c.ArgoCDNamespace)
	}
	for i := range c.Clusters {
		d.cluster(fmt.Sprintf("clusters[%d]", i), &c.Clusters[i])
	}
}
