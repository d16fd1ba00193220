package explain

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

const (
	whyColumn = 10 // width of the column with the names of the steps
	Width     = 80 // maximum width of the text, in characters
)

// stepWriter writes steps.
type stepWriter struct {
	say.Printer
	colored bool
}

// step writes the name of a step, and its lines beside it.
func (w *stepWriter) step(name string, lines ...string) {
	for _, line := range lines {
		for _, part := range hanging(line, Width-whyColumn) {
			w.Printf("%-*s%s\n", whyColumn, name, part)
			name = ""
		}
	}
}

// hanging breaks a line at spaces and indents all lines except the first.
func hanging(line string, width int) []string {
	var out []string
	now := ""
	for _, word := range strings.Fields(line) {
		switch {
		case now == "":
			now = word
		case text.StringWidthWithoutEscSequences(now+" "+word) > width:
			out = append(out, now)
			now = "  " + word
		default:
			now += " " + word
		}
	}
	return append(out, now)
}

// shortPlace removes line and column from a place in a flag.
func shortPlace(place string) string {
	if strings.HasPrefix(place, "--") {
		place, _, _ = strings.Cut(place, ":")
	}
	return place
}

// color paints the name of a color.
func (w *stepWriter) color(name string) string {
	c, err := meter.ParseColor(name)
	if err != nil {
		return name
	}
	return say.Color(c, w.colored)
}

// Write writes the explanation for people, with colors if colored.
func (t *Explanation) Write(out io.Writer, colored bool) error {
	w := &stepWriter{say.Printer{W: out}, colored}
	w.step("packet", t.arrivalLines()...)
	w.step("headers", t.Headers)
	w.step("layers", layerLines(t.Layers)...)
	w.step("length", fmt.Sprintf("%d bytes by %s", t.Length, t.LengthRule), t.lengthText())
	w.step("class", t.classLines()...)
	w.meters(t)
	if t.Act != "" {
		w.step("action", append([]string{
			fmt.Sprintf("%s: %s (%s)", w.color(t.Color), t.Act, cmp.Or(shortPlace(t.ActAt), "the default")),
		}, t.Acted...)...)
	}
	if t.Queue != nil {
		w.step("queue", t.Queue.lines(t.DepartureNS == nil)...)
	}
	action := t.Action
	if action == "drop" && colored {
		action = text.FgRed.Sprint(action)
	}
	w.step("verdict", fmt.Sprintf("%s (%s): %s", action, t.Reason, t.Why))
	return w.Err
}

// arrivalLines describes the time of arrival.
func (t *Explanation) arrivalLines() []string {
	line := fmt.Sprintf("%d arrived %s", t.Packet, timestamp(t.TimeNS))
	now := t.TimeNS + t.ShiftNS
	switch since := time.Duration(now - t.FirstNS); {
	case since < 0:
		line += fmt.Sprintf(", %v before packet %d", -since, t.FirstPacket)
	case t.Packet > t.FirstPacket:
		line += fmt.Sprintf(", %v after packet %d", since, t.FirstPacket)
	}
	lines := []string{line}
	if t.ShiftNS != 0 {
		ahead := "ahead"
		if t.ShiftNS > 0 {
			ahead = "back"
		}
		by := time.Duration(t.ShiftNS).Abs()
		lines = append(lines, fmt.Sprintf(
			"the clock of the capture has been set %s by %v: its time is shifted by that", ahead, by))
	}
	if t.ClockNS != now {
		lines = append(lines,
			fmt.Sprintf("its timestamp is %v behind the clock, which packet %d set to %s: meters and queues use the clock",
				time.Duration(t.ClockNS-now), t.ClockPacket, timestamp(t.ClockNS-t.clockShift)))
	}
	return lines
}

// lengthText describes the parts of the packet's length.
func (t *Explanation) lengthText() string {
	if t.Segments > 1 {
		return fmt.Sprintf("%d on the wire: a super-packet, cut into %d segments of at most %d; %d captured",
			t.Wire, t.Segments, t.Segment, t.Captured)
	}
	s := fmt.Sprintf("%d on the wire: %d link header, %d network packet", t.Wire, t.LinkHeader, t.L3)
	if padding := t.Wire - t.LinkHeader - t.L3; padding > 0 {
		s += fmt.Sprintf(", %d padding", padding)
	}
	if t.Captured < t.Wire {
		s += fmt.Sprintf("; %d captured", t.Captured)
	}
	return s
}

// mostMissed is the maximum number of earlier classes shown.
const mostMissed = 4

