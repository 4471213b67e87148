package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is one running part of the cluster. A process id alone may be
// somebody else's by the time it is used; together with the time of its start
// it is not.
type Process struct {
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks since the machine's start, as in /proc/PID/stat
}

// start runs a program with its output in logs/NAME.log. It outlives this
// process and its terminal, unless bound: then it ends with the calling thread.
func start(name, path, dir string, bound bool, args ...string) (Process, error) {
	log, err := os.OpenFile(logFile(dir, name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return Process{}, err
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if bound {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	// Nothing of the caller's environment may change what the cluster does.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	if err := cmd.Start(); err != nil {
		return Process{}, err
	}
	// Nobody but Wait makes it disappear, even if it has ended already. Whether it
	// runs is asked of the kernel later on; Wait is so that no zombie stays.
	started, _, err := stat(cmd.Process.Pid)
	go cmd.Wait()
	return Process{name, cmd.Process.Pid, started}, err
}

// Running reports whether the process still runs.
func (p Process) Running() bool {
	started, state, err := stat(p.PID)
	return err == nil && started == p.Started && state != 'Z' && state != 'X'
}

// stat reads the start and the state of a process from /proc (see proc(5)).
func stat(pid int) (started uint64, state byte, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The command in parentheses may hold anything; what follows its last ")" is
	// field 3, the state. The start is field 22.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: %d fields after the command", pid, len(fields))
	}
	started, err = strconv.ParseUint(fields[19], 10, 64)
	return started, fields[0][0], err
}

// grace is how long a process may take to end by itself. Nothing that the
// cluster stores outlives it, so there is nothing to lose.
const grace = 5 * time.Second

// stop ends a process: SIGTERM, and SIGKILL if it is there after the grace.
// It returns when the process is gone.
func stop(ctx context.Context, p Process, grace time.Duration) error {
	const certain = 10 * time.Second // SIGKILL needs no time but the kernel's
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, certain}} {
		if p.Running() {
			syscall.Kill(p.PID, step.signal) // whether it is gone is asked below
		}
		for deadline := time.Now().Add(step.wait); ; {
			if !p.Running() {
				return nil
			}
			if time.Now().After(deadline) {
				break
			}
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return fmt.Errorf("stop %s: %w", p.Name, err)
			}
		}
	}
	return fmt.Errorf("stop %s: process %d is still there after SIGKILL", p.Name, p.PID)
}

func logFile(dir, name string) string { return filepath.Join(dir, "logs", name+".log") }

// tail gives the end of a log for an error's text.
func tail(dir, name string) string {
	text, err := os.ReadFile(logFile(dir, name))
	if err != nil || len(text) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return ":\n  " + strings.Join(lines[max(0, len(lines)-8):], "\n  ")
}

// errEnded says that a process ended while the cluster was being started.
var errEnded = errors.New("ended before it was ready")
