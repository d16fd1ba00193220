package main

import (
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/episodes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/walk"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// newKernelEngine returns the engine that runs the program in the kernel.
func (f *replayFlags) newKernelEngine(policy *policyfile.Compiled) (engine, error) {
	if budgets.OnServer(policy.Plan) {
		return nil, cli.Usagef(
			"--engine bpf does not support budgets on servers: use --engine go, which simulates a server")
	}
	batch := 0
	if f.report != "" {
		batch = 1 // the report shows tokens after each packet
	}
	w, err := walk.New(policy.Plan, batch)
	if err != nil {
		return nil, cli.ExplainIn(policy, err)
	}
	if !f.noEpisodes {
		w.MeasureLack(episodes.Gap)
	}
	return kernelEngine{w, policy.Plan}, nil
}

// kernelEngine runs packets through the eBPF program.
type kernelEngine struct {
	*walk.Walker
	plan *compiled.Plan
}

// Links returns nothing: the program runs no policy with links.
func (kernelEngine) Links() []dataplane.LinkState { return nil }

// Keys returns nothing, because the kernel does not count keys.
func (kernelEngine) Keys(int) (meter.TableStats, bool) { return meter.TableStats{}, false }

// KeysOverBound reads the table of a stage, which has room for more keys than the bound.
func (e kernelEngine) KeysOverBound(stage int) (int, error) {
	n, err := e.Walker.Keys(stage)
	if n <= e.plan.Stages[stage].Keys {
		n = 0
	}
	return n, err
}
