package report

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/loaded"
	"github.com/grantfirst/grantfirst/lib/policy"
)

const (
	oldText = "- {namespace: shop, serviceAccount: api}\n"
	newText = oldText + "- {namespace: shop, serviceAccount: web}\n"
)

// replica is what a reader makes of the report.
func (r *reporting) replica() policy.Replica {
	r.Helper()
	r.api.mutex.Lock()
	defer r.api.mutex.Unlock()
	objects := &loaded.Objects{Pods: []corev1.Pod{*r.api.pod.DeepCopy()}}
	for cm := range maps.Values(r.api.configMaps) {
		objects.ConfigMaps = append(objects.ConfigMaps, *cm)
	}
	evidence := loaded.Evaluate(&config.Signer{
		SignerName: "example.com/workload", Namespace: "pcs", PodSelector: "app=pcs", Evidence: config.Report,
		Policy: config.Policy{ConfigMap: config.ConfigMap{Name: "policy"}, Key: "policy.yaml", Format: policy.FormatGrants},
	}, objects)
	if evidence.Problem != "" || len(evidence.Replicas) != 1 {
		r.Fatalf("evidence %+v", evidence)
	}
	return evidence.Replicas[0]
}

// decides checks that a reader takes this text for the one in force.
func (r *reporting) decides(text string) {
	r.Helper()
	if got := r.replica(); got.Policy == nil || got.Revision != policy.Revision([]byte(text)) {
		r.Fatalf("replica %+v, want the text %.60q", got, text)
	}
}

// unknown checks that a reader takes no text for the one in force.
func (r *reporting) unknown(because string) {
	r.Helper()
	if got := r.replica(); got.Policy != nil || !strings.Contains(got.Problem, because) {
		r.Fatalf("replica %+v, want unknown because of %q", got, because)
	}
}

func TestTheWordsAreTheReadersWords(t *testing.T) {
	for got, want := range map[string]string{
		label: loaded.ReportLabel, version: loaded.ReportVersion, keySignerName: loaded.ReportSignerName, keyContainer: loaded.ReportContainer,
		keyContainerID: loaded.ReportContainerID, keyPolicy: loaded.ReportPolicy, keyRevision: loaded.ReportRevision, keyLoadedAt: loaded.ReportLoadedAt,
		keyError: loaded.ReportError, keyErrorAt: loaded.ReportErrorAt, keyPolicyGzip: loaded.ReportPolicyGzip,
	} {
		if got != want {
			t.Errorf("%q, the reader has %q", got, want)
		}
	}
	if maxUnpacked != loaded.MaxReportedPolicy {
		t.Errorf("at most %d bytes, the reader takes %d", maxUnpacked, loaded.MaxReportedPolicy)
	}
}

func TestTheReportIsTheContracts(t *testing.T) {
	r := start(t, &api{}, nil)
	if got := r.report(); fmt.Sprint(got.Data) != "map[container:signer signerName:example.com/workload]" {
		t.Errorf("before the first load: %v", got.Data)
	}
	r.unknown("says that no policy is loaded")

	r.loaded(newText)
	got := r.report()
	if want := (metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "pcs-1", UID: "u1"}); len(got.OwnerReferences) != 1 || got.OwnerReferences[0] != want {
		t.Errorf("owners %+v", got.OwnerReferences)
	}
	if fmt.Sprint(got.Labels) != "map[grantfirst.dev/report:v1]" || got.Namespace != "pcs" {
		t.Errorf("metadata %+v", got.ObjectMeta)
	}
	want := map[string]string{
		"signerName": "example.com/workload", "container": "signer", "containerID": "containerd://s1", "policy": newText,
		"revision": policy.Revision([]byte(newText)), "loadedAt": "2026-11-29T10:01:12Z",
	}
	if !maps.Equal(got.Data, want) || got.BinaryData != nil {
		t.Errorf("data %v", got.Data)
	}
	r.decides(newText)
}

