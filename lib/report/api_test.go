package report

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// api is an API server with one pod and with ConfigMaps, in namespace pcs.
type api struct {
	mutex      sync.Mutex
	pod        *corev1.Pod
	configMaps map[string]*corev1.ConfigMap
	writes     int
	// before may answer a request itself; then it says so.
	before func(w http.ResponseWriter, q *http.Request) bool
}

func (a *api) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.before != nil && a.before(w, q) {
		return
	}
	const pods, configMaps = "/api/v1/namespaces/pcs/pods/pcs-1", "/api/v1/namespaces/pcs/configmaps"
	var sent corev1.ConfigMap
	if q.Method != http.MethodGet {
		if err := json.NewDecoder(q.Body).Decode(&sent); err != nil {
			refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
	}
	old := a.configMaps[q.URL.Path[min(len(q.URL.Path), len(configMaps)+1):]]
	switch {
	case q.Method == http.MethodGet && q.URL.Path == pods:
		answer(w, a.pod)
	case q.Method == http.MethodGet && old != nil:
		answer(w, old)
	case q.Method == http.MethodGet:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case q.Method == http.MethodPost && q.URL.Path == configMaps && a.configMaps[sent.Name] == nil,
		q.Method == http.MethodPut && old != nil && sent.ResourceVersion == old.ResourceVersion:
		a.writes++
		sent.ResourceVersion = strconv.Itoa(a.writes)
		a.configMaps[sent.Name] = &sent
		answer(w, &sent)
	case q.Method == http.MethodPost:
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	default:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
	}
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason)})
}

// with changes what is in the cluster.
func (a *api) with(f func()) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	f()
}

// began is when the process of the tests began: half a second after its container did, as the pod's status has it.
var began = time.Date(2026, 11, 29, 10, 0, 12, 500_000_000, time.UTC)

func signerPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pcs", Name: "pcs-1", UID: "u1", Labels: map[string]string{"app": "pcs"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "proxy"}, {Name: "signer"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			running("proxy", "containerd://p1", began.Truncate(time.Second)), running("signer", "containerd://s1", began.Truncate(time.Second)),
		}},
	}
}

func running(name, id string, at time.Time) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, ContainerID: id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}}
}

// tried is the end of an attempt: the reporter waits this long for the next one, or until fire.
type tried struct {
	wait time.Duration
	fire chan time.Time
}

// reporting is a reporter at work on an api. The clock stands still unless a test moves it.
type reporting struct {
	*testing.T
	*Reporter
	api      *api
	attempts chan tried
	last     tried
	problems chan error
	stop     context.CancelFunc
	clock    time.Time
}

func start(t *testing.T, a *api, change func(*Settings)) *reporting {
	t.Helper()
	if a.pod == nil {
		a.pod = signerPod()
	}
	if a.configMaps == nil {
		a.configMaps = map[string]*corev1.ConfigMap{}
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	client, err := typedcorev1.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := &reporting{T: t, api: a, attempts: make(chan tried), problems: make(chan error, 100), stop: stop, clock: began.Add(time.Minute)}
	r.Reporter = &Reporter{
		Settings: Settings{Client: client, Namespace: "pcs", Pod: "pcs-1", Container: "signer", SignerName: "example.com/workload", Problem: func(err error) { r.problems <- err }},
		now:      func() time.Time { return r.clock },
		after: func(d time.Duration) <-chan time.Time {
			c := tried{d, make(chan time.Time, 1)}
			select {
			case r.attempts <- c:
			case <-ctx.Done():
			}
			return c.fire
		},
		started: began,
	}
	if change != nil {
		change(&r.Settings)
	}
	if err := r.start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); <-r.done })
	r.attempt()
	return r
}

// attempt waits until the reporter has tried once more and waits itself.
func (r *reporting) attempt() { r.last = <-r.attempts }

// again lets the time pass that the reporter waits.
func (r *reporting) again() {
	r.last.fire <- time.Time{}
	r.attempt()
}

func (r *reporting) loaded(text string) {
	r.Loaded([]byte(text))
	r.attempt()
}

func (r *reporting) failed(message string) {
	r.Failed(fmt.Errorf("%s", message))
	r.attempt()
}

// report is what is in the cluster under the usual name.
func (r *reporting) report() *corev1.ConfigMap {
	r.Helper()
	return r.named("grantfirst-report-pcs-1")
}

func (r *reporting) named(name string) *corev1.ConfigMap {
	r.Helper()
	r.api.mutex.Lock()
	defer r.api.mutex.Unlock()
	cm := r.api.configMaps[name]
	if cm == nil {
		r.Fatalf("no ConfigMap %s: there are %d", name, len(r.api.configMaps))
	}
	return cm.DeepCopy()
}

// said is the one problem that was told since the last time.
func (r *reporting) said() string {
	r.Helper()
	if n := len(r.problems); n != 1 {
		r.Fatalf("%d problems told, want 1", n)
	}
	return (<-r.problems).Error()
}
