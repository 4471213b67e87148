package hold

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// waiting gives the demands that hold, in the order of the stream.
func (p *Plan) waiting() []*Demand {
	var out []*Demand
	for i := range p.Demands {
		if p.Demands[i].Holds {
			out = append(out, &p.Demands[i])
		}
	}
	return out
}

// WaitingFor is the reason of the hold in one line; empty where nothing is held.
func (p *Plan) WaitingFor() string {
	var reasons lines
	if p.switching && len(p.Removals) > 0 {
		reasons.add("this revision gives one grant and takes away another that is still used, and each waits for the other: ship them apart")
	}
	for _, d := range p.waiting() {
		reasons.add(fmt.Sprintf("%s for %s/%s: %s", d.SignerName, d.Namespace, d.ServiceAccount, d.Message))
	}
	for _, r := range p.Removals {
		reasons.add(r.Message)
	}
	return reasons.String()
}

// waitsFor is what held objects say: which grants are waited for, and nothing that changes while the replicas load them.
func (p *Plan) waitsFor() string {
	var grants lines
	for _, d := range p.waiting() {
		grants.add(fmt.Sprintf("%s for %s/%s", d.SignerName, d.Namespace, d.ServiceAccount))
	}
	for _, r := range p.Removals {
		d := &r.Asker.Demand
		grants.add(fmt.Sprintf("%s for %s/%s", d.SignerName, d.Namespace, d.ServiceAccount))
	}
	return grants.String()
}

// lines collects texts without repeating any, and prints as many as a person reads.
type lines struct {
	seen  map[string]bool
	first []string
}

func (l *lines) add(text string) {
	if l.seen[text] {
		return
	}
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	l.seen[text] = true
	if len(l.first) < 3 {
		l.first = append(l.first, text)
	}
}

