package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/filelock"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLocks checks that a lock has one holder at a time, although its file is created and removed
// each time, and that no file is left.
func TestLocks(t *testing.T) {
	kerneltest.NeedRoot(t)
	nowhere := iface.ID{Namespace: 1, Index: 1 << 30} // does not exist
	var all sync.WaitGroup
	var inside, most, entered int
	var counting sync.Mutex
	for range 8 {
		all.Go(func() {
			for range 200 {
				l, err := TakeChangeLock(nowhere)
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
		t.Errorf("got %d holders at once and %d acquisitions, want 1 and 1600", most, entered)
	}
	owner, err := TakeOwnerLock(nowhere, dataplane.Egress)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TakeOwnerLock(nowhere, dataplane.Egress); !errors.Is(err, ErrLocked) {
		t.Errorf("second owner: got error %v, want %v", err, ErrLocked)
	}
	if err := owner.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(StateDir, nowhere.FileName("*"))); left != nil {
		t.Errorf("got files %q, want none", left)
	}
	if _, err := os.Stat(StateDir); err != nil {
		t.Error(err)
	}
}

// TestLocksShowHolder checks that the holders of the locks of changes show that they run.
func TestLocksShowHolder(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	at := iface.ID{Namespace: 1, Index: 1<<30 + 3}
	for name, take := range map[string]func() (Lock, error){
		"change":     func() (Lock, error) { return TakeChangeLock(at) },
		"try change": func() (Lock, error) { return TryTakeChangeLock(at) },
		"within":     func() (Lock, error) { return TakeChangeLockWithin(at, time.Second) },
		"registry":   func() (Lock, error) { return TakeRegistryLock(at.FileName("registry"), unix.LOCK_EX) },
	} {
		l, err := take()
		if err != nil {
			t.Fatal(err)
		}
		past := time.Now().Add(-time.Hour)
		if err := os.Chtimes(l.Name(), past, past); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
			info, err := l.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if info.ModTime().After(past.Add(time.Minute)) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the holder does not set the time of its file", name)
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestHasOwner checks that HasOwner detects an owner, and that concurrent calls do not mistake each
// other for one.
func TestHasOwner(t *testing.T) {
	kerneltest.NeedRoot(t)
	at := iface.ID{Namespace: 1, Index: 1<<30 + 1}
	callHasOwner := func() (seen int) {
		var all sync.WaitGroup
		var counting sync.Mutex
		for range 8 {
			all.Go(func() {
				for range 500 {
					if yes, err := HasOwner(at, dataplane.Egress); yes || err != nil {
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
	owner, err := TakeOwnerLock(at, dataplane.Egress)
	if err != nil {
		t.Fatal(err)
	}
	if n := callHasOwner(); n != 4000 {
		t.Errorf("with an owner: %d of 4000 calls detect it, want all", n)
	}
	// as the kernel does when the owner is killed
	if err := filelock.Flock(owner.File, unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if n := callHasOwner(); n != 0 {
		t.Errorf("without an owner: %d of 4000 calls detect one, want none", n)
	}
	if err := owner.Close(); err != nil {
		t.Error(err)
	}
}

// TestHasName checks files whose directory is renamed, and that are removed and replaced.
func TestHasName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	open := func(path string) *os.File {
		t.Helper()
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		return file
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	kept, removed, replaced := open(dir+"/kept"), open(dir+"/removed"), open(dir+"/replaced")
	open(dir + "/new")
	if err := errors.Join(os.Remove(dir+"/removed"), os.Rename(dir+"/new", dir+"/replaced"),
		os.Rename(dir, dir+"2")); err != nil {
		t.Fatal(err)
	}
	if !HasName(kept) || HasName(removed) || HasName(replaced) {
		t.Errorf("got %t, %t and %t, want true, false and false", HasName(kept), HasName(removed),
			HasName(replaced))
	}
}

// TestQuietLockTurns checks that a process waits for a lock as long as its holders change, and not
// longer than its patience for one holder.
func TestQuietLockTurns(t *testing.T) {
	nettest.Quiet(t)
	kerneltest.NeedRoot(t)
	t.Parallel()
	nettest.Steady(t,
		func() error { return takeTurns(t, iface.ID{Namespace: 1, Index: 1<<30 + 2}, time.Second) })
}

// takeTurns lets the holders of a lock change while another goroutine waits for it. Its error
// reports that the wait ended too early, also if the machine was too busy to change the holder in
// time.
func takeTurns(t *testing.T, owner iface.ID, patience time.Duration) error {
	hold := func(name string) Lock {
		l, err := TakeLock(owner.FileName(name), unix.LOCK_EX)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	holder := hold("change")
	begin, taken := time.Now(), make(chan error, 1)
	go func() {
		l, err := takeLockWithin(owner.FileName("change"), unix.LOCK_EX, patience)
		if err == nil {
			err = l.Close()
		}
		taken <- err
	}()
	for range 5 { // the next holder's file replaces the last one's, so the lock is never free
		time.Sleep(patience / 4)
		next := hold("next")
		if err := os.Rename(next.Name(), filepath.Join(StateDir, owner.FileName("change"))); err != nil {
			t.Fatal(err)
		}
		holder.File.Close()
		holder = next
	}
	if _, err := takeLockWithin(owner.FileName("change"), unix.LOCK_EX, patience/10); err == nil ||
		!regexp.MustCompile(` for [0-9.]+m?s$`).MatchString(err.Error()) {
		t.Errorf("a lock with one holder: got error %v, want one after 100ms", err)
	}
	var early error
	select {
	case err := <-taken:
		early = fmt.Errorf("after %v: got the lock or error %v, want the wait to last", time.Since(begin),
			err)
	default:
	}
	if err := errors.Join(os.Remove(filepath.Join(StateDir, owner.FileName("change"))),
		holder.File.Close()); err != nil {
		t.Fatal(err)
	}
	if early != nil {
		return early
	}
	if err := <-taken; err != nil {
		t.Errorf("after the last holder: got error %v, want the lock", err)
	}
	return nil
}
