package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// Replica is one live pod of a signer and the policy it decides by.
type Replica struct {
	// Pod is the pod's name.
	Pod string
	// Revision of the text that Policy was parsed from; empty when unknown, and for custom resources.
	Revision string
	// Policy is nil where it is not known what the replica has loaded; Problem then says why.
	Policy  Policy
	Problem string
	// Pending: the signer container has not started. It will load the policy object as it stands, so Policy is that object's.
	Pending bool
	// Terminating replicas answer requests until they are gone.
	Terminating bool
	// Node is the name of the pod's node, for messages about dead nodes.
	Node string
}

// Object is a live policy object as it stands in the cluster.
type Object struct {
	Kind, Namespace, Name string
	// Revision of the text of a ConfigMap, and Generation of a custom resource that was read from a cluster.
	Revision   string
	Generation int64
	// Policy is nil where the text cannot be parsed; Problem then says why.
	Policy  Policy
	Problem string
}

// Evidence is all that is known about what one signer has loaded.
type Evidence struct {
	// Kind is how it was found out: report, podVolumes, status or settle.
	Kind string
	// Unproven evidence is an assumption and is shown as such (settle).
	Unproven bool
	Replicas []Replica
	// Live are the policy objects in the cluster as they stand: of ConfigMaps only the newest that matches and has the policy key, of custom
	// resources all that match.
	Live Alternatives
	// Searched says where replicas were looked for, for the message where there is none.
	Searched string
	// Problem is set where the evidence as a whole could not be read: every demand is then Unknown.
	Problem string
}

// ReplicaAnswer is what one replica makes of a demand.
type ReplicaAnswer struct {
	Pod      string
	Revision string
	Answer
}

// Verdict is what all live replicas of a signer together make of a demand.
type Verdict struct {
	Answer
	Replicas []ReplicaAnswer
}

// Decide combines the answers of all live replicas (docs/design.md section 5): refused by one is refused, else unknown to one is
// unknown, else granted. Without any live replica nobody is refused, because requests stay pending: what was released before is judged
// by the live policy object, and what is new is unknown. The message names the first pod, by name, that stands in the way.
func (e *Evidence) Decide(d *demand.Demand, isNew bool) Verdict {
	if e.Problem != "" {
		return Verdict{Answer: unknown("it cannot be told what the signer has loaded: %s", e.Problem)}
	}
	if len(e.Replicas) == 0 {
		return Verdict{Answer: e.withoutReplica(d, isNew)}
	}
	replicas := slices.SortedStableFunc(slices.Values(e.Replicas), func(a, b Replica) int { return cmp.Compare(a.Pod, b.Pod) })
	v := Verdict{Answer: Answer{Decision: Granted}}
	for i := range replicas {
		r := &replicas[i]
		a := r.decide(d)
		v.Replicas = append(v.Replicas, ReplicaAnswer{Pod: r.Pod, Revision: r.Revision, Answer: a})
		if a.Decision == NotGranted && v.Decision != NotGranted || a.Decision == Unknown && v.Decision == Granted {
			v.Answer = a
			v.Message = r.String() + ": " + a.Message
			if e.Unproven && r.Policy != nil {
				v.Message += "; unproven: that it has loaded this is an assumption"
			}
		}
	}
	return v
}

func (r *Replica) decide(d *demand.Demand) Answer {
	if r.Policy == nil {
		return unknown("it cannot be told what it has loaded: %s", r.Problem)
	}
	return r.Policy.Decide(d)
}

// String names the pod, the policy it decides by, and what is special about it.
func (r *Replica) String() string {
	var about []string
	if r.Revision != "" {
		about = append(about, "policy "+short(r.Revision))
	}
	if r.Pending {
		about = append(about, "not started yet")
	}
	switch {
	case r.Terminating && r.Node != "":
		about = append(about, "terminating on node "+r.Node)
	case r.Terminating:
		about = append(about, "terminating")
	}
	if about == nil {
		return "pod " + r.Pod
	}
	return "pod " + r.Pod + " (" + strings.Join(about, ", ") + ")"
}

func (e *Evidence) withoutReplica(d *demand.Demand, isNew bool) Answer {
	none := "the signer has no live replica"
	if e.Searched != "" {
		none += " (" + e.Searched + ")"
	}
	var live Answer
	if len(e.Live) == 0 {
		live = unknown("%s, and there is no policy object to judge by", none)
	} else if live = e.Live.Decide(d); live.Decision != Granted {
		live.Message = fmt.Sprintf("%s, and by %s", none, live.Message)
	}
	switch {
	case !isNew:
		return live
	case live.Decision == Granted:
		return unknown("%s: its pods would only wait; start the signer", none)
	}
	return unknown("its pods would only wait: %s", live.Message)
}

// String names the policy object and its text.
func (o *Object) String() string {
	name := o.Kind + " " + o.Name
	if o.Namespace != "" {
		name = o.Kind + " " + o.Namespace + "/" + o.Name
	}
	switch {
	case o.Revision != "":
		return name + " (" + short(o.Revision) + ")"
	case o.Generation != 0:
		return fmt.Sprintf("%s (generation %d)", name, o.Generation)
	}
	return name
}

// short cuts a revision to what tells texts apart in a message.
func short(revision string) string {
	const digits = len("sha256:") + 12
	return revision[:min(len(revision), digits)]
}
