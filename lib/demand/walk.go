package demand

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/grantfirst/grantfirst/lib/manifest"
)

// word is the key that every demand has in its manifest: a document without it needs no decoding.
const word = "podCertificate"

// InObject gives the demands of one decoded object, in a fixed order, with Document and Item left zero. destination is the namespace
// of an object that names none.
//
// A demand is found by its shape alone: a map with volumes[].projected.sources[].podCertificate, at any depth, is a pod spec
// whatever the kind of the object (Kubernetes 1.37, core/v1 PodSpec). What has that shape but could not be sent to a signer is an
// error that names the object and the volume: the API server would refuse it too.
func InObject(obj map[string]any, destination string) ([]Demand, error) {
	w := newWalk(obj, destination)
	if err := w.run(obj); err != nil {
		return nil, fmt.Errorf("%s: %w", w.object, err)
	}
	return w.found, nil
}

func idOf(obj map[string]any) manifest.ID {
	var id manifest.ID
	id.APIVersion, _ = obj["apiVersion"].(string)
	id.Kind, _ = obj["kind"].(string)
	if meta, ok := obj["metadata"].(map[string]any); ok {
		id.Namespace, _ = meta["namespace"].(string)
		id.Name, _ = meta["name"].(string)
	}
	return id
}

// namespaced refuses an object with a namespace that is not a string, because its demands would be looked up in the wrong one.
func namespaced(obj map[string]any) error {
	meta, _ := obj["metadata"].(map[string]any)
	if _, err := text(meta, "namespace"); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	return nil
}

// walk collects the demands of one object.
type walk struct {
	object    manifest.ID
	namespace string
	found     []Demand
}

func newWalk(obj map[string]any, destination string) *walk {
	w := &walk{object: idOf(obj), namespace: destination}
	if w.object.Namespace != "" {
		w.namespace = w.object.Namespace
	}
	return w
}

func (w *walk) run(obj map[string]any) error {
	if err := w.value(obj); err != nil || len(w.found) == 0 {
		return err
	}
	return namespaced(obj)
}

func (w *walk) value(v any) error {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if err := w.value(item); err != nil {
				return err
			}
		}
	case map[string]any:
		if volumes, ok := v["volumes"].([]any); ok {
			if err := w.podSpec(v, volumes); err != nil {
				return err
			}
		}
		// Sorted, because the same input must give the same demands in the same order.
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if err := w.value(v[key]); err != nil {
				return err
			}
		}
	}
	return nil
}

// podSpec looks at a map with a list of volumes, which is a pod spec if one of them has a podCertificate source.
func (w *walk) podSpec(spec map[string]any, volumes []any) error {
	for i, v := range volumes {
		volume, ok := v.(map[string]any)
		if !ok {
			if mentions(v) {
				return fmt.Errorf("volume %d is not a map but has a %s in it: correct the indentation", i+1, word)
			}
			continue
		}
		if err := w.volume(spec, volume); err != nil {
			name := strconv.Itoa(i + 1)
			if s, ok := volume["name"].(string); ok {
				name = strconv.Quote(s)
			}
			return fmt.Errorf("volume %s: %w", name, err)
		}
	}
	return nil
}

func (w *walk) volume(spec, volume map[string]any) error {
	projected, ok := volume["projected"].(map[string]any)
	if !ok {
		if mentions(volume["projected"]) {
			return fmt.Errorf("projected is not a map but has a %s in it: write projected: {sources: [...]}", word)
		}
		return nil
	}
	sources, ok := projected["sources"].([]any)
	if !ok {
		if mentions(projected["sources"]) {
			return fmt.Errorf("sources is not a list but has a %s in it: begin each source with a dash", word)
		}
		return nil
	}
	for i, s := range sources {
		source, ok := s.(map[string]any)
		if !ok {
			if mentions(s) {
				return fmt.Errorf("source %d is not a map but has a %s in it: correct the indentation", i+1, word)
			}
			continue
		}
		// null is how YAML spells a field that is not set.
		if source[word] == nil {
			continue
		}
		if err := w.source(spec, volume, source[word]); err != nil {
			return fmt.Errorf("source %d: %w", i+1, err)
		}
	}
	return nil
}

