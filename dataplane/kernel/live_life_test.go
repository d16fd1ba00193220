package kernel_test

import (
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestLiveDryRun holds that a dry run counts what would happen, and touches no
// packet.
func TestLiveDryRun(t *testing.T) {
	hereOnly(t)
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			r := p.run(m.args("--dry-run", "--meter", ladder, "--green", "dscp=af11", "--yellow", "ecn=ce", "--red", "drop")...)
			r.out.await(t, "dry run: packets are counted, not changed")
			in := listen(t, to, at)
			send(t, sender(t, from, at, af21|2, 0), 8, 100)
			got := in.take()
			for _, d := range got {
				if d.tos != af21|2 {
					t.Errorf("TOS %#x: want %#x as sent", d.tos, af21|2)
				}
			}
			if len(got) != 8 {
				t.Errorf("%d packets arrived: want 8", len(got))
			}
			s := p.stats()
			c := s.class(t, "all")
			if !s.DryRun || c.Green.count != (count{3, 300}) || c.Yellow.count != (count{2, 200}) || c.Red.count != (count{3, 300}) || c.Dropped != c.Red.count {
				t.Errorf("counted %+v: want 3, 2, 3 packets, and these dropped", c)
			}
			r.term()
		})
	}
}

// TestLiveBoth holds that both directions have meters of their own.
func TestLiveBoth(t *testing.T) {
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			p := newPair(t)
			before := p.attached()
			r := p.run("--hook", hook, "--direction", "both", "--meter", ladder)
			r.out.await(t, "v0 egress: attached by "+hook)
			r.out.await(t, "v0 ingress: attached by "+hook)
			for _, direction := range []string{"egress", "ingress"} {
				m := method{hook, direction}
				from, to := p.sides(m)
				_, at := p.addresses(m, false)
				in := listen(t, to, at)
				send(t, sender(t, from, at, 0, 0), 8, 100)
				if got := len(in.take()); got != 5 {
					t.Errorf("%s: %d packets arrived: want 5", direction, got)
				}
			}
			for _, direction := range []string{"egress", "ingress"} {
				s := p.stats("v0", "--direction", direction)
				if c := s.class(t, "all"); c.Packets != 8 || c.Dropped.Packets != 3 {
					t.Errorf("%s: counted %+v: want 8 packets, 3 dropped", direction, c)
				}
			}
			r.term()
			p.unchanged(before)
		})
	}
}

// TestLiveFor holds that --for ends it, pinned or not.
func TestLiveFor(t *testing.T) {
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			p := newPair(t)
			p.withBpffs()
			before := p.attached()
			for _, pin := range []string{"--pin=false", "--pin"} {
				begin := time.Now()
				r := p.run("--hook", hook, "--for", "500ms", pin, "--meter", never)
				if code := r.wait(); code != 0 || time.Since(begin) < 500*time.Millisecond {
					t.Errorf("%s: exit %d after %v: want 0 after 500ms; stderr %q", pin, code, time.Since(begin), &r.err)
				}
				p.unchanged(before)
			}
		})
	}
}

// TestLiveConfirm holds that what nobody confirms goes, with exit code 1, that
// what is confirmed stays, and that what was before comes back.
func TestLiveConfirm(t *testing.T) {
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			p := newPair(t)
			p.withBpffs()
			before := p.attached()
			for _, pin := range []string{"--pin=false", "--pin"} {
				r := p.run("--hook", hook, "--confirm", "700ms", pin, "--meter", never)
				r.out.await(t, "rolls back in 700ms unless you run shaper confirm v0")
				if code := r.wait(); code != 1 || r.err.String() != "shaper: not confirmed in time: rolled back\n" {
					t.Errorf("%s: exit %d, stderr %q: want 1 and one line", pin, code, &r.err)
				}
				p.unchanged(before)
			}

			r := p.run("--hook", hook, "--confirm", "5s", "--meter", never)
			until := time.Now().Add(5 * time.Second)
			if s := p.stats(); s.Unconfirmed == nil {
				t.Errorf("status %+v does not say until when it waits", s)
			}
			out, _ := p.do(0, "confirm")
			if out != "v0 egress: confirmed\n" {
				t.Errorf("confirm says %q", out)
			}
			p.fails(1, "v0: nothing to confirm: .*", "confirm", "v0")
			time.Sleep(time.Until(until.Add(500 * time.Millisecond)))
			if s := p.stats(); !s.Attached || s.Unconfirmed != nil {
				t.Errorf("status %+v after it was confirmed: want it attached", s)
			}

			w := p.start("reload", "--confirm", "5s", "--meter", "token-bucket rate=1mbit burst=9000")
			eventually(t, func() error {
				if s := p.stats(); s.Policy != "--meter token-bucket rate=1mbit burst=9000" {
					return fmt.Errorf("policy %q: want the new one", s.Policy)
				}
				return nil
			})
			if code := w.wait(); code != 1 || !strings.Contains(w.err.String(), "not confirmed in time") {
				t.Errorf("reload exits with %d, stderr %q: want 1", code, &w.err)
			}
			if s := p.stats(); s.Policy != "--meter "+never || s.Unconfirmed != nil {
				t.Errorf("policy %q: want the one before", s.Policy)
			}
			w = p.start("reload", "--confirm", "60s", "--meter", "token-bucket rate=1mbit burst=9000")
			w.out.await(t, "waiting 1m0s for shaper confirm v0")
			p.do(0, "confirm", "v0")
			if code := w.wait(); code != 0 {
				t.Errorf("reload exits with %d after it was confirmed, stderr %q", code, &w.err)
			}
			if s := p.stats(); s.Policy != "--meter token-bucket rate=1mbit burst=9000" {
				t.Errorf("policy %q: want the one confirmed", s.Policy)
			}
			r.term()
			p.unchanged(before)
		})
	}
}

