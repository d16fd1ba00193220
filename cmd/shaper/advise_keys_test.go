package main

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/advise"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
)

// sentPacket is a packet of a host 10.0.0.x: UDP, or a segment of TCP if it has a sequence number.
type sentPacket struct {
	at     int64 // ns
	host   byte
	length int // bytes of the IP packet
	seq    uint32
}

// writeSent writes packets as a capture of IP packets, in the order of their times.
func writeSent(t *testing.T, packets []sentPacket) string {
	t.Helper()
	slices.SortStableFunc(packets, func(a, b sentPacket) int { return int(a.at - b.at) })
	le, be := binary.LittleEndian, binary.BigEndian
	out := le.AppendUint32(nil, 0xa1b23c4d)
	out = le.AppendUint16(out, 2)
	out = le.AppendUint16(out, 4)
	for _, v := range []uint32{0, 0, 1 << 18, 101} {
		out = le.AppendUint32(out, v)
	}
	for _, p := range packets {
		proto, l4 := byte(17), []byte{0x13, 0x88, 0x13, 0x88, 0, 0, 0, 0}
		if p.seq > 0 {
			proto, l4 = 6, be.AppendUint32([]byte{0x13, 0x88, 0, 80}, p.seq)
			l4 = append(l4, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0)
		}
		h := be.AppendUint16([]byte{0x45, 0}, uint16(p.length))
		h = append(h, 0, 0, 0, 0, 64, proto, 0, 0, 10, 0, 0, p.host, 192, 0, 2, 1)
		h = append(h, l4...)
		for _, v := range []int64{1_700_000_000 + p.at/1e9, p.at % 1e9, int64(len(h)), int64(p.length)} {
			out = le.AppendUint32(out, uint32(v))
		}
		out = append(out, h...)
	}
	file := filepath.Join(t.TempDir(), "sent.pcap")
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func writePolicy(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// keyLoss counts the packets of a key: all, not green, and red.
type keyLoss struct{ packets, excess, red int64 }

// lossOfKeys replays a capture through a meter for each source, and counts the rows of its decisions.
func lossOfKeys(t *testing.T, capture, meter string) map[string]keyLoss {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rows.csv")
	jsonOf[summary.Totals](t, "replay", capture, "--json", "--meter", meter+" per=src", "--decisions", file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	color, key := slices.Index(rows[0], "color"), slices.Index(rows[0], "key")
	out := map[string]keyLoss{}
	for _, row := range rows[1:] {
		n := out[row[key]]
		n.packets++
		if row[color] != "green" {
			n.excess++
		}
		if row[color] == "red" {
			n.red++
		}
		out[row[key]] = n
	}
	return out
}

// TestAdviseLossOfKeys replays a meter for each host with the advised bursts: no host loses more than the
// wanted share, and the named one loses as much as it says. With a byte less in the burst of a token
// bucket, a host loses more.
func TestAdviseLossOfKeys(t *testing.T) {
	starved := []sentPacket{} // 99 hosts of 100-byte packets, and one of 1500-byte packets
	for i := range int64(20) {
		for k := range byte(99) {
			starved = append(starved, sentPacket{at: i*1e7 + int64(k)*1e5, host: k + 1, length: 100})
		}
		starved = append(starved, sentPacket{at: i * 1e8, host: 200, length: 1500})
	}
	captures := []string{writeSent(t, starved)}
	r := rand.New(rand.NewPCG(31, 1))
	for range 2 {
		var list []sentPacket
		at := int64(0)
		for range 800 {
			at += r.Int64N(4e6)
			host := byte(1 + min(r.IntN(12), r.IntN(12)))
			list = append(list,
				sentPacket{at: at, host: host, length: []int{40, 576, 1500, 100 * int(host)}[r.IntN(4)]})
		}
		captures = append(captures, writeSent(t, list))
	}
	for _, capture := range captures {
		for _, m := range []string{
			"type: token-bucket, rate: 1mbit, burst: 3000", "type: gcra, rate: 300kbit, burst: 3000",
			"type: srtcm, cir: 200kbit, cbs: 3000, ebs: 3000", "type: trtcm, cir: 200kbit, cbs: 3000, pir: 400kbit, pbs: 3000",
			"type: trtcm4115, cir: 100kbit, cbs: 3000, eir: 200kbit, ebs: 3000", "type: trtcm4115, cir: 200kbit, cbs: 3000, eir: 100kbit, ebs: 3000, coupling: true",
		} {
			policy := writePolicy(t, "classes: [{name: hosts, meter: {"+m+", per: src}}]\n")
			for _, loss := range []int64{0, 1, 10} {
				a := jsonOf[advise.Advice](t, "advise", capture, "--json", "--policy", policy, "--loss",
					fmt.Sprintf("%d%%", loss), "--excess", "20%")
				advised := a.Classes[0].Meters[0]
				single := strings.Contains(m, "burst")
				holds := func(n keyLoss) bool {
					return n.red*100 <= n.packets*loss && (single || n.excess*5 <= n.packets)
				}
				lost := lossOfKeys(t, capture, advised.Meter)
				named := lost[advised.Worst.Key]
				if named.red != advised.Worst.Red.Packets || named.packets != advised.Worst.Offered.Packets {
					t.Errorf("%s: got %+v as the worst key, a replay has %+v", advised.Meter, advised.Worst,
						named)
				}
				for key, n := range lost {
					if !holds(n) {
						t.Errorf("%s at a loss of %d %%: %s has %+v", advised.Meter, loss, key, n)
					}
					if n.red*named.packets > named.red*n.packets {
						t.Errorf("%s: %s has %+v, the worst key is said to be %+v", advised.Meter, key, n,
							advised.Worst)
					}
				}
				head, burst := "", int64(0)
				if at := strings.Index(advised.Meter, " burst="); single {
					head = advised.Meter[:at]
					if _, err := fmt.Sscanf(advised.Meter[at:], " burst=%d", &burst); err != nil {
						t.Fatal(err)
					}
					all := true
					for _, n := range lossOfKeys(t, capture, fmt.Sprintf("%s burst=%d", head, burst-1)) {
						all = all && holds(n)
					}
					if all {
						t.Errorf("%s at a loss of %d %%: a byte less is enough", advised.Meter, loss)
					}
				}
			}
		}
	}
	out, _ := outputOf(t, "advise", captures[0], "--policy",
		writePolicy(t, "classes: [{name: hosts, meter: {type: gcra, rate: 1mbit, burst: 100, per: src}}]\n"),
		"--loss", "1%")
	for _, want := range []string{
		"worst key: src 10.0.0.200: 20 of 20 packets red (100.0 %)\n",
		"  gcra rate=1mbit burst=1500\n    worst key: src 10.0.0.200: 0 of 20 packets red (0.0 %)\n",
		"100 keys of so few packets that a single one is more than the wanted loss",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "),
			strings.Join(strings.Fields(want), " ")) {
			t.Errorf("got\n%s\nwant %q", out, want)
		}
	}
}

// outputOf runs a command that succeeds, and returns what it prints.
func outputOf(t *testing.T, args ...string) (out, stderr string) {
	t.Helper()
	var a, b bytes.Buffer
	if code := run(args, cli.Streams{Out: &a, Err: &b}); code != cli.ExitDone {
		t.Fatalf("%v: exit %d: %s", args, code, &b)
	}
	return a.String(), b.String()
}

// TestAdviseThrottledKey checks that a host whose TCP was throttled makes the bursts of a class with a
// meter for each host lower bounds, also if its packets are few among those of all.
func TestAdviseThrottledKey(t *testing.T) {
	const policy = "classes: [{name: hosts, meter: {type: token-bucket, rate: 50mbit, burst: 64KiB, per: src}}]\n"
	capture := func(again bool) string {
		var list []sentPacket
		for i := range int64(2000) {
			list = append(list, sentPacket{at: i * 1e6, host: byte(1 + i%4), length: 1500})
		}
		for i := range int64(120) { // 175,200 bytes of data
			p := sentPacket{at: i*1e6 + 5e5, host: 9, length: 1500, seq: 1 + uint32(i)*1460}
			list = append(list, p)
			if again && i%20 == 0 {
				p.at += 4e7
				list = append(list, p)
			}
		}
		return writeSent(t, list)
	}
	for _, again := range []bool{false, true} {
		a := jsonOf[advise.Advice](t, "advise", capture(again), "--json", "--policy", writePolicy(t, policy))
		if a.Capture.TCP.Senders != 1 || a.Capture.TCP.Throttled {
			t.Fatalf("got %+v, want one sender of less than a tenth of the bytes", a.Capture.TCP)
		}
		if c := a.Classes[0]; c.LowerBound != again || c.Throttled > 0 != again {
			t.Errorf("sent again %v: got lower bounds %v and %d throttled keys", again, c.LowerBound,
				c.Throttled)
		}
	}
	out, _ := outputOf(t, "advise", capture(true), "--policy", writePolicy(t, policy))
	if !strings.Contains(out, "throttled: TCP of 1 key had slowed down") ||
		!strings.Contains(out, "loss of each key, lower bounds") {
		t.Errorf("got %s", out)
	}
}

// TestAdviseRefused checks that each class with a meter has advice or a reason why not, and that properties
// of meters that the advice ignores are named.
func TestAdviseRefused(t *testing.T) {
	capture := writeSent(t, []sentPacket{
		{at: 0, host: 1, length: 100}, {at: 1e6, host: 2, length: 100}, {at: 2e6, host: 1, length: 100},
	})
	const bucket = "type: token-bucket, rate: 1mbit, burst: 3000"
	for _, c := range []struct {
		text    string // of the class after its name, and the rest of the policy
		advised bool
		want    string
	}{
		{"meter: {" + bucket + "}}]", true, ""},
		{"meter: {" + bucket + ", per: src}}]", true, ""},
		{"meter: {" + bucket + ", per: src, keys: 1}}]", true, "class a: its meter has room for 1 of the 2 keys"},
		{"meter: {" + bucket + ", per: src, new: empty}}]", true, "class a: the bursts are for buckets that start full, not at 0.0 %"},
		{"meter: {" + bucket + ", initial: 50%}}]", true, "start full, not at 50.0 %"},
		{"meter: {" + bucket + ", color: aware}}]", true, "input color is green"},
		{"meter: {" + bucket + ", then: b}}]\nmeters: {b: {" + bucket + ", color: aware}}", true, "meter b behind it"},
		{"meter: {" + bucket + ", warmup: 10s}}]", false, "class a: no advice: the rate of its meter is not constant (warmup)"},
		{"meter: {type: token-bucket, rate: 100p/1s, burst: 9, count: packets}}]", false, "class a: no advice: its meter counts packets"},
		{"meter: {type: sliding-counter, limit: 125kB, window: 1s}}]", false, "a sliding-counter has no burst"},
		{"meter: {type: tswtcm, cir: 1mbit, pir: 2mbit, window: 1s}}]", false, "a tswtcm has no burst"},
		{"meter: {" + bucket + ", share: {budget: b, store: host}}}]", false, "other meters share its budget"},
		{"meter: {type: trtcm4115, cir: 1mbit, cbs: 3000, eir: 1mbit, ebs: 3000, envelope: e, rank: 1}}]\nenvelopes: {e: {}}", false, "other flows of its envelope"},
		{"match: {proto: udp}, meter: m}, {name: z, meter: {" + bucket + ", then: m}}]\nmeters: {m: {" + bucket + ", color: aware}}", false, "class a: no advice: other meters are chained to its meter"},
		{"per: customer, meter: plan}]\ncustomers: {file: customers.csv}\nplans: {p: {" + bucket + "}}", false, "class a: no advice: each customer has the meter of its plan"},
	} {
		policy := writePolicy(t, "classes: [{name: a, "+c.text+"\n")
		if err := os.WriteFile(filepath.Join(filepath.Dir(policy), "customers.csv"),
			[]byte("customer,address,plan\nx,10.0.0.1,p\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		a := jsonOf[advise.Advice](t, "advise", capture, "--json", "--policy", policy)
		advised := slices.ContainsFunc(a.Classes, func(found advise.Class) bool { return found.Name == "a" })
		warned := strings.Join(a.Warnings, "\n")
		if advised != c.advised || !strings.Contains(warned, c.want) || c.want == "" &&
			strings.Contains(warned, "class") {
			t.Errorf("%s: advised %v, warnings %q; want %v, %q", c.text, advised, a.Warnings, c.advised,
				c.want)
		}
	}
}

// TestAdviseSharedMeter checks that classes that use one meter get one advice, for all of their packets.
func TestAdviseSharedMeter(t *testing.T) {
	var list []sentPacket
	for i := range int64(200) {
		list = append(list, sentPacket{at: i * 1e5, host: byte(1 + i%2), length: 1000})
	}
	capture := writeSent(t, list)
	policy := func(burst int64) string {
		return writePolicy(t,
			fmt.Sprintf("classes:\n  - {name: a, match: {src: 10.0.0.1}, meter: m}\n  - {name: b, match: {src: 10.0.0.2}, meter: m}\n"+
				"meters: {m: {type: token-bucket, rate: 1mbit, burst: %d}}\n", burst))
	}
	a := jsonOf[advise.Advice](t, "advise", capture, "--json", "--policy", policy(3000))
	if len(a.Classes) != 1 || a.Classes[0].Name != "a, b" || a.Classes[0].Offered.Packets != 200 {
		t.Fatalf("got %+v, want one answer for a and b", a.Classes)
	}
	burst := a.Classes[0].LossFree
	for b, want := range map[int64]bool{burst: false, burst - 1: true} {
		got := jsonOf[summary.Totals](t, "replay", capture, "--json", "--policy", policy(b))
		if n := got.Classes[0].Dropped.Packets + got.Classes[1].Dropped.Packets; n > 0 != want {
			t.Errorf("a burst of %d drops %d packets; the advised one is %d", b, n, burst)
		}
	}
}
