package live

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Sample holds the counters of a shaper at one time.
type Sample struct {
	kernel.Reading
	Tokens [][2]int64         // by stage and bucket
	Keys   []meter.TableStats // by stage; nil for a shaper in the kernel, which does not count keys
}
