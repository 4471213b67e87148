package conformance_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheTestsAreTheSameForEachRelease(t *testing.T) {
	files, err := filepath.Glob("../../v2/conformance/*.go")
	if err != nil || len(files) < 5 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		if name == "release_test.go" || name == "doc.go" {
			continue
		}
		of2, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		of3, err := os.ReadFile(filepath.Join("../../v3/conformance", name))
		if err != nil {
			t.Fatal(err)
		}
		const module = "argo-cd/v"
		to3 := func(text []byte) string { return strings.ReplaceAll(string(text), module+"2/", module+"3/") }
		if to3(of2) != to3(of3) {
			t.Errorf("%s is not the same: go generate in v3/conformance", name)
		}
	}
}
