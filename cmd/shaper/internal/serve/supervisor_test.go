package serve

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/watch"
)

// TestInterruptedList checks that an incomplete list of interfaces is not the last one: what it has is
// looked at, nothing is forgotten because of it, and the next tick lists again.
func TestInterruptedList(t *testing.T) {
	v := newSupervisor(nil, &files{config: &policyfile.Serve{}})
	v.idle[7] = &idle{Link: watch.Link{Index: 7, Name: "gone"}}
	v.idle[8] = &idle{Link: watch.Link{Index: 8, Name: "failed"}}
	calls, err := 0, error(netlink.ErrDumpInterrupted)
	v.list = func() ([]watch.Link, error) {
		calls++
		return []watch.Link{{Index: 8, Name: "renamed"}}, err
	}
	v.links.lose()
	v.follow()
	if v.idle[7] == nil || v.idle[8] != nil {
		t.Errorf("idle after an interrupted list: %v", v.idle)
	}
	v.tick()
	err = nil
	v.tick()
	if calls != 3 || len(v.idle) != 0 {
		t.Errorf("%d lists, idle %v: want 3 and none", calls, v.idle)
	}
	if v.tick(); calls != 3 {
		t.Error("listed again after a complete list")
	}
}
