package containers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is what the control socket says about a pod that has a sandbox. A pod
// that waits for its volumes has none yet; the kubelet's folder of it is
// pods/UID below its root all the same.
type Pod struct {
	UID        string      `json:"uid"`
	IP         string      `json:"ip"`
	Containers []Container `json:"containers"` // by name, the newest of each first
}

// Container is one start of a container of a pod.
type Container struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Attempt    uint32            `json:"attempt"` // the pod's restartCount at its start
	State      string            `json:"state"`   // created, running, exited
	PID        int               `json:"pid,omitempty"`
	ExitCode   int32             `json:"exitCode"`
	StartedAt  time.Time         `json:"startedAt,omitzero"`
	FinishedAt time.Time         `json:"finishedAt,omitzero"`
	Log        string            `json:"log"`    // file with what the process wrote, as it wrote it
	Mounts     map[string]string `json:"mounts"` // path in the container: path on this machine
}

// Control serves the control socket, JSON over HTTP:
//
//	GET  /pods/{namespace}/{name}                                  a Pod
//	POST /pods/{namespace}/{name}/containers/{container}/exit?code=N  end the running container with that exit code
//	PUT  /images                                                   an Image: register it
//
// A pod or container that is not there gives 404, a container that does not run
// 409, what cannot be understood 400; the body then says why. Exit kills a
// process; its code is the one given all the same. The PID is this machine's,
// for a test that stops and continues a replica (SIGSTOP, SIGCONT).
func (r *Runtime) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pods/{namespace}/{name}", func(w http.ResponseWriter, q *http.Request) {
		pod, err := r.Pod(q.PathValue("namespace"), q.PathValue("name"))
		answer(w, pod, err)
	})
	mux.HandleFunc("POST /pods/{namespace}/{name}/containers/{container}/exit", func(w http.ResponseWriter, q *http.Request) {
		code, err := strconv.ParseUint(cmp.Or(q.FormValue("code"), "0"), 10, 8)
		if err != nil {
			http.Error(w, fmt.Sprintf("code %q: want 0 to 255", q.FormValue("code")), http.StatusBadRequest)
			return
		}
		answer(w, nil, r.Exit(q.PathValue("namespace"), q.PathValue("name"), q.PathValue("container"), int32(code)))
	})
	mux.HandleFunc("PUT /images", func(w http.ResponseWriter, q *http.Request) {
		var image Image
		decoder := json.NewDecoder(q.Body)
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&image)
		if err == nil {
			err = r.Register(image)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, nil, nil)
	})
	return mux
}

func answer(w http.ResponseWriter, what any, err error) {
	switch {
	case errors.Is(err, ErrNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, ErrNotRunning):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case what == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(what) // who does not listen any more misses nothing
	}
}

var (
	// ErrNotFound says that the node runs no such pod, or the pod has no such container.
	ErrNotFound = errors.New("not found")
	// ErrNotRunning says that a container exists and does not run.
	ErrNotRunning = errors.New("not running")
)

// Pod returns what runs of a pod. Of several with that name (one deleted, one
// new) it is the one with the newest sandbox. The error may be ErrNotFound.
func (r *Runtime) Pod(namespace, name string) (*Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Lock()
	defer r.Unlock()
	var uid, ip string
	var newest int64
	for _, s := range r.Sandboxes {
		if s.Metadata.GetNamespace() == namespace && s.Metadata.GetName() == name && s.CreatedAt > newest {
			uid, ip, newest = s.Metadata.GetUid(), s.Network.GetIp(), s.CreatedAt
		}
	}
	if newest == 0 {
		return nil, fmt.Errorf("pod %s/%s on the node: %w", namespace, name, ErrNotFound)
	}
	pod := &Pod{UID: uid, IP: ip, Containers: []Container{}}
	for id, c := range r.Containers {
		known := r.known[id]
		if known == nil || known.sandbox.GetMetadata().GetUid() != uid {
			continue
		}
		out := Container{
			ID: id, Name: c.Metadata.GetName(), Attempt: c.Metadata.GetAttempt(), State: states[c.State], ExitCode: c.ExitCode,
			Log: c.LogPath, Mounts: map[string]string{},
		}
		if c.StartedAt != 0 {
			out.StartedAt = time.Unix(0, c.StartedAt)
		}
		if c.FinishedAt != 0 {
			out.FinishedAt = time.Unix(0, c.FinishedAt)
		}
		if known.process != nil {
			out.PID = known.process.Pid
		}
		for _, m := range c.Mounts {
			out.Mounts[m.GetContainerPath()] = m.GetHostPath()
		}
		pod.Containers = append(pod.Containers, out)
	}
	slices.SortFunc(pod.Containers, func(a, b Container) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), -cmp.Compare(a.Attempt, b.Attempt))
	})
	return pod, nil
}

var states = map[runtimeapi.ContainerState]string{
	runtimeapi.ContainerState_CONTAINER_CREATED: "created",
	runtimeapi.ContainerState_CONTAINER_RUNNING: "running",
	runtimeapi.ContainerState_CONTAINER_EXITED:  "exited",
}

// Exit ends a running container with the exit code, as if it had ended by
// itself; the kubelet sees it within a second and does what the pod's
// restartPolicy says. The error may be ErrNotFound or ErrNotRunning.
func (r *Runtime) Exit(namespace, name, container string, code int32) error {
	pod, err := r.Pod(namespace, name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(pod.Containers, func(c Container) bool { return c.Name == container })
	if i < 0 {
		return fmt.Errorf("container %s of pod %s/%s: %w", container, namespace, name, ErrNotFound)
	}
	if pod.Containers[i].State != "running" {
		return fmt.Errorf("container %s of pod %s/%s: %w: it is %s", container, namespace, name, ErrNotRunning, pod.Containers[i].State)
	}
	id := pod.Containers[i].ID
	r.exited(id, code) // before the process ends, whose own code would be taken else
	if p := r.process(id); p != nil {
		return p.kill()
	}
	return nil
}
