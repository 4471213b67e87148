package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/urfave/cli/v2"
	"k8s.io/client-go/dynamic"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/grantfirst/grantfirst/lib/config"
	"github.com/grantfirst/grantfirst/lib/release"
	"github.com/grantfirst/grantfirst/plugin"
)

func watchCommand() *cli.Command {
	return &cli.Command{
		Name:  "watch",
		Usage: "release held Applications as soon as their signers have loaded the grants",
		Description: `Runs until it is sent SIGTERM, in the cluster of Argo CD (examples/argocd has its Deployment and RBAC). It watches Applications, holds and
what the signers have loaded, and has Argo CD regenerate and sync an Application when every grant that its hold waits for is loaded.
Applications that are synced by hand are only refreshed. docs/release.md says how, docs/watch.md what it needs. It logs to standard error,
and makes an Event on each Application that needs a person.

Several may run; one of them leads, by Lease ` + release.Lease + ` in Argo CD's namespace.

Exit code 2 when it cannot start, or when it no longer leads.

Examples:
  grantfirst watch
  grantfirst watch --applications-in argocd --applications-in team-a --max-in-flight 20
  From a workstation, beside none in the cluster:
    grantfirst watch --context argocd --config config.yaml --listen ""`,
		Flags: []cli.Flag{
			configFlag(),
			&cli.StringFlag{Name: "kubeconfig", Usage: "`FILE` that says how to reach Argo CD's cluster (default: $KUBECONFIG, else the cluster that this runs in)"},
			&cli.StringFlag{Name: "context", Usage: "`NAME` of the context in it (default: the current one)"},
			&cli.StringFlag{Name: "namespace", EnvVars: []string{"POD_NAMESPACE"}, Usage: "`NAMESPACE` of Argo CD (default: argocdNamespace of the configuration, else argocd)"},
			&cli.StringSliceFlag{Name: "applications-in", Usage: "`NAMESPACE` with Applications to look after, * for all; may be repeated (default: Argo CD's)"},
			&cli.StringFlag{Name: "selector", Usage: "look after Applications with these `LABELS` only"},
			&cli.IntFlag{Name: "max-in-flight", Value: 10, Usage: "how `MANY` releases are begun at a time"},
			&cli.StringFlag{Name: "listen", Value: ":8080", Usage: "`ADDRESS` for /healthz, /readyz and /metrics; empty for none"},
			&cli.StringFlag{Name: "identity", EnvVars: []string{"POD_NAME"}, Usage: "`NAME` of this one among several (default: the host's name)"},
		},
		Action: func(c *cli.Context) error {
			// Process 1 of a container is sent no signal that it does not ask for.
			ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			log := slog.New(slog.NewTextHandler(c.App.ErrWriter, nil))
			w, election, err := newWatcher(c, log)
			if err != nil {
				return err
			}
			h := &health{}
			if err := h.listen(ctx, c.String("listen"), w, log); err != nil {
				return err
			}
			log.Info("starting", "version", versionOf(), "namespace", w.Namespace, "applicationsIn", w.Namespaces, "maxInFlight", w.MaxInFlight)
			err = election.While(ctx, func(ctx context.Context) error {
				h.leading.Store(w)
				return w.Run(ctx)
			})
			if err == nil {
				log.Info("told to end")
			}
			return err
		},
	}
}

func newWatcher(c *cli.Context, log *slog.Logger) (*release.Watcher, *release.Election, error) {
	if c.Args().Present() {
		return nil, nil, fmt.Errorf("watch takes no argument, not %q: see grantfirst watch --help", c.Args().First())
	}
	if c.Int("max-in-flight") < 1 {
		return nil, nil, fmt.Errorf("--max-in-flight: %d is less than 1: nothing would be released", c.Int("max-in-flight"))
	}
	file := cmp.Or(c.String("config"), os.Getenv("GRANTFIRST_CONFIG"), plugin.DefaultConfig)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}
	conf, err := config.Parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s: %w", file, err)
	}
	identity := c.String("identity")
	if identity == "" {
		if identity, err = os.Hostname(); err != nil {
			return nil, nil, fmt.Errorf("this host has no name: give --identity: %w", err)
		}
	}
	settings, err := reach(c.String("kubeconfig"), c.String("context"))
	if err != nil {
		return nil, nil, fmt.Errorf("reaching Argo CD's cluster: %w", err)
	}
	leases, err := coordinationv1.NewForConfig(settings)
	if err != nil {
		return nil, nil, fmt.Errorf("reaching Argo CD's cluster: %w", err)
	}
	own, err := newCluster(settings)
	if err != nil {
		return nil, nil, fmt.Errorf("reaching Argo CD's cluster: %w", err)
	}
	w := &release.Watcher{
		Config: conf, Own: own,
		Elsewhere: func(c *config.Cluster) (release.Cluster, error) {
			settings, err := reach(c.Kubeconfig, c.Context)
			if err != nil {
				return release.Cluster{}, err
			}
			return newCluster(settings)
		},
		Namespace:   cmp.Or(c.String("namespace"), conf.ArgoCDNamespace, "argocd"),
		Namespaces:  c.StringSlice("applications-in"),
		Labels:      c.String("selector"),
		MaxInFlight: c.Int("max-in-flight"),
		Log:         log,
		Now:         time.Now,
	}
	switch {
	case slices.Contains(w.Namespaces, "*"):
		w.Namespaces = nil
	case len(w.Namespaces) == 0:
		w.Namespaces = []string{w.Namespace}
	}
	return w, &release.Election{Client: leases, Namespace: w.Namespace, Identity: identity, Log: log}, nil
}

// reach gives the access that a kubeconfig file has, or without one that of KUBECONFIG, of this pod, or of kubectl's usual file.
func reach(kubeconfig, kubeContext string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	settings, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext}).ClientConfig()
	if err != nil {
		return nil, err
	}
	settings.UserAgent = "grantfirst/" + strings.Trim(versionOf(), "()") + " watch"
	// Releases are limited by --max-in-flight, and what is watched is few requests.
	settings.QPS = -1
	settings.WarningHandler = rest.NoWarnings{}
	return settings, nil
}

func newCluster(settings *rest.Config) (release.Cluster, error) {
	clock := &release.Clock{}
	settings = rest.CopyConfig(settings)
	settings.Wrap(func(next http.RoundTripper) http.RoundTripper { return &dated{next, clock} })
	client, err := dynamic.NewForConfig(settings)
	return release.Cluster{Client: client, Now: clock.Now}, err
}

// dated shows the dates of an API server's answers to a clock.
type dated struct {
	next  http.RoundTripper
	clock *release.Clock
}

func (d *dated) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(request)
	if err == nil {
		if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			d.clock.Saw(date)
		}
	}
	return response, err
}

// health answers kubelet: alive always, ready when it has read what it needs, or waits for another to end.
type health struct {
	leading atomic.Pointer[release.Watcher]
}

func (h *health) listen(ctx context.Context, address string, w *release.Watcher, log *slog.Logger) error {
	if address == "" {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if leads := h.leading.Load(); leads != nil && !leads.Ready() {
			http.Error(w, "not everything has been read yet", http.StatusServiceUnavailable)
		}
	})
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(w, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "grantfirst_leading", Help: "1 where this watcher leads. The others have no metrics of holds and signers."}, func() float64 {
			if h.leading.Load() != nil {
				return 1
			}
			return 0
		}))
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError)}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("health is not served any more", "error", err)
		}
	}()
	log.Info("listening", "address", listener.Addr().String())
	return nil
}
