package argocd_test

import (
	"cmp"
	"context"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Deadlines for what hangs, and for what has to answer on a busy machine, too, even if it is tried again until the time is over; without
// the flag it is 10 s.
const (
	short  = "--timeout=500ms"
	longer = "--timeout=4s"
)

// goesOut fails the test unless all goes out as it was rendered.
func (i *installation) goesOut(out outcome) {
	i.Helper()
	if want := i.workload("web", "shop"); out.stdout != want {
		i.Errorf("held: %s\n%s\n%s", out.held, out.stderr, out.stdout)
	}
}

// says fails the test unless something is held, and the marker says why.
func (i *installation) says(out outcome, words string) {
	i.Helper()
	words = i.replace(words)
	if !strings.Contains(out.held, words) || !strings.Contains(strings.Join(strings.Fields(out.stderr), " "), words) {
		i.Errorf("marker:\n  %s\nstderr:\n  %s\nnone or only one of them has:\n  %s", out.held, out.stderr, words)
	}
}

func TestWhateverTheAPIServerDoesOnlyWhatIsNewIsHeld(t *testing.T) {
	i := newInstallation(t)
	i.shipRights()
	i.signer()
	token := i.token(i.argocd, repoServer)
	p := newProxy(i)
	kubeconfig := i.kubeconfig(p.Server, token)
	// The sidecar has been there before.
	for _, app := range []string{"web", "fresh"} {
		i.await("the rights are known", func() (bool, error) {
			out := i.generate(i.environment(app, kubeconfig, "tmp"))
			return out.stdout == i.workload("web", "shop") && strings.Count(out.stderr, "\n") == 1, nil
		})
	}

	stopped := httptest.NewTLSServer(nil)
	stopped.Close()
	revoked := i.revoked()
	i.await("the token is not accepted any more", func() (bool, error) {
		return strings.Contains(i.generate(i.environment("web", i.kubeconfig(nil, revoked), "tmp")).stderr, "Unauthorized"), nil
	})

	everything, signer := "/", "/namespaces/"+i.signing+"/"
	for name, test := range map[string]struct {
		// kubeconfig is another than the proxy's.
		kubeconfig string
		at         string
		fault      fault
		words      string
		timeout    string
	}{
		"stopped":                        {kubeconfig: i.kubeconfig(stopped, token), words: "the API server cannot be reached: connection refused"},
		"a token that is none":           {kubeconfig: i.kubeconfig(nil, "garbage"), words: "the API server does not accept the credentials (401)"},
		"a token that has ended":         {kubeconfig: i.kubeconfig(nil, revoked), words: "the API server does not accept the credentials (401)"},
		"slow":                           {at: everything, fault: hangs, words: "the API server did not answer in time", timeout: short},
		"slow with the signer's lists":   {at: signer, fault: hangs, words: "the API server did not answer in time", timeout: short},
		"breaking off":                   {at: everything, fault: breaksOff, words: "the API server broke off its answer"}, // it is asked again and again
		"403":                            {at: everything, fault: says(403, "Forbidden", ""), words: "the API server forbids it (403)"},
		"403 for the signer's lists":     {at: signer, fault: says(403, "Forbidden", ""), words: "the API server forbids it (403)"},
		"429, come back in an hour":      {at: everything, fault: says(429, "TooManyRequests", "3600"), words: "the API server is overloaded (429)"},
		"429 without a time":             {at: everything, fault: says(429, "TooManyRequests", ""), words: "the API server is overloaded (429)"},
		"429 for the signer's lists":     {at: signer, fault: says(429, "TooManyRequests", "1"), words: "the API server is overloaded (429)"},
		"500":                            {at: everything, fault: says(500, "InternalError", ""), words: "the API server has an error of its own (500)"},
		"503, come back in a second":     {at: everything, fault: says(503, "ServiceUnavailable", "1"), words: "the API server has an error of its own (503)"},
		"410 for the signer's lists":     {at: signer, fault: says(410, "Expired", ""), words: "the API server refuses it (410 Expired)"},
		"a web page":                     {at: everything, fault: htmlPage, words: "the API server's answer cannot be understood"},
		"noise":                          {at: everything, fault: noise, words: "the API server's answer cannot be understood"},
		"another object":                 {at: everything, fault: otherObject, words: "the API server's answer cannot be understood"},
		"another object for the lists":   {at: signer, fault: otherObject, words: "the API server's answer cannot be understood"},
		"half an answer":                 {at: everything, fault: halfAnswer, words: "the API server broke off its answer"},
		"half an answer for the lists":   {at: signer, fault: halfAnswer, words: "the API server broke off its answer"},
		"half an answer that ends well":  {at: everything, fault: cutAnswer, words: "the API server's answer cannot be understood"},
		"half of each of the two lists":  {at: signer, fault: cutAnswer, words: "the API server's answer cannot be understood"},
		"half of the ConfigMaps":         {at: signer + "configmaps", fault: cutAnswer, words: "the API server's answer cannot be understood"},
		"no answer about the ConfigMaps": {at: signer + "configmaps", fault: hangs, words: "the API server did not answer in time", timeout: short},
	} {
		t.Run(name, func(t *testing.T) {
			i := i.with(t)
			with := kubeconfig
			if test.kubeconfig != "" {
				with = test.kubeconfig
			}
			timeout := cmp.Or(test.timeout, longer)
			p.fail(test.at, test.fault)
			defer p.fail("", nil)
			i.says(i.generate(i.environment("fresh", with, "tmp"), timeout), test.words)

			out := i.generate(i.environment("web", with, "tmp"), timeout)
			i.goesOut(out)
			if !strings.Contains(out.stderr, "1 not known to be loaded went out because they were released before") {
				t.Errorf("nobody is told: %s", out.stderr)
			}
			if again := i.generate(i.environment("fresh", with, "tmp"), timeout); !strings.Contains(again.held, test.words) {
				t.Errorf("said otherwise the second time: %s", again.held)
			}
		})
	}

	t.Run("a sidecar that has never read the Application takes all for new, and says so", func(t *testing.T) {
		i := i.with(t)
		i.says(i.generate(i.environment("web", i.kubeconfig(stopped, token), "new"), short), "it counts as new because the Application is not known")
	})
	t.Run("a refusal that can be read holds what was released, whatever else cannot be read", func(t *testing.T) {
		i := i.with(t)
		i.grants("other")
		i.await("the signer has loaded it", func() (bool, error) { return strings.Contains(i.report().Data["policy"], "other"), nil })
		p.fail("/namespaces/"+i.argocd+"/", says(500, "InternalError", ""))
		defer p.fail("", nil)
		i.says(i.generate(i.environment("web", kubeconfig, "tmp"), longer), "no grant for ServiceAccount shop/web")
	})
}

// revoked is a token of the sidecar's whose pod is gone: an API server answers it as it answers one that has expired.
func (i *installation) revoked() string {
	i.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "repo-server"}, Spec: corev1.PodSpec{
		ServiceAccountName: repoServer, NodeSelector: map[string]string{"nobody": "has-it"}, Containers: []corev1.Container{{Name: "c", Image: "example.test/none"}},
	}}
	pod, err := i.CoreV1().Pods(i.argocd).Create(i.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		i.Fatal(err)
	}
	seconds := int64(3600)
	answer, err := i.CoreV1().ServiceAccounts(i.argocd).CreateToken(i.Context(), repoServer, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}, metav1.CreateOptions{})
	if err != nil {
		i.Fatal(err)
	}
	now := int64(0)
	if err := i.CoreV1().Pods(i.argocd).Delete(i.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		i.Fatal(err)
	}
	return answer.Status.Token
}

