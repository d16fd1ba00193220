package summary

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// EpisodeLists are the episodes of a replay as --json prints them. It is exported because encoding/json
// cannot set an embedded pointer to an unexported type.
type EpisodeLists struct {
	DropEpisodes   int64           `json:"drop_episodes"`   // number of all
	YellowEpisodes int64           `json:"yellow_episodes"` // number of all
	Episodes       []EpisodeTotals `json:"episodes"`        // the worst ones
}

// EpisodeTotals is an episode as replay --json prints it.
type EpisodeTotals struct {
	Kind        string `json:"kind"` // drop or yellow
	Class       string `json:"class"`
	Meter       string `json:"meter"`       // whose color decided about most bytes; "" for none
	Queue       string `json:"queue"`       // the queue with most dropped bytes; "" for none
	StartNS     int64  `json:"start_ns"`    // since the start of the capture
	DurationNS  int64  `json:"duration_ns"` // from the first packet to the last
	FirstPacket int64  `json:"first_packet"`
	LastPacket  int64  `json:"last_packet"`
	dataplane.Count
	Reasons map[string]dataplane.Count `json:"reasons"` // of the drops
	// most tokens a packet lacked; null if no meter decided
	Lack     *int64     `json:"lack"`
	LackUnit string     `json:"lack_unit"` // bytes or packets
	Flow     flowTotals `json:"flow"`      // the flow with most lost bytes
	Why      string     `json:"why"`       // command to explain the first packet

	by string // what decided about most bytes
}

// flowTotals are packets of a flow.
type flowTotals struct {
	Flow string `json:"flow"`
	dataplane.Count
	AtLeast bool `json:"at_least"` // the counts may lack packets
	Sampled bool `json:"sampled"`  // the counts are estimates from a sample of the packets
}

func (f *flowTotals) text() string {
	n, prefix := f.Count, ""
	switch {
	case f.Sampled:
		n, prefix = dataplane.Count{Packets: twoDigits(n.Packets), Bytes: twoDigits(n.Bytes)}, "about "
	case f.AtLeast:
		prefix = "at least "
	}
	return fmt.Sprintf("%s: %s%s, %s", f.Flow, prefix, say.Count(n.Packets, "packet"),
		say.Count(n.Bytes, "byte"))
}

// twoDigits rounds n to two significant digits.
func twoDigits(n int64) int64 {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return (n + unit/2) / unit * unit
}

// Episodes describes the worst episodes. start is the start of the capture, ns: the time of its first packet.
func Episodes(
	plan *compiled.Plan, list []*episodes.Episode, start int64, why func(packet int64) string,
) []EpisodeTotals {
	out := []EpisodeTotals{}
	for _, e := range list {
		t := EpisodeTotals{
			Kind: e.Kind.String(), Class: say.Unclassified, Count: e.Count,
			StartNS: e.First - start, DurationNS: e.Last - e.First, FirstPacket: e.FirstPacket,
			LastPacket: e.LastPacket, Reasons: map[string]dataplane.Count{},
			Flow: flowTotals{e.Flow.Key.String(), e.Flow.Count, e.Flow.Partial && !e.Sampled, e.Sampled},
			Why:  why(e.FirstPacket),
		}
		if e.Class < len(plan.Classes) {
			t.Class = plan.Classes[e.Class].Name
		}
		if e.Lack > 0 {
			t.Lack, t.LackUnit = &e.Lack, "bytes"
			if plan.Stages[e.LackStage].Packets {
				t.LackUnit = "packets"
			}
		}
		for i, part := range e.Parts { // most bytes first
			by := ""
			switch byQueue := part.Cause >= dataplane.CauseQueue && part.Cause < dataplane.Causes; {
			case byQueue && part.Queue < 0:
				by = "customer's queue"
			case byQueue:
				name := plan.Queues[part.Queue].Name
				t.Queue, by = cmp.Or(t.Queue, name), "queue "+name
			case part.Stage >= 0:
				name := plan.Stages[part.Stage].Name
				t.Meter, by = cmp.Or(t.Meter, name), "meter "+name
			}
			if i == 0 {
				t.by = by
			}
			if e.Kind == episodes.Drop {
				reason := say.CauseName(part.Cause)
				t.Reasons[reason] = t.Reasons[reason].Plus(part.Count)
			}
		}
		out = append(out, t)
	}
	return out
}

// reasons lists the reasons of the drops in the order of the causes.
func (t *EpisodeTotals) reasons() string {
	if t.Kind != episodes.Drop.String() {
		return t.Kind
	}
	var names []string
	for c := range dataplane.Causes + 1 {
		if name := say.CauseName(c); t.Reasons[name].Packets > 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// lack writes the lack with its unit.
func (t *EpisodeTotals) lack() string {
	switch {
	case t.Lack == nil:
		return ""
	case t.LackUnit == "packets":
		return say.Grouped(*t.Lack) + " p"
	}
	return say.Grouped(*t.Lack) + " B"
}

// when writes the time since the start of the capture, to the µs.
func (t *EpisodeTotals) when() string {
	return fmt.Sprintf("%d.%06d s", t.StartNS/1e9, t.StartNS%1e9/1e3)
}

// writeEpisodes prints the worst episodes.
func writeEpisodes(p *say.Printer, n *Replay) {
	if n.Lists == nil || len(n.Lists.Episodes) == 0 {
		return
	}
	var all []string
	if count := n.Lists.DropEpisodes; count > 0 {
		all = append(all, say.Count(count, "drop episode"))
	}
	if count := n.Lists.YellowEpisodes; count > 0 {
		all = append(all, say.Count(count, "yellow episode"))
	}
	list := n.Lists.Episodes
	rows := episodeTable(list).Render(say.IsTerminal(p.W))
	var notes strings.Builder
	for i := range list {
		fmt.Fprintf(&notes, "%d  %s\n   %s\n", i+1, list[i].Flow.text(), list[i].Why)
	}
	heading := strings.Join(all, " and ")
	if n.Lists.DropEpisodes+n.Lists.YellowEpisodes > int64(len(list)) {
		heading = "Worst of " + heading
	}
	p.Printf("\n%s:\n\n%s\n\n%s", heading, rows, notes.String())
}

// episodeTable returns episodes as a table. If no episode has a lack, the table has no column for it.
func episodeTable(list []EpisodeTotals) *say.Table {
	g := &say.Table{
		Header: []any{"#", "class", "by", "reason", "at", "length", "packets", "bytes"},
		First:  5, Names: []int{1, 2}, Texts: []int{3},
	}
	lacks := slices.ContainsFunc(list, func(t EpisodeTotals) bool { return t.Lack != nil })
	if lacks {
		g.Header = append(g.Header, "lack")
	}
	for i := range list {
		t := &list[i]
		row := []any{
			fmt.Sprint(i + 1), t.Class, t.by, t.reasons(), t.when(), say.Time(t.DurationNS),
			say.Number(t.Packets), say.Number(t.Bytes),
		}
		if lacks {
			row = append(row, t.lack())
		}
		g.Add(row...)
	}
	return g
}
