package race_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/examples/internal/testcluster"
)

// shapes are the ways to run a signer and to name its policy.
func shapes() map[string]shape {
	all := map[string]shape{}
	for _, signers := range []int{1, 2} {
		for _, onChange := range []string{"exit", "reload"} {
			for _, hashed := range []bool{false, true} {
				s := shape{onChange: onChange, signers: signers, pods: 1, hashed: hashed, evidence: "report"}
				name := "in place"
				if hashed {
					name, s.evidence = "hash-named", "podVolumes"
				}
				all[fmt.Sprintf("%d signers that %s and a policy %s", signers, onChange, name)] = s
			}
		}
	}
	return all
}

func TestGrantAndWorkloadAppliedTogetherDenyThePodsForGood(t *testing.T) {
	t.Parallel()
	c := testcluster.Connect(t)
	answers := watchAnswers(t, c)
	for name, s := range shapes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// On this cluster a changed policy is loaded within a second or two. Slower, nothing is left to luck.
			s.plain, s.poll = true, "1h"
			if s.hashed {
				s.starts = "20"
			}
			a := newApp(t, t, c, answers, s)
			before := a.list(a.shop, "web")

			stream := a.generate("after")
			if !releases(stream) {
				t.Fatalf("the render lacks the workload:\n%s", stream)
			}
			a.apply(stream)
			a.await("the kubelet says that the denial is final", func() (bool, error) { return answers.complaints(a.shop) > 0, nil })
			a.await("the kubelet has said so four times", func() (bool, error) { return answers.complaints(a.shop) >= 4, nil })
			// It does not help that the grant is there at last.
			for _, pod := range a.list(a.signing, "signer") {
				if err := c.Exit(t.Context(), a.signing, pod.Name, "signer", 0); err != nil && !errors.Is(err, testcluster.ErrGone) {
					t.Fatal(err)
				}
			}
			a.await("the signers have the grant", func() (bool, error) { held, _ := a.held(); return !held, nil })
			said := answers.complaints(a.shop)
			a.await("the kubelet has tried once more", func() (bool, error) { return answers.complaints(a.shop) > said, nil })
			pods := a.list(a.shop, "web")
			if len(pods) != 1 || pods[0].Status.Phase != corev1.PodPending || pods[0].UID == before[0].UID {
				t.Errorf("pods %v, want one new pod, Pending", states(pods))
			}
			if n := answers.asked(a.shop); n != 1 {
				t.Errorf("%d requests, want no second", n)
			}
		})
	}
}

func states(pods []corev1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name+" "+string(p.Status.Phase))
	}
	return out
}

func TestTheSameChangeThroughGrantfirstIsDeniedNothing(t *testing.T) {
	t.Parallel()
	c := testcluster.Connect(t)
	answers := watchAnswers(t, c)
	for name, s := range shapes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newApp(t, t, c, answers, s)
			a.ship(func() {})
		})
	}
}

// ship makes the change as the documentation says: generate and apply; then, once explain says that all is loaded, both again.
func (a *app) ship(between func()) {
	a.Helper()
	before := a.list(a.shop, "web")
	stream := a.generate("after")
	if releases(stream) {
		a.Fatalf("released before the grant was there:\n%s", stream)
	}
	a.apply(stream)
	between()
	a.await("explain says that the grant is loaded", func() (bool, error) {
		a.untouched(before)
		held, _ := a.held()
		return !held, nil
	})
	a.tells("explain: loaded")
	if stream = a.generate("after"); !releases(stream) {
		a.Fatalf("still held after explain said loaded:\n%s", stream)
	}
	if _, behind := a.inForce(); len(behind) > 0 {
		a.Errorf("released while %s decided by the old policy", strings.Join(behind, ", "))
	}
	a.apply(stream)
	a.await("the new pods run", func() (bool, error) {
		if denied := a.answers.denied(a.shop); len(denied) > 0 {
			return false, fmt.Errorf("denied: %s", strings.Join(denied, "\n"))
		}
		return a.rolledOut(a.shop, "web", a.pods)
	})
	if n := a.answers.asked(a.shop); n != a.pods {
		a.Errorf("%d requests, want one for each pod", n)
	}
}

