package loaded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/grantfirst/grantfirst/lib/config"
)

// Cluster is evidence from an API server. It is a Source, and one reading: what it has asked for once it does not ask for again, so
// that all signers of a namespace are judged by one moment. It is safe for concurrent use.
type Cluster struct {
	client rest.Interface
	clock  clock

	mutex sync.Mutex
	lists map[string]func() ([]runtime.Object, error)
}

// NewCluster makes no request. A copy of the configuration is used, without a limit on the rate of requests, because they are few and
// have one deadline, and without the API server's warnings on stderr.
func NewCluster(of *rest.Config) (*Cluster, error) {
	c := &Cluster{lists: map[string]func() ([]runtime.Object, error){}}
	settings := rest.CopyConfig(of)
	settings.QPS = -1
	settings.WarningHandler = rest.NoWarnings{}
	settings.GroupVersion = &corev1.SchemeGroupVersion
	settings.APIPath = "/api"
	settings.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	settings.Wrap(c.clock.wrap)
	var err error
	if c.client, err = rest.RESTClientFor(settings); err != nil {
		return nil, err
	}
	return c, nil
}

// Objects lists the ConfigMaps of the signer's namespace, or instead of those its policy resources, and then the pods. In that order: a
// pod that is made in between gets at least what was listed, while with pods that are older than the policies next to them a container
// that was not running then could have started with a text from before. The context carries the deadline. The error is a *ReadError.
func (c *Cluster) Objects(ctx context.Context, s *config.Signer) (*Objects, error) {
	o := &Objects{}
	var err error
	policies := "configmaps"
	if r := s.Policy.Resource; r != nil {
		policies = r.APIVersion + r.Resource + r.Namespace + r.Selector
		o.Resources, err = c.resources(ctx, r)
	} else {
		o.ConfigMaps, err = listOf[corev1.ConfigMapList, corev1.ConfigMap](ctx, c, s.Namespace, "configmaps", "")
	}
	if err != nil {
		return nil, err
	}
	if o.Pods, err = listOf[corev1.PodList, corev1.Pod](ctx, c, s.Namespace, "pods", policies); err != nil {
		return nil, err
	}
	o.At = c.At()
	return o, nil
}

// resources gives the custom resources that are a signer's policy objects; never nil without an error.
func (c *Cluster) resources(ctx context.Context, r *config.Resource) ([]map[string]any, error) {
	path, what := "/apis/"+r.APIVersion, r.Resource+"."+r.Group()
	if r.Namespace != "" && r.Namespace != config.AllNamespaces {
		path += "/namespaces/" + r.Namespace
		what += " in namespace " + r.Namespace
	}
	path += "/" + r.Resource
	objects, err := c.once(what+" "+r.Selector, func() ([]runtime.Object, error) {
		return c.pages(ctx, what, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = r.Selector
			raw, err := rawJSON(ctx, c.client.Get().AbsPath(path).VersionedParams(&options, scheme.ParameterCodec))
			if err != nil {
				return nil, err
			}
			list, _, err := unstructured.UnstructuredJSONScheme.Decode(raw, nil, nil)
			if err != nil {
				return nil, err
			}
			if _, ok := list.(*unstructured.UnstructuredList); !ok {
				return nil, fmt.Errorf("it answered with a %T", list)
			}
			return list, nil
		})
	})
	if err != nil {
		return nil, err
	}
	all := make([]map[string]any, len(objects))
	for i, o := range objects {
		all[i] = o.(*unstructured.Unstructured).Object
	}
	return all, nil
}

