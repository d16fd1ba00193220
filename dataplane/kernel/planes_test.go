package kernel

import (
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// plane is a way into the programs.
type plane struct {
	name string
	mark bool // there is an skb mark
	slow bool // left out in a VM, where a program takes seconds to load
	open func(t testing.TB, policy *dataplane.Policy) engine
}

var planes = slices.DeleteFunc([]plane{
	{"egress", true, false, at(egressEntry, dataplane.LinkEthernet)},
	{"ingress", true, true, at(ingressEntry, dataplane.LinkEthernet)},
	{"xdp", false, false, at(xdpEntry, dataplane.LinkEthernet)},
	{"egress-raw", true, true, at(egressEntry, dataplane.LinkRaw)},
	{"xdp-raw", false, true, at(xdpEntry, dataplane.LinkRaw)},
	{"walk-1", true, true, walker(1)},
	{"walk-7", true, false, walker(7)},
	{"walk-512", true, true, walker(512)},
}, func(p plane) bool { return p.slow && inVM })

func at(hook entry, link dataplane.LinkType) func(t testing.TB, p *dataplane.Policy) engine {
	return func(t testing.TB, p *dataplane.Policy) engine {
		t.Helper()
		return newHooked(t, p, hook, func(c *bpf.ShaperConstants) { c.Link = uint8(link) })
	}
}

func walker(batch int) func(t testing.TB, p *dataplane.Policy) engine {
	return func(t testing.TB, p *dataplane.Policy) engine {
		t.Helper()
		w, err := newWalker(p, batch)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w
	}
}

// inGo is the pipeline as an engine.
type inGo struct{ *dataplane.Pipeline }

func (inGo) Accepts(dataplane.LinkType) error { return nil }

func (inGo) Batch() int { return 1 }

func (g inGo) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i := range packets {
		g.Pipeline.Process(&packets[i], &verdicts[i])
	}
	return nil
}

func (g inGo) Stats() ([]dataplane.ClassStats, error) { return g.Pipeline.Stats(), nil }

func (g inGo) Tokens(stage int) (tc, te int64, err error) {
	tc, te = g.Pipeline.Tokens(stage)
	return tc, te, nil
}

// canWait are the ways into the programs by which packets can wait, and the
// pipeline.
func canWait() []plane {
	out := slices.DeleteFunc(slices.Clone(planes), func(p plane) bool { return !p.mark || p.name == "egress-raw" })
	return append(out, plane{name: "go", open: func(t testing.TB, p *dataplane.Policy) engine {
		t.Helper()
		l, err := dataplane.New(p)
		if err != nil {
			t.Fatal(err)
		}
		return inGo{l}
	}})
}

var allEntries = []entry{egressEntry, ingressEntry, xdpEntry}

// usesMark says that a policy cannot be had at XDP.
func usesMark(policy *dataplane.Policy) bool {
	_, err := encodePolicy(policy, xdpEntry, "")
	return err != nil
}
