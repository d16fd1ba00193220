package replay

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// FuzzReplay replays arbitrary bytes. Whatever Run returns, its output must be
// a capture that replays without an error and contains the packets sent. If the
// input's timestamps never go back, those of the output must not either.
func FuzzReplay(f *testing.F) {
	for _, c := range smallCaptures() {
		f.Add(c.bytes)
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		w.Write(c.bytes)
		w.Close()
		f.Add(z.Bytes())
	}
	for _, name := range []string{"cooked.pcapng", "back.pcap", "big-endian.pcap"} {
		raw, err := os.ReadFile(filepath.Join(ownPcaps, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		p := newPipeline(t, dataplane.Class{
			Name:  "all",
			Meter: &dataplane.Meter{Name: "m", Params: meter.SRTCM{CIR: byteRate, CBS: 100, EBS: 1000}},
			Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: af12}}},
			Yellow: &dataplane.Action{
				Queue: &dataplane.Queue{Name: "q", Config: queue.Config{Rate: byteRate, Time: time.Minute}},
			},
			Red: &dataplane.Action{Queue: &dataplane.Queue{
				Name: "shared", Link: &dataplane.Link{Name: "wan", Rate: byteRate},
				Config: queue.Config{
					Time: time.Minute, ECN: true,
					CoDel: queue.CoDel{Target: time.Millisecond, Interval: time.Millisecond},
				},
			}},
		})
		var out bytes.Buffer
		sent := int64(0)
		forward, latest := true, int64(math.MinInt64)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		s, err := Run(ctx, bytes.NewReader(in), p, Config{
			Output: &out, MSS: 100, Shared: []bool{true},
			Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
				forward = forward && p.Time >= latest
				latest = max(latest, p.Time)
				if !v.Done.Dropped() && v.Done&dataplane.Waiting == 0 {
					sent++
				}
				return nil
			},
			Settled: func(v *dataplane.Verdict) error {
				if !v.Done.Dropped() {
					sent++
				}
				return nil
			},
		})
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("Run did not return within 10 s")
		}
		if out.Len() == 0 {
			if s.Packets > 0 {
				t.Fatalf("%d packets and no output: %v", s.Packets, err)
			}
			return
		}
		clocks := clocks(ctx, out.Bytes())
		var at []int64
		again, e := Run(ctx, &out, transparent(t), Config{
			Each: func(p *dataplane.Packet, _ *dataplane.Verdict) error {
				at = append(at, p.Time)
				return nil
			},
		})
		if e != nil {
			t.Fatalf("the output of a run that returned %v is broken: %v", err, e)
		}
		if finished := err == nil || errors.As(err, new(*BrokenError)); finished && again.Packets != sent {
			t.Fatalf("%d packets in the output, %d sent: %v", again.Packets, sent, err)
		}
		if forward && clocks == 1 && !slices.IsSorted(at) {
			t.Fatalf("timestamps never go back in the input, but are %d in the output", at)
		}
	})
}

// clocks counts the interfaces of packets, or 1 for a classic capture.
// Departures are rounded up to the resolution of an interface, so with several
// interfaces timestamps need not be in order.
func clocks(ctx context.Context, raw []byte) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := map[*iface]bool{}
	w := newWindow(ctx, bytes.NewReader(raw))
	f, err := openCapture(w, 0)
	for r := (record{Packet: &dataplane.Packet{}}); err == nil; w.release() {
		if err = f.next(&r); err == nil && r.isPacket {
			seen[r.iface] = true
		}
	}
	return len(seen)
}
