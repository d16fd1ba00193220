package say

import (
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
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

// fewEmpty is the maximum number of classes without packets that have lines in a table of counters.
const fewEmpty = 2

// EmptyClasses returns a line with the names of the classes without packets, to be printed instead of their
// lines in a table; "" if they are few, or all.
func EmptyClasses(plan *compiled.Outline, stats []dataplane.ClassStats) string {
	var names []string
	for i := range plan.Classes {
		if total := stats[i].Total(); total.Packets == 0 {
			names = append(names, plan.Classes[i].Name)
		}
	}
	if len(names) <= fewEmpty || len(names) == len(plan.Classes) {
		return ""
	}
	return "no packets: " + strings.Join(names, ", ") + "\n"
}

// Counters returns the counters as a table, one line per class and color. If packets got CE or were dropped,
// there is a column for them.
func Counters(plan *compiled.Outline, stats []dataplane.ClassStats, colored bool) *Table {
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
	t := &Table{Header: header, First: 3, Names: []int{0}, Foot: EmptyClasses(plan, stats)}
	if drops {
		t.Texts = []int{len(header) - 1}
	}
	add := func(row []any, marked dataplane.Count, reasons map[string]dataplane.Count) {
		if ce {
			row = append(row, orEmpty(marked))
		}
		if drops {
			row = append(row, reasonNames(reasons))
		}
		t.Add(row...)
	}
	none := dataplane.Count{}
	for i := range stats {
		st := &stats[i]
		all := st.Total()
		if i == len(plan.Classes) {
			if all.Packets > 0 {
				add([]any{
					Unclassified, "", Number(all.Packets), Percent(all.Packets, all.Packets),
					Number(all.Bytes), orEmpty(st.UntakenDropped), "", "",
				},
					none, DropReasons(nil, st.UntakenDropped))
			}
			break
		}
		name := plan.Classes[i].Name
		if all.Packets == 0 && t.Foot == "" {
			add([]any{name, "", Number(0), "", Number(0), "", "", ""}, none, nil)
		}
		for color := meter.Green; color <= meter.Red; color++ {
			n := st.Colors[color]
			if n.Packets == 0 {
				continue
			}
			add([]any{
				name, Color(color, colored), Number(n.Packets), Percent(n.Packets, all.Packets),
				Number(n.Bytes), orEmpty(st.Dropped(color)), orEmpty(st.Marked[color]),
				orEmpty(st.Queued[color]),
			}, st.CE[color], DropReasons(st.Drops[color:color+1], none))
			name = ""
		}
		if st.Behind.Packets > 0 { // dropped by the qdisc, color unknown
			add([]any{name, "", "", "", "", Number(st.Behind.Packets), "", ""}, none,
				map[string]dataplane.Count{dataplane.CauseQueue.String(): st.Behind})
		}
	}
	return t
}

func orEmpty(c dataplane.Count) any {
	if c.Packets == 0 {
		return ""
	}
	return Number(c.Packets)
}

// CauseName names a cause. dataplane.Causes stands for the drop of unclassified packets.
func CauseName(c dataplane.Cause) string {
	if c == dataplane.Causes {
		return dataplane.Unclassified
	}
	return c.String()
}
