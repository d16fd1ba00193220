package record

import (
	"fmt"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// Leftover is something of shaper that no attached shaper needs, or a shaper whose record this
// version cannot read.
type Leftover struct {
	Interface string
	Direction dataplane.Direction
	What      string // description for the user
}

// String returns the interface, the direction and the description.
func (l Leftover) String() string { return fmt.Sprintf("%s %v: %s", l.Interface, l.Direction, l.What) }
