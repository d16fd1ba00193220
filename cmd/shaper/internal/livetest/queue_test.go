package livetest

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestQuietQueueRate offers UDP at twice the rate of a queue. The queue is long because the
// sender on a busy machine may get no CPU time for some 100 ms, in which the queue must not
// become empty.
func TestQuietQueueRate(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	const rate, size = 10e6 / 8, 1500
	for _, pacer := range availablePacers(t) {
		for _, hook := range []string{"tcx", "tc"} {
			for _, limit := range []string{"500ms", "640KiB", "400p"} {
				t.Run(pacer+"-"+hook+"-"+limit, func(t *testing.T) {
					m := placement{hook, "egress"}
					m.skipIfUnsupported(t)
					if inVM && (hook == "tc" && haveTCX() || limit == "400p") || !inVM && hook == "tc" &&
						limit != "500ms" {
						t.Skip("covered by another hook or limit")
					}
					p := newQueuePair(t)
					before, qdiscs := p.deviceState(), p.qdiscState()
					r := p.runShaper(m.flags("--pacer", pacer, "--policy",
						writePolicy(t, fmt.Sprintf(slowQueue, limit)))...)
					_, at := p.addresses(m, false)
					in, conn := listenUDP(t, p.far, at), newSender(t, p.near, at, 0, 0)
					var sent, got int64
					nettest.Steady(t, func() error {
						sniffer := p.far.Sniff("v0")
						got += receivedDuring(in, func() {
							sent += fillAndOfferUDP(t, conn, size, 2*rate, 2500*time.Millisecond)
						})[0]
						frames := sniffer.Stop()
						if len(frames) < 100 {
							t.Fatalf("only %d frames", len(frames))
						}
						gaps := sortedGaps(frames)
						ideal := time.Duration(size / rate * 1e9)
						t.Logf("gaps: p1 %v, median %v, p99 %v, longest %v of %v", gaps[len(gaps)/100],
							gaps[len(gaps)/2], gaps[len(gaps)*99/100], gaps[len(gaps)-4:], ideal)
						err := checkNear(t, "rate", ipRate(frames), rate, 0.01)
						if !inVM {
							err = errors.Join(err,
								checkNear(t, "median gap", float64(gaps[len(gaps)/2]), float64(ideal), 0.005))
						}
						return err
					})
					s := p.stats()
					c := s.Classes[0]
					got += s.Queues[0].Dropped
					if c.Packets != sent || c.Dropped.Packets-s.Queues[0].Dropped != sent-got ||
						c.Queued != (packetCount{got, got * size}) ||
						c.Green.Dropped["queue-full"] != c.Dropped || c.Green.Queued != c.Queued {
						t.Errorf("counted %+v: want %d sent, %d received", c, sent, got)
					}
					if s.Pacer != pacer || len(s.Queues) != 1 || s.Queues[0].Name != "q" ||
						s.Queues[0].Bytes != 0 {
						t.Errorf("status %+v: want %s, and an empty queue", s, pacer)
					}
					if out, _ := p.wantExit(0, "status"); !strings.Contains(out,
						"  queues   in "+map[string]string{
							"fq": "fq, by departure time", "htb": "HTB, one leaf class per queue",
						}[pacer]+"\n") {
						t.Errorf("status prints %q", out)
					}
					if now := p.qdiscState(); !strings.Contains(now, "qdisc "+pacer+" 5ade: root") {
						t.Errorf("tc lists\n%s", now)
					}
					r.stopBySIGTERM()
					p.awaitClean(before, qdiscs)
				})
			}
		}
	}
}

