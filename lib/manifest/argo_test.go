package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// argo reads a stream as Argo CD does, with the same libraries: SplitYAMLToString in the plugin server, SplitYAML in the
// repository server, GenerateManifests' way with lists, but at all levels.
func argo(raw []byte) ([]map[string]any, error) {
	var all []map[string]any
	texts, err := splitYAMLToString(raw)
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		again, err := splitYAMLToString([]byte(text))
		if err != nil {
			return nil, err
		}
		for _, text := range again {
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(text), u); err != nil {
				return nil, err
			}
			if all, err = expand(all, u); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func splitYAMLToString(raw []byte) ([]string, error) {
	d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	var texts []string
	for {
		var ext runtime.RawExtension
		if err := d.Decode(&ext); errors.Is(err, io.EOF) {
			return texts, nil
		} else if err != nil {
			return nil, err
		}
		if text := strings.TrimSpace(string(ext.Raw)); text != "" && text != "null" {
			texts = append(texts, text)
		}
	}
}

func expand(all []map[string]any, u *unstructured.Unstructured) ([]map[string]any, error) {
	if kind := u.GroupVersionKind().Kind; kind == "" {
		return nil, fmt.Errorf("no kind")
	}
	if u.IsList() {
		err := u.EachListItem(func(o runtime.Object) (err error) {
			all, err = expand(all, o.(*unstructured.Unstructured))
			return err
		})
		return all, err
	}
	items, has := u.Object["items"]
	_, spec := u.Object["spec"]
	_, status := u.Object["status"]
	if has && items == nil && !spec && !status {
		return all, nil
	}
	return append(all, u.Object), nil
}
