package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/image"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/record"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/rundir"
)

// Confirm cancels the armed rollbacks of shapers, so that their policies become permanent. The
// shapers must be of one interface. It returns the shapers whose rollback was armed: none if all
// were confirmed or rolled back before. It fails if the time of a rollback passed, even if the
// rollback has not happened yet.
func Confirm(list ...*Shaper) (confirmed []*Shaper, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	st, err := list[0].lockSite()
	if err != nil {
		return nil, err
	}
	defer st.close()
	for _, s := range list {
		if err := s.Refresh(); err != nil {
			if errors.Is(err, ErrDetached) {
				continue // rolled back
			}
			return confirmed, err
		}
		if s.Until.IsZero() {
			continue
		}
		if late := time.Since(s.Until); late > 0 {
			return confirmed, fmt.Errorf("%s %v: too late: the time to confirm ended %v ago", s.Interface,
				s.Direction, late.Round(time.Second/10))
		}
		s.Before, s.Until = nil, time.Time{}
		if err := s.completeAttach(st); err != nil {
			return confirmed, err
		}
		confirmed = append(confirmed, s)
	}
	return confirmed, nil
}

// Postpone sets a new time for the armed rollbacks of one interface's shapers. It
// ignores shapers without one.
func Postpone(until time.Time, list ...*Shaper) error {
	if len(list) == 0 {
		return nil
	}
	st, err := list[0].lockSite()
	if err != nil {
		return err
	}
	defer st.close()
	for _, s := range list {
		err := rundir.Retry(func() error {
			if err := s.Refresh(); err != nil || s.Until.IsZero() {
				return err
			}
			s.Until = until.Round(0)
			return s.completeAttach(st)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Pending returns the shapers of an interface with an armed rollback. The caller must close them.
func Pending(at iface.ID) (out []*Shaper, err error) {
	for _, direction := range []dataplane.Direction{Egress, Ingress} {
		s, err := findShaper(at, direction)
		if err != nil {
			for _, s := range out {
				s.Close()
			}
			return nil, err
		}
		if s == nil {
			continue
		}
		if s.Until.IsZero() {
			s.Close()
			continue
		}
		out = append(out, s)
	}
	return out, nil
}

// RollBack restores the policies that the shapers of one interface had before their rollbacks were
// armed, and detaches a shaper without an earlier policy. It skips shapers confirmed or detached,
// and those whose rollback is not armed for the time due. It returns the shapers rolled back.
// compile returns the plan of a Config.Label.
func RollBack(
	compile func(json.RawMessage) (*compiled.Plan, error), due time.Time, list ...*Shaper,
) (rolledBack []*Shaper, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	st, err := list[0].lockSite()
	if err != nil {
		return nil, err
	}
	defer st.close()
	var errs []error
	for _, s := range list {
		if err := s.Refresh(); err != nil {
			if !errors.Is(err, ErrDetached) {
				errs = append(errs, err)
			}
			continue
		}
		if s.Until.IsZero() || !s.Until.Equal(due) {
			continue
		}
		was := s.Before // an attempt that fails after the swap clears the field
		err := rundir.Retry(func() error { return s.rollBack(st, was, compile) })
		if err != nil {
			errs = append(errs, err)
		}
		if err == nil || errors.As(err, new(*dataplane.ActiveError)) {
			rolledBack = append(rolledBack, s)
		}
	}
	return rolledBack, errors.Join(errs...)
}

func (s *Shaper) rollBack(
	st *site, was *record.Before, compile func(json.RawMessage) (*compiled.Plan, error),
) error {
	if was == nil {
		return s.detachLocked(st)
	}
	plan, err := compile(was.Label)
	if err != nil {
		return err
	}
	next := s.About
	next.Apply(was)
	next.Before, next.Until = nil, time.Time{}
	pacer, err := image.ChoosePacer(next.Asked, plan)
	if err != nil {
		return err
	}
	if next.NeedsOtherDevice(pacer, next.Dry) {
		if err := s.detachLocked(st); err != nil {
			return err
		}
		next.Place = hook.Place{Hook: s.Place.Hook} // install attaches it to the other device
	}
	_, err = s.install(st, plan, &next)
	return err
}
