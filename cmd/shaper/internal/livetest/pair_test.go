package livetest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// pair is two namespaces connected by a veth pair, v0 in both. Commands run in near.
type pair struct {
	t         *testing.T
	near, far *nettest.Namespace
	wrap      []string // prefix of each command
}

// newPair creates the pair of a parallel test.
func newPair(t *testing.T) *pair {
	t.Helper()
	t.Parallel()
	return anotherPair(t)
}

// anotherPair creates one more pair for a test.
func anotherPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, near: nettest.New(t), far: nettest.New(t)}
	p.near.Veth(p.far)
	return p
}

// newTAPPair is newPair for tests of shaper tap.
func newTAPPair(t *testing.T) *pair {
	t.Helper()
	skipInVM(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("%v: modprobe tun", err)
	}
	return newPair(t)
}

func (p *pair) shaperCommand(args ...string) *exec.Cmd {
	p.t.Helper()
	path, err := buildShaper()
	if err != nil {
		p.t.Fatal(err)
	}
	args = append(append(slices.Clone(p.wrap), path), args...)
	return exec.Command(args[0], args[1:]...)
}

// startShaper starts the command. It is killed when the test ends.
func (p *pair) startShaper(args ...string) *process {
	p.t.Helper()
	cmd := p.shaperCommand(args...)
	if len(args) > 0 && slices.Contains([]string{"confirm", "detach", "set", "stats", "status"}, args[0]) {
		cmd.WaitDelay = waitLimit // it has no children that keep its pipes open
	}
	return p.startCommand(cmd)
}

func (p *pair) startCommand(cmd *exec.Cmd) *process {
	p.t.Helper()
	r := &process{t: p.t, cmd: cmd}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	if r.cmd.SysProcAttr == nil { // without a terminal SIGHUP is a request to reload
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	p.near.Start(r.cmd)
	return r
}

// runShaper starts shaper run on v0 and waits until the policy is attached.
func (p *pair) runShaper(args ...string) *process {
	p.t.Helper()
	r := p.startShaper(append([]string{"run", "v0"}, args...)...)
	r.awaitAttached()
	return r
}

// wantExit runs the command to its end and fails the test if the exit code is another one.
func (p *pair) wantExit(code int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	r := p.startShaper(args...)
	r.wantExit(code)
	return r.out.String(), r.err.String()
}

// wantError runs the command to its end. The command must exit with a code and print one error
// that matches pattern, and nothing on stdout.
func (p *pair) wantError(code int, pattern string, args ...string) {
	p.t.Helper()
	r := p.startShaper(args...)
	r.wantExit(code)
	r.wantErrorLine(pattern)
}

// placement is a hook with a direction.
type placement struct{ hook, direction string }

var placements = func() []placement {
	switch {
	case !inVM:
		return []placement{
			{"tcx", "egress"}, {"tc", "egress"}, {"tcx", "ingress"}, {"tc", "ingress"}, {"xdp", "ingress"},
		}
	case haveTCX():
		return []placement{{"tcx", "egress"}, {"tc", "ingress"}, {"xdp", "ingress"}}
	}
	return []placement{{"tc", "egress"}, {"xdp", "ingress"}}
}()

func (m placement) flags(more ...string) []string {
	return append([]string{"--hook", m.hook, "--direction", m.direction}, more...)
}

// skipIfUnsupported skips the test if the kernel does not have the hook.
func (m placement) skipIfUnsupported(t *testing.T) {
	t.Helper()
	if m.hook == "tcx" && !haveTCX() {
		t.Skip("TCX needs kernel 6.6 or newer")
	}
}

func haveTCX() bool {
	version, err := features.LinuxVersionCode()
	return err != nil || version >= 6<<16|6<<8
}

// senderAndReceiver returns the namespaces between which the shaper in near sees packets.
func (p *pair) senderAndReceiver(m placement) (from, to *nettest.Namespace) {
	if m.direction == "egress" {
		return p.near, p.far
	}
	return p.far, p.near
}

// addresses returns the addresses of the sender and the receiver.
func (p *pair) addresses(m placement, v6 bool) (from, to net.IP) {
	a, b := net.IP{10, 0, 0, 1}, net.IP{10, 0, 0, 2}
	if v6 {
		a, b = net.ParseIP("fd00::1"), net.ParseIP("fd00::2")
	}
	if m.direction == "egress" {
		return a, b
	}
	return b, a
}

// deviceState describes everything attached to v0, as listed by the kernel.
func (p *pair) deviceState() string {
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

// wantState checks that deviceState returns the same text as before.
func (p *pair) wantState(before string) {
	p.t.Helper()
	if now := p.deviceState(); now != before {
		p.t.Errorf("attached to v0:\n%s: want\n%s", now, before)
	}
}

// awaitState waits until deviceState returns the same text as before.
func (p *pair) awaitState(before string) {
	p.t.Helper()
	eventually(p.t, func() error {
		if now := p.deviceState(); now != before {
			return fmt.Errorf("attached to v0:\n%s: want\n%s", now, before)
		}
		return nil
	})
}

func clsactQdisc(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		},
		QdiscType: "clsact",
	}
}

// withMounts runs all later commands in a mount namespace, which a script prepares.
func (p *pair) withMounts(script string) {
	p.t.Helper()
	holder := exec.Command("unshare", "-m", "sh", "-ec", script+"; echo ready; exec sleep infinity")
	out := &output{}
	holder.Stdout, holder.Stderr = out, out
	p.near.Start(holder)
	out.awaitMatch(p.t, "ready")
	p.wrap = []string{"nsenter", "-m", "-t", fmt.Sprint(holder.Process.Pid)}
}
