package registry

import "math/rand/v2"

// maxLabel is the largest label of a budget. A note has 14 bits for it, see bpf/src/note.h.
const maxLabel = 1<<14 - 1

// newLabel returns a label of no other budget of the host, or 0 if there is none. It is random: a packet
// in flight may have a note of a budget that has ended, and other programs may write small numbers to the
// field of the note.
func (b *Locked) newLabel() uint16 {
	used := map[uint16]bool{}
	for _, r := range b.Budgets {
		used[r.Label] = true
	}
	first := rand.IntN(maxLabel)
	for i := range maxLabel {
		if label := uint16(1 + (first+i)%maxLabel); !used[label] {
			return label
		}
	}
	return 0
}
