package report

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Endpoint is where a signer shows the revision that it has loaded: the SHA-256 of the text in hex, with "sha256:" before it or not. Any
// other name for a text is refused, since nobody else could tell which text it means.
type Endpoint struct {
	// URL is http or https, on a loopback address or the pod's own, so that no other pod can answer.
	URL string
	// Field, where it is set, says that the answer is JSON: the names to the field with the revision, with dots between them.
	Field string
	// Metric and Label, where they are set, say that the answer is metrics in Prometheus' text format: the metric, and the label of it
	// with the revision. Series of the value 0 are about what was.
	Metric, Label string
}

const (
	// maxAnswer is the longest answer that is read, in bytes.
	maxAnswer = 16 << 20
	// answerTimeout leaves time for the API server in an attempt.
	answerTimeout = 3 * time.Second
)

// endpoints is a client that keeps no connection, which could be one to an earlier instance, and goes nowhere else.
var endpoints = &http.Client{
	Timeout:       answerTimeout,
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// check says what is wrong with the settings.
func (e *Endpoint) check() error {
	u, err := url.Parse(e.URL)
	if err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("endpoint %q: it must begin with http:// or https://", e.URL)
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil && u.Hostname() != "localhost" {
		return fmt.Errorf("endpoint %q: a name may lead to another pod: use a loopback address or the pod's own", e.URL)
	}
	if (e.Metric == "") != (e.Label == "") {
		return errors.New("endpoint: a metric and the label that has the revision belong together: give both or none")
	}
	if e.Metric != "" && e.Field != "" {
		return errors.New("endpoint: the answer is either JSON or metrics: give a field or a metric")
	}
	return nil
}

// revision asks for it.
func (e *Endpoint) revision(ctx context.Context, podIPs []corev1.PodIP) (string, error) {
	u, err := url.Parse(e.URL)
	if err != nil {
		return "", err
	}
	own := slices.ContainsFunc(podIPs, func(ip corev1.PodIP) bool { return ip.IP == u.Hostname() })
	if ip := net.ParseIP(u.Hostname()); ip != nil && !ip.IsLoopback() && !own {
		return "", fmt.Errorf("endpoint %s is neither on a loopback address nor on the pod's own, so another pod may answer: change it", e.URL)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL, nil)
	if err != nil {
		return "", err
	}
	response, err := endpoints.Do(request)
	if err != nil {
		return "", fmt.Errorf("endpoint: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("endpoint %s: it answers %s", e.URL, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	if err != nil {
		return "", fmt.Errorf("endpoint %s: %w", e.URL, err)
	}
	shown, err := e.find(body)
	if err != nil {
		return "", fmt.Errorf("endpoint %s: %w", e.URL, err)
	}
	return shown, nil
}

// find finds the revision in an answer.
func (e *Endpoint) find(body []byte) (string, error) {
	shown := string(body)
	var err error
	switch {
	case e.Field != "":
		shown, err = field(body, e.Field)
	case e.Metric != "":
		shown, err = series(shown, e.Metric, e.Label)
	}
	if err != nil {
		return "", err
	}
	digits := strings.ToLower(strings.TrimPrefix(strings.TrimSpace(shown), "sha256:"))
	if _, err := hex.DecodeString(digits); err != nil || len(digits) != 64 {
		return "", fmt.Errorf("%.100q is no revision: it must be the SHA-256 of the policy text, in hex", shown)
	}
	return "sha256:" + digits, nil
}

func field(body []byte, path string) (string, error) {
	var at any
	if err := json.Unmarshal(body, &at); err != nil {
		return "", fmt.Errorf("the answer is no JSON: %w", err)
	}
	for name := range strings.SplitSeq(path, ".") {
		object, _ := at.(map[string]any)
		next, ok := object[name]
		if !ok {
			return "", fmt.Errorf("the answer has no field %s", path)
		}
		at = next
	}
	s, ok := at.(string)
	if !ok {
		return "", fmt.Errorf("field %s of the answer is no string", path)
	}
	return s, nil
}

// series finds the only value of the label among the metric's series that are not 0.
func series(text, metric, label string) (string, error) {
	var values []string
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), metric)
		if !ok || !strings.HasPrefix(rest, "{") {
			continue
		}
		labels, rest, err := parseLabels(rest[1:])
		if err != nil {
			return "", fmt.Errorf("metric %s: %w in %.200q", metric, err, strings.TrimSpace(line))
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return "", fmt.Errorf("metric %s has no value in %.200q", metric, strings.TrimSpace(line))
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return "", fmt.Errorf("metric %s: %w", metric, err)
		}
		if shown, ok := labels[label]; ok && value != 0 && !math.IsNaN(value) && !slices.Contains(values, shown) {
			values = append(values, shown)
		}
	}
	if len(values) != 1 {
		return "", fmt.Errorf("metric %s has %d values of label %s, want one", metric, len(values), label)
	}
	return values[0], nil
}

// parseLabels reads name="value",…} and returns what comes after it (prometheus.io/docs/instrumenting/exposition_formats).
func parseLabels(s string) (map[string]string, string, error) {
	labels := map[string]string{}
	for {
		s = strings.TrimLeft(s, " \t,")
		if after, ok := strings.CutPrefix(s, "}"); ok {
			return labels, after, nil
		}
		name, after, ok := strings.Cut(s, "=")
		after, quoted := strings.CutPrefix(strings.TrimLeft(after, " \t"), `"`)
		if !ok || !quoted {
			return nil, "", errors.New("labels that cannot be read")
		}
		var value strings.Builder
		for {
			i := strings.IndexAny(after, `"\`)
			if i < 0 || after[i] == '\\' && i+1 == len(after) {
				return nil, "", errors.New("a label without an end")
			}
			value.WriteString(after[:i])
			if after[i] == '"' {
				s = after[i+1:]
				break
			}
			switch after[i+1] {
			case 'n':
				value.WriteByte('\n')
			default:
				value.WriteByte(after[i+1])
			}
			after = after[i+2:]
		}
		labels[strings.TrimSpace(name)] = value.String()
	}
}