// TestQuietQueueBoth checks the rates of the queues of both directions at the same time.
func TestQuietQueueBoth(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	const rate, size = 10e6 / 8, 1500
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			placement{hook, ""}.skipIfUnsupported(t)
			if inVM && hook == "tc" && haveTCX() {
				t.Skip("covered by another hook or limit")
			}
			p := newQueuePair(t)
			before, qdiscs := p.deviceState(), p.qdiscState()
			r := p.runShaper("--hook", hook, "--direction", "both", "--policy",
				writePolicy(t, fmt.Sprintf(slowQueue, "500ms")))
			r.out.awaitMatch(t, "v0 ingress: attached")
			if r.out.awaitMatch(t,
				"v0 ingress: packets are queued in .*, on an ifb device"); !strings.Contains(p.qdiscState(), "shaper-") {
				t.Errorf("tc and ip list no ifb: %s", p.qdiscState())
			}
			type ended struct {
				sent, got int64
				rate      float64
			}
			run := func(in *receiver, conn *net.UDPConn) (e ended) {
				var over atomic.Bool
				go func() {
					e.sent = fillAndOfferUDP(t, conn, size, 2*rate, 2500*time.Millisecond)
					over.Store(true)
				}()
				var at []time.Time
				for range in.receiveUntil(over.Load) {
					at = append(at, time.Now())
				}
				e.got, e.rate = int64(len(at)), size*packetRate(at, rate/size)
				return e
			}
			directions := []string{"egress", "ingress"}
			var ins [2]*receiver
			var conns [2]*net.UDPConn
			for i, direction := range directions {
				m := placement{hook, direction}
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				ins[i], conns[i] = listenUDP(t, to, at), newSender(t, from, at, 0, 0)
			}
			var all [2]ended
			nettest.Steady(t, func() (err error) {
				var results [2]chan ended
				for i := range results {
					results[i] = make(chan ended, 1)
					go func() { results[i] <- run(ins[i], conns[i]) }()
				}
				for i, result := range results {
					e := <-result
					all[i].sent += e.sent
					all[i].got += e.got
					err = errors.Join(err, checkNear(t, directions[i], e.rate, rate, 0.01))
				}
				return err
			})
			for i, direction := range directions {
				e := all[i]
				s := p.stats("v0", "--direction", direction)
				c := s.Classes[0]
				e.got += s.Queues[0].Dropped
				if c.Packets != e.sent || c.Queued.Packets != e.got ||
					c.Dropped.Packets-s.Queues[0].Dropped != e.sent-e.got {
					t.Errorf("%s: counted %+v: want %d sent, %d received", direction, c, e.sent, e.got)
				}
			}
			r.stopBySIGTERM()
			p.awaitClean(before, qdiscs)
		})
	}
}

// coloredByDSCP is a meter that takes the input color from the DSCP: AF12 is yellow, AF13 red,
// others green.
const coloredByDSCP = `{type: trtcm, cir: 1gbit, cbs: 100MB, pir: 1gbit, pbs: 100MB, color: aware, precolor: {from: dscp, map: {af12: yellow, af13: red}}}`

// TestQuietQueueColors checks that yellow packets are dropped before green ones. The queue has
// room for the burst that a sender sends after it got no CPU time.
func TestQuietQueueColors(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	skipInVM(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			nettest.Steady(t, func() (err error) {
				m := placement{"tcx", direction}
				p := newQueuePair(t)
				from, to := p.senderAndReceiver(m)
				_, at := p.addresses(m, false)
				r := p.runShaper("--direction", direction, "--policy", writePolicy(t, `
classes: [{name: a, meter: `+coloredByDSCP+`, green: {queue: q}, yellow: {queue: q}}]
queues: {q: {rate: 10mbit, limit: 800ms, wred: {yellow: {min: 50ms, max: 200ms, probability: 1}}}}
`))
				in := listenUDP(t, to, at)
				green, yellow, red := newSender(t, from, at, af11, 0), newSender(t, from, at, af12, 0),
					newSender(t, from, at, 14<<2, 0)
				sent := map[int]int64{}
				got := receivedDuring(in, func() {
					type one struct {
						tos int
						n   int64
					}
					all := make(chan one)
					for tos, conn := range map[int]*net.UDPConn{af11: green, af12: yellow, 14 << 2: red} {
						rate := map[int]float64{af11: 5e6 / 8, af12: 15e6 / 8, 14 << 2: 1e5}[tos]
						go func() { all <- one{tos, offerUDP(t, conn, 1000, rate, 2*time.Second)} }()
					}
					for range 3 {
						o := <-all
						sent[o.tos] = o.n
					}
				})
				c := p.stats().Classes[0]
				if c.Green.Packets != sent[af11] || got[af11] != sent[af11] ||
					c.Green.Queued.Packets != sent[af11] || len(c.Green.Dropped) == 0 ||
					c.Green.Dropped["queue-full"].Packets != 0 {
					err = fmt.Errorf("green: %d of %d packets arrived, counted %+v: want all", got[af11],
						sent[af11], c.Green)
				}
				lost := sent[af12] - got[af12]
				if c.Yellow.Packets != sent[af12] || c.Yellow.Dropped["wred"].Packets != lost ||
					c.Yellow.Queued.Packets != got[af12] || lost < sent[af12]/2 || got[af12] < sent[af12]/4 {
					err = errors.Join(err, fmt.Errorf(
						"yellow: %d of %d packets arrived, counted %+v: want about a third", got[af12],
						sent[af12], c.Yellow))
				}
				if c.Red.Dropped["color"].Packets != sent[14<<2] || got[14<<2] != 0 {
					t.Errorf("red: %d of %d packets arrived, counted %+v: want none", got[14<<2], sent[14<<2],
						c.Red)
				}
				r.stopBySIGTERM()
				return err
			})
		})
	}
}

