package report

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Sidecar reports about a signer that cannot report by itself, from another container of its pod.
//
// In go the policy in their common volume, the pod's status, and for a signer that loads a new policy in place the revision that it
// shows. Out comes the report. The sidecar asks for the pod every two seconds, or every five while there is nothing to wait for, and
// writes what has changed.
type Sidecar struct {
	// Settings are those of a reporter, but that Container is the signer's, not this process's own.
	Settings
	// Policy is the path of the policy in the volume, as the sidecar has it mounted. The kubelet fills the volume.
	Policy string
	// Poll is for signers that exit when any byte of their policy has changed: how often they look. 0 is for those that do not exit.
	Poll time.Duration
	// Endpoint is for signers that load a new policy in place; nil for those that load it only when they start.
	Endpoint *Endpoint
	// Event, where it is set, is told what the sidecar sees, with attributes as log/slog has them.
	Event func(message string, attributes ...any)
}

const (
	lookEvery = time.Second
	// askEvery is how often the pod is asked for while there is something to wait for, and askSeldom otherwise.
	askEvery  = 2 * time.Second
	askSeldom = 5 * time.Second
	// writeAnew is how often it is checked that the report still stands there.
	writeAnew = 30 * time.Second
)

// sidecar is one at work.
type sidecar struct {
	*Sidecar
	// now and after are the clock.
	now   func() moment
	after func(time.Duration) <-chan time.Time

	volume *volume
	witness
	uid types.UID
	// unreadable is about the policy in the volume, and unshown about the endpoint.
	unreadable, unshown error
	// failed is the error that the report has, since failedAt.
	failed   string
	failedAt time.Time
	// remembers: the report of a sidecar before this one has been looked for.
	remembers bool
	// written is what was last written, at the time writtenAt.
	written   *corev1.ConfigMap
	writtenAt time.Duration
	// told is the problem that was last told, so that none is told every second.
	told string
}

// Run reports until its context ends, and then returns nil. An error means that it cannot start, or that another pod has taken this
// one's name; whatever else goes wrong is told to Problem and tried again.
func (s *Sidecar) Run(ctx context.Context) error {
	began := time.Now()
	return s.run(ctx, func() moment { return moment{time.Now(), time.Since(began)} }, time.After)
}

func (s *Sidecar) run(ctx context.Context, now func() moment, after func(time.Duration) <-chan time.Time) error {
	if err := s.check(); err != nil {
		return err
	}
	if s.Endpoint != nil {
		if s.Poll != 0 {
			return errors.New("a signer that loads a new policy in place does not exit on changes: leave out the poll time or the endpoint")
		}
		if err := s.Endpoint.check(); err != nil {
			return err
		}
	}
	v, err := openVolume(s.Policy)
	if err != nil {
		return err
	}
	r := &sidecar{Sidecar: s, now: now, after: after, volume: v, witness: witness{poll: s.Poll}}
	var next time.Duration
	retry := retries()
	for {
		if changed := r.look(); changed || r.now().elapsed >= next {
			err := r.report(ctx)
			switch {
			case ctx.Err() != nil:
				return nil
			case errors.Is(err, errReplaced):
				return fmt.Errorf("pod %s/%s: %w", s.Namespace, s.Pod, err)
			case err != nil:
				next = r.now().elapsed + retry.Step()
			case r.settled():
				next, retry = r.now().elapsed+askSeldom, retries()
			default:
				next, retry = r.now().elapsed+askEvery, retries()
			}
			r.tell(errors.Join(err, r.unreadable, r.unshown))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.after(lookEvery):
		}
	}
}

// retries has the times after which an API server is asked again that did not answer.
func retries() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 8, Cap: 30 * time.Second}
}

// look looks at the volume and reports whether there is news.
func (r *sidecar) look() bool {
	began := r.now()
	generation, raw, err := r.volume.read()
	if errors.Is(err, errMoving) {
		return false
	}
	r.unreadable = err
	news := r.seesVolume(generation, raw, began, r.now())
	if r.text != nil && r.text.problem != nil {
		r.unreadable = r.text.problem
	}
	if news {
		r.event("the volume has a policy", "revision", r.witness.next(), "folder", generation)
	}
	return news
}

