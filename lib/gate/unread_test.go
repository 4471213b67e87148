package gate_test

import (
	"fmt"
	"strings"
	"testing"
)

// custom is a custom resource with a podCertificate source where no pod spec is.
func custom(name, above string) string {
	return fmt.Sprintf(`apiVersion: example.com/v1
kind: Broker
metadata:
  name: %s
spec:
  size: 1
%s  extraVolumes:
  - name: tls
    projected:
      sources:
      - podCertificate:
          signerName: example.com/workload
          keyType: ECDSAP256
`, name, above)
}

func TestASourceInNoPodSpecIsNeverPassedOver(t *testing.T) {
	const cannotTell = "unknown shop/broker.yaml:11 [shop] a podCertificate of signer example.com/workload at spec.extraVolumes[0].projected.sources[0].podCertificate is in no pod spec and has no serviceAccountName around it…"
	for name, c := range map[string]struct {
		before func(*repo)
		change func(*repo)
		want   []string
		green  bool
	}{
		"Who will ask cannot be told": {
			change: func(r *repo) { r.write(map[string]string{"shop/broker.yaml": custom("broker", "")}) },
			want:   []string{cannotTell},
		},
		"and not when the object changes": {
			before: func(r *repo) { r.write(map[string]string{"shop/broker.yaml": custom("broker", "")}) },
			change: func(r *repo) { r.replace("shop/broker.yaml", "size: 1", "size: 2") },
			want:   []string{cannotTell},
		},
		"A change beside it makes nothing worse, and it is said": {
			before: func(r *repo) { r.write(map[string]string{"shop/broker.yaml": custom("broker", "")}) },
			change: func(r *repo) { r.replace("shop/web.yaml", "app:1", "app:2") },
			want:   []string{cannotTell},
			green:  true,
		},
		"nor does a policy that changes": {
			before: func(r *repo) { r.write(map[string]string{"shop/broker.yaml": custom("broker", "")}) },
			change: func(r *repo) { addGrant(r, grant("shop", "new")) },
			want:   []string{cannotTell},
			green:  true,
		},
		"The ServiceAccount that is named around it is who asks": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/broker.yaml": custom("broker", "  serviceAccountName: broker\n"), "shop/web-too.yaml": custom("web-too", "  serviceAccountName: web\n")})
			},
			want: []string{"missing example.com/workload shop/broker broker shop/broker.yaml:12 [shop]"},
		},
		"and its grant ships first": {
			change: func(r *repo) {
				addGrant(r, grant("shop", "broker"))
				r.write(map[string]string{"shop/broker.yaml": custom("broker", "  serviceAccountName: broker\n")})
			},
			want: []string{"ships-together example.com/workload shop/broker broker shop/broker.yaml:12 [shop]"},
		},
		"The nearest counts, also as a map with a name": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/broker.yaml": custom("broker", "  serviceAccount: {create: true, name: broker}\n")})
				r.replace("shop/broker.yaml", "metadata:\n", "serviceAccountName: web\nmetadata:\n")
			},
			want: []string{"missing example.com/workload shop/broker broker shop/broker.yaml:13 [shop]"},
		},
		"and where it cannot be read, nothing further out does": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/broker.yaml": custom("broker", "  serviceAccount: {create: true}\n")})
				r.replace("shop/broker.yaml", "metadata:\n", "serviceAccountName: web\nmetadata:\n")
			},
			want: []string{strings.Replace(cannotTell, ":11", ":13", 1)},
		},
		"In a list, after an object with a pod spec": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/broker.yaml": inList(deployment("api", "web", "example.com/workload", "ECDSAP256"), custom("broker", ""))})
			},
			want: []string{strings.Replace(cannotTell, ":11", ":32", 1)},
		},
		"Volumes that are a map": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/broker.yaml": "apiVersion: example.com/v1\nkind: Broker\nmetadata: {name: broker}\nspec:\n  volumes:\n    tls: {projected: {sources: [{podCertificate: {keyType: ECDSAP256}}]}}\n"})
			},
			want: []string{"unknown shop/broker.yaml:6 [shop] a podCertificate at spec.volumes.tls.projected.sources[0].podCertificate…"},
		},
		"What only speaks of pods asks for nothing": {
			change: func(r *repo) {
				r.write(map[string]string{
					"shop/crd.yaml":  "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: brokers.example.com}\nspec:\n  versions:\n  - schema: {openAPIV3Schema: {properties: {sources: {items: {properties: {podCertificate: {properties: {signerName: {type: string}}, default: {signerName: a/b}}}}}}}}\n",
					"shop/text.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: text}\ndata:\n  a: |\n" + "    " + strings.ReplaceAll(custom("x", ""), "\n", "\n    ") + "\n",
					"shop/rule.yaml": "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: rule}\nspec: {rules: [{validate: {pattern: {spec: {=(volumes): [{projected: {sources: [{podCertificate: {signerName: example.com/*}}]}}]}}}}]}\n",
					"shop/app.yaml":  strings.Replace(application("more", "shop", "shop", "    helm: {valuesObject: {extraVolumes: [{name: tls, projected: {sources: [{podCertificate: {signerName: a/b}}]}}]}}\n"), "path: shop", "path: chart", 1),
					"shop/info.yaml": "apiVersion: example.com/v1\nkind: Broker\nmetadata: {name: info}\nspec: {podCertificate: enabled, features: {podCertificate: {enabled: true}}}\n",
				})
			},
			green: true,
		},
		"nor does what Argo CD never applies": {
			change: func(r *repo) {
				r.write(map[string]string{"shop/broker.yaml": strings.Replace(custom("broker", ""), "  name: broker", "  name: broker\n  annotations: {argocd.argoproj.io/hook: Skip}", 1)})
			},
			green: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := changedShop(t, c.before, c.change)
			report := check(t, newGate(t, r), "main", "change")
			want(t, report, c.want...)
			if green := !report.Violated() && !report.Uncertain(); green != c.green {
				t.Errorf("green %v, want %v", green, c.green)
			}
		})
	}
}
