package main

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
)

// sender sends packets of 1200 bytes to 192.0.2.<to> for a second.
type sender struct {
	to   byte
	mbit float64
}

// writeTraffic writes a capture of senders and returns its path.
func writeTraffic(t *testing.T, senders ...sender) string {
	t.Helper()
	const length, link = 1200, 101 // raw IP
	order := binary.LittleEndian
	type pending struct {
		at, gap float64 // ns
		r       *rand.Rand
	}
	queue := make([]pending, len(senders))
	for i, s := range senders {
		gap := length * 8e3 / s.mbit
		queue[i] = pending{gap * float64(i) / 7, gap, rand.New(rand.NewPCG(uint64(i), 0))}
	}
	data := order.AppendUint32(nil, 0xa1b23c4d)
	for _, v := range []uint32{2 | 4<<16, 0, 0, 65535, link} {
		data = order.AppendUint32(data, v)
	}
	for {
		next := 0
		for i := range queue {
			if queue[i].at < queue[next].at {
				next = i
			}
		}
		p := &queue[next]
		if p.at >= 1e9 {
			break
		}
		for _, v := range []uint32{1_767_225_600, uint32(p.at), 28, length} {
			data = order.AppendUint32(data, v)
		}
		data = append(data, 0x45, 0, length>>8, length&0xff, 0, 0, 0, 0, 64, 17, 0, 0, 203, 0, 113, 1, 192, 0,
			2, senders[next].to)
		port := 1000 + next // so each sender is a flow
		data = append(data, byte(port>>8), byte(port), 0x13, 0x89, 0, 8, 0, 0)
		p.at += p.gap * (0.9 + 0.2*p.r.Float64())
	}
	path := filepath.Join(t.TempDir(), "traffic.pcap")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// writeFiles writes files to a folder, and returns the path of policy.yaml there.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "policy.yaml")
}

// shareOf replays a capture and returns the bytes that arrived and passed, by a column of the
// decisions.
func shareOf(t *testing.T, capture, policy, engine string, column int) (arrived, passed map[string]int) {
	t.Helper()
	var out, stderr bytes.Buffer
	if code := run([]string{"replay", capture, "--policy", policy, "--engine", engine, "--decisions", "-"},
		cli.Streams{Out: &out, Err: &stderr}); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	arrived, passed = map[string]int{}, map[string]int{}
	for _, row := range rows[1:] {
		n, err := strconv.Atoi(row[2])
		if err != nil {
			t.Fatal(err)
		}
		arrived[row[column]] += n
		if row[6] != "drop" {
			passed[row[column]] += n
		}
	}
	return arrived, passed
}

const decisionClass, decisionKey = 3, 11

// TestQueueFirstUplink floods customer 4713, which has a queue of 20 Mbit/s, with 2 Gbit/s. Another customer
// gets all of its 40 Mbit/s: the meter of 1 Gbit/s that both share is not empty.
func TestQueueFirstUplink(t *testing.T) {
	t.Parallel()
	capture := writeTraffic(t, sender{3, 2000}, sender{1, 40})
	policy := writeFiles(t, map[string]string{
		"policy.yaml": `classes: [{name: customers, per: customer, meter: plan, then: uplink}]
customers: {file: customers.csv}
plans:
  home-50: {type: trtcm, cir: 50mbit, cbs: 1MiB, pir: 60mbit, pbs: 1MiB}
  quiet: {queue: {rate: 20mbit, limit: 50ms, codel: true}}
meters:
  uplink: {type: token-bucket, rate: 1gbit, burst: 4MiB, color: aware}
`,
		"customers.csv": "customer,address,plan\n4711,192.0.2.1,home-50\n4713,192.0.2.3,quiet\n",
	})
	for _, engine := range []string{"go", "bpf"} {
		t.Run(engine, func(t *testing.T) {
			if engine == "bpf" {
				needRoot(t)
			}
			arrived, passed := shareOf(t, capture, policy, engine, decisionKey)
			if arrived["4711"] < 4_900_000 || passed["4711"] != arrived["4711"] {
				t.Errorf("4711 got %d of %d bytes", passed["4711"], arrived["4711"])
			}
			// 20 Mbit/s for a second, the backlog of 50 ms, and the packet at its end.
			if least, most := 2_500_000, 2_500_000+125_000+1200; passed["4713"] < least ||
				passed["4713"] > most {
				t.Errorf("4713 got %d bytes, want %d to %d", passed["4713"], least, most)
			}
		})
	}
}