// What is wrong is with the signer. Where nothing is said of an Application, it goes out.
func TestWhateverBecomesOfTheSignerOnlyWhatIsNewOrRefusedIsHeld(t *testing.T) {
	for name, test := range map[string]struct {
		wrong func(*installation)
		// fresh and web say what each of the Applications is held for.
		fresh, web string
	}{
		"deleted": {
			wrong: func(i *installation) { i.removeSigner() },
			fresh: "the signer has no live replica",
		},
		"deleted, and its policy object does not grant it": {
			wrong: func(i *installation) { i.removeSigner(); i.grants("other") },
			fresh: "no grant for ServiceAccount shop/web",
			web:   "no grant for ServiceAccount shop/web",
		},
		"Pending, as no node fits": {
			wrong: func(i *installation) { i.removeSigner(); i.pendingSigner() },
		},
		"Pending, as no node fits, and its policy object does not grant it": {
			wrong: func(i *installation) { i.removeSigner(); i.grants("other"); i.pendingSigner() },
			fresh: "no grant for ServiceAccount shop/web",
			web:   "no grant for ServiceAccount shop/web",
		},
		"crash-looping over a policy that does not parse": {
			wrong: func(i *installation) {
				i.policy("not a policy")
				i.awaitPod("it is in CrashLoopBackOff", func(p *corev1.Pod) bool {
					s := p.Status.ContainerStatuses[0]
					return s.RestartCount > 1 && s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
				})
			},
			fresh: "signer-0",
		},
		"Terminating on a dead node": {
			wrong: func(i *installation) { i.stopSigner(); i.deleteSigner() },
		},
		"Terminating on a dead node, with a policy from before": {
			wrong: func(i *installation) {
				i.grants("other")
				i.await("the signer has loaded it", func() (bool, error) { return strings.Contains(i.report().Data["policy"], "other"), nil })
				i.stopSigner()
				i.deleteSigner()
				i.grants("web", "other")
			},
			fresh: "terminating on node",
			web:   "terminating on node",
		},
		"its report was changed by hand": {
			wrong: func(i *installation) {
				i.stopSigner()
				i.changeReport(func(data map[string]string) { data["policy"] = strings.Replace(data["policy"], "web", "fresh", 1) })
			},
			fresh: "it was changed by hand or is only half written",
		},
		"its report is half written": {
			wrong: func(i *installation) {
				i.stopSigner()
				i.changeReport(func(data map[string]string) { delete(data, "policy") })
			},
			fresh: "it is only half written",
		},
		"its report is half a text": {
			wrong: func(i *installation) {
				i.stopSigner()
				i.changeReport(func(data map[string]string) { data["policy"] = data["policy"][:len(data["policy"])/2] })
			},
			fresh: "it was changed by hand or is only half written",
		},
		"its report is gone": {
			wrong: func(i *installation) {
				i.stopSigner()
				if err := i.CoreV1().ConfigMaps(i.signing).Delete(i.Context(), i.report().Name, metav1.DeleteOptions{}); err != nil {
					i.Fatal(err)
				}
			},
			fresh: "it has no report about signer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newInstallation(t)
			i.shipRights()
			i.signer()
			kubeconfig := i.kubeconfig(nil, i.token(i.argocd, repoServer))
			test.wrong(i)
			for app, held := range map[string]string{"fresh": test.fresh, "web": test.web} {
				out := i.generate(i.environment(app, kubeconfig, "tmp"))
				if held != "" {
					i.says(out, held)
				} else {
					i.goesOut(out)
				}
				if strings.Contains(out.stderr, "forbid") {
					t.Errorf("%s", out.stderr)
				}
			}
		})
	}
}

