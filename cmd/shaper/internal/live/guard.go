package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// Guard is a process that does what is left to do after one that was killed:
// qdiscs, tc filters and the limits of a device outlive whoever set them, and a
// policy that nobody confirms must be rolled back. It acts when its input ends; one
// that has nothing to do any more is killed.
type Guard struct {
	*child
	at kernel.Identity
}

// duty is what a guard is for. It is in its environment, which no fault can keep
// from it.
type duty struct {
	Parent     int // process
	At         kernel.Identity
	Directions []kernel.Direction

	Last  *Instructions // nil until it acts
	Tries time.Duration // that failed
}

// dutyVariable has the duty as JSON.
const dutyVariable = "SHAPER_GUARD"

// Instructions are a guard's input, as often as something changes: the last ones
// count.
type Instructions struct {
	Stays bool // the policy stays when the process ends, unless a rollback is due
	Now   bool // do not wait for the end of the process
}

func StartGuard(name string, directions []kernel.Direction) (*Guard, error) {
	at, err := kernel.Identify(name)
	if err != nil {
		return nil, err
	}
	d := duty{Parent: os.Getpid(), At: at, Directions: directions}
	c, err := startChild(func() *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", "guard", name)
		cmd.Args[0] = "shaper"
		cmd.Env = d.environ()
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // not ended by the terminal
		return cmd
	})
	if err != nil {
		return nil, err
	}
	return &Guard{c, at}, c.tell(Instructions{})
}

// Tell gives the guard new instructions. A nil guard needs none.
func (g *Guard) Tell(i Instructions) error {
	if g == nil {
		return nil
	}
	return g.child.tell(i)
}

// End ends the guard after all is clean.
func (g *Guard) End() {
	if g != nil {
		g.kill()
		kernel.Unguard(g.at)
	}
}

// Release has the guard do now what this process could not.
func (g *Guard) Release() {
	if g != nil {
		_ = g.Tell(Instructions{Now: true})
		g.finish()
	}
}

// firstTime is what a parent may take to send the first instructions.
const firstTime = 10 * time.Second

// guardTries is how often a guard tries what fails, within 2 s.
const guardTries = 9

// RunGuard is a guard's life: it waits for its parent to end, and does what is left to do.
func RunGuard(input io.Reader) error {
	var d duty
	if err := json.Unmarshal([]byte(os.Getenv(dutyVariable)), &d); err != nil {
		return fmt.Errorf("%s: %w: only shaper run starts a guard", dutyVariable, err)
	}
	if mark, e := kernel.Guard(d.At); e == nil { // without it only status is worse off
		defer mark.Close()
	}
	if d.Last == nil {
		d.await(input)
	}
	for { // nobody comes after the guard
		err := d.do(d.Last.Stays)
		if err == nil || d.Tries == guardTries {
			return err
		}
		d.Tries++
		time.Sleep(d.Tries * 50 * time.Millisecond)
		// What a process without memory found out about the kernel it does not
		// forget: the next try is a new one's.
		_ = syscall.Exec("/proc/self/exe", os.Args, d.environ())
	}
}

// environ is the environment of a guard.
func (d *duty) environ() []string {
	text, _ := json.Marshal(d) // it has nothing that cannot be written
	isOurs := func(v string) bool { return strings.HasPrefix(v, dutyVariable+"=") }
	return append(slices.DeleteFunc(os.Environ(), isOurs), dutyVariable+"="+string(text))
}

// await reads instructions until the parent has ended, or says that it is time.
func (d *duty) await(input io.Reader) {
	parent, err := unix.PidfdOpen(d.Parent, 0)
	patience := -1
	if os.Getppid() != d.Parent { // it has ended: the number may be another's by now
		patience = 1000 // ms
	}
	// A parent that could not see that the guard started waits for its end.
	late := time.AfterFunc(firstTime, func() { os.Exit(1) })
	d.Last = &Instructions{}
	for in := json.NewDecoder(input); in.Decode(d.Last) == nil; {
		late.Stop()
	}
	late.Stop()
	if d.Last.Now {
		return
	}
	// The kernel closes the pipe, and gives this process another parent, before the
	// last thread of the old one has released what it held: locks and links.
	for err != nil && os.Getppid() == d.Parent {
		time.Sleep(10 * time.Millisecond)
	}
	for again := err == nil; again; {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(parent), Events: unix.POLLIN}}, patience)
		again = errors.Is(err, unix.EINTR)
	}
}

// do is what the guard is there for. A policy that was to end with its process is
// rolled back at once. A rollback that another process armed is that one's.
func (d duty) do(stays bool) error {
	list, err := kernel.Pending(d.At)
	defer CloseAll(list)
	switch {
	case errors.Is(err, os.ErrPermission) && stays:
		return nil // what is there cannot be told from what is left, nor could it be confirmed
	case err != nil && !errors.Is(err, os.ErrPermission):
		return err // what is not known must not be cleared away
	}
	for _, sh := range list {
		if d.Directions != nil {
			taken, err := sh.Owned()
			if err != nil {
				return err
			}
			if taken { // over, by another process
				continue
			}
		}
		due := sh.Until
		if stays {
			awaitDeadline(sh)
		}
		if _, err := kernel.RollBack(policyfile.PlanOf, due, sh); err != nil {
			return err
		}
	}
	return kernel.Rescue(d.At, d.Directions...)
}

// awaitDeadline waits until a policy is confirmed, or its time is over.
func awaitDeadline(sh *kernel.Shaper) {
	for until := sh.Until; time.Now().Before(until); time.Sleep(PollInterval) {
		if err := sh.Refresh(); errors.Is(err, kernel.ErrDetached) {
			return
		} else if err == nil && !sh.Until.Equal(until) {
			return
		}
	}
}
