// Package release ends holds: it makes Argo CD regenerate a held Application once its grants are loaded, and sees to one full sync.
//
// Decide is the protocol of docs/release.md as a pure function: in go an Application as it was observed, what is known of its holds,
// what was done before and the time, out comes the next step. Watcher is the controller around it. The package never renders, never
// judges a policy by other rules than lib/loaded and lib/policy, and never patches an Application that an operation runs on.
package release

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/hold"
)

// Application is what the protocol looks at in an Argo CD Application (argoproj.io/v1alpha1; Argo CD v2.14 to v3.5).
type Application struct {
	Metadata struct {
		Name              string                  `json:"name"`
		Namespace         string                  `json:"namespace"`
		UID               string                  `json:"uid"`
		ResourceVersion   string                  `json:"resourceVersion"`
		Annotations       map[string]string       `json:"annotations"`
		Labels            map[string]string       `json:"labels"`
		DeletionTimestamp *metav1.Time            `json:"deletionTimestamp"`
		OwnerReferences   []metav1.OwnerReference `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		Project     string `json:"project"`
		Destination struct {
			config.Destination `json:",inline"`
			Namespace          string `json:"namespace"`
		} `json:"destination"`
		// Sources as they are written, to be copied into an operation.
		Sources    []any `json:"sources"`
		SyncPolicy *struct {
			Automated   *Automated `json:"automated"`
			SyncOptions []string   `json:"syncOptions"`
			Retry       any        `json:"retry"`
		} `json:"syncPolicy"`
	} `json:"spec"`
	Operation any `json:"operation"`
	Status    struct {
		Sync struct {
			Status    string   `json:"status"`
			Revision  string   `json:"revision"`
			Revisions []string `json:"revisions"`
		} `json:"sync"`
		OperationState *OperationState `json:"operationState"`
		Resources      []Resource      `json:"resources"`
		History        []struct {
			ID        int64    `json:"id"`
			Revision  string   `json:"revision"`
			Revisions []string `json:"revisions"`
		} `json:"history"`
	} `json:"status"`
}

// Automated is spec.syncPolicy.automated. Enabled is new in Argo CD v3.1; the ApplicationSet controller of v3.3 and later switches the
// children of a RollingSync off with it, where older ones take automated away.
type Automated struct {
	Enabled  *bool `json:"enabled"`
	Prune    bool  `json:"prune"`
	SelfHeal bool  `json:"selfHeal"`
}

// OperationState is status.operationState: the operation that runs or ran last.
type OperationState struct {
	Phase     string `json:"phase"`
	Message   string `json:"message"`
	StartedAt string `json:"startedAt"`
	Operation struct {
		Sync struct {
			// Resources makes it a partial sync: no hooks, no history.
			Resources []any `json:"resources"`
			DryRun    bool  `json:"dryRun"`
		} `json:"sync"`
	} `json:"operation"`
	SyncResult struct {
		Resources []Result `json:"resources"`
	} `json:"syncResult"`
}

// Result is what an operation did with one object.
type Result struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Status    string `json:"status"`
	HookPhase string `json:"hookPhase"`
	Message   string `json:"message"`
}

// Resource is one entry of status.resources.
type Resource struct {
	Group           string `json:"group"`
	Kind            string `json:"kind"`
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	Status          string `json:"status"`
	RequiresPruning bool   `json:"requiresPruning"`
}

// Values of Argo CD's (gitops-engine pkg/sync/common, argo-cd pkg/apis/application/v1alpha1).
const (
	phaseRunning     = "Running"
	phaseTerminating = "Terminating"
	phaseSucceeded   = "Succeeded"
	phaseFailed      = "Failed"
	phaseError       = "Error"

	statusSynced    = "Synced"
	statusOutOfSync = "OutOfSync"

	resultSynced       = "Synced"
	resultPruned       = "Pruned"
	resultPruneSkipped = "PruneSkipped"

	annotationRefresh = "argocd.argoproj.io/refresh"
)

// Read takes an Application as an API server gives it.
func Read(object *unstructured.Unstructured) (*Application, error) {
	a := &Application{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, a); err != nil {
		return nil, err
	}
	return a, nil
}

// automated: Argo CD syncs it by itself when a new revision comes.
func (a *Application) automated() bool {
	p := a.Spec.SyncPolicy
	return p != nil && p.Automated != nil && (p.Automated.Enabled == nil || *p.Automated.Enabled)
}

func (a *Application) selfHeals() bool { return a.automated() && a.Spec.SyncPolicy.Automated.SelfHeal }

// revision has all revisions of the last comparison in one word.
func (a *Application) revision() string {
	return oneRevision(a.Status.Sync.Revision, a.Status.Sync.Revisions)
}

func oneRevision(revision string, revisions []string) string {
	if len(revisions) > 0 {
		return strings.Join(revisions, " ")
	}
	return revision
}

// synced gives the newest entry of the history: its id, -1 where there is none, and its revision.
func (a *Application) synced() (id int64, revision string) {
	if len(a.Status.History) == 0 {
		return -1, ""
	}
	newest := &a.Status.History[len(a.Status.History)-1]
	return newest.ID, oneRevision(newest.Revision, newest.Revisions)
}

// compared: what status.resources says is a comparison with manifests that could be generated. Without them (ComparisonError) Argo CD
// says Unknown, and everything live seems to require pruning.
func (a *Application) compared() bool {
	return a.Status.Sync.Status == statusSynced || a.Status.Sync.Status == statusOutOfSync
}

func (o *OperationState) completed() bool {
	return o != nil && (o.Phase == phaseSucceeded || o.Phase == phaseFailed || o.Phase == phaseError)
}

func (o *OperationState) failed() bool { return o.completed() && o.Phase != phaseSucceeded }

func (o *OperationState) running() bool {
	return o != nil && (o.Phase == phaseRunning || o.Phase == phaseTerminating)
}

func (o *OperationState) partial() bool { return len(o.Operation.Sync.Resources) > 0 }

func (o *OperationState) full() bool { return !o.partial() && !o.Operation.Sync.DryRun }

// idle: no operation waits and none runs.
func (a *Application) idle() bool {
	s := a.Status.OperationState
	return a.Operation == nil && (s == nil || s.Phase == "" || s.completed())
}

// onlyPrunesLeft: nothing is out of sync but what Git has no more.
func (a *Application) onlyPrunesLeft() bool {
	return a.compared() && !slices.ContainsFunc(a.Status.Resources, func(r Resource) bool {
		return r.Status == statusOutOfSync && !r.RequiresPruning
	})
}

// allRequirePruning is what Argo CD's auto-sync does not do unless allowEmpty is set (argo-cd v2.14 controller/appcontroller.go autoSync).
func (a *Application) allRequirePruning() bool {
	return !slices.ContainsFunc(a.Status.Resources, func(r Resource) bool { return !r.RequiresPruning })
}

// Marker names the marker of a hold, as it stands in status.resources.
type Marker struct {
	Group, Kind, Namespace, Name string
}

// String is the marker as people write it.
func (m Marker) String() string { return m.Kind + " " + m.Namespace + "/" + m.Name }

var markerName = regexp.MustCompile(`^grantfirst-[0-9a-f]{10}-([0-9a-f]{10}|none)$`)

func (r *Resource) marker() (Marker, bool) {
	kind := r.Group == hold.Group && r.Kind == config.MarkerHold || r.Group == "apps" && r.Kind == config.MarkerDeployment
	return Marker{r.Group, r.Kind, r.Namespace, r.Name}, kind && markerName.MatchString(r.Name)
}

// Markers gives the markers that status.resources lists.
func (a *Application) Markers() []Marker {
	var all []Marker
	for i := range a.Status.Resources {
		if m, ok := a.Status.Resources[i].marker(); ok {
			all = append(all, m)
		}
	}
	return all
}

func (a *Application) entry(m Marker) *Resource {
	for i := range a.Status.Resources {
		if of, ok := a.Status.Resources[i].marker(); ok && of == m {
			return &a.Status.Resources[i]
		}
	}
	return nil
}

// result is what the last operation did with the marker; nil where it did nothing with it.
func (o *OperationState) result(m Marker) *Result {
	for i := range o.SyncResult.Resources {
		if r := &o.SyncResult.Resources[i]; r.Group == m.Group && r.Kind == m.Kind && r.Namespace == m.Namespace && r.Name == m.Name {
			return r
		}
	}
	return nil
}

// waitsFor: the operation waits for the marker to become healthy, which it never does. The message alone does not say so: between two waves
// it names in the same words what is only to be done next, which may be to apply the marker or to prune it (gitops-engine
// pkg/sync/sync_context.go Sync, setRunningPhase).
func (o *OperationState) waitsFor(m Marker) bool {
	if o == nil || o.Phase != phaseRunning || !strings.Contains(o.Message, "waiting for healthy state of ") || !strings.Contains(o.Message, "/"+m.Name) {
		return false
	}
	r := o.result(m)
	return r != nil && r.Status == resultSynced && r.HookPhase == phaseRunning
}

// Action is what is done to an Application next.
type Action string

// Actions. Each but DeleteMarker is one merge patch, guarded by the resourceVersion that was observed.
const (
	None Action = ""
	// Arm clears operationState, so that Argo CD does not take the revision for one that it has attempted.
	Arm Action = "arm"
	// Refresh asks for manifests that are not the cached ones, and clears operationState; for manual Applications it leaves that alone.
	Refresh Action = "refresh"
	// Sync starts a full operation.
	Sync Action = "sync"
	// Terminate ends an operation that waits for the marker.
	Terminate Action = "terminate"
	// Toggle sets or removes the refresh annotation, so that something changes and Argo CD looks again.
	Toggle Action = "toggle"
	// DeleteMarker deletes the marker that nothing renders any more and that Argo CD does not prune.
	DeleteMarker Action = "deleteMarker"
)

// Patch is the merge patch of an action on the Application as it was observed.
func Patch(do Action, o *Observed) ([]byte, error) {
	a := o.Application
	metadata := map[string]any{"resourceVersion": a.Metadata.ResourceVersion}
	patch := map[string]any{"metadata": metadata}
	cleared := map[string]any{"operationState": nil}
	switch do {
	case Arm:
		patch["status"] = cleared
	case Refresh:
		metadata["annotations"] = map[string]any{annotationRefresh: "hard"}
		if !o.manual() {
			patch["status"] = cleared
		}
	case Toggle:
		var value any = "normal"
		if _, set := a.Metadata.Annotations[annotationRefresh]; set {
			value = nil
		}
		metadata["annotations"] = map[string]any{annotationRefresh: value}
	case Terminate:
		patch["status"] = map[string]any{"operationState": map[string]any{"phase": phaseTerminating}}
	case Sync:
		patch["status"] = cleared
		patch["operation"] = operation(o)
	}
	return json.Marshal(patch)
}

// operation is what Argo CD's own auto-sync would write (argo-cd v2.14 controller/appcontroller.go autoSync). An operation inherits
// nothing from spec.syncPolicy.
func operation(o *Observed) map[string]any {
	a := o.Application
	sync := map[string]any{}
	if len(a.Spec.Sources) > 0 {
		sync["revisions"], sync["sources"] = a.Status.Sync.Revisions, a.Spec.Sources
	} else {
		sync["revision"] = a.Status.Sync.Revision
	}
	if o.prunes() {
		sync["prune"] = true
	}
	var retry any = map[string]any{"limit": 5}
	if p := a.Spec.SyncPolicy; p != nil {
		if len(p.SyncOptions) > 0 {
			sync["syncOptions"] = p.SyncOptions
		}
		if p.Retry != nil {
			retry = p.Retry
		}
	}
	return map[string]any{"initiatedBy": map[string]any{"automated": true}, "retry": retry, "sync": sync}
}

// RollingSync is what an ApplicationSet that goes step by step says about an Application of its own.
type RollingSync struct {
	// Status is that of status.applicationStatus: Waiting, Pending, Progressing or Healthy; empty where there is none yet.
	Status string
	// Step is the number of its step.
	Step string
	// Prune is spec.template's automated.prune, which Argo CD up to v3.2 takes away from the Application.
	Prune bool
}

// beforeStep: the step of this Application has not come or is just coming. The ApplicationSet controller starts its sync.
func (o *Observed) beforeStep() bool {
	return o.RollingSync != nil && (o.RollingSync.Status == "Waiting" || o.RollingSync.Status == "Pending")
}

// Observed is an Application and what is known around it at one moment.
type Observed struct {
	*Application
	// RollingSync is nil for an Application that no ApplicationSet rolls out.
	RollingSync *RollingSync
	// Closed: sync windows keep Argo CD from syncing by itself, until ClosedUntil at least, as far as that is known.
	Closed      bool
	ClosedUntil time.Time
	// Holds says what is known of each marker of the Application.
	Holds map[Marker]Hold
	// MayBegin: a release may begin now. Others that have begun are not held up by it.
	MayBegin bool
}

// manual: people start the syncs, or an automation of theirs.
func (o *Observed) manual() bool { return !o.automated() && o.RollingSync == nil }

func (o *Observed) prunes() bool {
	if p := o.Spec.SyncPolicy; p != nil && p.Automated != nil {
		return p.Automated.Prune
	}
	return o.RollingSync != nil && o.RollingSync.Prune
}

// Loaded says whether every demand of a hold is granted by what the signers have loaded.
type Loaded string

// Values of Loaded. With Unknown only the plugin can tell.
const (
	Yes     Loaded = "yes"
	No      Loaded = "no"
	Unknown Loaded = "unknown"
)

// Hold is what is known of one hold beside its entry in status.resources.
type Hold struct {
	// Digest of the live marker; empty where it is not live or cannot be read.
	Digest string
	Loaded Loaded
	// Evidence changes whenever something changes that Loaded, or the plugin's answer, may depend on.
	Evidence uint64
}

// standing is for how long a fresh comparison must have stood before a sync is started that Argo CD was to start.
func (o *Observed) standing() time.Duration {
	if p := o.Spec.SyncPolicy; o.RollingSync != nil && (p == nil || p.Automated == nil) {
		return standsRolling
	}
	return stands
}
