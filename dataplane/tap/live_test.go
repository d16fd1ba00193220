package tap_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/nettest"
)

// built is the folder of the command, where it was built.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// shaper is the command, built once.
var shaper = sync.OnceValues(func() (string, error) {
	var err error
	if built, err = os.MkdirTemp("", "shaper-tap-test-"); err != nil {
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

// patience is for what should take no time.
const patience = 20 * time.Second

// world is two namespaces joined by a veth pair, v0 in both. Commands run in
// near.
type world struct {
	t         *testing.T
	near, far *nettest.Namespace
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("%v: modprobe tun", err)
	}
	return another(t)
}

// another is one more world of a test.
func another(t *testing.T) *world {
	t.Helper()
	w := &world{t, nettest.New(t), nettest.New(t)}
	w.near.Veth(w.far)
	return w
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

func (w *world) command(args ...string) *exec.Cmd {
	w.t.Helper()
	path, err := shaper()
	if err != nil {
		w.t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// start starts a command, which is killed at the end of the test.
func (w *world) start(cmd *exec.Cmd) *process {
	w.t.Helper()
	r := &process{t: w.t, cmd: cmd}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	w.near.Start(r.cmd)
	return r
}

// tap runs shaper tap t0, and waits until it carries frames.
func (w *world) tap(args ...string) *process {
	w.t.Helper()
	return w.carry("t0", args...)
}

// carry is tap with another name.
func (w *world) carry(name string, args ...string) *process {
	w.t.Helper()
	r := w.start(w.command(append([]string{"tap", name}, args...)...))
	eventually(w.t, func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
		if _, state, _ := strings.Cut(string(stat), ") "); err == nil && strings.HasPrefix(state, "Z") {
			w.t.Fatalf("%v ended: %q, stderr %q", r.cmd.Args, &r.out, &r.err)
		}
		if !strings.Contains(r.out.String(), "moving frames to and from") {
			return fmt.Errorf("nothing is carried: %q, stderr %q", &r.out, &r.err)
		}
		return nil
	})
	return r
}

func (r *process) signal(s os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// wait waits for the end and wants an exit code.
func (r *process) wait(code int) {
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
	if got := r.cmd.ProcessState.ExitCode(); got != code {
		r.t.Fatalf("%v: exit %d: want %d: %q, stderr %q", r.cmd.Args, got, code, &r.out, &r.err)
	}
}

// term ends it as systemd does.
func (r *process) term() {
	r.t.Helper()
	r.signal(syscall.SIGTERM)
	r.wait(0)
}

// do runs a command to its end and wants an exit code.
func (w *world) do(code int, args ...string) (stdout, stderr string) {
	w.t.Helper()
	r := w.start(w.command(args...))
	r.wait(code)
	return r.out.String(), r.err.String()
}

// fails wants one line on stderr, and nothing on stdout.
func (w *world) fails(code int, pattern string, args ...string) {
	w.t.Helper()
	r := w.start(w.command(args...))
	r.wait(code)
	r.failed(pattern)
}

func (r *process) failed(pattern string) {
	r.t.Helper()
	stdout, stderr := r.out.String(), r.err.String()
	matched, err := regexp.MatchString("^shaper: "+pattern+"$", strings.TrimSuffix(stderr, "\n"))
	if err != nil {
		r.t.Fatal(err)
	}
	if !matched || strings.Count(stderr, "\n") != 1 || stdout != "" {
		r.t.Errorf("%v: %q on stderr, %q on stdout: want one line on stderr, %q", r.cmd.Args, stderr, stdout, pattern)
	}
}

// matches wants a text to be as a regular expression says.
func matches(t *testing.T, text, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("%q: want %q", text, pattern)
	}
}

// exists says whether there is a device where commands run.
func (w *world) exists(name string) (yes bool) {
	w.near.Do(func() {
		_, err := netlink.LinkByName(name)
		yes = err == nil
	})
	return yes
}

// count is a number of packets and bytes in JSON.
type count struct{ Packets, Bytes int64 }

// stats is a direction of shaper stats --json.
type stats struct {
	Interface, Direction, State, Hook, Policy, Peer string

	Attached bool
	Process  int
	Classes  []struct {
		Name string
		count
		Green, Yellow, Red struct {
			count
			Dropped map[string]count
			Queued  count
		}
		Dropped, Marked, Queued count
		Meters                  []struct {
			Name, Type, Per string

			Keys    struct{ Keys, Evicted, Refused int64 }
			Buckets []struct {
				Name          string
				Tokens, Burst int64
			}
		}
	}
}

// stats returns what shaper stats says.
func (w *world) stats(args ...string) (list []stats) {
	w.t.Helper()
	stdout, _ := w.do(0, append([]string{"stats", "--json"}, args...)...)
	for line := range strings.Lines(stdout) {
		var s stats
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			w.t.Fatalf("%v in %q", err, line)
		}
		list = append(list, s)
	}
	return list
}

// counted waits until the first class has counted n packets.
func (w *world) counted(n int64) stats {
	w.t.Helper()
	var s stats
	eventually(w.t, func() error {
		if s = w.stats()[0]; s.Classes[0].Packets != n {
			return fmt.Errorf("counted %+v: want %d packets", s, n)
		}
		return nil
	})
	return s
}

// packet is an IPv4 packet of n bytes for anybody.
func packet(n int) []byte {
	f := make([]byte, 14+n)
	copy(f, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x09\x08\x00")
	copy(f[14:], []byte{0x45, 0, byte(n >> 8), byte(n), 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, 9, 10, 0, 0, 8})
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(f[i])<<8 | uint32(f[i+1])
	}
	sum = sum>>16 + sum&0xffff
	f[24], f[25] = ^byte(sum>>8), ^byte(sum)
	return f
}

func packets(k, n int) (list [][]byte) {
	for range k {
		list = append(list, packet(n))
	}
	return list
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

const (
	// never is a meter that never limits.
	never = "token-bucket rate=1tbit burst=1GB"
	// ladder colors the first 3 packets green, the next 2 yellow, others red.
	ladder = "srtcm cir=1p/1000s cbs=3 ebs=2 count=packets"
)

// TestLiveTap holds that a policy is at work both ways, each with meters of its
// own, and what is said about it.
func TestLiveTap(t *testing.T) {
	w := newWorld(t)
	r := w.tap("--uplink", "v0", "--direction", "both", "--meter", ladder, "--yellow", "dscp=af12")
	r.out.await(t, `^t0 egress: moving frames to and from v0, policy .* \(1 class\)\nt0 ingress: moving frames to and from v0, .*\n$`)
	far, near := w.far.Sniff("v0"), w.near.Sniff("t0")
	w.near.Inject("t0", packets(7, 100)...)
	w.far.Inject("v0", packets(4, 200)...)
	if !far.Wait(5, patience) || !near.Wait(4, patience) {
		t.Error("not all came")
	}
	for i, s := range []*nettest.Sniffer{far, near} {
		want := [][2]int{{5, 100}, {4, 200}}[i]
		frames := s.Stop()
		if len(frames) != want[0] {
			t.Errorf("%d frames came: want %d", len(frames), want[0])
		}
		for k, f := range frames {
			if dscp := f.Data[15] >> 2; len(f.Data) != 14+want[1] || (dscp == 12) != (k >= 3) {
				t.Errorf("frame %d has %d bytes, DSCP %d", k, len(f.Data), dscp)
			}
		}
	}
	status, _ := w.do(0, "status")
	matches(t, status, fmt.Sprintf(`^t0 egress: running in process %d\n  between  t0 and v0\n  policy   .*\(1 class\),\s+loaded .*\n  since .*\n\nt0 ingress: running in process %[1]d\n`, r.cmd.Process.Pid))
	out, _ := w.do(0, "status", "t0", "--json")
	matches(t, out, `"interface":"t0","direction":"egress".*"hook":"tap".*"peer":"v0"`)
	table, _ := w.do(0, "stats", "t0")
	matches(t, table, `green .* 3 `)
	list := w.stats()
	if len(list) != 2 {
		t.Fatalf("stats %+v", list)
	}
	for i, s := range list {
		c := s.Classes[0]
		want := count{[]int64{7, 4}[i], []int64{700, 800}[i]}
		if s.Interface != "t0" || s.Direction != []string{"egress", "ingress"}[i] || s.Hook != "tap" || s.Peer != "v0" || !s.Attached || s.Process != r.cmd.Process.Pid ||
			c.count != want || c.Green.Packets != 3 || c.Yellow.Packets != []int64{2, 1}[i] || c.Dropped.Packets != []int64{2, 0}[i] || c.Marked.Packets != c.Yellow.Packets {
			t.Errorf("stats %+v: want %v", s, want)
		}
		if b := c.Meters[0].Buckets; b[0].Tokens != 0 || b[0].Burst != 3 || b[1].Tokens != []int64{0, 1}[i] {
			t.Errorf("tokens %+v", b)
		}
	}
	w.fails(1, "there is no interface eth9", "stats", "eth9")
	r.term()
	matches(t, r.out.String(), `(?s)t0 egress: ended\n.*t0 ingress: ended\n$`)
	if w.exists("t0") {
		t.Error("t0 is there still")
	}
	w.fails(1, "no shaper is attached: .*", "stats")
}

// TestLiveTapKeys counts the keys of a meter that has one for each source.
func TestLiveTapKeys(t *testing.T) {
	w := newWorld(t)
	r := w.tap("--uplink", "v0", "--meter", "fixed-window limit=150 window=366d per=src keys=2", "--metrics", ":0")
	w.near.Inject("t0", packets(3, 100)...) // of one source: the window holds one
	s := w.counted(3)
	if c := s.Classes[0]; c.Green.Packets != 1 || c.Dropped.Packets != 2 || c.Meters[0].Per != "src" || c.Meters[0].Keys.Keys != 1 {
		t.Errorf("stats %+v", s)
	}
	table, _ := w.do(0, "stats", "t0")
	matches(t, table, `all per src: 1 of 2 keys, 0 evicted, 0 refused`)
	body, err := w.metrics(r)()
	if err != nil {
		t.Fatal(err)
	}
	matches(t, body, `shaper_keys{class="all",direction="egress",interface="t0",.*} 1\n`)
	matches(t, body, `shaper_keys_evicted_total{class="all",direction="egress",interface="t0",.*} 0\n`)
	r.term()
}

// TestLiveTapOneDirection holds that commands can be told one direction of two.
func TestLiveTapOneDirection(t *testing.T) {
	w := newWorld(t)
	r := w.tap("--uplink", "v0", "--direction", "both", "--meter", never)
	for _, direction := range []string{"egress", "ingress"} {
		list := w.stats("--direction", direction)
		if len(list) != 1 || list[0].Direction != direction || !list[0].Attached {
			t.Errorf("stats %+v: want %s, attached", list, direction)
		}
		r := w.start(w.command("reload", "--direction", direction, "--meter", ladder))
		r.wait(0)
		matches(t, r.out.String(), "^t0 "+direction+": .*\n.*kept\n$")
	}
	r.term()
}

// TestLiveTapReload gives it other policies: from a file, by SIGHUP, and wrong
// ones, which change nothing.
func TestLiveTapReload(t *testing.T) {
	w := newWorld(t)
	const text = "classes:\n  - name: %s\n    meter: {type: token-bucket, rate: 1B/1000s, burst: %d}\n"
	path := file(t, fmt.Sprintf(text, "all", 1000))
	r := w.tap("--uplink", "v0", "--policy", path)
	w.near.Inject("t0", packets(4, 100)...)
	w.counted(4)
	tokens := func(want, burst int64) {
		t.Helper()
		if b := w.stats()[0].Classes[0].Meters[0].Buckets[0]; b.Tokens != want || b.Burst != burst {
			t.Errorf("%+v: want %d tokens of %d", b, want, burst)
		}
	}
	tokens(600, 1000)
	rewrite(t, path, fmt.Sprintf(text, "all", 500))
	out, _ := w.do(0, "reload")
	matches(t, out, `^t0 egress: .*\n.*class all: kept\n`)
	tokens(500, 500)
	rewrite(t, path, fmt.Sprintf(text, "all", 400))
	r.signal(syscall.SIGHUP)
	r.out.await(t, `class all: kept`)
	tokens(400, 400)
	w.counted(4)
	rewrite(t, path, "classes:\n  - name: all\n    metre: {}\n")
	r.signal(syscall.SIGHUP)
	r.err.await(t, `shaper: .*policy\.yaml:3:5: .*: the policy is unchanged\n`)
	w.fails(2, `.*policy\.yaml:3:5: .*`, "reload")
	w.near.Inject("t0", packets(1, 100)...)
	w.counted(5)
	tokens(300, 400)
	out, _ = w.do(0, "reload", "t0", "--json", "--meter", never)
	matches(t, out, `"interface":"t0","direction":"egress".*"class":"all","change":"kept"`)
	if s := w.counted(5); s.Classes[0].Meters[0].Buckets[0].Burst != 1e9 {
		t.Errorf("stats %+v", s)
	}
	out, _ = w.do(0, "detach")
	if out != "t0 egress: detached\n" {
		t.Errorf("detach says %q", out)
	}
	r.wait(0)
	w.fails(1, "no shaper is attached: .*", "detach")
}

// TestLiveTapConfirm holds that what it cannot promise changes nothing.
func TestLiveTapConfirm(t *testing.T) {
	w := newWorld(t)
	r := w.tap("--uplink", "v0", "--meter", ladder)
	w.fails(1, "--confirm is not supported by shaper tap", "reload", "--meter", never, "--confirm", "1s")
	if b := w.stats()[0].Classes[0].Meters[0].Buckets[0]; b.Burst != 3 {
		t.Errorf("its policy changed: %+v", b)
	}
	w.fails(1, "t0: nothing to confirm: .*", "confirm")
	r.term()
}

// TestLiveTapReloadUnderWay reads statistics and metrics while the number of
// classes changes.
func TestLiveTapReloadUnderWay(t *testing.T) {
	w := newWorld(t)
	var b strings.Builder
	b.WriteString("classes:\n")
	for i := range 60 {
		fmt.Fprintf(&b, "  - {name: c%d, match: {dport: %d}, meter: {type: token-bucket, rate: 1mbit, burst: 10kB}}\n", i, 1+i)
	}
	many, one := file(t, b.String()), file(t, "classes: [{name: all}]\n")
	r := w.tap("--uplink", "v0", "--policy", many, "--metrics", ":0")
	get := w.metrics(r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			if _, err := get(); err != nil {
				t.Errorf("metrics: %v", err)
				return
			}
		}
	}()
	conn := w.dial("t0", 0)
	client := rpc.NewClient(conn)
	defer client.Close()
	type policy struct {
		Direction uint8
		Label     json.RawMessage
	}
	var both []policy
	for _, path := range []string{one, many} {
		w.do(0, "reload", "--policy", path)
		var list []struct {
			About struct {
				Direction uint8
				Label     json.RawMessage
			}
		}
		if err := client.Call("control.Take", struct{}{}, &list); err != nil {
			t.Fatal(err)
		}
		both = append(both, policy{list[0].About.Direction, list[0].About.Label})
	}
	for i := 0; ; i++ {
		select {
		case <-done:
			r.term()
			return
		default:
		}
		var changes []struct{ Class, What string }
		if err := client.Call("control.Reload", both[i%2], &changes); err != nil {
			t.Fatalf("%v: %q", err, &r.err)
		}
		if len(changes) != 61 {
			t.Fatalf("changes %v", changes)
		}
		if i%20 == 0 {
			w.do(0, "stats")
		}
	}
}

// metrics returns a function that reads what --metrics serves.
func (w *world) metrics(r *process) func() (string, error) {
	w.t.Helper()
	r.err.await(w.t, `metrics at http://.*/metrics\n`)
	address := regexp.MustCompile(`http://(\S+)/metrics`).FindStringSubmatch(r.err.String())
	to, err := net.ResolveTCPAddr("tcp4", address[1])
	if err != nil {
		w.t.Fatal(err)
	}
	if !to.IP.IsLoopback() {
		w.t.Errorf("metrics at %v", to)
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
		w.near.Do(func() { conn, err = net.DialTCP("tcp4", nil, to) })
		return conn, err
	}}}
	w.t.Cleanup(client.CloseIdleConnections)
	return func() (string, error) {
		response, err := client.Get(address[0])
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, body)
		}
		return string(body), err
	}
}

