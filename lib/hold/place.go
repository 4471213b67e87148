package hold

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/manifest"
)

// Annotations that Argo CD and Helm read (gitops-engine pkg/sync/common, pkg/sync/hook, pkg/sync/syncwaves).
const (
	annotationHook       = "argocd.argoproj.io/hook"
	annotationHelmHook   = "helm.sh/hook"
	annotationWave       = "argocd.argoproj.io/sync-wave"
	annotationHelmWeight = "helm.sh/hook-weight"
	hookSkip             = "Skip"
	// AnnotationWaitingFor says on a held object what it waits for.
	AnnotationWaitingFor = "grantfirst.dev/waiting-for"
)

// place says how an object stands to holds, whatever its demands are.
type place int

const (
	placeOrdinary place = iota
	// placeEmitted objects go out even during a hold, so nothing of them can hold.
	placeEmitted
	// placeHook objects are left out during a hold.
	placeHook
	// placeDeleteHook objects run when the Application is deleted; they go out as they are and nothing can hold them.
	placeDeleteHook
	// placeSkipped objects have a Skip of their author's: Argo CD neither applies nor prunes them.
	placeSkipped
)

// holds reports whether a refused demand of such an object is a reason to hold.
func (p place) holds() bool { return p == placeOrdinary || p == placeHook }

// placeOf classifies an object as Argo CD would (gitops-engine pkg/sync/hook/hook.go, argo-cd controller/hook.go).
func (p *Plan) placeOf(h manifest.Head) place {
	switch kindOfHook(h.Annotations) {
	case hookOnDelete:
		return placeDeleteHook
	case hookOnSync, hookMixed:
		return placeHook
	case hookNever:
		return placeSkipped
	}
	if _, ok := p.emitted(h); ok {
		return placeEmitted
	}
	return placeOrdinary
}

// Hook says what Argo CD makes of an object with these annotations: it never applies it, or runs it when the Application is deleted.
func Hook(annotations map[string]string) (never, onDelete bool) {
	kind := kindOfHook(annotations)
	return kind == hookNever, kind == hookOnDelete || kind == hookMixed
}

type hookKind int

const (
	hookNone hookKind = iota
	hookNever
	hookOnSync
	hookOnDelete
	// hookMixed runs on syncs and on deletion.
	hookMixed
)

func isDeleteType(t string) bool {
	return t == "PreDelete" || t == "PostDelete" || t == "pre-delete" || t == "post-delete"
}

func kindOfHook(annotations map[string]string) hookKind {
	value, argo := annotations[annotationHook]
	helm, isHelm := annotations[annotationHelmHook]
	types := csv(value)
	if argo {
		// Skip counts only as the only type that Argo CD knows; in any other spelling the object is a hook that never runs.
		known := slices.DeleteFunc(slices.Clone(types), func(t string) bool {
			return !slices.Contains([]string{"PreSync", "Sync", "PostSync", "SyncFail", hookSkip}, t)
		})
		if len(known) == 1 && known[0] == hookSkip {
			return hookNever
		}
	}
	// Helm marks CRDs as hooks, which Argo CD does not take for hooks.
	if !argo && (!isHelm || helm == "crd-install") {
		return hookNone
	}
	// Argo CD looks for hooks on deletion in both annotations, and at Helm's for the others where its own names none it knows.
	return hookOf(append(types, csv(helm)...))
}

func hookOf(types []string) hookKind {
	onDelete := slices.ContainsFunc(types, isDeleteType)
	onSync := slices.ContainsFunc(types, func(t string) bool { return !isDeleteType(t) })
	switch {
	case onDelete && onSync:
		return hookMixed
	case onDelete:
		return hookOnDelete
	}
	return hookOnSync
}

func csv(s string) []string {
	var out []string
	for t := range strings.SplitSeq(s, ",") {
		if t = strings.TrimSpace(t); t != "" {
			out = append(out, t)
		}
	}
	return out
}

// onlyDelete gives the annotations of a mixed hook without the types that run on syncs.
func onlyDelete(annotations map[string]string) map[string]string {
	out := map[string]string{}
	for _, key := range []string{annotationHook, annotationHelmHook} {
		if value, ok := annotations[key]; ok {
			out[key] = strings.Join(slices.DeleteFunc(csv(value), func(t string) bool { return !isDeleteType(t) }), ",")
		}
	}
	return out
}

// wave is the sync wave of an object (gitops-engine pkg/sync/syncwaves/waves.go).
func wave(annotations map[string]string) int {
	if text, ok := annotations[annotationWave]; ok {
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
	}
	n, err := strconv.Atoi(annotations[annotationHelmWeight])
	if err != nil {
		return 0
	}
	return n
}

// emitted reports whether an object goes out even during a hold, and why.
func (p *Plan) emitted(h manifest.Head) (why string, ok bool) {
	group := h.Group()
	namespace := p.namespaceOf(h.Namespace)
	switch {
	case group == "" && h.Kind == "Namespace":
		return "namespaces are never held", true
	case group == "apiextensions.k8s.io" && h.Kind == "CustomResourceDefinition":
		return "custom resource definitions are never held", true
	}
	if !clusterScoped(group, h.Kind) {
		for i := range p.in.Config.Signers {
			if s := &p.in.Config.Signers[i]; s.Namespace == namespace {
				return fmt.Sprintf("in the namespace of signer %s", s.SignerName), true
			}
		}
	}
	// Custom resources may be outside the signer's namespace. What an author can get out early by this is what the admin calls policy.
	for i := range p.in.Config.Signers {
		if s := &p.in.Config.Signers[i]; s.Policy.Resource != nil && p.isPolicyObject(s, h) {
			return fmt.Sprintf("policy object of signer %s", s.SignerName), true
		}
	}
	for i := range p.in.Config.Hold.AlwaysEmit {
		if selects(&p.in.Config.Hold.AlwaysEmit[i], h, namespace) {
			return fmt.Sprintf("listed in hold.alwaysEmit[%d]", i), true
		}
	}
	return "", false
}

// clusterScoped knows the built-in kinds that ignore a namespace: one written there must not make them a signer's own. Custom
// resources cannot be told without the cluster and count by the namespace they name.
func clusterScoped(group, kind string) bool {
	switch group {
	case "":
		return kind == "PersistentVolume" || kind == "Node"
	case "rbac.authorization.k8s.io":
		return kind == "ClusterRole" || kind == "ClusterRoleBinding"
	case "admissionregistration.k8s.io", "apiregistration.k8s.io", "scheduling.k8s.io", "node.k8s.io", "flowcontrol.apiserver.k8s.io":
		return true
	case "storage.k8s.io":
		return kind != "CSIStorageCapacity"
	case "networking.k8s.io":
		return kind == "IngressClass"
	case "certificates.k8s.io":
		return kind != "PodCertificateRequest"
	}
	return false
}

func selects(s *config.Select, h manifest.Head, namespace string) bool {
	if s.Group != nil && *s.Group != h.Group() || s.Kind != "" && s.Kind != h.Kind || s.Namespace != "" && s.Namespace != namespace {
		return false
	}
	if s.LabelSelector == "" {
		return true
	}
	selector, err := labels.Parse(s.LabelSelector)
	return err == nil && selector.Matches(labels.Set(h.Labels))
}
