package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// module is the module path of this folder, as its go.mod says.
const module = "github.com/grantfirst/grantfirst/examples/outage/kubernetes"

// kubernetesVersion is what the programs say when asked for their version.
// It follows go.mod; a test compares the two.
const kubernetesVersion = "1.37.2"

// program is one executable of the cluster.
type program struct {
	name string // of the executable
	path string // Go package, as "go build" takes it
	// sources are the folders of this module that it is made of; none for
	// programs that come from other modules, which go.sum pins.
	sources []string
}

const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	hollowNode        = "hollownode"
	enter             = "enter"
)

// The large ones first: what they share is then compiled before it is waited for.
var programs = []program{
	{apiServer, "k8s.io/kubernetes/cmd/kube-apiserver", nil},
	{hollowNode, "./hollownode", []string{"hollownode"}},
	{controllerManager, "k8s.io/kubernetes/cmd/kube-controller-manager", nil},
	{scheduler, "k8s.io/kubernetes/cmd/kube-scheduler", nil},
	{etcd, "go.etcd.io/etcd/server/v3", nil},
	{enter, "./hollownode/enter", []string{"hollownode/enter", "hollownode/rootfs"}},
}

// unused is how long an executable of another version stays in the cache after
// its last use.
const unused = 14 * 24 * time.Hour

// CacheDir is the default of Builder.Cache: $XDG_CACHE_HOME/grantfirst/kubernetes,
// or what the system has in place of the former.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache folder: %w: set XDG_CACHE_HOME", err)
	}
	return filepath.Join(dir, "grantfirst", "kubernetes"), nil
}

// FindModule returns the folder of this module: dir itself, or
// examples/outage/kubernetes below dir or one of its parents.
func FindModule(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		for _, candidate := range []string{at, filepath.Join(at, "examples", "outage", "kubernetes")} {
			text, err := os.ReadFile(filepath.Join(candidate, "go.mod"))
			if err == nil && strings.HasPrefix(string(text), "module "+module+"\n") {
				return candidate, nil
			}
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("module %s not found at or above %s: call this from within the repository", module, dir)
		}
	}
}

// Builder builds the programs that the cache lacks.
type Builder struct {
	Module string    // folder of this module, see FindModule
	Cache  string    // folder of the executables, see CacheDir; created when missing
	Jobs   int       // packages compiled at once; 0: as many as Go thinks fit
	Log    io.Writer // one line a program built, and what the compiler says
}

// Programs maps the name of a program to its executable's path.
type Programs map[string]string

// Build returns the executables, after building what is missing. They are kept
// by everything that goes into them: go.mod, go.sum, the sources of this
// module, Go's version and platform, and the flags. A second Build finds them
// without asking the compiler. One Build works at a time on a cache; others
// wait for it.
func (b *Builder) Build(ctx context.Context) (Programs, error) {
	if err := os.MkdirAll(b.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(b.Cache, "lock"), func() {
		fmt.Fprintln(b.Log, "another build is at work, waiting for it")
	})
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	defer unlock()

	platform, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return nil, fmt.Errorf("build: go env: %w", withStderr(err))
	}
	built := Programs{}
	for _, p := range programs {
		key, err := b.key(p, string(platform))
		if err != nil {
			return nil, fmt.Errorf("build %s: %w", p.name, err)
		}
		path := filepath.Join(b.Cache, p.name+"-"+key)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if err := b.build(ctx, p, path); err != nil {
				return nil, fmt.Errorf("build %s: %w", p.name, err)
			}
		} else if err != nil {
			return nil, fmt.Errorf("build %s: %w", p.name, err)
		}
		now := time.Now()
		if err := os.Chtimes(path, now, now); err != nil {
			return nil, fmt.Errorf("build %s: %w", p.name, err)
		}
		built[p.name] = path
	}
	return built, b.removeUnused(time.Now())
}

// flags are the arguments of "go build" that are part of the key. Cgo is off
// (see build), so the executables need nothing of the machine.
func flags() []string {
	const version = "k8s.io/component-base/version."
	major, rest, _ := strings.Cut(kubernetesVersion, ".")
	minor, _, _ := strings.Cut(rest, ".")
	// -buildvcs=false: a commit is not a reason to build again, and a folder
	// without one no reason to fail.
	return []string{"-trimpath", "-buildvcs=false", "-ldflags", fmt.Sprintf("-s -w -X %[1]sgitVersion=v%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s", version, kubernetesVersion, major, minor)}
}

// key is a digest of all that decides what p becomes.
func (b *Builder) key(p program, platform string) (string, error) {
	files := []string{"go.mod", "go.sum"}
	for _, dir := range p.sources {
		err := filepath.WalkDir(filepath.Join(b.Module, dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				rel, _ := filepath.Rel(b.Module, path)
				files = append(files, rel)
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q %q\n", p.path, platform, flags())
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(b.Module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %x\n", filepath.ToSlash(name), sha256.Sum256(text))
	}
	return fmt.Sprintf("%.16x", sum.Sum(nil)[:8]), nil
}

// build makes one executable. It appears under its name only when whole.
func (b *Builder) build(ctx context.Context, p program, path string) error {
	begun := time.Now()
	fmt.Fprintf(b.Log, "building %s (minutes when nothing of it is in Go's build cache)\n", p.name)
	part := path + ".part"
	args := append([]string{"build"}, flags()...)
	if b.Jobs > 0 {
		args = append(args, "-p", fmt.Sprint(b.Jobs))
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", part, p.path)...)
	cmd.Dir = b.Module
	// The caller's flags and workspace must not change what the key does not name.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = b.Log, b.Log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	fmt.Fprintf(b.Log, "built %s in %s\n", p.name, time.Since(begun).Round(time.Second))
	return nil
}

// removeUnused ends the cache's growth.
func (b *Builder) removeUnused(now time.Time) error {
	entries, err := os.ReadDir(b.Cache)
	if err != nil {
		return err
	}
	for _, e := range entries {
		isProgram := slices.ContainsFunc(programs, func(p program) bool { return strings.HasPrefix(e.Name(), p.name+"-") })
		if info, err := e.Info(); err == nil && isProgram && info.Mode().IsRegular() && now.Sub(info.ModTime()) > unused {
			if err := os.Remove(filepath.Join(b.Cache, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// lock takes the lock file at path and returns what gives it back. The kernel
// does the latter too when this process ends, however it ends. waiting is
// called once if somebody else has it.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for told := false; ; told = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			waiting()
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// pause waits for d, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// withStderr adds what a command printed, which exec.ExitError keeps to itself.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
