package gate_test

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

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/gate"
	"github.com/grantfirst/grantfirst/lib/gate/git"
)

// repo is a clone with real history, made by the git command.
type repo struct {
	testing.TB
	dir  string
	time int
}

func newRepo(t testing.TB) *repo {
	t.Helper()
	r := &repo{TB: t, dir: t.TempDir()}
	r.git("init", "--quiet", "--initial-branch=main")
	return r
}

// git runs the command as somebody with no settings of their own, at a time of its own.
func (r *repo) git(args ...string) string {
	r.Helper()
	out, err := r.try(args...)
	if err != nil {
		r.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (r *repo) try(args ...string) (string, error) {
	r.time++
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	date := fmt.Sprintf("%d +0000", 1_700_000_000+60*r.time)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
		"GIT_AUTHOR_DATE="+date, "GIT_COMMITTER_DATE="+date)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// write makes files; an empty text removes one.
func (r *repo) write(files map[string]string) {
	r.Helper()
	for name, text := range files {
		file := filepath.Join(r.dir, filepath.FromSlash(name))
		if text == "" {
			if err := os.RemoveAll(file); err != nil {
				r.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			r.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *repo) read(name string) string {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.Fatal(err)
	}
	return string(text)
}

// replace changes a file; what is to be replaced must be there.
func (r *repo) replace(name, old, new string) {
	r.Helper()
	text := r.read(name)
	if !strings.Contains(text, old) {
		r.Fatalf("%s has no %q", name, old)
	}
	r.write(map[string]string{name: strings.ReplaceAll(text, old, new)})
}

// commit records all files.
func (r *repo) commit(message string) string {
	r.Helper()
	r.git("add", "--all")
	r.git("commit", "--quiet", "--allow-empty", "-m", message)
	return r.git("rev-parse", "HEAD")
}

// branch makes a change on a branch of its own.
func (r *repo) branch(name string, change func()) string {
	r.Helper()
	r.git("checkout", "--quiet", "-B", name, "main")
	change()
	id := r.commit(name)
	r.git("checkout", "--quiet", "main")
	return id
}

const configText = `apiVersion: grantfirst.dev/v1alpha1
kind: Config
signers:
- signerName: example.com/workload
  namespace: pod-cert-signer
  policy: {configMap: {namePrefix: pod-cert-signer-}, key: policy.json, format: pod-cert-signer}
  podSelector: app=signer
  evidence: podVolumes
- signerName: example.com/team-*
  namespace: team-signer
  policy: {configMap: {name: policy}, key: grants.yaml, format: grants}
  podSelector: app=team-signer
  evidence: podVolumes
`

func newGate(t testing.TB, r *repo) *gate.Gate {
	t.Helper()
	c, err := config.Parse([]byte(configText))
	if err != nil {
		t.Fatal(err)
	}
	repository, err := git.Open(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := repository.Close(); err != nil {
			t.Error(err)
		}
	})
	return &gate.Gate{Repository: repository, Config: c}
}

func commit(t testing.TB, g *gate.Gate, revision string) git.Commit {
	t.Helper()
	if revision == "worktree" {
		c, err := g.Repository.WorkTree()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c, err := g.Repository.Commit(revision)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func check(t testing.TB, g *gate.Gate, base, head string) *gate.Report {
	t.Helper()
	r, err := g.Check(context.Background(), commit(t, g, base), commit(t, g, head))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// lines says what was found, a line for each finding that is not fine.
func lines(r *gate.Report) []string {
	var out []string
	for _, f := range r.Findings {
		if f.Verdict == gate.OK {
			continue
		}
		line := fmt.Sprintf("%s %s %s/%s %s %s:%d [%s]", f.Verdict, f.SignerName, f.Namespace, f.ServiceAccount, f.Object.Name, f.Path, f.Line, f.Application)
		if f.Verdict == gate.Unknown {
			line = fmt.Sprintf("unknown %s:%d [%s] %s", f.Path, f.Line, f.Application, f.Message)
		}
		if f.Existing {
			line += " existing"
		}
		out = append(out, line)
	}
	return out
}

func want(t testing.TB, r *gate.Report, expected ...string) {
	t.Helper()
	got := lines(r)
	if !slices.EqualFunc(got, expected, func(got, want string) bool {
		prefix, isPrefix := strings.CutSuffix(want, "…")
		return got == want || isPrefix && strings.HasPrefix(got, prefix)
	}) {
		t.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(expected, "\n  "))
	}
}

// deployment asks for a certificate; a volume for each demand.
func deployment(name, serviceAccount, signer, keyType string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata:
  name: %s
spec:
  replicas: 2
  template:
    spec:
      serviceAccountName: %s
      containers: [{name: main, image: registry.example/app:1}]
      volumes:
      - name: tls
        projected:
          sources:
          - podCertificate:
              signerName: %s
              keyType: %s
              credentialBundlePath: bundle.pem
`, name, serviceAccount, signer, keyType)
}

// policyJSON is the policy of pod-cert-signer, with a line for each grant.
func policyJSON(grants ...string) string {
	return `{
  "signerName": "example.com/workload",
  "trustDomain": "example.com",
  "dnsNamesAnnotation": "example.com/dns-names",
  "lifetime": "24h",
  "refreshAt": 0.5,
  "keyTypes": ["ECDSAP256"],
  "grants": [
` + strings.Join(grants, ",\n") + `
  ]
}
`
}

func grant(namespace, serviceAccount string) string {
	return fmt.Sprintf(`    {"namespace": %q, "serviceAccount": %q, "usage": "client"}`, namespace, serviceAccount)
}

// application is an Argo CD Application of this repository.
func application(name, path, namespace, more string) string {
	return fmt.Sprintf(`apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: %s
  namespace: argocd
spec:
  project: default
  source:
    repoURL: https://git.example.com/shop.git
    path: %s
%s  destination: {server: "https://kubernetes.default.svc", namespace: %s}
`, name, path, more, namespace)
}

// shop is the fixture: a signer whose policy is generated by kustomize, and workloads as plain manifests, overlays and a chart, all of them
// brought by an app of apps and an ApplicationSet.
func shop(t testing.TB) *repo {
	t.Helper()
	shopOnce.Do(func() {
		dir, err := os.MkdirTemp("", "shop-")
		if err != nil {
			t.Fatal(err)
		}
		shopDir = dir
		makeShop(&repo{TB: t, dir: dir})
	})
	r := &repo{TB: t, dir: t.TempDir(), time: 100}
	if err := os.CopyFS(r.dir, os.DirFS(shopDir)); err != nil {
		t.Fatal(err)
	}
	r.git("update-index", "-q", "--refresh")
	return r
}

// changedShop is the fixture with a branch "change". before, where it is not nil, changes main first.
func changedShop(t testing.TB, before, change func(*repo)) *repo {
	t.Helper()
	r := shop(t)
	if before != nil {
		before(r)
		r.commit("before")
	}
	r.branch("change", func() { change(r) })
	return r
}

// The fixture is made once, and each test has a copy.
var (
	shopOnce sync.Once
	shopDir  string
)

func TestMain(m *testing.M) {
	code := m.Run()
	if shopDir != "" {
		_ = os.RemoveAll(shopDir)
	}
	os.Exit(code)
}

func makeShop(r *repo) {
	r.git("init", "--quiet", "--initial-branch=main")
	r.git("remote", "add", "origin", "git@git.example.com:shop.git")
	r.write(map[string]string{
		"root.yaml":                               application("root", "apps", "argocd", ""),
		"apps/signer.yaml":                        application("pod-cert-signer", "signer/overlays/prod", "pod-cert-signer", ""),
		"apps/shop.yaml":                          application("shop", "shop", "shop", ""),
		"apps/store.yaml":                         application("store", "store/overlays/prod", "store", ""),
		"apps/chart.yaml":                         application("chart", "chart", "chart", "    helm: {valueFiles: [values-prod.yaml]}\n"),
		"signer/base/kustomization.yaml":          "resources: [signer.yaml]\n",
		"signer/base/signer.yaml":                 "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: signer}\nspec: {template: {spec: {containers: [{name: signer, image: i}]}}}\n",
		"signer/overlays/prod/kustomization.yaml": "namespace: pod-cert-signer\nresources: [../../base]\nconfigMapGenerator:\n- name: pod-cert-signer\n  files: [policy.json]\n",
		"signer/overlays/prod/policy.json":        policyJSON(grant("shop", "web"), grant("store", "store"), grant("chart", "chart"), grant("tenant-*", "app")),
		"shop/web.yaml":                           deployment("web", "web", "example.com/workload", "ECDSAP256"),
		"store/base/kustomization.yaml":           "resources: [deploy.yaml]\n",
		"store/base/deploy.yaml":                  deployment("store", "store", "example.com/workload", "ECDSAP256"),
		"store/overlays/prod/kustomization.yaml":  "namespace: store\nnamePrefix: prod-\nresources: [../../base]\n",
		"chart/Chart.yaml":                        "apiVersion: v2\nname: chart\nversion: 1.0.0\n",
		"chart/values.yaml":                       "certificate: false\nserviceAccount: chart\n",
		"chart/values-prod.yaml":                  "certificate: true\n",
		"chart/templates/deploy.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  template:
    spec:
      serviceAccountName: {{ .Values.serviceAccount }}
      volumes:
      {{- if .Values.certificate }}
      - name: tls
        projected: {sources: [{podCertificate: {signerName: example.com/workload, keyType: ECDSAP256}}]}
      {{- end }}
`,
	})
	r.commit("the shop")
}

// tenants adds an ApplicationSet with a folder for each tenant.
func tenants(t testing.TB, r *repo) {
	t.Helper()
	r.write(map[string]string{
		"apps/tenants.yaml": `apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: tenants, namespace: argocd}
spec:
  goTemplate: true
  generators:
  - git:
      repoURL: https://git.example.com/shop.git
      directories: [{path: tenants/*}]
  template:
    metadata: {name: "tenant-{{.path.basename}}"}
    spec:
      project: default
      source: {repoURL: "https://git.example.com/shop.git", path: "{{.path.path}}"}
      destination: {server: "https://kubernetes.default.svc", namespace: "tenant-{{.path.basename}}"}
`,
		"tenants/red/app.yaml": deployment("app", "app", "example.com/workload", "ECDSAP256"),
	})
	r.commit("tenants")
}
