package policyfile

import (
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

func byRate(t *testing.T, rate string) *File {
	t.Helper()
	f, err := OneLiner{Rate: rate}.Load()
	if err == nil {
		_, err = f.Compile()
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestRate checks the policy of --rate. T(n) is the time that n bytes take, rounded up to a ms. The limit
// is max(100 ms, T(80 KiB)). CoDel's target is max(5 ms, T(3000 B)), its interval max(100 ms, two targets).
// Control traffic has a twentieth of the rate, but at least 16 kbit/s.
func TestRate(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		rate                    string
		bits                    int64
		limit, target, interval time.Duration
		control                 int64 // bit/s
	}{
		{"16kbit", 16000, 40960 * ms, 1500 * ms, 3000 * ms, 16e3},
		{"64kbit", 64000, 10240 * ms, 375 * ms, 750 * ms, 16e3},
		{"320kbit", 320000, 2048 * ms, 75 * ms, 150 * ms, 16e3},
		{"320020bit", 320020, 2048 * ms, 75 * ms, 150 * ms, 16001},
		{"1MB/8s", 1000000, 656 * ms, 24 * ms, 100 * ms, 50e3},
		{"4194304bit", 4194304, 157 * ms, 6 * ms, 100 * ms, 209715},
		{"5mbit", 5000000, 132 * ms, 5 * ms, 100 * ms, 250e3},
		{"6553600bit", 6553600, 100 * ms, 5 * ms, 100 * ms, 327680},
		{"6553599bit", 6553599, 101 * ms, 5 * ms, 100 * ms, 327679},
		{"20mbit", 20000000, 100 * ms, 5 * ms, 100 * ms, 1e6},
		{"50mbit", 50000000, 100 * ms, 5 * ms, 100 * ms, 2.5e6},
		{"12.5GB/s", 100000000000, 100 * ms, 5 * ms, 100 * ms, 5e9},
	} {
		f := byRate(t, test.rate)
		want := queue.Config{
			Rate: meter.BitRate(test.bits), Time: test.limit,
			CoDel: queue.CoDel{Target: test.target, Interval: test.interval}, ECN: true,
		}
		q := f.Policy.Queues[0]
		if got := q.Config; q.Drain().Cmp(want.Rate) != 0 ||
			q.Fair != (dataplane.Key{By: dataplane.ByFlow}) || got.Time != want.Time ||
			got.CoDel != want.CoDel || got.ECN != want.ECN || got.Bytes+got.Packets != 0 {
			t.Errorf("%s: queue %+v, want %+v", test.rate, got, want)
		}
		control := f.Policy.Meters[0].Params.(meter.TokenBucket)
		if control.Rate.Cmp(meter.BitRate(test.control)) != 0 || control.Burst != 65536 {
			t.Errorf("%s: control traffic has %v, want %d bit/s", test.rate, control.Rate, test.control)
		}
		classes := f.Policy.Classes
		for i := range classes[:len(classes)-1] {
			if c := &classes[i]; c.Meter != f.Policy.Meters[0] || c.Action(meter.Green).Queue != nil ||
				c.Action(meter.Red).Queue != q {
				t.Errorf("%s: class %s: got %+v", test.rate, c.Name, c)
			}
		}
		if c := &classes[len(classes)-1]; c.Name != "all" || c.Meter != nil ||
			c.Action(meter.Green).Queue != q {
			t.Errorf("%s: got last class %+v", test.rate, c)
		}
	}
}

// TestTwoRates checks the policy of --rate with a rate for each direction. The limit and the rate of control
// traffic are those at the lower one.
func TestTwoRates(t *testing.T) {
	for _, rate := range []string{"egress=2mbit,ingress=95mbit", "ingress=95mbit egress=2 mbit"} {
		f := byRate(t, rate)
		q := f.Policy.Queues[0]
		if q.Drain().Cmp(meter.BitRate(2e6)) != 0 || q.Link.Up.Rate.Cmp(meter.BitRate(95e6)) != 0 ||
			q.Time != 328*time.Millisecond {
			t.Errorf("%s: queue %+v", rate, q)
		}
		if got := f.Policy.Meters[0].Params.(meter.TokenBucket).Rate; got.Cmp(meter.BitRate(100e3)) != 0 {
			t.Errorf("%s: control traffic has %v, want 100 kbit/s", rate, got)
		}
	}
	same, one := byRate(t, "egress=5mbit,ingress=5000kbit").Policy.Queues[0], byRate(t, "5mbit").Policy.Queues[0]
	if same.Drain().Cmp(one.Drain()) != 0 || same.Link.Up != one.Link.Up || same.Time != one.Time {
		t.Errorf("equal rates: queue %+v, want %+v", same, one)
	}
	for rate, want := range map[string]string{
		"egress=1mbit":                             "--rate:1:1: rate needs both directions",
		"egress=1mbit,ingress=":                    "--rate:1:22: rate",
		"egress=1mbit,ingress=2":                   `--rate:1:22: rate: "2" is a rate without a unit`,
		"egress=1mbit,egress=2mbit":                `--rate:1:14: duplicate key "egress" in rate`,
		"egress=1mbit,down=2mbit":                  `--rate:1:14: unknown key "down" in rate`,
		"egress=1mbit,2mbit":                       `--rate:1:14: "2mbit" is not of the form key=value`,
		"egress=1mbit,ingress=15kbit":              "--rate:1:22: rate: 15kbit is below 16kbit",
		"egress=1mbit,ingress=2mbit,ingress=3mbit": `--rate:1:28: duplicate key "ingress"`,
		"egress=1mbit,ingress=2mbit=3":             "--rate:1:22: rate",
		"=":                                        `unknown key ""`,
	} {
		if _, err := (OneLiner{Rate: rate}).Load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", rate, err, want)
		}
	}
}

// TestRateHoldsGSO checks at low and high rates that the queue has room for a GSO packet of
// 64 KiB and eight packets right behind it.
func TestRateHoldsGSO(t *testing.T) {
	for _, rate := range []string{
		"16kbit", "64kbit", "1mbit", "5mbit", "6553600bit", "50mbit", "1gbit", "100gbit",
	} {
		c := byRate(t, rate).Policy.Queues[0]
		q, err := queue.NewLink[int](c.Drain(), []queue.LinkQueue{c.LinkQueue()})
		if err != nil {
			t.Fatal(err)
		}
		const segments = 46 // of 1448 bytes, with 52 bytes of headers each
		if f := q.Admit(0, 0, queue.Packet{Bytes: 65536 + segments*52}, 0); f.Dropped() {
			t.Errorf("%s: the GSO packet was dropped", rate)
		}
		for i := range 8 {
			if f := q.Admit(0, 0, queue.Packet{Bytes: 1500}, 0); f == queue.Full {
				t.Errorf("%s: the queue was full for packet %d behind the GSO packet", rate, i)
			}
		}
	}
}

// TestRateControl checks which packets bypass the queue.
func TestRateControl(t *testing.T) {
	f := byRate(t, "50mbit")
	matches := make([]dataplane.Match, len(f.Policy.Classes))
	for i := range matches {
		matches[i] = f.Policy.Classes[i].Match
	}
	classifier := compiled.NewClassifier(matches)
	ip := func(proto, dscp byte, sport, dport uint16) []byte {
		b := make([]byte, 12+2+20+8)
		b[12], b[14], b[15], b[17], b[22], b[23] = 0x08, 0x45, dscp<<2, 28, 64, proto
		b[34], b[35], b[36], b[37] = byte(sport>>8), byte(sport), byte(dport>>8), byte(dport)
		return b
	}
	v6 := func(proto byte) []byte {
		b := make([]byte, 12+2+40+8)
		b[12], b[13], b[14], b[19], b[20], b[21] = 0x86, 0xdd, 0x60, 8, proto, 255
		return b
	}
	for name, test := range map[string]struct {
		frame []byte
		class string
	}{
		"CS6":                {ip(17, 48, 5000, 5000), "control-dscp"},
		"CS7":                {ip(17, 56, 5000, 5000), "control-dscp"},
		"CS5":                {ip(17, 40, 5000, 5000), "all"},
		"EF":                 {ip(17, 46, 5000, 5000), "all"},
		"neighbor discovery": {v6(58), "control-proto"},
		"IGMP":               {ip(2, 0, 0, 0), "control-proto"},
		"OSPF":               {ip(89, 0, 0, 0), "control-proto"},
		"VRRP":               {ip(112, 0, 0, 0), "control-proto"},
		"to DHCP":            {ip(17, 0, 68, 67), "control-dport"},
		"from DHCP":          {ip(17, 0, 67, 68), "control-dport"},
		"to BGP":             {ip(6, 0, 40000, 179), "control-dport"},
		"from BGP":           {ip(6, 0, 179, 40000), "control-sport"},
		"BFD":                {ip(17, 0, 49152, 3784), "control-dport"},
		"TCP":                {ip(6, 0, 40000, 443), "all"},
		"UDP":                {ip(17, 0, 5000, 5000), "all"},
		"ping":               {ip(1, 0, 0, 0), "all"},
	} {
		p := dataplane.Packet{Data: test.frame, WireLen: len(test.frame), Link: dataplane.LinkEthernet}
		dataplane.Parse(&p)
		got := "-"
		if i := classifier.Classify(&p, p.L3Len); i >= 0 {
			got = f.Policy.Classes[i].Name
		}
		if got != test.class {
			t.Errorf("%s: class %s, want %s", name, got, test.class)
		}
	}
}

func TestRateErrors(t *testing.T) {
	for _, test := range []struct{ rate, says string }{
		{"50", "50bit"},
		{"50mbps", "50mbit or 50MB/s"},
		{"fast", `"fast" is not a rate`},
		{"0bit", "below 16kbit"},
		{"15999bit", "15999bit is below 16kbit"},
		{"999999999999999999tbit", "more digits"},
	} {
		f, err := OneLiner{Rate: test.rate}.Load()
		if err == nil {
			_, err = f.Compile()
		}
		if err == nil || strings.Contains(err.Error(), "\n") ||
			!strings.HasPrefix(err.Error(), "--rate:1:1: ") || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want one error at --rate:1:1 that says %q", test.rate, err, test.says)
		}
	}
	if f, err := (OneLiner{Rate: "1mbit", Length: "l2,overhead=4"}).Load(); err != nil ||
		f.Policy.Length.Base != dataplane.L2 || f.Policy.Length.Overhead != 4 {
		t.Errorf("--length: got error %v or another rule, want l2 with an overhead of 4", err)
	}
	if _, err := (OneLiner{Rate: "1mbit", Length: "l4"}).Load(); err == nil ||
		!strings.HasPrefix(err.Error(), "--length:1:1: ") {
		t.Errorf("got %v, want an error at --length", err)
	}
}

// TestWithoutMeter checks a class that has only a queue.
func TestWithoutMeter(t *testing.T) {
	f, err := OneLiner{Green: "queue", Queue: "rate=50mbit limit=100ms"}.Load()
	if err != nil {
		t.Fatal(err)
	}
	if c := f.Policy.Classes[0]; c.Meter != nil || c.Green.Queue != f.Policy.Queues[0] ||
		f.Policy.Queues[0].Time != 100*time.Millisecond {
		t.Errorf("got %+v, want only a queue of 100 ms", c)
	}
	if place := f.Place(&f.Policy.Classes[0], "match"); place != "--green:1:1" {
		t.Errorf("the class is at %s, want --green", place)
	}
}
