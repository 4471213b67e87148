package config

import (
	"cmp"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/grantfirst/grantfirst/lib/policy"
)

// Problem is one thing that is wrong with a configuration file.
type Problem struct {
	// Path of the field, as in signers[0].policy.key; empty for the file as a whole.
	Path string
	// Line in the file, from 1: of the field, or of what it is missing in; 0 for the file as a whole.
	Line int
	// Text says what is wrong and what to do.
	Text string
}

func (p Problem) String() string {
	if p.Path == "" {
		return p.Text
	}
	return fmt.Sprintf("%s: %s (line %d)", p.Path, p.Text, p.Line)
}

// Problems is the error of Parse: everything that is wrong, in the order of the file.
type Problems []Problem

// Error has one line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// Parse reads a configuration file, YAML or JSON. Unknown and repeated fields and values of a wrong type are problems like any other.
// The error is of type Problems and has them all; fields that were left out have their defaults.
func Parse(data []byte) (*Config, error) {
	root, err := document(data)
	if err != nil {
		return nil, Problems{{Text: err.Error()}}
	}
	c := &Config{}
	d := &decoder{lines: map[string]int{}}
	d.value(root, reflect.ValueOf(c).Elem(), "")
	d.validate(c)
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
		return nil, d.problems
	}
	c.fillIn()
	return c, nil
}

func (d *decoder) validate(c *Config) {
	if c.APIVersion != APIVersion {
		d.wrong("apiVersion", "%s: set %s", found(c.APIVersion), APIVersion)
	}
	if c.Kind != Kind {
		d.wrong("kind", "%s: set %s", found(c.Kind), Kind)
	}
	oneOf(d, "mode", c.Mode, Enforce, Observe)
	oneOf(d, "unknownSigner", c.UnknownSigner, UnknownHold, UnknownAllow, UnknownError)
	oneOf(d, "hold.marker", c.Hold.Marker, MarkerHold, MarkerDeployment)
	first := map[string]int{}
	for i := range c.Signers {
		at := fmt.Sprintf("signers[%d]", i)
		d.signer(at, &c.Signers[i])
		name := c.Signers[i].SignerName
		if earlier, twice := first[name]; twice && name != "" {
			d.wrong(at+".signerName", "%s is already signers[%d]: keep one", name, earlier)
		} else {
			first[name] = i
		}
	}
	for i := range c.Hold.AlwaysEmit {
		d.selection(fmt.Sprintf("hold.alwaysEmit[%d]", i), &c.Hold.AlwaysEmit[i])
	}
	for i := range c.Overrides {
		d.override(fmt.Sprintf("overrides[%d]", i), &c.Overrides[i])
	}
	d.reading(c)
}

// wrong notes what validation finds.
func (d *decoder) wrong(path, format string, args ...any) {
	if !d.isEcho(path) {
		d.add(path, format, args...)
	}
}

func found(value string) string {
	if value == "" {
		return "missing"
	}
	return fmt.Sprintf("%q is not known here", value)
}

// oneOf accepts the empty value: it stands for the default.
func oneOf[T ~string](d *decoder, at string, value T, allowed ...T) {
	if value == "" || slices.Contains(allowed, value) {
		return
	}
	names := make([]string, len(allowed))
	for i := range allowed {
		names[i] = string(allowed[i])
	}
	last := len(names) - 1
	d.wrong(at, "%q is not known here: use %s or %s", value, strings.Join(names[:last], ", "), names[last])
}

func (d *decoder) signer(at string, s *Signer) {
	if what := checkSignerName(s.SignerName); what != "" {
		d.wrong(at+".signerName", "%s", what)
	}
	switch {
	case s.Namespace == "":
		d.wrong(at+".namespace", "missing: name the namespace that the signer runs in")
	case len(validation.IsDNS1123Label(s.Namespace)) > 0:
		d.wrong(at+".namespace", "%q is no namespace: use lower-case letters, digits and -, 63 at most", s.Namespace)
	}
	d.policy(at, s)
	d.evidence(at, s)
	d.selector(at+".podSelector", s.PodSelector, "missing: give the labels of the signer's pods, such as app.kubernetes.io/name=pod-cert-signer")
}