// A signer that ends with exit code 1 again and again is judged by what it has reported, or not at all; never by a guess.
func TestASignerThatCrashesAgainAndAgainNeverGrantsWhatItsPolicyDoesNot(t *testing.T) {
	i := newInstallation(t)
	i.shipRights()
	i.signer()
	i.file("repo/app/web.yaml", strings.ReplaceAll(i.workload("web", "shop"), "serviceAccountName: web", "serviceAccountName: other"))
	kubeconfig := i.kubeconfig(nil, i.token(i.argocd, repoServer))
	restarts := int32(0)
	for range 5 {
		i.await("the signer crashes", func() (bool, error) {
			if err := i.Exit(i.Context(), i.signing, "signer-0", "signer", 1); err == nil {
				restarts++
				return true, nil
			}
			return false, nil
		})
		out := i.generate(i.environment("fresh", kubeconfig, "tmp"))
		if out.held == "" {
			t.Errorf("nothing held: %s", out.stderr)
		}
	}
	i.awaitPod("it was restarted each time", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount >= restarts })
}

func (i *installation) awaitPod(what string, check func(*corev1.Pod) bool) {
	i.Helper()
	i.await(what, func() (bool, error) {
		pod, err := i.CoreV1().Pods(i.signing).Get(i.Context(), "signer-0", metav1.GetOptions{})
		return err == nil && check(pod), err
	})
}

func (i *installation) deleteSigner() {
	i.Helper()
	if err := i.CoreV1().Pods(i.signing).Delete(i.Context(), "signer-0", metav1.DeleteOptions{}); err != nil {
		i.Fatal(err)
	}
}

// removeSigner returns when it is gone.
func (i *installation) removeSigner() {
	i.Helper()
	i.deleteSigner()
	i.await("the pod is gone", func() (bool, error) {
		list, err := i.CoreV1().Pods(i.signing).List(i.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})
}

// pendingSigner starts one that no node takes.
func (i *installation) pendingSigner() {
	i.Helper()
	i.apply(strings.Replace(i.replace(signerPod), "spec:\n", "spec:\n  nodeSelector: {nobody: has-it}\n", 1))
}

// stopSigner stops its process, so that it writes nothing and does not end when it is told to: as on a node that is dead.
func (i *installation) stopSigner() {
	i.Helper()
	containers, err := i.Containers(i.Context(), i.signing, "signer-0")
	if err != nil || len(containers) == 0 {
		i.Fatalf("%v, error %v", containers, err)
	}
	if err := syscall.Kill(containers[0].PID, syscall.SIGSTOP); err != nil {
		i.Fatal(err)
	}
	i.Cleanup(func() { _ = i.Exit(context.Background(), i.signing, "signer-0", "signer", 0) })
}

func (i *installation) changeReport(change func(data map[string]string)) {
	i.Helper()
	report := i.report()
	change(report.Data)
	if _, err := i.CoreV1().ConfigMaps(i.signing).Update(i.Context(), report, metav1.UpdateOptions{}); err != nil {
		i.Fatal(err)
	}
}
