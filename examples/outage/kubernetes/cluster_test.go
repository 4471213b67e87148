package kubernetes_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/grantfirst/grantfirst/examples/outage/kubernetes/cluster"
	"github.com/grantfirst/grantfirst/examples/outage/kubernetes/hollownode/containers"
)

// insideVariable makes this program a container's, see inside.
const insideVariable = "GRANTFIRST_TEST_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) != "" {
		if err := inside(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// live is one test's part of the running cluster: a namespace of its own.
type live struct {
	*testing.T
	*kubernetes.Clientset
	namespace string
	node      *http.Client
}

func onCluster(t *testing.T) *live {
	kubeconfig, socket := os.Getenv(cluster.KubeconfigVariable), os.Getenv(cluster.NodeVariable)
	if kubeconfig == "" || socket == "" {
		t.Skipf("needs a cluster: go run ./cmd/cluster run -- go test . (sets %s and %s)", cluster.KubeconfigVariable, cluster.NodeVariable)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1 // the tests ask often
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	l := &live{T: t, Clientset: client, node: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.namespace = namespace.Name
	t.Cleanup(func() {
		if err := client.CoreV1().Namespaces().Delete(context.Background(), l.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	l.await("the namespace has its ServiceAccount", func() (bool, error) {
		_, err := client.CoreV1().ServiceAccounts(l.namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
	return l
}

// await asks until check says yes, and returns how long that took.
func (l *live) await(what string, check func() (bool, error)) time.Duration {
	l.Helper()
	begun := time.Now()
	err := wait.PollUntilContextTimeout(l.Context(), 20*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) { return check() })
	if err != nil {
		l.Fatalf("never: %s: %v\n%s", what, err, l.events())
	}
	return time.Since(begun)
}

// events is all that was said about the namespace, for a test that failed.
func (l *live) events() string {
	list, err := l.CoreV1().Events(l.namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, e := range list.Items {
		fmt.Fprintf(&out, "%s %s: %s %s\n", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return out.String()
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// run creates a pod with one container, "main".
func (l *live) run(image string, change func(*corev1.PodSpec)) *corev1.Pod {
	l.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
	}
	if change != nil {
		change(&pod.Spec)
	}
	pod, err := l.CoreV1().Pods(l.namespace).Create(l.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return pod
}

// awaitPod waits until check says yes of the pod that run created.
func (l *live) awaitPod(what string, check func(*corev1.Pod) bool) time.Duration {
	l.Helper()
	return l.await(what, func() (bool, error) {
		pod, err := l.CoreV1().Pods(l.namespace).Get(l.Context(), "pod", metav1.GetOptions{})
		return err == nil && check(pod), err
	})
}

func running(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func restarted(times int32) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount >= times && p.Status.ContainerStatuses[0].State.Running != nil
	}
}

// control speaks to the node's control socket.
func (l *live) control(method, path string, body, answer any) {
	l.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		l.Fatal(err)
	}
	request, err := http.NewRequestWithContext(l.Context(), method, "http://node"+path, bytes.NewReader(text))
	if err != nil {
		l.Fatal(err)
	}
	response, err := l.node.Do(request)
	if err != nil {
		l.Fatal(err)
	}
	defer response.Body.Close()
	out, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = errors.New(response.Status)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(out, answer)
	}
	if err != nil {
		l.Fatalf("%s %s: %v: %s", method, path, err, out)
	}
}

func (l *live) onNode() (pod containers.Pod) {
	l.Helper()
	l.control("GET", "/pods/"+l.namespace+"/pod", nil, &pod)
	return pod
}

// certificate is a volume with a certificate of the signer.
func certificate(signer string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: "tls", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{
				SignerName: signer, KeyType: "ECDSAP256", CredentialBundlePath: "bundle.pem",
				UserAnnotations: map[string]string{"example.test/names": "a.example.test"},
			}}},
		}}})
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "tls", MountPath: "/tls"})
	}
}

// requests lists the namespace's certificate requests.
func (l *live) requests() []certificatesv1.PodCertificateRequest {
	l.Helper()
	list, err := l.CertificatesV1().PodCertificateRequests(l.namespace).List(l.Context(), metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return list.Items
}

func (l *live) awaitRequest() *certificatesv1.PodCertificateRequest {
	l.Helper()
	var found []certificatesv1.PodCertificateRequest
	took := l.await("the kubelet asks for a certificate", func() (bool, error) { found = l.requests(); return len(found) > 0, nil })
	l.Logf("asked for after %v", took.Round(time.Millisecond))
	return &found[0]
}

func (l *live) answer(r *certificatesv1.PodCertificateRequest) {
	l.Helper()
	if _, err := l.CertificatesV1().PodCertificateRequests(l.namespace).UpdateStatus(l.Context(), r, metav1.UpdateOptions{}); err != nil {
		l.Fatal(err)
	}
}

func condition(kind, reason string) []metav1.Condition {
	return []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: "said the test", LastTransitionTime: metav1.Now()}}
}

