package livetest

import (
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveReloadReplaced checks that a reload waiting for its confirmation reports that another
// reload replaced it.
func TestLiveReloadReplaced(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--meter", unlimitedMeter)
	first := p.startShaper("reload", "v0", "--confirm", "60s", "--meter",
		"token-bucket rate=1mbit burst=9000")
	first.out.awaitMatch(t, "waiting 1m0s for shaper confirm v0")
	second := p.startShaper("reload", "v0", "--confirm", "1s", "--meter",
		"token-bucket rate=2mbit burst=9000")
	if code := first.waitForExit(); code != 1 ||
		!strings.Contains(first.err.String(), "not confirmed: replaced by another policy with --confirm") {
		t.Errorf("the first reload: exit %d, stderr %q", code, &first.err)
	}
	if code := second.waitForExit(); code != 1 ||
		!strings.Contains(second.err.String(), "not confirmed in time: rolled back") {
		t.Errorf("the second reload: exit %d, stderr %q", code, &second.err)
	}
	if s := p.stats(); s.Policy != "--meter "+unlimitedMeter {
		t.Errorf("policy %q: want the first", s.Policy)
	}
	r.stopBySIGTERM()
	p.wantNothingLeft()
}

// TestLiveHUP checks that SIGHUP reads the policy file again, and that an invalid file changes
// nothing.
func TestLiveHUP(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	path := writePolicy(t, "classes: [{name: a, meter: {type: token-bucket, rate: 1mbit, burst: 9000}}]")
	r := p.runShaper("--policy", path)
	rewriteFile(t, path,
		"classes: [{name: a, meter: {type: token-bucket, rate: 1mbit, burst: 5000}}, {name: b}]")
	r.sendSignal(syscall.SIGHUP)
	r.out.awaitMatch(t, `v0 egress: reloaded, program \d+, policy .*policy.yaml; new b\n`)
	s := p.stats()
	if b := s.classNamed(t, "a").Meters[0].Buckets[0]; b.Burst != 5000 {
		t.Errorf("burst %d: want 5000", b.Burst)
	}
	program := s.ProgramID
	rewriteFile(t, path, "classes: [{name: a, metre: 1}]")
	r.sendSignal(syscall.SIGHUP)
	r.err.awaitMatch(t, `^shaper: .*policy\.yaml:1:21: .*: the policy is unchanged\n$`)
	rewriteFile(t, path,
		"classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 1mbit}}\nqueues: {q: {link: l, limit: 9p}}")
	r.sendSignal(syscall.SIGHUP)
	r.err.awaitMatch(t,
		`\nshaper: .*policy\.yaml:3:\d+: limit of a link's queue .*: the policy is unchanged\n$`)
	if s := p.stats(); s.ProgramID != program || len(s.Classes) != 3 {
		t.Errorf("status %+v: want it as before", s)
	}
	r.stopBySIGTERM()
}

// TestLiveReload checks that classes with the same name keep their counters and their tokens,
// at most the new burst, and that an invalid policy changes nothing.
func TestLiveReload(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			path := writePolicy(t, `
classes:
  - {name: af, match: {dscp: af11}, meter: {type: token-bucket, rate: 1B/1000s, burst: 1000}}
  - {name: wide, match: {dscp: af12}, meter: {type: token-bucket, rate: 1B/1000s, burst: 9000}}
  - {name: old}
`)
			r := p.runShaper(m.flags("--policy", path)...)
			in := listenUDP(t, to, at)
			sendUDP(t, newSender(t, from, at, af11, 0), 3, 200)
			sendUDP(t, newSender(t, from, at, af12, 0), 1, 200)
			sendUDP(t, newSender(t, from, at, 0, 0), 1, 200)
			in.receiveAll()
			rewriteFile(t, path, `
classes:
  - {name: new, match: {dscp: af21}}
  - {name: wide, match: {dscp: af12}, meter: {type: token-bucket, rate: 1B/1000s, burst: 500}}
  - {name: af, match: {dscp: af11}, meter: {type: token-bucket, rate: 1B/1000s, burst: 2000}}
`)
			out, _ := p.wantExit(0, "reload", "v0")
			for _, want := range []string{
				"class new: new", "class wide: kept", "class af: kept", "class old: gone",
			} {
				if !strings.Contains(out, "v0 "+m.direction+": "+want+"\n") {
					t.Errorf("reload prints %q: want %q", out, want)
				}
			}
			s := p.stats()
			af, wide := s.classNamed(t, "af"), s.classNamed(t, "wide")
			if af.packetCount != (packetCount{3, 600}) || wide.packetCount != (packetCount{1, 200}) ||
				s.classNamed(t, "new").packetCount != (packetCount{}) {
				t.Errorf("counted %+v: want the counters kept", s.Classes)
			}
			for c, want := range map[*classStats]int64{af: 400, wide: 500} {
				if got := c.Meters[0].Buckets[0].Tokens; got != want {
					t.Errorf("class %s has %d tokens: want %d", c.Name, got, want)
				}
			}
			sendUDP(t, newSender(t, from, at, af11, 0), 3, 200)
			if got := len(in.receiveAll()); got != 2 {
				t.Errorf("%d packets passed on 400 tokens: want 2", got)
			}
			rewriteFile(t, path, "classes:\n  - {name: af, metre: x}\n")
			p.wantError(2, `.*policy\.yaml:2:16: .*metre.*`, "reload")
			now := p.stats()
			if now.ProgramID != s.ProgramID || now.classNamed(t, "af").packetCount != (packetCount{6, 1200}) {
				t.Errorf("status %+v: want it as before", now)
			}
			rewriteFile(t, path, "classes: [{name: af, match: {dscp: af11}}]")
			out, _ = p.wantExit(0, "reload", "--json")
			if !regexp.MustCompile(`^\{"interface":"v0","direction":"\w+","program_id":\d+,"policy":".*policy.yaml","classes":\[\{"class":"af","change":"kept"\},.*\]\}\n$`).MatchString(out) {
				t.Errorf("reload --json prints %q", out)
			}
			r.stopBySIGTERM()
		})
	}
}

