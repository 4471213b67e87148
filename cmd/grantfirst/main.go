// Command grantfirst is the Argo CD config-management plugin that ships grants before the workloads that need them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"github.com/urfave/cli/v2"
	"k8s.io/klog/v2"
)

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// Exit codes, the same for every verb.
const (
	exitFound        = 1 // it found what it looks for: a hold, a violation
	exitCouldNotTell = 2 // usage, configuration, input or cluster
)

// errFound ends a verb that found what it looks for and has said so already.
var errFound = errors.New("found")

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	// client-go logs to stderr on its own; what it has to say comes back to us as an error.
	klog.SetLogger(logr.Discard())
	app := &cli.App{
		Name:        "grantfirst",
		Usage:       "grant first, switch second: hold workloads back until their signer has loaded the grant",
		HideVersion: true,
		// A comma is an ordinary character in a file name.
		DisableSliceFlagSeparator: true,
		Reader:                    stdin,
		Writer:                    stdout,
		ErrWriter:                 stderr,
		Commands:                  []*cli.Command{generateCommand(), explainCommand(), snapshotCommand(), parametersCommand(), migrateCommand(), overrideCommand(args), reportCommand(), watchCommand(), doctorCommand(), checkCommand(), replayCommand(), splitCommand(), versionCommand()},
		// Exit codes are this function's; the library's own handler would end the process.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError:   usageError,
		CommandNotFound: func(c *cli.Context, name string) {
			fmt.Fprintf(stderr, "grantfirst: %q is not a verb: see grantfirst --help\n", name)
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("%q is not a verb: see grantfirst --help", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = usageError
		c.HideHelpCommand = true
	}
	err := app.RunContext(context.Background(), args)
	if errors.Is(err, errFound) {
		return exitFound
	}
	if errors.Is(err, errCouldNotTell) {
		return exitCouldNotTell
	}
	if err != nil {
		fmt.Fprintf(stderr, "grantfirst: %v\n", err)
		return exitCouldNotTell
	}
	return 0
}

func usageError(c *cli.Context, err error, _ bool) error {
	return fmt.Errorf("%w: see %s --help", err, c.Command.HelpName)
}

// onePath is the only argument of a verb, with "." where it is left out.
func onePath(c *cli.Context) (string, error) {
	switch {
	case c.NArg() == 0:
		return ".", nil
	case c.NArg() == 1:
		return c.Args().First(), nil
	case strings.HasPrefix(c.Args().Get(1), "-"):
		return "", fmt.Errorf("flags come before the path: put %s before %q", c.Args().Get(1), c.Args().First())
	}
	return "", fmt.Errorf("one path at a time, not %q and %q", c.Args().First(), c.Args().Get(1))
}
