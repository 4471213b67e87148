package report

import (
	"context"
	"fmt"
	"maps"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/grantfirst/grantfirst/lib/policy"
)

// besides is a sidecar at work on an api and a volume. Its clock is moved by the test, a second with each look.
type besides struct {
	reporting  // for what is in the cluster; nothing of it runs
	folder     *folder
	generation int
	looks      chan chan time.Time
	last       chan time.Time
	clock      moment
	told       []string
	ended      chan error
}

// place is a cluster with the pod and a volume with the policy, without a sidecar. The container began an hour ago.
func place(t *testing.T) *besides {
	b := &besides{reporting: reporting{T: t, api: &api{pod: signerPod(), configMaps: map[string]*corev1.ConfigMap{}}}, folder: newFolder(t), clock: moment{wall: began.Add(time.Hour)}}
	b.api.pod.Status.ContainerStatuses[1].Ready = true
	b.swap(oldText)
	return b
}

func (b *besides) swap(policy string) {
	b.generation++
	b.folder.fill(fmt.Sprint("..", b.generation), map[string]string{"policy.json": policy})
}

// begin starts a sidecar, which has looked once then.
func (b *besides) begin(change func(*Sidecar)) {
	b.Helper()
	server := httptest.NewServer(b.api)
	b.Cleanup(server.Close)
	client, err := typedcorev1.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		b.Fatal(err)
	}
	s := &Sidecar{
		Settings: Settings{Client: client, Namespace: "pcs", Pod: "pcs-1", Container: "signer", SignerName: "example.com/workload", Problem: func(err error) { b.told = append(b.told, err.Error()) }},
		Policy:   b.folder.file("policy.json"), Poll: exits,
	}
	if change != nil {
		change(s)
	}
	ctx, stop := context.WithCancel(b.Context())
	looks, ended := make(chan chan time.Time), make(chan error, 1)
	b.looks, b.ended, b.stop = looks, ended, stop
	go func() {
		ended <- s.run(ctx, func() moment { return b.clock }, func(time.Duration) <-chan time.Time {
			c := make(chan time.Time, 1)
			select {
			case looks <- c:
			case <-ctx.Done():
			}
			return c
		})
		close(ended)
	}()
	b.Cleanup(b.end)
	b.last = <-looks
}

func (b *besides) end() {
	b.stop()
	<-b.ended
}

// pass lets seconds go by, with a look after each.
func (b *besides) pass(seconds int) {
	b.Helper()
	for range seconds {
		b.clock.wall, b.clock.elapsed = b.clock.wall.Add(time.Second), b.clock.elapsed+time.Second
		b.last <- time.Time{}
		select {
		case b.last = <-b.looks:
		case err := <-b.ended:
			b.Fatalf("it ended: %v", err)
		}
	}
}

// restart ends the signer's container, and starts the next instance three seconds later.
func (b *besides) restart(id string) {
	b.api.with(func() {
		s := &b.api.pod.Status.ContainerStatuses[1]
		end := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: s.ContainerID, FinishedAt: metav1.NewTime(b.clock.wall.Truncate(time.Second))}}
		*s = running("signer", id, b.clock.wall.Truncate(time.Second).Add(3*time.Second))
		s.LastTerminationState, s.Ready, s.RestartCount = end, true, 1
	})
	b.clock.wall, b.clock.elapsed = b.clock.wall.Add(3*time.Second), b.clock.elapsed+3*time.Second
}

func (b *besides) next(text string) {
	b.Helper()
	if got := b.report().Data["nextRevision"]; got != policy.Revision([]byte(text)) {
		b.Errorf("nextRevision %s, want that of %.60q", got, text)
	}
}

func TestTheSidecarReports(t *testing.T) {
	b := place(t)
	b.begin(nil)
	if got := b.report().Data; !maps.Equal(got, map[string]string{"container": "signer", "signerName": "example.com/workload", "nextRevision": policy.Revision([]byte(oldText))}) {
		t.Errorf("at first: %v", got)
	}
	b.unknown("says that no policy is loaded")
	b.pass(window + 3)
	b.decides(oldText)
	if got := b.report().Data; got["loadedAt"] != "2026-11-29T10:00:12Z" || got["containerID"] != "containerd://s1" {
		t.Errorf("data %v", got)
	}

	b.swap(newText)
	b.pass(1)
	b.decides(oldText)
	b.next(newText)
	b.pass(20)
	b.restart("containerd://s2")
	b.unknown("is about an earlier instance of container signer")
	b.pass(2)
	b.unknown("is about an earlier instance of container signer")
	b.pass(8)
	b.decides(newText)
	if len(b.told) > 0 {
		t.Errorf("told %q", b.told)
	}
}

