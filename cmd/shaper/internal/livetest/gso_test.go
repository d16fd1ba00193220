package livetest

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestLiveGSO checks that the GSO limits of the device are restored however the shapers of both
// directions end.
func TestLiveGSO(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	for _, how := range []string{"TERM", "INT", "kill", "detach", "background", "two", "one then other"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			before := p.deviceState()
			limit := func(want int) {
				t.Helper()
				if now := p.deviceState(); !strings.Contains(now, fmt.Sprintf("gso %d %d", want, want)) {
					t.Errorf("attached to v0:\n%s: want a limit of %d", now, want)
				}
			}
			args := []string{"--direction", "both", "--gso-limit", "16384", "--meter", unlimitedMeter}
			switch how {
			case "background":
				p.wantExit(0, append([]string{"run", "v0", "--background"}, args...)...)
				limit(16384)
				p.wantExit(0, "detach", "v0", "--direction", "egress")
				limit(16384) // ingress still needs it
				p.wantExit(0, "detach", "v0")
			case "two", "one then other":
				egress := p.runShaper("--gso-limit", "8000", "--meter", unlimitedMeter)
				ingress := p.runShaper("--gso-limit", "16000", "--direction", "ingress", "--meter",
					unlimitedMeter)
				limit(8000)
				first, second, then := egress, ingress, 16000
				if how == "two" {
					first, second, then = ingress, egress, 8000
				}
				first.stopBySIGTERM()
				limit(then)
				second.killAndWait()
			default:
				r := p.runShaper(args...)
				limit(16384)
				switch how {
				case "TERM":
					r.stopBySIGTERM()
				case "INT":
					r.sendSignal(syscall.SIGINT)
					r.waitForExit()
				case "kill":
					r.killAndWait()
				case "detach":
					p.wantExit(0, "detach", "v0")
					r.waitForExit()
				}
			}
			p.awaitState(before)
			p.wantNothingLeft()
		})
	}
}

