package queue

import (
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// trees is the number of random trees of TestTreeFluid and TestTreeShares.
var trees = flag.Int("trees", 50, "number of random trees compared with a fluid")

// packets is the number of packets of each tree of TestTreeShares.
var packets = flag.Int("packets", 20_000, "number of packets of each random tree that stays busy")

const longest = 1500

// TestTreeFluid sends random traffic through random trees. It fails if
//   - a node is behind the rate that it can count on by more than the longest packet per level,
//     counting the time in which the rates below it allow a packet,
//   - a node sends more in an interval than its rate and the longest packet per level,
//   - the next departure is not as early as the rates of all nodes allow,
//   - a packet is lost, sent twice or reordered.
//
// It logs how far nodes are behind a fluid.
func TestTreeFluid(t *testing.T) {
	t.Parallel()
	var lags, parts []float64
	for seed := range *trees {
		r := rand.New(rand.NewPCG(uint64(seed), 33))
		g := &randomTree{Rand: r, levels: 4, fan: 5}
		g.plant()
		c := newFluidCheck(t, seed, g)
		c.run(g.traffic())
		lags, parts = append(lags, c.lag), append(parts, c.partLag)
	}
	logSpread(t, "packets per level behind the fluid", lags)
	logSpread(t, "packets per level behind the guaranteed part", parts)
}

func logSpread(t *testing.T, name string, list []float64) {
	worst := slices.Index(list, slices.Max(list))
	sorted := slices.Sorted(slices.Values(list))
	at := func(part float64) float64 { return sorted[int(part*float64(len(sorted)-1))] }
	t.Logf("%s: p50 %.3f, p90 %.3f, p99 %.3f, max %.3f (tree %d)", name, at(0.5), at(0.9), at(0.99), at(1),
		worst)
}

// fluidPacket is an arrival. Its number is its index.
type fluidPacket struct {
	at    int64
	queue *branch
	bytes int
}

// traffic returns random arrivals at all queues.
func (g *randomTree) traffic() (list []fluidPacket) {
	busy := g.busy()
	const end = 300 * longest * rootPerByte
	for _, v := range g.nodes {
		if v.queue < 0 {
			continue
		}
		fair := max(busy.state[v.number].given, g.nodes[0].rate/float64(3*len(g.queues)))
		add := func(at float64, bytes int) {
			list = append(list, fluidPacket{int64(math.Ceil(at)), v, bytes})
		}
		at := 0.0
		switch g.IntN(5) {
		case 0: // bursts
			for at < end {
				at += g.ExpFloat64() * end / 5
				for range 1 + g.IntN(40) {
					add(at, g.length())
				}
			}
		case 1, 2: // more than it can send, for a time
			if g.IntN(2) == 0 {
				at = g.Float64() * end / 2
			}
			stop := at + (end-at)*g.Float64()
			for at < stop {
				n := g.length()
				add(at, n)
				at += float64(n) / min(v.rate, g.nodes[0].rate) / 1.2
			}
		case 3: // Poisson
			for load := 0.3 + 2*g.Float64(); at < end; {
				n := g.length()
				at += g.ExpFloat64() * float64(n) / (fair * load)
				add(at, n)
			}
		case 4: // steady
			for load := 0.3 + 1.2*g.Float64(); at < end; {
				n := g.length()
				at += float64(n) / (fair * load)
				add(at, n)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b fluidPacket) int { return int(a.at - b.at) })
	return list
}

func (g *randomTree) length() int {
	switch g.IntN(3) {
	case 0:
		return 64 + g.IntN(200)
	case 1:
		return 64 + g.IntN(longest-63)
	}
	return longest
}

// fluidCheck compares a tree with a fluid and with bounds.
type fluidCheck struct {
	testing.TB
	tree         int
	link         *Link[int]
	nodes        []*branch
	queues       []*branch
	packets      []fluidPacket
	fluid        *fluid
	state        []sentState
	queued       [][]int // by queue: packets
	longest      int64   // longest packet so far
	lag, partLag float64 // largest lags, in longest packets per level
}

// sentState is the state of a node. Times are in ns.
type sentState struct {
	sent   int64
	queued int     // packets
	free   int64   // time at which its rate is free
	below  int64   // time from which the rates below it allow a packet
	sentAt int64   // time of its last packet
	burst  int64   // time of the packets of an interval that ends there, less its duration; the largest
	part   float64 // rate it can count on, bytes per ns
	behind float64 // bytes by which it is behind this rate
	at     int64   // time of behind
}

func newFluidCheck(t testing.TB, tree int, g *randomTree) *fluidCheck {
	l, err := NewTree[int](g.links, g.queues)
	if err != nil {
		t.Fatal(err)
	}
	c := &fluidCheck{
		TB: t, tree: tree, link: l, nodes: g.nodes, state: make([]sentState, len(g.nodes)),
		queued: make([][]int, len(g.queues)), fluid: newFluid(g.nodes),
	}
	busy := g.busy()
	for i, v := range g.nodes {
		if v.queue >= 0 {
			c.queues = append(c.queues, v)
		}
		// Parts are rounded down to a byte per second at each level.
		c.state[i].part = max(busy.state[i].given-float64(v.level)/1e9, 0)
	}
	return c
}

// run sends packets until all have departed.
func (c *fluidCheck) run(packets []fluidPacket) {
	c.packets = packets
	for next := 0; ; {
		c.wait()
		due, ok := c.link.Due()
		want, queued := max(c.state[0].free, c.state[0].below), c.state[0].queued > 0
		if ok != queued || ok && due != want {
			c.Fatalf("tree %d: next departure at %d (%v), want %d (%v)", c.tree, due, ok, want, queued)
		}
		switch {
		case ok && (next == len(packets) || due <= packets[next].at):
			c.advance(due)
			d, _ := c.link.Decide(due)
			c.depart(due, d)
		case next < len(packets):
			c.advance(packets[next].at)
			c.arrive(next)
			next++
		default:
			return
		}
	}
}

func (c *fluidCheck) arrive(number int) {
	p := &c.packets[number]
	for v := p.queue; v != nil; v = v.above {
		s := &c.state[v.number]
		if s.queued == 0 {
			s.free = max(s.free, p.at)
		}
		s.queued++
	}
	c.longest = max(c.longest, int64(p.bytes))
	c.fluid.add(p.queue, p.bytes)
	c.queued[p.queue.queue] = append(c.queued[p.queue.queue], number)
	if f := c.link.Admit(p.at, p.queue.queue, Packet{Bytes: p.bytes}, number); f != Admit {
		c.Fatalf("tree %d: packet %d: %v", c.tree, number, f)
	}
}

// wait computes from which time on the rates below each node allow a packet.
func (c *fluidCheck) wait() {
	for i := range c.nodes {
		c.state[i].below = math.MaxInt64
	}
	for i, v := range slices.Backward(c.nodes) {
		s := &c.state[i]
		if v.queue >= 0 && s.queued > 0 {
			s.below = 0
		}
		if v.above != nil && s.queued > 0 {
			above := &c.state[v.above.number]
			above.below = min(above.below, max(s.free, s.below))
		}
	}
}

// advance compares the bytes that the nodes have sent before a time with the bounds.
func (c *fluidCheck) advance(now int64) {
	c.fluid.advance(float64(now))
	for i, v := range c.nodes {
		s := &c.state[i]
		unit := longest * float64(v.level)
		c.lag = max(c.lag, (c.fluid.state[i].sent-float64(s.sent))/unit)
		if from := min(max(s.at, s.below), now); from > s.at { // it had nothing to send
			s.behind = min(0, s.behind+s.part*float64(from-s.at))
			s.at = from
		}
		s.behind += s.part * float64(now-s.at)
		s.at = now
		if s.behind > unit {
			c.Fatalf("tree %d, node %d of level %d at %d: %.0f B behind its guaranteed part", c.tree, i, v.level, now,
				s.behind)
		}
		c.partLag = max(c.partLag, s.behind/unit)
	}
}

func (c *fluidCheck) depart(now int64, d Decision[int]) {
	p := &c.packets[d.Value]
	q := &c.queued[p.queue.queue]
	if len(*q) == 0 || (*q)[0] != d.Value || d.Depart != now || d.Fate != Admit {
		c.Fatalf("tree %d: %+v at %d, want the first of %d", c.tree, d, now, *q)
	}
	*q = (*q)[1:]
	for v := p.queue; v != nil; v = v.above {
		s := &c.state[v.number]
		s.sent += int64(p.bytes)
		s.behind -= float64(p.bytes)
		s.queued--
		if v.perByte == 0 {
			continue
		}
		memory := c.longest * int64(v.level-1) * v.perByte // of the time in which it waited
		s.free = max(s.free, now-memory) + int64(p.bytes)*v.perByte
		s.burst = max(s.burst-(now-s.sentAt), 0) + int64(p.bytes)*v.perByte
		s.sentAt = now
		if s.burst > memory+c.longest*v.perByte {
			c.Fatalf("tree %d, node %d at %d: sent %d ns more than its rate allows", c.tree, v.number, now, s.burst)
		}
	}
}

// TestTreeShares keeps random queues of random trees backlogged. After a long time, each node has
// sent its part of the fluid's bytes within 0.2 % of all bytes.
func TestTreeShares(t *testing.T) {
	t.Parallel()
	var errors []float64
	for seed := range *trees {
		g := &randomTree{Rand: rand.New(rand.NewPCG(uint64(seed), 34)), levels: 4, fan: 5}
		g.plant()
		worst, node := g.shareError(t, *packets)
		if worst > 0.002 {
			t.Errorf("tree %d, node %d: its part is wrong by %.4f", seed, node, worst)
		}
		errors = append(errors, 100*worst)
	}
	logSpread(t, "points of share", errors)
}

// shareError returns the largest difference between a node's part of all bytes and that of a fluid.
func (g *randomTree) shareError(t testing.TB, packets int) (worst float64, node int) {
	l, err := NewTree[int](g.links, g.queues)
	if err != nil {
		t.Fatal(err)
	}
	f := newFluid(g.nodes)
	part := []float64{0.3, 0.7, 1}[g.IntN(3)]
	lengths := make([][]int, len(g.nodes)) // by node: of the packets of a queue, in order of departure
	admit := func(at int64, v *branch) {
		n := g.length()
		lengths[v.number] = append(lengths[v.number], n)
		l.Admit(at, v.queue, Packet{Bytes: n}, v.number)
	}
	for i, v := range g.nodes {
		if v.queue >= 0 && g.Float64() < part {
			f.state[i].backlog = 1
			for range 3 {
				admit(0, v)
			}
		}
	}
	f.share()
	sent := make([]int, len(g.nodes))
	for range packets {
		at, ok := l.Due()
		if !ok {
			return 0, 0 // no queue is backlogged
		}
		d, _ := l.Decide(at)
		v := g.nodes[d.Value]
		admit(at, v)
		list := &lengths[v.number]
		for k := v; k != nil; k = k.above {
			sent[k.number] += (*list)[0]
		}
		*list = (*list)[1:]
	}
	for i := range g.nodes {
		difference := float64(sent[i])/float64(sent[0]) - f.state[i].given/f.state[0].given
		if difference = math.Abs(difference); difference > worst {
			worst, node = difference, i
		}
	}
	return worst, node
}
