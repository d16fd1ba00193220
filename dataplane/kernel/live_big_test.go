package kernel_test

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// TestLiveBigTCP holds that a super-packet of more than 64 KiB (BIG TCP) counts as
// the packets it becomes. IPv6 has it in a jumbogram, whose hop-by-hop header
// segmentation removes. Where the stack cuts it up after the program, the far end
// sees the packets; where the device is said to do so, it sees the super-packets.
func TestLiveBigTCP(t *testing.T) {
	hereOnly(t)
	const size = 256 << 10
	for _, v6 := range []bool{false, true} {
		for _, tso := range []bool{true, false} {
			t.Run(fmt.Sprintf("v6=%v-tso=%v", v6, tso), func(t *testing.T) {
				m := method{"tc", "egress"}
				p := newPair(t)
				_, at := p.addresses(m, v6)
				p.near.Offload("v0", "tso", tso)
				var err error
				p.near.Do(func() {
					var l netlink.Link
					if l, err = netlink.LinkByName("v0"); err != nil {
						return
					}
					if err = netlink.LinkSetGSOMaxSize(l, size); err == nil {
						err = netlink.LinkSetGSOIPv4MaxSize(l, size)
					}
				})
				if err != nil {
					t.Skipf("a super-packet of %d bytes: %v", size, err)
				}
				r := p.run("--hook", m.hook, "--meter", never)
				behind := newForeign(t, ebpf.SchedCLS, -1, 0)
				behind.filter(p.near, "egress")
				frames, want := p.counts(at, 20_000_000)
				largest := 0
				for _, f := range frames {
					largest = max(largest, len(f.Data))
				}
				if seen := int64(behind.packets()); tso && largest <= 1<<16 || seen >= want.Packets {
					t.Errorf("the largest frame has %d bytes, and the hook saw %d for %d packets: the test shows nothing", largest, seen, want.Packets)
				}
				r.term()
			})
		}
	}
}
