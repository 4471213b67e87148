package argocd_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/examples/internal/testcluster"
	"github.com/grantfirst/grantfirst/lib/hold"
)

// programs has what the tests run; it is empty until the first test needs one.
var programs string

// buildPrograms is called by the first test that needs one.
var buildPrograms = sync.OnceValue(func() error {
	var err error
	if programs, err = os.MkdirTemp("", "grantfirst-argocd-"); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", programs, "../../cmd/grantfirst", "../signer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if programs != "" {
		_ = os.RemoveAll(programs)
	}
	os.Exit(code)
}

func program(t testing.TB, name string) string {
	t.Helper()
	if err := buildPrograms(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(programs, name)
}

// installation is Argo CD as the plugin sees it, a signer, and two Applications that deploy the same: web, whose demands were all
// released before, and fresh, which was never synced.
type installation struct {
	testing.TB
	*testcluster.Cluster
	// argocd is Argo CD's namespace, signing the signer's, team another one with Applications.
	argocd, signing, team string
	// dir has the repository, grantfirst's configuration and the kubeconfigs; the sidecar's /tmp is in it.
	dir string
}

const revision = "1111111111111111111111111111111111111111"

// repoServer is the ServiceAccount that the sidecar has.
const repoServer = "argocd-repo-server"

// newInstallation applies exactly the shipped files, but for the names of namespaces.
func newInstallation(t testing.TB) *installation {
	t.Helper()
	c := testcluster.Connect(t)
	i := &installation{TB: t, Cluster: c, dir: t.TempDir()}
	i.argocd, i.signing, i.team = c.Namespace(t, "argocd-"), c.Namespace(t, "signing-"), c.Namespace(t, "team-")
	i.account(i.argocd, repoServer)
	crd, err := os.ReadFile("testdata/application-crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	i.apply(string(crd))
	i.await("the API server serves Applications", func() (bool, error) {
		_, err := i.CertificatesV1().RESTClient().Get().AbsPath("/apis/argoproj.io/v1alpha1/namespaces/" + i.argocd + "/applications").DoRaw(t.Context())
		return err == nil, nil
	})
	i.file("config.yaml", i.replace(`apiVersion: grantfirst.dev/v1alpha1
kind: Config
argocdNamespace: ARGOCD
signers:
- signerName: example.test/SIGNING
  namespace: SIGNING
  policy: {configMap: {name: policy}, key: policy.json, format: pod-cert-signer}
  podSelector: app=signer
  evidence: report
`))
	i.file("repo/app/web.yaml", i.workload("web", "shop"))
	i.apply(i.replace(application) + i.replace(strings.NewReplacer("name: web", "name: fresh", "history: [{id: 1, revision: REVISION, source: SOURCE}]", "history: []").Replace(application)))
	return i
}

// with is the same for another test.
func (i *installation) with(t testing.TB) *installation {
	other := *i
	other.TB = t
	return &other
}

// shipRights applies the plugin's RBAC.
func (i *installation) shipRights() {
	i.Helper()
	i.apply(shipped(i, "rbac.yaml", i.argocd, nil) + shipped(i, "signer-rbac.yaml", i.signing, i.names()) + shipped(i, "application-rbac.yaml", i.team, i.names()))
}

// names are those of the shipped files that an admin puts his own for.
func (i *installation) names() *strings.Replacer {
	return strings.NewReplacer("namespace: argocd\n", "namespace: "+i.argocd+"\n")
}

// shipped is a file of this folder as kubectl apply -n sends it.
func shipped(t testing.TB, file, namespace string, names *strings.Replacer) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if names != nil {
		text = []byte(names.Replace(string(text)))
	}
	var out strings.Builder
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		metadata := object["metadata"].(map[string]any)
		if !strings.HasPrefix(object["kind"].(string), "Cluster") && namespace != "" {
			metadata["namespace"] = namespace
		}
		one, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "---\n%s", one)
	}
	return out.String()
}

const application = `---
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: web, namespace: ARGOCD}
spec:
  project: default
  destination: {server: "https://kubernetes.default.svc", namespace: shop}
  source: SOURCE
status:
  history: [{id: 1, revision: REVISION, source: SOURCE}]
`

func (i *installation) replace(text string) string {
	text = strings.ReplaceAll(text, "SOURCE", `{repoURL: "https://git.example/shop", path: app, targetRevision: main, plugin: {name: grantfirst}}`)
	return strings.NewReplacer("ARGOCD", i.argocd, "SIGNING", i.signing, "REVISION", `"`+revision+`"`).Replace(text)
}

