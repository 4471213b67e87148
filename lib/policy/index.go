package policy

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// index finds the grants for a ServiceAccount and a namespace in time that does not depend on the number of grants. The zero value is
// empty.
type index struct {
	exact    map[account]int
	prefixes map[string]*prefixes
}

type account struct{ serviceAccount, namespace string }

// prefixes are the namespace prefixes granted to one ServiceAccount.
type prefixes struct {
	// first has the first grant of each prefix; the prefix is without its *.
	first map[string]int
	// lengths of the prefixes in first, ascending: a namespace is looked up once for each, so at most as often as it has bytes.
	lengths []int
}

// add enters grant number at; the caller goes by the order of the file. Of grants with the same ServiceAccount and namespace only the
// first stays, and its number is what add gives back.
func (x *index) add(serviceAccount, namespace string, at int) int {
	if x.exact == nil {
		x.exact, x.prefixes = map[account]int{}, map[string]*prefixes{}
	}
	// Prefixes too, as they are written: pod-cert-signer compares before it looks for the *.
	key := account{serviceAccount, namespace}
	if first, ok := x.exact[key]; ok {
		return first
	}
	x.exact[key] = at
	prefix, ok := strings.CutSuffix(namespace, "*")
	if !ok {
		return at
	}
	p := x.prefixes[serviceAccount]
	if p == nil {
		p = &prefixes{first: map[string]int{}}
		x.prefixes[serviceAccount] = p
	}
	p.first[prefix] = at
	if i, ok := slices.BinarySearch(p.lengths, len(prefix)); !ok {
		p.lengths = slices.Insert(p.lengths, i, len(prefix))
	}
	return at
}

// exactly gives the first grant for exactly this namespace.
func (x *index) exactly(serviceAccount, namespace string) (at int, ok bool) {
	at, ok = x.exact[account{serviceAccount, namespace}]
	return at, ok
}

// prefixed gives the first grant of each prefix of the namespace, in no order that means anything.
func (x *index) prefixed(serviceAccount, namespace string) iter.Seq[int] {
	return func(yield func(int) bool) {
		p := x.prefixes[serviceAccount]
		if p == nil {
			return
		}
		for _, n := range p.lengths {
			if n > len(namespace) {
				return
			}
			if at, ok := p.first[namespace[:n]]; ok && !yield(at) {
				return
			}
		}
	}
}

// validNamespace takes a name, or a prefix with one * at its end.
func validNamespace(namespace string) error {
	switch {
	case namespace == "":
		return errors.New("namespace is empty")
	case namespace == "*":
		return errors.New(`namespace "*" would be all of them: name one, or write a prefix like team-*`)
	case strings.Contains(namespace[:len(namespace)-1], "*"):
		return fmt.Errorf("namespace %q: a * may only be the last character", namespace)
	}
	return nil
}

func validServiceAccount(name string) error {
	if name == "" || strings.Contains(name, "*") {
		return fmt.Errorf("serviceAccount %q: write one name", name)
	}
	return nil
}
