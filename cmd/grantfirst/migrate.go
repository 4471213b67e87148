package main

import (
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/grantfirst/grantfirst/plugin"
)

func migrateCommand() *cli.Command {
	return &cli.Command{
		Name:      "migrate",
		Usage:     "print Applications in the form that uses the plugin",
		ArgsUsage: "FILE | -",
		Description: `Reads Applications and ApplicationSets and prints them with source.helm, source.kustomize and source.directory turned into the plugin's
parameters. Comments and all other fields stay. A source that has something the plugin has no parameter for stays as it is, and stderr
says what; the exit code is then 1.

Examples:
  grantfirst migrate application.yaml > migrated.yaml
  kubectl get application web -n argocd -o yaml | grantfirst migrate - | kubectl diff -f -`,
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return fmt.Errorf("want one file, or - for standard input, not %d arguments", c.NArg())
			}
			read := func() ([]byte, error) { return os.ReadFile(c.Args().First()) }
			if c.Args().First() == "-" {
				read = func() ([]byte, error) { return io.ReadAll(c.App.Reader) }
			}
			stream, err := read()
			if err != nil {
				return err
			}
			m, err := plugin.Migrate(stream)
			if err != nil {
				return fmt.Errorf("%s: %w", c.Args().First(), err)
			}
			if _, err := c.App.Writer.Write(m.Stream); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			for _, line := range m.Left {
				say(c.App.ErrWriter, "grantfirst: left as it is: %s", line)
			}
			for _, line := range m.Void {
				say(c.App.ErrWriter, "grantfirst: left out: %s", line)
			}
			say(c.App.ErrWriter, "grantfirst: %d sources migrated", m.Migrated)
			if len(m.Left) > 0 {
				return errFound
			}
			return nil
		},
	}
}
