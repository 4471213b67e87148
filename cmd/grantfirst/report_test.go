package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestTheReporterEndsWhenItIsToldTo starts a process whose API server is not there, and sends it SIGTERM.
func TestTheReporterEndsWhenItIsToldTo(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"..1/policy.json": "{}",
		"kubeconfig": `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}],
  contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("..1", filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("grantfirst", "report", "--policy", filepath.Join(dir, "policy.json"), "--container", "signer", "--signer-name", "example.com/workload",
		"--namespace", "pcs", "--pod", "pcs-1", "--poll", "30s", "--kubeconfig", filepath.Join(dir, "kubeconfig"))
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
		// By then it has tried once, and waits.
		if strings.Contains(lines.Text(), "something is wrong") {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
	for _, want := range []string{
		`level=INFO msg=reporting pod=pcs/pcs-1 signer=example.com/workload`,
		`msg="the volume has a policy" pod=pcs/pcs-1 signer=example.com/workload revision=sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a`,
		`level=WARN msg="something is wrong"`, `reading the pod: `, `msg="told to end"`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, log.String())
		}
	}
	if stdout.Len() > 0 {
		t.Errorf("stdout %q", stdout.String())
	}
}
