package livetest

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// setCustomer changes a customer by a control socket. Fields are JSON, such as "off": true.
func setCustomer(t *testing.T, socket, name, fields string) {
	t.Helper()
	wantAnswer(t, 200, socket, "/v1/changes", fmt.Sprintf(`{"kind":"customer","name":%q,%s}`, name, fields))
}

// TestLiveSetCustomers changes customers hundreds of times while two CPUs send. No packet is lost
// from a counter. Changes back and forth give no tokens, and another customer notices nothing.
func TestLiveSetCustomers(t *testing.T) {
	skipInVM(t)
	for _, m := range []placement{{"tcx", "egress"}, {"tc", "ingress"}} {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			s := newControlSockets(t)
			policy, _ := writeTable(t, "green: pass", `
  frozen: {type: token-bucket, rate: 1B/1000s, burst: 10kB}
  two: {type: srtcm, cir: 1B/1000s, cbs: 4kB, ebs: 16kB}
  slow: {type: token-bucket, rate: 20kB/s, burst: 10kB}
  fast: {type: token-bucket, rate: 40kB/s, burst: 10kB}
  open: {type: token-bucket, rate: 1gbit, burst: 1GB}
`, `customer,address,plan
untouched,192.0.2.1,frozen
changed,192.0.2.2 2001:db8:2::/48,frozen
timed,192.0.2.3,slow
switched,192.0.2.4,open
`)
			r := p.runShaper(m.flags(s.flags("--policy", policy)...)...)
			program, table := p.stats().ProgramID, p.customerMap()
			sniffer := p.sniffPassed(m)
			begin := time.Now()
			load := p.startLoad(m, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "2001:db8:2::1")
			enough := func(ok func(rows map[string]customerRow) bool) {
				t.Helper()
				eventually(t, func() error {
					if rows := p.customers(); !ok(rows) {
						return fmt.Errorf("counted %+v: want more packets", rows)
					}
					return nil
				})
			}
			enough(func(rows map[string]customerRow) bool { return rows["switched"].Packets > 0 })
			of := map[string][]string{
				"changed": {
					`"plan":"two"`, `"plan":"frozen"`, `"plan":"frozen","parameters":{"burst":"20kB"}`, `"plan":"frozen","parameters":{"rate":"2B/1000s"}`,
					`"off":true`, `"off":false`, `"reset":true`, `"plan":"frozen","parameters":{"burst":"300B"}`,
				},
				"timed":    {`"plan":"fast"`, `"plan":"slow"`, `"parameters":{"rate":"30kB/s"}`, `"parameters":{"burst":"5kB"}`, `"reset":true`},
				"switched": {`"off":true`, `"off":false`},
			}
			for i := range 300 {
				name := []string{"changed", "timed", "switched"}[i%3]
				list := of[name]
				setCustomer(t, s.write, name, list[rand.IntN(len(list))])
			}
			p.wantExit(0, "set", "v0", "customer", "timed", "plan=fast")
			p.wantExit(0, "set", "v0", "customer", "switched", "on")
			setCustomer(t, s.write, "switched", `"off":true`)
			enough(func(rows map[string]customerRow) bool { return rows["switched"].Dropped.Packets > 0 })
			setCustomer(t, s.write, "switched", `"off":false`)
			enough(func(rows map[string]customerRow) bool {
				return rows["switched"].Packets > rows["switched"].Dropped.Packets &&
					rows["untouched"].Dropped.Packets > 0
			})
			sent := load.stop()
			took := time.Since(begin).Seconds()
			if now := p.stats(); now.ProgramID != program || p.customerMap() != table {
				t.Errorf("the program or the map was replaced: want neither")
			}

			rows, total, dropped := p.customers(), int64(0), int64(0)
			for name, want := range map[string]int64{
				"untouched": sent["192.0.2.1"],
				"changed":   sent["192.0.2.2"] + sent["2001:db8:2::1"],
				"timed":     sent["192.0.2.3"],
				"switched":  sent["192.0.2.4"],
			} {
				c := rows[name]
				if c.packetCount != sentPackets(want) ||
					c.Green.Packets+c.Yellow.Packets+c.Red.Packets != want {
					t.Errorf("counted %+v: want %d packets", c, want)
				}
				total += want
				dropped += c.Dropped.Packets
			}
			last := p.stats()
			if got := last.sumOfProto253(); got != sentPackets(total) {
				t.Errorf("the classes counted %+v: want %d packets", got, total)
			}
			sniffer.Wait(int(total-dropped), waitLimit)
			passed := map[string]float64{}
			all := int64(0)
			for _, f := range sniffer.Stop() {
				if _, address := m.customerOf(f.Data); address != "" {
					passed[address] += 100
					all++
				}
			}
			if all != total-dropped {
				t.Errorf("%d packets passed: want all that were not counted as dropped, %d", all,
					total-dropped)
			}
			const burst = 10_000
			if got := passed["192.0.2.1"]; got != burst {
				t.Errorf("%.0f bytes of the customer without changes passed: want %d", got, burst)
			}
			if got := passed["192.0.2.2"] + passed["2001:db8:2::1"]; got > burst || got == 0 {
				t.Errorf("%.0f bytes of the frozen customer passed: want up to %d", got, burst)
			}
			if got := passed["192.0.2.3"]; got > burst+40_000*took || got < 5_000 {
				t.Errorf("%.0f bytes of the timed customer passed in %.3f s: want at most %.0f", got, took,
					burst+40_000*took)
			}
			if c := rows["switched"]; c.Dropped.Packets == 0 || c.Dropped.Packets == c.Packets ||
				c.Green != c.packetCount {
				t.Errorf("counted %+v: want some dropped while off, all of them green", c)
			}
			r.stopBySIGTERM()
			p.wantNothingLeft()
		})
	}
}

