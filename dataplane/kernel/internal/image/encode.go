package image

import (
	"errors"
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/qdisc"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Limits of the programs, as in bpf/src/policy.h.
const (
	MaxClasses = 1024    // classes
	MaxChain   = 8       // meters in one chain
	MaxQueues  = 256     // queues
	MaxLinks   = 1500    // links; with the queues of two policies their class IDs are at most maxPair
	MaxTables  = 64      // meters with keys
	MaxStates  = 4096    // meter states, for the previous and the new policy together
	MaxBounds  = 1 << 16 // bounds of prefixes or ranges in one match field
)

// Image is a plan in the form read by the programs.
type Image struct {
	Constants bpf.ShaperConstants
	vectors   []uint64
	tables    []uint32
	bounds    []bpf.ShaperBound
	classes   []bpf.ShaperClass
	Stages    []bpf.ShaperStage
	highs     map[bpf.ShaperHigh]uint32
	Queues    []bpf.ShaperQueue

	customerImage    *customerImage // nil without customers
	ChangesCustomers bool           // the maps of customers are those of the previous policy
	// state of the previous policy's customers when it was copied to new maps; nil if it was not
	copied *CustomerTable

	ring   int    // total number of ring entries
	spread uint32 // number of queues with leaves for flows

	Plan    *compiled.Plan
	source  *compiled.Plan // plan for both directions; Plan is for one of them
	entry   Entry
	asked   record.Pacer         // pacer for which the plan was encoded
	Pacer   record.Pacer         // pacer in use; "" if no packets are queued
	fair    record.FairScheduler // of the fair queues; "" without one
	feeders []record.Feeder      // by queue
	linkIDs []uint16             // HTB class minor, by link of the plan
	leafIDs []uint16             // HTB class minor, by customer of the plan; 0: none; nil without leaves
	MQ      bool                 // as record.About.MQ
	cgroups []cgroup             // of Customers.Cgroups
	named   []record.Cgroup      // by classes and customers
	from    compiled.Succession  // parts of the previous policy continued by the plan
}

// Encode encodes a plan for a program and a pacer, "" without queues. It does not assign slots:
// Inherit does. The error joins a dataplane.FieldError for each part that the kernel plane cannot
// run.
func Encode(plan *compiled.Plan, to Entry, pacer record.Pacer) (*Image, error) {
	return encodeFair(plan, to, pacer, fairScheduler(plan, pacer))
}

// encodeFair is Encode with a scheduler of fair queues.
func encodeFair(
	plan *compiled.Plan, to Entry, pacer record.Pacer, fair record.FairScheduler,
) (*Image, error) {
	e := encoder{Image: &Image{
		Plan: plan, fair: fair, entry: to, asked: pacer, Pacer: pacer, highs: map[bpf.ShaperHigh]uint32{},
		linkIDs: make([]uint16, len(plan.Links)),
	}}
	c := &e.Constants
	c.Base, c.Overhead, c.Mpu = uint8(plan.Length.Base), int32(plan.Length.Overhead), uint32(plan.Length.MPU)
	c.DropUntaken, c.Queues, c.Pacer, c.Major = engine.Flag(plan.DropUnclassified),
		engine.Flag(len(plan.Queues) > 0), PacerNumber[pacer], qdisc.Major
	e.checkPolicy(plan.Source)
	e.checkTrees()
	e.checkIdentity()
	e.customers()
	for i := range plan.Classes {
		e.encodeClass(i)
	}
	for i := range plan.Stages {
		e.encodeStage(i)
	}
	for i := range plan.Queues {
		e.queue(&plan.Queues[i])
	}
	e.checkCounts()
	if e.faults == nil {
		e.encodeClassifier(&plan.Classifier.Tables)
	}
	if e.faults != nil {
		return nil, errors.Join(e.faults...)
	}
	return e.Image, nil
}

// encoder collects the image and the errors of Encode.
type encoder struct {
	*Image
	keyed  int // number of stages with a key table
	faults []error
}

// checkCounts rejects a plan with more parts than the programs have room for.
func (e *encoder) checkCounts() {
	for _, limit := range []struct {
		n, most     int
		field, kind string
	}{
		{len(e.Plan.Classes), MaxClasses, "classes", ""},
		{len(e.Plan.Stages), MaxStates / 2, "meters", ""}, // the previous policy may need the other half
		{e.keyed, MaxTables, "meters", " with a key"},
		{len(e.Plan.Queues), MaxQueues, "queues", ""},
		{len(e.Plan.Links), MaxLinks, "links", ""},
		{e.leaves(), MaxLeaves, "customers", " with queues on links, or fair ones,"},
	} {
		if limit.n > limit.most {
			e.fail(e.Plan.Source, limit.field,
				fmt.Sprintf("%d%s exceed the kernel plane's limit of %d", limit.n, limit.kind, limit.most))
		}
	}
}

func (e *encoder) fail(object any, field, reason string) {
	e.faults = append(e.faults, &dataplane.FieldError{Object: object, Field: field, Reason: reason})
}

// refuse is fail with a remedy.
func (e *encoder) refuse(object any, field, reason string, r remedy.Advice) {
	e.faults = append(e.faults,
		&remedy.Error{Err: &dataplane.FieldError{Object: object, Field: field, Reason: reason}, Remedy: r})
}

const noNote = "once needs the note of a charge on the packet, which XDP programs cannot write"

const noMark = "needs the skb mark, which XDP programs do not have"

func (e *encoder) encodeClass(i int) {
	c := &e.Plan.Classes[i]
	out := bpf.ShaperClass{Stage: int32(c.Stage), Customers: uint32(engine.Flag(c.Customers))}
	if e.entry == XdpEntry && len(c.Source.Match.Mark) > 0 {
		e.refuse(&c.Source.Match, "mark", noMark, remedy.UseTC)
	}
	if c.Customers && e.Plan.Stages[c.Stage].Then >= 0 && e.leaves() > 0 {
		e.fail(c.Source.Meter, "then", "charges packets that the queue of their customer may drop later: in the kernel plane its leaf of HTB decides after all meters: give the customers a link with this rate instead")
	}
	depth := 0
	for at := c.Stage; at >= 0; at = e.Plan.Stages[at].Then {
		depth++
	}
	if depth > MaxChain {
		e.fail(c.Source.Meter, "then",
			fmt.Sprintf("makes a chain of %d meters: the kernel plane's limit is %d", depth, MaxChain))
	}
	for color := range c.Actions {
		out.Actions[color] = e.encodeAction(&c.Actions[color])
	}
	e.classes = append(e.classes, out)
}

func (e *encoder) encodeAction(a *compiled.Action) bpf.ShaperAction {
	out := bpf.ShaperAction{Drop: engine.Flag(a.Drop), Ecn: uint8(a.ECN), Queue: int32(a.Queue)}
	if e.entry == XdpEntry && a.Queue >= 0 {
		e.refuse(a.Source, "queue", "cannot run in XDP, which has no queues", remedy.UseTC)
	}
	e.checkAction(a)
	e.Constants.Ecn |= out.Ecn
	for _, m := range a.Marks {
		out.Marks |= 1 << m.Field
		e.Constants.Marks |= 1 << m.Field
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
			if e.entry == XdpEntry {
				e.refuse(a.Source, "mark", noMark, remedy.UseTC)
			}
		default:
			e.refuse(a.Source, m.Field.String(), notInKernel, remedy.UseUserSpace)
		}
	}
	return out
}

