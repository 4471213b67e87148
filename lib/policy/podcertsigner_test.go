package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/grantfirst/grantfirst/lib/demand"
)

// signerPolicy is a valid policy with these grants.
func signerPolicy(grants ...string) string {
	return `{"signerName": "example.com/workload", "trustDomain": "example.com", "dnsNamesAnnotation": "example.com/dns-names",
"lifetime": "24h", "refreshAt": 0.66, "keyTypes": ["ECDSAP256", "ED25519"], "grants": [` + strings.Join(grants, ",") + `]}`
}

func TestPodCertSignerDecides(t *testing.T) {
	const (
		client = `{"namespace": "shop", "serviceAccount": "web", "usage": "client"}`
		server = `{"namespace": "shop", "serviceAccount": "web", "usage": "server", "dnsNames": ["web.shop.svc", "web.shop.svc.cluster.local"]}`
		both   = `{"namespace": "shop", "serviceAccount": "web", "usage": "server-and-client", "dnsNames": ["web.shop.svc"]}`
		family = `{"namespace": "sh*", "serviceAccount": "web", "usage": "client"}`
		wider  = `{"namespace": "s*", "serviceAccount": "web", "usage": "server", "dnsNames": ["wider.shop.svc"]}`
	)
	dns := func(names string) func(*demand.Demand) {
		return func(d *demand.Demand) { d.UserAnnotations = map[string]string{"example.com/dns-names": names} }
	}
	for name, c := range map[string]struct {
		grants  []string
		ask     func(*demand.Demand)
		want    Decision
		reason  string
		message string
	}{
		"a grant for namespace and ServiceAccount is enough":           {[]string{client}, nil, Granted, "", ""},
		"a policy without grants refuses":                              {nil, nil, NotGranted, NoGrant, "shop/web"},
		"another ServiceAccount has no grant":                          {[]string{client}, func(d *demand.Demand) { d.ServiceAccount = "db" }, NotGranted, NoGrant, "shop/db"},
		"a ServiceAccount is never a prefix":                           {[]string{client}, func(d *demand.Demand) { d.ServiceAccount = "web-2" }, NotGranted, NoGrant, ""},
		"another namespace has no grant":                               {[]string{client}, func(d *demand.Demand) { d.Namespace = "shop-2" }, NotGranted, NoGrant, ""},
		"a prefix grants the namespaces that begin with it":            {[]string{family}, func(d *demand.Demand) { d.Namespace = "shed" }, Granted, "", ""},
		"a prefix grants the namespace that it is itself":              {[]string{family}, func(d *demand.Demand) { d.Namespace = "sh" }, Granted, "", ""},
		"a prefix grants no namespace that is shorter":                 {[]string{family}, func(d *demand.Demand) { d.Namespace = "s" }, NotGranted, NoGrant, ""},
		"an exact namespace wins over a prefix before it":              {[]string{wider, client}, dns("wider.shop.svc"), NotGranted, DNSNameNotGranted, "is for a client"},
		"an exact namespace wins over a prefix after it":               {[]string{client, wider}, dns("wider.shop.svc"), NotGranted, DNSNameNotGranted, "is for a client"},
		"of two prefixes the first in the file wins, longer or not":    {[]string{wider, family}, dns("wider.shop.svc"), Granted, "", ""},
		"of two prefixes the first in the file wins, shorter or not":   {[]string{family, wider}, dns("wider.shop.svc"), NotGranted, DNSNameNotGranted, "is for a client"},
		"of two grants for the same namespace the first wins":          {[]string{server, client}, dns("web.shop.svc"), Granted, "", ""},
		"of two grants for the same prefix the first wins":             {[]string{wider, strings.Replace(wider, "wider.", "other.", 1)}, dns("other.shop.svc"), NotGranted, DNSNameNotGranted, ""},
		"a prefix of another ServiceAccount does not count":            {[]string{strings.Replace(family, "web", "db", 1)}, nil, NotGranted, NoGrant, ""},
		"no grant comes before an unsupported key type":                {nil, func(d *demand.Demand) { d.KeyType = "RSA3072" }, NotGranted, NoGrant, ""},
		"a key type outside the policy's list is refused":              {[]string{client}, func(d *demand.Demand) { d.KeyType = "RSA3072" }, NotGranted, UnsupportedKeyType, "ECDSAP256, ED25519"},
		"every key type of the list will do":                           {[]string{client}, func(d *demand.Demand) { d.KeyType = "ED25519" }, Granted, "", ""},
		"a missing key type is refused":                                {[]string{client}, func(d *demand.Demand) { d.KeyType = "" }, NotGranted, UnsupportedKeyType, ""},
		"an unsupported key type comes before a DNS name not granted":  {[]string{client}, func(d *demand.Demand) { dns("a.shop.svc")(d); d.KeyType = "RSA3072" }, NotGranted, UnsupportedKeyType, ""},
		"a server gets the names it asks for":                          {[]string{server}, dns("web.shop.svc.cluster.local, web.shop.svc"), Granted, "", ""},
		"a server that asks for no names gets all":                     {[]string{server}, nil, Granted, "", ""},
		"a server that asks for empty names gets all":                  {[]string{server}, dns(" , ,"), Granted, "", ""},
		"one name that is not granted denies the whole request":        {[]string{server}, dns("web.shop.svc,db.shop.svc"), NotGranted, DNSNameNotGranted, `"db.shop.svc"`},
		"a name is compared with its case":                             {[]string{server}, dns("WEB.shop.svc"), NotGranted, DNSNameNotGranted, ""},
		"a server and client gets the names it asks for":               {[]string{both}, dns("web.shop.svc"), Granted, "", ""},
		"a client that asks for a name is denied":                      {[]string{client}, dns("web.shop.svc"), NotGranted, DNSNameNotGranted, "is for a client"},
		"a client that asks for empty names is granted":                {[]string{client}, dns(" ,"), Granted, "", ""},
		"an annotation of another key asks for nothing":                {[]string{client}, func(d *demand.Demand) { d.UserAnnotations = map[string]string{"example.com/other": "x"} }, Granted, "", ""},
		"a lifetime of an hour is granted":                             {[]string{client}, func(d *demand.Demand) { d.MaxExpirationSeconds = 3600 }, Granted, "", ""},
		"a lifetime below an hour is refused":                          {[]string{client}, func(d *demand.Demand) { d.MaxExpirationSeconds = 3599 }, NotGranted, InvalidMaxExpiration, "3599"},
		"a lifetime beyond the policy's is cut, not refused":           {[]string{client}, func(d *demand.Demand) { d.MaxExpirationSeconds = 7862400 }, Granted, "", ""},
		"a DNS name not granted comes before a lifetime below an hour": {[]string{client}, func(d *demand.Demand) { dns("a.shop.svc")(d); d.MaxExpirationSeconds = 60 }, NotGranted, DNSNameNotGranted, ""},
		"a request to another signer is not answered, neither way":     {[]string{client}, func(d *demand.Demand) { d.SignerName = "example.com/other" }, Unknown, "", "example.com/workload"},
		"a signer name is not a prefix":                                {[]string{client}, func(d *demand.Demand) { d.SignerName = "example.com/workload-2" }, Unknown, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := mustParse(t, FormatPodCertSigner, "", signerPolicy(c.grants...)).Decide(ask(c.ask))
			expect(t, a, c.want, c.reason, c.message)
		})
	}
}

