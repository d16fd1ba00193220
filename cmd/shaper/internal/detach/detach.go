// Package detach removes everything of shaper from an interface.
package detach

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
)

// Detached is what was removed from an interface: the output of detach --json, one line per interface.
type Detached struct {
	Interface   string      `json:"interface"`
	Directions  []Direction `json:"directions"`
	LostPackets uint32      `json:"lost_packets"` // dropped with their queues
	LostAtMost  bool        `json:"lost_at_most"` // lost_packets is an upper bound
	Removed     []string    `json:"removed"`
	Restored    []string    `json:"restored"` // previous qdiscs and limits
	Warnings    []string    `json:"warnings"`
	Errors      []string    `json:"errors"`
}

// New returns a Detached without anything.
func New(iface string) *Detached {
	return &Detached{
		Interface: iface, Directions: []Direction{}, Removed: []string{}, Restored: []string{},
		Warnings: []string{}, Errors: []string{},
	}
}

// Direction is a shaper, state left behind by a killed shaper, or a process that waited for the interface.
type Direction struct {
	Direction string `json:"direction"`
	State     State  `json:"state"`
	What      string `json:"what,omitempty"`
	ProgramID uint32 `json:"program_id,omitempty"`
	Process   int    `json:"process,omitempty"` // ID of the process that waited
	Policy    string `json:"policy,omitempty"`
}

// State says what detach did.
type State string

// The states of a Direction.
const (
	Done    State = "detached"
	Cleaned State = "cleaned up"
	NoWait  State = "no longer waiting"
)

// ErrNothing is the error of a request to detach, if there is nothing.
var ErrNothing = errors.New("it is not shaped in this direction")

// detachment is what detach does at one interface.
type detachment struct {
	*live.Survey // of the interface
	name         string
	cleared      kernel.Cleared
	clearFailed  error
	out          *Detached
}

// Detach removes everything of shaper from an interface, or from the only one on which there is
// something to remove.
func Detach(s cli.Streams, f *live.Flags, name string, asJSON bool) error {
	v, err := live.Look(name)
	if err != nil {
		return err
	}
	defer func() { live.CloseAll(v.List) }()
	v.Narrow(name, f.List)
	if name == "" {
		switch names := v.Names(); len(names) {
		case 0:
			return f.NoneError("")
		case 1:
			name = names[0]
		default:
			return f.SeveralError(names)
		}
	}
	out, err := Remove(v, name, f.List, live.Author("shaper detach"))
	if out == nil && err == nil {
		return f.NoneError(name)
	}
	if out == nil {
		return err
	}
	return errors.Join(err, cli.AfterChange(Print(s, out, asJSON)))
}

// Print prints what was removed from an interface.
func Print(s cli.Streams, d *Detached, asJSON bool) error {
	for _, note := range d.Warnings {
		fmt.Fprintf(s.Err, "shaper: warning: %s\n", note)
	}
	if asJSON {
		return say.WriteJSON(s.Out, d)
	}
	p := say.NewPrinter(s.Out)
	lost, done := d.LostPackets, false
	for _, row := range d.Directions {
		name := d.Interface + " " + row.Direction
		switch row.State {
		case NoWait:
			p.Printf("%s: process %d no longer waits for it\n", name, row.Process)
		case Done:
			if lost > 0 {
				most := ""
				if d.LostAtMost {
					most = "at most "
				}
				p.Printf("%s: lost %s%s packets that were still queued\n", name, most, say.Grouped(int64(lost)))
			}
			p.Printf("%s: detached\n", name)
			lost, done = 0, true
		}
	}
	if done {
		return p.Err
	}
	for _, what := range d.Removed {
		p.Printf("cleaned up: %s\n", what)
	}
	cleaned := func(row Direction) bool { return row.State == Cleaned }
	if len(d.Removed) == 0 && slices.ContainsFunc(d.Directions, cleaned) {
		p.Printf("%s: cleaned up\n", d.Interface)
	}
	return p.Err
}

// Remove removes everything of shaper that a survey found at an interface, in some directions or, for nil, in
// both. It returns nil if there is nothing. After an error it returns what was removed nevertheless. author
// is who asks for it.
func Remove(
	v *live.Survey, name string, directions []dataplane.Direction, author changes.Author,
) (*Detached, error) {
	d := &detachment{Survey: v, name: name, out: New(name)}
	waiting := d.endWaiting()
	live.Announce(v.List, live.Detach, author)
	d.clear(directions)
	err := errors.Join(waiting, d.clearFailed, d.detachShapers())
	if d.clearFailed == nil {
		for _, l := range d.Left {
			d.out.Directions = append(d.out.Directions, Direction{
				Direction: l.Direction.String(), State: Cleaned, What: l.What,
			})
		}
	}
	if !d.found() {
		return nil, err
	}
	if err != nil {
		d.out.Errors = strings.Split(err.Error(), "\n")
	}
	return d.out, err
}

// found reports whether there was anything to remove.
func (d *detachment) found() bool {
	return len(d.List)+len(d.Left)+len(d.Away)+len(d.cleared.Removed) > 0
}

// endWaiting ends the processes that wait for the interface.
func (d *detachment) endWaiting() error {
	var errs []error
	for _, a := range d.Away {
		if err := standby.EndAway(a); err != nil {
			errs = append(errs, err)
			continue
		}
		d.out.Directions = append(d.out.Directions, Direction{
			Direction: a.Direction.String(), State: NoWait, Process: a.Process, Policy: a.Policy,
		})
	}
	return errors.Join(errs...)
}

// clear removes everything from the kernel, in some directions or, for nil, in both. A missing interface is
// an error only if nothing was found.
func (d *detachment) clear(directions []dataplane.Direction) {
	if directions == nil {
		directions = []dataplane.Direction{kernel.Egress, kernel.Ingress}
	}
	d.cleared, d.clearFailed = kernel.Clear(d.name, directions...)
	if errors.As(d.clearFailed, new(*kernel.NoInterfaceError)) && d.found() {
		d.clearFailed = nil
	}
	d.out.Removed = append([]string{}, d.cleared.Removed...)
	d.out.Restored = append([]string{}, d.cleared.Restored...)
	d.out.Warnings = append([]string{}, d.cleared.Notes...)
	d.out.LostPackets, d.out.LostAtMost = d.cleared.Lost.Packets, d.cleared.Lost.AtMost
}

// detachShapers ends the shaper taps, and lists all shapers that are detached: clear detached those in the
// kernel.
func (d *detachment) detachShapers() error {
	var errs []error
	for _, sh := range d.List {
		failed := d.clearFailed
		if live.IsTap(sh.Info()) {
			failed = sh.Detach()
			errs = append(errs, failed)
		}
		if failed != nil {
			continue
		}
		about := sh.Info()
		d.out.Directions = append(d.out.Directions, Direction{
			Direction: about.Direction.String(), State: Done, ProgramID: uint32(about.Program),
			Policy: live.PolicyName(about),
		})
	}
	return errors.Join(errs...)
}
