package gate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/gate"
)

const (
	signerJSON = "signer/policy.yaml"
	teamYAML   = "team/policy.yaml"
)

// inConfigMap is the policy of pod-cert-signer as text in a ConfigMap, each of the grants as it is given.
func inConfigMap(grants string) string {
	text := strings.Replace(policyJSON(), "\n\n  ]", "\n"+grants+"\n  ]", 1)
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: pod-cert-signer-x, namespace: pod-cert-signer}\ndata:\n  policy.json: |\n" +
		"    " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    ") + "\n"
}

func teamPolicy(grants string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: policy, namespace: team-signer}\ndata:\n  grants.yaml: " + grants
}

func multiline(namespace, serviceAccount string) string {
	return fmt.Sprintf("    {\n      \"namespace\": %q,\n      \"serviceAccount\": %q,\n      \"usage\": \"client\"\n    }", namespace, serviceAccount)
}

// A rename takes the old grant away with the new one in one line, in whatever form the policy is written. What check promises split does.
func TestARenameIsSplitWhereverItsGrantStands(t *testing.T) {
	const jsonSigner, teamSigner = "example.com/workload", "example.com/team-a"
	for name, c := range map[string]struct {
		signer, file, before string
		// old and new is what the change replaces in the file.
		old, new string
	}{
		"the last entry of a JSON policy":             {jsonSigner, signerJSON, inConfigMap(grant("x", "b") + ",\n" + grant("shop", "web")), `"web"`, `"front"`},
		"the only entry of a JSON policy":             {jsonSigner, signerJSON, inConfigMap(grant("shop", "web")), `"web"`, `"front"`},
		"the first entry of a JSON policy":            {jsonSigner, signerJSON, inConfigMap(grant("shop", "web") + ",\n" + grant("x", "b")), `"web"`, `"front"`},
		"an entry on several lines of a JSON policy":  {jsonSigner, signerJSON, inConfigMap(multiline("shop", "web") + ",\n" + multiline("x", "b")), `"web"`, `"front"`},
		"the last of entries on several lines":        {jsonSigner, signerJSON, inConfigMap(multiline("x", "b") + ",\n" + multiline("shop", "web")), `"web"`, `"front"`},
		"two lines of one entry":                      {jsonSigner, signerJSON, inConfigMap(multiline("shop", "web")), "\"web\",\n          \"usage\": \"client\"", "\"front\",\n          \"usage\": \"server\", \"dnsNames\": [\"front.shop.svc\"]"},
		"all grants on one line":                      {jsonSigner, signerJSON, inConfigMap(strings.ReplaceAll(grant("x", "b")+", "+grant("shop", "web"), "    ", "")), `"web"`, `"front"`},
		"the only entry of a flow list":               {teamSigner, teamYAML, teamPolicy("\"[{namespace: shop, serviceAccount: web}]\"\n"), "web}", "front}"},
		"the last entry of a flow list":               {teamSigner, teamYAML, teamPolicy("\"[{namespace: x, serviceAccount: b}, {namespace: shop, serviceAccount: web}]\"\n"), "web}", "front}"},
		"the last entry of a flow list on some lines": {teamSigner, teamYAML, teamPolicy("|\n    [\n      {namespace: x, serviceAccount: b},\n      {namespace: shop, serviceAccount: web}\n    ]\n"), "web}", "front}"},
		"a flow list on some lines, without a break":  {teamSigner, teamYAML, teamPolicy("|\n    [{namespace: x, serviceAccount: b},\n     {namespace: shop, serviceAccount: web}]\n"), "web}", "front}"},
		"an item on one line":                         {teamSigner, teamYAML, teamPolicy("|\n    - {namespace: shop, serviceAccount: web}\n    - {namespace: x, serviceAccount: b}\n"), "web}", "front}"},
		"an item on two lines":                        {teamSigner, teamYAML, teamPolicy("|\n    - namespace: shop\n      serviceAccount: web\n    - namespace: x\n      serviceAccount: b\n"), ": web", ": front"},
		"the last item on two lines, and a comment":   {teamSigner, teamYAML, teamPolicy("|\n    - namespace: x\n      serviceAccount: b\n\n    # ours\n    - namespace: shop\n      serviceAccount: web\n"), ": web", ": front"},
		"an item that begins with what changes":       {teamSigner, teamYAML, teamPolicy("|\n    - serviceAccount: web\n      namespace: shop\n"), ": web", ": front"},
		"a last line without an end":                  {teamSigner, teamYAML, teamPolicy("|\n    - namespace: shop\n      serviceAccount: web"), ": web", ": front"},
		"Windows line ends":                           {jsonSigner, signerJSON, strings.ReplaceAll(inConfigMap(multiline("shop", "web")), "\n", "\r\n"), `"web"`, `"front"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepo(t)
			web := strings.Replace(deployment("web", "web", c.signer, "ECDSAP256"), "  name: web\nspec", "  name: web\n  namespace: shop\nspec", 1)
			r.write(map[string]string{c.file: c.before, "shop/web.yaml": web})
			r.commit("main")
			r.branch("change", func() {
				r.replace(c.file, c.old, c.new)
				r.replace("shop/web.yaml", "serviceAccountName: web", "serviceAccountName: front")
			})
			g := newGate(t, r)
			report := check(t, g, "main", "change")
			want(t, report, "revoked-while-used "+c.signer+" shop/web web shop/web.yaml:16 []", "ships-together "+c.signer+" shop/front web shop/web.yaml:16 []")
			if t.Failed() {
				t.FailNow()
			}
			if err := g.Moves(context.Background(), report); err != nil {
				t.Fatal(err)
			}
			if m := report.Findings[1]; !strings.Contains(m.Message, "to a first merge request, beside what it replaces (") || !strings.Contains(m.Message, "(grantfirst split writes it)") || len(m.Move) == 0 || m.Move[0].From < 1 {
				t.Errorf("check says %q with %+v", m.Message, m.Move)
			}
			s, err := g.Split(context.Background(), report)
			if err != nil {
				t.Fatal(err)
			}
			applied(t, r, s.Patch)
			want(t, check(t, g, "main", "first"))
			// The old grant is there as it was, and the rest goes only against its being taken away with the switch.
			want(t, s.Rest, "revoked-while-used "+c.signer+" shop/web web shop/web.yaml:16 []")
			if after := r.read(c.file); strings.Contains(c.before, "\r\n") != strings.Contains(after, "\r\n") || strings.Count(after, "\r\n") > 0 && strings.Count(after, "\r\n") != strings.Count(after, "\n") {
				t.Errorf("line ends are mixed: %q", after)
			}
		})
	}
}

// A file whose lines all differ in what nobody sees: only the line that grants is one to move, and it comes with the file's own line ends.
func TestLineEndsAndIndentationAreNoGrants(t *testing.T) {
	windows := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
	one, two := grant("shop", "web"), grant("shop", "web")+",\n"+grant("shop", "api")
	list := func(depth string, names ...string) string {
		text := "|\n"
		for _, n := range names {
			text += depth + "- namespace: shop\n" + depth + "  serviceAccount: " + n + "\n"
		}
		return teamPolicy(text)
	}
	for name, c := range map[string]struct {
		signer, file, before, after string
		from, to                    int
	}{
		"from Unix to Windows":                     {"example.com/workload", signerJSON, inConfigMap(one + ",\n" + grant("x", "b")), windows(inConfigMap(two + ",\n" + grant("x", "b"))), 15, 15},
		"from Windows to Unix":                     {"example.com/workload", signerJSON, windows(inConfigMap(one + ",\n" + grant("x", "b"))), inConfigMap(two + ",\n" + grant("x", "b")), 15, 15},
		"JSON that is indented anew":               {"example.com/workload", signerJSON, inConfigMap(multiline("shop", "web")), strings.ReplaceAll(inConfigMap(multiline("shop", "api")+",\n"+multiline("shop", "web")), "      ", "        "), 14, 18},
		"items that are indented anew":             {"example.com/team-a", teamYAML, list("    ", "web", "x"), list("      ", "web", "api", "x"), 8, 9},
		"items that are indented anew, at the end": {"example.com/team-a", teamYAML, list("        ", "web"), list("    ", "web", "api"), 8, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepo(t)
			r.write(map[string]string{c.file: c.before, "README": "x"})
			r.commit("main")
			r.branch("change", func() {
				r.write(map[string]string{c.file: c.after, "shop/api.yaml": strings.Replace(deployment("api", "api", c.signer, "ECDSAP256"), "  name: api\nspec", "  name: api\n  namespace: shop\nspec", 1)})
			})
			g := newGate(t, r)
			report := check(t, g, "main", "change")
			if err := g.Moves(context.Background(), report); err != nil {
				t.Fatal(err)
			}
			f := report.Findings[0]
			if f.Verdict != gate.ShipsTogether || len(f.Move) != 1 || f.Move[0].From != c.from || f.Move[0].To != c.to || strings.Contains(f.Move[0].Text, "web") {
				t.Errorf("%s %q\n%+v", f.Verdict, f.Message, f.Move)
			}
			s, err := g.Split(context.Background(), report)
			if err != nil {
				t.Fatal(err)
			}
			applied(t, r, s.Patch)
			want(t, check(t, g, "main", "first"))
			if n := strings.Count(r.read(c.file), "\r\n"); n != 0 && n != strings.Count(r.read(c.file), "\n") || n > 0 != strings.Contains(c.before, "\r\n") {
				t.Errorf("line ends are not the base's: %q", r.read(c.file))
			}
			if added := strings.Count(string(s.Patch), "\n-"); added > 2 {
				t.Errorf("the patch takes lines away:\n%s", s.Patch)
			}
		})
	}
}

func TestWhatCannotBeSplitIsNotPromised(t *testing.T) {
	r := newRepo(t)
	r.write(map[string]string{teamYAML: teamPolicy("|\n    {{ .Values.none }}\n"), "chart/Chart.yaml": "apiVersion: v2\nname: chart\nversion: 1.0.0\n", "chart/values.yaml": "account: web\n",
		"chart/templates/all.yaml": teamPolicy("\"[{namespace: shop, serviceAccount: {{ .Values.account }}}]\"\n") + "---\n" + strings.Replace(deployment("web", "{{ .Values.account }}", "example.com/team-a", "ECDSAP256"), "  name: web\nspec", "  name: web\n  namespace: shop\nspec", 1)})
	r.write(map[string]string{teamYAML: ""})
	r.commit("main")
	r.branch("change", func() { r.replace("chart/values.yaml", "web", "front") })
	g := newGate(t, r)
	report := check(t, g, "main", "change")
	if err := g.Moves(context.Background(), report); err != nil {
		t.Fatal(err)
	}
	want(t, report, "revoked-while-used example.com/team-a shop/web web chart/templates/all.yaml:22 []", "ships-together example.com/team-a shop/front web chart/templates/all.yaml:22 []")
	if f := report.Findings[1]; strings.Contains(f.Message, "grantfirst split") || len(f.Move) > 0 || !strings.Contains(f.Message, "by hand") {
		t.Errorf("check says %q with %+v", f.Message, f.Move)
	}
}
