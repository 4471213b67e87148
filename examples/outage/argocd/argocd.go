// Package argocd builds Argo CD, for tests that run it on the Kubernetes of examples/outage/kubernetes.
//
// In: a module beside this file (v2), which pins the version, and has a program of the parts that the tests run. Out: a folder with the
// program and with the manifests that Argo CD is installed by. It runs nothing: the tests apply the manifests, as users do, and the cluster's node starts the program (package
// examples/outage/e2e). It never changes the manifests.
package argocd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Variable names the environment variable by which tests are told the folder that Build returns.
const Variable = "GRANTFIRST_TEST_ARGOCD"

// What is in the folder that Build returns.
const (
	// Program is the parts of Argo CD in one: it does what the name says that it is called by (v2/main.go).
	Program = "argocd"
	// Manifests is Argo CD's own installation without API server and UI.
	Manifests = "core-install.yaml"
)

// Release is a version of Argo CD.
type Release struct {
	// Folder is that of the Go module that requires it, beside this file.
	Folder string
	// Module is the path of Argo CD's module.
	Module string
}

// V2 is Argo CD v2.14.
var V2 = Release{"v2", "github.com/argoproj/argo-cd/v2"}

// Build returns the folder with a release, after building what the cache lacks: about 9 CPU minutes. dir is the folder of this package.
// The folder's name is a digest of all that goes into it, so a second Build asks no compiler. Progress goes to log. One Build works at a
// time; others wait for it.
func Build(ctx context.Context, dir string, r Release, log io.Writer) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("build: cache folder: %w: set XDG_CACHE_HOME", err)
	}
	cache = filepath.Join(cache, "grantfirst", "argocd")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	defer lock.Close() // gives the lock back, too
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("build: lock %s: %w", lock.Name(), err)
	}
	module := filepath.Join(dir, r.Folder)
	key, err := r.key(ctx, module)
	if err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	built := filepath.Join(cache, r.Folder+"-"+key)
	if _, err := os.Stat(built); err == nil {
		return built, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("build: %w", err)
	}
	begun := time.Now()
	fmt.Fprintf(log, "building Argo CD %s (minutes when nothing of it is in Go's build cache)\n", r.Folder)
	// It appears under its name only when whole.
	part := built + ".part"
	if err := r.build(ctx, module, part); err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	if err := os.Rename(part, built); err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	fmt.Fprintf(log, "built in %s\n", time.Since(begun).Round(time.Second))
	return built, nil
}

// flags are part of the key. Cgo is off (see tool), so the program needs nothing of the machine.
var flags = []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w"}

func (r Release) key(ctx context.Context, module string) (string, error) {
	platform, err := tool(ctx, module, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q\n", platform, flags)
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %x\n", name, sha256.Sum256(text))
	}
	return fmt.Sprintf("%.16x", sum.Sum(nil)[:8]), nil
}

func (r Release) build(ctx context.Context, module, into string) error {
	if err := os.RemoveAll(into); err != nil {
		return err
	}
	if err := os.Mkdir(into, 0o755); err != nil {
		return err
	}
	args := append([]string{"build"}, flags...)
	if _, err := tool(ctx, module, append(args, "-o", filepath.Join(into, Program), ".")...); err != nil {
		return err
	}
	sources, err := tool(ctx, module, "list", "-m", "-f", "{{.Dir}}", r.Module)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(sources), "manifests", Manifests))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(into, Manifests), text, 0o644)
}

// tool runs the go command and returns what it prints.
func tool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// The caller's flags and workspace must not change what the key does not name.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
