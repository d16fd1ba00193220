package dataplane

import "github.com/a-seed-32e5a53f/shaper/meter"

// Shared meters packets in place of a meter of the policy whose state is not the
// pipeline's alone, such as a budget of the host. One goroutine at a time calls it.
type Shared interface {
	// Color is that of meter.Meter. It allocates nothing.
	Color(now int64, n int, in meter.Color) meter.Color
	// Tokens is that of meter.Meter.
	Tokens(now int64) (tc, te int64)
}

// Share has s meter the packets of a stage of the plan from now on. Without it a meter
// with a budget of the host is one of the pipeline's own.
func (l *Pipeline) Share(stage int, s Shared) { l.stages[stage].shared = s }