// TestLiveReloadUnderLoad checks that no packet is lost or unmetered during many reloads.
func TestLiveReloadUnderLoad(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			policies := [2]string{}
			for i := range policies {
				policies[i] = fmt.Sprintf(`
classes:
  - {name: all, meter: {type: trtcm, cir: %d00gbit, cbs: 1GB, pir: 900gbit, pbs: 1GB}, green: {dscp: %d}, yellow: {dscp: %[2]d}}
`, i+1, i+10)
			}
			path := writePolicy(t, policies[0])
			r := p.runShaper(m.flags("--policy", path)...)
			in := listenUDP(t, to, at)
			conn := newSender(t, from, at, 0, 0)
			var stop, done atomic.Bool
			var came atomic.Int64
			result := make(chan int64)
			go func() {
				defer done.Store(true)
				sent := int64(0)
				packet := make([]byte, 72)
				for !stop.Load() && sent < 500_000 {
					if sent-came.Load() >= 64 { // veth queues at most 256 packets for XDP
						time.Sleep(time.Millisecond / 10)
						continue
					}
					if _, err := conn.Write(packet); err != nil {
						t.Errorf("send: %v", err)
						break
					}
					if sent++; sent%16 == 0 {
						time.Sleep(time.Millisecond / 4)
					}
				}
				result <- sent
			}()
			arrived := make(chan map[int]int64)
			go func() {
				tos := map[int]int64{}
				for d := range in.receiveUntil(done.Load) {
					tos[d.tos]++
					came.Add(1)
				}
				arrived <- tos
			}()
			reloads := 20
			switch {
			case inVM:
				reloads = 2
			case m != placements[0]:
				reloads = 4
			}
			for i := range reloads {
				rewriteFile(t, path, policies[(i+1)%2])
				r.reloadBySIGHUP()
			}
			stop.Store(true)
			sent, tos := <-result, <-arrived
			s := p.stats()
			total, want := s.sumOfClasses(), packetCount{sent, sent * 100}
			if total != want || s.classNamed(t, "all").packetCount != want ||
				s.classNamed(t, "all").Marked != want {
				t.Errorf("counted %+v, %+v: want %+v", total, s.classNamed(t, "all"), want)
			}
			if tos[10<<2] == 0 || tos[11<<2] == 0 || tos[10<<2]+tos[11<<2] != sent {
				t.Errorf("arrived by TOS: %v of %d packets: want all, marked by either policy", tos, sent)
			}
			r.stopBySIGTERM()
		})
	}
}

