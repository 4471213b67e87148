package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// store keeps the ConfigMap of overrides as an API server does; the first conflicts writes fail as if somebody had been faster.
func store(t *testing.T, answers map[string]http.HandlerFunc, conflicts int) (stored func() *corev1.ConfigMap) {
	var cm *corev1.ConfigMap
	write := func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if conflicts--; conflicts >= 0 {
			status(http.StatusConflict, "Conflict", "")(w, r)
			return
		}
		cm = &corev1.ConfigMap{}
		if err := json.Unmarshal(raw, cm); err != nil {
			t.Error(err)
		}
		cm.APIVersion, cm.Kind, cm.Namespace = "v1", "ConfigMap", "argocd"
		body(string(raw))(w, r)
	}
	answers[strings.TrimSuffix(overridesPath, "/"+OverridesName)] = write
	answers[overridesPath] = func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut:
			write(w, r)
		case cm == nil:
			status(http.StatusNotFound, "NotFound", `, "details": {"name": "`+OverridesName+`"}`)(w, r)
		default:
			text, err := json.Marshal(cm)
			if err != nil {
				t.Error(err)
			}
			body(string(text))(w, r)
		}
	}
	return func() *corev1.ConfigMap { return cm }
}

func TestAnOverrideIsWrittenReadAndTakenBack(t *testing.T) {
	answers := healthy(refusing, false)
	stored := store(t, answers, 1)
	r := sidecar(t, newAPI(t, answers), reporting)
	written, err := r.Override(context.Background(), "web", Override{Reason: "INC-1", Namespace: "shop", ServiceAccount: "web"}, time.Hour)
	if err != nil || written.Until != "2026-11-29T11:00:00Z" {
		t.Fatalf("%v, %+v", err, written)
	}
	if out := plan(t, r); out.Held || out.Demands[0].Override == nil {
		t.Errorf("the plugin does not see it: %s", out.WaitingFor())
	}
	// One that has run out goes with the next, and another Application's stays.
	cm := stored()
	cm.Data["other"] = "[{until: \"2026-11-29T11:00:00Z\", reason: x}]"
	cm.Data["web"] = "[{until: \"2026-11-29T09:00:00Z\", reason: old}, {until: \"2026-11-29T10:30:00Z\", reason: young}]"
	if _, err := r.Override(context.Background(), "web", Override{Reason: "INC-2"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	if text := stored().Data["web"]; strings.Contains(text, "old") || !strings.Contains(text, "young") || !strings.Contains(text, "INC-2") {
		t.Errorf("stored:\n%s", text)
	}
	if err := r.RemoveOverrides(context.Background(), "web"); err != nil {
		t.Fatal(err)
	}
	if data := stored().Data; data["web"] != "" || data["other"] == "" {
		t.Errorf("stored: %v", data)
	}
	if err := r.RemoveOverrides(context.Background(), "web"); !errors.Is(err, ErrNoOverride) {
		t.Errorf("nothing to remove: %v", err)
	}
	if out := plan(t, r); !out.Held {
		t.Error("not held any more")
	}
}

func TestAnOverrideOfWhatIsNotThereIsRefused(t *testing.T) {
	answers := healthy(refusing, false)
	stored := store(t, answers, 0)
	r := sidecar(t, newAPI(t, answers), reporting)
	for name, test := range map[string]struct {
		application string
		override    Override
		lasts       time.Duration
		err         string
	}{
		"a misspelt Application":       {"wbe", Override{Reason: "r"}, time.Hour, "no such thing"},
		"one of another namespace":     {"team/web", Override{Reason: "r"}, time.Hour, "no such thing"},
		"an override without a reason": {"web", Override{}, time.Hour, "needs a reason"},
		"an override without an end":   {"web", Override{Reason: "r"}, 0, "needs a reason and a time"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := r.Override(context.Background(), test.application, test.override, test.lasts); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%v, want %q", err, test.err)
			}
			if stored() != nil {
				t.Error("written")
			}
		})
	}
}

func TestAnApplicationIsQualifiedByTheNamespaceOfTheConfiguration(t *testing.T) {
	for application, want := range map[string]string{"web": "gitops/web", "team-a/web": "team-a/web", "team-a_web": "team-a/web"} {
		r := sidecar(t, newAPI(t, healthy(refusing, false)), strings.Replace(reporting, "kind: Config\n", "kind: Config\nargocdNamespace: gitops\n", 1))
		namespace, name, err := r.Qualified(application)
		if got := namespace + "/" + name; err != nil || got != want {
			t.Errorf("%s is %s (%v), want %s", application, got, err, want)
		}
	}
}
