package output_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/grantfirst/grantfirst/lib/gate"
	"github.com/grantfirst/grantfirst/lib/gate/git"
	"github.com/grantfirst/grantfirst/lib/gate/output"
	"github.com/grantfirst/grantfirst/lib/manifest"
)

// report has each verdict once, and texts that an author might write to break a format.
func report() *gate.Report {
	r := &gate.Report{
		Base: git.Commit{ID: strings.Repeat("a", 40)}, Head: git.Commit{ID: strings.Repeat("b", 40)}, Rendered: 4, Shared: 2,
		Elsewhere: []string{"Application other: https://charts.example.com chart other at 1.2.3"},
	}
	r.Bases = []git.Commit{r.Base}
	for i, v := range []gate.Verdict{gate.Missing, gate.Denied, gate.ShipsTogether, gate.Revoked, gate.Unprotected, gate.OK} {
		r.Findings = append(r.Findings, gate.Finding{
			Verdict: v, SignerName: "example.com/workload", Namespace: "shop", ServiceAccount: fmt.Sprint("sa-", i), KeyType: "ECDSAP256",
			Object: manifest.ID{APIVersion: "apps/v1", Kind: "Deployment", Name: fmt.Sprint("web-", i)}, Volume: "tls", Application: "shop", Cluster: "in-cluster",
			Path: "läden und shops/web.yaml", Line: 15, Message: "why | not <b>&\"'`*_ @all\n# red: 0",
		})
	}
	r.Findings[2].Move = []gate.Move{{Path: "signer/policy.json", From: 10, To: 11, Text: "```\n]]> x\n"}}
	existing := r.Findings[0]
	existing.Existing = true
	r.Findings = append(r.Findings, existing, gate.Finding{Verdict: gate.Unknown, Path: "store", Message: "store cannot be rendered: \x01\xff"})
	return r
}

