package applications

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The types below have the fields of Argo CD's own (3.2, pkg/apis/application/v1alpha1/types.go). They are written out because the rules
// depend on them: what the API server prunes, what a template of the wrong type is refused for, what merging takes for empty, and what a
// templatePatch merges or replaces.

// applicationTemplate is the template of an ApplicationSet, or a generator's own.
type applicationTemplate struct {
	Metadata templateMetadata `json:"metadata"`
	Spec     applicationSpec  `json:"spec"`
}

type templateMetadata struct {
	Name        string            `json:"name,omitempty"`
	Namespace   string            `json:"namespace,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Finalizers  []string          `json:"finalizers,omitempty"`
}

// generated is an Application as a template makes it.
type generated struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              applicationSpec `json:"spec"`
	Status            map[string]any  `json:"status,omitempty"`
	Operation         map[string]any  `json:"operation,omitempty"`
}

type applicationSpec struct {
	Source               *source             `json:"source,omitempty"`
	Destination          destination         `json:"destination"`
	Project              string              `json:"project"`
	SyncPolicy           *syncPolicy         `json:"syncPolicy,omitempty"`
	IgnoreDifferences    []ignoredDifference `json:"ignoreDifferences,omitempty"`
	Info                 []nameValue         `json:"info,omitempty"`
	RevisionHistoryLimit *int64              `json:"revisionHistoryLimit,omitempty"`
	Sources              []source            `json:"sources,omitempty"`
	SourceHydrator       *sourceHydrator     `json:"sourceHydrator,omitempty"`
}

type destination struct {
	Server    string `json:"server,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

type source struct {
	RepoURL        string           `json:"repoURL"`
	Path           string           `json:"path,omitempty"`
	TargetRevision string           `json:"targetRevision,omitempty"`
	Helm           *helmSource      `json:"helm,omitempty"`
	Kustomize      *kustomizeSource `json:"kustomize,omitempty"`
	Directory      *directorySource `json:"directory,omitempty"`
	Plugin         *pluginSource    `json:"plugin,omitempty"`
	Chart          string           `json:"chart,omitempty"`
	Ref            string           `json:"ref,omitempty"`
	Name           string           `json:"name,omitempty"`
}

type helmSource struct {
	ValueFiles              []string              `json:"valueFiles,omitempty"`
	Parameters              []helmParameter       `json:"parameters,omitempty"`
	ReleaseName             string                `json:"releaseName,omitempty"`
	Values                  string                `json:"values,omitempty"`
	FileParameters          []helmFileParameter   `json:"fileParameters,omitempty"`
	Version                 string                `json:"version,omitempty"`
	PassCredentials         bool                  `json:"passCredentials,omitempty"`
	IgnoreMissingValueFiles bool                  `json:"ignoreMissingValueFiles,omitempty"`
	SkipCrds                bool                  `json:"skipCrds,omitempty"`
	ValuesObject            *runtime.RawExtension `json:"valuesObject,omitempty"`
	Namespace               string                `json:"namespace,omitempty"`
	KubeVersion             string                `json:"kubeVersion,omitempty"`
	APIVersions             []string              `json:"apiVersions,omitempty"`
	SkipTests               bool                  `json:"skipTests,omitempty"`
	SkipSchemaValidation    bool                  `json:"skipSchemaValidation,omitempty"`
}

type helmParameter struct {
	Name        string `json:"name,omitempty"`
	Value       string `json:"value,omitempty"`
	ForceString bool   `json:"forceString,omitempty"`
}

type helmFileParameter struct {
	Name string `json:"name,omitempty"`
	Path string `json:"path,omitempty"`
}

type kustomizeSource struct {
	NamePrefix                string             `json:"namePrefix,omitempty"`
	NameSuffix                string             `json:"nameSuffix,omitempty"`
	Images                    []string           `json:"images,omitempty"`
	CommonLabels              map[string]string  `json:"commonLabels,omitempty"`
	Version                   string             `json:"version,omitempty"`
	CommonAnnotations         map[string]string  `json:"commonAnnotations,omitempty"`
	ForceCommonLabels         bool               `json:"forceCommonLabels,omitempty"`
	ForceCommonAnnotations    bool               `json:"forceCommonAnnotations,omitempty"`
	Namespace                 string             `json:"namespace,omitempty"`
	CommonAnnotationsEnvsubst bool               `json:"commonAnnotationsEnvsubst,omitempty"`
	Replicas                  []kustomizeReplica `json:"replicas,omitempty"`
	Patches                   []kustomizePatch   `json:"patches,omitempty"`
	Components                []string           `json:"components,omitempty"`
	IgnoreMissingComponents   bool               `json:"ignoreMissingComponents,omitempty"`
	LabelWithoutSelector      bool               `json:"labelWithoutSelector,omitempty"`
	KubeVersion               string             `json:"kubeVersion,omitempty"`
	APIVersions               []string           `json:"apiVersions,omitempty"`
	LabelIncludeTemplates     bool               `json:"labelIncludeTemplates,omitempty"`
}

type kustomizeReplica struct {
	Name  string             `json:"name"`
	Count intstr.IntOrString `json:"count"`
}

type kustomizePatch struct {
	Path    string           `json:"path,omitempty"`
	Patch   string           `json:"patch,omitempty"`
	Target  *kustomizeTarget `json:"target,omitempty"`
	Options map[string]bool  `json:"options,omitempty"`
}

type kustomizeTarget struct {
	Group              string `json:"group,omitempty"`
	Version            string `json:"version,omitempty"`
	Kind               string `json:"kind,omitempty"`
	Name               string `json:"name,omitempty"`
	Namespace          string `json:"namespace,omitempty"`
	AnnotationSelector string `json:"annotationSelector,omitempty"`
	LabelSelector      string `json:"labelSelector,omitempty"`
}

type directorySource struct {
	Recurse bool `json:"recurse,omitempty"`
	// Jsonnet is a pointer where Argo CD's is none, so that it is not there where it is empty.
	Jsonnet *jsonnetSource `json:"jsonnet,omitempty"`
	Exclude string         `json:"exclude,omitempty"`
	Include string         `json:"include,omitempty"`
}

type jsonnetSource struct {
	ExtVars []jsonnetVariable `json:"extVars,omitempty"`
	TLAs    []jsonnetVariable `json:"tlas,omitempty"`
	Libs    []string          `json:"libs,omitempty"`
}

type jsonnetVariable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Code  bool   `json:"code,omitempty"`
}

