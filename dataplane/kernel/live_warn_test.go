package kernel_test

import (
	"strings"
	"syscall"
	"testing"
)

// TestLiveWarnings holds that run and reload print what check warns of, for the
// MTU of the interface, and at SIGHUP only where it is not the same as before.
func TestLiveWarnings(t *testing.T) {
	hereOnly(t)
	const small = "classes: [{name: a, match: {proto: udp, dport: 9}, meter: {type: gcra, rate: 1mbit, burst: 8999}}]"
	const none = "classes: [{name: a, match: {proto: udp, dport: 9}, meter: {type: gcra, rate: 1mbit, burst: 9000}}]"
	const warned = "burst of 8999 B is below the MTU: a packet of 9000 bytes"
	p := newPair(t)
	p.near.Run("ip", "link", "set", "v0", "mtu", "9000")
	path := file(t, small)
	r := p.run("--policy", path)
	if list := r.err.warnings(); len(list) != 1 || !strings.HasPrefix(list[0], "shaper: warning: "+path+":1:") || !strings.Contains(list[0], warned) {
		t.Fatalf("warnings %q, want that the %s", list, warned)
	}
	for i, test := range []struct {
		text string
		want int // warnings so far
	}{{small, 1}, {none, 1}, {small, 2}, {small, 2}} {
		rewrite(t, path, test.text)
		r.signal(syscall.SIGHUP)
		r.out.await(t, strings.Repeat(`(?s:v0 egress: reloaded.*)`, i+1))
		if list := r.err.warnings(); len(list) != test.want {
			t.Errorf("after SIGHUP %d: warnings %q, want %d", i+1, list, test.want)
		}
	}
	e := p.start("reload", "v0", "--policy", path)
	if code := e.wait(); code != 0 || len(e.err.warnings()) != 1 {
		t.Errorf("reload: exit %d, warnings %q, want one", code, e.err.warnings())
	}
	r.term()
}
