package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/loaded"
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
			Server    string `json:"server"`
			Name      string `json:"name"`
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

// Source is one source of an Application. Raw is the whole of it in canonical JSON, but for what must not be passed on and makes no
// difference here: the plugin's environment, which grantfirst does not read, and credentials in the repository's URL.
type Source struct {
	RepoURL        string
	Path           string
	Chart          string
	TargetRevision string
	Ref            string
	Plugin         *struct {
		Name       string            `json:"name"`
		Parameters []json.RawMessage `json:"parameters"`
	}
	Helm, Kustomize, Directory json.RawMessage
	Raw                        string
}

// UnmarshalJSON keeps the canonical JSON beside the fields: two history entries rendered the same only if all of it is the same.
func (s *Source) UnmarshalJSON(data []byte) error {
	type fields Source
	if err := json.Unmarshal(data, (*fields)(s)); err != nil {
		return err
	}
	s.RepoURL = withoutUser(s.RepoURL)
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	if plugin, ok := v["plugin"].(map[string]any); ok {
		delete(plugin, "env")
	}
	if _, ok := v["repoURL"]; ok {
		v["repoURL"] = s.RepoURL
	}
	raw, err := json.Marshal(v)
	s.Raw = string(raw)
	return err
}

// MarshalJSON gives Raw.
func (s *Source) MarshalJSON() ([]byte, error) { return []byte(s.Raw), nil }

// withoutUser takes user and password out of the URL of a repository. What is left names it just as well.
func withoutUser(repoURL string) string {
	u, err := url.Parse(repoURL)
	if err != nil || u.User == nil || u.Scheme != "https" && u.Scheme != "http" {
		return repoURL
	}
	u.User = nil
	return u.String()
}

// findApplication reads the Application that was asked for: from a file of that name, else by its name, in the files that stand for the
// cluster or in the cluster.
func (c *call) findApplication(ctx context.Context) error {
	data, err := os.ReadFile(c.Application)
	switch {
	case err == nil:
		if c.application, err = applicationInFile(c.Application, data, c.App); err != nil {
			return fmt.Errorf("%s: %w", c.Application, err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist) || slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(c.Application)):
		return err
	}
	namespace, name := c.namespaced(c.Application)
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%q is neither a file nor the name of an Application: write NAME or NAMESPACE/NAME", c.Application)
	}
	if c.snapshot != nil {
		for _, raw := range c.snapshot.Other("argoproj.io/v1alpha1", "Application") {
			a, err := readApplicationJSON(raw)
			if err == nil && a.Metadata.Name == name && cmp.Or(a.Metadata.Namespace, namespace) == namespace {
				c.application = a
				return nil
			}
		}
		return fmt.Errorf("%s/%s is neither a file nor in the files given with --live", namespace, name)
	}
	own, err := c.ownCluster()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, c.deadline(time.Now()))
	defer cancel()
	raw, err := getApplication(ctx, own, namespace, name)
	if err != nil {
		return err
	}
	c.applicationName = name
	c.application, err = readApplicationJSON(raw)
	return err
}

// applicationInFile is the only one in a file, or of several the one called app.
func applicationInFile(file string, data []byte, app string) (*Application, error) {
	a, err := ReadApplication(data)
	if err == nil {
		return a, nil
	}
	// A snapshot has other documents, too.
	s, unreadable := loaded.Read(file)
	if unreadable != nil {
		return nil, err
	}
	var found []*Application
	for _, raw := range s.Other("argoproj.io/v1alpha1", "Application") {
		if a, err = readApplicationJSON(raw); err != nil {
			return nil, err
		}
		if app == "" || a.Metadata.Name == app || a.Metadata.Namespace+"_"+a.Metadata.Name == app {
			found = append(found, a)
		}
	}
	switch len(found) {
	case 0:
		return nil, err
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("holds %d Applications: name one with --app", len(found))
}

// ReadApplication reads one Application as kubectl prints it.
func ReadApplication(data []byte) (*Application, error) {
	a := &Application{}
	if err := yaml.Unmarshal(data, a); err != nil {
		return nil, err
	}
	return a, a.check()
}

func (a *Application) check() error {
	if a.Kind != "Application" || !strings.HasPrefix(a.APIVersion, "argoproj.io/") {
		return fmt.Errorf("holds %q %q, not an argoproj.io Application: print one with kubectl get application NAME -o yaml", a.APIVersion, a.Kind)
	}
	return nil
}

// readApplicationJSON reads one as the API server sends it. As YAML its author could make it unreadable: that has no place for some
// characters that JSON has.
func readApplicationJSON(data []byte) (*Application, error) {
	a := &Application{}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, err
	}
	return a, a.check()
}

// controlPlaneNamespace is where Argo CD lives by default; Applications elsewhere have their namespace in the name that plugins see.
const controlPlaneNamespace = "argocd"

// instanceName is the name that Argo CD gives to plugins (argo-cd pkg/apis/application/v1alpha1, Application.InstanceName).
func (a *Application) instanceName(controlPlane string) string {
	if a.Metadata.Namespace == "" || a.Metadata.Namespace == controlPlane {
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

const annotationCompareOptions = "argocd.argoproj.io/compare-options"

func (a *Application) serverSideDiff() bool {
	options := strings.Split(a.Metadata.Annotations[annotationCompareOptions], ",")
	return slices.ContainsFunc(options, func(o string) bool { return strings.TrimSpace(o) == "ServerSideDiff=true" })
}

func (a *Application) tracked() []hold.Resource {
	out := make([]hold.Resource, 0, len(a.Status.Resources))
	for _, r := range a.Status.Resources {
		out = append(out, hold.Resource(r))
	}
	return out
}