// listOf gives all objects of a resource in a namespace, asking once after the same thing. Whatever is not a list of them is no answer:
// taken for an empty list it would say that the signer has no pods.
func listOf[L, T any](ctx context.Context, c *Cluster, namespace, resource, after string) ([]T, error) {
	what := resource + " in namespace " + namespace
	objects, err := c.once(what+" "+after, func() ([]runtime.Object, error) {
		return c.pages(ctx, what, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := c.client.Get().Namespace(namespace).Resource(resource).VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Get()
			if err != nil {
				return nil, err
			}
			if _, ok := list.(any).(*L); !ok {
				return nil, fmt.Errorf("it answered with a %T", list)
			}
			return list, nil
		})
	})
	if err != nil {
		return nil, err
	}
	all := make([]T, len(objects))
	for i, o := range objects {
		all[i] = *o.(any).(*T)
	}
	return all, nil
}

func (c *Cluster) once(what string, read func() ([]runtime.Object, error)) ([]runtime.Object, error) {
	c.mutex.Lock()
	list := c.lists[what]
	if list == nil {
		list = sync.OnceValues(read)
		c.lists[what] = list
	}
	c.mutex.Unlock()
	return list()
}

// pages reads a list page by page. A list that grew too old between two of them (410) is begun anew in one piece, and a server that wants
// to be asked later (429, or 5xx with Retry-After) is asked again for as long as the context lasts: both is client-go's doing.
func (c *Cluster) pages(ctx context.Context, what string, page pager.ListPageFunc) ([]runtime.Object, error) {
	ctx, last := withAttempt(ctx)
	list, err := within(ctx, func() (runtime.Object, error) {
		list, _, err := pager.New(page).List(ctx, metav1.ListOptions{})
		return list, err
	})
	if err != nil {
		return nil, last.readError(what, err)
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return nil, &ReadError{What: what, Why: notUnderstood, Err: err}
	}
	return objects, nil
}

// Get gives the JSON of what the API server has at a path. The error is a *ReadError about what.
func (c *Cluster) Get(ctx context.Context, what, path string) ([]byte, error) {
	ctx, last := withAttempt(ctx)
	raw, err := within(ctx, func() ([]byte, error) { return rawJSON(ctx, c.client.Get().AbsPath(path)) })
	if err != nil {
		return nil, last.readError(what, err)
	}
	return raw, nil
}

// within leaves a read alone when its time is over. Not all of client-go ends with its context: a credential plugin that hangs does not,
// nor does the decoding of an endless answer.
func within[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := read()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// rawJSON gives the body of an answer. Asked for its error first, the result reads the API server's own words out of it.
func rawJSON(ctx context.Context, request *rest.Request) ([]byte, error) {
	result := request.SetHeader("Accept", "application/json").Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// Versions gives the version of the API server and all that it serves, as Argo CD tells plugins ("apps/v1", "apps/v1/Deployment", …),
// sorted. Groups whose own server does not answer are left out.
func (c *Cluster) Versions(ctx context.Context) (kubeVersion string, apiVersions []string, err error) {
	client := discovery.NewDiscoveryClient(c.client)
	ctx, last := withAttempt(ctx)
	version, err := client.ServerVersionWithContext(ctx)
	if err != nil {
		return "", nil, last.readError("the API server's version", err)
	}
	_, lists, err := client.ServerGroupsAndResourcesWithContext(ctx)
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return "", nil, last.readError("what the API server serves", err)
	}
	for _, list := range lists {
		apiVersions = append(apiVersions, list.GroupVersion)
		for _, r := range list.APIResources {
			apiVersions = append(apiVersions, list.GroupVersion+"/"+r.Kind)
		}
	}
	slices.Sort(apiVersions)
	return version.GitVersion, slices.Compact(apiVersions), nil
}

// At is when the first answer came, by the API server's clock; zero before that, and where its answers have no Date.
func (c *Cluster) At() time.Time {
	c.clock.mutex.Lock()
	defer c.clock.mutex.Unlock()
	return c.clock.first
}

// clock reads the API server's clock off its answers: by that one the times in its objects are written.
type clock struct {
	mutex sync.Mutex
	first time.Time
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *clock) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		last, _ := request.Context().Value(attemptKey{}).(*attempt)
		last.note(response, err)
		if err != nil {
			return nil, err
		}
		response.Body = &limited{ReadCloser: response.Body, left: maxAnswer}
		if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			c.mutex.Lock()
			if c.first.IsZero() || date.Before(c.first) {
				c.first = date
			}
			c.mutex.Unlock()
		}
		return response, nil
	})
}

