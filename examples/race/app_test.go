package race_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/examples/internal/testcluster"
)

// programs are built once, by TestMain.
var programs struct{ grantfirst, signer string }

const signerImage = "example.test/race/signer"

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	if os.Getenv(testcluster.KubeconfigVariable) == "" {
		return m.Run(), nil // the tests skip
	}
	dir, err := os.MkdirTemp("", "grantfirst-race-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", dir, "../../cmd/grantfirst", "../signer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, out)
	}
	programs.grantfirst, programs.signer = filepath.Join(dir, "grantfirst"), filepath.Join(dir, "signer")
	return m.Run(), nil
}

// shape is how signer and workload are made.
type shape struct {
	onChange string
	// signers and pods are replicas, of the signer and of the workload.
	signers, pods int
	// hashed: the policy ConfigMap's name ends in the hash of its content, so that the signer rolls. Otherwise it changes in place.
	hashed bool
	// evidence is grantfirst's: report or podVolumes.
	evidence string
	// recreate: the signer's Deployment replaces all pods at once, and not one by one.
	recreate bool
	// checksum: the change also changes the signer's pod template, as with an annotation that has the checksum of the policy.
	checksum bool
	// poll is how often the signer looks at its policy: "200ms" where it is empty.
	poll string
	// starts is how many seconds a signer's pod takes to start, as while its image is pulled: "0" where it is empty.
	starts string
	// plain: without grantfirst. What goes out is the same render with nothing held (mode: observe).
	plain bool
}

func (s shape) String() string {
	name, by := "in place", "grantfirst, evidence "+s.evidence
	if s.hashed {
		name = "hash-named"
	}
	if s.plain {
		by = "without grantfirst"
	}
	if s.checksum {
		name += " with checksum"
	}
	if s.recreate {
		name += ", strategy Recreate"
	}
	return fmt.Sprintf("%d signers that %s after %s s, poll %s, policy %s, %d pods, %s", s.signers, s.onChange, s.starts, s.poll, name, s.pods, by)
}

// app is an application that comes to need a certificate, and its signer, each in a namespace of its own.
type app struct {
	*testing.T
	*testcluster.Cluster
	shape
	answers *answers
	// signing is the signer's namespace, and with "example.test/" before it the signer's name; shop is the workload's.
	signing, shop string
	// dir has the revisions before and after, and grantfirst's configuration.
	dir string

	mutex sync.Mutex
	story strings.Builder
}

// newApp applies the revision before the change, and returns when it runs: signers that grant the workload nothing, and pods that ask
// for nothing. The namespaces live as long as the test in life does: deleting one costs more than having it.
func newApp(t, life *testing.T, c *testcluster.Cluster, answers *answers, s shape) *app {
	t.Helper()
	a := &app{T: t, Cluster: c, shape: s, answers: answers, dir: t.TempDir()}
	t.Cleanup(func() {
		if t.Failed() {
			a.tell()
		}
		a.stop()
	})
	a.signing, a.shop = c.Namespace(life, "race-signer-"), c.Namespace(life, "race-shop-")
	for _, err := range []error{
		c.Image(t.Context(), signerImage, map[string]string{"/signer": programs.signer}, 65532, "/signer"),
		c.Image(t.Context(), "example.test/race/sleep", nil, 65532, "sleep"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	rights, err := os.ReadFile("../signer/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	setup := a.replace(string(rights)) + a.replace(workloadAccount)
	if err := c.Apply(t.Context(), []byte(setup)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, remove := range []error{
			c.RbacV1().ClusterRoleBindings().Delete(context.Background(), a.signing, metav1.DeleteOptions{}),
			c.RbacV1().ClusterRoles().Delete(context.Background(), a.signing, metav1.DeleteOptions{}),
		} {
			if remove != nil {
				t.Error(remove)
			}
		}
	})
	a.write("before", "base", "")
	a.write("after", "base web", a.replace(certificateVolume))
	a.file("config.yaml", a.configuration())

	a.apply(a.generate("before"))
	a.await("the signers are ready", func() (bool, error) { return a.rolledOut(a.signing, "signer", s.signers) })
	a.await("the workload runs without certificate", func() (bool, error) { return a.rolledOut(a.shop, "web", s.pods) })
	a.tells("before the change: all run")
	return a
}

// stop ends what costs time while other tests run.
func (a *app) stop() {
	now, background := int64(0), metav1.DeletePropagationBackground
	for _, namespace := range []string{a.signing, a.shop} {
		if namespace == "" {
			continue
		}
		err := a.AppsV1().Deployments(namespace).DeleteCollection(context.Background(), metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{})
		if err == nil {
			err = a.CoreV1().Pods(namespace).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		}
		if err != nil {
			a.Error(err)
		}
	}
}

func (a *app) signerName() string { return "example.test/" + a.signing }

const workloadAccount = `
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: SHOP}
`

const signerDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: signer, namespace: SIGNING}
spec:
  replicas: SIGNERS
  strategy: {type: STRATEGY}
  selector: {matchLabels: {app: signer}}
  template:
    metadata: {labels: {app: signer}, annotations: {example.test/checksum: "CHECKSUM"}}
    spec:
      serviceAccountName: SIGNING
      terminationGracePeriodSeconds: 60
      securityContext: {runAsNonRoot: true, fsGroup: 0}
      initContainers:
      - {name: sleep, image: example.test/race/sleep:v1, args: ["STARTS"]}
      containers:
      - name: signer
        image: example.test/race/signer:v1
        args: [--policy, /policy/policy.json, --poll, POLL, --on-change, ON-CHANGE, --healthz, "$(POD_IP):8080", --report=REPORT]
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

// A workload with Recreate has the outage at its worst: the old pods are gone when the new ones ask.
const workloadDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: SHOP}
spec:
  replicas: PODS
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

