package e2e_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// shop is a namespace with a workload that comes to need a certificate, its signer, a repository and the Applications that deploy from it.
// The Application that it is made with has its name, and what is said of "the Application" is about that one.
type shop struct {
	*testing.T
	*installation
	*app
	name  string
	began time.Time
	setup setup

	mutex sync.Mutex
	// story is what happened, a line each.
	story []string
	apps  []*app
	// hooks are the Jobs that ever were, by UID.
	hooks map[string]hook
	// denials are what a signer or the kubelet ever said of the workload's pods, by object.
	denials map[string]string
	// before is what was there at the last call of remember.
	before before
}

// app is an Application of a shop.
type app struct {
	shop *shop
	name string
	// seen are the states that it was in, as state gives them.
	seen []string
	// waited is for how long it was held, all in all; since is when the hold began that lasts.
	waited time.Duration
	since  time.Time
}

type hook struct {
	name      string
	succeeded bool
}

// setup says what a shop is. The zero value has everything in one plugin Application that people sync by hand, and two signers that load a
// policy when load is called.
type setup struct {
	application
	// files are those of the first revision; usual() where there are none.
	files map[string]string
	// polls are how often each of the signers looks at its policy, as "5s". Without it there are two that never look.
	polls []string
	// also makes further Applications, before anything is waited for.
	also func(*shop)
	// fresh: neither the signer nor its namespace are there before an Application brings them; nor does newShop make an Application.
	fresh bool
	// bare: newShop makes no Application.
	bare bool
}

// application says how an Application is made.
type application struct {
	// plain: without the plugin.
	plain bool
	// byHand: the watcher does not see it.
	byHand bool
	// automated is what syncPolicy.automated says, as "prune: true"; people sync where it is empty.
	automated string
	// options are the sync options besides CreateNamespace=true.
	options []string
	// paths are the folders of its sources; "app" where there are none.
	paths []string
	// project and namespace (of the destination) are "default" and the shop's where they are empty.
	project, namespace  string
	labels, annotations map[string]string
	// edit changes what cannot be said here.
	edit func(*unstructured.Unstructured)
}

// automatic are signers that look for themselves, as often as pod-cert-signer does.
var automatic = []string{"30s", "30s"}

// newShop makes a shop and returns when its Application is Synced and Healthy: by the usual files with a signer that grants nothing, and a
// workload that asks for nothing.
func newShop(t *testing.T, with setup) *shop {
	t.Helper()
	s := &shop{T: t, installation: install(t), began: time.Now(), setup: with, hooks: map[string]hook{}, denials: map[string]string{}}
	if with.fresh {
		s.name = names.fresh.take(t)
	} else {
		s.name = names.ready.take(t)
	}
	t.Cleanup(s.end)
	if with.bare {
		s.apply(s.signer())
	}
	s.follow("shop-" + s.name)
	s.git("init", "-q", "-b", "main")
	if with.files == nil {
		with.files = usual()
	}
	s.commit("the workload, without a certificate", with.files)
	if with.fresh || with.bare {
		return s
	}
	s.app = s.create(s.name, with.application)
	if with.also != nil {
		with.also(s)
	}
	if with.automated == "" {
		s.sync()
	}
	// The kubelet looks for a missing ConfigMap less and less often, so the signers come after their policy.
	s.await("there is a policy", func() bool {
		_, err := s.CoreV1().ConfigMaps("signing-"+s.name).Get(t.Context(), "policy", metav1.GetOptions{})
		return err == nil
	})
	s.apply(s.signer())
	s.awaitSettled()
	s.awaitSigners()
	s.remember()
	return s
}

