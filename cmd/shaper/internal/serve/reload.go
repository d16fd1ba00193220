package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"sort"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// A reload reads the configuration and all policies again. A configuration with an error changes nothing. A
// policy with an error, or which one of its interfaces cannot run, changes none of its interfaces.

// reloaded receives the shapers with another policy, and the errors of a reload.
type reloaded func([]control.ReloadedShaper, error)

// reload reads the files again, and calls done when all interfaces have their policies. pattern chooses
// interfaces; "" chooses all, and applies the entries of the configuration to them.
func (v *supervisor) reload(pattern string, done reloaded) {
	next, err := v.beginReload(done)
	if next == nil {
		return
	}
	before := v.files
	if pattern == "" {
		v.files, v.trials = next, nil
		v.rematch()
	} else {
		v.files = before.with(next, v.chosen(pattern))
		for _, i := range v.idle {
			if control.Chooses(pattern, i.Name) {
				v.choose(i.Link, 0)
			}
		}
	}
	v.reloading = true
	ended := done
	done = func(rows []control.ReloadedShaper, err error) {
		v.failed = err != nil
		ended(rows, err)
	}
	if len(v.outdated()) == 0 {
		err = v.host.Reload(v.summary, func() error { return err })
	}
	v.update(before, nil, err, done)
}

// beginReload reads the files again. Without files, it has called done.
func (v *supervisor) beginReload(done reloaded) (*files, error) {
	if v.reloading {
		done(nil, errReloading)
		return nil, nil
	}
	next, err := v.nextFiles()
	if v.failed = err != nil; next == nil {
		v.host.Warn("%v: nothing is changed", err)
		done(nil, v.host.Reload(v.summary, func() error { return err }))
	}
	return next, err
}

var errReloading = errors.New("a reload is running: try again")

// target is a member with its name at the beginning of a reload.
type target struct {
	*member
	name string
}

// outdated returns the members whose policy is not that of the files, by that policy.
func (v *supervisor) outdated() map[*policy][]target {
	out := map[*policy][]target{}
	for _, m := range v.shaped("") {
		if p := v.newer(m); p != nil {
			out[p] = append(out[p], target{m, m.Name})
		}
	}
	return out
}

// newer returns the policy of the files for a member, nil if it has that policy.
func (v *supervisor) newer(m *member) *policy {
	if p := v.files.policies[source(m.entry)]; p != m.policy && !m.ending {
		return p
	}
	return nil
}

// update loads the policies of the files at all outdated members. It continues with those that were started
// with earlier policies meanwhile. before has the policies for those that cannot be loaded.
func (v *supervisor) update(before *files, rows []control.ReloadedShaper, failed error, done reloaded) {
	groups := v.outdated()
	if len(groups) == 0 {
		v.reloading = false
		done(rows, failed)
		return
	}
	go func() {
		more, err := v.replaceAll(groups, time.Time{}, failed)
		v.calls <- func() {
			for p, list := range groups {
				for _, t := range list {
					t.policy = p
				}
				if p.refused != nil {
					v.restore(p, before)
				}
			}
			v.update(before, append(rows, more...), err, done)
		}
	}()
}

// replaceAll loads each policy at its interfaces, and tells the service manager. failed is an earlier error.
func (v *supervisor) replaceAll(
	groups map[*policy][]target, until time.Time, failed error,
) (out []control.ReloadedShaper, err error) {
	err = v.host.Reload(v.summary, func() error {
		var errs []error
		for p, list := range groups {
			var rows []control.ReloadedShaper
			var err error
			rows, p.refused, err = v.replace(p, list, until)
			out, errs = append(out, rows...), append(errs, p.refused, err)
		}
		return errors.Join(append(errs, failed)...)
	})
	sort.SliceStable(out, func(i, j int) bool { return out[i].Interface < out[j].Interface })
	return out, err
}

// restore makes interfaces that appear get the policy of before.
func (v *supervisor) restore(p *policy, before *files) {
	for key, now := range v.files.policies {
		if now == p && before.policies[key] != nil {
			v.files.policies[key] = before.policies[key]
			for _, m := range v.members {
				if m.policy == p {
					m.policy = before.policies[key]
				}
			}
		}
	}
}

// chosen returns the entries of the interfaces chosen by a pattern.
func (v *supervisor) chosen(pattern string) (out []*policyfile.ServeInterfaces) {
	for _, m := range v.members {
		if control.Chooses(pattern, m.Name) {
			out = append(out, m.entry)
		}
	}
	for _, i := range v.idle {
		if e := v.files.config.Of(i.Name, i.Loopback); e != nil && control.Chooses(pattern, i.Name) {
			out = append(out, e)
		}
	}
	return out
}

