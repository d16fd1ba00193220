package serve

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// trial is a reload whose policies roll back unless they are confirmed. Interfaces that appear get the
// policies of before, until all interfaces have confirmed ones.
type trial struct {
	files  *files // the new ones
	groups map[*policy][]target
	until  time.Time
}

// try reads the files again, and loads the policies of the chosen interfaces for some time. It does not apply
// the entries of the configuration.
func (v *supervisor) try(pattern string, until time.Time, done reloaded) {
	next, failed := v.beginReload(done)
	if next == nil {
		return
	}
	t := &trial{next, map[*policy][]target{}, until}
	for _, m := range v.shaped(pattern) {
		if p := next.policies[source(m.entry)]; p != nil && p != v.files.policies[source(m.entry)] {
			t.groups[p] = append(t.groups[p], target{m, m.Name})
		}
	}
	v.reloading = true
	go func() {
		rows, err := v.replaceAll(t.groups, until, failed)
		v.calls <- func() {
			v.reloading, v.failed = false, err != nil
			if len(rows) > 0 {
				v.trials = append(v.trials, t)
				v.adoptLater(t, time.Until(until)+settleTime)
			}
			done(rows, err)
		}
	}()
}

// settleTime is the time after a rollback until the interfaces are looked at.
const settleTime = time.Second

// adoptLater calls adopt after a time.
func (v *supervisor) adoptLater(t *trial, wait time.Duration) {
	time.AfterFunc(wait, func() { v.calls <- func() { v.adopt(t) } })
}

// adopt gives the policies of a trial to interfaces that appear, if they are confirmed at all of its
// interfaces. It forgets the trial when its time is over.
func (v *supervisor) adopt(t *trial) {
	switch {
	case !slices.Contains(v.trials, t): // a reload followed
		return
	case v.reloading:
		v.adoptLater(t, settleTime)
		return
	}
	go func() {
		confirmed := map[*policy]bool{}
		for p, list := range t.groups {
			confirmed[p] = p.refused == nil && each(list, func(_ int, m target) error {
				has, err := m.Has(context.Background(), p.compiled)
				if err == nil && !has {
					err = errUnconfirmed
				}
				return err
			}) == nil
		}
		v.calls <- func() { v.adopted(t, confirmed) }
	}()
}

var errUnconfirmed = errors.New("the policy is not confirmed")

// adopted keeps the confirmed policies of a trial.
func (v *supervisor) adopted(t *trial, confirmed map[*policy]bool) {
	if !slices.Contains(v.trials, t) || v.reloading {
		v.adopt(t)
		return
	}
	for p, list := range t.groups {
		if !confirmed[p] {
			continue
		}
		for _, m := range list {
			if key := source(m.entry); t.files.policies[key] == p {
				v.files.policies[key], m.policy = p, p
			}
		}
		delete(t.groups, p)
		v.host.Warn("policy %s: confirmed at %s", p.compiled.Name, say.Count(len(list), "interface"))
	}
	if len(t.groups) == 0 || time.Now().After(t.until) {
		v.trials = slices.DeleteFunc(v.trials, func(o *trial) bool { return o == t })
	}
	if len(v.outdated()) > 0 { // those that appeared meanwhile
		v.reloading = true
		v.update(v.files, nil, nil, ignore)
	}
}