// TestLiveConfirmTakesOver holds that a run that is not confirmed leaves what
// was pinned before it.
func TestLiveConfirmTakesOver(t *testing.T) {
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			method{hook, ""}.need(t)
			p := newPair(t)
			p.withBpffs()
			before := p.attached()
			p.run("--hook", hook, "--pin", "--meter", "token-bucket rate=3mbit burst=9000").term()
			r := p.run("--hook", hook, "--confirm", "500ms", "--meter", never)
			if code := r.wait(); code != 1 {
				t.Errorf("exit %d: want 1", code)
			}
			s := p.stats()
			if s.Policy != "--meter token-bucket rate=3mbit burst=9000" || !s.Pinned || s.State != "attached, pinned" {
				t.Errorf("status %+v: want the policy before, pinned", s)
			}
			p.do(0, "detach")
			p.unchanged(before)
		})
	}
}

// TestLiveConfirmEnded holds that a run which ends before it is confirmed goes
// back to what it took over.
func TestLiveConfirmEnded(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	before := p.attached()
	p.do(0, "run", "v0", "--hook", "tc", "--background", "--meter", "token-bucket rate=3mbit burst=9000")
	r := p.run("--hook", "tc", "--confirm", "60s", "--meter", never)
	r.signal(syscall.SIGTERM)
	if code := r.wait(); code != 1 {
		t.Errorf("exit %d: want 1", code)
	}
	if s := p.stats(); s.Policy != "--meter token-bucket rate=3mbit burst=9000" || !s.Pinned {
		t.Errorf("status %+v: want the policy before, pinned", s)
	}
	p.do(0, "detach")
	p.unchanged(before)
}

// TestLiveConfirmHUP holds that neither a terminal that is cut off nor another
// policy confirms.
func TestLiveConfirmHUP(t *testing.T) {
	hereOnly(t)
	for _, how := range []string{"SIGHUP", "reload"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			before := p.attached()
			path := file(t, "classes: [{name: a}]")
			r := p.run("--confirm", "5s", "--policy", path)
			if how == "SIGHUP" {
				r.signal(syscall.SIGHUP)
				r.out.await(t, "reloaded")
			} else {
				p.do(0, "reload")
			}
			eventually(t, func() error {
				if now := p.attached(); now != before {
					return fmt.Errorf("nobody confirmed, and at v0 is\n%s: want\n%s", now, before)
				}
				return nil
			})
			if code := r.wait(); code != 1 {
				t.Errorf("exit %d: want 1", code)
			}
		})
	}
}

// TestLiveConfirmKilled holds that what is not confirmed goes although the
// process that waits is killed.
func TestLiveConfirmKilled(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.withBpffs()
	before := p.attached()
	p.run("--pin", "--confirm", "3s", "--meter", never).kill()
	eventually(t, func() error {
		if now := p.attached(); now != before {
			return fmt.Errorf("nobody confirmed, and at v0 is\n%s: want\n%s", now, before)
		}
		return nil
	})
}

// TestLiveReloadConfirmKilled is the same for a reload that is killed.
func TestLiveReloadConfirmKilled(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--meter", never)
	w := p.start("reload", "--confirm", "3s", "--meter", "token-bucket rate=1mbit burst=9000")
	w.out.await(t, "waiting 3s")
	w.kill()
	eventually(t, func() error {
		if s := p.stats(); s.Policy != "--meter "+never {
			return fmt.Errorf("nobody confirmed, and the policy is %q", s.Policy)
		}
		return nil
	})
	r.term()
}

