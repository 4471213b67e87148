package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/grantfirst/grantfirst/examples/internal/testcluster"
	"github.com/grantfirst/grantfirst/examples/outage/argocd"
)

var (
	applications = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applications"}
	holds        = schema.GroupVersionResource{Group: "grantfirst.dev", Version: "v1alpha1", Resource: "holds"}
)

// installed is Argo CD with grantfirst and one signer, which all tests share.
var installed struct {
	once sync.Once
	installation
	err error
}

type installation struct {
	*testcluster.Cluster
	objects dynamic.Interface
	// repositories is a folder with Git repositories, which are served at url.
	repositories, url string
}

// space is Argo CD's namespace, by the name that the shipped files have.
const space = "argocd"

// names are those of shops. They are here before the shops are, because grantfirst's configuration, which is read once, names all signers;
// so each shop takes one. The namespaces of the signers in ready are there from the start, with the rights that grantfirst needs in them;
// those in fresh are not.
var names = struct{ ready, fresh pool }{numbered("s", 64), numbered("n", 8)}

// pool gives each of its names once.
type pool struct {
	all   []string
	taken *atomic.Int64
}

func numbered(prefix string, n int) pool {
	p := pool{taken: new(atomic.Int64)}
	for i := range n {
		p.all = append(p.all, fmt.Sprintf("%s%02d", prefix, i+1))
	}
	return p
}

func (p pool) take(t *testing.T) string {
	t.Helper()
	n := int(p.taken.Add(1))
	if n > len(p.all) {
		t.Fatalf("all %d names are taken: make the pool larger", len(p.all))
	}
	return p.all[n-1]
}

// scratch has what lives as long as the tests do.
var scratch string

// minutes has a line for each scenario: number, outcome, wall time, test, and what its shops have seen.
var minutes = struct {
	sync.Mutex
	lines []string
	seen  map[testing.TB][]string
}{seen: map[testing.TB][]string{}}

// scenario begins a test that runs beside others, all on one installation. number is that in the package's list.
func scenario(t *testing.T, number string) {
	t.Helper()
	// A story is told from its beginning to its end.
	if !narrated {
		t.Parallel()
	}
	alone(t, number)
}

// alone begins a test that disturbs others. Go runs those first that are not parallel.
func alone(t *testing.T, number string) {
	t.Helper()
	install(t)
	begun := time.Now()
	t.Cleanup(func() {
		outcome := "ok"
		switch {
		case t.Failed():
			outcome = "FAILED"
		case t.Skipped():
			return
		}
		minutes.Lock()
		defer minutes.Unlock()
		line := fmt.Sprintf("%3s %-6s %4.0f s  %s: %s", number, outcome, time.Since(begun).Seconds(), t.Name(), strings.Join(minutes.seen[t], "; "))
		t.Log(line)
		minutes.lines = append(minutes.lines, line)
	})
}

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "kustomize" {
		kustomize(os.Args[1:])
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// kustomize is what repo-server calls for Applications without the plugin (argo-cd v2.14 util/kustomize/kustomize.go): this program by that
// name.
func kustomize(args []string) {
	if len(args) == 0 || args[0] != "build" {
		fmt.Println("v5.8.1")
		return
	}
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), args[1])
	var stream []byte
	if err == nil {
		stream, err = objects.AsYaml()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Stdout.Write(stream)
}

func run(m *testing.M) (int, error) {
	var err error
	if scratch, err = os.MkdirTemp("", "grantfirst-e2e-"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(scratch)
	// Programs in containers have users of their own.
	if err := os.Chmod(scratch, 0o755); err != nil {
		return 0, err
	}
	code := m.Run()
	slices.Sort(minutes.lines)
	fmt.Println(strings.Join(minutes.lines, "\n"))
	return code, nil
}

// install skips the test where there is no cluster or no Argo CD. The first call installs; there is no second.
func install(t *testing.T) *installation {
	t.Helper()
	c := testcluster.Connect(t)
	built := os.Getenv(argocd.Variable)
	if built == "" {
		t.Skipf("needs Argo CD: make e2e sets %s", argocd.Variable)
	}
	installed.once.Do(func() {
		title("Argo CD and grantfirst are being installed in a new Kubernetes. That takes a minute.")
		installed.Cluster = c
		installed.err = installed.install(context.Background(), built)
	})
	if installed.err != nil {
		t.Fatalf("%v\n%s", installed.err, installed.logs())
	}
	return &installed.installation
}

func (i *installation) install(ctx context.Context, built string) error {
	config, err := clientcmd.BuildConfigFromFlags("", i.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // tests ask often
	if i.objects, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	i.serveGit()
	if err := i.images(ctx, built); err != nil {
		return err
	}
	crds, rest, err := manifests(built)
	if err != nil {
		return err
	}
	if err := i.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+space+"}\n")); err != nil {
		return err
	}
	if err := i.Apply(ctx, crds); err != nil {
		return err
	}
	// The API server serves a new kind when it has seen it.
	err = poll(ctx, "the new kinds are served", func() (bool, error) {
		_, err := i.objects.Resource(schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "appprojects"}).Namespace(space).List(ctx, metav1.ListOptions{})
		if err == nil {
			_, err = i.objects.Resource(holds).List(ctx, metav1.ListOptions{})
		}
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	for _, name := range names.ready.all {
		if err := i.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: signing-"+name+"}\n")); err != nil {
			return err
		}
		if err := i.allow(ctx, name); err != nil {
			return err
		}
	}
	if err := i.Apply(ctx, rest); err != nil {
		return err
	}
	return poll(ctx, "Argo CD, its sidecar and the watchers are ready", func() (bool, error) {
		for _, name := range []string{"argocd-redis", "argocd-repo-server", "argocd-applicationset-controller", "grantfirst-watch"} {
			if ready, err := i.rolledOut(ctx, space, name); err != nil || !ready {
				return false, err
			}
		}
		s, err := i.AppsV1().StatefulSets(space).Get(ctx, "argocd-application-controller", metav1.GetOptions{})
		return err == nil && s.Status.ReadyReplicas == 1, err
	})
}

