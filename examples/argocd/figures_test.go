package argocd_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workloads puts n Deployments into the repository, each with a demand of its own.
func (i *installation) workloads(n int) {
	i.Helper()
	var out strings.Builder
	for w := range n {
		if w > 0 {
			out.WriteString("---\n")
		}
		out.WriteString(i.workload(fmt.Sprintf("web-%d", w), fmt.Sprintf("shop-%d", w)))
	}
	i.file("repo/app/web.yaml", out.String())
}

func TestTheNumberOfRequestsDoesNotGrowWithWorkloads(t *testing.T) {
	i := newInstallation(t)
	i.shipRights()
	i.signer()
	p := newProxy(i)
	environment := i.environment("fresh", i.kubeconfig(p.Server, i.token(i.argocd, repoServer)), "tmp")
	want := []string{
		"/api/v1/namespaces/" + i.argocd + "/configmaps/grantfirst-overrides", "/api/v1/namespaces/" + i.signing + "/configmaps",
		"/api/v1/namespaces/" + i.signing + "/pods", "/apis/argoproj.io/v1alpha1/namespaces/" + i.argocd + "/applications/fresh",
	}
	for _, n := range []int{1, 100, 10_000} {
		i.workloads(n)
		p.requests()
		if out := i.generate(environment); out.held != "" {
			t.Errorf("%d workloads: held: %s\n%s", n, out.held, out.stderr)
		}
		if asked := p.requests(); !slices.Equal(asked, want) {
			t.Errorf("%d workloads: asked %q, want %q", n, asked, want)
		}
	}
}

// BenchmarkGenerate is the whole process, by a snapshot and by the API server, for Applications of which nothing is held and of which all is.
func BenchmarkGenerate(b *testing.B) {
	i := newInstallation(b)
	i.shipRights()
	i.signer()
	kubeconfig := i.kubeconfig(nil, i.token(i.argocd, repoServer))
	for _, n := range []int{1, 100, 10_000} {
		for _, granted := range []bool{true, false} {
			i.workloads(n)
			if !granted {
				path := filepath.Join(i.dir, "repo/app/web.yaml")
				text, err := os.ReadFile(path)
				if err != nil {
					b.Fatal(err)
				}
				i.file("repo/app/web.yaml", strings.ReplaceAll(string(text), "serviceAccountName: web", "serviceAccountName: other"))
			}
			environment := i.environment("fresh", kubeconfig, "tmp")
			snapshot := i.snapshot("fresh", kubeconfig)
			what := fmt.Sprintf("%d workloads, granted %t", n, granted)
			measure := func(from string, environment []string, flags ...string) {
				b.Run(what+", "+from, func(b *testing.B) {
					i := i.with(b)
					var cpu time.Duration
					for b.Loop() {
						cpu += i.generate(environment, flags...).cpu
					}
					b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
				})
			}
			measure("snapshot", offline(environment), "--live", snapshot, "--application", snapshot)
			measure("API server", environment)
		}
	}
}

// snapshot takes one, with the rights of the plugin, and gives its file.
func (i *installation) snapshot(app, kubeconfig string) string {
	i.Helper()
	command := exec.CommandContext(i.Context(), program(i, "grantfirst"), "snapshot", "--application", app)
	command.Env = []string{"GRANTFIRST_CONFIG=" + filepath.Join(i.dir, "config.yaml"), "KUBECONFIG=" + kubeconfig}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil || stderr.Len() > 0 {
		i.Fatalf("snapshot: %v\n%s", err, stderr.String())
	}
	return i.file("snapshot-"+app+".yaml", stdout.String())
}

// offline is the environment of somebody who has only the snapshot.
func offline(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") || strings.HasPrefix(v, "TMPDIR=") })
}

func TestASnapshotGivesTheSameBytesAsTheClusterAndHasNoSecrets(t *testing.T) {
	i := newInstallation(t)
	i.shipRights()
	i.signer()
	kubeconfig := i.kubeconfig(nil, i.token(i.argocd, repoServer))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "ca-key"}, StringData: map[string]string{"key": "correct-horse"}}
	if _, err := i.CoreV1().Secrets(i.signing).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"password": "battery-staple"}}
	if _, err := i.CoreV1().ConfigMaps(i.signing).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	compare := func(t *testing.T, held bool) {
		i := i.with(t)
		for _, app := range []string{"fresh", "web"} {
			environment := i.environment(app, kubeconfig, "tmp")
			file := i.snapshot(app, kubeconfig)
			live := i.generate(environment)
			replayed := i.generate(offline(environment), "--live", file, "--application", file)
			if live.stdout != replayed.stdout || live.stderr != replayed.stderr || (live.held != "") != held {
				t.Errorf("live:\n%s%s\nreplayed:\n%s%s", live.stderr, live.stdout, replayed.stderr, replayed.stdout)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range []string{"hunter2", "correct-horse", "battery-staple", "kind: Secret"} {
				if strings.Contains(string(text), secret) {
					t.Errorf("%q is in the snapshot\n%s", secret, text)
				}
			}
		}
	}
	t.Run("when all is granted", func(t *testing.T) { compare(t, false) })
	t.Run("when it is held", func(t *testing.T) {
		i.grants("other")
		i.await("the signer has loaded it", func() (bool, error) { return strings.Contains(i.report().Data["policy"], "other"), nil })
		compare(t, true)
	})
}
