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

// Explanation is the output of why --json: a packet's row of replay --decisions, and the
// reasons for it in the order of the steps.
type Explanation struct {
	Row
	ClockNS     int64 `json:"clock_ns"`     // clock of meters and queues
	ClockPacket int64 `json:"clock_packet"` // packet with the timestamp clock_ns
	FirstNS     int64 `json:"first_ns"`     // timestamp of the first packet
	FirstPacket int64 `json:"first_packet"` // its number: not 1 if packets were excluded
	// time of the replay minus timestamp, after steps of the capture's clock
	ShiftNS    int64   `json:"shift_ns"`
	Headers    string  `json:"headers"`
	Layers     []Layer `json:"layers,omitempty"` // only if wanted
	Captured   int     `json:"captured"`         // captured length, bytes
	Wire       int     `json:"wire"`             // original length with the link header, bytes
	LinkHeader int     `json:"link_header"`      // bytes
	L3         int     `json:"l3"`               // length of the network packet, bytes
	LengthRule string  `json:"length_rule"`
	Segments   int     `json:"segments,omitempty"` // of a super-packet
	// length of each but the last, with the link header, bytes
	Segment int    `json:"segment,omitempty"`
	Place   string `json:"place"`   // place of the class
	Match   string `json:"match"`   // match of the class
	Matched string `json:"matched"` // match reduced to the list entries which match the packet

	Missed  []missed    `json:"missed"`       // earlier classes
	NoMeter string      `json:"no_meter"`     // why the first meter is missing, "" if it is not
	Meters  []metered   `json:"meters"`       // meters of the packet, in order
	Skipped []string    `json:"skipped"`      // later meters, which a red packet skips
	Act     string      `json:"action_rule"`  // action for the packet's color
	ActAt   string      `json:"action_place"` // place of the action, "" for a default
	Acted   []string    `json:"action_steps"` // effects of the action
	Queue   *QueuedJSON `json:"queue"`
	Why     string      `json:"why"`

	clockShift int64 // ClockNS minus the timestamp of ClockPacket, ns
}

// Row is a row of replay --decisions.
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
	Key         string `json:"key"`
}

// missed is an earlier class, with the first key that does not match the packet.
type missed struct {
	Class string `json:"class"`
	Place string `json:"place"`
	Key   string `json:"key"`
	Wants string `json:"wants"`
	Has   string `json:"has"`
}

// metered is a step through a meter.
type metered struct {
	Name     string   `json:"name"`
	Place    string   `json:"place"`
	Type     string   `json:"type"`
	Mode     string   `json:"mode"`
	Settings string   `json:"settings"`
	Key      string   `json:"key"` // key of a per-key meter
	Count    string   `json:"count"`
	Length   int      `json:"length"`  // metered length (B in the RFCs), in the unit Count
	In       string   `json:"in"`      // input color
	Because  string   `json:"because"` // source of the input color
	Buckets  []bucket `json:"buckets"`
	Color    string   `json:"color"`
	Clause   string   `json:"clause"`
	Text     string   `json:"text"`
	// The packet's queue dropped it, so its tokens were given back: After is Before.
	GivenBack bool `json:"given_back"`

	average bool // the meter works without tokens
}

type bucket struct {
	Name   string `json:"name"`
	Before int64  `json:"before"`
	After  int64  `json:"after"`
	Burst  int64  `json:"burst"`
}

// linkJSON is a link at the packet's arrival.
type linkJSON struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Rate    string `json:"rate"`    // "" for none of its own
	Packets int64  `json:"packets"` // backlog of all queues below
	Bytes   int64  `json:"bytes"`
	// During the packet's delay: how long the link's own rate was not free, and what else it sent.
	HeldNS      int64 `json:"held_ns"`
	SentPackets int64 `json:"sent_packets"`
	SentBytes   int64 `json:"sent_bytes"`
}

