// Command signer is a small signer of pod certificates for development clusters and for grantfirst's own tests.
//
// It answers PodCertificateRequests by a policy file of pod-cert-signer, decides and reloads as that does, and says what it has loaded
// to grantfirst. Its CA is for development: the key lies in memory or in a plain file, and no certificate lives longer than a day.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	typedcertificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/grantfirst/grantfirst/lib/report"
)

func main() {
	// Process 1 of a container is sent no signal that it does not ask for.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	o, err := parseFlags(os.Args[1:], os.Stderr)
	if err == nil {
		err = run(ctx, o, log.New(os.Stderr, "", log.LstdFlags|log.LUTC))
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "signer: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	policy, onChange, signerName, kubeconfig, healthz, caKey, caCert string
	poll                                                             time.Duration
	report                                                           bool
}

func parseFlags(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("signer", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.policy, "policy", "", "`file` with the policy, in pod-cert-signer's format (needed)")
	flags.StringVar(&o.onChange, "on-change", onChangeExit, "what to do when the policy changes: exit (with code 0) or reload")
	flags.DurationVar(&o.poll, "poll", 30*time.Second, "how often to look at the policy")
	flags.StringVar(&o.signerName, "signer-name", "", "`name` that pods ask for: refuse any policy of another one (default: the policy's)")
	flags.StringVar(&o.caKey, "ca-key", "", "PEM `file` with the key of a development CA, for more than one replica (default: make one, in memory)")
	flags.StringVar(&o.caCert, "ca-cert", "", "PEM `file` with its certificate")
	flags.BoolVar(&o.report, "report", false, "report what is loaded to grantfirst; needs POD_NAMESPACE, POD_NAME and CONTAINER_NAME in the environment")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` to reach the cluster by (default: as a pod in it)")
	flags.StringVar(&o.healthz, "healthz", "", "`address` to serve /healthz on, like :8080: 200 once it watches requests")
	if err := flags.Parse(args); err != nil {
		return nil, err // flag has said it, with all flags
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("%q is no flag: see --help", flags.Arg(0))
	case o.policy == "":
		return nil, errors.New("--policy is missing: name the policy file")
	case o.onChange != onChangeExit && o.onChange != onChangeReload:
		return nil, fmt.Errorf("--on-change %q: use exit or reload", o.onChange)
	case o.poll <= 0:
		return nil, fmt.Errorf("--poll %s: use a time, like 30s", o.poll)
	case (o.caKey == "") != (o.caCert == ""):
		return nil, errors.New("--ca-key and --ca-cert belong together: give both or none")
	}
	return o, nil
}

// run is the signer, until its context ends or its policy changes.
func run(ctx context.Context, o *options, log *log.Logger) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	text, err := os.ReadFile(o.policy)
	if err != nil {
		return err
	}
	first, err := parse(text)
	if err == nil && o.signerName != "" {
		first, err = parseFor(o.signerName, text)
	}
	if err != nil {
		return fmt.Errorf("policy %s: %w", o.policy, err)
	}
	ca, err := o.authority()
	if err != nil {
		return err
	}
	config, err := o.cluster()
	if err != nil {
		return fmt.Errorf("reaching the cluster: %w", err)
	}
	client, err := typedcertificatesv1.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("reaching the cluster: %w", err)
	}

	log.Printf("DEVELOPMENT signer %s, never for production: CA %s", first.SignerName, ca.certificate.Subject)
	s := &signer{client: client, name: first.SignerName, ca: ca, now: time.Now, log: log}
	f := &follower{path: o.policy, onChange: o.onChange, name: s.name, log: log, text: text, put: func(r *rules) {
		s.rules.Store(r)
		log.Printf("policy %s is in force: %d grants", o.policy, len(r.Grants))
	}, failed: func(error) {}}
	if o.report {
		core, err := typedcorev1.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("reaching the cluster: %w", err)
		}
		reporter, err := report.Start(ctx, report.Settings{
			Client: core, Namespace: os.Getenv("POD_NAMESPACE"), Pod: os.Getenv("POD_NAME"), Container: os.Getenv("CONTAINER_NAME"),
			SignerName: s.name, Problem: func(err error) { log.Print(err) },
		})
		if err != nil {
			return fmt.Errorf("--report (POD_NAMESPACE, POD_NAME and CONTAINER_NAME in the environment say who reports): %w", err)
		}
		put := f.put
		f.put = func(r *rules) { put(r); reporter.Loaded(r.text) }
		f.failed = reporter.Failed
	}
	f.put(first)
	s.watch()

	ended := make(chan error, 3)
	if o.healthz != "" {
		listener, err := net.Listen("tcp", o.healthz)
		if err != nil {
			return fmt.Errorf("--healthz: %w", err)
		}
		defer listener.Close()
		go func() { ended <- http.Serve(listener, s.health()) }()
	}
	ticks := time.NewTicker(o.poll)
	defer ticks.Stop()
	go func() {
		f.follow(ctx, ticks.C)
		ended <- nil
	}()
	go s.run(ctx)
	return <-ended
}

func (o *options) authority() (*authority, error) {
	if o.caKey == "" {
		return newAuthority(time.Now())
	}
	key, err := os.ReadFile(o.caKey)
	if err != nil {
		return nil, err
	}
	certificate, err := os.ReadFile(o.caCert)
	if err != nil {
		return nil, err
	}
	return readAuthority(certificate, key)
}

func (o *options) cluster() (*rest.Config, error) {
	if o.kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", o.kubeconfig)
}

func (s *signer) health() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.requests.HasSynced() {
			http.Error(w, "not yet: the requests are not listed", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
