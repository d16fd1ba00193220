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
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
)

// Guard is a process that cleans up after its parent is killed. Qdiscs, tc filters and the limits
// of a device outlive their process, and an unconfirmed policy must be rolled back. The guard acts
// when its input ends. If there is nothing to clean up any more, the guard is killed.
type Guard struct {
	*child
	at kernel.Identity
}

// duty lists the tasks of a guard. It is passed in the guard's environment, which cannot fail.
type duty struct {
	Parent     int // process ID
	At         kernel.Identity
	Directions []dataplane.Direction

	Last  *Instructions // last instructions; nil until the guard acts
	Tries time.Duration // number of failed tries
}

// dutyVariable is the environment variable with the duty as JSON.
const dutyVariable = "SHAPER_GUARD"

// Instructions are the input of a guard. Later instructions replace earlier ones.
type Instructions struct {
	Stays bool // keep the policy after the process ends, unless a rollback is due
	Now   bool // do not wait for the end of the process
}

// StartGuard starts a guard for the directions of an interface; nil means both. It writes errors to
// stderr, nil for nowhere.
func StartGuard(name string, directions []dataplane.Direction, stderr *os.File) (*Guard, error) {
	at, err := kernel.Identify(name)
	if err != nil {
		return nil, err
	}
	d := duty{Parent: os.Getpid(), At: at, Directions: directions}
	c, err := startChild(func() *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", "guard", name)
		cmd.Args[0] = "shaper"
		cmd.Env = d.environ()
		if stderr != nil { // not an interface with a nil pointer
			cmd.Stderr = stderr
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the terminal does not end it
		return cmd
	})
	if err != nil {
		return nil, err
	}
	return &Guard{c, at}, c.tell(Instructions{})
}

// Instruct gives the guard new instructions. A nil guard ignores them.
func (g *Guard) Instruct(i Instructions) error {
	if g == nil {
		return nil
	}
	return g.child.tell(i)
}

// End ends the guard. There must be nothing to clean up.
func (g *Guard) End() {
	if g != nil {
		g.kill()
		standby.Unguard(g.at)
	}
}

// Release makes the guard act now, after this process failed to clean up.
func (g *Guard) Release() {
	if g != nil {
		_ = g.Instruct(Instructions{Now: true})
		g.finish()
	}
}

// firstTimeout is the time for the parent to send the first instructions.
const firstTimeout = 10 * time.Second

// guardTries is the number of retries of a guard, within about 2 s.
const guardTries = 9

// RunGuard runs a guard: it waits for the end of its parent, and cleans up.
func RunGuard(input io.Reader) error {
	d, err := parseDuty(os.Getenv(dutyVariable))
	if err != nil {
		return err
	}
	if mark, e := standby.Guard(d.At); e == nil { // only shaper status needs it
		defer mark.Close()
	}
	if d.Last == nil {
		d.await(input)
	}
	for { // nothing else cleans up
		err := d.cleanUp(d.Last.Stays)
		if err == nil || d.Tries == guardTries {
			return err
		}
		d.Tries++
		time.Sleep(d.Tries * 50 * time.Millisecond)
		// A failed probe of kernel features, for example for lack of memory, is cached.
		// Therefore a new process tries again.
		_ = syscall.Exec("/proc/self/exe", os.Args, d.environ())
	}
}

func parseDuty(text string) (d duty, err error) {
	if err = json.Unmarshal([]byte(text), &d); err != nil {
		err = fmt.Errorf("%s: %w: only shaper run starts a guard", dutyVariable, err)
	}
	return d, err
}

// environ returns the environment of a guard.
func (d *duty) environ() []string {
	text, _ := json.Marshal(d) // its fields can always be marshaled
	isOurs := func(v string) bool { return strings.HasPrefix(v, dutyVariable+"=") }
	return append(slices.DeleteFunc(os.Environ(), isOurs), dutyVariable+"="+string(text))
}

// await reads instructions until the parent ends, or instructs the guard to act now.
func (d *duty) await(input io.Reader) {
	parent, err := unix.PidfdOpen(d.Parent, 0)
	patience := -1
	if os.Getppid() != d.Parent { // it ended, and its ID may belong to another process
		patience = 1000 // ms
	}
	// A parent that did not notice the guard's start waits for it to end.
	late := time.AfterFunc(firstTimeout, func() { os.Exit(1) })
	d.Last = &Instructions{}
	for in := json.NewDecoder(input); in.Decode(d.Last) == nil; {
		late.Stop()
	}
	late.Stop()
	if d.Last.Now {
		return
	}
	// The kernel closes the pipe and assigns a new parent before the last thread of the old parent
	// releases its locks and links. So wait for the process itself.
	for err != nil && os.Getppid() == d.Parent {
		time.Sleep(10 * time.Millisecond)
	}
	for retry := err == nil; retry; {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(parent), Events: unix.POLLIN}}, patience)
		retry = errors.Is(err, unix.EINTR)
	}
}

// cleanUp cleans up after the parent. If the policy was to end with the parent, it is rolled
// back at once. A rollback timer of another process is left alone.
func (d duty) cleanUp(stays bool) error {
	list, err := kernel.Pending(d.At)
	defer CloseAll(list)
	switch {
	case errors.Is(err, os.ErrPermission) && stays:
		return nil // without permission neither leftovers nor a confirmation can be detected
	case err != nil && !errors.Is(err, os.ErrPermission):
		return err // do not remove anything if the state is unknown
	}
	for _, sh := range list {
		if d.Directions != nil {
			taken, err := sh.Owned()
			if err != nil {
				return err
			}
			if taken { // by another process
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

// awaitDeadline waits until a policy is confirmed or its rollback is due. A step of the wall clock
// during the wait does not change its length.
func awaitDeadline(sh *kernel.Shaper) {
	until := sh.Until
	for due := time.Now().Add(time.Until(until)); time.Now().Before(due); time.Sleep(PollInterval) {
		if err := sh.Refresh(); errors.Is(err, kernel.ErrDetached) {
			return
		} else if err == nil && !sh.Until.Equal(until) {
			return
		}
	}
}