func TestAReplicaThatIsHeldBackHoldsTheWorkload(t *testing.T) {
	t.Parallel()
	c := testcluster.Connect(t)
	answers := watchAnswers(t, c)
	for name, s := range shapes() {
		if s.signers == 1 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newApp(t, t, c, answers, s)
			replicas := a.list(a.signing, "signer")
			behind := replicas[0]
			process := a.signal(behind.Name, syscall.SIGSTOP, 0)
			t.Cleanup(func() { _ = syscall.Kill(process, syscall.SIGCONT) }) // a stopped process does not end by itself
			a.ship(func() {
				a.await("all other replicas have the grant", func() (bool, error) {
					held, explained := a.held()
					if !held {
						t.Fatalf("released although pod %s is stopped\n%s", behind.Name, explained)
					}
					return onlyWaitsFor(explained, behind.Name), nil
				})
				a.tells("only %s is behind", behind.Name)
				a.signal(behind.Name, syscall.SIGCONT, process)
			})
		})
	}
}

// onlyWaitsFor reports whether the lines of all replicas but this one say granted.
func onlyWaitsFor(explained, pod string) bool {
	others, waits := 0, false
	for line := range strings.Lines(explained) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[0] != "replica" {
			continue
		}
		granted := slices.Contains(fields, "granted")
		if fields[1] == pod {
			waits = !granted
			continue
		}
		if !granted {
			return false
		}
		others++
	}
	return waits && others > 0
}

// signal sends a signal to the signer in a pod: to the process given, or to the one that runs now.
func (a *app) signal(pod string, signal syscall.Signal, process int) int {
	a.Helper()
	if process == 0 {
		containers, err := a.Containers(context.Background(), a.signing, pod)
		if err != nil || len(containers) == 0 || containers[0].PID == 0 {
			a.Fatalf("process of pod %s: %+v %v", pod, containers, err)
		}
		process = containers[0].PID
	}
	if err := syscall.Kill(process, signal); err != nil {
		a.Fatalf("process %d of pod %s: %v", process, pod, err)
	}
	a.tells("pod %s: %s to process %d", pod, signal, process)
	return process
}

// Times in objects are cut to seconds. A pod that was made and a policy that changed in the same second do not tell which came first,
// and a pod keeps for a while what its volume was filled with.
func TestASignerMadeInTheSecondOfTheChangeIsNotTrustedBeforeItRuns(t *testing.T) {
	t.Parallel()
	c := testcluster.Connect(t)
	a := newApp(t, t, c, watchAnswers(t, c), shape{onChange: "reload", signers: 1, pods: 1, evidence: "report", poll: "15s", starts: "5"})
	for range 5 {
		a.scale(0)
		a.await("no signer is left", func() (bool, error) { return len(a.list(a.signing, "signer")) == 0, nil })
		stream := a.generate("after")
		wait(t.Context(), time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
		a.scale(1)
		wait(t.Context(), 700*time.Millisecond)
		a.apply(stream)
		changed, err := c.CoreV1().ConfigMaps(a.signing).Get(t.Context(), "policy", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pods := a.list(a.signing, "signer")
		if len(pods) == 1 && slices.ContainsFunc(changed.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Time.Equal(&pods[0].CreationTimestamp) }) {
			a.await("the workload is released", func() (bool, error) { return releases(a.generate("after")), nil })
			if loaded, _ := a.inForce(); len(loaded) != 1 {
				t.Error("released although the signer that runs now has not loaded the grant, or none runs")
			}
			return
		}
		a.apply(a.generate("before"))
	}
	t.Skip("the machine is too slow: not once did both fall into the same second")
}

func (a *app) scale(replicas int32) {
	a.Helper()
	_, err := a.AppsV1().Deployments(a.signing).UpdateScale(a.Context(), "signer", &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: "signer", Namespace: a.signing}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas},
	}, metav1.UpdateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	a.tells("signer scaled to %d", replicas)
}
