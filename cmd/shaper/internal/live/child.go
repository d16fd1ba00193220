package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// child is a process reading instructions as JSON. If it dies, a new one is started and gets those that
// are still needed.
type child struct {
	command func() *exec.Cmd // returns a new command to start
	needed  func() []any     // returns the instructions for a new process; called with the lock

	mu    sync.Mutex // protects the fields below
	cmd   *exec.Cmd
	input io.WriteCloser
	ended bool          // no process is needed any more
	end   chan struct{} // closed when ended
	gone  chan struct{} // closed after the last process has ended and was waited for
}

// restartPause is the minimum time between two starts. A process always dying at once must not use
// a whole CPU.
const restartPause = time.Second

func startChild(command func() *exec.Cmd, needed func() []any) (*child, error) {
	c := &child{command: command, needed: needed, end: make(chan struct{}), gone: make(chan struct{})}
	if err := c.start(); err != nil {
		return nil, err
	}
	go c.watch()
	return c, nil
}

func (c *child) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	cmd := c.command()
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.cmd, c.input = cmd, input
	for _, v := range c.needed() {
		if err := c.write(v); err != nil {
			return err
		}
	}
	return nil
}

// write sends an instruction. A dead process is no error, because the next process gets the
// instruction.
func (c *child) write(v any) error {
	err := json.NewEncoder(c.input).Encode(v)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// watch waits for the process to end and starts another one, until none is needed.
func (c *child) watch() {
	defer close(c.gone)
	for {
		started := time.Now()
		_ = c.cmd.Wait() // only watch replaces cmd
		for retry := true; retry; {
			select {
			case <-c.end:
				return
			case <-time.After(restartPause - time.Since(started)):
			}
			started = time.Now()
			err := c.start()
			if retry = err != nil; retry {
				fmt.Fprintf(os.Stderr, "shaper: the guard process died, and cannot be started again: %v\n",
					err)
			}
		}
	}
}

// tell sends an instruction, after a function that notes it for needed.
func (c *child) tell(note func(), v any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	note()
	return c.write(v)
}

// kill ends the process before it acts, and starts no other.
func (c *child) kill() { c.stop(func() { _ = c.cmd.Process.Kill() }) }

// finish ends the input of the process and waits until it has acted.
func (c *child) finish() { c.stop(func() { _ = c.input.Close() }) }

// endTime is the longest wait of stop for the process to end. A slower process continues after the
// end of this one.
const endTime = 10 * time.Second

func (c *child) stop(how func()) {
	c.mu.Lock()
	if !c.ended {
		c.ended = true
		close(c.end)
	}
	how()
	c.mu.Unlock()
	select {
	case <-c.gone:
	case <-time.After(endTime):
	}
}