const certificateVolume = `
        volumeMounts: [{name: tls, mountPath: /tls}]
      volumes:
      - name: tls
        projected:
          sources:
          - podCertificate: {signerName: SIGNER-NAME, keyType: ECDSAP256, credentialBundlePath: bundle.pem}
`

func (a *app) replace(text string) string {
	strategy := "RollingUpdate"
	if a.recreate {
		strategy = "Recreate"
	}
	return strings.NewReplacer(
		"example.com/workload", a.signerName(), "example-signer", a.signing, // those of rbac.yaml
		"SIGNER-NAME", a.signerName(), "SIGNING", a.signing, "SHOP", a.shop, "SIGNERS", fmt.Sprint(a.signers), "PODS", fmt.Sprint(a.pods),
		"ON-CHANGE", a.onChange, "REPORT", fmt.Sprint(a.evidence == "report"), "POLL", cmp.Or(a.poll, "200ms"), "STARTS", cmp.Or(a.starts, "0"), "STRATEGY", strategy,
	).Replace(text)
}

// write makes a revision as it would lie in Git: the policy, the signer and the workload, for kustomize.
func (a *app) write(revision, granted, volume string) {
	a.Helper()
	var grants []string
	for name := range strings.FieldsSeq(granted) {
		grants = append(grants, fmt.Sprintf(`{"namespace": %q, "serviceAccount": %q, "usage": "client"}`, a.shop, name))
	}
	a.file(revision+"/policy.json", fmt.Sprintf(`{"signerName": %q, "trustDomain": "example.test", "dnsNamesAnnotation": "example.test/dns-names",
  "lifetime": "1h", "refreshAt": 0.5, "keyTypes": ["ECDSAP256"], "grants": [%s]}
`, a.signerName(), strings.Join(grants, ", ")))
	checksum := ""
	if a.checksum {
		checksum = granted
	}
	a.file(revision+"/signer.yaml", strings.ReplaceAll(a.replace(signerDeployment), "CHECKSUM", checksum))
	a.file(revision+"/web.yaml", a.replace(workloadDeployment)+volume)
	a.file(revision+"/kustomization.yaml", fmt.Sprintf(`resources: [signer.yaml, web.yaml]
configMapGenerator:
- name: policy
  namespace: %s
  files: [policy.json]
  options: {disableNameSuffixHash: %t}
`, a.signing, !a.hashed))
}

func (a *app) configuration() string {
	mode, name := "enforce", "{name: policy}"
	if a.plain {
		mode = "observe"
	}
	if a.hashed {
		name = "{namePrefix: policy-}"
	}
	return fmt.Sprintf(`apiVersion: grantfirst.dev/v1alpha1
kind: Config
mode: %s
signers:
- signerName: %s
  namespace: %s
  policy: {configMap: %s, key: policy.json, format: pod-cert-signer}
  podSelector: app=signer
  evidence: %s
`, mode, a.signerName(), a.signing, name, a.evidence)
}

func (a *app) file(name, text string) {
	a.Helper()
	path := filepath.Join(a.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		a.Fatal(err)
	}
}

// grantfirst runs the program against the cluster. The code is its exit code.
func (a *app) grantfirst(revision, verb string, flags ...string) (stdout []byte, stderr string, code int) {
	a.Helper()
	arguments := append([]string{verb, "--config", filepath.Join(a.dir, "config.yaml"), "--kubeconfig", a.Kubeconfig, "--namespace", a.shop, "--app", "web"}, flags...)
	command := exec.CommandContext(a.Context(), programs.grantfirst, append(arguments, filepath.Join(a.dir, revision))...)
	var out, diagnostics bytes.Buffer
	command.Stdout, command.Stderr = &out, &diagnostics
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		a.Fatal(err)
	}
	return out.Bytes(), diagnostics.String(), command.ProcessState.ExitCode()
}

