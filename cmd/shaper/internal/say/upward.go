package say

import "github.com/a-seed-32e5a53f/shaper/dataplane"

// Up follows the key of a part that describes packets from the customers, where it differs from that for
// packets to them.
const Up = " up"

// Both returns the parts of a description for packets to the customers, each followed by that for packets
// from them if it differs.
func Both(down, up []Part) (out []Part) {
	rest := map[string][]string{} // texts of up by key
	for _, p := range up {
		rest[p.Key] = append(rest[p.Key], p.Text)
	}
	for _, p := range down {
		out = append(out, p)
		other := "none"
		if texts := rest[p.Key]; len(texts) > 0 {
			other, rest[p.Key] = texts[0], texts[1:]
		}
		if other != p.Text {
			out = append(out, Part{p.Key + Up, other})
		}
	}
	for _, p := range up {
		if texts := rest[p.Key]; len(texts) > 0 {
			out, rest[p.Key] = append(out, Part{p.Key + Up, texts[0]}), texts[1:]
		}
	}
	return out
}

// PlanParts writes the queue of a plan of customers in exact units, for both directions.
func PlanParts(p *dataplane.ServicePlan) []Part {
	parts := queueParts(p.CustomerQueue(), false)
	if up := p.Upward(); up != nil {
		parts = Both(parts, queueParts(up.CustomerQueue(), false))
	}
	return parts
}