func (s *shop) awaitSigners() {
	s.Helper()
	s.await("the signers run", func() bool {
		list, err := s.CoreV1().Pods("signing-"+s.name).List(s.Context(), metav1.ListOptions{LabelSelector: "app=signer"})
		return err == nil && len(list.Items) == max(len(s.setup.polls), 2) && !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return !ready(&p) })
	})
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// end tells what was seen, and takes away what costs time while other tests run. The namespaces stay: deleting them costs more.
func (s *shop) end() {
	if d := s.denied(); len(d) > 0 && !s.setup.plain {
		s.Errorf("denied:\n%s", strings.Join(d, "\n"))
	}
	s.mutex.Lock()
	s.Logf("%s:\n%s", s.name, strings.Join(s.story, "\n"))
	apps := slices.Clone(s.apps)
	s.mutex.Unlock()
	var seen []string
	for _, a := range apps {
		seen = append(seen, fmt.Sprintf("%s held %.1f s", a.name, a.heldFor().Seconds()))
	}
	minutes.Lock()
	minutes.seen[s.T] = append(minutes.seen[s.T], fmt.Sprintf("%s, hooks %s, %d denials", strings.Join(seen, ", "), cmp.Or(s.ran(), "none"), len(s.denied())))
	minutes.Unlock()
	if s.Failed() {
		s.tell()
	}
	ctx, now, background := context.Background(), int64(0), metav1.DeletePropagationBackground
	for _, a := range apps {
		client := s.objects.Resource(applications).Namespace(space)
		_, err := client.Patch(ctx, a.name, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err == nil {
			err = client.Delete(ctx, a.name, metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
	}
	for _, namespace := range []string{"shop-" + s.name, "signing-" + s.name} {
		gone := metav1.DeleteOptions{PropagationPolicy: &background}
		for _, err := range []error{
			s.AppsV1().Deployments(namespace).DeleteCollection(ctx, gone, metav1.ListOptions{}),
			s.AppsV1().StatefulSets(namespace).DeleteCollection(ctx, gone, metav1.ListOptions{}),
			s.BatchV1().Jobs(namespace).DeleteCollection(ctx, gone, metav1.ListOptions{}),
			s.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}),
		} {
			if err != nil {
				s.Error(err)
			}
		}
	}
}

// create makes an Application and follows it.
func (s *shop) create(name string, with application) *app {
	s.Helper()
	a := s.adopt(name)
	var sources []any
	for _, path := range append(with.paths, []string{"app"}[:max(0, 1-len(with.paths))]...) {
		source := map[string]any{"repoURL": s.url + "/" + s.name, "targetRevision": "main", "path": path}
		if !with.plain {
			source["plugin"] = map[string]any{"name": "grantfirst"}
		}
		sources = append(sources, source)
	}
	spec := map[string]any{
		"project":     cmp.Or(with.project, "default"),
		"destination": map[string]any{"server": "https://kubernetes.default.svc", "namespace": cmp.Or(with.namespace, "shop-"+s.name)},
	}
	if len(sources) == 1 {
		spec["source"] = sources[0]
	} else {
		spec["sources"] = sources
	}
	options := []any{"CreateNamespace=true"}
	for _, o := range with.options {
		options = append(options, o)
	}
	policy := map[string]any{"syncOptions": options}
	if with.automated != "" {
		var automated map[string]any
		if err := yaml.Unmarshal([]byte("{"+with.automated+"}"), &automated); err != nil {
			s.Fatal(err)
		}
		policy["automated"] = automated
	}
	spec["syncPolicy"] = policy
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "spec": spec}}
	o.SetName(name)
	o.SetNamespace(space)
	o.SetAnnotations(with.annotations)
	o.SetLabels(with.labels)
	if with.byHand {
		o.SetLabels(map[string]string{"example.test/released": "by-hand"})
	}
	if with.edit != nil {
		with.edit(o)
	}
	if _, err := s.objects.Resource(applications).Namespace(space).Create(s.Context(), o, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.says("Application %s is made: automated {%s}, options %v", name, with.automated, options)
	return a
}

// adopt follows an Application that somebody else makes.
func (s *shop) adopt(name string) *app {
	s.Helper()
	a := &app{shop: s, name: name}
	s.mutex.Lock()
	s.apps = append(s.apps, a)
	s.mutex.Unlock()
	a.follow()
	return a
}

