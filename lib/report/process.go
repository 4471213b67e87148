package report

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// initialised is when this package was: a little after the process began.
var initialised = time.Now()

// processStart is when this process began, by the clock of its node. Linux counts from the fork, so that a shell that becomes the
// signer by exec counts in; without /proc it is when this package was initialised, which is the better guess too where /proc gives a
// later time (some systems show a container an uptime of its own).
func processStart(now time.Time) time.Time {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return initialised
	}
	uptime, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return initialised
	}
	age, ok := age(string(stat), string(uptime))
	if start := now.Add(-age); ok && start.Before(initialised) {
		return start
	}
	return initialised
}

// age is that of the process of which /proc/PID/stat and /proc/uptime were read (proc_pid_stat(5): field 22 is the start, in
// hundredths of a second after boot on every architecture that Go knows).
func age(stat, uptime string) (time.Duration, bool) {
	// The second field is the program's name, in brackets, and may have spaces and brackets itself.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	up := strings.Fields(uptime)
	if len(fields) < 20 || len(up) == 0 {
		return 0, false
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(up[0], 64)
	if err != nil {
		return 0, false
	}
	age := seconds - float64(ticks)/100
	if !(age >= 0 && age < 1e9) {
		return 0, false
	}
	return time.Duration(age * float64(time.Second)), true
}
