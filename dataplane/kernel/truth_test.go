package kernel

import (
	"fmt"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestOneTruth holds every program to the pipeline on every capture, packet by
// packet, for policies that use all there is.
func TestOneTruth(t *testing.T) {
	needRoot(t)
	t.Parallel()
	packets := captured(t)
	if inVM { // a part of each capture, in which the same things happen
		packets = slices.Collect(func(yield func(dataplane.Packet) bool) {
			for i := range packets {
				if i/100%5 == 0 && !yield(packets[i]) {
					return
				}
			}
		})
	}
	for name, policy := range fixed() {
		if inVM && name != "meters" && name != "matches-mark" && name != "precolor-mark" {
			continue
		}
		for _, plane := range planes {
			if !plane.mark && usesMark(policy) {
				continue
			}
			t.Run(name+"/"+plane.name, func(t *testing.T) {
				e := plane.open(t, policy)
				n := follow(t, policy, e, packets)
				if e.Accepts(dataplane.LinkRaw) == nil && n < len(packets)/2 && !t.Failed() {
					t.Errorf("only %d of %d packets were compared", n, len(packets))
				}
			})
		}
	}
}

// TestRandomPolicies holds every program to the pipeline for policies that
// nobody would write, on packets that nobody would send.
func TestRandomPolicies(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	all := captured(t)
	for i := range rounds(48) {
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
					t.Log(describe(&policy.Classes[i]))
				}
			})
			follow(t, policy, plane.open(t, policy), packets)
		})
		if t.Failed() {
			return
		}
	}
}

// TestManyClasses holds the search over vectors of several words to the
// pipeline, at and beside the bounds of the classes.
func TestManyClasses(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	for _, n := range []int{64, 65, 300, MaxClasses} {
		if inVM && n != 300 {
			continue
		}
		policy := manyClasses(r, n)
		for _, plane := range planes {
			if plane.name == "walk-1" || plane.name == "egress-raw" || plane.name == "xdp-raw" {
				continue
			}
			count := rounds(1000)
			if plane.name == "walk-512" {
				count = 30_000
			}
			packets := make([]dataplane.Packet, count)
			for i := range packets {
				packets[i] = packetFor(r, &policy.Classes[r.IntN(n)].Match)
				packets[i].Time = int64(i) * 1000
			}
			t.Run(fmt.Sprint(n, "/", plane.name), func(t *testing.T) {
				e := plane.open(t, policy)
				follow(t, policy, e, packets)
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
					t.Errorf("only %d of %d classes took a packet", taken, n)
				}
			})
		}
	}
}

// TestDry holds a program that only counts to the verdicts of the pipeline, and
// lets it change nothing.
func TestDry(t *testing.T) {
	needRoot(t)
	t.Parallel()
	r := seeded(t)
	for _, hook := range allEntries {
		if inVM && hook == ingressEntry {
			continue
		}
		policy := randomPolicy(r, hook != xdpEntry)
		policy.Length = dataplane.LengthRule{}
		pipeline, err := dataplane.New(policy)
		if err != nil {
			t.Fatal(err)
		}
		h := newHooked(t, policy, hook, func(c *bpf.ShaperConstants) { c.Dry = 1 })
		for _, p := range handable(h, randomPackets(r, rounds(1000), 0)) {
			same := p
			same.Data = slices.Clone(p.Data)
			before := slices.Clone(p.Data)
			var got, want dataplane.Verdict
			if err := h.run(&p, &got, skb{}); err != nil {
				t.Fatal(err)
			}
			pipeline.Process(&same, &want)
			if got != want {
				t.Fatalf("hook %d:\nkernel   %+v\npipeline %+v\n%s", hook, got, want, show(&p, before))
			}
			if !slices.Equal(p.Data, before) {
				t.Fatalf("hook %d: %x became %x", hook, before, p.Data)
			}
		}
		if got, err := h.Stats(); err != nil || !slices.Equal(got, pipeline.Stats()) {
			t.Errorf("hook %d: %v: %+v: want %+v", hook, err, got, pipeline.Stats())
		}
	}
}

// Addresses come from 10.0.0.0/14 and 2001:db8::/46, in which prefixes are
// dense enough to nest.
