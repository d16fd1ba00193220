package livetest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveSelectInterface checks that commands select the only shaped interface, require a name
// if there are several, and fail if there is none.
func TestLiveSelectInterface(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	commands := [][]string{{"stats"}, {"confirm"}, {"reload", "--meter", unlimitedMeter}, {"detach"}}
	for _, c := range commands {
		one, v0 := "start one with shaper run IFACE --policy FILE", "start a shaper with shaper run v0 --policy FILE"
		if c[0] == "confirm" {
			one = "nothing to confirm, or it was too late and the policy was rolled back"
			v0 = one
		}
		p.wantError(1, "no shaper is attached: "+one, c...)
		p.wantError(1, "v0 is not shaped: "+v0, append(c, "v0")...)
	}
	if out, _ := p.wantExit(0, "status"); out != "no shaper is attached in this network namespace\n" {
		t.Errorf("status prints %q", out)
	}
	if out, _ := p.wantExit(0, "status", "--json"); out != "" {
		t.Errorf("status --json prints %q", out)
	}
	r := p.runShaper("--meter", unlimitedMeter, "--confirm", "60s")
	for _, c := range commands[:3] {
		p.wantExit(0, c...)
	}
	p.wantError(1, "there is no interface v1", "status", "v1")
	p.wantError(1, "there is no interface v1", "stats", "v1")
	p.wantError(1, "v0 is not shaped at ingress: .*", "stats", "v0", "--direction", "ingress")
	p.near.VethNamed("v1", p.far, "v1")
	other := p.startShaper("run", "v1", "--meter", unlimitedMeter)
	other.awaitAttached()
	for _, c := range commands[1:] {
		p.wantError(2, "several interfaces are shaped, name one or give --all: v0, v1", c...)
	}
	for _, args := range [][]string{{}, {"--all"}, {"--direction", "egress"}} {
		for _, c := range []string{"stats", "status"} {
			if c == "status" && slices.Contains(args, "--all") {
				continue
			}
			if out, _ := p.wantExit(0, append([]string{c}, args...)...); !strings.Contains(out,
				"v0 egress: attached by process") ||
				!strings.Contains(out, "v1 egress: attached by process") {
				t.Errorf("%s %v prints %q: want both", c, args, out)
			}
			out, _ := p.wantExit(0, append([]string{c, "--json"}, args...)...)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != 2 || !strings.Contains(lines[0], `"interface":"v0"`) ||
				!strings.Contains(lines[1], `"interface":"v1"`) {
				t.Errorf("%s --json %v prints %q: want a line for each", c, args, out)
			}
		}
	}
	if out, _ := p.wantExit(0, "stats", "v1"); strings.Contains(out, "v0") {
		t.Errorf("stats v1 prints %q", out)
	}
	for _, c := range []string{"stats", "reload", "detach"} {
		p.wantError(2, "give v0 or --all, not both", c, "v0", "--all")
	}
	p.wantError(2, "--confirm needs one interface: name it instead of --all", "reload", "--all", "--confirm",
		"9s")
	if out, _ := p.wantExit(0, "reload", "--all", "--meter",
		"token-bucket rate=2gbit burst=1MiB"); strings.Count(out, "reloaded") != 2 {
		t.Errorf("reload --all prints %q: want two", out)
	}
	if out, _ := p.wantExit(0, "status"); !strings.Contains(out, "v0 egress: attached by process") ||
		!strings.Contains(out, "v1 egress: attached by process") {
		t.Errorf("status prints %q: want both", out)
	}
	p.wantExit(0, "detach", "v1")
	other.waitForExit()
	if out, _ := p.wantExit(0, "status", "--json"); !strings.HasPrefix(out,
		`{"interface":"v0","direction":"egress","state":"attached by process`) ||
		strings.Count(out, "\n") != 1 {
		t.Errorf("status --json prints %q: want v0 only", out)
	}
	far := pair{t: t, near: p.far, far: p.near}
	// far has no shaper
	far.wantError(1, "no shaper is attached: .*", "stats")
	far.wantError(1, "no shaper is attached: .*", "stats", "--all", "--json")
	far.wantError(1, "no shaper is attached: .*", "confirm")
	again := p.startShaper("run", "v1", "--meter", unlimitedMeter)
	again.awaitAttached()
	p.wantExit(0, "detach", "--all")
	again.waitForExit()
	r.waitForExit()
	for _, c := range []string{"reload", "detach", "set"} {
		p.wantError(0, "no shaper is attached: .*", c, "--all")
	}
	p.wantError(0, "no shaper is attached: .*", "set", "--all", "link", "wan", "rate=1mbit")
	p.wantError(1, "no shaper is attached: .*", "confirm", "--all") // the policy may have been rolled back
}