func TestLiveTapMetrics(t *testing.T) {
	w := newWorld(t)
	r := w.tap("--uplink", "v0", "--direction", "both", "--meter", ladder, "--metrics", ":0")
	w.near.Inject("t0", packets(7, 100)...)
	w.counted(7)
	body, err := w.metrics(r)()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`shaper_info{direction="egress",.*hook="tap",interface="t0"`,
		`shaper_packets_total{class="all",color="green",direction="egress",interface="t0"} 3\n`,
		`shaper_dropped_packets_total{class="all",color="red",direction="egress",interface="t0",reason="color"} 2\n`,
		`shaper_packets_total{class="all",color="green",direction="ingress",interface="t0"} 0\n`,
		`shaper_tokens{bucket="Tc",class="all",direction="egress",interface="t0",.*} 0\n`,
	} {
		matches(t, body, want)
	}
	r.term()
}

// TestLiveTapFor holds that it ends by itself.
func TestLiveTapFor(t *testing.T) {
	w := newWorld(t)
	r := w.start(w.command("tap", "t0", "--uplink", "v0", "--meter", never, "--for", "300ms"))
	r.wait(0)
	matches(t, r.out.String(), `(?s)^t0 egress: carried .*t0 egress: ended\n$`)
	if r.err.String() != "" {
		t.Errorf("stderr %q", &r.err)
	}
}

