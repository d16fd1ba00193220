package livetest

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveChoice holds that the commands find the only interface that is
// shaped, want a name where there are several, and fail where there is none.
func TestLiveChoice(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	commands := [][]string{{"stats"}, {"confirm"}, {"reload", "--meter", never}, {"detach"}}
	for _, c := range commands {
		p.fails(1, "no shaper is attached: start one with shaper run IFACE --policy FILE", c...)
		p.fails(1, "v0 is not shaped: start a shaper with shaper run v0 --policy FILE", append(c, "v0")...)
	}
	if out, _ := p.do(0, "status"); out != "no shaper is attached in this network namespace\n" {
		t.Errorf("status says %q", out)
	}
	if out, _ := p.do(0, "status", "--json"); out != "" {
		t.Errorf("status --json says %q", out)
	}
	r := p.run("--meter", never, "--confirm", "60s")
	for _, c := range commands[:3] {
		p.do(0, c...)
	}
	p.fails(1, "there is no interface v1", "status", "v1")
	p.fails(1, "there is no interface v1", "stats", "v1")
	p.fails(1, "v0 is not shaped at ingress: .*", "stats", "v0", "--direction", "ingress")
	p.near.VethNamed("v1", p.far, "v1")
	other := p.start("run", "v1", "--meter", never)
	other.attached()
	for i, c := range commands[1:] {
		p.fails(2, "several interfaces are shaped, name one"+[]string{"", " or give --all", " or give --all"}[i]+": v0, v1", c...)
	}
	for _, args := range [][]string{{}, {"--all"}, {"--direction", "egress"}} {
		for _, c := range []string{"stats", "status"} {
			if c == "status" && slices.Contains(args, "--all") {
				continue
			}
			if out, _ := p.do(0, append([]string{c}, args...)...); !strings.Contains(out, "v0 egress: attached by process") || !strings.Contains(out, "v1 egress: attached by process") {
				t.Errorf("%s %v says %q: want both", c, args, out)
			}
			out, _ := p.do(0, append([]string{c, "--json"}, args...)...)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != 2 || !strings.Contains(lines[0], `"interface":"v0"`) || !strings.Contains(lines[1], `"interface":"v1"`) {
				t.Errorf("%s --json %v says %q: want a line for each", c, args, out)
			}
		}
	}
	if out, _ := p.do(0, "stats", "v1"); strings.Contains(out, "v0") {
		t.Errorf("stats v1 says %q", out)
	}
	for _, c := range []string{"stats", "reload", "detach"} {
		p.fails(2, "give v0 or --all, not both", c, "v0", "--all")
	}
	p.fails(2, "--confirm needs one interface: name it instead of --all", "reload", "--all", "--confirm", "9s")
	if out, _ := p.do(0, "reload", "--all", "--meter", "token-bucket rate=2gbit burst=1MiB"); strings.Count(out, "reloaded") != 2 {
		t.Errorf("reload --all says %q: want two", out)
	}
	if out, _ := p.do(0, "status"); !strings.Contains(out, "v0 egress: attached by process") || !strings.Contains(out, "v1 egress: attached by process") {
		t.Errorf("status says %q: want both", out)
	}
	p.do(0, "detach", "v1")
	other.wait()
	if out, _ := p.do(0, "status", "--json"); !strings.HasPrefix(out, `{"interface":"v0","direction":"egress","state":"attached by process`) || strings.Count(out, "\n") != 1 {
		t.Errorf("status --json says %q: want v0 only", out)
	}
	far := pair{t: t, near: p.far, far: p.near}
	far.fails(1, "no shaper is attached: .*", "stats") // another namespace
	again := p.start("run", "v1", "--meter", never)
	again.attached()
	p.do(0, "detach", "--all")
	again.wait()
	r.wait()
	for _, c := range []string{"reload", "detach"} {
		p.fails(1, "no shaper is attached: .*", c, "--all")
	}
}

