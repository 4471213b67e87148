package output

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/grantfirst/grantfirst/lib/gate"
)

// The elements and attributes are those of the JUnit schema that Jenkins publishes (jenkinsci/xunit-plugin, junit-10.xsd).
type junitSuites struct {
	XMLName  xml.Name   `xml:"testsuites"`
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Errors   int        `xml:"errors,attr"`
	Suite    junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
	Out      string      `xml:"system-out"`
}

type junitCase struct {
	Name      string      `xml:"name,attr"`
	ClassName string      `xml:"classname,attr"`
	Skipped   *junitText  `xml:"skipped,omitempty"`
	Error     *junitFault `xml:"error,omitempty"`
	Failure   *junitFault `xml:"failure,omitempty"`
	Out       string      `xml:"system-out,omitempty"`
}

type junitText struct {
	Message string `xml:"message,attr"`
}

type junitFault struct {
	Type    string `xml:"type,attr"`
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit has a test for each demand: failed where it violates, an error where it could not be told.
func JUnit(w io.Writer, r *gate.Report) error {
	suite := junitSuite{Name: "grantfirst check", Out: "base " + base(r) + ", head " + head(r) + ": " + summary(r)}
	for i := range r.Findings {
		f := &r.Findings[i]
		c := junitCase{ClassName: cmp.Or(f.Application, "grantfirst"), Name: about(f)}
		if f.Object.Kind != "" {
			c.Name += ": " + f.SignerName + " for " + f.Namespace + "/" + f.ServiceAccount
		}
		if f.Verdict == gate.Unprotected {
			c.Name += " (hook on deletion)"
		}
		text := where(f) + "\n" + f.Message
		for _, m := range f.Move {
			text += "\nmove " + moveWhat(&m) + "\n" + m.Text
		}
		fault := &junitFault{string(f.Verdict), f.Message, text}
		suite.Tests++
		switch {
		case f.Violates():
			c.Failure = fault
			suite.Failures++
		case f.Verdict == gate.Unknown && !f.Existing:
			c.Error = fault
			suite.Errors++
		case f.Verdict != gate.OK:
			c.Skipped = &junitText{string(f.Verdict) + ": " + f.Message}
			suite.Skipped++
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(junitSuites{Name: "grantfirst", Tests: suite.Tests, Failures: suite.Failures, Errors: suite.Errors, Suite: suite}); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// rules say for people what each verdict means, and how bad it is for machines.
var rules = []struct {
	verdict             gate.Verdict
	name, text          string
	sarif, codeSeverity string
}{
	{gate.Missing, "MissingGrant", "A pod will ask for a certificate that nobody grants.", "error", "critical"},
	{gate.Denied, "DeniedByGrant", "A pod will ask for a certificate, and its grant refuses it.", "error", "critical"},
	{gate.ShipsTogether, "GrantShipsTogether", "The grant and the workload that needs it come with the same change.", "error", "critical"},
	{gate.Revoked, "GrantRevokedWhileUsed", "A grant is taken away that pods still use.", "error", "critical"},
	{gate.Unprotected, "UnprotectedHook", "A hook on deletion asks for a certificate, which nothing can hold back.", "warning", "minor"},
	{gate.Unknown, "CouldNotTell", "It could not be told whether a certificate is granted.", "error", "major"},
}

func ruleOf(v gate.Verdict) int {
	for i := range rules {
		if rules[i].verdict == v {
			return i
		}
	}
	return -1
}

type sarifLog struct {
	Schema  string     `json:"$schema"`
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool       sarifTool     `json:"tool"`
	ColumnKind string        `json:"columnKind"`
	Results    []sarifResult `json:"results"`
}

type sarifTool struct {
	Driver sarifDriver `json:"driver"`
}

type sarifDriver struct {
	Name           string      `json:"name"`
	InformationURI string      `json:"informationUri"`
	Rules          []sarifRule `json:"rules"`
}

type sarifRule struct {
	ID               string          `json:"id"`
	Name             string          `json:"name"`
	ShortDescription sarifText       `json:"shortDescription"`
	Default          sarifConfigured `json:"defaultConfiguration"`
}

type sarifConfigured struct {
	Level string `json:"level"`
}

type sarifText struct {
	Text string `json:"text"`
}

type sarifResult struct {
	RuleID       string            `json:"ruleId"`
	RuleIndex    int               `json:"ruleIndex"`
	Level        string            `json:"level"`
	Message      sarifText         `json:"message"`
	Locations    []sarifLocation   `json:"locations"`
	Fingerprints map[string]string `json:"partialFingerprints"`
}

type sarifLocation struct {
	Physical sarifPhysical `json:"physicalLocation"`
}

type sarifPhysical struct {
	Artifact sarifArtifact `json:"artifactLocation"`
	Region   *sarifRegion  `json:"region,omitempty"`
}

type sarifArtifact struct {
	URI       string `json:"uri"`
	URIBaseID string `json:"uriBaseId"`
}

type sarifRegion struct {
	StartLine int `json:"startLine"`
}

// SARIF is version 2.1.0 (OASIS), as GitHub reads it.
func SARIF(w io.Writer, r *gate.Report) error {
	run := sarifRun{ColumnKind: "utf16CodeUnits", Results: []sarifResult{}}
	run.Tool.Driver = sarifDriver{Name: "grantfirst", InformationURI: "https://github.com/grantfirst/grantfirst"}
	for _, rule := range rules {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{string(rule.verdict), rule.name, sarifText{rule.text}, sarifConfigured{rule.sarif}})
	}
	for _, f := range shown(r) {
		i := ruleOf(f.Verdict)
		result := sarifResult{RuleID: string(f.Verdict), RuleIndex: i, Level: rules[i].sarif, Message: sarifText{about(&f) + ": " + f.Message}, Fingerprints: map[string]string{"grantfirst/v1": fingerprint(&f)}}
		if f.Existing {
			result.Level = "note"
		}
		for _, m := range f.Move {
			result.Message.Text += "\nShip first, on its own: " + moveWhat(&m)
		}
		// GitHub takes no result without a place, and none that is not a file.
		at := sarifPhysical{Artifact: sarifArtifact{(&url.URL{Path: f.Path}).EscapedPath(), "%SRCROOT%"}, Region: &sarifRegion{max(f.Line, 1)}}
		result.Locations = []sarifLocation{{at}}
		run.Results = append(run.Results, result)
	}
	return Indented(w, sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{run}})
}

type codeQuality struct {
	Description string `json:"description"`
	CheckName   string `json:"check_name"`
	Fingerprint string `json:"fingerprint"`
	Severity    string `json:"severity"`
	Location    struct {
		Path  string `json:"path"`
		Lines struct {
			Begin int `json:"begin"`
		} `json:"lines"`
	} `json:"location"`
}

// GitLab is its code quality report.
func GitLab(w io.Writer, r *gate.Report) error {
	all := []codeQuality{}
	for _, f := range shown(r) {
		q := codeQuality{Description: about(&f) + ": " + f.Message, CheckName: "grantfirst/" + string(f.Verdict), Fingerprint: fingerprint(&f), Severity: rules[ruleOf(f.Verdict)].codeSeverity}
		if f.Existing {
			q.Severity = "info"
		}
		for _, m := range f.Move {
			q.Description += fmt.Sprintf("; ship first, on its own: %s", moveWhat(&m))
		}
		q.Description = strings.ToValidUTF8(q.Description, string(utf8.RuneError))
		q.Location.Path, q.Location.Lines.Begin = f.Path, max(f.Line, 1)
		all = append(all, q)
	}
	return Indented(w, all)
}
