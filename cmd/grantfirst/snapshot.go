package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/grantfirst/grantfirst/plugin"
)

func snapshotCommand() *cli.Command {
	return &cli.Command{
		Name:      "snapshot",
		Usage:     "write down all that a decision depends on, for a bug report or to look at later",
		ArgsUsage: " ",
		Description: `Reads from the cluster what generate would read (what the replicas of all configured signers have loaded, the Application, overrides,
API versions) and prints it in one YAML stream. generate and explain take it as --live and as --application, and then print the same
bytes as with the cluster. There are no Secrets in it; read it all the same before you give it away: policies, names, and the
parameters of the Application are.

Examples:
  grantfirst snapshot --application web > web.yaml
  grantfirst explain --live web.yaml --application web.yaml ./app
  # with the rights of the plugin itself
  kubectl exec -n argocd deploy/argocd-repo-server -c grantfirst -- grantfirst snapshot --application web > web.yaml`,
		Flags: append(clusterFlags(),
			configFlag(),
			&cli.StringFlag{Name: "application", Usage: "`NAME|FILE` of the Argo CD Application"}),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("%q: snapshot takes no argument: see grantfirst snapshot --help", c.Args().First())
			}
			request := &plugin.Request{
				Config: c.String("config"), Application: c.String("application"), Kubeconfig: c.String("kubeconfig"), Context: c.String("context"),
				Timeout: c.Duration("timeout"), Version: version, Getenv: os.Getenv,
			}
			stream, warnings, err := request.Snapshot(c.Context)
			if err != nil {
				return err
			}
			if _, err := c.App.Writer.Write(stream); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			for _, line := range warnings {
				say(c.App.ErrWriter, "grantfirst: %s", line)
			}
			return nil
		},
	}
}
