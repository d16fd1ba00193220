package main

import (
	"fmt"
	"io"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// amendFor replaces the policies of shapers by policies with the changes in force. Until unlock
// is called, no process can make other changes.
func amendFor(s streams, list []live.Shaper, policies []*policyfile.Compiled) (unlock func(), err error) {
	var locks []io.Closer
	unlock = func() {
		for _, l := range locks {
			l.Close()
		}
		locks = nil
	}
	type amended struct {
		*policyfile.Compiled
		path string
	}
	done := map[amended]*policyfile.Compiled{}
	locked := map[string]bool{"": true}
	for i, sh := range list {
		source, err := policyfile.SourceOf(sh.Info().Label)
		if err != nil {
			unlock()
			return unlock, err
		}
		path := source.Changes
		_, inKernel := sh.(*kernel.Shaper)
		if !inKernel { // its process changes the policy, without warnings
			path = ""
		}
		if !locked[path] {
			l, err := changes.Lock(path)
			if err != nil {
				unlock()
				return unlock, err
			}
			locked[path], locks = true, append(locks, l)
		}
		key := amended{policies[i], path}
		if done[key] == nil {
			book, err := live.Changes(sh)
			if err != nil && !inKernel {
				unlock()
				return unlock, err
			}
			if err != nil {
				fmt.Fprintf(s.err, "shaper: warning: %v\n", err)
			}
			var stale []error
			done[key], stale = policies[i].Amended(path, book, time.Now())
			warnStale(s.err, stale)
		}
		if inKernel {
			policies[i] = done[key]
		}
	}
	return unlock, nil
}