// setPlans are plans for customers whose buckets are never refilled.
const setPlans = `
  small: {type: token-bucket, rate: 1B/1000s, burst: 500B}
  large: {type: token-bucket, rate: 1B/1000s, burst: 900B}
  ample: {type: token-bucket, rate: 1B/1000s, burst: 500kB}
`

const setTable = "customer,address,plan\na,192.0.2.1,small\nb,192.0.2.2,small\n\"c d\",192.0.2.3,large\n"

// wantPassed sends packets to a customer, and checks how many of them are counted as passed.
func (p *pair) wantPassed(name, address string, send, want int64) {
	p.t.Helper()
	before := p.customers()[name]
	for range send {
		p.near.Inject("v0", placements[0].frameOf(address))
	}
	eventually(p.t, func() error {
		now := p.customers()[name]
		packets, dropped := now.Packets-before.Packets, now.Dropped.Packets-before.Dropped.Packets
		if packets != send || packets-dropped != want {
			return fmt.Errorf("customer %s: %d of %d packets passed: want %d of %d", name, packets-dropped,
				packets, want, send)
		}
		return nil
	})
}

// madeBy matches the time and the author of a change.
var madeBy = regexp.MustCompile(
	`, since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d( by .+? with (shaper set|shaper reload|the API))?`)

// wantChanges checks the lines that shaper set prints, without times and authors.
func (p *pair) wantChanges(name string, lines ...string) {
	p.t.Helper()
	want := name + ": no changes by shaper set\n"
	if len(lines) > 0 {
		want = name + ": " + strings.Join(lines, "\n"+name+": ") + "\n"
	}
	if got, _ := p.wantExit(0, "set", name); madeBy.ReplaceAllString(got, "") != want {
		p.t.Errorf("shaper set lists %q: want %q", got, want)
	}
}

// changeFiles are the files of changes of near.
func (p *pair) changeFiles() []string {
	p.t.Helper()
	list, err := filepath.Glob(fmt.Sprintf("/run/shaper/%d-*-changes-*", p.near.Cookie()))
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}

