package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/manual"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
	"github.com/a-seed-32e5a53f/shaper/docs"
)

// newMan returns the command that writes man pages, for make man.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Hidden: true,
		Short:  "Write all man pages to a directory",
		Args:   cli.OneArg("directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return cli.PlainPathError("directory", err)
			}
			var err error
			walkCommands(cmd.Root(), func(cmd *cobra.Command) {
				if err == nil && documented(cmd) {
					err = os.WriteFile(filepath.Join(args[0], pageName(cmd)+".1"), []byte(manPage(cmd)),
						0o644)
				}
			})
			for _, page := range referencePages() {
				if err == nil {
					err = os.WriteFile(filepath.Join(args[0], page.name+".5"), []byte(page.text), 0o644)
				}
			}
			return err
		},
	}
}

// documented reports whether a command has a man page. The subcommands of completion are in
// the page of completion.
func documented(cmd *cobra.Command) bool {
	return !cmd.HasParent() || cmd.IsAvailableCommand() && cmd.Name() != "help" &&
		cmd.Parent().Name() != "completion"
}

// pageName returns the name of a command's page, such as shaper-budget-set.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns the page of a command in the format of man(7).
func manPage(cmd *cobra.Command) string {
	var m manWriter
	m.title(pageName(cmd), 1)
	m.section("NAME")
	m.printf("%s \\- %s\n", manual.Escape(pageName(cmd)), manual.Escape(strings.ToLower(cmd.Short[:1])+cmd.Short[1:]))
	m.section("SYNOPSIS")
	if use := strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath()); cmd.HasParent() &&
		!cmd.HasAvailableSubCommands() {
		m.printf(".B %s\n%s\n", manual.Escape(cmd.CommandPath()), manual.Escape(strings.TrimSpace(use)))
	} else {
		m.printf(".B %s\n.I command\n[flags]\n", manual.Escape(cmd.CommandPath()))
	}
	m.section("DESCRIPTION")
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	m.text(long)
	m.commands(cmd)
	m.flags("OPTIONS", cmd.LocalFlags())
	if cmd.HasAvailableInheritedFlags() {
		m.flags("OPTIONS OF ALL COMMANDS OF "+strings.ToUpper(manual.Escape(cmd.Parent().CommandPath())),
			cmd.InheritedFlags())
	}
	m.section("EXIT STATUS")
	for line := range strings.Lines(exitStatusOf(cmd)) {
		code, meaning, _ := strings.Cut(strings.TrimSpace(line), "  ")
		m.printf(".TP\n.B %s\n%s\n", code, manual.Escape(meaning))
	}
	if cmd.Example != "" {
		m.section("EXAMPLES")
		m.verbatim(cmd.Example)
	}
	m.section("SEE ALSO")
	m.seeAlso(cmd)
	return m.String()
}

// referencePage is a page of section 5 of the manual, in the format of man(7).
type referencePage struct{ name, text string }

// referencePages returns the pages of the policy language and of the file of customers.
func referencePages() []referencePage {
	return []referencePage{
		newReferencePage("shaper-policy", "policy language of shaper", "shaper-customers", docs.Policy, docs.Queues),
		newReferencePage("shaper-customers", "customers in a policy of shaper", "shaper-policy", docs.Customers),
	}
}

func newReferencePage(name, short, see string, pages ...string) referencePage {
	var m manWriter
	m.title(name, 5)
	m.section("NAME")
	m.printf("%s \\- %s\n", manual.Escape(name), short)
	for _, page := range pages {
		m.WriteString(manual.Parse(page).Man())
	}
	m.section("SEE ALSO")
	m.printf(".BR shaper (1),\n.BR shaper\\-check (1),\n.BR %s (5)\n", manual.Escape(see))
	m.printf(".PP\nPages in capitals, such as EXACT, are in /usr/share/doc/shaper/docs.\n")
	return referencePage{name, m.String()}
}

// manWriter collects the text of a page.
type manWriter struct{ strings.Builder }

func (m *manWriter) printf(format string, args ...any) { fmt.Fprintf(m, format, args...) }

func (m *manWriter) title(name string, section int) {
	m.printf(".TH %s %d \"\" %q %q\n", strings.ToUpper(manual.Escape(name)), section, "shaper "+version(),
		"Shaper manual")
}

func (m *manWriter) section(name string) { m.printf(".SH %s\n", name) }

var aligned = pattern.Lazy(`(?m)^( |.*\S  +\S)`)

// text writes paragraphs. Paragraphs with aligned columns keep their lines.
func (m *manWriter) text(text string) {
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			m.printf(".PP\n")
		}
		if aligned().MatchString(paragraph) {
			m.verbatim(paragraph)
		} else {
			m.printf("%s\n", manual.Escape(paragraph))
		}
	}
}

// verbatim writes lines unchanged.
func (m *manWriter) verbatim(text string) {
	m.printf(".nf\n%s\n.fi\n", manual.Escape(strings.Trim(text, "\n")))
}

// commands lists the subcommands, in their groups.
func (m *manWriter) commands(cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	m.section("COMMANDS")
	for _, group := range append(cmd.Groups(), &cobra.Group{Title: "Other:"}) {
		if len(cmd.Groups()) > 0 {
			m.printf(".SS %s\n", manual.Escape(strings.TrimSuffix(group.Title, ":")))
		}
		for _, sub := range cmd.Commands() {
			if sub.GroupID == group.ID && sub.IsAvailableCommand() {
				m.printf(".TP\n.B %s\n%s\n", manual.Escape(sub.Name()), manual.Escape(sub.Short))
			}
		}
	}
}

// flags lists flags with placeholders and defaults.
func (m *manWriter) flags(heading string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	m.section(heading)
	flags.VisitAll(func(flag *pflag.Flag) {
		m.printf(".TP\n")
		if flag.Shorthand != "" {
			m.printf("\\fB%s\\fR, ", manual.Escape("-"+flag.Shorthand))
		}
		m.printf("\\fB%s\\fR", manual.Escape("--"+flag.Name))
		if flag.NoOptDefVal == "" {
			m.printf(" \\fI%s\\fR", manual.Escape(flag.Value.Type()))
		}
		m.printf("\n%s", manual.Escape(flag.Usage))
		if d := flag.DefValue; flag.NoOptDefVal == "" && d != "" && d != "0" {
			m.printf(" (default %s)", manual.Escape(d))
		}
		m.printf("\n")
	})
}

// seeAlso lists the pages of the parents and the subcommands.
func (m *manWriter) seeAlso(cmd *cobra.Command) {
	if !cmd.HasParent() || cmd.Flags().Lookup("policy") != nil {
		m.printf(".BR shaper\\-policy (5),\n.BR shaper\\-customers (5),\n")
	}
	var pages []string
	for parent := cmd.Parent(); parent != nil; parent = parent.Parent() {
		pages = append(pages, pageName(parent))
	}
	for _, sub := range cmd.Commands() {
		if documented(sub) {
			pages = append(pages, pageName(sub))
		}
	}
	for i, page := range pages {
		comma := ","
		if i == len(pages)-1 {
			comma = ""
		}
		m.printf(".BR %s (1)%s\n", manual.Escape(page), comma)
	}
}
