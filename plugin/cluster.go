package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/loaded"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// live is what a decision depends on beside Git and the configuration.
type live struct {
	evidence map[*config.Signer]policy.Evidence
	// asking is nil where pods outside the signers' namespaces cannot be seen.
	asking    []demand.Asker
	overrides []hold.Override
	// pastUnknown says why nothing is known of earlier syncs, where that is no matter of course.
	pastUnknown string
	// remembered: the Application is not as it is now, and since has what every render since then has had.
	remembered bool
	since      map[string]bool
}

// unknown is the evidence that nothing could be read of any of the signers.
func (l *live) unknown(signers []*config.Signer, err error) {
	for _, s := range signers {
		l.evidence[s] = policy.Evidence{Kind: s.Evidence, Problem: err.Error()}
	}
}

func (l *live) evaluate(ctx context.Context, signers []*config.Signer, from loaded.Source, unreadable func(error)) {
	evidence := make([]policy.Evidence, len(signers))
	var wait sync.WaitGroup
	for i, s := range signers {
		wait.Go(func() {
			objects, err := from.Objects(ctx, s)
			if err != nil {
				unreadable(err)
				evidence[i] = policy.Evidence{Kind: s.Evidence, Problem: err.Error()}
				return
			}
			evidence[i] = loaded.Evaluate(s, objects)
		})
	}
	wait.Wait()
	for i, s := range signers {
		l.evidence[s] = evidence[i]
	}
}

// isSidecar: Argo CD asks, so the Application is the cluster's unless a file was given.
func (c *call) isSidecar() bool { return c.Getenv(envApp) != "" }

// Argo CD ends a plugin at the deadline of repo-server's request (argo-cd cmpserver/plugin runCommand), which a plugin is not told. An admin who
// changes it says so to the sidecar by ARGOCD_EXEC_TIMEOUT, the name that Argo CD's own programs go by (util/exec; 60 s is the least
// that any supported version has by default). What is left of it after reading is for deciding and printing.
const (
	envExecTimeout     = "ARGOCD_EXEC_TIMEOUT"
	defaultExecTimeout = 60 * time.Second
	timeToDecide       = 5 * time.Second
	leastToRead        = time.Second
)

// deadline is the one for all reading: that of the configuration, and always before Argo CD's.
func (c *call) deadline(now time.Time) time.Time {
	deadline := now.Add(c.config.Timeout())
	if c.Timeout > 0 {
		deadline = now.Add(c.Timeout)
	}
	if !c.isSidecar() {
		return deadline
	}
	exec := defaultExecTimeout
	if d, err := time.ParseDuration(c.Getenv(envExecTimeout)); err == nil && d > 0 {
		exec = d
	}
	last := c.began.Add(exec - min(timeToDecide, exec/4))
	if last.Before(now.Add(leastToRead)) {
		last = now.Add(leastToRead)
	}
	if last.Before(deadline) {
		return last
	}
	return deadline
}

// fromCluster reads all that a decision about these demands needs, at once and within one deadline. What cannot be read is unknown:
// an error would be cached by Argo CD, and then block the grants' own sync.
func (c *call) fromCluster(ctx context.Context, demands []demand.Demand) *live {
	l := &live{evidence: map[*config.Signer]policy.Evidence{}}
	signers := hold.Signers(c.config, demands, nil)
	ctx, cancel := context.WithDeadline(ctx, c.deadline(time.Now()))
	defer cancel()
	own, err := c.ownCluster()
	if err != nil {
		if !errors.Is(err, errNoCluster) {
			c.warn("%v", err)
		}
		l.unknown(signers, err)
		if c.asksForApplication() {
			c.applicationFromMemory(l, err)
			c.locate(l)
			c.alsoRendered(demands)
		}
		return l
	}

	var wait sync.WaitGroup
	known := make(chan struct{})
	wait.Go(func() {
		defer close(known)
		if c.asksForApplication() {
			c.readApplication(ctx, l, own, demands)
		}
	})
	if c.app != "" {
		wait.Go(func() { l.overrides = c.readOverrides(ctx, own) })
	}
	// Argo CD's own cluster is read without waiting for the Application where it can only be that one, or none.
	judgedBy, guessed := config.Placement{Project: c.project, Application: c.app}, len(c.config.Clusters) == 0
	wait.Go(func() {
		from := own
		if c.hasDestination() && !guessed {
			if _, err := c.config.Cluster(judgedBy); err != nil {
				<-known
				judgedBy = c.placement()
			}
			var err error
			if from, err = c.destination(own, judgedBy); err != nil {
				c.warn("%v", err)
				l.unknown(signers, err)
				return
			}
		}
		l.evaluate(ctx, signers, from, c.unreadable)
	})
	wait.Wait()
	if c.hasDestination() && guessed {
		if _, err := c.destination(own, c.placement()); err != nil {
			c.warn("%v", err)
			l.unknown(signers, err)
		}
	}
	if l.remembered {
		c.doubt(l)
	}
	c.locate(l)
	return l
}

