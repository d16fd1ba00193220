package main

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

// showFlags are the flags of shaper compare with the counters of a router.
type showFlags struct{ show, name, policy string }

func (f *showFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.show, "show", "",
		"compare with the counters in `FILE`, an output of show policy-map interface of Cisco")
	flags.StringVar(&f.name, "name", "",
		"with --show: the service policy `NAME` of an output with several, such as \"GigabitEthernet0/1 input\"")
	flags.StringVar(&f.policy, "policy", "",
		"with --show: use the policy in `FILE`, with the router's names of classes, instead of the one in the output")
}

// shownJSON is the output of compare --show --json.
type shownJSON struct {
	Policy   string           `json:"policy"` // of the router
	Classes  []shownClassJSON `json:"classes"`
	Warnings []string         `json:"warnings"`
}

type shownClassJSON struct {
	Name   string           `json:"name"`
	Colors []shownColorJSON `json:"colors"`
}

// shownColorJSON omits numbers that the router does not print.
type shownColorJSON struct {
	Counter string `json:"counter"` // conformed, exceeded or violated
	Color   string `json:"color"`
	dataplane.Count
	RouterPackets *int64 `json:"router_packets,omitempty"`
	RouterBytes   *int64 `json:"router_bytes,omitempty"`
}

// runShow replays a capture through the policy of a router, and prints the counters of both.
func (f *compareFlags) runShow(cmd *cobra.Command, s cli.Streams, in string) error {
	text, err := cli.ReadLimited("output", f.show, maxConfiguration)
	if err != nil {
		return err
	}
	source := routers.Source{Name: say.Printable(f.show), Text: string(text)}
	imported, err := routers.From("cisco-show").Import(source)
	var draft *routers.Draft
	var problems []routers.Problem
	if err == nil {
		draft, problems, err = imported.Pick(f.name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", source.Name, routers.Misread(err, "cisco-show", source))
	}
	if len(draft.Counters) == 0 {
		return fmt.Errorf("%s: policy %q has no policer with counters", source.Name, draft.Name)
	}
	policy, err := f.shownPolicy(source, draft, problems)
	if err != nil {
		return err
	}
	input, err := openInput(in, s.In)
	if err != nil {
		return err
	}
	defer input.Close()
	plan := policy.Plan.For(f.way.direction)
	cfg, err := f.config(sharedClasses(plan))
	if err != nil {
		return err
	}
	pl := pipeline.FromPlan(plan)
	summary, cut, err := f.replay(cmd.Context(), s, input, replay.Go{Pipeline: pl}, cfg)
	if err != nil {
		return err
	}
	input.warn(s, summary)
	result := shownJSON{Policy: draft.Name, Warnings: append([]string{}, summary.Warnings...)}
	for _, c := range draft.Counters {
		result.Classes = append(result.Classes, shownClass(policy.Policy, pl.Stats(), c))
	}
	if f.json {
		err = say.WriteJSON(s.Out, result)
	} else {
		_, err = fmt.Fprintln(s.Out, result.table(say.Colored(s.Out)))
	}
	if err == nil && cut != nil {
		err = fmt.Errorf("%s: %w: the %d packets before that were compared", input.name, cut, summary.Packets)
	}
	return err
}

// shownPolicy compiles the policy in the flags, or that of the router.
func (f *compareFlags) shownPolicy(
	source routers.Source, draft *routers.Draft, problems []routers.Problem,
) (*policyfile.Compiled, error) {
	if f.policy != "" {
		p := cli.PolicyFlags{File: f.policy}
		return p.Load()
	}
	if errs := errorsAt(source, problems); errs != nil {
		return nil, errors.Join(append(errs, fmt.Errorf(
			"%s: the output does not contain the whole policy: give it with --policy FILE", source.Name))...)
	}
	if f.length != "" {
		draft.Policy.Length = dataplane.LengthRule{Base: lengthBases[f.length]}
	}
	text, err := draft.Render(source.Name, "")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source.Name, err)
	}
	policy, problems := compileImported(draft, text)
	return policy, errors.Join(errorsAt(source, problems)...)
}

// shownClass sums the counters of the classes that were made from a class of the router.
func shownClass(policy *dataplane.Policy, stats []dataplane.ClassStats, c routers.Counter) shownClassJSON {
	part := regexp.MustCompile("^" + regexp.QuoteMeta(c.Class) + `(-\d+)?$`)
	row := shownClassJSON{Name: c.Class}
	for i, shown := range c.Colors {
		if shown == nil {
			continue
		}
		n := shownColorJSON{
			Counter: [...]string{"conformed", "exceeded", "violated"}[i], RouterPackets: shown.Packets,
			RouterBytes: shown.Bytes,
		}
		for j := range policy.Classes {
			class := &policy.Classes[j]
			// nil: of a customer's plan
			if !part.MatchString(class.Name) || class.Meter == nil || class.Meter.Params == nil {
				continue
			}
			color := routers.ColorOf(i, len(class.Meter.Params.Buckets()))
			n.Color, n.Count = color.String(), n.Plus(stats[j].Colors[color])
		}
		if n.Color == "" {
			n.Color = meter.Color(i).String()
		}
		row.Colors = append(row.Colors, n)
	}
	return row
}

// table draws the counters of both, one line for each class and color.
func (r *shownJSON) table(colored bool) string {
	t := say.NewTable(4, "class", "router", "color", "packets", "router packets", "bytes", "router bytes",
		"bytes differ by")
	t.SuppressTrailingSpaces()
	for _, c := range r.Classes {
		name := c.Name
		for _, n := range c.Colors {
			color, _ := meter.ParseColor(n.Color)
			differs := ""
			if n.RouterBytes != nil && *n.RouterBytes > 0 {
				differs = fmt.Sprintf("%+.2f %%", 100*(float64(n.Bytes)/float64(*n.RouterBytes)-1))
			}
			t.AppendRow(table.Row{
				name, n.Counter, say.Color(color, colored), say.Grouped(n.Packets), orDash(n.RouterPackets),
				say.Grouped(n.Bytes), orDash(n.RouterBytes), differs,
			})
			name = ""
		}
	}
	return t.Render()
}

// orDash writes a number, or a dash for one that the router does not print.
func orDash(n *int64) string {
	if n == nil {
		return "-"
	}
	return say.Grouped(*n)
}
