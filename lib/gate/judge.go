package gate

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/policy"
)

func parallel() int { return runtime.GOMAXPROCS(0) }

// judgement is the comparison of two sides.
type judgement struct {
	gate       *Gate
	base, head *side
	report     *Report

	// onlyBase and onlyHead are the roots that are not the same on both sides, shared those that are.
	onlyBase, onlyHead, shared []*root
	// basePolicies and headPolicies are what stands on each side.
	basePolicies, headPolicies policies
	// changed: some policy object is not the same on both sides.
	changed bool
}

// policies are policy objects by cluster and signer.
type policies map[placement]standing

type placement struct {
	cluster string
	signer  *config.Signer
}

// of gives what a demand in a cluster is judged by: the cluster's own policy objects, else those of no known cluster. A demand of no known
// cluster (no Application deploys it on that side) has those of the only cluster that there is.
func (p policies) of(cluster string, s *config.Signer) standing {
	if own := p[placement{cluster, s}]; len(own) > 0 {
		return own
	}
	if cluster != "" {
		return p[placement{"", s}]
	}
	var only standing
	for at, all := range p {
		if at.signer != s || len(all) == 0 {
			continue
		}
		if only != nil {
			return nil
		}
		only = all
	}
	return only
}

func (j *judgement) judge(ctx context.Context) error {
	before := j.gate.renders.count.Load()
	for placed, r := range j.head.placed {
		if _, both := j.base.placed[placed]; both {
			j.shared = append(j.shared, r)
		} else {
			j.onlyHead = append(j.onlyHead, r)
		}
	}
	for placed, r := range j.base.placed {
		if _, both := j.head.placed[placed]; !both {
			j.onlyBase = append(j.onlyBase, r)
		}
	}
	for _, roots := range [][]*root{j.shared, j.onlyHead, j.onlyBase} {
		slices.SortFunc(roots, func(a, b *root) int { return strings.Compare(a.String()+a.placed(), b.String()+b.placed()) })
	}
	j.report.Shared = len(j.shared)
	j.sources()
	j.registries()

	// What has changed is rendered on both sides, and of the rest what may have policy objects.
	sharedPolicies := j.gate.withPolicies(j.shared)
	needed := len(j.onlyBase)+len(j.onlyHead) > 0
	if needed {
		if err := j.gate.renderAll(ctx, slices.Concat(j.onlyBase, j.onlyHead, sharedPolicies)); err != nil {
			return err
		}
		j.failures(j.onlyHead, "")
		j.failures(j.onlyBase, "at the merge base: ")
		j.failures(sharedPolicies, "it may have policy objects: ")
		j.basePolicies = policiesOf(j.gate, slices.Concat(j.onlyBase, sharedPolicies))
		j.headPolicies = policiesOf(j.gate, slices.Concat(j.onlyHead, sharedPolicies))
		j.changed = !maps.EqualFunc(j.basePolicies, j.headPolicies, standing.same)
		if err := j.demands(ctx); err != nil {
			return err
		}
	}
	j.report.Findings = append(j.report.Findings, j.unexpanded()...)
	j.report.Rendered = int(j.gate.renders.count.Load() - before)
	return nil
}

// unexpanded is what could not be expanded on either side, each once.
func (j *judgement) unexpanded() []Finding {
	var out []Finding
	for _, f := range j.head.unknown {
		both := slices.ContainsFunc(j.base.unknown, func(o Finding) bool { return o.Path == f.Path && o.Message == f.Message && o.manifest == f.manifest })
		if both && strings.HasPrefix(f.Message, "ApplicationSet ") && j.gate.ignores(f.set) {
			j.report.Elsewhere = append(j.report.Elsewhere, f.Message)
			continue
		}
		out = append(out, f)
	}
	for _, f := range j.base.unknown {
		if !slices.ContainsFunc(j.head.unknown, func(o Finding) bool {
			return o.Path == f.Path && o.Application == f.Application && o.Message == f.Message
		}) {
			f.Message = "at the merge base: " + f.Message
			out = append(out, f)
		}
	}
	return out
}

