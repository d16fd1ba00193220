package kernel

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
)

// SetRates changes the rates of queues and links, and the times of their CoDel, to those of a plan,
// such as one of compiled.Plan.WithRates, and writes only differences. The plan may differ from the
// active policy in nothing else; SetRates checks this for queues and links. It is far cheaper than
// Reload, which would have the same result: the program stays, and so do queued packets and their
// order.
//
// With fq, queued packets keep their departures. With HTB, they are sent at the new rate. A queue
// is free for later packets at the time at which it would have been free. Limits in time stay
// times: a slower queue or link with more than its limit accepts packets again when the excess was
// sent, and a fair queue drops the excess. The GSO limit is adjusted, as by Reload.
//
// The record of the shaper does not change, except for the GSO limit: pass plans with the new rates to
// later calls of Reload and Repair. If queues of customers have leaves of HTB, it must have the present plans
// of all customers, too.
//
// After an error some rates may have changed; SetRates can be called again. The error wraps ErrDetached
// if the shaper is no longer attached, and joins dataplane.FieldErrors if the kernel plane rejects a
// rate. For the owner of the shaper it may be an *UnlockedError: then all rates have changed, but not the
// GSO limit.
func (s *Shaper) SetRates(plan *compiled.Plan) error {
	change, unlocked, err := s.lockToSet()
	if err != nil {
		return err
	}
	st, err := lockedSite(s.Identity(), change)
	if err != nil {
		return err
	}
	defer st.close()
	st.guard = s.guard
	if err := s.Refresh(); err != nil {
		return err
	}
	if s.Leaves {
		g, d, err := s.changeTree(plan)
		if err != nil {
			return err
		}
		return s.writeRates(st, g, d, unlocked)
	}
	g, err := image.EncodeRates(&s.About, plan)
	if err != nil {
		return err
	}
	if s.Pacer == "" {
		if err := s.maps.WriteRates(&s.About, g.Queues); err != nil {
			return err
		}
		return unlocked
	}
	d, err := iface.ByIndex(s.Identity())
	if err != nil {
		return err
	}
	if err := g.Tree(d).Change(s.Place.Index); err != nil {
		return err
	}
	return s.writeRates(st, g, d, unlocked)
}

// writeRates writes the new rates to the maps, after those of the qdiscs.
func (s *Shaper) writeRates(st *site, g *image.Image, d *iface.Device, unlocked error) error {
	if err := s.maps.WriteRates(&s.About, g.Queues); err != nil {
		return err
	}
	if unlocked != nil {
		return unlocked
	}
	return s.setGSOLimit(st, g, d.MTU)
}

// setGSOLimit gives the device the GSO limit for new rates. The record holds it, for all processes.
func (s *Shaper) setGSOLimit(st *site, g *image.Image, mtu int) error {
	limit, err := st.gsoLimit(&s.About, g, mtu)
	if err != nil || limit == s.GSOLimit {
		return err
	}
	if err := st.setGSO(s.Direction, limit); err != nil {
		return err
	}
	s.GSOLimit = limit
	return record.Write(s.about, &s.About)
}
