package livetest

import (
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
)

// customerScrape compares the metrics of customers of a process with stats --customers.
type customerScrape struct {
	*pair
	r      *process
	device string                   // through which packets leave
	gone   map[string][]customerRow // removed customers, which totals contain, by direction
}

var bothDirections = []string{"egress", "ingress"}

// remove notes that a customer will be removed.
func (s *customerScrape) remove(name string) {
	for _, direction := range bothDirections {
		s.gone[direction] = append(s.gone[direction], s.customers("--direction", direction)[name])
	}
}

// want compares the metrics with stats. All customers but the one with fewest bytes have their
// own.
func (s *customerScrape) want() {
	s.t.Helper()
	want := map[string]float64{}
	add := func(name, labels string, c packetCount) {
		want["shaper_"+name+"packets_total{"+labels+"}"] += float64(c.Packets)
		want["shaper_"+name+"bytes_total{"+labels+"}"] += float64(c.Bytes)
	}
	each := func(c customerRow, f func(string, packetCount)) {
		for color, n := range map[string]packetCount{"green": c.Green, "yellow": c.Yellow, "red": c.Red} {
			f(`color="`+color+`",`, n)
		}
	}
	for _, direction := range bothDirections {
		at := fmt.Sprintf(`direction="%s",interface="%s"`, direction, s.device)
		rows := s.customers("--direction", direction)
		want["shaper_customers{"+at+"}"], want["shaper_customers_exported{"+at+"}"] = float64(len(rows)),
			float64(len(rows)-1)
		least := ""
		for name, c := range rows {
			if least == "" || c.Bytes < rows[least].Bytes {
				least = name
			}
		}
		for name, c := range rows {
			if name == least {
				continue
			}
			labels := fmt.Sprintf(`customer=%q,%s,plan=%q`, name, at, c.Plan)
			each(c, func(color string, n packetCount) {
				if c.Plan == "two" || color != `color="yellow",` { // the other plan has no yellow
					add("customer_", color+labels, n)
				}
			})
			add("customer_dropped_", labels, c.Dropped)
		}
		for _, c := range s.gone[direction] {
			rows["gone "+c.Name] = c
		}
		for _, c := range rows {
			each(c, func(color string, n packetCount) { add("customers_", color+at, n) })
			add("customers_dropped_", at, c.Dropped)
		}
	}
	eventually(s.t, func() error {
		got := s.scrapeMetrics(s.r)
		maps.DeleteFunc(got,
			func(name string, _ float64) bool { return !strings.HasPrefix(name, "shaper_customer") })
		if !maps.Equal(got, want) {
			return fmt.Errorf("got %v\nwant %v", got, want)
		}
		return nil
	})
}

// send sends packets of the customer with an address in both directions, and waits until the
// shaper has counted them.
func (s *customerScrape) send(address string, packets int) {
	s.t.Helper()
	egress, ingress := placement{direction: "egress"}, placement{direction: "ingress"}
	count := func() (out []int64) {
		for _, stats := range s.statsList() {
			for _, c := range stats.Classes {
				out = append(out, c.Packets)
			}
		}
		return out
	}
	before := count()
	for range packets {
		s.near.Inject(s.device, egress.frameOf(address))
		s.far.Inject("v0", ingress.frameOf(address))
	}
	eventually(s.t, func() error {
		sum := int64(0)
		for i, n := range count() {
			sum += n - before[i]
		}
		if sum != 2*int64(packets) {
			return fmt.Errorf("counted %d packets: want %d in both directions", sum, 2*packets)
		}
		return nil
	})
}

