package live

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Sample has the counters of a shaper at one time.
type Sample struct {
	At     time.Time
	Stats  []dataplane.ClassStats
	Tokens [][2]int64         // by stage and bucket
	Keys   []meter.TableStats // by stage; nil for a shaper in the kernel, which does not count keys
	Queues []dataplane.QueueState
}

// Read reads the counters of a shaper.
func Read(sh Shaper) (Sample, error) {
	out := Sample{At: time.Now()}
	var err error
	if out.Stats, err = sh.Stats(); err != nil {
		return out, err
	}
	if out.Queues, err = sh.Queues(); err != nil {
		return out, err
	}
	if r, ok := sh.(*Remote); ok {
		out.Keys = r.Now.Keys
	}
	out.Tokens, err = sh.Tokens()
	return out, err
}
