// Command cluster starts and stops a real Kubernetes on this machine, for
// tests; package cluster says what it is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/grantfirst/grantfirst/examples/outage/kubernetes/cluster"
)

const usage = `A real Kubernetes on this machine, for tests (Linux, root).

  cluster build            build what is missing, and start nothing
  cluster up               start a cluster and leave it running; print its environment
  cluster status           say what of it runs; exit 1 unless all does
  cluster down             stop it, and remove everything of it
  cluster run -- COMMAND…  start a cluster of its own, run the command with it, stop it;
                           exit as the command does

Commands take --help. Tests find the cluster by two variables, which "up" prints
and "run" sets, and skip without them:

  ` + cluster.KubeconfigVariable + `   path of the admin kubeconfig
  ` + cluster.NodeVariable + `         path of the node's control socket: containers, their exits and processes
                             (go doc ./hollownode/containers Runtime.Control)
`

func main() {
	// Clusters that are bound end with the thread that started them: make that the main one.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.As(err, &exit) && exit.Exited():
		os.Exit(exit.ExitCode())
	default:
		fmt.Fprintf(os.Stderr, "cluster: %v\n", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return errors.New("which command?")
	}
	flags := flag.NewFlagSet("cluster "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	var dir, in string
	builder := &cluster.Builder{Log: stderr}
	settings := cluster.Settings{Log: stderr}
	defaultCache, err := cluster.CacheDir()
	if err != nil {
		return err
	}
	building := func() {
		flags.StringVar(&builder.Cache, "cache", defaultCache, "`folder` of the built programs")
		flags.StringVar(&builder.Module, "module", ".", "`folder` in the repository")
		flags.IntVar(&builder.Jobs, "jobs", 0, "packages compiled at once (default: as many as Go thinks fit)")
	}
	running := func() {
		flags.DurationVar(&settings.SyncFrequency, "sync-frequency", time.Second, "how soon a changed ConfigMap is in a volume (half of it and a second later at most); Kubernetes' default is 1m")
		flags.DurationVar(&settings.RestartBackoff, "restart-backoff", time.Second, "longest wait before a container is started again; Kubernetes' default is 5m")
	}
	where := func() {
		flags.StringVar(&dir, "dir", filepath.Join(defaultCache, "up"), "`folder` of the cluster")
	}
	var do func() error
	switch args[0] {
	case "build":
		building()
		do = func() error {
			_, err := build(ctx, builder)
			return err
		}
	case "up":
		building()
		running()
		where()
		do = func() error { return up(ctx, builder, dir, settings, stdout) }
	case "status":
		where()
		do = func() error { return status(dir, stdout) }
	case "down":
		where()
		do = func() error { return down(ctx, dir, stderr) }
	case "run":
		building()
		running()
		flags.StringVar(&in, "in", "", "`folder` to run the command in (default: this one)")
		do = func() error {
			if flags.NArg() == 0 {
				return errors.New("run: which command?")
			}
			return run(ctx, builder, in, flags.Args(), settings)
		}
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return nil
	default:
		return fmt.Errorf("no command %q: build, up, status, down or run", args[0])
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 && args[0] != "run" {
		return fmt.Errorf("%s: %q is too much", args[0], flags.Arg(0))
	}
	return do()
}

func build(ctx context.Context, b *cluster.Builder) (programs cluster.Programs, err error) {
	if b.Module, err = cluster.FindModule(b.Module); err != nil {
		return nil, err
	}
	return b.Build(ctx)
}

func up(ctx context.Context, builder *cluster.Builder, dir string, settings cluster.Settings, stdout io.Writer) error {
	unlock, err := cluster.Lock(ctx, dir, settings.Log)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := cluster.Load(dir)
	if err != nil && !errors.Is(err, cluster.ErrDown) {
		return err
	}
	if err == nil && len(c.Ended()) == 0 {
		fmt.Fprintln(settings.Log, "up already")
	} else {
		programs, err := build(ctx, builder)
		if err != nil {
			return err
		}
		settings.Dir = dir
		if c, err = cluster.Up(ctx, programs, settings); err != nil {
			return err
		}
	}
	for _, e := range append(c.Environment(), "KUBECONFIG="+c.Kubeconfig) {
		fmt.Fprintf(stdout, "export %s\n", e)
	}
	return nil
}

func status(dir string, stdout io.Writer) error {
	c, err := cluster.Load(dir)
	if err != nil {
		return err
	}
	for _, p := range c.Processes {
		state := "runs"
		if !p.Running() {
			state = "ended"
		}
		fmt.Fprintf(stdout, "%-24s %s (process %d)\n", p.Name, state, p.PID)
	}
	fmt.Fprintf(stdout, "API server: %s\nkubeconfig: %s\nkubelet's folder: %s\nlogs: %s\n", c.Server, c.Kubeconfig, c.NodeDir, filepath.Join(c.Dir, "logs"))
	if ended := c.Ended(); len(ended) > 0 {
		return fmt.Errorf("%s ended: see the logs, then call down", strings.Join(ended, ", "))
	}
	return nil
}

func down(ctx context.Context, dir string, stderr io.Writer) error {
	unlock, err := cluster.Lock(ctx, dir, stderr)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := cluster.Load(dir)
	if errors.Is(err, cluster.ErrDown) {
		fmt.Fprintln(stderr, "not up")
		return nil
	} else if err != nil {
		return err
	}
	ended := c.Ended()
	if err := c.Down(ctx, false); err != nil {
		return err
	}
	if len(ended) > 0 {
		fmt.Fprintf(stderr, "%s had ended by itself: logs are in %s\n", strings.Join(ended, ", "), filepath.Join(dir, "logs"))
	}
	return nil
}

// run starts a cluster for one command. It is taken down whatever comes, and
// if this process is killed, it ends by itself.
func run(ctx context.Context, builder *cluster.Builder, in string, args []string, settings cluster.Settings) (err error) {
	programs, err := build(ctx, builder)
	if err != nil {
		return err
	}
	if settings.Dir, err = os.MkdirTemp("", "grantfirst-cluster-"); err != nil {
		return err
	}
	settings.Bound = true
	c, err := cluster.Up(ctx, programs, settings)
	if err != nil {
		return err
	}
	defer func() {
		begun := time.Now()
		downErr := c.Down(context.WithoutCancel(ctx), err != nil)
		fmt.Fprintf(settings.Log, "cluster down in %.1fs\n", time.Since(begun).Seconds())
		if err != nil {
			fmt.Fprintf(settings.Log, "logs of the cluster are in %s\n", filepath.Join(c.Dir, "logs"))
		}
		err = errors.Join(err, downErr)
	}()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = in
	cmd.Env = append(os.Environ(), c.Environment()...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // when this process is killed
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	return cmd.Run()
}
