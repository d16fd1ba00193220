package advise

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/tcpmodel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Write prints the answer for people.
func (a *Advice) Write(w io.Writer) error {
	p := &say.Printer{W: w}
	if a.Capture != nil {
		a.Capture.write(p)
	}
	throttled := a.Capture != nil && a.Capture.TCP.Throttled
	if throttled {
		a.ClosedLoop.write(p)
	}
	if a.Bursts != nil {
		a.Bursts.write(p)
	}
	for i := range a.Classes {
		a.Classes[i].write(p)
	}
	writeRates(p, a.Rates)
	if !throttled {
		a.ClosedLoop.write(p)
	}
	for _, text := range a.Warnings {
		p.Folded("warning: " + text + "\n")
	}
	if a.Policy != "" {
		p.Printf("\nPolicy:\n\n%s", a.Policy)
	}
	return p.Err
}

func (c *Capture) write(p *say.Printer) {
	p.Printf("%s, %s bytes metered in %s", say.Count(c.Packets, "packet"), say.Grouped(c.Bytes),
		say.Seconds(c.DurationNS))
	if c.DurationNS > 0 {
		p.Printf(", %s on average", speed(c.Rate()))
	}
	p.Printf("\n")
	t := &c.TCP
	if t.Senders == 0 {
		p.Folded(fmt.Sprintf("open loop: no TCP connection sends much data here (%.1f %% of the bytes are TCP), so these packets do not depend on losses\n\n",
			100*t.Share))
		return
	}
	rtt := "RTT unknown"
	if t.RTT > 0 {
		rtt = "RTT " + millis(time.Duration(t.RTT))
	}
	p.Folded(fmt.Sprintf("TCP: %.1f %% of the bytes; %s of much data, at most %d at a time; %s; the largest one sends %s\n",
		100*t.Share, say.Count(t.Senders, "sender"), t.Concurrent, rtt, speed(t.Rate)))
	sent := fmt.Sprintf("%s of %s packets sent again", say.Grouped(t.Retransmitted), say.Grouped(t.Packets))
	if t.Selective > 0 {
		sent += ", " + say.Count(t.Selective, "acknowledgement") + " with SACK blocks"
	}
	if t.Flight > 0 {
		sent += fmt.Sprintf(", at most %s bytes of a sender in flight", say.Grouped(t.Flight))
	}
	p.Folded(sent + "\n")
	if t.Throttled {
		p.Folded("throttled: TCP had slowed down before these packets were captured. With larger bursts it sends more, so bursts computed from the capture are lower bounds. What TCP gets is the better answer.\n")
	} else {
		p.Folded(
			"not throttled: few losses. TCP still reacts to a new policer, so also look at what TCP gets.\n")
	}
	p.Printf("\n")
}

// rowsOfFrontier is the most rows of the table of a frontier.
const rowsOfFrontier = 12

func (b *Bursts) write(p *say.Printer) {
	bound := ""
	if b.LowerBound {
		bound = ", lower bounds"
	}
	p.Printf("Burst and loss at %s%s\n\n", b.Rate, bound)
	b.writeFrontier(p)
	each := ""
	if b.Keys > 0 {
		each = " of each key"
	}
	p.Printf("\nMeters with the smallest bursts for the wanted loss%s%s\n\n", each, bound)
	for _, m := range b.Meters {
		p.Printf("  %s\n", m.Meter)
		if m.Worst != nil {
			p.Printf("    worst key: %s\n", m.Worst)
		}
	}
	p.Printf("\n")
	if b.NoLoss > 0 {
		p.Folded(fmt.Sprintf(
			"%s of so few packets that a single one is more than the wanted loss: they lose none\n\n",
			say.Count(b.NoLoss, "key")))
	}
}

// String names the key and its lost packets.
func (k *KeyColors) String() string {
	text := fmt.Sprintf("%s: %s of %s red (%s %%)", cmp.Or(k.Key, "packets without a key"),
		say.Grouped(k.Red.Packets), say.Count(k.Offered.Packets, "packet"),
		say.Percent(k.Red.Packets, k.Offered.Packets))
	if k.Yellow.Packets > 0 {
		text += fmt.Sprintf(", %s yellow", say.Grouped(k.Yellow.Packets))
	}
	return text
}

func (b *Bursts) writeFrontier(p *say.Printer) {
	header := []any{"burst", "fills in", "dropped", "%", "bytes", "%"}
	if b.Keys > 0 {
		header = append(header, "worst key, %")
	}
	t := newTable(1, header...)
	rate := meter.BitRate(b.RateBits)
	step := max(1, (len(b.Frontier)+rowsOfFrontier-2)/(rowsOfFrontier-1))
	for i, at := range b.Frontier {
		if i%step != 0 && i != len(b.Frontier)-1 {
			continue
		}
		row := table.Row{
			say.Grouped(at.Burst), say.FillTime(at.Burst, rate),
			say.Grouped(at.Dropped.Packets), say.Percent(at.Dropped.Packets, b.Offered.Packets),
			say.Grouped(at.Dropped.Bytes), say.Percent(at.Dropped.Bytes, b.Offered.Bytes),
		}
		if at.Worst != nil {
			row = append(row, say.Percent(at.Worst.Red.Packets, at.Worst.Offered.Packets))
		}
		t.AppendRow(row)
	}
	p.Printf("%s\n", t.Render())
}

