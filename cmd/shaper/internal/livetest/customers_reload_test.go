package livetest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// customerLoad sends packets to customers from two CPUs until it is stopped.
type customerLoad struct {
	stopping atomic.Bool
	results  chan map[string]int64
}

// startLoad starts a load of packets for these addresses in turn.
func (p *pair) startLoad(m placement, addresses ...string) *customerLoad {
	p.t.Helper()
	l := &customerLoad{results: make(chan map[string]int64, 2)}
	from, _ := p.senderAndReceiver(m)
	var frames [][]byte
	for _, a := range addresses {
		frames = append(frames, m.frameOf(a))
	}
	for cpu := range 2 {
		send := from.Injector("v0")
		go onCPU(p.t, cpu, func() {
			n := int64(0)
			for !l.stopping.Load() {
				if err := send(frames...); err != nil {
					p.t.Error(err)
					break
				}
				n++
				time.Sleep(5 * time.Millisecond) // leaves the CPUs to the verifier
			}
			sent := map[string]int64{}
			for _, a := range addresses {
				sent[a] += n
			}
			l.results <- sent
		})
	}
	return l
}

// stop ends a load, and returns how many packets were sent, by address.
func (l *customerLoad) stop() map[string]int64 {
	l.stopping.Store(true)
	sent := <-l.results
	for address, n := range <-l.results {
		sent[address] += n
	}
	return sent
}

// TestLiveCustomersReload edits the customers many times under load. No packet is lost from a
// counter, and no customer passes more than its burst and its rate over the whole time.
func TestLiveCustomersReload(t *testing.T) {
	skipInVM(t)
	m := placements[0]
	p := newPair(t)
	const plans = `
  slow: {type: token-bucket, rate: 20kB/s, burst: 10kB}
  fast: {type: srtcm, cir: 40kB/s, cbs: 4kB, ebs: 16kB}
  open: {type: token-bucket, rate: 1gbit, burst: 1GB}
`
	table := func(i int) string {
		var b strings.Builder
		// Some names and plans change each time, others never do.
		fmt.Fprintf(&b, "customer,address,plan,burst\nstays,192.0.2.1 2001:db8:1::/48,slow,\n")
		fmt.Fprintf(&b, "changes,192.0.2.2,%s,\n", []string{"slow", "fast"}[i%2])
		fmt.Fprintf(&b, "%s,192.0.2.3,open,\n", []string{"comes", "goes"}[i%2])
		fmt.Fprintf(&b, "giver,198.51.100.1 %s,open,\ntaker,198.51.100.2 %s,open,%d\n",
			[]string{"192.0.2.4", ""}[i%2], []string{"", "192.0.2.4"}[i%2], 1000000000+i)
		for k := range i % 5 * 4 {
			fmt.Fprintf(&b, "more %d,10.77.%d.0/%d,slow,\n", k, k, 24+i%9)
		}
		return b.String()
	}
	policy, csv := writeTable(t, "meter: {type: token-bucket, rate: 1gbit, burst: 1GB}", plans, table(0))
	r := p.runShaper(m.flags("--policy", policy)...)
	customers0 := p.customerMap()
	sniffer := p.sniffPassed(m)
	begin := time.Now()
	load := p.startLoad(m, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "198.51.100.1", "198.51.100.2",
		"2001:db8:1::1", "192.0.2.9")
	const reloads = 10
	last := map[string]customerRow{}
	for i := range reloads {
		rewriteFile(t, csv, table(i+1))
		p.wantExit(0, "reload", "v0")
		rows := p.customers()
		for _, name := range []string{"stays", "changes", "giver", "taker"} {
			if rows[name].Packets < last[name].Packets ||
				rows[name].Dropped.Packets < last[name].Dropped.Packets {
				t.Errorf("reload %d: counted %+v, before %+v", i, rows[name], last[name])
			}
		}
		last = rows
		gone, here := []string{"comes", "goes"}[i%2], []string{"goes", "comes"}[i%2]
		if _, there := rows[gone]; there || rows[here].Plan != "open" || rows["stays"].Plan != "slow" ||
			rows["changes"].Plan != []string{"fast", "slow"}[i%2] || len(rows) != 5+(i+1)%5*4 {
			t.Errorf("reload %d: got %+v", i, rows)
		}
	}
	sent := load.stop()
	took := time.Since(begin).Seconds()
	if now := p.customerMap(); now != customers0 {
		t.Errorf("map %d became %d: want the same", customers0, now)
	}
	total := int64(0)
	for _, n := range sent {
		total += n
	}
	s, rows := p.stats(), p.customers()
	if s.sumOfProto253() != sentPackets(total) || s.classNamed(t, "strangers").Packets < sent["192.0.2.9"] {
		t.Errorf("counted %+v: want %d packets", s.Classes, total)
	}
	count := func(what string, got packetCount, want int64) {
		t.Helper()
		if got != sentPackets(want) {
			t.Errorf("%s: counted %+v: want %d packets", what, got, want)
		}
	}
	count("stays", rows["stays"].packetCount, sent["192.0.2.1"]+sent["2001:db8:1::1"])
	count("changes", rows["changes"].packetCount, sent["192.0.2.2"])
	moved := rows["giver"].Packets + rows["taker"].Packets
	count("giver and taker", packetCount{moved, rows["giver"].Bytes + rows["taker"].Bytes},
		sent["192.0.2.4"]+sent["198.51.100.1"]+sent["198.51.100.2"])
	if rows["giver"].Packets <= sent["198.51.100.1"] || rows["taker"].Packets <= sent["198.51.100.2"] {
		t.Errorf("giver and taker: counted %+v and %+v: want packets of both addresses", rows["giver"],
			rows["taker"])
	}
	passed := map[string]float64{}
	want := total - rows["stays"].Dropped.Packets - rows["changes"].Dropped.Packets
	sniffer.Wait(int(want), waitLimit)
	got := int64(0)
	for _, f := range sniffer.Stop() {
		if _, address := m.customerOf(f.Data); address != "" {
			passed[address] += 100
			got++
		}
	}
	if got != want {
		t.Errorf("%d packets of %d passed: want all that were not counted as dropped, %d", got, total, want)
	}
	within := func(name string, got, burst, rate float64) {
		t.Helper()
		if got > burst+rate*took || got < burst {
			t.Errorf("%s: %.0f bytes passed in %.3f s: want %.0f to %.0f", name, got, took, burst,
				burst+rate*took)
		}
	}
	within("stays", passed["192.0.2.1"]+passed["2001:db8:1::1"], 10_000, 20_000)
	within("changes", passed["192.0.2.2"], 10_000, 40_000+40_000) // C and E of srtcm share the rate
	r.stopBySIGTERM()
}