func TestTheNewestTextIsTheOneInForce(t *testing.T) {
	r := start(t, &api{}, nil)
	for _, text := range []string{oldText, newText, oldText} {
		r.loaded(text)
		r.decides(text)
	}
}

func TestAFailedLoadChangesNothingThatIsLoaded(t *testing.T) {
	r := start(t, &api{}, nil)
	r.failed("policy.yaml: line 3:\n  no such key")
	r.unknown("2026-11-29T10:01:12Z policy.yaml: line 3: no such key")
	if got := r.report(); got.Data["policy"] != "" || got.Data["revision"] != "" || got.Data["containerID"] != "" {
		t.Errorf("nothing is loaded, but: %v", got.Data)
	}
	r.loaded(oldText)
	r.decides(oldText)
	was := r.report().Data
	if was["error"] != "" || was["errorAt"] != "" {
		t.Errorf("the error is still there: %v", was)
	}

	r.clock = r.clock.Add(time.Minute)
	r.failed("bad")
	r.decides(oldText)
	now := r.report().Data
	if now["error"] != "bad" || now["errorAt"] != "2026-11-29T10:02:12Z" {
		t.Errorf("error: %v", now)
	}
	delete(now, "error")
	delete(now, "errorAt")
	if !maps.Equal(was, now) {
		t.Errorf("was %v, is %v", was, now)
	}
}

func TestTheCallersBytesMayChangeAfterwards(t *testing.T) {
	a := &api{}
	r := start(t, a, nil)
	buffer := []byte(oldText)
	a.mutex.Lock() // no request gets through until the buffer has changed
	r.Loaded(buffer)
	copy(buffer, "xxxx")
	a.mutex.Unlock()
	r.attempt()
	r.decides(oldText)
}

func TestALargeTextIsPackedAndReadBack(t *testing.T) {
	for name, text := range map[string]string{
		"larger than a plain one may be":   strings.Repeat("# a comment that packs well\n", 20000) + newText,
		"as large as a reader takes":       strings.Repeat(" ", maxUnpacked-len(newText)) + newText,
		"what is no UTF-8 keeps its bytes": "# caf\xe9\n" + newText,
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, &api{}, nil)
			r.loaded(text)
			got := r.report()
			if _, plain := got.Data["policy"]; plain || len(got.BinaryData["policy.gz"]) == 0 {
				t.Errorf("plain %v, %d bytes packed", plain, len(got.BinaryData["policy.gz"]))
			}
			if want := policy.Revision([]byte(text)); got.Data["revision"] != want || r.replica().Revision != want && !strings.Contains(r.replica().Problem, want) {
				t.Errorf("revision %s, replica %+v, want %s", got.Data["revision"], r.replica(), want)
			}
			r.loaded(oldText)
			if got := r.report(); got.BinaryData != nil {
				t.Errorf("the packed text stays beside the plain one")
			}
			r.decides(oldText)
		})
	}
}

func TestATextThatDoesNotFitIsAnErrorAndNoEarlierTextStays(t *testing.T) {
	noise := make([]byte, maxPacked+1)
	rand.New(rand.NewSource(1)).Read(noise)
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"packed beyond the object limit":       {noise, "the policy has 1024001 bytes, 1024"},
		"beyond what a reader takes, unpacked": {bytes.Repeat([]byte{' '}, maxUnpacked+1), "the policy has 16777217 bytes, and a report takes 16777216: make it smaller"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, &api{}, nil)
			r.loaded(oldText)
			r.Loaded(c.text)
			r.attempt()
			if got := r.said(); !strings.Contains(got, "report of pod pcs/pcs-1 about signer example.com/workload: "+c.want) {
				t.Errorf("told %q", got)
			}
			r.unknown(c.want)
			r.loaded(newText)
			r.decides(newText)
		})
	}
}

