package e2e_test

import (
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// shop is an Application whose workload comes to need a certificate, and its signer.
type shop struct {
	*testing.T
	*installation
	name string

	mutex sync.Mutex
	began time.Time
	// story is what happened, a line each.
	story []string
	// seen are the states that the Application was in, as state gives them.
	seen []string
	// hooks are the Jobs that ever were, by UID: their names, and whether they succeeded.
	hooks map[string]hook
	// denials are what a signer or the kubelet ever said of the workload's pods, by object.
	denials map[string]string
}

type hook struct {
	name      string
	succeeded bool
}

// newShop makes the signer, the repository and the Application, and returns when the Application is Synced and Healthy: a signer that
// grants nothing, and a workload that asks for nothing. automated is what its syncPolicy says of that.
func newShop(t *testing.T, name string, plugin bool, automated string) *shop {
	t.Helper()
	s := &shop{T: t, installation: install(t), name: name, began: time.Now(), hooks: map[string]hook{}, denials: map[string]string{}}
	t.Cleanup(func() {
		s.mutex.Lock()
		s.Logf("%s:\n%s", name, strings.Join(s.story, "\n"))
		s.mutex.Unlock()
		if t.Failed() {
			s.tell()
		}
	})
	rights, err := os.ReadFile("../../signer/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.apply(s.replace(signer), strings.NewReplacer("example.com/workload", "example.test/"+name, "example-signer", "signing-"+name).Replace(string(rights)))
	for _, file := range []string{"signer-rbac.yaml", "watch-signer-rights.yaml"} {
		text, err := os.ReadFile("../../argocd/" + file)
		if err != nil {
			t.Fatal(err)
		}
		// As kubectl apply -n: the subjects stay in Argo CD's namespace.
		s.apply(strings.ReplaceAll(string(text), "\nmetadata:\n", "\nmetadata:\n  namespace: signing-"+name+"\n"))
	}
	s.follow()
	s.git("init", "-q", "-b", "main")
	s.commit("the workload, without a certificate", "", "")
	source := ""
	if plugin {
		source = "\n    plugin: {name: grantfirst}"
	}
	s.apply(strings.NewReplacer("$NAME", name, "GIT", s.url, "PLUGIN", source, "AUTOMATED", automated).Replace(application))
	s.await("the Application is Synced and Healthy", func() bool { return s.last() == settled })
	s.await("the signers run", func() bool {
		ready, err := s.rolledOut(t.Context(), "signing-"+name, "signer")
		return err == nil && ready
	})
	return s
}

const application = `apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: $NAME, namespace: argocd}
spec:
  project: default
  source:
    repoURL: GIT/$NAME
    targetRevision: main
    path: appPLUGIN
  destination: {server: https://kubernetes.default.svc, namespace: shop-$NAME}
  syncPolicy:
    automated: {AUTOMATED}
    syncOptions: [CreateNamespace=true]
`

// signer looks at its policy seldom enough for a hold to be seen.
const signer = `apiVersion: v1
kind: Namespace
metadata: {name: signing-$NAME}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: signer, namespace: signing-$NAME}
spec:
  replicas: 2
  selector: {matchLabels: {app: signer}}
  template:
    metadata: {labels: {app: signer}}
    spec:
      serviceAccountName: signing-$NAME
      securityContext: {runAsNonRoot: true, fsGroup: 0}
      containers:
      - name: signer
        image: example.test/signer:v1
        args: [--policy, /policy/policy.json, --poll, 5s, --on-change, exit, --healthz, "$(POD_IP):8080", --report]
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

const grant = `{"namespace": "shop-$NAME", "serviceAccount": "web", "usage": "client"}`

func (s *shop) replace(text string) string { return strings.ReplaceAll(text, "$NAME", s.name) }

// switchOn is the commit of the outage: grant and switch at once.
func (s *shop) switchOn() {
	s.Helper()
	s.commit("the workload has a certificate, and may have it", grant, certificate)
	s.refresh("normal") // as a webhook would
}

// commit makes a revision of the repository.
func (s *shop) commit(message, grants, volume string) {
	s.Helper()
	for name, text := range map[string]string{
		"web.yaml":   workload + volume,
		"hooks.yaml": hooks,
		"policy.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: policy, namespace: signing-$NAME}
data:
  policy.json: |
    {"signerName": "example.test/$NAME", "trustDomain": "example.test", "dnsNamesAnnotation": "example.test/dns-names",
     "lifetime": "1h", "refreshAt": 0.5, "keyTypes": ["ECDSAP256"], "grants": [` + grants + `]}
`,
	} {
		path := filepath.Join(s.repositories, s.name, "app", name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(s.replace(text)), 0o644)
		}
		if err != nil {
			s.Fatal(err)
		}
	}
	s.git("add", ".")
	s.git("commit", "-q", "-m", message)
	s.says("git: %s: %s", s.git("rev-parse", "--short", "HEAD"), message)
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

// refresh asks Argo CD to compare again; hard without its cache.
func (s *shop) refresh(kind string) {
	s.Helper()
	s.patch(fmt.Sprintf(`{"metadata":{"annotations":{"argocd.argoproj.io/refresh":%q}}}`, kind))
}