func (w *walk) source(spec, volume map[string]any, v any) error {
	certificate, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s is %s: write a map with signerName and keyType", word, kindOf(v))
	}
	d := Demand{Namespace: w.namespace, Object: w.object}
	var err error
	if d.SignerName, err = text(certificate, "signerName"); err != nil {
		return err
	}
	if d.SignerName == "" {
		return fmt.Errorf("%s has no signerName: name the signer that is to issue the certificate, like example.com/workload", word)
	}
	if d.KeyType, err = text(certificate, "keyType"); err != nil {
		return err
	}
	if d.MaxExpirationSeconds, err = seconds(certificate["maxExpirationSeconds"]); err != nil {
		return err
	}
	if d.UserAnnotations, err = annotations(certificate["userAnnotations"]); err != nil {
		return err
	}
	if d.ServiceAccount, err = serviceAccount(spec); err != nil {
		return err
	}
	if d.Volume, err = text(volume, "name"); err != nil {
		return err
	}
	w.found = append(w.found, d)
	return nil
}

// serviceAccount is the pod's identity: serviceAccountName, else its deprecated alias (Kubernetes 1.37, pkg/apis/core/v1
// conversion.go), else what the ServiceAccount admission fills in. An empty name is as good as none.
func serviceAccount(spec map[string]any) (string, error) {
	for _, key := range []string{"serviceAccountName", "serviceAccount"} {
		if name, err := text(spec, key); name != "" || err != nil {
			return name, err
		}
	}
	return "default", nil
}

// seconds reads maxExpirationSeconds in whatever Go type a decoder gives to an integer.
func seconds(v any) (int64, error) {
	switch n := v.(type) {
	case nil:
		return DefaultMaxExpirationSeconds, nil
	case int:
		return int64(n), nil
	case int32:
		return int64(n), nil
	case int64:
		return n, nil
	case uint64:
		if n <= math.MaxInt64 {
			return int64(n), nil
		}
	case float64:
		if whole(n) {
			return int64(n), nil
		}
	case json.Number:
		if i, err := n.Int64(); err == nil {
			return i, nil
		}
		if f, err := n.Float64(); err == nil && whole(f) {
			return int64(f), nil
		}
	}
	return 0, fmt.Errorf("maxExpirationSeconds is %s: write a whole number of seconds, like %d", kindOf(v), DefaultMaxExpirationSeconds)
}

// whole reports whether f is an integer that float64 and int64 both hold exactly.
func whole(f float64) bool {
	return f == math.Trunc(f) && math.Abs(f) <= 1<<53
}

func annotations(v any) (map[string]string, error) {
	if v == nil {
		return nil, nil
	}
	raw, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("userAnnotations is %s: write a map of strings", kindOf(v))
	}
	out := make(map[string]string, len(raw))
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		s, err := text(raw, key)
		if err != nil {
			return nil, fmt.Errorf("userAnnotations: %w", err)
		}
		out[key] = s
	}
	return out, nil
}

// text reads a string field; a field that is missing or null is empty.
func text(m map[string]any, key string) (string, error) {
	v := m[key]
	if v == nil {
		return "", nil
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s is %s: write a string, in quotes if it looks like something else", key, kindOf(v))
	}
	return s, nil
}

// kindOf says what was found where something else was expected.
func kindOf(v any) string {
	switch v := v.(type) {
	case map[string]any:
		return "a map"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("the string %q", v)
	case bool:
		return fmt.Sprintf("the boolean %t", v)
	default:
		return fmt.Sprintf("the number %v", v)
	}
}

// mentions reports whether a podCertificate key is anywhere in a value that has not the type a pod spec has in its place.
func mentions(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, mentions)
	case map[string]any:
		for key, item := range v {
			if key == word || mentions(item) {
				return true
			}
		}
	}
	return false
}
