package manifest

import "strings"

// ID names one Kubernetes object in a stream.
type ID struct {
	APIVersion string
	Kind       string
	// Namespace is metadata.namespace as written; empty where the object has none.
	Namespace string
	// Name is metadata.name; empty for objects with only a generateName.
	Name string
}

// Group is the API group of the object, empty for the core group.
func (id ID) Group() string {
	if group, _, ok := strings.Cut(id.APIVersion, "/"); ok {
		return group
	}
	return ""
}

// String gives the form used in every message: apps/Deployment shop/web, Namespace shop.
func (id ID) String() string {
	s := id.Kind
	if group := id.Group(); group != "" {
		s = group + "/" + s
	}
	if id.Namespace != "" {
		return s + " " + id.Namespace + "/" + id.Name
	}
	return s + " " + id.Name
}
