package applications

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/Masterminds/sprig/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

// renderer renders the strings of one ApplicationSet (utils/utils.go).
type renderer struct {
	goTemplate bool
	options    []string
	base       *template.Template
	parsed     map[string]*template.Template
	// left is what of the budget of a generator may still be spent, on steps, nodes of values, and text.
	left int
}

const (
	// budget is that of one generator of an ApplicationSet, with all its Applications: enough for every real one, and spent in seconds. A
	// byte of text costs 1.
	budget = 1 << 29
	// Costs of what takes longer.
	costOfStep, costOfCall, costOfNode, costOfParsing = 1024, 128, 16, 8
	// maxText is the longest text, in bytes, that a template or one of its functions may make.
	maxText = 1 << 21
	// maxNodes is how many items the values that template functions make may have, of items of items too.
	maxNodes = 1 << 17
	// maxParsed is how many templates are kept as they were parsed: those of an ApplicationSet, but not each that a matrix interpolates.
	maxParsed = 500
	// maxNesting is how deep the values that template functions make may be. It also ends values that contain themselves.
	maxNesting = 200
	// step is a function that is called in every turn of a loop; no template can name it.
	step = "_step"
)

var errTooMuch = errors.New("its templates make more text, or take more steps, than is looked at here")

func newRenderer(goTemplate bool, options []string) (r *renderer, err error) {
	r = &renderer{goTemplate: goTemplate, options: options, parsed: map[string]*template.Template{}}
	if !goTemplate {
		return r, nil
	}
	functions := template.FuncMap{
		"print": fmt.Sprint, "printf": fmt.Sprintf, "println": fmt.Sprintln,
		"html": template.HTMLEscaper, "js": template.JSEscaper, "urlquery": template.URLQueryEscaper,
	}
	maps.Copy(functions, sprig.GenericFuncMap())
	maps.Copy(functions, template.FuncMap{"normalize": normalized, "slugify": slugified, "toYaml": toYAML, "fromYaml": fromYAML, "fromYamlArray": fromYAMLArray})
	maps.Copy(functions, ordered)
	for _, name := range removed {
		delete(functions, name)
	}
	for _, name := range unsettled {
		functions[name] = func(...any) (any, error) {
			return nil, errors.New("what it gives is not the same every time, so nothing can be said about what Argo CD generates")
		}
	}
	for name, f := range functions {
		functions[name] = r.bounded(name, f)
	}
	err = guarded(func() error {
		r.base = template.New("").Option(options...).Funcs(functions)
		return nil
	})
	return r, err
}

// removed are the functions of sprig that Argo CD takes out.
var removed = []string{"env", "expandenv", "getHostByName"}

// unsettled are the functions that give something else each time.
var unsettled = []string{
	"now", "ago", "randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randBytes", "randInt", "shuffle", "uuidv4", "bcrypt", "htpasswd",
	"encryptAES", "genPrivateKey", "genCA", "genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey",
}

// ordered are functions of sprig that depend on the order of a map or on the time and its zone: here maps are in the order of their keys,
// and the zone is UTC, as it is in Argo CD's image.
var ordered = template.FuncMap{
	"keys": func(dicts ...map[string]any) []string {
		var out []string
		for _, d := range dicts {
			out = append(out, slices.Sorted(maps.Keys(d))...)
		}
		return out
	},
	"values": func(dict map[string]any) []any {
		out := []any{}
		for _, k := range slices.Sorted(maps.Keys(dict)) {
			out = append(out, dict[k])
		}
		return out
	},
	"date":           func(layout string, at any) (string, error) { return dated(layout, at, "UTC") },
	"htmlDate":       func(at any) (string, error) { return dated("2006-01-02", at, "UTC") },
	"htmlDateInZone": func(at any, zone string) (string, error) { return dated("2006-01-02", at, zone) },
	"toDate": func(layout, text string) time.Time {
		t, _ := time.Parse(layout, text)
		return t
	},
	"mustToDate": time.Parse,
	"durationRound": func(duration any) (string, error) {
		if _, ok := duration.(time.Time); ok {
			return "", errMoment
		}
		return sprig.GenericFuncMap()["durationRound"].(func(any) string)(duration), nil
	},
	"dateInZone":   dated,
	"date_in_zone": dated,
}

