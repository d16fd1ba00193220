package replay

import (
	"errors"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestManyInterfaces checks that each section has at most 65,536 interfaces, so
// that a small capture cannot fill the memory.
func TestManyInterfaces(t *testing.T) {
	full := func(c *capture) *capture {
		c.section()
		for range 65_536 {
			c.iface(ethernet, 0)
		}
		return c.enhanced(65_535, 0, ethernetFrame(ipv4(100, 0, 7)))
	}
	c := full(full(littleEndian()))
	out, s := mustReplay(t, c.bytes, transparent(t))
	if s.Packets != 2 || len(readBack(t, out)) != 2 {
		t.Errorf("got %d packets in sections with the maximum number of interfaces, want 2", s.Packets)
	}
	at := int64(len(c.bytes))
	c.iface(ethernet, 0).enhanced(0, 0, ethernetFrame(ipv4(100, 0, 8)))
	out, s, err := replay(t, c.bytes, transparent(t))
	var broken *BrokenError
	if !errors.As(err, &broken) || broken.Offset != at ||
		!strings.Contains(broken.Reason, "more than 65536 interfaces") {
		t.Errorf("one interface more: got %v, want an error about interfaces at byte %d", err, at)
	}
	if s.Packets != 2 || len(readBack(t, out)) != 2 {
		t.Errorf("one interface more: got %d packets before it, want 2", s.Packets)
	}
}

// large is an engine that accepts many packets at once and records their size.
type large struct {
	Go
	calls, packets int
	most           int // bytes of packets in one call
}

func (*large) Batch() int { return 512 }

func (l *large) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	bytes := 0
	for i := range packets {
		bytes += len(packets[i].Data)
	}
	l.calls++
	l.packets += len(packets)
	l.most = max(l.most, bytes)
	return l.Go.Process(packets, verdicts)
}

// TestBatchIsBounded gives packets of almost 1 MiB to an engine with a batch of
// 512. They must be processed before they fill the memory.
func TestBatchIsBounded(t *testing.T) {
	const packets, size = 40, 1 << 20
	c := littleEndian().pcap(magicNano, ethernet)
	jumbo := ethernetFrame(ipv4(1500, 0, 1))
	jumbo = append(jumbo, make([]byte, size-16-len(jumbo))...)
	for range packets {
		c.packet(0, 0, jumbo)
	}
	for range 600 {
		c.packet(0, 0, ethernetFrame(ipv4(100, 0, 2)))
	}
	l := &large{Go: transparent(t)}
	s, err := Run(t.Context(), strings.NewReader(string(c.bytes)), l, Config{})
	if err != nil || s.Packets != packets+600 || l.packets != packets+600 {
		t.Fatalf("got %d packets read and %d metered, %v, want %d", s.Packets, l.packets, err, packets+600)
	}
	if l.most > 9*size {
		t.Errorf("got %d MiB of packets at once, want at most 8 and one packet", l.most>>20)
	}
	if l.calls > packets/4+3 {
		t.Errorf("got %d calls, want at most %d: small packets are processed together", l.calls, packets/4+3)
	}
}
