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

// Detach removes everything of shaper from an interface, or from the only one on which there is
// something to remove.
func Detach(s cli.Streams, f *live.Flags, name string, asJSON bool) error {
	v, err := live.Look()
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
	p := say.NewPrinter(s.Out)
	if asJSON {
		p = say.NewPrinter(io.Discard)
	}
	out := detachedJSON{Interface: name, Directions: []detachedDirection{}, Errors: []string{}}
	var errs []error
	for _, a := range v.Away {
		if err := standby.EndAway(a); err != nil {
			errs = append(errs, err)
			continue
		}
		p.Printf("%s %v: process %d no longer waits for it\n", a.Interface, a.Direction, a.Process)
		out.Directions = append(out.Directions, detachedDirection{
			Direction: a.Direction.String(), State: "no longer waiting", Process: a.Process, Policy: a.Policy,
		})
	}
	directions := f.List
	if directions == nil {
		directions = []dataplane.Direction{kernel.Egress, kernel.Ingress}
	}
	live.Announce(v.List, live.Detach, live.Author("shaper detach"))
	cleared, err := kernel.Clear(name, directions...)
	if errors.As(err, new(*kernel.NoInterfaceError)) &&
		len(v.Away)+len(v.List)+len(v.Left)+len(cleared.Removed) > 0 {
		err = nil
	}
	errs = append(errs, err)
	out.Removed, out.Restored = append([]string{}, cleared.Removed...),
		append([]string{}, cleared.Restored...)
	out.Warnings = append([]string{}, cleared.Notes...)
	out.LostPackets, out.LostAtMost = cleared.Lost.Packets, cleared.Lost.AtMost
	for _, sh := range v.List {
		failed := err
		if live.IsTap(sh.Info()) { // Clear removed the others
			failed = sh.Detach()
			errs = append(errs, failed)
		}
		if failed != nil {
			continue
		}
		about := sh.Info()
		about.Lost = cleared.Lost
		cleared.Lost = kernel.Discarded{}
		live.PrintDetached(p, about)
		out.Directions = append(out.Directions, detachedDirection{
			Direction: about.Direction.String(), State: "detached", ProgramID: uint32(about.Program),
			Policy: live.PolicyName(about),
		})
	}
	if err == nil {
		for _, l := range v.Left {
			out.Directions = append(out.Directions, detachedDirection{
				Direction: l.Direction.String(), State: "cleaned up", What: l.What,
			})
		}
	}
	for _, note := range cleared.Notes {
		fmt.Fprintf(s.Err, "shaper: warning: %s\n", note)
	}
	if len(v.List) == 0 {
		for _, what := range cleared.Removed {
			p.Printf("cleaned up: %s\n", what)
		}
		if len(cleared.Removed) == 0 && len(v.Left) > 0 && err == nil {
			p.Printf("%s: cleaned up\n", name)
		}
	}
	found := len(v.List)+len(v.Left)+len(v.Away)+len(cleared.Removed) > 0
	if !found && err == nil {
		return f.NoneError(name)
	}
	err = errors.Join(errs...)
	if asJSON && found {
		if err != nil {
			out.Errors = strings.Split(err.Error(), "\n")
		}
		return errors.Join(err, cli.AfterChange(say.WriteJSON(s.Out, out)))
	}
	return errors.Join(err, cli.AfterChange(p.Err))
}
