package livetest

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveQueueDropped checks that packets that HTB drops from a link's queues are counted as
// dropped: by class and color if these are known, and in the total.
func TestLiveQueueDropped(t *testing.T) {
	skipInVM(t)
	const policy = `
classes:
  - {name: a, match: {dscp: af11}, green: {queue: a}}
  - {name: b, match: {dscp: af12}, green: {queue: bc}}
  - {name: c, match: {dscp: af13}, green: {queue: %s}}
  - name: d
    match: {dscp: [af21, af22]}
    meter: {type: trtcm, cir: 1gbit, cbs: 1MB, pir: 1gbit, pbs: 1MB, color: aware}
    green: {queue: d}
    yellow: {queue: d}
links: {wan: {rate: 2mbit}}
queues:
  a: {link: wan, limit: 10kB}
  bc: {link: wan, limit: 10kB}
  d: {link: wan, limit: 10kB}
`
	p := newQueuePair(t)
	path := writePolicy(t, fmt.Sprintf(policy, "bc"))
	r := p.runShaper("--metrics", ":0", "--policy", path)
	_, at := p.addresses(placement{"tcx", "egress"}, false)
	in := listenUDP(t, p.far, at)
	count := func(frames []nettest.Frame) map[int]int64 {
		out := map[int]int64{}
		for _, f := range frames {
			if len(f.Data) > 900 {
				out[tosOf(f.Data[14:])]++
			}
		}
		return out
	}
	sniffer := p.far.Sniff("v0")
	const each = 60
	for _, tos := range []int{10 << 2, 12 << 2, 14 << 2, 18 << 2, 20 << 2} {
		sendUDP(t, newSender(t, p.near, at, tos, 0), each, 1000)
	}
	eventually(t, func() error {
		for _, q := range p.stats().Queues {
			if q.Bytes > 0 {
				return fmt.Errorf("queue %s holds %d bytes", q.Name, q.Bytes)
			}
		}
		return nil
	})
	in.receiveAll()
	arrived := count(sniffer.Stop())
	lost := func(tos ...int) (n int64) {
		for _, tos := range tos {
			n += each - arrived[tos<<2]
		}
		return n
	}
	if lost(10) == 0 || lost(12, 14) == 0 || lost(18, 20) == 0 {
		t.Fatalf("%v packets arrived: want drops in each queue", arrived)
	}
	s := p.stats()
	for i, want := range []struct {
		class, green int64
	}{{lost(10), lost(10)}, {0, 0}, {0, 0}, {lost(18, 20), 0}} {
		c := s.Classes[i]
		if c.Dropped.Packets != want.class || c.Green.Dropped["queue-full"].Packets != want.green {
			t.Errorf("class %s: dropped %+v, green %+v: want %+v", c.Name, c.Dropped, c.Green.Dropped, want)
		}
	}
	for i, want := range []struct {
		class   string
		dropped int64
	}{{"a", lost(10)}, {"", lost(12, 14)}, {"d", lost(18, 20)}} {
		if q := s.Queues[i]; q.Class != want.class || q.Dropped != want.dropped {
			t.Errorf("queue %+v: want %+v", q, want)
		}
	}
	all := lost(10, 12, 14, 18, 20)
	if s.Dropped.Packets != all {
		t.Errorf("dropped %+v of all: want %d packets", s.Dropped, all)
	}

	want := map[string]float64{
		`{class="a",color="green",`: float64(lost(10)), `{class="",color="",`: float64(lost(12, 14)), `{class="d",color="",`: float64(lost(18, 20)),
	}
	eventually(t, func() error {
		numbers := p.scrapeMetrics(r)
		for labels, n := range want {
			name := "shaper_dropped_packets_total" + labels +
				`direction="egress",interface="v0",reason="queue-full"}`
			if got, ok := numbers[name]; !ok || got != n {
				return fmt.Errorf("%s is %v: want %v", name, got, n)
			}
		}
		return nil
	})

	rewriteFile(t, path, fmt.Sprintf(policy, "a"))
	p.wantExit(0, "reload")
	s = p.stats()
	if s.Queues[0].Class != "" || s.Classes[0].Dropped.Packets != 0 || s.Dropped.Packets != all {
		t.Errorf("queue a has a second class now: %+v: want %d dropped, of no class", s, all)
	}
	r.stopBySIGTERM()
	for _, text := range []string{
		fmt.Sprintf(`\n +%d +queue-full *\n`, lost(18, 20)),
		fmt.Sprintf(`\n%d more packets were dropped in queues that several classes use\n`, lost(10, 12, 14)),
	} {
		if !regexp.MustCompile(text).MatchString(r.out.String()) {
			t.Errorf("the last table does not contain %s: %s", text, &r.out)
		}
	}
}

