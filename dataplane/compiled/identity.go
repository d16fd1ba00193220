package compiled

import (
	"errors"
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// directed reports whether a part of the policy differs by direction, except customers ByInside.
func (p *Plan) directed() bool {
	if c := p.Customers; c != nil && (c.Key.NeedsMAC() || c.Key == dataplane.CustomerByInner) {
		return true
	}
	return p.usesCgroup() ||
		slices.ContainsFunc(p.Classes, func(c Class) bool { return len(c.Source.Match.MAC) > 0 }) ||
		slices.ContainsFunc(p.Stages, func(s Stage) bool { return s.Key.By.Directed() })
}

// usesCgroup reports whether a part of the policy depends on the cgroup of packets.
func (p *Plan) usesCgroup() bool {
	return p.Customers != nil && p.Customers.Key == dataplane.CustomerByCgroup ||
		slices.ContainsFunc(p.Classes, func(c Class) bool { return len(c.Source.Match.Cgroups) > 0 }) ||
		slices.ContainsFunc(p.Stages, func(s Stage) bool { return s.Key.By == dataplane.ByCgroup })
}

// Accepts returns an error if the plan cannot meter packets of a link type: the length rule counts frames of
// Ethernet, or a part needs their MAC addresses.
func (p *Plan) Accepts(link dataplane.LinkType) error {
	if err := p.Length.Accepts(link); err != nil || link == dataplane.LinkEthernet {
		return err
	}
	refuse := func(part string) error {
		return fmt.Errorf("%s needs MAC addresses, but link type %v is not Ethernet: its packets have none", part, link)
	}
	if c := p.Customers; c != nil && c.Key.NeedsMAC() {
		return refuse(fmt.Sprintf("key %v of the customers", c.Key))
	}
	for i := range p.Classes {
		if c := &p.Classes[i]; c.Source.Match.NeedsMAC() {
			return refuse("the match of class " + c.Name)
		}
	}
	for i := range p.Stages {
		if s := &p.Stages[i]; s.Key.By.NeedsMAC() {
			return refuse(fmt.Sprintf("per: %v of meter %s", s.Key, s.Name))
		}
	}
	return nil
}

// InUserSpace returns an error if packets in user space lack what identifies them in the policy: planes there
// know neither the skb mark nor the cgroup of a packet. A match by mark is no error: its packets have the
// mark that the caller sets, by default 0. The error joins a dataplane.FieldError for each part.
func (p *Plan) InUserSpace() error {
	var list errorList
	const reason = "%v is known to the kernel plane only: packets in user space have none"
	if c := p.Customers; c != nil && c.Key >= dataplane.CustomerByMark {
		list.add(c.Source, "key", fmt.Sprintf(reason, c.Key))
	}
	for i := range p.Classes {
		if m := &p.Classes[i].Source.Match; len(m.Cgroups) > 0 {
			list.add(m, "cgroup", fmt.Sprintf(reason, m.Cgroups[0]))
		}
	}
	for i := range p.Stages {
		if s := &p.Stages[i]; s.Key.By >= dataplane.ByMark {
			list.add(s.Source, "per", fmt.Sprintf(reason, s.Key))
		}
	}
	return errors.Join(list...)
}