func TestPodCertSignerDoesNotStart(t *testing.T) {
	grant := func(s string) string { return signerPolicy(s) }
	change := func(old, new string) string {
		text := signerPolicy()
		if !strings.Contains(text, old) {
			t.Fatalf("%s is not in the policy", old)
		}
		return strings.Replace(text, old, new, 1)
	}
	for name, c := range map[string]struct{ text, want string }{
		"with no text":                                   {"", "EOF"},
		"with YAML":                                      {"signerName: example.com/workload\n", "invalid character"},
		"with a byte order mark":                         {"\ufeff" + signerPolicy(), "invalid character"},
		"with null":                                      {"null", "signerName is empty"},
		"with a list":                                    {"[]", "cannot unmarshal"},
		"with an unknown key":                            {change(`"grants"`, `"allowAll": true, "grants"`), `unknown field "allowAll"`},
		"with an unknown key in a grant":                 {grant(`{"namespace": "a", "serviceAccount": "b", "usage": "client", "cluster": "c"}`), `unknown field "cluster"`},
		"with a second object":                           {signerPolicy() + " {}", "something follows"},
		"with a word after the object":                   {signerPolicy() + "x", "something follows"},
		"without signerName":                             {change(`"example.com/workload"`, `""`), "signerName is empty"},
		"without trustDomain":                            {change(`"trustDomain": "example.com"`, `"trustDomain": ""`), "trustDomain"},
		"with a path in trustDomain":                     {change(`"trustDomain": "example.com"`, `"trustDomain": "example.com/x"`), "trustDomain"},
		"with a port in trustDomain":                     {change(`"trustDomain": "example.com"`, `"trustDomain": "example.com:80"`), "trustDomain"},
		"with an annotation key without domain":          {change(`"example.com/dns-names"`, `"dns-names"`), "dnsNamesAnnotation"},
		"with an annotation key whose domain has no dot": {change(`"example.com/dns-names"`, `"example/dns-names"`), "dnsNamesAnnotation"},
		"with an annotation key without name":            {change(`"example.com/dns-names"`, `"example.com/"`), "dnsNamesAnnotation"},
		"with a lifetime below an hour":                  {change(`"24h"`, `"59m59s"`), "less than an hour"},
		"with a lifetime that is a number":               {change(`"24h"`, `86400`), "in quotes"},
		"with a lifetime in days":                        {change(`"24h"`, `"1d"`), "duration"},
		"without lifetime":                               {change(`"lifetime": "24h",`, ``), "less than an hour"},
		"with refreshAt too early":                       {change(`0.66`, `0.16`), "refreshAt"},
		"with refreshAt too late":                        {change(`0.66`, `0.84`), "refreshAt"},
		"with refreshAt in quotes":                       {change(`0.66`, `"0.66"`), "refreshAt"},
		"without key types":                              {change(`["ECDSAP256", "ED25519"]`, `[]`), "keyTypes is empty"},
		"with an unknown key type":                       {change(`"ED25519"`, `"DSA1024"`), `"DSA1024"`},
		"with a grant without namespace":                 {grant(`{"serviceAccount": "b", "usage": "client"}`), "grants[0]: namespace is empty"},
		"with a bare * for namespace":                    {grant(`{"namespace": "*", "serviceAccount": "b", "usage": "client"}`), "all of them"},
		"with a * inside a namespace":                    {grant(`{"namespace": "a*b", "serviceAccount": "b", "usage": "client"}`), "last character"},
		"with two * at the end of a namespace":           {grant(`{"namespace": "a**", "serviceAccount": "b", "usage": "client"}`), "last character"},
		"with a grant without ServiceAccount":            {grant(`{"namespace": "a", "usage": "client"}`), "serviceAccount"},
		"with a * in a ServiceAccount":                   {grant(`{"namespace": "a", "serviceAccount": "b*", "usage": "client"}`), "serviceAccount"},
		"with a grant without usage":                     {grant(`{"namespace": "a", "serviceAccount": "b"}`), "usage"},
		"with an unknown usage":                          {grant(`{"namespace": "a", "serviceAccount": "b", "usage": "both"}`), "usage"},
		"with DNS names for a client":                    {grant(`{"namespace": "a", "serviceAccount": "b", "usage": "client", "dnsNames": ["b.a.svc"]}`), "no dnsNames"},
		"with a server without DNS names":                {grant(`{"namespace": "a", "serviceAccount": "b", "usage": "server"}`), "needs dnsNames"},
		"with a server and client without DNS names":     {grant(`{"namespace": "a", "serviceAccount": "b", "usage": "server-and-client", "dnsNames": []}`), "needs dnsNames"},
		"with a public DNS name":                         {grant(`{"namespace": "a", "serviceAccount": "b", "usage": "server", "dnsNames": ["example.com"]}`), "under .svc"},
		"with a DNS name that is a suffix alone":         {grant(`{"namespace": "a", "serviceAccount": "b", "usage": "server", "dnsNames": [".svc"]}`), "not a DNS name"},
		"with a wildcard for a DNS name":                 {grant(`{"namespace": "a", "serviceAccount": "b", "usage": "server", "dnsNames": ["*.a.svc"]}`), "not a DNS name"},
		"with a DNS name in upper case":                  {grant(`{"namespace": "a", "serviceAccount": "b", "usage": "server", "dnsNames": ["B.a.svc"]}`), "not a DNS name"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Compile(FormatPodCertSigner, "")
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.Parse([]byte(c.text))
			expectError(t, err, c.want)
		})
	}
}