func TestADeniedPodNeverStartsAndNeverAsksAgain(t *testing.T) {
	t.Parallel()
	l := onCluster(t)
	if _, err := l.CoreV1().ServiceAccounts(l.namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := l.run("example.test/web:v1", func(s *corev1.PodSpec) {
		s.ServiceAccountName = "web"
		certificate("example.test/nobody")(s)
	})
	request := l.awaitRequest()
	spec := request.Spec
	if spec.SignerName != "example.test/nobody" || spec.PodName != "pod" || spec.PodUID != pod.UID || spec.ServiceAccountName != "web" ||
		spec.UnverifiedUserAnnotations["example.test/names"] != "a.example.test" || len(spec.StubPKCS10Request) == 0 {
		t.Errorf("request %+v", spec)
	}
	if owners := request.OwnerReferences; len(owners) != 1 || owners[0].UID != pod.UID {
		t.Errorf("owners %+v", owners)
	}

	request.Status.Conditions = condition(certificatesv1.PodCertificateRequestConditionTypeDenied, "NoGrant")
	l.answer(request)
	took := l.await("the kubelet says twice that the denial is final", func() (bool, error) {
		list, err := l.CoreV1().Events(l.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=pod"})
		if err != nil {
			return false, err
		}
		for _, e := range list.Items {
			if e.Reason == "FailedMount" && strings.Contains(e.Message, `PodCertificateRequest was permanently denied: reason="NoGrant"`) && e.Count > 1 {
				return true, nil
			}
		}
		return false, nil
	})
	t.Logf("events after %v", took.Round(time.Millisecond))
	if n := len(l.requests()); n != 1 {
		t.Errorf("%d requests, want no second", n)
	}
	l.awaitPod("the pod is Pending and not Ready", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodPending && !ready(p) })
}

func TestAPodWhoseCertificateIsIssuedRuns(t *testing.T) {
	t.Parallel()
	l := onCluster(t)
	l.run("example.test/web:v1", certificate("example.test/by-hand"))
	request := l.awaitRequest()
	stub, err := x509.ParseCertificateRequest(request.Spec.StubPKCS10Request)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "by hand"},
		NotBefore: now, NotAfter: now.Add(2 * time.Hour), DNSNames: []string{"a.example.test"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, stub.PublicKey, ca)
	if err != nil {
		t.Fatal(err)
	}
	from, refresh, until := metav1.NewTime(template.NotBefore), metav1.NewTime(now.Add(time.Hour)), metav1.NewTime(template.NotAfter)
	request.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions:       condition(certificatesv1.PodCertificateRequestConditionTypeIssued, "Issued"),
		CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		NotBefore:        &from, BeginRefreshAt: &refresh, NotAfter: &until,
	}
	l.answer(request)
	t.Logf("Running after %v", l.awaitPod("Running and Ready", func(p *corev1.Pod) bool { return running(p) && ready(p) }).Round(time.Millisecond))
	bundle, err := os.ReadFile(filepath.Join(l.onNode().Containers[0].Mounts["/tls"], "bundle.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(bundle), request.Status.CertificateChain) || !strings.Contains(string(bundle), "PRIVATE KEY") {
		t.Errorf("bundle %s", bundle)
	}
}

// policy is a ConfigMap volume at /policy.
func (l *live) policy(text string) func(*corev1.PodSpec) {
	l.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "policy"}, Data: map[string]string{"policy.json": text}}
	if _, err := l.CoreV1().ConfigMaps(l.namespace).Create(l.Context(), object, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
	return func(s *corev1.PodSpec) {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: "policy", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "policy"}}}})
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "policy", MountPath: "/policy"})
	}
}

func (l *live) changePolicy(text string) {
	l.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "policy"}, Data: map[string]string{"policy.json": text}}
	if _, err := l.CoreV1().ConfigMaps(l.namespace).Update(l.Context(), object, metav1.UpdateOptions{}); err != nil {
		l.Fatal(err)
	}
}

