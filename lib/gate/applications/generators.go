package applications

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"dario.cat/mergo"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	sigsyaml "sigs.k8s.io/yaml"
)

// kinds names the generators of one entry, in the order in which Argo CD runs them.
func (g *generator) kinds() []string {
	var out []string
	for _, k := range []struct {
		name string
		has  bool
	}{
		{"list", g.List != nil}, {"clusters", g.Clusters != nil}, {"git", g.Git != nil}, {"scmProvider", g.SCMProvider != nil},
		{"clusterDecisionResource", g.ClusterDecisionResource != nil}, {"pullRequest", g.PullRequest != nil},
		{"matrix", g.Matrix != nil}, {"merge", g.Merge != nil}, {"plugin", g.Plugin != nil},
	} {
		if k.has {
			out = append(out, k.name)
		}
	}
	return out
}

// outside says why a generator gives nothing here.
var outside = map[string]string{
	"clusters":                "the clusters are known to Argo CD, not to the repository",
	"scmProvider":             "the repositories are known to a server of source code, not to this one",
	"clusterDecisionResource": "the clusters are in an object of a cluster, not in the repository",
	"pullRequest":             "the pull requests are known to a server of source code, not to the repository",
	"plugin":                  "the parameters are what a service answers, not in the repository",
}

// template is the generator's own, which goes before that of the ApplicationSet.
func (g *generator) template(kind string) *applicationTemplate {
	switch kind {
	case "list":
		return &g.List.Template
	case "git":
		return &g.Git.Template
	case "matrix":
		return &g.Matrix.Template
	case "merge":
		return &g.Merge.Template
	}
	return &applicationTemplate{}
}

// maxDepth: a matrix or merge in a matrix or merge, and not one more.
const maxDepth = 2

func (e *expansion) params(g *generator, kind string, depth int) ([]params, error) {
	if why, ok := outside[kind]; ok {
		return nil, errors.New(why)
	}
	switch kind {
	case "list":
		return e.fromList(g.List)
	case "git":
		return e.fromGit(g.Git)
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("a %s in a generator that is itself in another: Argo CD has no generators that deep", kind)
	}
	if kind == "matrix" {
		return e.fromMatrix(g.Matrix, depth)
	}
	return e.fromMerge(g.Merge, depth)
}

// child gives the parameters of one generator in another. given are those that it is interpolated with.
func (e *expansion) child(g *generator, given params, depth int) ([]params, error) {
	kinds := g.kinds()
	switch len(kinds) {
	case 0:
		return nil, errors.New("it is none that Argo CD knows")
	case 1:
	default:
		return nil, fmt.Errorf("it is %s in one, which Argo CD takes only outside of other generators", strings.Join(kinds, " and "))
	}
	// The selector is not interpolated.
	filter, err := newSelector(g.Selector)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kinds[0], err)
	}
	if len(given) > 0 && outside[kinds[0]] == "" {
		plain, err := asJSON(g)
		if err == nil {
			plain, err = e.deep(plain, given)
		}
		g = &generator{}
		if err == nil {
			err = fromJSON(plain, g)
		}
		if err != nil {
			return nil, fmt.Errorf("%s, with the parameters of the first generator: %w", kinds[0], err)
		}
	}
	sets, err := e.params(g, kinds[0], depth)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kinds[0], err)
	}
	return filter.of(sets), nil
}

// fromList is generators/list.go.
func (e *expansion) fromList(g *listGenerator) ([]params, error) {
	var sets []params
	for i, raw := range g.Elements {
		var element params
		if err := json.Unmarshal(raw, &element); err != nil {
			return nil, fmt.Errorf("element %d: %w", i+1, err)
		}
		if e.goTemplate {
			sets = append(sets, element)
			continue
		}
		p := params{}
		for key, value := range element {
			if key != "values" {
				text, ok := value.(string)
				if !ok {
					return nil, fmt.Errorf("element %d: %s is not a string, which it has to be without goTemplate", i+1, key)
				}
				p[key] = text
				continue
			}
			values, ok := value.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("element %d: values is not a map", i+1)
			}
			for k, v := range values {
				text, ok := v.(string)
				if !ok {
					return nil, fmt.Errorf("element %d: values.%s is not a string, which it has to be without goTemplate", i+1, k)
				}
				p["values."+k] = text
			}
		}
		sets = append(sets, p)
	}
	if g.ElementsYAML != "" {
		var more []params
		if err := sigsyaml.Unmarshal([]byte(g.ElementsYAML), &more); err != nil {
			return nil, fmt.Errorf("elementsYaml: %w", err)
		}
		sets = append(sets, more...)
	}
	return sets, nil
}

// fromMatrix is generators/matrix.go: every set of the first generator with every set of the second, which the first interpolates.
func (e *expansion) fromMatrix(g *matrixGenerator, depth int) ([]params, error) {
	if len(g.Generators) != 2 {
		return nil, fmt.Errorf("a matrix is of two generators, and this one of %d", len(g.Generators))
	}
	first, err := e.child(&g.Generators[0], nil, depth+1)
	if err != nil {
		return nil, fmt.Errorf("its generator 1: %w", err)
	}
	var sets []params
	for _, a := range first {
		second, err := e.child(&g.Generators[1], copied(a).(params), depth+1)
		if err != nil {
			return nil, fmt.Errorf("its generator 2: %w", err)
		}
		if len(sets)+len(second) > maxApplications {
			return nil, errTooMany
		}
		for _, b := range second {
			if err := e.spend(costOfStep + costOfNode*(len(a)+len(b))); err != nil {
				return nil, err
			}
			both, err := e.combined(a, b)
			if err != nil {
				return nil, err
			}
			sets = append(sets, both)
		}
	}
	return sets, nil
}

