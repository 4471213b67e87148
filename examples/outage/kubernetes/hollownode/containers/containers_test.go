package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// node is a runtime with one pod, demo/pod.
type node struct {
	*Runtime
	t       *testing.T
	dir     string
	pod     *runtimeapi.PodSandboxConfig
	sandbox string
}

// program is the executable of ../enter.
var program string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "enter")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "enter")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../enter")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%v\n%s", err, out))
		}
		return m.Run()
	}())
}

func newNode(t *testing.T, env ...string) *node {
	n := &node{t: t, dir: t.TempDir()}
	roots := filepath.Join(n.dir, "roots")
	if err := os.Mkdir(roots, 0o700); err != nil {
		t.Fatal(err)
	}
	n.Runtime = New(roots, program, env)
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(roots); err != nil || len(left) > 0 {
			t.Errorf("roots left: %v, %v", left, err)
		}
	})
	n.pod = &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "demo", Uid: "u1"},
		LogDirectory: filepath.Join(n.dir, "logs"),
	}
	var err error
	if n.sandbox, err = n.RunPodSandbox(t.Context(), n.pod, ""); err != nil {
		t.Fatal(err)
	}
	return n
}

// start starts a container named "main" of the image; attempt counts its starts.
func (n *node) start(image string, attempt uint32, change func(*runtimeapi.ContainerConfig)) string {
	n.t.Helper()
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main", Attempt: attempt},
		Image:    &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: image},
		LogPath:  fmt.Sprintf("main/%d.log", attempt),
		Linux:    &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{}},
	}
	if change != nil {
		change(config)
	}
	id, err := n.CreateContainer(n.t.Context(), n.sandbox, config, n.pod)
	if err == nil {
		err = n.StartContainer(n.t.Context(), id)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return id
}

// shell registers an image "shell" that runs the script of the container's first argument.
func (n *node) shell() {
	n.t.Helper()
	if os.Geteuid() != 0 {
		n.t.Skip("containers with processes need root")
	}
	if err := n.Register(Image{Name: "example.test/shell", Entrypoint: []string{"sh", "-c"}}); err != nil {
		n.t.Fatal(err)
	}
}

const shell = "example.test/shell:v1"

func script(text string) func(*runtimeapi.ContainerConfig) {
	return func(c *runtimeapi.ContainerConfig) { c.Args = []string{text} }
}

// container is the newest of the pod's.
func (n *node) container() Container {
	n.t.Helper()
	pod, err := n.Pod("demo", "pod")
	if err != nil {
		n.t.Fatal(err)
	}
	return pod.Containers[0]
}

// await waits until check says yes of the container.
func (n *node) await(what string, check func(Container) bool) Container {
	n.t.Helper()
	for {
		c := n.container()
		if check(c) {
			return c
		}
		select {
		case <-n.t.Context().Done():
			n.t.Fatalf("never %s: %+v", what, c)
		case <-time.After(time.Millisecond):
		}
	}
}

func exited(c Container) bool { return c.State == "exited" }

func logged(text string) func(Container) bool {
	return func(c Container) bool {
		log, _ := os.ReadFile(c.Log)
		return strings.Contains(string(log), text)
	}
}

