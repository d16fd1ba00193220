package stats

import (
	"errors"
	"io"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// ReloadedOf describes a shaper that has just got a policy. inForce are the changes still in force.
func ReloadedOf(
	about *kernel.About, policy string, classes []compiled.ClassChange, inForce []live.InForce,
) control.ReloadedShaper {
	row := control.ReloadedShaper{
		Interface: about.Interface, Direction: about.Direction.String(), Program: uint32(about.Program),
		Policy: policy, Classes: classes, Kept: []control.Change{},
	}
	if about.AskedGSO == 0 {
		row.GSOLimit = about.GSOLimit
	}
	for i := range inForce {
		row.Kept = append(row.Kept, InForceJSON(&inForce[i]))
	}
	return row
}

// PrintReloaded prints the new policies of shapers, and on notes a line for each change that wins over them.
func PrintReloaded(p *say.Printer, notes io.Writer, list []control.ReloadedShaper, asJSON bool) {
	for i := range list {
		row := &list[i]
		about := &kernel.About{Interface: row.Interface, GSOLimit: row.GSOLimit}
		if row.Direction == kernel.Ingress.String() {
			about.Direction = kernel.Ingress
		}
		var kept []live.InForce
		for i := range row.Kept {
			kept = append(kept, *inForceOf(&row.Kept[i]))
		}
		cli.PrintNotes(notes, live.Name(about), live.KeptNotes(kept, row.Interface))
		if asJSON {
			p.Err = errors.Join(p.Err, say.WriteJSON(p.W, row))
			continue
		}
		p.Printf("%s: reloaded, ", live.Name(about))
		if row.Program != 0 {
			p.Printf("program %d, ", row.Program)
		}
		p.Printf("policy %s\n", row.Policy)
		live.PrintGSO(p, about)
		live.PrintClasses(p, about, row.Classes)
	}
}

// ChangeWords returns a change, or one in force, in words.
func ChangeWords(row *control.Change) string { return inForceOf(row).Words() }
