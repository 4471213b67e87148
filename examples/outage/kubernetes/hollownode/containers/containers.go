// Package containers is the container runtime of the hollow node.
//
// In: what the kubelet asks of a runtime (CRI), and a test's requests on the
// control socket (Control). Out: containers of two kinds. One whose image was
// registered is a real process on this machine, with the pod's volumes at their
// paths, its environment, user, log, exit code and signals: a signer that exits
// when its policy changes is restarted by the kubelet as anywhere. One with any
// other image runs nothing, is Running at once and until somebody stops it, or
// makes it exit on the control socket.
//
// Sandboxes, image pulls and all that the kubelet asks about them are
// Kubernetes' own fakes (k8s.io/cri-api/pkg/apis/testing). The network is this
// machine's: each pod has a loopback address of its own (127.1.0.0/16), that of
// the API server is in KUBERNETES_SERVICE_HOST and _PORT, and what listens on
// all addresses collides with its neighbours, so let it listen on the pod's.
//
// What it never does: pull an image, limit resources, stop a process from what
// its user may do. kubectl exec, logs and port-forward do not work (the node
// serves nothing); logs are files, and Pod says where.
package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	apitest "k8s.io/cri-api/pkg/apis/testing"

	"github.com/grantfirst/grantfirst/examples/outage/kubernetes/hollownode/rootfs"
)

// Image says what a container of that image is on this machine.
type Image struct {
	Name       string            `json:"name"`       // as pods name it, without tag and digest: all versions are the same
	Files      map[string]string `json:"files"`      // path in the image: path on this machine
	Entrypoint []string          `json:"entrypoint"` // unless the pod has a command
	UID        int64             `json:"uid"`        // unless the pod has runAsUser
}

// Runtime implements the kubelet's RuntimeService (k8s.io/cri-api/pkg/apis).
type Runtime struct {
	*apitest.FakeRuntimeService // its lock is taken after mu

	dir     string   // empty roots of running processes
	enter   string   // executable of hollownode/enter
	env     []string // for every process; wins over the kubelet's
	starts  chan func()
	mu      sync.Mutex
	images  map[string]Image
	known   map[string]*container // by container id
	numPods int                   // sandboxes made so far
}

// container is what the fake does not keep.
type container struct {
	config  *runtimeapi.ContainerConfig
	sandbox *runtimeapi.PodSandboxConfig
	process *process // nil for a container that runs nothing
}

type process struct {
	*os.Process
	ended chan struct{} // closed when the process is gone and its exit recorded
}

// kill ends a process and waits for it, which after SIGKILL is soon over.
func (p *process) kill() error {
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	return nil
}

// New returns a runtime without containers. dir must exist and be its own;
// enter is the executable of hollownode/enter. env (NAME=VALUE) is set in every
// process, whatever the pod says.
func New(dir, enter string, env []string) *Runtime {
	r := &Runtime{
		FakeRuntimeService: apitest.NewFakeRuntimeService(),
		dir:                dir,
		enter:              enter,
		env:                env,
		starts:             make(chan func()),
		images:             map[string]Image{},
		known:              map[string]*container{},
	}
	r.FakeStatus = &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: true},
	}}
	// Containers end with the thread that started them (Pdeathsig), so there is
	// one thread for that, which ends with this process.
	go func() {
		runtime.LockOSThread()
		for start := range r.starts {
			start()
		}
	}()
	return r
}

