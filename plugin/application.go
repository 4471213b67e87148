package plugin

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/hold"
)

// Application is what grantfirst reads of an Argo CD Application (argoproj.io/v1alpha1).
type Application struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Project     string `json:"project"`
		Destination struct {
			Namespace string `json:"namespace"`
		} `json:"destination"`
		Source         *Source  `json:"source"`
		Sources        []Source `json:"sources"`
		SourceHydrator any      `json:"sourceHydrator"`
	} `json:"spec"`
	Status struct {
		Sync struct {
			Revision  string   `json:"revision"`
			Revisions []string `json:"revisions"`
		} `json:"sync"`
		History   []History  `json:"history"`
		Resources []Resource `json:"resources"`
	} `json:"status"`
}

// History is one entry of status.history; Argo CD appends, so the newest is the last.
type History struct {
	ID        int64    `json:"id"`
	Revision  string   `json:"revision"`
	Revisions []string `json:"revisions"`
	Source    *Source  `json:"source"`
	Sources   []Source `json:"sources"`
}

// Resource is one entry of status.resources.
type Resource struct {
	Group     string `json:"group"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Hook      bool   `json:"hook"`
}

// Source is one source of an Application. Raw is the whole of it in canonical JSON.
type Source struct {
	RepoURL        string
	Path           string
	Chart          string
	TargetRevision string
	Ref            string
	Plugin         *struct {
		Name       string            `json:"name"`
		Env        []EnvVar          `json:"env"`
		Parameters []json.RawMessage `json:"parameters"`
	}
	Helm, Kustomize, Directory json.RawMessage
	Raw                        string
}

// EnvVar is one entry of source.plugin.env.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// UnmarshalJSON keeps the canonical JSON beside the fields: two history entries rendered the same only if all of it is the same.
func (s *Source) UnmarshalJSON(data []byte) error {
	type fields Source
	if err := json.Unmarshal(data, (*fields)(s)); err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	raw, err := json.Marshal(v)
	s.Raw = string(raw)
	return err
}

// ReadApplication reads one Application as kubectl prints it.
func ReadApplication(data []byte) (*Application, error) {
	a := &Application{}
	if err := yaml.Unmarshal(data, a); err != nil {
		return nil, err
	}
	if a.Kind != "Application" || !strings.HasPrefix(a.APIVersion, "argoproj.io/") {
		return nil, fmt.Errorf("holds %s %s, not an argoproj.io Application: print one with kubectl get application NAME -o yaml", a.APIVersion, a.Kind)
	}
	return a, nil
}

// controlPlaneNamespace is where Argo CD lives by default; Applications elsewhere have their namespace in the name that plugins see.
const controlPlaneNamespace = "argocd"

// InstanceName is the name that Argo CD gives to plugins (argo-cd pkg/apis/application/v1alpha1, Application.InstanceName).
func (a *Application) InstanceName() string {
	if a.Metadata.Namespace == "" || a.Metadata.Namespace == controlPlaneNamespace {
		return a.Metadata.Name
	}
	return a.Metadata.Namespace + "_" + a.Metadata.Name
}

func (a *Application) sources() []Source {
	if len(a.Spec.Sources) > 0 {
		return a.Spec.Sources
	}
	if a.Spec.Source != nil {
		return []Source{*a.Spec.Source}
	}
	return nil
}

func (h *History) sources() ([]Source, []string) {
	if len(h.Sources) > 0 {
		return h.Sources, h.Revisions
	}
	if h.Source != nil {
		return []Source{*h.Source}, []string{h.Revision}
	}
	return nil, nil
}

// raw is what tells a sync apart whose sources are not those of now.
func (h *History) raw() string {
	sources, revisions := h.sources()
	text := strings.Join(revisions, " ")
	for i := range sources {
		text += " " + sources[i].Raw
	}
	return text
}

// origin says which source of an Application is being rendered; empty fields are not known.
type origin struct {
	repoURL, path, targetRevision string
}

// find gives the index of the source that o means, -1 where there is none. Two sources that o fits equally are an error.
func (o origin) find(sources []Source) (int, error) {
	at := -1
	for i := range sources {
		if !o.fits(&sources[i]) {
			continue
		}
		if at >= 0 {
			return -1, fmt.Errorf("sources %d and %d of the Application both have repository %q and path %q: give one of them another path, so that their holds can be told apart",
				at, i, sources[i].RepoURL, sources[i].Path)
		}
		at = i
	}
	return at, nil
}

func (o origin) fits(s *Source) bool {
	if s.Ref != "" && s.Path == "" && s.Chart == "" {
		// A source that only lends its files to others renders nothing.
		return false
	}
	if o.repoURL != "" && s.RepoURL != o.repoURL || o.targetRevision != "" && s.TargetRevision != o.targetRevision {
		return false
	}
	return s.Chart != "" || path.Clean(s.Path) == path.Clean(o.path)
}

// id is the source's identity in marker names. The target revision is no part of it: following another branch must not lose the hold.
func (s *Source) id() string {
	return s.RepoURL + "//" + path.Clean(s.Path+"/"+s.Chart)
}

func (a *Application) serverSideDiff() bool {
	options := strings.Split(a.Metadata.Annotations["argocd.argoproj.io/compare-options"], ",")
	return slices.ContainsFunc(options, func(o string) bool { return strings.TrimSpace(o) == "ServerSideDiff=true" })
}

func (a *Application) tracked() []hold.Resource {
	out := make([]hold.Resource, 0, len(a.Status.Resources))
	for _, r := range a.Status.Resources {
		out = append(out, hold.Resource(r))
	}
	return out
}