// TestLiveSetStays checks that changes stay in force when the policy is reloaded, and until which
// event they do.
func TestLiveSetStays(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	withA := strings.Replace(setTable, "a,192.0.2.1,small", "a,192.0.2.1,ample", 1)
	policy, table := writeTable(t, "green: pass", setPlans, withA)
	r := p.runShaper("--policy", policy)
	p.wantChanges("v0")
	p.wantPassed("a", "192.0.2.1", 2, 2)

	p.wantExit(0, "set", "v0", "customer", "a", "off")
	p.wantExit(0, "set", "v0", "customer", "c d", "plan=small", "burst=300B")
	p.wantPassed("a", "192.0.2.1", 2, 0)
	changes := []string{`customer "a": off`, `customer "c d": plan small, burst 300B`}
	p.wantChanges("v0", changes...)
	same := func(event string) {
		t.Helper()
		t.Log("after", event)
		p.wantChanges("v0", changes...)
		p.wantPassed("a", "192.0.2.1", 1, 0)
		if plan := p.customers()["c d"].Plan; plan != "small" {
			t.Errorf("plan %s: want small", plan)
		}
	}
	p.wantExit(0, "reload", "v0")
	same("a reload")
	r.reloadBySIGHUP()
	same("SIGHUP")
	w := p.startShaper("reload", "--confirm", "1s")
	if code := w.waitForExit(); code != 1 || !strings.Contains(w.err.String(), "not confirmed in time") {
		t.Errorf("reload exits with %d, stderr %q: want 1", code, &w.err)
	}
	same("a rollback")
	p.wantPassed("c d", "192.0.2.3", 5, 3) // 300 bytes of the change, not 900

	// A change in time hides the others, and ends.
	p.wantExit(0, "set", "v0", "customer", "a", "on", "--for", "1h")
	p.wantExit(0, "set", "v0", "customer", "a", "on", "--for", "3s")
	eventually(t, func() error {
		if stdout, _ := p.wantExit(0, "set", "v0"); strings.Contains(stdout, "until") {
			return fmt.Errorf("shaper set lists %q", stdout)
		}
		return nil
	})
	eventually(t, func() error {
		before := p.customers()["a"]
		p.near.Inject("v0", placements[0].frameOf("192.0.2.1"))
		now := p.customers()["a"]
		if now.Dropped.Packets != before.Dropped.Packets+1 || now.Green.Packets != before.Green.Packets+1 {
			return fmt.Errorf("counted %+v, before %+v: want it dropped", now, before)
		}
		return nil
	})
	same("the end of a change")

	// A change of a customer who left the file.
	rewriteFile(t, table, strings.Replace(setTable, "a,192.0.2.1,small\n", "", 1))
	w = p.startShaper("reload", "v0")
	w.wantExit(0)
	stale := `shaper: warning: a change by shaper set is not in force: no customer "a" in the policy`
	if got := w.err.unfiltered(); strings.Count(got, stale) != 1 {
		t.Errorf("reload prints %q on stderr: want %q", got, stale)
	}
	p.wantChanges("v0", changes...)
	rewriteFile(t, table, withA)
	p.wantExit(0, "reload", "v0")
	same("the return of the customer")

	p.wantExit(0, "set", "v0", "customer", "a", "reset")
	p.wantChanges("v0", changes[1:]...)
	p.wantPassed("a", "192.0.2.1", 6, 6)
	p.wantExit(0, "set", "v0", "customer", "c d", "reset")
	p.wantChanges("v0")
	p.wantPassed("c d", "192.0.2.3", 1, 0) // it got no tokens

	p.wantExit(0, "set", "v0", "customer", "b", "off")
	if got := p.changeFiles(); len(got) == 0 {
		t.Error("there is no file of changes")
	}
	p.wantExit(0, "detach", "v0")
	r.wantExit(0)
	p.wantNothingLeft()
	r = p.runShaper("--policy", policy)
	p.wantChanges("v0")
	p.wantPassed("b", "192.0.2.2", 6, 5)
	p.wantExit(0, "set", "v0", "customer", "b", "off")
	r.killAndWait()
	r = p.runShaper("--policy", policy)
	p.wantChanges("v0")
	p.wantPassed("b", "192.0.2.2", 1, 1)
	r.stopBySIGTERM()
	p.wantNothingLeft()
}

