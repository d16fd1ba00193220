package routers_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// show is an output of show policy-map interface with each statement that Import knows.
const show = ` GigabitEthernet0/1

  Service-policy output: P

    Class-map: a (match-any)
      12 packets, 1200 bytes
      5 minute offered rate 0000 bps, drop rate 0000 bps
      Match: dscp ef (46)
      police:
          cir 10 %
          cir 10000 bps, bc 1500 bytes
        conformed 3 packets, 300 bytes; actions:
          transmit
        exceeded 1 bytes; actions:
          drop
        conformed 0000 bps, exceeded 0000 bps
      QoS Set
        dscp af11
          Packets marked 12
          Marker statistics: Disabled
    Class-map: b (match-any) (12/3)
      Match: dscp af11
      Queueing
      queue limit 64 packets
      (queue depth/total drops/no-buffer drops) 0/0/0
      (pkts output/bytes output) 0/0
      Output Queue: Conversation 264
      Mean queue depth: 0 packets
      shape (average) cir 1000000, bc 4000, be 4000
      target shape rate 1000000
    Class-map: c (match-any)
      Match: dscp af21
      bandwidth 1000 kbps
    Class-map: d (match-any)
      Match: dscp af31
      bandwidth remaining 30% (3000 kbps)
    Class-map: e (match-any)
      Match: dscp cs5
      Priority: Strict, burst bytes 1500, b/w exceed drops: 0
    Class-map: f (match-any)
      Match: dscp cs6
      Priority Level: 2
    Class-map: g (match-any)
      Match: dscp cs7
      police:
          cir 10000 bps, bc 1500 bytes
        conformed 3 packets, 300 bytes; action: transmit
        exceeded 1 packets, 100 bytes; action: set-dscp-transmit af12
`

// TestStrangeShow inserts an unknown word at each place of the output, and an unknown statement after
// each line. Import must report it.
func TestStrangeShow(t *testing.T) {
	t.Parallel()
	e := edge{name: "cisco-show", dialect: importOnly{routers.From("cisco-show")}}
	before := e.outcome(t, show)
	if strings.Contains(before, "understood") {
		t.Fatal(before)
	}
	lines := strings.SplitAfter(show, "\n")
	for i, line := range lines {
		for _, changed := range strangeLines(line) {
			after := e.outcome(t, strings.Join(lines[:i], "")+changed+strings.Join(lines[i+1:], ""))
			if after == before {
				t.Errorf("not reported: %q", changed)
			}
		}
	}
}

// TestShowTypes checks the types of service policies: queueing ones are read, and those of firewalls
// are not.
func TestShowTypes(t *testing.T) {
	t.Parallel()
	const class = "    Class-map: class-default (match-any)\n      Match: any\n      "
	text := " Gi0\n  Service-policy queueing output: P\n" + class + "shape (average) cir 1000000, bc 4000, be 4000\n" +
		"      Service-policy queueing : C\n    " + class + "priority level 1\n" +
		"  Service-policy inspect : F\n" + class + "Drop\n"
	in, err := routers.From("cisco-show").Import(routers.Source{Text: text})
	if err != nil {
		t.Fatal(err)
	}
	draft, problems, err := in.Pick("")
	if err != nil || problems != nil || len(in.Drafts) != 2 {
		t.Fatal(err, problems, len(in.Drafts))
	}
	if got := rendered(t, draft); !strings.Contains(got, "rate: 1mbit") || strings.Contains(got, "drop") {
		t.Error(got)
	}
}

// importOnly is a language for import as a dialect.
type importOnly struct{ routers.Importer }

func (importOnly) Export(*dataplane.Policy, string) *routers.Export { return nil }

// TestShowParameters checks statements of which a part would be easy to lose.
func TestShowParameters(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ statement, want string }{
		{"shape (peak) cir 1000000, bc 4000, be 4000", "shape peak adds"},
		{"shape (5)", "not complete"},
		{"Priority: 8 kbps, burst bytes 1500, b/w exceed drops: 0", "while the interface is congested"},
		{"Priority Level: 2", "priority: 1"},
		{"priority level 2", "priority: 1"},
		{"Fair-queue: per-flow queue limit 16 packets", "each flow has a limit of its own"},
		{"Exp-weight-constant: 9 (1/512)", "WRED by DSCP"},
		{"AFD WRED STATS BEGIN", "WRED by DSCP"},
		{"drop", "green: drop"},
		{"anything else", `"anything" is not understood`},
		{"shape (average) cir 1000000, bc 4000, be 4000\n      queue limit 10 ms/ 1250 bytes", "limit: 10ms"},
		{"Overhead Accounting Enabled", "account adds"},
		{"police:\n          cir 10000 bps, bc 1500 bytes\n" +
			"        exceeded 1 packets, 100 bytes; action: set-dscp-transmit af12", "red: {dscp: af12}"},
	} {
		text := " Gi0\n  Service-policy output: P\n    Class-map: a (match-any)\n      Match: dscp ef\n      " +
			tt.statement + "\n"
		in, err := routers.From("cisco-show").Import(
			routers.Source{Text: text, Options: routers.Options{Link: meter.BitRate(1e9)}})
		if err != nil {
			t.Fatal(err)
		}
		draft, problems, err := in.Pick("")
		if err != nil {
			t.Fatal(err)
		}
		got := rendered(t, draft) + fmt.Sprint(problems)
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: got\n%s\nwant %s", tt.statement, got, tt.want)
		}
	}
}
