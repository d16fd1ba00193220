package livetest

import (
	"encoding/json"
	"fmt"
	"net/rpc"
	"strings"
	"syscall"
	"testing"
)

// TestLiveTapReload gives it other policies: from a file, by SIGHUP, and wrong
// ones, which change nothing.
func TestLiveTapReload(t *testing.T) {
	p := newTAPPair(t)
	const text = "classes:\n  - name: %s\n    meter: {type: token-bucket, rate: 1B/1000s, burst: %d}\n"
	path := file(t, fmt.Sprintf(text, "all", 1000))
	r := p.tap("--uplink", "v0", "--policy", path)
	p.near.Inject("t0", packets(4, 100)...)
	p.carried(4)
	tokens := func(want, burst int64) {
		t.Helper()
		if b := p.statsList()[0].Classes[0].Meters[0].Buckets[0]; b.Tokens != want || b.Burst != burst {
			t.Errorf("%+v: want %d tokens of %d", b, want, burst)
		}
	}
	tokens(600, 1000)
	rewrite(t, path, fmt.Sprintf(text, "all", 500))
	out, _ := p.do(0, "reload")
	matches(t, out, `^t0 egress: .*\n.*class all: kept\n`)
	tokens(500, 500)
	rewrite(t, path, fmt.Sprintf(text, "all", 400))
	r.signal(syscall.SIGHUP)
	r.out.await(t, `class all: kept`)
	tokens(400, 400)
	p.carried(4)
	rewrite(t, path, "classes:\n  - name: all\n    metre: {}\n")
	r.signal(syscall.SIGHUP)
	r.err.await(t, `shaper: .*policy\.yaml:3:5: .*: the policy is unchanged\n`)
	p.fails(2, `.*policy\.yaml:3:5: .*`, "reload")
	p.near.Inject("t0", packets(1, 100)...)
	p.carried(5)
	tokens(300, 400)
	out, _ = p.do(0, "reload", "t0", "--json", "--meter", never)
	matches(t, out, `"interface":"t0","direction":"egress".*"class":"all","change":"kept"`)
	if s := p.carried(5); s.Classes[0].Meters[0].Buckets[0].Burst != 1e9 {
		t.Errorf("stats %+v", s)
	}
	out, _ = p.do(0, "detach")
	if out != "t0 egress: detached\n" {
		t.Errorf("detach says %q", out)
	}
	r.exits(0)
	p.fails(1, "no shaper is attached: .*", "detach")
}

// TestLiveTapConfirm holds that what it cannot promise changes nothing.
func TestLiveTapConfirm(t *testing.T) {
	p := newTAPPair(t)
	r := p.tap("--uplink", "v0", "--meter", ladder)
	p.fails(1, "--confirm is not supported by shaper tap", "reload", "--meter", never, "--confirm", "1s")
	if b := p.statsList()[0].Classes[0].Meters[0].Buckets[0]; b.Burst != 3 {
		t.Errorf("its policy changed: %+v", b)
	}
	p.fails(1, "t0: nothing to confirm: .*", "confirm")
	r.term()
}

// TestLiveTapReloadUnderWay reads statistics and metrics while the number of
// classes changes.
func TestLiveTapReloadUnderWay(t *testing.T) {
	p := newTAPPair(t)
	var b strings.Builder
	b.WriteString("classes:\n")
	for i := range 60 {
		fmt.Fprintf(&b, "  - {name: c%d, match: {dport: %d}, meter: {type: token-bucket, rate: 1mbit, burst: 10kB}}\n", i, 1+i)
	}
	many, one := file(t, b.String()), file(t, "classes: [{name: all}]\n")
	r := p.tap("--uplink", "v0", "--policy", many, "--metrics", ":0")
	get := p.page(r)
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
	conn := p.dial("t0", 0)
	client := rpc.NewClient(conn)
	defer client.Close()
	type policy struct {
		Direction uint8
		Label     json.RawMessage
	}
	var both []policy
	for _, path := range []string{one, many} {
		p.do(0, "reload", "--policy", path)
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
			r.term()
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
			p.do(0, "stats")
		}
	}
}
