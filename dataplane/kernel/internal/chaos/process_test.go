//go:build linux && amd64

package chaos

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// process is a started command.
type process struct {
	w        *world
	args     []string
	cmd      *exec.Cmd
	out, err string // paths of its outputs
	traced   bool
	ended    chan struct{}
}

// start starts the command, with a plan under the tracer.
func (w *world) start(p *plan, args ...string) *process {
	w.t.Helper()
	name := filepath.Join(w.dir, strconv.Itoa(int(w.started.Add(1))))
	r := &process{
		w: w, args: args, out: name + ".out", err: name + ".err", ended: make(chan struct{}),
		traced: p != nil,
	}
	r.cmd = exec.Command(command, args...)
	if p != nil {
		p.Log = name + ".log"
		text, err := json.Marshal(p)
		if err != nil {
			w.t.Fatal(err)
		}
		r.cmd = exec.Command(self(w.t), append([]string{command}, args...)...)
		r.cmd.Env = append(os.Environ(), planVariable+"="+string(text))
	}
	r.cmd.Dir = folder
	var err error
	stdout, err1 := os.Create(r.out)
	stderr, err2 := os.Create(r.err)
	w.inside(func() {
		r.cmd.Stdout, r.cmd.Stderr = stdout, stderr
		err = errors.Join(err1, err2, r.cmd.Start())
	})
	stdout.Close()
	stderr.Close()
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	return r
}

func (r *process) stdout() string { return readFile(r.out) }
func (r *process) stderr() string { return readFile(r.err) }

// readFile reads a file; it is "" for a missing one.
func readFile(file string) string {
	text, _ := os.ReadFile(file)
	return string(text)
}

// alive reports whether the process has not ended.
func (r *process) alive() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// killed is added to the number of the signal that ended a command.
const killed = 128

// code is the exit code, or killed plus the number of the signal.
func (r *process) code() int {
	status := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return killed + int(status.Signal())
	}
	return status.ExitStatus()
}

// wait waits for the end of the process, and reports whether it came in time.
func (r *process) wait() bool {
	select {
	case <-r.ended:
		return true
	case <-time.After(patience):
		return false
	}
}

// signal sends a signal to the command, not to its tracer.
func (r *process) signal(s syscall.Signal) {
	pid := r.cmd.Process.Pid
	if r.traced {
		for _, m := range r.w.members() {
			if m.parent == pid {
				_ = syscall.Kill(m.pid, s)
				return
			}
		}
		return
	}
	_ = r.cmd.Process.Signal(s)
}

// runCommand runs a command to its end, and reports whether it ended in time.
func (w *world) runCommand(args ...string) (*process, bool) {
	r := w.start(nil, args...)
	return r, r.wait()
}