// allow gives grantfirst its rights in the namespace of a signer, as kubectl apply -n does: the subjects stay in Argo CD's namespace.
func (i *installation) allow(ctx context.Context, name string) error {
	for _, file := range []string{"signer-rbac.yaml", "watch-signer-rights.yaml"} {
		text, err := os.ReadFile("../../argocd/" + file)
		if err != nil {
			return err
		}
		if err := i.Apply(ctx, bytes.ReplaceAll(text, []byte("\nmetadata:\n"), []byte("\nmetadata:\n  namespace: signing-"+name+"\n"))); err != nil {
			return err
		}
	}
	return nil
}

// serveGit serves a folder of repositories by Git's own program. It ends with this process.
func (i *installation) serveGit() {
	i.repositories = filepath.Join(scratch, "git")
	i.url = httptest.NewServer(&cgi.Handler{
		Path: "/usr/bin/git", Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + i.repositories, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null"},
	}).URL
}

// images tells the node what runs in containers. /usr is this machine's in all of them, redis-server is from there.
func (i *installation) images(ctx context.Context, built string) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", scratch, "../../../cmd/grantfirst", "../../signer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	plugin, err := filepath.Abs("../../../plugin.yaml")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	files := map[string]string{"/argocd/kustomize": self, "/argocd/" + argocd.Verifier: filepath.Join(built, argocd.Verifier)}
	for _, name := range []string{"argocd", "argocd-repo-server", "argocd-application-controller", "argocd-applicationset-controller"} {
		files["/argocd/"+name] = filepath.Join(built, argocd.Program)
	}
	// Each version names its own images.
	text, err := os.ReadFile(filepath.Join(built, argocd.Manifests))
	if err != nil {
		return err
	}
	for _, image := range regexp.MustCompile(`(?m)^ +image: (\S+?)(:[^/\s]*)?(@\S+)?$`).FindAllStringSubmatch(string(text), -1) {
		if path.Base(image[1]) == "redis" {
			err = i.Image(ctx, image[1], nil, 999, "/usr/bin/redis-server")
		} else {
			// Its pods say what to start in args; env starts that.
			err = i.Image(ctx, image[1], files, 999, "/usr/bin/env")
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(
		i.Image(ctx, "grantfirst", map[string]string{
			"/grantfirst/grantfirst":                     filepath.Join(scratch, "grantfirst"),
			"/home/argocd/cmp-server/config/plugin.yaml": plugin,
		}, 999, "/grantfirst/grantfirst"),
		i.Image(ctx, "example.test/signer", map[string]string{"/signer": filepath.Join(scratch, "signer")}, 65532, "/signer"),
		i.Image(ctx, "example.test/hook", nil, 65532, "/usr/bin/true"),
	)
}

// manifests are Argo CD's with examples/argocd as its README says; the new kinds apart.
func manifests(built string) (crds, rest []byte, err error) {
	dir := filepath.Join(scratch, "install")
	install, err := os.ReadFile(filepath.Join(built, argocd.Manifests))
	if err != nil {
		return nil, nil, err
	}
	// In the containers of this node nothing can be put into /usr.
	text := strings.ReplaceAll(string(install), "/usr/local/bin/", "/argocd/")
	files := map[string]string{
		"argocd/install.yaml":       text,
		"argocd/given.yaml":         given,
		"argocd/node.yaml":          node,
		"argocd/config.yaml":        configuration(),
		"argocd/kustomization.yaml": argocdKustomization,
	}
	shipped, err := filepath.Glob("../../argocd/*.yaml")
	if err != nil {
		return nil, nil, err
	}
	for _, file := range shipped {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		files["component/"+filepath.Base(file)] = string(text)
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte(text), 0o644)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), filepath.Join(dir, "argocd"))
	if err != nil {
		return nil, nil, fmt.Errorf("kustomize: %w", err)
	}
	for _, o := range objects.Resources() {
		text, err := o.AsYAML()
		if err != nil {
			return nil, nil, err
		}
		if o.GetKind() == "CustomResourceDefinition" {
			crds = append(append(crds, text...), "---\n"...)
		} else {
			rest = append(append(rest, text...), "---\n"...)
		}
	}
	return crds, rest, nil
}

