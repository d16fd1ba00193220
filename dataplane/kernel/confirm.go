package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/hook"
)

// promise arms a rollback to before at a time, zero for none. The goal of one that
// is armed already stays.
func (a *About) armRollback(before *Before, until time.Time) {
	if until.IsZero() {
		return
	}
	if a.Until.IsZero() {
		a.Before = before
	}
	a.Until = until.Round(0)
}

// Confirm makes the policies of an interface's shapers stay. It says which of them
// had a rollback to wait for: none if they were confirmed, or rolled back, before. It
// is an error if the time of one is over, though nobody has rolled it back yet.
func Confirm(list ...*Shaper) (confirmed []*Shaper, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	st, err := list[0].site()
	if err != nil {
		return nil, err
	}
	defer st.close()
	for _, s := range list {
		if err := s.Refresh(); err != nil {
			if errors.Is(err, ErrDetached) {
				continue // it was rolled back
			}
			return confirmed, err
		}
		if s.Until.IsZero() {
			continue
		}
		if late := time.Since(s.Until); late > 0 {
			return confirmed, fmt.Errorf("%s %v: too late: the time to confirm it ended %v ago", s.Interface, s.Direction, late.Round(time.Second/10))
		}
		s.Before, s.Until = nil, time.Time{}
		if err := s.completeAttach(st); err != nil {
			return confirmed, err
		}
		confirmed = append(confirmed, s)
	}
	return confirmed, nil
}

// Postpone moves the time of rollbacks that are armed.
func Postpone(until time.Time, list ...*Shaper) error {
	if len(list) == 0 {
		return nil
	}
	st, err := list[0].site()
	if err != nil {
		return err
	}
	defer st.close()
	for _, s := range list {
		err := again(func() error {
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

// Pending returns the shapers of an interface whose rollback is armed. The caller
// closes them.
func Pending(at Identity) (out []*Shaper, err error) {
	for _, direction := range []Direction{Egress, Ingress} {
		s, err := find(iface(at), direction)
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

// RollBack makes the shapers of an interface what they were before their
// rollbacks were armed; nothing is attached where nothing was. It says which were:
// none if they were confirmed before, or if another rollback was armed than that
// for the time due. compile makes the plan of a label.
func RollBack(compile func(json.RawMessage) (*dataplane.Plan, error), due time.Time, list ...*Shaper) (back []*Shaper, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	st, err := list[0].site()
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
		was := s.Before // a try that fails late leaves none
		err := again(func() error { return s.rollBack(st, was, compile) })
		if err != nil {
			errs = append(errs, err)
		}
		if err == nil || errors.As(err, new(*dataplane.ActiveError)) {
			back = append(back, s)
		}
	}
	return back, errors.Join(errs...)
}

func (s *Shaper) rollBack(st *site, was *Before, compile func(json.RawMessage) (*dataplane.Plan, error)) error {
	if was == nil {
		return s.detachLocked(st)
	}
	plan, err := compile(was.Label)
	if err != nil {
		return err
	}
	next := s.About
	next.Dry, next.Pinned, next.Asked, next.AskedGSO, next.Label = was.Dry, was.Pinned, was.Asked, was.AskedGSO, was.Label
	next.Before, next.Until, next.Expires = nil, time.Time{}, was.Expires
	pacer, err := choosePacer(next.Asked, plan)
	if err != nil {
		return err
	}
	if next.needsOtherDevice(pacer, next.Dry) {
		if err := s.detachLocked(st); err != nil {
			return err
		}
		next.Place = hook.Place{Hook: s.Place.Hook} // load attaches it there
	}
	_, err = s.install(st, plan, &next)
	return err
}
