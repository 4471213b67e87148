package hold

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
)

// Group is the API group of the marker, and the domain of all annotations of grantfirst.
const Group = "grantfirst.dev"

// Marker labels and annotations; they are the same for both kinds of marker.
const (
	LabelManagedBy        = "app.kubernetes.io/managed-by"
	AnnotationApplication = Group + "/application"
	AnnotationDigest      = Group + "/digest"
)

// markerPrefix begins the name of every marker of one source. It carries a hash because two Applications may share a namespace.
func markerPrefix(application, source string) string {
	return "grantfirst-" + digits(application, source) + "-"
}

// markerBase gives the key of the last released entry out of a marker's name, whichever name of the source that was made with.
func (in *Input) markerBase(group, kind, name string) (key string, ok bool) {
	if !isMarkerKind(group, kind) {
		return "", false
	}
	key, ok = markerBase(markerPrefix(in.Application, in.Source), group, kind, name)
	if !ok && in.OtherSource != "" {
		key, ok = markerBase(markerPrefix(in.Application, in.OtherSource), group, kind, name)
	}
	return key, ok
}

// markerBase gives the key of the last released entry out of a marker's name.
func markerBase(prefix, group, kind, name string) (key string, ok bool) {
	if !isMarkerKind(group, kind) {
		return "", false
	}
	key, ok = strings.CutPrefix(name, prefix)
	return key, ok && (key == noRelease || isDigits(key))
}

func isMarkerKind(group, kind string) bool {
	return group == Group && kind == config.MarkerHold || group == "apps" && kind == config.MarkerDeployment
}

func isDigits(key string) bool {
	_, err := hex.DecodeString(key)
	return err == nil && len(key) == 10
}

// marker is the one extra object that makes a hold visible.
type marker struct {
	apiVersion, kind, namespace, name string
	manifest                          []byte
}

// Hold is the manifest of the marker, kind Hold of grantfirst.dev/v1alpha1. Nothing in it changes between two renders of the same
// state.
type Hold struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Spec       HoldSpec `json:"spec"`
}

// Metadata is the metadata of a marker.
type Metadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// HoldSpec says what a hold waits for.
type HoldSpec struct {
	// Application is the name as Argo CD gives it to plugins.
	Application string `json:"application"`
	// Source tells the sources of one Application apart.
	Source string `json:"source,omitempty"`
	// Signer has the names of the signers waited for, separated by ", ".
	Signer string `json:"signer"`
	// WaitingFor is the reason in one line for people.
	WaitingFor string `json:"waitingFor"`
	// Digest is the identity of the hold: it stays the same while the same demands of the same source wait.
	Digest  string       `json:"digest"`
	Demands []HoldDemand `json:"demands"`
}

// HoldDemand is one demand that waits.
type HoldDemand struct {
	SignerName     string `json:"signerName"`
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	KeyType        string `json:"keyType"`
	// MaxExpirationSeconds and UserAnnotations are what policies may decide by as well.
	MaxExpirationSeconds int64             `json:"maxExpirationSeconds"`
	UserAnnotations      map[string]string `json:"userAnnotations,omitempty"`
	Object               string            `json:"object"`
	Volume               string            `json:"volume"`
	Reason               string            `json:"reason,omitempty"`
	Message              string            `json:"message"`
	WantedRevision       string            `json:"wantedRevision,omitempty"`
	Replicas             []HoldReplica     `json:"replicas,omitempty"`
}

// HoldReplica is what one replica of the signer has loaded.
type HoldReplica struct {
	Pod      string `json:"pod"`
	Revision string `json:"revision,omitempty"`
	Decision string `json:"decision"`
	Reason   string `json:"reason,omitempty"`
}

// Limits of the marker's size: etcd takes 1.5 MB, Argo CD shows one line, and one demand says as much as a thousand.
const (
	maxMarkerDemands  = 50
	maxMarkerReplicas = 20
)

func (p *Plan) newMarker(wave int) (*marker, error) {
	waiting := p.waiting()
	namespace := p.in.Namespace
	if namespace == "" && len(waiting) > 0 {
		namespace = waiting[0].Namespace
	} else if namespace == "" {
		namespace = p.Removals[0].Signer.Namespace
	}
	m := &marker{
		apiVersion: Group + "/v1alpha1",
		kind:       config.MarkerHold,
		namespace:  namespace,
		name:       markerPrefix(p.in.Application, p.in.Source) + p.base.key,
	}
	meta := Metadata{
		Name:      m.name,
		Namespace: namespace,
		Labels:    map[string]string{LabelManagedBy: "grantfirst"},
		Annotations: map[string]string{
			AnnotationApplication: p.in.Application,
			AnnotationDigest:      p.digest(waiting),
		},
	}
	// In a lower wave than anything else that goes out the operation would wait for the marker for ever: Suspended does not end the wait
	// between waves (gitops-engine pkg/sync/sync_context.go).
	if wave != 0 {
		meta.Annotations[annotationWave] = strconv.Itoa(wave)
	}
	var err error
	if p.in.Marker == config.MarkerDeployment {
		m.apiVersion, m.kind = "apps/v1", config.MarkerDeployment
		meta.Annotations[AnnotationWaitingFor] = p.WaitingFor()
		m.manifest, err = yaml.Marshal(pausedDeployment(meta))
	} else {
		m.manifest, err = yaml.Marshal(Hold{APIVersion: m.apiVersion, Kind: m.kind, Metadata: meta, Spec: p.holdSpec(waiting)})
	}
	if err != nil {
		return nil, fmt.Errorf("marker %s: %w", m.name, err)
	}
	return m, nil
}

