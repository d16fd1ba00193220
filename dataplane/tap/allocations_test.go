package tap

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// nullPort never reads a frame and accepts all writes.
type nullPort struct{ cuts bool }

func (nullPort) Read([][]byte) (int, error)         { return 0, nil }
func (nullPort) Write(frames [][]byte) (int, error) { return len(frames), nil }
func (nullPort) Wait(int64) error                   { return nil }
func (nullPort) Wake()                              {}
func (p nullPort) CutsUDP() bool                    { return p.cuts }

// police is a policy that marks, and drops red.
func police(rate meter.Rate, per dataplane.Key) *dataplane.Policy {
	return &dataplane.Policy{Classes: []dataplane.Class{{
		Name: "all",
		Meter: &dataplane.Meter{
			Name: "m", Params: meter.TRTCM{CIR: rate, CBS: 2000, PIR: rate, PBS: 4000}, Per: per,
		},
		Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: 10}}},
		Red:   &dataplane.Action{Drop: true},
	}}}
}

// TestPlaneAllocations checks that the packet path does not allocate once the
// maximum number of packets has been queued and has departed at once. In the
// bubble, time passes only in Sleep, so the queues fill and drain alike on any
// machine.
func TestPlaneAllocations(t *testing.T) {
	rate := meter.BitRate(1e8)
	for name, policy := range map[string]*dataplane.Policy{
		"no shaper": nil,
		"pass":      oneAction(nil),
		"drop":      oneAction(&dataplane.Action{Drop: true}),
		"police":    police(rate, dataplane.Key{}),
		"keys":      police(rate, dataplane.Key{By: dataplane.BySrc}),
		"queue":     oneQueue(queue.Config{Rate: rate, Time: 20 * time.Millisecond}),
		"bytes":     oneQueue(queue.Config{Rate: rate, Bytes: 100_000}),
		"link":      linkPolicy(rate, nil),
	} {
		for _, cuts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cuts=%v", strings.ReplaceAll(name, " ", "-"), cuts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var s *ActivePolicy
					if policy != nil {
						s = newShaper(t, policy, 0)
					}
					l := newLane(nullPort{}, nullPort{cuts}, s)
					l.register()
					defer l.unregister()
					var frames [][]byte
					for i := range burst {
						frames = append(frames, ipFrame(i, 500, []byte{0, expedited(2), 10 << 2}[i%3]))
					}
					turn := func() {
						time.Sleep(time.Millisecond) // longer than 24 packets take, shorter than a burst
						for i, f := range frames {
							l.read[i] = append(l.read[i][:0], f...)
						}
						l.turn(burst)
						_ = l.write()
					}
					for range 3 {
						for range 100 {
							turn()
						}
						time.Sleep(time.Second) // all queued packets depart in the next turn
					}
					for range 100 {
						turn()
					}
					if n := testing.AllocsPerRun(200, turn); n != 0 {
						t.Errorf("got %v allocations per turn, want 0", n)
					}
				})
			})
		}
	}
}
