package image

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
)

// EncodeFor encodes a plan for the hook and direction of a shaper. ready is an unused image to
// return if it fits, or nil.
func EncodeFor(a *record.About, plan *compiled.Plan, ready *Image) (*Image, error) {
	source := plan
	plan = plan.For(a.Direction)
	pacer, err := ChoosePacer(a.Asked, plan)
	if err != nil {
		return nil, err
	}
	if a.NeedsOtherDevice(pacer, a.Dry) {
		return nil, remedy.Reattach.Errorf(
			"%s ingress: a policy with queues needs an ifb device, one without needs none", a.Interface)
	}
	to := EntryOf(a.Direction, a.Place.Hook, pacer)
	g := ready
	if g == nil || g.Source != source || g.entry != to || g.asked != pacer {
		if g, err = Encode(plan, to, pacer); err == nil {
			g.Source = source
		}
	}
	if err == nil && a.Dry {
		g.Pacer, g.fair, g.Constants.Pacer = "", "", 0 // a dry run queues nothing
	}
	return g, err
}
