package kernel

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Limits of the programs, bpf/src/policy.h.
const (
	MaxClasses = 1024
	MaxChain   = 8 // meters that one packet goes through
	MaxQueues  = 256
	MaxTables  = 64 // of keys
	maxStates  = 4096
	maxBounds  = 1 << 16
)

// Hook is a place in the kernel where packets are metered.
type Hook uint8

const (
	Egress  Hook = iota // tc, what leaves through the interface
	Ingress             // tc, what came in through it
	XDP                 // what came in, before the kernel made an skb of it
)

var programs = [...]string{bpf.ShaperProgShaperEgress, bpf.ShaperProgShaperIngress, bpf.ShaperProgShaperXdp}

// image is a policy in the form that the programs read.
type image struct {
	constants bpf.ShaperConstants
	vectors   []uint64
	tables    []uint32
	bounds    []bpf.ShaperBound
	classes   []bpf.ShaperClass
	stages    []bpf.ShaperStage
	highs     map[bpf.ShaperHigh]uint32
	queues    []bpf.ShaperQueue
	ring      int // entries of all rings

	policy  *dataplane.Policy
	pacer   Pacer
	paced   []*dataplane.Queue // by index
	feeders []feeder           // by queue
	links   []linkRecord
	meters  []*dataplane.Meter // by stage
	from    []int              // by stage: the stage of the policy before whose tokens it keeps, or -1
	stageOf map[*dataplane.Meter]int32
}

// encode compiles a policy for a hook, and for what holds packets of queues, if
// anything does. The error joins all that is wrong with it, as
// dataplane.FieldErrors. Slots are left to the caller.
func encode(policy *dataplane.Policy, hook Hook, pacer Pacer) (*image, error) {
	if _, err := dataplane.New(policy); err != nil {
		return nil, err
	}
	e := encoder{
		image: &image{policy: policy, pacer: pacer, highs: map[bpf.ShaperHigh]uint32{}, stageOf: map[*dataplane.Meter]int32{}},
		hook:  hook,
	}
	length := &policy.Length
	e.constants.Base, e.constants.Overhead, e.constants.Mpu = uint8(length.Base), int32(length.Overhead), uint32(length.MPU)
	e.constants.DropUntaken = flag(policy.DropUnclassified)
	if n := len(policy.Classes); n > MaxClasses {
		e.fail(policy, "classes", fmt.Sprintf("%d are more than the %d that the kernel plane has room for", n, MaxClasses))
		return nil, errors.Join(e.faults...)
	}
	matches := make([]dataplane.Match, len(policy.Classes))
	for i := range policy.Classes {
		c := &policy.Classes[i]
		matches[i] = c.Match
		e.class(c)
	}
	if len(e.stages) > maxStates/2 {
		e.fail(policy, "meters", fmt.Sprintf("%d are more than the %d that the kernel plane has room for", len(e.stages), maxStates/2))
	}
	tables := 0
	for i := range e.stages {
		if e.stages[i].Table >= 0 {
			tables++
		}
	}
	if tables > MaxTables {
		e.fail(policy, "meters", fmt.Sprintf("%d with a meter for each key are more than the %d that the kernel plane has room for", tables, MaxTables))
	}
	if len(e.paced) > MaxQueues {
		e.fail(policy, "queues", fmt.Sprintf("%d are more than the %d that the kernel plane has room for", len(e.paced), MaxQueues))
	}
	if e.faults != nil {
		return nil, errors.Join(e.faults...)
	}
	e.constants.Queues, e.constants.Pacer, e.constants.Major = flag(len(e.paced) > 0), pacerNumber[pacer], major
	e.classifier(&dataplane.NewClassifier(matches).Tables)
	if e.faults != nil {
		return nil, errors.Join(e.faults...)
	}
	return e.image, nil
}

type encoder struct {
	*image
	hook   Hook
	faults []error
}

func (e *encoder) fail(object any, field, reason string) {
	e.faults = append(e.faults, &dataplane.FieldError{Object: object, Field: field, Reason: reason})
}

const noMark = "an XDP program has no skb mark: use a tc hook"