// run checks the metrics while customers send, after reloads that rename one and change the
// plan of another, and after shaper set.
func (s *customerScrape) run(table string) {
	t := s.t
	write := func(first, plan string) {
		rewriteFile(t, table,
			"customer,address,plan\n"+first+",192.0.2.1 2001:db8:1::/48,small\nb,192.0.2.2,two\nc,192.0.2.3,"+plan+"\nidle,192.0.2.4,small\n")
	}
	s.send("192.0.2.1", 2)
	s.send("2001:db8:1::7", 3)
	s.send("192.0.2.2", 6)
	s.send("192.0.2.3", 1)
	s.send("192.0.2.9", 1)
	for _, direction := range bothDirections {
		got := s.customers("--direction", direction)
		if want := (customerRow{
			"a", "small", sentPackets(5), sentPackets(3), packetCount{}, sentPackets(2), sentPackets(2),
		}); got["a"] != want ||
			got["b"].Yellow != sentPackets(2) {
			t.Errorf("%s: counted %+v: want %+v", direction, got, want)
		}
	}
	s.want()

	// Another process renames a customer: it is a new one.
	s.remove("a")
	const name = `n "1" \ {x}=`
	write(`"`+strings.ReplaceAll(name, `"`, `""`)+`"`, "small")
	s.wantExit(0, "reload")
	s.send("192.0.2.1", 4)
	if rows := s.customers("--direction", "egress"); rows[name].Packets != 4 || len(rows) != 4 {
		t.Errorf("counted %+v: want a new customer", rows)
	}
	s.want()

	// This process removes it again, and gives another customer a new plan.
	s.remove(name)
	write("a", "two")
	s.r.sendSignal(syscall.SIGHUP)
	eventually(t, func() error {
		for _, direction := range bothDirections {
			if rows := s.customers("--direction", direction); rows["c"].Plan != "two" ||
				rows["a"].Plan != "small" {
				return fmt.Errorf("%s: customers %v: want those of the new table", direction, rows)
			}
		}
		return nil
	})
	s.send("192.0.2.1", 2)
	s.send("192.0.2.3", 1)
	s.want()

	s.wantExit(0, "set", s.device, "customer", "c", "plan=small")
	s.send("192.0.2.3", 1)
	if rows := s.customers("--direction", "ingress"); rows["c"].Plan != "small" {
		t.Errorf("customers %+v: want plan small of c", rows)
	}
	s.want()
	s.r.stopBySIGTERM()
}

// writeMetricsTable writes the policy and the first table of customerScrape.run.
func writeMetricsTable(t *testing.T) (policy, table string) {
	t.Helper()
	return writeTable(t, "green: pass",
		"  small: {type: token-bucket, rate: 1B/1000s, burst: 300B}\n  two: {type: srtcm, cir: 1B/1000s, cbs: 200B, ebs: 200B}\n",
		"customer,address,plan\na,192.0.2.1 2001:db8:1::/48,small\nb,192.0.2.2,two\nc,192.0.2.3,small\nidle,192.0.2.4,small\n")
}

// TestLiveMetricsCustomers checks the metrics of customers of shaper run.
func TestLiveMetricsCustomers(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	policy, table := writeMetricsTable(t)
	p.wantError(2, "--metrics-customers needs --metrics", "run", "v0", "--metrics-customers", "1", "--policy",
		policy)
	p.wantError(2, "--metrics-customers 10001: want 0 to 10000", "run", "v0", "--metrics", ":0",
		"--metrics-customers", "10001", "--policy", policy)
	p.wantError(2, "--background leaves no process for .*--metrics-customers.*", "run", "v0", "--background",
		"--metrics-customers", "1", "--policy", policy)
	r := p.runShaper("--direction", "both", "--policy", policy, "--metrics", ":0", "--metrics-customers", "3")
	r.out.awaitMatch(t, "v0 ingress")
	(&customerScrape{p, r, "v0", map[string][]customerRow{}}).run(table)
}

// TestLiveTapMetricsCustomers checks the metrics of customers of shaper tap.
func TestLiveTapMetricsCustomers(t *testing.T) {
	p := newTAPPair(t)
	policy, table := writeMetricsTable(t)
	r := p.startTap("--uplink", "v0", "--direction", "both", "--policy", policy, "--metrics", ":0",
		"--metrics-customers", "3")
	(&customerScrape{p, r, "t0", map[string][]customerRow{}}).run(table)
}

// TestLiveMetricsCustomersTotals checks that totals are served without --metrics-customers, and
// nothing else.
func TestLiveMetricsCustomersTotals(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	policy, _ := writeMetricsTable(t)
	r := p.runShaper("--policy", policy, "--metrics", ":0")
	p.near.Inject("v0", placement{direction: "egress"}.frameOf("192.0.2.1"))
	const at = `direction="egress",interface="v0"}`
	eventually(t, func() error {
		got := p.scrapeMetrics(r)
		if got["shaper_customers{"+at] != 4 || got[`shaper_customers_bytes_total{color="green",`+at] != 100 {
			return fmt.Errorf("got %v: want 4 customers and 100 bytes", got)
		}
		for name := range got {
			if strings.Contains(name, "customer=") || strings.Contains(name, "exported") {
				t.Errorf("got %s", name)
			}
		}
		return nil
	})
	r.stopBySIGTERM()
}
