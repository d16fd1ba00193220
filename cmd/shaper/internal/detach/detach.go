// Package detach removes everything of shaper from an interface.
package detach

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
)

// detachedJSON is the output of detach --json, one line per interface.
type detachedJSON struct {
	Interface   string              `json:"interface"`
	Directions  []detachedDirection `json:"directions"`
	LostPackets uint32              `json:"lost_packets"` // dropped with their queues
	LostAtMost  bool                `json:"lost_at_most"` // lost_packets is an upper bound
	Removed     []string            `json:"removed"`
	Restored    []string            `json:"restored"` // previous qdiscs and limits
	Warnings    []string            `json:"warnings"`
	Errors      []string            `json:"errors"`
}

// detachedDirection is a shaper, state left behind by a killed shaper, or a process that waited for the
// interface.
type detachedDirection struct {
	Direction string `json:"direction"`
	State     string `json:"state"` // "detached", "cleaned up" or "no longer waiting"
	What      string `json:"what,omitempty"`
	ProgramID uint32 `json:"program_id,omitempty"`
	Process   int    `json:"process,omitempty"` // ID of the process that waited
	Policy    string `json:"policy,omitempty"`
}

// detachment is what detach does at one interface.
type detachment struct {
	*live.Survey // of the interface
	name         string
	cleared      kernel.Cleared
	clearFailed  error
	printer      *say.Printer // for people
	out          detachedJSON
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
	d := &detachment{
		Survey: v, name: name, printer: say.NewPrinter(s.Out),
		out: detachedJSON{Interface: name, Directions: []detachedDirection{}, Errors: []string{}},
	}
	if asJSON {
		d.printer = say.NewPrinter(io.Discard)
	}
	waiting := d.endWaiting()
	live.Announce(v.List, live.Detach, live.Author("shaper detach"))
	d.clear(f.List)
	err = errors.Join(waiting, d.clearFailed, d.detachShapers())
	for _, note := range d.cleared.Notes {
		fmt.Fprintf(s.Err, "shaper: warning: %s\n", note)
	}
	d.listLeft()
	switch {
	case !d.found() && d.clearFailed == nil:
		return f.NoneError(name)
	case asJSON && d.found():
		if err != nil {
			d.out.Errors = strings.Split(err.Error(), "\n")
		}
		return errors.Join(err, cli.AfterChange(say.WriteJSON(s.Out, d.out)))
	}
	return errors.Join(err, cli.AfterChange(d.printer.Err))
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
		d.printer.Printf("%s %v: process %d no longer waits for it\n", a.Interface, a.Direction, a.Process)
		d.out.Directions = append(d.out.Directions, detachedDirection{
			Direction: a.Direction.String(), State: "no longer waiting", Process: a.Process, Policy: a.Policy,
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
// kernel. The lost packets are listed with the first one.
func (d *detachment) detachShapers() error {
	var errs []error
	lost := d.cleared.Lost
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
		about.Lost, lost = lost, kernel.Discarded{}
		live.PrintDetached(d.printer, about)
		d.out.Directions = append(d.out.Directions, detachedDirection{
			Direction: about.Direction.String(), State: "detached", ProgramID: uint32(about.Program),
			Policy: live.PolicyName(about),
		})
	}
	return errors.Join(errs...)
}

// listLeft lists everything removed that killed shapers had left behind.
func (d *detachment) listLeft() {
	if d.clearFailed == nil {
		for _, l := range d.Left {
			d.out.Directions = append(d.out.Directions, detachedDirection{
				Direction: l.Direction.String(), State: "cleaned up", What: l.What,
			})
		}
	}
	if len(d.List) > 0 {
		return
	}
	for _, what := range d.cleared.Removed {
		d.printer.Printf("cleaned up: %s\n", what)
	}
	if len(d.cleared.Removed) == 0 && len(d.Left) > 0 && d.clearFailed == nil {
		d.printer.Printf("%s: cleaned up\n", d.name)
	}
}
