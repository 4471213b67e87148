package release

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/demand"
	"github.com/grantfirst/grantfirst/lib/policy"
)

// Trouble is a hold that may end only when a person acts. Reason is one word for machines.
type Trouble struct {
	Reason, Message string
	// After is how long the hold must have lasted for it to be said: what is missing may be on its way.
	After time.Duration
	// signer is that of which nobody has the grant.
	signer *config.Signer
}

func needs(reason string, after time.Duration, format string, args ...any) *Trouble {
	return &Trouble{Reason: reason, Message: fmt.Sprintf(format, args...), After: after}
}

// Reasons of Trouble.
const (
	UnknownSigner      = "UnknownSigner"
	NobodyGrants       = "NobodyGrants"
	PolicyBroken       = "PolicyBroken"
	NoReplica          = "NoReplica"
	ReplicaTerminating = "ReplicaTerminating"
	EvidenceUnreadable = "EvidenceUnreadable"
	OperationHangs     = "OperationHangs"
	MarkerRefused      = "MarkerRefused"
	MarkerLeft         = "MarkerLeft"
	NeedsSync          = "ManualSync"
	FailedSync         = "SyncFailed"
	LostSync           = "SyncLost"
	// About overrides.
	Overridden      = "Overridden"
	OverrideOver    = "OverrideOver"
	OverrideInvalid = "OverrideInvalid"
	// Where the grant may be that nobody has.
	GrantNotSynced   = "GrantNotSynced"
	GrantInLaterStep = "GrantInLaterStep"
	GrantInLaterWave = "GrantInLaterWave"
)

// waiting is what a live marker says that it waits for.
type waiting struct {
	digest, application string
	created             time.Time
	demands             []waitingDemand
}

type waitingDemand struct {
	demand.Demand
	// refused: a replica refused it when the hold was made. Else it was unknown, and so it is new.
	refused bool
	// pod asks for a grant that is taken away: what is waited for is that it ends.
	pod bool
}

