package summary

import (
	"io"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// classTotals holds the counts of a class. Packets and Bytes are the sums over all colors.
type classTotals struct {
	Name string `json:"name"`
	dataplane.Count
	Green   dataplane.Count `json:"green"`
	Yellow  dataplane.Count `json:"yellow"`
	Red     dataplane.Count `json:"red"`
	Dropped dataplane.Count `json:"dropped"`
	Marked  dataplane.Count `json:"marked"`
	Queued  dataplane.Count `json:"queued"`
	// packets in which Congestion Experienced was set; not included in Marked
	CE dataplane.Count `json:"ce"`
	// Reasons are those of the dropped packets.
	Reasons map[string]dataplane.Count `json:"drop_reasons"`
}

// Totals is the output of replay --json.
type Totals struct {
	dataplane.Count
	DurationNS int64            `json:"duration_ns"`
	Classes    []classTotals    `json:"classes"`
	Meters     []*say.KeyCounts `json:"meters,omitempty"` // per-key meters
	// SuperPackets is the number of packets cut into segments.
	SuperPackets int64 `json:"super_packets,omitempty"`
	// ClockSteps is the number of times that the clock of the capture was set.
	ClockSteps    int64    `json:"clock_steps,omitempty"`
	Warnings      []string `json:"warnings"`
	Notes         []string `json:"notes"`
	*EpisodeLists          // nil with --no-episodes
}

// Replay is the result of a replay.
type Replay struct {
	replay.Summary
	Stats []dataplane.ClassStats
	Keys  []*say.KeyCounts
	Links []dataplane.LinkState // after the last departure

	Worst []*episodes.Episode
	Lists *EpisodeLists // Worst as --json prints it; nil with --no-episodes
}

// TotalsOf returns the totals of a replay. plan is the outline of its policy.
func TotalsOf(plan *compiled.Outline, n Replay) Totals {
	t := Totals{
		DurationNS: n.Last - n.First, Meters: n.Keys, SuperPackets: n.Cut, ClockSteps: n.Steps,
		Warnings: append([]string{}, n.Warnings...), Notes: append([]string{}, n.Notes...),
		EpisodeLists: n.Lists,
	}
	for i := range n.Stats {
		st := &n.Stats[i]
		name := say.Unclassified
		if i < len(plan.Classes) {
			name = plan.Classes[i].Name
		}
		t.Classes = append(t.Classes, classTotals{
			Name:    name,
			Count:   st.Total(),
			Green:   st.Colors[meter.Green],
			Yellow:  st.Colors[meter.Yellow],
			Red:     st.Colors[meter.Red],
			Dropped: st.AllDropped(),
			Marked:  dataplane.Sum(st.Marked[:]),
			Queued:  dataplane.Sum(st.Queued[:]),
			CE:      dataplane.Sum(st.CE[:]),
			Reasons: say.DropReasons(st.Drops[:], st.UntakenDropped),
		})
		t.Count = t.Plus(st.Total())
	}
	return t
}

// WriteTotals prints the table and the totals of a replay.
func WriteTotals(w io.Writer, plan *compiled.Outline, n Replay, colored bool) error {
	t := TotalsOf(plan, n)
	p := say.NewPrinter(w)
	counters := say.Counters(plan, n.Stats, colored)
	p.Printf("%s\n\n", counters.Render(say.IsTerminal(w)))
	p.Folded(counters.Foot)
	for _, k := range n.Keys {
		p.Printf("%s: %s\n", k.Name, k)
	}
	p.Printf("%s packets, %s bytes metered, %s\n", say.Grouped(t.Packets), say.Grouped(t.Bytes),
		say.Seconds(t.DurationNS))
	writeEpisodes(p, &n)
	return p.Err
}
