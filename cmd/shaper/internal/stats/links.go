package stats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// LinkList is the output of stats --links --json, one line per shaper.
type LinkList struct {
	Interface string        `json:"interface"`
	Direction string        `json:"direction"`
	Interval  time.Duration `json:"rate_interval_ns"` // the rates are averages over this time
	List      []LinkStats   `json:"links"`            // each before those below it
}

// LinkStats is the state of a link. Numbers that the plane does not know are absent.
type LinkStats struct {
	Name       string           `json:"name"`
	Link       string           `json:"link,omitempty"` // above
	Path       string           `json:"link_path"`      // of the links above and this one, the root first
	Rate       float64          `json:"rate_bit_s,omitempty"`
	Guaranteed *float64         `json:"guaranteed_bit_s,omitempty"` // while all queues of the tree are busy
	Reach      *float64         `json:"reach_bit_s,omitempty"`      // lowest rate up to the root
	Sent       *dataplane.Count `json:"sent,omitempty"`             // in the kernel as counted by HTB
	SentRate   *int64           `json:"sent_bit_s,omitempty"`
	Backlog    *dataplane.Count `json:"backlog,omitempty"` // of all queues below
	Held       *HeldStats       `json:"held,omitempty"`

	guaranteed, reach meter.Rate
	level             int // number of links above
}

// HeldStats is the time during which packets waited for the own rate of a link.
type HeldStats struct {
	Total time.Duration `json:"total_ns"`
	Part  float64       `json:"part"` // of rate_interval_ns
}

// AddLinks adds the flag of stats --links to a command.
func AddLinks(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "links", false, "show the counters of links instead, as a tree")
}

// ErrNoLinks means that no queue of a shaper is on a link.
var ErrNoLinks = errors.New("no packet is queued on a link: the policy has no links, or it is a dry run")

// errLinksReplaced means that readings are of different policies.
var errLinksReplaced = errors.New("the policy was replaced meanwhile: try again")

// ShowLinks prints the states of links.
func ShowLinks(ctx context.Context, s cli.Streams, f *live.Flags, name string, asJSON bool) error {
	list, err := f.Choose(name)
	if err != nil {
		return err
	}
	defer live.CloseAll(list)
	before, err := ReadLinks(list)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(kernel.MinReadingAge):
	}
	now, err := ReadLinks(list)
	if err != nil {
		return err
	}
	all, err := JoinLinks(before, now)
	if err != nil {
		return err
	}
	p := say.NewPrinter(s.Out)
	if !asJSON {
		PrintLinks(p, all)
		return p.Err
	}
	for _, row := range LinksOf(all) {
		p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, row))
	}
	return p.Err
}

// PrintLinks prints the links of several shapers for people.
func PrintLinks(p *say.Printer, all []LinkReadings) {
	for i := range all {
		if i > 0 {
			p.Printf("\n")
		}
		printLinks(p, new(all[i].links()))
	}
}

// LinkReading is a reading of the links of a shaper.
type LinkReading struct {
	about kernel.About
	at    int64 // ns
	list  []dataplane.LinkState
}

// ReadLinks reads the links of shapers. The error wraps ErrNoLinks if one has none.
func ReadLinks(list []live.Handle) (out []LinkReading, err error) {
	for _, sh := range list {
		r := LinkReading{about: *sh.Info()}
		if r.at, r.list, err = sh.Links(); err == nil && len(r.list) == 0 {
			err = ErrNoLinks
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", live.Name(sh.Info()), err)
		}
		out = append(out, r)
	}
	return out, nil
}

// LinkReadings are two readings of the links of a shaper.
type LinkReadings struct {
	Interface, Direction string
	Interval             time.Duration // between them
	Before, Now          []dataplane.LinkState
}

