package kernel_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// closed drops every IP packet.
var closed = []string{"--meter", never, "--green", "drop"}

// passesNone wants UDP packets that leave by v0 to be dropped, or not.
func (p *pair) passesNone(want bool) {
	p.t.Helper()
	egress := method{"", "egress"}
	_, at := p.addresses(egress, false)
	in := listen(p.t, p.far, at)
	send(p.t, sender(p.t, p.near, at, 0, 0), 3, 100)
	if n := len(in.take()); (n == 0) != want {
		p.t.Errorf("%d of 3 packets arrived: dropped should be %v", n, want)
	}
	in.conn.Close()
}

// shown is a line of status --json.
type shown struct {
	Interface, Direction, State, What string
	Attached, Pinned                  bool
	Process                           int
	Policy, Pacer                     string
}

func (p *pair) status(args ...string) (out []shown) {
	p.t.Helper()
	text, _ := p.do(0, append([]string{"status", "--json"}, args...)...)
	for line := range strings.Lines(text) {
		out = append(out, decode[shown](p.t, line))
	}
	return out
}

// nothing wants no trace of shaper in p's namespace.
func (p *pair) nothing() {
	p.t.Helper()
	eventually(p.t, func() error {
		if left := p.status(); len(left) > 0 {
			return fmt.Errorf("status says %+v", left)
		}
		return nil
	})
	files, err := filepath.Glob(fmt.Sprintf("/run/shaper/%d-*", p.near.Cookie()))
	if err != nil || len(files) > 0 {
		p.t.Errorf("left are %v %v", files, err)
	}
}

// TestLiveMadeAgain holds that an interface that was deleted and made again is
// shaped: the pin of its predecessor is in nobody's way.
func TestLiveMadeAgain(t *testing.T) {
	hereOnly(t)
	for _, how := range []string{"--background", "--pin"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			p.withBpffs()
			args := append([]string{"run", "v0", "--hook", "tcx", how}, closed...)
			start := func() {
				if how == "--background" {
					p.do(0, args...)
				} else {
					r := p.start(args...)
					r.attached()
					r.kill()
				}
			}
			for range 3 {
				start()
				p.passesNone(true)
				if s := p.status(); len(s) != 1 || !s[0].Attached || !s[0].Pinned || s[0].State != "attached, pinned" {
					t.Errorf("status %+v: want one, pinned", s)
				}
				p.near.Delete("v0")
				p.near.Veth(p.far)
			}
			start()
			p.do(0, "detach", "v0")
			p.passesNone(false)
			p.nothing()
		})
	}
}

// TestLiveConfirmRace holds that a confirmation and a rollback at the same
// moment have one winner, and that both say which.
func TestLiveConfirmRace(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.withBpffs()
	const old, next = "token-bucket rate=1mbit burst=9000", "token-bucket rate=2mbit burst=9000"
	p.do(0, "run", "v0", "--background", "--meter", old)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	won := map[bool]int{}
	for range 12 {
		reload := p.start("reload", "v0", "--meter", next, "--confirm", "1s")
		reload.out.await(t, "waiting 1s")
		until := time.Now().Add(time.Second) // or a little earlier
		time.Sleep(time.Until(until.Add(time.Duration(random.IntN(300)-200) * time.Millisecond)))
		confirm := p.start("confirm", "v0")
		codes := [2]int{confirm.wait(), reload.wait()}
		policy := p.stats().Policy
		confirmed := strings.Contains(confirm.out.String(), "v0 egress: confirmed")
		won[confirmed]++
		want := [2]int{1, 1}
		name := "--meter " + old
		if confirmed {
			want, name = [2]int{0, 0}, "--meter "+next
		}
		if codes != want || policy != name {
			t.Fatalf("seed %d: confirm says %q and ends by %d, reload says %q and ends by %d, the policy is %q", seed,
				confirm.out.String()+confirm.err.String(), codes[0], reload.err.String(), codes[1], policy)
		}
		if confirmed {
			p.do(0, "reload", "v0", "--meter", old)
		}
	}
	t.Logf("seed %d: confirmed %d times, rolled back %d times", seed, won[true], won[false])
	p.do(0, "detach", "v0")
}

// TestLiveConfirmKilledOverPinned holds that a pinned policy comes back at once if
// a run that was to replace it, on probation, is killed.
func TestLiveConfirmKilledOverPinned(t *testing.T) {
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run(hook, func(t *testing.T) {
			p := newPair(t)
			p.withBpffs()
			p.do(0, append([]string{"run", "v0", "--hook", hook, "--background"}, closed...)...)
			r := p.run("--confirm", "60s", "--meter", never)
			p.passesNone(false)
			r.kill()
			eventually(t, func() error {
				if s := p.status(); len(s) != 1 || !s[0].Attached || s[0].State != "attached, pinned" {
					return fmt.Errorf("status %+v: want the policy before, pinned", s)
				}
				return nil
			})
			p.passesNone(true)
			p.do(0, "detach", "v0")
			p.nothing()
		})
	}
}

