package replay

import (
	"bytes"
	"io"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestRunAllocatesNothing checks that a replay allocates only while it starts:
// twice the packets cost no more.
func TestRunAllocatesNothing(t *testing.T) {
	const packets = 5_000
	// Two packets arrive at once and take as long to send as the time until the
	// next two, so one of each pair is queued.
	captures := map[string]func(n int) []byte{
		"pcap": func(n int) []byte {
			c := littleEndian().pcap(magicNano, ethernet)
			for i := range uint32(n) {
				us := i / 2 * 2000
				c.packet(us/1e6, us%1e6*1000, ethernetFrame(ipv4(986, 0, uint16(i))))
			}
			return c.bytes
		},
		"pcapng": func(n int) []byte {
			c := littleEndian().section().iface(ethernet, 0)
			for i := range uint64(n) {
				c.enhanced(0, i/2*2000, ethernetFrame(ipv4(986, 0, uint16(i))))
			}
			return c.bytes
		},
	}
	engines := map[string]func(testing.TB) Go{"transparent": transparent, "queue": queued, "link": linked}
	for format, capture := range captures {
		short, long := capture(packets), capture(2*packets)
		for name, engine := range engines {
			t.Run(format+"/"+name, func(t *testing.T) {
				delayed := false
				count := func(in []byte) float64 {
					return testing.AllocsPerRun(3, func() {
						_, err := Run(t.Context(), bytes.NewReader(in), engine(t), Config{
							Output: io.Discard,
							Each: func(_ *dataplane.Packet, v *dataplane.Verdict) error {
								delayed = delayed || v.Done&dataplane.Queued != 0 && v.Departure > v.Now || v.Done&dataplane.Waiting != 0
								return nil
							},
						})
						if err != nil {
							t.Fatal(err)
						}
					})
				}
				if few, many := count(short), count(long); many > few+packets/100 {
					t.Errorf("got %v allocations for twice %d packets, want at most one per hundred more than %v", many, packets, few)
				}
				if delayed != (name != "transparent") {
					t.Errorf("packets delayed: got %t, want %t", delayed, name != "transparent")
				}
			})
		}
	}
}