// TestQuietQueueECN checks that ECN-capable packets are marked instead of dropped, and have
// valid checksums.
func TestQuietQueueECN(t *testing.T) {
	nettest.Quiet(t)
	t.Parallel()
	skipInVM(t)
	for _, what := range []string{
		"wred: {green: {min: 0ms, max: 60ms, probability: 1}}", "codel: {target: 1ms, interval: 10ms}",
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%.4s-v6=%v", what, v6), func(t *testing.T) {
				m := placement{"tcx", "egress"}
				p := newQueuePair(t)
				p.near.Offload("v0", "tx-checksum", false)
				r := p.runShaper("--policy", writePolicy(t, `
classes: [{name: a, green: {queue: q, dscp: af21}}]
queues: {q: {rate: 10mbit, limit: 60ms, ecn: true, `+what+`, fair: false}}
`))
				_, at := p.addresses(m, v6)
				in, sniffer := listenUDP(t, p.far, at), p.far.Sniff("v0")
				sent := [2]int64{}
				got := receivedDuring(in, func() {
					for i, tos := range []int{0, 2} {
						sent[i] = offerUDP(t, newSender(t, p.near, at, tos, 0), 1000, 12e6/8, time.Second)
					}
				})
				for i, f := range sniffer.Stop() {
					if err := checkSums(f.Data[14:], false); err != nil {
						t.Fatalf("packet %d: %v", i, err)
					}
				}
				reason := what[:4] // wred
				if reason == "code" {
					reason = "codel"
				}
				s := p.stats()
				c, passed := s.Classes[0], got[af21]+got[af21|2]+got[af21|3]+s.Queues[0].Dropped
				if c.Packets != sent[0]+sent[1] || c.Queued.Packets != passed ||
					c.Dropped.Packets-s.Queues[0].Dropped != c.Packets-passed {
					t.Errorf("%v arrived of %v, counted %+v", got, sent, c)
				}
				if early := c.Green.Dropped[reason].Packets; early == 0 || sent[0]-got[af21] < early*9/10 {
					t.Errorf("%v arrived of %v, counted %+v: want early drops of packets without ECN", got,
						sent, c.Green)
				}
				if got[af21|3] == 0 || got[af21|1] != 0 {
					t.Errorf("%v arrived: want CE", got)
				}
				t.Logf("%v arrived of %v, dropped %v", got, sent, c.Green.Dropped)
				r.stopBySIGTERM()
			})
		}
	}
}

// TestQuietQueueActions checks queues that are combined with a mark, used for one color only,
// and shared by several classes.
func TestQuietQueueActions(t *testing.T) {
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
classes:
  - {name: a, match: {dscp: af11}, green: {dscp: af21, queue: q}}
  - {name: b, match: {dscp: af12}, green: {queue: q}}
  - {name: c, match: {dscp: cs1}, meter: {type: srtcm, cir: 1p/1000s, cbs: 3, ebs: 1000, count: packets}, yellow: {queue: other}}
  - {name: d, match: {dscp: cs2}}
queues: {q: {rate: 2mbit, limit: 500ms, fair: false}, other: {rate: 1mbit, limit: 20p, fair: false}}
`))
			in := listenUDP(t, to, at)
			begin := time.Now()
			took := time.Duration(0)
			got := receivedDuring(in, func() {
				for range 40 { // 80 packets of 1000 bytes at 2 Mbit/s: 0.32 s
					sendUDP(t, newSender(t, from, at, af11, 0), 1, 1000)
					sendUDP(t, newSender(t, from, at, af12, 0), 1, 1000)
				}
				sendUDP(t, newSender(t, from, at, 8<<2, 0), 40, 1000)
				sendUDP(t, newSender(t, from, at, 16<<2, 0), 100, 1000)
				took = time.Since(begin)
				time.Sleep(400 * time.Millisecond)
			})
			if took > 300*time.Millisecond {
				t.Skip("the machine is too busy to send all packets at once")
			}
			// Green packets pass. One yellow packet is sent at once, 20 are queued.
			if want := map[int]int64{
				af21: 40, af12: 40, 8 << 2: 24, 16 << 2: 100,
			}; fmt.Sprint(got) != fmt.Sprint(want) &&
				took < 10*time.Millisecond {
				t.Errorf("%v arrived: want %v", got, want)
			}
			if got[af21] != 40 || got[af12] != 40 || got[16<<2] != 100 {
				t.Errorf("%v arrived: want all but those of cs1", got)
			}
			s := p.stats()
			c := s.Classes[2]
			if c.Green.Queued.Packets != 0 || c.Yellow.Queued.Packets != got[8<<2]-3 ||
				c.Yellow.Dropped["queue-full"].Packets != 40-got[8<<2] {
				t.Errorf("counted %+v, %d arrived", c, got[8<<2])
			}
			if s.Classes[3].Queued.Packets != 0 || s.Classes[0].Queued.Packets != 40 {
				t.Errorf("counted %+v", s.Classes)
			}
			r.stopBySIGTERM()
		})
	}
}
