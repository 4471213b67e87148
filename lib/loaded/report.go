package loaded

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// The contract of a report ConfigMap (docs/report.md).
const (
	// ReportLabel marks a ConfigMap as a report; its value is the version of the contract.
	ReportLabel   = "grantfirst.dev/report"
	ReportVersion = "v1"

	// Keys of data.
	ReportSignerName   = "signerName"
	ReportContainer    = "container"
	ReportContainerID  = "containerID"
	ReportPolicy       = "policy"
	ReportRevision     = "revision"
	ReportLoadedAt     = "loadedAt"
	ReportError        = "error"
	ReportErrorAt      = "errorAt"
	ReportNextRevision = "nextRevision"
	// ReportPolicyGzip is a key of binaryData: the policy text, gzip, in place of ReportPolicy.
	ReportPolicyGzip = "policy.gz"

	// MaxReportedPolicy is the largest policy text, in bytes, that is read from a report.
	MaxReportedPolicy = 16 << 20
)

// report is one pod's report, checked.
type report struct {
	*corev1.ConfigMap
	// container is the name of the signer's container; id is of the instance of it that has loaded the text.
	container, id string
	// loaded: a policy is in force; text and revision are its.
	loaded   bool
	text     string
	revision string
	// next is the revision of the text that the container would load if it were started now; empty where the reporter does not know.
	next string
	// failed is about the last load, where that failed; what was loaded before stays in force.
	failed string
}

func (r *report) String() string { return "report " + r.Namespace + "/" + r.Name }

// readReport checks a report. The error says what is wrong with it.
func readReport(cm *corev1.ConfigMap) (*report, error) {
	r := &report{ConfigMap: cm, container: cm.Data[ReportContainer], id: cm.Data[ReportContainerID], next: cm.Data[ReportNextRevision]}
	if version := cm.Labels[ReportLabel]; version != ReportVersion {
		return nil, fmt.Errorf("%s: version %q of the contract is not known here: use %s", r, version, ReportVersion)
	}
	if r.container == "" {
		return nil, fmt.Errorf("%s: it names no %s", r, ReportContainer)
	}
	if what := cm.Data[ReportError]; what != "" {
		r.failed = oneLine(cm.Data[ReportErrorAt] + " " + what)
	}
	plain, isPlain := cm.Data[ReportPolicy]
	packed, isPacked := cm.BinaryData[ReportPolicyGzip]
	r.loaded = isPlain || isPacked
	switch {
	case isPlain && isPacked:
		return nil, fmt.Errorf("%s: it has both %s and %s: write one", r, ReportPolicy, ReportPolicyGzip)
	case !r.loaded && (r.id != "" || cm.Data[ReportRevision] != ""):
		return nil, fmt.Errorf("%s: it is only half written: the %s is missing", r, ReportPolicy)
	case !r.loaded:
		return r, nil
	case r.id == "":
		return nil, fmt.Errorf("%s: it is only half written: the %s is missing", r, ReportContainerID)
	case isPlain:
		r.text = plain
	default:
		var err error
		if r.text, err = unpack(packed); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", r, ReportPolicyGzip, err)
		}
	}
	r.revision = policy.Revision([]byte(r.text))
	if given := cm.Data[ReportRevision]; given != r.revision {
		return nil, fmt.Errorf("%s: its %s %q is not that of its text (%s): it was changed by hand or is only half written", r, ReportRevision, given, r.revision)
	}
	return r, nil
}

func unpack(packed []byte) (string, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(z, MaxReportedPolicy+1))
	if err != nil {
		return "", err
	}
	if len(text) > MaxReportedPolicy {
		return "", fmt.Errorf("the text is larger than %d bytes", MaxReportedPolicy)
	}
	return string(text), nil
}

// reportsOf are the reports that the pod owns and that are about this signer.
func (e *evaluation) reportsOf(pod *corev1.Pod) []*corev1.ConfigMap {
	var own []*corev1.ConfigMap
	for _, cm := range e.reports[pod.UID] {
		name := cm.Data[ReportSignerName]
		isOwner := slices.ContainsFunc(cm.OwnerReferences, func(o metav1.OwnerReference) bool {
			return o.APIVersion == "v1" && o.Kind == "Pod" && o.Name == pod.Name && o.UID == pod.UID
		})
		if isOwner && name != "" && e.signer.Answers(name) {
			own = append(own, cm)
		}
	}
	slices.SortFunc(own, func(a, b *corev1.ConfigMap) int { return strings.Compare(a.Name, b.Name) })
	return slices.Compact(own)
}

