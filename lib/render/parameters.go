package render

import (
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// ParameterValue is one entry of ARGOCD_APP_PARAMETERS, which is also one of an Application's
// spec.source.plugin.parameters.
type ParameterValue struct {
	Name   string            `json:"name"`
	String *string           `json:"string,omitempty"`
	Array  []string          `json:"array,omitempty"`
	Map    map[string]string `json:"map,omitempty"`
}

// Parameter is Argo CD's ParameterAnnouncement (v2.14 reposerver/repository/repository.proto): a parameter, its type and
// its default.
type Parameter struct {
	Name           string            `json:"name"`
	Title          string            `json:"title,omitempty"`
	Tooltip        string            `json:"tooltip,omitempty"`
	Required       bool              `json:"required,omitempty"`
	ItemType       string            `json:"itemType,omitempty"`
	CollectionType string            `json:"collectionType,omitempty"`
	String         string            `json:"string,omitempty"`
	Array          []string          `json:"array,omitempty"`
	Map            map[string]string `json:"map,omitempty"`
}

// parameter ties a name to a field of Options. The type of the field decides the type of the parameter.
type parameter struct {
	name string
	// render are the kinds of rendering that use it, none for all of them.
	render         []string
	title, tooltip string
	field          func(*Options) any
}

func (p *parameter) fits(kind string) bool {
	return len(p.render) == 0 || slices.Contains(p.render, kind)
}

var (
	inDirectory = []string{Directory}
	inHelm      = []string{Helm}
	inKustomize = []string{Kustomize}
)

var parameters = []parameter{
	{"render", nil, "Render", "how the directory is rendered: auto (as Argo CD detects it), directory, kustomize or helm",
		func(o *Options) any { return &o.Render }},

	{"recurse", inDirectory, "Recurse", "take the files of subdirectories too",
		func(o *Options) any { return &o.Recurse }},
	{"include", inDirectory, "Include", "glob over the path below the directory; only files that match are taken. {a,b} is either",
		func(o *Options) any { return &o.Include }},
	{"exclude", inDirectory, "Exclude", "glob over the path below the directory; files that match are left out. {a,b} is either",
		func(o *Options) any { return &o.Exclude }},

	{"releaseName", inHelm, "Release name", "name of the Helm release; the Application's name when empty",
		func(o *Options) any { return &o.ReleaseName }},
	{"valueFiles", inHelm, "Value files", "merged in order; relative to the chart, with a leading slash to the repository root",
		func(o *Options) any { return &o.ValueFiles }},
	{"ignoreMissingValueFiles", inHelm, "Ignore missing value files", "pass over value files that do not exist",
		func(o *Options) any { return &o.IgnoreMissingValueFiles }},
	{"values", inHelm, "Values", "inline YAML that wins over the value files",
		func(o *Options) any { return &o.Values }},
	{"set", inHelm, "Set", "helm's --set, by name",
		func(o *Options) any { return &o.SetValues }},
	{"setString", inHelm, "Set string", "helm's --set-string, by name",
		func(o *Options) any { return &o.SetStrings }},
	{"setFile", inHelm, "Set file", "helm's --set-file, by name: a path as in the value files",
		func(o *Options) any { return &o.SetFiles }},
	{"skipCrds", inHelm, "Skip CRDs", "leave out the crds/ directories of the chart and its subcharts",
		func(o *Options) any { return &o.SkipCRDs }},
	{"skipTests", inHelm, "Skip tests", "leave out the hooks that are tests",
		func(o *Options) any { return &o.SkipTests }},
	{"skipSchemaValidation", inHelm, "Skip schema validation", "do not hold the values to values.schema.json",
		func(o *Options) any { return &o.SkipSchemaValidation }},
	{"kubeVersion", inHelm, "Kubernetes version", "helm's --kube-version; the cluster's when empty",
		func(o *Options) any { return &o.OwnKubeVersion }},
	{"apiVersions", inHelm, "API versions", "helm's --api-versions: apps/v1, apps/v1/Deployment; the cluster's when empty",
		func(o *Options) any { return &o.OwnAPIVersions }},

	{"namespace", []string{Helm, Kustomize}, "Namespace", "helm: the release's, in place of the destination's; kustomize: replaces the kustomization's",
		func(o *Options) any { return &o.OwnNamespace }},

	{"images", inKustomize, "Images", "image overrides: name[=newName][:tag][@digest]",
		func(o *Options) any { return &o.Images }},
	{"namePrefix", inKustomize, "Name prefix", "replaces the kustomization's namePrefix",
		func(o *Options) any { return &o.NamePrefix }},
	{"nameSuffix", inKustomize, "Name suffix", "replaces the kustomization's nameSuffix",
		func(o *Options) any { return &o.NameSuffix }},
	{"replicas", inKustomize, "Replicas", "counts by the name of a workload",
		func(o *Options) any { return &o.Replicas }},
	{"commonLabels", inKustomize, "Common labels", "added to those of the kustomization; also in selectors",
		func(o *Options) any { return &o.CommonLabels }},
	{"forceCommonLabels", inKustomize, "Force common labels", "common labels win over those of the kustomization",
		func(o *Options) any { return &o.ForceCommonLabels }},
	{"labelWithoutSelector", inKustomize, "Labels without selectors", "common labels are not added to selectors and pod templates",
		func(o *Options) any { return &o.LabelWithoutSelector }},
	{"labelIncludeTemplates", inKustomize, "Labels in templates", "common labels without selectors are added to pod templates nevertheless",
		func(o *Options) any { return &o.LabelIncludeTemplates }},
	{"commonAnnotations", inKustomize, "Common annotations", "added to those of the kustomization",
		func(o *Options) any { return &o.CommonAnnotations }},
	{"forceCommonAnnotations", inKustomize, "Force common annotations", "common annotations win over those of the kustomization",
		func(o *Options) any { return &o.ForceCommonAnnotations }},
	{"commonAnnotationsEnvsubst", inKustomize, "Environment in common annotations", "replace names of the build environment in common annotations",
		func(o *Options) any { return &o.CommonAnnotationsEnvsubst }},
	{"patches", inKustomize, "Patches", "YAML objects {patch or path, target, options}, applied after those of the kustomization",
		func(o *Options) any { return &o.Patches }},
	{"components", inKustomize, "Components", "directories of components, relative to the kustomization",
		func(o *Options) any { return &o.Components }},
	{"ignoreMissingComponents", inKustomize, "Ignore missing components", "pass over components that are not there",
		func(o *Options) any { return &o.IgnoreMissingComponents }},
}

// Set fills in what an Application's parameters say. A name that is not known, a value of another type than announced
// and a name that is given twice are errors: a parameter that did nothing would be found out too late.
func (o *Options) Set(params []ParameterValue) error {
	seen := map[string]bool{}
	for _, v := range params {
		i := slices.IndexFunc(parameters, func(p parameter) bool { return p.name == v.Name })
		if i < 0 {
			names := make([]string, len(parameters))
			for i, p := range parameters {
				names[i] = p.name
			}
			return fmt.Errorf("parameter %q is not known; known are %s", v.Name, strings.Join(names, ", "))
		}
		if seen[v.Name] {
			return fmt.Errorf("parameter %s is given twice", v.Name)
		}
		seen[v.Name] = true
		if err := set(parameters[i].field(o), v); err != nil {
			return fmt.Errorf("parameter %s: %w", v.Name, err)
		}
	}
	return nil
}

func set(field any, v ParameterValue) error {
	isString, isArray, isMap := v.String != nil, v.Array != nil, v.Map != nil
	switch f := field.(type) {
	case *string:
		if !isString || isArray || isMap {
			return fmt.Errorf("want a string (string: …)")
		}
		*f = *v.String
	case *bool:
		if !isString || isArray || isMap {
			return fmt.Errorf(`want "true" or "false" (string: "true")`)
		}
		switch *v.String {
		case "true":
			*f = true
		case "false", "":
			*f = false
		default:
			return fmt.Errorf(`%q is neither "true" nor "false"`, *v.String)
		}
	case *[]string:
		if !isArray || isString || isMap {
			return fmt.Errorf("want a list of strings (array: […])")
		}
		*f = v.Array
	case *map[string]string:
		if !isMap || isString || isArray {
			return fmt.Errorf("want a map of strings (map: {…})")
		}
		*f = v.Map
	case *[]Assignment:
		if isMap == isArray || isString {
			return fmt.Errorf("want a map of strings (map: {…}) or a list of name=value (array: […])")
		}
		// A map has no order, and helm's result depends on it where one name contains another: sorted, it is the same
		// every time.
		for _, name := range slices.Sorted(maps.Keys(v.Map)) {
			*f = append(*f, Assignment{name, v.Map[name]})
		}
		for _, s := range v.Array {
			name, value, ok := strings.Cut(s, "=")
			if !ok {
				return fmt.Errorf("%q: want name=value", s)
			}
			*f = append(*f, Assignment{name, value})
		}
	}
	return nil
}

// fit refuses fields that the given kind of rendering would not use.
func (o *Options) fit(kind string) error {
	for _, p := range parameters {
		value := reflect.ValueOf(p.field(o)).Elem()
		if p.fits(kind) || value.IsZero() || value.Kind() != reflect.String && value.Kind() != reflect.Bool && value.Len() == 0 {
			continue
		}
		return fmt.Errorf("parameter %s is for %s, but this is rendered as %s: remove it, or set the parameter render", p.name, strings.Join(p.render, " and "), kind)
	}
	return nil
}

// Announce gives the parameters that fit dir, rendered as Argo CD would detect it, with what holds where they are not
// set.
func Announce(repo fs.FS, dir string) ([]Parameter, error) {
	kind, err := detect(repo, dir, Auto)
	if err != nil {
		return nil, err
	}
	defaults := Options{Render: Auto}
	if kind == Kustomize {
		if k, err := readKustomization(repo, dir); err == nil {
			// A kustomization that cannot be read is an error of Render, where a person sees it.
			defaults.NamePrefix, defaults.NameSuffix, defaults.OwnNamespace = k.NamePrefix, k.NameSuffix, k.Namespace
		}
	}
	var list []Parameter
	for _, p := range parameters {
		if !p.fits(kind) {
			continue
		}
		a := Parameter{Name: p.name, Title: p.title, Tooltip: p.tooltip, CollectionType: "string"}
		switch f := p.field(&defaults).(type) {
		case *string:
			a.String = *f
		case *bool:
			a.ItemType, a.String = "boolean", fmt.Sprint(*f)
		case *[]string:
			a.CollectionType = "array"
		case *map[string]string, *[]Assignment:
			a.CollectionType = "map"
		}
		list = append(list, a)
	}
	return list, nil
}
