// Package report publishes what a signer has loaded, for signers written in Go.
//
// In go the signer's own pod and container and, as they happen, the policy texts that it loads and the loads that fail. Out comes one
// ConfigMap, owned by the pod, that grantfirst reads as evidence "report" (docs/report.md is the contract):
//
//	reporter, err := report.Start(ctx, report.Settings{
//		Client: client.CoreV1(), Namespace: os.Getenv("POD_NAMESPACE"), Pod: os.Getenv("POD_NAME"), Container: "signer",
//		SignerName: "example.com/workload",
//	})
//	…
//	reporter.Loaded(text) // each time that a policy text has come into force
//	reporter.Failed(err)  // each time that loading one has failed
//
// The package decides nothing, reads no policy, and never keeps the signer waiting or ends it: an API server that does not answer is
// asked again until it does. It imports nothing else of grantfirst.
//
// It needs the verb get on pods and get, create and update on configmaps, in the pod's namespace. It costs two gets soon after each
// change, and then every half minute, so that a report that somebody deleted or changed is written anew; it writes only what is not
// there yet.
package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Settings say who reports about what. All fields but Problem are needed.
type Settings struct {
	// Client is the signer's own access to the cluster, with its pod's credentials.
	Client typedcorev1.CoreV1Interface
	// Namespace and Pod are those of the pod that this process runs in: metadata.namespace and metadata.name of the downward API.
	Namespace, Pod string
	// Container is the name of the container that this process runs in.
	Container string
	// SignerName is the name that pods ask for.
	SignerName string
	// Problem is told of each attempt that went wrong, for the signer's log. It is called by the reporter's goroutine.
	Problem func(error)
}

// Reporter publishes for as long as its context lives. Its methods return at once and are safe for concurrent use.
type Reporter struct {
	Settings
	// now and after are the clock.
	now   func() time.Time
	after func(time.Duration) <-chan time.Time
	// started is when this process began, on the clock of its node.
	started time.Time

	mutex sync.Mutex
	state state
	// changed has a token while state is newer than what the goroutine last looked at.
	changed chan struct{}
	// done is closed when the goroutine has ended.
	done chan struct{}

	// The goroutine's own: uid is that of the pod when it was first seen, id that of this container's instance once the status has it.
	uid types.UID
	id  string
}

// state is what there is to say.
type state struct {
	// text is nil until something is loaded.
	text *text
	// failed is about the last load; empty where that was a success.
	failed   string
	failedAt time.Time
	// next is the revision of what would be loaded now, where that is known.
	next string
}

// Start begins to publish: at first that nothing is loaded. An error means that settings are missing; what goes wrong later is told to
// Settings.Problem.
func Start(ctx context.Context, s Settings) (*Reporter, error) {
	now := time.Now()
	r := &Reporter{Settings: s, now: time.Now, after: time.After, started: processStart(now)}
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// check says which of the settings is missing.
func (r *Settings) check() error {
	for _, needed := range []struct {
		name    string
		missing bool
	}{{"Client", r.Client == nil}, {"Namespace", r.Namespace == ""}, {"Pod", r.Pod == ""}, {"Container", r.Container == ""}, {"SignerName", r.SignerName == ""}} {
		if needed.missing {
			return fmt.Errorf("report: Settings.%s is missing: set it", needed.name)
		}
	}
	return nil
}

func (r *Reporter) start(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	r.changed, r.done = make(chan struct{}, 1), make(chan struct{})
	go r.run(ctx)
	return nil
}

// Loaded says that this policy text is in force from now on. Call it after the load, with the bytes that were loaded: the file may
// have changed meanwhile. A text that does not fit into a report (docs/report.md: about 1 MiB, gzipped where that helps) is an error
// told to Problem and written into the report, which then has no text.
func (r *Reporter) Loaded(policy []byte) {
	loaded := &text{raw: bytes.Clone(policy), at: r.now()}
	r.change(func(s *state) { *s = state{text: loaded} })
}

// Failed says that a load has failed. What was loaded before stays in force and is still reported.
func (r *Reporter) Failed(err error) {
	at := r.now()
	r.change(func(s *state) { s.failed, s.failedAt = line(fmt.Sprint(err)), at })
}

func (r *Reporter) change(f func(*state)) {
	r.mutex.Lock()
	f(&r.state)
	r.mutex.Unlock()
	select {
	case r.changed <- struct{}{}:
	default: // it will look at the newest state anyway
	}
}

// schedule has the times between two attempts, whether the last one went well or not: soon after a change, because the pod's status
// still lags, and later seldom.
func schedule() wait.Backoff {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 8, Cap: 30 * time.Second}
}

// attemptTimeout ends an attempt at an API server that does not answer, so that the next one has the newest state.
const attemptTimeout = 10 * time.Second