// QueuedJSON is the queue at the packet's arrival.
type QueuedJSON struct {
	Name     string   `json:"name"`
	Place    string   `json:"place"`
	Settings []string `json:"settings"`
	Packets  int64    `json:"packets"` // backlog
	Bytes    int64    `json:"bytes"`   // backlog
	// Backlog of all queues of the link and below it; 0 for a queue without a link.
	LinkPackets int64 `json:"link_packets"`
	LinkBytes   int64 `json:"link_bytes"`
	// In a tree: the queue's link, the link above and so on, up to the root.
	Links []linkJSON `json:"links,omitempty"`

	WaitNS *int64 `json:"wait_ns"` // queueing delay of the packet; null if a link dropped it
	Early  string `json:"early"`   // decision of WRED, "" if it had none

	// OwnHeldNS is the part of the delay during which the queue's own rate on a link was not free.
	OwnHeldNS *int64 `json:"own_held_ns,omitempty"`
	// HeldBy is the queue or link whose rate was not free for the longest part of the delay.
	HeldBy string `json:"held_by,omitempty"`
	heldNS int64
}

// Explain returns the explanation, once the replay ended with ErrSeen or at the end of the capture.
func (w *Witness) Explain() *Explanation {
	p, v := &w.packet, &w.verdict
	t := &Explanation{
		Row: w.row(), ClockNS: v.Now, ClockPacket: w.ahead, FirstNS: w.first, FirstPacket: w.firstID,
		ShiftNS: p.Shift, clockShift: w.shift, Segments: p.Segments, Segment: p.Segment,
		Headers: headersOf(p), Captured: len(p.Data), Wire: p.WireLen, LinkHeader: p.L3, L3: p.L3Len,
		LengthRule: say.Length(w.plan.Source.Length),
		Missed:     []missed{}, Meters: []metered{}, Skipped: []string{}, Acted: []string{},
	}
	classes := w.plan.Source.Classes
	for i := range classes {
		c := &classes[i]
		if i == int(v.Class) {
			t.Place, t.Match, t.Matched = w.file.Place(c, "match"), say.Match(&c.Match),
				say.Match(narrowed(&c.Match, p, v.Length))
			break
		}
		t.Missed = append(t.Missed, w.missed(c))
	}
	if v.Class < 0 {
		t.Why = unclassifiedText[v.Reason] + ": passed unmetered"
		if v.Done.Dropped() {
			t.Why = unclassifiedText[v.Reason] + ": dropped by otherwise: drop"
		}
		return t
	}
	t.NoMeter = w.noMeter()
	for i := range w.steps {
		t.Meters = append(t.Meters, w.meter(i))
	}
	a, place := w.action()
	if w.byOwnQueue() {
		t.Queue = w.queue(w.ownQueue(&a))
		t.Why = w.why(&a, t.Queue)
		return t
	}
	if n := len(w.steps); n > 0 {
		stages := w.plan.Stages
		for i := stages[w.steps[n-1].Stage].Then; i >= 0; i = stages[i].Then {
			t.Skipped = append(t.Skipped, stages[i].Name)
		}
	}
	t.Act, t.ActAt = say.Action(a), place
	if s := w.service(v); s != nil && s.Profile == nil && !a.Drop {
		t.Act += ", through the queue of customer " + w.customerName()
		w.ownQueue(&a)
	}
	t.Acted = append(t.Acted, actionSteps(&a, p, v)...)
	if a.Queue != nil && !(a.ECN == dataplane.CEOrDrop && !p.ECNCapable()) {
		t.Queue = w.queue(a.Queue)
	}
	t.Why = w.why(&a, t.Queue)
	return t
}

// action returns the action for the packet's color, and its place, "" for a default.
func (w *Witness) action() (a dataplane.Action, place string) {
	v := &w.verdict
	c := &w.plan.Source.Classes[v.Class]
	a = c.Action(v.Color)
	if given := [...]*dataplane.Action{c.Green, c.Yellow, c.Red}[v.Color]; given != nil {
		place = w.file.Place(c, v.Color.String())
	}
	service := w.service(v)
	if service == nil {
		return a, place
	}
	s := service.Source
	if own := [...]*dataplane.Action{s.Green, s.Yellow, s.Red}[v.Color]; own != nil {
		a, place = *own, w.file.Place(s, v.Color.String())
	}
	return a, place
}

// byOwnQueue reports whether the own queue of the packet's customer dropped it, before any meter.
func (w *Witness) byOwnQueue() bool {
	s := w.service(&w.verdict)
	return s != nil && s.Profile == nil && w.byQueue()
}

// byQueue reports whether a queue dropped the packet.
func (w *Witness) byQueue() bool {
	v := &w.verdict
	return v.Done.Dropped() &&
		(v.Reason == dataplane.QueueFull || v.Reason == dataplane.WRED || v.Reason == dataplane.CoDel)
}