func TestAContainerThatRunsNothing(t *testing.T) {
	n := newNode(t)
	n.start("example.test/anything", 0, nil)
	if c := n.container(); c.State != "running" || c.PID != 0 {
		t.Fatalf("after its start: %+v", c)
	}
	if err := n.Exit("demo", "pod", "main", 3); err != nil {
		t.Fatal(err)
	}
	if c := n.container(); c.State != "exited" || c.ExitCode != 3 || c.FinishedAt.Before(c.StartedAt) {
		t.Errorf("after exit: %+v", c)
	}
	if err := n.Exit("demo", "pod", "main", 0); !errors.Is(err, ErrNotRunning) {
		t.Errorf("exit again: %v", err)
	}

	id := n.start("example.test/anything", 1, nil)
	if c := n.container(); c.State != "running" || c.Attempt != 1 {
		t.Fatalf("after its restart: %+v", c)
	}
	if err := n.StopContainer(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if c := n.container(); c.State != "exited" || c.ExitCode != 0 {
		t.Errorf("after stop: %+v", c)
	}
	if err := n.RemoveContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if c := n.container(); c.Attempt != 0 {
		t.Errorf("after its removal: %+v", c)
	}
}

func TestAProcess(t *testing.T) {
	t.Run("has the image's files, the pod's volumes, arguments and environment, and its output in the log", func(t *testing.T) {
		n := newNode(t, "KUBERNETES_SERVICE_HOST=127.0.0.1")
		n.shell()
		volume := t.TempDir()
		file := filepath.Join(t.TempDir(), "f")
		for path, text := range map[string]string{filepath.Join(volume, "policy.json"): "the policy", file: "a file of the image"} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.Register(Image{Name: "example.test/shell", Entrypoint: []string{"sh", "-c"}, Files: map[string]string{"/opt/in/image": file}}); err != nil {
			t.Fatal(err)
		}
		n.start(shell, 0, func(c *runtimeapi.ContainerConfig) {
			c.Args = []string{`cat /etc/signer/policy.json /opt/in/image; echo; echo "$KUBERNETES_SERVICE_HOST $NAME $PATH $0"; pwd; ls /; exit 7`, "zero"}
			c.Envs = []*runtimeapi.KeyValue{{Key: "KUBERNETES_SERVICE_HOST", Value: []byte("10.0.0.1")}, {Key: "NAME", Value: []byte("a value")}}
			c.Mounts = []*runtimeapi.Mount{{HostPath: volume, ContainerPath: "/etc/signer", Readonly: true}}
			c.WorkingDir = "/tmp"
		})
		c := n.await("exited", exited)
		log, _ := os.ReadFile(c.Log)
		want := "the policya file of the image\n127.0.0.1 a value /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin zero\n/tmp\n"
		if c.ExitCode != 7 || !strings.HasPrefix(string(log), want) {
			t.Errorf("exit code %d, log:\n%swant:\n%s…", c.ExitCode, log, want)
		}
		if files := strings.Fields(strings.TrimPrefix(string(log), want)); slices.Contains(files, "root") || !slices.Contains(files, "usr") {
			t.Errorf("files in /: %v", files)
		}
		if c.Mounts["/etc/signer"] != volume {
			t.Errorf("mounts %v", c.Mounts)
		}
	})
	t.Run("sees a volume change as the kubelet changes it, by a link", func(t *testing.T) {
		n := newNode(t)
		n.shell()
		volume := t.TempDir()
		set := func(version, text string) {
			dir := filepath.Join(volume, version)
			if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "policy.json"), []byte(text), 0o644),
				os.Symlink(version, filepath.Join(volume, "new")), os.Rename(filepath.Join(volume, "new"), filepath.Join(volume, "..data"))); err != nil {
				t.Fatal(err)
			}
		}
		set("..1", "one")
		n.start(shell, 0, func(c *runtimeapi.ContainerConfig) {
			c.Args = []string{`was=$(cat /p/..data/policy.json); echo $was; while [ "$(cat /p/..data/policy.json)" = $was ]; do sleep 0.01; done`}
			c.Mounts = []*runtimeapi.Mount{{HostPath: volume, ContainerPath: "/p", Readonly: true}}
		})
		n.await("started", logged("one"))
		set("..2", "two")
		if c := n.await("exited", exited); c.ExitCode != 0 {
			t.Errorf("%+v", c)
		}
	})
	t.Run("has the pod's user and groups, and a root that it cannot write to if the pod says so", func(t *testing.T) {
		n := newNode(t)
		n.shell()
		volume := t.TempDir()
		if err := os.Chmod(volume, 0o777); err != nil {
			t.Fatal(err)
		}
		n.start(shell, 0, func(c *runtimeapi.ContainerConfig) {
			c.Args = []string{`id -u; id -g; id -G; touch /tmp/x || echo read-only; touch /p/x && touch /r/x || echo volume too; touch /usr/x || exit 9`}
			c.Mounts = []*runtimeapi.Mount{{HostPath: volume, ContainerPath: "/p"}, {HostPath: volume, ContainerPath: "/r", Readonly: true}}
			s := c.Linux.SecurityContext
			s.RunAsUser, s.RunAsGroup = &runtimeapi.Int64Value{Value: 65532}, &runtimeapi.Int64Value{Value: 65533}
			s.SupplementalGroups, s.ReadonlyRootfs = []int64{65534}, true
		})
		c := n.await("exited", exited)
		log, _ := os.ReadFile(c.Log)
		for _, want := range []string{"65532\n65533\n65533 65534\n", "\nread-only\n", "\nvolume too\n"} {
			if !strings.Contains(string(log), want) {
				t.Errorf("log lacks %q:\n%s", want, log)
			}
		}
		if c.ExitCode != 9 {
			t.Errorf("exit code %d", c.ExitCode)
		}
		if _, err := os.Stat(filepath.Join(volume, "x")); err != nil {
			t.Error(err)
		}
	})
	t.Run("gets SIGTERM when it is stopped", func(t *testing.T) {
		n := newNode(t)
		n.shell()
		id := n.start(shell, 0, script(`trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done`))
		n.await("up", logged("up"))
		if err := n.StopContainer(t.Context(), id, 60); err != nil {
			t.Fatal(err)
		}
		if c := n.container(); c.State != "exited" || c.ExitCode != 5 || !logged("bye")(c) {
			t.Errorf("%+v", c)
		}
	})
	t.Run("is killed with its children when it does not end", func(t *testing.T) {
		n := newNode(t)
		n.shell()
		id := n.start(shell, 0, script(`trap '' TERM; sleep 1000 & echo up; wait; wait`))
		c := n.await("up", logged("up"))
		child := children(t, c.PID)
		if err := n.StopContainer(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		if c := n.container(); c.ExitCode != 137 {
			t.Errorf("%+v", c)
		}
		for _, pid := range append(child, c.PID) {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("process %d: %v", pid, err)
			}
		}
		if len(child) == 0 {
			t.Error("it had no child")
		}
	})
	t.Run("ends with the code that a test wants", func(t *testing.T) {
		n := newNode(t)
		n.shell()
		n.start(shell, 0, script(`echo up; exec sleep 1000`))
		pid := n.await("up", logged("up")).PID
		if err := n.Exit("demo", "pod", "main", 0); err != nil {
			t.Fatal(err)
		}
		if c := n.container(); c.State != "exited" || c.ExitCode != 0 {
			t.Errorf("%+v", c)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d: %v", pid, err)
		}
	})
	t.Run("that cannot be started says why", func(t *testing.T) {
		n := newNode(t)
		n.shell()
		n.start(shell, 0, func(c *runtimeapi.ContainerConfig) { c.Command = []string{"/no/such"} })
		if c := n.await("exited", exited); c.ExitCode != 128 || !logged("/no/such")(c) {
			t.Errorf("%+v", c)
		}
	})
	t.Run("leaves its last words for the kubelet", func(t *testing.T) {
		n := newNode(t)
		n.shell()
		path := filepath.Join(t.TempDir(), "message") // which the kubelet does not create
		id := n.start(shell, 0, func(c *runtimeapi.ContainerConfig) {
			c.Args = []string{`echo last words >/dev/termination-log`}
			c.Mounts = []*runtimeapi.Mount{{HostPath: path, ContainerPath: "/dev/termination-log"}}
		})
		n.await("exited", exited)
		status, err := n.ContainerStatus(t.Context(), id, false)
		if err != nil || len(status.Status.Mounts) != 1 {
			t.Fatalf("%v, %v", status, err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "last words\n" {
			t.Errorf("%q, %v", text, err)
		}
	})
	t.Run("shows nothing of its mounts on this machine", func(t *testing.T) {
		n := newNode(t)
		n.shell()
		before := mounts(t)
		n.start(shell, 0, script(`echo up; exec sleep 1000`))
		n.await("up", logged("up"))
		if after := mounts(t); after != before {
			t.Errorf("mounts are now:\n%s", after)
		}
	})
}

// children reads the child processes of a process.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range strings.Fields(string(text)) {
		var pid int
		fmt.Sscan(f, &pid)
		pids = append(pids, pid)
	}
	return pids
}