func TestAConfigMapVolumeFollowsItsObjectAndGoesWithItsPod(t *testing.T) {
	t.Parallel()
	l := onCluster(t)
	pod := l.run("example.test/anything", l.policy("one"))
	t.Logf("Running after %v", l.awaitPod("Running", running).Round(time.Millisecond))
	on := l.onNode()
	if on.UID != string(pod.UID) {
		t.Errorf("pod on the node %+v", on)
	}
	volume := on.Containers[0].Mounts["/policy"]
	if suffix := filepath.Join("pods", string(pod.UID), "volumes", "kubernetes.io~configmap", "policy"); !strings.HasSuffix(volume, suffix) {
		t.Errorf("volume is in %s, want …/%s", volume, suffix)
	}
	has := func(want string) func() (bool, error) {
		return func() (bool, error) {
			text, err := os.ReadFile(filepath.Join(volume, "policy.json"))
			return string(text) == want, err
		}
	}
	if ok, err := has("one")(); !ok || err != nil {
		t.Errorf("the volume is not filled: %v", err)
	}
	l.changePolicy("two")
	t.Logf("in the volume after %v", l.await("the volume follows", has("two")).Round(time.Millisecond))

	if err := l.CoreV1().Pods(l.namespace).Delete(t.Context(), "pod", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	took := l.await("the pod is gone", func() (bool, error) {
		_, err := l.CoreV1().Pods(l.namespace).Get(t.Context(), "pod", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
	t.Logf("deleted after %v", took.Round(time.Millisecond))
	l.await("its volume is gone", func() (bool, error) {
		_, err := os.Stat(volume)
		return errors.Is(err, os.ErrNotExist), nil
	})
}

func TestAContainerThatATestEndsIsStartedAgain(t *testing.T) {
	t.Parallel()
	l := onCluster(t)
	l.run("example.test/anything", nil)
	l.awaitPod("Running", running)
	for i := range int32(4) {
		l.control("POST", "/pods/"+l.namespace+"/pod/containers/main/exit?code=0", nil, nil)
		took := l.awaitPod("started again", restarted(i+1))
		t.Logf("restart %d after %v", i+1, took.Round(time.Millisecond))
	}
	pod, err := l.CoreV1().Pods(l.namespace).Get(t.Context(), "pod", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 0 || last.Reason != "Completed" {
		t.Errorf("last state %+v", last)
	}
}

func TestAProcessThatExitsWhenItsPolicyChangesIsStartedAgainWithTheNewOne(t *testing.T) {
	t.Parallel()
	l := onCluster(t)
	image := "example.test/" + l.namespace + "/signer"
	l.control("PUT", "/images", containers.Image{Name: image, Entrypoint: []string{"sh", "-c"}}, nil)
	l.run(image+":v1", func(s *corev1.PodSpec) {
		l.policy("one")(s)
		s.Containers[0].Args = []string{`was=$(cat /policy/policy.json); echo loaded $was; while [ "$(cat /policy/policy.json)" = $was ]; do sleep 0.1; done`}
	})
	loaded := func(text string) func() (bool, error) {
		return func() (bool, error) {
			log, err := os.ReadFile(l.onNode().Containers[0].Log)
			if errors.Is(err, os.ErrNotExist) {
				err = nil
			}
			return string(log) == "loaded "+text+"\n", err
		}
	}
	l.awaitPod("Running", running)
	l.await("the first policy is loaded", loaded("one"))
	for i, text := range []string{"two", "three"} {
		l.changePolicy(text)
		took := l.await("the next policy is loaded", loaded(text))
		t.Logf("loaded %v after the change", took.Round(time.Millisecond))
		l.awaitPod("restarted", restarted(int32(i)+1))
	}
}

func TestAProcessReachesTheAPIServerAsItsServiceAccountAndIsReadyWhenItSaysSo(t *testing.T) {
	t.Parallel()
	l := onCluster(t)
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	image := "example.test/" + l.namespace + "/inside"
	l.control("PUT", "/images", containers.Image{Name: image, Files: map[string]string{"/inside": executable}, Entrypoint: []string{"/inside"}, UID: 65532}, nil)
	role := metav1.ObjectMeta{Name: "self"}
	_, err = l.RbacV1().Roles(l.namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: role, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.RbacV1().RoleBindings(l.namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: role, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: l.namespace, Name: "default"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	l.run(image+":v1", func(s *corev1.PodSpec) {
		field := func(name, path string) corev1.EnvVar {
			return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
		}
		s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes, FSGroup: new(int64)}
		c := &s.Containers[0]
		c.SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: &yes}
		c.Env = []corev1.EnvVar{{Name: insideVariable, Value: "yes"}, field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"), field("POD_IP", "status.podIP")}
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}}
	})
	l.awaitPod("Running", running)
	t.Logf("Ready %v after Running", l.awaitPod("Ready", ready).Round(time.Millisecond))
	log, err := os.ReadFile(l.onNode().Containers[0].Log)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("user 65532 sees pod %s/pod\n", l.namespace); string(log) != want {
		t.Errorf("log %q, want %q", log, want)
	}
}

// inside is what this program does as a container: it asks for its own pod
// with the credentials that it finds there, then serves its readiness.
func inside() error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	pod, err := client.CoreV1().Pods(os.Getenv("POD_NAMESPACE")).Get(context.Background(), os.Getenv("POD_NAME"), metav1.GetOptions{})
	if err != nil {
		return err
	}
	fmt.Printf("user %d sees pod %s/%s\n", os.Getuid(), pod.Namespace, pod.Name)
	return http.ListenAndServe(os.Getenv("POD_IP")+":8080", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
}

func TestAJobCompletes(t *testing.T) {
	t.Parallel()
	l := onCluster(t)
	image := "example.test/" + l.namespace + "/job"
	l.control("PUT", "/images", containers.Image{Name: image, Entrypoint: []string{"true"}}, nil)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: image}}}}}}
	if _, err := l.BatchV1().Jobs(l.namespace).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	took := l.await("the job is complete", func() (bool, error) {
		job, err := l.BatchV1().Jobs(l.namespace).Get(t.Context(), "job", metav1.GetOptions{})
		return err == nil && job.Status.Succeeded == 1, err
	})
	t.Logf("complete after %v", took.Round(time.Millisecond))
}