// JoinLinks joins readings with later ones of the same shapers.
func JoinLinks(before, now []LinkReading) (out []LinkReadings, err error) {
	if len(before) != len(now) {
		return nil, errLinksReplaced
	}
	for i, b := range before {
		n := &now[i]
		if len(n.list) != len(b.list) {
			return nil, fmt.Errorf("%s: %w", live.Name(&n.about), errLinksReplaced)
		}
		out = append(out, LinkReadings{
			n.about.Interface, n.about.Direction.String(), time.Duration(n.at - b.at), b.list, n.list,
		})
	}
	return out, nil
}

// LinksOf returns the links of shapers for JSON.
func LinksOf(list []LinkReadings) (out []LinkList) {
	for i := range list {
		out = append(out, list[i].links())
	}
	return out
}

// links returns the links in the order of their tree.
func (r *LinkReadings) links() LinkList {
	out := linksOf(r.Before, r.Now, r.Interval)
	out.Interface, out.Direction = r.Interface, r.Direction
	return out
}

// linksOf returns the links in the order of their tree, with their rates between two readings.
func linksOf(before, now []dataplane.LinkState, dt time.Duration) LinkList {
	out := LinkList{Interval: dt, List: make([]LinkStats, 0, len(now))}
	paths, levels := make([]string, len(now)), make([]int, len(now))
	for _, i := range dataplane.LinksInOrder(now) {
		s := &now[i]
		row := LinkStats{
			Name: s.Name, Path: s.Name, Rate: say.BitsPerSecond(s.Rate),
			guaranteed: s.Guaranteed, reach: s.Reach,
		}
		if above := s.Above; above >= 0 {
			row.Link, row.Path, row.level = now[above].Name, paths[above]+"/"+s.Name, levels[above]+1
		}
		paths[i], levels[i] = row.Path, row.level
		if !s.Missing {
			row.Guaranteed, row.Reach = new(say.BitsPerSecond(s.Guaranteed)), new(say.BitsPerSecond(s.Reach))
			row.Sent, row.Backlog = &s.Sent, &s.Backlog
			was := before[i].Sent
			if was.Bytes > s.Sent.Bytes { // another program replaced the class
				was = dataplane.Count{}
			}
			row.SentRate = new(BitRate(was, s.Sent, dt))
		}
		if s.HeldKnown {
			row.Held = &HeldStats{Total: s.Held}
			if dt > 0 {
				row.Held.Part = min(1, max(0, float64(s.Held-before[i].Held)/float64(dt)))
			}
		}
		out.List = append(out.List, row)
	}
	return out
}

// printLinks prints links as a table.
func printLinks(p *say.Printer, c *LinkList) {
	p.Printf("%s %s: %s\n", c.Interface, c.Direction, say.Count(len(c.List), "link"))
	p.Printf("  rates    over the last %v\n", c.Interval.Round(10*time.Millisecond))
	g := &say.Table{Header: []any{
		"link", "sent\npackets", "sent\nbytes", "sent\nbit/s", "at least", "at most", "backlog\npackets",
		"backlog\nbytes", "held",
	}, First: 2, Names: []int{0}}
	for i := range c.List {
		row := &c.List[i]
		name, held := strings.Repeat("  ", row.level)+row.Name, "-"
		if row.Held != nil {
			held = fmt.Sprintf("%.0f %%", 100*row.Held.Part)
		}
		if row.Sent == nil {
			g.Add(name, "-", "-", "-", "-", "-", "-", "-", held)
			continue
		}
		g.Add(name, say.Number(row.Sent.Packets), say.Number(row.Sent.Bytes), say.Speed(*row.SentRate),
			say.AtLeast(row.guaranteed), row.reach, say.Number(row.Backlog.Packets),
			say.Number(row.Backlog.Bytes), held)
	}
	p.Table(g)
	const rates = "at least: the rate while all queues are busy; at most: the lowest rate up to the root; held: "
	if c.List[0].Held == nil {
		p.Folded(rates + "unknown in the kernel\n")
	} else {
		p.Folded(rates + "part of the time during which queued packets waited for the link's own rate\n")
	}
}
