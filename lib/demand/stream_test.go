package demand

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/grantfirst/grantfirst/lib/manifest"
)

// shared is the folder of cases and corpus beside the project.
const shared = "../../../shared"

func parse(t testing.TB, text string) *manifest.Stream {
	t.Helper()
	s, err := manifest.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCases(t *testing.T) {
	files, _ := filepath.Glob(shared + "/cases/*.txtar")
	if len(files) == 0 {
		t.Skip("no cases beside the project")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			type wanted struct {
				SignerName, Namespace, ServiceAccount, KeyType string
				MaxExpirationSeconds                           int64
			}
			var want struct {
				Demands []wanted
				Error   string
			}
			if err := json.Unmarshal(archive.Files[1].Data, &want); err != nil {
				t.Fatal(err)
			}
			stream, err := manifest.Parse(archive.Files[0].Data)
			var found []Demand
			if err == nil {
				found, err = InStream(stream, "dest")
			}
			if want.Error != "" || err != nil {
				if want.Error == "" || err == nil || !strings.Contains(err.Error(), want.Error) {
					t.Errorf("got error %v, want %q", err, want.Error)
				}
				return
			}
			got := []wanted{}
			for _, d := range found {
				got = append(got, wanted{d.SignerName, d.Namespace, d.ServiceAccount, d.KeyType, d.MaxExpirationSeconds})
			}
			if !reflect.DeepEqual(got, want.Demands) {
				t.Errorf("got %+v, want %+v", got, want.Demands)
			}
		})
	}
}