type pluginSource struct {
	Name       string            `json:"name,omitempty"`
	Env        []nameValue       `json:"env,omitempty"`
	Parameters []pluginParameter `json:"parameters,omitempty"`
}

type pluginParameter struct {
	Name   string             `json:"name,omitempty"`
	String *string            `json:"string,omitempty"`
	Map    *map[string]string `json:"map,omitempty"`
	Array  *[]string          `json:"array,omitempty"`
}

type nameValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type syncPolicy struct {
	Automated *struct {
		Prune      bool  `json:"prune,omitempty"`
		SelfHeal   bool  `json:"selfHeal,omitempty"`
		AllowEmpty bool  `json:"allowEmpty,omitempty"`
		Enabled    *bool `json:"enabled,omitempty"`
	} `json:"automated,omitempty"`
	SyncOptions []string `json:"syncOptions,omitempty"`
	Retry       *struct {
		Limit   int64 `json:"limit,omitempty"`
		Backoff *struct {
			Duration    string `json:"duration,omitempty"`
			Factor      *int64 `json:"factor,omitempty"`
			MaxDuration string `json:"maxDuration,omitempty"`
		} `json:"backoff,omitempty"`
		Refresh bool `json:"refresh,omitempty"`
	} `json:"retry,omitempty"`
	ManagedNamespaceMetadata *struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"managedNamespaceMetadata,omitempty"`
}

type ignoredDifference struct {
	Group                 string   `json:"group,omitempty"`
	Kind                  string   `json:"kind"`
	Name                  string   `json:"name,omitempty"`
	Namespace             string   `json:"namespace,omitempty"`
	JSONPointers          []string `json:"jsonPointers,omitempty"`
	JQPathExpressions     []string `json:"jqPathExpressions,omitempty"`
	ManagedFieldsManagers []string `json:"managedFieldsManagers,omitempty"`
}

type sourceHydrator struct {
	DrySource struct {
		RepoURL        string `json:"repoURL"`
		TargetRevision string `json:"targetRevision"`
		Path           string `json:"path"`
	} `json:"drySource"`
	SyncSource struct {
		TargetBranch string `json:"targetBranch"`
		Path         string `json:"path"`
	} `json:"syncSource"`
	HydrateTo *struct {
		TargetBranch string `json:"targetBranch"`
	} `json:"hydrateTo,omitempty"`
}

// applicationSet is what decides which Applications one generates (Argo CD 3.2, pkg/apis/application/v1alpha1/applicationset_types.go).
type applicationSet struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		GoTemplate        bool                `json:"goTemplate"`
		GoTemplateOptions []string            `json:"goTemplateOptions"`
		Generators        []generator         `json:"generators"`
		Template          applicationTemplate `json:"template"`
		TemplatePatch     *string             `json:"templatePatch"`
	} `json:"spec"`
}

// generator is one at any depth: only a matrix or a merge has others in it, and those have no template that counts.
type generator struct {
	List                    *listGenerator        `json:"list,omitempty"`
	Clusters                *elsewhere            `json:"clusters,omitempty"`
	Git                     *gitGenerator         `json:"git,omitempty"`
	SCMProvider             *elsewhere            `json:"scmProvider,omitempty"`
	ClusterDecisionResource *elsewhere            `json:"clusterDecisionResource,omitempty"`
	PullRequest             *elsewhere            `json:"pullRequest,omitempty"`
	Matrix                  *matrixGenerator      `json:"matrix,omitempty"`
	Merge                   *mergeGenerator       `json:"merge,omitempty"`
	Plugin                  *elsewhere            `json:"plugin,omitempty"`
	Selector                *metav1.LabelSelector `json:"selector,omitempty"`
}

// elsewhere is a generator that is known by name only: what it gives is nowhere in a repository.
type elsewhere struct{}

type listGenerator struct {
	Elements     []json.RawMessage   `json:"elements"`
	ElementsYAML string              `json:"elementsYaml,omitempty"`
	Template     applicationTemplate `json:"template"`
}

type gitGenerator struct {
	RepoURL         string              `json:"repoURL"`
	Revision        string              `json:"revision"`
	Directories     []gitItem           `json:"directories,omitempty"`
	Files           []gitItem           `json:"files,omitempty"`
	PathParamPrefix string              `json:"pathParamPrefix,omitempty"`
	Values          map[string]string   `json:"values,omitempty"`
	Template        applicationTemplate `json:"template"`
}

type gitItem struct {
	Path    string `json:"path"`
	Exclude bool   `json:"exclude,omitempty"`
}

type matrixGenerator struct {
	Generators []generator         `json:"generators"`
	Template   applicationTemplate `json:"template"`
}

type mergeGenerator struct {
	Generators []generator         `json:"generators"`
	MergeKeys  []string            `json:"mergeKeys"`
	Template   applicationTemplate `json:"template"`
}