// TestLiveHUP holds that SIGHUP reads the policy file again, and that a broken
// one changes nothing.
func TestLiveHUP(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	path := file(t, "classes: [{name: a, meter: {type: token-bucket, rate: 1mbit, burst: 9000}}]")
	r := p.run("--policy", path)
	rewrite(t, path, "classes: [{name: a, meter: {type: token-bucket, rate: 1mbit, burst: 5000}}, {name: b}]")
	r.signal(syscall.SIGHUP)
	r.out.await(t, `v0 egress: reloaded, program \d+, policy .*policy.yaml\nv0 egress: class a: kept\nv0 egress: class b: new\n`)
	s := p.stats()
	if b := s.class(t, "a").Meters[0].Buckets[0]; b.Burst != 5000 {
		t.Errorf("burst %d: want 5000", b.Burst)
	}
	program := s.ProgramID
	rewrite(t, path, "classes: [{name: a, metre: 1}]")
	r.signal(syscall.SIGHUP)
	r.err.await(t, `^shaper: .*policy\.yaml:1:21: .*: the policy is unchanged\n$`)
	rewrite(t, path, "classes: [{name: a, green: {queue: q}}]\nlinks: {l: {rate: 1mbit}}\nqueues: {q: {link: l, limit: 9p}}")
	r.signal(syscall.SIGHUP)
	r.err.await(t, `\nshaper: .*policy\.yaml:3:\d+: limit of a link's queue .*: the policy is unchanged\n$`)
	if s := p.stats(); s.ProgramID != program || len(s.Classes) != 3 {
		t.Errorf("status %+v: want it as before", s)
	}
	r.term()
}

// TestLiveReload holds that classes that keep their name keep their counters
// and tokens, cut to a smaller burst, and that a policy with a fault changes
// nothing.
func TestLiveReload(t *testing.T) {
	hereOnly(t)
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			path := file(t, `
classes:
  - {name: af, match: {dscp: af11}, meter: {type: token-bucket, rate: 1B/1000s, burst: 1000}}
  - {name: wide, match: {dscp: af12}, meter: {type: token-bucket, rate: 1B/1000s, burst: 9000}}
  - {name: old}
`)
			r := p.run(m.args("--policy", path)...)
			in := listen(t, to, at)
			send(t, sender(t, from, at, af11, 0), 3, 200)
			send(t, sender(t, from, at, af12, 0), 1, 200)
			send(t, sender(t, from, at, 0, 0), 1, 200)
			in.take()
			rewrite(t, path, `
classes:
  - {name: new, match: {dscp: af21}}
  - {name: wide, match: {dscp: af12}, meter: {type: token-bucket, rate: 1B/1000s, burst: 500}}
  - {name: af, match: {dscp: af11}, meter: {type: token-bucket, rate: 1B/1000s, burst: 2000}}
`)
			out, _ := p.do(0, "reload", "v0")
			for _, want := range []string{"class new: new", "class wide: kept", "class af: kept", "class old: gone"} {
				if !strings.Contains(out, "v0 "+m.direction+": "+want+"\n") {
					t.Errorf("reload says %q: want %q", out, want)
				}
			}
			s := p.stats()
			af, wide := s.class(t, "af"), s.class(t, "wide")
			if af.count != (count{3, 600}) || wide.count != (count{1, 200}) || s.class(t, "new").count != (count{}) {
				t.Errorf("counted %+v: want the counters kept", s.Classes)
			}
			for c, want := range map[*classStats]int64{af: 400, wide: 500} {
				if got := c.Meters[0].Buckets[0].Tokens; got != want {
					t.Errorf("class %s has %d tokens: want %d", c.Name, got, want)
				}
			}
			send(t, sender(t, from, at, af11, 0), 3, 200)
			if got := len(in.take()); got != 2 {
				t.Errorf("%d packets passed on 400 tokens: want 2", got)
			}
			rewrite(t, path, "classes:\n  - {name: af, metre: x}\n")
			p.fails(2, `.*policy\.yaml:2:16: .*metre.*`, "reload")
			now := p.stats()
			if now.ProgramID != s.ProgramID || now.class(t, "af").count != (count{6, 1200}) {
				t.Errorf("status %+v: want it as before", now)
			}
			rewrite(t, path, "classes: [{name: af, match: {dscp: af11}}]")
			out, _ = p.do(0, "reload", "--json")
			if !regexp.MustCompile(`^\{"interface":"v0","direction":"\w+","program_id":\d+,"policy":".*policy.yaml","classes":\[\{"class":"af","change":"kept"\},.*\]\}\n$`).MatchString(out) {
				t.Errorf("reload --json says %q", out)
			}
			r.term()
		})
	}
}

