// Command hollownode is a Kubernetes node for tests: the kubelet's own code
// (kubelet.NewMainKubelet, as kubemark calls it) over the container runtime of
// package containers. Pods, volumes, pod certificates, restarts, probes, status
// and events are the real kubelet's; containers are what that package says.
//
// It differs from kubemark's kubelet where that one would hide what the tests
// are about: events are sent, nothing but the kubelet's own prober says that a
// pod is Ready, and it has no CSI (below). It serves nothing but the control
// socket. It writes below --root only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubemark"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"

	"github.com/grantfirst/grantfirst/examples/outage/kubernetes/hollownode/containers"
)

func main() {
	klog.InitFlags(nil)
	var n node
	flag.StringVar(&n.kubeconfig, "kubeconfig", "", "`file` that says who the node is and where the API server")
	flag.StringVar(&n.name, "name", "127.0.0.1", "node `name`; an address needs no DNS and no network")
	flag.StringVar(&n.root, "root", "", "the kubelet's root `folder`")
	flag.StringVar(&n.control, "control", "", "`path` of the control socket")
	flag.StringVar(&n.enter, "enter", "", "executable of hollownode/enter")
	flag.DurationVar(&n.syncFrequency, "sync-frequency", time.Minute, "how often each pod is looked at again, its ConfigMap volumes too")
	flag.DurationVar(&n.restartBackoff, "restart-backoff", 5*time.Minute, "longest wait before a container is started again, 1s at least")
	flag.IntVar(&n.maxPods, "max-pods", 1000, "")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := n.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "hollownode: %v\n", err)
		os.Exit(1)
	}
}

type node struct {
	kubeconfig, name, root, control, enter string
	syncFrequency, restartBackoff          time.Duration
	maxPods                                int
}

// run runs the node until the context ends, and kills its containers then.
func (n *node) run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", n.kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.QPS, config.Burst = 50, 100 // the kubelet's defaults
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	roots := filepath.Join(n.root, "container-roots")
	if err := os.MkdirAll(roots, 0o700); err != nil {
		return err
	}
	env, err := apiServer(config)
	if err != nil {
		return err
	}
	runtime := containers.New(roots, n.enter, env)
	defer runtime.Close(context.Background())

	socket, err := net.Listen("unix", n.control) // its folder is for root only
	if err != nil {
		return err
	}
	defer socket.Close()
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(socket, runtime.Control()) }()

	kubelet, err := n.kubelet(config, client, runtime)
	if err != nil {
		return err
	}
	go kubelet.Run(ctx)
	select {
	case err := <-failed:
		return fmt.Errorf("control socket: %w", err)
	case <-ctx.Done():
		return nil
	}
}

// apiServer tells containers where the API server is. What the kubelet tells
// them, the "kubernetes" Service's address, nothing routes here.
func apiServer(config *rest.Config) ([]string, error) {
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	if server.Port() == "" {
		return nil, fmt.Errorf("server %s in the kubeconfig has no port", config.Host)
	}
	return []string{"KUBERNETES_SERVICE_HOST=" + server.Hostname(), "KUBERNETES_SERVICE_PORT=" + server.Port(), "KUBERNETES_SERVICE_PORT_HTTPS=" + server.Port()}, nil
}

func (n *node) kubelet(config *rest.Config, client *kubernetes.Clientset, runtime *containers.Runtime) (*kubemark.HollowKubelet, error) {
	flags, settings := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubeletOptions{NodeName: n.name, MaxPods: n.maxPods})
	// It made a root folder of its own, in /tmp whatever TMPDIR says.
	if err := os.RemoveAll(flags.RootDirectory); err != nil {
		return nil, err
	}
	flags.RootDirectory = n.root
	flags.CertDirectory = filepath.Join(n.root, "pki")
	settings.StaticPodPath = filepath.Join(n.root, "static-pods")
	settings.PodLogsDir = filepath.Join(n.root, "logs")
	if err := errors.Join(os.MkdirAll(settings.StaticPodPath, 0o700), os.MkdirAll(settings.PodLogsDir, 0o700)); err != nil {
		return nil, err
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	settings.Address = "127.0.0.1"
	settings.EnableServer, settings.ReadOnlyPort, settings.HealthzPort = false, 0, 0
	settings.MaxOpenFiles = int64(files.Cur) // kubemark's 1024 is less than what Go sees to
	settings.SyncFrequency.Duration = n.syncFrequency
	settings.CrashLoopBackOff.MaxContainerRestartPeriod.Duration = n.restartBackoff

	heartbeat := rest.CopyConfig(config)
	heartbeat.Timeout = settings.NodeStatusUpdateFrequency.Duration
	heartbeat.QPS = -1
	heartbeatClient, err := kubernetes.NewForConfig(heartbeat)
	if err != nil {
		return nil, err
	}
	hollow := kubemark.NewHollowKubelet(flags, settings, client, heartbeatClient,
		machine{&cadvisortest.Fake{NodeName: n.name}}, runtime.Images(), runtime, unlimited{cm.NewStubContainerManager()})
	d := hollow.KubeletDeps
	d.Recorder, d.EventClient = nil, client.CoreV1() // kubemark's drops all events; without one the kubelet makes its own
	d.ProbeManager = nil                             // kubemark's says Ready of a pod that waits for its volumes; the same
	// With CSI a kubelet stays NotReady until its CSINode exists, which needs its
	// Node: it looks for that a few times within 3.5 s, then after 15 s, then after
	// 2 minutes (K 1.37 pkg/volume/csi/csi_plugin.go, initializeCSINode). A node
	// that registers too late for the first, on a busy machine or for want of
	// DNS, hangs that long. There are no CSI drivers here to wait for.
	d.VolumePlugins = slices.DeleteFunc(d.VolumePlugins, func(p volume.VolumePlugin) bool { return p.GetPluginName() == csi.CSIPluginName })
	return hollow, nil
}

// machine is large enough for whatever a test's pods request.
type machine struct{ *cadvisortest.Fake }

func (m machine) MachineInfo(logger klog.Logger) (*cadvisorapi.MachineInfo, error) {
	info, err := m.Fake.MachineInfo(logger)
	if err != nil {
		return nil, err
	}
	info.NumCores, info.MemoryCapacity = 1000, 1<<42
	return info, nil
}

// unlimited says that pods have no limits, where the stub below it says twice a
// second and pod, in the log, that it does not know.
type unlimited struct{ cm.ContainerManager }

func (u unlimited) NewPodContainerManager() cm.PodContainerManager {
	return unlimitedPods{u.ContainerManager.NewPodContainerManager()}
}

type unlimitedPods struct{ cm.PodContainerManager }

func (unlimitedPods) GetPodCgroupConfig(*corev1.Pod, corev1.ResourceName) (*cm.ResourceConfig, error) {
	return nil, nil
}
