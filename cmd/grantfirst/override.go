package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/grantfirst/grantfirst/plugin"
)

// overrideCommand also takes flags behind the Application, as people write them: args is the whole command line.
func overrideCommand(args []string) *cli.Command {
	return &cli.Command{
		Name:      "override",
		Usage:     "let a held Application go, for a time and with a reason",
		ArgsUsage: "APPLICATION",
		Description: `Writes an entry into ConfigMap grantfirst-overrides in Argo CD's namespace, which the plugin reads with its evidence, and prints what to
run where grantfirst watch does not: pods that ask before their grant is loaded are denied for good, and have to be deleted. Needs the
right to get Applications and to get, create and update ConfigMaps there.

Examples:
  grantfirst override web --for 1h --reason "INC-42: the signer is being rebuilt"
  grantfirst override team-a/web --for 30m --reason INC-42 --demand shop/web
  grantfirst override web --remove`,
		Flags: append(clusterFlags(),
			configFlag(),
			&cli.DurationFlag{Name: "for", Usage: "how `LONG`, as in 30m or 2h"},
			&cli.StringFlag{Name: "reason", Usage: "why, for those who find it later: `TEXT`"},
			&cli.StringFlag{Name: "signer", Usage: "only demands for this signer `NAME`"},
			&cli.StringFlag{Name: "demand", Usage: "only demands of this `NAMESPACE/SERVICEACCOUNT`"},
			&cli.BoolFlag{Name: "remove", Usage: "take back all overrides of the Application"}),
		Action: func(c *cli.Context) error {
			if c.NArg() > 1 && strings.HasPrefix(c.Args().Get(1), "-") {
				i := slices.Index(args, c.Args().First())
				return c.App.RunContext(c.Context, slices.Concat(args[:i], args[i+1:], []string{c.Args().First()}))
			}
			if c.NArg() != 1 {
				return fmt.Errorf("want the name of one Application, not %d arguments: see grantfirst override --help", c.NArg())
			}
			application := c.Args().First()
			r := &plugin.Request{
				Config: c.String("config"), Kubeconfig: c.String("kubeconfig"), Context: c.String("context"), Timeout: c.Duration("timeout"),
				Version: version, Getenv: os.Getenv,
			}
			if c.Bool("remove") {
				if c.IsSet("for") || c.IsSet("reason") || c.IsSet("signer") || c.IsSet("demand") {
					return errors.New("--remove takes back all overrides of the Application: give nothing else")
				}
				if err := r.RemoveOverrides(c.Context, application); err != nil {
					return fmt.Errorf("%s: %w", application, err)
				}
				return tell(c, r, application, "no override any more", false)
			}
			o := plugin.Override{Reason: c.String("reason"), SignerName: c.String("signer")}
			if d := c.String("demand"); d != "" {
				var ok bool
				if o.Namespace, o.ServiceAccount, ok = strings.Cut(d, "/"); !ok || o.Namespace == "" || o.ServiceAccount == "" {
					return fmt.Errorf("--demand: %q is not NAMESPACE/SERVICEACCOUNT", d)
				}
			}
			switch {
			case c.Duration("for") <= 0:
				return errors.New("--for: say how long, as in 1h")
			case o.Reason == "":
				return errors.New("--reason: say why")
			}
			written, err := r.Override(c.Context, application, o, c.Duration("for").Truncate(time.Second))
			if err != nil {
				return fmt.Errorf("%s: %w", application, err)
			}
			return tell(c, r, application, "overridden until "+written.Until, true)
		},
	}
}

// tell prints what was done, and what to do where no watcher runs.
func tell(c *cli.Context, r *plugin.Request, application, what string, sync bool) error {
	namespace, name, err := r.Qualified(application)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s: %s\ngrantfirst watch does the rest. Where it does not run:\n"+
		"  kubectl annotate application %s -n %s argocd.argoproj.io/refresh=hard --overwrite\n", application, what, name, namespace)
	if sync {
		text += "  argocd app sync " + application + "\n"
	}
	_, err = fmt.Fprint(c.App.Writer, text)
	return err
}