// The status of a pod lags behind its containers.
func TestATextIsReportedOnlyWithAStatusOfTheInstanceThatLoadedIt(t *testing.T) {
	second := began.Truncate(time.Second)
	for name, c := range map[string]struct {
		status corev1.ContainerStatus
		want   string
	}{
		"of the second in which the process began":       {running("signer", "containerd://s2", second), "containerd://s2"},
		"later, as runtimes say it after the start":      {running("signer", "containerd://s2", second.Add(3*time.Second)), "containerd://s2"},
		"a second before, as runtimes say it beforehand": {running("signer", "containerd://s2", second.Add(-time.Second)), "containerd://s2"},
		"of the instance before":                         {running("signer", "containerd://s1", second.Add(-2*time.Second)), ""},
		"waiting to be started":                          {corev1.ContainerStatus{Name: "signer", ContainerID: "containerd://s1"}, ""},
		"of another container":                           {running("proxy", "containerd://p1", second), ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{pod: signerPod()}
			a.pod.Status.ContainerStatuses = []corev1.ContainerStatus{c.status}
			r := start(t, a, nil)
			r.loaded(newText)
			got := r.report()
			if got.Data["containerID"] != c.want || (got.Data["policy"] != "") != (c.want != "") {
				t.Errorf("data %v", got.Data)
			}
			if c.want == "" {
				a.with(func() { a.pod = signerPod() })
				r.again()
				r.decides(newText)
			}
		})
	}
}

func TestARestartableInitContainerIsASignerToo(t *testing.T) {
	a := &api{pod: signerPod()}
	always := corev1.ContainerRestartPolicyAlways
	a.pod.Spec.InitContainers = []corev1.Container{{Name: "signer", RestartPolicy: &always}}
	a.pod.Spec.Containers = a.pod.Spec.Containers[:1]
	a.pod.Status.InitContainerStatuses = a.pod.Status.ContainerStatuses[1:]
	a.pod.Status.ContainerStatuses = a.pod.Status.ContainerStatuses[:1]
	r := start(t, a, nil)
	r.loaded(newText)
	r.decides(newText)
}

// What the instance before has loaded is not in force any more.
func TestTheFirstReportOfAnInstanceTakesBackThatOfTheOneBefore(t *testing.T) {
	a := &api{}
	first := start(t, a, nil)
	first.loaded(newText)
	first.stop()
	<-first.done
	second := start(t, a, nil)
	second.unknown("says that no policy is loaded")
	second.loaded(oldText)
	second.decides(oldText)
}

func TestAReportOfAnEarlierPodOfTheSameNameIsTakenOver(t *testing.T) {
	a := &api{}
	first := start(t, a, nil)
	first.loaded(newText)
	first.stop()
	<-first.done
	a.with(func() { a.pod.UID = "u2" })
	second := start(t, a, nil)
	second.loaded(newText)
	second.decides(newText)
}

func TestAReplacedPodIsNeverReportedAbout(t *testing.T) {
	a := &api{}
	r := start(t, a, nil)
	r.loaded(newText)
	a.with(func() { a.pod.UID = "u2" })
	r.last.fire <- time.Time{}
	<-r.done
	if got := r.said(); !strings.HasSuffix(got, errReplaced.Error()) {
		t.Errorf("told %q", got)
	}
	r.unknown("it has no report")
	r.Loaded([]byte(oldText)) // returns, and does nothing
}

