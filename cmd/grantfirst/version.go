package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// version is set by the build (-ldflags "-X main.version=v1.2.3").
var version string

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version",
		Description: `Examples:
  grantfirst version`,
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("version takes no argument, not %q", c.Args().First())
			}
			_, err := fmt.Fprintf(c.App.Writer, "grantfirst %s %s %s/%s\n", versionOf(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

func versionOf() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