// TestQuietReloadKeepsBound checks that a reload that changes a meter passes no more than the
// meter allows plus the traffic during the swap of programs, up to 20 ms (XDP). A busy machine may
// take longer for a swap, so it has several attempts, each with a full bucket.
func TestQuietReloadKeepsBound(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			path := writePolicy(t,
				"classes: [{name: a, meter: {type: token-bucket, rate: 1MB/s, burst: 500000}}]")
			r := p.runShaper(m.flags("--policy", path)...)
			in := listenUDP(t, to, at)
			conn := newSender(t, from, at, 0, 0)
			// A model of the bucket, for the packets that this machine manages to send.
			model := newModelBucket(500000, 1e6, time.Now())
			reloads := 0
			eventually(t, func() error {
				time.Sleep(500 * time.Millisecond) // until the bucket is full
				begin, before, first := time.Now(), model.passed, reloads
				for i := 0; time.Since(begin) < 1500*time.Millisecond; i++ {
					for range 10 {
						model.passes(time.Now(), 1000)
					}
					sendUDP(t, conn, 10, 1000)
					time.Sleep(time.Millisecond)
					if i%200 == 0 {
						reloads++
						rewriteFile(t, path, fmt.Sprintf(
							"classes: [{name: a, meter: {type: token-bucket, rate: 1MB/s, burst: %d}}]",
							499999+reloads%2))
						r.sendSignal(syscall.SIGHUP)
					}
				}
				took := time.Since(begin).Seconds()
				got, want := float64(len(in.receiveAll()))*1000, model.passed-before
				bound := 500000 + 1e6*(took+0.02*float64(reloads-first))
				if got > bound || !inVM && got < want*0.9 {
					return fmt.Errorf("%.0f bytes passed in %.3f s: want at most %.0f, and nearly %.0f", got,
						took, bound, want)
				}
				return nil
			})
			r.stopBySIGTERM()
		})
	}
}

// TestLiveReloadAllOrNone checks that a policy that is invalid in one direction changes neither
// direction.
func TestLiveReloadAllOrNone(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	const m = "token-bucket rate=1gbit burst=1MiB"
	p.runShaper("--direction", "egress", "--meter", m)
	p.runShaper("--direction", "ingress", "--hook", "xdp", "--meter", m)
	before, _ := p.wantExit(0, "status", "--json")
	p.wantError(2, `--green:1:6: mark needs the skb mark, which XDP programs do not have: use --hook tc`,
		"reload", "v0", "--meter", m, "--green", "mark=7")
	if after, _ := p.wantExit(0, "status", "--json"); after != before || strings.Count(after, "\n") != 2 {
		t.Errorf("%s\nbefore %s", after, before)
	}
}

// TestLiveReloadOwnPolicy checks that reload without flags gives each direction the file that
// it was started with.
func TestLiveReloadOwnPolicy(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	a, b := writePolicy(t, "classes: [{name: a}]"), writePolicy(t, "classes: [{name: b}]")
	p.wantExit(0, "run", "v0", "--background", "--policy", a)
	p.wantExit(0, "run", "v0", "--background", "--policy", b, "--direction", "ingress")
	p.wantExit(0, "reload", "v0")
	for _, s := range p.status() {
		if want := map[string]string{"egress": a, "ingress": b}[s.Direction]; s.Policy != want {
			t.Errorf("%s has policy %s: want %s", s.Direction, s.Policy, want)
		}
	}
	p.wantExit(0, "detach", "v0")
	p.wantNothingLeft()
}
