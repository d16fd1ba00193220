package livetest

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
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
