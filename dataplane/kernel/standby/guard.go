package standby

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/filelock"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// Guarding is the lock of a guard: a process to roll back, or clean up, after another one. An
// interface can have several guards.
type Guarding struct{ *os.File }

// Guard marks this process as a guard of an interface. The caller must close the
// Guarding.
func Guard(at iface.ID) (*Guarding, error) {
	l, err := rundir.TakeLock(at.FileName("guard-lock"), unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	return &Guarding{l.File}, nil
}

// Close releases the lock. The last guard removes the file.
func (g *Guarding) Close() error {
	if filelock.Flock(g.File, unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.Remove(g.Name())
	}
	return g.File.Close()
}

// Unguard removes the lock file of an interface if its guards were killed.
func Unguard(at iface.ID) {
	if file, err := rundir.OpenState(at.FileName("guard-lock"), os.O_RDWR); err == nil {
		_ = (&Guarding{file}).Close()
	}
}

// HasGuard reports whether a guard watches an interface. It creates no file.
func HasGuard(at iface.ID) bool {
	for range 5 { // another call of HasGuard holds the lock for a moment
		file, err := rundir.LockExisting(at.FileName("guard-lock"), unix.LOCK_EX)
		file.Close()
		if err != rundir.ErrLocked {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return true
}
