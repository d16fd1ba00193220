package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// freeFlags are the flags whose values have no known names: numbers, times, texts and addresses.
var freeFlags = strings.Fields(`address budget burst confirm delay drain duration excess fcs filter flows for hosts
	inside interval link loss max-gap max-step memory metrics metrics-customers mss mtu name peak peer queues rate rescue
	rtt seed target-rate top udp-segment window`)

// freeArguments are the commands with arguments of which none has known names.
var freeArguments = map[string]string{
	"shaper man": "a new directory",
	"shaper tap": "a new device",
}

// TestCompleteAll checks that each flag with a value and each argument is completed, or is listed as free.
func TestCompleteAll(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	walkCommands(newRoot(cli.Streams{}), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Name() == "guard" || strings.HasPrefix(path, "shaper completion") || cmd.Name() == "help" {
			return
		}
		placeholders := slices.DeleteFunc(strings.Fields(cmd.Use)[1:], func(word string) bool {
			return strings.HasPrefix(strings.TrimLeft(word, "["), "--")
		})
		completed := argumentValues[path] != nil || liveArguments[path] != nil
		switch free := freeArguments[path] != ""; {
		case len(placeholders) > 0 && !completed && !free:
			t.Errorf("%s %s: arguments without a completion", path, strings.Join(placeholders, " "))
		case completed && free:
			t.Errorf("%s is completed, and listed as free", path)
		}
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(flag *pflag.Flag) {
				if flag.NoOptDefVal != "" {
					return
				}
				used[flag.Name] = true
				completed := flagValues[flag.Name] != nil || liveFlags[flag.Name] != nil || flag.Name == "direction"
				switch free := slices.Contains(freeFlags, flag.Name); {
				case !completed && !free:
					t.Errorf("%s --%s: values without a completion", path, flag.Name)
				case completed && free:
					t.Errorf("--%s is completed, and listed as free", flag.Name)
				}
			})
		}
	})
	for _, name := range slices.Concat(freeFlags, slices.Collect(maps.Keys(liveFlags))) {
		if !used[name] {
			t.Errorf("no command has the flag --%s", name)
		}
	}
}
