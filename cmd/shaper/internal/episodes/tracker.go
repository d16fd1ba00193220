package episodes

import (
	"slices"
	"sort"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

const (
	worst    = 5 // episodes kept of a kind
	openMax  = 8 // episodes of a class that packets of a link's queue may still join
	flowSets = 8 // sets of flows counted per episode
)

// Tracker finds episodes. Its memory depends on the number of classes, not on the packets: it keeps
// the open episode of each class, and the worst ones.
type Tracker struct {
	// Counts are the numbers of episodes of each kind, after Worst.
	Counts [kinds]int64
	// Begin is called for each new episode, and may set its Detail. nil: not called.
	Begin func(e *Episode)

	plan    *compiled.Plan
	open    [][]*Episode      // episodes still open, by class and kind, in order of time
	latest  []*Episode        // the last one of each list in open
	most    int               // maximum length of a list in open
	waiting *waiting          // flows of packets a link may still drop; nil if none can
	worst   [kinds][]*Episode // finished ones, in order
	picked  []int             // of Packets: indexes
}

// New returns a tracker for packets through a plan.
func New(plan *compiled.Plan) *Tracker {
	lists := (len(plan.Classes) + 1) * int(kinds)
	t := &Tracker{plan: plan, open: make([][]*Episode, lists), latest: make([]*Episode, lists), most: 1}
	for i := range plan.Queues {
		if q := &plan.Queues[i]; q.Link >= 0 && (q.CoDel.Target > 0 || q.Fair != queue.FairNone) {
			t.waiting, t.most = newWaiting(), openMax
		}
	}
	return t
}

// Packets adds packets on their arrival. It does not allocate, unless an episode begins or a packet is the
// first one of its place.
//
// The colors of packets are random, so branches on them would be mispredicted. So relevant packets
// and their episodes are selected without branches.
func (t *Tracker) Packets(packets []dataplane.Packet, verdicts []dataplane.Verdict) {
	if len(t.picked) < len(verdicts) {
		t.picked = make([]int, len(verdicts))
	}
	n := 0
	for i := range verdicts {
		v := &verdicts[i]
		t.picked[n] = i
		// yellow, red, dropped or Waiting
		if uint8(v.Color)|uint8(v.Done&(dataplane.Pass|dataplane.Waiting)^dataplane.Pass) != 0 {
			n++
		}
	}
	for _, i := range t.picked[:n] {
		t.packet(&packets[i], &verdicts[i])
	}
}

func (t *Tracker) packet(p *dataplane.Packet, v *dataplane.Verdict) {
	kind, passes := Drop, uint8(0)
	if v.Done != 0 {
		kind, passes = Yellow, 0xff
	}
	if passes&uint8(v.Color^meter.Yellow|meter.Color(v.Done&dataplane.Waiting)) != 0 || v.Class < 0 { // rare
		if v.Done&dataplane.Waiting != 0 && t.waiting != nil {
			t.waiting.put(v.ID, t.flowOf(p))
		}
		if passes != 0 && (v.Color != meter.Yellow || v.Class < 0) {
			return
		}
	}
	if e := t.add(kind, v); e.next() {
		e.count(t.flowOf(p), v)
	}
}

func (t *Tracker) flowOf(p *dataplane.Packet) dataplane.Flow {
	dataplane.ParseOnce(p)
	return dataplane.FlowOf(p)
}

// Settled adds the decision of a link about a packet.
func (t *Tracker) Settled(v *dataplane.Verdict) {
	if t.waiting == nil {
		return
	}
	flow := t.waiting.take(v.ID)
	if v.Done.Dropped() {
		if e := t.add(Drop, v); e.next() {
			e.count(flow, v)
		}
	}
}

// add adds a packet to its episode, which it returns.
func (t *Tracker) add(kind Kind, v *dataplane.Verdict) *Episode {
	e := t.latest[int(v.Class+1)*int(kinds)+int(kind)]
	if e == nil || !e.continues(v) {
		e = t.enter(kind, v)
	} else {
		e.Last, e.LastPacket = v.Now, v.ID
	}
	e.put(v)
	return e
}

// place returns the place of the decision about a packet.
func (t *Tracker) place(kind Kind, v *dataplane.Verdict) Place {
	at := Place{Stage: int(v.Stage), Queue: -1}
	if v.Class < 0 {
		at.Cause = dataplane.Causes
		return at
	}
	if kind == Yellow {
		return at
	}
	a, ownQueue := t.plan.ActionOf(v)
	switch {
	case v.Reason >= dataplane.QueueFull:
		at.Cause = dataplane.CauseQueue + dataplane.Cause(v.Reason-dataplane.QueueFull)
		if !ownQueue {
			at.Queue = a.Queue
		}
	case !a.Drop:
		at.Cause = dataplane.CauseECN
	}
	return at
}

// enter finds or begins the episode of a packet, and prepares it for put.
func (t *Tracker) enter(kind Kind, v *dataplane.Verdict) *Episode {
	i, class := int(v.Class+1)*int(kinds)+int(kind), int(v.Class)
	if class < 0 {
		class = len(t.plan.Classes)
	}
	list := &t.open[i]
	e := t.find(list, v.Now)
	if e == nil {
		e = &Episode{
			Kind: kind, Class: class, First: v.Now, Last: v.Now, FirstPacket: v.ID, LastPacket: v.ID,
			flows: NewTop(flowSets, dataplane.Flow.Hash), sampler: newSampler(),
		}
		if t.Begin != nil {
			t.Begin(e)
		}
		at := len(*list)
		for at > 0 && (*list)[at-1].First > v.Now {
			at--
		}
		*list = slices.Insert(*list, at, e)
		if len(*list) > t.most {
			t.finish((*list)[0])
			*list = slices.Delete(*list, 0, 1)
		}
	}
	t.latest[i] = (*list)[len(*list)-1]
	e.extend(v)
	e.key, e.part = placeKey(v), e.find(t.place(kind, v))
	return e
}

// find returns the open episode of a packet at now, or nil. If the packet closes the gap between
// two, it joins them.
func (t *Tracker) find(list *[]*Episode, now int64) (found *Episode) {
	for i := len(*list) - 1; i >= 0; i-- {
		e := (*list)[i]
		switch {
		case e.Last < now && !near(e.Last, now):
			return found
		case now < e.First && !near(now, e.First):
		case found == nil:
			found = e
		default:
			e.join(found)
			*list = slices.Delete(*list, i+1, i+2)
			found = e
		}
	}
	return found
}

// near reports whether two times, the earlier one first, are less than Gap apart.
func near(a, b int64) bool { return uint64(b)-uint64(a) < uint64(Gap) }

// finish keeps the episode if it is one of the worst.
func (t *Tracker) finish(e *Episode) {
	t.Counts[e.Kind]++
	e.Total()
	list := &t.worst[e.Kind]
	at, _ := slices.BinarySearchFunc(*list, e, (*Episode).compare)
	*list = slices.Insert(*list, at, e)
	if len(*list) > worst {
		(*list)[worst].Detail = nil
		*list = (*list)[:worst]
	}
}

// Worst ends all episodes and returns the worst ones: those with most bytes, drops before
// yellow packets.
func (t *Tracker) Worst() []*Episode {
	for i := range t.open {
		for _, e := range t.open[i] {
			t.finish(e)
		}
		t.open[i], t.latest[i] = nil, nil
	}
	all := slices.Concat(t.worst[Drop], t.worst[Yellow])
	all = all[:min(len(all), worst)]
	for _, e := range all {
		sort.SliceStable(e.Parts, func(i, j int) bool { return e.Parts[i].Bytes > e.Parts[j].Bytes })
		e.Flow = e.flows.Sorted()[0]
	}
	return all
}