func TestPodCertSignerReadsWhatTheSignerReads(t *testing.T) {
	const grant = `{"namespace": "shop", "serviceAccount": "web", "usage": "client"}`
	for name, text := range map[string]string{
		"keys in any case":                       strings.Replace(signerPolicy(grant), `"grants"`, `"Grants"`, 1),
		"the last of repeated keys":              strings.Replace(signerPolicy(grant), `"grants"`, `"grants": [], "grants"`, 1),
		"white space after the object":           signerPolicy(grant) + "\n\t ",
		"a stray bracket after the object":       signerPolicy(grant) + "]",
		"names under both suffixes of a cluster": signerPolicy(grant, `{"namespace": "a", "serviceAccount": "b", "usage": "server", "dnsNames": ["b.svc", "b.svc.cluster.local"]}`),
		"an organisational unit":                 signerPolicy(strings.Replace(grant, "}", `, "ou": "team"}`, 1)),
		"the shortest lifetime":                  strings.Replace(signerPolicy(grant), "24h", "1h", 1),
		"refreshAt at its lower end":             strings.Replace(signerPolicy(grant), "0.66", "0.17", 1),
		"refreshAt at its upper end":             strings.Replace(signerPolicy(grant), "0.66", "0.83", 1),
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, mustParse(t, FormatPodCertSigner, "", text).Decide(ask(nil)), Granted, "", "")
		})
	}
}

