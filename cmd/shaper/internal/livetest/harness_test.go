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

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// inVM is true if the test runs in an emulated machine, which is about ten times slower.
var inVM = os.Getenv("SHAPER_VM") != ""

// buildDir is the directory of the built command; "": not built.
var buildDir string

func TestMain(m *testing.M) {
	nettest.Isolate()
	code := m.Run()
	if buildDir != "" {
		_ = os.RemoveAll(buildDir)
	}
	os.Exit(code)
}

// buildShaper returns the path of the shaper command. In a VM it is in PATH, otherwise it is
// built once.
var buildShaper = sync.OnceValues(func() (string, error) {
	if inVM {
		return exec.LookPath("shaper")
	}
	var err error
	if buildDir, err = os.MkdirTemp("", "shaper-live-test-"); err != nil {
		return "", err
	}
	if err := os.Chmod(buildDir, 0o755); err != nil { // unprivileged users run it too
		return "", err
	}
	path := filepath.Join(buildDir, "shaper")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path,
		"github.com/a-seed-32e5a53f/shaper/cmd/shaper")
	// with cgo the program starts itself once more: see dropTo
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

// output collects the output of a process.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

// String returns the output without warnings about policies, because most policies of the tests
// cause some.
func (o *output) String() string {
	return warningLine.ReplaceAllString(o.unfiltered(), "")
}

var warningLine = regexp.MustCompile(`(?m)^shaper: warning: .*\n`)

func (o *output) warningLines() []string { return warningLine.FindAllString(o.unfiltered(), -1) }

// awaitWarnings waits for at least n warnings and returns them. A process prints to stdout and
// to stderr independently: what one of them shows says nothing about the other.
func (o *output) awaitWarnings(t *testing.T, n int) (list []string) {
	t.Helper()
	eventually(t, func() error {
		if list = o.warningLines(); len(list) < n {
			return fmt.Errorf("warnings %q, want %d", list, n)
		}
		return nil
	})
	return list
}

func (o *output) unfiltered() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// waitLimit is the maximum time to wait for an expected state. Only a defect takes longer.
const waitLimit = 5 * time.Minute

// skipInVM skips a test in a VM if it takes long there and does not depend on the kernel.
func skipInVM(t *testing.T) {
	t.Helper()
	if inVM {
		t.Skip("not in a VM: it takes long there and does not depend on the kernel")
	}
}

// skipInOldVM skips a test in the older one of the kernels in VMs.
func skipInOldVM(t *testing.T) {
	t.Helper()
	if inVM && !haveTCX() {
		t.Skip("the newer kernel in a VM covers this")
	}
}

// awaitMatch waits for output that matches a regular expression.
func (o *output) awaitMatch(t *testing.T, text string) {
	t.Helper()
	want := regexp.MustCompile(text)
	eventually(t, func() error {
		if !want.MatchString(o.String()) {
			return fmt.Errorf("no %q in output %q", text, o)
		}
		return nil
	})
}

// eventually repeats try until it returns nil. After waitLimit it fails the test.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	err := try()
	pause := 5 * time.Millisecond
	for end := time.Now().Add(waitLimit); err != nil && time.Now().Before(end); err = try() {
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond) // most calls of try start a process
	}
	if err != nil {
		t.Fatal(err)
	}
}

// process is a shaper process.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err output
}

func (r *process) awaitAttached() {
	r.t.Helper()
	r.awaitPrinted("attached by")
}

// awaitPrinted waits until the process has printed a text. The process must not end without it.
func (r *process) awaitPrinted(text string) {
	r.t.Helper()
	eventually(r.t, func() error {
		ended := r.hasExited()
		if ended {
			r.waitForExit() // for all of its output
		}
		if strings.Contains(r.out.String(), text) {
			return nil
		}
		if ended {
			r.t.Fatalf("%v ended: %q, stderr %q", r.cmd.Args, &r.out, &r.err)
		}
		return fmt.Errorf("not %q: %q, stderr %q", text, &r.out, &r.err)
	})
}

// hasExited reports whether the process is a zombie.
func (r *process) hasExited() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, r.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

func (r *process) sendSignal(s os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// reloadBySIGHUP sends SIGHUP and waits until the process has printed that it reloaded once more.
func (r *process) reloadBySIGHUP() {
	r.t.Helper()
	reloads := func() int { return strings.Count(r.out.String(), ": reloaded, ") }
	want := reloads() + 1
	r.sendSignal(syscall.SIGHUP)
	eventually(r.t, func() error {
		if n := reloads(); n != want {
			return fmt.Errorf("reloaded %d times, want %d: %q, stderr %q", n, want, &r.out, &r.err)
		}
		return nil
	})
}

// waitForExit waits for the end and returns the exit code.
func (r *process) waitForExit() int {
	r.t.Helper()
	done := make(chan struct{})
	go func() {
		_ = r.cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(waitLimit):
		r.t.Fatalf("%v does not end: %q, stderr %q", r.cmd.Args, &r.out, &r.err)
	}
	return r.cmd.ProcessState.ExitCode()
}

// wantExit waits for the end and fails the test if the exit code is another one.
func (r *process) wantExit(code int) {
	r.t.Helper()
	if got := r.waitForExit(); got != code {
		r.t.Fatalf("%v: exit %d: want %d: %q, stderr %q", r.cmd.Args, got, code, &r.out, &r.err)
	}
}

// stopBySIGTERM ends the process as systemd does. The exit code must be 0.
func (r *process) stopBySIGTERM() {
	r.t.Helper()
	r.sendSignal(syscall.SIGTERM)
	if code := r.waitForExit(); code != 0 {
		r.t.Errorf("exit %d after SIGTERM: %q, stderr %q", code, &r.out, &r.err)
	}
}

func (r *process) killAndWait() {
	r.t.Helper()
	r.sendSignal(syscall.SIGKILL)
	r.waitForExit()
}

// wantErrorLine checks that an ended process printed one error that matches pattern, and
// nothing on stdout.
func (r *process) wantErrorLine(pattern string) {
	r.t.Helper()
	stdout, stderr := r.out.String(), r.err.String()
	matched, err := regexp.MatchString("^shaper: "+pattern+"$", strings.TrimSuffix(stderr, "\n"))
	if err != nil {
		r.t.Fatal(err)
	}
	if !matched || strings.Count(stderr, "\n") != 1 || stdout != "" {
		r.t.Errorf("%v: %q on stderr, %q on stdout: want one line on stderr, %q", r.cmd.Args, stderr, stdout,
			pattern)
	}
}

// writePolicy writes a policy file.
func writePolicy(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	rewriteFile(t, path, text)
	return path
}

func rewriteFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unlimitedMeter is a meter that never limits.
const unlimitedMeter = "token-bucket rate=1tbit burst=1GB"

// ladderMeter colors the first 3 packets green, the next 2 yellow, and the others red.
const ladderMeter = "srtcm cir=1p/1000s cbs=3 ebs=2 count=packets"
