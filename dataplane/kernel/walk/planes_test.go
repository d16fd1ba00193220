package walk

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/features"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
)

// plane is a way to run packets through the programs.
type plane struct {
	name string
	mark bool // packets have an skb mark
	slow bool // left out in a VM, where loading a program takes seconds
	open func(t testing.TB, policy *dataplane.Policy) processor
}

var planes = slices.DeleteFunc([]plane{
	{"egress", true, false, atEntry(image.EgressEntry, dataplane.LinkEthernet)},
	{"ingress", true, true, atEntry(image.IngressEntry, dataplane.LinkEthernet)},
	{"xdp", false, false, atEntry(image.XdpEntry, dataplane.LinkEthernet)},
	{"egress-raw", true, true, atEntry(image.EgressEntry, dataplane.LinkRaw)},
	{"xdp-raw", false, true, atEntry(image.XdpEntry, dataplane.LinkRaw)},
	{"egress-shared", true, false, shared(image.EgressEntry)},
	{"ingress-shared", true, true, shared(image.IngressEntry)},
	{"xdp-shared", false, true, shared(image.XdpEntry)},
	{"walk", true, false, walkBatches},
}, func(p plane) bool {
	return p.slow && kerneltest.InVM || strings.HasSuffix(p.name, "shared") && !kernelShares()
})

// kernelShares reports whether the kernel supports shared programs: maps with locks in arrays of maps.
func kernelShares() bool {
	version, err := features.LinuxVersionCode()
	return err != nil || version >= 6<<16|2<<8
}

// atEntry opens the program of a hook for a link type.
func atEntry(hook image.Entry, link dataplane.LinkType) func(t testing.TB, p *dataplane.Policy) processor {
	return func(t testing.TB, p *dataplane.Policy) processor {
		t.Helper()
		return newHooked(t, p, hook, func(c *bpf.ShaperConstants) { c.Link = uint8(link) })
	}
}

// shared opens the program of a hook that several interfaces share, or one of its own if the policy has
// parts that cannot be shared.
func shared(hook image.Entry) func(t testing.TB, p *dataplane.Policy) processor {
	return func(t testing.TB, p *dataplane.Policy) processor {
		t.Helper()
		h := newUnopened(t, p, hook, nil)
		yes, err := h.openShared(t)
		if err == nil && !yes {
			h.Close()
			return newHooked(t, p, hook, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
}

// walker opens a walker with a fixed batch size.
func walker(batch int) func(t testing.TB, p *dataplane.Policy) processor {
	return func(t testing.TB, p *dataplane.Policy) processor {
		t.Helper()
		w, err := newWalker(p, batch)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w
	}
}

// mixedWalker is a walker whose batch size alternates between one packet, a few and the most.
// One loaded program so meters batches of all sizes.
type mixedWalker struct {
	*Walker
	next int
}

func walkBatches(t testing.TB, p *dataplane.Policy) processor {
	t.Helper()
	return &mixedWalker{Walker: walker(512)(t, p).(*Walker)}
}

// Batch returns the size of the next batch.
func (w *mixedWalker) Batch() int {
	w.next++
	return []int{1, 7, 512, 1, 64, 1}[w.next%6]
}

// inGo is the pipeline as an engine.
type inGo struct{ *pipeline.Pipeline }

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

// planesWithQueues are the planes that can queue packets, and the pipeline.
func planesWithQueues() []plane {
	out := slices.DeleteFunc(slices.Clone(planes),
		func(p plane) bool { return !p.mark || p.name == "egress-raw" })
	return append(out, plane{name: "go", open: func(t testing.TB, p *dataplane.Policy) processor {
		t.Helper()
		l, err := pipeline.New(p)
		if err != nil {
			t.Fatal(err)
		}
		return inGo{l}
	}})
}

// allEntries are the programs of the hooks.
var allEntries = []image.Entry{image.EgressEntry, image.IngressEntry, image.XdpEntry}

// usesMark reports whether a policy needs an skb mark or a queue, and so cannot run at XDP.
func usesMark(policy *dataplane.Policy) bool {
	_, err := encodePolicy(policy, image.XdpEntry, "")
	return err != nil
}
