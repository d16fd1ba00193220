package pipeline

import (
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// checkEffects checks that nothing happened to the packets of a pipeline that its plan says cannot happen.
func checkEffects(t *testing.T, l *Pipeline) {
	t.Helper()
	for i := range l.plan.Classes {
		can, st := l.plan.Effects(i, false), &l.stats[i]
		for color := meter.Green; color <= meter.Red; color++ {
			for _, effect := range []struct {
				name string
				can  bool
				n    int64
			}{
				{"packets", can.Colors[color], st.Colors[color].Packets},
				{"marked", can.Marked[color], st.Marked[color].Packets},
				{"CE", can.CE[color], st.CE[color].Packets},
				{"queued", can.Queued[color], st.Queued[color].Packets},
			} {
				if effect.n != 0 && !effect.can {
					t.Fatalf("class %d: %d %s %v: not among %+v", i, effect.n, color, effect.name, can)
				}
			}
			for cause, n := range st.Drops[color] {
				if n.Packets != 0 && !can.Drops[color][cause] {
					t.Fatalf("class %d: %d %v drops by %v: not among %+v", i, n.Packets, color, dataplane.Cause(cause), can)
				}
			}
		}
	}
}
