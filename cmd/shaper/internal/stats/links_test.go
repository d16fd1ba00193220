package stats

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// linkReadings are two readings of four links, half a second apart.
func linkReadings() (before, now []dataplane.LinkState) {
	now = []dataplane.LinkState{
		{
			Name: "site", Above: -1, Rate: meter.BitRate(8e6),
			Guaranteed: meter.BitRate(7e6), Reach: meter.BitRate(8e6),
			Sent:    dataplane.Count{Packets: 10, Bytes: 9000},
			Backlog: dataplane.Count{Packets: 3, Bytes: 2000},
			Held:    4 * time.Second, HeldKnown: true,
		},
		{Name: "last", Above: -1, Guaranteed: meter.BitRate(1e6), Reach: meter.BitRate(1e6), HeldKnown: true},
		{
			Name: "ap", Above: 0, Guaranteed: meter.BitRate(2e6), Reach: meter.BitRate(8e6),
			Sent: dataplane.Count{Packets: 5, Bytes: 5000},
		},
		{Name: "gone", Above: 2, Missing: true},
	}
	before = slices.Clone(now)
	before[0].Sent.Bytes, before[0].Held = 4000, 4*time.Second-125*time.Millisecond
	before[2].Sent.Bytes = 6000 // the class is another one now
	return before, now
}

// TestLinksJSON checks that numbers are of the right link, in the order of the tree, and that unknown ones
// are absent.
func TestLinksJSON(t *testing.T) {
	t.Parallel()
	before, now := linkReadings()
	got, err := json.Marshal(linksOf(before, now, 500*time.Millisecond).List)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"name":"site","link_path":"site","rate_bit_s":8000000,"guaranteed_bit_s":7000000,` +
		`"reach_bit_s":8000000,"sent":{"packets":10,"bytes":9000},"sent_bit_s":80000,` +
		`"backlog":{"packets":3,"bytes":2000},"held":{"total_ns":4000000000,"part":0.25}},` +
		`{"name":"ap","link":"site","link_path":"site/ap","guaranteed_bit_s":2000000,"reach_bit_s":8000000,` +
		`"sent":{"packets":5,"bytes":5000},"sent_bit_s":80000,"backlog":{"packets":0,"bytes":0}},` +
		`{"name":"gone","link":"ap","link_path":"site/ap/gone"},` +
		`{"name":"last","link_path":"last","guaranteed_bit_s":1000000,"reach_bit_s":1000000,` +
		`"sent":{"packets":0,"bytes":0},"sent_bit_s":0,"backlog":{"packets":0,"bytes":0},` +
		`"held":{"total_ns":0,"part":0}}]`
	if string(got) != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

// TestLinksTable checks the table: links are indented, and unknown numbers are dashes.
func TestLinksTable(t *testing.T) {
	t.Parallel()
	before, now := linkReadings()
	list := linksOf(before, now, 500*time.Millisecond)
	list.Interface, list.Direction = "eth0", "egress"
	var b bytes.Buffer
	printLinks(say.NewPrinter(&b), &list)
	var rows []string
	for line := range strings.Lines(b.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{
		"eth0 egress: 4 links", "site 10 9,000 80 k 7mbit 8mbit 3 2,000 25 %", "ap 5 5,000 80 k 2mbit 8mbit 0 0 -",
		"gone - - - - - - - -", "last 0 0 0 1mbit 1mbit 0 0 0 %",
	} {
		if !slices.Contains(rows, want) {
			t.Errorf("%q is missing in\n%s", want, &b)
		}
	}
	if !strings.Contains(b.String(), "\n     gone ") || !strings.Contains(b.String(), "\n   ap ") {
		t.Errorf("links are not indented by their level:\n%s", &b)
	}
}

// TestTrees checks the trees in status: not one for a fair queue alone, unless customers may be beside it.
func TestTrees(t *testing.T) {
	t.Parallel()
	o := compiled.Outline{
		Links: []string{"site", "ap", "bulk", "up"}, Above: []int{-1, 0, -1, -1},
		Queues: []compiled.QueueOutline{
			{Name: "a", Link: 1}, {Name: "b", Link: 0}, {Name: "bulk", Link: 2}, {Name: "own", Link: -1},
		},
	}
	about := kernel.About{Outline: o}
	if got := treesOf(&about); got != nil {
		t.Errorf("a dry run: got %v", got)
	}
	about.Pacer = kernel.HTB
	want := []Tree{{"site", 1, 2}, {"up", 0, 0}}
	if got := treesOf(&about); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	about.Outline.Customers = 1
	want = slices.Insert(want, 1, Tree{"bulk", 0, 1})
	if got := treesOf(&about); !slices.Equal(got, want) {
		t.Errorf("with customers: got %v, want %v", got, want)
	}
	var b bytes.Buffer
	p := say.NewPrinter(&b)
	printTrees(p, want)
	printTrees(p, slices.Repeat(want[:1], 7))
	const text = "  links    site (1 link, 2 queues), bulk (1 queue), up (0 queues)\n"
	if got := b.String(); !strings.HasPrefix(got, text) || !strings.HasSuffix(got, ", 2 more\n") {
		t.Errorf("got %s, want %s", got, text)
	}
}
