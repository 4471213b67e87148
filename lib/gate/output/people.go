package output

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/grantfirst/grantfirst/lib/gate"
)

// Text is for people at a terminal or in a job's log.
func Text(w io.Writer, r *gate.Report) error {
	var s strings.Builder
	say := func(format string, args ...any) { s.WriteString(printable(fmt.Sprintf(format, args...)) + "\n") }
	for _, f := range shown(r) {
		mark := string(f.Verdict)
		if f.Existing {
			mark += " (before this change)"
		}
		say("%s: %s", mark, where(&f))
		if f.Object.Kind != "" {
			say("  %s", about(&f))
			say("  asks        %s for %s/%s, %s", f.SignerName, f.Namespace, cmp.Or(f.ServiceAccount, "?"), f.KeyType)
		}
		if f.Application != "" {
			if f.Cluster != "" {
				say("  application %s, to %s", f.Application, f.Cluster)
			} else {
				say("  application %s", f.Application)
			}
		}
		say("  %s", f.Message)
		for _, m := range f.Move {
			say("  move        %s", moveWhat(&m))
			for line := range strings.Lines(m.Text) {
				say("    %s", strings.TrimRight(line, "\r\n"))
			}
		}
		s.WriteString("\n")
	}
	for _, e := range r.Elsewhere {
		say("not looked at: %s", e)
	}
	say("%s: %s", verdict(r), summary(r))
	_, err := io.WriteString(w, s.String())
	return err
}

func moveWhat(m *gate.Move) string {
	switch {
	case m.From == 0:
		return "the lines that go out of " + m.Path
	case m.From == m.To:
		return fmt.Sprintf("%s line %d", m.Path, m.From)
	}
	return fmt.Sprintf("%s lines %d to %d", m.Path, m.From, m.To)
}

// printable keeps what an author wrote in its line: it must not pass for a line of ours.
func printable(s string) string {
	var line strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			line.WriteRune(r)
		} else {
			line.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return line.String()
}

// Markdown is for a comment on a merge request.
func Markdown(w io.Writer, r *gate.Report) error {
	var s strings.Builder
	fmt.Fprintf(&s, "### Grants before workloads: %s\n\n", verdict(r))
	list := shown(r)
	if len(list) > 0 {
		s.WriteString("| verdict | what | where | why |\n| --- | --- | --- | --- |\n")
	}
	var moves []string
	seen := map[string]bool{}
	for _, f := range list {
		what := cell(f.Application)
		if f.Object.Kind != "" {
			what = code(f.Object.String())
			if f.Volume != "" {
				what += ", volume " + code(f.Volume)
			}
			if f.Application != "" {
				what += " of " + code(f.Application)
			}
		}
		mark := "**" + string(f.Verdict) + "**"
		if !f.Violates() {
			mark = string(f.Verdict)
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s |\n", mark, what, code(where(&f)), cell(f.Message))
		for _, m := range f.Move {
			text := fmt.Sprintf("Ship first, on its own: %s\n\n%s\n", code(moveWhat(&m)), fence(m.Text))
			if !seen[text] {
				seen[text] = true
				moves = append(moves, text)
			}
		}
	}
	if len(list) > 0 {
		s.WriteString("\n")
	}
	for _, m := range moves {
		s.WriteString(m + "\n")
	}
	if len(moves) > 0 {
		s.WriteString("`grantfirst split` writes that as a patch.\n\n")
	}
	fmt.Fprintf(&s, "%s\n", cell(summary(r)))
	_, err := io.WriteString(w, s.String())
	return err
}

// cell is text in a cell of a table, in which nothing is markup.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "\r", " ", "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "\\`", "[", `\[`, "]", `\]`, "@", "@\u200b").Replace(s)
}

func code(s string) string {
	if s == "" {
		return ""
	}
	s = strings.NewReplacer("|", `\|`, "\n", " ", "\r", " ", "`", "'").Replace(s)
	return "`" + s + "`"
}

// fence is a block of code, whatever is in it.
func fence(s string) string {
	mark := "```"
	for strings.Contains(s, mark) {
		mark += "`"
	}
	return mark + "\n" + strings.TrimRight(s, "\n") + "\n" + mark
}
