// Package cluster runs a real Kubernetes on this machine, for tests: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler and one node whose
// kubelet is the real one over a container runtime that is not (package
// hollownode/containers says what containers do there). Everything listens on
// 127.0.0.1, on ports that were free.
//
// In: this module's go.mod, which pins every program; a folder for the cluster.
// Out: an admin kubeconfig, and a socket by which a test controls the node's
// containers. Tests learn of both by the environment (KubeconfigVariable,
// NodeVariable) and skip where it is not set.
//
// It never runs the real cmd/kubelet (that one changes the machine's sysctls),
// never mounts anything outside mount namespaces of the containers' own, never
// signals a process that it did not start, and keeps nothing of a cluster that
// was taken down but, after a failure, its logs.
//
// It needs Linux and root: the kubelet sets the owners of projected files.
package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// KubeconfigVariable names the environment variable that holds the path of
	// the admin kubeconfig.
	KubeconfigVariable = "GRANTFIRST_TEST_KUBECONFIG"
	// NodeVariable names the environment variable that holds the path of the
	// node's control socket (HTTP; package hollownode/containers has the requests).
	NodeVariable = "GRANTFIRST_TEST_NODE"
)

// nodeName is an address on purpose. A kubelet looks its name up in DNS, then
// wants an interface with a default route; a name that is an address spares it
// both (K 1.37 pkg/kubelet/nodestatus/setters.go, NodeAddress). With any other
// name a node on a machine without a network registers late or never.
const nodeName = "127.0.0.1"

// Cluster is a running cluster: what its state file says.
type Cluster struct {
	Dir        string    `json:"dir"`
	Server     string    `json:"server"`     // URL of the API server
	Kubeconfig string    `json:"kubeconfig"` // path; user with all rights
	Node       string    `json:"node"`       // path of the node's control socket
	NodeDir    string    `json:"nodeDir"`    // the kubelet's root folder: pods/UID/volumes/KIND/NAME below it
	Processes  []Process `json:"processes"`  // in the order of their start
}

// Environment is what tests are given: NAME=VALUE.
func (c *Cluster) Environment() []string {
	return []string{KubeconfigVariable + "=" + c.Kubeconfig, NodeVariable + "=" + c.Node}
}

// Ended names the parts that do not run any more.
func (c *Cluster) Ended() []string {
	var names []string
	for _, p := range c.Processes {
		if !p.Running() {
			names = append(names, p.Name)
		}
	}
	return names
}

const stateFile = "cluster.json"

// ErrDown says that no cluster was started in a folder, or that it was taken
// down since.
var ErrDown = errors.New("no cluster is up")

// Load reads the state of the cluster in dir. The error is ErrDown if there is none.
func Load(dir string) (*Cluster, error) {
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrDown)
	} else if err != nil {
		return nil, err
	}
	c := &Cluster{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("%s: %w: remove the folder once no process of it is left", filepath.Join(dir, stateFile), err)
	}
	return c, nil
}

func (c *Cluster) save() error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	part := filepath.Join(c.Dir, stateFile+".part")
	if err := os.WriteFile(part, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(c.Dir, stateFile))
}

// Settings say how a cluster is to be.
type Settings struct {
	// Dir is where everything of the cluster is. It must be missing, empty, or
	// of an earlier cluster, and short: sockets below it may have paths of 107 bytes.
	Dir string
	// SyncFrequency is how often the kubelet looks at each pod again (it adds up to
	// half of it, in steps of a second), and so how soon a changed ConfigMap is in
	// a volume. Kubernetes' default is a minute; here 0 means a second.
	SyncFrequency time.Duration
	// RestartBackoff is the longest wait before a container is started again.
	// Kubernetes' default is 5 minutes; here 0 means a second, the least it takes.
	RestartBackoff time.Duration
	// Bound clusters end when the thread that called Up does, even if nobody
	// takes them down.
	Bound bool
	// Log gets a line for each part that is ready.
	Log io.Writer
}

// tries is how often Up begins anew when somebody else was faster to take a port.
const tries = 3