// TestLiveTapPeer holds that two TAP devices can be joined, with some queues.
func TestLiveTapPeer(t *testing.T) {
	w := newWorld(t)
	r := w.tap("--peer", "t1", "--queues", "3", "--mtu", "9000", "--meter", ladder)
	s := w.near.Sniff("t1")
	w.near.Inject("t0", packets(7, 8000)...)
	if !s.Wait(5, patience) {
		t.Error("not all came")
	}
	w.counted(7)
	if frames := s.Stop(); len(frames) != 5 || len(frames[0].Data) != 8014 {
		t.Errorf("%d frames came", len(frames))
	}
	status, _ := w.do(0, "status", "t0")
	matches(t, status, `between t0 and t1\n`)
	w.near.Delete("t1")
	r.wait(1)
	matches(t, r.err.String(), `^shaper: t1: the device is gone\n$`)
	matches(t, r.out.String(), `(?s)t0 egress: ended\n$`)
	if w.exists("t0") {
		t.Error("t0 is there still")
	}
}

// TestLiveTapUsage holds that what is wrong ends it, by one line, and leaves
// nothing behind.
func TestLiveTapUsage(t *testing.T) {
	w := newWorld(t)
	with := func(args ...string) []string {
		return append([]string{"tap", "t0", "--uplink", "v0", "--meter", never}, args...)
	}
	for _, row := range []struct {
		code    int
		message string
		args    []string
	}{
		{2, "want one TAP device, got 0: see shaper tap --help", []string{"tap"}},
		{2, "give --uplink IFACE or --peer NAME", []string{"tap", "t0", "--meter", never}},
		{2, "give --uplink IFACE or --peer NAME", with("--peer", "t1")},
		{2, "--queues 0: want 1 to 256", with("--queues", "0")},
		{2, "--queues 257: want 1 to 256", with("--queues", "257")},
		{2, "--mtu 67: want 68 to 65521 bytes", with("--mtu", "67")},
		{2, "--mtu 65522: .*", with("--mtu", "65522")},
		{2, `--memory "0": .*`, with("--memory", "0")},
		{2, `--memory "1k": .*`, with("--memory", "1k")},
		{2, `.*--for.*`, with("--for", "-1s")},
		{2, `.*--drain.*`, with("--drain", "-1s")},
		{2, `.*egress, ingress or both.*`, with("--direction", "up")},
		{2, `--metrics "9090": .*`, with("--metrics", "9090")},
		{2, `a policy is missing.*`, []string{"tap", "t0", "--uplink", "v0"}},
		{2, `.*nothing.*`, []string{"tap", "t0", "--uplink", "v0", "--meter", "nothing rate=1mbit"}},
		{1, `open uplink: there is no interface eth9: --wait waits for it to appear`, []string{"tap", "t0", "--uplink", "eth9", "--meter", never}},
		{1, `open tap "v0": there is a device of this name, of type veth: choose another name`, []string{"tap", "v0", "--uplink", "v0", "--meter", never}},
		{1, `open tap "a23456789012345x": the name has 16 bytes: .*`, []string{"tap", "a23456789012345x", "--uplink", "v0", "--meter", never}},
		{1, `open tap "t0": .*busy.*`, []string{"tap", "t0", "--peer", "t0", "--meter", never}},
	} {
		w.fails(row.code, row.message, row.args...)
		if w.exists("t0") {
			t.Fatalf("%v: t0 is there still", row.args)
		}
	}
	r := w.tap("--uplink", "v0", "--meter", never)
	w.fails(1, `open tap "t0": .*busy: a program holds it: .*`, with()...)
	w.counted(0)
	r.term()
}

