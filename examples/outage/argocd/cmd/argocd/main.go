// Command argocd builds Argo CD for tests and runs a command in a network of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/grantfirst/grantfirst/examples/outage/argocd"
)

const usage = `Argo CD for tests (Linux, root). In the repository:

  argocd build [WHICH]            build what is missing; print the folder
  argocd run [WHICH] COMMAND…     the same, then run the command with ` + argocd.Variable + ` set, in
                                  a network namespace that has nothing but a loopback interface:
                                  parts of Argo CD listen on all addresses, and cannot be told not to

WHICH is one of

  -release NAME    v2 (default) or v3
  -source DIR      the version of a checkout of Argo CD
`

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "argocd: %v\n", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) == 0 || args[0] != "build" && args[0] != "run" {
		fmt.Fprint(os.Stderr, usage)
		return errors.New("which command?")
	}
	run := args[0] == "run"
	flags := flag.NewFlagSet("argocd "+args[0], flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	release := flags.String("release", argocd.V2.Folder, "")
	source := flags.String("source", "", "")
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if args = flags.Args(); run != (len(args) > 0) {
		fmt.Fprint(os.Stderr, usage)
		return errors.New("run needs a command, build takes none")
	}
	built, err := build(*release, *source)
	if err != nil {
		return err
	}
	if !run {
		fmt.Println(built)
		return nil
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	// A namespace is a thread's; the thread that executes the command gives it its own.
	runtime.LockOSThread()
	if err := ownNetwork(); err != nil {
		return fmt.Errorf("a network of its own: %w", err)
	}
	return syscall.Exec(path, args, append(os.Environ(), argocd.Variable+"="+built))
}

func build(release, source string) (string, error) {
	if source != "" {
		return argocd.BuildSource(context.Background(), source, os.Stderr)
	}
	dir, err := find()
	if err != nil {
		return "", err
	}
	for _, r := range []argocd.Release{argocd.V2, argocd.V3} {
		if r.Folder == release {
			return argocd.Build(context.Background(), dir, r, os.Stderr)
		}
	}
	return "", fmt.Errorf("no release %q: v2 or v3, or -source with a checkout", release)
}

// find returns the folder of package argocd, in this folder's repository.
func find() (string, error) {
	at, err := os.Getwd()
	for ; err == nil; at = filepath.Dir(at) {
		dir := filepath.Join(at, "examples", "outage", "argocd")
		if _, err := os.Stat(filepath.Join(dir, argocd.V2.Folder, "go.mod")); err == nil {
			return dir, nil
		}
		if at == filepath.Dir(at) {
			return "", errors.New("examples/outage/argocd is nowhere above: call this from within the repository")
		}
	}
	return "", err
}

// ownNetwork moves the calling thread into a new network namespace and switches its loopback interface on (netdevice(7)).
func ownNetwork() error {
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w (this needs root)", err)
	}
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(socket)
	var request struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], "lo")
	request.flags = syscall.IFF_UP | syscall.IFF_RUNNING
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(socket), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("switch lo on: %w", errno)
	}
	return nil
}
