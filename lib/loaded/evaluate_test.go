package loaded

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// The policy texts of the fixtures: new grants ServiceAccount web of namespace shop, old only api.
const (
	oldText = "- {namespace: shop, serviceAccount: api}\n"
	newText = oldText + "- {namespace: shop, serviceAccount: web}\n"
)

func asking(serviceAccount string) *demand.Demand {
	return &demand.Demand{SignerName: "example.com/workload", Namespace: "shop", ServiceAccount: serviceAccount, KeyType: "ECDSAP256", MaxExpirationSeconds: 86400}
}

// TestEvaluate runs the archives of testdata. The file "signer" is the signer's configuration and "objects" what is there at first. Every
// other file is a case, named by the rule it shows: first what is expected, a line for each replica; then, after a line of dashes, JSON
// merge patches for objects that are there, and further objects. Expected is
//
//	POD: [pending] [terminating] old|new    it decides by that text; custom resources may also grant nothing
//	POD: [pending] [terminating] unknown REASON…
//	live: OBJECT old|new|unreadable REASON…, or live: none
//	problem: REASON…
//
// where REASON is contained in what is said, and "signer: PATCH" patches the configuration.
func TestEvaluate(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archive: %v", err)
	}
	for _, file := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			base := map[string][]byte{}
			for _, f := range archive.Files {
				switch f.Name {
				case "signer", "objects":
					base[f.Name] = f.Data
				default:
					t.Run(f.Name, func(t *testing.T) {
						want, patches, _ := strings.Cut(string(f.Data), "---\n")
						got := evaluate(t, base["signer"], base["objects"], want, patches)
						compare(t, got, want)
					})
				}
			}
		})
	}
}

func evaluate(t *testing.T, signerText, objects []byte, want, patches string) policy.Evidence {
	t.Helper()
	signer := decode(t, string(signerText))
	for line := range strings.Lines(want) {
		if patch, ok := strings.CutPrefix(line, "signer: "); ok {
			signer = merge(signer, decode(t, patch)).(map[string]any)
		}
	}
	var s config.Signer
	text, err := yaml.Marshal(signer)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}

	var all []map[string]any
	for _, doc := range strings.Split(string(objects), "---\n") {
		all = append(all, decode(t, doc))
	}
	for _, doc := range strings.Split(patches, "---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		patch := decode(t, doc)
		patched := false
		for i, o := range all {
			if key(o) == key(patch) {
				all[i], patched = merge(o, patch).(map[string]any), true
			}
		}
		if !patched {
			all = append(all, patch)
		}
	}
	var stream bytes.Buffer
	for _, o := range all {
		if o["gone"] == true {
			continue
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		stream.WriteString("---\n" + string(text))
	}
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, stream.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	snapshot, err := Read(path)
	if err != nil {
		t.Fatalf("%v\n%s", err, stream.Bytes())
	}
	read, err := snapshot.Objects(context.Background(), &s)
	if err != nil {
		t.Fatal(err)
	}
	e := Evaluate(&s, read)
	if e.Kind != s.Evidence || e.Unproven != (s.Evidence == config.Settle) {
		t.Errorf("evidence %s: kind %s, unproven %v", s.Evidence, e.Kind, e.Unproven)
	}
	// A snapshot has no more than this, and must give the same.
	compare(t, Evaluate(&s, Essential(&s, read)), want)
	return e
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &m); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

func key(o map[string]any) string {
	meta, _ := o["metadata"].(map[string]any)
	return fmt.Sprint(o["kind"], meta["name"])
}

// merge is a JSON merge patch (RFC 7396).
func merge(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out := map[string]any{}
	if t, ok := target.(map[string]any); ok {
		for k, v := range t {
			out[k] = v
		}
	}
	for k, v := range p {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = merge(out[k], v)
		}
	}
	return out
}

func compare(t *testing.T, got policy.Evidence, want string) {
	t.Helper()
	var lines []string
	live := false
	for line := range strings.Lines(want) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "live: "):
			live = true
		case line == "" || strings.HasPrefix(line, "signer: "):
			continue
		}
		lines = append(lines, line)
	}
	var said []string
	if got.Problem != "" {
		said = append(said, "problem: "+got.Problem)
	}
	for i := range got.Replicas {
		said = append(said, describe(t, &got.Replicas[i]))
	}
	if live {
		said = append(said, describeLive(t, got.Live))
	}
	same := len(said) == len(lines)
	for i := 0; same && i < len(said); i++ {
		before, reason, found := strings.Cut(lines[i], "unknown ")
		if !found {
			before, reason, found = strings.Cut(lines[i], "unreadable ")
		}
		if !found {
			before, reason, found = strings.Cut(lines[i], "problem: ")
		}
		if found {
			same = strings.HasPrefix(said[i], before) && strings.Contains(said[i][len(before):], reason) && !strings.HasSuffix(said[i], " old") && !strings.HasSuffix(said[i], " new")
		} else {
			same = said[i] == lines[i]
		}
	}
	if !same {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(said, "\n"), strings.Join(lines, "\n"))
	}
}

// describe says what a replica does with two demands, one that both texts grant and one that only the new one does.
func describe(t *testing.T, r *policy.Replica) string {
	t.Helper()
	if all, ok := r.Policy.(policy.Alternatives); ok {
		return r.Pod + ":" + special(r) + " " + resourcesText(t, all)
	}
	line := r.Pod + ":" + special(r)
	if (r.Policy == nil) != (r.Problem != "") {
		t.Errorf("policy %v and problem %q", r.Policy, r.Problem)
	}
	if r.Policy == nil {
		return line + " unknown " + r.Problem
	}
	return line + " " + textOf(t, r.Policy, r.Revision)
}

func special(r *policy.Replica) string {
	about := ""
	if r.Pending {
		about += " pending"
	}
	if r.Terminating {
		about += " terminating"
	}
	return about
}

// resourcesText says what custom resources together do with the two demands.
func resourcesText(t *testing.T, all policy.Alternatives) string {
	t.Helper()
	api, web := all.Decide(asking("api")), all.Decide(asking("web"))
	switch {
	case web.Decision == policy.Unknown:
		return "unknown " + web.Message
	case api.Decision == policy.Granted && web.Decision == policy.Granted:
		return "new"
	case api.Decision == policy.Granted:
		return "old"
	case web.Decision == policy.NotGranted && api.Decision == policy.NotGranted:
		return "nothing"
	}
	t.Errorf("api: %+v, web: %+v", api, web)
	return ""
}

func describeLive(t *testing.T, live policy.Alternatives) string {
	t.Helper()
	if len(live) == 0 {
		return "live: none"
	}
	o := &live[0]
	switch {
	case len(live) > 1 || o.NotLoaded != "":
		t.Errorf("live objects: %+v", live)
	case o.Policy == nil:
		return "live: " + o.Name + " unreadable " + o.Problem
	}
	if o.Kind != "ConfigMap" || o.Namespace != "pcs" {
		t.Errorf("live object: %s", o)
	}
	return "live: " + o.Name + " " + textOf(t, o.Policy, o.Revision)
}

func textOf(t *testing.T, p policy.Policy, revision string) string {
	t.Helper()
	if d := p.Decide(asking("api")).Decision; d != policy.Granted {
		t.Errorf("the demand that both texts grant: %s", d)
	}
	granted := p.Decide(asking("web")).Decision == policy.Granted
	switch revision {
	case policy.Revision([]byte(newText)):
		if !granted {
			t.Error("the new text does not grant")
		}
		return "new"
	case policy.Revision([]byte(oldText)):
		if granted {
			t.Error("the old text grants")
		}
		return "old"
	}
	return revision
}
