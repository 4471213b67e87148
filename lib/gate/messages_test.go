package gate_test

import (
	"strings"
	"testing"
)

func TestAMessageSaysWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*repo)
		want   string
		lacks  string
	}{
		"a revision that YAML takes for a number": {
			change: func(r *repo) { r.replace("apps/shop.yaml", "path: shop", "targetRevision: 1.10\n    path: shop") },
			want:   "Application shop: spec.source.targetRevision is a number and must be a text: quote it", lacks: "json",
		},
		"one in an ApplicationSet": {
			change: func(r *repo) {
				r.write(map[string]string{"sets/s.yaml": "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: s, namespace: argocd}\nspec:\n  generators: [{list: {elements: [{a: b}]}}]\n  template:\n    metadata: {name: x}\n" +
					"    spec: {project: default, source: {repoURL: https://git.example.com/shop.git, path: shop, targetRevision: 1.10}, destination: {name: in-cluster, namespace: shop}}\n"})
			},
			want: "ApplicationSet argocd/s cannot be expanded: not readable: spec.template.spec.source.targetRevision is a number and must be a text: quote it", lacks: "json",
		},
		"a name that YAML takes for false": {
			change: func(r *repo) { r.replace("apps/shop.yaml", "name: shop", "name: no") },
			want:   "metadata.name is false, which is no text: quote it",
		},
		"a tag that was not fetched": {
			change: func(r *repo) { r.replace("apps/shop.yaml", "path: shop", "targetRevision: v2.0\n    path: shop") },
			want:   "Application shop: revision v2.0 of this repository is not in this clone: git fetch --tags, or fetch that commit",
		},
		"a file that a base lacks": {
			change: func(r *repo) { r.replace("store/base/kustomization.yaml", "deploy.yaml", "gone.yaml") },
			want:   "kustomize build store/overlays/prod: store/base: accumulating resources from 'gone.yaml': ", lacks: "recursed",
		},
		"a folder that is no kustomization": {
			change: func(r *repo) { r.replace("store/base/kustomization.yaml", "deploy.yaml", "../../shop") },
			want:   "kustomize build store/overlays/prod: shop: unable to find one of 'kustomization.yaml'", lacks: "recursed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := shop(t)
			r.branch("change", func() { c.change(r) })
			report := check(t, newGate(t, r), "main", "change")
			if !report.Uncertain() {
				t.Fatal("it is not unknown")
			}
			for _, f := range report.Findings {
				if f.Verdict != "unknown" {
					continue
				}
				if !strings.Contains(f.Message, c.want) || c.lacks != "" && strings.Contains(f.Message, c.lacks) || len(f.Message) > 320 {
					t.Errorf("it says %q (%d characters)", f.Message, len(f.Message))
				}
			}
		})
	}
}