// signer is the text of the signer and its rights, with a Deployment for each replica, so that each can look at its policy when it likes.
func (s *shop) signer() string {
	s.Helper()
	rights, err := os.ReadFile("../../signer/rbac.yaml")
	if err != nil {
		s.Fatal(err)
	}
	stream := strings.NewReplacer("example.com/workload", "example.test/"+s.name, "example-signer", "signing-"+s.name).Replace(string(rights))
	polls := s.setup.polls
	if len(polls) == 0 {
		polls = []string{"1h", "1h"}
	}
	for i, poll := range polls {
		stream += "---\n" + strings.NewReplacer("POLL", poll, "REPLICA", fmt.Sprintf("signer-%d", i)).Replace(s.replace(signer))
	}
	return stream
}

const signer = `apiVersion: apps/v1
kind: Deployment
metadata: {name: REPLICA, namespace: signing-$NAME}
spec:
  selector: {matchLabels: {replica: REPLICA}}
  template:
    metadata: {labels: {app: signer, replica: REPLICA}}
    spec:
      serviceAccountName: signing-$NAME
      securityContext: {runAsNonRoot: true, fsGroup: 0}
      containers:
      - name: signer
        image: example.test/signer:v1
        args: [--policy, /policy/policy.json, --poll, POLL, --on-change, exit, --healthz, "$(POD_IP):8080", --report]
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: CONTAINER_NAME, value: signer}
        readinessProbe: {periodSeconds: 1, httpGet: {path: /healthz, port: 8080}}
        volumeMounts: [{name: policy, mountPath: /policy}]
      volumes:
      - {name: policy, configMap: {name: policy}}
`

// workload has the outage at its worst: the old pods are gone when the new ones ask.
const workload = `apiVersion: v1
kind: ServiceAccount
metadata: {name: web}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  strategy: {type: Recreate}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      serviceAccountName: web
      automountServiceAccountToken: false
      containers:
      - name: web
        image: example.test/web:v1
`

const certificate = `        volumeMounts: [{name: tls, mountPath: /tls}]
      volumes:
      - name: tls
        projected:
          sources:
          - podCertificate: {signerName: example.test/$NAME, keyType: ECDSAP256, credentialBundlePath: bundle.pem}
`

const hooks = `apiVersion: batch/v1
kind: Job
metadata: {name: before, annotations: {argocd.argoproj.io/hook: PreSync}}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: hook, image: "example.test/hook:v1"}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: after, annotations: {argocd.argoproj.io/hook: PostSync}}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: hook, image: "example.test/hook:v1"}]}}}
`

// grant is that of the workload, and unrelated one that no pod here needs.
const (
	grant     = `{"namespace": "shop-$NAME", "serviceAccount": "web", "usage": "client"}`
	unrelated = `{"namespace": "elsewhere", "serviceAccount": "other", "usage": "client"}`
)

// policy is the signer's, with these grants.
func policy(grants ...string) string {
	return `apiVersion: v1
kind: ConfigMap
metadata: {name: policy, namespace: signing-$NAME}
data:
  policy.json: |
    {"signerName": "example.test/$NAME", "trustDomain": "example.test", "dnsNamesAnnotation": "example.test/dns-names",
     "lifetime": "1h", "refreshAt": 0.5, "keyTypes": ["ECDSAP256"], "grants": [` + strings.Join(grants, ", ") + `]}
`
}

// usual are the files before the change.
func usual() map[string]string {
	return map[string]string{"app/web.yaml": workload, "app/hooks.yaml": hooks, "app/policy.yaml": policy()}
}

// gone in place of a file's text removes it.
const gone = "\x00"

func (s *shop) replace(text string) string { return strings.ReplaceAll(text, "$NAME", s.name) }

