package main

import (
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/replay"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// engine is what meters a replay, and says afterwards what it counted.
type engine interface {
	replay.Engine
	Stats() ([]dataplane.ClassStats, error)
	Tokens(*dataplane.Meter) (tc, te int64, err error)
	Keys(*dataplane.Meter) (counts meter.TableStats, counted bool)
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
	return kernelEngine{w}, nil
}

// kernelEngine is the kernel's program as an engine.
type kernelEngine struct{ *kernel.Walker }

// Keys has nothing: the kernel does not count the keys of a table.
func (kernelEngine) Keys(*dataplane.Meter) (meter.TableStats, bool) { return meter.TableStats{}, false }

// goEngine is a pipeline as an engine, which cannot fail.
type goEngine struct{ replay.Go }

func (e goEngine) Stats() ([]dataplane.ClassStats, error) { return e.Go.Stats(), nil }

func (e goEngine) Tokens(m *dataplane.Meter) (tc, te int64, err error) {
	tc, te = e.Go.Tokens(m)
	return tc, te, nil
}

func (e goEngine) Keys(m *dataplane.Meter) (meter.TableStats, bool) { return e.Go.Keys(m), true }

func (goEngine) Close() {}