func (e *encoder) class(c *dataplane.Class) {
	out := bpf.ShaperClass{Stage: -1}
	if e.hook == XDP && len(c.Match.Mark) > 0 {
		e.fail(&c.Match, "mark", noMark)
	}
	if c.Meter != nil {
		out.Stage = e.meter(c.Meter)
		depth := 0
		for m := c.Meter; m != nil; m = m.Then {
			depth++
		}
		if depth > MaxChain {
			e.fail(c.Meter, "then", fmt.Sprintf("makes a chain of %d meters: the kernel plane follows %d", depth, MaxChain))
		}
	}
	for color, a := range [3]*dataplane.Action{c.Green, c.Yellow, c.Red} {
		action := c.Action(meter.Color(color))
		out.Actions[color] = e.action(a, action)
		if out.Actions[color].Queue = -1; action.Queue != nil {
			if e.hook == XDP {
				e.fail(a, "queue", "needs packets that can wait, which an XDP program has not: use a tc hook")
			}
			out.Actions[color].Queue = e.queue(action.Queue)
		}
	}
	e.classes = append(e.classes, out)
}

func (e *encoder) action(from *dataplane.Action, a dataplane.Action) bpf.ShaperAction {
	out := bpf.ShaperAction{Ecn: uint8(a.ECN)}
	if a.Drop {
		out.Drop = 1
	}
	for _, m := range a.Marks {
		out.Marks |= 1 << m.Field
		switch m.Field {
		case dataplane.DSCP:
			out.Dscp = uint8(m.Value)
		case dataplane.PCP:
			out.Pcp = uint8(m.Value)
		case dataplane.DEI:
			out.Dei = uint8(m.Value)
		case dataplane.MPLSTC:
			out.Tc = uint8(m.Value)
		case dataplane.SKBMark:
			out.Mark = m.Value
			if e.hook == XDP {
				e.fail(from, "mark", noMark)
			}
		}
	}
	return out
}

// meter encodes a meter once, however many point to it.
func (e *encoder) meter(m *dataplane.Meter) int32 {
	if i, ok := e.stageOf[m]; ok {
		return i
	}
	i := int32(len(e.stages))
	e.stageOf[m] = i
	e.stages = append(e.stages, bpf.ShaperStage{})
	e.meters = append(e.meters, m)
	profile, err := profileOf(m)
	if err != nil {
		e.faults = append(e.faults, err)
	}
	if m.Envelope != nil {
		e.fail(m, "envelope", tooMuch)
	}
	s := bpf.ShaperStage{Profile: profile}
	e.key(&s, m)
	if m.Budget != nil && !m.Budget.OnHost() {
		s.Table, e.constants.Elsewhere = storeLeased, 1
	}
	s.Packets, s.Aware, s.From = flag(m.Packets), flag(m.Aware), uint8(m.PreColor.From)
	if m.Aware {
		e.preColor(&s, uint32(i), m)
	}
	s.Then = -1
	if m.Then != nil {
		s.Then = e.meter(m.Then)
	}
	e.stages[i] = s
	return i
}

// The words of a state count halves of a profile's units; see bpf/src/bucket.h.
const (
	halves   = 2
	maxReach = 1 << 61 // halves that a horizon brings
	fills    = 1 << 62 // halves that fill any bucket
)

// tooMuch is why a meter is refused.
const (
	tooMuch = "has more state than the kernel plane keeps of a meter: shaper tap and replay --engine go have it"
	noMore  = ", and the kernel plane keeps no more of a meter: shaper tap and replay --engine go have it"
)

// profileOf encodes a meter's parameters. The error is a FieldError.
func profileOf(m *dataplane.Meter) (bpf.ShaperProfile, error) {
	p, err := m.Params.Profile()
	if err != nil {
		return bpf.ShaperProfile{}, &dataplane.FieldError{Object: m, Field: "type", Reason: err.Error()}
	}
	numbers, err := p.Integers()
	var fault *meter.FieldError
	if errors.As(err, &fault) {
		return encodeProfile(numbers), &dataplane.FieldError{Object: m, Field: strings.ToLower(fault.Field), Reason: fault.Reason + noMore}
	}
	return encodeProfile(numbers), nil
}

