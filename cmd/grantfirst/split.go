package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/grantfirst/grantfirst/lib/gate"
)

func splitCommand() *cli.Command {
	return &cli.Command{
		Name:      "split",
		Usage:     "write the grants of a change as a patch that ships first",
		ArgsUsage: "[PATH...]",
		Description: `Of a change in which check finds ships-together, writes the lines that grant as a patch to standard output. It applies to the merge base
and contains nothing but grants: merge that first, and the rest when the signer has loaded it. What check says about both parts goes to
standard error.

Exit code 0 when both parts are green, 1 when the rest is still red for another reason, 2 when the change cannot be split.

Example:
  grantfirst split --base origin/main --config grantfirst.yaml > grants.patch
  git checkout -b grants $(git merge-base origin/main HEAD) && git apply --index grants.patch && git commit -m "grants first"`,
		Flags: append(gateFlags(), revisionFlags("only")...),
		Action: func(c *cli.Context) error {
			g, done, err := newGate(c, c.Args().Slice())
			if err != nil {
				return err
			}
			defer done()
			base, head, err := revisions(c, g)
			if err != nil {
				return err
			}
			r, err := g.Check(c.Context, base, head)
			if err != nil {
				return err
			}
			if len(r.Bases) > 1 {
				return errors.New("there are several merge bases: merge the target branch into this one first")
			}
			split, err := g.Split(c.Context, r)
			if err != nil {
				return err
			}
			if _, err := c.App.Writer.Write(split.Patch); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			say(c.App.ErrWriter, "grantfirst: the patch alone: %s", stateOf(split.First))
			say(c.App.ErrWriter, "grantfirst: the rest after it: %s", stateOf(split.Rest))
			return exitOf(split.Rest)
		},
	}
}

// stateOf sums up what a check has found, with the first thing that is wrong.
func stateOf(r *gate.Report) string {
	for _, f := range r.Findings {
		if f.Violates() || f.Verdict == gate.Unknown && !f.Existing {
			return fmt.Sprintf("%s: %s (%s:%d): %s", f.Verdict, f.Object, f.Path, f.Line, f.Message)
		}
	}
	return "green"
}