// generate gives what may be applied now.
func (a *app) generate(revision string) []byte {
	a.Helper()
	stdout, stderr, code := a.grantfirst(revision, "generate", "--held", "omit")
	if code != 0 {
		a.Fatalf("generate: exit code %d\n%s", code, stderr)
	}
	a.tells("generate: workload goes out: %t; %s", releases(stdout), strings.TrimSpace(stderr))
	return stdout
}

// releases reports whether a stream has the workload with its certificate.
func releases(stream []byte) bool { return bytes.Contains(stream, []byte("podCertificate:")) }

// held asks explain whether anything of the new revision waits.
func (a *app) held() (bool, string) {
	a.Helper()
	stdout, stderr, code := a.grantfirst("after", "explain")
	if code > 1 {
		a.Fatalf("explain: exit code %d\n%s", code, stderr)
	}
	return code == 1, string(stdout)
}

func (a *app) apply(stream []byte) {
	a.Helper()
	if err := a.Apply(a.Context(), stream); err != nil {
		a.Fatal(err)
	}
}

// await asks until check says yes.
func (a *app) await(what string, check func() (bool, error)) {
	a.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		yes, err := check()
		if err != nil {
			a.Fatalf("%s: %v", what, err)
		}
		if yes {
			return
		}
		select {
		case <-deadline:
			a.Fatalf("never: %s", what)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// rolledOut reports whether a Deployment has its newest revision ready and nothing else.
func (a *app) rolledOut(namespace, name string, replicas int) (bool, error) {
	d, err := a.AppsV1().Deployments(namespace).Get(a.Context(), name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	n := int32(replicas)
	s := d.Status
	return s.ObservedGeneration == d.Generation && s.Replicas == n && s.UpdatedReplicas == n && s.ReadyReplicas == n, nil
}

func (a *app) list(namespace, app string) []corev1.Pod {
	a.Helper()
	list, err := a.CoreV1().Pods(namespace).List(a.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		a.Fatal(err)
	}
	return list.Items
}

// untouched fails the test unless the workload's pods are those of before, and run.
func (a *app) untouched(before []corev1.Pod) {
	a.Helper()
	now := map[string]bool{}
	for _, pod := range a.list(a.shop, "web") {
		now[string(pod.UID)] = pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
	}
	for _, pod := range before {
		if !now[string(pod.UID)] {
			a.Errorf("pod %s was touched during the hold", pod.Name)
		}
	}
	if len(now) != len(before) {
		a.Errorf("%d pods of the workload during the hold, want the %d from before", len(now), len(before))
	}
}

// inForce tells which signers run and, by their own logs, whether they decide by a policy with the workload's grant: the truth, which
// grantfirst can only conclude.
func (a *app) inForce() (withGrant, without []string) {
	a.Helper()
	for _, pod := range a.list(a.signing, "signer") {
		containers, err := a.Containers(a.Context(), a.signing, pod.Name)
		if err != nil && !errors.Is(err, testcluster.ErrGone) {
			a.Fatal(err)
		}
		i := slices.IndexFunc(containers, func(c testcluster.Container) bool { return c.Name == "signer" })
		if i < 0 || containers[i].State != "running" {
			continue
		}
		log, err := os.ReadFile(containers[i].Log)
		at := bytes.LastIndex(log, []byte("is in force: "))
		switch {
		case err != nil || at < 0: // it has just gone, or just come
		case bytes.HasPrefix(log[at:], []byte("is in force: 2 grants")):
			withGrant = append(withGrant, pod.Name)
		default:
			without = append(without, pod.Name)
		}
	}
	return withGrant, without
}

// tells adds a line to the story, which is printed if the test fails.
func (a *app) tells(format string, arguments ...any) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	fmt.Fprintf(&a.story, "%s %s\n", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, arguments...))
}

// tell prints all that is needed to understand a denial.
func (a *app) tell() {
	a.mutex.Lock()
	story := a.story.String()
	a.mutex.Unlock()
	ctx := context.Background()
	a.Logf("%s\nsigner %s, workload in %s\n%s", a.shape, a.signerName(), a.shop, story)
	a.Logf("denied:\n%s", strings.Join(a.answers.denied(a.shop), "\n"))
	for _, namespace := range []string{a.signing, a.shop} {
		if namespace != "" {
			a.Logf("events in %s:\n%s%s", namespace, a.Events(ctx, namespace), a.Logs(ctx, namespace))
		}
	}
}

// wait is for moments that a test is about, never for something to happen.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
