package render

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/strvals"
	"sigs.k8s.io/yaml"
)

// GlobCharacters are those by which Argo CD v3.4 and later take a value file for a glob (v3.5 reposerver/repository/repository.go
// isGlobPath). Here, as in older ones, it is a name.
const GlobCharacters = "*?["

// IsGlob reports whether a value file is a glob to Argo CD v3.4 and later.
func IsGlob(name string) bool { return strings.ContainsAny(name, GlobCharacters) }

// helmValues merges what the parameters say, in the order of "helm template" as Argo CD calls it: value files, values,
// set, setString, setFile.
func (o *Options) helmValues(repo fs.FS, dir string) (map[string]any, error) {
	values := map[string]any{}
	for _, name := range o.ValueFiles {
		text, err := o.valueFile(repo, dir, name)
		if o.IgnoreMissingValueFiles && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("value file %s: %w", name, err)
		}
		if values, err = mergeYAML(values, text); err != nil {
			return nil, fmt.Errorf("value file %s: %w", name, err)
		}
	}
	values, err := mergeYAML(values, []byte(o.Values))
	if err != nil {
		return nil, fmt.Errorf("parameter values: %w", err)
	}
	for _, a := range o.SetValues {
		if err := strvals.ParseInto(a.Name+"="+escape(o.expand(a.Value)), values); err != nil {
			return nil, fmt.Errorf("parameter set: %s: %w", a.Name, err)
		}
	}
	for _, a := range o.SetStrings {
		if err := strvals.ParseIntoString(a.Name+"="+escape(o.expand(a.Value)), values); err != nil {
			return nil, fmt.Errorf("parameter setString: %s: %w", a.Name, err)
		}
	}
	for _, a := range o.SetFiles {
		text, err := o.valueFile(repo, dir, a.Value)
		if err != nil {
			return nil, fmt.Errorf("parameter setFile: %s: file %s: %w", a.Name, a.Value, err)
		}
		content := func([]rune) (any, error) { return string(text), nil }
		if err := strvals.ParseIntoFile(a.Name+"=file", values, content); err != nil {
			return nil, fmt.Errorf("parameter setFile: %s: %w", a.Name, err)
		}
	}
	return values, nil
}

// valueFile reads a file that a parameter names: below the chart, or with a leading slash below the repository root
// (Argo CD v2.14 util/io/path/resolved.go).
func (o *Options) valueFile(repo fs.FS, dir, name string) ([]byte, error) {
	if first, _, _ := strings.Cut(name, "/"); strings.HasPrefix(first, "$") && !o.knows(first) {
		// Argo CD looks for the ref of another source there before it looks into its build environment. A plugin sees
		// its own source only.
		return nil, fmt.Errorf("%s would be another source, which a plugin cannot see: copy the file into this repository, or give its content as the parameter values", first)
	}
	name = o.expand(name)
	if u, err := url.Parse(name); err == nil && u.Scheme != "" {
		return nil, errors.New("a URL, and nothing is fetched here: copy the file into the repository")
	}
	return readFile(repo, below(dir, name))
}

// knows tells whether the first variable in s is one of the build environment.
func (o *Options) knows(s string) bool {
	var first string
	os.Expand(s, func(name string) string {
		if first == "" {
			first = name
		}
		return ""
	})
	_, ok := o.Env[first]
	return ok
}

// escape lets a comma of a --set value be part of the value, as Argo CD does, unless it is a list {a,b} or escaped
// already (v2.14 util/helm/cmd.go, cleanSetParameters).
func escape(value string) string {
	if strings.HasPrefix(value, "{") && strings.HasSuffix(value, "}") {
		return value
	}
	var b strings.Builder
	var last rune
	for _, r := range value {
		if r == ',' && last != '\\' {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
		last = r
	}
	return b.String()
}

func mergeYAML(values map[string]any, text []byte) (map[string]any, error) {
	more := map[string]any{}
	if err := yaml.Unmarshal(text, &more); err != nil {
		return nil, err
	}
	return merge(values, more), nil
}

// merge lays b over a: maps are merged, everything else is replaced (helm v3.22 pkg/cli/values/options.go).
func merge(a, b map[string]any) map[string]any {
	for name, value := range b {
		if over, ok := value.(map[string]any); ok {
			if under, ok := a[name].(map[string]any); ok {
				a[name] = merge(under, over)
				continue
			}
		}
		a[name] = value
	}
	return a
}

// validate checks the values of a chart and its subcharts against their values.schema.json, as helm does (v3.22
// pkg/chartutil/jsonschema.go), but never follows a reference out of the schema: helm would read any file of the machine
// and any URL.
func validate(c *chart.Chart, values any) error {
	var problems []string
	if c.Schema != nil {
		if err := validateOne(c.Schema, values); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", c.Name(), err))
		}
	}
	table, _ := asMap(values)
	for _, sub := range c.Dependencies() {
		value := table[sub.Name()]
		if value == nil {
			continue
		}
		if _, ok := asMap(value); !ok {
			problems = append(problems, fmt.Sprintf("%s: want a map of values, got %T", sub.Name(), value))
			continue
		}
		if err := validate(sub, value); err != nil {
			problems = append(problems, err.Error())
		}
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n"))
	}
	return nil
}

func validateOne(schema []byte, values any) (err error) {
	defer func() {
		// helm guards against panics of the schema library too.
		if r := recover(); r != nil {
			err = fmt.Errorf("values.schema.json: %v", r)
		}
	}()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return fmt.Errorf("values.schema.json: %w", err)
	}
	const location = "file:///values.schema.json"
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noSchemas{})
	if err := compiler.AddResource(location, doc); err != nil {
		return fmt.Errorf("values.schema.json: %w", err)
	}
	compiled, err := compiler.Compile(location)
	if err != nil {
		return fmt.Errorf("values.schema.json: %w", err)
	}
	table, _ := asMap(values)
	return compiled.Validate(table)
}

// noSchemas answers references from one schema to another. As in helm, an urn: that nobody resolves allows everything.
type noSchemas struct{}

func (noSchemas) Load(location string) (any, error) {
	if strings.HasPrefix(location, "urn:") {
		return true, nil
	}
	return nil, errors.New("a reference to another document, and nothing but the chart is read here: copy it into the schema")
}

// asMap sees the map in helm's own name for it.
func asMap(values any) (map[string]any, bool) {
	switch v := values.(type) {
	case chartutil.Values:
		return v.AsMap(), true
	case map[string]any:
		return v, true
	}
	return nil, false
}
