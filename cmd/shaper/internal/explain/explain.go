package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/decisions"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Explanation is what why --json prints: a packet's row of replay --decisions, and the
// grounds of it in the order of the steps.
type Explanation struct {
	Row
	ClockNS     int64  `json:"clock_ns"`     // of meters and queues
	ClockPacket int64  `json:"clock_packet"` // whose stamp that is
	FirstNS     int64  `json:"first_ns"`     // stamp of packet 1
	Headers     string `json:"headers"`
	Captured    int    `json:"captured"`    // bytes
	Wire        int    `json:"wire"`        // bytes, with the link header
	LinkHeader  int    `json:"link_header"` // bytes
	L3          int    `json:"l3"`          // bytes
	LengthRule  string `json:"length_rule"`
	Place       string `json:"place"`   // of the class
	Match       string `json:"match"`   // of the class
	Matched     string `json:"matched"` // of each list, the entries that take the packet

	Missed  []missed    `json:"missed"`       // classes before it
	Meters  []metered   `json:"meters"`       // that it went through
	Skipped []string    `json:"skipped"`      // meters that a red packet does not reach
	Act     string      `json:"action_rule"`  // the action of its color
	ActAt   string      `json:"action_place"` // its place, "" for a default
	Acted   []string    `json:"action_steps"` // what came of it
	Queue   *QueuedJSON `json:"queue"`
	Why     string      `json:"why"`
}

// Row is a row of decisions.
type Row struct {
	Packet      int64  `json:"packet"`
	TimeNS      int64  `json:"time_ns"`
	Length      int    `json:"length"`
	Class       string `json:"class"`
	Pre         string `json:"pre"`
	Color       string `json:"color"`
	Action      string `json:"action"`
	DSCPIn      *int   `json:"dscp_in"`
	DSCPOut     *int   `json:"dscp_out"`
	DepartureNS *int64 `json:"departure_ns"`
	Reason      string `json:"reason"`
}

// missed is a class that did not take the packet, by the first key that fails.
type missed struct {
	Class string `json:"class"`
	Place string `json:"place"`
	Key   string `json:"key"`
	Wants string `json:"wants"`
	Has   string `json:"has"`
}

type metered struct {
	Name     string   `json:"name"`
	Place    string   `json:"place"`
	Type     string   `json:"type"`
	Mode     string   `json:"mode"`
	Settings string   `json:"settings"`
	Key      string   `json:"key"` // of a meter for each key
	Count    string   `json:"count"`
	Length   int      `json:"length"` // B, as it counts
	In       string   `json:"in"`
	Because  string   `json:"because"` // of In
	Buckets  []bucket `json:"buckets"`
	Color    string   `json:"color"`
	Clause   string   `json:"clause"`
	Text     string   `json:"text"`

	average bool // it has no tokens
}

type bucket struct {
	Name   string `json:"name"`
	Before int64  `json:"before"`
	After  int64  `json:"after"`
	Burst  int64  `json:"burst"`
}

// QueuedJSON is the queue as the packet found it.
type QueuedJSON struct {
	Name     string   `json:"name"`
	Place    string   `json:"place"`
	Settings []string `json:"settings"`
	Packets  int64    `json:"packets"` // waiting
	Bytes    int64    `json:"bytes"`   // waiting
	// Waiting in all queues of its link, 0 where it has a rate of its own.
	LinkPackets int64 `json:"link_packets"`
	LinkBytes   int64 `json:"link_bytes"`

	WaitNS *int64 `json:"wait_ns"` // its own; null where a link dropped it
	Early  string `json:"early"`   // what WRED had to say
}

// Explain puts together what the witness saw.
func (w *Witness) Explain() *Explanation {
	p, v := &w.packet, &w.verdict
	t := &Explanation{
		ClockNS: v.Now, ClockPacket: w.ahead, FirstNS: w.first,
		Headers: headersOf(p), Captured: len(p.Data), Wire: p.WireLen, LinkHeader: p.L3, L3: p.L3Len,
		LengthRule: say.Length(w.plan.Source.Length),
		Missed:     []missed{}, Meters: []metered{}, Skipped: []string{}, Acted: []string{},
	}
	t.Row = w.row()
	classes := w.plan.Source.Classes
	for i := range classes {
		c := &classes[i]
		if i == int(v.Class) {
			t.Place, t.Match, t.Matched = w.file.Place(c, "match"), say.Match(&c.Match), say.Match(narrowed(&c.Match, p, v.Length))
			break
		}
		t.Missed = append(t.Missed, w.missed(c))
	}
	if v.Class < 0 {
		t.Why = untakenText[v.Reason] + ": passed unmetered"
		if v.Done.Dropped() {
			t.Why = untakenText[v.Reason] + ": dropped by otherwise: drop"
		}
		return t
	}
	for i := range w.steps {
		t.Meters = append(t.Meters, w.meter(i))
	}
	if n := len(w.steps); n > 0 {
		stages := w.plan.Stages
		for i := stages[w.steps[n-1].Stage].Then; i >= 0; i = stages[i].Then {
			t.Skipped = append(t.Skipped, stages[i].Name)
		}
	}
	c := &classes[v.Class]
	if given := [...]*dataplane.Action{c.Green, c.Yellow, c.Red}[v.Color]; given != nil {
		t.ActAt = w.file.Place(c, v.Color.String())
	}
	a := c.Action(v.Color)
	t.Act = say.Action(a)
	t.Acted = append(t.Acted, acted(&a, p, v)...)
	if a.Queue != nil && !(a.ECN == dataplane.CEOrDrop && !p.ECNCapable()) {
		t.Queue = w.queue(w.plan.Classes[v.Class].Actions[v.Color].Queue)
	}
	t.Why = w.why(&a)
	return t
}