// TestLiveReloadOwnPolicy holds that reload without flags gives each direction
// the file that it was started with.
func TestLiveReloadOwnPolicy(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.withBpffs()
	a, b := file(t, "classes: [{name: a}]"), file(t, "classes: [{name: b}]")
	p.do(0, "run", "v0", "--background", "--policy", a)
	p.do(0, "run", "v0", "--background", "--policy", b, "--direction", "ingress")
	p.do(0, "reload", "v0")
	for _, s := range p.status() {
		if want := map[string]string{"egress": a, "ingress": b}[s.Direction]; s.Policy != want {
			t.Errorf("%s has policy %s: want %s", s.Direction, s.Policy, want)
		}
	}
	p.do(0, "detach", "v0")
	p.nothing()
}

// TestLiveGSO holds that the limits of a device come back, whichever way the
// shapers of both directions end.
func TestLiveGSO(t *testing.T) {
	hereOnly(t)
	for _, how := range []string{"TERM", "INT", "kill", "detach", "background", "two", "one then other"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			p.withBpffs()
			before := p.attached()
			limit := func(want int) {
				t.Helper()
				if now := p.attached(); !strings.Contains(now, fmt.Sprintf("gso %d %d", want, want)) {
					t.Errorf("at v0 is\n%s: want a limit of %d", now, want)
				}
			}
			args := []string{"--direction", "both", "--gso-limit", "16384", "--meter", never}
			switch how {
			case "background":
				p.do(0, append([]string{"run", "v0", "--background"}, args...)...)
				limit(16384)
				p.do(0, "detach", "v0", "--direction", "egress")
				limit(16384) // ingress asks for it still
				p.do(0, "detach", "v0")
			case "two", "one then other":
				egress := p.run("--gso-limit", "8000", "--meter", never)
				ingress := p.run("--gso-limit", "16000", "--direction", "ingress", "--meter", never)
				limit(8000)
				first, second, then := egress, ingress, 16000
				if how == "two" {
					first, second, then = ingress, egress, 8000
				}
				first.term()
				limit(then)
				second.kill()
			default:
				r := p.run(args...)
				limit(16384)
				switch how {
				case "TERM":
					r.term()
				case "INT":
					r.signal(syscall.SIGINT)
					r.wait()
				case "kill":
					r.kill()
				case "detach":
					p.do(0, "detach", "v0")
					r.wait()
				}
			}
			p.soonUnchanged(before)
			p.nothing()
		})
	}
}

// TestLiveTornJournal holds that a journal that cannot be read is named and set
// aside, and stops no command.
func TestLiveTornJournal(t *testing.T) {
	hereOnly(t)
	for _, text := range []string{"", "{", `{"Version":99}`, "\x00\x00\x00"} {
		t.Run(fmt.Sprintf("%q", text), func(t *testing.T) {
			p := newQueuePair(t) // without a GSO limit, which only the journal knows
			before, qdiscs := p.attached(), p.qdiscs()
			policy := file(t, fmt.Sprintf(slowQueue, "50ms"))
			p.run("--policy", policy, "--gso-limit", "off").killBoth()
			notes := p.notes()
			if len(notes) != 1 {
				t.Fatalf("journals %v: want one", notes)
			}
			rewrite(t, notes[0], text)
			if s := p.status(); len(s) != 2 || s[0].State != "left behind" || s[1].State != "left behind" {
				t.Errorf("status %+v: want the qdisc and the journal, left behind", s)
			}
			r := p.run("--policy", policy, "--gso-limit", "off")
			r.err.await(t, "journal .* cannot be read .*: set aside as .*broken")
			r.term()
			if now := p.attached(); now != before || p.qdiscs() != qdiscs {
				t.Errorf("at v0 is\n%s%s", now, p.qdiscs())
			}
			p.run("--policy", policy, "--gso-limit", "off").killBoth()
			rewrite(t, notes[0], text)
			if out, _ := p.do(0, "detach", "v0"); !strings.Contains(out, "cleaned up") {
				t.Errorf("detach says %q", out)
			}
			if now := p.attached(); now != before || p.qdiscs() != qdiscs {
				t.Errorf("at v0 is\n%s%s", now, p.qdiscs())
			}
			p.fails(1, "v0 is not shaped: .*", "detach", "v0")
		})
	}
}

