package race_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/grantfirst/grantfirst/examples/internal/testcluster"
)

// answers sees every request and every complaint of the kubelet as they come: both are gone later.
type answers struct {
	cluster  *testcluster.Cluster
	mutex    sync.Mutex
	requests map[string]map[string]certificatesv1.PodCertificateRequest // by namespace and name
	mounts   map[string]map[string]corev1.Event
}

const deniedForGood = `PodCertificateRequest was permanently denied: reason="NoGrant"`

func watchAnswers(t *testing.T, c *testcluster.Cluster) *answers {
	t.Helper()
	a := &answers{cluster: c, requests: map[string]map[string]certificatesv1.PodCertificateRequest{}, mounts: map[string]map[string]corev1.Event{}}
	a.follow(t, c.CertificatesV1().RESTClient(), "podcertificaterequests", fields.Everything(), &certificatesv1.PodCertificateRequest{}, func(o any) {
		if r, ok := o.(*certificatesv1.PodCertificateRequest); ok {
			put(a, a.requests, r.Namespace, r.Name, *r)
		}
	})
	a.follow(t, c.CoreV1().RESTClient(), "events", fields.OneTermEqualSelector("reason", "FailedMount"), &corev1.Event{}, func(o any) {
		if e, ok := o.(*corev1.Event); ok && strings.Contains(e.Message, "permanently denied") {
			put(a, a.mounts, e.Namespace, e.Name, *e)
		}
	})
	return a
}

func put[T any](a *answers, all map[string]map[string]T, namespace, name string, object T) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if all[namespace] == nil {
		all[namespace] = map[string]T{}
	}
	all[namespace][name] = object
}

func (a *answers) follow(t *testing.T, client rest.Interface, resource string, selector fields.Selector, kind runtime.Object, seen func(any)) {
	t.Helper()
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, selector),
		ObjectType:    kind,
		Handler:       cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }},
	})
	go controller.RunWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), controller.HasSynced) {
		t.Fatalf("%s cannot be watched", resource)
	}
}

// denied tells every denial in a namespace that was ever seen, or is there now.
func (a *answers) denied(namespace string) []string {
	list, err := a.cluster.CertificatesV1().PodCertificateRequests(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range list.Items {
		put(a, a.requests, namespace, r.Name, r)
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	var out []string
	for _, r := range a.requests[namespace] {
		for _, c := range r.Status.Conditions {
			if c.Type != certificatesv1.PodCertificateRequestConditionTypeIssued {
				out = append(out, fmt.Sprintf("request %s of pod %s, made %s, %s at %s: %s %s; written by %s", r.Name, r.Spec.PodName,
					r.CreationTimestamp.UTC().Format(time.TimeOnly), c.Type, c.LastTransitionTime.UTC().Format(time.TimeOnly), c.Reason, c.Message, writers(&r)))
			}
		}
	}
	for _, e := range a.mounts[namespace] {
		out = append(out, fmt.Sprintf("%s %s, %d times: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Count, e.Message))
	}
	return out
}

func writers(r *certificatesv1.PodCertificateRequest) string {
	var names []string
	for _, f := range r.ManagedFields {
		names = append(names, f.Manager+" "+f.Subresource)
	}
	return strings.Join(names, ", ")
}

// asked gives the requests of a namespace.
func (a *answers) asked(namespace string) int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return len(a.requests[namespace])
}

// complaints is how often the kubelet has said of a namespace's pods that a denial is final.
func (a *answers) complaints(namespace string) int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	n := 0
	for _, e := range a.mounts[namespace] {
		if strings.Contains(e.Message, deniedForGood) {
			n += int(e.Count)
		}
	}
	return n
}
