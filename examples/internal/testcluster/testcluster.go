// Package testcluster is the running cluster as a test sees it: the one that examples/outage/kubernetes starts.
//
// In: the two variables that tell of it; a test without them is skipped. Out: clients, namespaces, server-side apply as kubectl does
// it, and the node's control socket. It starts no cluster and stops none.
package testcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// The variables that cmd/cluster of examples/outage/kubernetes sets.
const (
	KubeconfigVariable = "GRANTFIRST_TEST_KUBECONFIG"
	NodeVariable       = "GRANTFIRST_TEST_NODE"
)

// Cluster is the running cluster, with all rights. It is safe for concurrent use.
type Cluster struct {
	*kubernetes.Clientset
	// Kubeconfig is the path of the admin's.
	Kubeconfig string

	objects dynamic.Interface
	node    *http.Client
}

// Connect skips the test where there is no cluster.
func Connect(t testing.TB) *Cluster {
	t.Helper()
	kubeconfig, socket := os.Getenv(KubeconfigVariable), os.Getenv(NodeVariable)
	if kubeconfig == "" || socket == "" {
		t.Skipf("needs a cluster: make test-cluster (in examples/outage/kubernetes, go run ./cmd/cluster up prints %s and %s for one that stays)", KubeconfigVariable, NodeVariable)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1 // tests ask often
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{Clientset: client, Kubeconfig: kubeconfig, objects: objects, node: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Namespace makes one that goes with the test.
func (c *Cluster) Namespace(t testing.TB, prefix string) string {
	t.Helper()
	n, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.CoreV1().Namespaces().Delete(context.Background(), n.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return n.Name
}

// Apply is kubectl apply --server-side --force-conflicts: every object of a YAML stream, in its order. Objects of namespaces must name
// theirs.
func (c *Cluster) Apply(ctx context.Context, stream []byte) error {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096)
	for {
		var o unstructured.Unstructured
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		_, err = c.objects.Resource(resource).Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), &o, metav1.ApplyOptions{FieldManager: "kubectl", Force: true})
		if err != nil {
			return fmt.Errorf("apply: %s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
		}
	}
}

// Image makes an image one of real processes: files are path in the image and path on this machine.
func (c *Cluster) Image(ctx context.Context, name string, files map[string]string, uid int64, entrypoint ...string) error {
	return c.Control(ctx, "PUT", "/images", map[string]any{"name": name, "files": files, "entrypoint": entrypoint, "uid": uid}, nil)
}

// Container is one start of a container (examples/outage/kubernetes/hollownode/containers).
type Container struct {
	Name   string            `json:"name"`
	State  string            `json:"state"`
	PID    int               `json:"pid"`
	Log    string            `json:"log"`
	Mounts map[string]string `json:"mounts"`
}

// Containers are those of a pod on the node, the newest start of each first.
func (c *Cluster) Containers(ctx context.Context, namespace, pod string) ([]Container, error) {
	var on struct {
		Containers []Container `json:"containers"`
	}
	err := c.Control(ctx, "GET", "/pods/"+namespace+"/"+pod, nil, &on)
	return on.Containers, err
}

// Exit ends the running container as if it had ended by itself. The error is ErrGone where there is none.
func (c *Cluster) Exit(ctx context.Context, namespace, pod, container string, code int) error {
	return c.Control(ctx, "POST", fmt.Sprintf("/pods/%s/%s/containers/%s/exit?code=%d", namespace, pod, container, code), nil, nil)
}

// ErrGone says that the node does not run such a pod or container now.
var ErrGone = errors.New("not running on the node")

// Control speaks to the node's control socket: JSON in and out, where they are not nil. The error is ErrGone where there is no such pod
// or container, or where it does not run.
func (c *Cluster) Control(ctx context.Context, method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://node"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	response, err := c.node.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotFound || response.StatusCode == http.StatusConflict:
		return fmt.Errorf("%s %s: %w", method, path, ErrGone)
	case response.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s", method, path, response.Status)
	case answer == nil:
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// Events are what was said in a namespace, a line each.
func (c *Cluster) Events(ctx context.Context, namespace string) string {
	list, err := c.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, e := range list.Items {
		fmt.Fprintf(&out, "%s %dx %s %s: %s %s\n", e.LastTimestamp.UTC().Format(time.TimeOnly), e.Count, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return out.String()
}

// Logs are what the containers of all pods of a namespace wrote.
func (c *Cluster) Logs(ctx context.Context, namespace string) string {
	list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, pod := range list.Items {
		containers, err := c.Containers(ctx, namespace, pod.Name)
		if err != nil {
			fmt.Fprintf(&out, "%s: %v\n", pod.Name, err)
		}
		for _, on := range containers {
			text, err := os.ReadFile(on.Log)
			if err == nil && len(text) > 0 {
				fmt.Fprintf(&out, "log of %s, %s:\n%s", pod.Name, on.Name, text)
			}
		}
	}
	return out.String()
}
