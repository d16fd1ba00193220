package episodes

import "github.com/a-seed-32e5a53f/shaper/dataplane"

const (
	exactFlows  = 1 << 14 // packets of an episode whose flows are all counted
	firstStride = 64      // mean distance of the samples after them
	perStride   = 1 << 11 // samples until the distance doubles
)

// sampler selects the packets of an episode whose flows are counted: the first exactFlows, then
// fewer and fewer, at random distances: no pattern of the traffic can hide a flow.
type sampler struct {
	wait   int64 // packets until the next sample
	stride int64 // mean distance of samples
	left   int64 // samples until the stride grows
	random uint64
}

func newSampler() sampler { return sampler{wait: 1, stride: 1, left: exactFlows, random: 1} }

// next reports whether a packet is a sample.
func (s *sampler) next() bool {
	s.wait--
	return s.wait == 0
}

// count counts a sample's flow for all packets represented by the sample.
func (e *Episode) count(flow dataplane.Flow, v *dataplane.Verdict) {
	e.flows.Add(flow,
		dataplane.Count{Packets: int64(v.Packets) * e.stride, Bytes: int64(v.Length) * e.stride})
	e.wait = 1
	if e.left--; e.left == 0 {
		e.stride, e.left, e.Sampled = max(2*e.stride, firstStride), perStride, true
	}
	if e.stride > 1 {
		e.random = e.random*6364136223846793005 + 1442695040888963407
		e.wait += int64(e.random >> 33 % uint64(2*e.stride-1))
	}
}
