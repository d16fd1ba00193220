package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestLocks holds that a lock has one owner at a time, though its file comes
// and goes, and that nothing is left.
func TestLocks(t *testing.T) {
	needRoot(t)
	const nowhere = 1 // no namespace has this inode
	var all sync.WaitGroup
	var inside, most, entered int
	var counting sync.Mutex
	for range 8 {
		all.Go(func() {
			for range 200 {
				l, err := changeLock(nowhere, "test", Egress)
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
	owner, err := ownerLock(nowhere, "test", Egress)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ownerLock(nowhere, "test", Egress); !errors.Is(err, errLocked) {
		t.Errorf("a second owner: %v", err)
	}
	if err := owner.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(locks, "1-test-*")); left != nil {
		t.Errorf("%q are left", left)
	}
	if _, err := os.Stat(locks); err != nil {
		t.Error(err)
	}
}
