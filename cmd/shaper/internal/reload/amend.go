package reload

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
)

// amendment gives new policies the changes in force of the shapers that get them. Until end is called, no
// process can make other changes.
type amendment struct {
	list     []live.Handle
	policies []*policyfile.Compiled // with the changes in force, parallel to list
	books    []live.Changes         // parallel to list; without the changes that the new policy overrules

	locks   []io.Closer
	shapers map[string][]live.Handle    // by file of changes; "" for a shaper tap
	parts   map[string]bool             // files whose changes are those of other shapers, too
	resets  map[string][]changes.Change // of overruled changes, by file of changes
}

func (a *amendment) end() {
	for _, l := range a.locks {
		l.Close()
	}
	a.locks = nil
}

// amendFor returns the amendment that replaces the policies of shapers by policies with the changes in force.
// With overrule, the policies end the changes of their own links and queues. With all, the list contains all
// shapers of the interface.
func amendFor(
	s cli.Streams, list []live.Handle, policies []*policyfile.Compiled, overrule, all bool,
) (*amendment, error) {
	a := &amendment{
		list: list, policies: slices.Clone(policies),
		shapers: map[string][]live.Handle{}, resets: map[string][]changes.Change{},
	}
	if !all {
		var err error
		if a.parts, err = partFiles(list); err != nil {
			return nil, err
		}
	}
	type amended struct {
		*policyfile.Compiled
		path string
	}
	done := map[amended]*policyfile.Compiled{}
	for i, sh := range list {
		path, now, err := a.lockChanges(s, sh)
		if err != nil {
			a.end()
			return nil, err
		}
		if overrule && !a.parts[path] {
			a.overrule(path, now.Book, policies[i])
		}
		a.books = append(a.books, now)
		key := amended{policies[i], path}
		if done[key] == nil {
			var stale []error
			done[key], stale = policies[i].Amended(path, now.Book, time.Now())
			cli.WarnStale(s.Err, stale)
		}
		if !live.IsTap(sh.Info()) { // the process of a shaper tap changes its policy itself, without warnings
			a.policies[i] = done[key]
		}
	}
	return a, nil
}

// lockChanges locks the file of a shaper's changes, and returns its path and the changes.
func (a *amendment) lockChanges(s cli.Streams, sh live.Handle) (path string, now live.Changes, err error) {
	source, err := policyfile.SourceOf(sh.Info().Label)
	if err != nil {
		return "", now, err
	}
	path = bookOf(sh, source)
	if path != "" && a.shapers[path] == nil {
		l, err := changes.Lock(path)
		switch {
		case errors.Is(err, changes.ErrLocked):
			return "", now, err
		case err != nil: // no process can hold it
			fmt.Fprintf(s.Err, "shaper: warning: %v\n", err)
		default:
			a.locks = append(a.locks, l)
		}
	}
	a.shapers[path] = append(a.shapers[path], sh)
	now, err = sh.Changes()
	if err != nil && live.IsTap(sh.Info()) {
		return "", now, err
	}
	if err != nil {
		fmt.Fprintf(s.Err, "shaper: warning: %v\n", err)
	}
	if now.Problem != "" {
		fmt.Fprintf(s.Err, "shaper: warning: %s: %s\n", live.Name(sh.Info()), say.Printable(now.Problem))
	}
	return path, now, nil
}

// overrule removes the changes of links and queues of a policy from a book.
func (a *amendment) overrule(path string, book changes.Book, policy *policyfile.Compiled) {
	for _, t := range book.Targets() {
		if _, err := policy.Own(t); err == nil && t.Kind != changes.Customer {
			reset := changes.Change{Target: t, Reset: true}
			book.Apply(reset)
			a.resets[path] = append(a.resets[path], reset)
		}
	}
}

// bookOf returns the file of a shaper's changes; "" for a shaper tap, whose process keeps them.
func bookOf(sh live.Handle, source policyfile.Source) string {
	if live.IsTap(sh.Info()) {
		return ""
	}
	return source.Changes
}

// partFiles returns the files of changes, as in amendment.shapers, of shapers of the interface that are
// not in a list.
func partFiles(list []live.Handle) (map[string]bool, error) {
	v, err := live.Look(list[0].Info().Interface)
	if err != nil {
		return nil, err
	}
	defer func() { live.CloseAll(v.List) }()
	out := map[string]bool{}
	for _, sh := range v.List {
		if !slices.ContainsFunc(list,
			func(o live.Handle) bool { return o.Info().Direction == sh.Info().Direction }) {
			source, err := policyfile.SourceOf(sh.Info().Label)
			if err != nil {
				source = policyfile.Source{} // of another program or version: it has no changes
			}
			out[bookOf(sh, source)] = true
		}
	}
	return out, nil
}

// resetsOf returns the resets of the overruled changes of a file, and forgets them.
func (a *amendment) resetsOf(path string) []changes.Change {
	resets := a.resets[path]
	delete(a.resets, path)
	now, author := time.Now().Round(0), live.Author("shaper reload")
	for i := range resets {
		resets[i].Since, resets[i].Author = now, author
	}
	return resets
}

// overruleTap ends the overruled changes of a shaper tap: its process applies all its changes to a new
// policy.
func (a *amendment) overruleTap() error {
	if resets := a.resetsOf(""); resets != nil {
		return live.Set(a.shapers[""], resets)
	}
	return nil
}

// settle marks the changes in the files as in force, because the new policies contain them, and ends the
// overruled changes. failed lists the shapers without their new policy. settle releases the locks.
func (a *amendment) settle(failed []live.Handle) error {
	var errs []error
	done := func(path string) bool {
		return !a.parts[path] &&
			!slices.ContainsFunc(a.shapers[path],
				func(sh live.Handle) bool { return slices.Contains(failed, sh) })
	}
	for path, list := range a.shapers {
		if done(path) {
			errs = append(errs, list[0].Settle(path))
		}
	}
	a.end()
	for path, list := range a.shapers {
		if !done(path) {
			continue
		}
		if resets := a.resetsOf(path); resets != nil {
			if err := live.Set(list, resets); err != nil {
				errs = append(errs,
					fmt.Errorf("the new rate is in force, but the change before is still listed by shaper set, and may return: %w",
						err))
			}
		}
	}
	return errors.Join(errs...)
}
