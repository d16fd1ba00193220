// Package annotate writes the packets of a replay to a pcapng capture, each with its verdict as
// a comment, for Wireshark.
package annotate

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/decisions"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// maxPending bounds the packets in memory that follow a queued one, bytes.
const maxPending = 1 << 30

// overhead is the memory of a packet besides its data, bytes.
const overhead = 256

// Writer writes the packets in the order of the capture, with the bytes and the times with
// which they arrived.
type Writer struct {
	out     *bufio.Writer
	plan    *dataplane.Plan
	blocks  bytes.Buffer // written by ng, and not yet to out
	ng      *pcapgo.NgWriter
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

// New returns a writer for the packets of a plan. version is that of this program.
func New(to io.Writer, plan *dataplane.Plan, version string) *Writer {
	return &Writer{
		out: bufio.NewWriterSize(to, 1<<16), plan: plan, version: version,
		ifaces: map[dataplane.LinkType]int{}, limit: maxPending,
	}
}

// Arrived adds a packet, before it is metered and marked.
func (w *Writer) Arrived(p *dataplane.Packet) error {
	size := len(p.Data) + overhead
	if len(w.pending) > 0 && w.bytes+size > w.limit {
		return fmt.Errorf("packet %d is still queued after %d MiB of later packets, which are written in order: replay without --annotate", w.pending[0].id, w.limit>>20)
	}
	w.bytes += size
	w.pending = append(w.pending, arrived{id: p.ID, time: p.Time, link: p.Link, wire: p.WireLen, data: bytes.Clone(p.Data)})
	return nil
}

// Packet adds the verdict of a packet.
func (w *Writer) Packet(v *dataplane.Verdict) error {
	if v.Done&dataplane.Waiting != 0 {
		return nil
	}
	return w.Settled(v)
}

// Settled adds the verdict of a packet that was queued in a link.
func (w *Writer) Settled(v *dataplane.Verdict) error {
	i, found := slices.BinarySearchFunc(w.pending, v.ID, func(a arrived, id int64) int { return cmp.Compare(a.id, id) })
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
	s += fmt.Sprintf(", %s (%v), %d bytes", decisions.Action(v.Done), v.Reason, v.Length)
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
	if w.ng == nil {
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
	i := pcapgo.NgInterface{Name: link.String(), LinkType: layers.LinkType(link)}
	n, block := 0, 0
	var err error
	if w.ng == nil {
		section := pcapgo.NgSectionInfo{Application: "shaper " + w.version}
		w.ng, err = pcapgo.NewNgWriterInterface(&w.blocks, i, pcapgo.NgWriterOptions{SectionInfo: section})
	} else {
		n, err = w.ng.AddInterface(i)
	}
	if err := errors.Join(err, w.ng.Flush()); err != nil {
		return 0, err
	}
	written := w.blocks.Bytes()
	if n == 0 { // the section header is before it
		block = int(order.Uint32(written[lengthAt:]))
	}
	order.PutUint16(written[block+linkAt:], uint16(link))
	w.ifaces[link] = n
	return n, w.copy()
}

// copy copies the written blocks to out.
func (w *Writer) copy() error {
	_, err := w.blocks.WriteTo(w.out)
	return err
}

func (w *Writer) write(a *arrived) error {
	n, err := w.iface(a.link)
	if err != nil {
		return err
	}
	info := gopacket.CaptureInfo{
		Timestamp: time.Unix(0, a.time), CaptureLength: len(a.data), Length: max(a.wire, len(a.data)), InterfaceIndex: n,
	}
	if err := w.ng.WritePacket(info, a.data); err != nil {
		return err
	}
	if err := w.ng.Flush(); err != nil {
		return err
	}
	w.addComment(a.comment)
	return w.copy()
}

// NgWriter of gopacket v1.1.19 writes packets without options, and 8 bits of a link type.
// These are the places to complete its blocks (draft-ietf-opsawg-pcapng §3.1, §3.5, §4.2).
const (
	lengthAt      = 4 // length of a block
	linkAt        = 8 // link type of an interface description
	lengthSize    = 4 // of the block's length, which is repeated at its end
	optionComment = 1 // opt_comment
)

// order is the byte order of NgWriter.
var order = binary.LittleEndian

// addComment adds options to the enhanced packet block in blocks.
func (w *Writer) addComment(comment string) {
	w.blocks.Truncate(w.blocks.Len() - lengthSize)
	var b []byte
	b = order.AppendUint16(b, optionComment)
	b = order.AppendUint16(b, uint16(len(comment)))
	b = append(b, comment...)
	b = append(b, make([]byte, -len(comment)&3)...)
	b = append(b, 0, 0, 0, 0) // opt_endofopt
	length := uint32(w.blocks.Len() + len(b) + lengthSize)
	w.blocks.Write(order.AppendUint32(b, length))
	order.PutUint32(w.blocks.Bytes()[lengthAt:], length)
}
