package livetest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// pair is two namespaces joined by a veth pair, v0 in both. Commands run in
// near.
type pair struct {
	t         *testing.T
	near, far *nettest.Namespace
	wrap      []string // before each command
}

func newPair(t *testing.T) *pair {
	t.Helper()
	t.Parallel()
	return anotherPair(t)
}

// anotherPair is one more pair of a test.
func anotherPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, near: nettest.New(t), far: nettest.New(t)}
	p.near.Veth(p.far)
	return p
}

// newTAPPair is newPair for tests of shaper tap.
func newTAPPair(t *testing.T) *pair {
	t.Helper()
	hereOnly(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("%v: modprobe tun", err)
	}
	return newPair(t)
}

// withBpffs gives the commands a bpffs, in a mount namespace of their own
// where the machine has none.
func (p *pair) withBpffs() {
	var s unix.Statfs_t
	if unix.Statfs("/sys/fs/bpf", &s) == nil && s.Type == unix.BPF_FS_MAGIC {
		return
	}
	p.withMounts("mount -t bpf bpf /sys/fs/bpf")
}

// withoutBpffs skips the test where the machine has one.
func (p *pair) withoutBpffs() {
	var s unix.Statfs_t
	if unix.Statfs("/sys/fs/bpf", &s) == nil && s.Type == unix.BPF_FS_MAGIC {
		p.t.Skip("bpffs is mounted here")
	}
}

func (p *pair) command(args ...string) *exec.Cmd {
	p.t.Helper()
	path, err := shaper()
	if err != nil {
		p.t.Fatal(err)
	}
	args = append(append(slices.Clone(p.wrap), path), args...)
	return exec.Command(args[0], args[1:]...)
}

// start starts a command, which is killed at the end of the test.
func (p *pair) start(args ...string) *process {
	p.t.Helper()
	return p.startCmd(p.command(args...))
}

func (p *pair) startCmd(cmd *exec.Cmd) *process {
	p.t.Helper()
	r := &process{t: p.t, cmd: cmd}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	p.near.Start(r.cmd)
	return r
}

// run is start, for shaper run on v0. It waits until the policy is attached.
func (p *pair) run(args ...string) *process {
	p.t.Helper()
	r := p.start(append([]string{"run", "v0"}, args...)...)
	r.attached()
	return r
}

// do runs a command to its end and wants an exit code.
func (p *pair) do(code int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	r := p.start(args...)
	r.exits(code)
	return r.out.String(), r.err.String()
}

// fails wants one line on stderr, and nothing on stdout.
func (p *pair) fails(code int, pattern string, args ...string) {
	p.t.Helper()
	r := p.start(args...)
	r.exits(code)
	r.failed(pattern)
}

// method is a hook with a direction.
type method struct{ hook, direction string }

var methods = func() []method {
	switch {
	case !inVM:
		return []method{{"tcx", "egress"}, {"tc", "egress"}, {"tcx", "ingress"}, {"tc", "ingress"}, {"xdp", "ingress"}}
	case haveTCX():
		return []method{{"tcx", "egress"}, {"tc", "ingress"}, {"xdp", "ingress"}}
	}
	return []method{{"tc", "egress"}, {"xdp", "ingress"}}
}()

func (m method) args(more ...string) []string {
	return append([]string{"--hook", m.hook, "--direction", m.direction}, more...)
}

// need skips what the kernel does not have.
func (m method) need(t *testing.T) {
	t.Helper()
	if m.hook == "tcx" && !haveTCX() {
		t.Skip("TCX needs kernel 6.6 or newer")
	}
}

func haveTCX() bool {
	version, err := features.LinuxVersionCode()
	return err != nil || version >= 6<<16|6<<8
}

// sides are who shapes and who sends or receives: the shaper's side is near,
// and what it shapes goes from and to.
func (p *pair) sides(m method) (from, to *nettest.Namespace) {
	if m.direction == "egress" {
		return p.near, p.far
	}
	return p.far, p.near
}

// devices has the addresses of the side that sends, and of the other.
func (p *pair) addresses(m method, v6 bool) (from, to net.IP) {
	a, b := net.IP{10, 0, 0, 1}, net.IP{10, 0, 0, 2}
	if v6 {
		a, b = net.ParseIP("fd00::1"), net.ParseIP("fd00::2")
	}
	if m.direction == "egress" {
		return a, b
	}
	return b, a
}

// attached lists all that is at v0, as the kernel tells.
func (p *pair) attached() string {
	p.t.Helper()
	var b strings.Builder
	p.near.Do(func() {
		l, err := netlink.LinkByName("v0")
		if err != nil {
			p.t.Fatal(err)
		}
		a := l.Attrs()
		fmt.Fprintf(&b, "gso %d %d\n", a.GSOMaxSize, a.GSOIPv4MaxSize)
		if a.Xdp != nil && a.Xdp.Attached {
			fmt.Fprintf(&b, "xdp %d\n", a.Xdp.ProgId)
		}
		qdiscs, err := netlink.QdiscList(l)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, q := range qdiscs {
			fmt.Fprintf(&b, "qdisc %s\n", q.Type())
		}
		for _, parent := range []uint32{netlink.HANDLE_MIN_EGRESS, netlink.HANDLE_MIN_INGRESS} {
			filters, err := netlink.FilterList(l, parent)
			if err != nil {
				continue // no clsact
			}
			for _, f := range filters {
				if f, ok := f.(*netlink.BpfFilter); ok {
					fmt.Fprintf(&b, "filter %x %s %d\n", parent, f.Name, f.Id)
				}
			}
		}
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXEgress, ebpf.AttachTCXIngress} {
			r, err := link.QueryPrograms(link.QueryOptions{Target: a.Index, Attach: at})
			if err != nil {
				continue // no TCX
			}
			for _, program := range r.Programs {
				fmt.Fprintf(&b, "%v %d\n", at, program.ID)
			}
		}
	})
	return b.String()
}

// unchanged wants the interface as it was.
func (p *pair) unchanged(before string) {
	p.t.Helper()
	if now := p.attached(); now != before {
		p.t.Errorf("at v0 is\n%s: want\n%s", now, before)
	}
}

// soonUnchanged gives it a moment.
func (p *pair) soonUnchanged(before string) {
	p.t.Helper()
	eventually(p.t, func() error {
		if now := p.attached(); now != before {
			return fmt.Errorf("at v0 is\n%s: want\n%s", now, before)
		}
		return nil
	})
}

func clsact(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

// withMounts runs p's commands in a mount namespace of their own, prepared by a script.
func (p *pair) withMounts(script string) {
	p.t.Helper()
	holder := exec.Command("unshare", "-m", "sh", "-ec", script+"; echo ready; exec sleep 1000")
	out := &output{}
	holder.Stdout, holder.Stderr = out, out
	p.near.Start(holder)
	out.await(p.t, "ready")
	p.wrap = []string{"nsenter", "-m", "-t", fmt.Sprint(holder.Process.Pid)}
}
