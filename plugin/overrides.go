package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/loaded"
)

// OverridesName is the ConfigMap in Argo CD's namespace in which an admin lets Applications go for a time (docs/design.md rule 9.5). Each
// key is an Application as plugins see its name, each value a list of Override.
const OverridesName = "grantfirst-overrides"

// Override is one entry of that list. Until and Reason are needed; the others narrow it to some demands.
type Override struct {
	// Until is when it ends, RFC 3339.
	Until          string `json:"until"`
	Reason         string `json:"reason"`
	SignerName     string `json:"signerName,omitempty"`
	Namespace      string `json:"namespace,omitempty"`
	ServiceAccount string `json:"serviceAccount,omitempty"`
}

// readOverrides gives those of the Application that are in force. What cannot be read or understood loosens nothing.
func (c *call) readOverrides(ctx context.Context, from *loaded.Cluster) []hold.Override {
	if cm := c.overridesObject(ctx, from); cm != nil {
		return c.inForce(cm, from.At())
	}
	return nil
}

// overridesObject is the ConfigMap with what it says about this Application; nil where there is none, or none that can be read.
func (c *call) overridesObject(ctx context.Context, from *loaded.Cluster) *corev1.ConfigMap {
	namespace := c.controlPlane()
	what := "ConfigMap " + namespace + "/" + OverridesName
	raw, err := from.Get(ctx, what, "/api/v1/namespaces/"+namespace+"/configmaps/"+OverridesName)
	if isMissing(err, OverridesName) {
		return nil
	}
	var cm corev1.ConfigMap
	if err == nil {
		err = json.Unmarshal(raw, &cm)
	}
	if err == nil && (cm.Kind != "ConfigMap" || cm.Name != OverridesName || cm.Namespace != namespace) {
		err = errors.New("the answer is another object")
	}
	if err != nil {
		c.unreadable(err)
		return nil
	}
	out := &corev1.ConfigMap{TypeMeta: cm.TypeMeta, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: OverridesName}}
	if text, ok := cm.Data[c.app]; ok {
		out.Data = map[string]string{c.app: text}
	}
	return out
}

// inForce reads the overrides of the Application as of a time; where that is not known, there are none.
func (c *call) inForce(cm *corev1.ConfigMap, at time.Time) []hold.Override {
	text, ok := cm.Data[c.app]
	if !ok {
		return nil
	}
	where := fmt.Sprintf("ConfigMap %s/%s, key %s", cm.Namespace, cm.Name, c.app)
	var all []Override
	err := yaml.UnmarshalStrict([]byte(text), &all)
	if err == nil && strings.Contains("\n"+strings.TrimPrefix(text, "---\n"), "\n---") {
		err = errors.New("it has a second document")
	}
	if err != nil {
		c.warn("%s: %v: nothing of it counts; write a list of {until, reason}", where, err)
		return nil
	}
	if at.IsZero() {
		c.warn("%s: it is not known what time it is there: nothing of it counts", where)
		return nil
	}
	var out []hold.Override
	for i, o := range all {
		until, err := time.Parse(time.RFC3339, o.Until)
		switch {
		case err != nil:
			c.warn("%s: entry %d does not count: until: %v", where, i+1, err)
		case strings.TrimSpace(o.Reason) == "":
			c.warn("%s: entry %d does not count: give a reason", where, i+1)
		case at.Before(until):
			out = append(out, hold.Override{SignerName: o.SignerName, Namespace: o.Namespace, ServiceAccount: o.ServiceAccount, Reason: o.Reason, Until: o.Until})
		}
	}
	return out
}
