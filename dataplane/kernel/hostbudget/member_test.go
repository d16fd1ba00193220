package hostbudget

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/registry"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// TestMemberLock checks that a member gets its lock although another process holds it for a
// moment, as detach does with each of these locks.
func TestMemberLock(t *testing.T) { // not parallel: it predicts the number of the next member
	kerneltest.NeedRoot(t)
	m := NewMember("t0", dataplane.Egress, engine.Now)
	other, err := rundir.TakeLock(fmt.Sprintf("%s%d-%d", registry.MemberFile, os.Getpid(), members.Load()+1),
		unix.LOCK_EX|unix.LOCK_NB)
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
