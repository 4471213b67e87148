// Package render turns a directory of a repository into one manifest stream, as Argo CD's own directory, kustomize and
// Helm sources would.
//
// What goes in is a file system of the whole repository (the working copy, see Open, or the tree of a commit, see
// Revision), a directory in it and the Options that an Application's plugin parameters set. What comes out is the
// stream, not parsed any further than the rendering needs. Same input, same bytes.
//
// It never reads a file outside the repository root (ErrOutside), never runs a command, never opens a connection,
// and never guesses: what it does not render (jsonnet, remote bases, helmCharts, lookup, $ref values) is an error that
// names the file and the entry and says what to do.
package render

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// The values of Options.Render.
const (
	Auto      = "auto"
	Directory = "directory"
	Kustomize = "kustomize"
	Helm      = "helm"
)

// Options say how a directory is rendered. The zero value renders what Argo CD would detect, with its defaults. A field
// that does not fit the kind of rendering and is not empty is an error of Render: nothing is ignored silently.
type Options struct {
	// Render is Auto (also when empty), Directory, Kustomize or Helm.
	Render string

	// Recurse also takes the files of subdirectories (directory).
	Recurse bool
	// Include and Exclude are globs over the path below the directory: * also matches a slash, {a,b} is either
	// (directory). Exclude wins.
	Include, Exclude string

	// ReleaseName is the Helm release; the name of the Application when empty (helm).
	ReleaseName string
	// ValueFiles are merged in order. They are relative to the chart; a leading slash means the repository root (helm).
	ValueFiles []string
	// IgnoreMissingValueFiles passes over ValueFiles that do not exist (helm).
	IgnoreMissingValueFiles bool
	// Values is inline YAML that wins over ValueFiles (helm).
	Values string
	// SetValues, SetStrings and SetFiles are helm's --set, --set-string and --set-file, applied in this order after
	// Values; the value of a SetFiles entry is a path as in ValueFiles (helm).
	SetValues, SetStrings, SetFiles []Assignment
	// SkipCRDs leaves out the crds/ directories of the chart and its subcharts (helm).
	SkipCRDs bool
	// SkipTests leaves out the hooks that are tests (helm).
	SkipTests bool
	// SkipSchemaValidation does not look at values.schema.json (helm).
	SkipSchemaValidation bool

	// OwnNamespace is the release's namespace in place of Namespace (helm), or replaces that of the kustomization (kustomize).
	// It decides nothing for a manifest that names no namespace: that one goes where the Application does.
	OwnNamespace string
	// OwnKubeVersion and OwnAPIVersions take the place of KubeVersion and APIVersions; an entry of the latter may be several
	// with commas between them (helm).
	OwnKubeVersion string
	OwnAPIVersions []string

	// Images are overrides name[=newName][:tag][@digest] (kustomize).
	Images []string
	// NamePrefix and NameSuffix replace those of the kustomization (kustomize).
	NamePrefix, NameSuffix string
	// Replicas are counts by the name of a workload; they win over those of the kustomization (kustomize).
	Replicas []Assignment
	// CommonLabels and CommonAnnotations are added to those of the kustomization (kustomize).
	CommonLabels, CommonAnnotations map[string]string
	// ForceCommonLabels and ForceCommonAnnotations let them win over those of the kustomization. Without, a name that both
	// have is an error (kustomize).
	ForceCommonLabels, ForceCommonAnnotations bool
	// LabelWithoutSelector adds CommonLabels to the objects only, LabelIncludeTemplates then to pod templates too; selectors
	// stay as they are. Without the former the latter is an error (kustomize).
	LabelWithoutSelector, LabelIncludeTemplates bool
	// CommonAnnotationsEnvsubst fills Env into CommonAnnotations too (kustomize).
	CommonAnnotationsEnvsubst bool
	// Patches are YAML objects {patch or path, target, options}, applied after those of the kustomization (kustomize).
	Patches []string
	// Components are directories relative to the kustomization (kustomize).
	Components []string
	// IgnoreMissingComponents passes over Components that are not there. A pattern is not, whatever it matches (kustomize).
	IgnoreMissingComponents bool

	// Application is the Application's name, with or without a leading "namespace_" (helm).
	Application string
	// Namespace is the destination namespace; "default" when empty (helm).
	Namespace string
	// KubeVersion is the cluster's version in any of Argo CD's spellings: 1.31.2, v1.31.2k3s1, v1.31.2+k3s1 (helm).
	KubeVersion string
	// APIVersions are what the cluster serves: apps/v1, apps/v1/Deployment (helm).
	APIVersions []string

	// Env is Argo CD's build environment. Where it is not nil, $NAME and ${NAME} are replaced in ValueFiles, SetValues,
	// SetStrings, SetFiles, Images and CommonLabels, and with CommonAnnotationsEnvsubst in CommonAnnotations, unknown names
	// by nothing, and $$ by $: just where Argo CD v2.14 and v3.2 do it for spec.source.helm and spec.source.kustomize.
	Env map[string]string
}

