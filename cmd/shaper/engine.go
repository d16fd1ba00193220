package main

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// engine is what meters a replay, and says afterwards what it counted.
type engine interface {
	replay.Engine
	Stats() ([]dataplane.ClassStats, error)
	// Tokens, Keys and Over are those of a stage of the plan.
	Tokens(stage int) (tc, te int64, err error)
	Keys(stage int) (counts meter.TableStats, counted bool)
	// Over is how many keys a meter knows if they are more than its bound: from
	// then on another engine may forget others, and give other colors.
	Over(stage int) (keys int, err error)
	Close()
}

// newEngine makes the engine that the flags ask for.
func (f *replayFlags) newEngine(policy *policyfile.Compiled) (engine, error) {
	if f.engine == "go" {
		pipeline := dataplane.NewPipeline(policy.Plan)
		return goEngine{replay.Go{Pipeline: pipeline}, budgets.NewReplayStore(pipeline)}, nil
	}
	if budgets.OnServer(policy.Plan) {
		return nil, usagef("--engine bpf does not support budgets on servers: use --engine go, which simulates a server")
	}
	batch := 0
	if f.report != "" {
		batch = 1 // the report shows tokens after each packet
	}
	w, err := kernel.NewWalker(policy.Plan, batch)
	if err != nil {
		return nil, explainIn(policy, err)
	}
	return kernelEngine{w, policy.Plan}, nil
}

// kernelEngine is the kernel's program as an engine.
type kernelEngine struct {
	*kernel.Walker
	plan *dataplane.Plan
}

// Keys has nothing: the kernel does not count the keys of a table.
func (kernelEngine) Keys(int) (meter.TableStats, bool) { return meter.TableStats{}, false }

// Over asks the table of a meter.
func (e kernelEngine) Over(stage int) (int, error) {
	n, err := e.Walker.Keys(stage)
	if n <= e.plan.Stages[stage].Keys {
		n = 0
	}
	return n, err
}

// goEngine is a pipeline as an engine, which cannot fail.
type goEngine struct {
	replay.Go
	store *budgets.ReplayStore
}

// Process is replay.Go's, in the time of the packets.
func (e goEngine) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	if len(packets) > 0 {
		e.store.Until(packets[0].Time) // Batch is 1
	}
	return e.Go.Process(packets, verdicts)
}

func (e goEngine) Stats() ([]dataplane.ClassStats, error) { return e.Go.Stats(), nil }

func (e goEngine) Tokens(stage int) (tc, te int64, err error) {
	tc, te = e.Go.Tokens(stage)
	return tc, te, nil
}

func (e goEngine) Keys(stage int) (meter.TableStats, bool) { return e.Go.Keys(stage), true }

// Over is never: the bound is exact.
func (goEngine) Over(int) (int, error) { return 0, nil }

func (goEngine) Close() {}
