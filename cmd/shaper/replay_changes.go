package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// timedChange is what a change of a replay sets.
type timedChange struct {
	at       time.Duration // after the first packet
	customer *compiled.CustomerService
	shares   *compiled.Plan // with the places of links and queues; nil for a customer
}

// readTimedChanges reads the changes of a replay: each line is a time, such as at=1.5s, and a change as
// shaper set takes it. Times must not go back. The policy is for both directions.
func readTimedChanges(
	path string, policy *policyfile.Compiled, direction dataplane.Direction,
) (out []timedChange, err error) {
	book := changes.Book{}
	err = eachLine(path, func(words []string) error {
		text, ok := strings.CutPrefix(words[0], "at=")
		if !ok {
			return errors.New("want the time of the change, such as at=1.5s, before it")
		}
		at, err := policyfile.ParseDuration(text)
		if err != nil {
			return err
		}
		if out != nil && at < out[len(out)-1].at {
			return fmt.Errorf("at=%s is before the change above", text)
		}
		c, err := parseChange(words[1:], time.Time{}, 0)
		if err != nil {
			return err
		}
		if !c.Until.IsZero() {
			return errors.New("for= is not for replays: write another change at that time")
		}
		book.Apply(c)
		compiler := policy.ChangeCompiler(book, time.Time{})
		next := timedChange{at: at}
		if c.Kind == changes.Customer {
			var service *compiled.Service
			if _, service, err = compiler.Service(c.Name); err == nil {
				service = policy.Plan.ServiceFor(direction, service)
			}
			next.customer = &compiled.CustomerService{Name: c.Name, Plan: service}
		} else if err = compiler.Rate(c.Target); err == nil {
			next.shares, _ = compiler.Rates()
			next.shares = next.shares.For(direction)
		}
		out = append(out, next)
		return err
	})
	return out, err
}

// changingEngine makes changes while it meters packets.
type changingEngine struct {
	goEngine
	changes []timedChange // still to be made
	first   int64         // time of the first packet, ns
	begun   bool
}

// due returns the time of the next change; math.MaxInt64 for none.
func (e *changingEngine) due() int64 {
	if !e.begun || len(e.changes) == 0 || int64(e.changes[0].at) > math.MaxInt64-e.first {
		return math.MaxInt64
	}
	return e.first + int64(e.changes[0].at)
}

// Process makes each change before the first packet that arrives at its time or later.
func (e *changingEngine) Process(packets []dataplane.Packet, verdicts []dataplane.Verdict) error {
	if !e.begun && len(packets) > 0 {
		e.first, e.begun = packets[0].Time, true
	}
	for len(packets) > 0 {
		at, n := e.due(), 0
		for n < len(packets) && (packets[n].Time < at || at == math.MaxInt64) {
			n++
		}
		if n == 0 {
			if err := e.change(at); err != nil {
				return err
			}
			continue
		}
		if err := e.goEngine.Process(packets[:n], verdicts[:n]); err != nil {
			return err
		}
		packets, verdicts = packets[n:], verdicts[n:]
	}
	return nil
}

// Settle makes the changes due by now, after the decisions before them.
func (e *changingEngine) Settle(now int64, v *dataplane.Verdict) bool {
	for at := e.due(); at <= now && at < math.MaxInt64; at = e.due() {
		if e.goEngine.Settle(at, v) {
			return true
		}
		// Without packets in queues, it is early enough at the next packet.
		if _, queued := e.Due(); !queued || e.change(at) != nil {
			break
		}
	}
	return e.goEngine.Settle(now, v)
}

// change makes the next change.
func (e *changingEngine) change(now int64) error {
	c := &e.changes[0]
	e.changes = e.changes[1:]
	if c.shares != nil {
		return e.SetRates(now, c.shares)
	}
	e.SetCustomerPlans(now, []compiled.CustomerService{*c.customer})
	return nil
}