// ownQueue replaces the queue of an action by the own queue of the packet's customer, and returns
// it.
func (w *Witness) ownQueue(a *dataplane.Action) *dataplane.Queue {
	a.Drop = false
	a.Queue = &dataplane.Queue{Name: "of customer " + w.customerName(), Config: w.service(&w.verdict).Queue}
	return a.Queue
}

// customerName returns the name of the packet's customer.
func (w *Witness) customerName() string {
	return w.plan.Customers.Source.List[w.verdict.Customer-1].Name
}

// noMeter returns the reason why the packet passed no first meter, or "".
func (w *Witness) noMeter() string {
	v := &w.verdict
	first := w.plan.Classes[v.Class].Stage
	switch s := w.service(v); {
	case first < 0:
		return "none: every packet is green"
	case w.byOwnQueue():
		return fmt.Sprintf("none: the queue of plan %s decides first; input color %v (%s)", s.Name, v.Pre,
			w.inputText(w.plan.Stages[first].Source))
	case s != nil && s.Profile == nil:
		return fmt.Sprintf("none: plan %s has a queue instead; input color %v (%s)", s.Name, v.Pre,
			w.inputText(w.plan.Stages[first].Source))
	}
	return ""
}

// inputText names the source of the input color of a class's first meter.
func (w *Witness) inputText(m *dataplane.Meter) string {
	if !m.Aware {
		return "color-blind"
	}
	return fieldText(&w.packet, m.PreColor.From)
}

// missed returns the reason why a class does not match the packet.
func (w *Witness) missed(c *dataplane.Class) missed {
	p, n := &w.packet, w.verdict.Length
	key := c.Match.Misses(p, n)
	place := w.file.Place(c, "match")
	switch key {
	case "ip":
	case "customer":
		place = w.file.Place(c, "per")
	default:
		place = w.file.Place(&c.Match, key)
	}
	return missed{c.Name, place, key, wantsOf(&c.Match, key), hasOf(p, key, n)}
}

// row returns the packet's row. The code for --decisions writes it.
func (w *Witness) row() Row {
	var text bytes.Buffer
	d := decisions.New(&text, w.plan, true)
	var row Row
	_ = d.Packet(&w.packet, &w.verdict) // writing to a Buffer cannot fail
	_ = d.Flush()
	_ = json.Unmarshal(text.Bytes(), &row) // tests check its validity
	return row
}

// meter describes step i through the chain of meters.
func (w *Witness) meter(i int) metered {
	s := &w.steps[i]
	stage := &w.plan.Stages[s.Stage]
	m, place := stage.Source, w.file.Place(stage.Source, "type")
	kind, buckets := stage.Kind, stage.Buckets
	if stage.Customers {
		service := w.service(&w.verdict)
		own := *m
		own.Params, own.Name = service.Source.Params, "plan "+service.Name
		m, place = &own, w.file.Place(service.Source, "type")
		kind, buckets = service.Kind, service.Buckets
	}
	out := metered{
		Name: m.Name, Place: place, Type: kind.String(), Mode: say.Mode(m),
		Settings: say.Meter(m), Key: s.Key, Count: "bytes", Length: s.Length,
		In: s.In.String(), Color: s.Color.String(), Clause: s.Clause.String(), Text: s.Clause.Text(),
		average: m.Params.Kind().Info().State == meter.StateAverage,
	}
	if m.Packets {
		out.Count = "packets"
	}
	out.Because = w.inputText(w.plan.Stages[w.plan.Classes[w.verdict.Class].Stage].Source)
	if i > 0 {
		out.Because = "the output of meter " + w.plan.Stages[w.steps[i-1].Stage].Name
	}
	tokens := [2][2]int64{{s.TcBefore, s.TcAfter}, {s.TeBefore, s.TeAfter}}
	if out.GivenBack = w.byQueue() && !out.average && s.Color != meter.Red; out.GivenBack {
		tokens[0][1], tokens[1][1] = s.TcBefore, s.TeBefore
	}
	for i, b := range buckets {
		out.Buckets = append(out.Buckets, bucket{b.Name, tokens[i][0], tokens[i][1], b.Size})
	}
	return out
}

var unclassifiedText = map[dataplane.Reason]string{
	dataplane.NotIP:     "unclassified, without an IP header",
	dataplane.BadPacket: "unclassified and malformed",
	dataplane.NoMeter:   "unclassified",
}

