package e2e_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stays looks for some time whether something stays true.
func (s *shop) stays(long time.Duration, what string, check func() bool) {
	s.Helper()
	begun, look := time.Now(), time.NewTicker(200*time.Millisecond)
	defer look.Stop()
	for time.Since(begun) < long {
		if !check() {
			s.Fatalf("not for long: %s: it is over after %.1f s", what, time.Since(begun).Seconds())
		}
		select {
		case <-look.C:
		case <-s.Context().Done():
			s.Fatal(s.Context().Err())
		}
	}
	s.says("%s (for %.0f s)", what, long.Seconds())
}

// events are the messages of a reason that were said of the Application.
func (a *app) events(reason string) []string {
	a.shop.Helper()
	list, err := a.shop.CoreV1().Events(space).List(a.shop.Context(), metav1.ListOptions{
		FieldSelector: fmt.Sprintf("involvedObject.kind=Application,involvedObject.name=%s,reason=%s", a.name, reason),
	})
	if err != nil {
		a.shop.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Message)
	}
	return out
}

// watcherLog are the lines of the watchers about the Application.
func (a *app) watcherLog() []string {
	s := a.shop
	s.Helper()
	pods, err := s.CoreV1().Pods(space).List(s.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=grantfirst-watch"})
	if err != nil {
		s.Fatal(err)
	}
	var out []string
	for _, p := range pods.Items {
		on, err := s.Containers(s.Context(), space, p.Name)
		if err != nil {
			s.Fatal(err)
		}
		for _, c := range on {
			text, err := os.ReadFile(c.Log)
			if err != nil {
				s.Fatal(err)
			}
			out = append(out, slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
				return !strings.Contains(line, "application="+space+"/"+a.name+" ") && !strings.Contains(line, "application="+a.name+" ")
			})...)
		}
	}
	return out
}
