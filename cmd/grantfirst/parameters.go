package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"github.com/grantfirst/grantfirst/plugin"
)

func parametersCommand() *cli.Command {
	return &cli.Command{
		Name:      "parameters",
		Usage:     "announce the parameters of the source at PATH, as Argo CD wants them",
		ArgsUsage: "[PATH]",
		Description: `Prints a JSON list of Argo CD parameter announcements. docs/parameters.md describes each.

Examples:
  grantfirst parameters
  grantfirst parameters ./chart`,
		Action: func(c *cli.Context) error {
			path, err := onePath(c)
			if err != nil {
				return err
			}
			parameters, err := (&plugin.Request{Path: path, Getenv: os.Getenv}).Parameters()
			if err != nil {
				return err
			}
			return printJSON(c.App.Writer, parameters)
		},
	}
}
