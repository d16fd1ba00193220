package kernel

import (
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// UnlockedError reports that rates or plans were changed without the change lock: another process
// keeps the lock, or its directory cannot be used. Another process may replace the policy by one
// without the change, so the caller must repeat the change until there is no error.
type UnlockedError struct{ Err error }

func (e *UnlockedError) Error() string {
	return "changed without the lock of the interface: " + e.Err.Error()
}

func (e *UnlockedError) Unwrap() error { return e.Err }

// ownerPatience is the maximum waiting time of a shaper's owner for the change lock to change rates
// and plans. After that it continues without the lock: the end of a change must not depend on other
// processes.
const ownerPatience = 300 * time.Millisecond

// lockToSet takes the change lock to change rates or plans. For the owner of the shaper the lock may be
// empty, with an *UnlockedError.
func (s *Shaper) lockToSet() (l rundir.Lock, unlocked, err error) {
	if s.owner.File == nil {
		l, err = rundir.TakeChangeLock(s.Identity())
		return l, nil, err
	}
	l, err = rundir.TakeChangeLockWithin(s.Identity(), ownerPatience)
	if err != nil {
		return rundir.Lock{}, &UnlockedError{err}, nil
	}
	return l, nil, nil
}
