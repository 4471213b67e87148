package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/loaded"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// Access is how an installation is reached.
type Access struct {
	// Own is Argo CD's own cluster.
	Own *rest.Config
	// Elsewhere gives the access to a cluster of the configuration.
	Elsewhere func(*config.Cluster) (*rest.Config, error)
	// Namespace is Argo CD's.
	Namespace string
	// Config is nil where the one in the cluster is meant.
	Config *config.Config
}

// most is how many requests are under way at a time.
const most = 8

// Read fetches an installation, all within the time that the context has. The error says that Argo CD's own cluster cannot be asked at
// all. What else cannot be read is in Unread. It makes a list for each kind, whatever the number of objects (in pages of 500), a get for
// each ConfigMap, and a SubjectAccessReview for each right.
func Read(ctx context.Context, from *Access) (*Installation, error) {
	own, err := newClient(from.Own)
	if err != nil {
		return nil, err
	}
	i := &Installation{Namespace: from.Namespace, Given: from.Config, ConfigMaps: map[string]Object[corev1.ConfigMap]{}, Rights: map[Right]bool{}}
	r := &reading{Installation: i, client: own}
	namespaced := func(resource string) string { return "/namespaces/" + from.Namespace + "/" + resource }
	const apps, argo = "/apis/apps/v1", "/apis/argoproj.io/v1alpha1"

	// The first answer tells whether there is anybody to ask.
	i.Deployments, err = list[appsv1.Deployment](ctx, own, apps+namespaced("deployments"))
	if err != nil && !isAnswer(err) {
		return nil, err
	}
	r.unread(err, "Deployments in namespace "+from.Namespace, "kubectl auth can-i list deployments.apps -n "+from.Namespace)
	configName, _ := i.configIn()
	r.all(
		func() { into(ctx, r, &i.StatefulSets, "StatefulSets", apps, namespaced("statefulsets")) },
		func() { into(ctx, r, &i.Pods, "Pods", "/api/v1", namespaced("pods")) },
		func() { into(ctx, r, &i.Projects, "AppProjects", argo, namespaced("appprojects")) },
		func() { r.applications(ctx, argo) },
		func() {
			// It only tells whose automation an ApplicationSet has switched off.
			i.ApplicationSets, _ = list[ApplicationSet](ctx, own, argo+"/applicationsets")
		},
		func() {
			i.Lease = r.lease(ctx, "/apis/coordination.k8s.io/v1"+namespaced("leases/"+WatcherName))
		},
		func() { r.configMaps(ctx, namespaced, configName, argocdCM, paramsCM, OverridesName) },
	)
	i.readConfig()
	i.Now = own.at()
	r.clusters(ctx, from)
	r.rights(ctx)
	return i, nil
}

// reading is an installation that is being read.
type reading struct {
	*Installation
	client *client
	mutex  sync.Mutex
}

// all does things at the same time, but not too many.
func (r *reading) all(do ...func()) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, most)
	for _, one := range do {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			one()
		})
	}
	wait.Wait()
}

func (r *reading) unread(err error, what, fix string) {
	if err == nil {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.Unread = append(r.Unread, Unread{what, why(err), fix})
	// In the order of their names, whichever answer came first.
	slices.SortStableFunc(r.Unread, func(a, b Unread) int { return strings.Compare(a.What, b.What) })
}

// why is a reason in one line.
func why(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "the API server did not answer in time (--timeout)"
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// isAnswer: the API server itself says it, to somebody whom it knows.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !apierrors.IsUnauthorized(err)
}

func into[T any](ctx context.Context, r *reading, items *[]T, what, group, path string) {
	var err error
	*items, err = list[T](ctx, r.client, group+path)
	r.unread(err, what+" in namespace "+r.Namespace, canList(group, path, r.Namespace))
}

func canList(group, path, namespace string) string {
	resource := path[strings.LastIndexByte(path, '/')+1:]
	if parts := strings.Split(group, "/"); parts[1] == "apis" {
		resource += "." + parts[2]
	}
	if namespace == "" {
		return "kubectl auth can-i list " + resource + " -A"
	}
	return "kubectl auth can-i list " + resource + " -n " + namespace
}

// applications are those of all namespaces, or where that is forbidden those of Argo CD's.
func (r *reading) applications(ctx context.Context, argo string) {
	var err error
	if r.Applications, err = list[Application](ctx, r.client, argo+"/applications"); err == nil {
		return
	}
	r.unread(err, "Applications of all namespaces", canList(argo, "/applications", ""))
	if apierrors.IsForbidden(err) {
		r.OnlyOwn = true
		into(ctx, r, &r.Applications, "Applications", argo, "/namespaces/"+r.Namespace+"/applications")
	}
}

func (r *reading) configMaps(ctx context.Context, namespaced func(string) string, names ...string) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if name == "" {
			continue
		}
		var err error
		r.ConfigMaps[name], err = get[corev1.ConfigMap](ctx, r.client, "/api/v1"+namespaced("configmaps/"+name))
		r.unread(err, "ConfigMap "+r.Namespace+"/"+name, "kubectl auth can-i get configmaps/"+name+" -n "+r.Namespace)
	}
}

