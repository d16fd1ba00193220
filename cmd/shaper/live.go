package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// live is a shaper at work: in the kernel, or in a process that carries the
// frames itself.
type live interface {
	Info() *kernel.About
	Attached() bool
	Owned() bool
	Refresh() error
	Stats() ([]dataplane.ClassStats, error)
	Tokens(class int) ([][2]int64, error)
	Queues() ([]dataplane.QueueState, error)
	Check(*dataplane.Policy) error
	Reload(*dataplane.Policy, json.RawMessage) ([]dataplane.Change, error)
	Promise(before *kernel.Before, until time.Time) error
	GoBack(*dataplane.Policy) error
	Detach() error
	Close()
}

// listLive returns all shapers of this network namespace.
func listLive() ([]live, error) {
	inKernel, err := kernel.List()
	if err != nil {
		return nil, err
	}
	out := listTaps()
	for _, sh := range inKernel {
		out = append(out, sh)
	}
	return out, nil
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
type liveFlags struct{ directions }

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
	all, err := listLive()
	if err != nil {
		return nil, err
	}
	var out []live
	names := map[string]bool{}
	for _, s := range all {
		name := s.Info().Interface
		if len(args) > 0 && name != args[0] || f.list != nil && !slices.Contains(f.list, s.Info().Direction) {
			s.Close()
			continue
		}
		out = append(out, s)
		names[name] = true
	}
	switch {
	case len(out) == 0 && len(args) > 0:
		return nil, fmt.Errorf("%s is not shaped%s: begin with shaper run %[1]s --policy FILE", args[0], f.which())
	case len(out) == 0:
		return nil, fmt.Errorf("no interface is shaped%s: begin with shaper run IFACE --policy FILE", f.which())
	case len(names) > 1:
		closeAll(out)
		var list []string
		for name := range names {
			list = append(list, name)
		}
		slices.Sort(list)
		return nil, usagef("several interfaces are shaped, name one: %s", strings.Join(list, ", "))
	}
	return out, nil
}

// tidy removes what is left on an interface whose shapers were killed.
func (f *liveFlags) tidy(name string) (found bool, err error) {
	list := f.list
	if list == nil {
		list = []kernel.Hook{kernel.Egress, kernel.Ingress}
	}
	for _, direction := range list {
		there, e := kernel.Tidy(name, direction)
		found, err = found || there, errors.Join(err, e)
	}
	return found, err
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

// policyOf reads the policy that a shaper keeps.
func policyOf(raw json.RawMessage) (*compiled, error) {
	var l label
	if err := json.Unmarshal(raw, &l); err != nil {
		return nil, fmt.Errorf("the shaper was attached by another version: %w", err)
	}
	if l.Text == "" && l.One == nil {
		return nil, errors.New("the shaper was attached by another program, which keeps no text of its policy")
	}
	return l.compile()
}

// suits says what is wrong with a policy for any of these shapers, before one of
// them gets it.
func suits[S interface{ Check(*dataplane.Policy) error }](c *compiled, list []S) error {
	for _, sh := range list {
		if err := sh.Check(c.Policy); err != nil {
			return c.explain(err)
		}
	}
	return nil
}

// labelOf is what a shaper keeps of a policy.
func labelOf(c *compiled) json.RawMessage {
	raw, err := json.Marshal(c.label)
	if err != nil {
		panic(err) // strings only
	}
	return raw
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
	if s.IFB != nil {
		out += ", on a device of their own"
	}
	return out
}

// state says in words how it is with a shaper.
func state(s live) string {
	about := s.Info()
	switch owned := s.Owned(); {
	case about.Place.Method == byTap:
		return fmt.Sprintf("carried by process %d", about.Process)
	case about.Pinned && !owned:
		return "attached, pinned"
	case about.Pinned:
		return fmt.Sprintf("attached, pinned, held by process %d", about.Process)
	case owned:
		return fmt.Sprintf("attached by process %d", about.Process)
	}
	return "left behind by a process that was killed: shaper detach removes it"
}

// kernelRelease is the version of the running kernel.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
