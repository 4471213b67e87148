package main

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcertificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// answering is a signer with one request, and an API server that takes its answer or refuses with this reason.
func answering(t *testing.T, refusal metav1.StatusReason, change func(*certificatesv1.PodCertificateRequest)) (sent *certificatesv1.PodCertificateRequest, said string, err error) {
	t.Helper()
	code := map[metav1.StatusReason]int{metav1.StatusReasonConflict: 409, metav1.StatusReasonNotFound: 404, metav1.StatusReasonForbidden: 403}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		sent = &certificatesv1.PodCertificateRequest{}
		if q.Method != http.MethodPut || q.URL.Path != "/apis/certificates.k8s.io/v1/namespaces/team-a/podcertificaterequests/req-1/status" || json.NewDecoder(q.Body).Decode(sent) != nil {
			t.Errorf("%s %s", q.Method, q.URL)
		}
		if refusal != "" {
			w.WriteHeader(code[refusal])
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Code: int32(code[refusal]), Reason: refusal})
			return
		}
		_ = json.NewEncoder(w).Encode(sent)
	}))
	defer server.Close()
	client, err := typedcertificatesv1.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	s := &signer{client: client, name: "example.com/workload", ca: developmentCA(t), now: func() time.Time { return now }, log: log.New(&out, "", 0), store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	s.rules.Store(rulesOf(t, policyText))
	q := asks(t, key(t, elliptic.P256()))
	if change != nil {
		change(q)
	}
	if err := s.store.Add(q); err != nil {
		t.Fatal(err)
	}
	err = s.handle(t.Context(), "team-a/req-1")
	if len(q.Status.Conditions) > 0 && sent != nil {
		t.Error("the store's own object was changed")
	}
	return sent, out.String(), err
}

func TestAnAnswerIsWrittenOnce(t *testing.T) {
	sent, said, err := answering(t, "", nil)
	if err != nil || sent == nil || len(sent.Status.Conditions) != 1 || sent.Status.Conditions[0].Type != "Issued" || !strings.Contains(said, "request team-a/req-1: ServiceAccount web: Issued") {
		t.Errorf("%v, %+v, %s", err, sent, said)
	}
	for name, change := range map[string]func(*certificatesv1.PodCertificateRequest){
		"decided already":      func(q *certificatesv1.PodCertificateRequest) { q.Status = *denied("NoGrant", "", now) },
		"of another signer":    func(q *certificatesv1.PodCertificateRequest) { q.Spec.SignerName = "example.com/other" },
		"gone in the meantime": func(q *certificatesv1.PodCertificateRequest) { q.Name = "req-2" },
	} {
		if sent, _, err := answering(t, "", change); err != nil || sent != nil {
			t.Errorf("%s: %v, %+v", name, err, sent)
		}
	}
}

func TestAnotherReplicaThatWasFasterIsNoError(t *testing.T) {
	if _, said, err := answering(t, metav1.StatusReasonConflict, nil); err != nil || !strings.Contains(said, "another replica was faster") {
		t.Errorf("%v, %s", err, said)
	}
	if _, _, err := answering(t, metav1.StatusReasonNotFound, nil); err != nil {
		t.Errorf("a request that is gone: %v", err)
	}
	if _, _, err := answering(t, metav1.StatusReasonForbidden, nil); err == nil {
		t.Error("what is forbidden is tried again")
	}
}

// following is a follower of a file with the policy of the tests.
type following struct {
	*follower
	put    []*rules
	failed []error
	said   bytes.Buffer
}

func follow(t *testing.T, onChange string) *following {
	t.Helper()
	f := &following{}
	f.follower = &follower{
		path: filepath.Join(t.TempDir(), "policy.json"), onChange: onChange, name: "example.com/workload", log: log.New(&f.said, "", 0), text: []byte(policyText),
		put: func(r *rules) { f.put = append(f.put, r) }, failed: func(err error) { f.failed = append(f.failed, err) },
	}
	f.write(t, policyText)
	return f
}

