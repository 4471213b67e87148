// Package rootfs gives a process the view of files that a container has.
//
// In: a process that is alone in a new mount and process-id namespace, and a
// Spec. Out: the container's command in its place. The root is a tmpfs in the
// mount namespace, with the image's files and the pod's volumes bound into it
// at their paths, this machine's /usr read-only (for shells), a few devices and
// /proc. Nothing is written to this machine's own files, and all mounts vanish
// with the namespace.
//
// It isolates what a test looks at, files and user ids; it is no sandbox. The
// network is this machine's.
package rootfs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// Spec describes a container to Enter.
type Spec struct {
	Root     string   `json:"root"`     // an empty folder of this machine, to mount on
	Binds    []Bind   `json:"binds"`    // the image's files and the pod's volumes
	ReadOnly bool     `json:"readOnly"` // the root, not what is bound into it
	Dir      string   `json:"dir"`      // working folder; empty: /
	Args     []string `json:"args"`     // command and arguments; a command without "/" is looked up in PATH
	Env      []string `json:"env"`      // NAME=VALUE
	UID      int      `json:"uid"`
	GID      int      `json:"gid"`
	Groups   []int    `json:"groups"` // supplementary
}

// Bind shows a file or folder of this machine inside.
type Bind struct {
	Source   string `json:"source"` // must exist
	Path     string `json:"path"`   // inside; parents are made
	ReadOnly bool   `json:"readOnly"`
}

// Path is the PATH of containers that set none.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Enter makes the root and executes the command there. It returns only errors.
func Enter(s *Spec) error {
	if err := build(s); err != nil {
		return err
	}
	if err := syscall.Chroot(s.Root); err != nil {
		return fmt.Errorf("chroot %s: %w", s.Root, err)
	}
	if err := os.Chdir(cmp.Or(s.Dir, "/")); err != nil {
		return fmt.Errorf("working folder: %w", err)
	}
	command, err := lookUp(s.Args[0], s.Env)
	if err != nil {
		return err
	}
	if err := errors.Join(syscall.Setgroups(s.Groups), syscall.Setgid(s.GID), syscall.Setuid(s.UID)); err != nil {
		return fmt.Errorf("become user %d, group %d: %w", s.UID, s.GID, err)
	}
	// The kernel forgets at a change of user that this process ends with the one
	// that started it (PR_SET_PDEATHSIG(2const)); it remembers by thread.
	runtime.LockOSThread()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); errno != 0 {
		return fmt.Errorf("end with the hollow node: %w", errno)
	}
	if err := syscall.Exec(command, s.Args, s.Env); err != nil {
		return fmt.Errorf("execute %s: %w", command, err)
	}
	return nil
}

// build mounts everything below s.Root.
func build(s *Spec) error {
	// What is mounted from here on must not show outside of the namespace.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("tmpfs", s.Root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount root %s: %w", s.Root, err)
	}
	proc := filepath.Join(s.Root, "proc")
	if err := os.Mkdir(proc, 0o555); err != nil {
		return err
	}
	if err := syscall.Mount("proc", proc, "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	tmp := filepath.Join(s.Root, "tmp")
	if err := errors.Join(os.Mkdir(tmp, 0o777), os.Chmod(tmp, 0o777|os.ModeSticky)); err != nil {
		return err
	}

	binds := []Bind{{"/usr", "/usr", true}}
	for _, device := range []string{"null", "zero", "full", "random", "urandom"} {
		binds = append(binds, Bind{"/dev/" + device, "/dev/" + device, false})
	}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		info, err := os.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink == 0:
			binds = append(binds, Bind{name, name, true})
		default: // into /usr
			target, err := os.Readlink(name)
			if err == nil {
				err = os.Symlink(target, filepath.Join(s.Root, name))
			}
			if err != nil {
				return err
			}
		}
	}
	// A volume may be mounted inside another: the outer one first.
	volumes := slices.Clone(s.Binds)
	slices.SortStableFunc(volumes, func(a, b Bind) int { return cmp.Compare(len(a.Path), len(b.Path)) })
	for _, b := range append(binds, volumes...) {
		if err := bind(s.Root, b); err != nil {
			return fmt.Errorf("mount %s from %s: %w", b.Path, b.Source, err)
		}
	}
	if s.ReadOnly {
		if err := syscall.Mount("", s.Root, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make the root read-only: %w", err)
		}
	}
	return nil
}

func bind(root string, b Bind) error {
	info, err := os.Stat(b.Source)
	if err != nil {
		return err
	}
	target := filepath.Join(root, b.Path)
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		var file *os.File
		if file, err = os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
			err = file.Close()
		}
	}
	if err != nil {
		return err
	}
	if err := syscall.Mount(b.Source, target, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return err
	}
	if !b.ReadOnly {
		return nil
	}
	// A bind mount becomes read-only in a second step only (mount(2)).
	return syscall.Mount("", target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
}

// lookUp finds a command as execvp does, by the container's PATH.
func lookUp(command string, env []string) (string, error) {
	if strings.Contains(command, "/") {
		return command, nil
	}
	path := Path
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, command)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("command %q not found in %s", command, path)
}