// TestLiveGSOByRate checks that the GSO limit of a device with queues is 1 ms of the slowest
// rate, that it changes with a reload, and that the device's own limits are restored at the
// end.
func TestLiveGSOByRate(t *testing.T) {
	t.Parallel()
	skipInVM(t)
	const queue = "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: %s, limit: 50ms}}"
	const shared = `classes: [{name: a, match: {proto: udp}, green: {queue: a}}, {name: b, green: {queue: b}}, {name: c, green: {queue: c}}]
links: {l: {rate: 100mbit}}
queues: {a: {link: l, limit: 64KiB}, b: {link: l, priority: 1, limit: 100ms}, c: {rate: 200mbit, limit: 50ms}}`
	const beside = "queues: {q: {rate: 10mbit, limit: 50ms}}\nclasses: [{name: a, match: {proto: udp}, green: {queue: q}}"
	const headers = 321 // reserved by the kernel for TCP headers, bytes
	at := func(rate string) string { return writePolicy(t, fmt.Sprintf(queue, rate)) }
	limit := func(p *pair, want int) {
		t.Helper()
		if now := p.deviceState(); !strings.Contains(now, fmt.Sprintf("gso %d %d\n", want, want)) {
			p.t.Errorf("attached to v0:\n%s: want a limit of %d", now, want)
		}
	}
	const most, slow, fast = 1 << 16, 2*1500 + headers, 100e6/8/1000 + headers
	for _, c := range []struct {
		name  string
		given int // the device's own limit
		args  []string
		want  int
	}{
		{"a queue", most, []string{"--policy", at("100mbit")}, fast},
		{"two segments", most, []string{"--policy", at("64kbit")}, slow},
		{"a link", most, []string{"--policy", writePolicy(t, shared)}, fast},
		{"fast", most, []string{"--policy", at("1gbit")}, most},
		{"just below", most, []string{"--policy", at("521719992bit")}, 65214 + headers},
		{"rate", most, []string{"--rate", "100mbit"}, fast},
		{"a sum of 4 Gbit/s", most, []string{"--policy", writePolicy(t, "classes: [{name: a, match: {proto: udp}, green: {queue: p}}, {name: b, green: {queue: q}}]\n"+
			"queues: {p: {rate: 3900mbit, limit: 50ms}, q: {rate: 100mbit, limit: 50ms}}")}, 4e9/8/20_000 + headers},
		{"the rest passes", most, []string{"--policy", writePolicy(t, beside+", {name: b}]")}, most},
		{"the rest is in no class", most, []string{"--policy", writePolicy(t, beside+"]")}, most},
		{"the rest is dropped", most, []string{"--policy", writePolicy(t, beside+"]\notherwise: drop")}, slow},
		{"the rest is metered", most, []string{"--policy", writePolicy(t, beside+", {name: b, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, red: {queue: q}}]")}, most},
		{"the rest is metered and queued", most, []string{"--policy", writePolicy(t, beside+", {name: b, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, green: {queue: q}, yellow: {queue: q}}]")}, slow},
		{"less already", 9000, []string{"--policy", at("100mbit")}, 9000},
		{"given", most, []string{"--policy", at("100mbit"), "--gso-limit", "30000"}, 30000},
		{"given above", 9000, []string{"--policy", at("100mbit"), "--gso-limit", "30000"}, 9000},
		{"off", most, []string{"--policy", at("100mbit"), "--gso-limit", "off"}, most},
		{"dry", most, []string{"--policy", at("100mbit"), "--dry-run"}, most},
		{"ingress", most, []string{"--policy", at("100mbit"), "--direction", "ingress"}, most},
		{"no queue", most, []string{"--meter", unlimitedMeter}, most},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			p.near.Run("ip", "link", "set", "v0", "gso_max_size", fmt.Sprint(c.given))
			before := p.deviceState()
			r := p.runShaper(c.args...)
			limit(p, c.want)
			by := c.want != c.given && c.name != "given"
			status, _ := p.wantExit(0, "status")
			r.stopBySIGTERM()
			said := strings.Contains(r.out.String(), "gso capped at") &&
				strings.Contains(r.out.String(), "slowest queue")
			if said != by || strings.Contains(status, "slowest queue") != by {
				t.Errorf("stdout is\n%s\nand status is\n%s\nwant an automatic cap: %v", &r.out, status, by)
			}
			p.awaitState(before)
			p.wantNothingLeft()
		})
	}
	for _, how := range []string{
		"TERM", "INT", "for", "kill", "kill both", "detach", "background", "confirm", "not confirmed", "rolled back", "reload", "set", "taken over",
	} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			before := p.deviceState()
			switch how {
			case "background", "taken over":
				p.wantExit(0, "run", "v0", "--background", "--policy", at("100mbit"))
				limit(p, fast)
				if how == "taken over" {
					r := p.runShaper("--policy", at("10mbit"))
					limit(p, slow)
					r.stopBySIGTERM()
					if strings.Contains(r.err.String(), "left behind") {
						t.Errorf("stderr is %s", &r.err)
					}
					break
				}
				p.wantExit(0, "detach", "v0")
			case "rolled back":
				r := p.runShaper("--policy", at("100mbit"))
				back := p.startShaper("reload", "v0", "--policy", at("10mbit"), "--confirm", "30s")
				back.out.awaitMatch(t, "waiting 30s")
				limit(p, slow)
				back.waitForExit()
				limit(p, fast)
				r.stopBySIGTERM()
			case "confirm":
				r := p.runShaper("--policy", at("100mbit"), "--confirm", "1h")
				p.wantExit(0, "confirm", "v0")
				limit(p, fast)
				r.stopBySIGTERM()
			case "not confirmed":
				r := p.runShaper("--policy", at("100mbit"), "--confirm", "1s")
				if code := r.waitForExit(); code == 0 {
					t.Error("exit code 0 after a rollback")
				}
			case "for":
				r := p.runShaper("--policy", at("100mbit"), "--for", "1s")
				r.waitForExit()
			default:
				r := p.runShaper("--policy", at("100mbit"))
				limit(p, fast)
				switch how {
				case "TERM":
					r.stopBySIGTERM()
				case "INT":
					r.sendSignal(syscall.SIGINT)
					r.waitForExit()
				case "kill":
					r.killAndWait()
				case "kill both":
					r.killWithGuard()
					limit(p, fast)
					if status, _ := p.wantExit(0, "status"); !strings.Contains(status,
						fmt.Sprintf("GSO limit of %d bytes", int(fast))) {
						t.Errorf("status prints\n%s", status)
					}
					p.wantExit(0, "detach", "v0")
				case "detach":
					p.wantExit(0, "detach", "v0")
					r.waitForExit()
				case "reload":
					for _, c := range []struct {
						policy string
						want   int
					}{
						{at("10mbit"), slow},
						{writePolicy(t, "classes: [{name: a}]"), most},
						{at("200mbit"), 200e6/8/1000 + headers},
						{at("1gbit"), most},
						{at("100mbit"), fast},
					} {
						p.wantExit(0, "reload", "v0", "--policy", c.policy)
						limit(p, c.want)
					}
					r.stopBySIGTERM()
				case "set": // as reload, and status prints it
					for _, c := range []struct {
						rate string
						want int
					}{
						{"10mbit", slow},
						{"200mbit", 200e6/8/1000 + headers},
						{"1gbit", most},
						{"100mbit", fast},
					} {
						p.wantExit(0, "set", "v0", "queue", "q", "rate="+c.rate)
						limit(p, c.want)
						status, _ := p.wantExit(0, "status", "--json")
						if said := strings.Contains(status,
							fmt.Sprintf(`"gso_limit":%d`, c.want)); said != (c.want != most) ||
							!strings.Contains(status, `"effective":true`) {
							t.Errorf("rate %s: status prints\n%s", c.rate, status)
						}
					}
					r.stopBySIGTERM()
				}
			}
			p.awaitState(before)
			p.wantNothingLeft()
		})
	}
}