// errReplaced: another pod has this one's name. What this process has loaded is nobody's evidence any more.
var errReplaced = errors.New("the pod has been replaced by another one of the same name: its report is left to that one")

func (r *Reporter) run(ctx context.Context) {
	defer close(r.done)
	next, failing := schedule(), false
	for {
		r.mutex.Lock()
		s := r.state
		r.mutex.Unlock()
		err := r.publish(ctx, s)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.problem(err)
		}
		if errors.Is(err, errReplaced) {
			return
		}
		if err != nil && !failing {
			next = schedule()
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
			next = schedule()
		case <-r.after(next.Step()):
		}
	}
}

func (r *Settings) problem(err error) {
	if r.Problem != nil {
		r.Problem(fmt.Errorf("report of pod %s/%s about signer %s: %w", r.Namespace, r.Pod, r.SignerName, err))
	}
}

// publish makes the ConfigMap say what the state says.
func (r *Reporter) publish(ctx context.Context, s state) error {
	if s.text != nil {
		s.text.prepare() // which may take long, and is not the API server's time
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	pod, err := r.ownPod(ctx, &r.uid)
	if err != nil {
		return err
	}
	if id := r.instance(pod); id != "" {
		r.id = id
	}
	want, problem := r.object(r.uid, r.id, s)
	if problem != nil {
		r.problem(problem)
	}
	return r.write(ctx, want)
}

// ownPod reads the pod. uid is that of the pod when it was first seen, and empty before.
func (r *Settings) ownPod(ctx context.Context, uid *types.UID) (*corev1.Pod, error) {
	pod, err := r.Client.Pods(r.Namespace).Get(ctx, r.Pod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the pod: %w", err)
	}
	if *uid == "" {
		*uid = pod.UID
	}
	if pod.UID != *uid {
		return nil, errReplaced
	}
	return pod, nil
}

// find gets the ConfigMap in which this report stands or is to stand, and gives the report the name of that. It is nil where there is
// none.
func (r *Settings) find(ctx context.Context, report *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	configMaps := r.Client.ConfigMaps(r.Namespace)
	have, err := configMaps.Get(ctx, report.Name, metav1.GetOptions{})
	if err == nil && ownedBy(have, report.OwnerReferences[0].UID) && have.Data[keySignerName] != r.SignerName {
		// One pod, several signers: the usual name is that of the first.
		report.Name = hashedName(r.Pod, r.SignerName)
		have, err = configMaps.Get(ctx, report.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ConfigMap %s: %w", report.Name, err)
	case have.Labels[label] == "":
		return nil, fmt.Errorf("ConfigMap %s is there and no report: it has no label %s: remove it", report.Name, label)
	}
	return have, nil
}

// write makes the ConfigMap that one.
func (r *Settings) write(ctx context.Context, want *corev1.ConfigMap) error {
	have, err := r.find(ctx, want)
	if err != nil || have != nil && says(have, want) {
		return err
	}
	if have == nil {
		_, err = r.Client.ConfigMaps(r.Namespace).Create(ctx, want, metav1.CreateOptions{})
	} else {
		// The resourceVersion stays, so that a writer in between is not overwritten unseen.
		have.Labels[label] = version
		have.OwnerReferences, have.Data, have.BinaryData = want.OwnerReferences, want.Data, want.BinaryData
		_, err = r.Client.ConfigMaps(r.Namespace).Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", want.Name, err)
	}
	return nil
}

// ownedBy reports whether the ConfigMap is a report of the pod with that UID.
func ownedBy(cm *corev1.ConfigMap, pod types.UID) bool {
	return cm.Labels[label] != "" && len(cm.OwnerReferences) == 1 && cm.OwnerReferences[0].UID == pod
}

// says reports whether the ConfigMap has all of the report, and nothing else that a reader would look at.
func says(have, want *corev1.ConfigMap) bool {
	return have.Labels[label] == version && reflect.DeepEqual(have.OwnerReferences, want.OwnerReferences) &&
		maps.Equal(have.Data, want.Data) && maps.EqualFunc(have.BinaryData, want.BinaryData, bytes.Equal)
}

// instance is the ID of the container's instance that this process is, and empty while the status is not, or not yet, about it: it
// lags, and may still have the instance before. startedAt is cut to seconds. A second more is let go by, because runtimes take that time
// before or after they start the process; a status of the instance before that gets through corrects itself with the next attempt, and
// until then the reader sees an ID that is not the pod's.
func (r *Reporter) instance(pod *corev1.Pod) string {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for _, s := range statuses {
			if s.Name == r.Container && s.State.Running != nil && !s.State.Running.StartedAt.Time.Before(r.started.Truncate(time.Second).Add(-time.Second)) {
				return s.ContainerID
			}
		}
	}
	return ""
}