// hasDestination: where the Application is Argo CD's, it says which cluster is meant. With one from a file, or none, the person who
// names a cluster means that one.
func (c *call) hasDestination() bool {
	return c.isSidecar() && c.Application == "" || c.applicationName != ""
}

func (c *call) asksForApplication() bool {
	return c.application == nil && c.isSidecar() && c.Application == ""
}

func (c *call) placement() config.Placement {
	p := config.Placement{Project: c.project, Application: c.app}
	if a := c.application; a != nil {
		p.Project = cmp.Or(p.Project, a.Spec.Project)
		p.Destination = &config.Destination{Server: a.Spec.Destination.Server, Name: a.Spec.Destination.Name}
	}
	return p
}

// destination is the cluster that an Application deploys to.
func (c *call) destination(own *loaded.Cluster, of config.Placement) (*loaded.Cluster, error) {
	cl, err := c.config.Cluster(of)
	if err != nil {
		return nil, err
	}
	if cl.InCluster {
		return own, nil
	}
	settings, err := kubeconfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: cl.Kubeconfig}, cl.Context)
	if err == nil {
		var cluster *loaded.Cluster
		if cluster, err = c.newCluster(settings); err == nil {
			return cluster, nil
		}
	}
	return nil, fmt.Errorf("cluster %s of the configuration: %w", cl.Name, err)
}

// doubt takes the grants of a cluster for unknown that is only remembered to be the Application's destination. What it refuses holds
// all the same.
func (c *call) doubt(l *live) {
	known := c.placement()
	known.Destination, known.Project = nil, c.Getenv(envProject)
	if _, err := c.config.Cluster(known); err == nil || !c.hasDestination() {
		return
	}
	for s, e := range l.evidence {
		l.evidence[s] = e.Doubt("the Application cannot be read, and may deploy to another cluster by now")
	}
}

// locate finds the rendered source in the Application that the cluster has. It may have changed since Argo CD asked.
func (c *call) locate(l *live) {
	if c.application == nil || c.at >= 0 {
		return
	}
	c.project = cmp.Or(c.project, c.application.Spec.Project)
	o := origin{repoURL: c.repoURL(), path: c.Getenv(envPath), targetRevision: c.Getenv(envTargetRevision)}
	at, err := o.find(c.application.sources())
	switch {
	case err != nil:
		c.problem = fmt.Errorf("application %s: %w", c.app, err)
	case at < 0:
		l.pastUnknown = "the Application has changed since Argo CD asked for this render"
		c.warn("%s: it has no source with repository %q and path %q", l.pastUnknown, o.repoURL, o.path)
		c.application = nil
	default:
		c.at = at
	}
}

// namespaced splits the name of an Application as people or Argo CD write it: NAME, NAMESPACE/NAME or NAMESPACE_NAME.
func (c *call) namespaced(application string) (namespace, name string) {
	namespace, name, elsewhere := strings.Cut(strings.Replace(application, "_", "/", 1), "/")
	if !elsewhere {
		return c.controlPlane(), application
	}
	return namespace, name
}

// getApplication gives the JSON of an Application. The error is a *loaded.ReadError.
func getApplication(ctx context.Context, from *loaded.Cluster, namespace, name string) ([]byte, error) {
	return from.Get(ctx, "Application "+namespace+"/"+name, "/apis/argoproj.io/v1alpha1/namespaces/"+namespace+"/applications/"+name)
}

// readApplication gets the Application that Argo CD asks about. One that is not there is known to have no past: Argo CD renders
// Applications before they are made, too.
func (c *call) readApplication(ctx context.Context, l *live, from *loaded.Cluster, demands []demand.Demand) {
	namespace, name := c.namespaced(c.app)
	raw, err := getApplication(ctx, from, namespace, name)
	if isMissing(err, name) {
		return
	}
	if err == nil {
		var a *Application
		if a, err = readApplicationJSON(raw); err == nil && (a.Metadata.Name != name || a.Metadata.Namespace != namespace) {
			err = fmt.Errorf("it is %s/%s", a.Metadata.Namespace, a.Metadata.Name)
		}
		if err == nil {
			c.application = a
			c.remember(a, demands)
			return
		}
		err = &loaded.ReadError{What: "Application " + namespace + "/" + name, Why: "the API server's answer is not that Application", Err: err}
	}
	c.unreadable(err)
	c.applicationFromMemory(l, err)
	c.alsoRendered(demands)
}

