package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/render"
)

// helmSource, kustomizeSource and directorySource are what Argo CD's own tools can be told and grantfirst has a parameter for
// (argo-cd pkg/apis/application/v1alpha1/types.go). Any other field is an error: ignoring it would render something else.
type helmSource struct {
	ReleaseName             string         `json:"releaseName"`
	ValueFiles              []string       `json:"valueFiles"`
	IgnoreMissingValueFiles bool           `json:"ignoreMissingValueFiles"`
	Values                  string         `json:"values"`
	ValuesObject            map[string]any `json:"valuesObject"`
	SkipCrds                bool           `json:"skipCrds"`
	// Version was the Helm version once and says nothing any more.
	Version    string `json:"version"`
	Parameters []struct {
		Name        string `json:"name"`
		Value       string `json:"value"`
		ForceString bool   `json:"forceString"`
	} `json:"parameters"`
	FileParameters []struct {
		Name string `json:"name"`
		Path string `json:"path"`
	} `json:"fileParameters"`
}

type kustomizeSource struct {
	Images            []string          `json:"images"`
	NamePrefix        string            `json:"namePrefix"`
	NameSuffix        string            `json:"nameSuffix"`
	CommonLabels      map[string]string `json:"commonLabels"`
	CommonAnnotations map[string]string `json:"commonAnnotations"`
	Patches           []any             `json:"patches"`
	Components        []string          `json:"components"`
}

type directorySource struct {
	Recurse bool   `json:"recurse"`
	Include string `json:"include"`
	Exclude string `json:"exclude"`
}

// toolOptions puts the parameters of a source that does not use the plugin into o.
func (s *Source) toolOptions(o *render.Options) error {
	values, err := s.toolParameters()
	if err != nil {
		return err
	}
	return o.Set(values)
}

// toolParameters are the plugin's parameters that stand for what the source tells Argo CD's own tools.
func (s *Source) toolParameters() (parameterList, error) {
	var values parameterList
	switch {
	case len(s.Helm) > 0:
		var h helmSource
		if err := strictly("source.helm", s.Helm, &h); err != nil {
			return nil, err
		}
		if err := values.helm(&h); err != nil {
			return nil, err
		}
	case len(s.Kustomize) > 0:
		var k kustomizeSource
		if err := strictly("source.kustomize", s.Kustomize, &k); err != nil {
			return nil, err
		}
		if err := values.kustomize(&k); err != nil {
			return nil, err
		}
	case len(s.Directory) > 0:
		var d directorySource
		if err := strictly("source.directory", s.Directory, &d); err != nil {
			return nil, err
		}
		values.text("render", "directory")
		values.flag("recurse", d.Recurse)
		values.text("include", d.Include)
		values.text("exclude", d.Exclude)
	}
	return values, nil
}

func strictly(field string, data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %w: the plugin has no parameter for that", field, err)
	}
	return nil
}

type parameterList []render.ParameterValue

func (l *parameterList) text(name, value string) {
	if value != "" {
		*l = append(*l, render.ParameterValue{Name: name, String: &value})
	}
}

func (l *parameterList) flag(name string, value bool) {
	if value {
		l.text(name, "true")
	}
}

func (l *parameterList) array(name string, values []string) {
	if len(values) > 0 {
		*l = append(*l, render.ParameterValue{Name: name, Array: values})
	}
}

func (l *parameterList) mapping(name string, values map[string]string) {
	if len(values) > 0 {
		*l = append(*l, render.ParameterValue{Name: name, Map: values})
	}
}

func (l *parameterList) helm(h *helmSource) error {
	// Argo CD prefers valuesObject where both are given (argo-cd types.go, ValuesYAML).
	if len(h.ValuesObject) > 0 {
		text, err := yaml.Marshal(h.ValuesObject)
		if err != nil {
			return fmt.Errorf("source.helm.valuesObject: %w", err)
		}
		h.Values = string(text)
	}
	set, setString, setFile := map[string]string{}, map[string]string{}, map[string]string{}
	for _, p := range h.Parameters {
		if p.ForceString {
			setString[p.Name] = p.Value
		} else {
			set[p.Name] = p.Value
		}
	}
	for _, p := range h.FileParameters {
		setFile[p.Name] = p.Path
	}
	l.text("render", "helm")
	l.text("releaseName", h.ReleaseName)
	l.array("valueFiles", h.ValueFiles)
	l.flag("ignoreMissingValueFiles", h.IgnoreMissingValueFiles)
	l.text("values", h.Values)
	l.mapping("set", set)
	l.mapping("setString", setString)
	l.mapping("setFile", setFile)
	l.flag("skipCrds", h.SkipCrds)
	return nil
}

func (l *parameterList) kustomize(k *kustomizeSource) error {
	var patches []string
	for i, p := range k.Patches {
		text, err := yaml.Marshal(p)
		if err != nil {
			return fmt.Errorf("source.kustomize.patches[%d]: %w", i, err)
		}
		patches = append(patches, string(text))
	}
	l.text("render", "kustomize")
	l.array("images", k.Images)
	l.text("namePrefix", k.NamePrefix)
	l.text("nameSuffix", k.NameSuffix)
	l.mapping("commonLabels", k.CommonLabels)
	l.mapping("commonAnnotations", k.CommonAnnotations)
	l.array("patches", patches)
	l.array("components", k.Components)
	return nil
}
