package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// live is a running shaper: in the kernel, or in a process that carries the
// frames itself.
type live interface {
	Info() *kernel.About
	Attached() (bool, error)
	Owned() (bool, error)
	Refresh() error
	Stats() ([]dataplane.ClassStats, error)
	Tokens() ([][2]int64, error) // by stage of the outline
	Queues() ([]dataplane.QueueState, error)
	Check(*dataplane.Plan) error
	Reload(plan *dataplane.Plan, label json.RawMessage, until time.Time) ([]dataplane.Change, error)
	Detach() error
	Close()
}

// survey is everything of ours in this network namespace.
type survey struct {
	list []live
	left []kernel.Left
	away []*kernel.AwayError
}

func look() (*survey, error) {
	v, err := kernel.Look()
	if err != nil {
		return nil, err
	}
	out := &survey{listTaps(), v.Left, v.Away}
	for _, sh := range v.Shapers {
		out.list = append(out.list, sh)
	}
	slices.SortStableFunc(out.list, func(a, b live) int { return strings.Compare(where(a.Info()), where(b.Info())) })
	return out, nil
}

// narrow leaves what belongs to an interface, "" for all, and to the directions.
func (v *survey) narrow(name string, f *directions) {
	other := func(of string, direction kernel.Hook) bool {
		return name != "" && of != name || f.list != nil && !slices.Contains(f.list, direction)
	}
	v.list = slices.DeleteFunc(v.list, func(sh live) bool {
		skip := other(sh.Info().Interface, sh.Info().Direction)
		if skip {
			sh.Close()
		}
		return skip
	})
	v.left = slices.DeleteFunc(v.left, func(l kernel.Left) bool { return other(l.Interface, l.Direction) })
	v.away = slices.DeleteFunc(v.away, func(a *kernel.AwayError) bool {
		return other(a.Interface, a.Direction)
	})
}

func namesOf(list []live) (out []string) {
	for _, sh := range list {
		out = append(out, sh.Info().Interface)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// names are those of all interfaces that have anything of ours.
func (v *survey) names() []string {
	out := namesOf(v.list)
	for _, l := range v.left {
		out = append(out, l.Interface)
	}
	for _, a := range v.away {
		out = append(out, a.Interface)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// directions is a flag: egress, ingress or both.
type directions struct{ list []kernel.Hook }

func (d *directions) String() string {
	if len(d.list) == 2 {
		return "both"
	}
	if len(d.list) == 1 {
		return d.list[0].String()
	}
	return ""
}

func (d *directions) Type() string { return "DIRECTION" }

func (d *directions) Set(s string) error {
	switch s {
	case "egress":
		d.list = []kernel.Hook{kernel.Egress}
	case "ingress":
		d.list = []kernel.Hook{kernel.Ingress}
	case "both":
		d.list = []kernel.Hook{kernel.Egress, kernel.Ingress}
	default:
		return fmt.Errorf("want egress, ingress or both")
	}
	return nil
}

// liveFlags choose among the shapers of this network namespace.
type liveFlags struct {
	directions
	several bool   // interfaces may be chosen at once
	orAll   string // for the message where they may not
}

func (f *liveFlags) add(cmd *cobra.Command) {
	cmd.Flags().Var(&f.directions, "direction", "only one `DIRECTION`: egress or ingress (default: those that are shaped)")
}

// atMostOne wants an interface, or nothing where there is only one shaped.
func atMostOne(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("want one interface, got %d: see %s --help", len(args), cmd.CommandPath())
	}
	return nil
}

// choose returns the shapers of the interface named, or of the only one that
// has any. The caller closes them.
func (f *liveFlags) choose(args []string) ([]live, error) {
	v, err := look()
	if err != nil {
		return nil, err
	}
	v.narrow(named(args), &f.directions)
	names := namesOf(v.list)
	switch {
	case len(names) == 1 || len(names) > 1 && f.several:
		return v.list, nil
	case len(names) > 1:
		closeAll(v.list)
		return nil, f.severalError(names)
	case len(v.away) > 0:
		return nil, fmt.Errorf("%w; kill -HUP %d has it read its policy again", v.away[0], v.away[0].Process)
	}
	return nil, f.noneError(named(args))
}

func named(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return ""
}

func (f *liveFlags) severalError(names []string) error {
	return usagef("several interfaces are shaped, name one%s: %s", f.orAll, strings.Join(names, ", "))
}

// noneError says that no shaper is there, and how to start one.
func (f *liveFlags) noneError(name string) error {
	if name == "" {
		return fmt.Errorf("no interface is shaped%s: start with shaper run IFACE --policy FILE", f.which())
	}
	if _, err := kernel.Identify(name); errors.As(err, new(*kernel.NoInterfaceError)) {
		return err
	}
	return fmt.Errorf("%s is not shaped%s: start with shaper run %[1]s --policy FILE", name, f.which())
}

func (f *liveFlags) which() string {
	if f.list == nil {
		return ""
	}
	return " at " + f.String()
}

func closeAll[S interface{ Close() }](list []S) {
	for _, s := range list {
		s.Close()
	}
}

// suits says what is wrong with a policy for any of these shapers, before one of
// them gets it.
func suits[S interface{ Check(*dataplane.Plan) error }](c *policyfile.Compiled, list []S) error {
	for _, sh := range list {
		if err := sh.Check(c.Plan); err != nil {
			return explainIn(c, err)
		}
	}
	return nil
}

// where names a shaper.
func where(a *kernel.About) string { return a.Interface + " " + a.Direction.String() }

// hookOf says how a shaper is attached.
func hookOf(a *kernel.About) string {
	hook := string(a.Place.Method)
	if a.Place.Mode != "" {
		hook += " " + a.Place.Mode
	}
	return hook
}

// pacerOf says what holds the packets of queues.
func pacerOf(s *kernel.About) string {
	out := map[kernel.Pacer]string{kernel.FQ: "fq, by departure times", kernel.HTB: "HTB, in a leaf each"}[s.Pacer]
	if s.Redirected() {
		out += ", on a device of their own"
	}
	return out
}

// guarded says whether a guard will roll a shaper back, or has since s was read.
func guarded(s live) bool {
	k, ok := s.(*kernel.Shaper)
	return ok && (k.Guarded() || k.Refresh() == nil && k.Until.IsZero())
}

// state says in words how it is with a shaper.
func state(s live) string {
	about := s.Info()
	text := ""
	owned, err := s.Owned()
	owned = owned || err != nil // what is not known is not called left behind
	switch {
	case !about.Until.IsZero() && !owned && !guarded(s):
		return "left behind: no process is there to roll it back: shaper reload or detach"
	case about.Place.Method == byTap:
		return fmt.Sprintf("carried by process %d", about.Process)
	case about.Pinned && !owned:
		text = "attached, pinned"
	case about.Pinned:
		text = fmt.Sprintf("attached, pinned, held by process %d", about.Process)
	case owned:
		text = fmt.Sprintf("attached by process %d", about.Process)
	case !about.Until.IsZero():
		text = "attached until it is confirmed or rolled back"
	default:
		return "left behind by a process that was killed: shaper detach removes it"
	}
	if about.Begun {
		text += ", its last change was interrupted: shaper reload completes it"
	}
	return text
}

// kernelRelease is the version of the running kernel.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
