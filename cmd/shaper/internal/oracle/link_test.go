package oracle

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// At 8mbit a byte takes 1000 ns, at 3gbit 8/3 ns; at 12112kbit 1514 bytes take 1 ms.
func TestLink(t *testing.T) {
	runByHand(t, []handTest{
		{"idle and busy", "links: {wan: {rate: 8mbit}}\nqueues: {q: {link: wan, limit: 1000}}", `
			5      q 100 green 5
			100005 q 100 green 100005   free since now
			200004 q 100 green 200005   busy for 1 ns more
			900000 q 100 green 900000`},
		{"fractions", "links: {wan: {rate: 3gbit}}\nqueues: {q: {link: wan, limit: 1000}}", `
			0   q 1 green 0
			0   q 1 green 3             8/3
			0   q 1 green 6             16/3
			0   q 1 green 8
			8   q 1 green 11            32/3
			12  q 1 green 14            40/3
			100 q 1 green 100
			100 q 1 green 103`},
		{"priority", `
links: {wan: {rate: 8mbit}}
queues: {hi: {link: wan, limit: 10p}, lo: {link: wan, limit: 10p, priority: 1}}`, `
			0       lo 1000 green 0
			0       lo 1000 green 1500000
			0       lo 1000 green 3500000
			500000  hi 500  green 1000000
			1500000 hi 500  green 2500000  the choice of that ns is made
			1500001 hi 500  green 3000000
			4500000 lo 10   green 4500000
			4500001 hi 10   green 4510000`},
		{"weights 1:3, full frames", `
links: {wan: {rate: 12112kbit}}
queues: {a: {link: wan, limit: 10p}, b: {link: wan, limit: 10p, weight: 3}}`, `
			0 a 1514 green 0
			0 a 1514 green 5000000  a start of 1514, after b's of 0, 504.7, 1009.3 and just below 1514
			0 a 1514 green 8000000
			0 a 1514 green 9000000
			0 a 1514 green 10000000
			0 b 1514 green 1000000
			0 b 1514 green 2000000
			0 b 1514 green 3000000
			0 b 1514 green 4000000
			0 b 1514 green 6000000
			0 b 1514 green 7000000`},
		// The virtual times of the choices are 250, 628.5, 1007, 1257, 1635.5, 1660.5, 2039.
		{"weights 1:3, small ones", `
links: {wan: {rate: 8mbit}}
queues: {a: {link: wan, limit: 10p, weight: 1}, b: {link: wan, limit: 10p, weight: 3}}`, `
			0 a 1000 green 0
			0 a 1000 green 4028000  from 1000 to 2000
			0 a 1000 green 8156000  from 2000
			0 a 1000 green 9156000
			0 b 1514 green 1000000  from 0 to 504.7
			0 b 1514 green 2514000  to 1009.3
			0 b 1514 green 5028000  to 1514
			0 b 100  green 6542000  to 1547.3
			0 b 1514 green 6642000`},
		{"a long one", `
links: {wan: {rate: 8mbit}}
queues: {a: {link: wan, limit: 10p}, c: {link: wan, limit: 10p}}`, `
			0 c 100  green 0
			0 a 4000 green 100000  from 0; c is due at 100, and now it is 50
			0 c 1000 green 4100000
			0 c 1000 green 5100000
			0 c 1000 green 6100000
			0 c 1000 green 7100000`},
		{"a higher priority between them", `
links: {wan: {rate: 12112kbit}}
queues:
  hi: {link: wan, limit: 10p}
  a: {link: wan, limit: 10p, priority: 1}
  b: {link: wan, limit: 10p, priority: 1, weight: 3}`, `
			0       a  1514 green 0
			0       a  1514 green 6000000
			0       a  1514 green 7000000
			0       b  1514 green 1000000
			0       b  1514 green 2000000
			0       b  1514 green 4000000
			0       b  1514 green 5000000
			2500000 hi 1514 green 3000000`},
		{"a tie is for the first", `
links: {wan: {rate: 12112kbit}}
queues: {a: {link: wan, limit: 10p}, b: {link: wan, limit: 10p}}`, `
			0       a 1514 green 0
			0       a 1514 green 2000000  both are due since 1514
			0       b 1514 green 1000000
			0       b 1514 green 3000000
			1500000 a 1514 green 4000000`},
		{"a new begin", `
links: {wan: {rate: 8mbit}}
queues: {a: {link: wan, limit: 10p}, b: {link: wan, limit: 10p}}`, `
			0       b 1000 green 0        to 1000
			1000000 b 1000 green 1000000  to 2000
			2000000 b 1000 green 2000000
			2000000 b 100  green 4001000  from 3000
			2000000 a 1001 green 3000000  from 2000, as all begin`},
		{"two links", `
links: {wan: {rate: 8mbit}, lan: {rate: 80mbit}}
queues: {a: {link: wan, limit: 10p}, b: {link: lan, limit: 10p, priority: 7}}`, `
			0 a 1000 green 0
			0 b 1000 green 0
			0 a 1000 green 1000000
			0 b 1000 green 100000`},
		{"limit in bytes", "links: {wan: {rate: 8mbit}}\nqueues: {q: {link: wan, limit: 1000}}", `
			0       q 1001 green queue-full  though the link is idle
			0       q 1000 green 0           on the link, it does not wait
			0       q 600  green 1000000
			0       q 401  green queue-full
			0       q 400  green 1600000
			999999  q 1    green queue-full
			1000000 q 601  green queue-full  the 600 were chosen now
			1000000 q 600  green 2000000`},
		{"limit in packets", `
links: {wan: {rate: 8mbit}}
queues: {a: {link: wan, limit: 1p}, b: {link: wan, limit: 2p}}`, `
			0       a 1000 green 0
			0       a 1000 green 2000000
			0       a 1    green queue-full
			0       b 1000 green 1000000
			0       b 1000 green 3000000
			0       b 1    green queue-full
			1000000 a 1    green queue-full  b was chosen now
			2000000 a 1000 green 4000000
			2000000 a 1    green queue-full`},
		// 1001 ns are 375.375 bytes, which allow 18 packets.
		{"limit in time", "links: {wan: {rate: 3gbit}}\nqueues: {q: {link: wan, limit: 1001ns}}", `
			0 q 376 green queue-full
			0 q 375 green 0
			0 q 200 green 1000
			0 q 176 green queue-full
			0 q 175 green 1534`},
		{"room for two packets", "links: {wan: {rate: 8mbit}}\nqueues: {q: {link: wan, limit: 59us}}", `
			0     q 10 green 0
			0     q 10 green 10000
			0     q 10 green 20000
			0     q 10 green queue-full
			10000 q 10 green 30000`},
		// min, max and limit are 1000, 2000 and 4000 bytes; the numbers are those of seed 0.
		{"WRED", `
links: {wan: {rate: 8mbit}}
queues: {q: {link: wan, limit: 4ms, wred: {yellow: {min: 1ms, max: 2ms, probability: 1}}}}`, `
			0 q 1000 yellow  0
			0 q 999  yellow  1000000
			0 q 1    yellow  1999000      999 bytes wait: below min
			0 q 500  yellow  2000000      1000: min itself, number 1
			0 q 500  yellow  wred         1500: number 2 is below 1/2
			0 q 1    yellow^ wred         number 3 too
			0 q 499  yellow  2500000      number 4 is not
			0 q 1    yellow  wred         1999: number 5 is below 0.999
			0 q 1    green   2999000
			0 q 1    yellow  wred         2000: max
			0 q 2000 green   3000000
			0 q 1    green   queue-full`},
		// A packet that CoDel drops from a takes no time of the link, and a keeps its turn: it has
		// been due since 3028 and 4542.
		{"CoDel", `
links: {wan: {rate: 12112kbit}}
queues: {a: {link: wan, limit: 10p, codel: {target: 1ms, interval: 2ms}}, b: {link: wan, limit: 10p}}`, `
			0        b 1514 green  0
			0        a 1514 green  1000000
			0        a 1514 green  2000000
			0        a 1514 green  codel    at 4 ms, above since 1; the next is at 6
			0        a 1514 green  4000000
			0        a 1514 green  codel    at 6 ms; the next is at 7.41
			0        a 1514 green  6000000
			0        a 1514 green  8000000  only a frame waits behind it
			0        a 1514 green^ 10000000
			0        b 1514 green  3000000
			0        b 1514 green  5000000
			0        b 1514 green  7000000
			0        b 1514 green  9000000
			8500000  b 1514 green  11000000
			10250000 b 1514 green  12000000`},
		{"CE and a drop", `
links: {wan: {rate: 8mbit}}
queues: {q: {link: wan, limit: 10p, ecn: true, codel: {target: 1ms, interval: 1ms}}}`, `
			0       q 1000 green  0
			0       q 1000 green  1000000
			0       q 1000 green^ 2000000^
			0       q 1000 green  codel    at 3 ms
			0       q 1000 green  3000000
			0       q 1000 green  4000000`},
		// All are in one flow, because these packets have no addresses.
		{"fair, full", `
queues: {q: {rate: 8mbit, limit: 2000, fair: flow}}`, `
			0      q 2001 green queue-full
			0      q 1000 green 0
			0      q 1000 green queue-full  the first one makes room
			0      q 1000 green 1000000
			900000 q 1000 green 2000000`},
	})
}

