package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// script stands for a program.
func script(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "program")
	write(t, path, "#!/bin/sh\n"+text)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAProcessIsStoppedAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	write(t, logFile(dir, "x"), "")
	run := func(text string) Process {
		t.Helper()
		p, err := start("x", script(t, text), dir, true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stop(context.Background(), p, 0) })
		return p
	}

	t.Run("one that ends on SIGTERM is not killed", func(t *testing.T) {
		p := run("trap 'echo ended by itself; exit 0' TERM\necho ready\nwhile :; do sleep 0.01; done")
		awaitLog(t, dir, "ready")
		if err := stop(t.Context(), p, time.Minute); err != nil || p.Running() {
			t.Errorf("running %v, %v", p.Running(), err)
		}
		awaitLog(t, dir, "ended by itself")
	})
	t.Run("one that ignores SIGTERM is killed after the grace", func(t *testing.T) {
		p := run("trap '' TERM\necho deaf\nwhile :; do sleep 0.01; done")
		awaitLog(t, dir, "deaf")
		if err := stop(t.Context(), p, 10*time.Millisecond); err != nil || p.Running() {
			t.Errorf("running %v, %v", p.Running(), err)
		}
	})
	t.Run("one that has ended needs nothing", func(t *testing.T) {
		p := run("exit 0")
		for p.Running() {
			if err := pause(t.Context(), time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		if err := stop(t.Context(), p, time.Minute); err != nil {
			t.Error(err)
		}
	})
	t.Run("somebody else's with the same id is left alone", func(t *testing.T) {
		p := run("while :; do sleep 0.01; done")
		earlier := p
		earlier.Started--
		if err := stop(t.Context(), earlier, time.Minute); err != nil || earlier.Running() || !p.Running() {
			t.Errorf("stopped: %v; the other runs: %v", err, p.Running())
		}
	})
}

func awaitLog(t *testing.T, dir, text string) {
	t.Helper()
	for {
		log, err := os.ReadFile(logFile(dir, "x"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(log), text) {
			return
		}
		if err := pause(t.Context(), time.Millisecond); err != nil {
			t.Fatalf("log %q lacks %q: %v", log, text, err)
		}
	}
}

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a cluster needs root")
	}
}

// dir is short: t.TempDir has the test's name in it, and sockets no room for that.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestAClusterThatCannotStart(t *testing.T) {
	needRoot(t)
	t.Run("says which part ended, and its last words; nothing is left but logs", func(t *testing.T) {
		dir := shortDir(t)
		_, err := Up(t.Context(), Programs{etcd: script(t, "echo out of cheese\nexit 1")}, Settings{Dir: dir, Log: io.Discard})
		if err == nil || !strings.Contains(err.Error(), etcd) || !strings.Contains(err.Error(), "out of cheese") || !strings.Contains(err.Error(), dir+"/logs") {
			t.Errorf("got %v", err)
		}
		entries, _ := os.ReadDir(dir)
		if len(entries) != 1 || entries[0].Name() != "logs" {
			t.Errorf("left: %v", entries)
		}
		if _, err := Load(dir); !errors.Is(err, ErrDown) {
			t.Errorf("load: %v", err)
		}
		// The logs do not stand in the way of the next.
		if _, err := Up(t.Context(), Programs{etcd: script(t, "exit 1")}, Settings{Dir: dir, Log: io.Discard}); err == nil || strings.Contains(err.Error(), "not empty") {
			t.Errorf("again: %v", err)
		}
	})
	t.Run("tries other ports when one is taken", func(t *testing.T) {
		var log strings.Builder
		_, err := Up(t.Context(), Programs{etcd: script(t, "echo 'bind: address already in use'\nexit 1")}, Settings{Dir: shortDir(t), Log: &log})
		if !errors.Is(err, errPortTaken) || strings.Count(log.String(), "trying other ports") != tries-1 {
			t.Errorf("got %v after %q", err, log.String())
		}
	})
	t.Run("stops what it started when the context ends", func(t *testing.T) {
		dir := shortDir(t)
		ctx, cancel := context.WithCancel(t.Context())
		pidFile := filepath.Join(t.TempDir(), "pid")
		done := make(chan error)
		go func() {
			_, err := Up(ctx, Programs{etcd: script(t, "echo $$ >"+pidFile+"\nexec sleep 1000")}, Settings{Dir: dir, Log: io.Discard})
			done <- err
		}()
		var c *Cluster
		for c == nil {
			c, _ = Load(dir)
			if err := pause(t.Context(), time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if err := <-done; err == nil {
			t.Error("no error")
		}
		if ended := c.Ended(); len(ended) != len(c.Processes) || len(ended) != 1 {
			t.Errorf("of %v ended %v", c.Processes, ended)
		}
	})
	t.Run("refuses a folder with something else in it", func(t *testing.T) {
		dir := shortDir(t)
		precious := filepath.Join(dir, "precious")
		write(t, precious, "x")
		if _, err := Up(t.Context(), nil, Settings{Dir: dir, Log: io.Discard}); err == nil || !strings.Contains(err.Error(), "precious") {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(precious); err != nil {
			t.Error(err)
		}
	})
	t.Run("refuses a path too long for sockets", func(t *testing.T) {
		if _, err := Up(t.Context(), nil, Settings{Dir: "/tmp/" + strings.Repeat("x", 80), Log: io.Discard}); err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("got %v", err)
		}
	})
}

func TestMountsBelowTheFolderAreSeen(t *testing.T) {
	const table = "" +
		"21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n" +
		"22 21 0:20 / /tmp/c1 rw - tmpfs tmpfs rw\n" +
		"23 21 0:21 / /tmp/a\\040b/x rw - tmpfs tmpfs rw\n"
	for name, test := range map[string]struct{ dir, want string }{
		"a mount at the folder":                           {"/tmp/c1", "/tmp/c1"},
		"a mount below it":                                {"/tmp", "/tmp/c1"},
		"a mount below a folder with a blank in its name": {"/tmp/a b", "/tmp/a b/x"},
		"not one that only begins with the same name":     {"/tmp/c", ""},
		"none": {"/var/tmp", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mountedBelow(table, test.dir); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestFreePortsAreDistinct(t *testing.T) {
	ports, err := freePorts(5)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if p == 0 || seen[p] {
			t.Errorf("ports %v", ports)
		}
		seen[p] = true
	}
}
