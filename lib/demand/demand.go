// Package demand finds the certificates that pod templates will ask for.
//
// In go the documents of a manifest stream, out come demands: signer, namespace, ServiceAccount, key type, lifetime and user
// annotations of every podCertificate source, with the object and the volume it was found in. The package decides nothing about
// grants and reads nothing but what it is given.
package demand

import "github.com/grantfirst/grantfirst/lib/manifest"

// DefaultMaxExpirationSeconds is the lifetime asked for where a podCertificate source names none
// (Kubernetes 1.37, core/v1 PodCertificateProjection.maxExpirationSeconds).
const DefaultMaxExpirationSeconds = 86400

// Demand is one certificate that a pod template will ask for.
type Demand struct {
	SignerName string
	// Namespace is the namespace of the pods: metadata.namespace of the object, else the destination's.
	Namespace string
	// ServiceAccount is spec.serviceAccountName, else the deprecated spec.serviceAccount, else "default".
	ServiceAccount string
	KeyType        string
	// MaxExpirationSeconds is the longest lifetime the pod accepts, in seconds.
	MaxExpirationSeconds int64
	UserAnnotations      map[string]string

	// Object is where the demand was found; Object.Namespace is as written in the manifest.
	Object manifest.ID
	// Document is the number of the document in the stream, counted from 1; Item the position of the object in it
	// (0 but for lists).
	Document int
	Item     int
	// Volume is the name of the projected volume.
	Volume string
}

// Asker is one demand of a live pod. Its kubelet asks again at renewal, and for every pod that takes its place.
type Asker struct {
	// Pod is "namespace/name".
	Pod    string
	Demand Demand
}