// TestLiveTapGone holds that it waits for an uplink that vanished, and goes on
// with counters and tokens when it is back.
func TestLiveTapGone(t *testing.T) {
	w := newWorld(t)
	r := w.tap("--uplink", "v0", "--meter", "token-bucket rate=1p/1000s burst=4 count=packets")
	w.near.Inject("t0", packets(1, 100)...)
	w.counted(1)
	for i := range 2 {
		w.near.Delete("v0")
		r.err.await(t, fmt.Sprintf("^(shaper: v0 is gone: waiting for it to come back\n(shaper: v0 is back\n)?){%d}$", i+1))
		w.counted(int64(1 + i))
		w.near.Veth(w.far)
		r.err.await(t, fmt.Sprintf("^(shaper: v0 is gone: .*\nshaper: v0 is back\n){%d}$", i+1))
		s := w.far.Sniff("v0")
		w.near.Inject("t0", packets(1, 100)...)
		if !s.Wait(1, patience) {
			t.Error("it does not go on")
		}
		if got := w.counted(int64(2 + i)).Classes[0].Meters[0].Buckets[0].Tokens; got != int64(2-i) {
			t.Errorf("%d tokens: want %d", got, 2-i)
		}
	}
	w.near.Delete("v0")
	r.err.await(t, "(?s)back.*back.*gone: .*\n$")
	r.term()
	w = &world{t, w.near, w.far}
	w.near.Veth(w.far)
	r = w.tap("--uplink", "v0", "--meter", never)
	w.near.Delete("t0")
	r.wait(1)
	matches(t, r.err.String(), "^shaper: t0: the device is gone\n$")
	w.near.Delete("v0")
	r = w.start(w.command("tap", "t0", "--uplink", "v0", "--wait", "--meter", never))
	r.err.await(t, "^shaper: there is no interface v0 yet: waiting for it to appear\n$")
	r.term()
	r = w.start(w.command("tap", "t0", "--uplink", "v0", "--wait", "--meter", never))
	r.err.await(t, "waiting")
	w.near.Veth(w.far)
	r.out.await(t, "moving frames to and from v0")
	r.term()
}

