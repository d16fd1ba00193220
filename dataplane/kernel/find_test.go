package kernel

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// eachHook runs a test for each hook and direction, in Near of a new wire, with a shaper attached to v0. Its
// program is its own, or could be shared.
func eachHook(t *testing.T, test func(w *nettest.Wire, s *Shaper, plan *compiled.Plan) error) {
	kerneltest.NeedRoot(t)
	plan := kerneltest.Compiled(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "all"}}})
	for _, row := range []struct {
		direction dataplane.Direction
		method    Hook
		programs  *Programs
	}{
		{Egress, TCX, nil},
		{Egress, TC, nil},
		{Ingress, TCX, nil},
		{Ingress, TC, nil},
		{Ingress, XDP, nil},
		{Egress, TCX, &Programs{}},
		{Egress, TC, &Programs{}},
		{Ingress, XDP, &Programs{}},
	} {
		t.Run(fmt.Sprintf("%s-%v-%v", row.method, row.direction, row.programs != nil), func(t *testing.T) {
			t.Parallel()
			w := nettest.NewWire(t)
			w.Do(func() error {
				s, _, err := Attach(Config{
					Interface: "v0", Direction: row.direction, Hook: row.method, Programs: row.programs,
				}, plan)
				if errors.Is(err, hook.ErrNoTCX) {
					t.Skip(err)
				}
				if err != nil {
					return err
				}
				defer s.Close()
				defer func() { _ = s.Detach() }()
				return test(w, s, plan)
			})
		})
	}
}

// TestFoundWhileReplaced looks for a shaper while another thread replaces its program: it is
// found each time, once, nothing is left over, and Refresh follows.
func TestFoundWhileReplaced(t *testing.T) {
	t.Parallel()
	eachHook(t, func(w *nettest.Wire, s *Shaper, plan *compiled.Plan) (err error) {
		var done atomic.Bool
		looks := make(chan int)
		go w.Near.Do(func() {
			n := 0
			defer func() { looks <- n }()
			other := look(w.T)
			for other != nil && !done.Load() {
				if err := other.Refresh(); err != nil {
					w.T.Error(err)
				}
				other.Close()
				other = look(w.T)
				n++
			}
			if other != nil {
				other.Close()
			}
		})
		for range 60 {
			if _, err = s.Reload(plan, nil, time.Time{}); err != nil || w.T.Failed() {
				break
			}
		}
		done.Store(true)
		w.T.Logf("looked %d times", <-looks)
		return err
	})
}

// look returns the only shaper, or nil after an error: nothing else may be found.
func look(t *testing.T) *Shaper {
	v, err := Look()
	if err != nil {
		t.Error(err)
		return nil
	}
	if len(v.Shapers) != 1 || len(v.Left) != 0 {
		t.Errorf("found %d shapers, leftovers %v: want one shaper", len(v.Shapers), v.Left)
		v.Close()
		return nil
	}
	return v.Shapers[0]
}