func (s *shop) patch(text string) {
	s.Helper()
	_, err := s.objects.Resource(applications).Namespace(space).Patch(s.Context(), s.name, "application/merge-patch+json", []byte(text), metav1.PatchOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.says("patched by the test: %s", text)
}

func (s *shop) application() *unstructured.Unstructured {
	s.Helper()
	o, err := s.objects.Resource(applications).Namespace(space).Get(s.Context(), s.name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return o
}

// settled is the state of an Application with which everything is well.
const settled = "Synced Healthy Succeeded"

// state is what a person sees first of an Application.
func state(app *unstructured.Unstructured) string {
	return strings.Join([]string{text(app, "status", "sync", "status"), text(app, "status", "health", "status"), text(app, "status", "operationState", "phase")}, " ")
}

// follow records what happens to the Application, its hooks and the requests of its pods as it happens: most of it is gone later.
func (s *shop) follow() {
	s.Helper()
	shopName := "shop-" + s.name
	watch := func(source cache.ListerWatcher, kind runtime.Object, seen func(any)) {
		_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: source, ObjectType: kind,
			Handler: cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }},
		})
		go controller.RunWithContext(s.Context())
		if !cache.WaitForCacheSync(s.Context().Done(), controller.HasSynced) {
			s.Fatalf("%T cannot be watched", kind)
		}
	}
	watch(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.objects.Resource(applications).Namespace(space).List(ctx, o)
		},
		WatchFuncWithContext: s.objects.Resource(applications).Namespace(space).Watch,
	}, s.objects), &unstructured.Unstructured{}, func(o any) {
		app := o.(*unstructured.Unstructured)
		if app.GetName() != s.name {
			return
		}
		now := state(app)
		s.mutex.Lock()
		changed := len(s.seen) == 0 || s.seen[len(s.seen)-1] != now
		if changed {
			s.seen = append(s.seen, now)
		}
		s.mutex.Unlock()
		if changed {
			s.says("Application: %s; %s", now, text(app, "status", "operationState", "message"))
		}
	})
	watch(cache.NewListWatchFromClient(s.BatchV1().RESTClient(), "jobs", shopName, nothing), &batchv1.Job{}, func(o any) {
		j := o.(*batchv1.Job)
		s.mutex.Lock()
		was, known := s.hooks[string(j.UID)]
		now := hook{j.Name, j.Status.Succeeded > 0}
		s.hooks[string(j.UID)] = now
		s.mutex.Unlock()
		if !known || was != now {
			s.says("Job %s: succeeded %t", now.name, now.succeeded)
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
	watch(cache.NewListWatchFromClient(s.CertificatesV1().RESTClient(), "podcertificaterequests", shopName, nothing), &certificatesv1.PodCertificateRequest{}, func(o any) {
		r := o.(*certificatesv1.PodCertificateRequest)
		for _, c := range r.Status.Conditions {
			if c.Type != certificatesv1.PodCertificateRequestConditionTypeIssued {
				deny(r.Name, fmt.Sprintf("request %s of pod %s: %s: %s %s", r.Name, r.Spec.PodName, c.Type, c.Reason, c.Message))
			} else {
				s.says("request of pod %s: issued", r.Spec.PodName)
			}
		}
	})
	watch(cache.NewListWatchFromClient(s.CoreV1().RESTClient(), "events", shopName, nothing), &corev1.Event{}, func(o any) {
		if e := o.(*corev1.Event); strings.Contains(e.Message, "permanently denied") {
			deny(e.Name, fmt.Sprintf("%s %s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message))
		}
	})
}

// last is the state of the Application as it was seen last, empty before it was.
func (s *shop) last() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.seen) == 0 {
		return ""
	}
	return s.seen[len(s.seen)-1]
}

// held reports whether the Application shows that it waits. Where it heals itself the watcher takes away what is left of the operation.
func (s *shop) held() bool { return strings.HasPrefix(s.last(), "Synced Suspended") }

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

// ran is how often each hook was there, and how often it succeeded.
func (s *shop) ran() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	count := map[string][2]int{}
	for _, h := range s.hooks {
		n := count[h.name]
		n[0]++
		if h.succeeded {
			n[1]++
		}
		count[h.name] = n
	}
	return fmt.Sprintf("before %d/%d, after %d/%d", count["before"][1], count["before"][0], count["after"][1], count["after"][0])
}

// pods are the workload's, by name: UID, phase.
func (s *shop) pods() []corev1.Pod {
	s.Helper()
	list, err := s.CoreV1().Pods("shop-"+s.name).List(s.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		s.Fatal(err)
	}
	return list.Items
}

// serve reports whether exactly these pods are there, and run.
func (s *shop) serve(before []corev1.Pod) bool {
	s.Helper()
	now := s.pods()
	for _, p := range now {
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || !slices.ContainsFunc(before, func(b corev1.Pod) bool { return b.UID == p.UID }) {
			return false
		}
	}
	return len(now) == len(before)
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
	s.story = append(s.story, fmt.Sprintf("%6.1f %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, arguments...)))
}

// tell prints all that is needed to understand a failure.
func (s *shop) tell() {
	ctx := context.Background()
	if app, err := s.objects.Resource(applications).Namespace(space).Get(ctx, s.name, metav1.GetOptions{}); err == nil {
		app.SetManagedFields(nil)
		text, _ := app.MarshalJSON()
		s.Logf("%s", text)
	}
	for _, namespace := range []string{"shop-" + s.name, "signing-" + s.name} {
		s.Logf("%s:\n%s%s", namespace, s.Events(ctx, namespace), s.Logs(ctx, namespace))
	}
	s.Logf("%s:\n%s", space, s.logs())
}
