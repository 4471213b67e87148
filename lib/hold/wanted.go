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
	wanted := map[*config.Signer]*policy.Object{}
	for _, d := range p.waiting() {
		if d.signer == nil {
			continue
		}
		if _, ok := wanted[d.signer]; !ok {
			w, err := p.wanted(d.signer)
			if err != nil {
				return err
			}
			wanted[d.signer] = p.evidence(d.signer).Live
			if w != nil {
				wanted[d.signer] = &w.Object
			}
		}
		d.Message = p.waitingMessage(d, wanted[d.signer])
	}
	return nil
}

func (p *Plan) waitingMessage(d *Demand, wanted *policy.Object) string {
	if wanted == nil {
		return fmt.Sprintf("%s; no policy object of this signer in this render or in namespace %s", d.Message, d.signer.Namespace)
	}
	if wanted.Policy == nil {
		return fmt.Sprintf("%s; %s does not parse and will never be loaded: %s", d.Message, wanted, wanted.Problem)
	}
	a := wanted.Policy.Decide(&d.Demand)
	switch {
	case a.Decision == policy.Granted:
		d.Wanted = wanted.Revision
		known := "not loaded yet"
		if d.Decision == policy.Unknown {
			known = "not known to be loaded"
		}
		return fmt.Sprintf("granted by %s, %s: %s", wanted, known, d.Message)
	case a.Decision == policy.NotGranted:
		return fmt.Sprintf("no policy grants it, waiting does not help: add the grant to %s (%s)", wanted, a.Message)
	}
	return d.Message
}

// wanted is the policy object of a signer in this render, nil where the render has none.
func (p *Plan) wanted(s *config.Signer) (*policyObject, error) {
	var found *policyObject
	for _, doc := range p.in.Stream.Documents {
		if !doc.MayHave("ConfigMap") {
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
			text, ok := textOf(values[i], s.Policy.Key)
			if !ok {
				continue
			}
			if found != nil {
				return nil, fmt.Errorf("%s: a second policy object of signer %s in this render, after ConfigMap %s/%s: keep one",
					h.ID, s.SignerName, found.Namespace, found.Name)
			}
			found = &policyObject{
				Object: policy.Object{Kind: h.Kind, Namespace: s.Namespace, Name: h.Name, Revision: policy.Revision(text)},
				id:     h.ID, document: doc.Number, item: i, annotations: h.Annotations,
			}
			if found.Policy, err = parse(s, text); err != nil {
				found.Problem = err.Error()
			}
		}
	}
	return found, nil
}

func parse(s *config.Signer, text []byte) (policy.Policy, error) {
	format, err := policy.Compile(s.Policy.Format, s.Policy.Granted)
	if err != nil {
		return nil, err
	}
	return format.Parse(text)
}

// isPolicyObject reports whether an object of the render carries the policy text of a signer.
func (p *Plan) isPolicyObject(s *config.Signer, h manifest.Head) bool {
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