func TestAReportThatSomebodyDeletesOrChangesIsWrittenAnew(t *testing.T) {
	a := &api{}
	r := start(t, a, nil)
	r.loaded(newText)
	a.with(func() { clear(a.configMaps) })
	r.again()
	r.decides(newText)
	for name, change := range map[string]func(*corev1.ConfigMap){
		"text":    func(cm *corev1.ConfigMap) { cm.Data["policy"] = oldText },
		"version": func(cm *corev1.ConfigMap) { cm.Labels["grantfirst.dev/report"] = "v2" },
		"owner":   func(cm *corev1.ConfigMap) { cm.OwnerReferences[0].UID = "u0" },
		"packed":  func(cm *corev1.ConfigMap) { cm.BinaryData = map[string][]byte{"policy.gz": {1}} },
	} {
		a.with(func() { change(a.configMaps["grantfirst-report-pcs-1"]) })
		r.again()
		if got := r.replica(); got.Policy == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestWhatIsThereAlreadyIsNotWrittenAgain(t *testing.T) {
	a := &api{}
	r := start(t, a, nil)
	r.loaded(newText)
	var waits time.Duration
	for range 12 {
		r.again()
		waits = r.last.wait
	}
	a.with(func() {
		if a.writes != 2 {
			t.Errorf("%d writes, want one at the start and one for the text", a.writes)
		}
	})
	if waits < 30*time.Second || waits > 33*time.Second {
		t.Errorf("the reporter looks every %s", waits)
	}
}

func TestAnOutageDelaysTheReportAndTheNewestTextWins(t *testing.T) {
	for name, outage := range map[string]func(w http.ResponseWriter, q *http.Request) bool{
		"500": func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			return true
		},
		"403 for writes": func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method == http.MethodGet {
				return false
			}
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return true
		},
		"garbage": func(w http.ResponseWriter, _ *http.Request) bool { fmt.Fprint(w, "<html>"); return true },
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{}
			r := start(t, a, nil)
			a.with(func() { a.before = outage })
			r.loaded(oldText)
			if first := r.last.wait; first > time.Second {
				t.Errorf("the next attempt comes after %s", first)
			}
			r.loaded(newText)
			for range 9 {
				r.again()
			}
			if n := len(r.problems); n != 11 {
				t.Errorf("%d problems told, want one for each attempt", n)
			}
			if last := r.last.wait; last > 33*time.Second {
				t.Errorf("the next attempt comes after %s", last)
			}
			a.with(func() { a.before = nil })
			r.again()
			r.decides(newText)
		})
	}
}

func TestALaterOutageIsRetriedSoon(t *testing.T) {
	a := &api{}
	r := start(t, a, nil)
	r.loaded(newText)
	for range 12 {
		r.again()
	}
	a.with(func() {
		a.before = func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
			return true
		}
	})
	r.again()
	if r.last.wait > time.Second {
		t.Errorf("the next attempt comes after %s", r.last.wait)
	}
}

func TestMethodsReturnWhileTheAPIServerHangsAndTheContextEndsAll(t *testing.T) {
	a := &api{}
	r := start(t, a, nil)
	hangs := make(chan struct{})
	a.with(func() {
		a.before = func(_ http.ResponseWriter, q *http.Request) bool {
			close(hangs)
			<-q.Context().Done()
			return true
		}
	})
	r.last.fire <- time.Time{}
	<-hangs
	r.Loaded([]byte(oldText))
	r.Failed(nil)
	r.Loaded([]byte(newText))
	r.stop()
	<-r.done
}

func TestAWriterInBetweenIsNotOverwrittenUnseen(t *testing.T) {
	a := &api{}
	r := start(t, a, nil)
	a.with(func() {
		a.before = func(_ http.ResponseWriter, q *http.Request) bool {
			if q.Method == http.MethodPut {
				a.before = nil
				a.configMaps["grantfirst-report-pcs-1"].ResourceVersion = "other"
			}
			return false
		}
	})
	r.loaded(newText)
	if got := r.said(); !strings.Contains(got, "ConfigMap grantfirst-report-pcs-1: ") {
		t.Errorf("told %q", got)
	}
	r.again()
	r.decides(newText)
}

func TestAConfigMapThatIsNoReportIsLeftAlone(t *testing.T) {
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "grantfirst-report-pcs-1"}, Data: map[string]string{"mine": "yes"}}
	r := start(t, &api{configMaps: map[string]*corev1.ConfigMap{other.Name: other}}, nil)
	if got := r.said(); !strings.Contains(got, "ConfigMap grantfirst-report-pcs-1 is there and no report: it has no label grantfirst.dev/report: remove it") {
		t.Errorf("told %q", got)
	}
	if got := r.report(); fmt.Sprint(got.Data) != "map[mine:yes]" {
		t.Errorf("data %v", got.Data)
	}
}