// why explains the verdict in one sentence. held is the packet's queue, or nil.
func (w *Witness) why(a *dataplane.Action, held *QueuedJSON) string {
	v := &w.verdict
	class := w.plan.Source.Classes[v.Class].Name
	switch {
	case a.Drop && w.dropsByPlan():
		return fmt.Sprintf("plan %s drops %v packets", w.service(v).Name, v.Color)
	case a.Drop:
		return fmt.Sprintf("class %s drops %v packets", class, v.Color)
	case v.Reason == dataplane.QueueFull:
		return w.fullText(a.Queue)
	case v.Reason == dataplane.WRED:
		return fmt.Sprintf("queue %s drops %v packets early (WRED)", a.Queue.Name, v.Color)
	case v.Reason == dataplane.CoDel:
		return fmt.Sprintf("queue %s: the delay stayed above CoDel's target of %v for %v or more",
			a.Queue.Name, a.Queue.CoDel.Target, a.Queue.CoDel.Interval) + held.heldText()
	case v.Done.Dropped():
		return "the packet is not ECN-capable: its action drops it instead of setting CE"
	case v.Done&dataplane.Queued != 0:
		return fmt.Sprintf("sent at %s, %v after its arrival", timestamp(v.Departure-w.packet.Shift),
			time.Duration(v.Departure-v.Now)) + held.heldText()
	}
	return "sent at once"
}

// dropsByPlan reports whether the packet's action is the action of its customer's plan.
func (w *Witness) dropsByPlan() bool {
	s := w.service(&w.verdict)
	return s != nil && s.Actions[w.verdict.Color] != nil
}

// fullText names the limit that the packet would exceed.
func (w *Witness) fullText(source *dataplane.Queue) string {
	c, b := w.find(source)
	n := int64(w.verdict.Length)
	name := "queue " + c.Name + " is full: "
	switch capacity := int64(c.Capacity()); {
	case c.Fair != queue.FairNone && (c.Bytes == 0 || n <= c.Bytes):
		return "queue " + c.Name +
			" was full when a later packet arrived, and dropped this one, the first of the flow with the largest backlog"
	case c.Fair != queue.FairNone:
		return name + fmt.Sprintf("%s B exceed the limit of %s B", say.Grouped(n), say.Grouped(c.Bytes))
	case c.Time > 0 && b.delay > c.Time:
		return name + fmt.Sprintf("a delay of %v exceeds the limit of %v", b.delay, c.Time)
	case c.Bytes > 0 && b.bytes+n > c.Bytes:
		return name + fmt.Sprintf(
			"its backlog of %s B and this packet's %s B are %s B, above the limit of %s B",
			say.Grouped(b.bytes), say.Grouped(n), say.Grouped(b.bytes+n), say.Grouped(c.Bytes))
	case capacity > 0 && b.packets >= capacity:
		return name + fmt.Sprintf("its backlog of %s is the maximum", say.Count(b.packets, "packet"))
	}
	return name + "the departure time is out of range"
}

// actionSteps describes the effects of an action before any queue.
func actionSteps(a *dataplane.Action, p *dataplane.Packet, v *dataplane.Verdict) (out []string) {
	dropped := ""
	if v.Done.Dropped() {
		dropped = ", if it were sent"
	}
	capable, ce := p.ECNCapable(), "ecn "+ecnText(p)+" -> ce"
	switch {
	case a.ECN == dataplane.CEOrDrop && !capable:
		return []string{"not ECN-capable: dropped"}
	case a.ECN != dataplane.NoECN && capable:
		out = append(out, ce+dropped)
	case a.ECN != dataplane.NoECN:
		out = append(out, "not ECN-capable: CE is not set")
	case v.Done&dataplane.ECNSet != 0:
		out = append(out, ce+", by the queue instead of an early drop")
	}
	for _, m := range a.Marks {
		value := say.Value(m.Field.String(), m.Value)
		if old, has := p.Field(m.Field); has {
			out = append(out,
				fmt.Sprintf("%v %s -> %s%s", m.Field, say.Value(m.Field.String(), old), value, dropped))
		} else {
			out = append(out, fmt.Sprintf("%s: %v %s is not set", fieldText(p, m.Field), m.Field, value))
		}
	}
	return out
}

// timestamp writes a time exactly.
func timestamp(ns int64) string {
	return time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.000000000Z")
}
