package replay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
	"github.com/google/gopacket"
	"github.com/google/gopacket/pcapgo"
)

type byteOrder interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// capture builds a capture from the format's specification. It shares nothing
// with the reader under test.
type capture struct {
	byteOrder
	bytes []byte
}

func littleEndian() *capture { return &capture{byteOrder: binary.LittleEndian} }
func bigEndian() *capture    { return &capture{byteOrder: binary.BigEndian} }

func (c *capture) words(values ...uint32) *capture {
	for _, v := range values {
		c.bytes = c.AppendUint32(c.bytes, v)
	}
	return c
}

func (c *capture) rawBytes(b ...byte) *capture {
	c.bytes = append(c.bytes, b...)
	return c
}

// pcap starts a classic capture.
func (c *capture) pcap(magic uint32, link uint32) *capture {
	c.words(magic)
	c.bytes = c.AppendUint16(c.bytes, 2)
	c.bytes = c.AppendUint16(c.bytes, 4)
	return c.words(0, 0, 1<<18, link)
}

// packet adds a packet captured whole.
func (c *capture) packet(seconds, fraction uint32, data []byte) *capture {
	return c.words(seconds, fraction, uint32(len(data)), uint32(len(data))).rawBytes(data...)
}

// block adds a pcapng block, padded.
func (c *capture) block(kind uint32, body []byte) *capture {
	body = append(bytes.Clone(body), make([]byte, -len(body)&3)...)
	size := uint32(len(body) + 12)
	return c.words(kind, size).rawBytes(body...).words(size)
}

// body starts the body of a block in c's byte order.
func (c *capture) body(values ...uint32) *capture {
	return (&capture{byteOrder: c.byteOrder}).words(values...)
}

// section starts a section with a length, which the output cannot keep.
func (c *capture) section() *capture {
	b := c.body(0x1a2b3c4d)
	b.bytes = c.AppendUint16(b.bytes, 1)
	b.bytes = c.AppendUint16(b.bytes, 0)
	return c.block(0x0a0d0d0a, b.words(0, 1<<20).bytes)
}

// iface adds an interface with options.
func (c *capture) iface(link uint16, snap uint32, options ...[]byte) *capture {
	b := c.body()
	b.bytes = c.AppendUint16(b.bytes, link)
	b.bytes = c.AppendUint16(b.bytes, 0)
	b.words(snap)
	for _, o := range options {
		b.rawBytes(o...)
	}
	if options != nil {
		b.words(0)
	}
	return c.block(1, b.bytes)
}

// option returns an option of a block, padded.
func (c *capture) option(code uint16, value ...byte) []byte {
	b := c.AppendUint16(nil, code)
	b = c.AppendUint16(b, uint16(len(value)))
	return append(append(b, value...), make([]byte, -len(value)&3)...)
}

func (c *capture) resolution(resol byte) []byte { return c.option(9, resol) }

func (c *capture) offset(seconds int64) []byte {
	return c.option(14, c.AppendUint64(nil, uint64(seconds))...)
}

// enhanced adds a packet captured whole.
func (c *capture) enhanced(iface uint32, units uint64, data []byte) *capture {
	n := uint32(len(data))
	return c.block(6, c.body(iface, uint32(units>>32), uint32(units), n, n).rawBytes(data...).bytes)
}

// simple adds a packet without a timestamp.
func (c *capture) simple(data []byte) *capture {
	return c.block(3, c.body(uint32(len(data))).rawBytes(data...).bytes)
}

// ipv4 returns an IP packet of n bytes with a DSCP, from 192.0.2.1 to
// 198.51.100.1. Packets are distinguished by their IP identification.
func ipv4(n int, dscp byte, id uint16) []byte { return tos(n, dscp<<2, id) }

// tos returns an IP packet with a TOS byte: DSCP and ECN.
func tos(n int, tos byte, id uint16) []byte {
	b := make([]byte, n)
	copy(b, []byte{
		0x45, tos, byte(n >> 8), byte(n), byte(id >> 8), byte(id), 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51,
		100, 1,
	})
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	return b
}