var errMoment = errors.New("it depends on the time, so nothing can be said about what Argo CD generates")

func dated(layout string, at any, zone string) (string, error) {
	var t time.Time
	switch at := at.(type) {
	case time.Time:
		t = at
	case *time.Time:
		t = *at
	case int64:
		t = time.Unix(at, 0)
	case int:
		t = time.Unix(int64(at), 0)
	case int32:
		t = time.Unix(int64(at), 0)
	default:
		return "", errMoment
	}
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		location = time.UTC
	}
	return t.In(location).Format(layout), nil
}

// replace renders one string.
func (r *renderer) replace(text string, p params) (string, error) {
	if err := r.spend(1 + len(text)); err != nil {
		return "", err
	}
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	var out string
	var err error
	if r.goTemplate {
		out, err = r.execute(text, p)
	} else {
		out, err = r.substitute(text, p)
	}
	if err == nil {
		err = r.spend(len(out))
	}
	if err != nil {
		return "", fmt.Errorf("%q: %w", shortened(text), err)
	}
	return out, nil
}

func shortened(text string) string {
	if len(text) > 200 {
		return text[:200] + "…"
	}
	return text
}

func (r *renderer) execute(text string, p params) (string, error) {
	t, ok := r.parsed[text]
	if !ok {
		base, err := r.base.Clone()
		if err != nil {
			return "", err
		}
		if t, err = base.Parse(text); err != nil {
			return "", err
		}
		t.Funcs(template.FuncMap{step: func() (string, error) { return "", r.spend(costOfStep) }})
		for _, each := range t.Templates() {
			if each.Tree != nil {
				each.Root.Nodes = slices.Insert(each.Root.Nodes, 0, counted(each.Root)...)
			}
		}
		if len(r.parsed) == maxParsed {
			clear(r.parsed)
		}
		r.parsed[text] = t
	}
	out := &limited{}
	if err := t.Execute(out, p); errors.Is(err, errTooMuch) {
		return "", errTooMuch
	} else if err != nil {
		return "", err
	}
	return out.String(), nil
}

// counter is a call of step.
var counter = func() parse.Node {
	t := template.Must(template.New("").Funcs(template.FuncMap{step: func() string { return "" }}).Parse("{{" + step + "}}"))
	return t.Root.Nodes[0]
}()

// counted adds a call of step to every loop in a list of nodes, and gives the one that belongs before the list itself.
func counted(list *parse.ListNode) []parse.Node {
	if list == nil {
		return nil
	}
	branch := func(b *parse.BranchNode) {
		for _, l := range []*parse.ListNode{b.List, b.ElseList} {
			if before := counted(l); before != nil {
				l.Nodes = slices.Insert(l.Nodes, 0, before...)
			}
		}
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.RangeNode:
			branch(&n.BranchNode)
		case *parse.IfNode:
			branch(&n.BranchNode)
		case *parse.WithNode:
			branch(&n.BranchNode)
		}
	}
	return []parse.Node{counter.Copy()}
}

// limited is a buffer that ends a template that writes too much.
type limited struct{ bytes.Buffer }

func (l *limited) Write(text []byte) (int, error) {
	if l.Len()+len(text) > maxText {
		return 0, errTooMuch
	}
	return l.Buffer.Write(text)
}

// templated: without goTemplate, a string is a template only if some line of it has both kinds of braces.
var templated = regexp.MustCompile(`.*{{.*}}.*`)

// substitute is the old kind of template (valyala/fasttemplate): what has no parameter of that name, or one that is no string, stays.
func (r *renderer) substitute(text string, p params) (string, error) {
	if !templated.MatchString(text) {
		return text, nil
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{{")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		tag, after, ended := strings.Cut(rest, "}}")
		if !ended {
			return "", errors.New("}} is missing")
		}
		name := strings.TrimSpace(tag)
		if value, ok := p[name].(string); ok && name != "" {
			out.WriteString(value)
		} else {
			out.WriteString("{{" + tag + "}}")
		}
		if out.Len() > maxText {
			return "", errTooMuch
		}
		text = after
	}
}

