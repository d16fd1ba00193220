package walk

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// collector is an engine that keeps the packets of a capture.
type collector struct{ packets []dataplane.Packet }

func (*collector) Accepts(dataplane.LinkType) error { return nil }

func (*collector) Batch() int { return 1 }

func (*collector) Settle(int64, *dataplane.Verdict) bool { return false }

func (c *collector) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	for i, p := range packets {
		p.Data = slices.Clone(p.Data)
		c.packets = append(c.packets, p)
		verdicts[i] = dataplane.Verdict{Done: dataplane.Pass}
	}
	return nil
}

// marks are skb marks, some of them with an entry in the pre-color maps.
var marks = []uint32{0, 1, 2, 7, 63, 64, 65, 1000, 1 << 31, math.MaxUint32}

// captured reads all captures, one after the other, and gives the packets skb marks. A
// truncated capture counts up to its last whole packet.
func captured(t testing.TB) []dataplane.Packet {
	t.Helper()
	var c collector
	for _, dir := range []string{"../../../testdata/pcaps", "../../../../shared/pcaps"} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Logf("skipped: %v", err)
		}
		for _, file := range files {
			switch filepath.Ext(file.Name()) {
			case ".pcap", ".pcapng", ".gz":
			default:
				continue
			}
			in, err := os.Open(filepath.Join(dir, file.Name()))
			if err != nil {
				t.Fatal(err)
			}
			_, err = replay.Run(context.Background(), in, &c, replay.Config{})
			in.Close()
			if err != nil && !errors.As(err, new(*replay.BrokenError)) {
				t.Fatalf("%s: %v", file.Name(), err)
			}
		}
	}
	if len(c.packets) < 1000 {
		t.Fatalf("got %d packets in all captures, want at least 1000", len(c.packets))
	}
	for i := range c.packets {
		c.packets[i].Mark = marks[i%len(marks)]
	}
	return c.packets
}