func (f *following) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAnyByteThatChangesEndsTheSignerWithExit(t *testing.T) {
	f := follow(t, onChangeExit)
	ticks, ended := make(chan time.Time), make(chan struct{})
	go func() {
		f.follow(t.Context(), ticks)
		close(ended)
	}()
	for range 3 {
		ticks <- time.Time{} // the next is taken only when the one before left all as it was
	}
	f.write(t, policyText+"\n")
	select {
	case ticks <- time.Time{}:
		<-ended
	case <-ended:
	}
	if f.put != nil || f.failed != nil {
		t.Errorf("loaded %v, failed %v", f.put, f.failed)
	}
}

func TestTheEndOfTheContextEndsFollowing(t *testing.T) {
	f := follow(t, onChangeReload)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	f.follow(ctx, nil)
}

func TestReloadKeepsTheOldPolicyUntilAGoodOneComes(t *testing.T) {
	f := follow(t, onChangeReload)
	if f.look() || f.put != nil {
		t.Fatal("nothing has changed")
	}
	f.write(t, "{")
	for range 3 {
		f.look()
	}
	f.write(t, strings.Replace(policyText, "example.com/workload", "example.com/other", 1))
	f.look()
	if f.put != nil || len(f.failed) != 2 || !strings.Contains(f.failed[0].Error(), "policy.json: pod-cert-signer policy:") || !strings.Contains(f.failed[1].Error(), "it is that of signer example.com/other") {
		t.Fatalf("loaded %v, failed %v", f.put, f.failed)
	}
	changed := strings.Replace(policyText, "12h", "2h", 1)
	f.write(t, changed)
	f.look()
	if len(f.put) != 1 || string(f.put[0].text) != changed || f.put[0].lifetime != 2*time.Hour {
		t.Fatalf("loaded %v", f.put)
	}
}

func TestAFileThatIsAwayForAWhileIsNoChange(t *testing.T) {
	for _, onChange := range []string{onChangeExit, onChangeReload} {
		f := follow(t, onChange)
		if err := os.Remove(f.path); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if f.look() {
				t.Errorf("%s: a file that is away is a change", onChange)
			}
		}
		f.write(t, policyText)
		// It is loaded again, so that the report does not keep the error.
		if f.look() || len(f.failed) != 1 || len(f.put) != 1 {
			t.Errorf("%s: loaded %v, failed %v", onChange, f.put, f.failed)
		}
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for want, args := range map[string][]string{
		"--policy is missing":                  nil,
		`--on-change "maybe"`:                  {"--policy", "p", "--on-change", "maybe"},
		"--poll 0s":                            {"--policy", "p", "--poll", "0"},
		"--ca-key and --ca-cert":               {"--policy", "p", "--ca-key", "k"},
		`"more" is no flag`:                    {"--policy", "p", "more"},
		"flag provided but not defined: -what": {"--what"},
	} {
		if _, err := parseFlags(args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", args, err, want)
		}
	}
	if _, err := parseFlags([]string{"--help"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	if o, err := parseFlags([]string{"--policy", "p"}, io.Discard); err != nil || o.onChange != onChangeExit || o.poll != 30*time.Second {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestAPolicyThatIsNotTheSignersDoesNotStartIt(t *testing.T) {
	f := follow(t, onChangeExit)
	for want, o := range map[string]*options{
		"it is that of signer example.com/workload": {policy: f.path, signerName: "example.com/other"},
		"no such file": {policy: f.path + ".none"},
	} {
		if err := run(t.Context(), o, log.New(io.Discard, "", 0)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestASignerEndsAtOnceWithItsContextAndSaysThatItIsForDevelopment(t *testing.T) {
	f := follow(t, onChangeExit)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var out bytes.Buffer
	if err := run(ctx, &options{policy: f.path, onChange: onChangeExit, poll: time.Hour, kubeconfig: kubeconfig}, log.New(&out, "", 0)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "DEVELOPMENT signer example.com/workload, never for production: CA CN=grantfirst example signer: DEVELOPMENT CA") {
		t.Errorf("said %s", out.String())
	}
}
