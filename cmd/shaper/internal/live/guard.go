package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
)

// Guards is a process that cleans up after its parent is killed. Qdiscs, tc filters and the limits of a
// device outlive their process, and an unconfirmed policy must be rolled back. The process acts when its
// input ends, at all interfaces that it guards. While it guards none, there is no process.
type Guards struct {
	// Name is shown by ps after "shaper guard".
	Name string
	// Stderr gets the errors of the process; nil: nobody.
	Stderr *os.File

	mu     sync.Mutex
	child  *child                    // nil: none is guarded
	orders map[kernel.Identity]order // the latest ones; protected by the lock of the child, too
}

// Guard is the duty of a Guards at one interface.
type Guard struct {
	of *Guards
	at kernel.Identity
}

// Instructions tell a guard what to do at an interface. Later ones replace earlier ones.
type Instructions struct {
	Stays bool // keep the policy after the process ends, unless a rollback is due
	Now   bool // do not wait for the end of the process
}

// order is the input of a guard, as JSON.
type order struct {
	At         kernel.Identity
	Directions []dataplane.Direction
	Instructions
	End bool // there is nothing to clean up any more
}

// StartGuard starts a guard for the directions of an interface; nil means both. It writes errors to
// stderr, nil for nowhere.
func StartGuard(name string, directions []dataplane.Direction, stderr *os.File) (*Guard, error) {
	return (&Guards{Name: name, Stderr: stderr}).Add(name, directions)
}

// Add guards the directions of an interface; nil means both.
func (g *Guards) Add(name string, directions []dataplane.Direction) (*Guard, error) {
	at, err := kernel.Identify(name)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.child == nil {
		g.orders = map[kernel.Identity]order{}
		if g.child, err = startChild(g.command, g.needed); err != nil {
			return nil, err
		}
	}
	return &Guard{g, at}, g.tell(order{At: at, Directions: directions})
}

func (g *Guards) command() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "guard", g.Name)
	cmd.Args[0] = "shaper"
	cmd.Env = (&duty{Parent: os.Getpid()}).environ()
	if g.Stderr != nil { // not an interface with a nil pointer
		cmd.Stderr = g.Stderr
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the terminal does not end it
	return cmd
}

// needed returns the orders for a new process.
func (g *Guards) needed() (out []any) {
	for _, o := range g.orders {
		out = append(out, o)
	}
	return out
}

// tell sends an order. The lock must be held.
func (g *Guards) tell(o order) error {
	return g.child.tell(func() {
		if g.orders[o.At] = o; o.End {
			delete(g.orders, o.At)
		}
	}, o)
}

// Instruct gives the guard new instructions. A nil guard ignores them.
func (g *Guard) Instruct(i Instructions) error {
	if g == nil {
		return nil
	}
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	return g.of.instruct(g.at, i)
}

func (g *Guards) instruct(at kernel.Identity, i Instructions) error {
	o, guarded := g.orders[at]
	if !guarded {
		return nil
	}
	o.Instructions = i
	return g.tell(o)
}

// End ends the guard. There must be nothing to clean up.
func (g *Guard) End() {
	if g == nil {
		return
	}
	all := g.of
	all.mu.Lock()
	defer all.mu.Unlock()
	if _, guarded := all.orders[g.at]; !guarded {
		return
	}
	if len(all.orders) > 1 {
		_ = all.tell(order{At: g.at, End: true}) // a process that died does not need it
		return
	}
	all.stop((*child).kill)
	standby.Unguard(g.at)
}

// stop ends the process.
func (g *Guards) stop(how func(*child)) {
	how(g.child)
	g.child, g.orders = nil, nil
}

// Release makes the guard act now, after this process failed to clean up.
func (g *Guard) Release() {
	if g == nil {
		return
	}
	all := g.of
	all.mu.Lock()
	defer all.mu.Unlock()
	_ = all.instruct(g.at, Instructions{Now: true})
	if len(all.orders) == 1 {
		all.stop((*child).finish)
	}
}

// duty lists the tasks of a guard. It is passed in the guard's environment, which cannot fail.
type duty struct {
	Parent int // process ID

	Left  []order       // interfaces to clean up; nil until the guard acts
	Tries time.Duration // number of failed tries
}

// dutyVariable is the beginning of the names of environment variables with the duty as JSON. A number
// follows.
const dutyVariable = "SHAPER_GUARD_"

// dutyOrders is the number of orders in a variable: the kernel limits its length to 128 KiB.
const dutyOrders = 500

// firstTimeout is the time for the parent to send the first order.
const firstTimeout = 10 * time.Second

// guardTries is the number of retries of a guard, within about 2 s.
const guardTries = 9