func (r *reading) lease(ctx context.Context, path string) Object[coordinationv1.Lease] {
	l, err := get[coordinationv1.Lease](ctx, r.client, path)
	r.unread(err, "Lease "+r.Namespace+"/"+WatcherName, "kubectl auth can-i get leases.coordination.k8s.io/"+WatcherName+" -n "+r.Namespace)
	return l
}

func get[T any](ctx context.Context, c *client, path string) (Object[T], error) {
	raw, err := body(ctx, c.Get().AbsPath(path))
	if apierrors.IsNotFound(err) {
		return Object[T]{Read: true}, nil
	}
	var value T
	if err == nil {
		err = json.Unmarshal(raw, &value)
	}
	if err != nil {
		return Object[T]{}, err
	}
	return Object[T]{true, &value}, nil
}

// clusters reads markers and evidence of each cluster that the configuration names, and of Argo CD's own where anything may deploy there.
func (r *reading) clusters(ctx context.Context, from *Access) {
	if r.Config == nil {
		return
	}
	own := Cluster{Name: "in-cluster", Of: config.Cluster{InCluster: true}}
	protected := r.protected()
	usesOwn := len(protected) == 0 || slices.ContainsFunc(protected, func(a *Application) bool {
		c, err := r.Config.Cluster(r.placement(a))
		return err == nil && c.InCluster
	})
	if usesOwn {
		r.Clusters = append(r.Clusters, own)
	}
	for _, c := range r.Config.Clusters {
		known := slices.ContainsFunc(r.Clusters, func(o Cluster) bool { return o.Of.Kubeconfig == c.Kubeconfig && o.Of.Context == c.Context })
		if !c.InCluster && !known {
			r.Clusters = append(r.Clusters, Cluster{Name: c.Name, Of: c})
		}
	}
	var do []func()
	for n := range r.Clusters {
		do = append(do, func() { r.cluster(ctx, &r.Clusters[n], from) })
	}
	r.all(do...)
}