func (p *Plan) holdSpec(waiting []*Demand) HoldSpec {
	var signers []string
	spec := HoldSpec{Application: p.in.Application, Source: p.in.Source, WaitingFor: p.WaitingFor(), Digest: p.digest(waiting)}
	for _, d := range waiting {
		if !slices.Contains(signers, d.SignerName) {
			signers = append(signers, d.SignerName)
		}
		if len(spec.Demands) == maxMarkerDemands {
			continue
		}
		h := HoldDemand{
			SignerName: d.SignerName, Namespace: d.Namespace, ServiceAccount: d.ServiceAccount, KeyType: d.KeyType,
			MaxExpirationSeconds: d.MaxExpirationSeconds, UserAnnotations: d.UserAnnotations,
			Object: d.Object.String(), Volume: d.Volume, Reason: d.Reason, Message: d.Message, WantedRevision: d.Wanted,
		}
		for _, r := range d.Replicas[:min(len(d.Replicas), maxMarkerReplicas)] {
			h.Replicas = append(h.Replicas, HoldReplica{Pod: r.Pod, Revision: r.Revision, Decision: string(r.Decision), Reason: r.Reason})
		}
		spec.Demands = append(spec.Demands, h)
	}
	for _, r := range p.Removals {
		if d := &r.Asker.Demand; len(spec.Demands) < maxMarkerDemands {
			spec.Demands = append(spec.Demands, HoldDemand{
				SignerName: d.SignerName, Namespace: d.Namespace, ServiceAccount: d.ServiceAccount, KeyType: d.KeyType,
				MaxExpirationSeconds: d.MaxExpirationSeconds, UserAnnotations: d.UserAnnotations,
				Object: "Pod " + r.Asker.Pod, Volume: d.Volume, Message: r.Message,
			})
		}
		if !slices.Contains(signers, r.Asker.Demand.SignerName) {
			signers = append(signers, r.Asker.Demand.SignerName)
		}
	}
	slices.Sort(signers)
	spec.Signer = strings.Join(signers, ", ")
	return spec
}

// digest is the identity of the hold. A release belongs to one digest, so it must not move with what the replicas report meanwhile.
func (p *Plan) digest(waiting []*Demand) string {
	keys := make([]string, 0, len(waiting))
	for _, d := range waiting {
		keys = append(keys, DemandKey(&d.Demand))
	}
	for _, r := range p.Removals {
		// Not the pod: its successors ask for the same.
		keys = append(keys, "removal "+DemandKey(&r.Asker.Demand))
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	sum := sha256.Sum256([]byte(strings.Join(append([]string{p.in.Application, p.in.Source, p.base.key}, keys...), "\x00")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// pausedDeployment is the marker for clusters that may not have the Hold CRD. Argo CD shows a paused Deployment as Suspended straight
// from its spec, it never runs a pod, and its template passes the restricted Pod Security Standard.
func pausedDeployment(meta Metadata) map[string]any {
	labels := map[string]string{"grantfirst.dev/marker": meta.Name}
	return map[string]any{
		"apiVersion": "apps/v1",
		"kind":       "Deployment",
		"metadata":   meta,
		"spec": map[string]any{
			"replicas": 0,
			"paused":   true,
			"selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec": map[string]any{
					"automountServiceAccountToken": false,
					"securityContext": map[string]any{
						"runAsNonRoot":   true,
						"runAsUser":      65534,
						"seccompProfile": map[string]any{"type": "RuntimeDefault"},
					},
					"containers": []any{map[string]any{
						"name":  "marker",
						"image": "registry.k8s.io/pause:3.10",
						"securityContext": map[string]any{
							"allowPrivilegeEscalation": false,
							"capabilities":             map[string]any{"drop": []string{"ALL"}},
							"readOnlyRootFilesystem":   true,
						},
						"resources": map[string]any{
							"requests": map[string]string{"cpu": "1m", "memory": "1Mi"},
							"limits":   map[string]string{"cpu": "1m", "memory": "8Mi"},
						},
					}},
				},
			},
		},
	}
}
