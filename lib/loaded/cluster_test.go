package loaded

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/grantfirst/grantfirst/lib/config"
)

// What an API server may answer is tested with the plugin, which has to make do with it.

func TestACustomResourceIsListedByItsPathAndSelector(t *testing.T) {
	for name, test := range map[string]struct {
		resource config.Resource
		want     string
	}{
		"a kind without namespaces": {config.Resource{APIVersion: "policy.example.com/v1", Kind: "P", Resource: "ps"}, "/apis/policy.example.com/v1/ps?"},
		"all namespaces":            {config.Resource{APIVersion: "policy.example.com/v1", Kind: "P", Resource: "ps", Namespace: "*"}, "/apis/policy.example.com/v1/ps?"},
		"one namespace":             {config.Resource{APIVersion: "policy.example.com/v1", Kind: "P", Resource: "ps", Namespace: "n"}, "/apis/policy.example.com/v1/namespaces/n/ps?"},
		"with labels":               {config.Resource{APIVersion: "policy.example.com/v1", Kind: "P", Resource: "ps", Selector: "a=b"}, "/apis/policy.example.com/v1/ps?labelSelector=a%3Db&"},
	} {
		t.Run(name, func(t *testing.T) {
			var mutex sync.Mutex
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mutex.Lock()
				asked = append(asked, r.URL.String())
				mutex.Unlock()
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Date", "Sun, 29 Nov 2026 10:00:00 GMT")
				if strings.HasSuffix(r.URL.Path, "/pods") {
					fmt.Fprint(w, `{"kind": "PodList", "apiVersion": "v1", "items": []}`)
					return
				}
				fmt.Fprint(w, `{"kind": "PList", "apiVersion": "policy.example.com/v1", "items": [{"kind": "P", "apiVersion": "policy.example.com/v1", "metadata": {"name": "x", "generation": 3}}]}`)
			}))
			defer server.Close()
			c, err := NewCluster(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			s := &config.Signer{Namespace: "signer", Policy: config.Policy{Resource: &test.resource}}
			for range 2 {
				o, err := c.Objects(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				// An integer stays one: expressions compare generations.
				if meta := o.Resources[0]["metadata"].(map[string]any); len(o.Resources) != 1 || meta["generation"] != int64(3) {
					t.Errorf("%v", o.Resources)
				}
				if o.At.Unix() != 1795946400 {
					t.Errorf("read at %s", o.At)
				}
			}
			slices.Sort(asked)
			if len(asked) != 2 || !slices.ContainsFunc(asked, func(url string) bool { return strings.HasPrefix(url, test.want) }) {
				t.Errorf("asked %q, want %s once", asked, test.want)
			}
		})
	}
}

// A container that was not running when the pods were listed may start with a text from before what is listed after them.
func TestPodsAreListedAfterThePolicies(t *testing.T) {
	var mutex sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mutex.Lock()
		asked = append(asked, strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/signer/"))
		mutex.Unlock()
		w.Header().Set("Content-Type", "application/json")
		kind := map[string]string{"pods": "PodList", "configmaps": "ConfigMapList"}[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]
		if kind == "" {
			fmt.Fprint(w, `{"kind": "PList", "apiVersion": "policy.example.com/v1", "items": []}`)
			return
		}
		fmt.Fprintf(w, `{"kind": %q, "apiVersion": "v1", "items": []}`, kind)
	}))
	defer server.Close()
	c, err := NewCluster(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	byConfigMap := &config.Signer{Namespace: "signer"}
	byResource := &config.Signer{Namespace: "signer", Policy: config.Policy{Resource: &config.Resource{APIVersion: "policy.example.com/v1", Resource: "ps"}}}
	for _, s := range []*config.Signer{byConfigMap, byResource, byConfigMap, byResource} {
		if _, err := c.Objects(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"configmaps", "pods", "/apis/policy.example.com/v1/ps", "pods"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}