// TestLiveSetErrors checks that changes that cannot be made change nothing.
func TestLiveSetErrors(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	policy, _ := writeTable(t, "green: pass", setPlans, setTable)
	p.wantError(1, "v0 is not shaped: .*", "set", "v0", "customer", "a", "off")
	r := p.runShaper("--policy", policy)
	p.wantExit(0, "set", "v0", "customer", "b", "burst=700B")
	change := func(words ...string) []string { return append([]string{"set", "v0"}, words...) }
	for _, test := range []struct {
		code int
		want string
		args []string
	}{
		{1, `v0: no customer "x" in the policy`, change("customer", "x", "off")},
		{1, `v0: customer "a": no plan named "x" in the policy`, change("customer", "a", "plan=x")},
		{1, `v0: customer "a": cir: plan "small" has no such parameter: .*`, change("customer", "a", "cir=1mbit")},
		{1, `v0: customer "a": .*rate.*`, change("customer", "a", "rate=fast")},
		{1, `v0: no customer "C D" in the policy \(did you mean "c d"\?\)`, change("customer", "C D", "off")},
		{1, `v0: customer "a": no plan named "smal" in the policy \(did you mean "small"\?\)`, change("customer", "a", "plan=smal")},
		{1, `there is no interface v00 \(did you mean "v0"\?\)`, []string{"set", "v00", "customer", "a", "off"}},
		{1, `there is no interface v00 \(did you mean "v0"\?\)`, []string{"stats", "v00"}},
		{1, `there is no interface v00 \(did you mean "v0"\?\): use --wait to wait for it`, []string{"run", "v00", "--rate", "1mbit"}},
		{1, `v0: no customer has the name or the address CD \(did you mean "c d"\?\)`, []string{"customer", "show", "v0", "CD"}},
		{1, `v0: customer "CD": there is no such customer \(did you mean "c d"\?\)`, []string{"customer", "remove", "v0", "CD"}},
		{1, `v0: no link "x" in the policy`, change("link", "x", "rate=1mbit")},
		{1, `v0: no queue "x" in the policy`, change("queue", "x", "rate=1mbit")},
		{1, `v0: no customer "x" in the policy`, change("customer", "x", "reset")},
		{2, `link "x": burst cannot be changed, only rate, guarantee, priority, weight, down, up, down-guarantee, up-guarantee`, change("link", "x", "burst=1kB")},
		{2, `want customer, link or queue, a name, and a change such as .*`, change("customer", "a")},
		{2, `"class": want customer, link or queue`, change("class", "a", "off")},
		{2, `customer "a": reset cannot be combined with other changes`, change("customer", "a", "reset", "off")},
		{2, `"offf": want .*`, change("customer", "a", "offf")},
		{2, `--for needs a change`, change("--for", "1h")},
		{2, `give a change or --file, not both`, change("customer", "a", "off", "--file", "x")},
		{2, `.*file of changes.*`, change("--file", filepath.Join(t.TempDir(), "none"))},
	} {
		p.wantError(test.code, test.want, test.args...)
	}
	file := filepath.Join(t.TempDir(), "changes.txt")
	for text, want := range map[string]string{
		"customer a off\n\n# x\ncustomer b of\n": `.*changes\.txt:4: "of": want .*`,
		"customer a off\ncustomer x off\n":       `v0: no customer "x" in the policy`,
		"customer a off\ncustomer b plan=x\n":    `v0: customer "b": no plan named "x" in the policy`,
		"customer a off\ncustomer \"c d off\n":   `.*changes\.txt:2: a quote is missing`,
	} {
		rewriteFile(t, file, text)
		code := 1
		if strings.Contains(want, "changes") {
			code = 2
		}
		p.wantError(code, want, "set", "v0", "--file", file)
	}
	p.wantChanges("v0", `customer "b": burst 700B`)
	p.wantPassed("a", "192.0.2.1", 1, 1)
	p.wantPassed("b", "192.0.2.2", 8, 7)
	rewriteFile(t, file, "customer a off\n\n# x\ncustomer \"c d\" plan=small for=1h\ncustomer b reset\n")
	if out, _ := p.wantExit(0, "set", "v0", "--file", file); out != "v0: 3 changes made\n" {
		t.Errorf("it prints %q", out)
	}
	p.wantPassed("a", "192.0.2.1", 1, 0)
	p.wantPassed("c d", "192.0.2.3", 6, 5)
	r.stopBySIGTERM()
}

