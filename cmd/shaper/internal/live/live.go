package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
	"golang.org/x/sys/unix"
)

// Handle is one direction of a running shaper, in the kernel or in a shaper tap process.
type Handle interface {
	Info() *kernel.About
	Attached() (bool, error)
	Owned() (bool, error) // a process holds it
	Guarded() bool        // a guard will roll it back, or just did
	// Problems returns the reasons why packets bypass it, and notes about its interface.
	Problems() ([]kernel.Problem, error)
	Refresh() error // reads the state again

	Sample() (Sample, error)                           // reads the counters
	Earlier(now kernel.Reading) (kernel.Reading, bool) // an earlier reading kept by any process
	Keep(kernel.Reading)                               // keeps a reading for Earlier
	Lost() tap.Lost                                    // packets lost by a shaper tap
	// Customers returns the customers, in the order of their file, and the time of the reading in
	// ns. The error wraps ErrNoCustomers if the policy has none.
	Customers() (at int64, list []Customer, err error)
	// Links returns the states of the links, by the numbers of the outline, and the time of the reading
	// in ns; none in a dry run in the kernel.
	Links() (at int64, list []dataplane.LinkState, err error)
	// Changes returns the changes of its process; without a process, those in its file.
	Changes() (Changes, error)
	// Shares returns the shares of budgets on servers, as the process of this ID reports them.
	// Without an answer, or for 0, they are those in the kernel.
	Shares(process int) []budgets.State

	Check(*compiled.Plan) error // returns an error if it cannot run the plan
	// Prepare prepares its process for a new policy, to give new budgets on servers shares at once.
	// The caller must call done after the reload: then the process knows the new program, and can
	// tell later who detached it.
	Prepare(policy *policyfile.Compiled) (done func())
	// Reload replaces the policy. Unless until is zero, the policy rolls back then if it is
	// not confirmed.
	Reload(plan *compiled.Plan, label json.RawMessage, until time.Time) ([]compiled.ClassChange, error)
	Notes() []string // effects of the last Reload on budgets in use by other shapers
	// KeepCustomers copies the file of customers of the shaper's newest policy, to make a rollback
	// to it independent of the file.
	KeepCustomers(policy *policyfile.Compiled) error
	// Settle is called after a policy was loaded with the changes in the file. For a shaper without
	// a process it removes the ended changes from the file, and the mark of interrupted ones. The
	// caller must hold the lock of the file.
	Settle(path string) error
	Detach() error
	Close()

	shaper() *kernel.Shaper  // nil for a shaper tap
	keeper() (keeper, error) // process or file with its changes
	announceTo() *caller     // new connection to its process; nil without one
}

// IsTap reports whether a shaper runs in a shaper tap, whose process moves the frames and applies
// changes to new policies itself.
func IsTap(a *kernel.About) bool { return a.Place.Hook == ByTap }

// Survey lists everything of shaper in this network namespace.
type Survey struct {
	List []Handle             // running shapers, by name
	Left []kernel.Leftover    // state left behind by killed processes
	Away []*standby.AwayError // processes waiting for an interface
}

// Look returns a survey of an interface, "" for all. The cost of one does not depend on the others. The
// caller must close its shapers.
func Look(name string) (*Survey, error) {
	if name == "" {
		v, err := kernel.Look()
		return surveyOf(v, err)
	}
	v, err := kernel.LookAt(name)
	out, err := surveyOf(v, err)
	if err == nil {
		out.Narrow(name, nil)
	}
	return out, err
}

func surveyOf(v *kernel.Survey, err error) (*Survey, error) {
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("%w; status, stats, set, reload, confirm and detach need neither with "+
			"--control SOCKET, that of shaper serve, run or tap", err)
	}
	if err != nil {
		return nil, err
	}
	out := &Survey{listTaps(), v.Left, v.Away}
	for _, sh := range v.Shapers {
		out.List = append(out.List, InKernel(sh))
	}
	list := out.List
	sort.SliceStable(list, func(i, j int) bool { return Name(list[i].Info()) < Name(list[j].Info()) })
	return out, nil
}

