package main

import (
	"errors"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/annotate"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/decisions"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/summary"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// observers see the packets and verdicts of a replay. An observer without its flag is nil.
type observers struct {
	files    *replayFiles
	rows     *decisions.Writer
	notes    *annotate.Writer
	series   *summary.Collector
	episodes *episodes.Tracker
}

// observers returns the observers that the flags and files ask for.
func (f *replayFlags) observers(files *replayFiles, policy *policyfile.Compiled, e engine) *observers {
	o := &observers{files: files}
	if files.decisions != nil {
		o.rows = decisions.New(files.decisions, policy.Plan,
			strings.HasSuffix(strings.TrimSuffix(f.decisions, ".gz"), ".jsonl"))
	}
	if files.annotate != nil {
		o.notes = annotate.New(files.annotate, policy.Plan, version())
	}
	if files.report != nil {
		o.series = summary.NewCollector(policy, e)
	}
	if !f.noEpisodes {
		o.episodes = episodes.New(policy.Plan)
		if o.series != nil {
			o.episodes.Begin = o.series.Begin
		}
	}
	return o
}

// join makes a replay call the observers and write its output. Calls without an observer stay nil.
func (o *observers) join(cfg *replay.Config) {
	if o.files.out != nil { // a nil file is not a nil io.Writer
		cfg.Output = o.files.out
	}
	if o.episodes != nil {
		cfg.Batch = o.episodes.Packets
	}
	if o.notes != nil {
		cfg.Arrived = o.arrived
	}
	if o.series != nil || o.rows != nil || o.notes != nil {
		cfg.Each = o.packet
	}
	cfg.Settled = o.settled
	if o.rows != nil || o.notes != nil {
		cfg.Flush = o.flush
	}
}

// arrived is replay.Config.Arrived.
func (o *observers) arrived(p *dataplane.Packet) error {
	return o.files.annotate.Wrap(o.notes.Arrived(p))
}

// packet is replay.Config.Each.
func (o *observers) packet(p *dataplane.Packet, v *dataplane.Verdict) error {
	if o.series != nil {
		if err := o.series.Packet(p, v); err != nil {
			return err
		}
	}
	if o.rows != nil {
		if err := o.rows.Packet(p, v); err != nil {
			return o.files.decisions.Wrap(err)
		}
	}
	if o.notes != nil {
		return o.files.annotate.Wrap(o.notes.Packet(v))
	}
	return nil
}

// settled is replay.Config.Settled.
func (o *observers) settled(v *dataplane.Verdict) error {
	if o.episodes != nil {
		o.episodes.Settled(v)
	}
	if o.series != nil {
		o.series.Settled(v)
	}
	if o.rows != nil {
		if err := o.rows.Settled(v); err != nil {
			return o.files.decisions.Wrap(err)
		}
	}
	if o.notes != nil {
		return o.files.annotate.Wrap(o.notes.Settled(v))
	}
	return nil
}

// flush writes the rows and the annotated capture up to here: whenever the input pauses, and at the end.
func (o *observers) flush() error {
	var err error
	if o.rows != nil {
		err = o.files.decisions.Wrap(o.rows.Flush())
	}
	if o.notes != nil {
		err = errors.Join(err, o.files.annotate.Wrap(o.notes.Flush()))
	}
	return err
}

// totals returns the totals of a replay. why returns the command that explains a packet.
func (o *observers) totals(
	policy *policyfile.Compiled, e engine, result replay.Summary, why func(packet int64) string,
) (n summary.Replay, err error) {
	n.Summary = result
	if n.Stats, err = e.Stats(); err != nil {
		return n, err
	}
	n.Keys, n.Links = keysOf(policy.Plan, e), e.Links()
	if o.episodes != nil {
		n.Worst = o.episodes.Worst()
		n.Lists = &summary.EpisodeLists{
			DropEpisodes:   o.episodes.Counts[episodes.Drop],
			YellowEpisodes: o.episodes.Counts[episodes.Yellow],
			Episodes:       summary.Episodes(policy.Plan, n.Worst, result.First, why),
		}
	}
	return n, nil
}

// commit completes all outputs. in is the path of the capture.
func (o *observers) commit(in string, n summary.Replay) error {
	if err := o.flush(); err != nil {
		return err
	}
	if o.series != nil {
		if err := o.files.report.Wrap(o.series.Write(o.files.report, in, version(), n)); err != nil {
			return err
		}
	}
	return o.files.commit()
}
