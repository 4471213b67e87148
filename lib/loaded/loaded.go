// Package loaded finds out what the live replicas of a signer have loaded.
//
// In go the pods and ConfigMaps of the signer's namespace and its custom resources, out comes evidence: for each live pod the policy that it decides by, or why
// that is not known. What cannot be proven is unknown; nothing is guessed. Evaluate is pure: no cluster, no clock, no environment.
// Where the objects come from is the business of a Source; Snapshot is the one that reads files.
//
// The rules are those of docs/design.md section 5; docs/report.md is the contract of the reports.
package loaded

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// Objects is what a signer is judged by: the pods and all the ConfigMaps of its namespace, as they were at one moment.
type Objects struct {
	// Pods has at least all that the signer's podSelector selects.
	Pods []corev1.Pod
	// ConfigMaps has all of the namespace: the policy objects and the reports.
	ConfigMaps []corev1.ConfigMap
	// Resources has at least the custom resources that policy.resource of the signer selects, as a JSON decoder that keeps integers gives
	// them. Nil means that they were not read; where there are none it is empty.
	Resources []map[string]any
	// At is when the objects were read, by the API server's clock; zero where that is not known.
	At time.Time
}

// Source gives the objects that a signer is judged by. An error means that they could not be read, never that there are none.
type Source interface {
	Objects(ctx context.Context, s *config.Signer) (*Objects, error)
}

// Evaluate says what the signer has loaded. Without objects (nil: nothing was read, as offline without a snapshot) or without any of
// the signer's namespace, the evidence has a Problem. Replicas are in the order of their names.
func Evaluate(s *config.Signer, o *Objects) policy.Evidence {
	evidence := policy.Evidence{Kind: s.Evidence, Unproven: s.Evidence == config.Settle}
	e, err := newEvaluation(s, o)
	if err != nil {
		evidence.Problem = err.Error()
		return evidence
	}
	replica := map[string]func(*corev1.Pod, *policy.Replica){
		config.Report: e.byReport, config.PodVolumes: e.byVolumes, config.Status: e.byStatus, config.Settle: e.bySettling,
	}[s.Evidence]
	for _, pod := range e.live {
		r := policy.Replica{Pod: pod.Name, Node: pod.Spec.NodeName, Terminating: pod.DeletionTimestamp != nil}
		replica(pod, &r)
		evidence.Replicas = append(evidence.Replicas, r)
	}
	if len(e.live) == 0 {
		evidence.Searched = fmt.Sprintf("none of the %d pods in namespace %s matches podSelector %q", len(e.pods), s.Namespace, s.PodSelector)
	}
	evidence.Live = e.standing()
	return evidence
}

// standing are the policy objects as they stand.
func (e *evaluation) standing() policy.Alternatives {
	if e.resources != nil {
		return e.resources.standing
	}
	if e.newest == nil {
		return nil
	}
	o := policy.Object{Kind: "ConfigMap", Namespace: e.newest.Namespace, Name: e.newest.Name, Revision: e.newest.revision()}
	var err error
	if o.Policy, err = e.parse(e.newest.text, e.newest.revision()); err != nil {
		o.Problem = oneLine(err.Error())
	}
	return policy.Alternatives{{Object: o}}
}

// evaluation is one signer's objects, indexed.
type evaluation struct {
	signer *config.Signer
	format policy.Format
	// pods are all that may still run containers; live are those of them that are the signer's, by name.
	pods, live []*corev1.Pod
	// objects are the ConfigMaps that are no reports, by name.
	objects map[string]*object
	// reports are by the UID of what owns them.
	reports map[types.UID][]*corev1.ConfigMap
	// newest is the policy object made last; nil where there is none with the policy key.
	newest *object
	// resources are the policy objects of a signer that has custom resources for them, and nil for the others.
	resources *resources
	// at is when the objects were read; zero where that is not known.
	at time.Time
	// parsed has each distinct text once, by revision.
	parsed map[string]parsed
}

type parsed struct {
	policy policy.Policy
	err    error
}

// object is a ConfigMap that may be a policy object.
type object struct {
	*corev1.ConfigMap
	// matches: the configuration counts it among the signer's policy objects.
	matches bool
	// text is the value of the policy key, and hasKey whether there is one.
	text   string
	hasKey bool

	// sum and hashed are filled in when first asked for.
	sum    string
	hashed *bool
}

func (o *object) isPolicy() bool { return o.matches && o.hasKey }

func (o *object) revision() string {
	if o.sum == "" {
		o.sum = policy.Revision([]byte(o.text))
	}
	return o.sum
}

// contentHashed: the name's suffix is the hash of the content.
func (o *object) contentHashed() bool {
	if o.hashed == nil {
		is := isContentHashed(o.ConfigMap)
		o.hashed = &is
	}
	return *o.hashed
}

// String is the form used in every message.
func (o *object) String() string { return "ConfigMap " + o.Namespace + "/" + o.Name }