// policy checks where the policy is. evidence status goes with custom resources and all else with ConfigMaps, so whichever is missing
// the evidence tells what is meant.
func (d *decoder) policy(at string, s *Signer) {
	p := &s.Policy
	at += ".policy"
	if p.Resource == nil && s.Evidence != Status {
		d.configMap(at+".configMap", &p.ConfigMap)
		switch {
		case p.Key == "":
			d.wrong(at+".key", "missing: name the key of the ConfigMap that has the policy text, such as policy.json")
		case len(validation.IsConfigMapKey(p.Key)) > 0:
			d.wrong(at+".key", "%q is no key of a ConfigMap: use letters, digits, -, _ and .", p.Key)
		}
		if p.Loaded != "" {
			d.wrong(at+".loaded", "only custom resources have it: remove it, or give policy.resource and evidence: %s", Status)
		}
		d.format(at, p)
		return
	}
	if p.Resource == nil {
		d.wrong(at+".resource", "missing: evidence %s needs the apiVersion, kind and resource of custom resources, in place of configMap and key", Status)
		return
	}
	if p.ConfigMap != (ConfigMap{}) {
		d.wrong(at+".configMap", "the policy is in custom resources (resource, evidence: %s): give one of the two", Status)
	}
	if p.Key != "" {
		d.wrong(at+".key", "custom resources have none: remove it")
	}
	d.resource(at+".resource", p.Resource)
	d.resourceFormat(at, p)
}

func (d *decoder) resource(at string, r *Resource) {
	group, version, _ := strings.Cut(r.APIVersion, "/")
	switch {
	case r.APIVersion == "":
		d.wrong(at+".apiVersion", "missing: write group/version as in policy.example.com/v1")
	// Kinds that come with Kubernetes are in groups without a dot or under k8s.io; a policy is none of them, and objects of the kind go out
	// during a hold.
	case !strings.Contains(group, ".") || group == "k8s.io" || strings.HasSuffix(group, ".k8s.io") ||
		len(validation.IsDNS1123Subdomain(group)) > 0 || len(validation.IsDNS1035Label(version)) > 0:
		d.wrong(at+".apiVersion", "%q is not that of a custom resource: write group/version as in policy.example.com/v1", r.APIVersion)
	}
	switch {
	case r.Kind == "":
		d.wrong(at+".kind", "missing: write it as in a manifest, such as SignerPolicy")
	case len(validation.IsDNS1035Label(strings.ToLower(r.Kind))) > 0:
		d.wrong(at+".kind", "%q is no kind: write it as in a manifest, such as SignerPolicy", r.Kind)
	}
	switch {
	case r.Resource == "":
		d.wrong(at+".resource", "missing: write the plural of the kind as kubectl api-resources prints it, such as signerpolicies")
	case len(validation.IsDNS1035Label(r.Resource)) > 0:
		d.wrong(at+".resource", "%q is no resource: write the plural of the kind as kubectl api-resources prints it, such as signerpolicies", r.Resource)
	}
	if r.Namespace != "" && r.Namespace != AllNamespaces && len(validation.IsDNS1123Label(r.Namespace)) > 0 {
		d.wrong(at+".namespace", "%q is no namespace: name one, write \"*\" for all, or leave it out for a kind that has none", r.Namespace)
	}
	if r.Selector != "" {
		d.selector(at+".selector", r.Selector, "")
	}
}

