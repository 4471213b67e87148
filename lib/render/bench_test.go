//go:build unix

package render

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
)

// bigKustomization is an overlay over n Deployments.
func bigKustomization(n int) fstest.MapFS {
	tree := archive("-- app/kustomization.yaml --\nnamePrefix: x-\nlabels: [{pairs: {a: b}}]\nresources: [../base]\n")
	list := "resources:\n"
	for i := range n {
		name := fmt.Sprintf("d%04d.yaml", i)
		list += "- " + name + "\n"
		tree["base/"+name] = &fstest.MapFile{Data: fmt.Appendf(nil, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d%d}\nspec:\n  selector: {matchLabels: {app: d%d}}\n  template:\n    metadata: {labels: {app: d%d}}\n    spec: {containers: [{name: c, image: c}]}\n", i, i, i)}
	}
	tree["base/kustomization.yaml"] = &fstest.MapFile{Data: []byte(list)}
	return tree
}

// beside runs this package and the bare library in turn on the same input, and reports the CPU time of each and what
// this package adds, which must stay below 5 %. In turn and in CPU time, because other work on the machine comes and goes.
func beside(b *testing.B, render, bare func()) {
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var own, other time.Duration
	for b.Loop() {
		runtime.GC()
		start := cpu()
		bare()
		runtime.GC()
		middle := cpu()
		render()
		runtime.GC()
		other += middle - start
		own += cpu() - middle
	}
	b.ReportMetric(float64(own.Microseconds())/float64(b.N)/1000, "cpu-ms/op")
	b.ReportMetric(float64(other.Microseconds())/float64(b.N)/1000, "bare-cpu-ms/op")
	b.ReportMetric(100*(float64(own)/float64(other)-1), "%added")
}

func BenchmarkKustomize(b *testing.B) {
	repo, dir := onDisk(b, bigKustomization(200))
	beside(b, func() {
		if _, err := Render(repo, "app", Options{}); err != nil {
			b.Fatal(err)
		}
	}, func() { build(b, filepath.Join(dir, "app")) })
}

func BenchmarkHelm(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "repo")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "repo"))); err != nil {
		b.Fatal(err)
	}
	for i := range 50 {
		text, err := os.ReadFile(filepath.Join(dir, "charts/shop/templates/deployment.yaml"))
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("charts/shop/templates/more%d.yaml", i)), text, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	repo := opened(b, dir)
	beside(b, func() {
		if _, err := Render(repo, "charts/shop", Options{}); err != nil {
			b.Fatal(err)
		}
	}, func() { bareHelm(b, filepath.Join(dir, "charts", "shop")) })
}

func bareHelm(b *testing.B, dir string) {
	c, err := loader.Load(dir)
	if err != nil {
		b.Fatal(err)
	}
	values := map[string]any{}
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		b.Fatal(err)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	top, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "x", Namespace: "x"}, capabilities)
	if err != nil {
		b.Fatal(err)
	}
	files, err := engine.Render(c, top)
	if err != nil {
		b.Fatal(err)
	}
	delete(files, "shop/templates/NOTES.txt")
	_, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		b.Fatal(err)
	}
	var out bytes.Buffer
	for _, m := range manifests {
		fmt.Fprintf(&out, "---\n# Source: %s\n%s\n", m.Name, m.Content)
	}
}

func BenchmarkDirectory(b *testing.B) {
	tree := fstest.MapFS{}
	line := bytes.Repeat([]byte("  key: value of some length\n"), 400)
	for i := range 1000 {
		tree[fmt.Sprintf("app/%04d.yaml", i)] = &fstest.MapFile{Data: append([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n"), line...)}
	}
	repo, _ := onDisk(b, tree)
	commit := committed(b, tree)
	for _, c := range []struct {
		name string
		repo fs.FS
	}{{"working copy", repo}, {"commit", commit}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				r, err := Render(c.repo, "app", Options{})
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(r.Stream)))
			}
		})
	}
}
