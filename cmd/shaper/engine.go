package main

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
)

// engine is what meters a replay, and says afterwards what it counted.
type engine interface {
	replay.Engine
	Stats() ([]dataplane.ClassStats, error)
	Tokens(*dataplane.Meter) (tc, te int64, err error)
	Close()
}

// newEngine makes the engine that the flags ask for.
func (f *replayFlags) newEngine(policy *compiled) (engine, error) {
	if f.engine == "go" {
		return goEngine{replay.Go{Pipeline: policy.pipeline}}, nil
	}
	batch := 0
	if f.report != "" {
		batch = 1 // the report shows tokens after each packet
	}
	w, err := kernel.NewWalker(policy.Policy, batch)
	if err != nil {
		return nil, policy.explain(err)
	}
	return w, nil
}

// goEngine is a pipeline as an engine, which cannot fail.
type goEngine struct{ replay.Go }

func (e goEngine) Stats() ([]dataplane.ClassStats, error) { return e.Go.Stats(), nil }

func (e goEngine) Tokens(m *dataplane.Meter) (tc, te int64, err error) {
	tc, te = e.Go.Tokens(m)
	return tc, te, nil
}

func (goEngine) Close() {}
