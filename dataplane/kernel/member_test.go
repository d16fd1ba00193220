package kernel

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMemberLock checks that a member gets its lock although another process holds it for a
// moment, as detach does with each of these locks.
func TestMemberLock(t *testing.T) { // not parallel: it predicts the number of the next member
	needRoot(t)
	m := NewMember("t0", Egress, Now)
	other, err := takeLock(fmt.Sprintf("%s%d-%d", memberFile, os.Getpid(), members.Load()+1), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = other.Close() })
	if err := m.open(); err != nil {
		t.Fatal(err)
	}
	if err := m.lock.Close(); err != nil {
		t.Error(err)
	}
}