func TestAnInstanceThatComesBetweenStatusAndReportIsNotClaimed(t *testing.T) {
	b := place(t)
	b.begin(nil)
	b.pass(window - 4)
	b.unknown("says that no policy is loaded")
	b.api.with(func() {
		b.api.before = func(_ http.ResponseWriter, q *http.Request) bool {
			if q.Method == http.MethodPut {
				b.api.before = nil
				b.api.pod.Status.ContainerStatuses[1] = running("signer", "containerd://s2", b.clock.wall)
			}
			return false
		}
	})
	b.pass(8)
	if got := b.report().Data["containerID"]; got != "containerd://s1" {
		t.Errorf("claimed of %q", got)
	}
	b.unknown("is about an earlier instance of container signer")
	b.pass(20)
	b.unknown("is about an earlier instance of container signer")
}

func TestAnEarlierInstanceIsNotClaimedWhileTheNextOneWaits(t *testing.T) {
	b := place(t)
	b.api.pod.Status.ContainerStatuses[1] = corev1.ContainerStatus{
		Name: "signer", ContainerID: "containerd://s0", Ready: true, RestartCount: 1,
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "containerd://s0", FinishedAt: metav1.NewTime(began.Add(2 * time.Hour))}},
	}
	b.begin(nil)
	b.pass(200)
	if got := b.report().Data; got["containerID"] != "" || got["policy"] != "" {
		t.Errorf("data %v", got)
	}
	b.next(oldText)
}

func TestTheNextSidecarKeepsWhatIsCertain(t *testing.T) {
	b := place(t)
	b.begin(nil)
	b.pass(window + 3)
	b.decides(oldText)
	b.end()
	was := b.report()
	b.begin(nil)
	b.decides(oldText)
	if now := b.report(); now.ResourceVersion != was.ResourceVersion {
		t.Errorf("written again: %v, was %v", now.Data, was.Data)
	}
	b.pass(window + 10)
	b.decides(oldText)
	b.end()

	for name, change := range map[string]func(*corev1.ConfigMap){
		"a text that was changed by hand":     func(cm *corev1.ConfigMap) { cm.Data["policy"] = newText },
		"a revision that was changed by hand": func(cm *corev1.ConfigMap) { cm.Data["revision"] = policy.Revision([]byte(newText)) },
		"an earlier instance":                 func(cm *corev1.ConfigMap) { cm.Data["containerID"] = "containerd://s0" },
		"another version of the contract":     func(cm *corev1.ConfigMap) { cm.Labels["grantfirst.dev/report"] = "v0" },
		"another pod of that name":            func(cm *corev1.ConfigMap) { cm.OwnerReferences[0].UID = "u0" },
	} {
		t.Run(name, func(t *testing.T) {
			b.api.with(func() { b.api.configMaps[was.Name] = was.DeepCopy(); change(b.api.configMaps[was.Name]) })
			b.begin(nil)
			b.unknown("says that no policy is loaded")
			b.end()
		})
	}
	b.api.with(func() { b.api.configMaps[was.Name] = was.DeepCopy() })
	b.swap(newText)
	b.begin(nil)
	b.unknown("says that no policy is loaded")
	b.next(newText)
}

func TestTheSidecarOutlivesAnOutage(t *testing.T) {
	b := place(t)
	b.begin(nil)
	b.api.with(func() {
		b.api.before = func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			return true
		}
	})
	b.pass(10)
	b.swap(newText)
	b.pass(100)
	if len(b.told) != 1 || !strings.HasPrefix(b.told[0], "report of pod pcs/pcs-1 about signer example.com/workload: reading the pod: ") {
		t.Errorf("told %q, want one problem", b.told)
	}
	b.api.with(func() { b.api.before = nil })
	b.pass(34)
	b.next(newText)
	b.decides(newText) // it has been the same instance all the time
	b.api.with(func() { clear(b.api.configMaps) })
	b.pass(36)
	b.decides(newText)
}

func TestTheSidecarEndsAtOnceWhileTheAPIServerHangs(t *testing.T) {
	b := place(t)
	b.begin(nil)
	hangs := make(chan struct{})
	b.api.with(func() {
		b.api.before = func(_ http.ResponseWriter, q *http.Request) bool {
			close(hangs)
			<-q.Context().Done()
			return true
		}
	})
	b.clock.elapsed += time.Minute
	b.last <- time.Time{}
	<-hangs
	b.stop()
	if err := <-b.ended; err != nil {
		t.Error(err)
	}
}

func TestTheSidecarEndsWhenItsPodIsReplaced(t *testing.T) {
	b := place(t)
	b.begin(nil)
	b.api.with(func() { b.api.pod.UID = "u2" })
	b.clock.elapsed += time.Minute
	b.last <- time.Time{}
	if err := <-b.ended; err == nil || !strings.Contains(err.Error(), errReplaced.Error()) {
		t.Errorf("got %v", err)
	}
}