// changed is when the object's content was last changed, as far as the object shows: when it was made, or the newest of its
// managedFields entries that own content (Kubernetes 1.37, meta/v1 ManagedFieldsEntry.Time). kubectl leaves managedFields out
// unless asked with --show-managed-fields. The time is cut to seconds, by an API server's clock.
func (o *object) changed() time.Time {
	last := o.CreationTimestamp.Time
	for _, f := range o.ManagedFields {
		if f.Time != nil && f.Time.After(last) && ownsContent(&f) {
			last = f.Time.Time
		}
	}
	return last
}

// ownsContent reports whether a manager has a part of what a ConfigMap says.
func ownsContent(f *metav1.ManagedFieldsEntry) bool {
	if f.FieldsV1 == nil {
		return false
	}
	owned := f.FieldsV1.GetRawString()
	return strings.Contains(owned, `"f:data"`) || strings.Contains(owned, `"f:binaryData"`) || strings.Contains(owned, `"f:immutable"`)
}

func newEvaluation(s *config.Signer, o *Objects) (*evaluation, error) {
	switch s.Evidence {
	case config.Report, config.PodVolumes, config.Status, config.Settle:
	default:
		return nil, fmt.Errorf("evidence %q is not known here: use %s, %s, %s or %s", s.Evidence, config.Report, config.PodVolumes, config.Status, config.Settle)
	}
	if o == nil {
		return nil, fmt.Errorf("nothing of namespace %s was read: give --live with the output of kubectl get pods,configmaps -n %[1]s -o yaml", s.Namespace)
	}
	selector, err := labels.Parse(s.PodSelector)
	if err != nil {
		return nil, fmt.Errorf("signer %s: podSelector: %w", s.SignerName, err)
	}
	if s.Evidence == config.Settle && s.Settle == nil {
		return nil, fmt.Errorf("signer %s: evidence %s needs settle", s.SignerName, config.Settle)
	}
	var format policy.Format
	var custom *resources
	if s.Evidence == config.Status {
		custom, err = readResources(s, o.Resources)
	} else {
		format, err = policy.Compile(s.Policy.Format, s.Policy.Granted)
	}
	if err != nil {
		return nil, fmt.Errorf("signer %s: policy: %w", s.SignerName, err)
	}
	e := &evaluation{
		signer:    s,
		format:    format,
		resources: custom,
		at:        o.At,
		objects:   make(map[string]*object, len(o.ConfigMaps)),
		reports:   map[types.UID][]*corev1.ConfigMap{},
		parsed:    map[string]parsed{},
	}
	// Custom resources are evidence that something was read, and a signer that has them need not have any ConfigMap.
	seen := custom != nil
	for i := range o.ConfigMaps {
		if cm := &o.ConfigMaps[i]; cm.Namespace == s.Namespace {
			e.addConfigMap(cm)
			seen = true
		}
	}
	for i := range o.Pods {
		pod := &o.Pods[i]
		if pod.Namespace != s.Namespace {
			continue
		}
		seen = true
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		e.pods = append(e.pods, pod)
		if selector.Matches(labels.Set(pod.Labels)) {
			e.live = append(e.live, pod)
		}
	}
	if !seen {
		return nil, fmt.Errorf("no pod and no ConfigMap of namespace %s is there: start the signer, or check the namespace of signer %s in the configuration", s.Namespace, s.SignerName)
	}
	slices.SortStableFunc(e.live, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return e, nil
}

func (e *evaluation) addConfigMap(cm *corev1.ConfigMap) {
	if _, ok := cm.Labels[ReportLabel]; ok {
		for _, owner := range cm.OwnerReferences {
			e.reports[owner.UID] = append(e.reports[owner.UID], cm)
		}
		return
	}
	o := &object{ConfigMap: cm, matches: e.signer.Policy.ConfigMap.Matches(cm.Name, cm.Labels)}
	o.text, o.hasKey = valueOf(cm, e.signer.Policy.Key)
	e.objects[cm.Name] = o
	if o.isPolicy() && (e.newest == nil || o.newerThan(e.newest)) {
		e.newest = o
	}
}

func (o *object) newerThan(other *object) bool {
	if !o.CreationTimestamp.Equal(&other.CreationTimestamp) {
		return other.CreationTimestamp.Before(&o.CreationTimestamp)
	}
	return o.Name > other.Name
}

func valueOf(cm *corev1.ConfigMap, key string) (string, bool) {
	if text, ok := cm.Data[key]; ok {
		return text, true
	}
	data, ok := cm.BinaryData[key]
	return string(data), ok
}

func (e *evaluation) parse(text, revision string) (policy.Policy, error) {
	p, ok := e.parsed[revision]
	if !ok {
		p.policy, p.err = e.format.Parse([]byte(text))
		e.parsed[revision] = p
	}
	return p.policy, p.err
}

// decidesBy makes a policy text the one that the replica decides by. where names the object that the text was found in.
func (e *evaluation) decidesBy(r *policy.Replica, text, revision, where string) {
	r.Revision = revision
	p, err := e.parse(text, revision)
	if err != nil {
		r.Problem = fmt.Sprintf("%s: the policy does not parse: %s: correct it in Git", where, oneLine(err.Error()))
		return
	}
	r.Policy = p
}

// oneLine makes a text from outside fit into a message.
func oneLine(text string) string {
	const most = 500
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
