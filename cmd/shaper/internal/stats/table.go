package stats

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// interval holds two samples of a shaper.
type interval struct {
	about       *kernel.About
	before, now *live.Sample
}

func (v *interval) plan() *compiled.Outline { return &v.about.Outline }

func (v *interval) dt() time.Duration { return time.Duration(v.now.At - v.before.At) }

// perSecond returns the rate of a counter per second. Counters may have wrapped.
func (v *interval) perSecond(before, after int64) int64 {
	if v.dt() <= 0 {
		return 0
	}
	return int64(float64((after-before)&math.MaxInt64)/v.dt().Seconds() + 0.5)
}

// sent returns the rate at which HTB sent from a queue, in bit/s; nil without HTB.
func (v *interval) sent(queue int) *int64 {
	if v.about.Pacer != kernel.HTB || queue >= len(v.before.Queues) {
		return nil
	}
	bits := BitRate(v.before.Queues[queue].Sent, v.now.Queues[queue].Sent, v.dt())
	return &bits
}

// passed returns the rate at which packets of a class and color passed, in bit/s. HTB counts
// drops in a link's queue without bytes. Then passed is the rate of the queue, and nil if
// several classes or colors use the queue.
func (v *interval) passed(class int, color meter.Color) *int64 {
	a, b := &v.before.Stats[class], &v.now.Stats[class]
	if plan := v.plan(); class < len(plan.Classes) && v.about.Pacer == kernel.HTB {
		if q := plan.Classes[class].Queues[color]; q >= 0 && plan.Queues[q].Link >= 0 {
			if plan.Feeds(q) == 1 {
				return v.sent(q)
			}
			return nil
		}
	}
	passed := func(s *dataplane.ClassStats) dataplane.Count {
		return dataplane.Count{Bytes: s.Colors[color].Bytes - s.Dropped(color).Bytes}
	}
	bits := BitRate(passed(a), passed(b), v.dt())
	return &bits
}

// printStats prints counters, rates and tokens for people.
func (v *View) printStats(p *say.Printer) {
	v.printStatus(p)
	i := &interval{&v.About, &v.Samples.Before, &v.Samples.Now}
	p.Printf("  rates    over the last %v\n", i.dt().Round(10*time.Millisecond))
	for _, g := range []*say.Table{i.traffic(p), i.actions(p), i.meters(), i.queues()} {
		if len(g.Rows) > 0 {
			p.Printf("\n%s\n", g.Render(say.IsTerminal(p.W)))
		}
		p.Folded(g.Foot)
	}
	live.PrintLost(p, &v.About, v.Lost)
}

// traffic returns the table of offered, passed and dropped packets, by class and color.
func (v *interval) traffic(p *say.Printer) *say.Table {
	g := &say.Table{
		Header: []any{
			"class", "color", "packets", "bytes", "offered\nbit/s", "passed\nbit/s", "dropped\npackets",
			"dropped\nper s",
		},
		First: 3, Names: []int{0}, Foot: say.EmptyClasses(v.plan(), v.now.Stats),
	}
	empty := g.Foot == ""
	for i := range v.now.Stats {
		a, b := &v.before.Stats[i], &v.now.Stats[i]
		if i == len(v.plan().Classes) {
			if n := b.Untaken; n.Packets > 0 {
				offered, passed := BitRate(a.Untaken, n, v.dt()), int64(0)
				if !v.plan().DropUnclassified {
					passed = offered
				}
				dropped := b.UntakenDropped.Packets
				g.Add(say.Unclassified, "", say.Number(n.Packets), say.Number(n.Bytes), say.Speed(offered),
					say.Speed(passed),
					say.Number(dropped), say.Number(v.perSecond(a.UntakenDropped.Packets, dropped)))
				g.Foot += say.Unclassified + " counts unclassified packets\n"
			}
			break
		}
		name := v.plan().Classes[i].Name
		if empty && b.Total().Packets == 0 {
			g.Add(name, "", say.Number(0), say.Number(0), "0", "0", say.Number(0), say.Number(0))
		}
		for color, n := range b.Colors {
			if n.Packets == 0 {
				continue
			}
			color, passed := meter.Color(color), "unknown"
			if bits := v.passed(i, color); bits != nil {
				passed = say.Speed(*bits)
			}
			dropped := b.Dropped(color).Packets
			g.Add(name, say.Color(color, say.Colored(p.W)), say.Number(n.Packets), say.Number(n.Bytes),
				say.Speed(BitRate(a.Colors[color], n, v.dt())), passed,
				say.Number(dropped), say.Number(v.perSecond(a.Dropped(color).Packets, dropped)))
			name = ""
		}
		if n := b.Behind.Packets; n > 0 {
			g.Add(name, "", "", "", "", "", say.Number(n), say.Number(v.perSecond(a.Behind.Packets, n)))
		}
	}
	return g
}

