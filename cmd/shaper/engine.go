package main

import (
	"math"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// engine meters a replay and has its counters.
type engine interface {
	replay.Engine
	Stats() ([]dataplane.ClassStats, error)
	// Tokens returns the tokens of a stage of the plan.
	Tokens(stage int) (tc, te int64, err error)
	// Links returns the states of the links after the last decision; nil if the engine has none.
	Links() []dataplane.LinkState
	// Keys returns the counts of a stage's table. counted is false if the engine does not
	// count keys.
	Keys(stage int) (counts meter.TableStats, counted bool)
	// KeysOverBound returns the number of keys of a stage if it is above the bound of the
	// policy, and 0 otherwise. Above the bound, engines may evict different keys and return
	// different colors.
	KeysOverBound(stage int) (keys int, err error)
	Close()
}

// newEngine returns the engine in the flags. both is the policy for both directions.
func (f *replayFlags) newEngine(policy, both *policyfile.Compiled) (engine, error) {
	if f.engine == "go" {
		e := newGoEngine(policy.Plan)
		if !f.noEpisodes {
			e.MeasureLack(episodes.Gap)
		}
		// The report shows tokens after each packet.
		e.single = e.single || f.report != ""
		if f.changes != "" {
			list, err := readTimedChanges(f.changes, both, f.way.direction)
			return &changingEngine{goEngine: e, changes: list}, err
		}
		return e, nil
	}
	return f.newKernelEngine(policy)
}

// goEngine runs packets through a pipeline. It cannot fail.
type goEngine struct {
	replay.Go
	store  *budgets.ReplayStore
	single bool // process one packet at a time
}

func newGoEngine(plan *compiled.Plan) goEngine {
	pl := pipeline.FromPlan(plan)
	store := budgets.NewReplayStore(pl)
	// a server is called between packets
	return goEngine{Go: replay.Go{Pipeline: pl}, store: store, single: store != nil}
}

// Batch returns the maximum number of packets per call of Process.
func (e goEngine) Batch() int {
	if e.single {
		return 1
	}
	return e.Go.Batch()
}

// Process advances the simulated server to the time of the packet, and processes the packet.
func (e goEngine) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	if e.store != nil { // then there is one packet
		e.store.Until(packets[0].Time)
	}
	return e.Go.Process(packets, verdicts)
}

func (e goEngine) Stats() ([]dataplane.ClassStats, error) { return e.Go.Stats(), nil }

func (e goEngine) Tokens(stage int) (tc, te int64, err error) {
	tc, te = e.Go.Tokens(stage)
	return tc, te, nil
}

func (e goEngine) Links() []dataplane.LinkState { return e.Go.Links(math.MaxInt64) }

func (e goEngine) Keys(stage int) (meter.TableStats, bool) { return e.Go.Keys(stage), true }

// KeysOverBound returns 0, because the bound is exact.
func (goEngine) KeysOverBound(int) (int, error) { return 0, nil }

func (goEngine) Close() {}