// naive decides as slowly and as literally as FIELD.md says it, without an index.
func (p *podCertSigner) naive(d *demand.Demand) (Decision, string) {
	if d.SignerName != p.SignerName {
		return Unknown, ""
	}
	var grant *podCertSignerGrant
	for i := range p.Grants {
		g := &p.Grants[i]
		if g.ServiceAccount != d.ServiceAccount {
			continue
		}
		if g.Namespace == d.Namespace {
			grant = g
			break
		}
		if strings.HasSuffix(g.Namespace, "*") && strings.HasPrefix(d.Namespace, strings.TrimSuffix(g.Namespace, "*")) && grant == nil {
			grant = g
		}
	}
	if grant == nil {
		return NotGranted, NoGrant
	}
	if !slices.Contains(p.KeyTypes, d.KeyType) {
		return NotGranted, UnsupportedKeyType
	}
	for _, n := range strings.Split(d.UserAnnotations[p.DNSNamesAnnotation], ",") {
		if n = strings.TrimSpace(n); n != "" && (grant.Usage == "client" || !slices.Contains(grant.DNSNames, n)) {
			return NotGranted, DNSNameNotGranted
		}
	}
	if d.MaxExpirationSeconds > 0 && d.MaxExpirationSeconds < 3600 {
		return NotGranted, InvalidMaxExpiration
	}
	return Granted, ""
}

func FuzzPodCertSigner(f *testing.F) {
	f.Add(signerPolicy(`{"namespace": "shop", "serviceAccount": "web", "usage": "client"}`), "shop", "web", "ECDSAP256", "", int64(86400))
	f.Add(signerPolicy(`{"namespace": "s*", "serviceAccount": "web", "usage": "server", "dnsNames": ["a.svc", "b.svc"]}`), "shop", "web", "ED25519", "a.svc, b.svc", int64(0))
	f.Add(signerPolicy(`{"namespace": "shop*", "serviceAccount": "web", "usage": "client"}`, `{"namespace": "s*", "serviceAccount": "web", "usage": "client"}`), "shop*", "web", "", "x", int64(5))
	format, err := Compile(FormatPodCertSigner, "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, namespace, serviceAccount, keyType, names string, seconds int64) {
		parsed, err := format.Parse([]byte(text))
		if err != nil {
			return
		}
		p := parsed.(*podCertSigner)
		d := &demand.Demand{SignerName: p.SignerName, Namespace: namespace, ServiceAccount: serviceAccount, KeyType: keyType,
			MaxExpirationSeconds: seconds, UserAnnotations: map[string]string{p.DNSNamesAnnotation: names}}
		decision, reason := p.naive(d)
		if a := p.Decide(d); a.Decision != decision || a.Reason != reason {
			t.Errorf("got %+v, want %s %s", a, decision, reason)
		}
	})
}

// FuzzPodCertSignerLookup makes many overlapping grants out of few letters, which random JSON never would.
func FuzzPodCertSignerLookup(f *testing.F) {
	f.Add("a*x ab*x ab y b*y abc*x", "abc")
	f.Add("aab*x aa*y a*x aabb*x aab", "aabb")
	f.Fuzz(func(t *testing.T, patterns, namespace string) {
		p := &podCertSigner{SignerName: "s.example/x", KeyTypes: []string{"ECDSAP256"}}
		for i, pattern := range strings.Fields(patterns) {
			namespace, name, ok := strings.Cut(pattern, "*")
			if ok {
				namespace += "*"
			}
			// Every grant has a DNS name of its own, which tells by the answer which of them decided.
			g := podCertSignerGrant{Namespace: namespace, ServiceAccount: "web" + name, Usage: "server", DNSNames: []string{fmt.Sprintf("g%d.svc", i)}}
			if g.validate() != nil {
				continue
			}
			p.Grants = append(p.Grants, g)
			p.index.add(g.ServiceAccount, g.Namespace, len(p.Grants)-1)
		}
		for _, g := range p.Grants {
			d := &demand.Demand{SignerName: p.SignerName, Namespace: namespace, ServiceAccount: g.ServiceAccount, KeyType: "ECDSAP256",
				UserAnnotations: map[string]string{"": g.DNSNames[0]}}
			decision, reason := p.naive(d)
			if a := p.Decide(d); a.Decision != decision || a.Reason != reason {
				grants, _ := json.Marshal(p.Grants)
				t.Errorf("%s: %s/%s: got %+v, want %s %s", grants, d.Namespace, d.ServiceAccount, a, decision, reason)
			}
		}
	})
}