func (i *installation) workload(name, namespace string) string {
	return i.replace(strings.NewReplacer("NAME", name, "SHOP", namespace).Replace(`apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: SHOP}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      serviceAccountName: web
      containers:
      - name: web
        image: example.test/web:v1
        volumeMounts: [{name: tls, mountPath: /tls}]
      volumes:
      - name: tls
        projected:
          sources:
          - podCertificate: {signerName: example.test/SIGNING, keyType: ECDSAP256, credentialBundlePath: bundle.pem}
`))
}

func (i *installation) file(name, text string) string {
	i.Helper()
	path := filepath.Join(i.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		i.Fatal(err)
	}
	return path
}

func (i *installation) apply(stream string) {
	i.Helper()
	if err := i.Apply(i.Context(), []byte(stream)); err != nil {
		i.Fatal(err)
	}
}

func (i *installation) account(namespace, name string) {
	i.Helper()
	if _, err := i.CoreV1().ServiceAccounts(namespace).Create(i.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		i.Fatal(err)
	}
}

// await asks until check says yes.
func (i *installation) await(what string, check func() (bool, error)) {
	i.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		yes, err := check()
		if err != nil {
			i.Fatalf("%s: %v", what, err)
		}
		if yes {
			return
		}
		select {
		case <-deadline:
			i.Fatalf("never: %s\n%s%s", what, i.Events(context.Background(), i.signing), i.Logs(context.Background(), i.signing))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// token is what the projected volume would hold.
func (i *installation) token(namespace, account string) string {
	i.Helper()
	seconds := int64(3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	answer, err := i.CoreV1().ServiceAccounts(namespace).CreateToken(i.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		i.Fatal(err)
	}
	return answer.Status.Token
}

// anonymous is how the API server is reached, without credentials.
func (i *installation) anonymous() *rest.Config {
	i.Helper()
	settings, err := clientcmd.BuildConfigFromFlags("", i.Kubeconfig)
	if err != nil {
		i.Fatal(err)
	}
	settings = rest.AnonymousClientConfig(settings)
	settings.QPS = -1
	return settings
}

// as is a client with the rights of a ServiceAccount.
func (i *installation) as(namespace, account string) *kubernetes.Clientset {
	i.Helper()
	settings := i.anonymous()
	settings.BearerToken = i.token(namespace, account)
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		i.Fatal(err)
	}
	return client
}

// kubeconfig is a file with that token, for the API server or, unless that is nil, for what stands before it.
func (i *installation) kubeconfig(before *httptest.Server, token string) string {
	i.Helper()
	settings := i.anonymous()
	if err := rest.LoadTLSFiles(settings); err != nil {
		i.Fatal(err)
	}
	cluster := map[string]any{"server": settings.Host, "certificate-authority-data": settings.CAData}
	if before != nil {
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: before.Certificate().Raw})
		cluster = map[string]any{"server": before.URL, "certificate-authority-data": ca}
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": cluster}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
	})
	if err != nil {
		i.Fatal(err)
	}
	file, err := os.CreateTemp(i.dir, "kubeconfig-")
	if err != nil {
		i.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(text); err != nil {
		i.Fatal(err)
	}
	return file.Name()
}

// outcome is what Argo CD gets of a call, and what people get.
type outcome struct {
	stdout, stderr string
	// held is what the marker says; empty where nothing is held.
	held string
	// cpu is what the process took of it.
	cpu time.Duration
}

// environment is that of the sidecar when Argo CD asks it about an Application. tmp names its /tmp.
func (i *installation) environment(app, kubeconfig, tmp string) []string {
	i.Helper()
	dir := filepath.Join(i.dir, tmp)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		i.Fatal(err)
	}
	return []string{
		"ARGOCD_APP_NAME=" + app, "ARGOCD_APP_NAMESPACE=shop", "ARGOCD_APP_PROJECT_NAME=default", "ARGOCD_APP_REVISION=" + revision,
		"ARGOCD_APP_SOURCE_REPO_URL=https://git.example/shop", "ARGOCD_APP_SOURCE_PATH=app", "ARGOCD_APP_SOURCE_TARGET_REVISION=main",
		"KUBE_VERSION=1.37.0", "KUBE_API_VERSIONS=v1,apps/v1", "GRANTFIRST_CONFIG=" + filepath.Join(i.dir, "config.yaml"), "KUBECONFIG=" + kubeconfig, "TMPDIR=" + dir,
	}
}

