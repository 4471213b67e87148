package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/render"
)

// helmSource, kustomizeSource and directorySource are what Argo CD's own tools can be told (argo-cd v3.5
// pkg/apis/application/v1alpha1/types.go). Any other field is an error: ignoring it would render something else.
type helmSource struct {
	ReleaseName             string         `json:"releaseName"`
	ValueFiles              []string       `json:"valueFiles"`
	IgnoreMissingValueFiles bool           `json:"ignoreMissingValueFiles"`
	Values                  string         `json:"values"`
	ValuesObject            map[string]any `json:"valuesObject"`
	SkipCrds                bool           `json:"skipCrds"`
	SkipTests               bool           `json:"skipTests"`
	SkipSchemaValidation    bool           `json:"skipSchemaValidation"`
	Namespace               string         `json:"namespace"`
	KubeVersion             string         `json:"kubeVersion"`
	APIVersions             []string       `json:"apiVersions"`
	// Version was the Helm version once and says nothing any more.
	Version string `json:"version"`
	// PassCredentials is about downloading dependencies.
	PassCredentials bool `json:"passCredentials"`
	Parameters      []struct {
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
	Images     []string `json:"images"`
	NamePrefix string   `json:"namePrefix"`
	NameSuffix string   `json:"nameSuffix"`
	Namespace  string   `json:"namespace"`
	Replicas   []struct {
		Name  string             `json:"name"`
		Count intstr.IntOrString `json:"count"`
	} `json:"replicas"`
	CommonLabels              map[string]string `json:"commonLabels"`
	ForceCommonLabels         bool              `json:"forceCommonLabels"`
	LabelWithoutSelector      bool              `json:"labelWithoutSelector"`
	LabelIncludeTemplates     bool              `json:"labelIncludeTemplates"`
	CommonAnnotations         map[string]string `json:"commonAnnotations"`
	ForceCommonAnnotations    bool              `json:"forceCommonAnnotations"`
	CommonAnnotationsEnvsubst bool              `json:"commonAnnotationsEnvsubst"`
	Patches                   []any             `json:"patches"`
	Components                []string          `json:"components"`
	IgnoreMissingComponents   bool              `json:"ignoreMissingComponents"`
	// Version names one of the commands that Argo CD's administrator has installed beside its own.
	Version string `json:"version"`
	// KubeVersion and APIVersions are for the charts that kustomize has helm render.
	KubeVersion string   `json:"kubeVersion"`
	APIVersions []string `json:"apiVersions"`
}

type directorySource struct {
	Recurse bool   `json:"recurse"`
	Include string `json:"include"`
	Exclude string `json:"exclude"`
	// Jsonnet is in every directory source that Argo CD itself has written, empty where nobody asked for it.
	Jsonnet map[string][]any `json:"jsonnet"`
}

// toolOptions puts the parameters of a source that does not use the plugin into o.
func (s *Source) toolOptions(o *render.Options) error {
	values, _, err := s.toolParameters()
	if err != nil {
		return err
	}
	return o.Set(values)
}

// toolParameters are the plugin's parameters that stand for what the source tells Argo CD's own tools. What says nothing to the plugin,
// because it is about something that the plugin never does, is named in void, with the reason.
func (s *Source) toolParameters() (values parameterList, void []string, err error) {
	switch {
	case len(s.Helm) > 0:
		var h helmSource
		if err := strictly("source.helm", s.Helm, &h); err != nil {
			return nil, nil, err
		}
		if err := values.helm(&h); err != nil {
			return nil, nil, err
		}
		void = h.void()
	case len(s.Kustomize) > 0:
		var k kustomizeSource
		if err := strictly("source.kustomize", s.Kustomize, &k); err != nil {
			return nil, nil, err
		}
		if err := values.kustomize(&k); err != nil {
			return nil, nil, err
		}
		void = k.void()
	case len(s.Directory) > 0:
		var d directorySource
		if err := strictly("source.directory", s.Directory, &d); err != nil {
			return nil, nil, err
		}
		for _, list := range d.Jsonnet {
			if len(list) > 0 {
				return nil, nil, errors.New("source.directory.jsonnet: jsonnet is not rendered here: commit what it renders to")
			}
		}
		values.text("render", "directory")
		values.flag("recurse", d.Recurse)
		values.text("include", d.Include)
		values.text("exclude", d.Exclude)
	}
	return values, void, nil
}

func (h *helmSource) void() (list []string) {
	if h.PassCredentials {
		list = append(list, "passCredentials: nothing is downloaded, a chart's dependencies are in its charts/")
	}
	return list
}

func (k *kustomizeSource) void() (list []string) {
	if k.Version != "" {
		list = append(list, fmt.Sprintf("version %s: the plugin has one kustomize, built in; compare what it prints", k.Version))
	}
	if k.KubeVersion != "" || len(k.APIVersions) > 0 {
		list = append(list, "kubeVersion, apiVersions: they are for helmCharts of a kustomization, which are not rendered here")
	}
	return list
}

func strictly(field string, data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		return fmt.Errorf("%s: %w", field, err)
	}
	if err != nil {
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
	l.flag("skipTests", h.SkipTests)
	l.flag("skipSchemaValidation", h.SkipSchemaValidation)
	l.text("namespace", h.Namespace)
	l.text("kubeVersion", h.KubeVersion)
	l.array("apiVersions", h.APIVersions)
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
	var replicas []string
	for _, r := range k.Replicas {
		replicas = append(replicas, r.Name+"="+r.Count.String())
	}
	l.text("render", "kustomize")
	l.array("images", k.Images)
	l.text("namePrefix", k.NamePrefix)
	l.text("nameSuffix", k.NameSuffix)
	l.text("namespace", k.Namespace)
	l.array("replicas", replicas)
	l.mapping("commonLabels", k.CommonLabels)
	l.flag("forceCommonLabels", k.ForceCommonLabels)
	l.flag("labelWithoutSelector", k.LabelWithoutSelector)
	l.flag("labelIncludeTemplates", k.LabelIncludeTemplates)
	l.mapping("commonAnnotations", k.CommonAnnotations)
	l.flag("forceCommonAnnotations", k.ForceCommonAnnotations)
	l.flag("commonAnnotationsEnvsubst", k.CommonAnnotationsEnvsubst)
	l.array("patches", patches)
	l.array("components", k.Components)
	l.flag("ignoreMissingComponents", k.IgnoreMissingComponents)
	return nil
}
