package gate_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/gate"
)

func split(t *testing.T, r *repo, base, head string) (*gate.Split, error) {
	t.Helper()
	g := newGate(t, r)
	return g.Split(context.Background(), check(t, g, base, head))
}

// applied commits a patch at main, on a branch.
func applied(t *testing.T, r *repo, patch []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "first.patch")
	if err := os.WriteFile(file, patch, 0o600); err != nil {
		t.Fatal(err)
	}
	r.git("checkout", "--quiet", "-B", "first", "main")
	r.git("apply", "--index", file)
	r.git("commit", "--quiet", "-m", "grants first")
}

// The proof that split works: the patch alone is green, and so is the rest after it.
func TestASplitChangeIsGreenInBothParts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*repo)
		// lacks must not be in the patch.
		lacks string
	}{
		"a grant in the middle of a list": {
			change: func(r *repo) {
				addGrant(r, grant("shop", "api"))
				r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			lacks: "shop/api.yaml",
		},
		"a grant at the end of a list, beside other changes of the policy's folder": {
			change: func(r *repo) {
				r.replace(policyFile, grant("tenant-*", "app"), grant("tenant-*", "app")+",\n"+grant("shop", "api"))
				r.replace("signer/base/signer.yaml", "image: i", "image: j")
				r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256")})
			},
			lacks: "image: j",
		},
		"a new signer with its Application": {
			change: func(r *repo) {
				r.write(map[string]string{
					"apps/team.yaml":   application("team-signer", "team", "team-signer", ""),
					"team/policy.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy}\ndata:\n  grants.yaml: |\n    - {namespace: shop, serviceAccount: web}\n",
				})
				r.replace("shop/web.yaml", "example.com/workload", "example.com/team-a")
			},
			lacks: "shop/web.yaml",
		},
		"a grant and its workload in one new file": {
			change: func(r *repo) {
				r.write(map[string]string{
					"apps/all.yaml": application("all", "all", "shop", ""),
					"all/all.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy, namespace: team-signer}\ndata:\n  grants.yaml: |\n    - {namespace: shop, serviceAccount: web}\n---\n" +
						deployment("all", "web", "example.com/team-a", "ECDSAP256"),
				})
			},
			lacks: "Deployment",
		},
		"a path with spaces and letters of another language, and Windows line ends": {
			change: func(r *repo) {
				addGrant(r, grant("läden", "api"))
				r.write(map[string]string{policyFile: strings.ReplaceAll(r.read(policyFile), "\n", "\r\n"), "läden und shops/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256"),
					"apps/l.yaml": application("l", `"läden und shops"`, "läden", "")})
			},
			lacks: "serviceAccountName",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := shop(t)
			r.branch("change", func() { c.change(r) })
			s, err := split(t, r, "main", "change")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(s.Patch), c.lacks) {
				t.Errorf("more than grants is in the patch:\n%s", s.Patch)
			}
			applied(t, r, s.Patch)
			g := newGate(t, r)
			first := check(t, g, "main", "first")
			if first.Violated() || first.Uncertain() {
				t.Errorf("the patch alone is red: %q", lines(first))
			}
			// The rest is what is left when the patch has been merged.
			rest, err := g.Compare(context.Background(), commit(t, g, "first"), commit(t, g, "change"))
			if err != nil {
				t.Fatal(err)
			}
			if rest.Violated() || rest.Uncertain() {
				t.Errorf("the rest is red: %q", lines(rest))
			}
		})
	}
}

func TestARenameIsSplitSoThatBothGrantsAreThere(t *testing.T) {
	r := shop(t)
	r.branch("change", func() {
		r.replace("shop/web.yaml", "serviceAccountName: web", "serviceAccountName: front")
		r.replace(policyFile, grant("shop", "web"), grant("shop", "front"))
	})
	s, err := split(t, r, "main", "change")
	if err != nil {
		t.Fatal(err)
	}
	applied(t, r, s.Patch)
	want(t, check(t, newGate(t, r), "main", "first"))
	for _, needs := range []string{grant("shop", "web"), grant("shop", "front")} {
		if !strings.Contains(r.read(policyFile), needs) {
			t.Errorf("the policy lacks %s:\n%s", needs, r.read(policyFile))
		}
	}
	// What is left takes the old grant away with the switch, which is a change of its own.
	want(t, s.Rest, "revoked-while-used example.com/workload shop/web web shop/web.yaml:15 [shop]")
}

func TestWhatIsToShipFirstIsSaidByItsLines(t *testing.T) {
	r := shop(t)
	r.branch("change", func() {
		addGrant(r, grant("shop", "api"))
		r.replace(policyFile, grant("tenant-*", "app"), grant("tenant-*", "app")+",\n"+grant("shop", "db"))
		r.write(map[string]string{"shop/api.yaml": deployment("api", "api", "example.com/workload", "ECDSAP256"), "shop/db.yaml": deployment("db", "db", "example.com/workload", "ECDSAP256")})
	})
	g := newGate(t, r)
	report := check(t, g, "main", "change")
	if err := g.Moves(context.Background(), report); err != nil {
		t.Fatal(err)
	}
	want(t, report, "ships-together example.com/workload shop/api api shop/api.yaml:15 [shop]", "ships-together example.com/workload shop/db db shop/db.yaml:15 [shop]")
	for i, line := range []string{"line 10 of signer/overlays/prod/policy.json", "lines 13 to 14 of signer/overlays/prod/policy.json"} {
		if f := report.Findings[i]; !strings.Contains(f.Message, "move "+line+" to a first merge request") || len(f.Move) != 1 {
			t.Errorf("finding %d: %q and %d moves, want %s", i, f.Message, len(f.Move), line)
		}
	}
	if text := report.Findings[0].Move[0].Text; text != grant("shop", "api")+",\n" {
		t.Errorf("the lines are %q", text)
	}
}

func TestWhatCannotBeSplitIsNoPatch(t *testing.T) {
	r := shop(t)
	r.branch("change", func() {
		// One line is the grant and the switch.
		r.write(map[string]string{
			"one/Chart.yaml": "apiVersion: v2\nname: one\nversion: 1.0.0\n", "one/values.yaml": "accounts: []\n",
			"one/templates/all.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy, namespace: team-signer}\ndata:\n  grants.yaml: |\n    []\n",
		})
	})
	r.git("merge", "--quiet", "change")
	r.branch("change", func() {
		r.write(map[string]string{
			"apps/one.yaml":   application("one", "one", "shop", ""),
			"one/values.yaml": "accounts: [api]\n",
			"one/templates/all.yaml": "{{ range .Values.accounts }}{{ $a := . }}apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy, namespace: team-signer}\ndata:\n  grants.yaml: |\n    - {namespace: shop, serviceAccount: {{ . }}}\n---\n" +
				strings.Replace(deployment("api", "{{ $a }}", "example.com/team-a", "ECDSAP256"), "---\n", "", 1) + "{{ end }}",
		})
	})
	if _, err := split(t, r, "main", "change"); !errors.Is(err, gate.ErrNoSplit) {
		t.Errorf("got %v, want ErrNoSplit", err)
	}
	if _, err := split(t, r, "main", "main"); !errors.Is(err, gate.ErrNoSplit) {
		t.Errorf("of nothing: got %v, want ErrNoSplit", err)
	}
}