// ethernetFrame wraps a packet in an Ethernet frame.
func ethernetFrame(packet []byte) []byte {
	return append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0}, packet...)
}

// packet is a packet as read from a capture.
type packet struct {
	at   int64 // ns
	wire int
	data []byte
}

// id returns the IP identification in an Ethernet frame.
func (p packet) id() uint16 { return binary.BigEndian.Uint16(p.data[18:]) }

// independent reads a capture with gopacket.
func independent(raw []byte) ([]packet, error) {
	var source gopacket.PacketDataSource
	var err error
	if bytes.HasPrefix(raw, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
		source, err = pcapgo.NewNgReader(bytes.NewReader(raw),
			pcapgo.NgReaderOptions{WantMixedLinkType: true})
	} else {
		source, err = pcapgo.NewReader(bytes.NewReader(raw))
	}
	if err != nil {
		return nil, err
	}
	var out []packet
	for {
		data, info, err := source.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		p := packet{wire: info.Length, data: data}
		if !info.Timestamp.IsZero() {
			p.at = info.Timestamp.UnixNano()
		}
		out = append(out, p)
	}
}

func readBack(t *testing.T, raw []byte) []packet {
	t.Helper()
	packets, err := independent(raw)
	if err != nil {
		t.Fatalf("gopacket cannot read the output: %v", err)
	}
	return packets
}

// idsOf returns the identifications of packets in order.
func idsOf(packets []packet) []uint16 {
	var out []uint16
	for _, p := range packets {
		out = append(out, p.id())
	}
	return out
}

// Link types of the registry, the last one unknown to shaper, and DSCPs.
const (
	ethernet = 1
	rawIP    = 101
	cooked   = 113
	usb      = 147
	af12     = 12
	ef       = 46
)

// byteRate is one byte per microsecond.
var byteRate = meter.BitRate(8e6)

func newPipeline(t testing.TB, classes ...dataplane.Class) Go {
	t.Helper()
	p, err := pipeline.New(&dataplane.Policy{Classes: classes})
	if err != nil {
		t.Fatal(err)
	}
	return Go{p}
}

// transparent passes all packets unchanged.
func transparent(t testing.TB) Go {
	t.Helper()
	return newPipeline(t, dataplane.Class{Name: "all"})
}

// queued paces all IP packets at one byte per microsecond.
func queued(t testing.TB) Go {
	t.Helper()
	return newPipeline(t, dataplane.Class{Name: "all", Green: toQueue()})
}

func toQueue() *dataplane.Action {
	return &dataplane.Action{
		Queue: &dataplane.Queue{Name: "q", Config: queue.Config{Rate: byteRate, Time: time.Hour}},
	}
}

// bulkQueued paces packets without a DSCP and passes EF.
func bulkQueued(t testing.TB) Go {
	t.Helper()
	return newPipeline(t,
		dataplane.Class{Name: "bulk", Match: dataplane.Match{DSCP: []dataplane.Range{{}}}, Green: toQueue()},
		dataplane.Class{Name: "rest"})
}

// linked paces all IP packets by a link of one byte per microsecond.
func linked(t testing.TB) Go {
	t.Helper()
	return newPipeline(t, dataplane.Class{Name: "all", Green: &dataplane.Action{Queue: &dataplane.Queue{
		Name: "q", Config: queue.Config{Packets: queue.MaxPackets},
		Link: &dataplane.Link{Name: "wan", Rate: byteRate},
	}}})
}

// replay runs a capture through a pipeline.
func replay(t testing.TB, in []byte, p Go) (out []byte, s Summary, err error) {
	t.Helper()
	var b bytes.Buffer
	s, err = Run(t.Context(), bytes.NewReader(in), p, Config{Output: &b})
	return b.Bytes(), s, err
}

func mustReplay(t testing.TB, in []byte, p Go) ([]byte, Summary) {
	t.Helper()
	out, s, err := replay(t, in, p)
	if err != nil {
		t.Fatal(err)
	}
	return out, s
}
