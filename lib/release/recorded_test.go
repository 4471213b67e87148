package release

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Argo CD from v3.3 on is not built here, so what it does differently is recorded: the versions of an ApplicationSet and of the Application of
// its first step in a run of scenario 12 (examples/outage/e2e, TestAHeldStepHoldsTheStepsBehindIt) on v3.5.1, without the fields that
// nobody reads.
func TestOnTheRecordedRollingSyncOfV35TheReleaseAloneStartsTheSync(t *testing.T) {
	text, err := os.ReadFile("testdata/rollingsync-v3.5.1.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 30, 7, 9, 0, 0, time.UTC)
	var set *unstructured.Unstructured
	var memory Memory
	var did, steps []string
	ended := map[Outcome]int{}
	for line := range bytes.Lines(text) {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(line); err != nil {
			t.Fatal(err)
		}
		if object.GetKind() == "ApplicationSet" {
			set = object
			continue
		}
		a, err := Read(object)
		if err != nil {
			t.Fatal(err)
		}
		o := &Observed{Application: a, Holds: map[Marker]Hold{}, MayBegin: true, RollingSync: readRollingSync(set, a.Metadata.Name)}
		if o.automated() || o.manual() || !o.prunes() {
			t.Fatalf("version %s: automated %t, manual %t, prunes %t; want a child of a RollingSync whose automation is switched off, and which prunes",
				a.Metadata.ResourceVersion, o.automated(), o.manual(), o.prunes())
		}
		if n := len(steps); n == 0 || steps[n-1] != o.RollingSync.Status {
			steps = append(steps, o.RollingSync.Status)
		}
		for _, m := range a.Markers() {
			o.Holds[m] = Hold{Digest: "sha256:d1", Loaded: No}
			// The signers had loaded the grant between these two versions.
			if a.Metadata.ResourceVersion >= "4638" {
				o.Holds[m] = Hold{Digest: "sha256:d1", Loaded: Yes}
			}
		}
		// The comparison that the release waited for stood for more than a second; most versions stood for less.
		stood := 100 * time.Millisecond
		if a.Metadata.ResourceVersion == "4837" {
			stood = 2 * time.Second
		}
		for until := now.Add(stood); ; {
			var d Decision
			memory, d = Decide(o, memory, now)
			for _, how := range d.Ended {
				ended[how]++
			}
			if d.Do != None {
				did = append(did, string(d.Do)+" "+a.Metadata.ResourceVersion)
				break
			}
			if d.Again.IsZero() || !d.Again.Before(until) {
				break
			}
			now = d.Again
		}
		now = now.Add(stood)
	}
	// The first was refused then: the ApplicationSet controller had begun one more sync of what was held.
	want := []string{"arm 4406", "arm 4626", "refresh 4638", "sync 4837"}
	if !slices.Equal(did, want) {
		t.Errorf("did %q, want %q", did, want)
	}
	if len(ended) != 1 || ended[Released] != 1 {
		t.Errorf("the hold ended %v, want it released once", ended)
	}
	if want := []string{"Healthy", "Pending", "Progressing", "Healthy"}; !slices.Equal(steps, want) {
		t.Errorf("the step went through %q, want %q", steps, want)
	}
}