func (l *lines) String() string {
	text := strings.Join(l.first, "; ")
	if more := len(l.seen) - len(l.first); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// explainWaiting tells a demand that nobody grants from one whose grant is only not loaded yet: only the second ends by waiting.
func (p *Plan) explainWaiting() error {
	wanted := map[*config.Signer]policy.Alternatives{}
	for _, d := range p.waiting() {
		if d.signer == nil {
			continue
		}
		if _, ok := wanted[d.signer]; !ok {
			rendered, err := p.rendered(d.signer)
			if err != nil {
				return err
			}
			wanted[d.signer] = p.wanted(d.signer, rendered)
		}
		d.Message = p.waitingMessage(d, wanted[d.signer])
	}
	return nil
}

func (p *Plan) waitingMessage(d *Demand, wanted policy.Alternatives) string {
	if len(wanted) == 0 {
		if p.evidence(d.signer).Problem != "" {
			// What is live is not known either.
			return d.Message
		}
		if d.signer.Policy.Resource != nil {
			return fmt.Sprintf("%s; no %s of this signer in this render or in the cluster", d.Message, d.signer.Policy.Resource.Kind)
		}
		return fmt.Sprintf("%s; no policy object of this signer in this render or in namespace %s", d.Message, d.signer.Namespace)
	}
	if o := wanted.Granting(&d.Demand); o != nil {
		d.Wanted = o.Revision
		known := "not loaded yet"
		if d.Decision == policy.Unknown {
			known = "not known to be loaded"
		}
		return fmt.Sprintf("granted by %s, %s: %s", o, known, d.Message)
	}
	for i := range wanted {
		if o := &wanted[i]; o.Policy == nil {
			return fmt.Sprintf("%s; %s does not parse and will never be loaded: %s", d.Message, &o.Object, o.Problem)
		}
	}
	switch a := wanted.Decide(&d.Demand); {
	case a.Decision != policy.NotGranted:
		return d.Message
	case len(wanted) == 1:
		return "no policy grants it, waiting does not help: add the grant to " + a.Message
	default:
		return fmt.Sprintf("no policy grants it, waiting does not help: add the grant to one of %s", a.Message)
	}
}

// wanted are the policy objects of a signer as they will stand: of ConfigMaps the one in this render, else the live one; of custom
// resources those in this render and the live ones that it does not have.
func (p *Plan) wanted(s *config.Signer, rendered []*policyObject) policy.Alternatives {
	var all policy.Alternatives
	for _, o := range rendered {
		all = append(all, policy.Alternative{Object: o.Object})
	}
	if len(all) > 0 && s.Policy.Resource == nil {
		return all
	}
	for _, o := range p.evidence(s).Live {
		if !slices.ContainsFunc(rendered, func(r *policyObject) bool { return r.is(&o.Object) }) {
			all = append(all, o)
		}
	}
	return all
}

// is reports whether the two are the same object in the cluster.
func (o *policyObject) is(other *policy.Object) bool {
	return o.Kind == other.Kind && o.Namespace == other.Namespace && o.Name == other.Name
}

// rendered are the policy objects of a signer in this render: one ConfigMap at most, or any number of custom resources.
func (p *Plan) rendered(s *config.Signer) ([]*policyObject, error) {
	kind := "ConfigMap"
	var format policy.ResourceFormat
	if s.Policy.Resource != nil {
		kind = s.Policy.Resource.Kind
		var err error
		if format, err = policy.CompileResource(s.Policy.Granted); err != nil {
			return nil, fmt.Errorf("signer %s: policy: %w", s.SignerName, err)
		}
	}
	var found []*policyObject
	for _, doc := range p.in.Stream.Documents {
		if !doc.MayHave(kind) {
			continue
		}
		heads, err := doc.Heads()
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(heads, func(h manifest.Head) bool { return p.isPolicyObject(s, h) }) {
			continue
		}
		values, err := doc.Decode()
		if err != nil {
			return nil, err
		}
		for i, h := range heads {
			if !p.isPolicyObject(s, h) {
				continue
			}
			o := &policyObject{signer: s, id: h.ID, document: doc.Number, item: i, annotations: h.Annotations}
			if s.Policy.Resource != nil {
				o.Object = p.readResource(s, format, h, values[i])
				found = append(found, o)
				continue
			}
			text, ok := textOf(values[i], s.Policy.Key)
			if !ok {
				continue
			}
			if len(found) > 0 {
				return nil, fmt.Errorf("%s: a second policy object of signer %s in this render, after ConfigMap %s/%s: keep one",
					h.ID, s.SignerName, found[0].Namespace, found[0].Name)
			}
			o.Object = policy.Object{Kind: h.Kind, Namespace: s.Namespace, Name: h.Name, Revision: policy.Revision(text)}
			if o.Policy, err = parse(s, text); err != nil {
				o.Problem = err.Error()
			}
			found = append(found, o)
		}
	}
	return found, nil
}

// readResource reads a custom resource of the render. What a controller writes into its status is not there yet.
func (p *Plan) readResource(s *config.Signer, format policy.ResourceFormat, h manifest.Head, value map[string]any) policy.Object {
	o := policy.Object{Kind: h.Kind, Name: h.Name}
	if s.Policy.Resource.Namespace != "" {
		o.Namespace = p.namespaceOf(h.Namespace)
	}
	if h.APIVersion != s.Policy.Resource.APIVersion {
		o.Problem = fmt.Sprintf("it is of version %s: write it as %s, which is what the configuration reads", h.APIVersion, s.Policy.Resource.APIVersion)
		return o
	}
	o.Policy = format.Read(value)
	return o
}

func parse(s *config.Signer, text []byte) (policy.Policy, error) {
	format, err := policy.Compile(s.Policy.Format, s.Policy.Granted)
	if err != nil {
		return nil, err
	}
	return format.Parse(text)
}

// isPolicyObject reports whether an object of the render is a policy object of a signer, as far as its head tells.
func (p *Plan) isPolicyObject(s *config.Signer, h manifest.Head) bool {
	if r := s.Policy.Resource; r != nil {
		return r.Matches(h.Group(), h.Kind, p.namespaceOf(h.Namespace), h.Labels)
	}
	return h.APIVersion == "v1" && h.Kind == "ConfigMap" && p.namespaceOf(h.Namespace) == s.Namespace && s.Policy.ConfigMap.Matches(h.Name, h.Labels)
}

func (p *Plan) namespaceOf(namespace string) string {
	if namespace == "" {
		return p.in.Namespace
	}
	return namespace
}

// textOf is the value of a key of a ConfigMap.
func textOf(configMap map[string]any, key string) ([]byte, bool) {
	if data, ok := configMap["data"].(map[string]any); ok {
		if text, ok := data[key].(string); ok {
			return []byte(text), true
		}
	}
	if data, ok := configMap["binaryData"].(map[string]any); ok {
		if text, ok := data[key].(string); ok {
			decoded, err := base64.StdEncoding.DecodeString(text)
			return decoded, err == nil
		}
	}
	return nil, false
}
