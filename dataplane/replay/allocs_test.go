package replay

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestRunAllocatesNothing checks that a replay allocates only while it starts: twice the
// packets cost no more. In the captures two packets arrive at once, and take as long to send
// as the time until the next two.
func TestRunAllocatesNothing(t *testing.T) {
	const packets = 5_000
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
		"simple blocks": func(n int) []byte {
			c := littleEndian().section().iface(ethernet, 0)
			for i := range n {
				if i%2 == 0 { // simple blocks have no time, so they arrive with this one
					c.enhanced(0, uint64(i)*1000, ethernetFrame(ipv4(986, 0, uint16(i))))
					continue
				}
				c.simple(ethernetFrame(ipv4(986, 0, uint16(i))))
			}
			return c.bytes
		},
	}
	engines := map[string]struct {
		engine  func(testing.TB) Go
		delayed bool // some packets are queued
	}{
		"transparent": {transparent, false},
		"marks": {func(t testing.TB) Go {
			return newPipeline(t, dataplane.Class{
				Name:  "all",
				Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: af12}}},
			})
		}, false},
		"keys": {func(t testing.TB) Go {
			return newPipeline(t, dataplane.Class{Name: "all", Meter: &dataplane.Meter{
				Params: meter.TokenBucket{Rate: byteRate, Burst: 1500},
				Per:    dataplane.Key{By: dataplane.BySrc},
			}})
		}, false},
		"queue": {queued, true},
		"full queue": {func(t testing.TB) Go {
			return newPipeline(t,
				dataplane.Class{Name: "all", Green: &dataplane.Action{Queue: &dataplane.Queue{
					Name: "q", Config: queue.Config{Rate: meter.Rate{Bytes: 1, Period: 2000}, Packets: 300},
				}}})
		}, true},
		"link": {linked, true},
		"full link": {func(t testing.TB) Go {
			return newPipeline(t,
				dataplane.Class{Name: "all", Green: &dataplane.Action{Queue: &dataplane.Queue{
					Name: "q", Config: queue.Config{Packets: 300},
					Link: &dataplane.Link{Name: "wan", Rate: meter.Rate{Bytes: 1, Period: 2000}},
				}}})
		}, true},
	}
	for format, capture := range captures {
		short, long := capture(packets), capture(2*packets)
		for name, test := range engines {
			for _, output := range []io.Writer{nil, io.Discard} {
				t.Run(fmt.Sprintf("%s/%s/output %t", format, name, output != nil), func(t *testing.T) {
					delayed := false
					count := func(in []byte) float64 {
						return testing.AllocsPerRun(3, func() {
							_, err := Run(t.Context(), bytes.NewReader(in), test.engine(t), Config{
								Output: output,
								Each: func(_ *dataplane.Packet, v *dataplane.Verdict) error {
									delayed = delayed || v.Done&dataplane.Queued != 0 &&
										v.Departure > v.Now || v.Done&dataplane.Waiting != 0
									return nil
								},
							})
							if err != nil {
								t.Fatal(err)
							}
						})
					}
					if few, many := count(short), count(long); many > few+packets/500 {
						t.Errorf(
							"got %v allocations for twice %d packets, want at most one per 500 more than %v",
							many, packets, few)
					}
					if delayed != test.delayed {
						t.Errorf("packets delayed: got %t, want %t", delayed, test.delayed)
					}
				})
			}
		}
	}
}
