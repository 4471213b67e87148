package manifest

// Head is what holding needs to know of one object.
type Head struct {
	ID
	// GenerateName is metadata.generateName, for objects without a name.
	GenerateName string
	// Labels and Annotations are those of metadata. A map with a value that is not a string is nil as a whole, as Argo CD's
	// unstructured objects have it (NestedStringMap in apimachinery pkg/apis/meta/v1/unstructured).
	Labels, Annotations map[string]string
}

// Heads gives one Head for each object of the document, in order: one for a plain document, one for each item of a list. They
// are those of Decode's objects, but an ordinary document is not decoded for them.
func (d *Document) Heads() ([]Head, error) {
	if !d.odd {
		if t := ordinary(d.Raw, object); t != nil {
			defer t.free()
			if heads, ok := t.heads(nil, &t.root); ok {
				return heads, nil
			}
		}
	}
	objs, err := d.Decode()
	if err != nil {
		return nil, err
	}
	heads := make([]Head, len(objs))
	for i, obj := range objs {
		heads[i] = head(obj)
	}
	return heads, nil
}

func head(obj map[string]any) Head {
	var h Head
	h.APIVersion, _ = obj["apiVersion"].(string)
	h.Kind, _ = obj["kind"].(string)
	metadata, _ := obj["metadata"].(map[string]any)
	h.describe(metadata)
	return h
}

func (h *Head) describe(metadata map[string]any) {
	h.Namespace, _ = metadata["namespace"].(string)
	h.Name, _ = metadata["name"].(string)
	h.GenerateName, _ = metadata["generateName"].(string)
	h.Labels = stringMap(metadata["labels"])
	h.Annotations = stringMap(metadata["annotations"])
}

func stringMap(v any) map[string]string {
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		s, ok := v.(string)
		if !ok {
			return nil
		}
		out[k] = s
	}
	return out
}

// heads appends the heads of an object or list of an ordinary document. It is not ok where the tree does not tell.
func (t *tree) heads(all []Head, n *node) ([]Head, bool) {
	if n.marked || n.form != blockMap && n.form != flowMap {
		return nil, false
	}
	var h Head
	var metadata, items *node
	var kept bool // has spec or status
	for i := n.child; i != 0; {
		key := &t.nodes[i]
		value := &t.nodes[key.next]
		i = value.next
		name, ok := t.key(key)
		if !ok {
			return nil, false
		}
		switch string(name) {
		case "apiVersion":
			h.APIVersion, ok = t.str(value)
		case "kind":
			h.Kind, ok = t.str(value)
		case "metadata":
			metadata = value
		case "items":
			items = value
		case "spec", "status":
			kept = true
		}
		if !ok {
			return nil, false
		}
	}
	if h.Kind == "" || !validVersion(h.APIVersion) {
		return nil, false
	}
	if items != nil {
		switch {
		case items.marked:
			return nil, false
		case items.form == blockSeq || items.form == flowSeq:
			for i := items.child; i != 0; i = t.nodes[i].next {
				var ok bool
				if all, ok = t.heads(all, &t.nodes[i]); !ok {
					return nil, false
				}
			}
			return all, true
		}
		v, ok := t.decode(items)
		if !ok {
			return nil, false
		}
		if v == nil && !kept {
			return all, true
		}
	}
	if metadata != nil && !t.describe(&h, metadata) {
		return nil, false
	}
	return append(all, h), true
}

// describe fills a head in from metadata.
func (t *tree) describe(h *Head, metadata *node) bool {
	if metadata.marked || metadata.form != blockMap && metadata.form != flowMap {
		return !metadata.marked
	}
	for i := metadata.child; i != 0; {
		key := &t.nodes[i]
		value := &t.nodes[key.next]
		i = value.next
		name, ok := t.key(key)
		if !ok {
			return false
		}
		switch string(name) {
		case "name":
			h.Name, ok = t.str(value)
		case "namespace":
			h.Namespace, ok = t.str(value)
		case "generateName":
			h.GenerateName, ok = t.str(value)
		case "labels":
			h.Labels, ok = t.strings(value)
		case "annotations":
			h.Annotations, ok = t.strings(value)
		}
		if !ok {
			return false
		}
	}
	return true
}

// str gives the value of a node if it is a string, or else nothing.
func (t *tree) str(n *node) (string, bool) {
	v, ok := t.decode(n)
	s, _ := v.(string)
	return s, ok
}

// strings gives a mapping of strings, or else nil, as stringMap does.
func (t *tree) strings(n *node) (map[string]string, bool) {
	if n.marked || n.form != blockMap && n.form != flowMap {
		return nil, !n.marked
	}
	m := map[string]string{}
	for i := n.child; i != 0; {
		key := &t.nodes[i]
		value := &t.nodes[key.next]
		i = value.next
		name, ok := t.key(key)
		if !ok || name == nil {
			return nil, false
		}
		v, ok := t.decode(value)
		if !ok {
			return nil, false
		}
		s, is := v.(string)
		if !is { // it may be a duplicate of another key: the long way
			v, ok := t.decode(n)
			return stringMap(v), ok
		}
		m[string(name)] = s
	}
	return m, true
}
