package say

import (
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/jedib0t/go-pretty/v6/table"
)

// DropReasons counts dropped packets by reason. drops counts those of a class by cause, for each
// color; unclassified counts dropped packets without a class.
func DropReasons(
	drops [][dataplane.Causes]dataplane.Count, unclassified dataplane.Count,
) map[string]dataplane.Count {
	out := map[string]dataplane.Count{}
	for _, byCause := range drops {
		for cause, n := range byCause {
			if name := CauseName(dataplane.Cause(cause)); n.Packets > 0 {
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
		name := CauseName(c)
		switch n := reasons[name].Packets; {
		case n > 0 && len(reasons) > 1:
			name += " " + Grouped(n)
			fallthrough
		case n > 0:
			lines = append(lines, name)
		}
	}
	return strings.Join(lines, "\n")
}

// Counters draws the counters, one line per class and color. If packets got CE or were dropped,
// there is a column for them.
func Counters(plan *compiled.Outline, stats []dataplane.ClassStats, colored bool) string {
	header := []any{"class", "color", "packets", "%", "bytes", "dropped", "marked", "queued"}
	ce := slices.ContainsFunc(stats,
		func(st dataplane.ClassStats) bool { return dataplane.Sum(st.CE[:]).Packets > 0 })
	if ce {
		header = append(header, "ce")
	}
	drops := slices.ContainsFunc(stats,
		func(st dataplane.ClassStats) bool { return st.AllDropped().Packets > 0 })
	if drops {
		header = append(header, "drop reason")
	}
	t := NewTable(3, header...)
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
				add(table.Row{
					Unclassified, "", Grouped(all.Packets), Percent(all.Packets, all.Packets),
					Grouped(all.Bytes), orEmpty(st.UntakenDropped), "", "",
				},
					none, DropReasons(nil, st.UntakenDropped))
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
				name, Color(color, colored), Grouped(n.Packets), Percent(n.Packets, all.Packets),
				Grouped(n.Bytes), orEmpty(st.Dropped(color)), orEmpty(st.Marked[color]),
				orEmpty(st.Queued[color]),
			}, st.CE[color], DropReasons(st.Drops[color:color+1], none))
			name = ""
		}
		if st.Behind.Packets > 0 { // dropped by the qdisc, color unknown
			add(table.Row{name, "", "", "", "", Grouped(st.Behind.Packets), "", ""}, none,
				map[string]dataplane.Count{dataplane.CauseQueue.String(): st.Behind})
		}
	}
	return t.Render()
}

func orEmpty(c dataplane.Count) string {
	if c.Packets == 0 {
		return ""
	}
	return Grouped(c.Packets)
}

// CauseName names a cause. dataplane.Causes stands for the drop of unclassified packets.
func CauseName(c dataplane.Cause) string {
	if c == dataplane.Causes {
		return dataplane.Unclassified
	}
	return c.String()
}