func (r *reading) cluster(ctx context.Context, c *Cluster, from *Access) {
	settings, err := from.Own, error(nil)
	if !c.Of.InCluster {
		settings, err = from.Elsewhere(&c.Of)
	}
	var at *client
	var signers *loaded.Cluster
	if err == nil {
		if at, err = newClient(settings); err == nil {
			signers, err = loaded.NewCluster(settings)
		}
	}
	if err != nil {
		r.unread(err, "cluster "+c.Name, fmt.Sprintf("run it where %s is, as in the sidecar: kubectl exec -n %s deploy/%s -c %s -- grantfirst doctor", c.Of.Kubeconfig, r.Namespace, repoServerName, Plugin))
		return
	}
	elsewhere := &reading{Installation: &Installation{}, client: at}
	const crd = "customresourcedefinitions"
	var kindErr error
	c.Kind, kindErr = get[Kind](ctx, at, "/apis/apiextensions.k8s.io/v1/"+crd+"/holds."+hold.Group)
	c.Holds, err = list[hold.Hold](ctx, at, "/apis/"+hold.Group+"/v1alpha1/holds")
	switch {
	case apierrors.IsNotFound(err):
		// The kind is not served, whatever its definition says.
		c.Kind.Read = true
	case err != nil:
		elsewhere.unread(err, c.object("Holds of all namespaces"), "kubectl auth can-i list holds."+hold.Group+" -A"+c.flags())
		elsewhere.unread(kindErr, c.object("CustomResourceDefinition holds."+hold.Group), "kubectl auth can-i get "+crd+"/holds."+hold.Group+c.flags())
	}
	c.Evidence = map[string]policy.Evidence{}
	for n := range r.Config.Signers {
		s := &r.Config.Signers[n]
		objects, err := signers.Objects(ctx, s)
		if err != nil {
			elsewhere.unread(err, c.object("signer "+s.SignerName), fmt.Sprintf("kubectl auth can-i list pods,configmaps -n %s%s", s.Namespace, c.flags()))
			continue
		}
		c.Evidence[s.SignerName] = loaded.Evaluate(s, objects)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.Unread = append(r.Unread, elsewhere.Unread...)
}

// rights asks who may do what. Whoever may not ask that gets no answer to any of them.
func (r *reading) rights(ctx context.Context) {
	var do []func()
	for _, wanted := range r.rulings() {
		do = append(do, func() {
			review := &authorizationv1.SubjectAccessReview{
				TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User: wanted.user(r.Namespace),
					// Those that the API server gives to every ServiceAccount (apiserver pkg/authentication/serviceaccount MakeGroupNames).
					Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + r.Namespace, "system:authenticated"},
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: wanted.Namespace, Verb: wanted.Verb, Group: wanted.Group, Resource: wanted.Resource, Name: wanted.Name,
					},
				},
			}
			if err := r.client.post(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", review); err == nil {
				r.mutex.Lock()
				defer r.mutex.Unlock()
				r.Rights[wanted.Right] = review.Status.Allowed
			}
		})
	}
	r.all(do...)
}

// client asks an API server in JSON, and takes its clock off its answers.
type client struct {
	rest.Interface
	mutex sync.Mutex
	date  time.Time
}

func newClient(of *rest.Config) (*client, error) {
	c := &client{}
	settings := rest.CopyConfig(of)
	settings.QPS = -1
	settings.WarningHandler = rest.NoWarnings{}
	settings.GroupVersion = &corev1.SchemeGroupVersion
	settings.APIPath = "/api"
	settings.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	settings.Wrap(func(next http.RoundTripper) http.RoundTripper { return &dated{next, c} })
	var err error
	c.Interface, err = rest.RESTClientFor(settings)
	return c, err
}

type dated struct {
	next http.RoundTripper
	*client
}

func (d *dated) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(request)
	if err == nil {
		if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			d.mutex.Lock()
			d.date = date
			d.mutex.Unlock()
		}
	}
	return response, err
}

// at is the date of the last answer.
func (c *client) at() time.Time {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.date
}

// body is the answer's. Asked for its error first, the result reads the API server's own words out of it. Not all of client-go ends with
// its context (a credential plugin that hangs does not), so it is left alone then.
func body(ctx context.Context, request *rest.Request) ([]byte, error) {
	answered := make(chan rest.Result, 1)
	go func() { answered <- request.SetHeader("Accept", "application/json").Do(ctx) }()
	select {
	case result := <-answered:
		if err := result.Error(); err != nil {
			return nil, withoutURL(err)
		}
		return result.Raw()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// withoutURL leaves the path and parameters of the request out of a message.
func withoutURL(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}

func (c *client) post(ctx context.Context, path string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	raw, err := body(ctx, c.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(text))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, object)
}

// list gives all objects of a kind, page by page; never nil without an error. One that grew too old between two pages (410) is begun
// anew in one piece.
func list[T any](ctx context.Context, c *client, path string) ([]T, error) {
	all, next, limit := []T{}, "", "500"
	for {
		request := c.Get().AbsPath(path)
		if limit != "" {
			request.Param("limit", limit)
		}
		if next != "" {
			request.Param("continue", next)
		}
		raw, err := body(ctx, request)
		if apierrors.IsResourceExpired(err) && next != "" {
			all, next, limit = []T{}, "", ""
			continue
		}
		if err != nil {
			return nil, err
		}
		var page struct {
			Kind     string          `json:"kind"`
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []T             `json:"items"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("the API server's answer cannot be understood: %w", err)
		}
		if !strings.HasSuffix(page.Kind, "List") {
			return nil, fmt.Errorf("the API server's answer is a %q, not a list", page.Kind)
		}
		all = append(all, page.Items...)
		if next = page.Metadata.Continue; next == "" {
			return all, nil
		}
	}
}
