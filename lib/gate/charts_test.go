package gate_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/gate"
)

// brokerChart is a chart of a registry: what it asks for is up to its values and its version.
func brokerChart(version, serviceAccount string) map[string]string {
	return map[string]string{
		"Chart.yaml":            "apiVersion: v2\nname: broker\nversion: " + version + "\n",
		"values.yaml":           "serviceAccount: " + serviceAccount + "\ntimes: 1\n",
		"templates/deploy.yaml": "# {{ .Values.times }}\n" + strings.Replace(deployment("broker", "{{ .Values.serviceAccount }}", "example.com/workload", "ECDSAP256"), "name: broker", "name: {{ .Release.Name }}", 1),
	}
}

// pack writes an archive as helm package does.
func pack(t *testing.T, dir, name string, files map[string]string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: "broker/" + file, Mode: 0o644, Size: int64(len(files[file]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[file])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// chartApplication deploys the chart into the shop.
func chartApplication(url, version, more string) string {
	return "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: broker, namespace: argocd}\nspec:\n  project: default\n  destination: {server: https://kubernetes.default.svc, namespace: shop}\n" +
		"  source:\n    repoURL: " + url + "\n    chart: broker\n    targetRevision: \"" + version + "\"\n" + more
}

func TestAChartOfARegistryIsRenderedFromItsArchive(t *testing.T) {
	const url = "https://charts.example.com"
	deployed := func(version, more string) func(*repo) {
		return func(r *repo) { r.write(map[string]string{"apps/broker.yaml": chartApplication(url, version, more)}) }
	}
	const asksBroker = "missing example.com/workload shop/broker broker apps/broker.yaml:1 [broker]"
	for name, c := range map[string]struct {
		before, change func(*repo)
		want           []string
	}{
		"A version that asks for what is granted is green":       {before: deployed("1.0.0", ""), change: deployed("1.0.1", "")},
		"A version that asks for more is red":                    {before: deployed("1.0.0", ""), change: deployed("1.1.0", ""), want: []string{asksBroker}},
		"Values that ask for more are red":                       {before: deployed("1.0.0", ""), change: deployed("1.0.0", "    helm: {values: 'serviceAccount: broker'}\n"), want: []string{asksBroker}},
		"A new Application of a chart is judged":                 {change: deployed("1.1.0", ""), want: []string{asksBroker}},
		"A grant that comes with a version ships together":       {before: deployed("1.0.0", ""), change: func(r *repo) { deployed("1.1.0", "")(r); addGrant(r, grant("shop", "broker")) }, want: []string{"ships-together example.com/workload shop/broker broker apps/broker.yaml:1 [broker]"}},
		"A grant that an untouched chart uses is not taken away": {before: deployed("1.0.0", ""), change: func(r *repo) { r.replace(policyFile, grant("shop", "web")+",\n", "") }, want: []string{"revoked-while-used example.com/workload shop/web broker apps/broker.yaml:1 [broker]", "revoked-while-used example.com/workload shop/web web shop/web.yaml:15 [shop]"}},
		"A range is the newest that is there":                    {before: deployed("1.0.0", ""), change: deployed("^1.0", ""), want: []string{asksBroker}},
		"a range with a star":                                    {before: deployed("1.0.0", ""), change: deployed("1.0.*", "")},
		"A pre-release is in a range only by its name":           {before: deployed("1.0.0", ""), change: deployed("*", ""), want: []string{asksBroker}},
		"A version with a v means the one without":               {before: deployed("1.0.0", ""), change: deployed("v1.1.0", ""), want: []string{asksBroker}},
		"An unpacked chart counts by its version":                {before: deployed("1.0.0", ""), change: deployed("2.0.0", ""), want: []string{"missing example.com/workload shop/unpacked broker apps/broker.yaml:1 [broker]"}},
		"A version that is not there says how to get it": {before: deployed("1.0.0", ""), change: deployed("1.2.3", ""), want: []string{
			"unknown apps/broker.yaml:1 [broker] Application broker: this source has changed and is not in this repository: https://charts.example.com chart broker at 1.2.3; it is not in DIR either: helm pull --repo https://charts.example.com broker --version 1.2.3 -d DIR"}},
		"and so does a range that none is in": {before: deployed("1.0.0", ""), change: deployed(">=4 <5", ""), want: []string{
			"unknown apps/broker.yaml:1 [broker] Application broker: this source has changed and is not in this repository: https://charts.example.com chart broker at >=4 <5; it is not in DIR either: helm pull --repo https://charts.example.com broker --version '>=4 <5' -d DIR"}},
		"What was there before is needed too": {before: deployed("0.9.0", ""), change: deployed("1.0.0", ""), want: []string{
			"unknown apps/broker.yaml:1 [broker] Application broker: at the merge base this source is not in this repository: https://charts.example.com chart broker at 0.9.0; it is not in DIR either: helm pull --repo https://charts.example.com broker --version 0.9.0 -d DIR"}},
		"An OCI registry": {change: func(r *repo) {
			r.write(map[string]string{"apps/broker.yaml": chartApplication("registry.example.com/charts", "9.0.0", "")})
		}, want: []string{"unknown apps/broker.yaml:1 [broker] Application broker: this source has changed and is not in this repository: registry.example.com/charts chart broker at 9.0.0; it is not in DIR either: helm pull oci://registry.example.com/charts/broker --version 9.0.0 -d DIR"}},
		"An archive that is another chart than its name says": {change: deployed("3.0.0", ""), want: []string{
			"unknown apps/broker.yaml:1 [broker] Application broker: this source has changed and is not in this repository, and its chart cannot be read: DIR/broker-3.0.0.tgz is chart broker 3.0.1, and not what its name says: pull it again"}},
		"An archive that is none": {change: deployed("5.0.0", ""), want: []string{
			"unknown apps/broker.yaml:1 [broker] Application broker: this source has changed and is not in this repository, and its chart cannot be read: DIR/broker-5.0.0.tgz: …"}},
		"A chart that cannot be rendered": {before: deployed("1.0.0", ""), change: deployed("1.0.0", "    helm: {values: 'times: {'}\n"), want: []string{
			"unknown apps/broker.yaml:1 [broker] Application broker (chart broker-1.0.0) cannot be rendered: …"}},
		"Another registry may have another chart of that name": {before: deployed("1.0.0", ""), change: func(r *repo) {
			r.write(map[string]string{"apps/broker.yaml": chartApplication("https://mirror.example.com", "1.0.0", "")})
		}, want: []string{"unknown apps/broker.yaml:1 [broker] Application broker (chart broker-1.0.0): chart broker-1.0.0 came from charts.example.com/broker and comes from mirror.example.com/broker now, and DIR has one of them: …"}},
		"and so may another path of the same registry": {before: func(r *repo) {
			r.write(map[string]string{"apps/broker.yaml": strings.Replace(chartApplication("registry.example.com", "1.0.0", ""), "chart: broker", "chart: a/broker", 1)})
		}, change: func(r *repo) { r.replace("apps/broker.yaml", "chart: a/broker", "chart: b/broker") }, want: []string{
			"unknown apps/broker.yaml:1 [broker] Application broker (chart broker-1.0.0): chart broker-1.0.0 came from registry.example.com/a/broker and comes from registry.example.com/b/broker now, and DIR has one of them: …"}},
		"A symlink may lead to what is committed": {change: deployed("7.0.0", ""), want: []string{
			"unknown apps/broker.yaml:1 [broker] Application broker: this source has changed and is not in this repository, and its chart cannot be read: DIR/broker-7.0.0.tgz is a symlink: put the chart itself there"}},
		"and two of them at once cannot be told apart": {change: func(r *repo) {
			deployed("1.0.0", "")(r)
			r.write(map[string]string{"apps/broker2.yaml": strings.Replace(chartApplication("https://mirror.example.com", "1.0.0", ""), "name: broker,", "name: broker2,", 1)})
		}, want: []string{"unknown apps/broker2.yaml:1 [broker2] Application broker2 (chart broker-1.0.0) cannot be rendered: chart broker-1.0.0 comes from charts.example.com/broker and from mirror.example.com/broker here, and DIR has one of them"}},
		"Value files of this repository": {before: deployed("1.0.0", ""), change: func(r *repo) {
			r.write(map[string]string{"env/broker.yaml": "serviceAccount: broker\n", "apps/broker.yaml": strings.Replace(chartApplication(url, "1.0.0", ""), "  source:\n    repoURL: "+url+"\n    chart: broker\n    targetRevision: \"1.0.0\"\n",
				"  sources:\n  - {repoURL: "+url+", chart: broker, targetRevision: 1.0.0, helm: {valueFiles: [$v/env/broker.yaml]}}\n  - {repoURL: https://git.example.com/shop.git, ref: v}\n", 1)})
		}, want: []string{asksBroker}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for version, account := range map[string]string{"1.0.0": "web", "1.0.1": "web", "1.1.0": "broker", "2.0.0-rc.1": "web"} {
				pack(t, dir, "broker-"+version+".tgz", brokerChart(version, account))
			}
			if strings.Contains(name, "archive that is") {
				pack(t, dir, "broker-3.0.0.tgz", brokerChart("3.0.1", "web"))
				if err := os.WriteFile(filepath.Join(dir, "broker-5.0.0.tgz"), []byte("no archive"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if strings.Contains(name, "symlink") {
				other := t.TempDir()
				pack(t, other, "broker.tgz", brokerChart("7.0.0", "web"))
				if err := os.Symlink(filepath.Join(other, "broker.tgz"), filepath.Join(dir, "broker-7.0.0.tgz")); err != nil {
					t.Fatal(err)
				}
			}
			if strings.Contains(name, "unpacked") {
				for file, text := range brokerChart("2.0.0", "unpacked") {
					if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, "broker", file)), 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(filepath.Join(dir, "broker", file), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			r := changedShop(t, c.before, c.change)
			g := newGate(t, r)
			var err error
			if g.Charts, err = gate.OpenCharts(dir); err != nil {
				t.Fatal(err)
			}
			report := check(t, g, "main", "change")
			for i := range report.Findings {
				report.Findings[i].Message = strings.ReplaceAll(report.Findings[i].Message, dir, "DIR")
			}
			want(t, report, c.want...)
		})
	}
}

func TestAChartThatBothSidesHaveIsRenderedOnce(t *testing.T) {
	dir := t.TempDir()
	pack(t, dir, "broker-1.0.0.tgz", brokerChart("1.0.0", "web"))
	r := shop(t)
	r.write(map[string]string{"apps/broker.yaml": chartApplication("https://charts.example.com", "1.0.0", "")})
	r.commit("broker")
	r.branch("change", func() { r.replace("shop/web.yaml", "app:1", "app:2") })
	shared := check(t, newGate(t, r), "main", "change")
	g := newGate(t, r)
	var err error
	if g.Charts, err = gate.OpenCharts(dir); err != nil {
		t.Fatal(err)
	}
	report := check(t, g, "main", "change")
	want(t, report)
	if report.Shared != shared.Shared+1 || report.Rendered != shared.Rendered {
		t.Errorf("%d renders and %d shared roots, want %d and %d", report.Rendered, report.Shared, shared.Rendered, shared.Shared+1)
	}
}

func TestWhatIsElsewhereIsPassedOverByName(t *testing.T) {
	r := shop(t)
	set := "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: everywhere, namespace: argocd}\nspec:\n  generators: [{clusters: {}}]\n  template:\n    metadata: {name: '{{name}}-app'}\n" +
		"    spec: {project: default, source: {repoURL: https://git.example.com/shop.git, path: shop}, destination: {name: '{{name}}', namespace: shop}}\n"
	r.write(map[string]string{"sets/clusters.yaml": set, "sets/listed.yaml": "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: listed, namespace: argocd}\nspec:\n  generators: [{list: {elements: [{v: '1.0.0'}]}}]\n  template:\n    metadata: {name: 'one-app'}\n" +
		"    spec: {project: default, source: {repoURL: https://charts.example.com, chart: one, targetRevision: '{{v}}'}, destination: {name: in-cluster, namespace: shop}}\n"})
	r.commit("sets")
	r.branch("change", func() {
		r.write(map[string]string{"apps/broker.yaml": chartApplication("https://charts.example.com", "1.0.0", "")})
		r.replace("sets/listed.yaml", "1.0.0", "1.0.1")
	})
	for name, c := range map[string]struct {
		ignore []string
		left   int
	}{
		"nothing": {nil, 3}, "an Application": {[]string{"broker"}, 2}, "a pattern": {[]string{"bro*"}, 2}, "another one": {[]string{"other", "x*"}, 3},
		"an ApplicationSet": {[]string{"everywhere"}, 2}, "the ApplicationSet that an Application is of": {[]string{"listed"}, 2}, "with a namespace": {[]string{"argocd/broker", "argocd/ever*"}, 1},
		"with another namespace": {[]string{"other/*"}, 3}, "all": {[]string{"*"}, 0}, "several": {[]string{"broker", "everywhere", "one-*"}, 0},
	} {
		g := newGate(t, r)
		g.Ignore = c.ignore
		report := check(t, g, "main", "change")
		if got := lines(report); len(got) != c.left || len(report.Elsewhere) != 3-c.left {
			t.Errorf("%s: found\n  %s\nand passed over %q; want %d", name, strings.Join(got, "\n  "), report.Elsewhere, c.left)
		}
	}
}

func TestAnApplicationSetThatHasChangedIsNotPassedOver(t *testing.T) {
	r := shop(t)
	r.write(map[string]string{"sets/clusters.yaml": "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: everywhere, namespace: argocd}\nspec:\n  generators: [{clusters: {}}]\n  template:\n    metadata: {name: '{{name}}-app'}\n" +
		"    spec: {project: default, source: {repoURL: https://git.example.com/shop.git, path: shop}, destination: {name: '{{name}}', namespace: shop}}\n"})
	r.commit("sets")
	r.branch("change", func() { r.replace("sets/clusters.yaml", "namespace: shop}", "namespace: evil}") })
	r.branch("comment", func() { r.replace("sets/clusters.yaml", "spec:\n  gen", "spec: # of all\n  gen") })
	g := newGate(t, r)
	g.Ignore = []string{"everywhere"}
	if report := check(t, g, "main", "change"); len(report.Findings) == 0 || report.Findings[0].Verdict != gate.Unknown {
		t.Errorf("%q: passed over though it has changed", lines(report))
	}
	if report := check(t, g, "main", "comment"); len(report.Findings) > 0 {
		t.Errorf("%q: not passed over though it is the same", lines(report))
	}
}
