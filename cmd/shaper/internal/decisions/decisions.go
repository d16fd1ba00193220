package decisions

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// columns are the names of the columns, in order.
var columns = [...]string{
	"packet", "time_ns", "length", "class", "pre", "color", "action", "dscp_in", "dscp_out", "departure_ns",
	"reason", "key",
}

// Writer writes one row per packet, as CSV or as JSON lines.
type Writer struct {
	w          *bufio.Writer
	plan       *compiled.Plan
	classes    []string // names, quoted for the format
	json       bool
	row, key   []byte
	column     int
	pending    []pending // rows from the first undecided packet on, after the written ones
	written    int       // rows of pending already written
	maxPending int
}

// maxPending bounds the rows waiting for the row of a queued packet. They take less than 1 GiB. At
// 10 Gbit/s of IMIX so many packets arrive in 1.3 s.
const maxPending = 1 << 22

// pending is the row of an undecided packet, or of one after it.
type pending struct {
	time    int64 // timestamp of the packet, ns
	shift   int64 // as in dataplane.Packet
	key     string
	verdict dataplane.Verdict
}

// New returns a writer of rows, for a plan's classes. It writes the CSV header first.
func New(w io.Writer, plan *compiled.Plan, asJSON bool) *Writer {
	d := &Writer{w: bufio.NewWriterSize(w, 1<<16), plan: plan, json: asJSON, maxPending: maxPending}
	for i := range plan.Classes {
		d.classes = append(d.classes, d.quote(plan.Classes[i].Name))
	}
	if !asJSON {
		d.w.WriteString(strings.Join(columns[:], ",") + "\n")
	}
	return d
}

// quote returns a name as the content of a cell.
func (d *Writer) quote(name string) string {
	if !d.json {
		return csvText(name)
	}
	quoted, _ := json.Marshal(name) // a string always marshals
	return string(quoted[1 : len(quoted)-1])
}

// formulaStarts are the characters with which a formula of a spreadsheet can start.
const formulaStarts = "=+-@"

// csvText returns a name as a CSV cell. It puts an apostrophe before a name that looks like a
// formula to a spreadsheet.
func csvText(name string) string {
	if strings.ContainsAny(name[:min(1, len(name))], formulaStarts) {
		name = "'" + name
	}
	if strings.ContainsAny(name, ",\"\r\n") {
		name = `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	}
	return name
}

// Packet adds the row of a packet. Rows have the order of the packets, so rows after an
// undecided packet are written later.
func (d *Writer) Packet(p *dataplane.Packet, v *dataplane.Verdict) error {
	d.key = d.plan.AppendKey(d.key[:0], p, v)
	if len(d.pending) > 0 || v.Done&dataplane.Waiting != 0 {
		if len(d.pending)-d.written == d.maxPending {
			return fmt.Errorf("packet %d is still queued after %d more packets, and rows must be in order: replay without --decisions",
				d.pending[d.written].verdict.ID, d.maxPending)
		}
		d.pending = append(d.pending, pending{p.Time - p.Shift, p.Shift, string(d.key), *v})
		return nil
	}
	return d.write(p.Time-p.Shift, p.Shift, d.key, v)
}

// Settled completes the row of an undecided packet.
func (d *Writer) Settled(v *dataplane.Verdict) error {
	i, _ := slices.BinarySearchFunc(d.pending, v.ID,
		func(p pending, id int64) int { return cmp.Compare(p.verdict.ID, id) })
	d.pending[i].verdict = *v
	for ; d.written < len(d.pending); d.written++ {
		p := &d.pending[d.written]
		if p.verdict.Done&dataplane.Waiting != 0 {
			break
		}
		d.key = append(d.key[:0], p.key...)
		if err := d.write(p.time, p.shift, d.key, &p.verdict); err != nil {
			return err
		}
	}
	if d.written >= len(d.pending)/2 { // removing rows copies no more rows than were written
		d.pending = d.pending[:copy(d.pending, d.pending[d.written:])]
		d.written = 0
	}
	return nil
}

// write writes the row of one packet. time is its own timestamp, and shift is as in dataplane.Packet.
func (d *Writer) write(time, shift int64, key []byte, v *dataplane.Verdict) error {
	class, pre, color := "-", "", ""
	if v.Class >= 0 {
		class, pre, color = d.classes[v.Class], v.Pre.String(), v.Color.String()
	}
	departure := v.Departure - shift
	if v.Done&dataplane.Queued == 0 {
		departure = time // even if the clock of the meters is ahead
	}
	d.row, d.column = d.row[:0], 0
	d.number(v.ID, true)
	d.number(time, true)
	d.number(int64(v.Length), true)
	d.text(class)
	d.text(pre)
	d.text(color)
	d.text(v.Done.String())
	d.number(int64(v.DSCPIn), v.HasDSCP)
	d.number(int64(v.DSCPOut), v.HasDSCP && !v.Done.Dropped())
	d.number(departure, !v.Done.Dropped())
	d.text(reasonNames[v.Reason])
	d.name(key)
	if d.json {
		d.row = append(d.row, '}')
	}
	d.row = append(d.row, '\n')
	_, err := d.w.Write(d.row)
	return err
}

// next begins a column.
func (d *Writer) next() {
	if d.json {
		d.row = append(d.row, "{,"[min(d.column, 1)], '"')
		d.row = append(d.row, columns[d.column]...)
		d.row = append(d.row, '"', ':')
	} else if d.column > 0 {
		d.row = append(d.row, ',')
	}
	d.column++
}

// number writes a number. If ok is false, the column is empty, or null in JSON.
func (d *Writer) number(n int64, ok bool) {
	d.next()
	switch {
	case ok:
		d.row = strconv.AppendInt(d.row, n, 10)
	case d.json:
		d.row = append(d.row, "null"...)
	}
}

func (d *Writer) text(s string) {
	d.next()
	if d.json {
		d.row = append(d.row, '"')
		d.row = append(d.row, s...)
		d.row = append(d.row, '"')
		return
	}
	d.row = append(d.row, s...)
}

// name writes a name, with quotes if needed.
func (d *Writer) name(s []byte) {
	if len(s) > 0 && (strings.IndexByte(formulaStarts, s[0]) >= 0 || bytes.ContainsAny(s, ",\"\\\r\n")) {
		d.text(d.quote(string(s)))
		return
	}
	d.next()
	if d.json {
		d.row = append(d.row, '"')
	}
	d.row = append(d.row, s...)
	if d.json {
		d.row = append(d.row, '"')
	}
}

// reasonNames holds the results of Reason.String, which allocates.
var reasonNames = func() (names [256]string) {
	for reason := range names {
		names[reason] = dataplane.Reason(reason).String()
	}
	return names
}()

// Flush writes buffered rows.
func (d *Writer) Flush() error { return d.w.Flush() }