// switchOn is the commit of the outage: grant and switch at once.
func (s *shop) switchOn() {
	s.Helper()
	s.push("the workload has a certificate, and may have it", map[string]string{"app/policy.yaml": policy(grant), "app/web.yaml": workload + certificate})
}

// push is a commit, and tells Argo CD of it as a webhook would.
func (s *shop) push(message string, files map[string]string) {
	s.Helper()
	s.commit(message, files)
	s.mutex.Lock()
	apps := slices.Clone(s.apps)
	s.mutex.Unlock()
	// One after the other: of the children of an ApplicationSet that goes step by step, one that is refreshed before those in front of it
	// begins before them.
	for _, a := range apps {
		a.refresh("normal")
		a.discovered()
	}
}

// discovered waits until Argo CD has compared with the newest commit. A comparison under way may have begun before the commit, and takes the
// refresh away when it ends, so it may have to be asked again.
func (a *app) discovered() {
	s := a.shop
	s.Helper()
	head := s.git("rev-parse", "HEAD")
	s.await("Argo CD has seen the commit", func() bool {
		app := a.application()
		if text(app, "status", "sync", "status") == "Unknown" {
			return true
		}
		revisions, _, _ := unstructured.NestedStringSlice(app.Object, "status", "sync", "revisions")
		if len(revisions) == 0 {
			revisions = []string{text(app, "status", "sync", "revision")}
		}
		if !slices.ContainsFunc(revisions, func(r string) bool { return r != head }) {
			return true
		}
		if app.GetAnnotations()["argocd.argoproj.io/refresh"] == "" {
			a.refresh("normal")
		}
		return false
	})
}

// commit makes a revision of the repository with these files, by their paths, written anew.
func (s *shop) commit(message string, files map[string]string) {
	s.Helper()
	for name, text := range files {
		path := filepath.Join(s.repositories, s.name, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case text == gone:
			err = os.RemoveAll(path)
		case err == nil:
			err = os.WriteFile(path, []byte(s.replace(text)), 0o644)
		}
		if err != nil {
			s.Fatal(err)
		}
	}
	s.git("add", "-A", ".")
	s.git("commit", "-q", "--allow-empty", "-m", message)
	s.says("a commit: %s: %s", s.git("rev-parse", "--short", "HEAD"), message)
}

