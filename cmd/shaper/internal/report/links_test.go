package report

import (
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestLinks checks the section of links: a link follows the link above it, and is indented.
func TestLinks(t *testing.T) {
	d := sample()
	d.Bytes, d.Duration = 9000, 2e9
	d.Links = []dataplane.LinkState{
		{Name: "site<", Above: -1},
		{Name: "other", Above: -1},
		{
			Name: "ap", Above: 0,
			Sent: dataplane.Count{Packets: 3, Bytes: 4500}, Held: 1250 * time.Millisecond, HeldKnown: true,
		},
	}
	for i, bytes := range []int64{1_000_000, 250_000, 500_000} { // per second
		l := &d.Links[i]
		l.Reach.Bytes, l.Reach.Period = bytes, time.Second
		l.Guaranteed.Bytes, l.Guaranteed.Period = bytes/4, time.Second
	}
	html := write(t, d)
	at := 0
	for _, want := range []string{
		"<h2>Links</h2>", "site&lt;", "at least 2mbit, at most 8mbit", "\u2003ap", "at least 1mbit, at most 4mbit",
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
