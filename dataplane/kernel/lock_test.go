package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

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
				l, err := changeLock(nowhere)
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
	owner, err := ownerLock(nowhere, Egress)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ownerLock(nowhere, Egress); !errors.Is(err, errLocked) {
		t.Errorf("a second owner: %v", err)
	}
	if err := owner.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(StateDir, nowhere.file("*"))); left != nil {
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
					if yes, err := owned(at, Egress); yes || err != nil {
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
	owner, err := ownerLock(at, Egress)
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