// sumOfProto253 returns the sum of the classes of writeTable.
func (s *shaperStats) sumOfProto253() (c packetCount) {
	for _, class := range s.Classes[:2] {
		c.Packets += class.Packets
		c.Bytes += class.Bytes
	}
	return c
}

// customerMap returns the ID of the map of customers of the only shaper.
func (p *pair) customerMap() (found ebpf.MapID) {
	p.t.Helper()
	p.programMaps(func(_ *ebpf.Map, id ebpf.MapID, name string) {
		if name == "customers" {
			found = id
		}
	})
	if found == 0 {
		p.t.Fatal("the shaper has no map of customers")
	}
	return found
}

// TestLiveCustomersNewMaps checks that customers keep their counters and tokens if there are too
// many for their maps, so that a reload replaces these: also those whose plan changes.
func TestLiveCustomersNewMaps(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	m := placements[0]
	const plans = `
  small: {type: token-bucket, rate: 1B/1000s, burst: 500B}
  large: {type: token-bucket, rate: 1B/1000s, burst: 900B}
  two: {type: trtcm4115, cir: 1B/1000s, cbs: 200B, eir: 1B/1000s, ebs: 200B}
`
	table := func(a, b string, more int) string {
		out := "customer,address,plan\na,192.0.2.1," + a + "\nb,192.0.2.2 2001:db8:2::1," + b +
			"\nc,192.0.2.3,small\n"
		for i := range more {
			out += fmt.Sprintf("more %d,10.0.%d.%d,small\n", i, i>>8, i&255)
		}
		return out
	}
	policy, csv := writeTable(t, "green: pass", plans, table("small", "large", 0))
	r := p.runShaper(m.flags("--policy", policy)...)
	send := func(n int, address string) {
		for range n {
			p.near.Inject("v0", m.frameOf(address))
		}
	}
	was := p.customerMap()
	change := func(a, b string, more int, kept bool) {
		t.Helper()
		rewriteFile(t, csv, table(a, b, more))
		p.wantExit(0, "reload", "v0")
		now := p.customerMap()
		if kept != (now == was) {
			t.Errorf("map %d became %d", was, now)
		}
		was = now
	}
	want := func(name, plan string, green, yellow, red int64) {
		t.Helper()
		w := customerRow{
			name, plan, sentPackets(green + yellow + red), sentPackets(green), sentPackets(yellow),
			sentPackets(red), sentPackets(red),
		}
		if got := p.customers()[name]; got != w {
			t.Errorf("counted %+v: want %+v", got, w)
		}
	}
	send(6, "192.0.2.1")
	send(4, "192.0.2.2")
	send(2, "192.0.2.3")
	change("large", "small", 500, false) // a has 0 of 900 bytes, b 500 of 500, c 300
	send(1, "192.0.2.1")
	send(6, "2001:db8:2::1")
	send(4, "192.0.2.3")
	send(1, "10.0.1.1")
	want("a", "large", 5, 0, 2)
	want("b", "small", 9, 0, 1)
	want("c", "small", 5, 0, 1)
	want("more 257", "small", 1, 0, 0)
	change("two", "large", 500, true) // a has 0 of C and E, b 0
	send(1, "192.0.2.1")
	send(1, "192.0.2.2")
	want("a", "two", 5, 0, 3)
	want("b", "large", 9, 0, 2)
	change("small", "two", 2000, false)
	send(1, "192.0.2.1")
	send(1, "192.0.2.2")
	send(1, "192.0.2.3")
	want("a", "small", 5, 0, 4)
	want("b", "two", 9, 0, 3)
	want("c", "small", 5, 0, 2)
	want("more 257", "small", 1, 0, 0)
	r.stopBySIGTERM()
}

