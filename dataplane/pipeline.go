package dataplane

import (
	"github.com/a-seed-32e5a53f/shaper/marker"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Done says what happened to a packet. The zero Done is a drop.
type Done uint8

const (
	Pass   Done = 1 << iota // left, alone where nothing else was done
	ECNSet                  // CE was set
	Marked                  // a mark was written, changed or not
	Queued                  // left at Departure
)

// Dropped says that the packet does not leave.
func (d Done) Dropped() bool { return d == 0 }

// Reason says what decided a verdict: a meter's clause, or one of those below.
type Reason uint8

const (
	NoMeter Reason = Reason(meter.NumClauses) + iota
	NotIP
	BadPacket
	QueueFull
)

// String returns the reason as decisions spell it.
func (r Reason) String() string {
	switch r {
	case NoMeter:
		return "no-meter"
	case NotIP:
		return "not-ip"
	case BadPacket:
		return "malformed"
	case QueueFull:
		return "queue-full"
	}
	return meter.Clause(r).String()
}

// Verdict is what became of one packet. The zero Verdict is a drop.
type Verdict struct {
	Now       int64 // ns: the clock, the largest time seen
	Departure int64 // ns; valid unless dropped
	Length    int   // metered bytes
	Class     int32 // index into Policy.Classes, -1 where no class took it
	Done      Done
	Pre       meter.Color // before the first meter; valid where Class >= 0
	Color     meter.Color // after the last meter; valid where Class >= 0
	Reason    Reason
	HasDSCP   bool // there is an IP header
	DSCPIn    uint8
	DSCPOut   uint8 // valid unless dropped
}

// Pipeline is a policy at work. One goroutine owns it. Process allocates
// nothing, except as queue.Leaky.Admit says.
type Pipeline struct {
	length     LengthRule
	classifier *Classifier
	classes    []class
	stages     []stage
	stageOf    map[*Meter]int32
	queues     []*queue.Leaky
	stats      []ClassStats // by class, then what no class took
	now        int64        // ns, the largest time seen
}

// Accepts says why the policy cannot meter packets of a link type, or nil.
func (l *Pipeline) Accepts(link LinkType) error { return l.length.Accepts(link) }

// Process takes one packet through the policy: parse, classify, meter, act. It
// writes what became of it to v, and marks into p.Data. The pipeline's clock is
// the largest p.Time it has seen.
func (l *Pipeline) Process(p *Packet, v *Verdict) {
	Parse(p)
	l.now = max(l.now, p.Time)
	n := l.length.of(p)
	*v = Verdict{Now: l.now, Departure: l.now, Length: n}
	v.DSCPIn, v.HasDSCP = p.DSCP()
	v.DSCPOut = v.DSCPIn
	i := l.classifier.Classify(p, n)
	v.Class = int32(i)
	if i < 0 {
		v.Done, v.Reason = Pass, p.Kind.Untaken()
		l.stats[len(l.classes)].Untaken.add(n)
		return
	}
	class := &l.classes[i]
	if class.stage < 0 {
		v.Reason = NoMeter
	} else {
		l.meter(class.stage, p, v)
	}
	l.act(&class.actions[v.Color], p, v)
}

// meter takes the packet through a chain. A red packet skips what follows.
func (l *Pipeline) meter(i int32, p *Packet, v *Verdict) {
	s := &l.stages[i]
	if s.aware {
		v.Pre = s.precolor(p)
	}
	v.Color = v.Pre
	for {
		n := v.Length
		if s.packets {
			n = 1
		}
		in := v.Color
		v.Color = s.Color(l.now, n, in)
		v.Reason = Reason(s.kind.Clause(in, v.Color))
		if s.then < 0 || v.Color == meter.Red {
			return
		}
		s = &l.stages[s.then]
	}
}

// precolor reads the color that the packet came with.
func (s *stage) precolor(p *Packet) meter.Color {
	value, ok := p.value(s.from)
	switch {
	case !ok:
		return meter.Green
	case value < uint32(len(s.low)):
		return s.low[value]
	}
	return s.high[value]
}

// value reads a field, or says that the packet does not have it.
func (p *Packet) value(f Field) (value uint32, ok bool) {
	switch {
	case f == SKBMark:
		return p.Mark, true
	case f == DSCP:
		dscp, ok := p.DSCP()
		return uint32(dscp), ok
	case f == PCP && p.Tags > 0:
		return uint32(marker.PCP(p.Data[p.Tag:])), true
	case f == DEI && p.Tags > 0:
		return uint32(marker.DEI(p.Data[p.Tag:])), true
	case f == MPLSTC && p.MPLS > 0:
		return uint32(marker.TC(p.Data[p.MPLS:])), true
	}
	return 0, false
}

// act does what the class does to the packet's color, and counts it.
func (l *Pipeline) act(a *action, p *Packet, v *Verdict) {
	stats := &l.stats[v.Class]
	stats.Colors[v.Color].add(v.Length)
	if a.drop {
		stats.Drops[v.Color][CauseColor].add(v.Length)
		return
	}
	done := Pass
	switch a.ecn {
	case CE, CEOrDrop:
		if p.setCE() {
			done |= ECNSet
		} else if a.ecn == CEOrDrop {
			stats.Drops[v.Color][CauseECN].add(v.Length)
			return
		}
	}
	for _, m := range a.marks {
		if p.mark(m) {
			done |= Marked
			if m.Field == DSCP {
				v.DSCPOut = uint8(m.Value)
			}
		}
	}
	if a.queue >= 0 {
		departure, ok := l.queues[a.queue].Admit(l.now, v.Length)
		if !ok {
			stats.Drops[v.Color][CauseQueue].add(v.Length)
			v.Reason = QueueFull
			return
		}
		v.Departure = departure
		done |= Queued
		stats.Queued[v.Color].add(v.Length)
	}
	if done&Marked != 0 {
		stats.Marked[v.Color].add(v.Length)
	}
	v.Done = done
}

// setCE sets Congestion Experienced, and says whether the packet is
// ECN-capable.
func (p *Packet) setCE() bool {
	switch p.Kind {
	case IPv4:
		return marker.SetCEv4(p.Data[p.L3:])
	case IPv6:
		return marker.SetCEv6(p.Data[p.L3:])
	}
	return false
}

// mark writes a mark, and says whether the packet has the field.
func (p *Packet) mark(m Mark) bool {
	switch m.Field {
	case DSCP:
		switch p.Kind {
		case IPv4:
			marker.SetDSCPv4(p.Data[p.L3:], uint8(m.Value))
		case IPv6:
			marker.SetDSCPv6(p.Data[p.L3:], uint8(m.Value))
		default:
			return false
		}
	case PCP, DEI:
		if p.Tags == 0 {
			return false
		}
		if m.Field == PCP {
			marker.SetPCP(p.Data[p.Tag:], uint8(m.Value))
		} else {
			marker.SetDEI(p.Data[p.Tag:], uint8(m.Value))
		}
	case MPLSTC:
		if p.MPLS == 0 {
			return false
		}
		marker.SetTC(p.Data[p.MPLS:], uint8(m.Value))
	case SKBMark:
		p.Mark = m.Value
	}
	return true
}

// Stats returns the counters: one entry a class in the policy's order, and a
// last one for what no class took. They go on counting.
func (l *Pipeline) Stats() []ClassStats { return l.stats }

// Tokens returns what a meter of the policy holds at the pipeline's time, as
// meter.Meter.Tokens does.
func (l *Pipeline) Tokens(m *Meter) (tc, te int64) {
	return l.stages[l.stageOf[m]].Tokens(l.now)
}

// Now returns the largest time seen, in ns.
func (l *Pipeline) Now() int64 { return l.now }
