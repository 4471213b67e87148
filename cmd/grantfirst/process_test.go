package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// BenchmarkProcess measures whole processes, from start to exit, on streams from standard input: wall time, throughput, CPU time of all
// cores and peak memory. docs/performance.md keeps the figures.
func BenchmarkProcess(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "grantfirst")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	quickstart := func(name string) string { return filepath.Join("..", "..", "examples", "quickstart", name) }
	flags := func(live string) []string {
		return []string{"generate", "--config", quickstart("config.yaml"), "--live", quickstart(live), "--namespace", "shop", "--app", "web", "-"}
	}
	for _, bench := range []struct {
		name  string
		write func(io.Writer)
		args  []string
	}{
		{"one document", small(1, 0), flags("before.yaml")},
		{"4000 documents, one demand, nothing held", small(4000, 4000), flags("after.yaml")},
		{"4000 documents, one demand, all held", small(4000, 4000), flags("before.yaml")},
		{"1k documents, 1 % demand", small(1_000, 100), flags("after.yaml")},
		{"10k documents, 1 % demand", small(10_000, 100), flags("after.yaml")},
		{"100k documents, 1 % demand", small(100_000, 100), flags("after.yaml")},
		{"100k documents, no demand", small(100_000, 0), flags("after.yaml")},
		{"100k documents, all held", small(100_000, 100), flags("before.yaml")},
		{"1000 documents of 100 kB, no demand", large(1000, 100_000), flags("after.yaml")},
	} {
		b.Run(bench.name, func(b *testing.B) {
			// The input is never in memory here: a process starts with the peak of the one that started it.
			input := filepath.Join(b.TempDir(), "input.yaml")
			file, err := os.Create(input)
			if err != nil {
				b.Fatal(err)
			}
			bench.write(file)
			size, err := file.Seek(0, io.SeekCurrent)
			if err != nil || file.Close() != nil {
				b.Fatal(err)
			}
			b.SetBytes(size)
			var cpu, peak int64
			for b.Loop() {
				stdin, err := os.Open(input)
				if err != nil {
					b.Fatal(err)
				}
				cmd := exec.Command(binary, bench.args...)
				var stderr strings.Builder
				cmd.Stdin, cmd.Stderr = stdin, &stderr
				if err := cmd.Run(); err != nil {
					b.Fatalf("%v: %s", err, stderr.String())
				}
				if err := stdin.Close(); err != nil {
					b.Fatal(err)
				}
				usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
				cpu += usage.Utime.Nano() + usage.Stime.Nano()
				peak = max(peak, usage.Maxrss)
			}
			b.ReportMetric(float64(cpu)/float64(b.N)/1e6, "cpu-ms/op")
			b.ReportMetric(float64(peak)/1024, "peak-MB")
			b.ReportMetric(float64(size)/1e6, "input-MB")
		})
	}
}

// small writes n ConfigMaps of 280 bytes, and after each every'th of them (0: none) a Deployment with a demand.
func small(n, every int) func(io.Writer) {
	return func(w io.Writer) {
		out := bufio.NewWriter(w)
		defer out.Flush()
		for i := range n {
			fmt.Fprintf(out, "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings-%06d\n  namespace: shop\n  labels:\n    app.kubernetes.io/name: settings\n"+
				"data:\n  listen: \":8443\"\n  upstream: https://backend.shop.svc:8443/v1\n  note: |\n    one of many, made to be read as fast\n    as the disk allows\n", i)
			if every > 0 && i%every == every-1 {
				fmt.Fprintf(out, "---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web-%06d\n  namespace: shop\nspec:\n  template:\n    spec:\n      serviceAccountName: web\n"+
					"      containers:\n      - name: web\n        image: registry.example/web:1\n      volumes:\n      - name: tls\n        projected:\n          sources:\n"+
					"          - podCertificate:\n              signerName: example.com/workload\n              keyType: ECDSAP256\n              credentialBundlePath: tls.pem\n", i)
			}
		}
	}
}

// large writes n ConfigMaps that hold size bytes each.
func large(n, size int) func(io.Writer) {
	return func(w io.Writer) {
		out := bufio.NewWriter(w)
		defer out.Flush()
		line := "    " + strings.Repeat("x", 79) + "\n"
		for i := range n {
			fmt.Fprintf(out, "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: dashboard-%d\ndata:\n  dashboard.json: |\n", i)
			for range size / len(line) {
				out.WriteString(line)
			}
		}
	}
}
