package kernel_test

import (
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/nettest"
)

// A policy that drops the packets of probe and queues all others in a link.
const probed = `
classes:
  - name: probe
    match: {proto: udp, dport: 5000}
    green: drop
  - name: rest
    green: {queue: rest}
links: {l: {rate: 20mbit}}
queues: {rest: {link: l, limit: 100kB}}
`

// effect is what shaper status says of the only shaper.
type effect struct {
	Effective       *bool
	Problems, Notes []string
}

func (p *pair) effect() effect {
	p.t.Helper()
	stdout, _ := p.do(0, "status", "--json")
	return decode[effect](p.t, stdout)
}

// tcxLinks are those of v0.
func tcxLinks(t *testing.T, n *nettest.Namespace, at ebpf.AttachType) (out []link.ID) {
	t.Helper()
	index := n.Index("v0")
	n.Do(func() {
		r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Programs {
			id, _ := p.LinkID()
			out = append(out, id)
		}
	})
	return out
}

// force detaches a link, as bpftool link detach does.
func force(t *testing.T, id link.ID) {
	t.Helper()
	l, err := link.NewFromID(id)
	if err == nil {
		defer l.Close()
		err = l.Detach()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ifbOf is the name of the ifb device in p's namespace.
func (p *pair) ifbOf() string {
	p.t.Helper()
	name := regexp.MustCompile(`shaper-\w+`).FindString(p.near.Run("ip", "-o", "link", "show", "type", "ifb"))
	if name == "" {
		p.t.Fatal("there is no ifb device")
	}
	return name
}

// leafPackets is how many packets the HTB leaves of a device sent.
func (p *pair) leafPackets(dev string) (n int) {
	p.t.Helper()
	text := p.near.Run("tc", "-s", "class", "show", "dev", dev)
	for _, m := range regexp.MustCompile(`class htb 5ade:\w+ .*leaf[^\n]*\n Sent \d+ bytes (\d+) pkt`).FindAllStringSubmatch(text, -1) {
		k, err := strconv.Atoi(m[1])
		if err != nil {
			p.t.Fatal(err)
		}
		n += k
	}
	return n
}

// displacement is something that another program does.
type displacement struct {
	name   string
	args   []string // of shaper run
	queues bool     // the policy is probed
	do     func(p *pair)
	found  string // what is said of it, a regular expression
	ends   bool   // without --repair the process ends
	remain string // of the qdiscs, when all is over
	undo   func(p *pair)
	// The mark that clsact is ours goes with the filter: it stays.
	keepsClsact bool
}

// run of one command in near.
func cmds(lines ...string) func(p *pair) {
	return func(p *pair) {
		p.t.Helper()
		for _, line := range lines {
			if strings.Contains(line, "IFB") {
				line = strings.ReplaceAll(line, "IFB", p.ifbOf())
			}
			words := strings.Fields(line)
			p.near.Run(words[0], words[1:]...)
		}
	}
}

func displacements() []displacement {
	ingress := []string{"--direction", "ingress", "--pacer", "htb"}
	htb := []string{"--pacer", "htb"}
	return []displacement{
		{
			name: "root replaced", args: htb, queues: true,
			do:    cmds("tc qdisc replace dev v0 root handle 9: pfifo limit 77"),
			found: `the root qdisc is pfifo 9:, not ours`, remain: "qdisc pfifo 9: root .*limit 77p",
		},
		{
			name: "root removed", args: htb, queues: true,
			do:    cmds("tc qdisc del dev v0 root"),
			found: `the root qdisc is \w+, the kernel's default, not ours`,
		},
		{
			name: "class removed", args: htb, queues: true,
			do:    func(p *pair) { p.removeLeaf("v0") },
			found: `HTB classes are missing: those of queue rest`,
		},
		{
			name: "program ahead", args: []string{"--hook", "tcx"},
			do: func(p *pair) {
				newForeign(p.t, ebpf.SchedCLS, 0, 0).tcx(p.near, "egress", link.Head())
			},
			found: `TCX program \d+ \(foreign\) runs before ours, which sees only packets that reach it`,
		},
		{
			name: "link detached", args: []string{"--hook", "tcx"}, ends: true,
			do:    func(p *pair) { force(p.t, tcxLinks(p.t, p.near, ebpf.AttachTCXEgress)[0]) },
			found: `the tcx link of the program was detached`,
		},
		{
			name: "XDP link detached", args: []string{"--hook", "xdp", "--direction", "ingress"}, ends: true,
			do:    func(p *pair) { force(p.t, p.xdpLink()) },
			found: `the xdp link of the program was detached`,
		},
		{
			name: "filter ahead", args: []string{"--hook", "tc"},
			do:    cmds("tc filter add dev v0 egress pref 100 protocol all u32 match u32 0 0 flowid 1:1"),
			found: `tc filter u32 pref 100 runs before ours, which sees only packets that reach it`,
			undo:  cmds("tc filter del dev v0 egress pref 100"),
		},
		{
			name: "filter removed", args: []string{"--hook", "tc"}, ends: true,
			do:    cmds("tc filter del dev v0 egress"),
			found: `the tc filter of shaper, pref \d+, was removed`,
		},
		{
			name: "clsact removed", args: []string{"--hook", "tc", "--direction", "ingress"}, ends: true,
			do:    cmds("tc qdisc del dev v0 clsact"),
			found: `the tc filter of shaper, pref \d+, was removed`,
		},
		{
			name: "redirect removed", args: ingress, queues: true,
			do:    cmds("tc filter del dev v0 ingress pref 1"),
			found: `the filter that redirects packets to shaper-\w+ was removed`, keepsClsact: true,
		},
		{
			name: "ifb down", args: ingress, queues: true,
			do:    cmds("ip link set IFB down"),
			found: `device shaper-\w+ is down and drops all packets`,
		},
		{
			name: "ifb removed", args: ingress, queues: true, ends: true,
			do:    cmds("ip link del IFB"),
			found: `device shaper-\w+ is gone, and with it all packets that are redirected to it`,
		},
		{
			name: "ifb root replaced", args: ingress, queues: true,
			do:    cmds("tc qdisc replace dev IFB root handle 9: pfifo"),
			found: `the root qdisc of shaper-\w+ is pfifo 9:, not ours`,
		},
		{
			name: "gso raised", args: []string{"--gso-limit", "9000"},
			do:    cmds("ip link set v0 gso_max_size 65536"),
			found: `gso_max_size is 65536 bytes, not 9000`,
		},
	}
}

// removeLeaf removes the HTB leaf of the only queue.
func (p *pair) removeLeaf(dev string) {
	p.t.Helper()
	leaf := regexp.MustCompile(`class htb (5ade:\w+) .*leaf`).FindStringSubmatch(p.near.Run("tc", "class", "show", "dev", dev))
	if leaf == nil {
		p.t.Fatal("there is no leaf")
	}
	p.near.Run("tc", "class", "del", "dev", dev, "classid", leaf[1])
}

// xdpLink is the link of the XDP program of v0.
func (p *pair) xdpLink() (found link.ID) {
	p.t.Helper()
	index := p.near.Index("v0")
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil {
			continue // it ended meanwhile
		}
		if x := info.XDP(); x != nil && int(x.Ifindex) == index && p.isOurs(info.Program) {
			found = info.ID
		}
	}
	if err := it.Err(); err != nil || found == 0 {
		p.t.Fatalf("link %d: %v", found, err)
	}
	return found
}

// isOurs says whether a program is the one of v0 in near: other namespaces have
// interfaces of the same index.
func (p *pair) isOurs(id ebpf.ProgramID) (same bool) {
	p.near.Do(func() {
		l, err := netlink.LinkByName("v0")
		same = err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.ProgId == uint32(id)
	})
	return same
}

// startDisplaced starts a shaper that drops all packets of the probe.
func (p *pair) startDisplaced(d *displacement, more ...string) *process {
	p.t.Helper()
	args := append([]string{}, d.args...)
	if d.queues {
		args = append(args, "--policy", file(p.t, probed))
	} else {
		args = append(args, "--meter", "token-bucket rate=1B/1000s burst=1")
	}
	return p.run(append(args, more...)...)
}

// probe sends packets that a shaper drops and returns how many arrive, then
// others, and returns how many of those leave through an HTB leaf.
func (p *pair) probe(d *displacement) (arrived, queued int) {
	p.t.Helper()
	m := method{"", "egress"}
	dev := "v0"
	for i, a := range d.args {
		if a == "--direction" {
			m.direction = d.args[i+1]
		}
	}
	from, to := p.sides(m)
	_, at := p.addresses(m, false)
	in := listen(p.t, to, at)
	defer in.conn.Close()
	send(p.t, sender(p.t, from, at, 0, 0), 3, 100)
	arrived = len(in.take())
	if !d.queues {
		return arrived, 0
	}
	if m.direction == "ingress" {
		dev = p.ifbOf()
	}
	was := p.leafPackets(dev)
	from.Do(func() {
		out, err := net.ListenUDP("udp4", nil) // not connected: it does not hear that nobody listens
		if err != nil {
			p.t.Fatal(err)
		}
		defer out.Close()
		for range 4 {
			if _, err := out.WriteTo(make([]byte, 100), &net.UDPAddr{IP: at, Port: udpPort + 1}); err != nil {
				p.t.Fatal(err)
			}
		}
	})
	eventually(p.t, func() error {
		if queued = p.leafPackets(dev) - was; queued < 4 {
			return fmt.Errorf("%d packets went through HTB leaves of %s: want 4", queued, dev)
		}
		return nil
	})
	return arrived, queued
}

// lines counts the lines of stderr that match.
func (r *process) lines(pattern string) int {
	return len(regexp.MustCompile(`(?m)^`+pattern+`$`).FindAllString(r.err.String(), -1))
}

// TestLiveDisplaced holds that what another program does to a shaper is noticed,
// said once, and shown by status, and that the end is as that program wants it.
func TestLiveDisplaced(t *testing.T) {
	hereOnly(t)
	for _, d := range displacements() {
		if d.ends {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			p := newQueuePair(t)
			before := p.attached()
			r := p.startDisplaced(&d)
			if e := p.effect(); e.Effective == nil || !*e.Effective || len(e.Problems) > 0 {
				t.Errorf("status %+v before: want it effective", e)
			}
			d.do(p)
			r.err.await(t, `(?m)^shaper: v0 \w+: not shaping: `+d.found+`: .*--repair puts ours back`)
			e := p.effect()
			if e.Effective == nil || *e.Effective || len(e.Problems) != 1 || !regexp.MustCompile(`^`+d.found+`: .*`).MatchString(e.Problems[0]) {
				t.Errorf("status %+v: want one problem, %s", e, d.found)
			}
			out, _ := p.do(0, "status")
			if !regexp.MustCompile(` not effective: ` + d.found + `: `).MatchString(strings.Join(strings.Fields(out), " ")) {
				t.Errorf("status says %q: want that it is not effective", out)
			}
			if n := r.lines(`shaper: v0 \w+: (not )?shaping.*`); n != 1 {
				t.Errorf("stderr %q: want one line", &r.err)
			}
			if strings.HasSuffix(d.name, "ahead") {
				if n, _ := p.probe(&d); n != 3 {
					t.Errorf("%d of 3 packets bypass the shaper: want all", n)
				}
			}
			if d.undo != nil {
				d.undo(p)
				r.err.await(t, `(?m)^shaper: v0 \w+: shaping again$`)
				if e := p.effect(); e.Effective == nil || !*e.Effective {
					t.Errorf("status %+v: want it effective again", e)
				}
			}
			r.term()
			p.ends(&d, before)
		})
	}
}

