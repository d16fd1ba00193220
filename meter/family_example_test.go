package meter_test

import (
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// At the border of two fixed windows twice the limit passes at once; a sliding log
// bounds every window.
func ExampleFixedWindow() {
	fixed, _ := meter.FixedWindow{Limit: 1000, Window: time.Second}.Profile()
	log, _ := meter.SlidingLog{Limit: 1000, Window: time.Second, Entries: 100}.Profile()
	a, b := meter.New(fixed), meter.New(log)
	for _, now := range []time.Duration{999 * time.Millisecond, time.Second} {
		fmt.Println(now, a.Color(int64(now), 1000, meter.Green), b.Color(int64(now), 1000, meter.Green))
	}
	// Output:
	// 999ms green green
	// 1s green red
}

// A customer has 8 Mbit/s for two flows. Voice has the higher rank, and video receives the
// tokens that voice does not use.
func ExampleEnvelope() {
	voice := meter.TRTCM4115{CIR: meter.BitRate(8_000_000), CBS: 1000}
	video := meter.TRTCM4115{CBS: 5000} // no rate of its own
	envelope, err := meter.NewEnvelope(
		meter.EnvelopeParams{Flows: []meter.EnvelopeFlow{{Buckets: voice}, {Buckets: video}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	envelope.SetTokens(1, 0, 0) // video begins without tokens
	fmt.Println("video:", envelope.Color(1, 0, 1000, meter.Green))
	fmt.Println("video 1 ms later:", envelope.Color(1, 1_000_000, 1000, meter.Green))
	// Output:
	// video: red
	// video 1 ms later: green
}

// At most 3000 bytes are in flight: sent but not yet acknowledged.
func ExampleCreditWindow() {
	window := meter.CreditWindow{Window: 3000}
	fmt.Println(window.Color(1500, meter.Green), window.Color(1500, meter.Green),
		window.Color(1500, meter.Green))
	window.Return(1500) // acknowledged
	fmt.Println(window.Color(1500, meter.Green))
	// Output:
	// green green red
	// green
}

// KindInfo lists the parameters of every kind of meter.
func ExampleKindInfo() {
	for _, kind := range meter.Kinds()[:2] {
		info := kind.Info()
		fmt.Println(info.Name, info.Required, info.Optional)
	}
	params := meter.WithField(meter.TokenBucket{Rate: meter.BitRate(1_000_000)}, "burst", int64(1500))
	fmt.Println(meter.Field(params, "rate"), meter.Field(params, "burst"))
	// Output:
	// token-bucket [rate burst] [warmup]
	// srtcm [cir cbs ebs] []
	// 1mbit 1500
}