func (e *expansion) combined(a, b params) (params, error) {
	both := params{}
	if e.goTemplate {
		for _, p := range []params{b, a} {
			if err := mergo.Merge(&both, copied(p), mergo.WithOverride); err != nil {
				return nil, err
			}
		}
		return both, nil
	}
	for k, v := range a {
		both[k] = fmt.Sprint(v)
	}
	for k, v := range b {
		text := fmt.Sprint(v)
		if other, ok := both[k]; ok && other != text {
			return nil, fmt.Errorf("both of its generators give %s: %q and %q", k, other, text)
		}
		both[k] = text
	}
	return both, nil
}

// fromMerge is generators/merge.go: sets of the first generator, with those of the others over them that have the same merge keys. Argo
// CD gives them in no order; here they keep that of the first generator.
func (e *expansion) fromMerge(g *mergeGenerator, depth int) ([]params, error) {
	if len(g.Generators) < 2 {
		return nil, fmt.Errorf("a merge is of two generators or more, and this one of %d", len(g.Generators))
	}
	if len(g.MergeKeys) == 0 {
		return nil, errors.New("a merge needs mergeKeys")
	}
	var base map[string]params
	var order []string
	for i := range g.Generators {
		sets, err := e.child(&g.Generators[i], nil, depth+1)
		if err != nil {
			return nil, fmt.Errorf("its generator %d: %w", i+1, err)
		}
		keyed := map[string]params{}
		for _, p := range sets {
			key, err := mergeKey(g.MergeKeys, p)
			if err != nil {
				return nil, fmt.Errorf("its generator %d: %w", i+1, err)
			}
			if _, ok := keyed[key]; ok {
				return nil, fmt.Errorf("its generator %d: two sets of parameters have the same merge keys: %s", i+1, key)
			}
			keyed[key] = p
			if i == 0 {
				order = append(order, key)
			}
		}
		if i == 0 {
			base = keyed
			continue
		}
		for key, p := range base {
			over, ok := keyed[key]
			switch {
			case !ok:
			case e.goTemplate:
				merged := copied(p).(params)
				if err := mergo.Merge(&merged, copied(over), mergo.WithOverride); err != nil {
					return nil, err
				}
				base[key] = merged
			default:
				maps.Copy(p, over)
			}
		}
	}
	sets := make([]params, len(order))
	for i, key := range order {
		sets[i] = base[key]
	}
	return sets, nil
}

func mergeKey(keys []string, p params) (string, error) {
	key := params{}
	for _, k := range keys {
		key[k] = p[k]
	}
	text, err := json.Marshal(key)
	return string(text), err
}

// withValues adds a generator's values (generators/value_interpolation.go): rendered with the other parameters, not with each other.
func (e *expansion) withValues(p params, values map[string]string) error {
	if len(values) == 0 {
		return nil
	}
	rendered := make(map[string]string, len(values))
	for _, k := range slices.Sorted(maps.Keys(values)) {
		text, err := e.replace(values[k], p)
		if err != nil {
			return fmt.Errorf("values.%s: %w", k, err)
		}
		rendered[k] = text
	}
	if e.goTemplate {
		p["values"] = rendered
		return nil
	}
	for k, text := range rendered {
		p["values."+k] = text
	}
	return nil
}

// flat gives the leaves of parameters by their dotted paths. What is neither a map nor a list as JSON has them is a leaf.
func flat(p params) map[string]any {
	out := map[string]any{}
	var walk func(prefix string, value any)
	walk = func(prefix string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for k, item := range v {
				walk(prefix+"."+k, item)
			}
		case []any:
			for i, item := range v {
				walk(prefix+"."+strconv.Itoa(i), item)
			}
		default:
			out[prefix] = v
		}
	}
	for k, v := range p {
		walk(k, v)
	}
	return out
}

// selector is a label selector over flat parameters (utils/selector.go): values may be any text. nil takes all.
type selector []requirement

type requirement struct {
	key, operator string
	values        []string
}

func newSelector(s *metav1.LabelSelector) (selector, error) {
	if s == nil {
		return nil, nil
	}
	out := selector{}
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		out = append(out, requirement{k, string(metav1.LabelSelectorOpIn), []string{s.MatchLabels[k]}})
	}
	for _, m := range s.MatchExpressions {
		out = append(out, requirement{m.Key, string(m.Operator), m.Values})
	}
	for _, r := range out {
		if errs := validation.IsQualifiedName(r.key); len(errs) > 0 {
			return nil, fmt.Errorf("selector: key %q: %s", r.key, errs[0])
		}
		switch metav1.LabelSelectorOperator(r.operator) {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if len(r.values) == 0 {
				return nil, fmt.Errorf("selector: %s %s has no values", r.key, r.operator)
			}
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if len(r.values) != 0 {
				return nil, fmt.Errorf("selector: %s %s has values", r.key, r.operator)
			}
		default:
			return nil, fmt.Errorf("selector: %s has operator %q, which is none of In, NotIn, Exists, DoesNotExist", r.key, r.operator)
		}
	}
	return out, nil
}

// of gives the sets that the selector takes.
func (s selector) of(sets []params) []params {
	if s == nil {
		return sets
	}
	return slices.DeleteFunc(sets, func(p params) bool {
		leaves := flat(p)
		return slices.ContainsFunc(s, func(r requirement) bool {
			leaf, has := leaves[r.key]
			in := has && slices.Contains(r.values, fmt.Sprint(leaf))
			switch metav1.LabelSelectorOperator(r.operator) {
			case metav1.LabelSelectorOpIn:
				return !in
			case metav1.LabelSelectorOpNotIn:
				return in
			case metav1.LabelSelectorOpExists:
				return !has
			default:
				return has
			}
		})
	})
}