// missed is a class that did not take the packet.
func (w *Witness) missed(c *dataplane.Class) missed {
	p, n := &w.packet, w.verdict.Length
	key := c.Match.Misses(p, n)
	place := w.file.Place(c, "match")
	if key != "ip" {
		place = w.file.Place(&c.Match, key)
	}
	return missed{c.Name, place, key, wantsOf(&c.Match, key), hasOf(p, key, n)}
}

// row is the packet's row, by the same code that writes the decisions.
func (w *Witness) row() Row {
	var text bytes.Buffer
	d := decisions.New(&text, w.plan, true)
	var row Row
	_ = d.Packet(w.packet.Time, &w.verdict) // a Buffer takes all
	_ = d.Flush()
	_ = json.Unmarshal(text.Bytes(), &row) // that it can be read is tested
	return row
}

func (w *Witness) meter(i int) metered {
	s := &w.steps[i]
	stage := &w.plan.Stages[s.Stage]
	m := stage.Source
	out := metered{
		Name: m.Name, Place: w.file.Place(m, "type"), Type: stage.Kind.String(), Mode: say.Mode(m),
		Settings: say.Meter(m), Key: s.Key, Count: "bytes", Length: s.Length,
		In: s.In.String(), Color: s.Color.String(), Clause: s.Clause.String(), Text: s.Clause.Text(),
		average: m.Params.Kind().Info().State == meter.StateAverage,
	}
	if m.Packets {
		out.Count = "packets"
	}
	switch {
	case i > 0:
		out.Because = "the output of meter " + w.plan.Stages[w.steps[i-1].Stage].Name
	case !m.Aware:
		out.Because = "color-blind"
	default:
		out.Because = fieldText(&w.packet, m.PreColor.From)
	}
	tokens := [2][2]int64{{s.TcBefore, s.TcAfter}, {s.TeBefore, s.TeAfter}}
	for i, b := range stage.Buckets {
		out.Buckets = append(out.Buckets, bucket{b.Name, tokens[i][0], tokens[i][1], b.Size})
	}
	return out
}

func (w *Witness) queue(i int) *QueuedJSON {
	v, b, plan := &w.verdict, w.queues[i], w.plan
	q := &plan.Queues[i]
	out := &QueuedJSON{Name: q.Name, Place: w.file.Place(q.Source, "limit"), Packets: b.packets, Bytes: b.bytes, Early: w.early(i)}
	for _, p := range say.QueueParts(q.Source) {
		out.Settings = append(out.Settings, p.Key+" "+p.Text)
	}
	if q.Link >= 0 {
		for _, other := range plan.Links[q.Link].Queues {
			out.LinkPackets += w.queues[other].packets
			out.LinkBytes += w.queues[other].bytes
		}
	}
	switch {
	case !v.Done.Dropped():
		wait := v.Departure - v.Now
		out.WaitNS = &wait
	case q.Link < 0:
		wait := int64(b.delay)
		out.WaitNS = &wait
	}
	return out
}

// early is what WRED thought of the backlog, or nothing.
func (w *Witness) early(i int) string {
	v, b, q := &w.verdict, w.queues[i], &w.plan.Queues[i]
	e := q.WRED[v.Color]
	backlog, found := b.amount(&q.Config)
	switch {
	case e == (queue.Early{}) || v.Reason == dataplane.QueueFull || backlog < e.Min:
		return ""
	case backlog >= e.Max:
		return fmt.Sprintf("%s is at or above the max for %v: dropped", found, v.Color)
	}
	chance := 100 * say.Probability(e) * float64(backlog-e.Min) / float64(e.Max-e.Min)
	outcome := "not dropped"
	switch marked := v.Done&dataplane.ECNSet != 0 && q.ECN; {
	case v.Reason == dataplane.WRED:
		outcome = "dropped"
	case marked && q.CoDel == (queue.CoDel{}):
		outcome = "CE is set instead"
	case marked:
		outcome = "CE is set instead, for this or by CoDel"
	}
	return fmt.Sprintf("%s, drop probability %.3g %% for %v: %s", found, chance, v.Color, outcome)
}

