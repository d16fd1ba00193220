package walk

import (
	"fmt"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
)

// TestOneTruth compares every program with the pipeline on all captures, packet by packet, for
// policies that use every feature except queues.
func TestOneTruth(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	packets := captured(t)
	if kerneltest.InVM { // a fifth of each capture
		packets = slices.Collect(func(yield func(dataplane.Packet) bool) {
			for i := range packets {
				if i/100%5 == 0 && !yield(packets[i]) {
					return
				}
			}
		})
	}
	for name, policy := range fixedPolicies() {
		if kerneltest.InVM && name != "meters" && name != "matches-mark" && name != "precolor-mark" {
			continue
		}
		for _, plane := range planes {
			if !plane.mark && usesMark(policy) {
				continue
			}
			t.Run(name+"/"+plane.name, func(t *testing.T) {
				e := plane.open(t, policy)
				if h, ok := e.(*hooked); ok {
					h.checkVerified(t, name)
				}
				n := followPipeline(t, policy, e, packets)
				if e.Accepts(dataplane.LinkRaw) == nil && n < len(packets)/2 && !t.Failed() {
					t.Errorf("compared %d of %d packets, want at least half", n, len(packets))
				}
			})
		}
	}
}

// TestRandomPolicies compares every program with the pipeline for random policies and random
// packets, among parts of the captures.
func TestRandomPolicies(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	all := captured(t)
	for i := range kerneltest.Rounds(36) {
		plane := planes[i%len(planes)]
		policy := randomPolicy(r, plane.mark)
		packets := randomPackets(r, 200, all[len(all)-1].Time)
		for range 5 {
			first := r.IntN(len(all) - 40)
			packets = append(packets, all[first:first+40]...)
		}
		t.Run(fmt.Sprint(i, "/", plane.name), func(t *testing.T) {
			t.Cleanup(func() {
				if !t.Failed() {
					return
				}
				t.Logf("length %+v", policy.Length)
				for i := range policy.Classes {
					t.Log(describeClass(&policy.Classes[i]))
				}
			})
			followPipeline(t, policy, plane.open(t, policy), packets)
		})
		if t.Failed() {
			return
		}
	}
}

// TestManyClasses compares the class search over vectors of several words with the pipeline, for
// packets at and next to the bounds of classes.
func TestManyClasses(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	for _, n := range []int{64, 65, 300, image.MaxClasses} {
		if kerneltest.InVM && n != 300 {
			continue
		}
		policy := manyClasses(r, n)
		for _, plane := range planes {
			if plane.name == "egress-raw" || plane.name == "xdp-raw" {
				continue
			}
			count := kerneltest.Rounds(1000)
			if plane.name == "walk" {
				count = kerneltest.Rounds(30_000)
			}
			packets := make([]dataplane.Packet, count)
			for i := range packets {
				packets[i] = packetFor(r, &policy.Classes[r.IntN(n)].Match)
				packets[i].Time = int64(i) * 1000
			}
			t.Run(fmt.Sprint(n, "/", plane.name), func(t *testing.T) {
				e := plane.open(t, policy)
				followPipeline(t, policy, e, packets)
				taken := 0
				all, err := e.Stats()
				if err != nil {
					t.Fatal(err)
				}
				for i := range all[:n] {
					if total := all[i].Total(); total.Packets > 0 {
						taken++
					}
				}
				if taken < min(n, count)/10 {
					t.Errorf("%d of %d classes matched a packet, want at least %d", taken, n,
						min(n, count)/10)
				}
			})
		}
	}
}

// TestDryRun checks that a dry run has the verdicts and counters of the pipeline and changes no
// packet.
func TestDryRun(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	r := kerneltest.Seeded(t)
	for _, hook := range allEntries {
		if kerneltest.InVM && hook == image.IngressEntry {
			continue
		}
		policy := randomPolicy(r, hook != image.XdpEntry)
		policy.Length = dataplane.LengthRule{}
		pl, err := pipeline.New(policy)
		if err != nil {
			t.Fatal(err)
		}
		h := newHooked(t, policy, hook, func(c *bpf.ShaperConstants) { c.Dry = 1 })
		for _, p := range acceptedPackets(h, randomPackets(r, kerneltest.Rounds(1000), 0)) {
			same := p
			same.Data = slices.Clone(p.Data)
			before := slices.Clone(p.Data)
			var got, want dataplane.Verdict
			if err := h.run(&p, &got, skb{}); err != nil {
				t.Fatal(err)
			}
			pl.Process(&same, &want)
			if got != want {
				t.Fatalf("hook %d:\ngot  %+v\nwant %+v\n%s", hook, got, want, dumpPacket(&p, before))
			}
			if !slices.Equal(p.Data, before) {
				t.Fatalf("hook %d: got packet %x, want %x", hook, p.Data, before)
			}
		}
		if got, err := h.Stats(); err != nil || !slices.Equal(got, pl.Stats()) {
			t.Errorf("hook %d: got counters %+v (%v), want %+v", hook, got, err, pl.Stats())
		}
	}
}
