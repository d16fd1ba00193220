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

// probedPolicy drops the packets of class probe and queues all others in a link.
const probedPolicy = `
classes:
  - name: probe
    match: {proto: udp, dport: 5000}
    green: drop
  - name: rest
    green: {queue: rest}
links: {l: {rate: 20mbit}}
queues: {rest: {link: l, limit: 100kB}}
`

// tcxLinks returns the TCX links of v0.
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

// forceDetach detaches a link as bpftool link detach does.
func forceDetach(t *testing.T, id link.ID) {
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

// displacement is a change that another program makes to an attached shaper.
type displacement struct {
	name   string
	args   []string // of shaper run
	queues bool     // the policy is probedPolicy
	do     func(p *pair)
	found  string // regular expression for the report
	ends   bool   // without --repair, the process ends
	remain string // regular expression for the qdiscs afterwards
	undo   func(p *pair)
	// The filter marked clsact as ours, so clsact stays.
	keepsClsact bool
}

// runCommands returns a function that runs commands in near. IFB in a command stands for the
// name of the ifb device.
func runCommands(lines ...string) func(p *pair) {
	return func(p *pair) {
		p.t.Helper()
		for _, line := range lines {
			if strings.Contains(line, "IFB") {
				line = strings.ReplaceAll(line, "IFB", p.ifbName())
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
			do:    runCommands("tc qdisc replace dev v0 root handle 9: pfifo limit 77"),
			found: `the root qdisc is pfifo 9:, not ours`, remain: "qdisc pfifo 9: root .*limit 77p",
		},
		{
			name: "root removed", args: htb, queues: true,
			do:    runCommands("tc qdisc del dev v0 root"),
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
				newForeign(p.t, ebpf.SchedCLS, 0, 0).attachTCX(p.near, "egress", link.Head())
			},
			found: `TCX program \d+ \(foreign\) runs before ours, which sees only packets that reach it`,
		},
		{
			name: "link detached", args: []string{"--hook", "tcx"}, ends: true,
			do:    func(p *pair) { forceDetach(p.t, tcxLinks(p.t, p.near, ebpf.AttachTCXEgress)[0]) },
			found: `the tcx link of the program was detached`,
		},
		{
			name: "XDP link detached", args: []string{"--hook", "xdp", "--direction", "ingress"}, ends: true,
			do:    func(p *pair) { forceDetach(p.t, p.xdpLink()) },
			found: `the xdp link of the program was detached`,
		},
		{
			name: "filter ahead", args: []string{"--hook", "tc"},
			do: runCommands(
				"tc filter add dev v0 egress pref 100 protocol all u32 match u32 0 0 flowid 1:1"),
			found: `tc filter u32 pref 100 runs before ours, which sees only packets that reach it`,
			undo:  runCommands("tc filter del dev v0 egress pref 100"),
		},
		{
			name: "filter removed", args: []string{"--hook", "tc"}, ends: true,
			do:    runCommands("tc filter del dev v0 egress"),
			found: `the tc filter of shaper, pref \d+, was removed`,
		},
		{
			name: "clsact removed", args: []string{"--hook", "tc", "--direction", "ingress"}, ends: true,
			do:    runCommands("tc qdisc del dev v0 clsact"),
			found: `the tc filter of shaper, pref \d+, was removed`,
		},
		{
			name: "redirect removed", args: ingress, queues: true,
			do:    runCommands("tc filter del dev v0 ingress pref 1"),
			found: `the filter that redirects packets to shaper-\w+ was removed`, keepsClsact: true,
		},
		{
			name: "ifb down", args: ingress, queues: true,
			do:    runCommands("ip link set IFB down"),
			found: `device shaper-\w+ is down and drops all packets`,
		},
		{
			name: "ifb removed", args: ingress, queues: true, ends: true,
			do:    runCommands("ip link del IFB"),
			found: `device shaper-\w+ is gone, and with it all packets that are redirected to it`,
		},
		{
			name: "ifb root replaced", args: ingress, queues: true,
			do:    runCommands("tc qdisc replace dev IFB root handle 9: pfifo"),
			found: `the root qdisc of shaper-\w+ is pfifo 9:, not ours`,
		},
		{
			name: "gso raised", args: []string{"--gso-limit", "9000"},
			do:    runCommands("ip link set v0 gso_max_size 65536"),
			found: `gso_max_size is 65536 bytes, not 9000`,
		},
	}
}

// xdpLink returns the link of the XDP program of v0.
func (p *pair) xdpLink() (found link.ID) {
	p.t.Helper()
	index := p.near.Index("v0")
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil {
			continue // the link no longer exists
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

// isOurs reports whether a program is the XDP program of v0 in near. Interfaces of other
// namespaces can have the same index.
func (p *pair) isOurs(id ebpf.ProgramID) (same bool) {
	p.near.Do(func() {
		l, err := netlink.LinkByName("v0")
		same = err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.ProgId == uint32(id)
	})
	return same
}

// startDisplaced starts a shaper that drops all packets of probeShaper.
func (p *pair) startDisplaced(d *displacement, more ...string) *process {
	p.t.Helper()
	args := append([]string{}, d.args...)
	if d.queues {
		args = append(args, "--policy", writePolicy(p.t, probedPolicy))
	} else {
		args = append(args, "--meter", "token-bucket rate=1B/1000s burst=1")
	}
	return p.runShaper(append(args, more...)...)
}

// probeShaper sends packets that an effective shaper drops, and returns how many arrive. Then
// it sends packets that the shaper queues, and returns how many pass an HTB leaf.
func (p *pair) probeShaper(d *displacement) (arrived, queued int) {
	p.t.Helper()
	m := placement{"", "egress"}
	dev := "v0"
	for i, a := range d.args {
		if a == "--direction" {
			m.direction = d.args[i+1]
		}
	}
	from, to := p.senderAndReceiver(m)
	_, at := p.addresses(m, false)
	in := listenUDP(p.t, to, at)
	defer in.conn.Close()
	sendUDP(p.t, newSender(p.t, from, at, 0, 0), 3, 100)
	arrived = len(in.receiveAll())
	if !d.queues {
		return arrived, 0
	}
	if m.direction == "ingress" {
		dev = p.ifbName()
	}
	was := p.leafPackets(dev)
	from.Do(func() {
		out, err := net.ListenUDP("udp4", nil) // not connected: no error although no process listens
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
			return fmt.Errorf("%d packets passed the HTB leaves of %s: want 4", queued, dev)
		}
		return nil
	})
	return arrived, queued
}

// countStderrLines returns the number of matching lines on stderr.
func (r *process) countStderrLines(pattern string) int {
	return len(regexp.MustCompile(`(?m)^`+pattern+`$`).FindAllString(r.err.String(), -1))
}

// awaitEnded waits until the other program's changes remain and shaper has left nothing.
func (p *pair) awaitEnded(d *displacement, before string) {
	p.t.Helper()
	eventually(p.t, func() error {
		now := p.qdiscState()
		if d.remain != "" && !regexp.MustCompile(d.remain).MatchString(now) {
			return fmt.Errorf("tc lists\n%s\nwant %s", now, d.remain)
		}
		if strings.Contains(now, "5ade:") || strings.Contains(now, "shaper-") || len(p.journals()) > 0 {
			return fmt.Errorf("left behind:\n%s\njournals %v", now, p.journals())
		}
		at := p.deviceState()
		if d.keepsClsact {
			at = strings.Replace(at, "qdisc clsact\n", "", 1)
		}
		if d.remain == "" && at != before && !strings.Contains(at, "foreign") &&
			!strings.Contains(d.name, "ahead") {
			return fmt.Errorf("attached to v0:\n%s: want\n%s", at, before)
		}
		return nil
	})
}