// TestQuietQueueLink checks that queues share a link by priority and weight.
func TestQuietQueueLink(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	p := newQueuePair(t)
	m := placement{"tcx", "egress"}
	_, at := p.addresses(m, false)
	before, qdiscs := p.deviceState(), p.qdiscState()
	r := p.runShaper("--policy", writePolicy(t, `
classes:
  - {name: voice, match: {dscp: ef}, green: {queue: voice}}
  - {name: web, match: {dscp: af11}, green: {queue: web}}
  - {name: mail, match: {dscp: af12}, green: {queue: mail}}
  - {name: rest, green: {queue: rest}}
links: {wan: {rate: 20mbit}}
queues:
  voice: {link: wan, priority: 0, limit: 64KiB}
  web: {link: wan, priority: 1, weight: 3, limit: 50ms}
  mail: {link: wan, priority: 1, weight: 1, limit: 50ms}
  rest: {link: wan, priority: 2, limit: 50ms}
`))
	listenUDP(t, p.far, at) // no ICMP errors reach the sender
	offered := map[int]float64{46 << 2: 4e6 / 8, af11: 40e6 / 8, af12: 40e6 / 8, 0: 40e6 / 8}
	nettest.Steady(t, func() error {
		var sending sync.WaitGroup
		for tos, rate := range offered {
			conn := newSender(t, p.near, at, tos, 0)
			sending.Go(func() { offerUDP(t, conn, 1500, rate, 3*time.Second) })
		}
		time.Sleep(500 * time.Millisecond)
		sniffer := p.far.Sniff("v0")
		time.Sleep(2 * time.Second)
		frames := sniffer.Stop()
		sending.Wait()
		err := checkNear(t, "link", ipRate(frames), 20e6/8, 0.01)
		shares := map[int]float64{}
		for _, f := range frames {
			shares[tosOf(f.Data[14:])] += 1 / float64(len(frames))
		}
		t.Logf("shares by TOS: %v", shares)
		for tos, want := range map[int]float64{46 << 2: 0.2, af11: 0.6, af12: 0.2, 0: 0} {
			if got := shares[tos]; got < want-0.03*0.6 || got > want+0.03*0.6 {
				err = errors.Join(err, fmt.Errorf("TOS %#x gets %.4f of the link: want %.2f", tos, got, want))
			}
		}
		return err
	})
	r.stopBySIGTERM()
	p.awaitClean(before, qdiscs)
}

// TestQuietQueueFair sends TCP and a flood of UDP through one queue.
func TestQuietQueueFair(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	for _, fair := range []string{", fair: false", ""} {
		t.Run("queue"+fair, func(t *testing.T) {
			p := newQueuePair(t)
			_, at := p.addresses(placement{"tcx", "egress"}, false)
			before, qdiscs := p.deviceState(), p.qdiscState()
			policy := writePolicy(t,
				"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 10mbit, limit: 100ms"+fair+"}}\n")
			r := p.runShaper("--pacer", "htb", "--policy", policy)
			byFQCoDel := haveQdisc(t, "fq_codel")
			scheduler := map[bool]string{
				true:  "; fair queues by fq_codel",
				false: "; fair queues by HTB leaves for flow hashes, without codel: this kernel has no fq_codel",
			}[byFQCoDel]
			if fair != "" {
				scheduler = ""
			}
			want := "in HTB, one leaf class per queue" + scheduler + "\n"
			status, _ := p.wantExit(0, "status")
			r.out.awaitMatch(t, regexp.QuoteMeta(want))
			if !strings.Contains(strings.Join(strings.Fields(status), " "), strings.TrimSpace(want)) {
				t.Errorf("status prints\n%s\nwant %q", status, want)
			}
			listenUDP(t, p.far, at) // no ICMP errors reach the sender
			rateOver := startTCP(t, p.near, p.far, at)
			conn := newSender(t, p.near, at, 0, 0)
			done := make(chan bool)
			var sending sync.WaitGroup
			sending.Go(func() {
				for b := make([]byte, 1400); ; {
					select {
					case <-done:
						return
					default:
						_, _ = conn.Write(b)
						time.Sleep(300 * time.Microsecond) // about 30 Mbit/s if timers are precise
					}
				}
			})
			rateOver(2 * time.Second)
			rate := rateOver(4*time.Second) * 8 / 1e6
			close(done)
			sending.Wait()
			t.Logf("TCP with a flood of UDP through 10 Mbit/s%s: %.2f Mbit/s", fair, rate)
			if fair == "" {
				if rate == 0 { // the rate depends on the machine; TestQdiscFair checks the drops
					t.Error("TCP gets nothing")
				}
				if q := p.stats().Queues[0]; q.Dropped == 0 {
					t.Errorf("%+v: want drops", q)
				}
			}
			for _, next := range []string{", fair: false", "", ", codel: false", ", fair: false"} {
				p.wantExit(0, "reload", "v0", "--policy", writePolicy(t,
					"classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 12mbit, limit: 50ms"+next+"}}\n"))
				now, isFair := p.qdiscState(), next != ", fair: false"
				if strings.Contains(now, "qdisc fq_codel") != (isFair && byFQCoDel) ||
					strings.Count(now, "qdisc bfifo") > 1000 != (isFair && !byFQCoDel) {
					t.Errorf("after a reload to%q:\n%s", next, now)
				}
				eventually(t, func() error { // TCP recovers from the losses of the flood
					if rate := rateOver(500*time.Millisecond) * 8 / 1e6; rate < 4 {
						return fmt.Errorf("after a reload to %q TCP gets %.2f of 12 Mbit/s", next, rate)
					}
					return nil
				})
			}
			r.stopBySIGTERM()
			p.awaitClean(before, qdiscs)
		})
	}
}

// TestQuietQueueTCP checks that TCP gets the whole rate of a queue.
func TestQuietQueueTCP(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	skipInVM(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			m := placement{"tcx", direction}
			p := newQueuePair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			r := p.runShaper("--direction", direction, "--policy", writePolicy(t, `
classes: [{name: a, green: {queue: q}}]
queues: {q: {rate: 100mbit, limit: 100ms, fair: false}}
`))
			rateOver := startTCP(t, from, to, at)
			rateOver(time.Second)
			nettest.Steady(t, func() error {
				return checkNear(t, "goodput", rateOver(3*time.Second), 100e6/8*1448/1500, 0.01)
			})
			c := p.stats().Classes[0]
			t.Logf("%+v", c)
			r.stopBySIGTERM()
		})
	}
}