// sources looks at what is not in this repository: nothing can be told of it, and if a change has touched how it is deployed, that matters.
func (j *judgement) sources() {
	for _, key := range slices.Sorted(maps.Keys(j.head.elsewhere)) {
		e := j.head.elsewhere[key]
		if _, both := j.base.elsewhere[key]; both || j.gate.passesOver(&e) {
			j.report.Elsewhere = append(j.report.Elsewhere, fmt.Sprintf("Application %s: %s", e.application, e.what))
			continue
		}
		j.report.Findings = append(j.report.Findings, j.untold(&e, "this source has changed and is not in this repository"))
	}
	// What the head has as a chart that can be read is compared with what was there before.
	if j.gate.Charts == nil {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(j.base.elsewhere)) {
		e := j.base.elsewhere[key]
		if _, both := j.head.elsewhere[key]; both || e.pull == "" || j.gate.passesOver(&e) || !slices.ContainsFunc(j.head.roots, func(r *root) bool { return r.chart != "" && r.application == e.application }) {
			continue
		}
		j.report.Findings = append(j.report.Findings, j.untold(&e, "at the merge base this source is not in this repository"))
	}
}

func (j *judgement) untold(e *elsewhere, what string) Finding {
	f := Finding{Verdict: Unknown, Application: e.application, Path: e.path, Line: e.line}
	switch {
	case e.revision != "":
		f.Message = fmt.Sprintf("Application %s: revision %s of this repository is not in this clone: git fetch --tags, or fetch that commit", e.application, e.revision)
	case e.broken != nil:
		f.Message = fmt.Sprintf("Application %s: %s, and its chart cannot be read: %v", e.application, what, e.broken)
	case e.pull != "" && j.gate.Charts != nil:
		f.Message = fmt.Sprintf("Application %s: %s: %s; it is not in %s either: %s", e.application, what, e.what, j.gate.Charts.dir, e.pull)
	case e.pull != "":
		f.Message = fmt.Sprintf("Application %s: %s: %s; look at what it demands with --charts DIR, after %s, or pass over it with --elsewhere ignore=%[1]s", e.application, what, e.what, e.pull)
	default:
		f.Message = fmt.Sprintf("Application %s: %s: %s; look at what it demands yourself, and pass over it with --elsewhere ignore=%[1]s", e.application, what, e.what)
	}
	return f
}

// failures are the roots that could not be rendered.
func (j *judgement) failures(roots []*root, when string) {
	for _, r := range roots {
		f := Finding{Verdict: Unknown, Application: r.application, Cluster: r.cluster, Path: r.path, Line: r.line}
		err := r.broken
		if err == nil {
			out := j.gate.render(r)
			if err = out.err; err != nil {
				if f.Path, f.Line = out.path, out.line; f.Line == 0 {
					f.Path, f.Line = r.file()
				}
			}
		}
		if err == nil {
			continue
		}
		f.Message = fmt.Sprintf("%s%s cannot be rendered: %s", when, r, cause(err))
		j.report.Findings = append(j.report.Findings, f)
	}
}