// TestLiveStatsJSON holds the names in stats --json.
func TestLiveStatsJSON(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--meter", "trtcm cir=10mbit cbs=64KiB pir=20mbit pbs=128KiB")
	out, _ := p.do(0, "stats", "--json")
	const nothing = `{"packets":0,"bytes":0}`
	color := `{"packets":0,"bytes":0,"rate_bit_s":0,"passed_bit_s":0,"dropped":{"codel":` + nothing + `,"color":` + nothing + `,"ecn":` + nothing +
		`,"queue-full":` + nothing + `,"wred":` + nothing + `},"marked":` + nothing + `,"queued":` + nothing + `,"ce":` + nothing + `}`
	class := func(name, meters string) string {
		return `{"name":"` + name + `","packets":0,"bytes":0,"rate_bit_s":0,"green":` + color + `,"yellow":` + color + `,"red":` + color +
			`,"dropped":` + nothing + `,"marked":` + nothing + `,"queued":` + nothing + `,"ce":` + nothing + `,"meters":[` + meters + `]}`
	}
	want := `"dropped":` + nothing + `,"classes":[` + class("all", `{"name":"all","type":"trtcm","counts_packets":false,"buckets":[{"name":"Tc","tokens":65536,"burst":65536},{"name":"Tp","tokens":131072,"burst":131072}]}`) +
		`,` + class("-", "") + `],"queues":[]}` + "\n"
	if !strings.HasSuffix(out, want) {
		t.Errorf("stats --json says %s: want at its end %s", out, want)
	}
	for _, name := range []string{"interface", "direction", "state", "attached", "hook", "program_id", "kernel", "policy", "since", "loaded", "dry_run", "pinned", "process"} {
		if !strings.Contains(out, `"`+name+`":`) {
			t.Errorf("stats --json has no %s: %s", name, out)
		}
	}
	r.term()
}

// TestLiveRates holds that the rates are those of a steady load.
func TestLiveRates(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	_, at := p.addresses(methods[0], false)
	r := p.run("--meter", "token-bucket rate=1B/1000s burst=2000")
	conn := sender(t, p.near, at, 0, 0)
	var stop atomic.Bool
	done := make(chan bool)
	begin := time.Now()
	go func() {
		for sent := 0; !stop.Load(); time.Sleep(time.Millisecond) {
			for ; sent < int(time.Since(begin).Seconds()*1000); sent++ { // 8 Mbit/s
				_, _ = conn.Write(make([]byte, 1000-28)) // what is dropped is an error
			}
		}
		done <- true
	}()
	time.Sleep(100 * time.Millisecond)
	// The sender may stand still for a moment, and make up for it in the next.
	right := func(text string, least, most float64) error {
		s := decode[shaperStats](t, text)
		if c := s.class(t, "all"); !inVM && (float64(c.Rate) < least || float64(c.Rate) > most || c.Red.Rate != c.Rate || c.Green.Rate != 0) {
			return fmt.Errorf("%d bit/s, %d of them red: want about 8 Mbit/s, all red", c.Rate, c.Red.Rate)
		}
		return nil
	}
	watch := p.start("stats", "--watch", "--json")
	nettest.Steady(t, func() error {
		text, _ := p.do(0, "stats", "--json")
		return right(text, 7e6, 9e6)
	})
	lines := 2
	nettest.Steady(t, func() error {
		lines++
		watch.out.await(t, fmt.Sprintf("(?s)^(.*?\n){%d}", lines))
		return right(strings.Split(watch.out.String(), "\n")[lines-1], 7.5e6, 8.5e6)
	})
	watch.term()
	out, _ := p.do(0, "stats")
	for _, want := range []string{"v0 egress: attached by process", "policy   --meter token-bucket", "all    green", "red ", "token-bucket  Tc"} {
		if !strings.Contains(out, want) {
			t.Errorf("stats says %q: want %q", out, want)
		}
	}
	stop.Store(true)
	<-done
	r.term()
}
