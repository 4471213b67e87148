package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// beside starts the pod of reporter.yaml: the signer without --report, and grantfirst report beside it, with the rights of
// reporter-rbac.yaml alone. Both look at the policy more often than in production.
func (l *live) beside() {
	l.Helper()
	if err := l.RbacV1().Roles(l.namespace).Delete(l.Context(), l.namespace+"-report", metav1.DeleteOptions{}); err != nil {
		l.Fatal(err)
	}
	names := strings.NewReplacer("pod-cert-signer", l.namespace, "example.com/workload", l.signerName, "example.com/", "example.test/"+l.namespace+"/", "30s", "200ms")
	text, err := os.ReadFile("../argocd/reporter-rbac.yaml")
	if err != nil {
		l.Fatal(err)
	}
	first, second, _ := strings.Cut(names.Replace(string(text)), "\n---\n")
	var role rbacv1.Role
	var binding rbacv1.RoleBinding
	if err := yaml.UnmarshalStrict([]byte(first), &role); err != nil {
		l.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(second), &binding); err != nil {
		l.Fatal(err)
	}
	if _, err := l.RbacV1().Roles(l.namespace).Create(l.Context(), &role, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
	if _, err := l.RbacV1().RoleBindings(l.namespace).Create(l.Context(), &binding, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}

	dir := l.TempDir()
	for name, build := range map[string]struct{ source, path string }{"signer": {".", "/signer"}, "grantfirst": {"../../cmd/grantfirst", "/grantfirst"}} {
		binary := filepath.Join(dir, name)
		command := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", binary, build.source)
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := command.CombinedOutput(); err != nil {
			l.Fatalf("%v\n%s", err, out)
		}
		image := map[string]any{"name": "example.test/" + l.namespace + "/" + name, "files": map[string]string{build.path: binary}, "entrypoint": []string{build.path}, "uid": 65532}
		if err := l.control("PUT", "/images", image, nil); err != nil {
			l.Fatal(err)
		}
	}

	text, err = os.ReadFile("reporter.yaml")
	if err != nil {
		l.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(names.Replace(string(text))), &deployment); err != nil {
		l.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
	pod.Name = "signer-0"
	pod.Spec.Containers[1].Command = nil // on the test's node /usr is this machine's
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64)}
	pod.Spec.Containers[0].ReadinessProbe.PeriodSeconds, pod.Spec.Containers[0].ReadinessProbe.FailureThreshold = 1, 1
	grace := int64(60)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	if _, err := l.CoreV1().ConfigMaps(l.namespace).Create(l.Context(), l.policy(l.text("web")), metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
	if _, err := l.CoreV1().Pods(l.namespace).Create(l.Context(), pod, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
	l.awaitRunning("signer-0")
}

// decides is what grantfirst makes of the reports for a ServiceAccount.
func (l *live) decides(serviceAccount string) policy.Decision {
	l.Helper()
	return l.verdict(serviceAccount).Decision
}

func (l *live) verdict(serviceAccount string) policy.Verdict {
	l.Helper()
	d := &demand.Demand{SignerName: l.signerName, Namespace: l.namespace, ServiceAccount: serviceAccount, KeyType: "ECDSAP256", MaxExpirationSeconds: 86400}
	e := l.evidence()
	return e.Decide(d, true)
}

// started are the signer's starts so far, with what their logs say to be in force, and what is in force in the one that runs.
func (l *live) started() (loaded map[string]string, now string) {
	l.Helper()
	var on struct {
		Containers []struct{ ID, Name, State, Log string }
	}
	if err := l.control("GET", "/pods/"+l.namespace+"/signer-0", nil, &on); err != nil {
		l.Fatal(err)
	}
	loaded = map[string]string{}
	for _, c := range on.Containers {
		if c.Name != "signer" {
			continue
		}
		text, err := os.ReadFile(c.Log)
		if err != nil {
			l.Fatal(err)
		}
		for _, grants := range []string{"1 grants", "2 grants"} {
			if strings.Contains(string(text), "is in force: "+grants) {
				loaded[c.ID] = grants
				if c.State == "running" {
					now = grants
				}
			}
		}
	}
	return loaded, now
}

// reported is one state of the report: an instance and a revision.
type reported struct{ id, revision, next, failed string }

// follow records all states of the report until the test ends.
func (l *live) follow() <-chan []reported {
	l.Helper()
	watch, err := l.CoreV1().ConfigMaps(l.namespace).Watch(l.Context(), metav1.ListOptions{LabelSelector: "grantfirst.dev/report=v1"})
	if err != nil {
		l.Fatal(err)
	}
	all := make(chan []reported, 1)
	go func() {
		var states []reported
		for e := range watch.ResultChan() {
			if cm, ok := e.Object.(*corev1.ConfigMap); ok {
				_, id, _ := strings.Cut(cm.Data["containerID"], "://")
				states = append(states, reported{id, cm.Data["revision"], cm.Data["nextRevision"], cm.Data["error"]})
			}
			if e.Type == "DELETED" {
				watch.Stop()
			}
		}
		all <- states
	}()
	return all
}

func TestTheSidecarOnTheCluster(t *testing.T) {
	t.Parallel()
	l := onCluster(t)
	states := l.follow()
	l.beside()
	one, two := l.text("web"), l.text("web", "late")
	change := func(text string) {
		t.Helper()
		if _, err := l.CoreV1().ConfigMaps(l.namespace).Update(t.Context(), l.policy(text), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// until waits for the decision, and checks at each moment that late is granted only while no instance runs without its grant.
	until := func(serviceAccount string, want policy.Decision) {
		t.Helper()
		took := l.await(fmt.Sprintf("%s is %s", serviceAccount, want), func() (bool, error) {
			if l.decides("late") == policy.Granted {
				if _, now := l.started(); now == "1 grants" && l.decides("late") == policy.Granted {
					return false, errors.New("late is granted, and the signer that runs does not grant it")
				}
			}
			return l.decides(serviceAccount) == want, nil
		})
		t.Logf("%s is %s after %v", serviceAccount, want, took.Round(100*time.Millisecond))
	}
	reporterStarts := func() (starts int32) {
		for _, c := range l.get("signer-0").Status.ContainerStatuses {
			if c.Name == "reporter" && c.State.Running != nil {
				starts = c.RestartCount
			}
		}
		return starts
	}

	until("web", policy.Granted)
	change(two)
	until("late", policy.Granted)

	// The reporter alone is killed: what it has said stays.
	if err := l.control("POST", "/pods/"+l.namespace+"/signer-0/containers/reporter/exit?code=1", nil, nil); err != nil {
		t.Fatal(err)
	}
	l.await("the reporter is restarted", func() (bool, error) { return reporterStarts() == 1, nil })
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); {
		if got := l.verdict("late"); got.Decision != policy.Granted {
			t.Fatalf("after the reporter's restart late is %s: %s", got.Decision, got.Message)
		}
	}

	// It is killed while the policy changes back.
	change(one)
	if err := l.control("POST", "/pods/"+l.namespace+"/signer-0/containers/reporter/exit?code=1", nil, nil); err != nil {
		t.Fatal(err)
	}
	until("late", policy.NotGranted)
	l.await("the third start is reported", func() (bool, error) {
		for _, c := range l.get("signer-0").Status.ContainerStatuses {
			if c.Name == "signer" {
				cm, err := l.CoreV1().ConfigMaps(l.namespace).Get(t.Context(), "grantfirst-report-signer-0", metav1.GetOptions{})
				return c.RestartCount == 2 && err == nil && cm.Data["containerID"] == c.ContainerID, err
			}
		}
		return false, nil
	})
	until("web", policy.Granted)

	for _, c := range l.get("signer-0").Status.ContainerStatuses {
		if ended := c.LastTerminationState.Terminated; c.Name == "signer" && (c.RestartCount != 2 || ended == nil || ended.ExitCode != 0) {
			t.Errorf("the signer: %+v", c)
		}
	}
	truth, _ := l.started()
	before := time.Now()
	if err := l.CoreV1().Pods(l.namespace).Delete(t.Context(), "signer-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.await("the pod is gone", func() (bool, error) {
		_, err := l.CoreV1().Pods(l.namespace).Get(context.Background(), "signer-0", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if took := time.Since(before); took > 30*time.Second {
		t.Errorf("the pod ended after %v: SIGTERM was not enough", took)
	}

	want := map[string]string{policy.Revision([]byte(one)): "1 grants", policy.Revision([]byte(two)): "2 grants"}
	all := <-states // Kubernetes removes the report with the pod
	claims := map[reported]bool{}
	for _, s := range all {
		if s.failed != "" {
			t.Errorf("the report has an error: %+v", s)
		}
		if s.id == "" {
			continue
		}
		claims[reported{id: s.id, revision: s.revision}] = true
		if had, ok := truth[s.id]; !ok || had != want[s.revision] {
			t.Errorf("reported %+v, and the instance had %q", s, had)
		}
	}
	t.Logf("%d states of the report, about %d starts", len(all), len(claims))
	if len(claims) != 3 {
		t.Errorf("claims %v, want one for each of three starts: %v", claims, truth)
	}
}
