// Package plugin is what Argo CD calls: its environment and the command line in, a plan for the manifests out.
//
// It gathers all that a decision depends on (configuration, render, evidence, Application, history) and hands it to package hold. It
// decides nothing itself and prints nothing. A cluster is asked only where the render has demands, with a number of requests that does
// not depend on how many.
package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/loaded"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
	"github.com/grantfirst/grantfirst/lib/render"
)

// DefaultConfig is where the configuration is read from when nothing names another place.
const DefaultConfig = "/etc/grantfirst/config.yaml"

// Environment variables of Argo CD's plugin protocol (argo-cd docs/operator-manual/config-management-plugins.md) and of grantfirst.
const (
	envConfig         = "GRANTFIRST_CONFIG"
	envApp            = "ARGOCD_APP_NAME"
	envNamespace      = "ARGOCD_APP_NAMESPACE"
	envProject        = "ARGOCD_APP_PROJECT_NAME"
	envRevision       = "ARGOCD_APP_REVISION"
	envRepoURL        = "ARGOCD_APP_SOURCE_REPO_URL"
	envPath           = "ARGOCD_APP_SOURCE_PATH"
	envTargetRevision = "ARGOCD_APP_SOURCE_TARGET_REVISION"
	envParameters     = "ARGOCD_APP_PARAMETERS"
	envKubeVersion    = "KUBE_VERSION"
	envAPIVersions    = "KUBE_API_VERSIONS"
)

// Request is one call of the plugin. Empty fields fall back to the Application's file and then to the environment.
type Request struct {
	// Path is what to render: a directory, a manifest file, or "-" for a manifest stream on Stdin.
	Path  string
	Stdin io.Reader
	// Config is the configuration file.
	Config string
	// Live are files or directories with Kubernetes objects that stand for the cluster; no cluster is asked then.
	Live []string
	// Kubeconfig and Context name the cluster to ask, as kubectl's flags of that name do.
	Kubeconfig, Context string
	// Timeout is how long all reading from clusters may take; zero is what the configuration says.
	Timeout time.Duration
	// Application is a file with the Argo CD Application, or its name, by which it is looked for in Live or in the cluster.
	Application string
	Namespace   string
	App         string
	// Render is how to render: auto, directory, kustomize or helm.
	Render string
	// Version is grantfirst's own, by which API servers know who asks.
	Version string
	// Getenv is os.Getenv.
	Getenv func(string) string
}

// Outcome is the plan with what its caller has to say about it.
type Outcome struct {
	*hold.Plan
	Application, Namespace string
	// Warnings are for people, one line each.
	Warnings []string
}

// call is a request with all that was found out about it.
type call struct {
	*Request
	config      *config.Config
	application *Application
	// at is the index of the rendered source in the Application, -1 where it is not known.
	at      int
	app     string
	project string
	// root is the repository on disk, repo the same confined, dir the slash path in it that is rendered.
	root     string
	repo     fs.FS
	dir      string
	options  render.Options
	origins  []render.Origin
	snapshot *loaded.Snapshot

	// began is when the call did.
	began time.Time
	// applicationName is set where the Application was asked for by its name, and came from the cluster.
	applicationName string
	own             *loaded.Cluster
	// onlyReads: this is no render, so that nothing is remembered of it.
	onlyReads bool
	// problem is what a person must end in the Application.
	problem error

	mutex    sync.Mutex
	warnings []string
}