// with returns the files with the policies of other files for some entries.
func (f *files) with(other *files, list []*policyfile.ServeInterfaces) *files {
	out := *f
	out.policies = maps.Clone(f.policies)
	for _, e := range list {
		if p := other.policies[source(e)]; p != nil {
			out.policies[source(e)] = p
		}
	}
	return &out
}

// nextFiles reads the configuration and the policies again. A policy with an error is that of before, and
// the error is returned beside the files. Without files, the configuration has an error.
func (v *supervisor) nextFiles() (*files, error) {
	next, err := newFiles(v.files.dir)
	if next == nil {
		return nil, err
	}
	for at := range next.config.Interfaces {
		key := source(&next.config.Interfaces[at])
		if p := next.policies[key]; p.compiled == nil {
			before := v.files.policies[key]
			if before == nil {
				return nil, err // an entry without any policy
			}
			next.policies[key] = before
		}
	}
	if err != nil {
		v.host.Warn("%v: its interfaces are unchanged", err)
	}
	for _, p := range next.policies {
		p.flags.Warn(v.host.Errors(), p.compiled, "")
	}
	return next, err
}

// rematch applies the entries of the configuration to all interfaces.
func (v *supervisor) rematch() {
	for _, m := range v.members {
		e := v.files.config.Of(m.Name, m.Loopback)
		if e == nil {
			e = v.files.config.Of(m.chosen, m.Loopback)
		}
		switch {
		case e == nil:
			m.ending = true
			m.Detach()
		case !sameOptions(e, m.entry):
			m.ending, m.again = true, true
			m.Stop()
		default:
			m.entry = e
		}
	}
	clear(v.idle)
	v.lookAtAll()
}

// sameOptions reports whether entries differ at most in their places, matches and policies.
func sameOptions(a, b *policyfile.ServeInterfaces) bool {
	x, y := *a, *b
	y.Place, y.Match, y.Policy, y.Rate = x.Place, x.Match, x.Policy, x.Rate
	return reflect.DeepEqual(x, y)
}

// replace loads a policy at all of its interfaces, or at none if one of them cannot run it: then it is
// refused. failed are errors of loading it: the process of such an interface goes on with the policy that is
// in force there, until the next reload. If until is not zero, the policy rolls back at that time at
// interfaces without a confirmation, and at once at all interfaces after an error.
func (v *supervisor) replace(
	p *policy, list []target, until time.Time,
) (out []control.ReloadedShaper, refused, failed error) {
	ctx := context.Background()
	changed := make([]bool, len(list))
	refused = each(list, func(i int, t target) error {
		has, err := t.Has(ctx, p.compiled)
		if changed[i] = !has && err == nil; !changed[i] {
			return nil // or it has just ended
		}
		return t.Accepts(ctx, p.compiled)
	})
	if refused != nil {
		refused = fmt.Errorf("%w: policy %s is not loaded at any interface", refused, p.compiled.Name)
		v.host.Warn("%v", refused)
		return nil, refused, nil
	}
	rows := make([][]control.ReloadedShaper, len(list))
	failed = each(list, func(i int, t target) (err error) {
		if !changed[i] {
			return nil
		}
		rows[i], err = t.Use(ctx, p.compiled, until)
		select {
		case <-t.Ended(): // meanwhile
			rows[i] = nil
			return nil
		default:
		}
		if err != nil {
			rows[i] = nil
			return fmt.Errorf("%w: not reloaded", err)
		}
		return nil
	})
	if failed != nil && !until.IsZero() {
		failed = errors.Join(failed, each(list, func(_ int, t target) error { return t.RollBack(ctx) }))
		rows = nil
	}
	if failed != nil {
		v.host.Warn("%v", failed)
	}
	n := 0
	for _, of := range rows {
		if out = append(out, of...); len(of) > 0 {
			n++
		}
	}
	if n > 0 {
		v.host.Warn("policy %s: reloaded at %s", p.compiled.Name, say.Count(n, "interface"))
	}
	return out, nil, failed
}

// each calls f for all members, several at once, and joins the errors with their names.
func each(list []target, f func(i int, t target) error) error {
	var all sync.WaitGroup
	free := make(chan struct{}, runtime.NumCPU())
	errs := make([]error, len(list))
	for i, t := range list {
		free <- struct{}{}
		all.Go(func() {
			if err := f(i, t); err != nil {
				errs[i] = fmt.Errorf("%s: %w", t.name, err)
			}
			<-free
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