// deep renders every string of a value, keys of maps too. What is null in a map goes.
func (r *renderer) deep(value any, p params) (any, error) {
	if err := r.spend(costOfNode); err != nil {
		return nil, err
	}
	switch v := value.(type) {
	case string:
		return r.replace(v, p)
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if v[k] == nil {
				continue
			}
			item, err := r.deep(v[k], p)
			if err != nil {
				return nil, err
			}
			key, err := r.replace(k, p)
			if err != nil {
				return nil, err
			}
			out[key] = item
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			var err error
			if out[i], err = r.deep(item, p); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return value, nil
}

// spend takes from the budget.
func (r *renderer) spend(n int) error {
	if n < 0 || n > r.left {
		r.left = 0
		return errTooMuch
	}
	r.left -= n
	return nil
}

var errorType = reflect.TypeFor[error]()

// bounded makes a template function spend: what it gives, and where that can be far more than it is given, what it is about to give.
func (r *renderer) bounded(name string, function any) any {
	f := reflect.ValueOf(function)
	t := f.Type()
	in := make([]reflect.Type, t.NumIn())
	for i := range in {
		in[i] = t.In(i)
	}
	failed := func(err error) []reflect.Value {
		return []reflect.Value{reflect.Zero(t.Out(0)), reflect.ValueOf(&err).Elem()}
	}
	return reflect.MakeFunc(reflect.FuncOf(in, []reflect.Type{t.Out(0), errorType}, t.IsVariadic()), func(args []reflect.Value) []reflect.Value {
		if size := max(0, about(name, args)); size > maxText {
			return failed(errTooMuch)
		} else if err := r.spend(costOfCall + int(size)); err != nil {
			return failed(err)
		}
		var results []reflect.Value
		if t.IsVariadic() {
			results = f.CallSlice(args)
		} else {
			results = f.Call(args)
		}
		if len(results) == 2 && !results[1].IsNil() {
			return results
		}
		nodes, text, nested := measure(results[0], 0)
		if nested || text > maxText || nodes > maxNodes {
			return failed(errTooMuch)
		}
		if err := r.spend(costOfNode*nodes + text/16); err != nil {
			return failed(err)
		}
		return []reflect.Value{results[0], reflect.Zero(errorType)}
	}).Interface()
}

// about is how much a function may give, as far as that is more than the sum of what it is given.
func about(name string, args []reflect.Value) float64 {
	number := func(i int) float64 {
		if i >= len(args) {
			return 0
		}
		return numberOf(args[i])
	}
	size := func(i int) float64 {
		if i >= len(args) {
			return 0
		}
		nodes, text, _ := measure(args[i], 0)
		return float64(nodes + text)
	}
	// steps is how many numbers there are from one to another. A loop that passes the greatest of them never ends.
	steps := func(from, to, by float64) float64 {
		if math.Abs(from)+math.Abs(to)+math.Abs(by) > math.MaxInt32*1024 {
			return math.Inf(1)
		}
		if by == 0 {
			return 0
		}
		return math.Abs(to-from)/math.Abs(by) + 2
	}
	switch name {
	case "repeat":
		return number(0) * size(1)
	case "until":
		return steps(0, number(0), 1)
	case "untilStep":
		return steps(number(0), number(1), number(2))
	case "seq":
		var n []float64
		for i := range args[0].Len() {
			n = append(n, numberOf(args[0].Index(i)))
		}
		switch len(n) {
		case 1:
			return 8 * steps(1, n[0], 1)
		case 2:
			return 8 * steps(n[0], n[1], 1)
		case 3:
			return 8 * steps(n[0], n[2], n[1])
		}
	case "replace":
		return size(1) * size(2) / max(1, size(0))
	case "join":
		return size(0) * size(1)
	case "indent", "nindent":
		return number(0) * size(1)
	case "wrapWith":
		return size(1) * size(2)
	case "regexReplaceAll", "mustRegexReplaceAll", "regexReplaceAllLiteral", "mustRegexReplaceAllLiteral":
		return max(size(0), size(2)) * size(1)
	case "regexMatch", "mustRegexMatch", "regexFind", "mustRegexFind", "regexFindAll", "mustRegexFindAll", "regexSplit", "mustRegexSplit":
		return size(0) * size(1) / 16
	case "printf":
		return widths(args[0].String())
	case "derivePassword":
		return 1 << 20 // scrypt
	}
	return 0
}

// formatWidth is the width or precision of a verb; * takes it from an argument, of which fmt takes no more than a million.
var formatWidth = regexp.MustCompile(`[0-9]+|\*`)

func widths(format string) float64 {
	sum := 0.0
	for _, w := range formatWidth.FindAllString(format, -1) {
		n, err := strconv.ParseFloat(w, 64)
		if err != nil || n > 1e6 {
			n = 1e6
		}
		sum += n
	}
	return sum
}

func numberOf(v reflect.Value) float64 {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	case v.Kind() == reflect.String:
		n, _ := strconv.ParseFloat(v.String(), 64)
		return n
	}
	return 0
}