// TestSections checks that packets that are queued at the end of a section are sent as if no
// other packet arrived, and that the link continues from there.
func TestSections(t *testing.T) {
	const policy = `
classes:
  - {name: hi, match: {dscp: 12}, green: {queue: hi}}
  - {name: past, match: {dscp: 0}}
  - {name: lo, green: {queue: lo}}
links: {wan: {rate: 8kbit}}
queues: {hi: {link: wan, limit: 9p}, lo: {link: wan, limit: 9p, priority: 1}}`
	lo := hexBytes(t, udp4)
	hi := hexBytes(t, strings.Replace(udp4, "4529", "4531", 1))
	past := hexBytes(t, strings.Replace(udp4, "4529", "4500", 1))
	for _, test := range []struct {
		sections   int
		departures []string // departure of each packet, ms
		order      []int
	}{
		{1, []string{"0", "56", "84", "28", "2", "112"}, []int{1, 5, 4, 2, 3, 6}},
		{2, []string{"0", "28", "56", "84", "2", "112"}, []int{1, 2, 3, 5, 4, 6}},
	} {
		var w pcapng
		w.section(binary.LittleEndian)
		w.iface(101, 0, 3, 0) // ms
		for range 3 {
			w.enhanced(0, 0, 28, lo)
		}
		if test.sections == 2 {
			w.section(binary.BigEndian)
			w.iface(101, 0, 3, 0)
		}
		w.enhanced(0, 1, 28, hi)
		w.enhanced(0, 2, 28, past)
		w.enhanced(0, 3, 28, lo)
		path := filepath.Join(t.TempDir(), "sections.pcapng")
		if err := os.WriteFile(path, w.bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		rows, err := Decide([]byte(policy), path)
		if err != nil {
			t.Fatal(err)
		}
		var departures []string
		for _, row := range rows {
			ms := strings.TrimSuffix(row[9], "000000")
			departures = append(departures, ms)
		}
		sent, err := Output([]byte(policy), path)
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		for _, s := range sent {
			order = append(order, s.Packet)
		}
		if !slices.Equal(departures, test.departures) || !slices.Equal(order, test.order) {
			t.Errorf("%d sections: departures %q, want %q; order %v, want %v",
				test.sections, departures, test.departures, order, test.order)
		}
	}
}

// TestOutput checks order, timestamps and marks of an output. An IPv4 packet takes 28 ms, an
// IPv6 packet 28.28 ms.
func TestOutput(t *testing.T) {
	const policy = `
classes:
  - {name: dropped, match: {dscp: 0}, green: drop}
  - {name: past, match: {dscp: 12}, green: {pcp: 5, mpls: 2}}
  - {name: queued, green: {dscp: 20, pcp: 1, queue: q}}
length: {overhead: 1972}
links: {wan: {rate: 2000B/28ms}}
queues: {q: {link: wan, limit: 9p, ecn: true, codel: {target: 1ms, interval: 28ms}}}`
	// DSCP 10 and ECT(1), with the right checksum and a wrong one.
	good := macs + "0800" + strings.Replace(udp4, "40110000", "4011aea6", 1)
	wrong := macs + "8100 6064 0800" + udp4
	packets := []packetRecord{
		{0, 0, hexBytes(t, good)},
		{0, 0, hexBytes(t, wrong)}, // queued 28 ms: above the target from 56 ms on
		{0, 0, hexBytes(t, good)},  // 56 ms: CE
		{0, 0, hexBytes(t, good)},  // 84 ms: CE
		{1000, 0, hexBytes(t, macs, "0800", strings.Replace(udp4, "4529", "4500", 1))}, // dropped
		{1000, 0, hexBytes(t, macs, "0800", strings.Replace(udp4, "4529", "4528", 1))}, // 112 ms: dropped
		{500, 0, hexBytes(t, macs, "88a8 e001 8100 0002 8847 00010e40 00010140", strings.Replace(udp4, "4529", "4531", 1))},
		{2000, 0, hexBytes(t, macs, "86dd", strings.Replace(udp6, "6b800", "6b900", 1))}, // 112 ms
		{2000, 0, hexBytes(t, macs, "86dd", strings.Replace(udp6, "6b800", "6b900", 1))}, // 140.28 ms: CE
		{2000, 0, hexBytes(t, macs, "86dd", strings.Replace(udp6, "6b800", "6b900", 1))}, // not dropped, as the last packet
	}
	want := []packetRecord{
		{0, 1, hexBytes(t, macs, "0800", strings.NewReplacer("4529", "4551", "40110000", "4011ae7e").Replace(udp4))},
		{500, 7, hexBytes(t, macs, "88a8 a001 8100 0002 8847 00010440 00010140", strings.Replace(udp4, "4529", "4531", 1))},
		{28_000_000, 2, hexBytes(t, macs, "8100 2064 0800", strings.NewReplacer("4529", "4551", "40110000", "4011ffd7").Replace(udp4))},
		{56_000_000, 3, hexBytes(t, macs, "0800", strings.NewReplacer("4529", "4553", "40110000", "4011ae7c").Replace(udp4))},
		{84_000_000, 4, hexBytes(t, macs, "0800", strings.NewReplacer("4529", "4553", "40110000", "4011ae7c").Replace(udp4))},
		{112_000_000, 8, hexBytes(t, macs, "86dd", strings.Replace(udp6, "6b800", "65100", 1))},
		{140_280_000, 9, hexBytes(t, macs, "86dd", strings.Replace(udp6, "6b800", "65300", 1))},
		{168_560_000, 10, hexBytes(t, macs, "86dd", strings.Replace(udp6, "6b800", "65100", 1))},
	}
	sent, err := Output([]byte(policy), writePcap(t, 1, packets))
	if err != nil {
		t.Fatal(err)
	}
	var got []packetRecord
	for _, s := range sent {
		got = append(got, packetRecord{s.Time.Int64(), s.Packet, s.Data})
	}
	if len(got) != len(want) {
		t.Fatalf("got %d packets, want %d", len(got), len(want))
	}
	for i := range want { // wire is the number of the packet here
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("sent %d:\n%d ns, packet %d, %x; want\n%d ns, packet %d, %x",
				i+1, got[i].ns, got[i].wire, got[i].data, want[i].ns, want[i].wire, want[i].data)
		}
	}
}
