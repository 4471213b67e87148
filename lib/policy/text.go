package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v2"
	strictjson "sigs.k8s.io/json"
)

// decode reads a policy text that is one YAML or JSON document into nil, bool, int64, uint64, float64, string, []any and
// map[string]any. YAML is that of Kubernetes (1.1, keys are made strings). A repeated key is an error, also where the first comes from
// a merge (<<), and so is anything after the document: a signer might read either of two.
func decode(text []byte) (any, error) {
	if json.Valid(text) {
		var v any
		repeated, err := strictjson.UnmarshalStrict(text, &v)
		return v, oneLine(errors.Join(append(repeated, err)...))
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.SetStrict(true)
	var v, next any
	if err := decoder.Decode(&v); errors.Is(err, io.EOF) {
		return nil, errors.New("the text is empty")
	} else if err != nil {
		return nil, oneLine(err)
	}
	if err := decoder.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the first document: keep one")
	}
	return plain(v)
}

// plain turns what the YAML decoder gives into what a JSON decoder would.
func plain(v any) (any, error) {
	switch v := v.(type) {
	case int:
		return int64(v), nil
	case []any:
		for i := range v {
			item, err := plain(v[i])
			if err != nil {
				return nil, err
			}
			v[i] = item
		}
		return v, nil
	case map[any]any:
		m := make(map[string]any, len(v))
		for k, item := range v {
			var key string
			switch k.(type) {
			case string, bool, int, int64, uint64, float64:
				key = fmt.Sprint(k)
			default:
				return nil, fmt.Errorf("the key %v is not a string", k)
			}
			if _, twice := m[key]; twice {
				return nil, fmt.Errorf("the key %q is there twice", key)
			}
			value, err := plain(item)
			if err != nil {
				return nil, err
			}
			m[key] = value
		}
		return m, nil
	default:
		return v, nil
	}
}

// oneLine makes a library's error fit into a message.
func oneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}