// Plan gathers what the decision depends on and makes it. The plan is nil only with an error.
func (r *Request) Plan(ctx context.Context) (*Outcome, error) {
	c := &call{Request: r, at: -1, began: time.Now()}
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	stream, err := c.stream()
	if err != nil {
		return nil, err
	}
	out := &Outcome{Application: c.app, Namespace: c.options.Namespace}
	demands, unreadable := demand.InStream(stream, c.options.Namespace)
	live, err := c.read(ctx, demands)
	if err != nil {
		return nil, err
	}
	mode, marker := c.config.For(c.project, c.app)
	if c.application != nil && c.application.Spec.SourceHydrator != nil && mode == config.Enforce {
		// What the plugin prints is committed to Git: a hold would become the desired state.
		mode = config.Observe
		c.warn("the Application uses the source hydrator, which commits what is printed here: nothing is held; use the pre-merge check instead")
	}
	slices.Sort(c.warnings)
	out.Warnings = c.warnings
	if unreadable == nil {
		unreadable = c.problem
	}
	if unreadable != nil {
		if mode != config.Observe {
			return nil, c.located(unreadable)
		}
		out.Plan = hold.Undecided(stream, unreadable)
		return out, nil
	}
	in := hold.Input{
		Stream:      stream,
		Demands:     demands,
		Application: c.app,
		Namespace:   c.options.Namespace,
		Source:      c.sourceID(),
		OtherSource: c.otherSourceID(),
		Config:      c.config,
		Mode:        mode,
		Marker:      marker,
		Evidence:    live.evidence,
		Asking:      live.asking,
		Overrides:   live.overrides,
		PastUnknown: live.pastUnknown,
		Since:       live.since,
	}
	if c.application != nil {
		in.Tracked = c.application.tracked()
		in.Sources = len(c.application.sources())
		in.ServerSideDiff = c.application.serverSideDiff()
		in.Past = c.past()
	}
	if out.Plan, err = hold.Make(in); err != nil {
		return nil, c.located(err)
	}
	return out, nil
}

// prepare reads everything that is not the render itself.
func (c *call) prepare(ctx context.Context) error {
	if err := c.readConfig(); err != nil {
		return err
	}
	if len(c.Live) > 0 {
		var err error
		if c.snapshot, err = loaded.Read(c.Live...); err != nil {
			return fmt.Errorf("live objects: %w", err)
		}
	}
	if c.snapshot == nil && (c.Kubeconfig != "" || c.Context != "") {
		// A person named it, so that a mistake in it is one to be told, and not something that waiting may cure.
		if _, err := c.ownCluster(); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
	}
	if c.Application != "" {
		if err := c.findApplication(ctx); err != nil {
			return fmt.Errorf("application: %w", err)
		}
	}
	from := c.application
	if from == nil {
		from = &Application{}
	}
	c.app = cmp.Or(c.App, c.Getenv(envApp), from.instanceName(c.controlPlane()))
	c.project = cmp.Or(c.Getenv(envProject), from.Spec.Project)
	c.options = render.Options{
		Application: c.app,
		Namespace:   cmp.Or(c.Namespace, c.Getenv(envNamespace), from.Spec.Destination.Namespace),
		KubeVersion: c.Getenv(envKubeVersion),
	}
	if list := c.Getenv(envAPIVersions); list != "" {
		c.options.APIVersions = strings.Split(list, ",")
	}
	if c.snapshot != nil && c.snapshot.About != nil {
		c.options.KubeVersion = cmp.Or(c.options.KubeVersion, c.snapshot.About.KubeVersion)
		if c.options.APIVersions == nil {
			c.options.APIVersions = c.snapshot.About.APIVersions
		}
	}
	if err := c.open(); err != nil {
		return err
	}
	c.options.Env = c.buildEnvironment(c.Getenv(envRevision))
	return c.parameters(&c.options)
}

// buildEnvironment is what Argo CD replaces in the parameters of its own tools (argo-cd reposerver/repository/repository.go, newEnv).
func (c *call) buildEnvironment(revision string) map[string]string {
	env := map[string]string{
		envApp: c.app, envNamespace: c.options.Namespace, envProject: c.project, envRevision: revision,
		envRevision + "_SHORT":   revision[:min(len(revision), 7)],
		envRevision + "_SHORT_8": revision[:min(len(revision), 8)],
		envRepoURL:               c.Getenv(envRepoURL), envPath: c.Getenv(envPath), envTargetRevision: c.Getenv(envTargetRevision),
		envKubeVersion: c.Getenv(envKubeVersion), envAPIVersions: c.Getenv(envAPIVersions),
	}
	if s := c.source(); s != nil {
		env[envRepoURL], env[envPath], env[envTargetRevision] = s.RepoURL, s.Path, s.TargetRevision
	}
	return env
}

