package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/grantfirst/grantfirst/lib/gate"
	"github.com/grantfirst/grantfirst/lib/gate/output"
)

func replayCommand() *cli.Command {
	return &cli.Command{
		Name:      "replay",
		Usage:     "run check over the history: which merges would have been red",
		ArgsUsage: "[REV..REV]",
		Description: `Judges what every commit on a branch did to the one before it, merges and all others along the first parents, and prints those that check
would have stopped, with the pods that would have hung. Without REV..REV it is the history of HEAD. The work tree is not touched.

Exit code 1 when one of them would have been red, 2 when it could not tell of one.

Examples:
  grantfirst replay --config grantfirst.yaml --since "6 months ago"
  grantfirst replay --config grantfirst.yaml v1.4..origin/main
  grantfirst replay --config grantfirst.yaml -o json origin/main`,
		Flags: append(gateFlags(),
			&cli.StringFlag{Name: "since", Usage: "only commits after this `DATE`, in any form that git takes"},
			&cli.StringSliceFlag{Name: "path", Usage: "`PATH` to render instead of what Applications say; may be repeated"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "`FORMAT`: text or json"}),
		Action: func(c *cli.Context) error {
			printers := map[string]func(io.Writer, []gate.Replayed, int) error{"text": output.ReplayText, "json": output.ReplayJSON}
			printer, ok := printers[c.String("output")]
			if !ok {
				return fmt.Errorf("--output: %q is neither text nor json", c.String("output"))
			}
			revision := "HEAD"
			if c.NArg() > 0 {
				if revision = c.Args().First(); c.NArg() > 1 || strings.HasPrefix(revision, "-") {
					return fmt.Errorf("one REV..REV after all flags, not %q", strings.Join(c.Args().Slice(), " "))
				}
			}
			g, done, err := newGate(c, c.StringSlice("path"))
			if err != nil {
				return err
			}
			defer done()
			arguments := []string{"--end-of-options", revision}
			if since := c.String("since"); since != "" {
				arguments = append([]string{"--since=" + since}, arguments...)
			}
			// A history takes a while: whoever interrupts it wants it to end and its scratch folder to be gone.
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			steps, err := g.Repository.Steps(ctx, arguments...)
			if err != nil {
				return err
			}
			if len(steps) == 0 {
				if since := c.String("since"); since != "" {
					return fmt.Errorf("no commits in %s since %q: name an earlier date in a form that git takes, such as 2026-05-31 or \"6 months ago\"", revision, since)
				}
				return fmt.Errorf("no commits in %s that have one before them: name other ones", revision)
			}
			bar := newBar(c.App.ErrWriter, len(steps))
			replayed, err := g.Replay(ctx, steps, bar.step)
			bar.end()
			if err != nil {
				return err
			}
			var out bytes.Buffer
			if err := printer(&out, replayed, g.Renders()); err != nil {
				return err
			}
			if _, err := out.WriteTo(c.App.Writer); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			return exitOfAll(replayed)
		},
	}
}

func exitOfAll(steps []gate.Replayed) error {
	var uncertain error
	for _, s := range steps {
		switch {
		case s.Report != nil && s.Report.Violated():
			return errFound
		case s.Report == nil || s.Report.Uncertain():
			uncertain = errCouldNotTell
		}
	}
	return uncertain
}

// bar shows on a terminal how far it has got, and nowhere else.
type bar struct {
	mu          sync.Mutex
	w           io.Writer
	done, total int
}

func newBar(w io.Writer, total int) *bar {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &bar{w: w, total: total}
	}
	return &bar{w: io.Discard, total: total}
}

func (b *bar) step() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	const width = 40
	full := width * b.done / b.total
	fmt.Fprintf(b.w, "\r[%s%s] %d/%d", strings.Repeat("#", full), strings.Repeat(".", width-full), b.done, b.total)
}

// end removes the bar.
func (b *bar) end() { fmt.Fprint(b.w, "\r\x1b[K") }
