package loaded

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/manifest"
)

// Snapshot is evidence from files: pods and ConfigMaps as kubectl get prints them. It is a Source.
type Snapshot struct {
	pods       map[string]corev1.Pod
	configMaps map[string]corev1.ConfigMap
	// origin is the file that an object was read from.
	origin map[string]string
}

// Read reads files, and folders with all that is below them and ends in .yaml, .yml or .json: objects exactly as kubectl get -o yaml
// or -o json prints them, lists and streams of documents included. Kinds other than Pod and ConfigMap are passed over. An object that
// is there twice must be the same both times, since a snapshot shows one moment. Errors name the file.
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
	return &Snapshot{pods: map[string]corev1.Pod{}, configMaps: map[string]corev1.ConfigMap{}, origin: map[string]string{}}
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
	if head.APIVersion == "v1" && strings.HasSuffix(head.Kind, "List") {
		for i, item := range head.Items {
			if err := s.addObject(file, item); err != nil {
				return fmt.Errorf("item %d: %w", i+1, err)
			}
		}
		return nil
	}
	id := manifest.ID{APIVersion: head.APIVersion, Kind: head.Kind, Namespace: head.Metadata.Namespace, Name: head.Metadata.Name}
	if id.APIVersion != "v1" || id.Kind != "Pod" && id.Kind != "ConfigMap" {
		return nil
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

// Objects gives those of the signer's namespace, by name. It never fails.
func (s *Snapshot) Objects(_ context.Context, signer *config.Signer) (*Objects, error) {
	o := &Objects{}
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
