package livetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestQuietOneRate offers UDP at twice the rate of run --rate together with routing traffic. The
// rate must hold, and routing traffic must be neither queued nor dropped.
func TestQuietOneRate(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	const rate, size = 20e6 / 8, 1500
	const cs6 = 48 << 2
	p := newQueuePair(t)
	before, qdiscs := p.deviceState(), p.qdiscState()
	r := p.runShaper("--rate", "20mbit", "--both")
	r.out.awaitMatch(t, "v0 ingress: attached")
	for _, m := range []placement{{"tcx", "egress"}, {"tcx", "ingress"}} {
		from, to := p.senderAndReceiver(m)
		_, at := p.addresses(m, false)
		bulk, routing := newSender(t, from, at, 0, 0), newSender(t, from, at, cs6, 0)
		in := listenUDP(t, to, at)
		var sent, control int64
		got := map[int]int64{}
		nettest.Steady(t, func() error {
			sniffer := to.Sniff("v0")
			for tos, n := range receivedDuring(in, func() {
				done := make(chan int64)
				go func() { done <- offerUDP(t, routing, 100, 1e4, 2*time.Second) }()
				sent += offerUDP(t, bulk, size, 2*rate, 2*time.Second)
				control += <-done
			}) {
				got[tos] += n
			}
			frames := slices.DeleteFunc(sniffer.Stop(),
				func(f nettest.Frame) bool { return tosOf(f.Data[14:]) != 0 })
			if m.direction == "ingress" { // the sniffer sees packets before they are queued
				return nil
			}
			// The queue is short and becomes empty if the sender gets no CPU time: the rate
			// may be lower, never higher.
			if got := ipRate(frames); got > rate*1.01 {
				t.Errorf("%s: %.0f: want at most %.0f", m.direction, got, rate)
			}
			gaps := sortedGaps(frames)
			return checkNear(t, m.direction+" median gap", float64(gaps[len(gaps)/2]), size/rate*1e9, 0.005)
		})
		if got[cs6] != control || control < 100 {
			t.Errorf("%s: %d of %d routing packets arrived", m.direction, got[cs6], control)
		}
		s := p.stats("v0", "--direction", m.direction)
		first, all := s.Classes[0], s.Classes[len(s.Classes)-2] // before unclassified packets
		if first.Name != "control-dscp" || first.Green.Packets != control ||
			first.Queued.Packets+first.Dropped.Packets+first.Red.Packets != 0 {
			t.Errorf("%s: %+v, want %d routing packets, none queued or dropped", m.direction, first, control)
		}
		// The program admits all packets, and the qdisc drops the excess: of no known class, because the
		// excess of control traffic has the same queue.
		lost := sent - got[0]
		if all.Name != "all" || all.Packets != sent || all.Queued.Packets != sent ||
			all.Dropped.Packets != 0 || s.Queues[0].Dropped != lost || lost == 0 {
			t.Errorf("%s: %+v: want %d sent, %d received", m.direction, all, sent, got[0])
		}
		if s.Policy != "--rate 20mbit" {
			t.Errorf("policy %q", s.Policy)
		}
	}
	// The policy is stored with the shaper, and reload uses it.
	p.wantExit(0, "reload", "v0", "--direction", "egress")
	if s := p.stats("v0", "--direction", "egress"); s.Policy != "--rate 20mbit" {
		t.Errorf("policy %q after a reload without flags", s.Policy)
	}
	p.wantExit(0, "reload", "v0", "--direction", "egress", "--rate", "10mbit")
	if s := p.stats("v0", "--direction", "egress"); s.Policy != "--rate 10mbit" ||
		s.Classes[0].Green.Packets == 0 {
		t.Errorf("after a reload: %+v", s)
	}
	r.stopBySIGTERM()
	p.awaitClean(before, qdiscs)
}

// TestLiveTwoRates shapes both directions with a rate for each, and changes them.
func TestLiveTwoRates(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	before, qdiscs := p.deviceState(), p.qdiscState()
	const twoRates = "egress=2mbit,ingress=9mbit"
	wantRates := func(want ...string) { // of the links at egress and ingress
		t.Helper()
		for i, dev := range []string{"v0", p.ifbName()} {
			text := p.near.Run("tc", "class", "show", "dev", dev)
			if !strings.Contains(text, " rate "+want[i]+" ") {
				t.Errorf("%s: want rate %s: %s", dev, want[i], text)
			}
		}
	}
	for _, flags := range [][]string{nil, {"--both"}} {
		p.wantExit(0, append([]string{"run", "v0", "--background", "--rate", twoRates}, flags...)...)
		wantRates("2Mbit", "9Mbit")
		p.wantExit(0, "reload", "v0")
		wantRates("2Mbit", "9Mbit")
		p.wantError(2, "--rate egress=3mbit,ingress=4mbit has a rate for each direction, but this changes only v0 egress: give one rate",
			"reload", "v0", "--direction", "egress", "--rate", "egress=3mbit,ingress=4mbit")
		p.wantExit(0, "reload", "v0", "--rate", "egress=3mbit,ingress=4mbit")
		wantRates("3Mbit", "4Mbit")
		p.wantExit(0, "reload", "v0", "--rate", "5mbit")
		wantRates("5Mbit", "5Mbit")
		p.wantExit(0, "detach", "v0")
		p.awaitClean(before, qdiscs)
	}
	for _, direction := range []string{"egress", "ingress"} {
		p.wantError(2, "--rate "+twoRates+" has a rate for each direction: leave --direction out, or give one rate",
			"run", "v0", "--rate", twoRates, "--direction", direction)
	}
}

// TestLiveOneRateExtremes attaches the policy of --rate at its extremes.
func TestLiveOneRateExtremes(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	before, qdiscs := p.deviceState(), p.qdiscState()
	for _, pacer := range []string{"auto", "htb"} {
		for _, rate := range []string{"64kbit", "100gbit"} {
			p.wantExit(0, "run", "v0", "--rate", rate, "--both", "--pacer", pacer, "--for", "1ms")
			p.awaitClean(before, qdiscs)
		}
	}
	if haveQdisc(t, "fq") {
		p.wantError(2,
			`--rate:1:1: fair needs HTB; with fair: false, fq can queue the packets: use --pacer htb`, "run",
			"v0", "--rate", "1mbit", "--pacer", "fq")
	}
	p.wantError(2, `--rate:1:1: queue .*`, "run", "v0", "--rate", "1mbit", "--hook", "xdp", "--direction",
		"ingress")
}
