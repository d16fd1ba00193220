package live

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// TestOtherVersion checks that counters of a process of another version are an error, not
// zeros.
func TestOtherVersion(t *testing.T) {
	r := &tapHandle{Snapshot: Snapshot{Version: snapshotVersion + 1, About: kernel.About{Process: 77}}}
	if _, err := r.Sample(); err == nil ||
		!strings.Contains(err.Error(), "process 77 is another version of shaper") {
		t.Error(err)
	}
	r.Version = snapshotVersion
	if _, err := r.Sample(); err != nil {
		t.Error(err)
	}
}

// TestSilentTap checks that a shaper tap that is stopped does not block other commands.
func TestSilentTap(t *testing.T) {
	t.Parallel()
	name := fmt.Sprint("silent", os.Getpid())
	listener, err := net.Listen("unix", tapPrefix+name)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if list := openTap(name); len(list) != 0 {
		t.Errorf("got %v", list)
	}
	if !hasTap(name) || hasTap(name+"-other") {
		t.Error("want that the tap is there, and no other one")
	}
}