func (c *call) readConfig() error {
	file := cmp.Or(c.Config, c.Getenv(envConfig))
	named := file != ""
	file = cmp.Or(file, DefaultConfig)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !named && c.Getenv(envApp) == "" {
		c.config = config.Default()
		return nil
	}
	if err != nil {
		return fmt.Errorf("configuration: %w: name an existing file with --config or %s", err, envConfig)
	}
	if c.config, err = config.Parse(data); err != nil {
		return fmt.Errorf("configuration: %s: %w", file, err)
	}
	return nil
}

// open finds the repository and which of the Application's sources is asked for.
func (c *call) open() error {
	o := origin{repoURL: c.repoURL(), path: c.Getenv(envPath), targetRevision: c.Getenv(envTargetRevision)}
	if c.Path != "-" {
		var err error
		if c.root, c.dir, err = render.Locate(c.Path, o.path); err != nil {
			return err
		}
		if c.repo, _, err = render.Open(c.Path, o.path); err != nil {
			return err
		}
	}
	if c.application == nil {
		return nil
	}
	sources := c.application.sources()
	if o.path == "" {
		o.path = c.dir
	}
	if len(sources) == 1 && c.repoURL() == "" {
		c.at = 0
		return nil
	}
	var err error
	if c.at, err = o.find(sources); err != nil {
		return err
	}
	if c.at < 0 {
		return fmt.Errorf("application %s: none of its sources has path %q: run in the path of one, or give an Application of this source", c.app, o.path)
	}
	return nil
}

// source is the source of the Application that is rendered, nil where that is not known.
func (c *call) source() *Source {
	if c.application == nil || c.at < 0 {
		return nil
	}
	return &c.application.sources()[c.at]
}

func (c *call) sourceID() string {
	if c.application != nil && len(c.application.sources()) == 1 {
		// It stays the same source wherever it points to, and so does its hold.
		return ""
	}
	if s := c.source(); s != nil {
		for i, other := range c.application.sources() {
			if i != c.at && other.id() == s.id() {
				return s.id() + "@" + s.TargetRevision
			}
		}
		return s.id()
	}
	return c.askedFor()
}

// askedFor is the identity of the source by what Argo CD says when it asks, without the Application.
func (c *call) askedFor() string {
	if url := c.repoURL(); url != "" {
		return (&Source{RepoURL: url, Path: c.Getenv(envPath)}).id()
	}
	return ""
}

// otherSourceID is the one that a hold has where the Application could not be read, when it was not known to have only one source.
func (c *call) otherSourceID() string {
	id := c.askedFor()
	if s := c.source(); s != nil {
		id = s.id()
	}
	if id == c.sourceID() {
		return ""
	}
	return id
}

func (c *call) repoURL() string { return withoutUser(c.Getenv(envRepoURL)) }

// parameters puts the Application's parameters into o: those of the environment, else those of the Application's file. Flags win.
func (c *call) parameters(o *render.Options) error {
	if text := c.Getenv(envParameters); text != "" {
		var values []render.ParameterValue
		if err := json.Unmarshal([]byte(text), &values); err != nil {
			return fmt.Errorf("%s: %w", envParameters, err)
		}
		if err := o.Set(values); err != nil {
			return err
		}
	} else if s := c.source(); s != nil && c.Path != "-" {
		if err := s.options(o); err != nil {
			return fmt.Errorf("application %s: %w", c.app, err)
		}
	}
	if c.Render != "" {
		o.Render = c.Render
	}
	return nil
}

