package kernel

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
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
	t.Parallel()
	eachHook(t, func(w *nettest.Wire, s *Shaper, _ *compiled.Plan) error {
		if s.Place.Hook == hook.TC {
			w.Near.Run("tc", "filter", "del", "dev", "v0", fmt.Sprint(s.Direction))
			if err := s.Refresh(); errors.Is(err, ErrGone) || !errors.Is(err, ErrDetached) {
				w.T.Errorf("filter removed: got error %v, want %v", err, ErrDetached)
			}
		}
		s.hook = &interrupted{s.hook, func() { w.Near.Delete("v0") }}
		if err := s.Refresh(); !errors.Is(err, ErrGone) || !errors.Is(err, ErrDetached) {
			w.T.Errorf("interface deleted: got error %v, want %v", err, ErrGone)
		}
		return nil
	})
}
