package filelock

import (
	"fmt"
	"os"
	"time"
)

const (
	// Patience is the time for which others wait for a holder that does not set the time of its file. A
	// change takes less than a second, and a holder that takes longer sets it at each interval.
	Patience = 10 * time.Second
	interval = time.Second
	maxWait  = time.Minute // for a holder that runs
)

// Wait is the wait for the holders of a lock, one after the other. The zero value is ready for use.
type Wait struct {
	holder       os.FileInfo
	begin, since time.Time // of the holder, and of its file's time
}

// Busy returns an error if the wait is over: for patience the holder did not set the time of its file,
// or it has had the lock for too long. Call it each time the lock is busy, with the state of its
// file. Holders of different files are different ones.
func (w *Wait) Busy(file os.FileInfo, now time.Time, patience time.Duration) error {
	switch {
	case w.holder == nil || !os.SameFile(w.holder, file):
		w.begin, w.since = now, now
	case !w.holder.ModTime().Equal(file.ModTime()):
		w.since = now
	}
	w.holder = file
	switch held := now.Sub(w.begin); {
	case held > maxWait:
		return fmt.Errorf("for %v: it still changes something", held.Round(time.Second))
	case now.Sub(w.since) > patience && patience >= Patience:
		return fmt.Errorf("for %v: is it stopped?", held.Round(time.Second))
	case now.Sub(w.since) > patience:
		return fmt.Errorf("for %v", held.Round(time.Millisecond))
	}
	return nil
}
