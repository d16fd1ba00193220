package livetest

import (
	"fmt"
	"strings"
	"testing"
)

// TestLiveTapControl checks the sockets of shaper tap.
func TestLiveTapControl(t *testing.T) {
	p := newTAPPair(t)
	s := newControlSockets(t)
	policy, table := writeCustomers(t, "m,192.0.2.1,metered,\n")
	r := p.startTap(s.flags("--uplink", "v0", "--policy", policy, "--both")...)
	if got := p.curlAs(readers, s.read, "/v1/changes", turnOff); got != 403 {
		t.Errorf("POST for reading: got %d, want 403", got)
	}
	if got := p.curlAs(readers, s.write, "/v1/changes", turnOff); got != 0 {
		t.Errorf("POST without permission: got %d", got)
	}
	send := func(dropped int64) {
		t.Helper()
		p.far.Inject("v0", packetBetween("192.0.2.1", "203.0.113.1"))
		eventually(t, func() error {
			got := decodeJSON[struct{ Directions []customerRow }](t,
				wantAnswer(t, 200, s.read, "/v1/customers/m", nil)).Directions
			if len(got) != 2 || got[1].Dropped != sentPackets(dropped) {
				return fmt.Errorf("got %+v, want %d dropped at ingress", got, dropped)
			}
			return nil
		})
	}
	if got := p.curlAs(writers, s.write, "/v1/changes", turnOff); got != 200 {
		t.Errorf("POST: got %d, want 200", got)
	}
	send(1)
	wantAnswer(t, 404, s.write, "/v1/changes",
		`[{"kind":"customer","name":"m","off":false},{"kind":"customer","name":"x","off":true}]`)
	send(2)
	rewriteFile(t, table, "customer,address,plan,burst\nm,192.0.2.1,metered,\nx,192.0.2.2,metered,\n")
	wantAnswer(t, 200, s.write, "/v1/reload", "")
	wantAnswer(t, 200, s.write, "/v1/changes",
		`[{"kind":"customer","name":"m","reset":true},{"kind":"customer","name":"x","off":true}]`)
	send(2)
	if got := wantAnswer(t, 200, s.read, "/v1/customers?top=1", nil); strings.Count(got, `"number":2`) != 2 ||
		strings.Count(got, `"name":"m"`) != 2 {
		t.Errorf("got customers %s", got)
	}
	wantAnswer(t, 404, s.read, "/v1/customers/y", nil)
	p.wantControlStatus(s.read)
	p.wantExit(0, "detach", "t0")
	r.wantExit(0)
	s.wantGone(t)
}
