package loaded

import (
	"bytes"
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/manifest"
)

// Snapshot is evidence from files: objects as kubectl get prints them. It is a Source.
type Snapshot struct {
	// About is what the files say about the reading itself; nil where they do not, as kubectl's output.
	About *About

	pods       map[string]corev1.Pod
	configMaps map[string]corev1.ConfigMap
	// others are all other objects with a name, in JSON, by apiVersion and kind, and then by namespace and name.
	others map[string]map[string]stdjson.RawMessage
	// origin is the file that an object was read from.
	origin map[string]string
}

// The apiVersion and kind of About.
const (
	AboutAPIVersion = "grantfirst.dev/v1alpha1"
	AboutKind       = "Snapshot"
)

// About is a document of kind Snapshot, of which a snapshot has one at most: what is known about the reading beside the objects.
type About struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// TakenAt is when the objects were read, by the API server's clock; zero where it did not say.
	TakenAt metav1.Time `json:"takenAt,omitempty"`
	// KubeVersion and APIVersions are those of the cluster.
	KubeVersion string   `json:"kubeVersion,omitempty"`
	APIVersions []string `json:"apiVersions,omitempty"`
	// Problems are the signers whose objects could not be read.
	Problems []Unread `json:"problems,omitempty"`
	// ApplicationUnknown says why nothing is known of the Application's earlier syncs, where that is no matter of course.
	ApplicationUnknown string `json:"applicationUnknown,omitempty"`
}

// Unread says why the objects of a signer could not be read.
type Unread struct {
	// SignerName is that of the configuration.
	SignerName string `json:"signerName"`
	Message    string `json:"message"`
}

// Read reads files, and folders with all that is below them and ends in .yaml, .yml or .json: objects exactly as kubectl get -o yaml
// or -o json prints them, lists and streams of documents included. Objects that have no name are passed over, unless they are pods,
// ConfigMaps or the Snapshot itself (About). An object that is there twice must be the same both times, since a snapshot shows one
// moment. Errors name the file.
func Read(paths ...string) (*Snapshot, error) {
	s := emptySnapshot()
	for _, path := range paths {
		files, err := filesOf(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			if err := s.add(file, raw); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return s, nil
}

func emptySnapshot() *Snapshot {
	return &Snapshot{pods: map[string]corev1.Pod{}, configMaps: map[string]corev1.ConfigMap{},
		others: map[string]map[string]stdjson.RawMessage{}, origin: map[string]string{}}
}

func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	var files []string
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)) {
			files = append(files, file)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: no .yaml, .yml or .json file in it: give the output of kubectl get pods,configmaps -o yaml", path)
	}
	return files, err
}

func (s *Snapshot) add(file string, raw []byte) error {
	stream, err := manifest.Parse(raw)
	if err != nil {
		return err
	}
	for _, doc := range stream.Documents {
		text := doc.Raw
		if !stdjson.Valid(text) {
			if text, err = yaml.YAMLToJSONStrict(text); err != nil {
				return &manifest.Error{Document: doc.Number, Line: doc.Line, Err: err, Fix: "give it exactly as kubectl get -o yaml prints it"}
			}
		}
		if err := s.addObject(file, text); err != nil {
			return &manifest.Error{Document: doc.Number, Line: doc.Line, Err: err}
		}
	}
	return nil
}

// addObject takes an object or a list.
func (s *Snapshot) addObject(file string, text []byte) error {
	var head struct {
		APIVersion string               `json:"apiVersion"`
		Kind       string               `json:"kind"`
		Items      []stdjson.RawMessage `json:"items"`
		Metadata   struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &head); err != nil {
		return fmt.Errorf("not a Kubernetes object: %w: give it exactly as kubectl get -o yaml prints it", err)
	}
	if head.Kind == "" {
		return errors.New("no kind: give it exactly as kubectl get -o yaml prints it")
	}
	if head.Items != nil && strings.HasSuffix(head.Kind, "List") || head.APIVersion == "v1" && head.Kind == "List" {
		for i, item := range head.Items {
			if err := s.addObject(file, item); err != nil {
				return fmt.Errorf("item %d: %w", i+1, err)
			}
		}
		return nil
	}
	id := manifest.ID{APIVersion: head.APIVersion, Kind: head.Kind, Namespace: head.Metadata.Namespace, Name: head.Metadata.Name}
	if id.APIVersion == AboutAPIVersion && id.Kind == AboutKind {
		return s.addAbout(file, text)
	}
	if id.APIVersion != "v1" || id.Kind != "Pod" && id.Kind != "ConfigMap" {
		return s.addOther(file, id, text)
	}
	if id.Namespace == "" || id.Name == "" {
		return fmt.Errorf("%s: it has no name or no namespace: give it exactly as kubectl get -o yaml prints it", id)
	}
	if id.Kind == "Pod" {
		return addTo(s, s.pods, file, id, text)
	}
	return addTo(s, s.configMaps, file, id, text)
}

