package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

// TestBudgetCommands shows and changes budgets on a real server, in bytes and in packets.
func TestBudgetCommands(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "store")
	storetest.Start(t, storetest.Kinds(t)[0], storetest.Config("unixsocket "+socket))
	policy, err := policyfile.Source{Name: "test", Text: `classes:
  - name: bytes
    match: {proto: udp}
    meter: {type: trtcm, cir: 80mbit, cbs: 1MiB, pir: 100mbit, pbs: 2MiB, share: {budget: b, interval: 500ms, store: "unix://` + socket + `"}}
  - name: packets
    meter: {type: token-bucket, rate: 100p/1s, burst: 400, count: packets, share: {budget: p, interval: 500ms, store: "unix://` + socket + `", rescue: 50%}}
`}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var notes bytes.Buffer
	s := budgets.New(kernel.Now,
		func(format string, args ...any) { say.NewPrinter(&notes).Printf(format+"\n", args...) })
	if err := s.Follow(t.Context(), []budgets.Host{{Plan: policy.Plan, Name: "host"}},
		[]budgets.Leaser{leaseIgnorer{}}); err != nil {
		t.Fatal(err)
	}
	command := func(args string) (code int, text string) {
		var out, errs bytes.Buffer
		code = run(append([]string{"budget"}, strings.Fields(args+" --store unix://"+socket)...),
			cli.Streams{Out: &out, Err: &errs})
		return code, strings.Join(strings.Fields(out.String()+errs.String()), " ")
	}
	prints := func(code int, args string, want ...string) {
		t.Helper()
		got, text := command(args)
		for _, w := range want {
			if got != code || !strings.Contains(text, w) {
				t.Errorf("shaper budget %s: exit %d, %q: want %d, %q", args, got, text, code, w)
			}
		}
	}
	shows := func(args string, want ...string) { // the host may be late at first, or for a while
		t.Helper()
		storetest.Until(t, args+" shows "+want[0], func() bool {
			code, text := command(args)
			return code == 0 &&
				!slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(text, w) })
		})
	}
	shows("list", "b 80 Mbit/s + 100 Mbit/s 1 MiB + 2 MiB 80 Mbit/s + 100 Mbit/s 1 0",
		"p 100 packets/s 400 packets")
	shows("list --json", `{"name":"p","packets":true,"size":{"rate":[800,0],"burst":[400,0]}`,
		`{"name":"b","packets":false,"size":{"rate":[80000000,100000000]`)
	for _, args := range []string{"list --json", "show p --json"} {
		_, text := command(args)
		for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
			var value any
			if err := d.Decode(&value); err != nil {
				t.Fatal(err)
			}
			if err := schemaOf(t, "budget", strings.Fields(args)[0]).Validate(value); err != nil {
				t.Errorf("%s: %v", args, err)
			}
		}
	}
	shows("show p", "budget p rate 100 packets/s, the smallest of the hosts' policies burst 400 packets held",
		"host 100 packets/s")
	prints(0, "set p rate=50p/1s", "budget p: rate 50 packets/s, burst 400 packets for all hosts")
	storetest.Until(t, "the rate that is set is in force", func() bool {
		_, text := command("show p")
		return strings.Contains(text, "rate 50 packets/s, set by shaper budget set")
	})
	prints(2, "set p rate=50mbit", `rate=50mbit: "50mbit" is not a rate in packets`)
	prints(2, "set b rate=50p/1s", `rate=50p/1s: "50p/1s" is not a rate`)
	prints(0, "set b pir=90mbit cbs=500kB",
		"budget b: rate 80 Mbit/s + 90 Mbit/s, burst 488.3 KiB + 2 MiB for all hosts")
	prints(0, "set new rate=10p/1s burst=20", "budget new: rate 10 packets/s, burst 20 packets for all hosts")
	prints(1, "set other rate=10mbit", "the store has no such budget: give its rate and its burst")
	prints(2, "set b color=red", "color=red: unknown parameter: want rate, ")
	prints(0, "unset b", "budget b: the smallest size in the hosts' policies applies")
	prints(1, "unset b", "budget b: no size was set")
	s.End(false)
	storetest.Until(t, "the host is dropped after its lease", func() bool {
		code, text := command("drop p host")
		return code == 0 && text == "budget p: dropped host host"
	})
	prints(1, "drop p host", "the budget has no such host")
	prints(1, "show neww", `the store has no such budget (did you mean "new"?)`)
	prints(1, "show nothing", "the store has no such budget")
	for _, want := range []string{
		`budget b: .*bit/s of 80 Mbit/s \+ 100 Mbit/s, with 1 host\n`,
		`budget p: .* packets/s of \d+ packets/s, with 1 host\n`,
	} {
		if !regexp.MustCompile(want).MatchString(notes.String()) {
			t.Errorf("it says %q: want %q", notes.String(), want)
		}
	}
}

// leaseIgnorer ignores leases.
type leaseIgnorer struct{}

func (leaseIgnorer) SetLease(string, compiled.Lease) error { return nil }
func (leaseIgnorer) Demand(string) ([3]uint64, error)      { return [3]uint64{}, nil }
