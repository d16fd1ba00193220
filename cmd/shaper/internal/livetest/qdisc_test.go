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

// removeLeaf removes the HTB leaf of the only queue.
func (p *pair) removeLeaf(dev string) {
	p.t.Helper()
	leaf := regexp.MustCompile(`class htb (5ade:\w+) .*leaf`).FindStringSubmatch(p.near.Run("tc", "class", "show", "dev", dev))
	if leaf == nil {
		p.t.Fatal("there is no leaf")
	}
	p.near.Run("tc", "class", "del", "dev", dev, "classid", leaf[1])
}

// qdiscs is what tc says of v0 but for clsact, and which devices of ours there
// are.
func (p *pair) qdiscs() string {
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

// masked leaves out what the kernel numbers by itself.
func masked(qdiscs string) string {
	return regexp.MustCompile(`(?m)^\d+: shaper|link/ether \S+|bfifo \w+:|leaf \w+:`).ReplaceAllString(qdiscs, "-")
}

// notes are the journals of p's namespace.
func (p *pair) notes() []string {
	p.t.Helper()
	list, err := filepath.Glob(fmt.Sprintf("/run/shaper/%d-*-journal*", p.near.Cookie()))
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}

// newQueuePair is newPair whose journals are removed at the end, if a test fails.
func newQueuePair(t *testing.T) *pair {
	t.Helper()
	p := newPair(t)
	t.Cleanup(func() {
		for _, path := range p.notes() {
			_ = os.Remove(path)
		}
	})
	return p
}

// clean wants all as it was, with no note left.
func (p *pair) clean(attached, qdiscs string) {
	p.t.Helper()
	p.soonUnchanged(attached)
	eventually(p.t, func() error {
		if now := p.qdiscs(); now != qdiscs {
			return fmt.Errorf("tc says\n%s\nwant\n%s", now, qdiscs)
		}
		if list := p.notes(); len(list) > 0 {
			return fmt.Errorf("%v are left", list)
		}
		return nil
	})
}

// haveQdisc says whether the kernel has a kind of qdisc.
func haveQdisc(t *testing.T, kind string) bool {
	t.Helper()
	n := nettest.New(t)
	var err error
	n.Do(func() { err = exec.Command("tc", "qdisc", "add", "dev", "lo", "root", kind).Run() })
	return err == nil
}

// pacers are those that the kernel has.
func pacers(t *testing.T) []string {
	t.Helper()
	if haveQdisc(t, "fq") {
		return []string{"fq", "htb"}
	}
	return []string{"htb"}
}

const slowQueue = `
classes: [{name: a, green: {queue: q}}]
queues: {q: {rate: 10mbit, limit: %s}}
`

// killBoth kills a process and its guard, so that nobody cleans up.
func (r *process) killBoth() {
	r.t.Helper()
	r.signal(syscall.SIGSTOP) // or it would start another guard
	if err := syscall.Kill(guardOf(r.t, r), syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	r.kill()
}

// backlog is what tc says waits in leaf n of v0, in bytes and packets.
func (p *pair) backlog(dev string) (bytes, packets int64) {
	p.t.Helper()
	out := p.near.Run("tc", "-s", "qdisc", "show", "dev", dev)
	i := strings.Index(out, "qdisc htb 5ade:")
	if i < 0 {
		p.t.Fatalf("tc says %s", out)
	}
	f := regexp.MustCompile(`backlog (\d+)([KM]?)b (\d+)p`).FindStringSubmatch(out[i:])
	bytes, _ = strconv.ParseInt(f[1], 10, 64)
	bytes <<= map[string]int{"": 0, "K": 10, "M": 20}[f[2]]
	packets, _ = strconv.ParseInt(f[3], 10, 64)
	return bytes, packets
}
