// Package annotate writes the packets of a replay to a pcapng capture, each with its verdict as
// a comment, for Wireshark.
package annotate

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// maxPending bounds the memory of packets behind a queued one, bytes.
const maxPending = 1 << 30

// overhead is the memory of a packet besides its data, bytes.
const overhead = 256

// Writer writes the packets in the order of the capture, with the bytes and the times with
// which they arrived.
type Writer struct {
	out     *bufio.Writer
	plan    *compiled.Plan
	block   []byte // memory for a block
	ifaces  map[dataplane.LinkType]int
	version string

	pending []arrived // from the first packet without a verdict on
	bytes   int       // of pending
	limit   int       // of bytes
}

// arrived is a packet before its verdict is known.
type arrived struct {
	id, time int64
	link     dataplane.LinkType
	wire     int
	data     []byte
	comment  string // "" until the verdict is known
}

// New returns a writer for the packets of a plan. version is the version of this program.
func New(to io.Writer, plan *compiled.Plan, version string) *Writer {
	return &Writer{
		out: bufio.NewWriterSize(to, 1<<16), plan: plan, version: version,
		ifaces: map[dataplane.LinkType]int{}, limit: maxPending,
	}
}

// Arrived adds a packet, before it is metered and marked.
func (w *Writer) Arrived(p *dataplane.Packet) error {
	size := len(p.Data) + overhead
	if len(w.pending) > 0 && w.bytes+size > w.limit {
		return fmt.Errorf("packet %d is still queued after %d MiB of later packets, which are written in order: replay without --annotate",
			w.pending[0].id, w.limit>>20)
	}
	w.bytes += size
	w.pending = append(w.pending,
		arrived{id: p.ID, time: p.Time - p.Shift, link: p.Link, wire: p.WireLen, data: bytes.Clone(p.Data)})
	return nil
}

// Packet adds the verdict of a packet.
func (w *Writer) Packet(v *dataplane.Verdict) error {
	if v.Done&dataplane.Waiting != 0 {
		return nil
	}
	return w.Settled(v)
}

// Settled adds the verdict of a packet from the queue of a link.
func (w *Writer) Settled(v *dataplane.Verdict) error {
	i, found := slices.BinarySearchFunc(w.pending, v.ID,
		func(a arrived, id int64) int { return cmp.Compare(a.id, id) })
	if !found {
		return fmt.Errorf("packet %d has two verdicts", v.ID)
	}
	w.pending[i].comment = w.comment(v)
	n := 0
	for ; n < len(w.pending) && w.pending[n].comment != ""; n++ {
		if err := w.write(&w.pending[n]); err != nil {
			return err
		}
		w.bytes -= len(w.pending[n].data) + overhead
		w.pending[n] = arrived{}
	}
	w.pending = w.pending[n:]
	return nil
}

// comment describes a verdict.
func (w *Writer) comment(v *dataplane.Verdict) string {
	s := fmt.Sprintf("shaper: packet %d: ", v.ID)
	if v.Class < 0 {
		s += "unclassified"
	} else {
		s += fmt.Sprintf("class %s, %v", say.Printable(w.plan.Classes[v.Class].Name), v.Color)
		if v.Pre != meter.Green {
			s += fmt.Sprintf(", input color %v", v.Pre)
		}
	}
	s += fmt.Sprintf(", %v (%v), %d bytes", v.Done, v.Reason, v.Length)
	if v.Packets > 1 {
		s += fmt.Sprintf(" in %d segments", v.Packets)
	}
	if v.Done.Dropped() {
		return s
	}
	if v.DSCPOut != v.DSCPIn {
		s += fmt.Sprintf(", DSCP %d becomes %d", v.DSCPIn, v.DSCPOut)
	}
	if v.Done&dataplane.Queued != 0 {
		s += fmt.Sprintf(", departs after %v", time.Duration(v.Departure-v.Now))
	}
	return s
}

// Flush writes all packets whose verdict is known, if those before them have one.
func (w *Writer) Flush() error {
	if len(w.ifaces) == 0 {
		if _, err := w.iface(dataplane.LinkEthernet); err != nil {
			return err
		}
	}
	return w.out.Flush()
}

// iface returns the interface for packets of a link type. It begins the capture with the first.
func (w *Writer) iface(link dataplane.LinkType) (int, error) {
	if n, ok := w.ifaces[link]; ok {
		return n, nil
	}
	if len(w.ifaces) == 0 {
		w.begin(blockSection)
		w.put32(sectionMagic)
		w.put16(1, 0)           // version
		w.put32(math.MaxUint32) // the length of the section
		w.put32(math.MaxUint32) // is not known
		w.option(optionApplication, "shaper "+w.version)
		if err := w.end(); err != nil {
			return 0, err
		}
	}
	n := len(w.ifaces)
	w.ifaces[link] = n
	w.begin(blockInterface)
	w.put16(uint16(link), 0)
	w.put32(0) // no snap length
	w.option(optionName, link.String())
	w.option(optionTSResol, "\x09") // ns
	return n, w.end()
}

func (w *Writer) write(a *arrived) error {
	n, err := w.iface(a.link)
	if err != nil {
		return err
	}
	w.begin(blockPacket)
	w.put32(uint32(n))
	w.put32(uint32(a.time >> 32))
	w.put32(uint32(a.time))
	w.put32(uint32(len(a.data)))
	w.put32(uint32(max(a.wire, len(a.data))))
	w.block = append(w.block, a.data...)
	w.pad()
	w.option(optionComment, a.comment)
	return w.end()
}

// Block types and options of draft-ietf-opsawg-pcapng, and the magic of §4.1.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6

	optionEnd         = 0
	optionComment     = 1
	optionName        = 2 // if_name
	optionApplication = 4 // shb_userappl
	optionTSResol     = 9 // if_tsresol

	sectionMagic = 0x1a2b3c4d
	lengthAt     = 4 // offset of a block's length
)

// begin begins a block. Its length follows at the end.
func (w *Writer) begin(kind uint32) {
	w.block = w.block[:0]
	w.put32(kind)
	w.put32(0)
}

func (w *Writer) put16(values ...uint16) {
	for _, v := range values {
		w.block = binary.LittleEndian.AppendUint16(w.block, v)
	}
}

func (w *Writer) put32(v uint32) { w.block = binary.LittleEndian.AppendUint32(w.block, v) }

// pad continues at a multiple of 4 bytes.
func (w *Writer) pad() { w.block = append(w.block, make([]byte, -len(w.block)&3)...) }

func (w *Writer) option(code uint16, value string) {
	w.put16(code, uint16(len(value)))
	w.block = append(w.block, value...)
	w.pad()
}

// end writes the block.
func (w *Writer) end() error {
	w.put16(optionEnd, 0)
	length := uint32(len(w.block) + 4)
	w.put32(length)
	binary.LittleEndian.PutUint32(w.block[lengthAt:], length)
	_, err := w.out.Write(w.block)
	return err
}