func encodeProfile(p meter.Integers) bpf.ShaperProfile {
	if p.Window > 0 { // counted in bytes
		s := bpf.ShaperProfile{Window: uint64(p.Window), Sliding: flag(p.Sliding), Limit: uint8(p.Limit)}
		s.Buckets[0].Den, s.Buckets[0].Size, s.Buckets[1].Den = 1, p.Burst[0], 1
		return s
	}
	s := bpf.ShaperProfile{
		Horizon: uint64(maxReach / (halves * max(p.Num[0], p.Num[1], 1))),
		Excess:  flag(p.Excess),
		Coupled: flag(p.Coupled),
		Peak:    flag(p.Peak),
		Limit:   uint8(p.Limit),
	}
	for i := range s.Buckets {
		b := &s.Buckets[i]
		b.Num = uint64(halves * p.Num[i])
		b.Den = uint64(halves * p.Den[i])
		b.Size = halves * p.Den[i] * p.Burst[i]
		b.Over = uint64(p.Burst[i]) + 1
		b.Full = math.MaxUint64
		if b.Num > 0 {
			b.Full = (fills + b.Num - 1) / b.Num
		}
	}
	return s
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func (e *encoder) preColor(s *bpf.ShaperStage, stage uint32, m *dataplane.Meter) {
	if e.hook == XDP && m.PreColor.From == dataplane.SKBMark {
		e.fail(m, "precolor", noMark)
	}
	table := m.PreColor.Table()
	for _, v := range slices.Sorted(maps.Keys(table)) {
		switch color := table[v]; {
		case v >= 64:
			e.highs[bpf.ShaperHigh{Stage: stage, Value: v}] = uint32(color)
			s.High = 1
		case color == meter.Yellow:
			s.Yellow |= 1 << v
		case color == meter.Red:
			s.Red |= 1 << v
		}
	}
}

// Of enum match in bpf/src/policy.h: the second of the fields that have a table,
// and those behind them.
const (
	bySport = 1
	byMark  = len(dataplane.Tables{}.Direct)
	bySrc   = byMark + 2
	byDst   = byMark + 3
)

func (e *encoder) classifier(t *dataplane.Tables) {
	c := &e.constants
	c.Stride, c.NotIp, e.vectors = uint32(t.Stride), t.IsIP[0], t.Words
	for f, table := range t.Direct {
		if table != nil {
			c.Fields |= 1 << f
			c.Table[f], c.Last[f] = uint32(len(e.tables)), uint32(len(table)-1)
			e.tables = append(e.tables, table...)
		}
	}
	for i, r := range []dataplane.Ranged[uint32]{t.Mark, t.Length, t.Src.V4, t.Dst.V4} {
		c.Search[i] = e.search(r, byMark+i)
	}
	c.Src6 = e.search6(&t.Src)
	c.Dst6 = e.search6(&t.Dst)
	c.Reads |= c.Fields
}

func (e *encoder) search(r dataplane.Ranged[uint32], field int) bpf.ShaperSearch {
	if r.Bounds == nil {
		return bpf.ShaperSearch{}
	}
	e.bounded(len(r.Bounds))
	e.constants.Fields |= 1 << field
	add := func(list []uint32) uint32 {
		at := len(e.tables)
		e.tables = append(e.tables, list...)
		return uint32(at)
	}
	return bpf.ShaperSearch{
		Bounds: add(r.Bounds), Vectors: add(r.Offset), Jump: add(r.Jump),
		Low: r.Low, Shift: uint32(r.Shift), Last: uint32(len(r.Jump) - 2),
	}
}

func (e *encoder) search6(a *dataplane.Addresses) bpf.ShaperSearch6 {
	e.bounded(len(a.V6.Bounds))
	s := bpf.ShaperSearch6{First: uint32(len(e.bounds)), Count: uint32(len(a.V6.Bounds)), None: a.None}
	for i, b := range a.V6.Bounds {
		e.bounds = append(e.bounds, bpf.ShaperBound{Hi: b.Hi, Lo: b.Lo, Vector: a.V6.Offset[i]})
	}
	return s
}

// bounded refuses more bounds than the programs' searches look at.
func (e *encoder) bounded(n int) {
	if n > maxBounds {
		e.fail(e.policy, "classes", fmt.Sprintf("have prefixes or ranges with %d bounds: the kernel plane searches %d", n, maxBounds))
	}
}
