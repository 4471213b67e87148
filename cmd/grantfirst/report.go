package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	sidecar "github.com/grantfirst/grantfirst/lib/report"
)

func reportCommand() *cli.Command {
	return &cli.Command{
		Name:  "report",
		Usage: "beside a signer that cannot report: publish which policy it has loaded",
		Description: `Runs as a container of the signer's pod until it is sent SIGTERM. It shares the policy's volume with the signer, watches the pod's
status, and keeps a ConfigMap that says what is loaded; only what is certain stands in it. docs/report.md says what that is, what the pod
must have, and what the ServiceAccount must be allowed. It logs to standard error.

Exit code 2 when it cannot start, or when another pod has taken this one's name.

Examples:
  A signer that exits when its policy has changed, and looks every 30 seconds:
    grantfirst report --policy /policy/policy.json --container signer --signer-name example.com/workload --poll 30s
  One that loads its policy only when it starts:
    grantfirst report --policy /policy/policy.json --container signer --signer-name example.com/workload
  One that loads a new policy in place, and shows its SHA-256 in a field of a JSON answer, or in a metric:
    grantfirst report --policy … --container signer --signer-name … --signal http --url http://127.0.0.1:8080/status --json-path policy.sha256
    grantfirst report --policy … --container signer --signer-name … --signal http --url http://127.0.0.1:8080/metrics --metric policy_info --label sha256`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "policy", Usage: "the policy `FILE`, in the volume that the signer has it from (needed)"},
			&cli.StringFlag{Name: "container", Usage: "`NAME` of the signer's container (needed)"},
			&cli.StringFlag{Name: "signer-name", Usage: "`NAME` of the signer, as pods ask for it (needed)"},
			&cli.StringFlag{Name: "namespace", EnvVars: []string{"POD_NAMESPACE"}, Usage: "`NAMESPACE` of this pod (needed)"},
			&cli.StringFlag{Name: "pod", EnvVars: []string{"POD_NAME"}, Usage: "`NAME` of this pod (needed)"},
			&cli.StringFlag{Name: "signal", Value: "restart", Usage: "`HOW` it shows what is loaded: restart (the signer loads a policy when it starts) or http (it answers with the revision that it has loaded)"},
			&cli.DurationFlag{Name: "poll", Usage: "with --signal restart, for a signer that exits when its policy changes: the `TIME` after which it looks again"},
			&cli.StringFlag{Name: "url", Usage: "with --signal http: `URL` to ask, on a loopback address or the pod's own; without a flag from below, the answer is the revision"},
			&cli.StringFlag{Name: "json-path", Usage: "the answer is JSON, with the revision at this `PATH`, like status.sha256"},
			&cli.StringFlag{Name: "metric", Usage: "the answer is metrics for Prometheus, with the revision in a label of metric `NAME`"},
			&cli.StringFlag{Name: "label", Usage: "`NAME` of that label"},
			&cli.StringFlag{Name: "kubeconfig", Usage: "`FILE` to reach the cluster by; without it, as a pod in it"},
		},
		Action: func(c *cli.Context) error {
			// Process 1 of a container is sent no signal that it does not ask for.
			ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			s, err := newSidecar(c)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(c.App.ErrWriter, nil)).With("pod", s.Namespace+"/"+s.Pod, "signer", s.SignerName)
			s.Event = log.Info
			s.Problem = func(err error) { log.Warn("something is wrong", "error", err) }
			log.Info("reporting", "version", versionOf(), "policy", s.Policy, "container", s.Container, "signal", c.String("signal"), "poll", s.Poll)
			if err := s.Run(ctx); err != nil {
				return err
			}
			log.Info("told to end")
			return nil
		},
	}
}

func newSidecar(c *cli.Context) (*sidecar.Sidecar, error) {
	if c.Args().Present() {
		return nil, fmt.Errorf("report takes no argument, not %q: see grantfirst report --help", c.Args().First())
	}
	for _, name := range []string{"policy", "container", "signer-name", "namespace", "pod"} {
		if c.String(name) == "" {
			return nil, fmt.Errorf("--%s is missing: see grantfirst report --help", name)
		}
	}
	s := &sidecar.Sidecar{
		Settings: sidecar.Settings{Namespace: c.String("namespace"), Pod: c.String("pod"), Container: c.String("container"), SignerName: c.String("signer-name")},
		Policy:   c.String("policy"),
		Poll:     c.Duration("poll"),
	}
	// only refuses flags that do not go with the signal.
	only := func(signal string, names ...string) error {
		for _, name := range names {
			if c.IsSet(name) {
				return fmt.Errorf("--%s is for --signal %s", name, signal)
			}
		}
		return nil
	}
	var err error
	switch how := c.String("signal"); how {
	case "restart":
		err = only("http", "url", "json-path", "metric", "label")
	case "http":
		if err = only("restart", "poll"); err == nil && c.String("url") == "" {
			err = errors.New("--signal http needs --url")
		}
		s.Endpoint = &sidecar.Endpoint{URL: c.String("url"), Field: c.String("json-path"), Metric: c.String("metric"), Label: c.String("label")}
	default:
		err = fmt.Errorf("--signal: %q is neither restart nor http", how)
	}
	if err == nil && c.IsSet("poll") && s.Poll < time.Millisecond {
		err = fmt.Errorf("--poll %s: use the time after which the signer looks again, like 30s", s.Poll)
	}
	if err != nil {
		return nil, err
	}
	s.Client, err = inCluster(c.String("kubeconfig"))
	return s, err
}

// inCluster is the access of a pod to its cluster, or that of a kubeconfig file.
func inCluster(kubeconfig string) (*typedcorev1.CoreV1Client, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	config.UserAgent = "grantfirst/" + strings.Trim(versionOf(), "()") + " report"
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	return client, nil
}
