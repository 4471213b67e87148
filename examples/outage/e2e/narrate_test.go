package e2e_test

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// narrated: the story of each shop is printed as it happens, for people (make outage).
var narrated = os.Getenv("GRANTFIRST_NARRATED") != ""

// narrate prints a line of a story: when it was and what was seen.
func narrate(since time.Duration, line string) {
	if !narrated || line == "" || strings.HasPrefix(line, "patched by the test: ") || strings.HasPrefix(line, "Application ") {
		return
	}
	fmt.Printf("%6.1f s  %s\n", since.Seconds(), line)
}

// title begins a story.
func title(lines ...string) {
	if narrated {
		fmt.Printf("\n%s\n\n", strings.Join(lines, "\n"))
	}
}

// inWords is a state of an Application (state) for people who do not know Argo CD's words.
func inWords(state string) string {
	fields := strings.Split(state, " ")
	sync, health, operation := fields[0], fields[1], fields[2]
	if sync == "" {
		return ""
	}
	words := map[string]string{
		"Synced": "the cluster is as Git says", "OutOfSync": "the cluster is not as Git says", "Unknown": "it cannot compare",
		"Healthy": "all of it is healthy", "Progressing": "it is being rolled out", "Suspended": "it waits for a grant to be loaded",
		"Missing": "something is not there yet", "Degraded": "something is broken",
		"Running": "a sync runs", "Failed": "the sync failed", "Error": "the sync failed",
	}
	out := words[sync]
	for _, word := range []string{health, operation} {
		if words[word] != "" {
			out += ", " + words[word]
		}
	}
	return fmt.Sprintf("Argo CD shows %s: %s", strings.TrimSpace(strings.Join(fields, " ")), out)
}
