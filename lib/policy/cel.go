package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// celCost bounds one decision. It is what Kubernetes allows one expression of an admission policy (Kubernetes 1.37,
// apiserver/pkg/apis/cel.PerCallLimit), about 0.1 s; looking through a list of 10,000 grants costs some 80,000.
const celCost = 1_000_000

// The demand's fields are variables with a dot in their names, so that a misspelt one is found when the expression is compiled.
const (
	celPolicy         = "policy"
	celSignerName     = "demand.signerName"
	celNamespace      = "demand.namespace"
	celServiceAccount = "demand.serviceAccount"
	celKeyType        = "demand.keyType"
	celMaxExpiration  = "demand.maxExpirationSeconds"
	celAnnotations    = "demand.userAnnotations"
)

// celPolicyText is any policy that is YAML, JSON or a custom resource, decided by the admin's CEL expression.
type celPolicyText struct {
	granted cel.Program
	// variable is what the expression calls the policy.
	variable string
	policy   ref.Val
}

// celBase is what all expressions have in common. It takes some milliseconds, and who uses other formats does not pay for it.
var celBase = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(ext.Strings(), cel.CrossTypeNumericComparisons(true))
})

// aboutDemand are the variables of the demand that is decided.
var aboutDemand = []cel.EnvOption{
	cel.Variable(celSignerName, cel.StringType),
	cel.Variable(celNamespace, cel.StringType),
	cel.Variable(celServiceAccount, cel.StringType),
	cel.Variable(celKeyType, cel.StringType),
	cel.Variable(celMaxExpiration, cel.IntType),
	cel.Variable(celAnnotations, cel.MapType(cel.StringType, cel.StringType)),
}

const demandFields = "demand.signerName, namespace, serviceAccount, keyType, maxExpirationSeconds, userAnnotations"

// compileExpression compiles one that gives true or false. name is what it is called in errors, and may says what it may use.
func compileExpression(name, expression, may string, variables ...cel.EnvOption) (cel.Program, *cel.Ast, error) {
	base, err := celBase()
	if err != nil {
		return nil, nil, fmt.Errorf("prepare CEL: %w", err)
	}
	env, err := base.Extend(variables...)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare CEL: %w", err)
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, nil, fmt.Errorf("%s: %w\nan expression may use %s", name, issues.Err(), may)
	}
	// dyn is what a field of the policy has: it may be a boolean when it comes to it.
	if t := ast.OutputType(); t != cel.BoolType && t != cel.DynType {
		return nil, nil, fmt.Errorf("%s: the expression %q gives %s: write one that gives true or false", name, expression, t)
	}
	program, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(celCost))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return program, ast, nil
}

func compileCEL(granted string) (Format, error) {
	if granted == "" {
		return Format{}, errors.New("policy format cel needs a granted expression over policy and demand")
	}
	program, _, err := compileExpression("granted", granted, "policy and "+demandFields, slices.Concat(aboutDemand, []cel.EnvOption{cel.Variable(celPolicy, cel.DynType)})...)
	if err != nil {
		return Format{}, err
	}
	return Format{parse: func(text []byte) (Policy, error) {
		v, err := decode(text)
		if err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
		return &celPolicyText{granted: program, variable: celPolicy, policy: celValue(v)}, nil
	}}, nil
}

// Decide is granted for true, refused for false and unknown for all else. A key type that the kubelet cannot make is refused unasked.
func (p *celPolicyText) Decide(d *demand.Demand) Answer {
	if !slices.Contains(keyTypes, d.KeyType) {
		return refused(UnsupportedKeyType, "key type %q is none that Kubernetes knows", d.KeyType)
	}
	out, err := p.eval(celDemand(d))
	if err != nil {
		return unknown("the granted expression cannot be evaluated on this policy: %v", oneLine(err))
	}
	switch out {
	case types.True:
		return Answer{Decision: Granted}
	case types.False:
		return refused(NoGrant, "the granted expression is false for ServiceAccount %s/%s", d.Namespace, d.ServiceAccount)
	}
	return unknown("the granted expression gives %s and not true or false", out.Type().TypeName())
}

// celDemand has the variables of a demand, and room for that of the policy.
func celDemand(d *demand.Demand) map[string]any {
	return map[string]any{
		celSignerName:     types.String(d.SignerName),
		celNamespace:      types.String(d.Namespace),
		celServiceAccount: types.String(d.ServiceAccount),
		celKeyType:        types.String(d.KeyType),
		celMaxExpiration:  types.Int(d.MaxExpirationSeconds),
		celAnnotations:    celValue(anyMap(d.UserAnnotations)),
	}
}

// eval puts the policy into variables and evaluates the expression.
func (p *celPolicyText) eval(variables map[string]any) (ref.Val, error) {
	variables[p.variable] = p.policy
	out, _, err := p.granted.Eval(variables)
	return out, err
}

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// celValue makes the decoded text CEL's own, once and for all decisions.
func celValue(v any) ref.Val {
	switch v := v.(type) {
	case []any:
		items := make([]ref.Val, len(v))
		for i := range v {
			items[i] = celValue(v[i])
		}
		return types.NewRefValList(types.DefaultTypeAdapter, items)
	case map[string]any:
		entries := make(map[ref.Val]ref.Val, len(v))
		keys := make([]ref.Val, 0, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			k := types.String(key)
			keys, entries[k] = append(keys, k), celValue(v[key])
		}
		return &sortedMap{types.NewRefValMap(types.DefaultTypeAdapter, entries), keys}
	default:
		return types.DefaultTypeAdapter.NativeToValue(v)
	}
}

// sortedMap is a map that is gone through in the order of its keys: in Go's, the same policy would give another message, or another
// cost, from one run to the next.
type sortedMap struct {
	traits.Mapper
	keys []ref.Val
}

// Iterator goes through the keys in order.
func (m *sortedMap) Iterator() traits.Iterator {
	return types.NewRefValList(types.DefaultTypeAdapter, m.keys).Iterator()
}
