package gate

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/loaded"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
	"github.com/grantfirst/grantfirst/lib/render"
)

// Files are policy objects from files: manifests, or folders that are rendered as the plugin would (a checkout of another repository).
type Files struct {
	objects map[*config.Signer]standing
}

// ReadPolicies reads the policy objects of the configured signers.
func (g *Gate) ReadPolicies(paths ...string) (*Files, error) {
	if err := g.prepare(); err != nil {
		return nil, err
	}
	f := &Files{objects: map[*config.Signer]standing{}}
	for _, p := range paths {
		if _, err := os.Stat(p); err != nil {
			return nil, err
		}
		repo, dir, err := render.Open(p, "")
		if err != nil {
			return nil, err
		}
		result, err := render.Render(repo, dir, render.Options{KubeVersion: g.KubeVersion, APIVersions: g.APIVersions})
		if err != nil {
			return nil, err
		}
		stream, err := manifest.Parse(result.Stream)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		objects, err := g.policiesIn(stream, "")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		if len(objects) == 0 {
			return nil, fmt.Errorf("%s: no policy object of a configured signer in it: give manifests, as the signer's configuration selects them", p)
		}
		for i := range objects {
			f.objects[objects[i].signer] = append(f.objects[objects[i].signer], &objects[i])
		}
	}
	return f, nil
}

// Decide implements External.
func (f *Files) Decide(_ context.Context, s *config.Signer, d *demand.Demand) (policy.Answer, bool) {
	return f.objects[s].answer(d)
}

// Live are signers as they are in a cluster, or in files that stand for one: granted is what every live replica would grant.
type Live struct {
	Source loaded.Source

	mu       sync.Mutex
	evidence map[*config.Signer]*policy.Evidence
}

// Decide implements External. Each signer is read once.
func (l *Live) Decide(ctx context.Context, s *config.Signer, d *demand.Demand) (policy.Answer, bool) {
	l.mu.Lock()
	e, ok := l.evidence[s]
	if !ok {
		e = &policy.Evidence{Kind: s.Evidence}
		objects, err := l.Source.Objects(ctx, s)
		if err != nil {
			e.Problem = err.Error()
		} else {
			*e = loaded.Evaluate(s, objects)
		}
		if l.evidence == nil {
			l.evidence = map[*config.Signer]*policy.Evidence{}
		}
		l.evidence[s] = e
	}
	l.mu.Unlock()
	return e.Decide(d, true).Answer, true
}

// Several asks one after the other until one knows the signer.
type Several []External

// Decide implements External.
func (all Several) Decide(ctx context.Context, s *config.Signer, d *demand.Demand) (policy.Answer, bool) {
	for _, e := range all {
		if a, ok := e.Decide(ctx, s, d); ok {
			return a, true
		}
	}
	return policy.Answer{Decision: policy.Unknown}, false
}