// Register makes an image one of real processes, for containers created from
// now on.
func (r *Runtime) Register(i Image) error {
	if i.Name == "" || repository(i.Name) != i.Name {
		return fmt.Errorf("image %q: the name must be there, without tag and digest", i.Name)
	}
	for inside, path := range i.Files {
		if !filepath.IsAbs(inside) || !filepath.IsAbs(path) {
			return fmt.Errorf("image %s: file %q from %q: both paths must be absolute", i.Name, inside, path)
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("image %s: %w", i.Name, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[i.Name] = i
	return nil
}

// image finds what is registered for an image as a pod names it.
func (r *Runtime) image(name string) (Image, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.images[repository(name)]
	return i, ok
}

// repository cuts tag and digest off.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
		image = image[:colon]
	}
	return image
}

// Images returns the kubelet's ImageManagerService: every image is there when
// it is pulled, and has the user of the one registered.
func (r *Runtime) Images() *Images {
	i := &Images{apitest.NewFakeImageService(), r}
	i.SetFakeImageSize(1) // a size of 0 counts as none
	return i
}

// Images implements the kubelet's ImageManagerService.
type Images struct {
	*apitest.FakeImageService
	runtime *Runtime
}

// ImageStatus adds the user, which the kubelet wants to know for runAsNonRoot.
func (i *Images) ImageStatus(ctx context.Context, spec *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	status, err := i.FakeImageService.ImageStatus(ctx, spec, verbose)
	if registered, ok := i.runtime.image(spec.GetImage()); ok && err == nil && status.Image != nil {
		was := status.Image
		status.Image = &runtimeapi.Image{Id: was.Id, Size: was.Size, Spec: was.Spec, RepoTags: was.RepoTags, Uid: &runtimeapi.Int64Value{Value: registered.UID}}
	}
	return status, err
}

// RunPodSandbox gives each pod an address of its own.
func (r *Runtime) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	id, err := r.FakeRuntimeService.RunPodSandbox(ctx, config, handler)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.numPods++
	// 127.1.0.1 and up, round again after 65,279 pods; no 0 or 255 at the end.
	n := (r.numPods - 1) % (256 * 254)
	r.Lock()
	defer r.Unlock()
	if s, ok := r.Sandboxes[id]; ok {
		s.Network = &runtimeapi.PodSandboxNetworkStatus{Ip: fmt.Sprintf("127.1.%d.%d", n/254, n%254+1)}
	}
	return id, nil
}

// CreateContainer keeps the configuration, and the mounts, in which the kubelet
// looks for the termination message.
func (r *Runtime) CreateContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	id, err := r.FakeRuntimeService.CreateContainer(ctx, sandboxID, config, sandbox)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[id] = &container{config: config, sandbox: sandbox}
	r.Lock()
	defer r.Unlock()
	if c, ok := r.Containers[id]; ok {
		c.Mounts = config.Mounts
		c.LogPath = logPath(config, sandbox)
	}
	return id, nil
}

func logPath(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) string {
	return filepath.Join(sandbox.GetLogDirectory(), config.GetLogPath())
}

// StartContainer starts the process, if the image is registered. The time of
// start that the kubelet is told is never later than the process's own.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	if err := r.FakeRuntimeService.StartContainer(ctx, id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.known[id]
	if !ok {
		return fmt.Errorf("container %s is not known", id)
	}
	image, ok := r.images[repository(c.config.GetImage().GetUserSpecifiedImage())]
	if !ok {
		return nil
	}
	if err := r.start(id, c, image); err != nil {
		r.exited(id, 128)
		return fmt.Errorf("start container %s of image %s: %w", c.config.GetMetadata().GetName(), image.Name, err)
	}
	return nil
}

// start runs the process of c. The caller has r.mu.
func (r *Runtime) start(id string, c *container, image Image) error {
	spec, err := specification(c.config, image, r.env)
	if err != nil {
		return err
	}
	log := logPath(c.config, c.sandbox)
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return err
	}
	output, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer output.Close()
	if spec.Root, err = os.MkdirTemp(r.dir, "root"); err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	defer write.Close()

	cmd := exec.Command(r.enter)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = []*os.File{read}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, // a process and all its children end together
		Setsid:     true,
		Pdeathsig:  syscall.SIGKILL,
	}
	started := make(chan error)
	r.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return errors.Join(err, os.Remove(spec.Root))
	}
	p := &process{cmd.Process, make(chan struct{})}
	c.process = p
	go func() {
		cmd.Wait()
		os.Remove(spec.Root) // mounted on in the container's namespace only
		r.exited(id, exitCode(cmd.ProcessState))
		close(p.ended)
	}()
	read.Close()
	// A process that is gone already shows in its exit code.
	if err := json.NewEncoder(write).Encode(spec); err != nil && !errors.Is(err, syscall.EPIPE) {
		return errors.Join(err, p.kill())
	}
	return nil
}

