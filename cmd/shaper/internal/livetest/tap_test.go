package livetest

import (
	"fmt"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveTap checks that both directions are shaped, each with its own meters, and the output
// of stats.
func TestLiveTap(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--direction", "both", "--meter", ladderMeter, "--yellow", "dscp=af12")
	r.out.awaitMatch(t,
		`^t0 egress: moving frames to and from v0, policy .* \(1 class\)\nt0 ingress: moving frames to and from v0, .*\n$`)
	far, near := p.far.Sniff("v0"), p.near.Sniff("t0")
	p.near.Inject("t0", ipv4Frames(7, 100)...)
	p.far.Inject("v0", ipv4Frames(4, 200)...)
	if !far.Wait(5, waitLimit) || !near.Wait(4, waitLimit) {
		t.Error("too few frames arrived")
	}
	for i, s := range []*nettest.Sniffer{far, near} {
		want := [][2]int{{5, 100}, {4, 200}}[i]
		frames := s.Stop()
		if len(frames) != want[0] {
			t.Errorf("%d frames arrived: want %d", len(frames), want[0])
		}
		for k, f := range frames {
			if dscp := f.Data[15] >> 2; len(f.Data) != 14+want[1] || (dscp == 12) != (k >= 3) {
				t.Errorf("frame %d has %d bytes, DSCP %d", k, len(f.Data), dscp)
			}
		}
	}
	status, _ := p.wantExit(0, "status")
	wantMatch(t, status,
		fmt.Sprintf(`^t0 egress: running in process %d\n  between  t0 and v0\n  policy   .*\(1 class\),\s+loaded .*\n  since .*\n\nt0 ingress: running in process %[1]d\n`,
			r.cmd.Process.Pid))
	out, _ := p.wantExit(0, "status", "t0", "--json")
	wantMatch(t, out, `"interface":"t0","direction":"egress".*"hook":"tap".*"peer":"v0"`)
	table, _ := p.wantExit(0, "stats", "t0")
	wantMatch(t, table, `green .* 3 `)
	list := p.statsList()
	if len(list) != 2 {
		t.Fatalf("stats %+v", list)
	}
	for i, s := range list {
		c := s.Classes[0]
		want := packetCount{[]int64{7, 4}[i], []int64{700, 800}[i]}
		if s.Interface != "t0" || s.Direction != []string{"egress", "ingress"}[i] || s.Hook != "tap" ||
			s.Peer != "v0" || !s.Attached || s.Process != r.cmd.Process.Pid ||
			c.packetCount != want || c.Green.Packets != 3 || c.Yellow.Packets != []int64{2, 1}[i] ||
			c.Dropped.Packets != []int64{2, 0}[i] || c.Marked.Packets != c.Yellow.Packets {
			t.Errorf("stats %+v: want %v", s, want)
		}
		if b := c.Meters[0].Buckets; b[0].Tokens != 0 || b[0].Burst != 3 || b[1].Tokens != []int64{0, 1}[i] {
			t.Errorf("tokens %+v", b)
		}
	}
	p.wantError(1, "there is no interface eth9", "stats", "eth9")
	r.stopBySIGTERM()
	wantMatch(t, r.out.String(), `(?s)t0 egress: ended\n.*t0 ingress: ended\n$`)
	if p.deviceExists("t0") {
		t.Error("t0 still exists")
	}
	p.wantError(1, "no shaper is attached: .*", "stats")
}

// TestLiveTapKeys checks the number of keys of a meter per source.
func TestLiveTapKeys(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--meter", "fixed-window limit=150 window=366d per=src keys=2",
		"--metrics", ":0")
	p.near.Inject("t0", ipv4Frames(3, 100)...) // from one source; the window allows one packet
	s := p.awaitCounted(3)
	if c := s.Classes[0]; c.Green.Packets != 1 || c.Dropped.Packets != 2 || c.Meters[0].Per != "src" ||
		c.Meters[0].Keys.Keys != 1 {
		t.Errorf("stats %+v", s)
	}
	table, _ := p.wantExit(0, "stats", "t0")
	wantMatch(t, table, `all per src: 1 of 2 keys, 0 evicted, 0 refused`)
	body, err := p.metricsReader(r)()
	if err != nil {
		t.Fatal(err)
	}
	wantMatch(t, body, `shaper_keys{class="all",direction="egress",interface="t0",.*} 1\n`)
	wantMatch(t, body, `shaper_keys_evicted_total{class="all",direction="egress",interface="t0",.*} 0\n`)
	r.stopBySIGTERM()
}

// TestLiveTapOneDirection checks that commands can select one of two directions.
func TestLiveTapOneDirection(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--direction", "both", "--meter", unlimitedMeter)
	for _, direction := range []string{"egress", "ingress"} {
		list := p.statsList("--direction", direction)
		if len(list) != 1 || list[0].Direction != direction || !list[0].Attached {
			t.Errorf("stats %+v: want %s, attached", list, direction)
		}
		r := p.startShaper("reload", "--direction", direction, "--meter", ladderMeter)
		r.wantExit(0)
		wantMatch(t, r.out.String(), "^t0 "+direction+": .*\n.*kept\n$")
	}
	r.stopBySIGTERM()
}

// TestLiveTapMetrics checks the metrics of both directions.
func TestLiveTapMetrics(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--uplink", "v0", "--direction", "both", "--meter", ladderMeter, "--metrics", ":0")
	p.near.Inject("t0", ipv4Frames(7, 100)...)
	p.awaitCounted(7)
	body, err := p.metricsReader(r)()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`shaper_info{direction="egress",.*hook="tap",interface="t0"`,
		`shaper_packets_total{class="all",color="green",direction="egress",interface="t0"} 3\n`,
		`shaper_dropped_packets_total{class="all",color="red",direction="egress",interface="t0",reason="color"} 2\n`,
		`shaper_packets_total{class="all",color="green",direction="ingress",interface="t0"} 0\n`,
		`shaper_tokens{bucket="Tc",class="all",direction="egress",interface="t0",.*} 0\n`,
	} {
		wantMatch(t, body, want)
	}
	r.stopBySIGTERM()
}

// TestLiveTapPeer connects two TAP devices with several queues.
func TestLiveTapPeer(t *testing.T) {
	p := newTAPPair(t)
	r := p.startTap("--peer", "t1", "--queues", "3", "--mtu", "9000", "--meter", ladderMeter)
	s := p.near.Sniff("t1")
	p.near.Inject("t0", ipv4Frames(7, 8000)...)
	if !s.Wait(5, waitLimit) {
		t.Error("too few frames arrived")
	}
	p.awaitCounted(7)
	if frames := s.Stop(); len(frames) != 5 || len(frames[0].Data) != 8014 {
		t.Errorf("%d frames arrived", len(frames))
	}
	status, _ := p.wantExit(0, "status", "t0")
	wantMatch(t, status, `between  t0 and t1\n`)
	p.near.Delete("t1")
	r.wantExit(1)
	wantMatch(t, r.err.String(), `^shaper: t1: the device is gone\n$`)
	wantMatch(t, r.out.String(), `(?s)t0 egress: ended\n$`)
	if p.deviceExists("t0") {
		t.Error("t0 still exists")
	}
}
