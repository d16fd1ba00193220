package pipeline_test

import (
	"fmt"
	"math"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// frame returns an Ethernet frame with an IPv4 packet of n bytes.
func frame(n int) []byte {
	b := make([]byte, 14+n)
	b[12], b[13] = 0x08, 0x00
	ip := b[14:]
	ip[0], ip[2], ip[3] = 0x45, byte(n>>8), byte(n)
	return b
}

// packet returns a packet of 1000 bytes that arrives at a time, ns.
func packet(at int64) *dataplane.Packet {
	data := frame(1000)
	return &dataplane.Packet{Data: data, WireLen: len(data), Time: at, Link: dataplane.LinkEthernet}
}

// mega is one byte per microsecond.
var mega = meter.BitRate(8_000_000)

// Define a policy, compile it, and process packets.
func Example() {
	policy := dataplane.Policy{Classes: []dataplane.Class{{
		Name:   "all",
		Meter:  &dataplane.Meter{Name: "all", Params: meter.SRTCM{CIR: mega, CBS: 2000, EBS: 1000}},
		Yellow: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 12}}}, // AF12
	}}}
	plan, err := compiled.Compile(&policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	pl := pipeline.FromPlan(plan)
	var v dataplane.Verdict
	for i := range int64(5) {
		p := packet(i * 100_000)
		pl.Process(p, &v)
		fmt.Println(p.Time, v.Color, "dropped:", v.Done.Dropped(), "DSCP:", p.Data[15]>>2, v.Reason)
	}
	all := pl.Stats()[0]
	fmt.Println(all.Total().Packets, "received,", dataplane.Sum(all.Marked[:]).Packets, "marked,",
		all.Dropped(meter.Red).Packets, "dropped")
	// Output:
	// 0 green dropped: false DSCP: 0 rfc2697-green
	// 100000 green dropped: false DSCP: 0 rfc2697-green
	// 200000 yellow dropped: false DSCP: 12 rfc2697-yellow
	// 300000 red dropped: true DSCP: 0 rfc2697-red
	// 400000 red dropped: true DSCP: 0 rfc2697-red
	// 5 received, 1 marked, 2 dropped
}

// All errors of a policy are found at once.
func ExampleCompile_errors() {
	_, err := compiled.Compile(&dataplane.Policy{Classes: []dataplane.Class{
		{Name: "voice", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 46, Last: 64}}}},
		{Name: "voice"},
	}})
	fmt.Println(err)
	// Output:
	// dscp: 64 is above 63
	// class "voice": name: "voice" is the name of an earlier class: class names must differ
}

// tokenBucket returns a policy with one meter, called "all".
func tokenBucket(burst int64) *dataplane.Policy {
	return &dataplane.Policy{Classes: []dataplane.Class{{
		Name:  "all",
		Meter: &dataplane.Meter{Name: "all", Params: meter.TokenBucket{Rate: mega, Burst: burst}},
	}}}
}

// Two ports have the same policy. It is compiled once; each port has its own tokens.
func ExamplePlan() {
	plan, err := compiled.Compile(tokenBucket(1500))
	if err != nil {
		fmt.Println(err)
		return
	}
	ports := []*pipeline.Pipeline{pipeline.FromPlan(plan), pipeline.FromPlan(plan)}
	var v dataplane.Verdict
	for port, pl := range ports {
		for range port + 1 {
			pl.Process(packet(0), &v)
			fmt.Println("port", port, v.Color)
		}
	}
	// Output:
	// port 0 green
	// port 1 green
	// port 1 red
}

// A new policy takes the place of the present one: its meter keeps the tokens.
func ExamplePipeline_Inherit() {
	pl, err := pipeline.New(tokenBucket(1500))
	if err != nil {
		fmt.Println(err)
		return
	}
	var v dataplane.Verdict
	pl.Process(packet(0), &v)
	next, err := pipeline.New(tokenBucket(9000))
	if err != nil {
		fmt.Println(err) // the old pipeline continues
		return
	}
	for pl.Settle(math.MaxInt64, &v) { // none here: no link has queued packets
	}
	for _, change := range next.Inherit(pl) {
		fmt.Println("class", change.Class, change.Effect)
	}
	tokens, _ := next.Tokens(0)
	fmt.Println(tokens, "tokens")
	// Output:
	// class all kept
	// 500 tokens
}

// The queue of a link sends its packets one after the other. Settle returns the time of
// each departure once it is known.
func ExamplePipeline_Settle() {
	q := &dataplane.Queue{
		Name: "all", Link: &dataplane.Link{Name: "uplink", Rate: mega}, Config: queue.Config{Bytes: 64_000},
	}
	pl, err := pipeline.New(
		&dataplane.Policy{Classes: []dataplane.Class{{Name: "all", Green: &dataplane.Action{Queue: q}}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	queued := map[int64]*dataplane.Packet{}
	var v dataplane.Verdict
	for id := range int64(3) {
		p := packet(0)
		p.ID = id
		if pl.Process(p, &v); v.Done&dataplane.Waiting != 0 {
			queued[id] = p
		}
	}
	for at, ok := pl.Due(); ok; at, ok = pl.Due() { // a live plane waits until at
		for pl.Settle(at, &v) {
			if v.Done&dataplane.ECNSet != 0 {
				queued[v.ID].SetCE()
			}
			delete(queued, v.ID)
			fmt.Println("packet", v.ID, "dropped:", v.Done.Dropped(), "departs at", v.Departure)
		}
	}
	// Output:
	// packet 0 dropped: false departs at 0
	// packet 1 dropped: false departs at 1000000
	// packet 2 dropped: false departs at 2000000
}

// Explain returns a step for each meter that a packet passed.
func ExamplePipeline_Explain() {
	policy := tokenBucket(1500)
	policy.Classes[0].Meter.Per = dataplane.Key{By: dataplane.BySrc}
	pl, err := pipeline.New(policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	p := packet(0)
	copy(p.Data[14+12:], []byte{192, 0, 2, 1})
	var v dataplane.Verdict
	for _, step := range pl.Explain(p, &v) {
		fmt.Println(pl.Plan().Stages[step.Stage].Name, step.Key, step.Color, "by", step.Clause)
	}
	// Output:
	// all src 192.0.2.1 green by token-bucket-green
}