// Assignment is one name=value of Options.SetValues, SetStrings or SetFiles.
type Assignment struct{ Name, Value string }

// Result is a rendered directory.
type Result struct {
	// Render is Directory, Kustomize or Helm: what it was rendered as.
	Render string
	// Stream holds the manifests. It is empty when the directory has none; the caller decides what that means.
	Stream []byte
	// Origins says which file the lines of the stream came from; in ascending order, only for Directory.
	Origins []Origin
	// Skipped names files that look like manifests and were left out, only for Directory.
	Skipped []Skipped
}

// Origin says that from Line (from 1) of the stream on, the text is that of the file Path, a slash path below the
// repository root.
type Origin struct {
	Line int
	Path string
}

// Skipped is a file that the directory rendering passed over, and why.
type Skipped struct{ Path, Why string }

// Render renders dir, a slash path below the root of repo ("." for the root itself). A dir that is a regular file is
// rendered as a directory of just this file. An error names the file, and the entry in it, that a person must change;
// errors.Is(err, ErrOutside) holds when something would have left the repository.
func Render(repo fs.FS, dir string, o Options) (*Result, error) {
	dir = path.Clean(dir)
	kind, err := detect(repo, dir, o.Render)
	if err != nil {
		return nil, err
	}
	if err := o.fit(kind); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	var r *Result
	switch kind {
	case Kustomize:
		r, err = kustomize(repo, dir, &o)
	case Helm:
		r, err = helm(repo, dir, &o)
	default:
		r, err = directory(repo, dir, &o)
	}
	if err != nil {
		return nil, err
	}
	r.Render = kind
	return r, nil
}

// detect tells what dir is rendered as. The order is Argo CD's: its walk lets a later file name win, and
// kustomization.yaml sorts after Chart.yaml (v2.14 util/app/discovery/discovery.go).
func detect(repo fs.FS, dir, render string) (string, error) {
	if !fs.ValidPath(dir) {
		return "", fmt.Errorf("%s: %w", dir, ErrOutside)
	}
	info, err := stat(repo, dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	kustomization, chart := "", false
	if info.IsDir() {
		if kustomization, err = kustomizationFile(repo, dir); err != nil {
			return "", err
		}
		if chart, err = exists(repo, path.Join(dir, "Chart.yaml")); err != nil {
			return "", err
		}
	}
	switch render {
	case "", Auto:
		switch {
		case kustomization != "":
			return Kustomize, nil
		case chart:
			return Helm, nil
		}
		return Directory, nil
	case Directory:
		return Directory, nil
	case Kustomize:
		if kustomization == "" {
			return "", fmt.Errorf("%s: render is kustomize, but there is no %s here", dir, strings.Join(kustomizationNames, ", "))
		}
		return Kustomize, nil
	case Helm:
		if !chart {
			return "", fmt.Errorf("%s: render is helm, but there is no Chart.yaml here", dir)
		}
		return Helm, nil
	}
	return "", fmt.Errorf("render %q: want %s, %s, %s or %s", render, Auto, Directory, Kustomize, Helm)
}

// expand replaces names of the build environment as Argo CD does (v2.14 pkg/apis/application/v1alpha1/types.go,
// Env.Envsubst).
func (o *Options) expand(s string) string {
	if o.Env == nil {
		return s
	}
	return os.Expand(s, func(name string) string {
		if name == "$" {
			return "$"
		}
		return o.Env[name]
	})
}

// expanded does so for the values of a map.
func (o *Options) expanded(m map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range m {
		out[name] = o.expand(value)
	}
	return out
}

func exists(repo fs.FS, name string) (bool, error) {
	_, err := stat(repo, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
}
