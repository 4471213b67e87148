package applications

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dario.cat/mergo"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation"
	kubejson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"
)

// ApplicationSets are expanded as Argo CD 3.2 does (applicationset/{generators,utils,controllers/template}), with the settings that it has
// by default. What differs in 2.14: a git files generator there has no exclude, and a file that is an empty list counts as one without
// parameters; a selector three levels deep counts only with spec.applyNestedSelectors; and merge without goTemplate makes every parameter
// text.
//
// Of one ApplicationSet that cannot be expanded in whole, Argo CD changes no Application at all. Here what can be expanded is given beside
// what is unknown, because the Applications that are there already go on.

// maxApplications is how many Applications one ApplicationSet may generate here, and how many sets of parameters any of its generators.
const maxApplications = 20_000

// params are what a generator gives for one Application.
type params = map[string]any

// expansion is that of one ApplicationSet.
type expansion struct {
	*Repository
	set *applicationSet
	*renderer
}

// expand gives the Applications that an ApplicationSet generates from this repository alone. It ends on any input: the templates of
// a generator have a budget of steps and text, and more than maxApplications are Unknown.
func (r *Repository) expand(plain map[string]any, path string, line int) (found []Found, unknown []Unknown) {
	e := &expansion{Repository: r, set: &applicationSet{}}
	cannot := func(format string, args ...any) {
		object := "ApplicationSet " + strings.TrimPrefix(e.set.Metadata.Namespace+"/"+e.set.Metadata.Name, "/")
		unknown = append(unknown, Unknown{Path: path, Line: line, Object: object, Why: strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")})
	}
	text, err := json.Marshal(plain)
	if err == nil {
		err = kubejson.UnmarshalCaseSensitivePreserveInts(text, e.set)
	}
	if err != nil {
		cannot("not readable: %v", Unquoted(err))
		return nil, unknown
	}
	spec := &e.set.Spec
	if e.renderer, err = newRenderer(spec.GoTemplate, spec.GoTemplateOptions); err != nil {
		cannot("spec.goTemplateOptions: %v", err)
		return nil, unknown
	}
	var refused faults
	var all []*generated
	for i := range spec.Generators {
		g := &spec.Generators[i]
		kinds := g.kinds()
		if len(kinds) == 0 {
			cannot("generator %d is none that Argo CD knows: it has to be one of list, clusters, git, scmProvider, clusterDecisionResource, pullRequest, matrix, merge, plugin", i+1)
		}
		for _, kind := range kinds {
			var failed faults
			e.left = budget
			err := guarded(func() error {
				template, sets, err := e.top(g, kind)
				if err != nil {
					return err
				}
				if len(all)+len(sets) > maxApplications {
					return errTooMany
				}
				for _, p := range sets {
					var app *generated
					err := guarded(func() (err error) {
						app, err = e.application(template, p)
						return err
					})
					if err != nil {
						failed.add(err.Error())
						continue
					}
					all = append(all, app)
				}
				return nil
			})
			if err != nil {
				cannot("generator %d, %s: %v", i+1, kind, err)
			}
			for _, f := range failed.list {
				cannot("generator %d, %s: template: %s", i+1, kind, f)
			}
		}
	}
	names := map[string]bool{}
	for _, app := range all {
		f, why := e.accept(app, names)
		if why != "" {
			refused.add(why)
			continue
		}
		f.Path, f.Line, f.Set = path, line, e.set.Metadata.Name
		found = append(found, f)
	}
	for _, f := range refused.list {
		cannot("%s", f)
	}
	return found, unknown
}

// faults are reasons, each with how often it was the reason. One template has the same fault for every Application.
type faults struct {
	list []string
	more int
}

// maxFaults is how many are told apart.
const maxFaults = 10

func (f *faults) add(why string) {
	switch {
	case slices.Contains(f.list, why):
	case len(f.list) < maxFaults:
		f.list = append(f.list, why)
	case f.more == 0:
		f.more = 2
		f.list = append(f.list, "and 1 more like these")
	default:
		f.list[maxFaults] = fmt.Sprintf("and %d more like these", f.more)
		f.more++
	}
}

// guarded makes an error of a panic: so does the controller, and some of what it is made of panics on input.
func guarded(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it breaks, as it does in Argo CD: %v", r)
		}
	}()
	return do()
}