// readHold takes a Hold as it stands in the cluster.
func readHold(object *unstructured.Unstructured) (*waiting, error) {
	raw, err := json.Marshal(object.Object["spec"])
	if err != nil {
		return nil, err
	}
	var spec struct {
		Application string `json:"application"`
		Digest      string `json:"digest"`
		Demands     []struct {
			SignerName           string            `json:"signerName"`
			Namespace            string            `json:"namespace"`
			ServiceAccount       string            `json:"serviceAccount"`
			KeyType              string            `json:"keyType"`
			MaxExpirationSeconds int64             `json:"maxExpirationSeconds"`
			UserAnnotations      map[string]string `json:"userAnnotations"`
			Object               string            `json:"object"`
			Replicas             []struct {
				Decision string `json:"decision"`
			} `json:"replicas"`
		} `json:"demands"`
	}
	if err := json.Unmarshal(raw, &spec); err != nil {
		return nil, fmt.Errorf("hold %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	w := &waiting{digest: spec.Digest, application: spec.Application, created: object.GetCreationTimestamp().Time}
	for i := range spec.Demands {
		d := &spec.Demands[i]
		of := waitingDemand{
			Demand: demand.Demand{
				SignerName: d.SignerName, Namespace: d.Namespace, ServiceAccount: d.ServiceAccount, KeyType: d.KeyType,
				MaxExpirationSeconds: cmp.Or(d.MaxExpirationSeconds, demand.DefaultMaxExpirationSeconds), UserAnnotations: d.UserAnnotations,
			},
			pod: strings.HasPrefix(d.Object, "Pod "),
		}
		for _, r := range d.Replicas {
			of.refused = of.refused || r.Decision == string(policy.NotGranted)
		}
		w.demands = append(w.demands, of)
	}
	return w, nil
}

// judge says whether everything that a hold waits for is loaded, and what may need a person if not.
func judge(w *waiting, c *config.Config, overrides []override, now time.Time, evidenceOf func(*config.Signer) *evidence) (Loaded, *Trouble) {
	if len(w.demands) == 0 {
		return Unknown, nil
	}
	all, trouble := Yes, (*Trouble)(nil)
	for i := range w.demands {
		d := &w.demands[i]
		if slices.ContainsFunc(overrides, func(o override) bool { return o.fits(&d.Demand, now) }) {
			continue
		}
		is, why := judgeOne(d, c, evidenceOf)
		if is == Yes {
			continue
		}
		if all == Yes || all == Unknown && is == No {
			all, trouble = is, why
		}
	}
	return all, trouble
}

func judgeOne(d *waitingDemand, c *config.Config, evidenceOf func(*config.Signer) *evidence) (Loaded, *Trouble) {
	s := c.Signer(d.SignerName)
	if s == nil {
		if c.UnknownSigner == config.UnknownAllow {
			return Yes, nil
		}
		return No, needs(UnknownSigner, 0, "signer %s is not in the configuration: add it, or correct the name in the workload", d.SignerName)
	}
	if d.pod {
		return Unknown, nil
	}
	e := evidenceOf(s)
	if e.generation == 0 {
		return Unknown, needs(EvidenceUnreadable, time.Minute, "what signer %s has loaded cannot be read: check that the watcher may list and watch pods and policy objects there", s.SignerName)
	}
	// Unknown holds only what is new. So what no replica refused is new, and what one did may be.
	v := e.Decide(&d.Demand, true)
	switch v.Decision {
	case policy.Granted:
		return Yes, nil
	case policy.NotGranted:
		return No, refusal(d, s, e, &v)
	}
	is := No
	if d.refused {
		is = Unknown
	}
	switch {
	case e.Problem != "":
		return Unknown, needs(EvidenceUnreadable, time.Minute, "what signer %s has loaded cannot be told: %s", s.SignerName, e.Problem)
	case len(e.Replicas) == 0:
		return is, needs(NoReplica, time.Minute, "signer %s: %s", s.SignerName, v.Message)
	}
	return is, needs(EvidenceUnreadable, time.Minute, "signer %s: %s", s.SignerName, v.Message)
}

// refusal says what a person may have to do about a demand that is refused.
func refusal(d *waitingDemand, s *config.Signer, e *evidence, v *policy.Verdict) *Trouble {
	asks := fmt.Sprintf("ServiceAccount %s/%s asks signer %s", d.Namespace, d.ServiceAccount, d.SignerName)
	for i := range e.Live {
		if o := &e.Live[i]; o.Problem != "" {
			return needs(PolicyBroken, time.Minute, "%s, whose %s cannot be understood: %s: correct it in Git", asks, &o.Object, o.Problem)
		}
	}
	if e.Live.Granting(&d.Demand) == nil {
		t := needs(NobodyGrants, time.Minute, "%s, and no policy object grants that (%s): add the grant in Git, or sync the Application that has it", asks, v.Message)
		t.signer = s
		return t
	}
	for i := range v.Replicas {
		if v.Replicas[i].Decision == policy.Granted {
			continue
		}
		at := slices.IndexFunc(e.Replicas, func(r policy.Replica) bool { return r.Pod == v.Replicas[i].Pod })
		if r := &e.Replicas[at]; r.Terminating {
			return needs(ReplicaTerminating, 2*time.Minute, "%s, and %s has not loaded the grant and is still terminating: if its node is dead, delete the pod with --force --grace-period=0", asks, r)
		}
	}
	return needs(EvidenceUnreadable, 10*time.Minute, "%s: %s: the grant is there, and the signer has not loaded it", asks, v.Message)
}

// override is an entry of ConfigMap grantfirst-overrides: an admin lets demands of an Application go for a time (docs/cluster.md). The
// plugin decides by it; here it only means that there is something to ask the plugin.
type override struct {
	Until          string `json:"until"`
	Reason         string `json:"reason"`
	SignerName     string `json:"signerName"`
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
}

// inForce says whether it counts, and until when.
func (o *override) inForce(now time.Time) (until time.Time, is bool) {
	until, err := time.Parse(time.RFC3339, o.Until)
	return until, err == nil && strings.TrimSpace(o.Reason) != "" && now.Before(until)
}

func (o *override) fits(d *demand.Demand, now time.Time) bool {
	_, is := o.inForce(now)
	fits := func(want, is string) bool { return want == "" || want == is }
	return is && fits(o.SignerName, d.SignerName) && fits(o.Namespace, d.Namespace) && fits(o.ServiceAccount, d.ServiceAccount)
}

// readOverrides gives those of an Application; what cannot be understood lets nothing go.
func readOverrides(object *unstructured.Unstructured, application string) []override {
	if object == nil {
		return nil
	}
	text, _, _ := unstructured.NestedString(object.Object, "data", application)
	all, _ := parseOverrides(text)
	return all
}

func parseOverrides(text string) (all []override, err error) {
	if err := yaml.UnmarshalStrict([]byte(text), &all); err != nil {
		return nil, err
	}
	return all, nil
}

func readAllOverrides(object *unstructured.Unstructured) map[string][]override {
	if object == nil {
		return nil
	}
	data, _, _ := unstructured.NestedStringMap(object.Object, "data")
	all := map[string][]override{}
	for application, text := range data {
		all[application], _ = parseOverrides(text)
	}
	return all
}
