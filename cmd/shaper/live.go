package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

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
func (f *liveFlags) choose(args []string) ([]*kernel.Shaper, error) {
	all, err := kernel.List()
	if err != nil {
		return nil, err
	}
	var out []*kernel.Shaper
	names := map[string]bool{}
	for _, s := range all {
		if len(args) > 0 && s.Interface != args[0] || f.list != nil && !slices.Contains(f.list, s.Direction) {
			s.Close()
			continue
		}
		out = append(out, s)
		names[s.Interface] = true
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

func (f *liveFlags) which() string {
	if f.list == nil {
		return ""
	}
	return " at " + f.String()
}

func closeAll(list []*kernel.Shaper) {
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
func (c *compiled) suits(list []*kernel.Shaper) error {
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

// state says in words how it is with a shaper.
func state(s *kernel.Shaper) string {
	switch owned := s.Owned(); {
	case s.Pinned && !owned:
		return "attached, pinned"
	case s.Pinned:
		return fmt.Sprintf("attached, pinned, held by process %d", s.Process)
	case owned:
		return fmt.Sprintf("attached by process %d", s.Process)
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