// slow is a queue in which a packet of 1000 bytes takes 100 ms.
const slow = "queues: {q: {rate: 80kbit, limit: 100s}}\nclasses: [{name: all, green: {queue: q}}]\n"

// TestLiveTapDrain holds that what waits at the end leaves, for as long as it
// may, and that the rest is told.
func TestLiveTapDrain(t *testing.T) {
	for drain, least := range map[string]int{"20s": 15, "250ms": 2, "0s": 0} {
		t.Run(drain, func(t *testing.T) {
			w := newWorld(t)
			r := w.tap("--uplink", "v0", "--policy", file(t, slow), "--drain", drain)
			s := w.far.Sniff("v0")
			w.near.Inject("t0", packets(15, 1000)...)
			eventually(t, func() error {
				if out, _ := w.do(0, "stats", "--json"); !strings.Contains(out, `"packets":15,`) {
					return errors.New(out)
				}
				return nil
			})
			r.term()
			frames := s.Stop()
			lost := 15 - len(frames)
			if len(frames) < least || least < 15 && lost == 0 {
				t.Errorf("%d packets came, want %d or more", len(frames), least)
			}
			if text := fmt.Sprintf("t0 egress: lost %d packets still queued at the end\n", lost); lost > 0 != strings.Contains(r.out.String(), text) {
				t.Errorf("%q: %d are lost", &r.out, lost)
			}
			for i := 1; i < len(frames); i++ { // none early
				if gap := frames[i].Time - frames[0].Time; gap < int64(i)*int64(100*time.Millisecond)-int64(50*time.Millisecond) {
					t.Errorf("packet %d came %d ns after the first", i, gap)
				}
			}
		})
	}
}

