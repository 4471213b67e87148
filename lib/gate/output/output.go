// Package output prints what the gate found: for people, for machines, and for the places where merge requests are looked at.
//
// In goes a report, out come bytes that depend on nothing else.
package output

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/grantfirst/grantfirst/lib/gate"
)

// Formats are all there are, by the name of -o.
var Formats = map[string]func(io.Writer, *gate.Report) error{
	"text": Text, "json": JSON, "junit": JUnit, "sarif": SARIF, "gitlab": GitLab, "markdown": Markdown,
}

// Names of Formats, in the order in which people see them.
var Names = []string{"text", "json", "junit", "sarif", "gitlab", "markdown"}

// about is where a finding is, in one line.
func about(f *gate.Finding) string {
	if f.Object.Kind == "" {
		return where(f)
	}
	s := f.Object.String()
	if f.Volume != "" {
		s += ", volume " + f.Volume
	}
	return s
}

func where(f *gate.Finding) string {
	if f.Line > 0 {
		return fmt.Sprintf("%s:%d", f.Path, f.Line)
	}
	return f.Path
}

// fingerprint is the same for the same finding of another run, whatever line it has moved to.
func fingerprint(f *gate.Finding) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{string(f.Verdict), f.SignerName, f.Namespace, f.ServiceAccount, f.KeyType, f.Object.String(), f.Volume, f.Application, f.Cluster, f.Path,
		unlessObject(f)}, "\x00")))
	return hex.EncodeToString(sum[:])
}

func unlessObject(f *gate.Finding) string {
	if f.Object.Kind == "" {
		return f.Message
	}
	return ""
}

// summary is the last line for people.
func summary(r *gate.Report) string {
	count := map[gate.Verdict]int{}
	existing := 0
	for i := range r.Findings {
		if r.Findings[i].Existing {
			existing++
			continue
		}
		count[r.Findings[i].Verdict]++
	}
	var parts []string
	for _, v := range []gate.Verdict{gate.Missing, gate.Denied, gate.ShipsTogether, gate.Revoked, gate.Unknown, gate.Unprotected, gate.OK} {
		if count[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[v], v))
		}
	}
	if existing > 0 {
		parts = append(parts, fmt.Sprintf("%d no better before this change", existing))
	}
	what := strings.Join(parts, ", ")
	return fmt.Sprintf("%s (%s; %s the same on both sides)", cmp.Or(what, "no demand is touched"), counted(r.Rendered, "render", "renders"), counted(r.Shared, "root is", "roots are"))
}

func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// verdict is the last word: what the exit code says, too.
func verdict(r *gate.Report) string {
	switch {
	case r.Violated():
		return "red"
	case r.Uncertain():
		return "could not tell"
	}
	return "green"
}

func shown(r *gate.Report) []gate.Finding {
	return slices.DeleteFunc(slices.Clone(r.Findings), func(f gate.Finding) bool { return f.Verdict == gate.OK })
}

func base(r *gate.Report) string {
	var ids []string
	for _, b := range r.Bases {
		ids = append(ids, b.ID)
	}
	return strings.Join(ids, ",")
}

func head(r *gate.Report) string {
	if r.Head.WorkTree {
		return "worktree"
	}
	return r.Head.ID
}

// The JSON of check is an interface: docs/check.md. Fields are added, never renamed or removed.
type jsonReport struct {
	Base      string        `json:"base"`
	Head      string        `json:"head"`
	Findings  []jsonFinding `json:"findings"`
	Roots     jsonRoots     `json:"roots"`
	Elsewhere []string      `json:"elsewhere,omitempty"`
}

type jsonRoots struct {
	Rendered int `json:"rendered"`
	Shared   int `json:"shared"`
}

type jsonFinding struct {
	Verdict        gate.Verdict `json:"verdict"`
	SignerName     string       `json:"signerName"`
	Namespace      string       `json:"namespace"`
	ServiceAccount string       `json:"serviceAccount"`
	KeyType        string       `json:"keyType"`
	Object         jsonObject   `json:"object"`
	Volume         string       `json:"volume"`
	Application    string       `json:"application"`
	Cluster        string       `json:"cluster,omitempty"`
	Path           string       `json:"path"`
	Line           int          `json:"line"`
	Message        string       `json:"message"`
	Existing       bool         `json:"existing,omitempty"`
	Move           []jsonMove   `json:"move,omitempty"`
}

type jsonObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}

type jsonMove struct {
	Path string `json:"path"`
	From int    `json:"from"`
	To   int    `json:"to"`
	Text string `json:"text"`
}

// JSON is the interface for machines.
func JSON(w io.Writer, r *gate.Report) error { return Indented(w, toJSON(r)) }

func toJSON(r *gate.Report) jsonReport {
	out := jsonReport{Base: base(r), Head: head(r), Findings: []jsonFinding{}, Roots: jsonRoots{r.Rendered, r.Shared}, Elsewhere: r.Elsewhere}
	for _, f := range r.Findings {
		x := jsonFinding{
			Verdict: f.Verdict, SignerName: f.SignerName, Namespace: f.Namespace, ServiceAccount: f.ServiceAccount, KeyType: f.KeyType,
			Object: jsonObject{f.Object.APIVersion, f.Object.Kind, f.Object.Namespace, f.Object.Name}, Volume: f.Volume, Application: f.Application,
			Cluster: f.Cluster, Path: f.Path, Line: f.Line, Message: f.Message, Existing: f.Existing,
		}
		for _, m := range f.Move {
			x.Move = append(x.Move, jsonMove(m))
		}
		out.Findings = append(out.Findings, x)
	}
	return out
}

// Indented prints JSON for people and machines.
func Indented(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}