// report asks for the pod, concludes what is loaded in it, and publishes that.
func (r *sidecar) report(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	pod, err := r.ownPod(ctx, &r.uid)
	if err != nil {
		return err
	}
	container := containerOf(pod, r.Container)
	if container == nil {
		return fmt.Errorf("the pod has no container %q that lasts: name the signer's", r.Container)
	}
	if err := r.remember(ctx); err != nil {
		return err
	}
	was, claimed := r.instance.id, r.claim
	i, runs := instanceIn(pod, r.Container)
	r.seesInstance(i, runs, r.now())
	if r.instance.id != was {
		r.event("the signer's container", "running", runs, "containerID", i.id, "restarts", i.restarts)
	}
	if r.Endpoint == nil {
		r.concludes(failing(container.ReadinessProbe))
		r.unshown = r.stays()
	} else if runs {
		if err := r.ask(ctx, pod); err != nil {
			return err
		}
	}
	if r.claim.id != claimed.id || r.claim.text != claimed.text {
		r.eventClaim()
	}
	return r.publish(ctx)
}

// containerOf finds a container that lasts as long as its pod.
func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, c := range pod.Spec.Containers {
		if c.Name == name {
			return &c
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if c.Name == name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return &c
		}
	}
	return nil
}

// failing is how long a container that hangs can still be ready. The API server has set all of the fields.
func failing(p *corev1.Probe) time.Duration {
	if p == nil {
		return 0
	}
	return time.Duration(p.FailureThreshold) * time.Duration(p.PeriodSeconds+p.TimeoutSeconds) * time.Second
}

// remember takes up what the sidecar before this one has claimed: that stays true for as long as that instance runs.
func (r *sidecar) remember(ctx context.Context) error {
	if r.remembers || r.Endpoint != nil {
		return nil
	}
	skeleton, _ := r.object(r.uid, "", state{})
	have, err := r.find(ctx, skeleton)
	if err != nil {
		return err
	}
	r.remembers = true
	if have != nil && ownedBy(have, r.uid) && have.Labels[label] == version && have.Data[keyContainer] == r.Container {
		r.recalled = have
	}
	return nil
}

// ask asks the instance which revision it has loaded. The status must have the same instance before and after, else nobody knows which
// one has answered.
func (r *sidecar) ask(ctx context.Context, pod *corev1.Pod) error {
	revision, failed := r.Endpoint.revision(ctx, pod.Status.PodIPs)
	after, err := r.ownPod(ctx, &r.uid)
	if err != nil {
		return err
	}
	i, runs := instanceIn(after, r.Container)
	switch {
	case !runs || !i.is(r.instance):
		return nil // the next look is about that one
	case failed != nil:
		r.silent()
		r.unshown = failed
	default:
		r.unshown = r.answers(revision)
	}
	return nil
}

func (r *sidecar) publish(ctx context.Context) error {
	at := r.now()
	failed := ""
	for _, err := range []error{r.unreadable, r.unshown} {
		if err != nil && failed == "" {
			failed = line(err.Error())
		}
	}
	if failed != r.failed {
		r.failed, r.failedAt = failed, at.wall
	}
	// A text that does not fit is told as it comes into the volume.
	want, _ := r.object(r.uid, r.claim.id, state{text: r.claim.text, failed: r.failed, failedAt: r.failedAt, next: r.witness.next()})
	if r.written == nil || !says(r.written, want) || at.elapsed-r.writtenAt >= writeAnew {
		r.written = nil
		if err := r.write(ctx, want); err != nil {
			return err
		}
		r.written, r.writtenAt = want, at.elapsed
	}
	return nil
}

// tell tells a problem once.
func (r *sidecar) tell(err error) {
	told := ""
	if err != nil {
		told = err.Error()
	}
	if told != "" && told != r.told {
		r.problem(err)
	}
	if told == "" && r.told != "" {
		r.event("all is well again")
	}
	r.told = told
}

func (r *sidecar) event(message string, attributes ...any) {
	if r.Event != nil {
		r.Event(message, attributes...)
	}
}

func (r *sidecar) eventClaim() {
	if r.claim.id == "" {
		r.event("nothing is known to be loaded any more")
		return
	}
	r.event("loaded", "revision", r.claim.text.revision, "containerID", r.claim.id, "nextRevision", r.witness.next())
}
