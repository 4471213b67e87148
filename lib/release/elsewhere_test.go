package release

import (
	"cmp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// granting is an Application that has the policy object out of sync.
const granting = `
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: signers, namespace: argocd, uid: app-signers, OWNER}
spec:
  project: PROJECT
  destination: {server: https://kubernetes.default.svc, namespace: signer}
  syncPolicy: {AUTOMATED}
status:
  sync: {status: OutOfSync, revision: c9}
  operationState: {phase: PHASE, startedAt: "2026-11-29T12:00:00Z", message: one or more objects failed to apply, operation: {sync: {}}}
  resources:
  - {version: v1, kind: ConfigMap, namespace: signer, name: POLICY, status: OutOfSync}
`

const fleet = `
apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: fleet, namespace: argocd}
spec: {strategy: {type: RollingSync}}
status:
  applicationStatus:
  - {application: web, status: Progressing, step: "1"}
  - {application: signers, status: Waiting, step: "SIGNERS"}
`

const ownedByFleet = "ownerReferences: [{apiVersion: argoproj.io/v1alpha1, kind: ApplicationSet, name: fleet, uid: f}]"

func TestAGrantThatNobodyHasAndAnotherApplicationMayHave(t *testing.T) {
	usual := []string{"OWNER", "labels: {}", "PROJECT", "default", "AUTOMATED", "automated: {}", "PHASE", "Succeeded", "POLICY", "policy", "SIGNERS", "3"}
	// change puts values before the usual ones.
	change := func(pairs ...string) *strings.Replacer { return strings.NewReplacer(append(pairs, usual...)...) }
	for name, c := range map[string]struct {
		values *strings.Replacer
		// web is changed in the held Application.
		web   []string
		after time.Duration
		want  string
	}{
		"it is synced by hand": {values: change("automated: {}", "", "AUTOMATED", ""), want: GrantNotSynced + ": ConfigMap signer/policy of argocd/signers has changes that are not synced, and it is synced by hand: sync it"},
		"it comes in a later step": {values: change("OWNER", ownedByFleet, "AUTOMATED", ""), web: []string{"uid: app-web", "uid: app-web, " + ownedByFleet},
			want: GrantInLaterStep + ": ConfigMap signer/policy of argocd/signers has changes that are not synced, and it comes in step 3 of ApplicationSet fleet, after this Application in step 1: neither ends. Move the grant to an earlier step, or sync argocd/signers by hand"},
		"it is not later than the same step": {values: change("OWNER", ownedByFleet, "AUTOMATED", "", "SIGNERS", "1"), web: []string{"uid: app-web", "uid: app-web, " + ownedByFleet},
			want: GrantNotSynced + ": ConfigMap signer/policy of argocd/signers has changes that are not synced: it waits for its step in ApplicationSet fleet"},
		"its sync failed": {values: change("PHASE", "Failed"), want: GrantNotSynced + ": ConfigMap signer/policy of argocd/signers has changes that are not synced: its sync failed: one or more objects failed to apply"},
		"its windows are closed": {values: change("PROJECT", "frozen"),
			want: GrantNotSynced + ": ConfigMap signer/policy of argocd/signers has changes that are not synced: the sync windows of project frozen keep it until 2000-01-02T00:00:00Z at least"},
		"it is being synced":          {values: change("PHASE", "Running"), want: NobodyGrants + ": ServiceAccount shop/web asks signer example.com/workload, and no policy object grants that"},
		"nothing syncs it":            {values: change(), after: 2 * time.Minute, want: GrantNotSynced + ": ConfigMap signer/policy of argocd/signers has changes that are not synced: nothing syncs it, though it is automated. Sync it"},
		"it has another ConfigMap":    {values: change("POLICY", "other", "AUTOMATED", ""), want: NobodyGrants + ": "},
		"it deploys to other cluster": {values: change("https://kubernetes.default.svc", "https://elsewhere.example", "AUTOMATED", ""), want: NobodyGrants + ": "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(t)
				f.signer(grantsNone)
				f.held("web")
				f.put(applications, strings.NewReplacer(c.web...).Replace(named(heldApplication, "web")))
				f.put(applicationSets, c.values.Replace(fleet))
				f.put(applications, c.values.Replace(granting))
				f.put(projects, `{apiVersion: argoproj.io/v1alpha1, kind: AppProject, metadata: {name: frozen, namespace: argocd},
					spec: {syncWindows: [{kind: deny, schedule: "0 0 * * *", duration: 24h, applications: ["*"]}]}}`)
				f.watch(t, nil)
				after(cmp.Or(c.after, time.Minute) + 5*time.Second)
				if got := f.told(); len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
					t.Errorf("told %q, want %q", got, c.want)
				}
			})
		})
	}
}

func TestAnApplicationInALaterStepIsSaidSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t)
		f.signer(grantsNone)
		f.held("web")
		f.put(applications, strings.Replace(named(heldApplication, "web"), "uid: app-web", "uid: app-web, "+ownedByFleet, 1))
		f.put(applicationSets, strings.Replace(fleet, "SIGNERS", "2", 1))
		f.watch(t, nil)
		after(5 * time.Minute)
		f.put(applications, strings.NewReplacer("OWNER", ownedByFleet, "PROJECT", "default", "AUTOMATED", "", "PHASE", "Succeeded", "POLICY", "policy").Replace(granting))
		after(lookElsewhere)
		got := f.told()
		if len(got) != 2 || !strings.HasPrefix(got[0], GrantInLaterStep) {
			t.Errorf("told %q", got)
		}
	})
}

func TestAGrantInALaterWaveOfTheSameAppOfApps(t *testing.T) {
	const waits = "waiting for healthy state of argoproj.io/Application/web and 1 more resources"
	for name, c := range map[string]struct{ phase, message, want string }{
		"it waits for this one":              {"Running", waits, GrantInLaterWave},
		"it waits for another object":        {"Running", "waiting for healthy state of apps/Deployment/web", NobodyGrants},
		"it waited for this one and gave up": {"Failed", waits, NobodyGrants},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(t)
				f.signer(grantsNone)
				f.held("web")
				f.put(applications, strings.Replace(named(heldApplication, "web"), "uid: app-web", `uid: app-web, annotations: {argocd.argoproj.io/tracking-id: "apps:argoproj.io/Application:argocd/web"}`, 1))
				f.put(applications, `{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {name: apps, namespace: argocd, uid: app-apps},
					spec: {project: default, destination: {server: https://kubernetes.default.svc}},
					status: {sync: {status: OutOfSync}, operationState: {phase: `+c.phase+`, message: "`+c.message+`"}}}`)
				f.watch(t, nil)
				after(65 * time.Second)
				if got := f.told(); len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
					t.Errorf("told %q", got)
				}
			})
		})
	}
}