// Up starts a cluster and returns when a pod can run in it: the node is Ready,
// and the default ServiceAccount is there. What is left of an earlier cluster
// in the folder is removed first; one that runs there is an error.
//
// After an error nothing of it runs; the logs are in Dir/logs.
func Up(ctx context.Context, programs Programs, s Settings) (*Cluster, error) {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return nil, err
	}
	s.Dir = dir
	if s.SyncFrequency == 0 {
		s.SyncFrequency = time.Second
	}
	if s.RestartBackoff == 0 {
		s.RestartBackoff = time.Second
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("up: needs root, as a kubelet does: call it in a container or virtual machine of your own, or with sudo")
	}
	// The longest is the kubelet's own: pod-resources/kubelet.sock, with a suffix while it is made.
	if longest := filepath.Join(dir, "node", "pod-resources", "kubelet.sock"); len(longest) > 100 {
		return nil, fmt.Errorf("up: folder %s is too long a path for the sockets in it: choose one of at most %d bytes", dir, 100-len(longest)+len(dir))
	}
	earlier, err := Load(dir)
	switch {
	case errors.Is(err, ErrDown):
		if err := empty(dir); err != nil {
			return nil, fmt.Errorf("up: %w", err)
		}
	case err != nil:
		return nil, fmt.Errorf("up: %w", err)
	case len(earlier.Ended()) == 0:
		return nil, fmt.Errorf("up: a cluster is up in %s already", dir)
	default:
		if err := earlier.Down(ctx, false); err != nil {
			return nil, err
		}
	}

	for try := 1; ; try++ {
		c, err := up(ctx, programs, s)
		if err == nil {
			return c, nil
		}
		// The context may be why it failed; what runs must be stopped all the same.
		if err := c.Down(context.WithoutCancel(ctx), true); err != nil {
			return nil, err
		}
		if try == tries || !errors.Is(err, errPortTaken) {
			return nil, fmt.Errorf("up: %w\nlogs are in %s", err, filepath.Join(dir, "logs"))
		}
		fmt.Fprintf(s.Log, "%v: trying other ports\n", err)
	}
}

// empty makes sure that dir holds nothing of others': it will be removed.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "logs" { // of a cluster that failed
			return fmt.Errorf("folder %s is not empty (%s): choose another", dir, e.Name())
		}
	}
	return os.RemoveAll(dir)
}

var errPortTaken = errors.New("somebody else took the port")

// up is one try. The cluster it returns is never nil: it has what was started.
func up(ctx context.Context, programs Programs, s Settings) (*Cluster, error) {
	c := &Cluster{
		Dir:        s.Dir,
		Kubeconfig: filepath.Join(s.Dir, "pki", adminFile),
		Node:       filepath.Join(s.Dir, "control.sock"),
		NodeDir:    filepath.Join(s.Dir, "node"),
	}
	pki := filepath.Join(s.Dir, "pki")
	for _, dir := range []string{s.Dir, filepath.Join(s.Dir, "logs"), pki} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return c, err
		}
	}
	ports, err := freePorts(5)
	if err != nil {
		return c, err
	}
	etcdURL := "http://" + address(ports[0])
	peerURL := "http://" + address(ports[1])
	c.Server = "https://" + address(ports[2])
	ca, err := writePKI(pki, c.Server, time.Now())
	if err != nil {
		return c, err
	}
	client, err := adminClient(pki, ca)
	if err != nil {
		return c, err
	}
	in := func(name string) string { return filepath.Join(pki, name) }
	serving := []string{"--tls-cert-file=" + in(servingFile+".crt"), "--tls-private-key-file=" + in(servingFile+".key"), "--bind-address=127.0.0.1"}
	// as lets a part speak to the API server, and ask it who calls.
	as := func(name string, port int) []string {
		file := in(name + ".kubeconfig")
		return append([]string{"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file,
			"--leader-elect=false", fmt.Sprintf("--secure-port=%d", port)}, serving...)
	}

	begun := time.Now()
	run := func(name string, args ...string) error {
		p, err := start(name, programs[name], s.Dir, s.Bound, args...)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.Processes = append(c.Processes, p)
		return c.save() // at once: "down" must find it whatever happens next
	}
	ready := func(name, what string, check func(context.Context) error) error {
		if err := c.await(ctx, check); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		fmt.Fprintf(s.Log, "%5.1fs %s: %s\n", time.Since(begun).Seconds(), name, what)
		return nil
	}
	healthy := func(url string) func(context.Context) error {
		return func(ctx context.Context) error { return get(ctx, client, url, nil) }
	}

	// What is stored may be lost with the machine's power: it is thrown away anyway.
	if err := run(etcd, "--data-dir="+filepath.Join(s.Dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=default="+peerURL); err != nil {
		return c, err
	}
	if err := ready(etcd, "healthy", healthy(etcdURL+"/health")); err != nil {
		return c, err
	}

	// No endpoint of the "kubernetes" Service: nothing routes its address here, and
	// an endpoint must not be a loopback address. Containers are told the real one.
	if err := run(apiServer, append([]string{
		"--etcd-servers=" + etcdURL, fmt.Sprintf("--secure-port=%d", ports[2]), "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--client-ca-file=" + in(caFile), "--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + in(tokenFile+".pub"), "--service-account-signing-key-file=" + in(tokenFile+".key"),
	}, serving...)...); err != nil {
		return c, err
	}
	if err := ready(apiServer, "ready", healthy(c.Server+"/readyz")); err != nil {
		return c, err
	}

	if err := run(controllerManager, append(as(controllerManager, ports[3]),
		"--service-account-private-key-file="+in(tokenFile+".key"), "--root-ca-file="+in(caFile), "--use-service-account-credentials")...); err != nil {
		return c, err
	}
	if err := run(scheduler, as(scheduler, ports[4])...); err != nil {
		return c, err
	}
	if err := run(hollowNode, "--kubeconfig="+in(hollowNode+".kubeconfig"), "--name="+nodeName, "--root="+c.NodeDir, "--control="+c.Node,
		"--enter="+programs[enter], "--sync-frequency="+s.SyncFrequency.String(), "--restart-backoff="+s.RestartBackoff.String()); err != nil {
		return c, err
	}
	if err := ready(scheduler, "healthy", healthy(fmt.Sprintf("https://%s/healthz", address(ports[4])))); err != nil {
		return c, err
	}
	if err := ready(controllerManager, "healthy", healthy(fmt.Sprintf("https://%s/healthz", address(ports[3])))); err != nil {
		return c, err
	}
	if err := ready(hollowNode, "node takes pods", func(ctx context.Context) error { return schedulable(ctx, client, c.Server) }); err != nil {
		return c, err
	}
	for _, object := range []string{"serviceaccounts/default", "configmaps/kube-root-ca.crt"} {
		if err := ready(controllerManager, "made "+object, healthy(c.Server+"/api/v1/namespaces/default/"+object)); err != nil {
			return c, err
		}
	}
	return c, nil
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// freePorts asks the kernel for ports that nobody listens on. Somebody may by
// the time they are used; Up then tries others.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", address(0))
		if err != nil {
			return nil, err
		}
		defer l.Close() // at the end, so that no two are the same
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// patience is how long a part may take to get ready; on a machine busy with
// compilers it is many times the usual second.
const patience = 3 * time.Minute

// await asks until check returns nil, a process ends, or patience does.
func (c *Cluster) await(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		for _, p := range c.Processes {
			if p.Running() {
				continue
			}
			if log, err := os.ReadFile(logFile(c.Dir, p.Name)); err == nil && strings.Contains(string(log), "address already in use") {
				return fmt.Errorf("%s: %w", p.Name, errPortTaken)
			}
			return fmt.Errorf("%s %w%s", p.Name, errEnded, tail(c.Dir, p.Name))
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("gave up waiting: %w", err)
		}
	}
}

