package main

import (
	"errors"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/annotate"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/decisions"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// stream adds the annotated capture to a replay, and flushes it and the rows whenever the input
// pauses. rows may be nil. The caller must call flush at the end.
func (f *replayFiles) stream(
	cfg *replay.Config, plan *compiled.Plan, rows *decisions.Writer,
) (flush func() error) {
	var notes *annotate.Writer
	if f.annotate != nil {
		notes = annotate.New(f.annotate, plan, version())
		each, settled := cfg.Each, cfg.Settled
		cfg.Arrived = func(p *dataplane.Packet) error { return f.annotate.Wrap(notes.Arrived(p)) }
		cfg.Each = func(p *dataplane.Packet, v *dataplane.Verdict) error {
			if each != nil {
				if err := each(p, v); err != nil {
					return err
				}
			}
			return f.annotate.Wrap(notes.Packet(v))
		}
		cfg.Settled = func(v *dataplane.Verdict) error {
			if settled != nil {
				if err := settled(v); err != nil {
					return err
				}
			}
			return f.annotate.Wrap(notes.Settled(v))
		}
	}
	if rows == nil && notes == nil {
		return func() error { return nil }
	}
	flush = func() error {
		var err error
		if rows != nil {
			err = f.decisions.Wrap(rows.Flush())
		}
		if notes != nil {
			err = errors.Join(err, f.annotate.Wrap(notes.Flush()))
		}
		return err
	}
	cfg.Flush = flush
	return flush
}
