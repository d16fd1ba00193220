package kernel_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/nettest"
)

// queued is what shaper stats says of queues.
type queued struct {
	Pacer, State string
	Attached     bool
	Pinned       bool
	Policy       string
	Classes      []struct {
		Name string
		count
		Green, Yellow, Red struct {
			count
			Dropped map[string]count
			Queued  count
		}
		Dropped, Queued count
	}
	Queues []struct {
		Name    string
		Delay   int64 `json:"delay_ns"`
		Bytes   int64
		Dropped int64 // by HTB, of those that were queued: their class counts them as dropped
	}
}

func (p *pair) queued(args ...string) queued {
	p.t.Helper()
	stdout, _ := p.do(0, append([]string{"stats", "--json"}, args...)...)
	return decode[queued](p.t, stdout)
}

// qdiscs is what tc says of v0 but for clsact, and which devices of ours there
// are.
func (p *pair) qdiscs() string {
	p.t.Helper()
	var lines []string
	for _, what := range []string{"qdisc", "class"} {
		lines = append(lines, strings.Split(p.near.Run("tc", "-d", what, "show", "dev", "v0"), "\n")...)
	}
	lines = append(lines, strings.Split(p.near.Run("ip", "-o", "link", "show", "type", "ifb"), "\n")...)
	lines = slices.DeleteFunc(lines, func(s string) bool { return strings.Contains(s, "clsact") })
	slices.Sort(lines)
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// masked leaves out what the kernel numbers by itself.
func masked(qdiscs string) string {
	return regexp.MustCompile(`(?m)^\d+: shaper|link/ether \S+|bfifo \w+:|leaf \w+:`).ReplaceAllString(qdiscs, "-")
}

// notes are the journals of p's namespace.
func (p *pair) notes() []string {
	p.t.Helper()
	list, err := filepath.Glob(fmt.Sprintf("/run/shaper/%d-*-journal*", p.near.Cookie()))
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}

// newQueuePair is newPair whose journals are removed at the end, if a test fails.
func newQueuePair(t *testing.T) *pair {
	t.Helper()
	p := newPair(t)
	t.Cleanup(func() {
		for _, path := range p.notes() {
			_ = os.Remove(path)
		}
	})
	return p
}

// clean wants all as it was, with no note left.
func (p *pair) clean(attached, qdiscs string) {
	p.t.Helper()
	p.soonUnchanged(attached)
	eventually(p.t, func() error {
		if now := p.qdiscs(); now != qdiscs {
			return fmt.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
		}
		if list := p.notes(); len(list) > 0 {
			return fmt.Errorf("%v are left", list)
		}
		return nil
	})
}

// offer sends packets of size bytes of IP at a rate (bytes/s) for a time, and
// returns how many.
func offer(t *testing.T, conn *net.UDPConn, size int, rate float64, d time.Duration) (n int64) {
	patient(t, conn)
	payload := make([]byte, size-28)
	for begin := time.Now(); time.Since(begin) < d; time.Sleep(time.Millisecond) {
		for due := int64(time.Since(begin).Seconds() * rate / float64(size)); n < due; n++ {
			if _, err := conn.Write(payload); err != nil && !refused(err) {
				t.Error(err)
				return n
			}
		}
	}
	return n
}

// patient has a socket take many packets that are queued.
func patient(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	control(t, conn, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64<<20) })
}

// fillAndOffer is offer that first fills a queue with packets of a half second, so that
// it does not run empty when a busy machine has the sender stand still.
func fillAndOffer(t *testing.T, conn *net.UDPConn, size int, rate float64, d time.Duration) int64 {
	t.Helper()
	patient(t, conn)
	n := int(rate / float64(size) / 2)
	send(t, conn, n, size)
	return int64(n) + offer(t, conn, size, rate, d)
}

// gathered is what arrives while something is sent, by TOS.
func gathered(in *receiver, send func()) map[int]int64 {
	in.t.Helper()
	var done atomic.Bool
	result := make(chan map[int]int64)
	go func() {
		tos := map[int]int64{}
		for d := range in.until(done.Load) {
			tos[d.tos]++
		}
		result <- tos
	}()
	send()
	done.Store(true)
	return <-result
}

// speedOf is that of IP packets in frames, in bytes/s.
func speedOf(frames []nettest.Frame) float64 {
	n := 0
	for _, f := range frames[1:] {
		n += len(f.Data) - 14
	}
	return float64(n) / time.Duration(frames[len(frames)-1].Time-frames[0].Time).Seconds()
}

// paceOf is how many packets arrive in a second, by times at which they were read. A
// reader may be late, and is never early: it is measured from the most punctual one of
// the first quarter to that of the last, by a pace that is about the one.
func paceOf(at []time.Time, about float64) float64 {
	punctual := func(from, to int) (best int) {
		late := func(i int) float64 { return at[i].Sub(at[0]).Seconds() - float64(i)/about }
		for best = from; from < to; from++ {
			if late(from) < late(best) {
				best = from
			}
		}
		return best
	}
	if len(at) < 100 {
		return 0
	}
	first, last := punctual(0, len(at)/4), punctual(len(at)*3/4, len(at))
	return float64(last-first) / at[last].Sub(at[first]).Seconds()
}

// gapsOf are the times between frames, sorted.
func gapsOf(frames []nettest.Frame) []time.Duration {
	var out []time.Duration
	for i := range frames[1:] {
		out = append(out, time.Duration(frames[i+1].Time-frames[i].Time))
	}
	slices.Sort(out)
	return out
}

// about wants a value near another. A VM may be slow, but not fast.
func about(t *testing.T, what string, got, want, within float64) error {
	t.Helper()
	t.Logf("%s: %.0f, %+.3f %% of %.0f", what, got, 100*(got/want-1), want)
	least, most := want*(1-within), want*(1+within)
	if inVM {
		least, most = want/4, want*1.05
	}
	if got < least || got > most {
		return fmt.Errorf("%s: %.0f: want %.0f to %.0f", what, got, least, most)
	}
	return nil
}

// haveQdisc says whether the kernel has a kind of qdisc.
func haveQdisc(t *testing.T, kind string) bool {
	t.Helper()
	n := nettest.New(t)
	var err error
	n.Do(func() { err = exec.Command("tc", "qdisc", "add", "dev", "lo", "root", kind).Run() })
	return err == nil
}

// pacers are those that the kernel has.
func pacers(t *testing.T) []string {
	t.Helper()
	if haveQdisc(t, "fq") {
		return []string{"fq", "htb"}
	}
	return []string{"htb"}
}

const slowQueue = `
classes: [{name: a, green: {queue: q}}]
queues: {q: {rate: 10mbit, limit: %s}}
`

