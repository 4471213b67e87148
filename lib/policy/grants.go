package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// grants is grantfirst's own simple format, a list in YAML or JSON:
//
//   - namespace: shop             # or a prefix: team-*
//     serviceAccount: web
//     signerName: example.com/x   # optional; without it, any signer that is configured with this policy
//     keyTypes: [ECDSAP256]       # optional; without it, all
//
// A demand is granted if any entry grants it; their order means nothing.
type grants struct {
	index index
	// allowed has, for each pair of ServiceAccount and namespace in index, what its entries allow together.
	allowed []allowed
}

// allowed is the key types by signer name; the empty name is any signer.
type allowed map[string]keySet

// keySet has a bit for each of keyTypes.
type keySet uint8

const allKeys = keySet(1<<6 - 1)

func parseGrants(text []byte) (Policy, error) {
	v, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("grants policy: %w", err)
	}
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New("grants policy: not a list: write one entry for each grant, or [] if there is none")
	}
	p := &grants{}
	for i, item := range list {
		if err := p.add(item); err != nil {
			return nil, fmt.Errorf("grants policy: [%d]: %w", i, err)
		}
	}
	return p, nil
}

func (p *grants) add(item any) error {
	entry, ok := item.(map[string]any)
	if !ok {
		return errors.New("not a map: write namespace and serviceAccount")
	}
	var namespace, serviceAccount, signerName string
	keys := allKeys
	for _, field := range slices.Sorted(maps.Keys(entry)) {
		var err error
		switch value := entry[field]; field {
		case "namespace":
			namespace, err = nameOf(value)
		case "serviceAccount":
			serviceAccount, err = nameOf(value)
		case "signerName":
			if signerName, err = nameOf(value); err == nil && strings.Contains(signerName, "*") {
				err = errors.New("write one whole name, or leave it out for any signer")
			}
		case "keyTypes":
			keys, err = keySetOf(value)
		default:
			err = errors.New("no such field: namespace, serviceAccount, signerName and keyTypes are all there are")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
	}
	if err := validNamespace(namespace); err != nil {
		return err
	}
	if err := validServiceAccount(serviceAccount); err != nil {
		return err
	}
	at := p.index.add(serviceAccount, namespace, len(p.allowed))
	if at == len(p.allowed) {
		p.allowed = append(p.allowed, allowed{})
	}
	p.allowed[at][signerName] |= keys
	return nil
}

func nameOf(v any) (string, error) {
	s, ok := v.(string)
	if !ok || s == "" {
		return "", fmt.Errorf("%v is no string: write a name, in quotes if it looks like something else", v)
	}
	return s, nil
}

func keySetOf(v any) (keySet, error) {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return 0, errors.New("write a list of key types, or leave it out for all of them")
	}
	var keys keySet
	for _, item := range list {
		bit := keyBit(item)
		if bit == 0 {
			return 0, fmt.Errorf("%v is none of %s", item, strings.Join(keyTypes, ", "))
		}
		keys |= bit
	}
	return keys, nil
}

// keyBit is the bit of a key type, and 0 for what is none.
func keyBit(keyType any) keySet {
	for i, k := range keyTypes {
		if k == keyType {
			return 1 << i
		}
	}
	return 0
}

// Decide refuses with NoGrant where no entry has the ServiceAccount, namespace and signer, and with UnsupportedKeyType where some
// have, but none of them this key type.
func (p *grants) Decide(d *demand.Demand) Answer {
	var keys keySet
	if at, ok := p.index.exactly(d.ServiceAccount, d.Namespace); ok {
		keys |= p.allowed[at].of(d.SignerName)
	}
	for at := range p.index.prefixed(d.ServiceAccount, d.Namespace) {
		keys |= p.allowed[at].of(d.SignerName)
	}
	switch {
	case keys == 0:
		return refused(NoGrant, "no grant for ServiceAccount %s/%s", d.Namespace, d.ServiceAccount)
	case keys&keyBit(d.KeyType) == 0:
		return refused(UnsupportedKeyType, "key type %q is none of %s", d.KeyType, keys)
	}
	return Answer{Decision: Granted}
}

func (a allowed) of(signerName string) keySet { return a[""] | a[signerName] }

// String lists the key types like the policy does.
func (s keySet) String() string {
	var names []string
	for i, k := range keyTypes {
		if s&(1<<i) != 0 {
			names = append(names, k)
		}
	}
	return strings.Join(names, ", ")
}