// cause is an error in one line. Kustomize says all that it has tried on the way to what is wrong, which only its last part is.
func cause(err error) string {
	text := oneLine(err.Error())
	const accumulating, recursed, useless = "accumulating resources from '", "recursed accumulation of path '/repository/", "': must build at directory: not a valid directory: "
	i := strings.LastIndex(text, accumulating)
	if i < 0 {
		return text
	}
	what, _, _ := strings.Cut(text[i:], useless)
	if j := strings.LastIndex(text[:i], recursed); j >= 0 {
		dir, _, _ := strings.Cut(text[j+len(recursed):], "'")
		what = dir + ": " + what
	}
	const target = "couldn't make target for path '/repository/"
	if j := strings.LastIndex(what, target); j >= 0 {
		what = strings.Replace(what[j+len(target):], "'", "", 1)
	}
	step, _, _ := strings.Cut(text, ": ")
	return step + ": " + strings.ReplaceAll(what, "/repository/", "")
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// withPolicies gives the roots that may have policy objects.
func (g *Gate) withPolicies(roots []*root) []*root {
	return slices.DeleteFunc(slices.Clone(roots), func(r *root) bool {
		return !slices.ContainsFunc(g.readers, func(p reader) bool { return g.mayHave(r, p.word()) })
	})
}

func policiesOf(g *Gate, roots []*root) policies {
	p := policies{}
	for _, r := range roots {
		if r.broken != nil {
			continue
		}
		out := g.render(r)
		for i := range out.policies {
			o := &out.policies[i]
			at := placement{r.cluster, o.signer}
			p[at] = append(p[at], o)
		}
	}
	return p
}

// located is a demand with where it was found.
type located struct {
	*found
	root *root
}

func (j *judgement) in(roots []*root) []located {
	var out []located
	for _, r := range roots {
		if r.broken != nil {
			continue
		}
		rendered := j.gate.render(r)
		for i := range rendered.demands {
			out = append(out, located{&rendered.demands[i], r})
		}
	}
	return out
}

// objectKey names an object in a cluster, wherever it is rendered from.
func (l *located) objectKey() string {
	return fmt.Sprintf("%s|%s|%s|%s|%s", l.root.cluster, l.Object.Group(), l.Object.Kind, l.Namespace, l.Object.Name)
}

func (l *located) asks() string { return l.root.cluster + "\x00" + hold.DemandKey(&l.Demand) }

func (j *judgement) demands(ctx context.Context) error {
	onHead, onBase := j.in(j.onlyHead), j.in(j.onlyBase)
	// Objects as they are at the merge base, by name; a workload may have moved between Applications.
	before := map[string]bool{}
	for i := range onBase {
		before[onBase[i].objectKey()+onBase[i].text] = true
	}
	// Where nothing was deployed by an Application before, the first one gives what there was its cluster.
	asked, somewhere := map[string]bool{}, map[string]bool{}
	for i := range onHead {
		l := &onHead[i]
		asked[l.asks()], somewhere[hold.DemandKey(&l.Demand)] = true, true
		j.add(ctx, l, before[l.objectKey()+l.text])
	}
	j.unreadable(j.onlyHead, j.unreadBefore(j.onlyBase), false)
	if !j.changed {
		return nil
	}
	// Grants may have gone that are used by what this change does not touch, or by what it removes.
	var using []*root
	for _, r := range j.shared {
		if j.gate.mayHave(r, "podCertificate") {
			using = append(using, r)
		}
	}
	if err := j.gate.renderAll(ctx, using); err != nil {
		return err
	}
	j.failures(using, "policies change, and it may use them: ")
	j.unreadable(using, nil, true)
	for _, l := range j.in(using) {
		asked[l.asks()] = true
		j.stillGranted(ctx, &l, j.head, "")
	}
	for _, l := range onBase {
		if !asked[l.asks()] && (l.root.cluster != "" || !somewhere[hold.DemandKey(&l.Demand)]) {
			asked[l.asks()] = true
			j.stillGranted(ctx, &l, j.base, "; what used it goes in the same change, but its pods end later: remove the workload first, the grant after")
		}
	}
	return nil
}

func (j *judgement) finding(l *located, v Verdict, s *side, format string, args ...any) Finding {
	return Finding{
		Verdict: v, SignerName: l.SignerName, Namespace: l.Namespace, ServiceAccount: l.ServiceAccount, KeyType: l.KeyType,
		Object: l.Object, Volume: l.Volume, Application: l.root.application, Cluster: l.root.cluster,
		Message: fmt.Sprintf(format, args...), demand: l.Demand, side: s,
	}
}

func (j *judgement) place(f Finding, l *located) {
	f.Path, f.Line = j.gate.locate(l)
	j.report.Findings = append(j.report.Findings, f)
}

// add judges one demand of the head. unchanged: its object is the same at the merge base.
func (j *judgement) add(ctx context.Context, l *located, unchanged bool) {
	// A hook runs in every sync, so its pods ask anew whether or not it is touched.
	v, message := j.verdict(ctx, l, unchanged && !l.hook)
	if v == OK && l.onDelete {
		v, message = Unprotected, message+"; but it is for a hook that runs when the Application is deleted, which nothing can hold back: the grant must be there whenever that is"
	}
	f := j.finding(l, v, j.head, "%s", message)
	f.Existing = unchanged && (v == Missing || v == Denied)
	if f.Existing {
		f.Message += "; it is so at the merge base too, and this change does not touch the object"
	}
	j.place(f, l)
}

func (j *judgement) verdict(ctx context.Context, l *located, unchanged bool) (Verdict, string) {
	if l.Namespace == "" {
		return Unknown, fmt.Sprintf("%s for ServiceAccount %s: neither the object nor an Application says which namespace it goes to: give --namespace", l.SignerName, l.ServiceAccount)
	}
	s := j.gate.Config.Signer(l.SignerName)
	if s == nil {
		if j.gate.Config.UnknownSigner == config.UnknownAllow {
			return OK, fmt.Sprintf("signer %s is not in the configuration, which allows that (unknownSigner: allow)", l.SignerName)
		}
		return Unknown, fmt.Sprintf("signer %s is not in the configuration: add it to signers, or set unknownSigner: allow", l.SignerName)
	}
	base, head := j.answers(ctx, l, s)
	who := fmt.Sprintf("%s for ServiceAccount %s/%s", l.SignerName, l.Namespace, l.ServiceAccount)
	switch {
	case base.Decision == policy.Granted && head.Decision == policy.Granted:
		return OK, who + " is granted at the merge base"
	case base.Decision == policy.Granted:
		return j.lost(l, s, &head, "")
	case base.Decision == policy.Unknown && base.has:
		return Unknown, fmt.Sprintf("%s: at the merge base %s", who, base.Message)
	case head.Decision == policy.Granted && unchanged:
		return OK, who + " is granted now, for a workload that this change does not touch"
	case head.Decision == policy.Granted:
		return ShipsTogether, who + " is granted only by this same change, and may not be loaded when the pods ask: ship the grant first, on its own"
	case !base.has && !head.has:
		return Unknown, fmt.Sprintf("%s: no policy object of this signer in this repository%s: name where it is with --policy, --live or --kubeconfig", who, inCluster(l.root.cluster))
	}
	refusal := head.Answer
	if refusal.Decision != policy.NotGranted {
		refusal = base.Answer
	}
	if refusal.Decision != policy.NotGranted {
		return Unknown, fmt.Sprintf("%s: %s", who, head.Message)
	}
	if refusal.Reason == policy.NoGrant || refusal.Reason == "" {
		return Missing, fmt.Sprintf("%s is granted nowhere (%s): add the grant in a merge request of its own, and this change after it", who, refusal.Message)
	}
	return Denied, fmt.Sprintf("%s has a grant that refuses: %s: %s: change the grant first, or what is asked for", who, refusal.Reason, refusal.Message)
}

func inCluster(cluster string) string {
	if cluster == "" {
		return ""
	}
	return " for cluster " + cluster
}

// sideAnswer is what the policies of one side say; has is false where there are none.
type sideAnswer struct {
	policy.Answer
	has bool
}

func (j *judgement) answers(ctx context.Context, l *located, s *config.Signer) (base, head sideAnswer) {
	b, h := j.basePolicies.of(l.root.cluster, s), j.headPolicies.of(l.root.cluster, s)
	base.Answer, base.has = b.answer(&l.Demand)
	head.Answer, head.has = h.answer(&l.Demand)
	if base.has || j.gate.External == nil {
		return base, head
	}
	// What is elsewhere stands before and after this change. Where the merge base has a policy object of its own, that is the one.
	if a, ok := j.gate.External.Decide(ctx, s, &l.Demand); ok {
		base = sideAnswer{a, true}
		if !head.has {
			head = base
		}
	}
	return base, head
}

// lost is the verdict about a grant that the merge base has and the head has not.
func (j *judgement) lost(l *located, s *config.Signer, head *sideAnswer, why string) (Verdict, string) {
	who := fmt.Sprintf("%s for ServiceAccount %s/%s", l.SignerName, l.Namespace, l.ServiceAccount)
	for _, o := range j.headPolicies.of(l.root.cluster, s) {
		if o.isRevoke {
			return OK, fmt.Sprintf("the grant of %s is taken away at once, because %s says so: %s", who, o.id, o.revoke)
		}
	}
	switch {
	case !head.has:
		return Revoked, fmt.Sprintf("this change removes the policy object that grants %s%s", who, why)
	case head.Decision == policy.Unknown:
		return Unknown, fmt.Sprintf("%s is granted at the merge base; at the head %s", who, head.Message)
	}
	return Revoked, fmt.Sprintf("this change takes away the grant of %s that is still used (%s)%s", who, head.Message, why)
}

// stillGranted looks whether the head takes away the grant of a demand that is there already.
func (j *judgement) stillGranted(ctx context.Context, l *located, of *side, why string) {
	s := j.gate.Config.Signer(l.SignerName)
	if s == nil {
		return
	}
	base, head := j.answers(ctx, l, s)
	if base.Decision != policy.Granted || head.Decision == policy.Granted {
		return
	}
	v, message := j.lost(l, s, &head, why)
	j.place(j.finding(l, v, of, "%s", message), l)
}
