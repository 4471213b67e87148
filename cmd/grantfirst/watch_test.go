package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestTheWatcherEndsWhenItIsToldTo starts a process whose API server is not there, asks for its health, and sends it SIGTERM.
func TestTheWatcherEndsWhenItIsToldTo(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.yaml": "apiVersion: grantfirst.dev/v1alpha1\nkind: Config\n",
		"kubeconfig": `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}],
  contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("grantfirst", "watch", "--config", filepath.Join(dir, "config.yaml"), "--kubeconfig", filepath.Join(dir, "kubeconfig"),
		"--identity", "one", "--listen", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	var address string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
		if _, after, ok := strings.Cut(lines.Text(), "msg=listening address="); ok {
			address = after
		}
		// By then it has tried to lead once, and waits.
		if !strings.Contains(lines.Text(), "level=ERROR") || address == "" {
			continue
		}
		for _, path := range []string{"healthz", "readyz"} {
			if err := healthy("http://" + address + "/" + path); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		address = ""
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
	for _, want := range []string{"msg=starting", "connection refused", `msg="told to end"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, log.String())
		}
	}
}

func healthy(url string) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", response.Status)
	}
	return nil
}
