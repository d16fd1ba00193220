package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// amendment gives new policies the changes in force of the shapers that get them. Until end is called, no process
// can make other changes.
type amendment struct {
	locks   []io.Closer
	shapers map[string][]live.Shaper     // by file of changes
	books   map[live.Shaper]live.Changes // without the changes that the new policy overrules
	resets  map[string][]changes.Change  // of overruled changes, by file of changes
}

func (a *amendment) end() {
	for _, l := range a.locks {
		l.Close()
	}
	a.locks = nil
}

// amendFor replaces the policies of shapers by policies with the changes in force. overrule says that the
// policies end the changes of links and queues that they have.
func amendFor(s streams, list []live.Shaper, policies []*policyfile.Compiled, overrule bool) (*amendment, error) {
	a := &amendment{shapers: map[string][]live.Shaper{}, books: map[live.Shaper]live.Changes{}, resets: map[string][]changes.Change{}}
	type amended struct {
		*policyfile.Compiled
		path string
	}
	done := map[amended]*policyfile.Compiled{}
	for i, sh := range list {
		source, err := policyfile.SourceOf(sh.Info().Label)
		if err != nil {
			a.end()
			return nil, err
		}
		path := source.Changes
		_, inKernel := sh.(*kernel.Shaper)
		if !inKernel { // its process changes the policy, without warnings
			path = ""
		}
		if path != "" && a.shapers[path] == nil {
			l, err := changes.Lock(path)
			switch {
			case errors.Is(err, changes.ErrLocked):
				a.end()
				return nil, err
			case err != nil: // nobody can have it
				fmt.Fprintf(s.err, "shaper: warning: %v\n", err)
			default:
				a.locks = append(a.locks, l)
			}
		}
		a.shapers[path] = append(a.shapers[path], sh)
		all, err := live.ChangesOf(sh)
		if err != nil && !inKernel {
			a.end()
			return nil, err
		}
		if err != nil {
			fmt.Fprintf(s.err, "shaper: warning: %v\n", err)
		}
		if overrule {
			a.overrule(path, all.Book, policies[i])
		}
		a.books[sh] = all
		key := amended{policies[i], path}
		if done[key] == nil {
			var stale []error
			done[key], stale = policies[i].Amended(path, all.Book, time.Now())
			warnStale(s.err, stale)
		}
		if inKernel {
			policies[i] = done[key]
		}
	}
	return a, nil
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

// settle notes in the files of changes what the new policies have put into force, and ends the changes that they
// overrule. The lock ends with it.
func (a *amendment) settle() error {
	var errs []error
	for path, list := range a.shapers {
		if k, ok := list[0].(*kernel.Shaper); ok {
			errs = append(errs, live.Settle(k, path))
		}
	}
	a.end()
	now, author := time.Now().Round(0), live.Author("shaper reload")
	for path, resets := range a.resets {
		for i := range resets {
			resets[i].Since, resets[i].Author = now, author
		}
		if err := live.Set(a.shapers[path], resets); err != nil {
			errs = append(errs, fmt.Errorf("the new rate is in force, but shaper set still lists the change before: %w", err))
		}
	}
	return errors.Join(errs...)
}
