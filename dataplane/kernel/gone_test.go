package kernel

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/kerneltest"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// interrupted is a hook that runs a function before it returns its program.
type interrupted struct {
	hook.Hook
	during func()
}

func (i *interrupted) Program() (ebpf.ProgramID, error) {
	i.during()
	return i.Hook.Program()
}

// TestRefreshGone checks that Refresh distinguishes a deleted interface from a detached program,
// even if the interface is deleted during the call.
func TestRefreshGone(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Parallel()
	plan := kerneltest.Compiled(t, &dataplane.Policy{Classes: []dataplane.Class{{Name: "all"}}})
	for _, row := range []struct {
		direction dataplane.Direction
		method    Hook
	}{{Egress, TCX}, {Egress, TC}, {Ingress, TC}, {Ingress, XDP}} {
		t.Run(fmt.Sprintf("%s-%d", row.method, row.direction), func(t *testing.T) {
			w := nettest.NewWire(t)
			w.Do(func() error {
				s, _, err := Attach(Config{Interface: "v0", Direction: row.direction, Hook: row.method}, plan)
				if errors.Is(err, hook.ErrNoTCX) {
					t.Skip(err)
				}
				if err != nil {
					return err
				}
				defer s.Close()
				defer func() { _ = s.Detach() }()
				if row.method == TC {
					w.Near.Run("tc", "filter", "del", "dev", "v0", fmt.Sprint(row.direction))
					if err := s.Refresh(); errors.Is(err, ErrGone) || !errors.Is(err, ErrDetached) {
						t.Errorf("filter removed: got error %v, want %v", err, ErrDetached)
					}
				}
				s.hook = &interrupted{s.hook, func() { w.Near.Delete("v0") }}
				if err := s.Refresh(); !errors.Is(err, ErrGone) || !errors.Is(err, ErrDetached) {
					t.Errorf("interface deleted: got error %v, want %v", err, ErrGone)
				}
				return nil
			})
		})
	}
}
