package metrics

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// customers adds the samples of customers. The totals are those of the classes of customers,
// so they cost nothing, and do not decrease if a customer is removed.
func (e exposition) customers(o *Observation, labels ...string) {
	outline := &o.About.Outline
	var colors [3]dataplane.Count
	var dropped dataplane.Count
	var can [3]bool
	there := false
	for i := range outline.Classes {
		if outline.OfCustomers(i) {
			there = true
			st := &o.sample.Stats[i]
			for color, is := range o.effects(i).Colors {
				can[color] = can[color] || is
				colors[color] = colors[color].Plus(st.Colors[color])
			}
			dropped = dropped.Plus(st.AllDropped())
		}
	}
	if !there {
		return
	}
	e.count(descCustomers, int64(outline.Customers), labels...)
	e.colors(descCustomersPackets, descCustomersBytes, can, &colors, labels...)
	e.count(descCustomersDropped, dropped.Packets, labels...)
	e.count(descCustomersLost, dropped.Bytes, labels...)
	if o.top == nil {
		return
	}
	e.count(descExported, int64(len(o.top)), labels...)
	ofPlan := map[*compiled.Service][3]bool{}
	for i := range o.top {
		c := &o.top[i]
		labels := with(labels, c.name, c.plan)
		can, known := ofPlan[c.service]
		if !known {
			can = o.plan.ColorsOf(c.service)
			ofPlan[c.service] = can
		}
		e.colors(descCustomerPackets, descCustomerBytes, can, &c.Colors, labels...)
		e.count(descCustomerDropped, c.Dropped.Packets, labels...)
		e.count(descCustomerLost, c.Dropped.Bytes, labels...)
	}
}

// colors adds the samples of a count by color.
func (e exposition) colors(
	packets, bytes *metricFamily, can [3]bool, counts *[3]dataplane.Count, labels ...string,
) {
	for color := meter.Green; color <= meter.Red; color++ {
		labels := with(labels, color.String())
		e.possible(packets, can[color], counts[color].Packets, labels...)
		e.possible(bytes, can[color], counts[color].Bytes, labels...)
	}
}