// RunGuard runs a guard: it waits for the end of its parent, and cleans up.
func RunGuard(input io.Reader) error {
	d, err := readDuty()
	if err != nil {
		return err
	}
	marks := guardMarks{}
	defer marks.close()
	if d.Left == nil {
		d.await(input, marks)
	}
	for _, o := range d.Left {
		marks.add(o.At)
	}
	for { // nothing else cleans up
		var err error
		d.Left, err = cleanUpAll(d.Left)
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

// readDuty reads the duty in the environment.
func readDuty() (d duty, err error) {
	for i := 0; ; i++ {
		text, ok := os.LookupEnv(fmt.Sprint(dutyVariable, i))
		if !ok && i > 0 {
			return d, nil
		}
		part, err := parseDuty(text)
		if err != nil {
			return d, err
		}
		part.Left = append(d.Left, part.Left...)
		d = part
	}
}

func parseDuty(text string) (d duty, err error) {
	if err = json.Unmarshal([]byte(text), &d); err != nil {
		err = fmt.Errorf("%s: %w: only shaper starts a guard", dutyVariable, err)
	}
	return d, err
}

// environ returns the environment of a guard.
func (d *duty) environ() []string {
	isOurs := func(v string) bool { return strings.HasPrefix(v, dutyVariable) }
	out := slices.DeleteFunc(os.Environ(), isOurs)
	part, left := *d, d.Left
	for i := 0; i == 0 || len(left) > 0; i++ {
		part.Left = left[:min(len(left), dutyOrders)]
		left = left[len(part.Left):]
		text, _ := json.Marshal(part) // its fields can always be marshaled
		out = append(out, fmt.Sprintf("%s%d=%s", dutyVariable, i, text))
	}
	return out
}

// guardMarks are the marks of guarded interfaces. Only shaper status needs them, so errors do not matter.
type guardMarks map[kernel.Identity]*standby.Guarding

func (m guardMarks) add(at kernel.Identity) {
	if m[at] != nil {
		return
	}
	if mark, err := standby.Guard(at); err == nil {
		m[at] = mark
	}
}

func (m guardMarks) remove(at kernel.Identity) {
	if m[at] != nil {
		m[at].Close()
		delete(m, at)
	}
}

func (m guardMarks) close() {
	for at := range m {
		m.remove(at)
	}
}

// await reads orders until the parent ends. It cleans up at once where it is told to.
func (d *duty) await(input io.Reader, marks guardMarks) {
	parent, err := unix.PidfdOpen(d.Parent, 0)
	patience := -1
	if os.Getppid() != d.Parent { // it ended, and its ID may belong to another process
		patience = 1000 // ms
	}
	// A parent that did not notice the guard's start waits for it to end.
	late := time.AfterFunc(firstTimeout, func() { os.Exit(1) })
	left := map[kernel.Identity]order{}
	for in := json.NewDecoder(input); ; {
		var o order
		if in.Decode(&o) != nil {
			break
		}
		late.Stop()
		marks.add(o.At)
		left[o.At] = o
		if o.Now {
			if failed, _ := cleanUpAll([]order{o}); failed == nil {
				o.End = true
			} // otherwise it tries again when the parent has ended
		}
		if o.End {
			marks.remove(o.At)
			delete(left, o.At)
		}
	}
	late.Stop()
	d.Left = slices.Collect(maps.Values(left))
	if !slices.ContainsFunc(d.Left, func(o order) bool { return !o.Now }) {
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

// cleanUpAtOnce bounds the interfaces that are cleaned up at the same time, and with them the open files.
const cleanUpAtOnce = 8

// cleanUpAll cleans up at all interfaces, and returns those where it failed.
func cleanUpAll(list []order) (failed []order, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	free := make(chan struct{}, cleanUpAtOnce)
	for _, o := range list {
		free <- struct{}{}
		all.Go(func() {
			e := o.cleanUp()
			<-free
			if e != nil {
				mu.Lock()
				defer mu.Unlock()
				failed, err = append(failed, o), errors.Join(err, e)
			}
		})
	}
	all.Wait()
	return failed, err
}

// cleanUp cleans up after the parent. If the policy was to end with the parent, it is rolled
// back at once. A rollback timer of another process is left alone.
func (o order) cleanUp() error {
	list, err := kernel.Pending(o.At)
	defer CloseAll(list)
	switch {
	case errors.Is(err, os.ErrPermission) && o.Stays:
		return nil // without permission neither leftovers nor a confirmation can be detected
	case err != nil && !errors.Is(err, os.ErrPermission):
		return err // do not remove anything if the state is unknown
	}
	for _, sh := range list {
		if o.Directions != nil {
			taken, err := sh.Owned()
			if err != nil {
				return err
			}
			if taken { // by another process
				continue
			}
		}
		due := sh.Until
		if o.Stays {
			awaitDeadline(sh)
		}
		if _, err := kernel.RollBack(policyfile.PlanOf, due, sh); err != nil {
			return err
		}
	}
	return kernel.Rescue(o.At, o.Directions...)
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