// amount is a backlog on the axis of a queue's limit, also for people.
func (b backlog) amount(c *queue.Config) (n int64, text string) {
	switch c.Axis() {
	case queue.ByTime:
		return int64(b.delay), "delay " + b.delay.String()
	case queue.ByBytes:
		return b.bytes, "backlog " + say.Grouped(b.bytes) + " B"
	}
	return b.packets, "backlog " + say.Count(b.packets, "packet")
}

var untakenText = map[dataplane.Reason]string{
	dataplane.NotIP:     "unclassified, without an IP header",
	dataplane.BadPacket: "unclassified and malformed",
	dataplane.NoMeter:   "unclassified",
}

// why is the verdict in a sentence.
func (w *Witness) why(a *dataplane.Action) string {
	v := &w.verdict
	class := w.plan.Source.Classes[v.Class].Name
	switch {
	case a.Drop:
		return fmt.Sprintf("class %s drops %v packets", class, v.Color)
	case v.Done.Dropped() && a.Queue == nil:
		return "the packet is not ECN-capable: its action drops it instead of setting CE"
	case v.Reason == dataplane.QueueFull:
		return w.full(w.plan.Classes[v.Class].Actions[v.Color].Queue)
	case v.Reason == dataplane.WRED:
		return fmt.Sprintf("queue %s drops %v packets early (WRED)", a.Queue.Name, v.Color)
	case v.Reason == dataplane.CoDel:
		return fmt.Sprintf("queue %s: the delay stayed above CoDel's target of %v for %v or more", a.Queue.Name, a.Queue.CoDel.Target, a.Queue.CoDel.Interval)
	case v.Done.Dropped():
		return "the packet is not ECN-capable: its action drops it instead of setting CE"
	case v.Done&dataplane.Queued != 0:
		return fmt.Sprintf("sent at %s, %v after its arrival", stamp(v.Departure), time.Duration(v.Departure-v.Now))
	}
	return "sent at once"
}

// full names the limit that the packet would break.
func (w *Witness) full(i int) string {
	b, c := w.queues[i], &w.plan.Queues[i]
	n := int64(w.verdict.Length)
	name := "queue " + c.Name + " is full: "
	switch capacity := int64(c.Capacity()); {
	case c.Fair && (c.Bytes == 0 || n <= c.Bytes):
		return "queue " + c.Name + " was full when a later packet arrived, and dropped this one, the first of the flow with the largest backlog"
	case c.Fair:
		return name + fmt.Sprintf("%s B exceed the limit of %s B", say.Grouped(n), say.Grouped(c.Bytes))
	case c.Time > 0 && b.delay > c.Time:
		return name + fmt.Sprintf("a delay of %v exceeds the limit of %v", b.delay, c.Time)
	case c.Bytes > 0 && b.bytes+n > c.Bytes:
		return name + fmt.Sprintf("its backlog of %s B and this packet's %s B are %s B, above the limit of %s B", say.Grouped(b.bytes), say.Grouped(n), say.Grouped(b.bytes+n), say.Grouped(c.Bytes))
	case capacity > 0 && b.packets >= capacity:
		return name + fmt.Sprintf("its backlog of %s is the maximum", say.Count(b.packets, "packet"))
	}
	return name + "the departure time is out of range"
}

// acted is what an action did, part by part, before any queue.
func acted(a *dataplane.Action, p *dataplane.Packet, v *dataplane.Verdict) (out []string) {
	left := ""
	if v.Done.Dropped() {
		left = ", if it were sent"
	}
	capable, ce := p.ECNCapable(), "ecn "+ecnText(p)+" -> ce"
	switch {
	case a.ECN == dataplane.CEOrDrop && !capable:
		return []string{"not ECN-capable: dropped"}
	case a.ECN != dataplane.NoECN && capable:
		out = append(out, ce+left)
	case a.ECN != dataplane.NoECN:
		out = append(out, "not ECN-capable: CE is not set")
	case v.Done&dataplane.ECNSet != 0:
		out = append(out, ce+", by the queue instead of an early drop")
	}
	for _, m := range a.Marks {
		value := fieldValue(m.Field, m.Value)
		if old, has := p.Field(m.Field); has {
			out = append(out, fmt.Sprintf("%v %s -> %s%s", m.Field, fieldValue(m.Field, old), value, left))
		} else {
			out = append(out, fmt.Sprintf("%s: %v %s is not set", fieldText(p, m.Field), m.Field, value))
		}
	}
	return out
}

// stamp is a time for people, exact.
func stamp(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.000000000Z") }
