package live

import (
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// TestOtherVersion checks that counters of a process of another version are an error, not
// zeros.
func TestOtherVersion(t *testing.T) {
	r := &Remote{Snapshot: Snapshot{Version: snapshotVersion + 1, About: kernel.About{Process: 77}}}
	if _, err := Read(r); err == nil || !strings.Contains(err.Error(), "process 77 is another version of shaper") {
		t.Error(err)
	}
	r.Version = snapshotVersion
	if _, err := Read(r); err != nil {
		t.Error(err)
	}
}