func mounts(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPodsHaveAddressesOfTheirOwn(t *testing.T) {
	n := newNode(t)
	seen := map[string]bool{}
	for i := range 600 {
		name := fmt.Sprint("p", i)
		if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "demo", Uid: name}}, ""); err != nil {
			t.Fatal(err)
		}
		pod, err := n.Pod("demo", name)
		if err != nil {
			t.Fatal(err)
		}
		if seen[pod.IP] || !strings.HasPrefix(pod.IP, "127.1.") || strings.HasSuffix(pod.IP, ".0") || strings.HasSuffix(pod.IP, ".255") {
			t.Fatalf("%s has %s", name, pod.IP)
		}
		seen[pod.IP] = true
	}
}

func TestImagesAreKnownByTheirNameWithoutVersion(t *testing.T) {
	for image, want := range map[string]string{
		"signer":                                 "signer",
		"signer:v1":                              "signer",
		"example.test/a/signer:v1":               "example.test/a/signer",
		"example.test:5000/signer":               "example.test:5000/signer",
		"example.test:5000/signer:v1":            "example.test:5000/signer",
		"example.test/signer@sha256:0123":        "example.test/signer",
		"example.test:5000/signer:v1@sha256:012": "example.test:5000/signer",
	} {
		if got := repository(image); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}

func TestTheKubeletIsToldTheImagesUser(t *testing.T) {
	n := newNode(t)
	if err := n.Register(Image{Name: "example.test/signer", UID: 65532}); err != nil {
		t.Fatal(err)
	}
	images := n.Images()
	for image, want := range map[string]*int64{"example.test/signer:v1": ptr(65532), "example.test/other:v1": nil} {
		spec := &runtimeapi.ImageSpec{Image: image}
		if _, err := images.PullImage(t.Context(), spec, nil, nil); err != nil {
			t.Fatal(err)
		}
		status, err := images.ImageStatus(t.Context(), spec, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := status.Image.Uid; (got == nil) != (want == nil) || got != nil && got.Value != *want {
			t.Errorf("%s: user %v", image, got)
		}
	}
}

func ptr(i int64) *int64 { return &i }

func TestTheControlSocket(t *testing.T) {
	n := newNode(t)
	n.start("example.test/anything", 0, nil)
	server := httptest.NewServer(n.Control())
	defer server.Close()
	for _, test := range []struct {
		name, method, path, body string
		status                   int
		says                     string
	}{
		{"a pod is shown", "GET", "/pods/demo/pod", "", 200, `"uid":"u1"`},
		{"a pod that is not there is not found", "GET", "/pods/demo/other", "", 404, "demo/other"},
		{"an exit code must be one", "POST", "/pods/demo/pod/containers/main/exit?code=256", "", 400, "256"},
		{"a container that is not there is not found", "POST", "/pods/demo/pod/containers/other/exit", "", 404, "other"},
		{"a container exits", "POST", "/pods/demo/pod/containers/main/exit?code=4", "", 204, ""},
		{"its exit code is shown", "GET", "/pods/demo/pod", "", 200, `"state":"exited","exitCode":4`},
		{"it does not exit twice", "POST", "/pods/demo/pod/containers/main/exit", "", 409, "exited"},
		{"an image is registered", "PUT", "/images", `{"name":"a","files":{"/x":"/usr/bin/true"},"entrypoint":["/x"]}`, 204, ""},
		{"an image with a tag is refused", "PUT", "/images", `{"name":"a:b"}`, 400, "a:b"},
		{"an image with a file that is not there is refused", "PUT", "/images", `{"name":"a","files":{"/x":"/no/such"}}`, 400, "/no/such"},
		{"an image with a relative path is refused", "PUT", "/images", `{"name":"a","files":{"x":"/usr/bin/true"}}`, 400, "absolute"},
		{"a word that nobody knows is refused", "PUT", "/images", `{"name":"a","file":{}}`, 400, "file"},
		{"no JSON is refused", "PUT", "/images", `no`, 400, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), test.method, server.URL+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != test.status || !strings.Contains(string(body), test.says) {
				t.Errorf("got %d %s, want %d %s", response.StatusCode, string(body), test.status, test.says)
			}
			if test.method == "GET" && test.status == 200 {
				if err := json.Unmarshal(body, new(Pod)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
