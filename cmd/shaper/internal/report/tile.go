package report

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Tile holds consecutive packets of a replay.
type Tile struct{ Packets []TilePacket }

// TilePacket is a packet of a tile.
type TilePacket struct {
	Number int64 // in the capture
	At     int64 // arrival by the clock of the meters, ns since the epoch
	Length int   // metered bytes
	Class  int32 // index in Data.Rates; -1 for unclassified packets
	Color  uint8 // green, yellow or red
	Fate   Fate
	Left   int64   // departure, ns since the epoch; valid if Fate is Sent
	Levels []Level // after the packet, of its meters among Data.Meters
}

// Fate is the outcome of a packet.
type Fate uint8

const (
	Dropped Fate = iota
	Sent
	Undecided
)

// Level is the level of the buckets of a meter of Data.Meters.
type Level struct {
	Meter int
	C, E  int64
}

// SetOutcome sets the outcome.
func (p *TilePacket) SetOutcome(v *dataplane.Verdict) {
	switch {
	case v.Done&dataplane.Waiting != 0:
		p.Fate = Undecided
	case v.Done.Dropped():
		p.Fate = Dropped
	default:
		p.Fate, p.Left = Sent, v.Departure
	}
}

// tileSeries is a tile as the script reads it. Lists have one value per packet. Times
// are in ns since the start; each arrival is after the previous one.
type tileSeries struct {
	Number []int64       `json:"number"`
	From   int64         `json:"from"`  // arrival of the first packet
	After  []int64       `json:"after"` // arrival, since the previous packet
	Length []int         `json:"length"`
	Class  []int32       `json:"class"`
	Color  []int         `json:"color"`  // 3: unclassified
	Left   []int64       `json:"left"`   // departure, since the arrival; -1 for a dropped packet
	Levels [][]tileLevel `json:"levels"` // by meter
}

// tileLevel is the index of a packet and the levels after it.
type tileLevel [3]int64

// series converts a tile for the script. meters is the number of meters drawn.
func (t *Tile) series(start int64, meters int) tileSeries {
	out := tileSeries{From: t.Packets[0].At - start, Levels: make([][]tileLevel, meters)}
	before := t.Packets[0].At
	for i, p := range t.Packets {
		color, left := int(p.Color), int64(-1)
		if p.Class < 0 {
			color = 3
		}
		if p.Fate == Sent {
			left = p.Left - p.At
		}
		out.Number = append(out.Number, p.Number)
		out.After, before = append(out.After, p.At-before), p.At
		out.Length, out.Class = append(out.Length, p.Length), append(out.Class, p.Class)
		out.Color, out.Left = append(out.Color, color), append(out.Left, left)
		for _, l := range p.Levels {
			if l.Meter < meters {
				out.Levels[l.Meter] = append(out.Levels[l.Meter], tileLevel{int64(i), l.C, l.E})
			}
		}
	}
	return out
}