func TestOnePodReportsAboutSeveralSigners(t *testing.T) {
	a := &api{}
	first := start(t, a, nil)
	first.loaded(newText)
	second := start(t, a, func(s *Settings) { s.SignerName = "example.com/other" })
	second.loaded(oldText)
	if got := second.named(hashedName("pcs-1", "example.com/other")); got.Data["policy"] != oldText {
		t.Errorf("data %v", got.Data)
	}
	first.again()
	first.decides(newText)
	a.with(func() {
		if len(a.configMaps) != 2 {
			t.Errorf("%d reports", len(a.configMaps))
		}
	})
}

func TestNamesFitIntoKubernetesLimit(t *testing.T) {
	for name, c := range map[string]struct{ pod, want string }{
		"a short one is usual":                {"pcs-1", "grantfirst-report-pcs-1"},
		"the longest usual one":               {strings.Repeat("a", 235), "grantfirst-report-" + strings.Repeat("a", 235)},
		"a longer one is cut":                 {strings.Repeat("a", 236), "grantfirst-report-" + strings.Repeat("a", 224) + "-aeb091cf2d"},
		"no label ends in a hyphen or a dot":  {strings.Repeat("a", 222) + ".-" + strings.Repeat("a", 20), "grantfirst-report-" + strings.Repeat("a", 222) + "-"},
		"the longest pod name that there can": {strings.Repeat("b", 253), "grantfirst-report-" + strings.Repeat("b", 224) + "-"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := usualName(c.pod, "example.com/workload"); !strings.HasPrefix(got, c.want) || len(got) > maxName {
				t.Errorf("got %s (%d), want %s", got, len(got), c.want)
			}
		})
	}
	if hashedName("a", "s/b") == hashedName("a", "s/c") {
		t.Error("two signers have one name")
	}
}

func TestMissingSettingsAreSaid(t *testing.T) {
	_, err := Start(context.Background(), Settings{Namespace: "pcs", Pod: "pcs-1", Container: "signer", SignerName: "s"})
	if err == nil || err.Error() != "report: Settings.Client is missing: set it" {
		t.Errorf("got %v", err)
	}
}

func TestErrorsAreOneLineAndNotEndless(t *testing.T) {
	if got := line("a\n\tb \xff"); got != "a b \uFFFD" {
		t.Errorf("got %q", got)
	}
	if got := line(strings.Repeat("é", 1000)); len(got) > maxLine+3 || !strings.HasSuffix(got, "é…") {
		t.Errorf("got %d bytes", len(got))
	}
}

func TestTheAgeOfAProcess(t *testing.T) {
	const stat = "7 (a) b c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 %s 1 1"
	for name, c := range map[string]struct {
		ticks, uptime string
		want          time.Duration
		ok            bool
	}{
		"since its fork":                          {"12000", "123.50 99.0\n", 3500 * time.Millisecond, true},
		"an uptime of the container's own":        {"12000", "3.50 1.0\n", 0, false},
		"no number":                               {"x", "3.50 1.0\n", 0, false},
		"no uptime":                               {"1", "", 0, false},
		"an uptime that is no number":             {"1", "NaN 1", 0, false},
		"an uptime beyond all that time can hold": {"1", "1e300 1", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := age(fmt.Sprintf(stat, c.ticks), c.uptime); got != c.want || ok != c.ok {
				t.Errorf("got %v, %v", got, ok)
			}
		})
	}
	if _, ok := age("7 (a", "1 1"); ok {
		t.Error("half a line has an age")
	}
	if start := processStart(initialised.Add(time.Second)); start.After(initialised.Add(time.Second)) {
		t.Errorf("began %s, after %s", start, initialised)
	}
}