// TestLiveRepaired holds that --repair puts back whatever was displaced, once, and
// that packets are shaped as before.
func TestLiveRepaired(t *testing.T) {
	hereOnly(t)
	for _, d := range displacements() {
		t.Run(d.name, func(t *testing.T) {
			p := newQueuePair(t)
			before := p.attached()
			r := p.startDisplaced(&d, "--repair")
			d.do(p)
			r.err.await(t, `(?m)^shaper: v0 \w+: not shaping: `+d.found)
			r.err.await(t, `(?m)^shaper: v0 \w+: shaping again$`)
			if e := p.effect(); e.Effective == nil || !*e.Effective || len(e.Problems) > 0 {
				t.Errorf("status %+v: want it effective again", e)
			}
			if n, _ := p.probe(&d); n != 0 {
				t.Errorf("%d of 3 packets bypass the shaper", n)
			}
			if n := r.lines(`shaper: v0 \w+: (not )?shaping.*`); n != 2 {
				t.Errorf("stderr %q: want what was wrong, and that it is right", &r.err)
			}
			if d.undo != nil {
				d.undo(p)
			}
			r.term()
			p.ends(&d, before)
		})
	}
}

// TestLiveRemoved holds that a shaper whose program is removed ends, and puts back
// what was there before.
func TestLiveRemoved(t *testing.T) {
	hereOnly(t)
	for _, d := range displacements() {
		if !d.ends {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			p := newQueuePair(t)
			before := p.attached()
			if !d.queues && !slices.Contains(d.args, "ingress") {
				d.queues = true // what holds packets is to go as well
				d.args = append(d.args, "--pacer", "htb")
			}
			r := p.startDisplaced(&d)
			d.do(p)
			if code := r.wait(); code != 0 || !strings.Contains(r.err.String(), "detached: another program removed the eBPF program\n") {
				t.Errorf("exit %d, stderr %q: want that it was detached", code, &r.err)
			}
			p.ends(&d, before)
			if out, _ := p.do(0, "status"); !strings.HasPrefix(out, "no shaper is attached") {
				t.Errorf("status says %q", out)
			}
		})
	}
}

