package livetest

import (
	"encoding/json"
	"fmt"
	"net/rpc"
	"strings"
	"syscall"
	"testing"
)

// TestLiveTapReload reloads policies from a file, by flags and by SIGHUP. Invalid policies must
// change nothing.
func TestLiveTapReload(t *testing.T) {
	p := newTAPPair(t)
	const text = "classes:\n  - name: %s\n    meter: {type: token-bucket, rate: 1B/1000s, burst: %d}\n"
	path := writePolicy(t, fmt.Sprintf(text, "all", 1000))
	r := p.startTap("--uplink", "v0", "--policy", path)
	p.near.Inject("t0", ipv4Frames(4, 100)...)
	p.awaitCounted(4)
	tokens := func(want, burst int64) {
		t.Helper()
		if b := p.statsList()[0].Classes[0].Meters[0].Buckets[0]; b.Tokens != want || b.Burst != burst {
			t.Errorf("%+v: want %d of %d tokens", b, want, burst)
		}
	}
	tokens(600, 1000)
	rewriteFile(t, path, fmt.Sprintf(text, "all", 500))
	out, _ := p.wantExit(0, "reload")
	wantMatch(t, out, `^t0 egress: .*\n.*class all: kept\n`)
	tokens(500, 500)
	rewriteFile(t, path, fmt.Sprintf(text, "all", 400))
	r.sendSignal(syscall.SIGHUP)
	r.out.awaitMatch(t, `t0 egress: reloaded, policy `)
	tokens(400, 400)
	p.awaitCounted(4)
	rewriteFile(t, path, "classes:\n  - name: all\n    metre: {}\n")
	r.sendSignal(syscall.SIGHUP)
	r.err.awaitMatch(t, `shaper: .*policy\.yaml:3:5: .*: the policy is unchanged\n`)
	p.wantError(2, `.*policy\.yaml:3:5: .*`, "reload")
	p.near.Inject("t0", ipv4Frames(1, 100)...)
	p.awaitCounted(5)
	tokens(300, 400)
	out, _ = p.wantExit(0, "reload", "t0", "--json", "--meter", unlimitedMeter)
	wantMatch(t, out, `"interface":"t0","direction":"egress".*"class":"all","change":"kept"`)
	if s := p.awaitCounted(5); s.Classes[0].Meters[0].Buckets[0].Burst != 1e9 {
		t.Errorf("stats %+v", s)
	}
	out, _ = p.wantExit(0, "detach")
	if out != "t0 egress: detached\n" {
		t.Errorf("detach prints %q", out)
	}
	r.wantExit(0)
	p.wantError(1, "no shaper is attached: .*", "detach")
}

// TestLiveTapConfirm checks that an unsupported --confirm changes nothing.
func TestLiveTapConfirm(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--meter", ladderMeter)
	p.wantError(1, "--confirm is not supported by shaper tap", "reload", "--meter", unlimitedMeter,
		"--confirm", "1s")
	if b := p.statsList()[0].Classes[0].Meters[0].Buckets[0]; b.Burst != 3 {
		t.Errorf("its policy changed: %+v", b)
	}
	p.wantError(1, "t0: nothing to confirm: .*", "confirm")
	r.stopBySIGTERM()
}

// TestLiveTapReloadWhileRead reads statistics and metrics while the number of classes changes.
func TestLiveTapReloadWhileRead(t *testing.T) {
	p := newTAPPair(t)
	var b strings.Builder
	b.WriteString("classes:\n")
	for i := range 60 {
		fmt.Fprintf(&b,
			"  - {name: c%d, match: {dport: %d}, meter: {type: token-bucket, rate: 1mbit, burst: 10kB}}\n", i,
			1+i)
	}
	many, one := writePolicy(t, b.String()), writePolicy(t, "classes: [{name: all}]\n")
	r := p.startTap("--uplink", "v0", "--policy", many, "--metrics", ":0")
	get := p.metricsReader(r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			if _, err := get(); err != nil {
				t.Errorf("metrics: %v", err)
				return
			}
		}
	}()
	conn := p.dialControl("t0", 0)
	client := rpc.NewClient(conn)
	defer client.Close()
	type policy struct {
		Direction uint8
		Label     json.RawMessage
	}
	var both []policy
	for _, path := range []string{one, many} {
		p.wantExit(0, "reload", "--policy", path)
		var list []struct {
			About struct {
				Direction uint8
				Label     json.RawMessage
			}
		}
		if err := client.Call("control.Take", struct{}{}, &list); err != nil {
			t.Fatal(err)
		}
		both = append(both, policy{list[0].About.Direction, list[0].About.Label})
	}
	for i := 0; ; i++ {
		select {
		case <-done:
			r.stopBySIGTERM()
			return
		default:
		}
		var changes []struct{ Class, What string }
		if err := client.Call("control.Reload", both[i%2], &changes); err != nil {
			t.Fatalf("%v: %q", err, &r.err)
		}
		if len(changes) != 61 {
			t.Fatalf("changes %v", changes)
		}
		if i%20 == 0 {
			p.wantExit(0, "stats")
		}
	}
}
