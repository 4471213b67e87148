package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

const cases = "../../../shared/cases"

// TestCases runs explain and generate over inputs with known answers.
func TestCases(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(cases, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Skipf("no cases at %s", cases)
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	// Nothing may be held, so that generate must give back its input.
	if err := os.WriteFile(config, []byte("apiVersion: grantfirst.dev/v1alpha1\nkind: Config\nunknownSigner: allow\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			part := func(name string) []byte {
				for _, f := range archive.Files {
					if f.Name == name {
						return f.Data
					}
				}
				t.Fatalf("no %s", name)
				return nil
			}
			var want struct {
				Error   string
				Demands []caseDemand
			}
			if err := json.Unmarshal(part("want.json"), &want); err != nil {
				t.Fatal(err)
			}
			grantfirst := func(args ...string) (stdout, stderr string, code int) {
				var out, errs bytes.Buffer
				code = run(append([]string{"grantfirst"}, args...), bytes.NewReader(part("in.yaml")), &out, &errs)
				return out.String(), errs.String(), code
			}
			stdout, stderr, code := grantfirst("explain", "-o", "json", "--config", config, "--namespace", "dest", "-")
			if want.Error != "" {
				if code != exitCouldNotTell || stdout != "" || !strings.Contains(stderr, want.Error) {
					t.Errorf("exit %d, stdout %q, stderr %q; want an error with %q", code, stdout, stderr, want.Error)
				}
				return
			}
			if code != 0 {
				t.Fatalf("exit %d: %s", code, stderr)
			}
			var got struct{ Demands []caseDemand }
			if err := json.Unmarshal([]byte(stdout), &got); err != nil {
				t.Fatal(err)
			}
			if a, b := sorted(got.Demands), sorted(want.Demands); !slices.Equal(a, b) {
				t.Errorf("demands %v, want %v", a, b)
			}
			stdout, stderr, code = grantfirst("generate", "--config", config, "--namespace", "dest", "-")
			if in := string(part("in.yaml")); code != 0 || stdout != in && stdout != "---\n"+in {
				t.Errorf("exit %d, %s, not byte for byte:\n%s", code, stderr, stdout)
			}
		})
	}
}

type caseDemand struct {
	SignerName, Namespace, ServiceAccount, KeyType string
	MaxExpirationSeconds                           int64
}

func sorted(demands []caseDemand) []string {
	out := make([]string, 0, len(demands))
	for _, d := range demands {
		out = append(out, fmt.Sprintf("%+v", d))
	}
	slices.Sort(out)
	return out
}