// TestLiveQueueRate offers UDP at twice the rate of a queue. The queue is long: the
// sender of a busy machine may stand still for some 100 ms, in which it must not run
// empty.
func TestLiveQueueRate(t *testing.T) {
	const rate, size = 10e6 / 8, 1500
	for _, pacer := range pacers(t) {
		for _, hook := range []string{"tcx", "tc"} {
			for _, limit := range []string{"500ms", "640KiB", "400p"} {
				t.Run(pacer+"-"+hook+"-"+limit, func(t *testing.T) {
					m := method{hook, "egress"}
					m.need(t)
					if inVM && (hook == "tc" && haveTCX() || limit == "400p") || !inVM && hook == "tc" && limit != "500ms" {
						t.Skip("one of them is enough")
					}
					p := newQueuePair(t)
					before, qdiscs := p.attached(), p.qdiscs()
					r := p.run(m.args("--pacer", pacer, "--policy", file(t, fmt.Sprintf(slowQueue, limit)))...)
					_, at := p.addresses(m, false)
					in, conn := listen(t, p.far, at), sender(t, p.near, at, 0, 0)
					var sent, got int64
					nettest.Steady(t, func() error {
						sniffer := p.far.Sniff("v0")
						got += gathered(in, func() { sent += fillAndOffer(t, conn, size, 2*rate, 2500*time.Millisecond) })[0]
						frames := sniffer.Stop()
						if len(frames) < 100 {
							t.Fatalf("only %d frames", len(frames))
						}
						gaps := gapsOf(frames)
						ideal := time.Duration(size / rate * 1e9)
						t.Logf("gaps: p1 %v, median %v, p99 %v, longest %v of %v", gaps[len(gaps)/100], gaps[len(gaps)/2], gaps[len(gaps)*99/100], gaps[len(gaps)-4:], ideal)
						err := about(t, "rate", speedOf(frames), rate, 0.01)
						if !inVM {
							err = errors.Join(err, about(t, "median gap", float64(gaps[len(gaps)/2]), float64(ideal), 0.005))
						}
						return err
					})
					s := p.queued()
					c := s.Classes[0]
					got += s.Queues[0].Dropped
					if c.Packets != sent || c.Dropped.Packets-s.Queues[0].Dropped != sent-got || c.Queued != (count{got, got * size}) || c.Green.Dropped["queue-full"] != c.Dropped || c.Green.Queued != c.Queued {
						t.Errorf("counted %+v: want %d sent, %d received", c, sent, got)
					}
					if s.Pacer != pacer || len(s.Queues) != 1 || s.Queues[0].Name != "q" || s.Queues[0].Bytes != 0 {
						t.Errorf("status %+v: want %s, and an empty queue", s, pacer)
					}
					if out, _ := p.do(0, "status"); !strings.Contains(out, "  queues   in "+map[string]string{"fq": "fq, by departure time", "htb": "HTB, one leaf class per queue"}[pacer]+"\n") {
						t.Errorf("status says %q", out)
					}
					if now := p.qdiscs(); !strings.Contains(now, "qdisc "+pacer+" 5ade: root") {
						t.Errorf("tc says\n%s", now)
					}
					r.term()
					p.clean(before, qdiscs)
				})
			}
		}
	}
}

// TestLiveQueueBoth holds what comes in and what leaves, at once.
func TestLiveQueueBoth(t *testing.T) {
	const rate, size = 10e6 / 8, 1500
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			if inVM && hook == "tc" && haveTCX() {
				t.Skip("one of them is enough")
			}
			p := newQueuePair(t)
			before, qdiscs := p.attached(), p.qdiscs()
			r := p.run("--hook", hook, "--direction", "both", "--policy", file(t, fmt.Sprintf(slowQueue, "500ms")))
			r.out.await(t, "v0 ingress: attached")
			if r.out.await(t, "v0 ingress: packets are queued in .*, on an ifb device"); !strings.Contains(p.qdiscs(), "shaper-") {
				t.Errorf("there is no ifb: %s", p.qdiscs())
			}
			type ended struct {
				sent, got int64
				rate      float64
			}
			run := func(in *receiver, conn *net.UDPConn) (e ended) {
				var over atomic.Bool
				go func() {
					e.sent = fillAndOffer(t, conn, size, 2*rate, 2500*time.Millisecond)
					over.Store(true)
				}()
				var at []time.Time
				for range in.until(over.Load) {
					at = append(at, time.Now())
				}
				e.got, e.rate = int64(len(at)), size*paceOf(at, rate/size)
				return e
			}
			directions := []string{"egress", "ingress"}
			var ins [2]*receiver
			var conns [2]*net.UDPConn
			for i, direction := range directions {
				m := method{hook, direction}
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				ins[i], conns[i] = listen(t, to, at), sender(t, from, at, 0, 0)
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
					err = errors.Join(err, about(t, directions[i], e.rate, rate, 0.01))
				}
				return err
			})
			for i, direction := range directions {
				e := all[i]
				s := p.queued("v0", "--direction", direction)
				c := s.Classes[0]
				e.got += s.Queues[0].Dropped
				if c.Packets != e.sent || c.Queued.Packets != e.got || c.Dropped.Packets-s.Queues[0].Dropped != e.sent-e.got {
					t.Errorf("%s: counted %+v: want %d sent, %d received", direction, c, e.sent, e.got)
				}
			}
			r.term()
			p.clean(before, qdiscs)
		})
	}
}

// colored is a meter that takes the color from the DSCP: AF11 is green, AF12
// yellow.
const colored = `{type: trtcm, cir: 1gbit, cbs: 100MB, pir: 1gbit, pbs: 100MB, color: aware, precolor: {from: dscp, map: {af12: yellow, af13: red}}}`

// TestLiveQueueColors holds that yellow goes before green. There is room for what a
// sender that stood still sends at once.
func TestLiveQueueColors(t *testing.T) {
	hereOnly(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			nettest.Steady(t, func() (err error) {
				m := method{"tcx", direction}
				p := newQueuePair(t)
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				r := p.run("--direction", direction, "--policy", file(t, `
classes: [{name: a, meter: `+colored+`, green: {queue: q}, yellow: {queue: q}}]
queues: {q: {rate: 10mbit, limit: 800ms, wred: {yellow: {min: 50ms, max: 200ms, probability: 1}}}}
`))
				in := listen(t, to, at)
				green, yellow, red := sender(t, from, at, af11, 0), sender(t, from, at, af12, 0), sender(t, from, at, 14<<2, 0)
				sent := map[int]int64{}
				got := gathered(in, func() {
					type one struct {
						tos int
						n   int64
					}
					all := make(chan one)
					for tos, conn := range map[int]*net.UDPConn{af11: green, af12: yellow, 14 << 2: red} {
						rate := map[int]float64{af11: 5e6 / 8, af12: 15e6 / 8, 14 << 2: 1e5}[tos]
						go func() { all <- one{tos, offer(t, conn, 1000, rate, 2*time.Second)} }()
					}
					for range 3 {
						o := <-all
						sent[o.tos] = o.n
					}
				})
				c := p.queued().Classes[0]
				if c.Green.Packets != sent[af11] || got[af11] != sent[af11] || c.Green.Queued.Packets != sent[af11] || len(c.Green.Dropped) == 0 || c.Green.Dropped["queue-full"].Packets != 0 {
					err = fmt.Errorf("green: %d of %d arrived, counted %+v: want it whole", got[af11], sent[af11], c.Green)
				}
				lost := sent[af12] - got[af12]
				if c.Yellow.Packets != sent[af12] || c.Yellow.Dropped["wred"].Packets != lost || c.Yellow.Queued.Packets != got[af12] || lost < sent[af12]/2 || got[af12] < sent[af12]/4 {
					err = errors.Join(err, fmt.Errorf("yellow: %d of %d arrived, counted %+v: want a third", got[af12], sent[af12], c.Yellow))
				}
				if c.Red.Dropped["color"].Packets != sent[14<<2] || got[14<<2] != 0 {
					t.Errorf("red: %d of %d arrived, counted %+v: want none", got[14<<2], sent[14<<2], c.Red)
				}
				r.term()
				return err
			})
		})
	}
}

