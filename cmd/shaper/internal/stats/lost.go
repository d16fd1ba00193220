package stats

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// PrintLost prints the numbers of lost packets, by reason.
func PrintLost(p *say.Printer, about *kernel.About, lost tap.Lost) {
	for _, n := range []struct {
		dataplane.Count
		why string
	}{
		{lost.Refused, "rejected by the other device"},
		{lost.Memory, "for lack of memory (--memory)"},
		{lost.Ended, "still queued at the end"},
	} {
		if n.Packets > 0 {
			p.Folded(fmt.Sprintf("%s: lost %s packets %s\n", live.Name(about), say.Grouped(n.Packets), n.why))
		}
	}
}
