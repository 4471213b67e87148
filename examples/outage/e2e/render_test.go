package e2e_test

import (
	"strings"
	"testing"
)

// chart is the usual Application as a Helm chart, whose hooks are Helm's.
func chart(version, image, granted, volume string) map[string]string {
	return map[string]string{
		"app/Chart.yaml":            "apiVersion: v2\nname: shop\nversion: " + version + "\n",
		"app/values.yaml":           "image: " + image + "\n",
		"app/templates/web.yaml":    strings.ReplaceAll(workload, "example.test/web:v1", `{{ .Values.image | quote }}`) + volume,
		"app/templates/hooks.yaml":  strings.NewReplacer("argocd.argoproj.io/hook: PreSync", `"helm.sh/hook": "pre-install,pre-upgrade"`, "argocd.argoproj.io/hook: PostSync", `"helm.sh/hook": "post-install,post-upgrade"`).Replace(hooks),
		"app/templates/policy.yaml": policy(granted),
	}
}

func TestAHelmChartWithHooksIsHeldAndReleased(t *testing.T) {
	scenario(t, "8")
	s := newShop(t, setup{files: chart("1.0.0", "example.test/web:v1", "", ""), application: application{automated: "prune: true"}})
	s.push("the chart has a certificate, the grant of it, and another image", chart("1.1.0", "example.test/web:v2", grant, certificate))
	s.awaitHeld()
	s.isHeld()
	s.load()
	s.isReleased(1)
	for _, p := range s.pods() {
		if p.Spec.Containers[0].Image != "example.test/web:v2" {
			t.Errorf("pod %s has image %s, want that of the new values", p.Name, p.Spec.Containers[0].Image)
		}
	}
}

// kustomized is the usual Application by kustomize: settings with a hash in their name, and the policy without one, both generated.
func kustomized(colour, granted, volume string) map[string]string {
	_, text, _ := strings.Cut(policy(granted), "policy.json: |\n")
	return map[string]string{
		"app/web.yaml":    workload + volume,
		"app/hooks.yaml":  hooks,
		"app/policy.json": text,
		"app/kustomization.yaml": `resources: [web.yaml, hooks.yaml]
configMapGenerator:
- name: settings
  namespace: shop-$NAME
  literals: [colour=` + colour + `]
- name: policy
  namespace: signing-$NAME
  files: [policy.json]
  options: {disableNameSuffixHash: true}
patches:
- target: {kind: Deployment|ServiceAccount|Job}
  patch: |
    - {op: add, path: /metadata/namespace, value: shop-$NAME}
`,
	}
}

// withSettings mounts the settings beside the certificate.
const withSettings = `        volumeMounts: [{name: tls, mountPath: /tls}]
      volumes:
      - name: tls
        projected:
          sources:
          - configMap: {name: settings}
          - podCertificate: {signerName: example.test/$NAME, keyType: ECDSAP256, credentialBundlePath: bundle.pem}
`

func TestAKustomizationWithGeneratorsIsHeldAndReleased(t *testing.T) {
	scenario(t, "8")
	s := newShop(t, setup{files: kustomized("blue", "", mounts), application: application{automated: "prune: true"}})
	blue := s.settings()
	s.push("the workload has a certificate, the grant of it, and other settings", kustomized("green", grant, withSettings))
	s.awaitHeld()
	s.isHeld()
	if !s.exists(blue) {
		t.Error("the settings that the old pods mount are gone during the hold")
	}
	s.load()
	s.isReleased(1)
	if green := s.settings(); green == blue {
		t.Errorf("the pods mount %s still", blue)
	}
	s.await("the old settings are gone", func() bool { return !s.exists(blue) })
}

// settings is the name of the ConfigMap that the pods mount.
func (s *shop) settings() string {
	s.Helper()
	for _, v := range s.pods()[0].Spec.Volumes {
		if v.ConfigMap != nil {
			return v.ConfigMap.Name
		}
		for _, from := range v.Projected.Sources {
			if from.ConfigMap != nil {
				return from.ConfigMap.Name
			}
		}
	}
	s.Fatal("the workload mounts no settings")
	return ""
}

func TestAnApplicationMovesFromKustomizeToThePluginWithoutADiffOrARestart(t *testing.T) {
	scenario(t, "15")
	s := newShop(t, setup{files: kustomized("blue", grant, withSettings), application: application{plain: true, automated: "prune: true, selfHeal: true"}})
	from := len(s.story)
	seen := len(s.seen)
	s.app.patch(`{"spec":{"source":{"plugin":{"name":"grantfirst"}}}}`)
	s.await("the plugin is what Argo CD has asked", func() bool { return text(s.application(), "status", "sourceType") == "Plugin" })
	s.refreshed("hard")
	for _, line := range s.story[from:] {
		t.Log(line)
	}
	if n := len(s.seen); n != seen {
		t.Errorf("the Application was %v since it was moved, want no change", s.seen[seen:])
	}
	if !s.serve() {
		t.Error("pods were restarted")
	}
	if n := s.history(); n != s.before.history {
		t.Errorf("%d entries of history, want no new one", n)
	}
	s.push("a new image", map[string]string{"app/web.yaml": strings.ReplaceAll(workload, "web:v1", "web:v2") + withSettings})
	s.await("the new image runs", func() bool {
		pods := s.pods()
		for _, p := range pods {
			if !ready(&p) || p.DeletionTimestamp != nil || p.Spec.Containers[0].Image != "example.test/web:v2" {
				return false
			}
		}
		return len(pods) == 2
	})
	s.awaitSettled()
	if held := s.heldFor(); held > 0 {
		t.Errorf("held for %s, want no hold: the certificate was there before the plugin", held)
	}
}