func TestCorpusHasNoDemands(t *testing.T) {
	files, candidates := 0, 0
	err := filepath.WalkDir(shared+"/corpus", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		stream, err := manifest.Parse(text)
		if err != nil {
			return nil // a chart's template or values
		}
		files++
		for _, d := range stream.Documents {
			if d.MayHave(word) {
				candidates++
			}
		}
		if found, err := InStream(stream, "dest"); err != nil || len(found) > 0 {
			t.Errorf("%s: %+v, %v", path, found, err)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no corpus beside the project")
	}
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 || candidates < 4 {
		t.Errorf("only %d files of the corpus could be read, with %d documents that had to be decoded", files, candidates)
	}
}

// everyDemand decodes the document whatever MayHave says.
func everyDemand(d *manifest.Document) ([]Demand, error) {
	objects, err := d.Decode()
	if err != nil {
		return nil, err
	}
	var all []Demand
	for item, obj := range objects {
		found, err := InObject(obj, "dest")
		if err != nil {
			return nil, err
		}
		for _, demand := range found {
			demand.Document, demand.Item = d.Number, item
			all = append(all, demand)
		}
	}
	return all, nil
}

const (
	configMap  = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: shop}\ndata: {a: b}\n"
	deployment = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: %s
  namespace: shop
spec:
  template:
    spec:
      serviceAccountName: %[1]s
      volumes:
      - name: tls
        projected:
          sources:
          - podCertificate: {signerName: %s, keyType: ECDSAP256, credentialBundlePath: tls.pem}
`
)

func switching(name string) string { return fmt.Sprintf(deployment, name, "example.com/workload") }

func TestInStreamKeepsTheOrderAndNumbersDocumentsAndItems(t *testing.T) {
	list := "apiVersion: v1\nkind: List\nitems:\n"
	for _, name := range []string{"c", "d"} {
		list += "- " + strings.ReplaceAll(strings.TrimSuffix(switching(name), "\n"), "\n", "\n  ") + "\n"
	}
	s := parse(t, strings.Join([]string{configMap, switching("a"), "# nothing\n", switching("b"), list, configMap, switching("e")}, "---\n"))
	for range 20 {
		found, err := InStream(s, "dest")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range found {
			got = append(got, fmt.Sprintf("%d.%d %s %s", d.Document, d.Item, d.ServiceAccount, d.Object))
		}
		want := []string{
			"2.0 a apps/Deployment shop/a", "3.0 b apps/Deployment shop/b", "4.0 c apps/Deployment shop/c", "4.1 d apps/Deployment shop/d",
			"6.0 e apps/Deployment shop/e"}
		if !slices.Equal(got, want) {
			t.Fatalf("got %q", got)
		}
	}
}

func TestInStreamGivesTheFirstError(t *testing.T) {
	texts := []string{configMap}
	for i := range 50 {
		texts = append(texts, switching(fmt.Sprint("good-", i)))
	}
	for i := range 50 {
		texts = append(texts, fmt.Sprintf(deployment, fmt.Sprint("bad-", i), "{}"))
	}
	s := parse(t, strings.Join(texts, "---\n"))
	for range 20 {
		_, err := InStream(s, "dest")
		var at *manifest.Error
		if !errors.As(err, &at) || at.Document != 52 || at.Object != "apps/Deployment shop/bad-0" {
			t.Fatalf("got %v", err)
		}
	}
}

func TestInDocumentNamesDocumentLineAndObject(t *testing.T) {
	s := parse(t, configMap+"---\n"+fmt.Sprintf(deployment, "web", "5"))
	_, err := InDocument(s.Documents[1], "dest")
	const want = `document 2, line 6: apps/Deployment shop/web: volume "tls": source 1: signerName is the number 5`
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// FuzzSkip: a document that is not decoded has no demand.
func FuzzSkip(f *testing.F) {
	f.Add([]byte(switching("web")))
	f.Add([]byte(strings.Replace(switching("web"), "podCertificate", `"pod\x43ertificate"`, 1)))
	f.Add([]byte(strings.Replace(switching("web"), "podCertificate:", `? "podCert\
  ificate"
            :`, 1)))
	f.Add([]byte(strings.Replace(switching("web"), "podCertificate", `!!binary cG9kQ2VydGlmaWNhdGU=`, 1)))
	f.Add([]byte(`{"kind": "Pod", "spec": {"volumes": [{"projected": {"sources": [{"pod\u0043ertificate": {"signerName": "a/b"}}]}}]}}`))
	f.Add([]byte("kind: Pod\na: &k podCertificate\nspec: {volumes: [{projected: {sources: [{*k : {signerName: a/b}}]}}]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := manifest.Parse(text)
		if err != nil {
			return
		}
		for _, d := range s.Documents {
			all, err := everyDemand(d)
			found, errFound := InDocument(d, "dest")
			// A document that is passed over may be one that cannot be decoded: that is for others to say.
			if err == nil && (errFound != nil || !reflect.DeepEqual(found, all)) {
				t.Errorf("document %d: found %+v, %v, but has %+v", d.Number, found, errFound, all)
			}
			if d.MayHave(word) {
				continue
			}
			objects, _ := d.Decode()
			if slices.ContainsFunc(objects, func(o map[string]any) bool { return mentions(o) }) {
				t.Errorf("document %d is passed over, but has the key", d.Number)
			}
		}
	})
}

// stream is n documents of about 300 bytes, of which one in a hundred has a demand.
func stream(n int) string {
	var b strings.Builder
	for i := range n {
		if i%100 == 50 {
			b.WriteString(switching(fmt.Sprint("web-", i)))
		} else {
			fmt.Fprintf(&b, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings-%d\n  namespace: shop\n  labels:\n    app.kubernetes.io/name: web\n    app.kubernetes.io/part-of: shop\ndata:\n", i)
			for line := range 6 {
				fmt.Fprintf(&b, "  key-%d: \"value %d\"\n", line, i)
			}
		}
		b.WriteString("---\n")
	}
	return b.String()
}

func BenchmarkInStream(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			text := stream(n)
			s := parse(b, text)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if found, err := InStream(s, "dest"); err != nil || len(found) != n/100 {
					b.Fatal(len(found), err)
				}
			}
		})
	}
}

func BenchmarkInObject(b *testing.B) {
	obj := object(b, switching("web"))
	b.SetBytes(int64(len(switching("web"))))
	b.ReportAllocs()
	for b.Loop() {
		if found, err := InObject(obj, "dest"); err != nil || len(found) != 1 {
			b.Fatal(found, err)
		}
	}
}
