// Package hold decides what Argo CD may touch now.
//
// In go a rendered manifest stream, the admin's configuration, what the signers have loaded and what Argo CD knows of the
// Application; out comes a Plan: the demands with their verdicts, what goes out as what, and the stream that says so to Argo CD. The
// package asks no cluster, no clock and no environment, and the same inputs give the same bytes (docs/design.md sections 4 and 9).
package hold

import (
	"errors"
	"fmt"
	"slices"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// Input is all that a decision depends on.
type Input struct {
	Stream *manifest.Stream
	// Demands are those of Stream, by demand.InStream with the same Namespace.
	Demands []demand.Demand
	// Application is the name as Argo CD gives it to plugins: "name", or "namespace_name" outside Argo CD's own namespace.
	Application string
	// Namespace is the destination namespace: that of objects which name none.
	Namespace string
	// Source tells the sources of one Application apart; it must stay the same from one revision to the next. A hold may also have been
	// made under OtherSource, where that is not empty, because the Application could not be read then.
	Source, OtherSource string
	// Config is the admin's; Mode and Marker are what it says for this Application.
	Config *config.Config
	Mode   config.Mode
	Marker string
	// Evidence says what the configured signers have loaded, at least those that Demands and Asking name; see Signers.
	Evidence map[*config.Signer]policy.Evidence
	// Asking are the demands of live pods, of other Applications too; nil where they cannot be seen.
	Asking []demand.Asker
	// Past is what earlier syncs of this source rendered, newest first; nil where nothing is known of them. PastUnknown then says why
	// where that is no matter of course.
	Past        []Entry
	PastUnknown string
	// Since, where it is not nil, has by DemandKey what every render since Past was known has had. Past is then an old one, and what is not
	// in Since counts as new even if that had it.
	Since map[string]bool
	// Tracked is the Application's status.resources.
	Tracked []Resource
	// Sources is the number of sources of the Application; with several, Tracked has the objects of all of them.
	Sources int
	// ServerSideDiff is true where the Application compares by a server-side dry run, which refuses incomplete objects.
	ServerSideDiff bool
	// Overrides let demands go without their grants; those that have run out must not be among them.
	Overrides []Override
}

// Override is an admin's decision to let demands of an Application go for a time (docs/design.md rule 9.5). Empty fields fit any demand.
type Override struct {
	SignerName, Namespace, ServiceAccount string
	// Reason and Until are for people.
	Reason, Until string
}

func (o *Override) fits(d *demand.Demand) bool {
	return (o.SignerName == "" || o.SignerName == d.SignerName) && (o.Namespace == "" || o.Namespace == d.Namespace) &&
		(o.ServiceAccount == "" || o.ServiceAccount == d.ServiceAccount)
}

// isWhole: it lets go whatever the Application is held for.
func (o *Override) isWhole() bool { return *o == Override{Reason: o.Reason, Until: o.Until} }

// String says how long and why.
func (o *Override) String() string { return fmt.Sprintf("override until %s: %s", o.Until, o.Reason) }

// Entry is one sync of this source that Argo CD remembers (status.history).
type Entry struct {
	// Key names the revision together with the source parameters it was rendered with; see Key.
	Key string
	// Current is true where the entry's revision and parameters are those of Input.Stream.
	Current bool
	// Render gives what was rendered then, or an error that says why that cannot be had.
	Render func() (*manifest.Stream, error)
}

// Resource is one entry of status.resources.
type Resource struct {
	Group, Version, Kind, Namespace, Name string
	// Hook is true for live hooks, which Argo CD never prunes.
	Hook bool
}

// Demand is one demand of the render with all that was found out about it.
type Demand struct {
	demand.Demand
	policy.Verdict
	// New: the last released render of this source did not have it. NewBecause says why it counts as new where that render is not known.
	New        bool
	NewBecause string
	// Evidence is the kind of evidence the verdict rests on; empty where the signer is not configured.
	Evidence string
	Unproven bool
	// Holds is true where this demand is a reason to hold.
	Holds bool
	// Override is the one that lets a demand go which would hold.
	Override *Override
	// Wanted is the revision of the policy that would grant it; empty where no policy is known to.
	Wanted string

	signer *config.Signer
	place  place
}

// Plan is the decision about one stream.
type Plan struct {
	// Held is true where something is held, or in mode observe would be.
	Held bool
	// Observe is true where the plain render goes out whatever Held says.
	Observe bool
	Demands []Demand
	// Removals are grants that the render takes away too early.
	Removals []Removal
	// Revoked announces grants that are taken away at once because the policy object says so; one line each.
	Revoked []string
	// Overridden announces removals that an override lets go; one line each.
	Overridden []string
	// Problem is set in mode observe only: why nothing could be decided. The plain render goes out all the same.
	Problem string

	in   Input
	base base
	// heldPolicies are the policy objects of the render that must stay as they are.
	heldPolicies []*policyObject
	// switching: a demand holds, so all of the source waits; else only what heldPolicies concerns.
	switching bool
	objects   []object
	keepers   []keeper
	marker    *marker
}

// Make decides. The errors it returns are those that a person must end in Git or in the configuration; what waiting may cure is a hold.
// In mode observe it never fails.
func Make(in Input) (*Plan, error) {
	p := &Plan{in: in, Observe: in.Mode == config.Observe}
	err := p.make()
	if err != nil && p.Observe {
		return Undecided(in.Stream, err), nil
	}
	return p, err
}

// Undecided is the plan of mode observe where err keeps anything from being decided: the plain render.
func Undecided(stream *manifest.Stream, err error) *Plan {
	return &Plan{in: Input{Stream: stream}, Observe: true, Problem: err.Error()}
}

func (p *Plan) make() error {
	if err := p.refuseForgery(); err != nil {
		return err
	}
	p.base = newBase(p.in)
	if err := p.decide(); err != nil {
		return err
	}
	if err := p.findRemovals(); err != nil {
		return err
	}
	p.overrideRemovals()
	p.Held = p.switching || len(p.Removals) > 0
	if !p.Held {
		return nil
	}
	if err := p.explainWaiting(); err != nil {
		return err
	}
	return p.place()
}

// Signers gives the configured signers that the demands and askers name, in the order of the configuration: those whose evidence a
// decision needs.
func Signers(c *config.Config, demands []demand.Demand, asking []demand.Asker) []*config.Signer {
	named := map[*config.Signer]bool{}
	for i := range demands {
		named[c.Signer(demands[i].SignerName)] = true
	}
	for i := range asking {
		named[c.Signer(asking[i].Demand.SignerName)] = true
	}
	var out []*config.Signer
	for i := range c.Signers {
		if named[&c.Signers[i]] {
			out = append(out, &c.Signers[i])
		}
	}
	return out
}

func (p *Plan) evidence(s *config.Signer) *policy.Evidence {
	e, ok := p.in.Evidence[s]
	if !ok {
		e = policy.Evidence{Kind: s.Evidence, Problem: "nothing was read about it"}
	}
	return &e
}

// decide gives every demand its verdict and says whether it holds.
func (p *Plan) decide() error {
	heads := map[int][]manifest.Head{}
	for _, f := range p.in.Demands {
		if _, ok := heads[f.Document]; !ok {
			h, err := p.in.Stream.Documents[f.Document-1].Heads()
			if err != nil {
				return err
			}
			heads[f.Document] = h
		}
		d := Demand{Demand: f, signer: p.in.Config.Signer(f.SignerName), place: p.placeOf(heads[f.Document][f.Item])}
		if d.place == placeSkipped {
			// Its author keeps Argo CD from applying it, so no pod of it will ask.
			continue
		}
		if d.signer == nil {
			if err := p.unknownSigner(&d); err != nil {
				return err
			}
			p.Demands = append(p.Demands, d)
			continue
		}
		e := p.evidence(d.signer)
		d.Evidence, d.Unproven = e.Kind, e.Unproven
		// Only a verdict that is not an outright grant depends on what was released, and finding that out costs a render.
		d.Verdict = e.Decide(&d.Demand, true)
		if d.Decision != policy.Granted {
			d.New, d.NewBecause = p.base.isNew(&d.Demand)
			d.Verdict = e.Decide(&d.Demand, d.New)
		}
		d.Holds = d.place.holds() && (d.Decision == policy.NotGranted || d.Decision == policy.Unknown && d.New)
		if d.Holds && d.Decision == policy.Unknown && p.in.PastUnknown != "" {
			d.Message += "; it counts as new because " + p.in.PastUnknown
		}
		p.override(&d)
		p.switching = p.switching || d.Holds
		p.Demands = append(p.Demands, d)
	}
	return nil
}

// ReasonUnknownSigner is the reason of a demand for a signer that the configuration does not have.
const ReasonUnknownSigner = "UnknownSigner"

func (p *Plan) unknownSigner(d *Demand) error {
	d.Decision, d.Reason = policy.Unknown, ReasonUnknownSigner
	d.Message = fmt.Sprintf("signer %s is not in the configuration: add it to signers, or set unknownSigner: allow", d.SignerName)
	switch p.in.Config.UnknownSigner {
	case config.UnknownError:
		return fmt.Errorf("%s: volume %q: %s", d.Object, d.Volume, d.Message)
	case config.UnknownAllow:
		d.Message = fmt.Sprintf("signer %s is not in the configuration, which allows that (unknownSigner: allow)", d.SignerName)
	default:
		d.New, d.NewBecause = p.base.isNew(&d.Demand)
		d.Holds = d.place.holds() && d.New
		p.override(d)
		p.switching = p.switching || d.Holds
	}
	return nil
}

func (p *Plan) override(d *Demand) {
	for i := range p.in.Overrides {
		if o := &p.in.Overrides[i]; d.Holds && o.fits(&d.Demand) {
			d.Holds, d.Override = false, o
			return
		}
	}
}

// overrideRemovals lets go what is held because of grants that are taken away. Only an override of the whole Application does.
func (p *Plan) overrideRemovals() {
	i := slices.IndexFunc(p.in.Overrides, func(o Override) bool { return o.isWhole() })
	if i < 0 {
		return
	}
	for _, r := range p.Removals {
		p.Overridden = append(p.Overridden, fmt.Sprintf("%s: %s", &p.in.Overrides[i], r.Message))
	}
	p.Removals = nil
	p.heldPolicies = nil
}

// ErrForged is wrapped by the error for a render that contains an object which only grantfirst may make.
var ErrForged = errors.New("only grantfirst itself makes an object of this name")

// refuseForgery keeps a source from shipping an object that looks like this source's marker. The marker's name says what was last
// released, so a forged one would make a new demand look released (docs/design.md rule 9.5).
func (p *Plan) refuseForgery() error {
	for _, doc := range p.in.Stream.Documents {
		// Not the whole prefix: only for a plain word there is a cheap proof that a document lacks it.
		if !doc.MayHave("grantfirst") {
			continue
		}
		heads, err := doc.Heads()
		if err != nil {
			return err
		}
		for _, h := range heads {
			if _, ok := p.in.markerBase(h.Group(), h.Kind, h.Name); ok {
				return &manifest.Error{Document: doc.Number, Line: doc.Line, Object: h.ID.String(), Err: ErrForged, Fix: "remove it from the source"}
			}
		}
	}
	return nil
}

// LetGo reports whether the demand goes out although it is not known to be loaded, because it was released before.
func (d *Demand) LetGo() bool {
	return d.Decision == policy.Unknown && !d.Holds && d.Override == nil && !d.New && d.place.holds() && d.Reason != ReasonUnknownSigner
}