func (c *call) stream() (*manifest.Stream, error) {
	var raw []byte
	if c.Path == "-" {
		var err error
		if raw, err = readAll(c.Stdin); err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
	} else {
		result, err := render.Render(c.repo, c.dir, c.options)
		if err != nil {
			return nil, err
		}
		raw, c.origins = result.Stream, result.Origins
		for _, s := range result.Skipped {
			c.warnings = append(c.warnings, s.Path+": left out: "+s.Why)
		}
	}
	stream, err := manifest.Parse(raw)
	if err == nil {
		err = notEmpty(stream)
	}
	if errors.Is(err, manifest.ErrEmpty) {
		if c.config.AllowEmpty {
			return &manifest.Stream{}, nil
		}
		return nil, fmt.Errorf("%s: %w: with prune on that would delete the whole Application; set allowEmpty in the configuration if it is meant", c.where(), err)
	}
	if err != nil {
		return nil, c.located(err)
	}
	return stream, nil
}

// notEmpty refuses a stream of nothing but empty lists: to Argo CD that is no object at all.
func notEmpty(stream *manifest.Stream) error {
	for _, doc := range stream.Documents {
		if heads, err := doc.Heads(); err != nil || len(heads) > 0 {
			return err
		}
	}
	return fmt.Errorf("%w: there are only empty lists", manifest.ErrEmpty)
}

// readAll is io.ReadAll for large streams: that one copies what it has five times on the way, and needs twice the memory. A file is
// read in one piece.
func readAll(r io.Reader) ([]byte, error) {
	size := 64 << 10
	if f, ok := r.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = int(info.Size()) + 1
		}
	}
	var chunks [][]byte
	for ; ; size = min(2*size, 8<<20) {
		chunk := make([]byte, size)
		n, err := io.ReadFull(r, chunk)
		chunks = append(chunks, chunk[:n])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			if len(chunks) == 1 {
				return chunks[0], nil
			}
			return slices.Concat(chunks...), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (c *call) where() string {
	if c.Path == "-" {
		return "standard input"
	}
	return path.Clean(c.dir)
}

// located makes an error about the stream name where a person finds it: the file and the line in it where they are known, else the
// directory or standard input.
func (c *call) located(err error) error {
	var e *manifest.Error
	if !errors.As(err, &e) {
		return err
	}
	at := -1
	for i, o := range c.origins {
		if o.Line <= e.Line {
			at = i
		}
	}
	if at < 0 {
		return fmt.Errorf("%s: %w", c.where(), err)
	}
	object, fix := "", ""
	if e.Object != "" {
		object = e.Object + ": "
	}
	if e.Fix != "" {
		fix = ": " + e.Fix
	}
	return fmt.Errorf("%s: line %d: %s%w%s", c.origins[at].Path, e.Line-c.origins[at].Line+1, object, e.Err, fix)
}

// read gives what a decision about these demands depends on. A render without demands needs nothing.
func (c *call) read(ctx context.Context, demands []demand.Demand) (*live, error) {
	switch {
	case c.snapshot != nil:
		return c.fromFiles(ctx, demands)
	case len(demands) == 0:
		if c.isSidecar() {
			c.alsoRendered(nil)
		}
		return &live{}, nil
	}
	return c.fromCluster(ctx, demands), nil
}

func (c *call) fromFiles(ctx context.Context, demands []demand.Demand) (*live, error) {
	l := &live{evidence: map[*config.Signer]policy.Evidence{}}
	if c.snapshot.About != nil {
		l.pastUnknown = c.snapshot.About.ApplicationUnknown
	}
	var err error
	if l.asking, err = c.snapshot.Asking(); err != nil {
		return nil, fmt.Errorf("live objects: %w", err)
	}
	l.evaluate(ctx, hold.Signers(c.config, demands, l.asking), c.snapshot, func(error) {})
	if cm := c.snapshot.ConfigMap(c.controlPlane(), OverridesName); cm != nil {
		var at time.Time
		if c.snapshot.About != nil {
			at = c.snapshot.About.TakenAt.Time
		}
		l.overrides = c.inForce(cm, at)
	}
	return l, nil
}

// Parameters is the announcement that Argo CD shows as the form of an Application, for the repository at dir.
func (r *Request) Parameters() ([]render.Parameter, error) {
	repo, dir, err := render.Open(r.Path, r.Getenv(envPath))
	if err != nil {
		return nil, err
	}
	return render.Announce(repo, dir)
}
