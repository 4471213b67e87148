package gate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/gate"
	"github.com/grantfirst/grantfirst/lib/gate/git"
)

const policyFile = "signer/overlays/prod/policy.json"

func TestTodaysStateIsGreen(t *testing.T) {
	r := shop(t)
	report := check(t, newGate(t, r), "main", "main")
	want(t, report)
	if report.Rendered > 1 || report.Shared != 5 {
		t.Errorf("%d renders and %d shared roots, want at most the app of apps and 5: nothing has changed", report.Rendered, report.Shared)
	}
}

// addGrant puts a grant behind that of shop/web.
func addGrant(r *repo, line string) {
	r.Helper()
	r.replace(policyFile, grant("shop", "web"), grant("shop", "web")+",\n"+line)
}

// Every case is a change of the fixture, and what is found of it.
func TestWhatIsFoundOfAChange(t *testing.T) {
	for name, c := range map[string]struct {
		// before changes main first.
		before func(*repo)
		change func(*repo)
		want   []string
	}{
		"A grant that comes with its workload is red, with exactly the pods that would hang": {
			change: func(r *repo) {
				addGrant(r, grant("shop", "api"))
				r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			want: []string{"ships-together example.com/workload shop/api api shop/api.yaml:15 [shop]"},
		},
		"A grant alone is green": {change: func(r *repo) { addGrant(r, grant("shop", "api")) }},
		"A workload whose grant is there is green": {
			before: func(r *repo) { addGrant(r, grant("shop", "api")) },
			change: func(r *repo) {
				r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
		},
		"A workload that nobody grants anything is missing a grant": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			want: []string{"missing example.com/workload shop/api api shop/api.yaml:15 [shop]"},
		},
		"An app of apps that is a chart, and that no Application in the repository deploys, is followed": {
			before: func(r *repo) {
				r.write(map[string]string{
					"bootstrap/Chart.yaml":           "apiVersion: v2\nname: bootstrap\nversion: 1.0.0\n",
					"bootstrap/templates/extra.yaml": application("{{ .Release.Name }}-extra", "extra", "shop", ""),
					"extra/web.yaml":                 deployment("extra", "web", "example.com/workload", "ECDSAP256"),
				})
			},
			change: func(r *repo) {
				r.write(map[string]string{"extra/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			want: []string{"missing example.com/workload shop/api api extra/api.yaml:15 [release-name-extra]"},
		},
		"and so is one that is an overlay, as it prints its Applications": {
			before: func(r *repo) {
				r.write(map[string]string{
					"bootstrap/base/kustomization.yaml": "resources: [extra.yaml]\n",
					"bootstrap/base/extra.yaml":         application("extra", "extra/base", "shop", ""),
					"bootstrap/prod/kustomization.yaml": "resources: [../base]\npatches:\n- target: {kind: Application}\n  patch: |-\n    - {op: replace, path: /spec/source/path, value: extra/prod}\n",
					"extra/prod/web.yaml":               deployment("extra", "web", "example.com/workload", "ECDSAP256"),
					"extra/base/api.yaml":               deployment("api", "nobody", "example.com/workload", "ECDSAP256"),
				})
			},
			change: func(r *repo) {
				r.write(map[string]string{"extra/prod/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			want: []string{"missing example.com/workload shop/api api extra/prod/api.yaml:15 [extra]"},
		},
		"A hook asks in every sync, so a grant that comes now comes too late for it, though it is not touched": {
			before: func(r *repo) {
				r.write(map[string]string{"shop/job.yaml": strings.Replace(deployment("job", "job", "example.com/workload", "ECDSAP256"), "metadata:\n", "metadata:\n  annotations: {argocd.argoproj.io/hook: PreSync}\n", 1)})
			},
			change: func(r *repo) {
				addGrant(r, grant("shop", "job"))
				r.write(map[string]string{"shop/other.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n"})
			},
			want: []string{"ships-together example.com/workload shop/job job shop/job.yaml:16 [shop]"},
		},
		"A repository of the same name whose path is here may be this one": {
			change: func(r *repo) {
				r.write(map[string]string{"apps/other.yaml": strings.Replace(application("other", "shop", "other", ""), "repoURL: ", "repoURL: ssh://git@git.example.com:7999/team/shop.git # ", 1)})
			},
			want: []string{
				"unknown apps/other.yaml:1 [other] Application other: ssh://git@git.example.com:7999/team/shop.git is not one of this repository's URLs, but has its name, and the path is here: say so with --repo-url ssh://git@git.example.com:7999/team/shop.git, or pass over what is elsewhere with --elsewhere ignore",
				"unknown apps/other.yaml:1 [other] Application other: this source has changed and is not in this repository: ssh://git@git.example.com:7999/team/shop.git path shop; look at what it demands yourself, and pass over it with --elsewhere ignore=other",
			},
		},
		"What Argo CD merges into a source is not passed over": {
			change: func(r *repo) {
				r.write(map[string]string{"chart/.argocd-source-chart.yaml": "helm: {parameters: [{name: serviceAccount, value: other}]}\n"})
			},
			want: []string{"unknown apps/chart.yaml:1 [chart] Application chart (chart) cannot be rendered: chart/.argocd-source-chart.yaml: Argo CD merges it into the source, which is not done here: look at what it changes yourself"},
		},
		"and by its full name outside Argo CD's namespace": {
			before: func(r *repo) { r.replace("apps/chart.yaml", "namespace: argocd", "namespace: team") },
			change: func(r *repo) {
				r.write(map[string]string{"chart/.argocd-source-team_chart.yaml": "helm: {parameters: [{name: serviceAccount, value: other}]}\n"})
			},
			want: []string{"unknown apps/chart.yaml:1 [team/chart] Application team/chart (chart) cannot be rendered: chart/.argocd-source-team_chart.yaml: Argo CD merges it into the source, which is not done here: look at what it changes yourself"},
		},
		"Value files by a glob are not passed over where one is added": {
			before: func(r *repo) {
				r.write(map[string]string{"apps/chart.yaml": application("chart", "chart", "chart", "    helm: {valueFiles: [/env/*.yaml], ignoreMissingValueFiles: true}\n"), "env/a.yaml": "certificate: true\n"})
			},
			change: func(r *repo) { r.write(map[string]string{"env/b.yaml": "serviceAccount: other\n"}) },
			want:   []string{"unknown apps/chart.yaml:1 [chart] Application chart (chart) cannot be rendered: value file /env/*.yaml: Argo CD v3.4 and later take it for a glob, older ones for a name, and it is not read here: name the files", "unknown apps/chart.yaml:1 [chart] at the merge base: Application chart (chart) cannot be rendered: value file /env/*.yaml: …"},
		},
		"nor beside the chart": {
			before: func(r *repo) {
				r.write(map[string]string{"apps/chart.yaml": application("chart", "chart", "chart", "    helm: {valueFiles: ['env/[ab].yaml']}\n"), "chart/env/a.yaml": "certificate: true\n"})
			},
			change: func(r *repo) { r.write(map[string]string{"chart/env/a.yaml": "serviceAccount: other\n"}) },
			want:   []string{"unknown apps/chart.yaml:1 [chart] Application chart (chart) cannot be rendered: value file env/[ab].yaml: …", "unknown apps/chart.yaml:1 [chart] at the merge base: Application chart (chart) cannot be rendered: value file env/[ab].yaml: …"},
		},
		"and a change elsewhere does not touch them": {
			before: func(r *repo) {
				r.write(map[string]string{"apps/chart.yaml": application("chart", "chart", "chart", "    helm: {valueFiles: [/env/*.yaml]}\n"), "env/a.yaml": "certificate: true\n"})
			},
			change: func(r *repo) { r.replace("shop/web.yaml", "app:1", "app:2") },
		},
		"A tag that was not fetched is no branch": {
			change: func(r *repo) {
				r.replace("apps/shop.yaml", "path: shop", "targetRevision: v2.0\n    path: shop")
			},
			want: []string{"unknown apps/shop.yaml:1 [shop] Application shop: revision v2.0 of this repository is not in this clone: git fetch --tags, or fetch that commit"},
		},
		"Another key type is denied": {
			change: func(r *repo) { r.replace("shop/web.yaml", "ECDSAP256", "ED25519") },
			want:   []string{"denied example.com/workload shop/web web shop/web.yaml:15 [shop]"},
		},
		"DNS names that the grant lacks are denied": {
			change: func(r *repo) {
				r.replace("shop/web.yaml", "keyType: ECDSAP256", "keyType: ECDSAP256\n              userAnnotations: {example.com/dns-names: web.shop.svc}")
			},
			want: []string{"denied example.com/workload shop/web web shop/web.yaml:15 [shop]"},
		},
		"A lifetime that is too short is denied": {
			change: func(r *repo) {
				r.replace("shop/web.yaml", "keyType: ECDSAP256", "keyType: ECDSAP256\n              maxExpirationSeconds: 60")
			},
			want: []string{"denied example.com/workload shop/web web shop/web.yaml:15 [shop]"},
		},
		"A key type that policy and workload change together ships together, and the old one is taken away": {
			change: func(r *repo) {
				r.replace("shop/web.yaml", "ECDSAP256", "ED25519")
				r.replace(policyFile, `["ECDSAP256"]`, `["ED25519"]`)
			},
			want: []string{
				"revoked-while-used example.com/workload chart/chart chart chart/templates/deploy.yaml:11 [chart]",
				"revoked-while-used example.com/workload shop/web web shop/web.yaml:15 [shop]",
				"ships-together example.com/workload shop/web web shop/web.yaml:15 [shop]",
				"revoked-while-used example.com/workload store/store prod-store store/base/deploy.yaml:15 [store]",
			},
		},
		"A renamed ServiceAccount is missing a grant": {
			change: func(r *repo) { r.replace("shop/web.yaml", "serviceAccountName: web", "serviceAccountName: front") },
			want:   []string{"missing example.com/workload shop/front web shop/web.yaml:15 [shop]"},
		},
		"A ServiceAccount renamed in policy and workload at once is red twice": {
			change: func(r *repo) {
				r.replace("shop/web.yaml", "serviceAccountName: web", "serviceAccountName: front")
				r.replace(policyFile, grant("shop", "web"), grant("shop", "front"))
			},
			want: []string{
				"revoked-while-used example.com/workload shop/web web shop/web.yaml:15 [shop]",
				"ships-together example.com/workload shop/front web shop/web.yaml:15 [shop]",
			},
		},
		"A renamed namespace of an Application is missing grants": {
			change: func(r *repo) { r.replace("apps/shop.yaml", "namespace: shop}", "namespace: store-front}") },
			want:   []string{"missing example.com/workload store-front/web web shop/web.yaml:15 [shop]"},
		},
		"A renamed namespace of an overlay is missing grants": {
			change: func(r *repo) {
				r.replace("store/overlays/prod/kustomization.yaml", "namespace: store", "namespace: stores")
			},
			want: []string{"missing example.com/workload stores/store prod-store store/base/deploy.yaml:15 [store]"},
		},
		"A new signer that comes with its policy and its first workload ships together": {
			change: func(r *repo) {
				r.write(map[string]string{
					"apps/team.yaml":   application("team-signer", "team", "team-signer", ""),
					"team/policy.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy}\ndata:\n  grants.yaml: |\n    - {namespace: shop, serviceAccount: web}\n",
				})
				r.replace("shop/web.yaml", "example.com/workload", "example.com/team-a")
			},
			want: []string{"ships-together example.com/team-a shop/web web shop/web.yaml:15 [shop]"},
		},
		"A signer whose policy is nowhere to be seen is unknown": {
			change: func(r *repo) { r.replace("shop/web.yaml", "example.com/workload", "example.com/team-a") },
			want:   []string{"unknown shop/web.yaml:15 [shop] example.com/team-a for ServiceAccount shop/web: no policy object of this signer in this repository for cluster in-cluster…"},
		},
		"A signer that is not configured is unknown": {
			change: func(r *repo) { r.replace("shop/web.yaml", "example.com/workload", "example.net/other") },
			want:   []string{"unknown shop/web.yaml:15 [shop] signer example.net/other is not in the configuration…"},
		},
		"One more replica is green":    {change: func(r *repo) { r.replace("shop/web.yaml", "replicas: 2", "replicas: 3") }},
		"Another image is green":       {change: func(r *repo) { r.replace("store/base/deploy.yaml", "app:1", "app:2") }},
		"A comment in a file is green": {change: func(r *repo) { r.replace("shop/web.yaml", "spec:\n  replicas", "# why\nspec:\n  replicas") }},
		"A workload that moves to another Application is green": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/web.yaml": "", "front/web.yaml": r.read("shop/web.yaml"), "apps/front.yaml": application("front", "front", "shop", ""), "shop/other.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n"})
			},
		},
		"A grant by prefix counts": {
			change: func(r *repo) {
				r.write(map[string]string{"apps/blue.yaml": application("blue", "blue", "tenant-blue", ""), "blue/app.yaml": deployment("app", "app", "example.com/workload", "ECDSAP256")})
			},
		},
		"A grant that is taken from a workload which this change does not touch": {
			change: func(r *repo) { r.replace(policyFile, grant("store", "store")+",\n", "") },
			want:   []string{"revoked-while-used example.com/workload store/store prod-store store/base/deploy.yaml:15 [store]"},
		},
		"A grant that is taken away together with its workload": {
			change: func(r *repo) {
				r.replace(policyFile, grant("store", "store")+",\n", "")
				r.write(map[string]string{"store": "", "apps/store.yaml": ""})
			},
			want: []string{"revoked-while-used example.com/workload store/store prod-store store/base/deploy.yaml:15 [store]"},
		},
		"A grant that is taken away after its workload is green": {
			before: func(r *repo) { r.write(map[string]string{"store": "", "apps/store.yaml": ""}) },
			change: func(r *repo) { r.replace(policyFile, grant("store", "store")+",\n", "") },
		},
		"A policy that is removed as a whole": {
			change: func(r *repo) { r.write(map[string]string{"signer": "", "apps/signer.yaml": ""}) },
			want: []string{
				"revoked-while-used example.com/workload chart/chart chart chart/templates/deploy.yaml:11 [chart]",
				"revoked-while-used example.com/workload shop/web web shop/web.yaml:15 [shop]",
				"revoked-while-used example.com/workload store/store prod-store store/base/deploy.yaml:15 [store]",
			},
		},
		"A grant that is taken away at once because the policy object says so": {
			change: func(r *repo) {
				r.replace(policyFile, grant("store", "store")+",\n", "")
				r.replace("signer/overlays/prod/kustomization.yaml", "  files: [policy.json]", "  files: [policy.json]\n  options: {annotations: {grantfirst.dev/revoke: leaked key}}")
			},
		},
		"A deleted base folder does not render": {
			change: func(r *repo) { r.write(map[string]string{"store/base": ""}) },
			want:   []string{"unknown store/overlays/prod/kustomization.yaml:1 [store] Application store (store/overlays/prod) cannot be rendered: …"},
		},
		"A merge base that does not render says so": {
			before: func(r *repo) { r.write(map[string]string{"store/base": ""}) },
			change: func(r *repo) {
				r.write(map[string]string{"store/base/kustomization.yaml": "resources: [deploy.yaml]\n", "store/base/deploy.yaml": deployment("store", "store", "example.com/workload", "ECDSAP256")})
			},
			want: []string{"unknown store/overlays/prod/kustomization.yaml:1 [store] at the merge base: Application store (store/overlays/prod) cannot be rendered: …"},
		},
		"A workload that hangs already gets its grant, which is green": {
			before: func(r *repo) {
				r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			change: func(r *repo) { addGrant(r, grant("shop", "api")) },
		},
		"A workload that hangs already is no fault of another change": {
			before: func(r *repo) {
				r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			change: func(r *repo) { r.replace("shop/web.yaml", "replicas: 2", "replicas: 3") },
			want:   []string{"missing example.com/workload shop/api api shop/api.yaml:15 [shop] existing"},
		},
		"A workload that hangs already hangs anew when it is rolled out": {
			before: func(r *repo) {
				r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			change: func(r *repo) { r.replace("shop/api.yaml", "app:1", "app:2") },
			want:   []string{"missing example.com/workload shop/api api shop/api.yaml:15 [shop]"},
		},
		"A hook on deletion is unprotected": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/bye.yaml": strings.Replace(deployment("bye", "web", "example.com/workload", "ECDSAP256"), "  name: bye", "  name: bye\n  annotations: {argocd.argoproj.io/hook: PostDelete}", 1)})
			},
			want: []string{"unprotected example.com/workload shop/web bye shop/bye.yaml:16 [shop]"},
		},
		"A hook on deletion that nobody grants anything is missing a grant, and that is all": {
			change: func(r *repo) {
				for i, hook := range []string{"PostDelete", "PreDelete"} {
					name := fmt.Sprint("bye-", i)
					r.write(map[string]string{"shop/" + name + ".yaml": strings.Replace(deployment(name, name, "example.com/workload", "ECDSAP256"), "  name: "+name, "  name: "+name+"\n  annotations: {argocd.argoproj.io/hook: "+hook+"}", 1)})
				}
			},
			want: []string{"missing example.com/workload shop/bye-0 bye-0 shop/bye-0.yaml:16 [shop]", "missing example.com/workload shop/bye-1 bye-1 shop/bye-1.yaml:16 [shop]"},
		},
		"A policy that does not parse any more is unknown": {
			change: func(r *repo) { r.replace(policyFile, `"refreshAt": 0.5,`, `"refreshAt": 5,`) },
			want: []string{
				"unknown chart/templates/deploy.yaml:11 [chart] example.com/workload for ServiceAccount chart/chart is granted at the merge base; at the head ConfigMap pod-cert-signer/pod-cert-signer-…",
				"unknown shop/web.yaml:15 [shop] …",
				"unknown store/base/deploy.yaml:15 [store] …",
			},
		},
		"Values of a chart that switch a certificate on for another ServiceAccount": {
			change: func(r *repo) {
				r.replace("chart/values-prod.yaml", "certificate: true", "certificate: true\nserviceAccount: other")
			},
			want: []string{"missing example.com/workload chart/other chart chart/templates/deploy.yaml:11 [chart]"},
		},
		"A path with spaces and letters of another language": {
			before: func(r *repo) { addGrant(r, grant("shop", "api")) },
			change: func(r *repo) {
				r.write(map[string]string{"läden und shops/apí.yaml": deployment("api", "apy", "example.com/workload", "ECDSAP256"), "apps/laden.yaml": application("laden", `"läden und shops"`, "shop", "")})
			},
			want: []string{"missing example.com/workload shop/apy api läden und shops/apí.yaml:15 [laden]"},
		},
		"Windows line ends": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/api.yaml": strings.ReplaceAll(deployment("api", "api", "example.com/workload", "ECDSAP256"), "\n", "\r\n")})
			},
			want: []string{"missing example.com/workload shop/api api shop/api.yaml:15 [shop]"},
		},
		"A symlink to a workload elsewhere in the repository": {
			before: func(r *repo) {
				r.write(map[string]string{"common/api.yaml": deployment("api", "web", "example.com/workload", "ECDSAP256")})
				link(r, "../common/api.yaml", "shop/api.yaml")
			},
			change: func(r *repo) { r.replace("common/api.yaml", "serviceAccountName: web", "serviceAccountName: api") },
			want:   []string{"missing example.com/workload shop/api api shop/api.yaml:15 [shop]"},
		},
		"A symlink out of the repository": {
			change: func(r *repo) { link(r, "../../outside.yaml", "shop/api.yaml") },
			want:   []string{"unknown apps/shop.yaml:1 [shop] Application shop (shop) cannot be rendered: shop/api.yaml: symlink shop/api.yaml -> ../../outside.yaml leaves the repository root"},
		},
		"A Git LFS pointer where a manifest should be": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/api.yaml": "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 12345\n"})
			},
			want: []string{"unknown apps/shop.yaml:1 [shop] Application shop (shop) cannot be rendered: shop/api.yaml: read shop/api.yaml: a Git LFS pointer, …"},
		},
		"An Application of another repository is not looked at, and when it changes that is said": {
			before: func(r *repo) {
				r.write(map[string]string{"apps/other.yaml": strings.Replace(application("other", "one", "x", ""), "shop.git", "other.git", 1)})
			},
			change: func(r *repo) { r.replace("apps/other.yaml", "path: one", "path: two") },
			want:   []string{"unknown apps/other.yaml:1 [other] Application other: this source has changed and is not in this repository: https://git.example.com/other.git path two; …"},
		},
		"An Application that another plugin renders": {
			change: func(r *repo) { r.replace("apps/shop.yaml", "path: shop", "path: shop\n    plugin: {name: other}") },
			want:   []string{"unknown apps/shop.yaml:1 [shop] Application shop (shop) cannot be rendered: it is rendered by plugin other, which is not run here"},
		},
		"A source that the source hydrator renders is judged": {
			change: func(r *repo) {
				r.write(map[string]string{"apps/shop.yaml": "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: shop, namespace: argocd}\nspec:\n  project: default\n  destination: {server: https://kubernetes.default.svc, namespace: shop}\n" +
					"  sourceHydrator:\n    drySource: {repoURL: https://git.example.com/shop.git, path: shop, targetRevision: main}\n    syncSource: {targetBranch: env, path: shop}\n",
					"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			want: []string{"missing example.com/workload shop/api api shop/api.yaml:15 [shop]"},
		},
		"Value files of another source of this repository": {
			change: func(r *repo) {
				r.write(map[string]string{"apps/chart.yaml": "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: chart, namespace: argocd}\nspec:\n  project: default\n  destination: {server: https://kubernetes.default.svc, namespace: chart}\n" +
					"  sources:\n  - {repoURL: https://git.example.com/shop.git, path: chart, helm: {valueFiles: [$values/env/prod.yaml]}}\n  - {repoURL: https://git.example.com/shop.git, ref: values}\n",
					"env/prod.yaml": "certificate: true\nserviceAccount: other\n"})
			},
			want: []string{"missing example.com/workload chart/other chart chart/templates/deploy.yaml:11 [chart]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := changedShop(t, c.before, c.change)
			report := check(t, newGate(t, r), "main", "change")
			want(t, report, c.want...)
			violates := false
			for _, line := range c.want {
				violates = violates || !strings.HasPrefix(line, "un") && !strings.HasSuffix(line, "existing")
			}
			if report.Violated() != violates {
				t.Errorf("violated %v, want %v", report.Violated(), violates)
			}
		})
	}
}

func link(r *repo, to, name string) {
	r.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		r.Fatal(err)
	}
	if err := os.Symlink(to, file); err != nil {
		r.Fatal(err)
	}
}

func TestATenantOfAnApplicationSetIsJudged(t *testing.T) {
	r := shop(t)
	tenants(t, r)
	r.branch("change", func() {
		r.write(map[string]string{
			"tenants/blue/app.yaml":  deployment("app", "app", "example.com/workload", "ECDSAP256"),
			"tenants/green/app.yaml": deployment("app", "other", "example.com/workload", "ECDSAP256"),
		})
	})
	g := newGate(t, r)
	report := check(t, g, "main", "change")
	if len(report.Findings) > 0 && strings.Contains(report.Findings[0].Message, "not expanded yet") {
		t.Skip("ApplicationSets are not expanded yet")
	}
	want(t, report, "missing example.com/workload tenant-green/other app tenants/green/app.yaml:15 [tenant-green]")
}

// The work tree is as it is: what is not committed counts, what is ignored does not, and it stays as it is.
func TestTheWorkTreeIsJudgedAndNotTouched(t *testing.T) {
	r := shop(t)
	r.write(map[string]string{".gitignore": "*.ignored.yaml\n"})
	r.commit("ignore")
	r.write(map[string]string{
		"shop/api.yaml":          deployment("api", "api", "example.com/workload", "ECDSAP256"),
		"shop/lost.ignored.yaml": deployment("lost", "lost", "example.com/workload", "ECDSAP256"),
	})
	r.replace("store/base/deploy.yaml", "serviceAccountName: store", "serviceAccountName: stores")
	status := r.git("status", "--porcelain=v2")
	objects := r.git("count-objects", "-v")
	g := newGate(t, r)
	want(t, check(t, g, "main", "worktree"),
		"missing example.com/workload shop/api api shop/api.yaml:15 [shop]",
		"missing example.com/workload store/stores prod-store store/base/deploy.yaml:15 [store]")
	if after := r.git("status", "--porcelain=v2"); after != status {
		t.Errorf("the work tree or the index has changed:\n%s\nwas\n%s", after, status)
	}
	if after := r.git("count-objects", "-v"); after != objects {
		t.Errorf("objects were written:\n%s\nwas\n%s", after, objects)
	}
}

func TestAfterACrissCrossMergeAGrantMustBeAtEveryMergeBase(t *testing.T) {
	r := shop(t)
	// main and dev merge each other's first commits, so both of those are merge bases.
	r.git("checkout", "--quiet", "-b", "dev")
	addGrant(r, grant("shop", "api"))
	d1 := r.commit("grant on dev")
	r.git("checkout", "--quiet", "main")
	r.replace(policyFile, grant("tenant-*", "app"), grant("tenant-*", "app")+",\n"+grant("shop", "db"))
	m1 := r.commit("another grant on main")
	r.git("merge", "--quiet", "--no-edit", d1)
	r.git("checkout", "--quiet", "dev")
	r.git("merge", "--quiet", "--no-edit", m1)
	r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256"), "shop/db.yaml": deployment("db", "db", "example.com/workload", "ECDSAP256")})
	r.commit("workloads on dev")
	g := newGate(t, r)
	report := check(t, g, "main", "dev")
	if len(report.Bases) != 2 {
		t.Fatalf("%d merge bases, want 2", len(report.Bases))
	}
	// Each is granted at one of the two.
	want(t, report, "ships-together example.com/workload shop/api api shop/api.yaml:15 [shop]", "ships-together example.com/workload shop/db db shop/db.yaml:15 [shop]")
	// The target branch has both by now, so nothing is to be moved.
	if err := g.Moves(context.Background(), report); err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings[:2] {
		if !strings.HasSuffix(f.Message, "is granted in the target branch by now, but not at the merge base: merge the target branch into this one, and check again") || len(f.Move) > 0 {
			t.Errorf("it says %q and to move %+v", f.Message, f.Move)
		}
	}
	// With main merged there is one.
	r.git("merge", "--quiet", "--no-edit", "main")
	want(t, check(t, newGate(t, r), "main", "dev"))
}

func TestSeveralMergeBasesAreMadeOneBeforeAnythingIsSplit(t *testing.T) {
	r := shop(t)
	r.git("checkout", "--quiet", "-b", "dev")
	r.write(map[string]string{"A": "a"})
	d1 := r.commit("on dev")
	r.git("checkout", "--quiet", "main")
	r.write(map[string]string{"B": "b"})
	m1 := r.commit("on main")
	r.git("merge", "--quiet", "--no-edit", d1)
	r.git("checkout", "--quiet", "dev")
	r.git("merge", "--quiet", "--no-edit", m1)
	addGrant(r, grant("shop", "api"))
	r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
	r.commit("both on dev")
	g := newGate(t, r)
	report := check(t, g, "main", "dev")
	want(t, report, "ships-together example.com/workload shop/api api shop/api.yaml:15 [shop]")
	if err := g.Moves(context.Background(), report); err != nil {
		t.Fatal(err)
	}
	if f := report.Findings[0]; !strings.Contains(f.Message, "merge the target branch into this one before") || len(f.Move) > 0 {
		t.Errorf("it says %q and to move %+v", f.Message, f.Move)
	}
}

func TestWhatTheTargetBranchGrantsByNowNeedsAMergeOfIt(t *testing.T) {
	r := shop(t)
	r.branch("missing", func() {
		r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
	})
	r.branch("together", func() {
		addGrant(r, grant("shop", "api"))
		r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
	})
	addGrant(r, grant("shop", "api"))
	r.commit("the grant on main")
	for _, verdict := range []string{"missing", "ships-together"} {
		branch := strings.TrimPrefix(verdict, "ships-")
		g := newGate(t, r)
		report := check(t, g, "main", branch)
		want(t, report, verdict+" example.com/workload shop/api api shop/api.yaml:15 [shop]")
		if f := report.Findings[0]; !strings.Contains(f.Message, "is granted in the target branch by now") {
			t.Errorf("%s: it says %q", branch, f.Message)
		}
		if _, err := g.Split(context.Background(), report); !errors.Is(err, gate.ErrNoSplit) {
			t.Errorf("%s: split: %v, want ErrNoSplit", branch, err)
		}
		r.git("checkout", "--quiet", branch)
		r.git("merge", "--quiet", "--no-edit", "main")
		want(t, check(t, newGate(t, r), "main", branch))
		r.git("checkout", "--quiet", "main")
	}
}

func TestASubmoduleThatIsRenderedIsUnknown(t *testing.T) {
	lib := newRepo(t)
	lib.write(map[string]string{"api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
	lib.commit("lib")
	r := shop(t)
	r.branch("change", func() {
		r.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", lib.dir, "lib")
		r.write(map[string]string{"apps/lib.yaml": application("lib", "lib", "shop", "")})
	})
	r.git("checkout", "--quiet", "--force", "main")
	want(t, check(t, newGate(t, r), "main", "change"), "unknown apps/lib.yaml:1 [lib] Application lib (lib) cannot be rendered: …")
}

func TestAShallowCloneSaysHowDeepToFetch(t *testing.T) {
	r := shop(t)
	for i := range 5 {
		r.write(map[string]string{"README": strings.Repeat("x", i+1)})
		r.commit("more")
	}
	r.git("checkout", "--quiet", "-b", "change", "main~4")
	r.write(map[string]string{"LICENSE": "x"})
	r.commit("change")
	shallow := &repo{TB: t, dir: t.TempDir()}
	shallow.git("clone", "--quiet", "--depth=2", "--no-single-branch", "file://"+r.dir, ".")
	g := newGate(t, shallow)
	_, err := g.Check(context.Background(), commit(t, g, "origin/main"), commit(t, g, "origin/change"))
	if !errors.Is(err, git.ErrShallow) {
		t.Fatalf("got %v, want ErrShallow", err)
	}
	for _, say := range []string{"git fetch --deepen=50", "git fetch --unshallow", "GIT_DEPTH: 0", "fetch-depth: 0"} {
		if !strings.Contains(err.Error(), say) {
			t.Errorf("the message %q lacks %q", err, say)
		}
	}
	shallow.git("fetch", "--quiet", "--deepen=50")
	g = newGate(t, shallow)
	g.URLs = []string{"https://git.example.com/shop.git"}
	if _, err := g.Check(context.Background(), commit(t, g, "origin/main"), commit(t, g, "origin/change")); err != nil {
		t.Errorf("after deepening: %v", err)
	}
}

func TestAnApplicationIsOfThisRepositoryInAnySpellingOfItsURL(t *testing.T) {
	for name, url := range map[string]string{
		"scp": "git@git.example.com:shop.git", "ssh": "ssh://git@git.example.com/shop", "ssh with a port": "ssh://git@git.example.com:22/shop.git",
		"token": "https://ci:secret@GIT.example.com/shop.git", "no suffix": "https://git.example.com/shop/",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := shop(t)
			r.git("remote", "set-url", "origin", url)
			r.branch("change", func() { r.replace("shop/web.yaml", "ECDSAP256", "ED25519") })
			want(t, check(t, newGate(t, r), "main", "change"), "denied example.com/workload shop/web web shop/web.yaml:15 [shop]")
		})
	}
}

func TestARepositoryThatNoApplicationNamesIsAnErrorAndNotGreen(t *testing.T) {
	r := shop(t)
	r.git("remote", "set-url", "origin", "https://mirror.example.com/shop.git")
	g := newGate(t, r)
	if _, err := g.Check(context.Background(), commit(t, g, "main"), commit(t, g, "main")); !errors.Is(err, gate.ErrNothing) || !strings.Contains(err.Error(), "--repo-url") {
		t.Errorf("got %v, want an error that names --repo-url", err)
	}
	g = newGate(t, r)
	g.URLs = []string{"https://git.example.com/shop"}
	want(t, check(t, g, "main", "main"))
}

func TestWithoutApplicationsFoldersAreRenderedThatNoOtherRefersTo(t *testing.T) {
	r := newRepo(t)
	r.write(map[string]string{
		"signer/policy.yaml":          "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy, namespace: team-signer}\ndata: {grants.yaml: \"[{namespace: shop, serviceAccount: web}]\"}\n",
		"web/base/kustomization.yaml": "resources: [deploy.yaml]\n",
		"web/base/deploy.yaml":        deployment("web", "web", "example.com/team-a", "ECDSAP256"),
		"web/prod/kustomization.yaml": "namespace: shop\nresources: [../base]\n",
		"docker-compose.yml":          "services: {web: {image: x}}\n",
		".github/workflows/ci.yml":    "on: push\n",
	})
	r.commit("main")
	r.branch("change", func() { r.replace("web/base/deploy.yaml", "serviceAccountName: web", "serviceAccountName: api") })
	report := check(t, newGate(t, r), "main", "change")
	want(t, report, "missing example.com/team-a shop/api web web/base/deploy.yaml:15 []")
	if report.Shared != 2 {
		t.Errorf("%d shared roots, want the signer and the root folder", report.Shared)
	}
}

func TestPathsSayWhatIsRendered(t *testing.T) {
	r := shop(t)
	r.branch("change", func() {
		r.replace("shop/web.yaml", "ECDSAP256", "ED25519")
		r.replace("store/base/deploy.yaml", "ECDSAP256", "ED25519")
	})
	g := newGate(t, r)
	g.Paths, g.Namespace = []string{"shop", "signer/overlays/prod"}, "shop"
	want(t, check(t, g, "main", "change"), "denied example.com/workload shop/web web shop/web.yaml:15 []")
	// A path with Applications in it stands for what those deploy.
	g = newGate(t, r)
	g.Paths = []string{"root.yaml"}
	want(t, check(t, g, "main", "change"),
		"denied example.com/workload shop/web web shop/web.yaml:15 [shop]",
		"denied example.com/workload store/store prod-store store/base/deploy.yaml:15 [store]")
}

func TestNothingToRenderIsAnErrorAndNotGreen(t *testing.T) {
	r := newRepo(t)
	r.write(map[string]string{"README.md": "x"})
	r.commit("one")
	g := newGate(t, r)
	if _, err := g.Check(context.Background(), commit(t, g, "main"), commit(t, g, "main")); !errors.Is(err, gate.ErrNothing) {
		t.Errorf("an empty repository: got %v, want ErrNothing", err)
	}
	r = shop(t)
	g = newGate(t, r)
	g.Paths = []string{"shop", "shopp"}
	if _, err := g.Check(context.Background(), commit(t, g, "main"), commit(t, g, "main")); !errors.Is(err, gate.ErrNothing) || !strings.Contains(err.Error(), "shopp") {
		t.Errorf("a misspelt path: got %v, want ErrNothing that names it", err)
	}
}

func TestAnApplicationSetThatCannotBeExpandedIsUnknown(t *testing.T) {
	r := shop(t)
	r.write(map[string]string{"sets/clusters.yaml": "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: everywhere, namespace: argocd}\nspec:\n  generators: [{clusters: {}}]\n  template:\n    metadata: {name: '{{name}}-app'}\n" +
		"    spec: {project: default, source: {repoURL: https://git.example.com/shop.git, path: shop}, destination: {name: '{{name}}', namespace: shop}}\n"})
	r.commit("set")
	report := check(t, newGate(t, r), "main", "main")
	want(t, report, "unknown sets/clusters.yaml:1 [] ApplicationSet argocd/everywhere cannot be expanded: …")
	if report.Violated() || !report.Uncertain() {
		t.Error("what cannot be expanded is neither a violation nor green")
	}
}

// A cut history may show an old common ancestor and hide the merge base.
func TestAShallowCloneThatHidesTheMergeBaseIsNotJudgedByAnOlderOne(t *testing.T) {
	r := shop(t)
	old := r.git("rev-parse", "HEAD")
	addGrant(r, grant("shop", "api"))
	r.commit("newer on main")
	// change has main in it by one of its parents, and the old commit by the other.
	r.git("checkout", "--quiet", "-b", "side", "main")
	r.write(map[string]string{"SIDE": "x"})
	cut := r.commit("on top of main")
	r.git("checkout", "--quiet", "-b", "change", old)
	r.write(map[string]string{"README": "x"})
	r.commit("change")
	r.git("merge", "--quiet", "--no-edit", "side")
	g := newGate(t, r)
	if bases, err := g.Repository.MergeBases(commit(t, g, "main"), commit(t, g, "change")); err != nil || bases[0].ID != r.git("rev-parse", "main") {
		t.Fatalf("in full: %v, %v", bases, err)
	}
	r.write(map[string]string{".git/shallow": cut + "\n"})
	g = newGate(t, r)
	if bases, err := g.Repository.MergeBases(commit(t, g, "main"), commit(t, g, "change")); !errors.Is(err, git.ErrShallow) {
		t.Errorf("cut: %v, %v, want ErrShallow", bases, err)
	}
}

func TestTheFirstApplicationOfARepositoryTakesNothingAway(t *testing.T) {
	policy := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: pod-cert-signer-1, namespace: pod-cert-signer}\ndata:\n  policy.json: |\n    " + strings.ReplaceAll(policyJSON(grant("shop", "web")), "\n", "\n    ")
	web := strings.Replace(deployment("web", "web", "example.com/workload", "ECDSAP256"), "  name: web\n", "  name: web\n  namespace: shop\n", 1)
	both := map[string]string{"apps/web.yaml": application("web", "web", "shop", ""), "apps/signer.yaml": application("signer", "signer", "pod-cert-signer", "")}
	for name, c := range map[string]struct {
		before, change map[string]string
		want           []string
	}{
		"of the signer":         {change: map[string]string{"apps/signer.yaml": both["apps/signer.yaml"]}},
		"of both":               {change: both},
		"nor does the last one": {before: both, change: map[string]string{"apps/web.yaml": "", "apps/signer.yaml": ""}},
		"of both, and asks for more": {
			change: map[string]string{"apps/web.yaml": both["apps/web.yaml"], "apps/signer.yaml": both["apps/signer.yaml"], "web/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")},
			want:   []string{"missing example.com/workload shop/api api web/api.yaml:15 [web]"},
		},
		"of both, and takes the grant": {
			change: map[string]string{"apps/web.yaml": both["apps/web.yaml"], "apps/signer.yaml": both["apps/signer.yaml"], "signer/policy.yaml": strings.Replace(policy, `"serviceAccount": "web"`, `"serviceAccount": "other"`, 1)},
			want:   []string{"revoked-while-used example.com/workload shop/web web web/web.yaml:16 [web]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepo(t)
			r.git("remote", "add", "origin", "git@git.example.com:shop.git")
			r.write(map[string]string{"signer/policy.yaml": policy, "web/web.yaml": web})
			r.write(c.before)
			r.commit("before")
			r.branch("change", func() { r.write(c.change) })
			want(t, check(t, newGate(t, r), "main", "change"), c.want...)
		})
	}
}