const argocdKustomization = `namespace: argocd
resources: [install.yaml, given.yaml]
components: [../component]
configMapGenerator:
- {name: grantfirst-config, files: [config.yaml]}
patches:
- path: node.yaml
`

// configuration knows the signer of every shop.
func configuration() string {
	text := "apiVersion: grantfirst.dev/v1alpha1\nkind: Config\nsigners:\n"
	for _, name := range slices.Concat(names.ready.all, names.fresh.all) {
		text += strings.ReplaceAll(`- signerName: example.test/NAME
  namespace: signing-NAME
  policy: {configMap: {name: policy}, key: policy.json, format: pod-cert-signer}
  podSelector: app=signer
  evidence: report
`, "NAME", name)
	}
	return text
}

// given is what Argo CD's API server would make, and the init container of its Redis.
const given = `apiVersion: v1
kind: Secret
metadata: {name: argocd-redis}
stringData: {auth: of-no-use}
---
apiVersion: argoproj.io/v1alpha1
kind: AppProject
metadata: {name: default}
spec:
  clusterResourceWhitelist: [{group: '*', kind: '*'}]
  destinations: [{namespace: '*', server: '*'}]
  sourceRepos: ['*']
`

// node is what the cluster's node lacks. Nothing resolves names and nothing routes the addresses of Services, so parts are told where
// the others are: the network is the machine's, in which repo-server and Redis listen on all addresses. What would listen there twice
// listens on its pod's. Argo CD's wrapper of gpg is not there.
const node = `apiVersion: v1
kind: ConfigMap
metadata: {name: argocd-cmd-params-cm}
data: {redis.server: "127.0.0.1:6379", repo.server: "127.0.0.1:8081", applicationsetcontroller.enable.progressive.syncs: "true"}
---
apiVersion: v1
kind: Secret
metadata: {name: argocd-secret}
stringData: {server.secretkey: of-no-use, admin.password: of-no-use, admin.passwordMtime: "2026-01-01T00:00:00Z"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: argocd-redis}
spec: {template: {spec: {initContainers: [{name: secret-init, $patch: delete}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: argocd-repo-server}
spec:
  template:
    spec:
      containers:
      - name: argocd-repo-server
        env: [{name: ARGOCD_GPG_ENABLED, value: "false"}, {name: PATH, value: "/argocd:/usr/bin:/bin"}]
      - name: grantfirst
        env: [{name: PATH, value: /grantfirst}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: argocd-applicationset-controller}
spec:
  template:
    spec:
      containers:
      - name: argocd-applicationset-controller
        args: [/argocd/argocd-applicationset-controller, --metrics-addr, "0", --probe-addr, "0", --webhook-addr, "127.0.0.1:7000"]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: grantfirst-watch}
spec:
  template:
    spec:
      containers:
      - name: watch
        args: [watch, --listen, "$(POD_IP):8080", --selector, example.test/released!=by-hand]
        env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
`

// patience is how long anything may take; on a machine busy with compilers it is many times the usual.
const patience = 5 * time.Minute

// poll asks until check says yes.
func poll(ctx context.Context, what string, check func() (bool, error)) error {
	deadline := time.After(patience)
	last := errors.New("the answer was no")
	for {
		yes, err := check()
		if err == nil && yes {
			return nil
		}
		last = cmp.Or(err, last)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-deadline:
			return fmt.Errorf("never: %s: %w", what, last)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// rolledOut reports whether a Deployment has its newest revision ready and nothing else.
func (i *installation) rolledOut(ctx context.Context, namespace, name string) (bool, error) {
	d, err := i.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	n, s := *d.Spec.Replicas, d.Status
	return s.ObservedGeneration == d.Generation && s.Replicas == n && s.UpdatedReplicas == n && s.ReadyReplicas == n, nil
}

// logs are for a failure.
func (i *installation) logs() string {
	if i.Cluster == nil {
		return ""
	}
	return i.Events(context.Background(), space) + i.Logs(context.Background(), space)
}

func text(o *unstructured.Unstructured, fields ...string) string {
	s, _, _ := unstructured.NestedString(o.Object, fields...)
	return s
}