func (s *shop) git(args ...string) string {
	s.Helper()
	dir := filepath.Join(s.repositories, s.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.Context(), "git", append([]string{"-c", "user.name=test", "-c", "user.email=test@example.test"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("git %s: %v\n%s", args[0], err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *shop) apply(streams ...string) {
	s.Helper()
	for _, text := range streams {
		if err := s.Apply(s.Context(), []byte(text)); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *shop) await(what string, check func() bool) {
	s.Helper()
	begun := time.Now()
	if err := poll(s.Context(), what, func() (bool, error) { return check(), nil }); err != nil {
		s.Fatal(err)
	}
	s.says("%s (after %.1f s)", what, time.Since(begun).Seconds())
}

// awaitSettled waits until everything is well with the Application.
func (s *shop) awaitSettled() {
	s.Helper()
	s.await("the Application is Synced and Healthy", func() bool { return s.last() == settled })
}

// awaitHeld waits until the Application shows that it waits.
func (s *shop) awaitHeld() {
	s.Helper()
	s.await("the Application is held", s.held)
}

// refresh asks Argo CD to compare again; hard without its cache.
func (a *app) refresh(kind string) {
	a.shop.Helper()
	a.patch(fmt.Sprintf(`{"metadata":{"annotations":{"argocd.argoproj.io/refresh":%q}}}`, kind))
}

// sync is a person's, with prune: argocd app sync, or the button of the UI. As they do it (argo-cd v2.14 util/argo/argo.go, SetAppOperation),
// it takes away what is left of the last operation.
func (a *app) sync() {
	a.shop.Helper()
	options, _, _ := unstructured.NestedSlice(a.application().Object, "spec", "syncPolicy", "syncOptions")
	text, err := json.Marshal(map[string]any{
		"status":    map[string]any{"operationState": nil},
		"operation": map[string]any{"sync": map[string]any{"prune": true, "syncOptions": options}},
	})
	if err != nil {
		a.shop.Fatal(err)
	}
	a.patch(string(text))
}

func (a *app) patch(text string) {
	a.shop.Helper()
	_, err := a.shop.objects.Resource(applications).Namespace(space).Patch(a.shop.Context(), a.name, "application/merge-patch+json", []byte(text), metav1.PatchOptions{})
	if err != nil {
		a.shop.Fatal(err)
	}
	a.shop.says("patched by the test: %s: %s", a.name, text)
}

func (a *app) application() *unstructured.Unstructured {
	a.shop.Helper()
	o, err := a.shop.objects.Resource(applications).Namespace(space).Get(a.shop.Context(), a.name, metav1.GetOptions{})
	if err != nil {
		a.shop.Fatal(err)
	}
	return o
}

// settled is the state of an Application with which everything is well.
const settled = "Synced Healthy Succeeded"

// rendersMarker reports whether the manifests that Argo CD has are held.
func rendersMarker(app *unstructured.Unstructured) bool {
	resources, _, _ := unstructured.NestedSlice(app.Object, "status", "resources")
	return slices.ContainsFunc(resources, func(r any) bool {
		of := r.(map[string]any)
		return of["kind"] == "Hold" && of["requiresPruning"] != true
	})
}

// state is what a person sees first of an Application.
func state(app *unstructured.Unstructured) string {
	return strings.Join([]string{text(app, "status", "sync", "status"), text(app, "status", "health", "status"), text(app, "status", "operationState", "phase")}, " ")
}

// listen calls seen with every state of the objects of a source.
func (s *shop) listen(source cache.ListerWatcher, kind runtime.Object, seen func(any)) {
	s.Helper()
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: kind,
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }},
	})
	go controller.RunWithContext(s.Context())
	if !cache.WaitForCacheSync(s.Context().Done(), controller.HasSynced) {
		s.Fatalf("%T cannot be watched", kind)
	}
}

// follow records what happens to the Application as it happens.
func (a *app) follow() {
	s := a.shop
	s.Helper()
	a.listen(func(o *unstructured.Unstructured) {
		now, message := state(o), text(o, "status", "operationState", "message")
		s.mutex.Lock()
		changed := len(a.seen) == 0 || a.seen[len(a.seen)-1] != now
		if changed {
			a.seen = append(a.seen, now)
		}
		switch held := rendersMarker(o); {
		case held && a.since.IsZero():
			a.since = time.Now()
		case !held && !a.since.IsZero():
			a.waited += time.Since(a.since)
			a.since = time.Time{}
		}
		s.mutex.Unlock()
		if changed {
			s.says("Application %s: %s; %s", a.name, now, message)
			narrate(time.Since(s.began), inWords(now))
		}
	})
}

// listen calls seen with every state of the Application.
func (a *app) listen(seen func(*unstructured.Unstructured)) {
	a.shop.Helper()
	a.shop.listenTo(applications, a.name, seen)
}

// listenTo calls seen with every version of one object in Argo CD's namespace until the test ends.
func (s *shop) listenTo(of schema.GroupVersionResource, name string, seen func(*unstructured.Unstructured)) {
	s.Helper()
	client := s.objects.Resource(of).Namespace(space)
	only := fields.OneTermEqualSelector("metadata.name", name).String()
	s.listen(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return client.Watch(ctx, o)
		},
	}, s.objects), &unstructured.Unstructured{}, func(o any) { seen(o.(*unstructured.Unstructured)) })
}

