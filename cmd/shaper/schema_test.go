package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// schemaOf returns the schema that shaper schema prints for a command.
func schemaOf(t *testing.T, command ...string) *jsonschema.Schema {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(append([]string{"schema"}, command...), cli.Streams{Out: &out, Err: &errs}); code != cli.ExitDone {
		t.Fatalf("schema %q: exit %d: %s", command, code, &errs)
	}
	text, err := jsonschema.UnmarshalJSON(&out)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", text); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	return s
}

// TestSchemas checks that each command with --json has a schema, and that no other has one.
func TestSchemas(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := run([]string{"schema"}, cli.Streams{Out: &out, Err: &errs}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &errs)
	}
	listed := strings.Split(strings.TrimSpace(out.String()), "\n")
	var want []string
	walkCommands(newRoot(cli.Streams{}), func(cmd *cobra.Command) {
		if cmd.Flags().Lookup("json") != nil {
			name := strings.TrimPrefix(cmd.CommandPath(), "shaper ")
			want = append(want, name)
			schemaOf(t, strings.Fields(name)...)
		}
	})
	if slices.Sort(want); !slices.Equal(listed, want) {
		t.Errorf("schema lists %q, want %q", listed, want)
	}
	errs.Reset()
	if code := run([]string{"schema", "stat"}, cli.Streams{Out: &out, Err: &errs}); code != cli.ExitUsage ||
		!strings.Contains(errs.String(), `no command "stat" has --json (did you mean "stats"?)`) {
		t.Errorf("an unknown command: exit %d: %s", code, &errs)
	}
}

// TestSchemaOutputs checks outputs of commands against their schemas. Those of live commands are checked by
// TestLiveSchemas.
func TestSchemaOutputs(t *testing.T) {
	t.Parallel()
	const bursts, voice = "../../testdata/pcaps/bursts.pcap", "../../testdata/pcaps/voice-bulk.pcapng"
	checked := map[string]bool{}
	for _, line := range []string{
		"version",
		"replay " + bursts + " --rate 10mbit",
		"replay " + bursts + " --rate 10mbit --no-episodes",
		"replay " + voice + " --policy ../../docs/uplink.yaml",
		"replay " + voice + " --policy ../../docs/hosts.yaml",
		"replay ../../testdata/pcaps/office.pcap --policy ../../docs/isp.yaml",
		"replay ../../testdata/pcaps/edges.pcap --policy ../../docs/link.yaml",
		"why " + bursts + " 15 --rate 10mbit",
		"why " + voice + " 1 --policy ../../docs/uplink.yaml --verbose",
		"why " + voice + " 20 --policy ../../docs/hosts.yaml",
		"why ../../testdata/pcaps/office.pcap 3 --policy ../../docs/isp.yaml",
		"compare " + bursts + " --rate 10mbit",
		"compare " + bursts + " --show ../../docs/edge.show",
		"diff ../../docs/uplink.yaml ../../docs/link.yaml",
		"diff ../../docs/isp.yaml ../../docs/customer.yaml",
		"diff ../../docs/uplink.yaml ../../docs/link.yaml " + voice,
		"check --rate 10mbit",
		"check ../../docs/uplink.yaml", "check ../../docs/hosts.yaml", "check ../../docs/isp.yaml",
		"check ../../docs/link.yaml", "check ../../docs/customer.yaml", "check ../../docs/quotas.yaml",
		"check ../../docs/shared.yaml", "check ../../docs/home.yaml", "check ../../docs/export.yaml",
		"check ../../docs/uplinks.yaml",
		"advise " + bursts,
		"advise " + bursts + " --rate 10mbit --rtt 20ms",
		"advise " + voice + " --policy ../../docs/uplink.yaml",
		"advise " + voice + " --policy ../../docs/hosts.yaml",
		"advise --rate 10mbit --rtt 20ms",
		"simulate --budget 1gbit --hosts 3 --duration 5s",
		"import ../../docs/edge.cfg --from cisco",
		"import --from cisco --explain",
		"customer show 192.0.2.11 --policy ../../docs/isp.yaml",
		"customer show 203.0.113.99 --policy ../../docs/isp.yaml",
		"customer show 192.0.2.11 --policy ../../docs/quotas.yaml",
	} {
		t.Run(line, func(t *testing.T) {
			args := strings.Fields(line)
			command := args[:1]
			if args[0] == "customer" {
				command = args[:2]
			}
			var out, errs bytes.Buffer
			run(append(args, "--json"), cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
			if out.Len() == 0 {
				t.Fatalf("no output: %s", &errs)
			}
			value, err := jsonschema.UnmarshalJSON(&out)
			if err != nil {
				t.Fatal(err)
			}
			schema := schemaOf(t, command...)
			if err := schema.Validate(value); err != nil {
				t.Error(err)
			}
			if object, ok := value.(map[string]any); ok {
				if object["new-property"] = json.Number("1"); schema.Validate(object) == nil {
					t.Error("the schema allows an unknown property")
				}
			}
		})
		checked[strings.Fields(line)[0]] = true
	}
	for name := range outputTypes() {
		if first := strings.Fields(name)[0]; liveOutputs()[name] == nil && !checked[first] {
			t.Errorf("no output of %s is checked", name)
		}
	}
}
