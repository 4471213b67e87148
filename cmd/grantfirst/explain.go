package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/grantfirst/grantfirst/lib/hold"
	"github.com/grantfirst/grantfirst/lib/policy"
	"github.com/grantfirst/grantfirst/plugin"
)

func explainCommand() *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "say what each demand waits for",
		ArgsUsage: "[PATH | -]",
		Description: `Shows every certificate that the pods of PATH will ask for, what each live signer replica makes of it, and what becomes of every
object. Exit code 1 when something is held, or in mode observe would be.

Examples:
  grantfirst explain --application web ./app
  grantfirst explain --live cluster.yaml --namespace shop --app web ./app
  grantfirst explain --live cluster.yaml --namespace shop --app web -o json ./app
  kustomize build . | grantfirst explain --live cluster.yaml --namespace shop --app web -o mermaid -`,
		Flags: append(requestFlags(), &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "`FORMAT`: text, json or mermaid"}),
		Action: func(c *cli.Context) error {
			printers := map[string]func(io.Writer, *plugin.Outcome) error{"text": explainText, "json": explainJSON, "mermaid": explainMermaid}
			printer, ok := printers[c.String("output")]
			if !ok {
				return fmt.Errorf("--output: %q is none of text, json, mermaid", c.String("output"))
			}
			request, err := newRequest(c)
			if err != nil {
				return err
			}
			outcome, err := request.Plan(c.Context)
			if err != nil {
				return err
			}
			var out bytes.Buffer
			if err := printer(&out, outcome); err != nil {
				return err
			}
			if _, err := out.WriteTo(c.App.Writer); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			report(c.App.ErrWriter, outcome)
			if outcome.Held {
				return errFound
			}
			return nil
		},
	}
}

// The JSON of explain is an interface: docs/explain.md. Fields are added, never renamed or removed.
type explanation struct {
	Application string           `json:"application"`
	Namespace   string           `json:"namespace"`
	Held        bool             `json:"held"`
	Observe     bool             `json:"observe,omitempty"`
	WaitingFor  string           `json:"waitingFor,omitempty"`
	Problem     string           `json:"problem,omitempty"`
	Demands     []explainDemand  `json:"demands"`
	Removals    []explainRemoval `json:"removals,omitempty"`
	Objects     []explainObject  `json:"objects"`
}

type explainDemand struct {
	SignerName           string            `json:"signerName"`
	Namespace            string            `json:"namespace"`
	ServiceAccount       string            `json:"serviceAccount"`
	KeyType              string            `json:"keyType"`
	MaxExpirationSeconds int64             `json:"maxExpirationSeconds"`
	UserAnnotations      map[string]string `json:"userAnnotations"`
	Object               explainRef        `json:"object"`
	Volume               string            `json:"volume"`
	New                  bool              `json:"new"`
	NewBecause           string            `json:"newBecause,omitempty"`
	Override             string            `json:"override,omitempty"`
	Holds                bool              `json:"holds"`
	Decision             policy.Decision   `json:"decision"`
	Reason               string            `json:"reason"`
	Message              string            `json:"message"`
	Evidence             string            `json:"evidence"`
	Unproven             bool              `json:"unproven,omitempty"`
	WantedRevision       string            `json:"wantedRevision,omitempty"`
	Replicas             []explainReplica  `json:"replicas"`
}

type explainRef struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Document   int    `json:"document"`
	Item       int    `json:"item,omitempty"`
}

type explainReplica struct {
	Pod      string          `json:"pod"`
	Revision string          `json:"revision"`
	Decision policy.Decision `json:"decision"`
	Reason   string          `json:"reason"`
	Message  string          `json:"message,omitempty"`
}

type explainRemoval struct {
	Object         string `json:"object"`
	Pod            string `json:"pod"`
	SignerName     string `json:"signerName"`
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	Message        string `json:"message"`
}

type explainObject struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Action     hold.Action `json:"action"`
	Why        string      `json:"why"`
}

