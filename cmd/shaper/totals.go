package main

import (
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// classTotals has the counts of a class. Packets and Bytes are the sums over all colors.
type classTotals struct {
	Name string `json:"name"`
	dataplane.Count
	Green   dataplane.Count `json:"green"`
	Yellow  dataplane.Count `json:"yellow"`
	Red     dataplane.Count `json:"red"`
	Dropped dataplane.Count `json:"dropped"`
	Marked  dataplane.Count `json:"marked"`
	Queued  dataplane.Count `json:"queued"`
	CE      dataplane.Count `json:"ce"` // packets in which Congestion Experienced was set; not included in Marked
	// Reasons are those of the dropped packets.
	Reasons map[string]dataplane.Count `json:"drop_reasons"`
}

// totals is the output of replay --json.
type totals struct {
	dataplane.Count
	DurationNS int64         `json:"duration_ns"`
	Classes    []classTotals `json:"classes"`
	Meters     []*keyTotals  `json:"meters,omitempty"` // per-key meters
	// SuperPackets is the number of packets that were cut into segments.
	SuperPackets int64 `json:"super_packets,omitempty"`
	// ClockSteps is the number of times that the clock of the capture was set.
	ClockSteps    int64    `json:"clock_steps,omitempty"`
	Warnings      []string `json:"warnings"`
	Notes         []string `json:"notes"`
	*EpisodeLists          // nil with --no-episodes
}

// replayed is the result of a replay.
type replayed struct {
	replay.Summary
	stats []dataplane.ClassStats
	keys  []*keyTotals

	worst    []*episodes.Episode
	episodes *EpisodeLists // of worst; nil with --no-episodes
}

func totalsOf(plan *dataplane.Outline, n replayed) totals {
	t := totals{
		DurationNS: n.Last - n.First, Meters: n.keys, SuperPackets: n.Cut, ClockSteps: n.Steps, Warnings: append([]string{}, n.Warnings...), Notes: append([]string{}, n.Notes...),
		EpisodeLists: n.episodes,
	}
	for i := range n.stats {
		st := &n.stats[i]
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
			Reasons: dropReasons(st.Drops[:], st.UntakenDropped),
		})
		t.Count = t.Plus(st.Total())
	}
	return t
}

// dropReasons counts dropped packets by reason. drops has those of a class by cause, for each
// color; unclassified has dropped packets without a class.
func dropReasons(drops [][dataplane.Causes]dataplane.Count, unclassified dataplane.Count) map[string]dataplane.Count {
	out := map[string]dataplane.Count{}
	for _, byCause := range drops {
		for cause, n := range byCause {
			if name := causeName(dataplane.Cause(cause)); n.Packets > 0 {
				out[name] = out[name].Plus(n)
			}
		}
	}
	if unclassified.Packets > 0 {
		out[dataplane.Unclassified] = unclassified
	}
	return out
}

// reasonNames names the reasons of drops, one per line, with their packets if there are several.
func reasonNames(reasons map[string]dataplane.Count) string {
	var lines []string
	for c := range dataplane.Causes + 1 {
		name := causeName(c)
		switch n := reasons[name].Packets; {
		case n > 0 && len(reasons) > 1:
			name += " " + say.Grouped(n)
			fallthrough
		case n > 0:
			lines = append(lines, name)
		}
	}
	return strings.Join(lines, "\n")
}

// countersOf draws the counters, one line per class and color. If packets got CE or were
// dropped, it has a column for that.
func countersOf(plan *dataplane.Outline, stats []dataplane.ClassStats, colored bool) string {
	header := []any{"class", "color", "packets", "%", "bytes", "dropped", "marked", "queued"}
	ce := slices.ContainsFunc(stats, func(st dataplane.ClassStats) bool { return dataplane.Sum(st.CE[:]).Packets > 0 })
	if ce {
		header = append(header, "ce")
	}
	drops := slices.ContainsFunc(stats, func(st dataplane.ClassStats) bool { return st.AllDropped().Packets > 0 })
	if drops {
		header = append(header, "drop reason")
	}
	t := say.NewTable(3, header...)
	add := func(row table.Row, marked dataplane.Count, reasons map[string]dataplane.Count) {
		if ce {
			row = append(row, orEmpty(marked))
		}
		if drops {
			row = append(row, reasonNames(reasons))
		}
		t.AppendRow(row)
	}
	none := dataplane.Count{}
	for i := range stats {
		st := &stats[i]
		all := st.Total()
		if i == len(plan.Classes) {
			if all.Packets > 0 {
				add(table.Row{say.Unclassified, "", say.Grouped(all.Packets), say.Percent(all.Packets, all.Packets), say.Grouped(all.Bytes), orEmpty(st.UntakenDropped), "", ""},
					none, dropReasons(nil, st.UntakenDropped))
			}
			break
		}
		name := plan.Classes[i].Name
		if all.Packets == 0 {
			t.AppendRow(table.Row{name, "", "0", "", "0", "", "", ""})
		}
		for color := meter.Green; color <= meter.Red; color++ {
			n := st.Colors[color]
			if n.Packets == 0 {
				continue
			}
			add(table.Row{
				name, say.Color(color, colored), say.Grouped(n.Packets), say.Percent(n.Packets, all.Packets), say.Grouped(n.Bytes),
				orEmpty(st.Dropped(color)), orEmpty(st.Marked[color]), orEmpty(st.Queued[color]),
			}, st.CE[color], dropReasons(st.Drops[color:color+1], none))
			name = ""
		}
		if st.Behind.Packets > 0 { // dropped by the qdisc, color unknown
			add(table.Row{name, "", "", "", "", say.Grouped(st.Behind.Packets), "", ""}, none, map[string]dataplane.Count{dataplane.CauseQueue.String(): st.Behind})
		}
	}
	return t.Render()
}

// writeTotals prints the table and the totals of a replay.
func writeTotals(w io.Writer, plan *dataplane.Outline, n replayed, colored bool) error {
	t := totalsOf(plan, n)
	p := newPrinter(w)
	p.Printf("%s\n\n", countersOf(plan, n.stats, colored))
	for _, k := range n.keys {
		p.Printf("%s: %s\n", k.Name, k)
	}
	p.Printf("%s packets, %s bytes metered, %s\n", say.Grouped(t.Packets), say.Grouped(t.Bytes), say.Seconds(t.DurationNS))
	writeEpisodes(p, &n)
	return p.Err
}

func orEmpty(c dataplane.Count) string {
	if c.Packets == 0 {
		return ""
	}
	return say.Grouped(c.Packets)
}
