package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// crowd is n demands, one for each grant of the policies below.
func crowd(n int) []*demand.Demand {
	all := make([]*demand.Demand, n)
	for i := range all {
		all[i] = ask(func(d *demand.Demand) { d.Namespace = fmt.Sprintf("team-%d", i) })
	}
	return all
}

// BenchmarkGrantsTimesDemands parses a policy of n grants and decides n demands. All grants are for one ServiceAccount, which is the
// hardest for an index: exact are namespaces, prefixes are namespaces with a *, nested are prefixes of each other.
func BenchmarkGrantsTimesDemands(b *testing.B) {
	namespaces := map[string]func(i int) string{
		"exact":    func(i int) string { return fmt.Sprintf("team-%d", i) },
		"prefixes": func(i int) string { return fmt.Sprintf("team-%d*", i) },
		"nested":   func(i int) string { return strings.Repeat("a", i%62) + fmt.Sprintf("%d*", i/62) },
	}
	for _, format := range []string{FormatPodCertSigner, FormatGrants} {
		for _, shape := range []string{"exact", "prefixes", "nested"} {
			for _, n := range []int{1_000, 10_000} {
				b.Run(fmt.Sprintf("%s/%s/%d", format, shape, n), func(b *testing.B) {
					entries := make([]string, n)
					for i := range entries {
						if format == FormatGrants {
							entries[i] = fmt.Sprintf("- {namespace: %s, serviceAccount: web}", namespaces[shape](i))
						} else {
							entries[i] = fmt.Sprintf(`{"namespace": %q, "serviceAccount": "web", "usage": "client"}`, namespaces[shape](i))
						}
					}
					text := strings.Join(entries, "\n")
					if format == FormatPodCertSigner {
						text = signerPolicy(entries...)
					}
					demands := crowd(n)
					b.ReportAllocs()
					for b.Loop() {
						p := mustParse(b, format, "", text)
						for _, d := range demands {
							if a := p.Decide(d); shape != "nested" && a.Decision != Granted {
								b.Fatal(a)
							}
						}
					}
				})
			}
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	policies := map[string]Policy{
		FormatPodCertSigner: mustParse(b, FormatPodCertSigner, "", signerPolicy(`{"namespace": "s*", "serviceAccount": "web", "usage": "client"}`)),
		FormatGrants:        mustParse(b, FormatGrants, "", "- {namespace: s*, serviceAccount: web}"),
		FormatCEL:           mustParse(b, FormatCEL, "demand.serviceAccount in policy[demand.namespace]", "shop: [web]"),
	}
	for _, format := range []string{FormatPodCertSigner, FormatGrants, FormatCEL} {
		b.Run(format, func(b *testing.B) {
			d := ask(nil)
			b.ReportAllocs()
			for b.Loop() {
				if a := policies[format].Decide(d); a.Decision != Granted {
					b.Fatal(a)
				}
			}
		})
	}
}
