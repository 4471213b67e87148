package manifest

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"
)

// ordinaryStream is a stream of n documents of about 300 bytes, as a renderer prints them: Deployments, Services, ConfigMaps.
func ordinaryStream(n int) []byte {
	var out bytes.Buffer
	for i := range n {
		out.WriteString("---\n")
		switch i % 3 {
		case 0:
			fmt.Fprintf(&out, "# Source: web/templates/deployment.yaml\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web-%d\n  namespace: shop\n  labels:\n    app: web\n    app.kubernetes.io/name: web\nspec:\n  replicas: 2\n  selector:\n    matchLabels: {app: web}\n  template:\n    metadata:\n      labels: {app: web}\n    spec:\n      containers:\n      - name: c\n        image: \"registry.example/web:1.2.%d\"\n        ports:\n        - containerPort: 8080\n", i, i)
		case 1:
			fmt.Fprintf(&out, "apiVersion: v1\nkind: Service\nmetadata:\n  name: web-%d\n  namespace: shop\n  annotations:\n    example.com/owner: \"team-%d\"\nspec:\n  selector:\n    app: web\n  ports:\n  - name: http\n    port: 80\n    targetPort: 8080\n    protocol: TCP\n  type: ClusterIP\n", i, i%7)
		default:
			fmt.Fprintf(&out, "apiVersion: v1\ndata:\n  config.json: |\n    {\"number\": %d, \"servers\": [\"a\", \"b\"]}\n  text: some text that goes on for a while, and then ends\n  more: 'quoted text'\nkind: ConfigMap\nmetadata:\n  labels:\n    app: web\n  name: web-%d\n  namespace: shop\n", i, i)
		}
	}
	return out.Bytes()
}

var sizes = []int{1_000, 10_000, 100_000}

func each(b *testing.B, run func(b *testing.B, raw []byte)) {
	for _, n := range sizes {
		raw := ordinaryStream(n)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			run(b, raw)
		})
	}
}

// BenchmarkSteady is all that a stream without a demand costs.
func BenchmarkSteady(b *testing.B) {
	each(b, func(b *testing.B, raw []byte) {
		for b.Loop() {
			s, err := Parse(raw)
			if err != nil {
				b.Fatal(err)
			}
			for _, d := range s.Documents {
				if d.MayHave("podCertificate") {
					b.Fatal("no demand in it")
				}
			}
			if len(s.Bytes()) != len(raw) {
				b.Fatal("changed")
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	each(b, func(b *testing.B, raw []byte) {
		for b.Loop() {
			if _, err := Parse(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func parsed(b *testing.B, raw []byte) *Stream {
	s, err := Parse(raw)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func BenchmarkMayHave(b *testing.B) {
	each(b, func(b *testing.B, raw []byte) {
		s := parsed(b, raw)
		for b.Loop() {
			for _, d := range s.Documents {
				if d.MayHave("podCertificate") {
					b.Fatal("no demand in it")
				}
			}
		}
	})
}

func BenchmarkHeads(b *testing.B) {
	each(b, func(b *testing.B, raw []byte) {
		s := parsed(b, raw)
		for b.Loop() {
			for _, d := range s.Documents {
				if _, err := d.Heads(); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	each(b, func(b *testing.B, raw []byte) {
		s := parsed(b, raw)
		for b.Loop() {
			for _, d := range s.Documents {
				if _, err := d.Decode(); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

// BenchmarkRewrite annotates every document.
func BenchmarkRewrite(b *testing.B) {
	annotations := map[string]string{"argocd.argoproj.io/hook": "Skip", "grantfirst.dev/held": "waits for a grant: example.com/workload, ServiceAccount shop/web"}
	each(b, func(b *testing.B, raw []byte) {
		s := parsed(b, raw)
		edits := make([]Edit, len(s.Documents))
		for i := range edits {
			edits[i] = Edit{Document: i + 1, Annotations: annotations}
		}
		for b.Loop() {
			if _, err := s.Rewrite(edits); err != nil {
				b.Fatal(err)
			}
		}
	})
}