func print(t *testing.T, format string, r *gate.Report) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := output.Formats[format](&b, r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestEveryFormatHasItsGolden(t *testing.T) {
	for _, format := range output.Names {
		file := filepath.Join("testdata", format+".golden")
		got := print(t, format, report())
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(file, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: run with UPDATE=1 and look at the difference; got\n%s", format, got)
		}
	}
}

func TestFormatsAndNamesAreTheSame(t *testing.T) {
	if len(output.Names) != len(output.Formats) {
		t.Errorf("%d names and %d formats", len(output.Names), len(output.Formats))
	}
}

// validate checks JSON against a schema in testdata, which has the published one's rules for what is written here.
func validate(t *testing.T, schema string, text []byte) error {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", schema))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	doc, err := jsonschema.UnmarshalJSON(file)
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("file:///"+schema, doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("file:///" + schema)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return compiled.Validate(value)
}

func TestSARIFIsValid(t *testing.T) {
	for name, r := range map[string]*gate.Report{"everything": report(), "nothing": {}} {
		text := print(t, "sarif", r)
		if err := validate(t, "sarif-2.1.0.rules.json", text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// The whole schema, where somebody has it: oasis-tcs/sarif-spec, sarif-schema-2.1.0.json.
		if file := os.Getenv("SARIF_SCHEMA"); file != "" {
			whole, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			doc, err := jsonschema.UnmarshalJSON(whole)
			if err != nil {
				t.Fatal(err)
			}
			compiler := jsonschema.NewCompiler()
			if err := compiler.AddResource("file:///sarif.json", doc); err != nil {
				t.Fatal(err)
			}
			compiled, err := compiler.Compile("file:///sarif.json")
			if err != nil {
				t.Fatal(err)
			}
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if err := compiled.Validate(value); err != nil {
				t.Errorf("%s: by the whole schema: %v", name, err)
			}
		}
		var log struct {
			Runs []struct {
				Tool struct {
					Driver struct{ Rules []struct{ ID string } }
				}
				Results []struct {
					RuleID              string
					RuleIndex           int
					PartialFingerprints map[string]string
				}
			}
		}
		if err := json.Unmarshal(text, &log); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, result := range log.Runs[0].Results {
			if rules := log.Runs[0].Tool.Driver.Rules; rules[result.RuleIndex].ID != result.RuleID {
				t.Errorf("result of rule %s has the index of %s", result.RuleID, rules[result.RuleIndex].ID)
			}
			seen[result.PartialFingerprints["grantfirst/v1"]] = true
		}
		if len(seen) < len(log.Runs[0].Results)-1 { // one finding is there twice, as existing
			t.Errorf("%d fingerprints for %d results", len(seen), len(log.Runs[0].Results))
		}
	}
}

// A validator that accepts everything proves nothing.
func TestTheRulesRefuseWhatIsNotSARIF(t *testing.T) {
	good := string(print(t, "sarif", report()))
	for what, bad := range map[string]string{
		"another version":     strings.Replace(good, `"version": "2.1.0"`, `"version": "2.0.0"`, 1),
		"a level of its own":  strings.Replace(good, `"level": "warning"`, `"level": "bad"`, 1),
		"line 0":              strings.Replace(good, `"startLine": 15`, `"startLine": 0`, 1),
		"an unknown property": strings.Replace(good, `"ruleIndex"`, `"ruleNumber"`, 1),
		"a URI that is none":  strings.Replace(good, `l%C3%A4den%20und`, `%zz`, 1),
		"no message":          strings.Replace(good, `"text": "apps/Deployment`, `"txt": "apps/Deployment`, 1),
	} {
		if bad == good {
			t.Errorf("%s: nothing was changed", what)
		} else if validate(t, "sarif-2.1.0.rules.json", []byte(bad)) == nil {
			t.Errorf("%s passes", what)
		}
	}
}

func TestGitLabCodeQualityIsValid(t *testing.T) {
	for name, r := range map[string]*gate.Report{"everything": report(), "nothing": {}} {
		if err := validate(t, "gitlab.rules.json", print(t, "gitlab", r)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// junitRules are those of junit-10.xsd (jenkinsci/xunit-plugin): which attributes and elements an element may have, and which it must.
var junitRules = map[string]struct{ attributes, required, elements []string }{
	"testsuites": {[]string{"name", "time", "tests", "failures", "disabled", "errors"}, nil, []string{"testsuite"}},
	"testsuite": {[]string{"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url", "version"}, []string{"name", "tests"},
		[]string{"testsuite", "properties", "testcase", "system-out", "system-err"}},
	"testcase":   {[]string{"name", "time", "classname", "group"}, []string{"name"}, []string{"skipped", "error", "failure", "rerunFailure", "rerunError", "flakyFailure", "flakyError", "system-out", "system-err"}},
	"skipped":    {[]string{"type", "message"}, nil, nil},
	"error":      {[]string{"type", "message"}, nil, nil},
	"failure":    {[]string{"type", "message"}, nil, nil},
	"system-out": {nil, nil, nil},
}

func junitValid(text []byte) error {
	decoder := xml.NewDecoder(bytes.NewReader(text))
	var open []string
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch e := token.(type) {
		case xml.StartElement:
			name := e.Name.Local
			rule, known := junitRules[name]
			if !known || len(open) > 0 && !slices.Contains(junitRules[open[len(open)-1]].elements, name) || len(open) == 0 && name != "testsuites" {
				return fmt.Errorf("element %s in %v", name, open)
			}
			var has []string
			for _, a := range e.Attr {
				has = append(has, a.Name.Local)
				if !slices.Contains(rule.attributes, a.Name.Local) {
					return fmt.Errorf("attribute %s of %s", a.Name.Local, name)
				}
				if slices.Contains([]string{"tests", "failures", "errors", "skipped"}, a.Name.Local) && !regexp.MustCompile(`^[0-9]+$`).MatchString(a.Value) {
					return fmt.Errorf("%s=%q", a.Name.Local, a.Value)
				}
			}
			for _, must := range rule.required {
				if !slices.Contains(has, must) {
					return fmt.Errorf("%s has no %s", name, must)
				}
			}
			open = append(open, name)
		case xml.EndElement:
			open = open[:len(open)-1]
		}
	}
}

func TestJUnitIsValidAndCountsRight(t *testing.T) {
	for name, r := range map[string]*gate.Report{"everything": report(), "nothing": {}} {
		text := print(t, "junit", r)
		if err := junitValid(text); err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	text := string(print(t, "junit", report()))
	for element, n := range map[string]int{"<testcase ": 8, "<failure ": 4, "<error ": 1, "<skipped ": 2} {
		if got := strings.Count(text, element); got != n {
			t.Errorf("%d of %s, want %d", got, element, n)
		}
	}
	for what, bad := range map[string]string{
		"an unknown attribute": strings.Replace(text, "classname=", "class=", 1), "a test without a name": strings.Replace(text, "testcase name=", "testcase time=", 1),
		"an element elsewhere": strings.Replace(text, "<testsuite ", "<testcase name=\"x\"/><testsuite ", 1),
	} {
		if junitValid([]byte(bad)) == nil {
			t.Errorf("%s passes", what)
		}
	}
}

// What an author writes must not become a line, a cell or markup of its own.
func TestAnAuthorCannotWriteIntoTheReport(t *testing.T) {
	for _, line := range strings.Split(string(print(t, "text", report())), "\n") {
		if strings.HasPrefix(line, "# red") || strings.ContainsAny(line, "\x01\x1b") {
			t.Errorf("a line of the author's: %q", line)
		}
	}
	markdown := string(print(t, "markdown", report()))
	if strings.Contains(markdown, "\n# red") || strings.Contains(markdown, "<b>") || strings.Contains(markdown, " @all") {
		t.Errorf("markup of the author's:\n%s", markdown)
	}
}