func addTo[T any](s *Snapshot, all map[string]T, file string, id manifest.ID, text []byte) error {
	var o T
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &o); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	key := id.String()
	if before, twice := all[key]; twice && !reflect.DeepEqual(before, o) {
		return fmt.Errorf("%s: it is another one in %s: a snapshot shows one moment, give one of the two", id, s.origin[key])
	}
	all[key], s.origin[key] = o, file
	return nil
}

func (s *Snapshot) addAbout(file string, text []byte) error {
	about := &About{}
	repeated, err := json.UnmarshalStrict(text, about)
	if err := errors.Join(append(repeated, err)...); err != nil {
		return fmt.Errorf("%s: %w: give it exactly as grantfirst snapshot wrote it", AboutKind, err)
	}
	if s.About != nil && !reflect.DeepEqual(s.About, about) {
		return fmt.Errorf("a second %s, after that in %s: a snapshot shows one moment, give one of the two", AboutKind, s.origin[AboutKind])
	}
	s.About, s.origin[AboutKind] = about, file
	return nil
}

func (s *Snapshot) addOther(file string, id manifest.ID, text []byte) error {
	if id.Name == "" {
		return nil
	}
	kind, name := id.APIVersion+" "+id.Kind, id.Namespace+"/"+id.Name
	if s.others[kind] == nil {
		s.others[kind] = map[string]stdjson.RawMessage{}
	}
	before, twice := s.others[kind][name]
	if twice && !sameJSON(before, text) {
		return fmt.Errorf("%s: it is another one in %s: a snapshot shows one moment, give one of the two", id, s.origin[kind+" "+name])
	}
	s.others[kind][name], s.origin[kind+" "+name] = text, file
	return nil
}

// sameJSON compares what two texts say.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var left, right any
	return json.UnmarshalCaseSensitivePreserveInts(a, &left) == nil && json.UnmarshalCaseSensitivePreserveInts(b, &right) == nil &&
		reflect.DeepEqual(left, right)
}

// Other gives the objects of a kind that is neither Pod nor ConfigMap, in JSON, in the order of namespace and name.
func (s *Snapshot) Other(apiVersion, kind string) []stdjson.RawMessage {
	all := s.others[apiVersion+" "+kind]
	var out []stdjson.RawMessage
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[name])
	}
	return out
}

// ConfigMap gives the one of that name, nil where there is none.
func (s *Snapshot) ConfigMap(namespace, name string) *corev1.ConfigMap {
	cm, ok := s.configMaps[manifest.ID{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: name}.String()]
	if !ok {
		return nil
	}
	return &cm
}

// Objects gives the pods and ConfigMaps of the signer's namespace and the custom resources of its kind. The error is what About says
// about this signer.
func (s *Snapshot) Objects(_ context.Context, signer *config.Signer) (*Objects, error) {
	o := &Objects{}
	if s.About != nil {
		o.At = s.About.TakenAt.Time
		for _, p := range s.About.Problems {
			if p.SignerName == signer.SignerName {
				return nil, errors.New(p.Message)
			}
		}
	}
	if r := signer.Policy.Resource; r != nil {
		for _, text := range s.Other(r.APIVersion, r.Kind) {
			var object map[string]any
			if err := json.UnmarshalCaseSensitivePreserveInts(text, &object); err != nil {
				return nil, fmt.Errorf("%s: %w", r.Kind, err)
			}
			o.Resources = append(o.Resources, object)
		}
		// Files of kubectl's that have none of the kind may only have been made without it.
		if o.Resources == nil && s.About != nil {
			o.Resources = []map[string]any{}
		}
	}
	for _, pod := range s.pods {
		if pod.Namespace == signer.Namespace {
			o.Pods = append(o.Pods, pod)
		}
	}
	for _, cm := range s.configMaps {
		if cm.Namespace == signer.Namespace {
			o.ConfigMaps = append(o.ConfigMaps, cm)
		}
	}
	slices.SortFunc(o.Pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.ConfigMaps, func(a, b corev1.ConfigMap) int { return strings.Compare(a.Name, b.Name) })
	return o, nil
}
