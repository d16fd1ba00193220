package stats

import (
	"fmt"
	"hash/fnv"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// View is all that status and stats print of a shaper, or of another entry of status. The process of a shaper
// sends it as JSON to commands of the same ViewVersion.
type View struct {
	Remains *Remains `json:",omitempty"` // another entry: all other fields are zero
	Status  Status
	About   kernel.About // only what is printed
	Samples *Samples     `json:",omitempty"` // for stats
	Lost    tap.Lost
}

// ViewOf returns the view of a shaper. look returns its changes. samples is nil for status.
func ViewOf(sh live.Handle, look ChangesLook, samples *Samples) View {
	about := sh.Info()
	return View{
		Status: StatusOf(sh, look), Samples: samples, Lost: sh.Lost(),
		About: kernel.About{
			Interface: about.Interface, Index: about.Index, Direction: about.Direction, Place: about.Place,
			Peer: about.Peer, Pacer: about.Pacer, MQ: about.MQ, Fair: about.Fair, AskedGSO: about.AskedGSO,
			GSOLimit: about.GSOLimit, Outline: about.Outline,
		},
	}
}

// ViewVersion returns a text that differs between versions of shaper whose views have other fields.
var ViewVersion = sync.OnceValue(func() string {
	sum, seen := fnv.New64a(), map[reflect.Type]bool{reflect.TypeFor[time.Time](): true}
	var add func(reflect.Type)
	add = func(t reflect.Type) {
		fmt.Fprintf(sum, "%v %v\n", t, t.Kind())
		if seen[t] {
			return
		}
		seen[t] = true
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			add(t.Elem())
		case reflect.Map:
			add(t.Key())
			add(t.Elem())
		case reflect.Struct:
			for i := range t.NumField() {
				f := t.Field(i)
				fmt.Fprintf(sum, "%s %q ", f.Name, f.Tag)
				add(f.Type)
			}
		}
	}
	add(reflect.TypeFor[View]())
	return strconv.FormatUint(sum.Sum64(), 36)
})

// PrintStatus prints views as shaper status does.
func PrintStatus(p *say.Printer, list []View) {
	for i := range list {
		v := &list[i]
		switch {
		case v.Remains != nil:
			v.Remains.print(p)
			continue
		case i > 0:
			p.Printf("\n")
		}
		v.printStatus(p)
	}
}

// print prints the entry for people.
func (r *Remains) print(p *say.Printer) {
	switch {
	case r.State == stateWaiting:
		p.Printf("%s %s: away: process %d is waiting for it, policy %s\n", r.Interface, r.Direction, r.Process,
			r.Policy)
	case r.State == stateLeft:
		p.Printf("%s %s: left behind: %s (shaper detach %s removes it)\n", r.Interface, r.Direction, r.What,
			r.Interface)
	default:
		state := say.Printable(r.State)
		p.Folded(fmt.Sprintf("%s %s: %s, policy %s\n", r.Interface, r.Direction, state, r.Policy))
	}
}

// PrintStats prints views as shaper stats does, again and again if round is 2 or more. With clear it clears
// the screen before, if it is a terminal.
func PrintStats(p *say.Printer, list []View, round int, clear bool) {
	for i := range list {
		if i == 0 && clear && say.IsTerminal(p.W) {
			p.Printf("\x1b[H\x1b[2J")
		} else if i > 0 || round > 1 {
			p.Printf("\n")
		}
		list[i].printStats(p)
	}
}