// maxAnswer is the longest answer that is read, in bytes: a page of 500 pods has some 10 MB, and the sidecar's memory has an end.
const maxAnswer = 128 << 20

// limited is a body with an end.
type limited struct {
	io.ReadCloser
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// attempt is how the last try of a read went. client-go tries again what an API server asks it to, and connections that break, and when
// the time is over only says that it is.
type attempt struct {
	mutex  sync.Mutex
	status int
	err    error
}

type attemptKey struct{}

func withAttempt(ctx context.Context) (context.Context, *attempt) {
	a := &attempt{}
	return context.WithValue(ctx, attemptKey{}, a), a
}

func (a *attempt) note(response *http.Response, err error) {
	if a == nil || isOver(err) {
		return
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.status, a.err = 0, err
	if err == nil {
		a.status = response.StatusCode
	}
}

func isOver(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// readError says why in words that do not depend on addresses, ports and times.
func (a *attempt) readError(what string, err error) *ReadError {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	why := reason(err)
	switch {
	case !isOver(err):
	case a.err != nil:
		why = reason(a.err)
	case a.status == http.StatusTooManyRequests:
		why = overloaded
	case a.status >= http.StatusInternalServerError:
		why = ofItsOwn(a.status)
	}
	return &ReadError{What: what, Why: why, Err: err}
}

// ReadError is why something could not be read from a cluster. Its text is the same whenever the reason is: it goes into markers, which
// must not change from one render to the next. Err has all there is to know.
type ReadError struct {
	// What was read, as in "pods in namespace x".
	What string
	// Why says what is wrong, and what to do where a person has to.
	Why string
	Err error
}

func (e *ReadError) Error() string { return "reading " + e.What + ": " + e.Why }

func (e *ReadError) Unwrap() error { return e.Err }

const notUnderstood = "the API server's answer cannot be understood: check what stands between it and the plugin"

const overloaded = "the API server is overloaded (429)"

func ofItsOwn(status int) string {
	return fmt.Sprintf("the API server has an error of its own (%d)", status)
}

func reason(err error) string {
	var status apierrors.APIStatus
	var timeout net.Error
	var dns *net.DNSError
	var errno syscall.Errno
	var op *net.OpError
	var request *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		return "the API server did not answer in time (readTimeout)"
	case errors.Is(err, context.Canceled):
		return "it was cancelled"
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept the credentials (401): check that the token is there and has not expired"
	case apierrors.IsForbidden(err):
		return "the API server forbids it (403): apply the RBAC of examples/argocd"
	case apierrors.IsNotFound(err):
		return "the API server has no such thing (404)"
	case apierrors.IsTooManyRequests(err):
		return overloaded
	case errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError:
		return ofItsOwn(int(status.Status().Code))
	case errors.As(err, &status) && status.Status().Code >= http.StatusBadRequest:
		return fmt.Sprintf("the API server refuses it (%d %s)", status.Status().Code, status.Status().Reason)
	case errors.As(err, &dns):
		return "the API server's name " + dns.Name + " cannot be resolved"
	case errors.As(err, &errno):
		return "the API server cannot be reached: " + errno.Error()
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "the API server broke off its answer"
	case errors.As(err, &op):
		return "the API server cannot be reached"
	case errors.As(err, &request):
		return "the API server cannot be asked: " + withoutAddress(request.Err.Error())
	}
	return notUnderstood
}

// withoutAddress keeps the part of a message that is the same every time: the last, which names the cause.
func withoutAddress(message string) string {
	if i := strings.LastIndex(message, ": "); i >= 0 {
		message = message[i+2:]
	}
	return oneLine(message)
}
