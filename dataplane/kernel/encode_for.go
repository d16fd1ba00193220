package kernel

import "github.com/a-seed-32e5a53f/shaper/dataplane"

// encodeFor encodes a plan for the hook and direction of a shaper. ready is an unused image
// that encodeFor may return if it fits, or nil.
func encodeFor(a *About, plan *dataplane.Plan, ready *image) (*image, error) {
	source := plan
	plan = plan.For(a.Direction)
	pacer, err := choosePacer(a.Asked, plan)
	if err != nil {
		return nil, err
	}
	if a.needsOtherDevice(pacer, a.Dry) {
		return nil, Reattach.errorf("%s ingress: a policy with queues needs an ifb device, one without needs none", a.Interface)
	}
	to := entryOf(a.Direction, a.Place.Hook, pacer)
	g := ready
	if g == nil || g.source != source || g.entry != to || g.asked != pacer {
		if g, err = encode(plan, to, pacer); err == nil {
			g.source = source
		}
	}
	if err == nil && a.Dry {
		g.pacer, g.fair, g.constants.Pacer = "", "", 0 // a dry run queues nothing
	}
	return g, err
}
