package tap

import (
	"math"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
)

// alonePipeline runs a pipeline without a plane.
type alonePipeline struct {
	t   *testing.T
	l   *pipeline.Pipeline
	in  [][]byte
	out []arrival
}

func (m *alonePipeline) packet(b []byte) dataplane.Packet {
	return dataplane.Packet{Data: b[HeaderLen:], WireLen: len(b) - HeaderLen, Link: dataplane.LinkEthernet}
}

func (m *alonePipeline) processAll(list []arrival) {
	for _, a := range list {
		b := slices.Clone(a.b)
		p := m.packet(b)
		p.Time, p.ID = a.at, int64(len(m.in))
		m.in = append(m.in, b)
		var v dataplane.Verdict
		m.l.Process(&p, &v)
		if !v.Done.Dropped() && v.Done&dataplane.Waiting == 0 {
			m.out = append(m.out, arrival{at: v.Departure, b: b})
		}
	}
}

// settleAll releases the packets that links have settled.
func (m *alonePipeline) settleAll() {
	var v dataplane.Verdict
	for m.l.Settle(math.MaxInt64, &v) {
		if v.Done.Dropped() {
			continue
		}
		b := m.in[v.ID]
		if v.Done&dataplane.ECNSet != 0 {
			p := m.packet(b)
			dataplane.Parse(&p)
			p.SetCE()
		}
		m.out = append(m.out, arrival{at: v.Departure, b: b})
	}
}

func (m *alonePipeline) reload(policy *dataplane.Policy) {
	m.t.Helper()
	m.settleAll()
	next, err := pipeline.New(policy)
	if err != nil {
		m.t.Fatal(err)
	}
	next.Inherit(m.l)
	m.l = next
}

func newAlonePipeline(t *testing.T, policy *dataplane.Policy) *alonePipeline {
	t.Helper()
	l, err := pipeline.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	return &alonePipeline{t: t, l: l}
}
