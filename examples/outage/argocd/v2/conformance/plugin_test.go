package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	gosync "sync"
	"syscall"
	"testing"
	"time"

	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/sync/hook"
	"github.com/argoproj/gitops-engine/pkg/sync/syncwaves"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	log "github.com/sirupsen/logrus"
	"google.golang.org/protobuf/types/known/emptypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/argoproj/argo-cd/v2/cmpserver"
	"github.com/argoproj/argo-cd/v2/cmpserver/apiclient"
	"github.com/argoproj/argo-cd/v2/cmpserver/plugin"
	"github.com/argoproj/argo-cd/v2/util/cmp"
)

// grantfirst is the folder with the binary, built with the flags of a release.
var grantfirst = gosync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "grantfirst-conformance-")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-C", project, "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(dir, "grantfirst"), "./cmd/grantfirst")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	code := m.Run()
	if dir, err := grantfirst(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// ours is the sidecar: plugin.yaml as it is in the image, and the binary.
func ours(t *testing.T) plugin.PluginConfig {
	t.Helper()
	dir, err := grantfirst()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	config, err := plugin.ReadPluginConfig(project)
	if err != nil {
		t.Fatal(err)
	}
	return *config
}

// script is a plugin that runs a shell.
func script(text string) plugin.PluginConfig {
	return plugin.PluginConfig{
		TypeMeta: metav1.TypeMeta{Kind: plugin.ConfigManagementPluginKind}, Metadata: metav1.ObjectMeta{Name: "script"},
		Spec: plugin.PluginConfigSpec{Generate: plugin.Command{Command: []string{"sh", "-c", text}}},
	}
}

// server is Argo CD's cmp-server with that plugin, and repo-server's client of it. The sidecar has no cluster.
func server(t *testing.T, config plugin.PluginConfig) apiclient.ConfigManagementPluginServiceClient {
	t.Helper()
	dir, err := os.MkdirTemp("", "cmp") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("ARGOCD_CMP_WORKDIR", dir)
	t.Setenv("HOME", dir)
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	s, err := cmpserver.NewServer(plugin.CMPServerInitConstants{PluginConfig: config})
	if err != nil {
		t.Fatal(err)
	}
	grpc, err := s.CreateGRPC()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, config.Metadata.Name+".sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = grpc.Serve(listener) }()
	t.Cleanup(grpc.Stop)
	connection, client, err := apiclient.NewConfigManagementPluginClientSet(socket).NewConfigManagementPluginClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return client
}

// repository is a folder with these files.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// generate is what repo-server does for an Application with path app (reposerver/repository/repository.go generateManifestsCMP).
func generate(ctx context.Context, client apiclient.ConfigManagementPluginServiceClient, repository string, env []string, exclusions ...string) ([]*unstructured.Unstructured, error) {
	stream, err := client.GenerateManifest(ctx)
	if err != nil {
		return nil, err
	}
	if err := cmp.SendRepoStream(stream.Context(), filepath.Join(repository, "app"), repository, stream, env, exclusions); err != nil {
		return nil, err
	}
	response, err := stream.CloseAndRecv()
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, manifest := range response.Manifests {
		objects, err := kube.SplitYAML([]byte(manifest))
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

var webEnvironment = []string{
	"ARGOCD_APP_NAME=web", "ARGOCD_APP_NAMESPACE=shop", "ARGOCD_APP_REVISION=1111111111111111111111111111111111111111",
	"ARGOCD_APP_SOURCE_REPO_URL=https://git.example/shop", "ARGOCD_APP_SOURCE_PATH=app", "ARGOCD_APP_SOURCE_TARGET_REVISION=main",
	"KUBE_VERSION=1.37.0", "KUBE_API_VERSIONS=v1,apps/v1",
}

const signerConfig = `apiVersion: grantfirst.dev/v1alpha1
kind: Config
signers:
- signerName: example.com/workload
  namespace: pcs
  policy: {configMap: {name: policy}, key: policy.yaml, format: grants}
  podSelector: app=pcs
  evidence: report
`

const asking = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, annotations: {argocd.argoproj.io/sync-wave: "9"}}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      serviceAccountName: web
      containers: [{name: web, image: example.test/web}]
      volumes: [{name: tls, projected: {sources: [{podCertificate: {signerName: example.com/workload, keyType: ED25519, credentialBundlePath: b.pem}}]}}]
`

func TestThePluginsYAMLIsWhatCmpServerReads(t *testing.T) {
	config := ours(t)
	if config.Metadata.Name != "grantfirst" || config.Spec.Version != "" || filepath.Base(config.Address()) != "grantfirst.sock" || config.Spec.PreserveFileMode || config.Spec.ProvideGitCreds {
		t.Errorf("%+v at %s", config, config.Address())
	}
	answer, err := server(t, config).CheckPluginConfiguration(t.Context(), &emptypb.Empty{})
	if err != nil || answer.IsDiscoveryConfigured || answer.ProvideGitCreds {
		t.Errorf("%+v, %v", answer, err)
	}
}

// The real binary, called by the real cmp-server, and what it prints given to a sync.
func TestAHoldGoesThroughArgoCD(t *testing.T) {
	t.Setenv("GRANTFIRST_CONFIG", filepath.Join(repository(t, map[string]string{"config.yaml": signerConfig}), "config.yaml"))
	client := server(t, ours(t))
	repo := repository(t, map[string]string{
		"app/web.yaml":    asking,
		"app/plain.yaml":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {octal: \"010\"}\n",
		"app/hook.yaml":   "apiVersion: batch/v1\nkind: Job\nmetadata: {name: migrate, annotations: {argocd.argoproj.io/hook: PreSync}}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}\n",
		"app/policy.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy, namespace: pcs, annotations: {argocd.argoproj.io/sync-wave: \"4\"}}\ndata: {policy.yaml: \"[{namespace: shop, serviceAccount: web}]\"}\n",
	})
	objects, err := generate(t.Context(), client, repo, webEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var marker *unstructured.Unstructured
	for _, o := range objects {
		name := o.GetKind() + "/" + o.GetName()
		switch {
		case o.GetKind() == "Hold":
			name, marker = "Hold", o
		case hook.Skip(o):
			name += " skipped"
		}
		got = append(got, name)
	}
	slices.Sort(got)
	if want := []string{"ConfigMap/policy", "ConfigMap/settings skipped", "Deployment/web skipped", "Hold"}; !slices.Equal(got, want) {
		t.Fatalf("it printed %q, want %q", got, want)
	}
	if application, _, _ := unstructured.NestedString(marker.Object, "spec", "application"); application != "web" || marker.GetNamespace() != "shop" || syncwaves.Wave(marker) != 4 {
		t.Errorf("%v", marker.Object)
	}
	c := newCluster(t, named(t, deployment, "web"), named(t, job, "migrate", "argocd.argoproj.io/hook: PreSync"), named(t, configMap, "settings"))
	if phase, message := c.sync(t, objects...); phase != common.OperationSucceeded {
		t.Errorf("%s: %s", phase, message)
	}
	c.does(t, "apply ConfigMap/policy", "apply Hold/"+marker.GetName())
}

// Argo CD takes a stream for JSON or for YAML by how it begins.
func TestWhatIsNotHeldGoesThroughArgoCDWhateverItIsWrittenIn(t *testing.T) {
	t.Setenv("GRANTFIRST_CONFIG", filepath.Join(repository(t, map[string]string{"config.yaml": signerConfig}), "config.yaml"))
	client := server(t, ours(t))
	const (
		asJSON = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "json"}, "data": {"octal": "010"}}`
		asYAML = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\ndata: {octal: \"010\"}\n"
	)
	for name, files := range map[string]map[string]string{
		"JSON first": {"app/a.json": asJSON, "app/b.yaml": asYAML}, "YAML first": {"app/a.yaml": asYAML, "app/b.json": asJSON + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := generate(t.Context(), client, repository(t, files), webEnvironment)
			var got []string
			for _, o := range objects {
				value, _, _ := unstructured.NestedString(o.Object, "data", "octal")
				got = append(got, o.GetName()+" "+value)
			}
			slices.Sort(got)
			if err != nil || !slices.Equal(got, []string{"json 010", "yaml 010"}) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestThePluginAnnouncesItsParameters(t *testing.T) {
	client := server(t, ours(t))
	stream, err := client.GetParametersAnnouncement(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	repo := repository(t, map[string]string{"app/kustomization.yaml": "resources: []\n"})
	if err := cmp.SendRepoStream(stream.Context(), filepath.Join(repo, "app"), repo, stream, webEnvironment, nil); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.CloseAndRecv()
	if err != nil || len(answer.ParameterAnnouncements) == 0 || answer.ParameterAnnouncements[0].Name == "" {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestAnErrorOfThePluginSaysWhatIsWrongFirst(t *testing.T) {
	t.Setenv("GRANTFIRST_CONFIG", filepath.Join(repository(t, map[string]string{"config.yaml": "apiVersion: grantfirst.dev/v1alpha1\nkind: Config\nmode: observ\n"}), "config.yaml"))
	client := server(t, ours(t))
	for name, file := range map[string]string{"a configuration that is broken": asking, "a render that is empty": ""} {
		t.Run(name, func(t *testing.T) {
			if _, err := generate(t.Context(), client, repository(t, map[string]string{"app/web.yaml": file}), webEnvironment); err == nil || !strings.Contains(err.Error(), "grantfirst: ") || !strings.Contains(err.Error(), "exit status 2") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAnEmptyRenderIsNoErrorOfCmpServersSoThePluginMakesItOne(t *testing.T) {
	repo := repository(t, map[string]string{"app/web.yaml": "# nothing\n"})
	if objects, err := generate(t.Context(), server(t, script("exit 0")), repo, nil); err != nil || len(objects) != 0 {
		t.Errorf("%v, %v", objects, err)
	}
	t.Setenv("GRANTFIRST_CONFIG", filepath.Join(repository(t, map[string]string{"config.yaml": signerConfig}), "config.yaml"))
	if objects, err := generate(t.Context(), server(t, ours(t)), repo, webEnvironment); err == nil || !strings.Contains(err.Error(), "allowEmpty") {
		t.Errorf("%v, %v", objects, err)
	}
}

func TestOutputIsThrownAwayWhenThePluginFails(t *testing.T) {
	client := server(t, script(`echo '{"apiVersion": "v1", "kind": "ConfigMap"}'; echo first >&2; echo second >&2; exit 3`))
	objects, err := generate(t.Context(), client, repository(t, map[string]string{"app/x": ""}), nil)
	if err == nil || objects != nil || !strings.Contains(err.Error(), "first\nsecond") {
		t.Errorf("%v, %v", objects, err)
	}
}

func TestThePluginHasTheSidecarsEnvironmentAndTheApplications(t *testing.T) {
	t.Setenv("OF_THE_SIDECAR", "yes")
	client := server(t, script(`printf 'kind: E\nname: "%s"\nsidecar: "%s"\nempty: "%s"\nlast: "%s"\n' "$ARGOCD_APP_NAME" "$OF_THE_SIDECAR" "${EMPTY-is not set}" "$TWICE"`))
	objects, err := generate(t.Context(), client, repository(t, map[string]string{"app/x": ""}), []string{"ARGOCD_APP_NAME=team_web", "EMPTY=", "TWICE=1", "TWICE=2"})
	if err != nil || len(objects) != 1 {
		t.Fatalf("%v, %v", objects, err)
	}
	if o := objects[0].Object; o["name"] != "team_web" || o["sidecar"] != "yes" || o["empty"] != emptyVariable || o["last"] != "2" {
		t.Errorf("%v", o)
	}
}

// What is left out of the repository is left out by these patterns, as grantfirst doctor judges them (lib/doctor argocd.go).
func TestWhatThePluginGetsOfTheRepository(t *testing.T) {
	client := server(t, script(`for f in HEAD objects/pack/a.pack; do test -e ../.git/$f && echo "kind: $(basename $f)" && echo ---; done; echo "kind: $(basename $PWD)"`))
	repo := repository(t, map[string]string{"app/x": "", ".git/HEAD": "ref: refs/heads/main\n", ".git/objects/pack/a.pack": "p"})
	for exclusions, want := range map[string]string{
		"": "HEAD a.pack app", ".git": "app", "*.git": "app", ".g*": "app", ".git/*": "app", ".git/objects/*": "HEAD app", ".git/objects/pack/*.pack": "HEAD app",
		"**/.git": "HEAD a.pack app", "**/.git/*": "HEAD a.pack app", ".github": "HEAD a.pack app",
	} {
		var globs []string
		if exclusions != "" {
			globs = []string{exclusions}
		}
		objects, err := generate(t.Context(), client, repo, nil, globs...)
		var got []string
		for _, o := range objects {
			got = append(got, o.GetKind())
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v", exclusions, got, err)
		}
	}
	if _, err := generate(t.Context(), client, repo, nil, "["); err == nil {
		t.Error("a pattern that is none is no error")
	}
}

func TestAPluginThatTakesTooLongIsKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	client := server(t, script("echo $$ > "+file+".new; mv "+file+".new "+file+"; exec sleep 600"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := generate(ctx, client, repository(t, map[string]string{"app/x": ""}), nil)
		failed <- err
	}()
	var pid int
	until(t, "the plugin runs", func() bool {
		text, err := os.ReadFile(file)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err == nil
	})
	// As at the deadline of repo-server's call, which is that of cmp-server's less a tenth of a second.
	cancel()
	if err := <-failed; err == nil {
		t.Error("no error")
	}
	until(t, "the plugin is gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

func TestADeadlineIsPassedToThePlugin(t *testing.T) {
	client := server(t, script("exec sleep 600"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := generate(ctx, client, repository(t, map[string]string{"app/x": ""}), nil)
	if err == nil || !strings.Contains(err.Error(), "failed signal: ") && !strings.Contains(err.Error(), "DeadlineExceeded") {
		t.Errorf("%v", err)
	}
}

// until asks again and again.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !is() {
		select {
		case <-deadline:
			t.Fatal("never: " + what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
