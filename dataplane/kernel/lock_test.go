package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLocks holds that a lock has one owner at a time, though its file comes
// and goes, and that nothing is left.
func TestLocks(t *testing.T) {
	needRoot(t)
	nowhere := iface{Namespace: 1, Index: 1 << 30} // there is no such interface
	var all sync.WaitGroup
	var inside, most, entered int
	var counting sync.Mutex
	for range 8 {
		all.Go(func() {
			for range 200 {
				l, err := takeChangeLock(nowhere)
				if err != nil {
					t.Error(err)
					return
				}
				counting.Lock()
				inside++
				entered++
				most = max(most, inside)
				counting.Unlock()
				counting.Lock()
				inside--
				counting.Unlock()
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if most != 1 || entered != 1600 {
		t.Errorf("%d held it at once, %d times: want 1, 1600 times", most, entered)
	}
	owner, err := takeOwnerLock(nowhere, Egress)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := takeOwnerLock(nowhere, Egress); !errors.Is(err, errLocked) {
		t.Errorf("a second owner: %v", err)
	}
	if err := owner.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(StateDir, nowhere.fileName("*"))); left != nil {
		t.Errorf("%q are left", left)
	}
	if _, err := os.Stat(StateDir); err != nil {
		t.Error(err)
	}
}

// TestOwned holds that those that look whether there is an owner are not taken
// for one, and see one that is there.
func TestOwned(t *testing.T) {
	needRoot(t)
	at := iface{Namespace: 1, Index: 1<<30 + 1}
	look := func() (seen int) {
		var all sync.WaitGroup
		var counting sync.Mutex
		for range 8 {
			all.Go(func() {
				for range 500 {
					if yes, err := hasOwner(at, Egress); yes || err != nil {
						counting.Lock()
						seen++
						counting.Unlock()
					}
				}
			})
		}
		all.Wait()
		return seen
	}
	owner, err := takeOwnerLock(at, Egress)
	if err != nil {
		t.Fatal(err)
	}
	if n := look(); n != 4000 {
		t.Errorf("seen %d times of 4000", n)
	}
	if err := flock(owner.File, unix.LOCK_UN); err != nil { // as if it were killed
		t.Fatal(err)
	}
	if n := look(); n != 0 {
		t.Errorf("an owner is seen %d times of 4000, where there is none", n)
	}
	if err := owner.Close(); err != nil {
		t.Error(err)
	}
}

// TestLockTurns checks that a process waits for a lock as long as its holders change, and
// not longer than its patience for one holder.
func TestLockTurns(t *testing.T) {
	needRoot(t)
	t.Parallel()
	at := iface{Namespace: 1, Index: 1<<30 + 2}
	const patience = time.Second
	hold := func(name string) lock {
		l, err := takeLock(at.fileName(name), unix.LOCK_EX)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	holder := hold("change")
	begin, taken := time.Now(), make(chan error, 1)
	go func() {
		l, err := takeLockWithin(at.fileName("change"), unix.LOCK_EX, patience)
		if err == nil {
			err = l.Close()
		}
		taken <- err
	}()
	for range 6 { // the next holder's file replaces the last one's, so it is never free
		time.Sleep(patience / 3)
		next := hold("next")
		if err := os.Rename(next.Name(), filepath.Join(StateDir, at.fileName("change"))); err != nil {
			t.Fatal(err)
		}
		holder.File.Close()
		holder = next
	}
	if _, err := takeLockWithin(at.fileName("change"), unix.LOCK_EX, patience/10); err == nil || !strings.Contains(err.Error(), "for 100ms: is it stopped?") {
		t.Errorf("a lock that one process holds: %v", err)
	}
	select {
	case err := <-taken:
		t.Errorf("after %v the wait ended: %v", time.Since(begin), err)
	default:
	}
	if err := errors.Join(os.Remove(filepath.Join(StateDir, at.fileName("change"))), holder.File.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Error(err)
	}
}