// TestLiveTapKilled holds that nothing is left of one that is killed.
func TestLiveTapKilled(t *testing.T) {
	w := newWorld(t)
	for range 2 {
		r := w.tap("--uplink", "v0", "--policy", file(t, slow), "--queues", "2")
		w.near.Inject("t0", packets(15, 1000)...)
		r.signal(syscall.SIGKILL)
		r.wait(-1)
		if w.exists("t0") {
			t.Error("t0 is there still")
		}
		out, _ := w.do(0, "status")
		if out != "no shaper is attached in this network namespace\n" {
			t.Errorf("status %q", out)
		}
	}
}

// nobody is a user without privilege.
const nobody = 65534

// TestLiveTapUnprivileged holds that others than root are told what they need.
func TestLiveTapUnprivileged(t *testing.T) {
	w := newWorld(t)
	cmd := w.command("tap", "t0", "--uplink", "v0", "--meter", never)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	r := w.start(cmd)
	r.wait(1)
	// Of some machines /dev/net/tun is open to all, of others to root.
	r.failed(`open tap "t0": .*: run as root, or with CAP_NET_ADMIN( and access to it)?`)
	if w.exists("t0") {
		t.Error("t0 is there")
	}
}

// as runs f as a user, on a thread in the namespace of the commands.
func (w *world) as(uid int, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		w.near.Do(func() {
			set := func(uid int) error {
				if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
					return errno
				}
				return nil
			}
			err := set(uid)
			if err == nil {
				err = f()
			}
			result <- errors.Join(err, set(0))
		})
	}()
	return <-result
}

