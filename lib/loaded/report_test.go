package loaded

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