// ends wants what the other program left, and nothing of ours.
func (p *pair) ends(d *displacement, before string) {
	p.t.Helper()
	eventually(p.t, func() error {
		now := p.qdiscs()
		if d.remain != "" && !regexp.MustCompile(d.remain).MatchString(now) {
			return fmt.Errorf("tc says\n%s\nwant %s", now, d.remain)
		}
		if strings.Contains(now, "5ade:") || strings.Contains(now, "shaper-") || len(p.notes()) > 0 {
			return fmt.Errorf("left is\n%s\nnotes %v", now, p.notes())
		}
		at := p.attached()
		if d.keepsClsact {
			at = strings.Replace(at, "qdisc clsact\n", "", 1)
		}
		if d.remain == "" && at != before && !strings.Contains(at, "foreign") && !strings.Contains(d.name, "ahead") {
			return fmt.Errorf("at v0 is\n%s: want\n%s", at, before)
		}
		return nil
	})
}

// TestLiveInterfaceChanges holds that shaper survives what happens to an
// interface, and says what it is.
func TestLiveInterfaceChanges(t *testing.T) {
	hereOnly(t)
	for _, hook := range []string{"tcx", "tc"} {
		t.Run("renamed "+hook, func(t *testing.T) {
			method{hook, "egress"}.need(t)
			p := newPair(t)
			r := p.run("--hook", hook, "--repair", "--meter", never)
			p.near.Run("ip", "link", "set", "v0", "down")
			r.err.await(t, `(?m)^shaper: v0 egress: interface v0 is down$`)
			e := p.effect()
			if e.Effective == nil || !*e.Effective || len(e.Notes) != 1 || e.Notes[0] != "interface v0 is down" {
				t.Errorf("status %+v: want it effective, and the interface down", e)
			}
			p.near.Run("ip", "link", "set", "v0", "name", "w0")
			p.near.Run("ip", "link", "set", "w0", "up")
			r.err.await(t, `(?m)^shaper: v0 is now called w0$`)
			if out, _ := p.do(0, "status"); !strings.HasPrefix(out, "w0 egress: attached") {
				t.Errorf("status says %q: want the name", out)
			}
			p.near.Run("ip", "link", "set", "w0", "name", "v0")
			eventually(t, func() error {
				if e := p.effect(); len(e.Notes) > 0 {
					return fmt.Errorf("notes %q: want none", e.Notes)
				}
				return nil
			})
			if n := r.lines(`.*shaping.*`); n != 0 {
				t.Errorf("stderr %q: want nothing of shaping", &r.err)
			}
			r.term()
		})
	}
	t.Run("moved", func(t *testing.T) {
		method{"tcx", "egress"}.need(t)
		p := newPair(t)
		r := p.run("--hook", "tcx", "--meter", never)
		other := nettest.New(t)
		holder := exec.Command("sleep", "1000")
		other.Start(holder)
		p.near.Run("ip", "link", "set", "v0", "netns", fmt.Sprint(holder.Process.Pid))
		r.err.await(t, `(?m)^shaper: v0 is gone .deleted, or moved to another network namespace.: waiting for it to come back$`)
		eventually(t, func() error {
			if s := p.status(); len(s) != 1 || s[0].State != "waiting" {
				return fmt.Errorf("status %+v: want that it waits", s)
			}
			return nil
		})
		r.term()
		if n := len(tcxLinks(t, other, ebpf.AttachTCXEgress)); n != 0 {
			t.Errorf("%d TCX links are left on it: want none", n)
		}
	})
}

