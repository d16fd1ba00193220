package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/advise"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/check"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/compare"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/diff"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/explain"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/schema"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
)

// outputTypes returns the types of the outputs with --json, by command path without shaper.
func outputTypes() map[string][]reflect.Type {
	all := map[string][]reflect.Type{
		"replay":        {reflect.TypeFor[summary.Totals]()},
		"why":           {reflect.TypeFor[explain.Explanation]()},
		"compare":       {reflect.TypeFor[compare.Result](), reflect.TypeFor[shownJSON]()},
		"diff":          {reflect.TypeFor[diff.Result]()},
		"check":         {check.OutputType()},
		"advise":        {reflect.TypeFor[advise.Advice]()},
		"simulate":      {reflect.TypeFor[simulateTotals]()},
		"import":        {reflect.TypeFor[importJSON](), reflect.TypeFor[[]routers.Default]()},
		"version":       {reflect.TypeFor[versionJSON]()},
		"customer show": append([]reflect.Type{reflect.TypeFor[customerShowJSON]()}, liveShow()...),
	}
	maps.Copy(all, liveOutputs())
	return all
}

// outputNames returns the commands with --json.
func outputNames() []string { return slices.Sorted(maps.Keys(outputTypes())) }

// completeOutputs completes with the commands with --json, word by word.
func completeOutputs(
	_ *cobra.Command, args []string, _ string,
) (words []string, _ cobra.ShellCompDirective) {
	before := strings.Join(append(slices.Clone(args), ""), " ")
	for _, name := range outputNames() {
		if rest, ok := strings.CutPrefix(name, before); ok {
			word, _, _ := strings.Cut(rest, " ")
			words = append(words, word)
		}
	}
	return slices.Compact(words), cobra.ShellCompDirectiveNoFileComp
}

func newSchema(s cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "schema [COMMAND]",
		Short: "Print the JSON Schema of the output of a command with --json",
		Long: `Print the JSON Schema (2020-12) of the output of a command with --json, or list
the commands that have one. If a command prints several lines, the schema is that
of each line. The names of properties do not change their meaning; new ones may be
added, also to the schema.`,
		Example: `  shaper schema
  shaper schema stats >stats.schema.json
  shaper schema customer show`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := fmt.Fprintln(s.Out, strings.Join(outputNames(), "\n"))
				return err
			}
			name := strings.TrimPrefix(strings.Join(args, " "), "shaper ")
			types := outputTypes()[name]
			if types == nil {
				return cli.Usagef("no command %q has --json%s: shaper schema lists those that do", name,
					spelling.DidYouMean(name, outputNames()))
			}
			e := json.NewEncoder(s.Out)
			e.SetIndent("", "  ")
			return e.Encode(schema.Of("shaper "+name+" --json", types...))
		},
	}
}
