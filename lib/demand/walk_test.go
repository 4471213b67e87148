package demand

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/grantfirst/grantfirst/lib/manifest"
)

func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var obj map[string]any
	if err := yaml.Unmarshal([]byte(text), &obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// pod is a Pod with a volume tls whose only source is this certificate, and more fields of its spec.
func pod(certificate, spec string) string {
	return `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
		volumes: [{name: tls, projected: {sources: [{podCertificate: ` + certificate + `}]}}]` + spec + `}}`
}

func TestInObject(t *testing.T) {
	const plain = `{signerName: example.com/workload, keyType: ECDSAP256}`
	template := `{spec: {serviceAccountName: web, volumes: [{name: tls, projected: {sources: [{podCertificate: ` + plain + `}]}}]}}`
	// want is the demand of plain in Pod shop/web, changed.
	want := func(changes ...func(*Demand)) []Demand {
		d := Demand{SignerName: "example.com/workload", Namespace: "shop", ServiceAccount: "default", KeyType: "ECDSAP256", MaxExpirationSeconds: 86400,
			Object: manifest.ID{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web"}, Volume: "tls"}
		for _, change := range changes {
			change(&d)
		}
		return []Demand{d}
	}
	account := func(name string) func(*Demand) { return func(d *Demand) { d.ServiceAccount = name } }
	in := func(apiVersion, kind string) func(*Demand) {
		return func(d *Demand) { d.Object.APIVersion, d.Object.Kind, d.ServiceAccount = apiVersion, kind, "web" }
	}
	for name, c := range map[string]struct {
		text string
		want []Demand
	}{
		"a Pod without ServiceAccount uses default":             {pod(plain, ""), want()},
		"serviceAccountName names the ServiceAccount":           {pod(plain, ", serviceAccountName: a"), want(account("a"))},
		"the deprecated serviceAccount names it as well":        {pod(plain, ", serviceAccount: b"), want(account("b"))},
		"serviceAccountName wins over serviceAccount":           {pod(plain, ", serviceAccount: b, serviceAccountName: a"), want(account("a"))},
		"an empty serviceAccountName is none":                   {pod(plain, ", serviceAccount: b, serviceAccountName: ''"), want(account("b"))},
		"a ServiceAccount that is null is none":                 {pod(plain, ", serviceAccount: null, serviceAccountName: null"), want()},
		"the destination is the namespace of an object without": {strings.Replace(pod(plain, ""), ", namespace: shop", "", 1), want(func(d *Demand) { d.Namespace, d.Object.Namespace = "dest", "" })},
		"a namespace that is null is none":                      {strings.Replace(pod(plain, ""), "namespace: shop", "namespace: null", 1), want(func(d *Demand) { d.Namespace, d.Object.Namespace = "dest", "" })},
		"an object without name is found, too":                  {strings.Replace(pod(plain, ""), "name: web", "generateName: web-", 1), want(func(d *Demand) { d.Object.Name = "" })},
		"a missing keyType is left for the policy to refuse":    {pod(`{signerName: example.com/workload}`, ""), want(func(d *Demand) { d.KeyType = "" })},
		"a lifetime is taken as it is":                          {pod(`{signerName: example.com/workload, keyType: ECDSAP256, maxExpirationSeconds: 3600}`, ""), want(func(d *Demand) { d.MaxExpirationSeconds = 3600 })},
		"a lifetime with an exponent is a whole number":         {pod(`{signerName: example.com/workload, keyType: ECDSAP256, maxExpirationSeconds: 7.2e3}`, ""), want(func(d *Demand) { d.MaxExpirationSeconds = 7200 })},
		"a lifetime that is null is the default":                {pod(`{signerName: example.com/workload, keyType: ECDSAP256, maxExpirationSeconds: null}`, ""), want()},
		"user annotations belong to the demand":                 {pod(`{signerName: example.com/workload, keyType: ECDSAP256, userAnnotations: {a/b: c, d/e: ""}}`, ""), want(func(d *Demand) { d.UserAnnotations = map[string]string{"a/b": "c", "d/e": ""} })},
		"user annotations that are null are none":               {pod(`{signerName: example.com/workload, keyType: ECDSAP256, userAnnotations: null}`, ""), want()},
		"the template of a Deployment":                          {`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {template: ` + template + `}}`, want(in("apps/v1", "Deployment"))},
		"the template of a CronJob":                             {`{apiVersion: batch/v1, kind: CronJob, metadata: {name: web, namespace: shop}, spec: {jobTemplate: {spec: {template: ` + template + `}}}}`, want(in("batch/v1", "CronJob"))},
		"a PodTemplate":                                         {`{apiVersion: v1, kind: PodTemplate, metadata: {name: web, namespace: shop}, template: ` + template + `}`, want(in("v1", "PodTemplate"))},
		"the jobs of a JobSet":                                  {`{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: web, namespace: shop}, spec: {replicatedJobs: [{template: {spec: {template: ` + template + `}}}]}}`, want(in("jobset.x-k8s.io/v1alpha2", "JobSet"))},
		"a custom resource that is a pod spec itself":           {`{apiVersion: monitoring.coreos.com/v1, kind: Prometheus, metadata: {name: web, namespace: shop}, spec: {serviceAccountName: web, volumes: [{name: tls, projected: {sources: [{podCertificate: ` + plain + `}]}}]}}`, want(in("monitoring.coreos.com/v1", "Prometheus"))},
		"the namespace of the template does not count":          {`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {template: {metadata: {namespace: other}, spec: {serviceAccountName: web, volumes: [{name: tls, projected: {sources: [{podCertificate: ` + plain + `}]}}]}}}}`, want(in("apps/v1", "Deployment"))},
		"the same demand twice in one volume is two":            {pod(plain+"}, {podCertificate: "+plain, ""), append(want(), want()...)},
		"the same demand in two volumes is two": {strings.Replace(pod(plain, ""), "volumes: [", "volumes: [{name: a, projected: {sources: [{podCertificate: "+plain+"}]}}, ", 1),
			append(want(func(d *Demand) { d.Volume = "a" }), want()...)},
		"a ServiceAccount counts for its own pod spec only": {`{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {serviceAccountName: outer, inner: {volumes: [{name: tls, projected: {sources: [{podCertificate: ` + plain + `}]}}]}}}`, want()},
		"templates come in the order of their keys": {`{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {b: ` + strings.Replace(template, "web", "b", 1) + `, c: ` + strings.Replace(template, "web", "c", 1) + `, a: ` + strings.Replace(template, "web", "a", 1) + `}}`,
			append(append(want(account("a")), want(account("b"))...), want(account("c"))...)},
		"volumes that are null have none":          {`{apiVersion: v1, kind: Pod, spec: {volumes: null}}`, nil},
		"a projected volume that is null has none": {`{apiVersion: v1, kind: Pod, spec: {volumes: [{name: a, projected: null}]}}`, nil},
		"sources that are null are none":           {`{apiVersion: v1, kind: Pod, spec: {volumes: [{name: a, projected: {sources: null}}]}}`, nil},
		"sources that are not a list are none":     {`{apiVersion: v1, kind: Pod, spec: {volumes: [{name: a, projected: {sources: x}}]}}`, nil},
		"a podCertificate that is null is none":    {pod("null", ""), nil},
		"other sources are none":                   {`{apiVersion: v1, kind: Pod, spec: {volumes: [{name: a, projected: {sources: [{configMap: {name: b}}, null, x]}}]}}`, nil},
		"a container of that name is none":         {`{apiVersion: v1, kind: Pod, spec: {volumes: [], containers: [{name: podCertificate}]}}`, nil},
		"volumes that are strings are none":        {`{apiVersion: v1, kind: Compose, spec: {volumes: [a, b]}}`, nil},
		"text in a ConfigMap is none":              {`{apiVersion: v1, kind: ConfigMap, data: {volumes: "- projected: {sources: [{podCertificate: {}}]}"}}`, nil},
		"a schema of a CustomResourceDefinition is none": {`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {properties: {volumes: {type: array, items: {properties: {
			projected: {properties: {sources: {type: array, items: {properties: {podCertificate: {type: object, required: [keyType, signerName], properties: {signerName: {type: string}}}}}}}}}}}}}}`, nil},
		"an empty object has none": {`{}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				got, err := InObject(object(t, c.text), "dest")
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, c.want) {
					t.Fatalf("got  %+v\nwant %+v", got, c.want)
				}
			}
		})
	}
}

func TestInObjectRefuses(t *testing.T) {
	volumes := func(s string) string {
		return `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {volumes: ` + s + `}}`
	}
	for name, c := range map[string]struct{ text, want string }{
		"a certificate without signer":           {pod(`{keyType: ED25519}`, ""), `Pod shop/web: volume "tls": source 1: podCertificate has no signerName: name the signer`},
		"an empty signer":                        {pod(`{signerName: "", keyType: ED25519}`, ""), "no signerName"},
		"a certificate with nothing in it":       {pod(`{}`, ""), "no signerName"},
		"a signer that is a number":              {pod(`{signerName: 5}`, ""), "signerName is the number 5"},
		"a certificate that is a string":         {pod(`example.com/workload`, ""), `podCertificate is the string "example.com/workload"`},
		"a certificate that is a list":           {pod(`[{signerName: a/b}]`, ""), "podCertificate is a list"},
		"a key type that is a list":              {pod(`{signerName: a/b, keyType: [ED25519]}`, ""), "keyType is a list"},
		"a lifetime in quotes":                   {pod(`{signerName: a/b, maxExpirationSeconds: "3600"}`, ""), `maxExpirationSeconds is the string "3600"`},
		"a lifetime with a fraction":             {pod(`{signerName: a/b, maxExpirationSeconds: 3600.5}`, ""), "the number 3600.5"},
		"a lifetime beyond all numbers":          {pod(`{signerName: a/b, maxExpirationSeconds: 1e300}`, ""), "the number 1e+300"},
		"a lifetime that is true":                {pod(`{signerName: a/b, maxExpirationSeconds: true}`, ""), "the boolean true"},
		"annotations that are a list":            {pod(`{signerName: a/b, userAnnotations: [a]}`, ""), "userAnnotations is a list"},
		"an annotation that is a number":         {pod(`{signerName: a/b, userAnnotations: {c/d: 1}}`, ""), "userAnnotations: c/d is the number 1"},
		"a serviceAccountName that is a boolean": {pod(`{signerName: a/b}`, ", serviceAccountName: on"), "serviceAccountName is the boolean true"},
		"a serviceAccount that is a map":         {pod(`{signerName: a/b}`, ", serviceAccount: {name: a}"), "serviceAccount is a map"},
		"a volume name that is a number":         {volumes(`[{name: 1, projected: {sources: [{podCertificate: {signerName: a/b}}]}}]`), "volume 1: source 1: name is the number 1"},
		"a namespace that is a number":           {strings.Replace(pod(`{signerName: a/b}`, ""), "namespace: shop", "namespace: 5", 1), "metadata: namespace is the number 5"},
		"the second source of the third volume":  {volumes(`[{name: a}, {name: b}, {name: c, projected: {sources: [{podCertificate: {signerName: a/b}}, {podCertificate: {}}]}}]`), `volume "c": source 2`},
		"a volume that is a list":                {volumes(`[[{projected: {sources: [{podCertificate: {signerName: a/b}}]}}]]`), "volume 1 is not a map"},
		"a projected volume that is a list":      {volumes(`[{name: a, projected: [{sources: [{podCertificate: {signerName: a/b}}]}]}]`), `volume "a": projected is not a map`},
		"sources that are a map":                 {volumes(`[{name: a, projected: {sources: {podCertificate: {signerName: a/b}}}}]`), `volume "a": sources is not a list`},
		"a source that is a list":                {volumes(`[{projected: {sources: [[{podCertificate: {signerName: a/b}}]]}}]`), "volume 1: source 1 is not a map"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := InObject(object(t, c.text), "dest")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %+v and error %v, want one with %q", got, err, c.want)
			}
		})
	}
}

func TestEveryNumberTypeOfADecoderIsALifetime(t *testing.T) {
	for _, v := range []any{int(3600), int32(3600), int64(3600), uint64(3600), float64(3600), json.Number("3600"), json.Number("3.6e3")} {
		if got, err := seconds(v); got != 3600 || err != nil {
			t.Errorf("%T: got %d, %v", v, got, err)
		}
	}
	for _, v := range []any{uint64(1 << 63), float64(1 << 60), float32(1), json.Number("0.5"), json.Number("x")} {
		if got, err := seconds(v); err == nil {
			t.Errorf("%T %v: got %d and no error", v, v, got)
		}
	}
}

// FuzzInObject walks over anything that YAML can say.
func FuzzInObject(f *testing.F) {
	f.Add([]byte(pod(`{signerName: a/b, keyType: ED25519, maxExpirationSeconds: 3600, userAnnotations: {a/b: c}}`, ", serviceAccountName: web")))
	f.Add([]byte(`{"kind": "List", "items": [{"spec": {"volumes": [{"projected": {"sources": [{"podCertificate": {"signerName": "a/b"}}]}}]}}]}`))
	f.Add([]byte(`{spec: {volumes: [[{podCertificate: 1}], {projected: {sources: {podCertificate: {}}}}, {projected: [podCertificate]}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var obj map[string]any
		if yaml.Unmarshal(text, &obj) != nil {
			return
		}
		found, err := InObject(obj, "dest")
		again, errAgain := InObject(obj, "dest")
		if !reflect.DeepEqual(found, again) || (err == nil) != (errAgain == nil) || err != nil && err.Error() != errAgain.Error() {
			t.Errorf("first %+v, %v, then %+v, %v", found, err, again, errAgain)
		}
		for _, d := range found {
			if d.SignerName == "" || d.ServiceAccount == "" || d.Namespace == "" {
				t.Errorf("a demand lacks what it is decided by: %+v", d)
			}
		}
		if err == nil && len(found) == 0 && sure(obj) {
			t.Error("no demand and no error for an object with a pod certificate")
		}
	})
}

// sure reports whether an object has the shape of a demand beyond doubt, found without the walk's own code.
func sure(v any) bool {
	get := func(v any, key string) any { m, _ := v.(map[string]any); return m[key] }
	list := func(v any) []any { l, _ := v.([]any); return l }
	for _, volume := range list(get(v, "volumes")) {
		for _, source := range list(get(get(volume, "projected"), "sources")) {
			if get(source, "podCertificate") != nil {
				return true
			}
		}
	}
	for _, item := range list(v) {
		if sure(item) {
			return true
		}
	}
	if m, ok := v.(map[string]any); ok {
		for _, item := range m {
			if sure(item) {
				return true
			}
		}
	}
	return false
}
