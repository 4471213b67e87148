package report

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

func TestARevisionIsFoundInAnAnswer(t *testing.T) {
	info := &Endpoint{Metric: "policy_info", Label: "sha256"}
	for name, c := range map[string]struct {
		endpoint *Endpoint
		body     string
		want     string // the revision, or part of the error
	}{
		"the whole answer":                         {&Endpoint{}, digest + "\n", "sha256:" + digest},
		"with the name of the hash":                {&Endpoint{}, " sha256:" + digest, "sha256:" + digest},
		"in capitals":                              {&Endpoint{}, strings.ToUpper(digest), "sha256:" + digest},
		"another name for a text":                  {&Endpoint{}, "v17", `"v17" is no revision: it must be the SHA-256`},
		"too short":                                {&Endpoint{}, digest[:62], "is no revision"},
		"no hexadecimal digits":                    {&Endpoint{}, strings.Repeat("x", 64), "is no revision"},
		"nothing":                                  {&Endpoint{}, "", "is no revision"},
		"a field":                                  {&Endpoint{Field: "sha"}, `{"sha":"` + digest + `"}`, "sha256:" + digest},
		"a field further down":                     {&Endpoint{Field: "status.policy.sha"}, `{"status":{"policy":{"sha":"` + digest + `"}}}`, "sha256:" + digest},
		"a field that is missing":                  {&Endpoint{Field: "status.sha"}, `{"status":[]}`, "the answer has no field status.sha"},
		"a field that is no string":                {&Endpoint{Field: "sha"}, `{"sha":1}`, "field sha of the answer is no string"},
		"no JSON":                                  {&Endpoint{Field: "sha"}, "<html>", "the answer is no JSON"},
		"a metric":                                 {info, "# TYPE policy_info gauge\npolicy_info{file=\"a \\\"b\\\" }\",sha256=\"" + digest + "\",} 1\npolicy_info_other{sha256=\"x\"} 1\n", "sha256:" + digest},
		"a metric with a series for what was":      {info, "policy_info{sha256=\"old\"} 0\npolicy_info{ sha256 = \"" + digest + "\" } 1 1700000000\n", "sha256:" + digest},
		"a metric with two series of one revision": {info, "policy_info{x=\"1\",sha256=\"" + digest + "\"} 1\npolicy_info{x=\"2\",sha256=\"" + digest + "\"} 1\n", "sha256:" + digest},
		"a metric with two revisions":              {info, "policy_info{sha256=\"a\"} 1\npolicy_info{sha256=\"b\"} 1\n", "has 2 values of label sha256, want one"},
		"no such metric":                           {info, "policy_info 1\n", "has 0 values"},
		"a metric that is not a number":            {info, "policy_info{sha256=\"a\"} NaN\n", "has 0 values"},
		"a metric without a value":                 {info, "policy_info{sha256=\"a\"}\n", "has no value"},
		"a metric with a broken value":             {info, "policy_info{sha256=\"a\"} one\n", "invalid syntax"},
		"a metric that is cut":                     {info, "policy_info{sha256=\"a\\", "a label without an end"},
		"a metric with broken labels":              {info, "policy_info{sha256} 1", "labels that cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.endpoint.find([]byte(c.body))
			if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestOnlyThePodItselfIsAsked(t *testing.T) {
	served := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		served++
		if q.URL.Path == "/elsewhere" {
			http.Redirect(w, q, "http://192.0.2.1/", http.StatusFound)
		}
	}))
	defer server.Close()
	for name, c := range map[string]struct{ url, want string }{
		"a name":               {"http://signer.pcs.svc/", "a name may lead to another pod"},
		"no web address":       {"file:///etc/passwd", "must begin with http://"},
		"nonsense":             {"http://%zz/", "invalid URL escape"},
		"another pod":          {"http://192.0.2.1:1/", "neither on a loopback address nor on the pod's own"},
		"away from it":         {server.URL + "/elsewhere", "it answers 302 Found"},
		"not there":            {"http://127.0.0.1:1/", "connection refused"},
		"an answer without it": {server.URL, "is no revision"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Endpoint{URL: c.url}
			err := e.check()
			if err == nil {
				_, err = e.revision(t.Context(), []corev1.PodIP{{IP: "192.0.2.7"}})
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if served != 2 {
		t.Errorf("%d requests served, want 2", served)
	}
	for _, e := range []*Endpoint{{URL: server.URL, Metric: "m"}, {URL: server.URL, Label: "l"}, {URL: server.URL, Metric: "m", Label: "l", Field: "f"}} {
		if e.check() == nil {
			t.Errorf("%+v is taken", e)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("policy_info{a=\"\\n\",sha256=\"" + digest + "\"} 1")
	f.Add(`{"a":{"b":"` + digest + `"}}`)
	f.Add("sha256:" + digest)
	f.Fuzz(func(t *testing.T, body string) {
		for _, e := range []*Endpoint{{}, {Field: "a.b"}, {Metric: "policy_info", Label: "sha256"}} {
			if got, err := e.find([]byte(body)); err == nil && !regexp.MustCompile("^sha256:[0-9a-f]{64}$").MatchString(got) {
				t.Errorf("%q from %q", got, body)
			}
		}
	})
}
