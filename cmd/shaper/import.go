package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policywriter"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	_ "github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/libreqos" // adds an importer
	_ "github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/tc"       // adds a dialect
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// importFlags are the flags of shaper import.
type importFlags struct {
	from, name, link, length, platform, out string
	lossy, verbose, json, explain           bool
}

// importJSON is the output of import --json.
type importJSON struct {
	From        string                    `json:"from"`                // dialect
	Source      string                    `json:"source"`              // file or interface
	Name        string                    `json:"name"`                // of the policy in the configuration
	Policy      string                    `json:"policy"`              // text; "" if statements were refused
	Customers   string                    `json:"customers,omitempty"` // text of the file of customers
	Remarks     []string                  `json:"remarks"`
	Notes       []routers.Problem         `json:"notes"` // statements with another effect in the policy
	Conversions []policywriter.Conversion `json:"conversions"`
	Refused     []routers.Problem         `json:"refused"`
	Omitted     []routers.Problem         `json:"omitted"` // with --lossy
	Skipped     []routers.Problem         `json:"skipped"` // statements outside of policies
}

func newImport(s cli.Streams) *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use:     "import [--from DIALECT] FILE",
		GroupID: "plan",
		Short:   "Turn the configuration of a router, or of tc, into a policy",
		Long: `Read policers, shapers, classes and queues from a configuration, and print them
as a policy. Each line has a comment: the line and the statement it was made
from, and how its value was converted. FILE - is standard input. Without --from the
language is that of the first statement that only one language has.

From libreqos, FILE is network.json. ShapedDevices.csv must be beside it, and -o
is needed: the customers are written to a file beside the policy, with .csv.

If a statement cannot be expressed in a policy, print it with its line and the
reason, write no policy and exit with 1. With --lossy, omit it and continue.

--explain prints the values that statements leave out, by platform, with the
guides from which they are.`,
		Example: `  shaper import --from cisco docs/edge.cfg -o edge.yaml
  shaper check edge.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.explain {
				return cli.NoArgs(cmd, args)
			}
			return cli.OneArg("configuration")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if f.explain {
				return f.explainDefaults(s)
			}
			return f.run(s, args[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "the language of FILE is `DIALECT`: "+listed(routers.ImportNames()))
	flags.StringVar(&f.name, "name", "", "import the policy `NAME` of a configuration that has several")
	flags.StringVar(&f.link, "link", "",
		"the interface has `RATE`, such as 1gbit: needed for rates in percent and for shares of the bandwidth")
	flags.StringVar(&f.length, "length", "",
		"the router counts packet lengths by `RULE`: l3, l2 or l1 (default l3)")
	flags.StringVar(&f.platform, "platform", "",
		"values that statements leave out are those of `PLATFORM` (default as the configuration shows; --explain lists them)")
	flags.BoolVar(&f.explain, "explain", false, "print the defaults of platforms, and exit")
	flags.BoolVar(&f.lossy, "lossy", false, "omit statements that a policy cannot express, and exit with 0")
	flags.BoolVar(&f.verbose, "verbose", false,
		"print the statements that are skipped because they are outside of policies")
	flags.BoolVar(&f.json, "json", false,
		"print the policy, its conversions and the refused statements as JSON")
	flags.StringVarP(&f.out, "output", "o", "", "write the policy to `FILE`")
	return cmd
}

// lengthBases are the values of --length.
var lengthBases = map[string]dataplane.LengthBase{"l3": dataplane.L3, "l2": dataplane.L2, "l1": dataplane.L1}

// listed joins words for a sentence.
func listed(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func (f *importFlags) run(s cli.Streams, path string) error {
	defer cli.Interrupted.AllowExit()()
	if err := f.check(path); err != nil {
		return err
	}
	source, err := f.source(s, path)
	if err != nil {
		return err
	}
	importer := routers.From(f.from)
	o := routers.Options{Platform: f.platform}
	if f.link != "" {
		link, err := policyfile.ParseRate(f.link)
		if err == nil && link == (meter.Rate{Period: link.Period}) {
			err = errors.New("it must be above zero")
		}
		if err != nil {
			return cli.Usagef("--link: %w", err)
		}
		o.Link = link
	}
	if name := routers.Pair(importer); name != "" {
		path := filepath.Join(filepath.Dir(path), name)
		text, err := cli.ReadLimited("devices", path, maxConfiguration)
		if err != nil {
			return err
		}
		source.Companion = &routers.Source{Name: say.Printable(path), Text: string(text)}
	}
	source.Options = o
	in, err := importer.Import(source)
	if err == nil {
		return f.write(s, source, in)
	}
	return fmt.Errorf("%s: %w", source.Name, routers.Misread(err, f.from, source))
}

// check checks the flags. If the language is not known yet, it leaves out those that depend on it.
func (f *importFlags) check(path string) error {
	importer := routers.From(f.from)
	_, known := lengthBases[f.length]
	switch {
	case f.from != "" && importer == nil:
		return cli.Usagef("--from %q: want %s", f.from, listed(routers.ImportNames()))
	case !known && f.length != "":
		return cli.Usagef("--length %q: want l3, l2 or l1", f.length)
	case f.out == "-" && f.json:
		return cli.Usagef("only one of -o - and --json can write to standard output")
	case importer == nil:
		return nil
	case routers.Pair(importer) != "" && (f.out == "" || f.out == "-" || path == "-"):
		return cli.Usagef("--from %s reads %s beside the file, and writes two files: give the file by name, and -o",
			f.from, routers.Pair(importer))
	case routers.Pair(importer) != "" && customersBeside(f.out) == f.out:
		return cli.Usagef("-o %s is the name of the file of customers: choose another for the policy", f.out)
	}
	switch platforms := routers.Platforms(f.from); {
	case f.platform == "" || slices.Contains(platforms, f.platform):
		return nil
	case platforms == nil:
		return cli.Usagef("--platform: %s has no platforms with different defaults", f.from)
	default:
		return cli.Usagef("--platform %q: want %s", f.platform, listed(platforms))
	}
}

// source reads the configuration, and finds out its language if the flags do not say it.
func (f *importFlags) source(s cli.Streams, path string) (routers.Source, error) {
	source, err := f.read(s, path)
	if err != nil || f.from != "" {
		return source, err
	}
	if f.from = routers.Guess(source.Text); f.from == "" {
		return source, cli.Usagef("%s: --from is missing, and the language is not recognized: want %s", source.Name,
			listed(routers.ImportNames()))
	}
	fmt.Fprintf(s.Err, "shaper: note: %s: read as %s (--from)\n", source.Name, f.from)
	return source, f.check(path)
}

// explainDefaults prints the table of defaults, by platform.
func (f *importFlags) explainDefaults(s cli.Streams) error {
	rows := []routers.Default{}
	for _, language := range routers.ImportNames() {
		if f.from == "" || f.from == language {
			rows = append(rows, routers.Defaults(language)...)
		}
	}
	if f.json {
		return say.WriteJSON(s.Out, rows)
	}
	var t strings.Builder
	for i, r := range rows {
		if i == 0 || r.Language != rows[i-1].Language || r.Platform != rows[i-1].Platform {
			fmt.Fprintf(&t, "\n--from %s", r.Language)
			if r.Platform != "" {
				fmt.Fprintf(&t, " --platform %s: %s", r.Platform, r.Models)
			}
			t.WriteString("\n")
		}
		fmt.Fprintf(&t, "  %-19s %-16s %s\n", r.Statement, r.Parameter, r.Rule)
		if i+1 == len(rows) || r.Source != rows[i+1].Source || r.Platform != rows[i+1].Platform {
			fmt.Fprintf(&t, "    source: %s\n", r.Source)
		}
	}
	_, err := io.WriteString(s.Out, strings.TrimPrefix(t.String(), "\n"))
	return err
}

// read returns the configuration: a file, standard input, or that of an interface.
func (f *importFlags) read(s cli.Streams, path string) (routers.Source, error) {
	if path == "-" {
		text, err := io.ReadAll(io.LimitReader(s.In, maxConfiguration+1))
		if err == nil && len(text) > maxConfiguration {
			err = fmt.Errorf("it is larger than %d MiB, the maximum", maxConfiguration>>20)
		}
		if err != nil {
			return routers.Source{}, fmt.Errorf("standard input: %w", err)
		}
		return routers.Source{Name: "standard input", Text: string(text)}, nil
	}
	if live, ok := routers.From(f.from).(routers.LiveDialect); ok {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			source, err := live.Live(path)
			if err != nil {
				return source, fmt.Errorf("%q is not a file, and as an interface: %w", path, err)
			}
			return source, nil
		}
	}
	text, err := cli.ReadLimited("configuration", path, maxConfiguration)
	return routers.Source{Name: say.Printable(path), Text: string(text)}, err
}

// maxConfiguration is the maximum size of a configuration. Those of large routers have some MB.
const maxConfiguration = 64 << 20

// write checks the chosen draft and writes it.
func (f *importFlags) write(s cli.Streams, source routers.Source, in *routers.Import) error {
	draft, problems, err := in.Pick(f.name)
	if err != nil {
		return fmt.Errorf("%s: %w", source.Name, routers.Misread(err, f.from, source))
	}
	f.reportSkipped(s, source, in)
	none := []routers.Problem{}
	result := importJSON{
		From: f.from, Source: source.Name, Name: draft.Name,
		Remarks: append([]string{}, draft.Remarks...), Conversions: []policywriter.Conversion{},
		Notes: append(none, draft.Notes...), Refused: none, Omitted: none,
		Skipped: append(none, in.Skipped...),
	}
	if n := len(problems); !f.lossy && n > 0 {
		const refused = "%s: %s cannot be expressed in a policy: nothing was written: --lossy omits them"
		return f.refuse(s, source, result, problems,
			fmt.Errorf(refused, source.Name, say.Count(n, "statement")))
	}
	for _, err := range errorsAt(source, problems) {
		fmt.Fprintf(s.Err, "shaper: warning: omitted: %s\n", say.Printable(err.Error()))
	}
	result.Omitted = append(none, problems...)
	if f.length != "" {
		if err := draft.CountAs(lengthBases[f.length]); err != nil {
			return fmt.Errorf("%s: --length %s: %w", source.Name, f.length, err)
		}
	}
	customers := ""
	if draft.Customers != "" {
		customers = filepath.Base(customersBeside(f.out))
	}
	title := fmt.Sprintf("Imported by shaper import --from %s from %s, policy %s.", f.from, source.Name,
		draft.Name)
	rendered, err := draft.Render(title, customers)
	if err != nil {
		return fmt.Errorf("%s: %w", source.Name, err)
	}
	for _, err := range errorsAt(source, draft.Notes) {
		fmt.Fprintf(s.Err, "shaper: note: %s\n", say.Printable(err.Error()))
	}
	if _, problems := compileImported(draft, rendered); len(problems) > 0 {
		return f.refuse(s, source, result, problems, nil)
	}
	if draft.Customers != "" {
		if err := writeResult(s, "customers", customersBeside(f.out), draft.Customers); err != nil {
			return err
		}
	}
	if f.out != "" || !f.json {
		if err := writeResult(s, "policy", f.out, rendered.Text); err != nil {
			return err
		}
	}
	if !f.json {
		return nil
	}
	result.Customers = draft.Customers
	result.Policy, result.Conversions = rendered.Text, append(result.Conversions, rendered.Conversions...)
	return say.WriteJSON(s.Out, result)
}

// customersBeside returns the name of the file of customers for a policy file.
func customersBeside(policy string) string {
	return strings.TrimSuffix(policy, filepath.Ext(policy)) + ".csv"
}

// refuse returns the problems as errors, followed by a last one, which may be nil. With --json it
// prints them too.
func (f *importFlags) refuse(
	s cli.Streams, source routers.Source, result importJSON, problems []routers.Problem, last error,
) error {
	err := errors.Join(append(errorsAt(source, problems), last)...)
	if f.json {
		result.Refused = problems
		err = errors.Join(err, say.WriteJSON(s.Out, result))
	}
	return err
}

// errorsAt returns problems as errors with their places.
func errorsAt(source routers.Source, problems []routers.Problem) (errs []error) {
	for _, p := range problems {
		place := cmp.Or(p.File, source.Name)
		if p.Line > 0 {
			place = fmt.Sprintf("%s:%d", place, p.Line)
		}
		errs = append(errs, fmt.Errorf("%s: %v", place, p))
	}
	return errs
}

// reportSkipped counts or prints the statements outside of policies.
func (f *importFlags) reportSkipped(s cli.Streams, source routers.Source, in *routers.Import) {
	if len(in.Skipped) == 0 {
		return
	}
	if !f.verbose {
		fmt.Fprintf(s.Err, "shaper: note: %s: skipped %s outside of policies: --verbose prints them\n",
			source.Name, say.Count(len(in.Skipped), "statement"))
		return
	}
	for _, p := range in.Skipped {
		fmt.Fprintf(s.Err, "shaper: note: %s:%d: skipped: %s\n", source.Name, p.Line, say.Printable(p.Text))
	}
}

// compileImported compiles an imported policy. Problems have the line of the configuration.
func compileImported(
	draft *routers.Draft, r *policywriter.Text,
) (policy *policyfile.Compiled, problems []routers.Problem) {
	if len(draft.Classes) == 0 {
		return nil, []routers.Problem{{Reason: "nothing is left that a policy can express"}}
	}
	policy, err := compileText(draft, r.Text)
	if err == nil {
		return policy, nil
	}
	for text := range strings.Lines(err.Error()) {
		p := routers.Problem{Reason: strings.TrimSuffix(text, "\n")}
		if at, rest, ok := strings.Cut(p.Reason, ": "); ok {
			var line, column int
			if _, err := fmt.Sscanf(at, "imported:%d:%d", &line, &column); err == nil {
				p.Line, p.Reason = r.SourceLine(line), rest
			}
		}
		problems = append(problems, p)
	}
	return nil, problems
}

// compileText compiles the text of a draft with its customers.
func compileText(draft *routers.Draft, text string) (*policyfile.Compiled, error) {
	const name = "imported"
	if draft.Customers == "" {
		return policyfile.Source{Name: name, Text: text}.Compile()
	}
	file, err := policyfile.LoadWith(name, []byte(text), func(string) (string, error) {
		return draft.Customers, nil
	})
	if err != nil {
		return nil, err
	}
	plan, err := file.Compile()
	return &policyfile.Compiled{File: file, Plan: plan}, err
}