// exitCode is as shells and container runtimes have it: 128 and the number of
// the signal that ended the process.
func exitCode(s *os.ProcessState) int32 {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(s.ExitCode())
}

// specification translates the kubelet's words.
func specification(config *runtimeapi.ContainerConfig, image Image, env []string) (*rootfs.Spec, error) {
	command := config.GetCommand()
	if len(command) == 0 {
		command = image.Entrypoint
	}
	s := &rootfs.Spec{
		Args: append(append([]string{}, command...), config.GetArgs()...),
		Dir:  config.GetWorkingDir(),
		Env:  []string{"PATH=" + rootfs.Path}, // of two with one name the last wins
		UID:  int(image.UID),
	}
	if len(s.Args) == 0 {
		return nil, errors.New("neither the image has an entrypoint nor the pod a command")
	}
	for _, e := range config.GetEnvs() {
		s.Env = append(s.Env, e.GetKey()+"="+string(e.GetValue()))
	}
	s.Env = distinct(append(s.Env, env...))
	for inside, path := range image.Files {
		s.Binds = append(s.Binds, rootfs.Bind{Source: path, Path: inside, ReadOnly: true})
	}
	for _, m := range config.GetMounts() {
		if err := ensure(m); err != nil {
			return nil, err
		}
		s.Binds = append(s.Binds, rootfs.Bind{Source: m.GetHostPath(), Path: m.GetContainerPath(), ReadOnly: m.GetReadonly()})
	}
	security := config.GetLinux().GetSecurityContext()
	if u := security.GetRunAsUser(); u != nil {
		s.UID = int(u.GetValue())
	}
	if g := security.GetRunAsGroup(); g != nil {
		s.GID = int(g.GetValue())
	}
	for _, g := range security.GetSupplementalGroups() {
		s.Groups = append(s.Groups, int(g))
	}
	s.ReadOnly = security.GetReadonlyRootfs()
	return s, nil
}

// distinct keeps the last value of each variable: which of several a program
// sees is its own affair.
func distinct(env []string) []string {
	last := map[string]int{}
	for i, e := range env {
		name, _, _ := strings.Cut(e, "=")
		last[name] = i
	}
	var kept []string
	for i, e := range env {
		if name, _, _ := strings.Cut(e, "="); last[name] == i {
			kept = append(kept, e)
		}
	}
	return kept
}

// ensure makes the file for the termination message: the kubelet of a hollow
// node creates it by a fake operating system, so not at all.
func ensure(m *runtimeapi.Mount) error {
	_, err := os.Stat(m.GetHostPath())
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(m.GetHostPath(), os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(file.Chmod(0o666), file.Close()) // whatever the umask
}

// exited records an exit, once.
func (r *Runtime) exited(id string, code int32) {
	r.Lock()
	defer r.Unlock()
	c, ok := r.Containers[id]
	if !ok || c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		return
	}
	c.State, c.ExitCode, c.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
	c.Reason = "Completed"
	if code != 0 {
		c.Reason = "Error"
	}
}

// process returns that of a container, nil if it runs none.
func (r *Runtime) process(id string) *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.known[id]; c != nil {
		return c.process
	}
	return nil
}

// StopContainer ends a container: SIGTERM, and SIGKILL after timeout (seconds).
// One that runs nothing exits with 0; one unknown or ended is left as it is.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	p := r.process(id)
	if p == nil {
		r.exited(id, 0)
		return nil
	}
	p.Signal(syscall.SIGTERM) // whether it is gone is seen below
	timer := time.NewTimer(time.Duration(timeout) * time.Second)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.kill()
}

// RemoveContainer removes a container; one that runs is killed first.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	if p := r.process(id); p != nil {
		if err := p.kill(); err != nil {
			return err
		}
	}
	r.mu.Lock()
	delete(r.known, id)
	r.mu.Unlock()
	return r.FakeRuntimeService.RemoveContainer(ctx, id)
}

// Close kills all processes.
func (r *Runtime) Close(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, c := range r.known {
		if c.process != nil {
			errs = append(errs, c.process.kill())
		}
	}
	return errors.Join(errs...)
}