// top gives a generator's template and parameters.
func (e *expansion) top(g *generator, kind string) (*applicationTemplate, []params, error) {
	template := *g.template(kind)
	if err := mergo.Merge(&template, e.set.Spec.Template); err != nil {
		return nil, nil, fmt.Errorf("its template: %w", err)
	}
	filter, err := newSelector(g.Selector)
	if err != nil {
		return nil, nil, err
	}
	sets, err := e.params(g, kind, 1)
	return &template, filter.of(sets), err
}

// application makes one of a template.
func (e *expansion) application(template *applicationTemplate, p params) (*generated, error) {
	plain, err := asJSON(map[string]any{"metadata": template.Metadata, "spec": template.Spec})
	if err != nil {
		return nil, err
	}
	p = copied(p).(params)
	// Without parameters Argo CD renders nothing.
	if len(p) > 0 {
		if plain, err = e.deep(plain, p); err != nil {
			return nil, err
		}
	}
	app := &generated{}
	if err := fromJSON(plain, app); err != nil {
		return nil, err
	}
	if e.set.Spec.TemplatePatch != nil {
		if app, err = e.patched(app, p); err != nil {
			return nil, fmt.Errorf("templatePatch: %w", err)
		}
	}
	app.Namespace = e.set.Metadata.Namespace
	return app, nil
}

// patched applies the templatePatch (controllers/template/patch.go): a strategic merge in which lists replace.
func (e *expansion) patched(app *generated, p params) (*generated, error) {
	text, err := e.replace(*e.set.Spec.TemplatePatch, p)
	if err != nil {
		return nil, err
	}
	patch := []byte(text)
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		if patch, err = sigsyaml.YAMLToJSON(patch); err != nil {
			return nil, err
		}
	}
	if err := json.Unmarshal(patch, &generated{}); err != nil {
		return nil, err
	}
	original, err := json.Marshal(app)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, patch, generated{})
	if err != nil {
		return nil, err
	}
	out := &generated{}
	if err := json.Unmarshal(merged, out); err != nil {
		return nil, err
	}
	// A patch must not move an Application to another project.
	out.Spec.Project = app.Spec.Project
	return out, nil
}

// accept checks what the controller and the API server check before they take an Application.
func (e *expansion) accept(app *generated, names map[string]bool) (Found, string) {
	if names[app.Name] {
		return Found{}, fmt.Sprintf("it generates Application %q more than once, of which Argo CD takes only the first", app.Name)
	}
	names[app.Name] = true
	if len(validation.IsDNS1123Subdomain(app.Name)) > 0 {
		return Found{}, fmt.Sprintf("it generates an Application named %q, which is no name of a Kubernetes object", app.Name)
	}
	switch d := app.Spec.Destination; {
	case d.Name != "" && d.Server != "":
		return Found{}, fmt.Sprintf("Application %q: destination has a name and a server, of which Argo CD takes only one", app.Name)
	case d.Name == "" && d.Server == "":
		return Found{}, fmt.Sprintf("Application %q: destination has neither name nor server", app.Name)
	}
	var plain map[string]any
	err := guarded(func() error {
		v, err := asJSON(app)
		plain, _ = v.(map[string]any)
		return err
	})
	if err != nil {
		return Found{}, fmt.Sprintf("Application %q: %v", app.Name, err)
	}
	f, err := application(plain)
	if err != nil {
		return Found{}, fmt.Sprintf("Application %q: %v", app.Name, err)
	}
	return f, ""
}

var errTooMany = errors.New("it generates more than " + strconv.Itoa(maxApplications) + " Applications or sets of parameters, which is more than is looked at here")

// asJSON gives what a JSON decoder gives of a value.
func asJSON(value any) (any, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var plain any
	err = json.Unmarshal(text, &plain)
	return plain, err
}

// fromJSON reads such a value as the API server would.
func fromJSON(plain, into any) error {
	text, err := json.Marshal(plain)
	if err != nil {
		return err
	}
	return kubejson.UnmarshalCaseSensitivePreserveInts(text, into)
}

// copied is a value without anything in common with it: some template functions and mergo change what they are given.
func copied(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			out[k] = copied(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = copied(item)
		}
		return out
	case map[string]string:
		out := make(map[string]string, len(v))
		for k, item := range v {
			out[k] = item
		}
		return out
	case []string:
		return slices.Clone(v)
	}
	return value
}