// TestLiveQueueECN holds that who understands congestion is told of it, with
// checksums that hold.
func TestLiveQueueECN(t *testing.T) {
	hereOnly(t)
	for _, what := range []string{"wred: {green: {min: 0ms, max: 60ms, probability: 1}}", "codel: {target: 1ms, interval: 10ms}"} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%.4s-v6=%v", what, v6), func(t *testing.T) {
				m := method{"tcx", "egress"}
				p := newQueuePair(t)
				p.near.Offload("v0", "tx-checksum", false)
				r := p.run("--policy", file(t, `
classes: [{name: a, green: {queue: q, dscp: af21}}]
queues: {q: {rate: 10mbit, limit: 60ms, ecn: true, `+what+`}}
`))
				_, at := p.addresses(m, v6)
				in, sniffer := listen(t, p.far, at), p.far.Sniff("v0")
				sent := [2]int64{}
				got := gathered(in, func() {
					for i, tos := range []int{0, 2} {
						sent[i] = offer(t, sender(t, p.near, at, tos, 0), 1000, 12e6/8, time.Second)
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
				c := p.queued().Classes[0]
				lost := sent[0] + sent[1] - got[af21] - got[af21|2] - got[af21|3]
				if c.Dropped.Packets != lost || c.Queued.Packets != got[af21]+got[af21|2]+got[af21|3] {
					t.Errorf("%v arrived of %v, counted %+v", got, sent, c)
				}
				if early := c.Green.Dropped[reason].Packets; early == 0 || sent[0]-got[af21] < early*9/10 {
					t.Errorf("%v arrived of %v, counted %+v: want those dropped early that are not ECN-capable", got, sent, c.Green)
				}
				if got[af21|3] == 0 || got[af21|1] != 0 {
					t.Errorf("%v arrived: want CE", got)
				}
				t.Logf("%v arrived of %v, dropped %v", got, sent, c.Green.Dropped)
				r.term()
			})
		}
	}
}

// TestLiveQueueBehind has packets wait behind a mark, of one color only, and of
// several classes in one queue.
func TestLiveQueueBehind(t *testing.T) {
	hereOnly(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			m := method{"tcx", direction}
			p := newQueuePair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			r := p.run("--direction", direction, "--policy", file(t, `
classes:
  - {name: a, match: {dscp: af11}, green: {dscp: af21, queue: q}}
  - {name: b, match: {dscp: af12}, green: {queue: q}}
  - {name: c, match: {dscp: cs1}, meter: {type: srtcm, cir: 1p/1000s, cbs: 3, ebs: 1000, count: packets}, yellow: {queue: other}}
  - {name: d, match: {dscp: cs2}}
queues: {q: {rate: 2mbit, limit: 500ms}, other: {rate: 1mbit, limit: 20p}}
`))
			in := listen(t, to, at)
			begin := time.Now()
			took := time.Duration(0)
			got := gathered(in, func() {
				for range 40 { // 80 of 1000 bytes at 2 Mbit/s: 0.32 s
					send(t, sender(t, from, at, af11, 0), 1, 1000)
					send(t, sender(t, from, at, af12, 0), 1, 1000)
				}
				send(t, sender(t, from, at, 8<<2, 0), 40, 1000)
				send(t, sender(t, from, at, 16<<2, 0), 100, 1000)
				took = time.Since(begin)
				time.Sleep(400 * time.Millisecond)
			})
			if took > 300*time.Millisecond {
				t.Skip("the machine is too slow to send it at once")
			}
			// Green ones pass, one of the yellow ones leaves at once, 20 wait.
			if want := map[int]int64{af21: 40, af12: 40, 8 << 2: 24, 16 << 2: 100}; fmt.Sprint(got) != fmt.Sprint(want) && took < 10*time.Millisecond {
				t.Errorf("%v arrived: want %v", got, want)
			}
			if got[af21] != 40 || got[af12] != 40 || got[16<<2] != 100 {
				t.Errorf("%v arrived: want all of the first two and the last", got)
			}
			s := p.queued()
			c := s.Classes[2]
			if c.Green.Queued.Packets != 0 || c.Yellow.Queued.Packets != got[8<<2]-3 || c.Yellow.Dropped["queue-full"].Packets != 40-got[8<<2] {
				t.Errorf("counted %+v, %d arrived", c, got[8<<2])
			}
			if s.Classes[3].Queued.Packets != 0 || s.Classes[0].Queued.Packets != 40 {
				t.Errorf("counted %+v", s.Classes)
			}
			r.term()
		})
	}
}

