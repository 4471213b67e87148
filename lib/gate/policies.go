package gate

import (
	"encoding/base64"
	"fmt"
	"slices"
	"sync"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/manifest"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// policyObject is a policy object of a render.
type policyObject struct {
	policy.Object
	signer *config.Signer
	id     manifest.ID
	// text tells whether two are the same.
	text string
	// revoke is why grants may be taken away at once; isRevoke that it says so.
	revoke   string
	isRevoke bool

	document int
	place    place
}

// reader reads the policy objects of one signer.
type reader struct {
	signer   *config.Signer
	format   policy.Format
	resource policy.ResourceFormat
	// parsed has each text once, by its digest.
	parsed *sync.Map
}

func newReaders(c *config.Config) ([]reader, error) {
	var all []reader
	for i := range c.Signers {
		r := reader{signer: &c.Signers[i], parsed: &sync.Map{}}
		var err error
		if r.signer.Policy.Resource != nil {
			r.resource, err = policy.CompileResource(r.signer.Policy.Granted)
		} else {
			r.format, err = policy.Compile(r.signer.Policy.Format, r.signer.Policy.Granted)
		}
		if err != nil {
			return nil, fmt.Errorf("signer %s: policy: %w", r.signer.SignerName, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// kind is the kind of the signer's policy objects, word what their text has in it in any case.
func (r *reader) kind() string {
	if r.signer.Policy.Resource != nil {
		return r.signer.Policy.Resource.Kind
	}
	return "ConfigMap"
}

func (r *reader) word() string {
	if r.signer.Policy.Resource != nil {
		return r.signer.Policy.Resource.Kind
	}
	return r.signer.Policy.Key
}

// is reports whether an object is one of the signer's policy objects, as far as its head tells; namespace is its own, else the destination's.
// Where not even that is known the object is taken to be in the signer's, which is where policy objects are.
func (r *reader) is(h manifest.Head, namespace string) bool {
	if c := r.signer.Policy.Resource; c != nil {
		return c.Matches(h.Group(), h.Kind, namespace, h.Labels)
	}
	return h.APIVersion == "v1" && h.Kind == "ConfigMap" && (namespace == "" || namespace == r.signer.Namespace) && r.signer.Policy.ConfigMap.Matches(h.Name, h.Labels)
}

// policiesIn gives the policy objects of all signers in a stream.
func (g *Gate) policiesIn(stream *manifest.Stream, destination string) ([]policyObject, error) {
	var out []policyObject
	for i := range g.readers {
		r := &g.readers[i]
		for _, doc := range stream.Documents {
			if !doc.MayHave(r.kind()) {
				continue
			}
			heads, err := doc.Heads()
			if err != nil {
				return nil, err
			}
			namespaceOf := func(h manifest.Head) string {
				if h.Namespace == "" {
					return destination
				}
				return h.Namespace
			}
			if !slices.ContainsFunc(heads, func(h manifest.Head) bool { return r.is(h, namespaceOf(h)) }) {
				continue
			}
			values, err := doc.Decode()
			if err != nil {
				return nil, err
			}
			for item, h := range heads {
				if !r.is(h, namespaceOf(h)) {
					continue
				}
				if o, ok := r.read(h, namespaceOf(h), values[item], doc); ok {
					out = append(out, o)
				}
			}
		}
	}
	return out, nil
}

func (r *reader) read(h manifest.Head, namespace string, value map[string]any, doc *manifest.Document) (policyObject, bool) {
	o := policyObject{signer: r.signer, id: h.ID, document: doc.Number}
	o.revoke, o.isRevoke = h.Annotations[hold.AnnotationRevoke]
	if c := r.signer.Policy.Resource; c != nil {
		o.Object, o.text = policy.Object{Kind: h.Kind, Name: h.Name}, digest(string(doc.Raw))
		if c.Namespace != "" {
			o.Namespace = namespace
		}
		if h.APIVersion != c.APIVersion {
			o.Problem = fmt.Sprintf("it is of version %s: write it as %s, which is what the configuration reads", h.APIVersion, c.APIVersion)
		} else {
			o.Policy = r.resource.Read(value)
		}
		return o, true
	}
	text, ok := textOf(value, r.signer.Policy.Key)
	if !ok {
		return o, false
	}
	o.Object = policy.Object{Kind: h.Kind, Namespace: r.signer.Namespace, Name: h.Name, Revision: policy.Revision(text)}
	o.text = o.Revision
	p := r.parse(text, o.Revision)
	o.Policy, o.Problem = p.policy, p.problem
	return o, true
}

type parsed struct {
	policy  policy.Policy
	problem string
}

func (r *reader) parse(text []byte, revision string) parsed {
	if known, ok := r.parsed.Load(revision); ok {
		return known.(parsed)
	}
	var p parsed
	var err error
	if p.policy, err = r.format.Parse(text); err != nil {
		p = parsed{problem: err.Error()}
	}
	r.parsed.Store(revision, p)
	return p
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

// standing are the policy objects of one side that a demand is judged by.
type standing []*policyObject

// answer is what they make of a demand. None at all is ok == false.
func (s standing) answer(d *demand.Demand) (a policy.Answer, ok bool) {
	if len(s) == 0 {
		return policy.Answer{Decision: policy.Unknown}, false
	}
	if s[0].signer.Policy.Resource != nil {
		var all policy.Alternatives
		for _, o := range s {
			all = append(all, policy.Alternative{Object: o.Object})
		}
		return all.Decide(d), true
	}
	// Of several ConfigMaps it cannot be told which one the signer will have, so they must agree.
	var first policy.Answer
	for i, o := range s {
		a := (policy.Alternatives{{Object: o.Object}}).Decide(d)
		if i == 0 {
			first = a
		} else if a.Decision != first.Decision {
			return policy.Answer{Decision: policy.Unknown, Message: fmt.Sprintf("%s and %s are both policy objects of signer %s here, and only one of them grants it: keep one, or let the configuration tell them apart",
				&s[0].Object, &o.Object, o.signer.SignerName)}, true
		}
	}
	return first, true
}

// same reports whether both have the same objects with the same texts.
func (s standing) same(other standing) bool {
	key := func(o *policyObject) string { return o.Object.Kind + " " + o.Namespace + "/" + o.Name + " " + o.text }
	return slices.Equal(sortedKeys(s, key), sortedKeys(other, key))
}

func sortedKeys(s standing, key func(*policyObject) string) []string {
	var out []string
	for _, o := range s {
		out = append(out, key(o))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
