package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"time"
)

// What to do when the policy file changes.
const (
	// onChangeExit is what pod-cert-signer does: its Deployment starts it again.
	onChangeExit   = "exit"
	onChangeReload = "reload"
)

// follower looks after the policy file.
type follower struct {
	path     string
	onChange string
	// name is the signer's: a policy for another one is a mistake.
	name string
	log  *log.Logger
	// put brings rules into force, and failed says that they could not be.
	put    func(*rules)
	failed func(error)

	// text is what was last read, good or bad, and problem what was last said.
	text       []byte
	problem    string
	unreadable bool
}

// follow looks at the file at each tick. It returns when the context ends, or, with exit, when any byte has changed.
func (f *follower) follow(ctx context.Context, ticks <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		if changed := f.look(); changed && f.onChange == onChangeExit {
			f.log.Printf("policy %s has changed: the signer ends, to be started again with it", f.path)
			return
		}
	}
}

// look reads the file once and reports whether it is another one than before. One that cannot be read may be there again at the next
// look, and is no change.
func (f *follower) look() bool {
	text, err := os.ReadFile(f.path)
	if err != nil {
		f.unreadable = true
		f.say(err)
		return false
	}
	changed := !bytes.Equal(text, f.text)
	if !changed && !f.unreadable || changed && f.onChange == onChangeExit {
		return changed
	}
	f.text, f.unreadable = text, false
	r, err := parseFor(f.name, text)
	if err != nil {
		f.say(fmt.Errorf("policy %s: %w", f.path, err))
		return changed
	}
	f.problem = ""
	f.put(r)
	return changed
}

// say tells a problem once.
func (f *follower) say(err error) {
	if err.Error() == f.problem {
		return
	}
	f.problem = err.Error()
	f.log.Printf("%v; the policy from before stays in force", err)
	f.failed(err)
}

// parseFor reads the policy of the signer of that name.
func parseFor(name string, text []byte) (*rules, error) {
	r, err := parse(text)
	if err != nil {
		return nil, err
	}
	if r.SignerName != name {
		return nil, fmt.Errorf("it is that of signer %s, and this is %s", r.SignerName, name)
	}
	return r, nil
}