// isMissing: the API server says that it has no such object, not that it does not know the kind.
func isMissing(err error, name string) bool {
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name == name
}

// applicationFromMemory makes do with what was last read of the Application. What was released then was released, and counts as that
// where every render since has had it; what came later counts as new, and its cluster is doubted. All of that errs on the side of holding.
func (c *call) applicationFromMemory(l *live, why error) {
	var err error
	if c.application, l.since, err = c.recall(); err != nil {
		l.pastUnknown = fmt.Sprintf("the Application is not known (%v), and what an earlier revision had and this one has not is not kept", why)
		return
	}
	l.remembered = true
	c.warn("the Application cannot be read, so that what was last read of it counts")
}

// unreadable tells people all there is to know about what could not be read.
func (c *call) unreadable(err error) {
	var e *loaded.ReadError
	if errors.As(err, &e) {
		c.warn("reading %s: %v", e.What, e.Err)
		return
	}
	c.warn("%v", err)
}

func (c *call) warn(format string, args ...any) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if line := fmt.Sprintf(format, args...); !slices.Contains(c.warnings, line) {
		c.warnings = append(c.warnings, line)
	}
}

// serviceAccount is where a pod finds its credentials (client-go rest.InClusterConfig).
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

// controlPlane is the namespace of Argo CD.
func (c *call) controlPlane() string {
	if c.config.ArgoCDNamespace != "" {
		return c.config.ArgoCDNamespace
	}
	if c.isSidecar() {
		// The sidecar is a container of Argo CD's repo-server.
		if namespace, err := os.ReadFile(serviceAccount + "namespace"); err == nil && len(namespace) > 0 {
			return strings.TrimSpace(string(namespace))
		}
	}
	return controlPlaneNamespace
}

// ownCluster is Argo CD's, or the one that a person means: that of --kubeconfig and --context, else what KUBECONFIG names, else the one
// that this process runs in, else that of kubectl's usual file.
func (c *call) ownCluster() (*loaded.Cluster, error) {
	if c.own == nil {
		settings, err := c.ownSettings()
		if err != nil {
			return nil, err
		}
		if c.own, err = c.newCluster(settings); err != nil {
			return nil, err
		}
	}
	return c.own, nil
}

func (c *call) newCluster(settings *rest.Config) (*loaded.Cluster, error) {
	settings.UserAgent = "grantfirst/" + cmp.Or(c.Version, "dev")
	return loaded.NewCluster(settings)
}

func (c *call) ownSettings() (*rest.Config, error) {
	const variable = clientcmd.RecommendedConfigPathEnvVar
	switch {
	case c.Kubeconfig != "":
		return kubeconfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, c.Context)
	case c.Getenv(variable) != "":
		return kubeconfig(&clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(c.Getenv(variable))}, c.Context)
	case c.Context == "" && c.Getenv("KUBERNETES_SERVICE_HOST") != "":
		settings, err := rest.InClusterConfig()
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("this pod has no token (%w): mount one at %s as examples/argocd does", err, serviceAccount)
		}
		return settings, err
	case c.Getenv("HOME") != "":
		usual := filepath.Join(c.Getenv("HOME"), clientcmd.RecommendedHomeDir, clientcmd.RecommendedFileName)
		return kubeconfig(&clientcmd.ClientConfigLoadingRules{Precedence: []string{usual}}, c.Context)
	}
	return nil, errNoCluster
}

var errNoCluster = errors.New("no cluster to ask: name one with --kubeconfig or --context, or give its objects with --live")

// kubeconfig merges files as kubectl does.
func kubeconfig(rules *clientcmd.ClientConfigLoadingRules, kubeContext string) (*rest.Config, error) {
	merged, err := rules.Load()
	if err != nil {
		return nil, err
	}
	if _, ok := merged.Contexts[kubeContext]; kubeContext != "" && !ok {
		return nil, fmt.Errorf("context %q is in no kubeconfig: use one of %s", kubeContext, strings.Join(slices.Sorted(maps.Keys(merged.Contexts)), ", "))
	}
	settings, err := clientcmd.NewNonInteractiveClientConfig(*merged, kubeContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errNoCluster
	}
	return settings, err
}
