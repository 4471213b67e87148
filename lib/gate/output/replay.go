package output

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/grantfirst/grantfirst/lib/gate"
)

type jsonReplay struct {
	Steps    int        `json:"steps"`
	Rendered int        `json:"rendered"`
	Red      []jsonStep `json:"red"`
	Unknown  []jsonStep `json:"unknown"`
}

type jsonStep struct {
	Commit  string `json:"commit"`
	Date    string `json:"date"`
	Subject string `json:"subject"`
	Merge   bool   `json:"merge"`
	Error   string `json:"error,omitempty"`
	jsonReport
}

// Violated and uncertain steps of a history.
func sorted(steps []gate.Replayed) (red, unknown []gate.Replayed) {
	for _, s := range steps {
		switch {
		case s.Report != nil && s.Report.Violated():
			red = append(red, s)
		case s.Report == nil || s.Report.Uncertain():
			unknown = append(unknown, s)
		}
	}
	return red, unknown
}

// ReplayJSON is the interface of replay for machines.
func ReplayJSON(w io.Writer, steps []gate.Replayed, rendered int) error {
	out := jsonReplay{Steps: len(steps), Rendered: rendered, Red: []jsonStep{}, Unknown: []jsonStep{}}
	red, unknown := sorted(steps)
	convert := func(s gate.Replayed) jsonStep {
		x := jsonStep{Commit: s.After.ID, Date: s.Time, Subject: s.Subject, Merge: s.Merge}
		x.Findings = []jsonFinding{}
		if s.Err != nil {
			x.Error = s.Err.Error()
		}
		if s.Report != nil {
			s.Report.Findings = shown(s.Report)
			x.jsonReport = toJSON(s.Report)
		}
		return x
	}
	for _, s := range red {
		out.Red = append(out.Red, convert(s))
	}
	for _, s := range unknown {
		out.Unknown = append(out.Unknown, convert(s))
	}
	return Indented(w, out)
}

// ReplayText says for people which steps would have been red, with the pods that would have hung.
func ReplayText(w io.Writer, steps []gate.Replayed, rendered int) error {
	var s strings.Builder
	say := func(format string, args ...any) { s.WriteString(printable(fmt.Sprintf(format, args...)) + "\n") }
	red, unknown := sorted(steps)
	show := func(what string, step gate.Replayed) {
		say("%s  %s  %s  %s", what, step.Time, step.After.ID[:min(10, len(step.After.ID))], step.Subject)
		if step.Err != nil {
			say("  %v", step.Err)
		}
		if step.Report == nil {
			return
		}
		for _, f := range shown(step.Report) {
			if f.Existing || f.Verdict == gate.Unprotected {
				continue
			}
			if f.Object.Kind == "" {
				say("  %s: %s", f.Verdict, f.Message)
				continue
			}
			say("  %s: pods of %s, volume %s, ask %s for %s/%s (%s)", f.Verdict, f.Object, f.Volume, f.SignerName, f.Namespace, cmp.Or(f.ServiceAccount, "?"), where(&f))
		}
		s.WriteString("\n")
	}
	for _, step := range red {
		show("red", step)
	}
	for _, step := range unknown {
		show("could not tell", step)
	}
	say("%s: %d would have been red, %d could not be told (%s)", counted(len(steps), "step", "steps"), len(red), len(unknown), counted(rendered, "render", "renders"))
	_, err := io.WriteString(w, s.String())
	return err
}