func explainJSON(w io.Writer, o *plugin.Outcome) error {
	e := explanation{
		Application: o.Application, Namespace: o.Namespace, Held: o.Held, Observe: o.Observe, WaitingFor: o.WaitingFor(), Problem: o.Problem,
		Demands: []explainDemand{}, Objects: []explainObject{},
	}
	for i := range o.Demands {
		d := &o.Demands[i]
		x := explainDemand{
			SignerName: d.SignerName, Namespace: d.Namespace, ServiceAccount: d.ServiceAccount, KeyType: d.KeyType,
			MaxExpirationSeconds: d.MaxExpirationSeconds, UserAnnotations: d.UserAnnotations,
			Object: explainRef{d.Object.APIVersion, d.Object.Kind, d.Object.Namespace, d.Object.Name, d.Document, d.Item},
			Volume: d.Volume, New: d.New, Holds: d.Holds, Decision: d.Decision, Reason: d.Reason, Message: d.Message,
			Evidence: d.Evidence, Unproven: d.Unproven, WantedRevision: d.Wanted, Replicas: []explainReplica{},
		}
		if d.New {
			x.NewBecause = d.NewBecause
		}
		if d.Override != nil {
			x.Override = d.Override.String()
		}
		if x.UserAnnotations == nil {
			x.UserAnnotations = map[string]string{}
		}
		for _, r := range d.Replicas {
			x.Replicas = append(x.Replicas, explainReplica{r.Pod, r.Revision, r.Decision, r.Reason, r.Message})
		}
		e.Demands = append(e.Demands, x)
	}
	for _, r := range o.Removals {
		d := &r.Asker.Demand
		e.Removals = append(e.Removals, explainRemoval{r.Object.String(), r.Asker.Pod, d.SignerName, d.Namespace, d.ServiceAccount, r.Message})
	}
	objects, err := o.Objects()
	if err != nil {
		return err
	}
	for _, x := range objects {
		e.Objects = append(e.Objects, explainObject{x.APIVersion, x.Kind, x.Namespace, x.Name, x.Action, x.Why})
	}
	return printJSON(w, e)
}

func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

func explainText(w io.Writer, o *plugin.Outcome) error {
	state := "nothing is held"
	switch {
	case o.Problem != "":
		state = "mode observe, nothing could be decided: " + o.Problem
	case o.Held && o.Observe:
		state = "would be held (mode observe)"
	case o.Held:
		state = "held"
	}
	say(w, "%s (namespace %s): %s", o.Application, o.Namespace, state)
	for i := range o.Demands {
		d := &o.Demands[i]
		fmt.Fprintln(w)
		say(w, "%s, volume %s (document %d)", d.Object, d.Volume, d.Document)
		say(w, "  asks       %s for %s/%s, %s, at most %d s", d.SignerName, d.Namespace, d.ServiceAccount, d.KeyType, d.MaxExpirationSeconds)
		say(w, "  decision   %s", decisionText(d))
		if d.Message != "" {
			say(w, "  because    %s", d.Message)
		}
		if d.New && d.NewBecause != "" {
			say(w, "  new        %s", d.NewBecause)
		}
		if d.Evidence != "" {
			unproven := ""
			if d.Unproven {
				unproven = " (unproven: an assumption)"
			}
			say(w, "  evidence   %s%s", d.Evidence, unproven)
		}
		for _, r := range d.Replicas {
			say(w, "  replica    %s  %s  %s%s", r.Pod, orDash(r.Revision), r.Decision, withColon(r.Reason))
		}
	}
	for _, r := range o.Removals {
		fmt.Fprintln(w)
		say(w, "%s", r.Object)
		say(w, "  waits      %s", r.Message)
	}
	if !o.Held {
		return nil
	}
	objects, err := o.Objects()
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	say(w, "objects")
	for _, x := range objects {
		say(w, "  %-6s  %s  (%s)", x.Action, x.ID, x.Why)
	}
	return nil
}

func decisionText(d *hold.Demand) string {
	s := string(d.Decision) + withColon(d.Reason)
	switch {
	case d.Holds && d.New:
		return s + ", new: holds"
	case d.Holds:
		return s + ": holds"
	case d.Override != nil:
		return s + ", goes out all the same: " + d.Override.String()
	case d.LetGo():
		return s + ", goes out all the same because it was released before"
	case d.Decision != policy.Granted:
		return s + ", goes out all the same"
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func withColon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// explainMermaid draws object -> demand -> replica, for a merge request or a chat.
func explainMermaid(w io.Writer, o *plugin.Outcome) error {
	fmt.Fprintln(w, "flowchart LR")
	ids := map[string]string{}
	node := func(kind, label string) string {
		key := kind + label
		if id, ok := ids[key]; ok {
			return id
		}
		id := fmt.Sprintf("%s%d", kind, len(ids))
		ids[key] = id
		fmt.Fprintf(w, "  %s[\"%s\"]\n", id, strings.NewReplacer(`"`, "#quot;", "\n", " ").Replace(label))
		return id
	}
	edges := map[string]bool{}
	edge := func(text string) {
		if !edges[text] {
			edges[text] = true
			fmt.Fprintln(w, text)
		}
	}
	for i := range o.Demands {
		d := &o.Demands[i]
		object := node("object", d.Object.String())
		asks := node("demand", fmt.Sprintf("%s for %s/%s %s", d.SignerName, d.Namespace, d.ServiceAccount, d.KeyType))
		arrow := "-->"
		if d.Holds {
			arrow = "-. waits .->"
		}
		edge(fmt.Sprintf("  %s %s %s", object, arrow, asks))
		for _, r := range d.Replicas {
			replica := node("replica", r.Pod+" "+orDash(r.Revision))
			edge(fmt.Sprintf("  %s -- %s --> %s", asks, strings.TrimSpace(string(r.Decision)+" "+r.Reason), replica))
		}
	}
	return nil
}
