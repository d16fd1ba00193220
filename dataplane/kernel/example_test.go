package kernel_test

import (
	"fmt"
	"log"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// This program shapes the packets sent through eth0 for a minute.
func ExampleAttach() {
	plan, err := compiled.Compile(&dataplane.Policy{Classes: []dataplane.Class{{
		Name: "all",
		Meter: &dataplane.Meter{Name: "all", Params: meter.TRTCM{
			CIR: meter.BitRate(10_000_000), CBS: 128 << 10, PIR: meter.BitRate(20_000_000), PBS: 256 << 10,
		}},
		Yellow: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 12}}},
	}}})
	if err != nil {
		log.Fatal(err)
	}
	s, _, err := kernel.Attach(kernel.Config{Interface: "eth0", Direction: kernel.Egress}, plan)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Detach()
	time.Sleep(time.Minute)
	stats, err := s.Stats()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(stats[0].Colors[meter.Green].Bytes, "bytes were green")
}
