package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/doctor"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "check an installation, and say how to repair it",
		ArgsUsage: " ",
		Description: `Looks at Argo CD's namespace, at the Applications that use the plugin, and at the clusters that they deploy to: the sidecar, rights, the Hold
kind and its health check, AppProjects, signers and what they have loaded, the watcher, settings of Argo CD that get in the way, markers and
overrides that were left. It changes nothing. docs/doctor.md lists every finding.

Run it with an admin's rights: what they do not allow to read is a finding of its own, and the rest is checked all the same.

Exit code 1 when something is wrong, 2 when that could not be told.

Examples:
  grantfirst doctor
  grantfirst doctor --context argocd --namespace gitops -o json
  grantfirst doctor --config config.yaml      # before it becomes the ConfigMap`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", EnvVars: []string{"GRANTFIRST_CONFIG"}, Usage: "configuration `FILE` to judge by (default: the ConfigMap that the sidecar has)"},
			&cli.StringFlag{Name: "kubeconfig", Usage: "`FILE` that says how to reach Argo CD's cluster (default: $KUBECONFIG, else ~/.kube/config, else the cluster that this runs in)"},
			&cli.StringFlag{Name: "context", Usage: "`NAME` of the context in it (default: the current one)"},
			&cli.StringFlag{Name: "namespace", EnvVars: []string{"POD_NAMESPACE"}, Usage: "`NAMESPACE` of Argo CD (default: argocdNamespace of --config, else argocd)"},
			&cli.DurationFlag{Name: "timeout", Value: 30 * time.Second, Usage: "how `LONG` all reading may take"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "`FORMAT`: text or json"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("%q: doctor takes no argument: see grantfirst doctor --help", c.Args().First())
			}
			printers := map[string]func(io.Writer, *checkup) error{"text": checkupText, "json": func(w io.Writer, u *checkup) error { return printJSON(w, u) }}
			printer, ok := printers[c.String("output")]
			if !ok {
				return fmt.Errorf("--output: %q is none of text, json", c.String("output"))
			}
			u, err := examine(c)
			if err != nil {
				return err
			}
			var out bytes.Buffer
			if err := printer(&out, u); err != nil {
				return err
			}
			if _, err := out.WriteTo(c.App.Writer); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			switch doctor.Worst(u.Findings) {
			case doctor.Error, doctor.Warning:
				return errFound
			case doctor.Unknown:
				return errors.New("not everything could be told: see above")
			}
			return nil
		},
	}
}

func examine(c *cli.Context) (*checkup, error) {
	from := &doctor.Access{Elsewhere: func(c *config.Cluster) (*rest.Config, error) { return reachAsDoctor(c.Kubeconfig, c.Context) }}
	if file := c.String("config"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		if from.Config, err = config.Parse(text); err != nil {
			return nil, fmt.Errorf("configuration %s: %w", file, err)
		}
	}
	from.Namespace = c.String("namespace")
	if from.Namespace == "" && from.Config != nil {
		from.Namespace = from.Config.ArgoCDNamespace
	}
	from.Namespace = cmp.Or(from.Namespace, "argocd")
	if c.Duration("timeout") <= 0 {
		return nil, fmt.Errorf("--timeout: %s is no time", c.Duration("timeout"))
	}
	var err error
	if from.Own, err = reachAsDoctor(c.String("kubeconfig"), c.String("context")); err != nil {
		return nil, fmt.Errorf("reaching Argo CD's cluster: %w", err)
	}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
	defer cancel()
	installation, err := doctor.Read(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("asking Argo CD's cluster (%s): %w", from.Own.Host, err)
	}
	u := &checkup{Namespace: from.Namespace, Findings: []doctor.Finding{}}
	for _, f := range doctor.Examine(installation) {
		u.Findings = append(u.Findings, f)
		switch f.Severity {
		case doctor.Error:
			u.Errors++
		case doctor.Warning:
			u.Warnings++
		case doctor.Unknown:
			u.Unknown++
		case doctor.Info:
			u.Infos++
		}
	}
	return u, nil
}

func reachAsDoctor(kubeconfig, kubeContext string) (*rest.Config, error) {
	settings, err := reach(kubeconfig, kubeContext)
	if err == nil {
		settings.UserAgent = "grantfirst/" + strings.Trim(versionOf(), "()") + " doctor"
	}
	return settings, err
}

// The JSON of doctor is an interface: docs/doctor.md. Fields are added, never renamed or removed.
type checkup struct {
	Namespace string           `json:"namespace"`
	Errors    int              `json:"errors"`
	Warnings  int              `json:"warnings"`
	Unknown   int              `json:"unknown"`
	Infos     int              `json:"infos"`
	Findings  []doctor.Finding `json:"findings"`
}

func checkupText(w io.Writer, u *checkup) error {
	for _, f := range u.Findings {
		say(w, "%-7s  %s  %s", f.Severity, f.ID, f.Object)
		for line := range strings.SplitSeq(f.Message, "\n") {
			say(w, "         %s", line)
		}
		if f.Fix != "" {
			say(w, "         fix: %s", f.Fix)
		}
	}
	if u.Errors+u.Warnings+u.Unknown == 0 {
		say(w, "nothing is wrong with grantfirst in namespace %s", u.Namespace)
		return nil
	}
	say(w, "namespace %s: errors %d, warnings %d, could not be told %d", u.Namespace, u.Errors, u.Warnings, u.Unknown)
	return nil
}
