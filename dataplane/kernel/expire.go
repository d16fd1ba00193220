package kernel

import (
	"fmt"
	"math"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/cause"
)

// Expire ends the policy at a time: from then on packets pass as if nothing were
// attached, and are not counted, even if every process that could detach the
// shaper is dead or stopped. Detaching is still left to the caller, and with it
// qdiscs and limits of the device. The zero time is never. Reload keeps the
// time; an Attach that takes the shaper over clears it. A rollback to nothing
// (Config.Until) is such a time by itself.
//
// The kernel compares with CLOCK_MONOTONIC, which stands still while the machine
// is suspended.
func (s *Shaper) Expire(at time.Time) error {
	st, err := s.site()
	if err != nil {
		return err
	}
	defer st.close()
	if err := s.Refresh(); err != nil {
		return err
	}
	if s.Expires, err = clockAt(at); err != nil {
		return err
	}
	return s.completeAttach(st)
}

// clockAt is a time on the programs' clock, 0 for never.
func clockAt(at time.Time) (uint64, error) {
	if at.IsZero() {
		return 0, nil
	}
	now, err := monotonic()
	left := min(int64(time.Until(at)), math.MaxInt64-int64(now))
	return uint64(max(int64(now)+left, 1)), err
}

// expire gives the program the time from which it does nothing.
func (s *Shaper) writeDeadline() error {
	deadline := s.Expires
	if s.Before == nil { // what is not confirmed ends
		until, err := clockAt(s.Until)
		if err != nil {
			return err
		}
		if until != 0 && (deadline == 0 || until < deadline) {
			deadline = until
		}
	}
	if err := s.maps.expiry.Put(uint32(0), deadline); err != nil {
		return fmt.Errorf("expiry: %w", cause.Of(err))
	}
	return nil
}

// over says whether the program does nothing since its deadline.
func (s *Shaper) deadlinePassed() (bool, error) {
	var deadline uint64
	if err := s.maps.expiry.Lookup(uint32(0), &deadline); err != nil {
		return false, fmt.Errorf("expiry: %w", err)
	}
	now, err := monotonic()
	return deadline != 0 && now >= deadline, err
}