func (d *decoder) resourceFormat(at string, p *Policy) {
	if p.Format != policy.FormatCEL {
		d.wrong(at+".format", "custom resources are read with CEL only: set format: %s", policy.FormatCEL)
	}
	if p.Granted == "" {
		d.wrong(at+".granted", "missing: give a CEL expression over object and demand that is true for what the custom resource grants")
	} else if _, err := policy.CompileResource(p.Granted); err != nil {
		d.wrong(at+".granted", "%s", oneLine(err))
	}
	if p.Loaded == "" {
		d.wrong(at+".loaded", "missing: give a CEL expression over object and pod that is true where the pod has loaded the custom resource as it stands")
	} else if _, err := policy.CompileLoaded(p.Loaded); err != nil {
		d.wrong(at+".loaded", "%s", oneLine(err))
	}
}

func (d *decoder) evidence(at string, s *Signer) {
	switch kinds := fmt.Sprintf("use %s, %s, %s or %s", Report, PodVolumes, Status, Settle); s.Evidence {
	case Report, PodVolumes, Status, Settle:
		if s.Policy.Resource != nil && s.Evidence != Status {
			d.wrong(at+".evidence", "%s needs ConfigMaps, and policy.resource names custom resources: use %s", s.Evidence, Status)
		}
	case "":
		d.wrong(at+".evidence", "missing: %s", kinds)
	default:
		d.wrong(at+".evidence", "%q is not known here: %s", s.Evidence, kinds)
	}
	switch {
	case s.Evidence != Settle && s.Settle != nil:
		d.wrong(at+".settle", "only evidence %s reads it: remove it, or set evidence: %[1]s", Settle)
	case s.Evidence == Settle && s.Settle == nil:
		d.wrong(at+".settle", "missing: say with seconds for how long a policy object must not have changed to be taken as loaded")
	case s.Settle != nil && s.Settle.Seconds < 1:
		d.wrong(at+".settle.seconds", "say for how many seconds a policy object must not have changed: as many as the slowest replica takes to load it, such as 180")
	case s.Settle != nil && s.Settle.Seconds > maxSettle:
		d.wrong(at+".settle.seconds", "%d is more than a day: nothing would ever be released", s.Settle.Seconds)
	}
}

// maxSettle is a day, in seconds.
const maxSettle = 24 * 60 * 60

// checkSignerName says what is wrong with a signer name or prefix, by the rules of Kubernetes 1.37
// (pkg/apis/certificates/validation ValidateSignerName); empty when nothing is.
func checkSignerName(name string) string {
	const form = "use domain/name as in example.com/workload, or a prefix of that with * at the end"
	complete, isPrefix := strings.CutSuffix(name, "*")
	switch {
	case name == "":
		return "missing: " + form
	case name == "*":
		return "* alone would be every signer there is: name a domain, and say with unknownSigner what happens to the rest"
	case isPrefix && strings.Contains(complete, "/"):
		complete += "x"
	case isPrefix:
		complete += "x.x/x"
	}
	domain, rest, ok := strings.Cut(complete, "/")
	ok = ok && strings.Contains(domain, ".") && len(domain) <= validation.DNS1123SubdomainMaxLength &&
		len(rest) <= validation.DNS1123LabelMaxLength+1+validation.DNS1123SubdomainMaxLength
	for _, label := range strings.Split(domain, ".") {
		ok = ok && len(validation.IsDNS1123Label(label)) == 0
	}
	for _, label := range strings.Split(rest, ".") {
		ok = ok && len(validation.IsDNS1123Subdomain(label)) == 0
	}
	if !ok {
		return fmt.Sprintf("%q is no signer name: %s", name, form)
	}
	return ""
}

func (d *decoder) configMap(at string, m *ConfigMap) {
	given := 0
	for _, value := range []string{m.Name, m.NamePrefix, m.Selector} {
		if value != "" {
			given++
		}
	}
	if given != 1 {
		d.wrong(at, "want exactly one of name, namePrefix and selector, not %d", given)
	}
	if m.Name != "" && len(validation.IsDNS1123Subdomain(m.Name)) > 0 {
		d.wrong(at+".name", "%q is no name of a ConfigMap: use lower-case letters, digits, - and .", m.Name)
	}
	// What follows a prefix may make up for a trailing - or dot.
	if m.NamePrefix != "" && len(validation.IsDNS1123Subdomain(strings.TrimRight(m.NamePrefix, "-."))) > 0 {
		d.wrong(at+".namePrefix", "%q begins no name of a ConfigMap: use lower-case letters, digits, - and .", m.NamePrefix)
	}
	if m.Selector != "" {
		d.selector(at+".selector", m.Selector, "")
	}
}