// TestLiveStatsJSON checks the names in stats --json.
func TestLiveStatsJSON(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	r := p.runShaper("--meter", "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB")
	out, _ := p.wantExit(0, "stats", "--json")
	const nothing = `{"packets":0,"bytes":0}`
	color := `{"packets":0,"bytes":0,"rate_bit_s":0,"passed_bit_s":0,"dropped":{"codel":` + nothing +
		`,"color":` + nothing + `,"ecn":` + nothing +
		`,"queue-full":` + nothing + `,"wred":` + nothing + `},"marked":` + nothing + `,"queued":` + nothing + `,"ce":` + nothing + `}`
	class := func(name, meters string) string {
		return `{"name":"` + name + `","packets":0,"bytes":0,"rate_bit_s":0,"green":` + color + `,"yellow":` +
			color + `,"red":` + color +
			`,"dropped":` + nothing + `,"marked":` + nothing + `,"queued":` + nothing + `,"ce":` + nothing + `,"meters":[` + meters + `]}`
	}
	want := `"dropped":` + nothing + `,"classes":[` + class("all",
		`{"name":"all","type":"trtcm","counts_packets":false,"buckets":[{"name":"Tc","tokens":65536,"burst":65536},{"name":"Tp","tokens":131072,"burst":131072}]}`) +
		`,` + class("-", "") + `],"queues":[]}` + "\n"
	if !strings.HasSuffix(out, want) {
		t.Errorf("stats --json prints %s: want this end: %s", out, want)
	}
	for _, name := range []string{
		"interface", "direction", "state", "attached", "hook", "program_id", "kernel", "policy", "since",
		"loaded", "dry_run", "pinned", "process",
	} {
		if !strings.Contains(out, `"`+name+`":`) {
			t.Errorf("stats --json has no %s: %s", name, out)
		}
	}
	r.stopBySIGTERM()
}

// TestQuietRateInterval checks that rates are those since the latest reading: of attaching, of
// an earlier stats, and of a reload.
func TestQuietRateInterval(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	p := newPair(t)
	_, at := p.addresses(placements[0], false)
	const size = 1000 // of an IP packet
	listenUDP(t, p.far, at)
	conn := newSender(t, p.near, at, 0, 0)
	want := func(sent int) error {
		sendUDP(t, conn, sent, size)
		time.Sleep(time.Second / 2)
		s := p.stats()
		c := s.classNamed(t, "all")
		if got := float64(c.Rate) / 8 * s.Interval.Seconds(); math.Abs(got-float64(sent*size)) > 8 {
			return fmt.Errorf("%d bit/s over the last %v, which is %f bytes: want %d", c.Rate, s.Interval,
				got, sent*size)
		}
		return nil
	}
	nettest.Steady(t, func() error { // a reading may become too old
		p.wantExit(0, "run", "v0", "--background", "--meter", unlimitedMeter)
		defer p.wantExit(0, "detach", "v0")
		err := errors.Join(want(7), want(0), want(3))
		p.wantExit(0, "reload", "v0", "--meter", "token-bucket rate=1gbit burst=1MB")
		return errors.Join(err, want(5), want(0))
	})
}

// TestQuietRates checks the rates of a steady load.
func TestQuietRates(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	p := newPair(t)
	_, at := p.addresses(placements[0], false)
	r := p.runShaper("--meter", "token-bucket rate=1B/1000s burst=2000")
	conn := newSender(t, p.near, at, 0, 0)
	var stop atomic.Bool
	done := make(chan bool)
	begin := time.Now()
	go func() {
		for sent := 0; !stop.Load(); time.Sleep(time.Millisecond) {
			for ; sent < int(time.Since(begin).Seconds()*1000); sent++ { // 8 Mbit/s
				_, _ = conn.Write(make([]byte, 1000-28)) // a drop is an error
			}
		}
		done <- true
	}()
	time.Sleep(100 * time.Millisecond)
	// The sender may get no CPU time for a while, and then catches up.
	right := func(text string, least, most float64) error {
		s := decodeJSON[shaperStats](t, text)
		if c := s.classNamed(t, "all"); !inVM &&
			(float64(c.Rate) < least || float64(c.Rate) > most || c.Red.Rate != c.Rate || c.Green.Rate != 0) {
			return fmt.Errorf("%d bit/s, %d of them red: want about 8 Mbit/s, all red", c.Rate, c.Red.Rate)
		}
		return nil
	}
	watch := p.startShaper("stats", "--watch", "--json")
	nettest.Steady(t, func() error {
		text, _ := p.wantExit(0, "stats", "--json")
		return right(text, 7e6, 9e6)
	})
	lines := 2
	nettest.Steady(t, func() error {
		lines++
		watch.out.awaitMatch(t, fmt.Sprintf("(?s)^(.*?\n){%d}", lines))
		return right(strings.Split(watch.out.String(), "\n")[lines-1], 7.5e6, 8.5e6)
	})
	watch.stopBySIGTERM()
	out, _ := p.wantExit(0, "stats")
	for _, want := range []string{
		"v0 egress: attached by process", "policy   --meter token-bucket", "all    green", "red ",
		"token-bucket  Tc",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("stats prints %q: want %q", out, want)
		}
	}
	stop.Store(true)
	<-done
	r.stopBySIGTERM()
}
