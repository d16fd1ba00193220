package live

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
)

// Shaper is one direction of a running shaper, in the kernel or in a shaper tap process.
type Shaper interface {
	Info() *kernel.About
	Attached() (bool, error)
	Owned() (bool, error) // a process holds it
	Refresh() error       // reads the state again
	Read() (kernel.Reading, error)
	Tokens() ([][2]int64, error) // by stage of the outline
	Check(*dataplane.Plan) error // returns an error if it cannot run the plan
	// Reload replaces the policy. Unless until is zero, the policy rolls back then if it is
	// not confirmed.
	Reload(plan *dataplane.Plan, label json.RawMessage, until time.Time) ([]dataplane.Change, error)
	Detach() error
	Close()
}

// Survey has everything of shaper in this network namespace.
type Survey struct {
	List []Shaper             // running shapers, by name
	Left []kernel.Left        // state left behind by killed processes
	Away []*standby.AwayError // processes that wait for an interface
}

// Look returns a survey. The caller must close its shapers.
func Look() (*Survey, error) {
	v, err := kernel.Look()
	if err != nil {
		return nil, err
	}
	out := &Survey{listTaps(), v.Left, v.Away}
	for _, sh := range v.Shapers {
		out.List = append(out.List, sh)
	}
	slices.SortStableFunc(out.List, func(a, b Shaper) int { return strings.Compare(Name(a.Info()), Name(b.Info())) })
	return out, nil
}

// Narrow removes everything that does not belong to an interface ("" for all) and to
// directions (nil for both).
func (v *Survey) Narrow(name string, directions []dataplane.Direction) {
	other := func(iface string, direction dataplane.Direction) bool {
		return name != "" && iface != name || directions != nil && !slices.Contains(directions, direction)
	}
	v.List = slices.DeleteFunc(v.List, func(sh Shaper) bool {
		skip := other(sh.Info().Interface, sh.Info().Direction)
		if skip {
			sh.Close()
		}
		return skip
	})
	v.Left = slices.DeleteFunc(v.Left, func(l kernel.Left) bool { return other(l.Interface, l.Direction) })
	v.Away = slices.DeleteFunc(v.Away, func(a *standby.AwayError) bool {
		return other(a.Interface, a.Direction)
	})
}

// Names returns the interfaces of shapers, sorted.
func Names(list []Shaper) (out []string) {
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

// Hook returns the hook of a shaper, and its mode if it has one.
func Hook(a *kernel.About) string {
	hook := a.Place.Hook
	if a.Place.Mode != "" {
		hook += " " + a.Place.Mode
	}
	return hook
}

// Pacer describes the qdisc of a shaper's queues.
func Pacer(s *kernel.About) string {
	out := map[kernel.Pacer]string{kernel.FQ: "fq, by departure time", kernel.HTB: "HTB, one leaf class per queue"}[s.Pacer]
	switch s.Fair {
	case kernel.FairByFQCoDel:
		out += "; fair queues by fq_codel"
	case kernel.FairByHTB:
		out += "; fair queues by HTB leaves for flow hashes, without codel: this kernel has no fq_codel"
	}
	if s.Redirected() {
		out += ", on an ifb device"
	}
	return out
}

// guarded reports whether a guard will roll a shaper back, or has done so since s was read.
func guarded(s Shaper) bool {
	k, ok := s.(*kernel.Shaper)
	return ok && (k.Guarded() || k.Refresh() == nil && k.Until.IsZero())
}

// Owned reports whether a process holds a shaper: by its lock or, if somebody has removed the file of the lock,
// because the process serves.
func Owned(s Shaper) (bool, error) {
	owned, err := s.Owned()
	if k, ok := s.(*kernel.Shaper); ok && !owned && err == nil && k.Process != 0 {
		if client := connect(runSocket(k.Process), k.Process); client != nil {
			client.Close()
			return true, nil
		}
	}
	return owned, err
}

// State describes the state of a shaper.
func State(s Shaper) string {
	about := s.Info()
	text := ""
	owned, err := Owned(s)
	owned = owned || err != nil // if unknown, do not report it as left behind
	switch {
	case !about.Until.IsZero() && !owned && !guarded(s):
		return "left behind: no process can roll it back: use shaper reload or detach"
	case about.Place.Hook == ByTap:
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
