package kernel_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/internal/nettest"
)

// inVM says that the test runs in an emulated machine, about ten times slower.
var inVM = os.Getenv("SHAPER_VM") != ""

// built is the folder of the command, where it was built.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// shaper is the command: in a VM it comes with it, else it is built once.
var shaper = sync.OnceValues(func() (string, error) {
	if inVM {
		return exec.LookPath("shaper")
	}
	var err error
	if built, err = os.MkdirTemp("", "shaper-live-test-"); err != nil {
		return "", err
	}
	if err := os.Chmod(built, 0o755); err != nil { // some run it without privilege
		return "", err
	}
	path := filepath.Join(built, "shaper")
	out, err := exec.Command("go", "build", "-o", path, "../../cmd/shaper").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

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
	p := &pair{t: t, near: nettest.New(t), far: nettest.New(t)}
	p.near.Veth(p.far)
	return p
}

// withBpffs gives the commands a bpffs, in a mount namespace of their own
// where the machine has none.
func (p *pair) withBpffs() {
	var s unix.Statfs_t
	if unix.Statfs("/sys/fs/bpf", &s) == nil && s.Type == unix.BPF_FS_MAGIC {
		return
	}
	holder := exec.Command("unshare", "-m", "sh", "-c", "mount -t bpf bpf /sys/fs/bpf && echo ready && exec sleep 1000")
	out := &output{}
	holder.Stdout = out
	p.near.Start(holder)
	out.await(p.t, "ready")
	p.wrap = []string{"nsenter", "-m", "-t", fmt.Sprint(holder.Process.Pid)}
}

// withoutBpffs skips the test where the machine has one.
func (p *pair) withoutBpffs() {
	var s unix.Statfs_t
	if unix.Statfs("/sys/fs/bpf", &s) == nil && s.Type == unix.BPF_FS_MAGIC {
		p.t.Skip("bpffs is mounted here")
	}
}

// output is what a process wrote so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

// String leaves out warnings about policies, which most policies of tests are
// worth.
func (o *output) String() string {
	return warning.ReplaceAllString(o.all(), "")
}

var warning = regexp.MustCompile(`(?m)^shaper: warning: .*\n`)

func (o *output) warnings() []string { return warning.FindAllString(o.all(), -1) }

func (o *output) all() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// patience is for what should take no time.
var patience = func() time.Duration {
	if inVM {
		return time.Minute
	}
	return 20 * time.Second
}()

// hereOnly skips a test in a VM, where it takes long and the kernel's age does
// not matter to it.
func hereOnly(t *testing.T) {
	t.Helper()
	if inVM {
		t.Skip("not in a VM: it would take long and show nothing new")
	}
}

// notOlder skips a test in the older of the kernels in VMs.
func notOlder(t *testing.T) {
	t.Helper()
	if inVM && !haveTCX() {
		t.Skip("another kernel in a VM shows it")
	}
}

// await waits for a text, a regular expression.
func (o *output) await(t *testing.T, text string) {
	t.Helper()
	want := regexp.MustCompile(text)
	eventually(t, func() error {
		if !want.MatchString(o.String()) {
			return fmt.Errorf("no %q in output %q", text, o)
		}
		return nil
	})
}

func eventually(t *testing.T, try func() error) {
	t.Helper()
	err := try()
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); err = try() {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// process is a shaper that runs.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err output
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

func (r *process) attached() {
	r.t.Helper()
	eventually(r.t, func() error {
		if r.ended() {
			r.t.Fatalf("%v ended: %q, stderr %q", r.cmd.Args, &r.out, &r.err)
		}
		if !strings.Contains(r.out.String(), "attached by") {
			return fmt.Errorf("nothing attached: %q, stderr %q", &r.out, &r.err)
		}
		return nil
	})
}

// ended says whether it is a zombie.
func (r *process) ended() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(state, "Z")
}

func (r *process) signal(s os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// wait waits for the end and returns the exit code.
func (r *process) wait() int {
	r.t.Helper()
	done := make(chan struct{})
	go func() {
		_ = r.cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		r.t.Fatalf("%v does not end: %q, stderr %q", r.cmd.Args, &r.out, &r.err)
	}
	return r.cmd.ProcessState.ExitCode()
}

// term ends it as systemd does.
func (r *process) term() {
	r.t.Helper()
	r.signal(syscall.SIGTERM)
	if code := r.wait(); code != 0 {
		r.t.Errorf("exit %d after SIGTERM: %q, stderr %q", code, &r.out, &r.err)
	}
}

func (r *process) kill() {
	r.t.Helper()
	r.signal(syscall.SIGKILL)
	r.wait()
}

// do runs a command to its end and wants an exit code.
func (p *pair) do(code int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	r := p.start(args...)
	if got := r.wait(); got != code {
		p.t.Fatalf("shaper %v: exit %d: want %d: %q, stderr %q", args, got, code, &r.out, &r.err)
	}
	return r.out.String(), r.err.String()
}

// fails wants one line on stderr, and nothing on stdout.
func (p *pair) fails(code int, pattern string, args ...string) {
	p.t.Helper()
	stdout, stderr := p.do(code, args...)
	matched, err := regexp.MatchString("^shaper: "+pattern+"$", strings.TrimSuffix(stderr, "\n"))
	if err != nil {
		p.t.Fatal(err)
	}
	if !matched || strings.Count(stderr, "\n") != 1 || stdout != "" {
		p.t.Errorf("shaper %v: %q on stderr, %q on stdout: want one line on stderr, %q", args, stderr, stdout, pattern)
	}
}

// count is a number of packets and bytes in JSON.
type count struct{ Packets, Bytes int64 }

type colorStats struct {
	count
	Rate    int64 `json:"rate_bit_s"`
	Dropped map[string]count
	Marked  count
}

type classStats struct {
	Name string
	count
	Rate               int64 `json:"rate_bit_s"`
	Green, Yellow, Red colorStats
	Dropped, Marked    count
	Meters             []struct {
		Name, Type string
		Buckets    []struct {
			Name          string
			Tokens, Burst int64
		}
	}
}

type shaperStats struct {
	Interface, Direction, State, Hook, Policy, Kernel string

	Attached, Pinned bool
	DryRun           bool   `json:"dry_run"`
	XDPMode          string `json:"xdp_mode"`
	ProgramID        uint32 `json:"program_id"`
	Process          int
	Unconfirmed      *time.Time `json:"unconfirmed_until"`
	Classes          []classStats
}

// stats returns what shaper stats says of the only shaper.
func (p *pair) stats(args ...string) shaperStats {
	p.t.Helper()
	stdout, _ := p.do(0, append([]string{"stats", "--json"}, args...)...)
	return decode[shaperStats](p.t, stdout)
}

func decode[T any](t *testing.T, text string) (out T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return out
}

func (s *shaperStats) class(t *testing.T, name string) *classStats {
	t.Helper()
	for i := range s.Classes {
		if s.Classes[i].Name == name {
			return &s.Classes[i]
		}
	}
	t.Fatalf("no class %s in %+v", name, s)
	return nil
}

// sum is what all classes counted, with what no class took.
func (s *shaperStats) sum() (c count) {
	for i := range s.Classes {
		c.Packets += s.Classes[i].Packets
		c.Bytes += s.Classes[i].Bytes
	}
	return c
}

// file writes a policy.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	rewrite(t, path, text)
	return path
}

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// never is a meter that never limits.
const never = "token-bucket rate=1tbit burst=1GB"

// ladder colors the first 3 packets green, the next 2 yellow, and others red.
const ladder = "srtcm cir=1p/1000s cbs=3 ebs=2 count=packets"

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
		t.Skip("this kernel has no TCX, which begins with 6.6")
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

// foreign is a program of somebody else. It counts packets, keeps their mark,
// and lets them pass.
type foreign struct {
	t       *testing.T
	program *ebpf.Program
	values  *ebpf.Map
}

// newForeign makes one. At tc it returns verdict, or what redirecting to a
// device returns where that is not 0.
func newForeign(t *testing.T, kind ebpf.ProgramType, verdict int32, redirect int) *foreign {
	t.Helper()
	f := &foreign{t: t}
	var err error
	f.values, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.values.Close() })
	value := func(key int32) asm.Instructions {
		return asm.Instructions{
			asm.StoreImm(asm.RFP, -4, int64(key), asm.Word),
			asm.LoadMapPtr(asm.R1, f.values.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
		}
	}
	in := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	in = append(in, value(0)...)
	in = append(in, asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord))
	if kind == ebpf.SchedCLS {
		in = append(in, value(1)...)
		in = append(in, asm.LoadMem(asm.R1, asm.R6, 8, asm.Word), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord))
	}
	if redirect != 0 {
		in = append(in, asm.Mov.Imm(asm.R1, int32(redirect)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return())
	}
	in = append(in, asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"), asm.Return())
	f.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "foreign", Type: kind, Instructions: in, License: "GPL"})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { f.program.Close() })
	return f
}

