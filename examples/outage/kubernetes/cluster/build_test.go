package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTheVersionThatProgramsSayIsThatOfGoMod(t *testing.T) {
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n\tk8s.io/kubernetes v"+kubernetesVersion+"\n") {
		t.Errorf("go.mod does not require k8s.io/kubernetes v%s", kubernetesVersion)
	}
	// All staging modules must be of that release: 1.37.2 is 0.37.2 there.
	staging := "v0." + strings.TrimPrefix(kubernetesVersion, "1.")
	for line := range strings.Lines(string(text)) {
		if from, to, ok := strings.Cut(strings.TrimSpace(line), " => "); ok && to != from+" "+staging {
			t.Errorf("%s is replaced by %s, want version %s", from, to, staging)
		}
	}
}

// checkout makes a folder that looks like this module to the builder.
func checkout(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                        "module " + module + "\n",
		"go.sum":                        "",
		"hollownode/main.go":            "package main\n",
		"hollownode/main_test.go":       "package main\n",
		"hollownode/enter/main.go":      "package main\n",
		"hollownode/rootfs/rootfs.go":   "package rootfs\n",
		"cluster/cluster.go":            "package cluster\n",
		"hollownode/containers/doc.txt": "",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestAProgramIsBuiltAgainWhenWhatGoesIntoItChanges(t *testing.T) {
	for name, test := range map[string]struct {
		change  string // file
		changed []string
	}{
		"go.mod goes into all":                    {"go.mod", []string{apiServer, etcd, hollowNode, enter}},
		"go.sum goes into all":                    {"go.sum", []string{apiServer, etcd, hollowNode, enter}},
		"the node's source goes into the node":    {"hollownode/main.go", []string{hollowNode}},
		"a source of two goes into both":          {"hollownode/rootfs/rootfs.go", []string{hollowNode, enter}},
		"a new source file goes in":               {"hollownode/new.go", []string{hollowNode}},
		"tests go into none":                      {"hollownode/main_test.go", nil},
		"the cluster's own source goes into none": {"cluster/cluster.go", nil},
		"what is no source goes into none":        {"hollownode/containers/doc.txt", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := Builder{Module: checkout(t)}
			before := keys(t, b, "go1 linux")
			write(t, filepath.Join(b.Module, test.change), "module "+module+"\n// changed\n")
			after := keys(t, b, "go1 linux")
			for _, name := range []string{apiServer, etcd, hollowNode, enter} {
				want := strings.Contains(" "+strings.Join(test.changed, " ")+" ", " "+name+" ")
				if got := before[name] != after[name]; got != want {
					t.Errorf("%s: built again %v, want %v", name, got, want)
				}
			}
		})
	}
	t.Run("Go's version and the platform go into all", func(t *testing.T) {
		b := Builder{Module: checkout(t)}
		for name, key := range keys(t, b, "go1 linux") {
			if keys(t, b, "go2 linux")[name] == key {
				t.Errorf("%s is the same with another Go", name)
			}
		}
	})
	t.Run("no two programs have the same key", func(t *testing.T) {
		seen := map[string]string{}
		for name, key := range keys(t, Builder{Module: checkout(t)}, "go1 linux") {
			if other := seen[key]; other != "" {
				t.Errorf("%s and %s: %s", name, other, key)
			}
			seen[key] = name
		}
	})
}

func keys(t *testing.T, b Builder, platform string) map[string]string {
	t.Helper()
	keys := map[string]string{}
	for _, p := range programs {
		key, err := b.key(p, platform)
		if err != nil {
			t.Fatal(err)
		}
		keys[p.name] = key
	}
	return keys
}

func TestWhatIsInTheCacheIsNotBuiltAgain(t *testing.T) {
	platform, err := exec.Command("go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	b := Builder{Module: checkout(t), Cache: t.TempDir(), Log: &log}
	for name, key := range keys(t, b, string(platform)) {
		write(t, filepath.Join(b.Cache, name+"-"+key), "an executable")
	}
	old, recent := filepath.Join(b.Cache, "etcd-old"), filepath.Join(b.Cache, "etcd-recent")
	write(t, old, "of another version")
	write(t, recent, "of another version")
	long := time.Now().Add(-unused - time.Hour)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	built, err := b.Build(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	if len(built) != len(programs) || log.Len() > 0 {
		t.Errorf("got %v, log %q", built, log.String())
	}
	if _, err := os.Stat(old); err == nil {
		t.Errorf("%s is still there", old)
	}
	if _, err := os.Stat(recent); err != nil {
		t.Error(err)
	}
}

func TestAFailedBuildLeavesNoProgramBehind(t *testing.T) {
	b := Builder{Module: checkout(t), Cache: t.TempDir(), Log: io.Discard}
	if _, err := b.Build(t.Context()); err == nil {
		t.Fatal("built kube-apiserver from an empty module")
	}
	left, err := filepath.Glob(filepath.Join(b.Cache, "*-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestOneBuildWorksAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path, func() { t.Error("waited for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := lock(ctx, path, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("a lock that is taken: got %v, want to wait until the context ends", err)
	}
	unlock()
	if unlock, err = lock(t.Context(), path, func() { t.Error("waited for nobody") }); err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestTheModuleIsFoundFromAnywhereInTheRepository(t *testing.T) {
	root := t.TempDir()
	within := filepath.Join(root, "examples", "outage", "kubernetes")
	write(t, filepath.Join(root, "go.mod"), "module other\n")
	write(t, filepath.Join(within, "go.mod"), "module "+module+"\n\ngo 1.26\n")
	write(t, filepath.Join(within, "cluster", "x.go"), "")
	write(t, filepath.Join(root, "lib", "x.go"), "")
	for _, from := range []string{root, within, filepath.Join(within, "cluster"), filepath.Join(root, "lib")} {
		if got, err := FindModule(from); err != nil || got != within {
			t.Errorf("from %s: got %s, %v", from, got, err)
		}
	}
	if got, err := FindModule(t.TempDir()); err == nil {
		t.Errorf("outside of the repository: got %s", got)
	}
}