// actions returns the table of actions other than pass, with reasons of drops.
func (v *interval) actions(p *say.Printer) *say.Table {
	g := &say.Table{
		Header: []any{"class", "color", "action", "packets", "bytes", "per s"}, First: 4, Names: []int{0},
	}
	for i := range v.plan().Classes {
		a, b := &v.before.Stats[i], &v.now.Stats[i]
		name := v.plan().Classes[i].Name
		shown := ""
		add := func(action string, before, now dataplane.Count) {
			if now.Packets == 0 {
				return
			}
			g.Add(name, shown, action, say.Number(now.Packets), say.Number(now.Bytes),
				say.Number(v.perSecond(before.Packets, now.Packets)))
			name, shown = "", ""
		}
		for color := meter.Green; color <= meter.Red; color++ {
			shown = say.Color(color, say.Colored(p.W))
			for cause := range dataplane.Causes {
				add("dropped: "+cause.String(), a.Drops[color][cause], b.Drops[color][cause])
			}
			add("marked", a.Marked[color], b.Marked[color])
			add("CE", a.CE[color], b.CE[color])
			add("queued", a.Queued[color], b.Queued[color])
		}
		shown = ""
		add("dropped: "+dataplane.CauseQueue.String(), a.Behind, b.Behind)
	}
	last := len(v.plan().Classes)
	if before, now := v.before.Stats[last].UntakenDropped, v.now.Stats[last].UntakenDropped; now.Packets > 0 {
		g.Add(say.Unclassified, "", "dropped: "+dataplane.Unclassified, say.Number(now.Packets),
			say.Number(now.Bytes), say.Number(v.perSecond(before.Packets, now.Packets)))
	}
	return g
}

// meters returns the table of tokens.
func (v *interval) meters() *say.Table {
	g := &say.Table{
		Header: []any{"class", "meter", "bucket", "tokens", "burst"}, First: 4, Names: []int{0, 1},
	}
	for i := range v.plan().Classes {
		class := v.plan().Classes[i].Name
		name := class
		for _, m := range metersOf(v.plan(), i, v.now) {
			title := m.Type
			if m.Name != class {
				title += " " + m.Name
			}
			if m.Per != "" {
				g.Add(name, title, "per "+m.Per, "", "")
				name = ""
				if m.Keys != nil {
					g.Foot += fmt.Sprintf("%s per %s: %s\n", m.Name, m.Per, m.Keys)
				}
			}
			for _, b := range m.Buckets {
				g.Add(name, title, b.Name, say.Number(b.Tokens), say.Number(b.Burst))
				name, title = "", ""
			}
		}
	}
	return g
}

// queues returns the table of delays and backlogs. The delay of a link's queue is unknown,
// because it depends on the other queues.
func (v *interval) queues() *say.Table {
	g := &say.Table{Header: []any{"queue", "delay", "backlog\nbytes"}, First: 2, Names: []int{0}}
	inHTB := v.about.Pacer == kernel.HTB
	if inHTB {
		g.Header = append(g.Header, "sent\nbit/s", "dropped\nby qdisc", "dropped\nper s")
	}
	for i, q := range v.now.Queues {
		delay := q.Delay.Round(10 * time.Microsecond).String()
		if v.plan().Queues[i].Link >= 0 {
			delay = "unknown"
		}
		row := []any{q.Name, delay, say.Number(q.Bytes)}
		if inHTB {
			sent, before := "0", int64(0)
			if bits := v.sent(i); bits != nil {
				sent, before = say.Speed(*bits), v.before.Queues[i].Dropped
			}
			row = append(row, sent, say.Number(q.Dropped), say.Number(v.perSecond(before, q.Dropped)))
		}
		g.Add(row...)
	}
	var several []string
	for _, q := range v.now.Queues {
		if inHTB && q.Class == "" && q.Dropped > 0 {
			several = append(several, q.Name)
		}
	}
	if several != nil {
		g.Foot = "the class of packets dropped by the qdisc is unknown for " + strings.Join(several, ", ") +
			"\n"
	}
	return g
}
