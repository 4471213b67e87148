// Package argocd builds Argo CD, for tests that run it on the Kubernetes of examples/outage/kubernetes.
//
// In: a module beside this file (v2, v3), which pins the version, and has a program of the parts that the tests run; or a checkout of any
// version. Out: a folder with the program and with the manifests that Argo CD is installed by. It runs nothing: the tests apply the
// manifests, as users do, and the cluster's node starts the program (package examples/outage/e2e). It never changes the manifests.
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
	// Program is the parts of Argo CD in one: it does what the name says that it is called by (v2/main.go, or Argo CD's cmd/main.go).
	Program = "argocd"
	// Manifests is Argo CD's own installation without API server and UI.
	Manifests = "core-install.yaml"
	// Verifier is the script of Argo CD's image that looks at the signatures of commits. v3.5 calls it for every render, and older ones only
	// where a project demands signatures.
	Verifier = "git-verify-wrapper.sh"
)

// Release is a version of Argo CD.
type Release struct {
	// Folder is that of the Go module that requires it, beside this file.
	Folder string
	// Module is the path of Argo CD's module.
	Module string
}

// The releases that the tests run on: Argo CD v2.14, and v3.2, the last minor one that Go's module proxy serves whole.
var (
	V2 = Release{"v2", "github.com/argoproj/argo-cd/v2"}
	V3 = Release{"v3", "github.com/argoproj/argo-cd/v3"}
)

// Build returns the folder with a release, after building what the cache lacks: about 9 CPU minutes. dir is the folder of this package.
// The folder's name is a digest of all that goes into it, so a second Build asks no compiler. Progress goes to log. One Build of a
// release works at a time; others wait for it.
func Build(ctx context.Context, dir string, r Release, log io.Writer) (string, error) {
	cache, unlock, err := lockCache(r.Folder)
	if err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	defer unlock()
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
	sources, err := tool(ctx, module, "list", "-m", "-f", "{{.Dir}}", r.Module)
	if err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	if err := build(ctx, module, ".", strings.TrimSpace(sources), part); err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	if err := os.Rename(part, built); err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	fmt.Fprintf(log, "built in %s\n", time.Since(begun).Round(time.Second))
	return built, nil
}

// BuildSource is Build for a checkout of Argo CD, of any version from v2.14 on, by its own program and its own go.mod. It asks the compiler each
// time, which knows best what has changed.
func BuildSource(ctx context.Context, source string, log io.Writer) (string, error) {
	cache, unlock, err := lockCache("source")
	if err != nil {
		return "", fmt.Errorf("build %s: %w", source, err)
	}
	defer unlock()
	begun := time.Now()
	fmt.Fprintf(log, "building Argo CD of %s (minutes when nothing of it is in Go's build cache)\n", source)
	part := filepath.Join(cache, "source.part")
	if err := build(ctx, source, "./cmd", source, part); err != nil {
		return "", fmt.Errorf("build %s: %w", source, err)
	}
	// Named by what it is, so that nothing is taken away from tests that run on another state of it.
	sum := sha256.New()
	for _, name := range []string{Program, Manifests, Verifier} {
		file, err := os.Open(filepath.Join(part, name))
		if err != nil {
			return "", fmt.Errorf("build %s: %w", source, err)
		}
		_, err = io.Copy(sum, file)
		if err := errors.Join(err, file.Close()); err != nil {
			return "", fmt.Errorf("build %s: %w", source, err)
		}
	}
	built := filepath.Join(cache, fmt.Sprintf("source-%.16x", sum.Sum(nil)[:8]))
	if _, err := os.Stat(built); err == nil {
		return built, os.RemoveAll(part)
	}
	if err := os.Rename(part, built); err != nil {
		return "", fmt.Errorf("build %s: %w", source, err)
	}
	fmt.Fprintf(log, "built in %s\n", time.Since(begun).Round(time.Second))
	return built, nil
}

// lockCache makes the caller the only one that builds this, until it calls unlock or ends.
func lockCache(what string) (cache string, unlock func(), err error) {
	cache, err = os.UserCacheDir()
	if err != nil {
		return "", nil, fmt.Errorf("cache folder: %w: set XDG_CACHE_HOME", err)
	}
	cache = filepath.Join(cache, "grantfirst", "argocd")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", nil, err
	}
	lock, err := os.OpenFile(filepath.Join(cache, what+".lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return "", nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		lock.Close()
		return "", nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return cache, func() { lock.Close() }, nil
}

// flags are part of the key. Cgo is off (see tool), so the program needs nothing of the machine.
var flags = []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w"}

func (r Release) key(ctx context.Context, module string) (string, error) {
	platform, err := tool(ctx, module, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q %q\n", platform, flags, []string{Program, Manifests, Verifier})
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %x\n", name, sha256.Sum256(text))
	}
	return fmt.Sprintf("%.16x", sum.Sum(nil)[:8]), nil
}

// build compiles a package of a module, and takes the manifests from Argo CD's sources.
func build(ctx context.Context, module, main, sources, into string) error {
	if err := os.RemoveAll(into); err != nil {
		return err
	}
	if err := os.Mkdir(into, 0o755); err != nil {
		return err
	}
	args := append([]string{"build"}, flags...)
	if _, err := tool(ctx, module, append(args, "-o", filepath.Join(into, Program), main)...); err != nil {
		return err
	}
	for from, mode := range map[string]fs.FileMode{"manifests/" + Manifests: 0o644, "hack/" + Verifier: 0o755} {
		text, err := os.ReadFile(filepath.Join(sources, from))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(into, filepath.Base(from)), text, mode); err != nil {
			return err
		}
	}
	return nil
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