// dial connects to the control socket as a user.
func (w *world) dial(name string, uid int) (conn net.Conn) {
	w.t.Helper()
	err := w.as(uid, func() (err error) {
		conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: "@shaper-tap:" + name, Net: "unix"})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// TestLiveTapForeign holds that other users can neither control it nor pretend
// to be one.
func TestLiveTapForeign(t *testing.T) {
	w := newWorld(t)
	r := w.tap("--uplink", "v0", "--meter", never)
	for _, uid := range []int{nobody, 0} {
		conn := w.dial("t0", uid)
		_ = conn.SetDeadline(time.Now().Add(patience))
		client := rpc.NewClient(conn)
		var list []struct{ About struct{ Interface string } }
		err := client.Call("control.Take", struct{}{}, &list)
		if (err == nil) != (uid == 0) || (len(list) == 1) != (uid == 0) {
			t.Errorf("user %d gets %+v, %v", uid, list, err)
		}
		if uid != 0 {
			if err := client.Call("control.End", struct{}{}, &struct{}{}); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("user %d ends it: %v", uid, err)
			}
			w.counted(0)
		}
		client.Close()
	}
	r.term()

	var fake net.Listener
	if err := w.as(nobody, func() (err error) {
		fake, err = net.Listen("unix", "@shaper-tap:t0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	go func() {
		conn, err := fake.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
			asked <- fmt.Errorf("read %d, %w", n, err)
		}
		close(asked)
	}()
	out, _ := w.do(0, "status")
	if out != "no shaper is attached in this network namespace\n" {
		t.Errorf("status %q", out)
	}
	if err := <-asked; err != nil {
		t.Errorf("it was asked: %v", err)
	}
	fake.Close()
}
