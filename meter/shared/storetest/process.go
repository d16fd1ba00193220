package storetest

import (
	"bytes"
	"errors"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is one run of a server.
type process struct {
	pid    int
	ended  chan struct{} // closed after the process has ended and was waited for
	output *buffer
}

// spawn starts a process to be killed by the kernel when this one dies. The kernel also kills it at
// the end of its starting thread, so one thread is kept for the process.
func spawn(name string, args ...string) (*process, error) {
	p := &process{ended: make(chan struct{}), output: new(buffer)}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.Command(name, args...)
		cmd.Stdout, cmd.Stderr = p.output, p.output
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(p.ended)
	}()
	return p, <-started
}

// limit is the time after which only a defect keeps a condition from holding.
const limit = 5 * time.Minute

// Until polls until the condition holds. It fails the test after limit.
func Until(t testing.TB, event string, condition func() bool) {
	t.Helper()
	for end, wait := time.Now().Add(limit), time.Millisecond; !condition(); wait = min(2*wait,
		20*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %v: %s", limit, event)
		}
		time.Sleep(wait)
	}
}

// reserve returns a free port, reserved until the test ends. It is held by a bound socket that does
// not listen: the kernel does not assign the port to others, but lets a server bind it.
func reserve(t testing.TB) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	err = errors.Join(
		syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		// after Bind, which would otherwise share the port
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
	)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return addr.(*syscall.SockaddrInet4).Port
}

// buffer is the output of a process.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