// TestQueueDropsPayNothing sends 100 Mbit/s to a queue of 10 Mbit/s and 30 Mbit/s past it, all
// through one meter of 41 Mbit/s. The 30 Mbit/s lose nothing, whatever the queue and the meter
// are: the meters are not charged for what the queue drops.
func TestQueueDropsPayNothing(t *testing.T) {
	t.Parallel()
	capture := writeTraffic(t, sender{3, 100}, sender{1, 30})
	queues := map[string]string{
		"limit":         "queues: {q: {rate: 10mbit, limit: 20ms, fair: false}}",
		"wred":          "queues: {q: {rate: 10mbit, limit: 40p, wred: {green: {min: 1p, max: 20p, probability: 0.5}, yellow: {min: 1p, max: 20p, probability: 1}}}}",
		"codel":         "queues: {q: {rate: 10mbit, limit: 50kB, fair: false, codel: {target: 1ms, interval: 4ms}}}",
		"fair":          "queues: {q: {rate: 10mbit, limit: 20ms, fair: flow}}",
		"fair on link":  "queues: {q: {link: l, limit: 50p, fair: dst}}\nlinks: {l: {rate: 10mbit}}",
		"codel on link": "queues: {q: {link: l, limit: 40kB, codel: {target: 1ms, interval: 4ms}}}\nlinks: {l: {rate: 10mbit}}",
	}
	meters := map[string]string{
		"token-bucket":    "type: token-bucket, rate: 41mbit, burst: 64KiB",
		"srtcm":           "type: srtcm, cir: 41mbit, cbs: 32KiB, ebs: 64KiB",
		"trtcm":           "type: trtcm, cir: 20mbit, cbs: 32KiB, pir: 41mbit, pbs: 64KiB",
		"trtcm4115":       "type: trtcm4115, cir: 20mbit, cbs: 32KiB, eir: 22mbit, ebs: 64KiB",
		"warm-up":         "type: token-bucket, rate: 41mbit, burst: 256KiB, warmup: 1ms",
		"key":             "type: token-bucket, rate: 41mbit, burst: 64KiB, per: dst/24",
		"no key":          "type: token-bucket, rate: 41mbit, burst: 64KiB, per: vlan",
		"fixed-window":    "type: fixed-window, limit: 600kB, window: 100ms",
		"sliding-counter": "type: sliding-counter, limit: 600kB, window: 100ms",
		"sliding-window":  "type: sliding-window, limit: 600kB, window: 100ms",
		"sliding-log":     "type: sliding-log, limit: 600kB, window: 100ms",
		"envelope":        "type: trtcm4115, cir: 41mbit, cbs: 64KiB, eir: 0bit, ebs: 0, envelope: e, rank: 1",
		"budget":          "type: token-bucket, rate: 41mbit, burst: 64KiB, share: {budget: b, store: host}",
	}
	for queue, queueText := range queues {
		for meter, meterText := range meters {
			text := "classes:\n" +
				"  - {name: slow, match: {dst: 192.0.2.3}, meter: {type: trtcm, cir: 60mbit, cbs: 64KiB, pir: 200mbit, pbs: 64KiB}, then: sum, green: {queue: q}, yellow: {queue: q}}\n" +
				"  - {name: rest, meter: sum}\n" +
				"meters: {sum: {" + meterText + ", color: aware}}\n" + queueText + "\n"
			if meter == "envelope" {
				text += "envelopes: {e: {}}\n"
			}
			for _, engine := range []string{"go", "bpf"} {
				only := strings.Contains("warm-up sliding-window sliding-log envelope", meter) ||
					strings.Contains(queueText, "fair") || strings.Contains(queueText, "link")
				if engine == "bpf" && only {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", queue, meter, engine), func(t *testing.T) {
					if engine == "bpf" {
						needRoot(t)
					}
					policy := filepath.Join(t.TempDir(), "policy.yaml")
					if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
					arrived, passed := shareOf(t, capture, policy, engine, decisionClass)
					if arrived["rest"] < 3_600_000 || passed["rest"] != arrived["rest"] {
						t.Errorf("rest got %d of %d bytes", passed["rest"], arrived["rest"])
					}
					if arrived["slow"] < 12_000_000 || passed["slow"] > 1_400_000 ||
						passed["slow"] < 1_100_000 {
						t.Errorf("slow got %d of %d bytes, want 10 Mbit/s", passed["slow"], arrived["slow"])
					}
				})
			}
		}
	}
}