// TestLiveReloadUnderLoad holds that while the policy changes again and again
// no packet goes unmetered and none is lost.
func TestLiveReloadUnderLoad(t *testing.T) {
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			policies := [2]string{}
			for i := range policies {
				policies[i] = fmt.Sprintf(`
classes:
  - {name: all, meter: {type: trtcm, cir: %d00gbit, cbs: 1GB, pir: 900gbit, pbs: 1GB}, green: {dscp: %d}, yellow: {dscp: %[2]d}}
`, i+1, i+10)
			}
			path := file(t, policies[0])
			r := p.run(m.args("--policy", path)...)
			in := listen(t, to, at)
			conn := sender(t, from, at, 0, 0)
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
				for d := range in.until(done.Load) {
					tos[d.tos]++
					came.Add(1)
				}
				arrived <- tos
			}()
			reloads := 50
			switch {
			case inVM:
				reloads = 2
			case m != methods[0]:
				reloads = 5
			}
			for i := range reloads {
				rewrite(t, path, policies[(i+1)%2])
				r.signal(syscall.SIGHUP)
				eventually(t, func() error {
					if n := strings.Count(r.out.String(), "reloaded"); n != i+1 {
						return fmt.Errorf("reloaded %d times: want %d: stderr %q", n, i+1, &r.err)
					}
					return nil
				})
			}
			stop.Store(true)
			sent, tos := <-result, <-arrived
			s := p.stats()
			total, want := s.sum(), count{sent, sent * 100}
			if total != want || s.class(t, "all").count != want || s.class(t, "all").Marked != want {
				t.Errorf("counted %+v, %+v: want %+v", total, s.class(t, "all"), want)
			}
			if tos[10<<2] == 0 || tos[11<<2] == 0 || tos[10<<2]+tos[11<<2] != sent {
				t.Errorf("by TOS %v arrived of %d sent: want all, marked by one policy or the other", tos, sent)
			}
			r.term()
		})
	}
}

// TestLiveReloadKeepsBound holds that a reload which changes a meter gives no
// more than the meter allows and what passes while programs are swapped, which is
// up to 20 ms (XDP).
func TestLiveReloadKeepsBound(t *testing.T) {
	hereOnly(t)
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			path := file(t, "classes: [{name: a, meter: {type: token-bucket, rate: 1MB/s, burst: 500000}}]")
			r := p.run(m.args("--policy", path)...)
			in := listen(t, to, at)
			conn := sender(t, from, at, 0, 0)
			begin := time.Now()
			reloads := 0
			// What a bucket passes of what this machine has time to send.
			tokens, model, last := 500000.0, 0.0, begin
			for i := 0; time.Since(begin) < 1500*time.Millisecond; i++ {
				now := time.Now()
				tokens = min(500000, tokens+1e6*now.Sub(last).Seconds())
				last = now
				model += min(tokens, 10_000)
				tokens -= min(tokens, 10_000)
				send(t, conn, 10, 1000)
				time.Sleep(time.Millisecond)
				if i%200 == 0 {
					reloads++
					rewrite(t, path, fmt.Sprintf("classes: [{name: a, meter: {type: token-bucket, rate: 1MB/s, burst: %d}}]", 499999+reloads%2))
					r.signal(syscall.SIGHUP)
				}
			}
			took := time.Since(begin).Seconds()
			got := float64(len(in.take())) * 1000
			bound := 500000 + 1e6*(took+0.02*float64(reloads))
			if got > bound || !inVM && got < model*0.9 {
				t.Errorf("%.0f bytes passed in %.3f s: want at most %.0f, and nearly %.0f", got, took, bound, model)
			}
			r.term()
		})
	}
}

// TestLiveReloadAllOrNone holds that a policy which one direction cannot do
// changes none.
func TestLiveReloadAllOrNone(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	const m = "token-bucket rate=1gbit burst=1MiB"
	p.run("--direction", "egress", "--meter", m)
	p.run("--direction", "ingress", "--hook", "xdp", "--meter", m)
	before, _ := p.do(0, "status", "--json")
	p.fails(2, `--green:1:6: mark an XDP program has no skb mark: use --hook tc`, "reload", "v0", "--meter", m, "--green", "mark=7")
	if after, _ := p.do(0, "status", "--json"); after != before || strings.Count(after, "\n") != 2 {
		t.Errorf("%s\nbefore %s", after, before)
	}
}
