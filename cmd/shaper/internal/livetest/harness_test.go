package livetest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	out, err := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/a-seed-32e5a53f/shaper/cmd/shaper").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

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
	pause := 5 * time.Millisecond
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); err = try() {
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond) // most tries start a process
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

func (r *process) attached() {
	r.t.Helper()
	r.says("attached by")
}

// says waits until the process, which does not end, has printed a text.
func (r *process) says(text string) {
	r.t.Helper()
	eventually(r.t, func() error {
		if r.ended() {
			r.t.Fatalf("%v ended: %q, stderr %q", r.cmd.Args, &r.out, &r.err)
		}
		if !strings.Contains(r.out.String(), text) {
			return fmt.Errorf("not %q: %q, stderr %q", text, &r.out, &r.err)
		}
		return nil
	})
}

// ended says whether it is a zombie.
func (r *process) ended() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, r.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
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

// exits waits for the end and wants an exit code.
func (r *process) exits(code int) {
	r.t.Helper()
	if got := r.wait(); got != code {
		r.t.Fatalf("%v: exit %d: want %d: %q, stderr %q", r.cmd.Args, got, code, &r.out, &r.err)
	}
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

// failed is what fails wants of a process that has ended.
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