func (e *encoder) encodeStage(i int) {
	from := &e.Plan.Stages[i]
	e.checkMeter(from.Source)
	profile, err := *engine.BlockingProfile(), error(nil)
	if !from.Customers {
		profile, err = engine.ProfileOf(from)
	}
	if err != nil {
		e.faults = append(e.faults, err)
	}
	if from.Envelope >= 0 {
		e.refuse(from.Source, "envelope", "cannot run in the kernel", remedy.UseUserSpace)
	}
	s := bpf.ShaperStage{
		Profile: profile, Packets: engine.Flag(from.Packets), Aware: engine.Flag(from.Aware),
		From: uint8(from.Input.From), Then: int32(from.Then), Table: record.StorePrivate,
	}
	if from.Keyed() {
		e.key(&s, from)
	}
	if b := from.Source.Budget; b != nil && b.Once {
		e.Constants.Once = 1
		if e.entry == XdpEntry {
			e.refuse(b, "count", noNote, remedy.UseTC)
		}
	}
	switch {
	case from.Leased:
		s.Table, e.Constants.Elsewhere = record.StoreLeased, 1
	case from.Customers:
		s.Table = record.StoreCustomer
	}
	e.Constants.Packets |= s.Packets
	e.Constants.Rules |= ruleOf(&profile)
	if from.Then >= 0 {
		e.Constants.Chained = 1
	}
	if from.Aware {
		e.Constants.Inputs |= 1 << from.Input.From
		e.inputColors(&s, uint32(i), from)
	}
	e.Stages = append(e.Stages, s)
}

