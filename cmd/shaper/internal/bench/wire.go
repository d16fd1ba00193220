package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// wire is two network namespaces, a and b, connected by a veth pair v0, and the shaper command.
type wire struct {
	dir, shaper string
	a, b        *nettest.Namespace
}

// wireOf returns a function that creates a wire on its first call. end removes the wire and
// kills all processes on it, and can be called at any time.
func wireOf(dir string) (get func() (*wire, error), end func()) {
	o := &owner{}
	return sync.OnceValues(func() (w *wire, err error) {
		err = catchFailure(func() error {
			w, err = newWire(o, dir)
			return err
		})
		return w, err
	}), o.end
}

func newWire(o *owner, dir string) (*wire, error) {
	for _, name := range []string{"ip", "tc", "iperf3", "ping", "tcpdump"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, errors.New("apt-get install iproute2 iperf3 iputils-ping tcpdump")
		}
	}
	w := &wire{dir: dir, shaper: filepath.Join(dir, "shaper-live")}
	if out, err := exec.Command("go", "build", "-o", w.shaper,
		"github.com/a-seed-32e5a53f/shaper/cmd/shaper").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, out)
	}
	w.a, w.b = nettest.New(o), nettest.New(o)
	w.a.Veth(w.b)
	o.Cleanup(func() { _, _ = runIn(w.a, w.shaper, "detach", "--all") })
	for _, ns := range []*nettest.Namespace{w.a, w.b} { // TAP devices take over the addresses of v0, with ARP
		if err := runEach(ns, "ip link set v0 arp on", "ip neigh flush dev v0 nud permanent"); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// owner owns namespaces, as a test does.
type owner struct {
	mu       sync.Mutex
	cleanups []func()
}

// failure is the value of a panic of Fatal.
type failure struct{ error }

func (o *owner) Helper()                        {}
func (o *owner) Fatal(args ...any)              { panic(failure{errors.New(fmt.Sprint(args...))}) }
func (o *owner) Fatalf(format string, a ...any) { panic(failure{fmt.Errorf(format, a...)}) }
func (o *owner) Skipf(format string, a ...any)  { o.Fatalf(format, a...) }

func (o *owner) Cleanup(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cleanups = append(o.cleanups, f)
}

// end calls the functions of Cleanup, the last one first.
func (o *owner) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ; len(o.cleanups) > 0; o.cleanups = o.cleanups[:len(o.cleanups)-1] {
		o.cleanups[len(o.cleanups)-1]()
	}
}

// catchFailure calls f, and returns a failure in it as an error.
func catchFailure(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	return f()
}

// startIn starts a command in a namespace. It is killed when the wire is removed.
func startIn(ns *nettest.Namespace, cmd *exec.Cmd) error {
	return catchFailure(func() error {
		ns.Start(cmd)
		return nil
	})
}

// whileRunning runs a program in a while f runs, which starts when the program has printed a line.
// Then SIGINT ends the program.
func (w *wire) whileRunning(f func(pid int) (float64, error), args ...string) (v float64, err error) {
	cmd := exec.Command(args[0], args[1:]...)
	var wrong bytes.Buffer
	cmd.Stderr = &wrong
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := startIn(w.a, cmd); err != nil {
		return 0, err
	}
	r := bufio.NewReader(out)
	_, err = r.ReadString('\n')
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		io.Copy(io.Discard, r)
	}()
	defer func() {
		cmd.Process.Signal(unix.SIGINT)
		late := time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() })
		<-drained
		cmd.Wait()
		late.Stop()
	}()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, &wrong)
	}
	return f(cmd.Process.Pid)
}

// doIn calls f in a namespace. Sockets stay in the namespace in which they were opened.
func doIn(ns *nettest.Namespace, f func() error) (err error) {
	ns.Do(func() { err = f() })
	return err
}

// runIn runs a command in a namespace and returns its standard output.
func runIn(ns *nettest.Namespace, args ...string) (out []byte, err error) {
	err = doIn(ns, func() error {
		out, err = exec.Command(args[0], args[1:]...).Output()
		return err
	})
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = append(out, exit.Stderr...)
		}
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return out, nil
}

// runEach runs commands in a namespace, up to the first that fails. Words are separated by spaces.
func runEach(ns *nettest.Namespace, commands ...string) error {
	for _, command := range commands {
		if _, err := runIn(ns, strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}
