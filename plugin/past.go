package plugin

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/render"
)

// past gives the syncs of the rendered source that Argo CD remembers, newest first, each with a way to render it again.
func (c *call) past() []hold.Entry {
	source := c.source()
	if source == nil {
		return nil
	}
	current := ""
	if revision := c.Getenv(envRevision); revision != "" {
		current = hold.Key(revision, source.Raw)
	}
	var out []hold.Entry
	for _, h := range slices.Backward(c.application.Status.History) {
		sources, revisions := h.sources()
		at := 0
		if len(sources) != 1 || len(c.application.sources()) != 1 {
			// The only source of an Application stays the same one wherever it points to; of several each is known by where it points.
			var err error
			if at, err = (origin{repoURL: source.RepoURL, path: source.Path}).find(sources); err != nil {
				at = -1
			}
		}
		if at < 0 || at >= len(revisions) {
			// The Application did not have this source then, so it rendered nothing.
			out = append(out, hold.Entry{Key: hold.Key("", h.raw()), Render: func() (*manifest.Stream, error) { return &manifest.Stream{}, nil }})
			continue
		}
		entry, revision := sources[at], revisions[at]
		key := hold.Key(revision, entry.Raw)
		out = append(out, hold.Entry{
			Key:     key,
			Current: key == current,
			Render:  func() (*manifest.Stream, error) { return c.renderAgain(&entry, revision) },
		})
	}
	return out
}

// renderAgain renders an earlier revision out of the repository's own .git, with the parameters it had then.
func (c *call) renderAgain(s *Source, revision string) (*manifest.Stream, error) {
	if c.Path == "-" {
		return nil, errors.New("an earlier revision cannot be rendered from a stream on standard input")
	}
	if s.RepoURL != c.source().RepoURL {
		return nil, fmt.Errorf("revision %s is of another repository, %s", revision, s.RepoURL)
	}
	if _, err := hex.DecodeString(revision); err != nil || len(revision) != 40 {
		return nil, fmt.Errorf("revision %q is not the id of a commit", revision)
	}
	dir := c.dir
	if s.Path != "" {
		dir = path.Clean(s.Path)
	}
	repo, err := render.Revision(filepath.Join(c.root, ".git"), revision)
	if err != nil {
		return nil, err
	}
	o := render.Options{
		Application: c.options.Application, Namespace: c.options.Namespace,
		KubeVersion: c.options.KubeVersion, APIVersions: c.options.APIVersions,
		Env: c.buildEnvironment(revision),
	}
	if err := s.options(&o); err != nil {
		return nil, fmt.Errorf("revision %s: %w", revision, err)
	}
	result, err := render.Render(repo, dir, o)
	if err != nil {
		return nil, fmt.Errorf("revision %s: %w", revision, err)
	}
	stream, err := manifest.Parse(result.Stream)
	if errors.Is(err, manifest.ErrEmpty) {
		return &manifest.Stream{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("revision %s: %w", revision, err)
	}
	return stream, nil
}

// options puts the parameters of a source into o. A source from before the Application used the plugin has those of Argo CD's own
// tools instead.
func (s *Source) options(o *render.Options) error {
	if s.Plugin == nil {
		return s.toolOptions(o)
	}
	values := make([]render.ParameterValue, len(s.Plugin.Parameters))
	for i, p := range s.Plugin.Parameters {
		if err := json.Unmarshal(p, &values[i]); err != nil {
			return fmt.Errorf("source.plugin.parameters[%d]: %w", i, err)
		}
	}
	return o.Set(values)
}

// RenderOptions says how the sidecar renders one of the sources of an Application, as far as the Application and the revision tell: not the
// versions of the cluster. controlPlane is Argo CD's namespace.
func (a *Application) RenderOptions(at int, controlPlane, revision string) (render.Options, error) {
	nothing := func(string) string { return "" }
	c := &call{Request: &Request{Getenv: nothing}, application: a, at: at, app: a.instanceName(controlPlane), project: a.Spec.Project}
	c.options = render.Options{Application: c.app, Namespace: a.Spec.Destination.Namespace}
	c.options.Env = c.buildEnvironment(revision)
	err := c.parameters(&c.options)
	return c.options, err
}
