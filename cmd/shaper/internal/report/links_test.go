package report

import (
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestLinks checks the section of links: a link follows the link above it, and is indented.
func TestLinks(t *testing.T) {
	d := sample()
	d.Bytes, d.Duration = 9000, 2e9
	d.Links = []dataplane.LinkState{
		{Name: "site<", Above: -1, Guaranteed: meter.BitRate(8e6), Reach: meter.BitRate(8e6)},
		{Name: "other", Above: -1, Guaranteed: meter.BitRate(2e6), Reach: meter.BitRate(2e6)},
		{
			Name: "ap", Above: 0, Guaranteed: meter.BitRate(1e6), Reach: meter.BitRate(4e6),
			Sent: dataplane.Count{Packets: 3, Bytes: 4500}, Held: 1250 * time.Millisecond, HeldKnown: true,
		},
	}
	html := write(t, d)
	at := 0
	for _, want := range []string{
		"<h2>Links</h2>", "site&lt;", "at least 8mbit, at most 8mbit", "\u2003ap", "at least 1mbit, at most 4mbit",
		">3<", "4,500 B", "50.0 %", "mean 18.0 kbit/s", "1.25 s", ">other<",
	} {
		i := strings.Index(html[at:], want)
		if i < 0 {
			t.Fatalf("%q is missing or in another place: %s", want, html[at:min(len(html), at+1200)])
		}
		at += i
	}
	d.Links = nil
	if strings.Contains(write(t, d), "Links") {
		t.Error("a section without links")
	}
}