// ruleOf returns the rule of a profile, as enum rule of bpf/src/policy.h.
func ruleOf(p *bpf.ShaperProfile) uint8 {
	switch {
	case p.Peak != 0:
		return 1
	case p.Window != 0:
		return 2
	}
	return 4
}

func (e *encoder) inputColors(s *bpf.ShaperStage, stage uint32, from *compiled.Stage) {
	if e.entry == XdpEntry && from.Input.From == dataplane.SKBMark {
		e.refuse(from.Source, "precolor", noMark, remedy.UseTC)
	}
	for v, color := range from.Input.Low {
		switch color {
		case meter.Yellow:
			s.Yellow |= 1 << v
		case meter.Red:
			s.Red |= 1 << v
		}
	}
	for v, color := range from.Input.High {
		e.highs[bpf.ShaperHigh{Stage: stage, Value: v}] = uint32(color)
		s.High = 1
	}
}

// Values of enum match in bpf/src/policy.h. The fields before byMark are matched by
// table, the others by search.
const (
	bySport = 1
	byMark  = len(compiled.Tables{}.Direct)
	bySrc   = byMark + 2
	byDst   = byMark + 3
)

func (e *encoder) encodeClassifier(t *compiled.Tables) {
	c := &e.Constants
	c.Stride, c.Start, e.vectors = uint32(t.Stride), t.Start, t.Words
	for f, table := range t.Direct {
		if table != nil {
			c.Fields |= 1 << f
			c.Table[f], c.Last[f] = uint32(len(e.tables)), uint32(len(table)-1)
			e.tables = append(e.tables, table...)
		}
	}
	for i, r := range []compiled.Ranged[uint32]{t.Mark, t.Length, t.Src.V4, t.Dst.V4} {
		c.Search[i] = e.encodeSearch(r, byMark+i)
	}
	e.encodeRare(t)
	c.Src6 = e.encodeSearch6(&t.Src)
	c.Dst6 = e.encodeSearch6(&t.Dst)
	c.Reads |= c.Fields
}

func (e *encoder) encodeSearch(r compiled.Ranged[uint32], field int) bpf.ShaperSearch {
	if r.Bounds == nil {
		return bpf.ShaperSearch{}
	}
	e.checkBounds(len(r.Bounds))
	e.Constants.Fields |= 1 << field
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

func (e *encoder) encodeSearch6(a *compiled.Addresses) bpf.ShaperSearch6 {
	e.checkBounds(len(a.V6.Bounds))
	s := bpf.ShaperSearch6{First: uint32(len(e.bounds)), Count: uint32(len(a.V6.Bounds)), None: a.None}
	for i, b := range a.V6.Bounds {
		e.bounds = append(e.bounds, bpf.ShaperBound{Hi: b.Hi, Lo: b.Lo, Vector: a.V6.Offset[i]})
	}
	return s
}

// checkBounds rejects more bounds than the programs can search.
func (e *encoder) checkBounds(n int) {
	if n > MaxBounds {
		e.fail(e.Plan.Source, "classes", fmt.Sprintf(
			"have prefixes or ranges with %d bounds: the kernel plane's limit is %d", n, MaxBounds))
	}
}
