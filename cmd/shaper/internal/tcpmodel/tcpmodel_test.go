package tcpmodel

import (
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// TestFullQueue checks that one flow fills a link whose queue holds its window, and no more than
// the link carries.
func TestFullQueue(t *testing.T) {
	for _, control := range []Control{CUBIC, Reno} {
		r, err := Run(Path{RTT: 20 * time.Millisecond, Control: control}, Queue(queue.Config{Rate: meter.BitRate(10e6), Time: 40 * time.Millisecond}))
		if err != nil {
			t.Fatal(err)
		}
		if payload := int64(10_000_000 * 1448 / 1500); r.Goodput < payload*99/100 || r.Goodput > payload+1448*8 {
			t.Errorf("%v: %d bit/s: want %d", control, r.Goodput, payload)
		}
	}
}
