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
)

// waiting is what a live marker says that it waits for.
type waiting struct {
	digest, application, uid string
	demands                  []waitingDemand
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
	w := &waiting{digest: spec.Digest, application: spec.Application, uid: string(object.GetUID())}
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
		return No, &Trouble{Reason: UnknownSigner, Message: fmt.Sprintf("signer %s is not in the configuration: add it, or correct the name in the workload", d.SignerName)}
	}
	if d.pod {
		return Unknown, nil
	}
	e := evidenceOf(s)
	if e.generation == 0 {
		return Unknown, &Trouble{EvidenceUnreadable, fmt.Sprintf("what signer %s has loaded cannot be read: check that the watcher may list and watch pods and policy objects there", s.SignerName), time.Minute}
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
		return Unknown, &Trouble{EvidenceUnreadable, fmt.Sprintf("what signer %s has loaded cannot be told: %s", s.SignerName, e.Problem), time.Minute}
	case len(e.Replicas) == 0:
		return is, &Trouble{NoReplica, fmt.Sprintf("signer %s: %s", s.SignerName, v.Message), time.Minute}
	}
	return is, &Trouble{EvidenceUnreadable, fmt.Sprintf("signer %s: %s", s.SignerName, v.Message), time.Minute}
}

// refusal says what a person may have to do about a demand that is refused.
func refusal(d *waitingDemand, s *config.Signer, e *evidence, v *policy.Verdict) *Trouble {
	asks := fmt.Sprintf("ServiceAccount %s/%s asks signer %s", d.Namespace, d.ServiceAccount, d.SignerName)
	for i := range e.Live {
		if o := &e.Live[i]; o.Problem != "" {
			return &Trouble{PolicyBroken, fmt.Sprintf("%s, whose %s cannot be understood: %s: correct it in Git", asks, &o.Object, o.Problem), time.Minute}
		}
	}
	if e.Live.Granting(&d.Demand) == nil {
		return &Trouble{NobodyGrants, fmt.Sprintf("%s, and no policy object grants that (%s): add the grant in Git, or sync the Application that has it", asks, v.Message), time.Minute}
	}
	for i := range v.Replicas {
		if v.Replicas[i].Decision == policy.Granted {
			continue
		}
		at := slices.IndexFunc(e.Replicas, func(r policy.Replica) bool { return r.Pod == v.Replicas[i].Pod })
		if r := &e.Replicas[at]; r.Terminating {
			return &Trouble{ReplicaTerminating, fmt.Sprintf("%s, and %s has not loaded the grant and is still terminating: if its node is dead, delete the pod with --force --grace-period=0", asks, r), 2 * time.Minute}
		}
	}
	return &Trouble{EvidenceUnreadable, fmt.Sprintf("%s: %s: the grant is there, and the signer has not loaded it", asks, v.Message), 10 * time.Minute}
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

func (o *override) fits(d *demand.Demand, now time.Time) bool {
	until, err := time.Parse(time.RFC3339, o.Until)
	fits := func(want, is string) bool { return want == "" || want == is }
	return err == nil && o.Reason != "" && now.Before(until) &&
		fits(o.SignerName, d.SignerName) && fits(o.Namespace, d.Namespace) && fits(o.ServiceAccount, d.ServiceAccount)
}

// readOverrides gives those of an Application; what cannot be understood lets nothing go.
func readOverrides(object *unstructured.Unstructured, application string) []override {
	if object == nil {
		return nil
	}
	text, _, _ := unstructured.NestedString(object.Object, "data", application)
	var all []override
	if yaml.UnmarshalStrict([]byte(text), &all) != nil {
		return nil
	}
	return all
}
