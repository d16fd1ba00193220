package dataplane_test

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// frame returns an Ethernet frame with an IPv4 packet of n bytes.
func frame(n int) []byte {
	b := make([]byte, 14+n)
	b[12], b[13] = 0x08, 0x00
	ip := b[14:]
	ip[0], ip[2], ip[3] = 0x45, byte(n>>8), byte(n)
	return b
}

func Example() {
	policy := dataplane.Policy{Classes: []dataplane.Class{{
		Name: "all",
		Meter: &dataplane.Meter{
			Name:   "all",
			Params: meter.SRTCM{CIR: meter.BitRate(8_000_000), CBS: 2000, EBS: 1000}, // one byte per microsecond
		},
		Yellow: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 12}}}, // AF12
	}}}
	pipeline, err := dataplane.New(&policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	var v dataplane.Verdict
	for i := range int64(5) {
		data := frame(1000)
		packet := dataplane.Packet{Data: data, WireLen: len(data), Time: i * 100_000, Link: dataplane.LinkEthernet}
		pipeline.Process(&packet, &v)
		fmt.Println(packet.Time, v.Color, "dropped:", v.Done.Dropped(), "DSCP:", data[15]>>2, v.Reason)
	}
	all := pipeline.Stats()[0]
	fmt.Println(all.Total().Packets, "received,", dataplane.Sum(all.Marked[:]).Packets, "marked,", all.Dropped(meter.Red).Packets, "dropped")
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
	_, err := dataplane.Compile(&dataplane.Policy{Classes: []dataplane.Class{
		{Name: "voice", Match: dataplane.Match{DSCP: []dataplane.Range{{First: 46, Last: 64}}}},
		{Name: "voice"},
	}})
	fmt.Println(err)
	// Output:
	// dscp: 64 is above 63
	// class "voice": name: "voice" is the name of an earlier class: class names must differ
}