// measure counts the nodes and the text of a value, until they are too much; nested tells that it is too deep.
func measure(v reflect.Value, depth int) (nodes, text int, nested bool) {
	if depth > maxNesting {
		return 1, 0, true
	}
	nodes = 1
	add := func(v reflect.Value) bool {
		n, t, deep := measure(v, depth+1)
		nodes, text, nested = nodes+n, text+t, nested || deep
		return !nested && nodes <= maxNodes && text <= maxText
	}
	switch v.Kind() {
	case reflect.Interface:
		if !v.IsNil() {
			return measure(v.Elem(), depth)
		}
	case reflect.String:
		text = v.Len()
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if !add(v.Index(i)) {
				break
			}
		}
	case reflect.Map:
		for items := v.MapRange(); items.Next(); {
			if !add(items.Key()) || !add(items.Value()) {
				break
			}
		}
	}
	return nodes, text, nested
}

var notInNames = regexp.MustCompile(`[^-a-z0-9.]`)

// normalized is a name as DNS takes it.
func normalized(name string) string {
	name = notInNames.ReplaceAllString(strings.ToLower(name), "-")
	return strings.Trim(name[:min(len(name), 253)], "-.")
}

var notInSlugs = regexp.MustCompile(`[^a-z0-9]+`)

// slugified is slugify (gosimple/slug over a normalized name): the text is the last argument, before it the length (50), and whether to cut
// only between words (true).
func slugified(args ...any) (string, error) {
	length, words, text := 50, true, ""
	for i, arg := range args {
		ok := true
		switch i {
		case len(args) - 1:
			text, ok = arg.(string)
		case 0:
			length, ok = arg.(int)
		case 1:
			words, ok = arg.(bool)
		}
		if !ok {
			return "", fmt.Errorf("argument %d is a %T", i+1, arg)
		}
	}
	text = normalized(text)
	if !words && len(text) >= length {
		if length < 0 {
			return "", fmt.Errorf("the length is %d", length)
		}
		text = text[:length]
	}
	text = strings.Trim(notInSlugs.ReplaceAllString(text, "-"), "-")
	if !words || length <= 0 || len(text) <= length {
		return text, nil
	}
	if i := strings.LastIndexByte(text[:length+1], '-'); i >= 0 {
		return text[:i], nil
	}
	return text[:length], nil
}

func toYAML(value any) (string, error) {
	text, err := sigsyaml.Marshal(value)
	return strings.TrimSuffix(string(text), "\n"), err
}

func fromYAML(text string) (map[string]any, error) {
	out := map[string]any{}
	err := sigsyaml.Unmarshal([]byte(text), &out)
	return out, err
}

func fromYAMLArray(text string) ([]any, error) {
	out := []any{}
	err := sigsyaml.Unmarshal([]byte(text), &out)
	return out, err
}
