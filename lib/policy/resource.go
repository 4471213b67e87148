package policy

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// The variables of expressions over custom resources. Those of the pod have a dot in their names, like the demand's.
const (
	celObject       = "object"
	celPodName      = "pod.metadata.name"
	celPodNamespace = "pod.metadata.namespace"
	celPodUID       = "pod.metadata.uid"
	celPodLabels    = "pod.metadata.labels"
	celPodNode      = "pod.spec.nodeName"
)

// ResourceFormat reads the custom resources of one signer. It is safe for concurrent use.
type ResourceFormat struct {
	granted cel.Program
}

// CompileResource compiles the expression over object and demand that is true where the object grants the demand.
func CompileResource(granted string) (ResourceFormat, error) {
	program, _, err := compileExpression("granted", granted, "object and "+demandFields, slices.Concat(aboutDemand, []cel.EnvOption{cel.Variable(celObject, cel.DynType)})...)
	return ResourceFormat{program}, err
}

// Resource is a custom resource that is a policy object.
type Resource struct {
	celPolicyText
}

// Read takes an object as a JSON decoder gives it.
func (f ResourceFormat) Read(object map[string]any) *Resource {
	return &Resource{celPolicyText{granted: f.granted, variable: celObject, policy: celValue(object)}}
}

// Loaded tells by what is in a custom resource whether a pod has loaded it as it stands. It is safe for concurrent use.
type Loaded struct {
	program cel.Program
	// PerPod: the expression looks at the pod. If it does not, what it says is about the signer as a whole.
	PerPod bool
}

// CompileLoaded compiles the expression over object and pod that is true where the pod has loaded the object as it stands.
func CompileLoaded(loaded string) (Loaded, error) {
	program, ast, err := compileExpression("loaded", loaded, "object and pod.metadata.name, namespace, uid, labels and pod.spec.nodeName",
		cel.Variable(celObject, cel.DynType),
		cel.Variable(celPodName, cel.StringType),
		cel.Variable(celPodNamespace, cel.StringType),
		cel.Variable(celPodUID, cel.StringType),
		cel.Variable(celPodLabels, cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable(celPodNode, cel.StringType),
	)
	if err != nil {
		return Loaded{}, err
	}
	l := Loaded{program: program}
	for _, r := range ast.NativeRep().ReferenceMap() {
		l.PerPod = l.PerPod || strings.HasPrefix(r.Name, "pod.")
	}
	return l, nil
}

// Pod is what a loaded expression sees of a live replica.
type Pod struct {
	Name, Namespace, UID string
	Labels               map[string]string
	// Node is the name of the pod's node.
	Node string
}

// WhyNot says why it is not known that the pod has loaded the resource as it stands; empty where it has.
func (l Loaded) WhyNot(r *Resource, pod *Pod) string {
	out, _, err := l.program.Eval(map[string]any{
		celObject:       r.policy,
		celPodName:      pod.Name,
		celPodNamespace: pod.Namespace,
		celPodUID:       pod.UID,
		celPodLabels:    celValue(anyMap(pod.Labels)),
		celPodNode:      pod.Node,
	})
	switch {
	case err != nil:
		return fmt.Sprintf("the loaded expression cannot be evaluated on it: %v", oneLine(err))
	case out == types.True:
		return ""
	case out == types.False:
		return "the loaded expression is false"
	}
	return fmt.Sprintf("the loaded expression gives %s and not true or false", out.Type().TypeName())
}

// Alternatives are the policy objects of a signer of which each grants by itself: a demand is granted if any of them grants it, and an
// object cannot take away what another one grants.
type Alternatives []Alternative

// Alternative is one policy object, as far as a replica has loaded it.
type Alternative struct {
	Object
	// NotLoaded says why it is not known that the replica has loaded the object as it stands; empty where it has.
	NotLoaded string
}

// Decide is granted where an object grants that is loaded. Where none does and all are loaded it is refused. Else it is unknown, because
// of an object that is not loaded and would grant the demand, or if there is none such, of any that is not loaded.
func (a Alternatives) Decide(d *demand.Demand) Answer {
	if a.grants(d) {
		return Answer{Decision: Granted}
	}
	var puzzled, waiting, refusal Answer
	mayGrant, refusals := false, 0
	for i := range a {
		o := &a[i]
		answer := o.decide(d)
		switch {
		case o.NotLoaded != "":
			if grants := answer.Decision == Granted; waiting.Decision == "" || grants && !mayGrant {
				waiting, mayGrant = unknown("%s is not known to be loaded: %s", o, o.NotLoaded), grants
			}
		case answer.Decision == Granted:
			return answer
		case answer.Decision == Unknown && puzzled.Decision == "":
			puzzled = answer
		case answer.Decision == NotGranted:
			if refusals == 0 {
				refusal = answer
			}
			refusals++
		}
	}
	switch {
	case waiting.Decision != "" && (mayGrant || puzzled.Decision == ""):
		return waiting
	case puzzled.Decision != "":
		return puzzled
	case refusals == 0:
		return refused(NoGrant, "no grant for ServiceAccount %s/%s: there is no policy object", d.Namespace, d.ServiceAccount)
	case refusals > 1:
		refusal.Message = fmt.Sprintf("%d policy objects: none grants it for ServiceAccount %s/%s", refusals, d.Namespace, d.ServiceAccount)
	}
	return refusal
}

// grants reports whether an object grants the demand that is loaded. It is Decide without the words, which take most of the time where
// there are many objects.
func (a Alternatives) grants(d *demand.Demand) bool {
	if !slices.Contains(keyTypes, d.KeyType) {
		return false
	}
	variables := celDemand(d)
	for i := range a {
		if r, ok := a[i].Policy.(*Resource); ok && a[i].NotLoaded == "" && r.grants(variables) {
			return true
		}
	}
	return false
}

func (r *Resource) grants(variables map[string]any) bool {
	out, err := r.eval(variables)
	return err == nil && out == types.True
}

// Granting gives the first object that grants the demand as it stands, loaded or not; nil where none does.
func (a Alternatives) Granting(d *demand.Demand) *Object {
	known, variables := slices.Contains(keyTypes, d.KeyType), celDemand(d)
	for i := range a {
		r, ok := a[i].Policy.(*Resource)
		if ok && known && r.grants(variables) || !ok && a[i].decide(d).Decision == Granted {
			return &a[i].Object
		}
	}
	return nil
}

// decide is what the object as it stands makes of the demand; the message names it.
func (o *Object) decide(d *demand.Demand) Answer {
	if o.Policy == nil {
		return unknown("%s cannot be read: %s", o, o.Problem)
	}
	a := o.Policy.Decide(d)
	if a.Decision != Granted {
		a.Message = o.String() + ": " + a.Message
	}
	return a
}