// TestLiveRenamed holds that a shaper is found by the new name of its interface,
// and that nobody shapes it a second time.
func TestLiveRenamed(t *testing.T) {
	hereOnly(t)
	for _, queues := range []bool{false, true} {
		t.Run(fmt.Sprint("queues=", queues), func(t *testing.T) {
			p := newPair(t)
			policy := file(t, "classes: [{name: a}]")
			if queues {
				policy = file(t, fmt.Sprintf(slowQueue, "50ms"))
			}
			r := p.run("--direction", "ingress", "--policy", policy)
			p.near.Run("ip", "link", "set", "v0", "down")
			p.near.Run("ip", "link", "set", "v0", "name", "wan0")
			p.near.Run("ip", "link", "set", "wan0", "up")
			r.err.await(t, "v0 is now called wan0\n")
			if s := p.status("wan0"); len(s) != 1 || s[0].Interface != "wan0" || !s[0].Attached {
				t.Errorf("status %+v: want wan0", s)
			}
			p.fails(1, "there is no interface v0", "stats", "v0")
			p.fails(1, "wan0 ingress is shaped by process .*", "run", "wan0", "--direction", "ingress", "--policy", policy)
			p.do(0, "reload", "wan0")
			r.term()
			p.nothing()
		})
	}
}

// TestLiveAway holds that a shaper whose interface is away is listed, keeps its
// place, and can be ended.
func TestLiveAway(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--meter", never)
	p.near.Delete("v0")
	r.err.await(t, "v0 is gone .*: waiting for it to come back")
	eventually(t, func() error {
		if s := p.status(); len(s) != 1 || s[0].State != "waiting" || s[0].Interface != "v0" || s[0].Process != r.cmd.Process.Pid {
			return fmt.Errorf("status %+v: want v0, waiting", s)
		}
		return nil
	})
	p.fails(1, "v0 is away: process .* waits for it; kill -HUP .*", "reload", "v0")
	second := p.start("run", "v0", "--wait", "--meter", never)
	if code := second.wait(); code != 1 || !strings.Contains(second.err.String(), "v0 is away: process") {
		t.Errorf("a second run ends by %d: %q", code, second.err.String())
	}
	p.do(0, "detach", "v0")
	if code := r.wait(); code != 0 {
		t.Errorf("exit %d, stderr %q", code, r.err.String())
	}
	p.nothing()
}

// TestLiveAwayDirections holds that processes wait for each direction by itself.
func TestLiveAwayDirections(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	r := p.run("--direction", "both", "--meter", never)
	r.out.await(t, "v0 ingress: attached")
	p.near.Delete("v0")
	r.err.await(t, "v0 is gone .*: waiting for it to come back")
	second := p.start("run", "v0", "--wait", "--direction", "egress", "--meter", never)
	if code := second.wait(); code != 1 || !strings.Contains(second.err.String(), "v0 is away: process") {
		t.Errorf("a second run ends by %d: %q", code, second.err.String())
	}
	if out, _ := p.do(0, "status"); !regexp.MustCompile(`^v0 egress: away: process \d+ is waiting for it, .*\nv0 ingress: away: .*\n$`).MatchString(out) {
		t.Errorf("status says %q: want both directions", out)
	}
	p.do(0, "detach", "v0", "--direction", "ingress")
	p.near.Veth(p.far)
	r.out.await(t, "(?s)v0 egress: attached.*v0 egress: attached")
	if s := p.status(); len(s) != 1 || s[0].Direction != "egress" {
		t.Errorf("status %+v: want egress alone", s)
	}
	r.term()
	p.nothing()
}

// TestLiveUnreadable holds that a shaper whose record cannot be read stops no
// command, is named, and can be detached.
func TestLiveUnreadable(t *testing.T) {
	hereOnly(t)
	p := newPair(t)
	p.near.VethNamed("w0", p.far, "w0")
	r := p.run("--meter", never)
	for _, record := range []string{`{"Version":99}`, "{", `{"Version":2,"Stages":[{}],"Classes":[{"Stage":0}]}`} {
		unbind := p.unreadable("w0", record)
		list := p.status()
		if len(list) != 2 || list[0].Interface != "v0" || !list[0].Attached || list[1].Interface != "w0" || list[1].State != "left behind" {
			t.Errorf("record %s: status %+v: want v0, and w0 left behind", record, list)
		}
		p.do(0, "stats")
		p.do(0, "reload", "v0", "--meter", never)
		if out, _ := p.do(0, "detach", "w0"); !strings.Contains(out, "cleaned up: w0 egress: program") {
			t.Errorf("record %s: detach says %q", record, out)
		}
		if list := p.status(); len(list) != 1 {
			t.Errorf("record %s: status %+v after detach", record, list)
		}
		unbind()
	}
	r.term()
	p.nothing()
}