// TestLiveNoFalseAlarm holds that nothing is reported in normal operation: while
// policies change, in both directions, with programs of others behind ours.
func TestLiveNoFalseAlarm(t *testing.T) {
	hereOnly(t)
	for _, hook := range []string{"auto", "tc"} {
		t.Run(hook, func(t *testing.T) {
			p := newQueuePair(t)
			p.withBpffs()
			plain := file(t, "classes:\n  - name: a\n    meter: {type: token-bucket, rate: 1mbit, burst: 9000}\n")
			two := file(t, `
classes:
  - {name: a, match: {proto: udp}, green: {queue: q}}
  - {name: b, green: {queue: rest}}
links: {l: {rate: 9mbit}}
queues: {rest: {link: l, limit: 100kB}, q: {rate: 2mbit, limit: 50ms}}
`)
			p.near.Run("ip", "link", "add", "b0", "type", "bridge")
			p.near.Run("ip", "link", "set", "v0", "master", "b0")
			r := p.run("--hook", hook, "--direction", "both", "--pacer", "htb", "--policy", file(t, probed), "--pin", "--repair")
			r.out.await(t, "v0 ingress: attached")
			newForeign(t, ebpf.SchedCLS, -1, 0).filter(p.near, "egress")
			if hook == "auto" && haveTCX() {
				newForeign(t, ebpf.SchedCLS, -1, 0).tcx(p.near, "egress", link.Tail())
			}
			check := func() {
				t.Helper()
				out, _ := p.do(0, "status", "--json")
				for line := range strings.Lines(out) {
					if e := decode[effect](t, line); e.Effective == nil || !*e.Effective || len(e.Notes) > 0 {
						t.Errorf("status %s: want it effective", line)
					}
				}
			}
			check()
			for range 2 {
				p.do(0, "reload", "--direction", "egress", "--policy", plain)
				p.do(0, "reload", "--policy", two)
				check()
				p.do(0, "reload", "--direction", "egress", "--meter", never)
				p.do(0, "reload", "--direction", "egress", "--policy", two)
				p.do(0, "reload", "--policy", file(t, probed))
			}
			r.kill()
			r2 := p.run("--hook", hook, "--direction", "both", "--pacer", "htb", "--policy", two, "--repair")
			r2.out.await(t, "v0 ingress: attached")
			check()
			p.do(0, "detach")
			if code := r2.wait(); code != 0 || !strings.Contains(r2.err.String(), "detached by another process") {
				t.Errorf("exit %d, stderr %q: want that it was detached", code, &r2.err)
			}
			for _, e := range []*output{&r.err, &r2.err} {
				if strings.Contains(e.String(), "shaping") || strings.Contains(e.String(), "repair") {
					t.Errorf("stderr %q: want no alarm", e)
				}
			}
		})
	}
}