// generate is Argo CD's call. It must give manifests whatever the cluster does, and it must not use up Argo CD's patience.
func (i *installation) generate(environment []string, flags ...string) outcome {
	i.Helper()
	ctx, cancel := context.WithTimeout(i.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program(i, "grantfirst"), slices.Concat([]string{"generate"}, flags, []string{"."})...)
	command.Dir, command.Env = filepath.Join(i.dir, "repo/app"), environment
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		i.Fatalf("generate: %v\n%s", errors.Join(err, ctx.Err()), stderr.String())
	}
	out := outcome{stdout: stdout.String(), stderr: stderr.String(), cpu: command.ProcessState.UserTime() + command.ProcessState.SystemTime()}
	marked, skipped := strings.Contains(out.stdout, "kind: Hold\n"), strings.Contains(out.stdout, `"argocd.argoproj.io/hook": "Skip"`)
	if marked != skipped {
		i.Fatalf("marker and held objects do not agree\n%s", out.stdout)
	}
	if !marked {
		return out
	}
	for doc := range strings.SplitSeq(out.stdout, "\n---\n") {
		if !strings.Contains(doc, "kind: Hold\n") {
			continue
		}
		var h hold.Hold
		if err := yaml.Unmarshal([]byte(doc), &h); err != nil {
			i.Fatalf("%v in\n%s", err, doc)
		}
		out.held = cmp.Or(h.Spec.WaitingFor, "it does not say what for")
	}
	return out
}

// grants writes the policy.
func (i *installation) grants(serviceAccounts ...string) {
	i.Helper()
	var grants []string
	for _, name := range serviceAccounts {
		for _, namespace := range []string{"shop", "shop-*"} {
			grants = append(grants, fmt.Sprintf(`{"namespace": %q, "serviceAccount": %q, "usage": "client"}`, namespace, name))
		}
	}
	i.policy(fmt.Sprintf(`{"signerName": "example.test/%s", "trustDomain": "example.test", "dnsNamesAnnotation": "example.test/dns-names", "lifetime": "1h",
  "refreshAt": 0.5, "keyTypes": ["ECDSAP256"], "grants": [%s]}`, i.signing, strings.Join(grants, ", ")))
}

func (i *installation) policy(text string) {
	i.Helper()
	object, err := yaml.Marshal(corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "policy", Namespace: i.signing}, Data: map[string]string{"policy.json": text},
	})
	if err != nil {
		i.Fatal(err)
	}
	i.apply(string(object))
}

const signerPod = `---
apiVersion: v1
kind: Pod
metadata: {name: signer-0, namespace: SIGNING, labels: {app: signer}}
spec:
  serviceAccountName: SIGNING
  terminationGracePeriodSeconds: 3600
  securityContext: {runAsNonRoot: true, fsGroup: 0}
  containers:
  - name: signer
    image: example.test/argocd/signer:v1
    args: [--policy, /policy/policy.json, --poll, 200ms, --on-change, exit, --healthz, "$(POD_IP):8080", --report]
    env:
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: CONTAINER_NAME, value: signer}
    - {name: PASSWORD, value: hunter2}
    volumeMounts: [{name: policy, mountPath: /policy}]
  volumes:
  - {name: policy, configMap: {name: policy}}
`

// signer starts one replica of it, with the rights that it ships with, and returns when it has reported.
func (i *installation) signer() {
	i.Helper()
	if err := i.Image(i.Context(), "example.test/argocd/signer", map[string]string{"/signer": program(i, "signer")}, 65532, "/signer"); err != nil {
		i.Fatal(err)
	}
	i.shipSigner()
	i.grants("web")
	i.apply(i.replace(signerPod))
	i.Cleanup(func() { // it has an hour to end
		now := int64(0)
		_ = i.CoreV1().Pods(i.signing).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	})
	i.await("the signer reports", func() (bool, error) { return i.report().Data["policy"] != "", nil })
}

// shipSigner applies the rights of examples/signer.
func (i *installation) shipSigner() {
	i.Helper()
	i.apply(shipped(i, "../signer/rbac.yaml", "", strings.NewReplacer("example.com/workload", "example.test/"+i.signing, "example-signer", i.signing)))
	i.Cleanup(func() {
		for _, err := range []error{
			i.RbacV1().ClusterRoleBindings().Delete(context.Background(), i.signing, metav1.DeleteOptions{}),
			i.RbacV1().ClusterRoles().Delete(context.Background(), i.signing, metav1.DeleteOptions{}),
		} {
			if err != nil {
				i.Error(err)
			}
		}
	})
}

// report is that of signer-0, empty where there is none yet.
func (i *installation) report() *corev1.ConfigMap {
	i.Helper()
	list, err := i.CoreV1().ConfigMaps(i.signing).List(i.Context(), metav1.ListOptions{LabelSelector: "grantfirst.dev/report"})
	if err != nil {
		i.Fatal(err)
	}
	if len(list.Items) == 0 {
		return &corev1.ConfigMap{}
	}
	return &list.Items[0]
}