// TestLiveCustomersNewMapsCount checks that no packet is lost from the counters of a customer while
// a reload replaces the maps.
func TestLiveCustomersNewMapsCount(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	m := placements[0]
	table := func(more int) string {
		out := "customer,address,plan\na,192.0.2.1,frozen\nb,192.0.2.2,two\n"
		for i := range more {
			out += fmt.Sprintf("more %d,10.%d.%d.%d,two\n", i, i>>16, i>>8&255, i&255)
		}
		return out
	}
	policy, csv := writeTable(t, "green: pass", `
  frozen: {type: token-bucket, rate: 1B/1000s, burst: 10kB}
  two: {type: srtcm, cir: 20kB/s, cbs: 4kB, ebs: 16kB}
`, table(0))
	r := p.runShaper(m.flags("--policy", policy)...)
	load := p.startLoad(m, "192.0.2.1", "192.0.2.2")
	last := p.customerMap()
	for _, more := range []int{1000, 20_000} {
		rewriteFile(t, csv, table(more))
		p.wantExit(0, "reload", "v0")
		if now := p.customerMap(); now == last {
			t.Fatal("the map was not replaced")
		} else {
			last = now
		}
	}
	sent := load.stop()
	total := sent["192.0.2.1"] + sent["192.0.2.2"]
	if s := p.stats(); s.sumOfProto253() != sentPackets(total) {
		t.Errorf("the classes counted %+v: want %d packets", s.Classes, total)
	}
	rows := p.customers()
	for name, want := range map[string]int64{"a": sent["192.0.2.1"], "b": sent["192.0.2.2"]} {
		c := rows[name]
		if c.packetCount != sentPackets(want) || c.Green.Packets+c.Yellow.Packets+c.Red.Packets != want ||
			c.Dropped != c.Red {
			t.Errorf("counted %+v: want %d packets", c, want)
		}
	}
	r.stopBySIGTERM()
}

// TestLiveCustomersInvalid checks that an invalid table is refused with its line, and that the
// table before stays in force.
func TestLiveCustomersInvalid(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	m := placements[0]
	const head = "customer,address,plan\na,192.0.2.1,small\n"
	policy, csv := writeTable(t, "green: pass",
		"  small: {type: token-bucket, rate: 1B/1000s, burst: 500B}\n", head)
	r := p.runShaper(m.flags("--policy", policy)...)
	program := p.stats().ProgramID
	for _, test := range []struct{ table, want string }{
		{head + "b,192.0.2.2,smal\n", `.*customers\.csv:3:? .*smal.*`},
		{head + "b,192.0.2.2 192.0.2.1,small\n", `.*customers\.csv:3: address 192\.0\.2\.1 belongs to customer "a" too \(line 2\)`},
		{head + "a,192.0.2.2,small\n", `.*customers\.csv:3: .*`},
		{"customer,address\n", `.*customers\.csv:1: .*plan.*`},
	} {
		rewriteFile(t, csv, test.table)
		p.wantError(2, test.want, "reload", "v0")
	}
	lines := strings.Count(r.err.String(), "\n")
	r.sendSignal(syscall.SIGHUP)
	r.err.awaitMatch(t, `customers\.csv:1: .*: the policy is unchanged\n`)
	if n := strings.Count(r.err.String(), "\n"); n != lines+1 {
		t.Errorf("stderr %q: want one more line", &r.err)
	}
	p.near.Inject("v0", m.frameOf("192.0.2.1"), m.frameOf("192.0.2.2"))
	if rows, s := p.customers(), p.stats(); len(rows) != 1 || rows["a"].Green != sentPackets(1) ||
		rows["a"].Plan != "small" || s.ProgramID != program ||
		s.classNamed(t, "strangers").packetCount != sentPackets(1) {
		t.Errorf("counted %+v and %+v: want the table as it was", rows, s)
	}
	r.stopBySIGTERM()
}