// classLines describes the class of the packet and the earlier classes.
func (t *Explanation) classLines() []string {
	first := "-: no class matches"
	if t.Class != say.Unclassified {
		first = fmt.Sprintf("%s (%s): %s", t.Class, shortPlace(t.Place), t.Matched)
	}
	if t.Matched != t.Match {
		first += " (other entries left out)"
	}
	lines := []string{first}
	for i, m := range t.Missed {
		if i == mostMissed {
			lines = append(lines, "nor "+say.Count(len(t.Missed)-mostMissed, "other earlier class"))
			break
		}
		lines = append(lines,
			fmt.Sprintf("not %s (%s): wants %s, has %s", m.Class, shortPlace(m.Place), m.Wants, m.Has))
	}
	return lines
}

func (w *stepWriter) meters(t *Explanation) {
	if t.NoMeter != "" {
		w.step("meter", t.NoMeter)
	}
	for i, m := range t.Meters {
		name := "meter"
		if len(t.Meters)+len(t.Skipped) > 1 {
			name = fmt.Sprintf("meter %d", i+1)
		}
		w.step(name, m.lines(w)...)
	}
	for _, m := range t.Skipped {
		w.step("", fmt.Sprintf("not %s: a red packet skips later meters", m))
	}
}

func (m *metered) lines(w *stepWriter) []string {
	name := fmt.Sprintf("%s (%s): %s, %s: %s", m.Name, shortPlace(m.Place), m.Type, m.Mode, m.Settings)
	lines := []string{name}
	if m.Key != "" {
		lines = append(lines, "key "+m.Key)
	}
	lines = append(lines,
		fmt.Sprintf("input color %s (%s); B = %d %s", w.color(m.In), m.Because, m.Length, m.Count))
	for i, b := range m.Buckets {
		s := fmt.Sprintf("%s %s -> %s of %s", b.Name, say.Grouped(b.Before), say.Grouped(b.After),
			say.Grouped(b.Burst))
		if lacks := int64(m.Length) - b.Before; lacks > 0 && m.tests(i) {
			s += fmt.Sprintf(", %s short of B", say.Grouped(lacks))
		}
		lines = append(lines, s)
	}
	if m.GivenBack {
		lines = append(lines, "given back: the queue dropped the packet")
	}
	return append(lines, fmt.Sprintf("%s by %s: %s", w.color(m.Color), m.Clause, m.Text))
}

// tests reports whether the color depends on a bucket. The bucket of the committed rate is
// tested only if the input color is green.
func (m *metered) tests(bucket int) bool {
	first := bucket == 0 && len(m.Buckets) == 2
	switch {
	case m.average, m.Color == "green", m.In == "red":
		return false
	}
	return m.In == "green" || !first
}

func (q *QueuedJSON) lines(dropped bool) []string {
	found := backlogText(q.Packets, q.Bytes)
	if more := q.LinkPackets - q.Packets; more > 0 {
		found += fmt.Sprintf("; %s, %s B in other queues of the link", say.Count(more, "packet"),
			say.Grouped(q.LinkBytes-q.Bytes))
	}
	switch {
	case q.WaitNS == nil:
	case *q.WaitNS == 0:
		found += "; no delay"
	case dropped:
		found += fmt.Sprintf("; delay would be %v", time.Duration(*q.WaitNS))
	default:
		found += fmt.Sprintf("; delay %v", time.Duration(*q.WaitNS))
	}
	lines := []string{
		fmt.Sprintf("%s (%s): %s", q.Name, shortPlace(q.Place), strings.Join(q.Settings, "; ")), found,
	}
	for _, l := range q.Links {
		rate := ""
		if l.Rate != "" {
			rate = " of " + l.Rate
		}
		line := fmt.Sprintf("link %s%s: %s in all queues below", l.Path, rate, backlogText(l.Packets, l.Bytes))
		if l.HeldNS > 0 {
			line += fmt.Sprintf("; its rate was not free for %v", time.Duration(l.HeldNS))
		}
		if l.SentPackets > 0 {
			line += fmt.Sprintf("; it sent %s, %s B meanwhile", say.Count(l.SentPackets, "other packet"),
				say.Grouped(l.SentBytes))
		}
		lines = append(lines, line)
	}
	if q.Early != "" {
		lines = append(lines, "WRED: "+q.Early)
	}
	return lines
}

func backlogText(packets, bytes int64) string {
	if packets == 0 {
		return "backlog 0 packets"
	}
	return fmt.Sprintf("backlog %s, %s B", say.Count(packets, "packet"), say.Grouped(bytes))
}