// TestLiveStoppedTerminal holds that --for and SIGTERM detach in time though
// nobody reads what shaper prints.
func TestLiveStoppedTerminal(t *testing.T) {
	hereOnly(t)
	var policy strings.Builder
	policy.WriteString("classes:\n")
	for i := range 1000 {
		fmt.Fprintf(&policy, "- {name: class-%d-with-a-long-name-for-the-table, match: {sport: %d}}\n", i, i+1)
	}
	path := file(t, policy.String())
	for _, how := range []string{"--for", "TERM"} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			before := p.attached()
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			fill(t, write)
			args := []string{"run", "v0", "--policy", path}
			if how == "--for" {
				args = append(args, "--for", "3s")
			}
			cmd := p.command(args...)
			cmd.Stdout, cmd.Stderr = write, write
			p.near.Start(cmd)
			write.Close()
			eventually(t, func() error {
				if p.attached() == before {
					return fmt.Errorf("nothing is attached")
				}
				return nil
			})
			if how == "TERM" {
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			} else {
				t.Logf("detached %v after its time", p.lateness())
			}
			eventually(t, func() error {
				if now := p.attached(); now != before {
					return fmt.Errorf("at v0 is still\n%s", now)
				}
				return nil
			})
		})
	}
}

// fill writes to a pipe until it is full.
func fill(t *testing.T, f *os.File) {
	t.Helper()
	fd := int(f.Fd()) // makes it blocking
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	for err = nil; err == nil; {
		_, err = unix.Write(fd, []byte{'\n'})
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}

// unreadable attaches a program that looks like one of shaper's, with a record.
func (p *pair) unreadable(dev, record string) (closeAll func()) {
	p.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "shaper_egress", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	about, err := ebpf.NewMap(&ebpf.MapSpec{Name: "about", Type: ebpf.Array, KeySize: 4, ValueSize: 256, MaxEntries: 1})
	if err != nil {
		p.t.Fatal(err)
	}
	value := make([]byte, 256)
	copy(value, record)
	if err := errors.Join(about.Put(uint32(0), value), program.BindMap(about)); err != nil {
		p.t.Fatal(err)
	}
	index := p.near.Index(dev)
	var l link.Link
	p.near.Do(func() {
		l, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXEgress})
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return func() {
		l.Close()
		about.Close()
		program.Close()
	}
}

// TestLiveGSOByRate holds that a device with queues hands down no more than 1 ms of
// their slowest rate at once, that this follows a reload, and that the limits of the
// device come back, whichever way it ends.
func TestLiveGSOByRate(t *testing.T) {
	hereOnly(t)
	const queue = "classes: [{name: a, green: {queue: q}}]\nqueues: {q: {rate: %s, limit: 50ms}}"
	const shared = `classes: [{name: a, match: {proto: udp}, green: {queue: a}}, {name: b, green: {queue: b}}, {name: c, green: {queue: c}}]
links: {l: {rate: 100mbit}}
queues: {a: {link: l, limit: 64KiB}, b: {link: l, priority: 1, limit: 100ms}, c: {rate: 200mbit, limit: 50ms}}`
	const beside = "queues: {q: {rate: 10mbit, limit: 50ms}}\nclasses: [{name: a, match: {proto: udp}, green: {queue: q}}"
	const headers = 321 // that the kernel takes off for TCP's
	at := func(rate string) string { return file(t, fmt.Sprintf(queue, rate)) }
	limit := func(p *pair, want int) {
		t.Helper()
		if now := p.attached(); !strings.Contains(now, fmt.Sprintf("gso %d %d\n", want, want)) {
			p.t.Errorf("at v0 is\n%s: want a limit of %d", now, want)
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
		{"a link", most, []string{"--policy", file(t, shared)}, fast},
		{"fast", most, []string{"--policy", at("1gbit")}, most},
		{"just below", most, []string{"--policy", at("521719992bit")}, 65214 + headers},
		{"rate", most, []string{"--rate", "100mbit"}, fast},
		{"a sum of 4 Gbit/s", most, []string{"--policy", file(t, "classes: [{name: a, match: {proto: udp}, green: {queue: p}}, {name: b, green: {queue: q}}]\n"+
			"queues: {p: {rate: 3900mbit, limit: 50ms}, q: {rate: 100mbit, limit: 50ms}}")}, 4e9/8/20_000 + headers},
		{"the rest passes", most, []string{"--policy", file(t, beside+", {name: b}]")}, most},
		{"the rest is in no class", most, []string{"--policy", file(t, beside+"]")}, most},
		{"the rest is dropped", most, []string{"--policy", file(t, beside+"]\notherwise: drop")}, slow},
		{"the rest is metered", most, []string{"--policy", file(t, beside+", {name: b, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, red: {queue: q}}]")}, most},
		{"the rest is metered and queued", most, []string{"--policy", file(t, beside+", {name: b, meter: {type: token-bucket, rate: 1mbit, burst: 64KiB}, green: {queue: q}, yellow: {queue: q}}]")}, slow},
		{"less already", 9000, []string{"--policy", at("100mbit")}, 9000},
		{"given", most, []string{"--policy", at("100mbit"), "--gso-limit", "30000"}, 30000},
		{"given above", 9000, []string{"--policy", at("100mbit"), "--gso-limit", "30000"}, 9000},
		{"off", most, []string{"--policy", at("100mbit"), "--gso-limit", "off"}, most},
		{"dry", most, []string{"--policy", at("100mbit"), "--dry-run"}, most},
		{"ingress", most, []string{"--policy", at("100mbit"), "--direction", "ingress"}, most},
		{"no queue", most, []string{"--meter", never}, most},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			p.near.Run("ip", "link", "set", "v0", "gso_max_size", fmt.Sprint(c.given))
			before := p.attached()
			r := p.run(c.args...)
			limit(p, c.want)
			by := c.want != c.given && c.name != "given"
			said := strings.Contains(r.out.String(), "gso capped at") && strings.Contains(r.out.String(), "slowest queue")
			status, _ := p.do(0, "status")
			if said != by || strings.Contains(status, "slowest queue") != by {
				t.Errorf("it says\n%s\nand status\n%s\nwant a cap by itself: %v", &r.out, status, by)
			}
			r.term()
			p.soonUnchanged(before)
			p.nothing()
		})
	}
	for _, how := range []string{
		"TERM", "INT", "for", "kill", "kill both", "detach", "background", "confirm", "not confirmed", "rolled back", "reload", "taken over",
	} {
		t.Run(how, func(t *testing.T) {
			p := newPair(t)
			p.withBpffs()
			before := p.attached()
			switch how {
			case "background", "taken over":
				p.do(0, "run", "v0", "--background", "--policy", at("100mbit"))
				limit(p, fast)
				if how == "taken over" {
					r := p.run("--policy", at("10mbit"))
					limit(p, slow)
					if strings.Contains(r.err.String(), "left behind") {
						t.Errorf("it says %s", &r.err)
					}
					r.term()
					break
				}
				p.do(0, "detach", "v0")
			case "rolled back":
				r := p.run("--policy", at("100mbit"))
				back := p.start("reload", "v0", "--policy", at("10mbit"), "--confirm", "8s")
				back.out.await(t, "waiting 8s")
				limit(p, slow)
				back.wait()
				limit(p, fast)
				r.term()
			case "confirm":
				r := p.run("--policy", at("100mbit"), "--confirm", "1h")
				p.do(0, "confirm", "v0")
				limit(p, fast)
				r.term()
			case "not confirmed":
				r := p.run("--policy", at("100mbit"), "--confirm", "1s")
				if code := r.wait(); code == 0 {
					t.Error("no error of a policy that was not confirmed")
				}
			case "for":
				r := p.run("--policy", at("100mbit"), "--for", "1s")
				r.wait()
			default:
				r := p.run("--policy", at("100mbit"))
				limit(p, fast)
				switch how {
				case "TERM":
					r.term()
				case "INT":
					r.signal(syscall.SIGINT)
					r.wait()
				case "kill":
					r.kill()
				case "kill both":
					r.killBoth()
					limit(p, fast)
					if status, _ := p.do(0, "status"); !strings.Contains(status, fmt.Sprintf("GSO limit of %d bytes", int(fast))) {
						t.Errorf("status says\n%s", status)
					}
					p.do(0, "detach", "v0")
				case "detach":
					p.do(0, "detach", "v0")
					r.wait()
				case "reload":
					for _, c := range []struct {
						policy string
						want   int
					}{
						{at("10mbit"), slow},
						{file(t, "classes: [{name: a}]"), most},
						{at("200mbit"), 200e6/8/1000 + headers},
						{at("1gbit"), most},
						{at("100mbit"), fast},
					} {
						p.do(0, "reload", "v0", "--policy", c.policy)
						limit(p, c.want)
					}
					r.term()
				}
			}
			p.soonUnchanged(before)
			p.nothing()
		})
	}
}
