package image

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
)

// EncodeDirection is Encode for one direction of a plan, at a hook.
func EncodeDirection(
	plan *compiled.Plan, direction dataplane.Direction, at string, pacer record.Pacer,
) (*Image, error) {
	g, err := Encode(plan.For(direction), EntryOf(direction, at, pacer), pacer)
	if err == nil {
		g.source = plan
	}
	return g, err
}

// EncodeFor encodes a plan for the hook and direction of a shaper. ready is an unused image to
// return if it fits, or nil.
func EncodeFor(a *record.About, plan *compiled.Plan, ready *Image) (*Image, error) {
	pacer, err := ChoosePacer(a.Asked, plan)
	if err != nil {
		return nil, err
	}
	if a.NeedsOtherDevice(pacer, a.Dry) {
		return nil, remedy.Reattach.Errorf(
			"%s ingress: a policy with queues needs an ifb device, one without needs none", a.Interface)
	}
	g := ready
	if g == nil || g.source != plan || g.entry != EntryOf(a.Direction, a.Place.Hook, pacer) ||
		g.asked != pacer {
		g, err = EncodeDirection(plan, a.Direction, a.Place.Hook, pacer)
	}
	if err == nil && a.Dry {
		g.Pacer, g.fair, g.Constants.Pacer = "", "", 0 // a dry run queues nothing
	}
	return g, err
}