func (c *Class) write(p *say.Printer) {
	p.Printf("Class %s: %s, %s bytes", c.Name, say.Count(c.Offered.Packets, "packet"),
		say.Grouped(c.Offered.Bytes))
	if c.Keys > 0 {
		p.Printf(", %s", say.Count(c.Keys, "key"))
	}
	p.Printf("\n")
	now := fmt.Sprintf("now: %s: %s %% of the packets red", c.Meter,
		say.Percent(c.Red.Packets, c.Offered.Packets))
	if c.Yellow.Packets > 0 {
		now += fmt.Sprintf(", %s %% yellow", say.Percent(c.Yellow.Packets, c.Offered.Packets))
	}
	if c.Worst != nil {
		now += "; worst key: " + c.Worst.String()
	}
	p.Folded(now + "\n")
	switch {
	case c.Throttled > 0 && c.Keys > 0:
		p.Folded(fmt.Sprintf("throttled: TCP of %s had slowed down before these packets were captured, so the bursts are lower bounds\n",
			say.Count(c.Throttled, "key")))
	case c.Throttled > 0:
		p.Folded("throttled: TCP of this class had slowed down before these packets were captured, so the bursts are lower bounds\n")
	}
	p.Printf("\n")
	c.Bursts.write(p)
}

func writeRates(p *say.Printer, rates []AtRate) {
	if len(rates) == 0 {
		return
	}
	p.Printf("Bursts at other rates\n\n")
	t := newTable(2, "rate", "no loss", "0.1 % lost", "1 % lost", "no loss fills in")
	for _, r := range rates {
		t.AppendRow(table.Row{
			r.Rate, say.Grouped(r.LossFree), say.Grouped(r.Permille), say.Grouped(r.Percent),
			say.FillTime(r.LossFree, meter.BitRate(r.RateBits)),
		})
	}
	p.Printf("%s\n\n", t.Render())
}

func (c *ClosedLoop) write(p *say.Printer) {
	if c == nil {
		return
	}
	unit, size := "Mbit/s", 1e6
	if c.Rate < 1e6 {
		unit, size = "kbit/s", 1e3
	}
	p.Printf("What TCP gets at %v and an RTT of %s, %s of payload (model)\n\n", meter.BitRate(c.Rate),
		millis(c.RTT), unit)
	header := []any{""}
	for _, r := range c.Bottlenecks[0].Results {
		if r.inTable() {
			sending := "in bursts"
			if r.Paced {
				sending = "paced"
			}
			header = append(header, controlName(r.Control)+"\n"+say.Count(r.Flows, "flow")+"\n"+sending)
		}
	}
	t := newTable(2, header...)
	for _, b := range c.Bottlenecks {
		row := table.Row{"burst " + say.Grouped(b.Burst)}
		if b.Delay > 0 {
			row = table.Row{"queue of " + millis(b.Delay)}
		}
		for _, r := range b.Results {
			if r.inTable() {
				row = append(row, fmt.Sprintf("%.1f", float64(r.Bits)/size))
			}
		}
		t.AppendRow(row)
	}
	p.Printf("%s\n\n", t.Render())
	if c.Target != nil {
		p.Folded(c.Target.text() + "\n\n")
	}
}

// inTable reports whether the table lists the result. To save width, it lists bursts only for a
// single flow.
func (r *Goodput) inTable() bool { return r.Paced || r.Flows == 1 }

// text describes the smallest burst and queue.
func (t *Target) text() string {
	burst, delay := "no burst is enough", "no queue is enough"
	if t.Burst > 0 {
		burst = fmt.Sprintf("a burst of %s bytes is the smallest", say.Grouped(t.Burst))
	}
	if t.Delay > 0 {
		delay = fmt.Sprintf("a queue of %s is the smallest", millis(t.Delay))
	}
	return fmt.Sprintf("For %s: %s; %s.", t.goal(), burst, delay)
}

// goal names the goodput and the flows.
func (t *Target) goal() string {
	return fmt.Sprintf("%v of payload (%s of %s, in bursts)", meter.BitRate(t.Goodput),
		say.Count(t.Flows, "flow"), controlName(t.Control))
}

// speed writes a rate in bit/s with three digits.
func speed(bits float64) string {
	text := say.Speed(int64(bits))
	if !strings.Contains(text, " ") {
		text += " "
	}
	return text + "bit/s"
}

// controlName writes a congestion control as its RFC does.
func controlName(name string) string {
	if name == tcpmodel.CUBIC.String() {
		return "CUBIC"
	}
	return "Reno"
}

func newTable(first int, header ...any) table.Writer {
	t := say.NewTable(first, header...)
	t.SuppressTrailingSpaces()
	return t
}

// millis writes a time in ms, with as many decimals as it needs up to three.
func millis(d time.Duration) string {
	text := fmt.Sprintf("%.3f", float64(d)/1e6)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + " ms"
}
