package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/render"
)

// pluginName is metadata.name of plugin.yaml.
const pluginName = "grantfirst"

// Migration is what became of a stream of Applications and ApplicationSets.
type Migration struct {
	// Stream is what came in, with every source in the plugin's form that can have it. Comments, and the order of all else, stay.
	Stream []byte
	// Left are what could not be carried over, one line each; such a source is as it was.
	Left []string
	// Void are fields of migrated sources that say nothing to the plugin and are gone, one line each with the reason.
	Void []string
	// Migrated is the number of sources that have changed.
	Migrated int
}

// Migrate gives Applications and the templates of ApplicationSets the plugin's form: the fields of Argo CD's own tools become
// parameters. The error is about a stream that cannot be read.
func Migrate(stream []byte) (*Migration, error) {
	m := &Migration{}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	decoder := yaml.NewDecoder(bytes.NewReader(stream))
	for n := 1; ; n++ {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null" {
			continue
		}
		if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
			return nil, fmt.Errorf("document %d: not a Kubernetes object", n)
		}
		m.document(n, doc.Content[0])
		if err := encoder.Encode(&doc); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
	if err := encoder.Close(); err != nil {
		return nil, err
	}
	m.Stream = out.Bytes()
	// The library does not write all that it reads (odd tags, comments in odd places).
	for decoder := yaml.NewDecoder(bytes.NewReader(m.Stream)); ; {
		if err := decoder.Decode(new(yaml.Node)); errors.Is(err, io.EOF) {
			return m, nil
		} else if err != nil {
			return nil, fmt.Errorf("it cannot be written back: %w: write it in plainer YAML", err)
		}
	}
}

func (m *Migration) document(n int, root *yaml.Node) {
	kind, name := text(field(root, "kind")), text(field(field(root, "metadata"), "name"))
	where := fmt.Sprintf("document %d, %s %s", n, kind, name)
	var spec *yaml.Node
	switch kind {
	case "Application":
		spec = field(root, "spec")
	case "ApplicationSet":
		spec = field(field(field(root, "spec"), "template"), "spec")
		if field(field(root, "spec"), "templatePatch") != nil {
			m.left(where, "spec.templatePatch: look whether it sets a source")
		}
		m.templates(where, field(field(root, "spec"), "generators"))
	default:
		m.left(where, "neither an Application nor an ApplicationSet")
		return
	}
	if field(spec, "sourceHydrator") != nil {
		m.left(where, "spec.sourceHydrator: what a plugin prints would be committed to Git; the pre-merge check is the protection there")
		return
	}
	at := "spec"
	if kind == "ApplicationSet" {
		at = "spec.template.spec"
	}
	if source := field(spec, "source"); source != nil {
		m.source(where+": "+at+".source", source)
	}
	if sources := field(spec, "sources"); sources != nil && sources.Kind != yaml.SequenceNode {
		m.left(where+": "+at+".sources", "not a list of its own: write the sources out here")
	} else if sources != nil {
		for i, source := range sources.Content {
			m.source(fmt.Sprintf("%s: %s.sources[%d]", where, at, i), source)
		}
	}
	if field(spec, "source") == nil && field(spec, "sources") == nil {
		m.left(where, at+" has no source")
	}
}

// templates says of generators that have a template of their own, which Argo CD merges into the ApplicationSet's, that it sets a source.
func (m *Migration) templates(where string, generators *yaml.Node) {
	if generators == nil {
		return
	}
	if spec := field(field(generators, "template"), "spec"); field(spec, "source") != nil || field(spec, "sources") != nil {
		m.left(where, fmt.Sprintf("line %d: the template of a generator sets a source: give it the plugin's form by hand", spec.Line))
	}
	for _, inner := range generators.Content {
		m.templates(where, inner)
	}
}

func (m *Migration) left(where, what string) { m.Left = append(m.Left, where+": "+what) }

// source migrates one source, all of it or nothing.
func (m *Migration) source(where string, node *yaml.Node) {
	if node.Kind != yaml.MappingNode {
		m.left(where, "not a mapping of its own: write the source out here")
		return
	}
	if field(node, "<<") != nil {
		m.left(where, "it takes fields from elsewhere by <<: write them out here")
		return
	}
	if field(node, "plugin") != nil {
		if name := text(field(field(node, "plugin"), "name")); name != pluginName {
			m.left(where, fmt.Sprintf("it uses plugin %q already", name))
		}
		return
	}
	if field(node, "ref") != nil && field(node, "path") == nil && field(node, "chart") == nil {
		return // it only lends its files
	}
	var problems []string
	if field(node, "chart") != nil {
		problems = append(problems, "chart: a chart repository has no history from which what was deleted could be kept during a hold; put the chart, or one that depends on it, into Git")
	}
	values, void, err := valuesOf(node)
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, v := range values {
		if v.Name == "valueFiles" && slices.ContainsFunc(v.Array, render.IsGlob) {
			problems = append(problems, v.Name+": Argo CD v3.4 and later expand globs, and the plugin does not: name the files")
		}
		if v.Name != "valueFiles" && v.Name != "setFile" {
			continue
		}
		for _, element := range slices.Concat(v.Array, slices.Collect(maps.Values(v.Map))) {
			if strings.HasPrefix(element, "$") && strings.Contains(element, "/") && !strings.HasPrefix(element, "$ARGOCD_") && !strings.HasPrefix(element, "${ARGOCD_") {
				problems = append(problems, fmt.Sprintf("%s: %s is in another source, which a plugin does not see", v.Name, element))
			}
		}
	}
	if len(problems) > 0 {
		for _, p := range problems {
			m.left(where, p)
		}
		return
	}
	plugin := map[string]any{"name": pluginName}
	if len(values) > 0 {
		plugin["parameters"] = values
	}
	replacement, err := nodeOf(plugin)
	if err != nil {
		m.left(where, err.Error())
		return
	}
	for _, tool := range []string{"helm", "kustomize", "directory"} {
		remove(node, tool)
	}
	node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "plugin"}, replacement)
	for _, v := range void {
		m.Void = append(m.Void, where+": "+v)
	}
	m.Migrated++
}

// valuesOf are the parameters that stand for what the source tells Argo CD's own tools, and what is void of that.
func valuesOf(node *yaml.Node) (parameterList, []string, error) {
	var plain map[string]any
	if err := node.Decode(&plain); err != nil {
		return nil, nil, err
	}
	asJSON, err := json.Marshal(plain)
	if err != nil {
		return nil, nil, err
	}
	var s Source
	if err := json.Unmarshal(asJSON, &s); err != nil {
		return nil, nil, err
	}
	return s.toolParameters()
}

// nodeOf is a value in the order of its JSON fields.
func nodeOf(v any) (*yaml.Node, error) {
	asYAML, err := sigsyaml.Marshal(v)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(asYAML, &doc); err != nil {
		return nil, err
	}
	return doc.Content[0], nil
}

// field is the value of a key of a mapping, nil where there is none.
func field(mapping *yaml.Node, key string) *yaml.Node {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func remove(mapping *yaml.Node, key string) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content = slices.Delete(mapping.Content, i, i+2)
			return
		}
	}
}

func text(scalar *yaml.Node) string {
	if scalar == nil {
		return ""
	}
	return scalar.Value
}
