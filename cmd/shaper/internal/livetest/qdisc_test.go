package livetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// ifbName returns the name of the ifb device in near.
func (p *pair) ifbName() string {
	p.t.Helper()
	name := regexp.MustCompile(`shaper-\w+`).FindString(p.near.Run("ip", "-o", "link", "show", "type", "ifb"))
	if name == "" {
		p.t.Fatal("there is no ifb device")
	}
	return name
}

// leafPackets returns the number of packets that the HTB leaves of a device sent.
func (p *pair) leafPackets(dev string) (n int) {
	p.t.Helper()
	text := p.near.Run("tc", "-s", "class", "show", "dev", dev)
	for _, m := range regexp.MustCompile(
		`class htb 5ade:\w+ .*leaf[^\n]*\n Sent \d+ bytes (\d+) pkt`).FindAllStringSubmatch(text, -1) {
		k, err := strconv.Atoi(m[1])
		if err != nil {
			p.t.Fatal(err)
		}
		n += k
	}
	return n
}

// removeLeaf removes the HTB leaf of the only queue.
func (p *pair) removeLeaf(dev string) {
	p.t.Helper()
	leaf := regexp.MustCompile(`class htb (5ade:\w+) .*leaf`).FindStringSubmatch(
		p.near.Run("tc", "class", "show", "dev", dev))
	if leaf == nil {
		p.t.Fatal("tc lists no HTB leaf")
	}
	p.near.Run("tc", "class", "del", "dev", dev, "classid", leaf[1])
}

// qdiscState returns tc's listing of v0 without clsact, and shaper's ifb devices.
func (p *pair) qdiscState() string {
	p.t.Helper()
	var lines []string
	for _, what := range []string{"qdisc", "class"} {
		lines = append(lines, strings.Split(p.near.Run("tc", "-d", what, "show", "dev", "v0"), "\n")...)
	}
	lines = append(lines, strings.Split(p.near.Run("ip", "-o", "link", "show", "type", "ifb"), "\n")...)
	lines = slices.DeleteFunc(lines, func(s string) bool { return strings.Contains(s, "clsact") })
	slices.Sort(lines)
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// maskNumbers replaces numbers that the kernel chooses.
func maskNumbers(qdiscs string) string {
	return regexp.MustCompile(
		`(?m)^\d+: shaper|link/ether \S+|bfifo \w+:|leaf \w+:`).ReplaceAllString(qdiscs, "-")
}

// journals returns the paths of the journals of near.
func (p *pair) journals() []string {
	p.t.Helper()
	list, err := filepath.Glob(fmt.Sprintf("/run/shaper/%d-*-journal*", p.near.Cookie()))
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}

// newQueuePair is newPair for tests that leave journals if they fail. They are removed at the
// end.
func newQueuePair(t *testing.T) *pair {
	t.Helper()
	p := newPair(t)
	t.Cleanup(func() {
		for _, path := range p.journals() {
			_ = os.Remove(path)
		}
	})
	return p
}

// awaitClean waits until the device and its qdiscs are as before, and no journal is left.
func (p *pair) awaitClean(attached, qdiscs string) {
	p.t.Helper()
	p.awaitState(attached)
	eventually(p.t, func() error {
		if now := p.qdiscState(); now != qdiscs {
			return fmt.Errorf("tc lists\n%s\nwant\n%s", now, qdiscs)
		}
		if list := p.journals(); len(list) > 0 {
			return fmt.Errorf("left behind: %v", list)
		}
		return nil
	})
}

// haveQdisc reports whether the kernel has a kind of qdisc.
func haveQdisc(t *testing.T, kind string) bool {
	t.Helper()
	n := nettest.New(t)
	var err error
	n.Do(func() { err = exec.Command("tc", "qdisc", "add", "dev", "lo", "root", kind).Run() })
	return err == nil
}

// availablePacers returns the pacers that the kernel has.
func availablePacers(t *testing.T) []string {
	t.Helper()
	if haveQdisc(t, "fq") {
		return []string{"fq", "htb"}
	}
	return []string{"htb"}
}

// slowQueue is a policy with one queue of 10 Mbit/s; the limit is to be filled in.
const slowQueue = `
classes: [{name: a, green: {queue: q}}]
queues: {q: {rate: 10mbit, limit: %s, fair: false}}
`

// killWithGuard kills a process and its guard, so that no process cleans up.
func (r *process) killWithGuard() {
	r.t.Helper()
	r.sendSignal(syscall.SIGSTOP) // so that it starts no other guard
	if err := syscall.Kill(guardOf(r.t, r), syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	r.killAndWait()
}

// htbBacklog returns the backlog of shaper's HTB qdisc.
func (p *pair) htbBacklog(dev string) (bytes, packets int64) {
	p.t.Helper()
	out := p.near.Run("tc", "-s", "qdisc", "show", "dev", dev)
	i := strings.Index(out, "qdisc htb 5ade:")
	if i < 0 {
		p.t.Fatalf("tc lists %s: want qdisc htb", out)
	}
	f := regexp.MustCompile(`backlog (\d+)([KM]?)b (\d+)p`).FindStringSubmatch(out[i:])
	bytes, _ = strconv.ParseInt(f[1], 10, 64)
	bytes <<= map[string]int{"": 0, "K": 10, "M": 20}[f[2]]
	packets, _ = strconv.ParseInt(f[3], 10, 64)
	return bytes, packets
}
