package report

import (
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// links writes the section of the links, each link before those below it.
func (p *page) links(d Data) {
	if len(d.Links) == 0 {
		return
	}
	p.section("Links",
		"Packets, bytes, and share of all bytes that each link sent, and its mean rate over the capture. "+
			"Held back is the time during which packets were queued below the link and its own rate was not free.")
	paths := make([]string, len(d.Links))
	var rows []row
	for _, i := range dataplane.LinksInOrder(d.Links) {
		l := &d.Links[i]
		level := 0
		if paths[i] = l.Name; l.Above >= 0 {
			paths[i] = paths[l.Above] + "/" + l.Name
			level = strings.Count(paths[i], "/")
		}
		held := cell{label: "Held back", value: duration(int64(l.Held)), zero: l.Held == 0}
		rows = append(rows, row{
			name:  strings.Repeat("\u2003", level) + l.Name,
			under: "at least " + say.AtLeast(l.Guaranteed) + ", at most " + l.Reach.String(),
			cells: []cell{
				counted("Sent", "", l.Sent, d.Bytes),
				{label: "Rate", value: meanRate(l.Sent.Bytes, d.Duration), zero: l.Sent.Bytes == 0},
				held,
			},
		})
	}
	p.table("Link", rows)
	p.endSection()
}
