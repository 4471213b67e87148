package argocd_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// proxy stands between the plugin and the API server, counts, and does what goes wrong.
type proxy struct {
	*httptest.Server
	real http.Handler

	mutex sync.Mutex
	fault fault
	asked []string
}

// fault answers instead of the API server, which it may ask.
type fault func(w http.ResponseWriter, r *http.Request, real http.Handler)

// newProxy ends with the test. It adds no credentials: those of a request are its sender's.
func newProxy(i *installation) *proxy {
	i.Helper()
	settings := i.anonymous()
	address, err := url.Parse(settings.Host)
	if err != nil {
		i.Fatal(err)
	}
	transport, err := rest.TransportFor(settings)
	if err != nil {
		i.Fatal(err)
	}
	reverse := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(address) }, Transport: transport}
	p := &proxy{real: reverse}
	// TLS: clientcmd gives no credentials to anything else.
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mutex.Lock()
		p.asked = append(p.asked, r.URL.Path)
		fault := p.fault
		p.mutex.Unlock()
		if fault == nil {
			p.real.ServeHTTP(w, r)
			return
		}
		fault(w, r, p.real)
	}))
	p.Config.ErrorLog = log.New(io.Discard, "", 0) // what breaks off here is meant to
	p.StartTLS()
	i.Cleanup(p.Close)
	return p
}

// fail makes requests whose path has that part go wrong; nil ends it.
func (p *proxy) fail(part string, f fault) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.fault = f
	if f != nil {
		p.fault = func(w http.ResponseWriter, r *http.Request, real http.Handler) {
			if strings.Contains(r.URL.Path, part) {
				f(w, r, real)
				return
			}
			real.ServeHTTP(w, r)
		}
	}
}

// requests are those since the last call, sorted.
func (p *proxy) requests() []string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	asked := p.asked
	p.asked = nil
	slices.Sort(asked)
	return asked
}

// The faults. Each is what an API server, or what stands before it, may do.
var (
	hangs fault = func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }

	breaksOff fault = func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

	htmlPage fault = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html><h1>It works!</h1></html>")
	}

	otherObject fault = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind": "APIVersions", "versions": ["v1"]}`)
	}

	noise fault = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, "\x00\xff\xfe{{{")
	}

	halfAnswer fault = func(w http.ResponseWriter, r *http.Request, real http.Handler) {
		whole := answer(r, real)
		w.Header().Set("Content-Type", whole.Header().Get("Content-Type"))
		w.Header().Set("Content-Length", strconv.Itoa(whole.Body.Len()))
		_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
		panic(http.ErrAbortHandler)
	}

	cutAnswer fault = func(w http.ResponseWriter, r *http.Request, real http.Handler) {
		whole := answer(r, real)
		w.Header().Set("Content-Type", whole.Header().Get("Content-Type"))
		_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
	}
)

// answer is the API server's, whole and not packed.
func answer(r *http.Request, real http.Handler) *httptest.ResponseRecorder {
	r.Header.Set("Accept-Encoding", "identity")
	w := httptest.NewRecorder()
	real.ServeHTTP(w, r)
	return w
}

// says answers with a Status of that code.
func says(code int, reason, retryAfter string) fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "made for a test", "reason": %q, "code": %d}`, reason, code)
	}
}
