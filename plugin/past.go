package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
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
		at, err := origin{repoURL: source.RepoURL, path: source.Path}.find(sources)
		if err != nil || at < 0 || at >= len(revisions) {
			// A sync from before the source had this repository and path rendered something else.
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
	result, err := render.Render(repo, c.dir, o)
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