// TestWhyGivenBack asks why packets were dropped by queues: a customer's own queue used no meter,
// and all other queues left the tokens as they were.
func TestWhyGivenBack(t *testing.T) {
	t.Parallel()
	capture := writeTraffic(t, sender{3, 40}, sender{4, 40})
	dir := t.TempDir()
	policy, table := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "c.csv")
	text := `
classes:
  - {name: own, per: customer, meter: plan, then: sum}
  - {name: link, meter: sum, green: {queue: q}}
customers: {file: c.csv}
plans: {paced: {queue: {rate: 10mbit, limit: 1ms}}}
meters: {sum: {type: token-bucket, rate: 1gbit, burst: 64KiB, color: aware, then: rate}, rate: {type: tswtcm, cir: 1gbit, pir: 1gbit, window: 1s, color: aware}}
queues: {q: {link: l, limit: 9kB, codel: {target: 1ms, interval: 4ms}}}
links: {l: {rate: 10mbit}}
`
	for path, content := range map[string]string{
		policy: text, table: "customer,address,plan\na,192.0.2.3,paced\n",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]int{}
	for i, row := range decisionsOf(t, capture, "--policy", policy) {
		kind := row.Class + " " + row.Reason
		if seen[kind]++; row.Action != "drop" || seen[kind] > 2 {
			continue
		}
		got := whyJSON(t, capture, i+1, "--policy", policy)
		if row.Class == "own" {
			if len(got.Meters) != 0 || got.NoMeter == "" || got.Queue == nil ||
				!strings.Contains(got.Why, "queue of customer a") {
				t.Errorf("packet %d: %+v, want no meter and the customer's queue", i+1, got)
			}
			continue
		}
		if len(got.Meters) != 2 || !got.Meters[0].GivenBack || got.Meters[1].GivenBack ||
			got.Meters[0].Buckets[0].Before != got.Meters[0].Buckets[0].After {
			t.Errorf("packet %d: %+v, want the tokens of the first meter back", i+1, got.Meters)
		}
	}
	if seen["own queue-full"] == 0 || seen["link queue-full"] == 0 || seen["link codel"] == 0 {
		t.Errorf("dropped by %v: want all kinds", seen)
	}
}

// TestTreeShares sends 100 Mbit/s to one customer of an access point of 25 Mbit/s, and 15 to its neighbor. A
// site of 40 Mbit/s has another one, whose customers get 10 Mbit/s each. Their plans have 20 Mbit/s. The
// access points have half of the site, and so the neighbor 10 Mbit/s.
func TestTreeShares(t *testing.T) {
	t.Parallel()
	capture := writeTraffic(t, sender{1, 100}, sender{2, 15}, sender{3, 10}, sender{4, 10})
	policy := writeFiles(t, map[string]string{
		"policy.yaml": `links: {site: {rate: 40mbit}, ap-1: {link: site, rate: 25mbit}, ap-2: {link: site, rate: 25mbit}}
plans: {p: {queue: {rate: 20mbit, limit: 50ms, fair: flow}}}
customers: {file: customers.csv}
classes: [{name: all, per: customer, meter: plan}]
`,
		"customers.csv": `customer,address,plan,link
1,192.0.2.1,p,ap-1
2,192.0.2.2,p,ap-1
3,192.0.2.3,p,ap-2
4,192.0.2.4,p,ap-2
`,
	})
	arrived, passed := shareOf(t, capture, policy, "go", decisionKey)
	const second = 1_250_000 // bytes of 10 Mbit/s
	if least := second * 99 / 100; passed["2"] < least || arrived["2"] < second*5/4 {
		t.Errorf("the neighbor got %d of %d bytes, want at least %d", passed["2"], arrived["2"], least)
	}
	for _, customer := range []string{"3", "4"} {
		if passed[customer] != arrived[customer] {
			t.Errorf("customer %s got %d of %d bytes", customer, passed[customer], arrived[customer])
		}
	}
}