// TestLiveQueueLink holds that queues share a link by priority and weight.
func TestLiveQueueLink(t *testing.T) {
	hereOnly(t)
	p := newQueuePair(t)
	m := method{"tcx", "egress"}
	_, at := p.addresses(m, false)
	before, qdiscs := p.attached(), p.qdiscs()
	r := p.run("--policy", file(t, `
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
	listen(t, p.far, at) // nothing is refused
	offered := map[int]float64{46 << 2: 4e6 / 8, af11: 40e6 / 8, af12: 40e6 / 8, 0: 40e6 / 8}
	nettest.Steady(t, func() error {
		var sending sync.WaitGroup
		for tos, rate := range offered {
			conn := sender(t, p.near, at, tos, 0)
			sending.Go(func() { offer(t, conn, 1500, rate, 3*time.Second) })
		}
		time.Sleep(500 * time.Millisecond)
		sniffer := p.far.Sniff("v0")
		time.Sleep(2 * time.Second)
		frames := sniffer.Stop()
		sending.Wait()
		err := about(t, "link", speedOf(frames), 20e6/8, 0.01)
		shares := map[int]float64{}
		for _, f := range frames {
			shares[tosOf(f.Data[14:])] += 1 / float64(len(frames))
		}
		t.Logf("shares by TOS: %v", shares)
		for tos, want := range map[int]float64{46 << 2: 0.2, af11: 0.6, af12: 0.2, 0: 0} {
			if got := shares[tos]; got < want-0.03*0.6 || got > want+0.03*0.6 {
				err = errors.Join(err, fmt.Errorf("TOS %#x has %.4f of the link: want %.2f", tos, got, want))
			}
		}
		return err
	})
	r.term()
	p.clean(before, qdiscs)
}

// bulk has TCP send all it can, to an address in the other namespace. What it
// returns reads there for a time, and says how fast, in bytes/s.
func bulk(t *testing.T, from, to *nettest.Namespace, at net.IP) (read func(time.Duration) float64) {
	t.Helper()
	var listener net.Listener
	var conn net.Conn
	var err error
	to.Do(func() { listener, err = net.Listen("tcp4", net.JoinHostPort(at.String(), "6000")) })
	if err == nil {
		from.Do(func() { conn, err = net.Dial("tcp4", listener.Addr().String()) })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); conn.Close() })
	go func() {
		for b := make([]byte, 1<<16); ; {
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	buf := make([]byte, 1<<16)
	return func(d time.Duration) float64 {
		n, begin := 0, time.Now()
		if err := server.SetReadDeadline(begin.Add(d)); err != nil {
			t.Fatal(err)
		}
		for time.Since(begin) < d {
			k, err := server.Read(buf)
			if n += k; errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		return float64(n) / time.Since(begin).Seconds()
	}
}

// TestLiveQueueFair sends TCP beside a flood of UDP through one queue.
func TestLiveQueueFair(t *testing.T) {
	for _, fair := range []string{"", ", fair: flow"} {
		t.Run(fair, func(t *testing.T) {
			p := newQueuePair(t)
			_, at := p.addresses(method{"tcx", "egress"}, false)
			before, qdiscs := p.attached(), p.qdiscs()
			policy := file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 10mbit, limit: 100ms"+fair+"}}\n")
			if fair != "" && !haveQdisc(t, "fq_codel") {
				if _, stderr := p.do(1, "run", "v0", "--policy", policy); !strings.Contains(stderr, "queue q is fair: this kernel has no fq_codel qdisc") {
					t.Error(stderr)
				}
				p.clean(before, qdiscs)
				return
			}
			r := p.run("--pacer", "htb", "--policy", policy)
			listen(t, p.far, at) // nothing is refused
			read := bulk(t, p.near, p.far, at)
			conn := sender(t, p.near, at, 0, 0)
			done := make(chan bool)
			var sending sync.WaitGroup
			sending.Go(func() {
				for b := make([]byte, 1400); ; {
					select {
					case <-done:
						return
					default:
						_, _ = conn.Write(b)
						time.Sleep(300 * time.Microsecond) // about 30 Mbit/s where timers are quick
					}
				}
			})
			read(2 * time.Second)
			rate := read(4*time.Second) * 8 / 1e6
			close(done)
			sending.Wait()
			t.Logf("TCP beside a flood through 10 Mbit/s%s: %.2f Mbit/s", fair, rate)
			if fair != "" {
				if rate == 0 { // how fast is for the machine to say, who loses what for TestQdiscFair
					t.Error("TCP has nothing")
				}
				if q := p.queued().Queues[0]; q.Dropped == 0 {
					t.Errorf("%+v: want drops", q)
				}
			}
			for _, next := range []string{"", ", fair: flow", ", fair: flow, codel: false", ""} {
				if next != "" && !haveQdisc(t, "fq_codel") {
					continue
				}
				p.do(0, "reload", "v0", "--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 12mbit, limit: 50ms"+next+"}}\n"))
				if now := p.qdiscs(); strings.Contains(now, "qdisc fq_codel") != (next != "") {
					t.Errorf("after a reload to%q:\n%s", next, now)
				}
				eventually(t, func() error { // TCP has lost much in the flood
					if rate := read(500*time.Millisecond) * 8 / 1e6; rate < 4 {
						return fmt.Errorf("after a reload to %q TCP has %.2f Mbit/s of 12", next, rate)
					}
					return nil
				})
			}
			r.term()
			p.clean(before, qdiscs)
		})
	}
}

// TestLiveQueueTCP holds that TCP gets all of a queue's rate.
func TestLiveQueueTCP(t *testing.T) {
	hereOnly(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			m := method{"tcx", direction}
			p := newQueuePair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			r := p.run("--direction", direction, "--policy", file(t, `
classes: [{name: a, green: {queue: q}}]
queues: {q: {rate: 100mbit, limit: 100ms}}
`))
			read := bulk(t, from, to, at)
			read(time.Second)
			nettest.Steady(t, func() error { return about(t, "goodput", read(3*time.Second), 100e6/8*1448/1500, 0.01) })
			c := p.queued().Classes[0]
			t.Logf("%+v", c)
			r.term()
		})
	}
}

// TestLiveQueueReload changes the rate under load, and nothing is lost but what
// the policy drops.
func TestLiveQueueReload(t *testing.T) {
	hereOnly(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			m := method{"tcx", direction}
			p := newQueuePair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			policy := func(rate int) string {
				return fmt.Sprintf("classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: %dmbit, limit: 40ms}}", rate)
			}
			path := file(t, policy(10))
			r := p.run("--direction", direction, "--policy", path)
			in := listen(t, to, at)
			conn := sender(t, from, at, 0, 0)
			sent := int64(0)
			var enough, done atomic.Bool
			var arrived atomic.Int64
			over := make(chan struct{})
			go func() {
				defer close(over)
				for range in.until(done.Load) {
					arrived.Add(1)
				}
			}()
			go func() {
				for !enough.Load() {
					sent += offer(t, conn, 1000, 40e6/8, 100*time.Millisecond)
				}
				done.Store(true)
			}()
			time.Sleep(300 * time.Millisecond)
			for i, rate := range []int{10, 20, 5, 15} {
				if i > 0 {
					rewrite(t, path, policy(rate))
					r.signal(syscall.SIGHUP)
					eventually(t, func() error {
						if n := strings.Count(r.out.String(), "reloaded"); n != i {
							return fmt.Errorf("reloaded %d times: want %d: stderr %q", n, i, &r.err)
						}
						return nil
					})
					time.Sleep(100 * time.Millisecond) // what waited at the old rate
				}
				want := float64(rate) * 1e6 / 8
				eventually(t, func() error { // a busy machine may stall in any one of them
					n, begin := arrived.Load(), time.Now()
					time.Sleep(600 * time.Millisecond)
					got := float64(arrived.Load()-n) * 1000 / time.Since(begin).Seconds()
					if off := got/want - 1; off < -0.04 || off > 0.04 {
						return fmt.Errorf("at %d Mbit/s: %.0f byte/s: want %.0f", rate, got, want)
					}
					return nil
				})
			}
			enough.Store(true)
			<-over
			s := p.queued()
			c := s.Classes[0]
			passed := arrived.Load() + s.Queues[0].Dropped
			if c.Packets != sent || c.Queued.Packets != passed || c.Dropped.Packets-s.Queues[0].Dropped != sent-passed || c.Green.Dropped["queue-full"] != c.Dropped {
				t.Errorf("%d sent, %d passed, counted %+v", sent, passed, c)
			}
			r.term()
		})
	}
}

// TestLiveQueueReloadKind goes from a policy without queues to one with, and
// back: where packets leave, at once; where they come in, it is refused.
func TestLiveQueueReloadKind(t *testing.T) {
	notOlder(t)
	for _, pacer := range pacers(t) {
		t.Run(pacer, func(t *testing.T) {
			if pacer == "htb" {
				hereOnly(t)
			}
			p := newQueuePair(t)
			_, at := p.addresses(method{"", "egress"}, false)
			before, qdiscs := p.attached(), p.qdiscs()
			with, without := file(t, fmt.Sprintf(slowQueue, "50ms")), file(t, "classes: [{name: a}]")
			r := p.run("--pacer", pacer, "--policy", without)
			notes := len(p.notes()) // that of a tc filter is for clsact
			in := listen(t, p.far, at)
			if now := p.qdiscs(); now != qdiscs {
				t.Errorf("without queues tc says\n%s\nwant\n%s", now, qdiscs)
			}
			for range 2 {
				p.do(0, "reload", "--policy", with)
				if now := p.qdiscs(); !strings.Contains(now, "qdisc "+pacer+" 5ade: root") || p.queued().Pacer != pacer {
					t.Errorf("with queues tc says\n%s", now)
				}
				send(t, sender(t, p.near, at, 0, 0), 10, 1000)
				if n := len(in.take()); n != 10 {
					t.Errorf("%d packets arrived: want 10", n)
				}
				p.do(0, "reload", "--policy", without)
				if now := p.qdiscs(); now != qdiscs || p.queued().Pacer != "" || len(p.notes()) != notes {
					t.Errorf("without queues again tc says\n%s\nwant\n%s", now, qdiscs)
				}
				send(t, sender(t, p.near, at, 0, 0), 10, 1000)
				if n := len(in.take()); n != 10 {
					t.Errorf("%d packets arrived: want 10", n)
				}
			}
			if c := p.queued().Classes[0]; c.Packets != 40 || c.Queued.Packets != 20 {
				t.Errorf("counted %+v: want 40 packets, 20 queued", c)
			}
			r.term()
			p.clean(before, qdiscs)

			for i, order := range [][]string{{with, without}, {without, with}} {
				r := p.run("--direction", "ingress", "--pacer", pacer, "--policy", order[0])
				is := p.qdiscs()
				p.fails(1, "v0 ingress: queues need a device of their own: shaper detach, then run it again", "reload", "--policy", order[1])
				if now := p.qdiscs(); now != is || p.queued().Queues == nil && i == 0 {
					t.Errorf("a reload that is refused changes\n%s\nto\n%s", is, now)
				}
				r.term()
				p.clean(before, qdiscs)
			}
		})
	}
}

// TestLiveQueueRefused holds what is refused, and that nothing is changed then.
func TestLiveQueueRefused(t *testing.T) {
	hereOnly(t)
	if haveQdisc(t, "fq") {
		t.Skip("this kernel has fq")
	}
	p := newQueuePair(t)
	before, qdiscs := p.attached(), p.qdiscs()
	policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
	p.fails(1, "this kernel has no fq qdisc, and no module sch_fq", "run", "v0", "--pacer", "fq", "--policy", policy)
	p.fails(2, `--pacer "cake": want auto, fq or htb`, "run", "v0", "--pacer", "cake", "--policy", policy)
	p.clean(before, qdiscs)
	r := p.run("--pacer", "fq", "--policy", file(t, "classes: [{name: a}]")) // nothing waits
	p.fails(1, "this kernel has no fq qdisc.*", "reload", "--policy", policy)
	r.term()
	p.clean(before, qdiscs)
}

// TestLiveQueueDry holds that a dry run has no packet wait, with and without a
// limit of the device.
func TestLiveQueueDry(t *testing.T) {
	hereOnly(t)
	for _, direction := range []string{"egress", "ingress"} {
		t.Run(direction, func(t *testing.T) {
			m := method{"tcx", direction}
			p := newQueuePair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			before, qdiscs := p.attached(), p.qdiscs()
			r := p.run("--direction", direction, "--dry-run", "--policy", file(t, fmt.Sprintf(slowQueue, "5000B")))
			if now := p.qdiscs(); now != qdiscs || len(p.notes()) > 0 {
				t.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
			}
			in := listen(t, to, at)
			send(t, sender(t, from, at, 0, 0), 50, 1000)
			c := p.queued().Classes[0]
			if n := len(in.take()); n != 50 || c.Packets != 50 || c.Queued.Packets < 6 || c.Queued.Packets+c.Dropped.Packets != 50 {
				t.Errorf("%d arrived, counted %+v: want all, and 6 or more queued", n, c)
			}
			// With queues at work, and back.
			p.do(0, "reload", "--policy", file(t, "classes: [{name: a}]"))
			p.do(0, "reload", "--policy", file(t, fmt.Sprintf(slowQueue, "50ms")))
			r.term()
			p.clean(before, qdiscs)
		})
	}
}

// TestLiveQueueBefore holds that what stood at the root comes back, whichever
// way shaper ends.
func TestLiveQueueBefore(t *testing.T) {
	hereOnly(t)
	for name, lines := range map[string][]string{
		"nothing": nil,
		"pfifo":   {"qdisc add dev v0 root handle 7: pfifo limit 123"},
		"htb": {
			"qdisc add dev v0 root handle 1: htb default 20",
			"class add dev v0 parent 1: classid 1:1 htb rate 100mbit",
			"class add dev v0 parent 1:1 classid 1:10 htb rate 10mbit ceil 90mbit prio 1",
			"class add dev v0 parent 1:1 classid 1:20 htb rate 80mbit",
			"qdisc add dev v0 parent 1:10 handle 10: pfifo limit 17",
		},
		"tbf": {"qdisc add dev v0 root handle 9: tbf rate 100mbit burst 20000 limit 30000"},
	} {
		for _, how := range []string{"term", "kill", "detach", "reload", "gso"} {
			t.Run(name+"-"+how, func(t *testing.T) {
				p := newQueuePair(t)
				for _, line := range lines {
					p.near.Run("tc", strings.Fields(line)...)
				}
				before, qdiscs := p.attached(), p.qdiscs()
				args := []string{"--policy", file(t, fmt.Sprintf(slowQueue, "50ms"))}
				if how == "gso" {
					args = append(args, "--gso-limit", "9000")
				}
				r := p.run(args...)
				if now := p.qdiscs(); !strings.Contains(now, "qdisc htb 5ade: root") || len(p.notes()) != 1 {
					t.Errorf("tc says\n%s, notes %v", now, p.notes())
				}
				switch how {
				case "term", "gso":
					if how == "gso" && !strings.Contains(p.attached(), "gso 9000") {
						t.Errorf("at v0 is %s", p.attached())
					}
					r.term()
				case "kill":
					r.kill()
				case "detach":
					p.do(0, "detach")
					r.wait()
				case "reload":
					p.do(0, "reload", "--meter", never)
					if now := p.qdiscs(); now != qdiscs {
						t.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
					}
					r.term()
				}
				p.clean(before, qdiscs)
			})
		}
	}
	t.Run("filters", func(t *testing.T) {
		p := newQueuePair(t)
		for _, line := range []string{
			"qdisc add dev v0 root handle 1: htb", "class add dev v0 parent 1: classid 1:1 htb rate 100mbit",
			"filter add dev v0 parent 1: protocol ip u32 match u32 0 0 flowid 1:1",
		} {
			p.near.Run("tc", strings.Fields(line)...)
		}
		before, qdiscs := p.attached(), p.qdiscs()
		policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
		why := "interface v0 has the qdisc htb 1:0, and its filters could not be put back: remove it first, by tc qdisc del dev v0 root"
		p.fails(1, why, "run", "v0", "--policy", policy)
		p.clean(before, qdiscs)
		r := p.run("--meter", never)
		with := p.attached()
		p.fails(1, why, "reload", "--policy", policy)
		p.clean(with, qdiscs)
		if s := p.queued(); !s.Attached || s.Pacer != "" {
			t.Errorf("status %+v after a reload that was refused", s)
		}
		r.term()
		p.clean(before, qdiscs)
	})
}

// killBoth kills a process and its guard, so that nobody cleans up.
func (r *process) killBoth() {
	r.t.Helper()
	r.signal(syscall.SIGSTOP) // or it would start another guard
	if err := syscall.Kill(guardOf(r.t, r), syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	r.kill()
}

// TestLiveQueueKilled holds that the guard cleans up after its process, and the
// next command after both.
func TestLiveQueueKilled(t *testing.T) {
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		for _, how := range []string{"guard", "run", "run without queues", "detach", "other detach"} {
			t.Run(m.hook+"-"+m.direction+"-"+how, func(t *testing.T) {
				m.need(t)
				if how != "guard" && how != "run" || m.direction == "egress" {
					hereOnly(t)
				}
				p := newQueuePair(t)
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.attached(), p.qdiscs()
				policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
				r := p.run(m.args("--policy", policy)...)
				send(t, sender(t, from, at, 0, 0), 30, 1000)
				if how == "guard" {
					r.kill()
					p.clean(before, qdiscs)
					return
				}
				r.killBoth()
				if now := p.qdiscs(); now == qdiscs || len(p.notes()) != 1 {
					t.Errorf("tc says\n%s\nnotes %v: want something left", now, p.notes())
				}
				switch how {
				case "run":
					r := p.run(m.args("--policy", policy)...)
					if p.queued().Pacer == "" || len(p.notes()) != 1 {
						t.Error("queues do not wait")
					}
					in := listen(t, to, at)
					send(t, sender(t, from, at, 0, 0), 10, 1000)
					if n := len(in.take()); n != 10 {
						t.Errorf("%d packets arrived: want 10", n)
					}
					r.term()
				case "run without queues":
					r := p.run(m.args("--meter", never)...)
					if m.hook != "tc" && len(p.notes()) != 0 || strings.Contains(p.qdiscs(), "5ade:") { // that of tc is for clsact
						t.Errorf("tc says\n%s\nnotes %v", p.qdiscs(), p.notes())
					}
					r.term()
				case "detach":
					p.do(0, "detach", "v0")
				case "other detach":
					p.do(0, "detach", "v0", "--direction", m.direction)
				}
				p.clean(before, qdiscs)
				p.fails(1, "v0 is not shaped: .*", "detach", "v0")
			})
		}
	}
}

// TestLiveQueueKilledAfterReload holds that the guard knows of queues that a
// reload brought, and of those that it took away.
func TestLiveQueueKilledAfterReload(t *testing.T) {
	hereOnly(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	for _, hook := range []string{"tcx", "tc"} {
		for _, by := range []string{"SIGHUP", "reload"} {
			for i, order := range [][2]string{{without, with}, {with, without}} {
				t.Run(fmt.Sprint(hook, "-", by, "-", i), func(t *testing.T) {
					p := newQueuePair(t)
					before, qdiscs := p.attached(), p.qdiscs()
					path := file(t, order[0])
					r := p.run("--hook", hook, "--policy", path)
					rewrite(t, path, order[1])
					if by == "SIGHUP" {
						r.signal(syscall.SIGHUP)
						r.out.await(t, "reloaded")
					} else {
						p.do(0, "reload")
					}
					time.Sleep(500 * time.Millisecond) // run looks by then
					if (p.queued().Pacer == "") != (order[1] == without) {
						t.Errorf("status %+v", p.queued())
					}
					r.kill()
					p.clean(before, qdiscs)
				})
			}
		}
	}
}

// TestLiveQueuePinned holds that queues go on when a process ends, and are taken
// over.
func TestLiveQueuePinned(t *testing.T) {
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		for _, how := range []string{"term", "kill", "background"} {
			t.Run(m.hook+"-"+m.direction+"-"+how, func(t *testing.T) {
				m.need(t)
				if how != "kill" || m.direction == "egress" {
					hereOnly(t)
				}
				p := newQueuePair(t)
				p.withBpffs()
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.attached(), p.qdiscs()
				path := file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 1mbit, limit: 40p}}")
				switch how {
				case "term":
					p.run(m.args("--pin", "--policy", path)...).term()
				case "kill":
					p.run(m.args("--pin", "--policy", path)...).kill()
				case "background":
					p.do(0, append([]string{"run", "v0", "--background", "--policy", path}, m.args()...)...)
				}
				time.Sleep(100 * time.Millisecond)
				in := listen(t, to, at)
				got := gathered(in, func() { send(t, sender(t, from, at, 0, 0), 100, 1500) })[0]
				s := p.queued()
				if c := s.Classes[0]; !s.Pinned || got < 41 || got == 100 || c.Queued.Packets != got || c.Dropped.Packets != 100-got {
					t.Errorf("%d arrived, status %+v: want 41 or a few more", got, s)
				}
				// Taken over, with another rate, and with the counters.
				rewrite(t, path, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 100mbit, limit: 100p}}")
				r := p.run(m.args("--policy", path)...)
				send(t, sender(t, from, at, 0, 0), 100, 1500)
				if n := len(in.take()); n != 100 {
					t.Errorf("%d arrived: want all", n)
				}
				if s := p.queued(); s.Pinned || s.Classes[0].Packets != 200 {
					t.Errorf("status %+v: want 200 packets", s)
				}
				r.term()
				p.clean(before, qdiscs)

				p.run(m.args("--pin", "--policy", path)...).kill()
				p.do(0, "detach")
				p.clean(before, qdiscs)
			})
		}
	}
}

// TestLiveQueueTakesOver holds that a policy of another kind takes the place of
// one that was left.
func TestLiveQueueTakesOver(t *testing.T) {
	hereOnly(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	for _, direction := range []string{"egress", "ingress"} {
		for name, test := range map[string]struct {
			first, second []string
			waits         bool
		}{
			"without-with":     {[]string{without}, []string{with}, true},
			"with-without":     {[]string{with}, []string{without}, false},
			"dry-with":         {[]string{with, "--dry-run"}, []string{with}, true},
			"with-dry":         {[]string{with}, []string{with, "--dry-run"}, false},
			"without-dry":      {[]string{without}, []string{with, "--dry-run"}, false},
			"dry-without":      {[]string{with, "--dry-run"}, []string{without}, false},
			"with-without-dry": {[]string{with}, []string{without, "--dry-run"}, false},
		} {
			t.Run(direction+"-"+name, func(t *testing.T) {
				m := method{"tcx", direction}
				p := newQueuePair(t)
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				p.withBpffs()
				before, qdiscs := p.attached(), p.qdiscs()
				args := func(list []string) []string {
					return append([]string{"--direction", direction, "--policy", file(t, list[0])}, list[1:]...)
				}
				p.run(append(args(test.first), "--pin")...).term()
				r := p.run(args(test.second)...)
				s := p.queued()
				if !s.Attached || (s.Pacer != "") != test.waits {
					t.Fatalf("status %+v: want it attached; queues %v", s, test.waits)
				}
				in := listen(t, to, at)
				n := s.Classes[0].Packets
				send(t, sender(t, from, at, 0, 0), 10, 1000)
				if got := len(in.take()); got != 10 {
					t.Errorf("%d packets arrived: want 10", got)
				}
				if s := p.queued(); s.Classes[0].Packets != n+10 {
					t.Errorf("counted %+v: want 10 more than %d", s.Classes[0], n)
				}
				if r.ended() {
					t.Errorf("it ended: %q, stderr %q", &r.out, &r.err)
				} else {
					r.term()
				}
				p.clean(before, qdiscs)
			})
		}
	}
}

// TestLiveQueueConfirm holds that what nobody confirms goes, with its qdiscs,
// and that what was before comes back.
func TestLiveQueueConfirm(t *testing.T) {
	hereOnly(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	slower := strings.Replace(with, "10mbit", "5mbit", 1)
	for _, direction := range []string{"egress", "ingress"} {
		for name, test := range map[string]struct{ before, after []string }{
			"nothing":      {nil, []string{with}},
			"without":      {[]string{without}, []string{with}},
			"with":         {[]string{with}, []string{without}},
			"another rate": {[]string{slower}, []string{with}},
			"dry":          {[]string{with, "--dry-run"}, []string{with}},
			"to dry":       {[]string{with}, []string{with, "--dry-run"}},
		} {
			for _, end := range []string{"time", "kill"} {
				if end == "kill" && name != "nothing" && name != "with" {
					continue
				}
				t.Run(direction+"-"+name+"-"+end, func(t *testing.T) {
					p := newQueuePair(t)
					p.withBpffs()
					args := func(list []string) []string {
						return append([]string{"--direction", direction, "--policy", file(t, list[0])}, list[1:]...)
					}
					was := queued{}
					clean := p.attached()
					cleanQdiscs := p.qdiscs()
					if test.before != nil {
						p.run(append(args(test.before), "--pin")...).term()
						was = p.queued()
					}
					qdiscs := p.qdiscs()
					after := append(args(test.after), "--confirm", "1s")
					if end == "kill" {
						after = append(after, "--pin") // else its program goes with it
					}
					r := p.run(after...)
					if end == "kill" {
						r.kill()
					} else if code := r.wait(); code != 1 || !strings.Contains(r.err.String(), "not confirmed in time: rolled back") {
						t.Errorf("exit %d, stderr %q", code, &r.err)
					}
					eventually(t, func() error {
						if now := p.qdiscs(); masked(now) != masked(qdiscs) {
							return fmt.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
						}
						if test.before == nil {
							return nil
						}
						// The program follows.
						if s := p.status(); len(s) != 1 || s[0].Policy != was.Policy || s[0].Pacer != was.Pacer || !s[0].Attached || !s[0].Pinned {
							return fmt.Errorf("status %+v: want %+v", s, was)
						}
						return nil
					})
					if test.before == nil {
						p.clean(clean, cleanQdiscs)
						return
					}
					p.do(0, "detach")
					p.clean(clean, cleanQdiscs)
				})
			}
		}
	}
}

// TestLiveQueueReloadConfirm is the same for a reload.
func TestLiveQueueReloadConfirm(t *testing.T) {
	hereOnly(t)
	with, without := fmt.Sprintf(slowQueue, "50ms"), "classes: [{name: a}]"
	for i, order := range [][2]string{{with, without}, {without, with}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			p := newQueuePair(t)
			before, clean := p.attached(), p.qdiscs()
			r := p.run("--policy", file(t, order[0]))
			qdiscs := p.qdiscs()
			w := p.start("reload", "--confirm", "700ms", "--policy", file(t, order[1]))
			w.out.await(t, "waiting")
			if now := p.qdiscs(); now == qdiscs {
				t.Errorf("tc says\n%s\nas before", now)
			}
			if code := w.wait(); code != 1 {
				t.Errorf("exit %d, stderr %q", code, &w.err)
			}
			if now := p.qdiscs(); masked(now) != masked(qdiscs) {
				t.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
			}
			r.term() // before it looks
			p.clean(before, clean)
		})
	}
}

// TestLiveQueueGone deletes an interface in whose queue packets wait.
func TestLiveQueueGone(t *testing.T) {
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			if m.direction == "egress" {
				hereOnly(t)
			}
			p := newQueuePair(t)
			r := p.run(m.args("--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 100kbit, limit: 10s}}"))...)
			for i := range 2 {
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				send(t, sender(t, from, at, 0, 0), 20, 1000)
				p.near.Delete("v0")
				eventually(t, func() error {
					if n := strings.Count(r.err.String(), "is gone"); n != i+1 {
						return fmt.Errorf("stderr %q", &r.err)
					}
					return nil
				})
				eventually(t, func() error {
					if list := p.near.Run("ip", "-o", "link", "show", "type", "ifb"); list != "" || len(p.notes()) > 0 {
						return fmt.Errorf("left are %s, %v", list, p.notes())
					}
					return nil
				})
				p.near.Veth(p.far)
				eventually(t, func() error {
					if n := strings.Count(r.out.String(), "attached by"); n != i+2 {
						return fmt.Errorf("%q, stderr %q: want it attached again", &r.out, &r.err)
					}
					return nil
				})
				in := listen(t, to, at)
				send(t, sender(t, from, at, 0, 0), 3, 100)
				if n := len(in.take()); n != 3 {
					t.Errorf("%d packets arrived: want 3", n)
				}
				in.conn.Close()
			}
			before := p.notes()
			r.term()
			if len(before) != 1 || len(p.notes()) != 0 || strings.Contains(p.qdiscs(), "5ade") {
				t.Errorf("notes %v, then %v, tc says\n%s", before, p.notes(), p.qdiscs())
			}
		})
	}
}

// endQueued has a shaper with a queue end by ^C just after packets of 1000 bytes were sent
// to it, for each pacer and direction at some hooks. ended gets what it prints and how many
// packets arrive.
func endQueued(t *testing.T, hooks []string, queue string, packets int, ended func(t *testing.T, pacer, out string, arrived int64)) {
	for _, pacer := range pacers(t) {
		for _, m := range methods {
			if !slices.Contains(hooks, m.hook) {
				continue
			}
			t.Run(pacer+"-"+m.hook+"-"+m.direction, func(t *testing.T) {
				m.need(t)
				if pacer == "htb" {
					hereOnly(t)
				}
				p := newQueuePair(t)
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				before, qdiscs := p.attached(), p.qdiscs()
				r := p.run(m.args("--pacer", pacer, "--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: "+queue+"}"))...)
				in, conn := listen(t, to, at), sender(t, from, at, 0, 0)
				patient(t, conn)
				arrived := gathered(in, func() {
					send(t, conn, packets, 1000)
					r.signal(os.Interrupt)
					if code := r.wait(); code != 0 {
						t.Errorf("exit %d: stderr %q", code, &r.err)
					}
				})[0]
				ended(t, pacer, r.out.String(), arrived)
				p.clean(before, qdiscs)
			})
		}
	}
}

// TestLiveQueueDrains holds that packets that wait when shaper ends still leave: 60 of
// 1000 bytes at 1 Mbit/s take 0.48 s.
func TestLiveQueueDrains(t *testing.T) {
	const sent = 400
	endQueued(t, []string{"tcx", "tc"}, "{rate: 1mbit, limit: 60p}", sent, func(t *testing.T, _, out string, arrived int64) {
		found := regexp.MustCompile(`a +green +400 +[\d.]+ +[\d,]+ +(\d+) `).FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("it says %q", out)
		}
		dropped, _ := strconv.ParseInt(found[1], 10, 64)
		if arrived != sent-dropped || dropped < 10 {
			t.Errorf("%d packets arrived, %d were dropped, of %d", arrived, dropped, sent)
		}
	})
}

// TestLiveQueueLost holds that what has not left a second after the end is
// counted: each packet was sent, or was lost. One takes 0.8 ms, so that some would be
// sent while the queue is removed; all take 3.2 s.
func TestLiveQueueLost(t *testing.T) {
	const sent = 4000
	endQueued(t, []string{"tcx"}, "{rate: 10mbit, limit: 10s}", sent, func(t *testing.T, pacer, out string, arrived int64) {
		found := regexp.MustCompile(`: lost (at most )?([\d,]+) packets that were still queued\n`).FindStringSubmatch(out)
		if found == nil || (found[1] != "") != (pacer == "fq") {
			t.Fatalf("it says %q", out)
		}
		lost, _ := strconv.ParseInt(strings.ReplaceAll(found[2], ",", ""), 10, 64)
		if arrived+lost < sent || arrived+lost > sent && pacer == "htb" || arrived == sent || lost < 10 {
			t.Errorf("%d packets arrived and %s%d were lost, of %d", arrived, found[1], lost, sent)
		}
	})
}

// TestLiveQueueLarge holds that a packet above a queue's limit is dropped, and
// no other for it.
func TestLiveQueueLarge(t *testing.T) {
	hereOnly(t)
	p := newQueuePair(t)
	_, at := p.addresses(method{"", "egress"}, false)
	r := p.run("--policy", file(t, fmt.Sprintf(slowQueue, "1000B")))
	in := listen(t, p.far, at)
	conn := sender(t, p.near, at, 0, 0)
	for range 5 {
		send(t, conn, 1, 1001)
		send(t, conn, 1, 1000)
		time.Sleep(20 * time.Millisecond)
	}
	c := p.queued().Classes[0]
	if n := len(in.take()); n != 5 || c.Green.Dropped["queue-full"] != (count{5, 5005}) || c.Queued != (count{5, 5000}) {
		t.Errorf("%d arrived, counted %+v: want one of each two", n, c)
	}
	r.term()
}

// backlog is what tc says waits in leaf n of v0, in bytes and packets.
func (p *pair) backlog(dev string) (bytes, packets int64) {
	p.t.Helper()
	out := p.near.Run("tc", "-s", "qdisc", "show", "dev", dev)
	i := strings.Index(out, "qdisc htb 5ade:")
	if i < 0 {
		p.t.Fatalf("tc says %s", out)
	}
	f := regexp.MustCompile(`backlog (\d+)([KM]?)b (\d+)p`).FindStringSubmatch(out[i:])
	bytes, _ = strconv.ParseInt(f[1], 10, 64)
	bytes <<= map[string]int{"": 0, "K": 10, "M": 20}[f[2]]
	packets, _ = strconv.ParseInt(f[3], 10, 64)
	return bytes, packets
}

// TestLiveQueueOverflow holds that what waits in HTB stays within the queue's
// limit, however long it overflows. A machine that stands still for a moment has
// HTB fall behind: then more waits, within the bound of docs/OPERATING.md.
func TestLiveQueueOverflow(t *testing.T) {
	hereOnly(t)
	const most = 30
	for _, test := range []struct {
		name, limit string
		size        int
		bytes       int64 // of the limit
	}{{"bytes", "30000B", 1000, 30_000}, {"packets", "30p", 1000, most * 1500}, {"time", "24ms", 1000, 30_000}, {"small", "30p", 100, most * 1500}} {
		t.Run(test.name, func(t *testing.T) {
			p := newQueuePair(t)
			_, at := p.addresses(method{"", "egress"}, false)
			r := p.run("--policy", file(t, fmt.Sprintf(slowQueue, test.limit)))
			conn := sender(t, p.near, at, 0, 0)
			listen(t, p.far, at)
			overflow := func() (mostly, top int64) {
				done := make(chan int64)
				go func() { done <- offer(t, conn, test.size, 30e6/8, 3*time.Second) }()
				var all []int64
				for begin := time.Now(); time.Since(begin) < 2900*time.Millisecond; time.Sleep(5 * time.Millisecond) {
					bytes, n := p.backlog("v0")
					if all = append(all, n); bytes > test.bytes*3/2+64<<10 {
						t.Fatalf("%d bytes waited: HTB is to hold %d", bytes, test.bytes*3/2+64<<10)
					}
				}
				<-done
				slices.Sort(all)
				return all[len(all)/2], all[len(all)-1]
			}
			for try := 1; ; try++ {
				mostly, top := overflow()
				t.Logf("mostly %d packets waited, at most %d", mostly, top)
				if mostly <= most+2 && top >= most/2 {
					break
				}
				if try == 5 {
					t.Fatalf("five times: want it full, with %d packets", most)
				}
				time.Sleep(500 * time.Millisecond) // so that HTB catches up
			}
			r.term()
		})
	}
}

// TestLiveQueueOffPath holds that what is of no queue is not held up, and that
// nobody gets into a leaf by a priority of its own.
func TestLiveQueueOffPath(t *testing.T) {
	hereOnly(t)
	p := newQueuePair(t)
	_, at := p.addresses(method{"", "egress"}, false)
	r := p.run("--policy", file(t, "classes: [{name: a, match: {dscp: af11}, green: {queue: q}}]\nqueues: {q: {rate: 100kbit, limit: 10s}}"))
	in := listen(t, p.far, at)
	slow, fast := sender(t, p.near, at, af11, 0), sender(t, p.near, at, 0, 0)
	control(t, fast, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 0x5ade0001) })
	send(t, slow, 50, 1000)
	send(t, fast, 200, 1000)
	got := map[int]int{}
	for _, d := range in.take() {
		got[d.tos]++
		if got[0] == 200 {
			break
		}
	}
	if got[0] != 200 || got[af11] > 25 {
		t.Errorf("%v arrived: want 200 of no class, and few others", got)
	}
	r.term()
}

// TestLiveQueueTimestamps holds that who asks when a packet came is not told
// when it was to leave.
func TestLiveQueueTimestamps(t *testing.T) {
	for _, pacer := range pacers(t) {
		t.Run(pacer, func(t *testing.T) {
			m := method{"", "ingress"}
			p := newQueuePair(t)
			_, at := p.addresses(m, false)
			r := p.run("--direction", "ingress", "--pacer", pacer, "--policy", file(t, fmt.Sprintf(slowQueue, "50ms")))
			in := listen(t, p.near, at)
			control(t, in.conn, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) })
			send(t, sender(t, p.far, at, 0, 0), 5, 1000)
			for range 5 {
				oob := make([]byte, 256)
				_ = in.conn.SetReadDeadline(time.Now().Add(patience))
				_, n, _, _, err := in.conn.ReadMsgUDP(make([]byte, 2000), oob)
				if err != nil {
					t.Fatal(err)
				}
				messages, err := unix.ParseSocketControlMessage(oob[:n])
				if err != nil {
					t.Fatal(err)
				}
				found := false
				for _, c := range messages {
					if c.Header.Type == unix.SO_TIMESTAMPNS && len(c.Data) >= 16 {
						found = true
						stamp := time.Unix(int64(nativeUint64(c.Data)), int64(nativeUint64(c.Data[8:])))
						if late := time.Since(stamp); late < -patience || late > patience {
							t.Errorf("a packet that came just now has time %v", stamp)
						}
					}
				}
				if !found {
					t.Error("a packet has no time")
				}
			}
			r.term()
		})
	}
}

func nativeUint64(b []byte) (v uint64) {
	for i := 7; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

// TestLiveQueueHorizon holds that fq keeps packets for longer than it would by
// default, and that a link takes HTB where there is fq.
func TestLiveQueueHorizon(t *testing.T) {
	notOlder(t)
	if !haveQdisc(t, "fq") {
		t.Skip("this kernel has no fq")
	}
	p := newQueuePair(t)
	before, qdiscs := p.attached(), p.qdiscs()
	r := p.run("--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: 100kbit, limit: 40s}}"))
	if now := p.qdiscs(); !strings.Contains(now, "horizon 45s") || !strings.Contains(now, "horizon_cap") {
		t.Errorf("tc says\n%s", now)
	}
	_, at := p.addresses(method{"", "egress"}, false)
	in := listen(t, p.far, at)
	sniffer := p.far.Sniff("v0")
	begin := time.Now()
	send(t, sender(t, p.near, at, 0, 0), 150, 1000)                     // 12 s
	enough := func() bool { return time.Since(begin) > 13*time.Second } // a machine that stalls makes gaps
	n, frames := len(slices.Collect(in.until(enough))), sniffer.Stop()
	if took := time.Duration(frames[len(frames)-1].Time - frames[0].Time); n != 150 || took < 11*time.Second {
		t.Errorf("%d packets arrived in %v: want 150 in 12 s", n, took)
	}
	p.do(0, "reload", "--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 100mbit}}\nqueues: {q: {link: l, limit: 64KiB}}"))
	if s := p.queued(); s.Pacer != "htb" || !strings.Contains(p.qdiscs(), "qdisc htb 5ade: root") {
		t.Errorf("status %+v, tc says\n%s", s, p.qdiscs())
	}
	p.do(0, "reload", "--policy", file(t, fmt.Sprintf(slowQueue, "50ms")))
	if s := p.queued(); s.Pacer != "fq" || !strings.Contains(p.qdiscs(), "qdisc fq 5ade: root") {
		t.Errorf("status %+v, tc says\n%s", s, p.qdiscs())
	}
	r.term()
	p.clean(before, qdiscs)
	p.fails(2, `.*: link is scheduled by HTB: use --pacer htb`, "run", "v0", "--pacer", "fq", "--policy",
		file(t, "classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 100mbit}}\nqueues: {q: {link: l, limit: 64KiB}}"))
}

// TestLiveQueueConfirmPacer holds that what was before comes back to what held
// its packets.
func TestLiveQueueConfirmPacer(t *testing.T) {
	notOlder(t)
	if !haveQdisc(t, "fq") {
		t.Skip("this kernel has no fq")
	}
	p := newQueuePair(t)
	p.withBpffs()
	before, qdiscs := p.attached(), p.qdiscs()
	p.run("--pacer", "htb", "--pin", "--policy", file(t, "classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 100mbit}}\nqueues: {q: {link: l, limit: 64KiB}}")).term()
	r := p.run("--pacer", "fq", "--confirm", "10s", "--policy", file(t, fmt.Sprintf(slowQueue, "50ms")))
	if s := p.queued(); s.Pacer != "fq" {
		t.Errorf("status %+v: want fq", s)
	}
	if code := r.wait(); code != 1 {
		t.Errorf("exit %d, stderr %q", code, &r.err)
	}
	if s := p.queued(); s.Pacer != "htb" || !s.Pinned {
		t.Errorf("status %+v: want what was before", s)
	}
	p.do(0, "detach")
	p.clean(before, qdiscs)
}