// follow records what happens to the hooks and the requests of the pods in a namespace as it happens: most of it is gone later.
func (s *shop) follow(namespace string) {
	s.Helper()
	s.listen(cache.NewListWatchFromClient(s.BatchV1().RESTClient(), "jobs", namespace, fields.Everything()), &batchv1.Job{}, func(o any) {
		j := o.(*batchv1.Job)
		s.mutex.Lock()
		was, known := s.hooks[string(j.UID)]
		now := hook{j.Name, j.Status.Succeeded > 0}
		s.hooks[string(j.UID)] = now
		s.mutex.Unlock()
		if !known || was != now {
			s.says("hook %s: Job is there, and has succeeded: %t", now.name, now.succeeded)
		}
	})
	deny := func(key, text string) {
		s.mutex.Lock()
		_, known := s.denials[key]
		s.denials[key] = text
		s.mutex.Unlock()
		if !known {
			s.says("%s", text)
		}
	}
	s.listen(cache.NewListWatchFromClient(s.CertificatesV1().RESTClient(), "podcertificaterequests", namespace, fields.Everything()), &certificatesv1.PodCertificateRequest{}, func(o any) {
		r := o.(*certificatesv1.PodCertificateRequest)
		for _, c := range r.Status.Conditions {
			if c.Type != certificatesv1.PodCertificateRequestConditionTypeIssued {
				deny(r.Name, fmt.Sprintf("request %s of pod %s: %s: %s %s", r.Name, r.Spec.PodName, c.Type, c.Reason, c.Message))
			} else {
				s.says("pod %s is given its certificate", r.Spec.PodName)
			}
		}
	})
	phases := map[string]string{}
	s.listen(cache.NewListWatchFromClient(s.CoreV1().RESTClient(), "pods", namespace, fields.Everything()), &corev1.Pod{}, func(o any) {
		p := o.(*corev1.Pod)
		now := string(p.Status.Phase)
		if p.DeletionTimestamp != nil {
			now = "told to end"
		}
		// The calls of one listener come one after the other.
		if was := phases[p.Name]; was != now && p.Labels["app"] == "web" {
			phases[p.Name] = now
			s.says("pod %s: %s", p.Name, now)
		}
	})
	s.listen(cache.NewListWatchFromClient(s.CoreV1().RESTClient(), "events", namespace, fields.Everything()), &corev1.Event{}, func(o any) {
		if e := o.(*corev1.Event); strings.Contains(e.Message, "permanently denied") {
			deny(e.Name, fmt.Sprintf("%s %s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message))
		}
	})
}

// last is the state of the Application as it was seen last, empty before it was.
func (a *app) last() string {
	a.shop.mutex.Lock()
	defer a.shop.mutex.Unlock()
	if len(a.seen) == 0 {
		return ""
	}
	return a.seen[len(a.seen)-1]
}

// heldFor is for how long the Application was held, all in all.
func (a *app) heldFor() time.Duration {
	a.shop.mutex.Lock()
	defer a.shop.mutex.Unlock()
	if a.since.IsZero() {
		return a.waited
	}
	return a.waited + time.Since(a.since)
}

// held reports whether the Application shows that it waits.
func (a *app) held() bool { return isHeld(a.last()) }

// isHeld leaves the operation out: where an Application heals itself the watcher takes away what is left of it.
func isHeld(state string) bool { return strings.HasPrefix(state, "Synced Suspended") }

func (s *shop) denied() []string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var out []string
	for _, d := range s.denials {
		out = append(out, d)
	}
	slices.Sort(out)
	return out
}

// ran is how often each hook succeeded and was there, as "after 1/1, before 1/2".
func (s *shop) ran() string {
	var out []string
	for name, n := range s.counted() {
		out = append(out, fmt.Sprintf("%s %d/%d", name, n.succeeded, n.were))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

type count struct{ succeeded, were int }

func (s *shop) counted() map[string]count {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	all := map[string]count{}
	for _, h := range s.hooks {
		n := all[h.name]
		n.were++
		if h.succeeded {
			n.succeeded++
		}
		all[h.name] = n
	}
	return all
}

// before is what was there before a change.
type before struct {
	pods    []corev1.Pod
	hooks   map[string]count
	history int
}

// remember takes what is there now for what was there before what follows.
func (s *shop) remember() {
	s.Helper()
	s.before = before{s.pods(), s.counted(), s.history()}
}

// history is how many entries that of the Application has.
func (a *app) history() int {
	a.shop.Helper()
	h, _, _ := unstructured.NestedSlice(a.application().Object, "status", "history")
	return len(h)
}

// pods are the workload's.
func (s *shop) pods() []corev1.Pod { return s.podsOf("web") }

func (s *shop) podsOf(app string) []corev1.Pod {
	s.Helper()
	list, err := s.CoreV1().Pods("shop-"+s.name).List(s.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		s.Fatal(err)
	}
	return list.Items
}

// serve reports whether exactly the pods of before are there, and run.
func (s *shop) serve() bool {
	s.Helper()
	now := s.pods()
	for _, p := range now {
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || !slices.ContainsFunc(s.before.pods, func(b corev1.Pod) bool { return b.UID == p.UID }) {
			return false
		}
	}
	return len(now) == len(s.before.pods)
}

// load has the signers load their policy as it stands, and waits until they say that they have: a person restarts them. Without numbers all
// do.
func (s *shop) load(replicas ...int) {
	s.Helper()
	namespace := "signing-" + s.name
	wanted, err := s.CoreV1().ConfigMaps(namespace).Get(s.Context(), "policy", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	text := wanted.Data["policy.json"]
	pods, err := s.CoreV1().Pods(namespace).List(s.Context(), metav1.ListOptions{LabelSelector: "app=signer"})
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range pods.Items {
		if len(replicas) > 0 && !slices.ContainsFunc(replicas, func(n int) bool { return p.Labels["replica"] == fmt.Sprintf("signer-%d", n) }) {
			continue
		}
		s.await("the policy is in the volume of "+p.Name, func() bool {
			on, err := s.Containers(s.Context(), namespace, p.Name)
			if err != nil || len(on) == 0 {
				return false
			}
			is, err := os.ReadFile(filepath.Join(on[0].Mounts["/policy"], "policy.json"))
			return err == nil && string(is) == text
		})
		if err := s.Exit(s.Context(), namespace, p.Name, "signer", 0); err != nil {
			s.Fatal(err)
		}
		s.await(p.Name+" reports that policy", func() bool { return s.reports(p.Name) == text })
	}
}

// reports is the policy text that a replica says it has loaded, empty where it says nothing.
func (s *shop) reports(pod string) string {
	s.Helper()
	list, err := s.CoreV1().ConfigMaps("signing-"+s.name).List(s.Context(), metav1.ListOptions{LabelSelector: "grantfirst.dev/report"})
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range list.Items {
		if slices.ContainsFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Name == pod }) {
			return c.Data["policy"]
		}
	}
	return ""
}

// markers are the Holds in the workload's namespace.
func (s *shop) markers() []unstructured.Unstructured {
	s.Helper()
	list, err := s.objects.Resource(holds).Namespace("shop-"+s.name).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return list.Items
}

func (s *shop) says(format string, arguments ...any) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	line := fmt.Sprintf(format, arguments...)
	s.story = append(s.story, fmt.Sprintf("%6.1f %s", time.Since(s.began).Seconds(), line))
	narrate(time.Since(s.began), line)
}

// tell prints all that is needed to understand a failure.
func (s *shop) tell() {
	ctx := context.Background()
	for _, a := range s.apps {
		if app, err := s.objects.Resource(applications).Namespace(space).Get(ctx, a.name, metav1.GetOptions{}); err == nil {
			app.SetManagedFields(nil)
			text, _ := app.MarshalJSON()
			s.Logf("%s", text)
		}
	}
	for _, namespace := range []string{"shop-" + s.name, "signing-" + s.name} {
		s.Logf("%s:\n%s%s", namespace, s.Events(ctx, namespace), s.Logs(ctx, namespace))
	}
	s.Logf("%s:\n%s", space, s.logs())
}
