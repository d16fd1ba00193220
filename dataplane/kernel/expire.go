package kernel

import (
	"fmt"
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
)

// Expire sets a deadline after which the program passes all packets without metering or counting
// them, even if every process that could detach the shaper is dead or stopped. The caller must
// still call Detach, which also restores qdiscs and the GSO limit. The zero time removes the
// deadline. Reload keeps it; an Attach taking the shaper over removes it. An armed rollback to
// detach (Config.Until) sets a deadline as well; the earlier one applies.
//
// The deadline is on CLOCK_MONOTONIC, which stops while the machine is suspended.
func (s *Shaper) Expire(at time.Time) error {
	st, err := s.lockSite()
	if err != nil {
		return err
	}
	defer st.close()
	if err := s.Refresh(); err != nil {
		return err
	}
	s.Expires = toMonotonic(at)
	return s.completeAttach(st)
}

// toMonotonic converts a time to the programs' clock, in ns. It returns 0 for the zero
// time.
func toMonotonic(at time.Time) uint64 {
	if at.IsZero() {
		return 0
	}
	now := engine.Now()
	left := min(int64(time.Until(at)), math.MaxInt64-now)
	return uint64(max(now+left, 1))
}

// writeDeadline writes the deadline that the program reads.
func (s *Shaper) writeDeadline() error {
	deadline := s.Expires
	if s.Before == nil { // an armed rollback detaches
		until := toMonotonic(s.Until)
		if until != 0 && (deadline == 0 || until < deadline) {
			deadline = until
		}
	}
	if err := s.maps.Expiry.Put(uint32(0), deadline); err != nil {
		return fmt.Errorf("expiry: %w", cause.Of(err))
	}
	return nil
}

// deadlinePassed reports whether the program's deadline passed.
func (s *Shaper) deadlinePassed() (bool, error) {
	var deadline uint64
	if err := s.maps.Expiry.Lookup(uint32(0), &deadline); err != nil {
		return false, fmt.Errorf("expiry: %w", err)
	}
	return deadline != 0 && engine.Monotonic() >= deadline, nil
}