// adminClient speaks as the admin, and trusts the cluster's CA only.
func adminClient(pki string, ca *x509.Certificate) (*http.Client, error) {
	text, err := os.ReadFile(filepath.Join(pki, adminFile))
	if err != nil {
		return nil, err
	}
	var config struct {
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(config.Users[0].User.Cert, config.Users[0].User.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return &http.Client{
		Timeout: 10 * time.Second,
		// No proxy, whatever the environment says: all of it is on this machine.
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}},
	}, nil
}

// get asks for url and decodes the answer into out, if there is one.
func get(ctx context.Context, client *http.Client, url string, out any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", url, response.Status)
	case out == nil:
		return nil
	}
	return json.Unmarshal(body, out)
}

// schedulable returns nil once the node is Ready and has lost the taint that
// it was made with.
func schedulable(ctx context.Context, client *http.Client, server string) error {
	var node struct {
		Spec struct {
			Taints []struct{ Key string }
		}
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := get(ctx, client, server+"/api/v1/nodes/"+nodeName, &node); err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" && c.Status != "True" {
			return fmt.Errorf("node %s is not Ready: %s", nodeName, c.Message)
		}
	}
	if len(node.Spec.Taints) > 0 {
		return fmt.Errorf("node %s has the taint %s", nodeName, node.Spec.Taints[0].Key)
	}
	return nil
}

// Down stops the cluster's processes, the last started first, and removes its
// folder: all but the logs if keepLogs, or if a part had ended by itself.
func (c *Cluster) Down(ctx context.Context, keepLogs bool) error {
	keepLogs = keepLogs || len(c.Ended()) > 0
	for _, p := range slices.Backward(c.Processes) {
		if err := stop(ctx, p, grace); err != nil {
			return fmt.Errorf("down: %w", err)
		}
	}
	if err := remove(c.Dir, keepLogs); err != nil {
		return fmt.Errorf("down: %w", err)
	}
	return nil
}

// remove deletes the cluster's folder. It does not if anything is mounted
// below: that would be deleted too.
func remove(dir string, keepLogs bool) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if mount := mountedBelow(string(mounts), real); mount != "" {
		return fmt.Errorf("%s is mounted: unmount it, then remove %s", mount, dir)
	}
	if !keepLogs {
		return os.RemoveAll(dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "logs" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// mountedBelow returns the first mount point at or below dir, of a table as in
// /proc/self/mountinfo (proc_pid_mountinfo(5): field 5, blanks escaped).
func mountedBelow(mountinfo, dir string) string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if mount := unescape.Replace(fields[4]); mount == dir || strings.HasPrefix(mount, dir+"/") {
			return mount
		}
	}
	return ""
}

// Lock makes the caller the only one to start or stop clusters in dir, until
// it calls unlock or ends.
func Lock(ctx context.Context, dir string, log io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	return lock(ctx, filepath.Clean(dir)+".lock", func() { fmt.Fprintf(log, "another cluster command is at work on %s, waiting for it\n", dir) })
}