// byReport judges a pod by its report.
func (e *evaluation) byReport(pod *corev1.Pod, r *policy.Replica) {
	reports := e.reportsOf(pod)
	if len(reports) == 0 {
		e.withoutReport(pod, r)
		return
	}
	if len(reports) > 1 {
		s, _ := furthest(pod, namesOf(lasting(pod)))
		r.Pending = s != running
		r.Problem = fmt.Sprintf("it has two reports about signer %s, %s and %s: delete both, the reporter writes one anew", e.signer.SignerName, reports[0].Name, reports[1].Name)
		return
	}
	rep, err := readReport(reports[0])
	if err != nil {
		s, _ := furthest(pod, namesOf(lasting(pod)))
		r.Pending = s != running
		r.Problem = err.Error() + ": check the reporter"
		return
	}
	defer rep.tellFailure(r)
	if !slices.ContainsFunc(lasting(pod), func(c *corev1.Container) bool { return c.Name == rep.container }) {
		r.Problem = fmt.Sprintf("%s names container %q, which the pod does not have: check the reporter", rep, rep.container)
		return
	}
	s, status := stateOf(pod, rep.container)
	switch {
	case s != running:
		r.Pending = true
		e.byReportAtStart(pod, rep, r)
	case !rep.loaded:
		r.Problem = fmt.Sprintf("%s says that no policy is loaded", rep)
	case status == nil || status.ContainerID != rep.id:
		r.Problem = fmt.Sprintf("%s is about an earlier instance of container %s: wait for a new report; if none comes, check the reporter", rep, rep.container)
	default:
		e.decidesBy(r, rep.text, rep.revision, rep.String())
	}
}

// withoutReport judges a pod that has no report. Which of its containers is the signer's is then not known: as soon as any runs, it
// may be that one.
func (e *evaluation) withoutReport(pod *corev1.Pod, r *policy.Replica) {
	if s, _ := furthest(pod, namesOf(lasting(pod))); s == running {
		r.Problem = fmt.Sprintf("it has no report about signer %s: wait for it; if none comes, check that the reporter runs (docs/report.md)", e.signer.SignerName)
		return
	}
	r.Pending = true
	if o, problem := e.startsWith(pod); problem != "" {
		r.Problem = problem
	} else {
		e.judgeAtStart(pod, r, o)
	}
}

// startsWith is the policy object that a container of the pod will find: the one that its volumes name, or else the newest.
func (e *evaluation) startsWith(pod *corev1.Pod) (*object, string) {
	m := e.mounted(pod)
	if m.absent {
		return e.newest, ""
	}
	return m.object, m.problem
}

// byReportAtStart judges a container that does not run, of which there is a report. Where the reporter says what is in the volume, that
// will be loaded. Else what the container had loaded before tells whether the volume has come as far as the object: texts in a volume
// follow each other in one direction.
func (e *evaluation) byReportAtStart(pod *corev1.Pod, rep *report, r *policy.Replica) {
	o, problem := e.startsWith(pod)
	switch {
	case rep.next != "" && rep.loaded && rep.next == rep.revision:
		e.decidesBy(r, rep.text, rep.revision, rep.String())
		if r.Policy == nil || o == nil || o.revision() == rep.revision {
			return
		}
		// The object has changed since, and the volume may follow before the start. A text that does not parse keeps it from starting.
		if p, err := e.parse(o.text, o.revision()); err == nil {
			r.Policy = unlessItFollows{r.Policy, p, o.String()}
		}
	case problem != "":
		r.Problem = problem
	case rep.next != "" && o != nil && rep.next == o.revision():
		e.decidesBy(r, o.text, o.revision(), o.String())
	case rep.next != "":
		r.Problem = fmt.Sprintf("its container is not running and will start with policy %s (%s), whose text is not known here: wait until it runs", rep.next, rep)
	case rep.loaded && o != nil && rep.revision == o.revision():
		e.decidesBy(r, o.text, o.revision(), o.String())
	case rep.loaded:
		r.Problem = fmt.Sprintf("its container is not running, and may start again with the text that it had loaded before (%s): wait until it runs; if it does not, delete the pod", rep)
	default:
		e.judgeAtStart(pod, r, o)
	}
}

// unlessItFollows is the policy that a container will start with, unless its volume gets a newer one before.
type unlessItFollows struct {
	policy.Policy
	newer policy.Policy
	where string
}

// Decide grants only what both grant.
func (p unlessItFollows) Decide(d *demand.Demand) policy.Answer {
	a := p.Policy.Decide(d)
	if a.Decision != policy.Granted {
		return a
	}
	if newer := p.newer.Decide(d); newer.Decision != policy.Granted {
		return policy.Answer{Decision: policy.Unknown, Message: "its container is not running and may start with " + p.where + ": " + newer.Message}
	}
	return a
}

// tellFailure adds the error of the last load to what the replica says whenever it does not grant.
func (r *report) tellFailure(replica *policy.Replica) {
	if r.failed == "" {
		return
	}
	note := fmt.Sprintf("its last load failed (%s): %s", r, r.failed)
	if replica.Policy == nil {
		replica.Problem += "; " + note
		return
	}
	replica.Policy = afterFailure{replica.Policy, note}
}

// afterFailure is the policy that stays in force when a later one could not be loaded.
type afterFailure struct {
	policy.Policy
	note string
}

// Decide is that of the policy in force; a refusal says what keeps the newer policy from being loaded.
func (p afterFailure) Decide(d *demand.Demand) policy.Answer {
	a := p.Policy.Decide(d)
	if a.Decision != policy.Granted {
		a.Message += "; " + p.note
	}
	return a
}
