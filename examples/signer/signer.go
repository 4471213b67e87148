package main

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typedcertificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// signer answers the requests to one signer name.
type signer struct {
	client typedcertificatesv1.CertificatesV1Interface
	name   string
	ca     *authority
	rules  atomic.Pointer[rules]
	now    func() time.Time
	log    *log.Logger

	store    cache.Store
	requests cache.Controller
	queue    workqueue.TypedRateLimitingInterface[string]
}

// workers answer requests at the same time. Making a certificate takes less than asking the API server to keep it.
const workers = 4

// watch prepares for answering; run does it.
func (s *signer) watch() {
	s.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	enqueue := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			s.queue.Add(key)
		}
	}
	s.store, s.requests = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(s.client.RESTClient(), "podcertificaterequests", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.signerName", s.name)),
		ObjectType:    &certificatesv1.PodCertificateRequest{},
		Handler:       cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, object any) { enqueue(object) }},
	})
}

// run answers requests until the context ends.
func (s *signer) run(ctx context.Context) {
	defer s.queue.ShutDown()
	for range workers {
		go func() {
			for s.next(ctx) {
			}
		}()
	}
	s.requests.RunWithContext(ctx)
}

func (s *signer) next(ctx context.Context) bool {
	key, quit := s.queue.Get()
	if quit {
		return false
	}
	defer s.queue.Done(key)
	if err := s.handle(ctx, key); err != nil && ctx.Err() == nil {
		s.log.Printf("request %s: %v", key, err)
		s.queue.AddRateLimited(key)
		return true
	}
	s.queue.Forget(key)
	return true
}

// handle answers one request, unless that is done. Where another replica was faster, its answer stands.
func (s *signer) handle(ctx context.Context, key string) error {
	object, exists, err := s.store.GetByKey(key)
	if err != nil || !exists {
		return err
	}
	request, ok := object.(*certificatesv1.PodCertificateRequest)
	if !ok || request.Spec.SignerName != s.name || len(request.Status.Conditions) > 0 {
		return nil
	}
	status, err := answer(request, s.rules.Load(), s.ca, s.now())
	if err != nil {
		return err
	}
	request = request.DeepCopy()
	request.Status = *status
	_, err = s.client.PodCertificateRequests(request.Namespace).UpdateStatus(ctx, request, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err):
		s.log.Printf("request %s: another replica was faster", key)
		return nil
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the answer: %w", err)
	}
	s.log.Printf("request %s: ServiceAccount %s: %s %s", key, request.Spec.ServiceAccountName, status.Conditions[0].Reason, status.Conditions[0].Message)
	return nil
}
