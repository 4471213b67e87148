package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/urfave/cli/v2"

	"github.com/grantfirst/grantfirst/plugin"
)

func generateCommand() *cli.Command {
	return &cli.Command{
		Name:      "generate",
		Usage:     "print the manifests, with what must wait held back",
		ArgsUsage: "[PATH | -]",
		Description: `Renders PATH (default: the current directory; - reads a manifest stream) and withholds the workloads whose certificates a live
signer replica would refuse. Where nothing waits, the render comes out byte for byte. Exit code 0 also when something is held.

Examples:
  # what Argo CD runs
  grantfirst generate
  # offline: a directory, with the objects of the cluster from a file
  grantfirst generate --config config.yaml --live cluster.yaml --namespace shop --app web ./app
  # as Argo CD would print it now: the Application and what its signers have loaded, from the cluster of the current context
  grantfirst generate --application web ./app
  # behind any other renderer
  helm template . | grantfirst generate --live cluster.yaml --namespace shop --app web -
  # without Argo CD: apply what may go out now
  grantfirst generate --live cluster.yaml --held omit ./app | kubectl apply --server-side -f -`,
		Flags: append(requestFlags(),
			&cli.StringFlag{Name: "held", Value: "skip", Usage: "what becomes of held objects: skip (for Argo CD) or omit (print only what would be applied, for kubectl)"}),
		Action: func(c *cli.Context) error {
			held := c.String("held")
			if held != "skip" && held != "omit" {
				return fmt.Errorf("--held: %q is neither skip nor omit", held)
			}
			request, err := newRequest(c)
			if err != nil {
				return err
			}
			outcome, err := request.Plan(c.Context)
			if err != nil {
				return err
			}
			output := outcome.Bytes
			if held == "omit" {
				output = outcome.Applied
			}
			stream, err := output()
			if err != nil {
				return err
			}
			if _, err := c.App.Writer.Write(stream); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			report(c.App.ErrWriter, outcome)
			return nil
		},
	}
}

// requestFlags are the flags of every verb that makes a plan.
func requestFlags() []cli.Flag {
	return append(clusterFlags(),
		configFlag(),
		&cli.StringSliceFlag{Name: "live", Usage: "`FILE|DIR` with the cluster's objects, as grantfirst snapshot or kubectl get -o yaml prints them, instead of a cluster; may be repeated"},
		&cli.StringFlag{Name: "application", Usage: "`NAME|FILE` of the Argo CD Application: gives name, namespace, source, parameters and history"},
		&cli.StringFlag{Name: "namespace", Usage: "destination `NAMESPACE` (default: $ARGOCD_APP_NAMESPACE)"},
		&cli.StringFlag{Name: "app", Usage: "`NAME` of the Application (default: $ARGOCD_APP_NAME)"},
		&cli.StringFlag{Name: "render", Usage: "`HOW` to render: auto, directory, kustomize or helm (default: the Application's parameter, else auto)"},
	)
}

func configFlag() cli.Flag {
	return &cli.StringFlag{Name: "config", Usage: "configuration `FILE` (default: $GRANTFIRST_CONFIG, else " + plugin.DefaultConfig + ")"}
}

// clusterFlags are the flags of every verb that asks a cluster.
func clusterFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "kubeconfig", Usage: "`FILE` that says how to reach the cluster (default: $KUBECONFIG, else the cluster that this runs in, else ~/.kube/config)"},
		&cli.StringFlag{Name: "context", Usage: "`NAME` of the context in it (default: the current one)"},
		&cli.DurationFlag{Name: "timeout", Usage: "how `LONG` all reading from clusters may take (default: readTimeout of the configuration, else 10s)"},
	}
}

func newRequest(c *cli.Context) (*plugin.Request, error) {
	path, err := onePath(c)
	if err != nil {
		return nil, err
	}
	switch c.String("render") {
	case "", "auto", "directory", "kustomize", "helm":
	default:
		return nil, fmt.Errorf("--render: %q is none of auto, directory, kustomize, helm", c.String("render"))
	}
	if c.Duration("timeout") < 0 {
		return nil, fmt.Errorf("--timeout: %s is no time to wait: write it as in 10s", c.Duration("timeout"))
	}
	return &plugin.Request{
		Path:        path,
		Stdin:       c.App.Reader,
		Kubeconfig:  c.String("kubeconfig"),
		Context:     c.String("context"),
		Timeout:     c.Duration("timeout"),
		Version:     version,
		Config:      c.String("config"),
		Live:        c.StringSlice("live"),
		Application: c.String("application"),
		Namespace:   c.String("namespace"),
		App:         c.String("app"),
		Render:      c.String("render"),
		Getenv:      os.Getenv,
	}, nil
}

// report says on stderr what a plan does: a line for each warning and one that sums up.
func report(w io.Writer, o *plugin.Outcome) {
	for _, line := range slices.Concat(o.Warnings, o.Revoked, o.Overridden) {
		say(w, "grantfirst: %s: %s", o.Application, line)
	}
	say(w, "grantfirst: %s", summary(o))
}

// say prints one line. What an Application's author wrote stays in that line: it must not pass for a line of ours.
func say(w io.Writer, format string, args ...any) {
	escaped := func(r rune) string { return strings.Trim(strconv.QuoteRune(r), "'") }
	var line strings.Builder
	for _, r := range fmt.Sprintf(format, args...) {
		if unicode.IsPrint(r) {
			line.WriteRune(r)
		} else {
			line.WriteString(escaped(r))
		}
	}
	fmt.Fprintln(w, line.String())
}

// summary says in one line what a plan does.
func summary(o *plugin.Outcome) string {
	name := o.Application
	if name == "" {
		name = "(no application name)"
	}
	if o.Problem != "" {
		return fmt.Sprintf("%s: mode observe, nothing could be decided: %s", name, o.Problem)
	}
	waiting, loose, overridden := 0, 0, ""
	for i := range o.Demands {
		switch d := &o.Demands[i]; {
		case d.Holds:
			waiting++
		case d.Override != nil:
			overridden = fmt.Sprintf("; what is not granted went out all the same (%s)", d.Override)
		case d.LetGo():
			loose++
		}
	}
	s := fmt.Sprintf("%s: %d demands, nothing held", name, len(o.Demands))
	if o.Held {
		verb := "held"
		if o.Observe {
			verb = "would be held (mode observe)"
		}
		s = fmt.Sprintf("%s: %s, %d of %d demands wait: %s", name, verb, waiting, len(o.Demands), o.WaitingFor())
	}
	if loose > 0 {
		s += fmt.Sprintf("; %d not known to be loaded went out because they were released before", loose)
	}
	return s + overridden
}
