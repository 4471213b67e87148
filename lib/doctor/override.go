package doctor

import (
	"errors"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// OverridesName is the ConfigMap with the admin's overrides (docs/cluster.md; package plugin has the same).
const OverridesName = "grantfirst-overrides"

// overrideChecks go by the plugin's rules: what cannot be understood lets nothing go.
func (e *examination) overrideChecks() {
	cm, _ := e.configMap(OverridesName)
	if cm == nil {
		return
	}
	known := map[string]bool{}
	for n := range e.Applications {
		known[e.instance(&e.Applications[n])] = true
	}
	for _, instance := range sortedKeys(cm.Data) {
		object := "ConfigMap " + e.Namespace + "/" + OverridesName + " key " + instance
		remove := "grantfirst override " + strings.Replace(instance, "_", "/", 1) + " --remove"
		var all []struct {
			Until          string `json:"until"`
			Reason         string `json:"reason"`
			SignerName     string `json:"signerName"`
			Namespace      string `json:"namespace"`
			ServiceAccount string `json:"serviceAccount"`
		}
		text := cm.Data[instance]
		err := yaml.UnmarshalStrict([]byte(text), &all)
		if err == nil && strings.Contains("\n"+strings.TrimPrefix(text, "---\n"), "\n---") {
			err = errors.New("it has a second document")
		}
		if err != nil {
			e.find(Error, "override-not-understood", object, "write a list of {until, reason}", "nothing of it counts: %v", err)
			continue
		}
		if e.Applications != nil && !e.OnlyOwn && !known[instance] {
			e.find(Warning, "override-for-nobody", object, "NAME, or NAMESPACE_NAME outside Argo CD's namespace; or kubectl edit configmap "+OverridesName+" -n "+e.Namespace, "there is no such Application")
		}
		for n, o := range all {
			until, err := time.Parse(time.RFC3339, o.Until)
			switch {
			case err != nil:
				e.find(Error, "override-not-understood", object, `until: "2026-11-29T12:00:00Z"`, "entry %d does not count: until: %v", n+1, err)
			case strings.TrimSpace(o.Reason) == "":
				e.find(Error, "override-not-understood", object, "reason: …", "entry %d does not count: it has no reason", n+1)
			case e.Now.IsZero():
				e.find(Unknown, "override-in-force", object, remove, "it is not known what time it is there: entry %d is for until %s", n+1, o.Until)
			case e.Now.Before(until):
				e.find(Warning, "override-in-force", object, remove, "lets what would be held go until %s: %s", o.Until, o.Reason)
			default:
				e.find(Info, "override-expired", object, remove, "entry %d ended at %s: %s", n+1, o.Until, o.Reason)
			}
		}
	}
}