func (f *foreign) get(key uint32) (v uint64) {
	f.t.Helper()
	if err := f.values.Lookup(key, &v); err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (f *foreign) packets() uint64 { return f.get(0) }
func (f *foreign) mark() uint64    { return f.get(1) }

func clsact(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

// filter attaches it to v0 as a tc filter, and clsact if it is missing.
func (f *foreign) filter(n *nettest.Namespace, direction string) {
	f.t.Helper()
	index := n.Index("v0")
	parent := uint32(netlink.HANDLE_MIN_EGRESS)
	if direction == "ingress" {
		parent = netlink.HANDLE_MIN_INGRESS
	}
	n.Do(func() {
		err := netlink.QdiscAdd(clsact(index))
		if errors.Is(err, unix.EEXIST) {
			err = nil
		}
		if err == nil {
			err = netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Priority: 50000, Protocol: unix.ETH_P_ALL},
				Fd:          f.program.FD(), Name: "foreign", DirectAction: true,
			})
		}
		if err != nil {
			f.t.Fatal(err)
		}
	})
}

// tcx attaches it to v0 by a link, at the head or the tail.
func (f *foreign) tcx(n *nettest.Namespace, direction string, anchor link.Anchor) {
	f.t.Helper()
	index := n.Index("v0")
	at := ebpf.AttachTCXEgress
	if direction == "ingress" {
		at = ebpf.AttachTCXIngress
	}
	n.Do(func() {
		l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: f.program, Attach: at, Anchor: anchor})
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { l.Close() })
	})
}

// threadWith runs f on a thread that ends with it, so it may give up what it
// can do.
func threadWith(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}