// TestLiveSetPinned checks changes of a shaper without a process, and that a process that takes it
// over keeps them.
func TestLiveSetPinned(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	policy, _ := writeTable(t, "green: pass", setPlans, setTable)
	p.wantExit(0, "run", "v0", "--policy", policy, "--background")
	p.wantExit(0, "set", "v0", "customer", "a", "off")
	p.wantError(1, "v0: --for needs a process, which ends the change: .*", "set", "v0", "customer", "a", "on",
		"--for", "1h")
	p.wantPassed("a", "192.0.2.1", 1, 0)
	p.wantExit(0, "reload", "v0")
	p.wantChanges("v0", `customer "a": off`)
	p.wantPassed("a", "192.0.2.1", 1, 0)
	r := p.runShaper("--policy", policy, "--pin")
	p.wantChanges("v0", `customer "a": off`)
	p.wantPassed("a", "192.0.2.1", 1, 0)
	p.wantExit(0, "set", "v0", "customer", "b", "off")
	r.killAndWait()
	p.wantChanges("v0", `customer "a": off`, `customer "b": off`)
	p.wantExit(0, "set", "v0", "customer", "a", "reset")
	p.wantPassed("a", "192.0.2.1", 5, 2) // three packets were dropped while it was off, and metered
	p.wantPassed("b", "192.0.2.2", 1, 0)
	p.wantExit(0, "detach", "v0")
	p.wantNothingLeft()
}

// TestLiveSetDirections checks that the changes of directions that were started by separate
// commands are separate.
func TestLiveSetDirections(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	policy, _ := writeTable(t, "green: pass", setPlans, setTable)
	out := p.runShaper("--policy", policy, "--direction", "egress")
	in := p.runShaper("--policy", policy, "--direction", "ingress")
	p.wantError(1, "v0: its directions were started by separate commands: choose one with --direction", "set",
		"v0", "customer", "a", "off")
	p.wantExit(0, "set", "v0", "customer", "a", "off", "--direction", "egress")
	p.wantChanges("v0", `customer "a": off`)
	if got, _ := p.wantExit(0, "set", "v0", "--direction",
		"ingress"); got != "v0: no changes by shaper set\n" {
		t.Errorf("at ingress it lists %q", got)
	}
	p.near.Inject("v0", placement{"", "egress"}.frameOf("192.0.2.1"))
	p.far.Inject("v0", placement{"", "ingress"}.frameOf("192.0.2.1"))
	eventually(t, func() error {
		for _, s := range p.statsList() {
			want := packetCount{}
			if s.Direction == "egress" {
				want = sentPackets(1)
			}
			if c := s.Classes[0]; c.packetCount != sentPackets(1) || c.Dropped != want {
				return fmt.Errorf("%s: counted %+v", s.Direction, c)
			}
		}
		return nil
	})
	out.stopBySIGTERM()
	in.stopBySIGTERM()
	if left := p.changeFiles(); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}