func TestASidecarThatCannotStartSaysWhy(t *testing.T) {
	good := func() *Sidecar {
		f := newFolder(t)
		f.fill("..1", nil)
		return &Sidecar{Settings: Settings{Client: &typedcorev1.CoreV1Client{}, Namespace: "pcs", Pod: "pcs-1", Container: "signer", SignerName: "s"}, Policy: f.file("policy.json")}
	}
	for name, c := range map[string]struct {
		change func(*Sidecar)
		want   string
	}{
		"a setting is missing":      {func(s *Sidecar) { s.SignerName = "" }, "Settings.SignerName is missing"},
		"there is no volume":        {func(s *Sidecar) { s.Policy = t.TempDir() }, "it is in no volume that the kubelet fills"},
		"the endpoint is elsewhere": {func(s *Sidecar) { s.Endpoint = &Endpoint{URL: "http://signer/"} }, "may lead to another pod"},
		"both ways are set":         {func(s *Sidecar) { s.Endpoint, s.Poll = &Endpoint{URL: "http://127.0.0.1/"}, time.Second }, "leave out the poll time or the endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			c.change(s)
			if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestWhatIsWrongStandsInTheReportAndIsToldOnce(t *testing.T) {
	noise := make([]byte, maxPacked+1)
	rand.New(rand.NewSource(1)).Read(noise)
	for name, c := range map[string]struct {
		spoil   func(*besides)
		seconds int
		want    string
	}{
		"the policy is gone":       {func(b *besides) { b.generation++; b.folder.fill(fmt.Sprint("..", b.generation), nil) }, 3, "policy.json: no such file or directory"},
		"the policy is too large":  {func(b *besides) { b.swap(string(noise)) }, 3, "the policy has 1024001 bytes, 1024"},
		"the signer does not exit": {func(b *besides) { b.swap(newText) }, window + 5, "the container still runs although its policy changed more than two polls (30s) ago"},
	} {
		t.Run(name, func(t *testing.T) {
			b := place(t)
			b.begin(nil)
			b.pass(window + 3)
			c.spoil(b)
			b.pass(c.seconds)
			got := b.report().Data
			if !strings.Contains(got["error"], c.want) || got["errorAt"] == "" {
				t.Errorf("error %q at %q, want %q", got["error"], got["errorAt"], c.want)
			}
			if len(b.told) != 1 || !strings.Contains(b.told[0], c.want) {
				t.Errorf("told %q", b.told)
			}
			b.swap(oldText)
			b.restart("containerd://s2")
			b.pass(window)
			if got := b.report().Data; got["error"] != "" {
				t.Errorf("afterwards: %q", got["error"])
			}
		})
	}
}

func TestASignerThatLoadsInPlaceIsAsked(t *testing.T) {
	shown := policy.Revision([]byte(oldText))
	during := func() {}
	signer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		during()
		fmt.Fprint(w, shown)
	}))
	defer signer.Close()
	b := place(t)
	ask := func(s *Sidecar) { s.Poll, s.Endpoint = 0, &Endpoint{URL: signer.URL} }
	b.begin(ask)
	b.decides(oldText)

	b.swap(newText)
	b.pass(6)
	b.decides(oldText)
	b.next(newText)
	shown = policy.Revision([]byte(newText))
	b.pass(6)
	b.decides(newText)

	shown = "no revision"
	b.pass(10)
	b.decides(newText) // the volume is as it was: nothing else can have been loaded
	b.swap(oldText)
	b.swap(newText)
	b.pass(6)
	b.unknown("says that no policy is loaded") // oldText was there for a moment
	shown = policy.Revision([]byte(newText))
	b.pass(6)
	b.swap(oldText)
	b.pass(6)
	b.decides(newText)
	shown = "no revision"
	b.pass(6)
	b.unknown("says that no policy is loaded") // oldText may have been loaded by now
	if got := b.report().Data["error"]; !strings.Contains(got, `"no revision" is no revision`) {
		t.Errorf("error %q", got)
	}
	shown = policy.Revision([]byte(oldText))
	b.pass(6)
	b.decides(oldText)
	shown = policy.Revision([]byte("never seen"))
	b.pass(6)
	b.unknown("says that no policy is loaded")
	if got := b.report().Data["error"]; !strings.Contains(got, "is that of no text that this reporter has seen") {
		t.Errorf("error %q", got)
	}

	// Which instance has answered, if another one runs afterwards?
	shown = policy.Revision([]byte(newText))
	during = func() {
		during = func() {}
		b.api.with(func() { b.api.pod.Status.ContainerStatuses[1] = running("signer", "containerd://s2", b.clock.wall) })
	}
	b.pass(2)
	if got := b.report().Data["containerID"]; got != "" {
		t.Errorf("claimed of %s", got)
	}
	b.pass(2)
	b.decides(newText)
	if got := b.report().Data["containerID"]; got != "containerd://s2" {
		t.Errorf("claimed of %s", got)
	}

	b.end()
	signer.Close()
	b.begin(ask)
	b.unknown("says that no policy is loaded") // what was loaded when the sidecar before this one ended may be gone
}

func TestAContainerThatIsMissingIsSaid(t *testing.T) {
	b := place(t)
	b.begin(func(s *Sidecar) { s.Container = "sginer" })
	if len(b.told) != 1 || !strings.Contains(b.told[0], `the pod has no container "sginer" that lasts: name the signer's`) {
		t.Errorf("told %q", b.told)
	}
	b.unknown("it has no report")
}
