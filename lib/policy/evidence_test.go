package policy

import (
	"reflect"
	"testing"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// says answers the same to every demand.
type says Answer

func (s says) Decide(*demand.Demand) Answer { return Answer(s) }

var (
	yes     = says{Decision: Granted}
	no      = says{Decision: NotGranted, Reason: NoGrant, Message: "no grant for shop/web"}
	badKey  = says{Decision: NotGranted, Reason: UnsupportedKeyType, Message: "key type"}
	puzzled = says{Decision: Unknown, Message: "cost limit"}
)

func TestEvidenceDecides(t *testing.T) {
	live := func(p Policy) Alternatives {
		return Alternatives{{Object: Object{Kind: "ConfigMap", Namespace: "signer", Name: "policy", Revision: Revision(nil), Policy: p}}}
	}
	for name, c := range map[string]struct {
		evidence Evidence
		isNew    bool
		want     Decision
		reason   string
		message  string
	}{
		"granted by all replicas is granted": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: yes}, {Pod: "b", Policy: yes}}}, true, Granted, "", ""},
		"refused by one replica is refused": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: yes}, {Pod: "b", Policy: no}}}, false, NotGranted, NoGrant, "pod b: no grant for shop/web"},
		"unknown to one replica is unknown": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: puzzled}, {Pod: "b", Policy: yes}}}, false, Unknown, "", "pod a: cost limit"},
		"a refusal beats an unknown before it": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: puzzled}, {Pod: "b", Policy: no}}}, false, NotGranted, NoGrant, "pod b"},
		"a refusal beats an unknown after it": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: no}, {Pod: "b", Policy: puzzled}}}, false, NotGranted, NoGrant, "pod a"},
		"of two refusals the pod with the lower name gives the reason": {
			Evidence{Replicas: []Replica{{Pod: "b", Policy: badKey}, {Pod: "a", Policy: no}}}, false, NotGranted, NoGrant, "pod a"},
		"of two unknowns the pod with the lower name gives the message": {
			Evidence{Replicas: []Replica{{Pod: "b", Problem: "y"}, {Pod: "a", Problem: "x"}}}, false, Unknown, "", "pod a: it cannot be told what it has loaded: x"},
		"a replica whose policy is not known is unknown, whatever the policy object says": {
			Evidence{Replicas: []Replica{{Pod: "a", Problem: "no volume"}}, Live: live(yes)}, false, Unknown, "", "no volume"},
		"a replica that has not started is judged by its policy": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: yes}, {Pod: "b", Policy: no, Pending: true}}}, false, NotGranted, NoGrant, "pod b (not started yet)"},
		"a new demand is granted by a replica that has not started": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: yes, Pending: true}}}, true, Granted, "", ""},
		"a terminating replica counts until it is gone": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: no, Terminating: true, Node: "n1"}, {Pod: "b", Policy: yes}}}, true, NotGranted, NoGrant, "terminating on node n1"},
		"the message has the revision": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: no, Revision: Revision(nil)}}}, false, NotGranted, NoGrant, "policy sha256:e3b0c44298fc)"},
		"the policy object does not matter while there are replicas": {
			Evidence{Replicas: []Replica{{Pod: "a", Policy: no}}, Live: live(yes)}, false, NotGranted, NoGrant, ""},
		"without replica a released demand is judged by the policy object: granted": {
			Evidence{Live: live(yes)}, false, Granted, "", ""},
		"without replica a released demand is judged by the policy object: refused": {
			Evidence{Live: live(no)}, false, NotGranted, NoGrant, "no live replica, and by ConfigMap signer/policy (sha256:e3b0c44298fc): no grant"},
		"without replica a released demand is judged by the policy object: unknown": {
			Evidence{Live: live(puzzled)}, false, Unknown, "", "cost limit"},
		"without replica a new demand is unknown although the policy object grants it": {
			Evidence{Live: live(yes)}, true, Unknown, "", "only wait"},
		"without replica a new demand is unknown although the policy object refuses it, and that is said": {
			Evidence{Live: live(no)}, true, Unknown, "", "only wait: the signer has no live replica, and by ConfigMap"},
		"without replica and policy object a released demand is unknown": {
			Evidence{}, false, Unknown, "", "no policy object"},
		"without replica and policy object a new demand is unknown": {
			Evidence{}, true, Unknown, "", "no policy object"},
		"without replica a policy object that cannot be parsed is unknown": {
			Evidence{Live: Alternatives{{Object: Object{Kind: "ConfigMap", Namespace: "signer", Name: "policy", Problem: "line 3"}}}}, false, Unknown, "", "ConfigMap signer/policy cannot be read: line 3"},
		"evidence that could not be read is unknown, whatever is there of it": {
			Evidence{Problem: "forbidden", Replicas: []Replica{{Pod: "a", Policy: yes}}, Live: live(yes)}, false, Unknown, "", "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, c.evidence.Decide(ask(nil), c.isNew).Answer, c.want, c.reason, c.message)
		})
	}
}

func TestEvidenceListsReplicasByName(t *testing.T) {
	e := Evidence{Replicas: []Replica{{Pod: "c", Policy: yes}, {Pod: "a", Policy: no, Revision: "sha256:1"}, {Pod: "b", Problem: "gone"}}}
	got := e.Decide(ask(nil), true).Replicas
	want := []ReplicaAnswer{
		{Pod: "a", Revision: "sha256:1", Answer: Answer(no)},
		{Pod: "b", Answer: unknown("it cannot be told what it has loaded: gone")},
		{Pod: "c", Answer: Answer(yes)},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if e.Replicas[0].Pod != "c" {
		t.Error("the evidence itself was sorted, which another goroutine may be reading")
	}
}
