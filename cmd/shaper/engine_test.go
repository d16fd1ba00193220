package main

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// needRoot skips a test that loads programs into the kernel.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading eBPF programs needs privilege: run the test as root")
	}
}

// TestEngines compares the eBPF program with the pipeline in Go: rows, totals and outputs must
// be identical for every capture, for written and random policies. dataplane/kernel has more
// such tests, without the command.
func TestEngines(t *testing.T) {
	needRoot(t)
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var policies []string
	for _, name := range []string{"layers", "trtcm-mark", "chains", "coupling", "srtcm-aware", "overhead"} {
		text, err := os.ReadFile("internal/oracle/testdata/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, string(text))
	}
	all := testCaptures(t)
	rows := 0
	for i, capture := range all {
		rows += sameByBoth(t, policies[i%len(policies)], capture)
	}
	// Super-packets, which a meter of packets counts by their segments.
	const byPackets = "classes: [{name: all, meter: {type: token-bucket, rate: 10p/1s, burst: 8, count: packets}}]"
	rows += sameByBoth(t, byPackets, "../../testdata/pcaps/voice-bulk.pcapng", "--mss", "100")
	for range 10 {
		policy := randomPolicy(r)
		rows += sameByBoth(t, policy, all[r.IntN(len(all))])
		if t.Failed() {
			t.Fatal(policy)
		}
	}
	if rows < 5000 {
		t.Errorf("only %d rows were compared", rows)
	}
}

// keyCounts matches counts that the kernel does not have.
var keyCounts = regexp.MustCompile(`"meters":\[[^]]*\],`)

// sameByBoth replays a capture through both engines and returns the number of identical rows.
func sameByBoth(t *testing.T, policy, capture string, more ...string) int {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		code           int
		totals, errors string
		rows, left     []byte
	}
	replay := func(engine string) (o outcome) {
		rows, left := filepath.Join(dir, engine+".csv"), filepath.Join(dir, engine+".pcap")
		var out, stderr bytes.Buffer
		args := append([]string{
			"replay", capture, "-p", path, "--engine", engine, "--json", "--decisions", rows, "-o", left,
		}, more...)
		o.code = run(args, cli.Streams{Out: &out, Err: &stderr})
		o.totals, o.errors = keyCounts.ReplaceAllString(out.String(), ""), stderr.String()
		o.rows, _ = os.ReadFile(rows)
		o.left, _ = os.ReadFile(left)
		return o
	}
	inKernel := replay("bpf")
	if strings.Contains(inKernel.errors, "no interface has packets of link type") {
		if inKernel.code != cli.ExitFailed {
			t.Errorf("%s: exit %d: %s", capture, inKernel.code, inKernel.errors)
		}
		return 0
	}
	inGo := replay("go")
	if inKernel.code != inGo.code || inKernel.errors != inGo.errors || inKernel.totals != inGo.totals {
		t.Errorf("%s:\nkernel %d %s%s\ngo     %d %s%s", capture, inKernel.code, inKernel.errors,
			inKernel.totals, inGo.code, inGo.errors, inGo.totals)
	}
	got, want := strings.Split(string(inKernel.rows), "\n"), strings.Split(string(inGo.rows), "\n")
	if len(got) != len(want) {
		t.Errorf("%s: %d rows by the kernel, %d by Go", capture, len(got), len(want))
		return 0
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s:\n  kernel %s\n  go     %s", capture, got[i], want[i])
			break
		}
	}
	if !bytes.Equal(inKernel.left, inGo.left) {
		t.Errorf("%s: the captures that left differ", capture)
	}
	return len(got) - 2 // without the header and the empty string after the last newline
}

// TestWithoutBTF checks that the programs load on a kernel without BTF.
func TestWithoutBTF(t *testing.T) {
	needRoot(t)
	const script = `mount -t tmpfs none /sys/kernel/btf 2>/dev/null; test ! -e /sys/kernel/btf/vmlinux &&
exec shaper replay --engine bpf ../../testdata/pcaps/bursts.pcap --meter "srtcm cir=10mbit cbs=64KiB ebs=64KiB"`
	out, err := exec.Command("unshare", "--mount", "sh", "-c", script).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("1,570 packets")) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestNoPrivilege checks that commands that need privileges report that in one line.
func TestNoPrivilege(t *testing.T) {
	needRoot(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "shaper-nobody-") // which the user nobody cannot enter
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	text, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	shaper := filepath.Join(dir, "shaper")
	if err := os.WriteFile(shaper, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	capture, err := os.ReadFile("../../testdata/pcaps/bursts.pcap")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"run", "lo", "--rate", "1gbit"}, // a policy without warnings
		{"replay", "-", "--engine", "bpf", "--meter", "token-bucket rate=1gbit burst=1MiB"},
		{"stats"},
		{"status"},
		{"detach", "lo"},
	} {
		cmd := exec.Command(shaper, args...)
		cmd.Dir = dir
		cmd.Stdin = bytes.NewReader(capture)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		if message := stderr.String(); cmd.ProcessState.ExitCode() != cli.ExitFailed ||
			strings.Count(message, "\n") != 1 || !strings.Contains(message, "root") {
			t.Errorf("%v: %v: %s", args, err, message)
		}
	}
}

// TestRateOverWrap checks the rate of a counter that wraps at 2^63.
func TestRateOverWrap(t *testing.T) {
	before := dataplane.Count{Bytes: math.MaxInt64 - 499}
	after := dataplane.Count{Bytes: 500}
	if got := stats.BitRate(before, after, time.Second); got != 8000 {
		t.Errorf("%d bit/s: want 8000", got)
	}
	if got := stats.BitRate(after, after, 0); got != 0 {
		t.Errorf("%d bit/s in no time", got)
	}
}
