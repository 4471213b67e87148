package loaded

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/policy"
)

func TestARefusalSaysThatTheLastLoadFailed(t *testing.T) {
	format, err := policy.Compile(policy.FormatGrants, "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := format.Parse([]byte(oldText))
	if err != nil {
		t.Fatal(err)
	}
	rep := &report{ConfigMap: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pcs", Name: "r"}}, failed: "2026-11-29T10:05:00Z line 3: bad"}
	r := policy.Replica{Policy: p}
	rep.tellFailure(&r)
	if a := r.Policy.Decide(asking("web")); a.Decision != policy.NotGranted || a.Reason != policy.NoGrant || !strings.HasSuffix(a.Message, "; its last load failed (report pcs/r): 2026-11-29T10:05:00Z line 3: bad") {
		t.Errorf("got %+v", a)
	}
	if a := r.Policy.Decide(asking("api")); a.Decision != policy.Granted || a.Message != "" {
		t.Errorf("what is granted: got %+v", a)
	}
}

func pack(t *testing.T, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestAPackedTextIsReadUpToItsLimit(t *testing.T) {
	text := make([]byte, MaxReportedPolicy)
	if got, err := unpack(pack(t, text)); err != nil || got != string(text) {
		t.Errorf("at the limit: %d bytes, %v", len(got), err)
	}
	if _, err := unpack(pack(t, append(text, 0))); err == nil || !strings.Contains(err.Error(), "larger than 16777216 bytes") {
		t.Errorf("over the limit: %v", err)
	}
}

func TestMessagesAreOfOneLineAndNotEndless(t *testing.T) {
	if got := oneLine(" a\n\tb\r\n"); got != "a b" {
		t.Errorf("got %q", got)
	}
	if got := oneLine(strings.Repeat("é", 10000)); len(got) > 510 || !strings.HasSuffix(got, "é…") {
		t.Errorf("got %d bytes", len(got))
	}
}

// The volume of a container between two starts still has what it had loaded, but the object has changed, and the volume may follow.
func TestAContainerBetweenTwoStartsMayGetTheNewerText(t *testing.T) {
	signer := &config.Signer{
		SignerName: "example.com/workload", Namespace: "pcs", PodSelector: "app=pcs", Evidence: config.Report,
		Policy: config.Policy{ConfigMap: config.ConfigMap{Name: "policy"}, Key: "policy.yaml", Format: "grants"},
	}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pcs-1", Namespace: "pcs", UID: "u1", Labels: map[string]string{"app": "pcs"}}}
	pod.Spec.Containers = []corev1.Container{{Name: "signer"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "signer", RestartCount: 1, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}}
	for name, test := range map[string]struct {
		loaded, object string
		want           policy.Decision
	}{
		"both grant":                     {newText, newText, policy.Granted},
		"the newer one does not":         {newText, oldText, policy.Unknown},
		"the one in the volume does not": {oldText, newText, policy.NotGranted},
		"neither does":                   {oldText, oldText, policy.NotGranted},
		"with a newer one that is broken it would not start": {newText, "{", policy.Granted},
	} {
		t.Run(name, func(t *testing.T) {
			revision := policy.Revision([]byte(test.loaded))
			report := corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Name: "report", Namespace: "pcs", Labels: map[string]string{ReportLabel: ReportVersion},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "pcs-1", UID: "u1"}},
				},
				Data: map[string]string{"signerName": "example.com/workload", "container": "signer", "containerID": "c1", "policy": test.loaded, "revision": revision, "nextRevision": revision},
			}
			object := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "policy", Namespace: "pcs"}, Data: map[string]string{"policy.yaml": test.object}}
			e := Evaluate(signer, &Objects{Pods: []corev1.Pod{pod}, ConfigMaps: []corev1.ConfigMap{report, object}})
			if v := e.Decide(asking("web"), true); v.Decision != test.want {
				t.Errorf("%s: %s", v.Decision, v.Message)
			}
		})
	}
}