// Narrow removes everything that does not belong to an interface ("" for all) and to directions
// (nil for both).
func (v *Survey) Narrow(name string, directions []dataplane.Direction) {
	other := func(iface string, direction dataplane.Direction) bool {
		return name != "" && iface != name || directions != nil && !slices.Contains(directions, direction)
	}
	v.List = slices.DeleteFunc(v.List, func(sh Handle) bool {
		skip := other(sh.Info().Interface, sh.Info().Direction)
		if skip {
			sh.Close()
		}
		return skip
	})
	v.Left = slices.DeleteFunc(v.Left,
		func(l kernel.Leftover) bool { return other(l.Interface, l.Direction) })
	v.Away = slices.DeleteFunc(v.Away, func(a *standby.AwayError) bool {
		return other(a.Interface, a.Direction)
	})
}

// Names returns the interfaces of shapers, sorted.
func Names(list []Handle) (out []string) {
	for _, sh := range list {
		out = append(out, sh.Info().Interface)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Names returns all interfaces in the survey, sorted.
func (v *Survey) Names() []string {
	out := Names(v.List)
	for _, l := range v.Left {
		out = append(out, l.Interface)
	}
	for _, a := range v.Away {
		out = append(out, a.Interface)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// CloseAll closes all elements of a list.
func CloseAll[S interface{ Close() }](list []S) {
	for _, s := range list {
		s.Close()
	}
}

// Name returns the name of a shaper: interface and direction.
func Name(a *kernel.About) string { return a.Interface + " " + a.Direction.String() }

// Hook returns the hook of a shaper, and its mode if any.
func Hook(a *kernel.About) string {
	hook := a.Place.Hook
	if a.Place.Mode != "" {
		hook += " " + a.Place.Mode
	}
	return hook
}

// Pacer describes the qdisc of a shaper's queues.
func Pacer(s *kernel.About) string {
	out := map[kernel.Pacer]string{
		kernel.FQ: "fq, by departure time", kernel.HTB: "HTB, one leaf class per queue",
	}[s.Pacer]
	switch {
	case s.MQ && s.Pacer == kernel.FQ:
		out += ", one below mq for each hardware queue"
	case s.MQ:
		out += ", in the place of mq: all CPUs share one lock"
	}
	switch s.Fair {
	case kernel.FairByFQCoDel:
		out += "; fair queues by fq_codel"
	case kernel.FairByCake:
		out += "; fair queues by cake"
	case kernel.FairByBoth:
		out += "; fair queues by fq_codel, or by cake if hosts get the same"
	case kernel.FairByHTB:
		out += "; fair queues by HTB leaves for flow hashes, without codel: this kernel has no fq_codel"
	}
	if len(s.Outline.Above) > 0 {
		out += "; queues share the rates unused by links below a link, regardless of the weights of links"
	}
	if s.Redirected() {
		out += ", on an ifb device"
	}
	return out
}

// State describes the state of a shaper.
func State(s Handle) string {
	about := s.Info()
	text := ""
	owned, err := s.Owned()
	owned = owned || err != nil // if unknown, do not report it as left behind
	switch {
	case !about.Until.IsZero() && !owned && !s.Guarded():
		return "left behind: no process can roll it back: use shaper reload or detach"
	case IsTap(about):
		return fmt.Sprintf("running in process %d", about.Process)
	case about.Pinned && !owned:
		text = "attached, pinned"
	case about.Pinned:
		text = fmt.Sprintf("attached, pinned, held by process %d", about.Process)
	case owned:
		text = fmt.Sprintf("attached by process %d", about.Process)
	case !about.Until.IsZero():
		text = "attached until it is confirmed or rolled back"
	default:
		return "left behind by a killed process: shaper detach removes it"
	}
	if about.Begun {
		text += ", its last change was interrupted: shaper reload completes it"
	}
	return text
}

// KernelRelease returns the version of the running kernel.
func KernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// PollInterval is the interval at which a process checks an interface.
const PollInterval = 200 * time.Millisecond