// selector refuses selectors that select everything: nobody means that where one is asked for.
func (d *decoder) selector(at, value, missing string) {
	selector, err := labels.Parse(value)
	switch {
	case err != nil:
		d.wrong(at, "%q is no label selector: %s", value, oneLine(err))
	case selector.Empty() && missing == "":
		d.wrong(at, "%q selects everything: name a label", value)
	case selector.Empty():
		d.wrong(at, "%s", missing)
	}
}

func (d *decoder) format(at string, p *Policy) {
	switch p.Format {
	case policy.FormatCEL:
		if p.Granted == "" {
			d.wrong(at+".granted", "missing: format cel needs a CEL expression over policy and demand that is true for what is granted")
		} else if _, err := policy.Compile(p.Format, p.Granted); err != nil {
			d.wrong(at+".granted", "%s", oneLine(err))
		}
		return
	case policy.FormatPodCertSigner, policy.FormatGrants:
	case "":
		d.wrong(at+".format", "missing: use pod-cert-signer, grants or cel")
	default:
		d.wrong(at+".format", "%q is not known here: use pod-cert-signer, grants or cel", p.Format)
		return
	}
	if p.Granted != "" {
		d.wrong(at+".granted", "only format cel reads it: remove it, or set format: cel")
	}
}

func (d *decoder) selection(at string, s *Select) {
	if s.Group == nil && s.Kind == "" && s.Namespace == "" && s.LabelSelector == "" {
		d.wrong(at, "selects everything, so that nothing would ever be held: give group, kind, namespace or labelSelector")
	}
	if s.Group != nil && *s.Group != "" && len(validation.IsDNS1123Subdomain(*s.Group)) > 0 {
		d.wrong(at+".group", "%q is no API group: give it without a version, as in networking.k8s.io, or \"\" for the core group", *s.Group)
	}
	if s.Kind != "" && len(validation.IsDNS1035Label(strings.ToLower(s.Kind))) > 0 {
		d.wrong(at+".kind", "%q is no kind: write it as in a manifest, such as NetworkPolicy", s.Kind)
	}
	if s.Namespace != "" && len(validation.IsDNS1123Label(s.Namespace)) > 0 {
		d.wrong(at+".namespace", "%q is no namespace: use lower-case letters, digits and -, 63 at most", s.Namespace)
	}
	if s.LabelSelector != "" {
		d.selector(at+".labelSelector", s.LabelSelector, "")
	}
}

func (d *decoder) override(at string, o *Override) {
	if len(o.Projects) == 0 && len(o.Applications) == 0 {
		d.wrong(at, "matches nothing: give projects or applications")
	}
	if o.Mode == "" && o.Marker == "" {
		d.wrong(at, "changes nothing: give mode or marker")
	}
	oneOf(d, at+".mode", o.Mode, Enforce, Observe)
	oneOf(d, at+".marker", o.Marker, MarkerHold, MarkerDeployment)
	d.patterns(at+".projects", o.Projects)
	d.patterns(at+".applications", o.Applications)
}

func (d *decoder) patterns(at string, patterns []string) {
	for i, pattern := range patterns {
		at := fmt.Sprintf("%s[%d]", at, i)
		if pattern == "" {
			d.wrong(at, "an empty pattern: name one, or use * for all")
		} else if _, err := path.Match(noSlash(pattern), ""); err != nil {
			d.wrong(at, "%q is no pattern: use *, ? and [a-z], and a backslash before one that is meant as itself", pattern)
		}
	}
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
