package loaded

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// FuzzEvaluate reads anything and evaluates it for signers of all kinds: nothing panics, and every replica either has a policy or says
// why it has none.
func FuzzEvaluate(f *testing.F) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range archives {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, a := range archive.Files {
			switch a.Name {
			case "objects":
				f.Add(a.Data)
			case "signer":
			default:
				if _, patches, _ := strings.Cut(string(a.Data), "---\n"); strings.TrimSpace(patches) != "" {
					f.Add([]byte(patches))
				}
			}
		}
	}
	f.Add([]byte(`{"apiVersion": "grantfirst.dev/v1alpha1", "kind": "Snapshot", "takenAt": "2026-11-29T10:00:00Z", "problems": [{"signerName": "a.b/c", "message": "forbidden"}]}`))
	signers := []*config.Signer{
		{SignerName: "example.com/workload", Namespace: "pcs", Evidence: config.Settle, PodSelector: "app=pcs", Settle: &config.Settling{Seconds: 180, Restarts: true},
			Policy: config.Policy{ConfigMap: config.ConfigMap{NamePrefix: "policy"}, Key: "policy.yaml", Format: policy.FormatGrants}},
		{SignerName: "example.com/workload", Namespace: "pcs", Evidence: config.Status, PodSelector: "app=pcs",
			Policy: config.Policy{Resource: &config.Resource{APIVersion: "policy.example.com/v1", Kind: "SignerPolicy", Resource: "signerpolicies"}, Format: policy.FormatCEL,
				Granted: "demand.serviceAccount == object.spec.serviceAccount", Loaded: "object.status.byPod.exists(p, p.id == pod.metadata.name && p.observedGeneration == object.metadata.generation)"}},
		{SignerName: "example.com/workload", Namespace: "pcs", Evidence: config.PodVolumes, PodSelector: "app=pcs",
			Policy: config.Policy{ConfigMap: config.ConfigMap{NamePrefix: "policy"}, Key: "policy.yaml", Format: policy.FormatGrants}},
		{SignerName: "example.com/*", Namespace: "pcs", Evidence: config.Report, PodSelector: "app=pcs",
			Policy: config.Policy{ConfigMap: config.ConfigMap{Selector: "!a"}, Key: "policy.yaml", Format: policy.FormatGrants}},
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := emptySnapshot()
		if err := s.add("fuzz.yaml", raw); err != nil {
			if err.Error() == "" {
				t.Fatal("an error that says nothing")
			}
			return
		}
		for _, signer := range signers {
			o, err := s.Objects(t.Context(), signer)
			if err != nil {
				// The Snapshot says so.
				continue
			}
			e := Evaluate(signer, o)
			if signer.Evidence == config.Settle && !e.Unproven {
				t.Error("settling proves nothing")
			}
			for _, r := range e.Replicas {
				if (r.Policy == nil) != (r.Problem != "") || strings.Contains(r.Problem, "\n") {
					t.Errorf("replica %s: policy %v, problem %q", r.Pod, r.Policy, r.Problem)
				}
			}
			e.Decide(asking("web"), true)
		}
	})
}
