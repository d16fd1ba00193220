// Package reload gives running shapers new policies, keeps the changes by shaper set in force, and rolls back
// policies that nobody confirms.
package reload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/process"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// Reload gives new policies to the shapers of an interface. With confirm it then waits, and
// rolls back unless they are confirmed in time.
func Reload(
	ctx context.Context, s cli.Streams, f *live.Flags, name string, flags *cli.PolicyFlags,
	confirm time.Duration, asJSON bool,
) error {
	list, err := f.Choose(name)
	if err != nil {
		return err
	}
	defer live.CloseAll(list)
	if policyfile.HasTwoRates(flags.One.Rate) && len(list) == 1 {
		return cli.Usagef("--rate %s has a rate for each direction, but this changes only %s: give one rate",
			say.Printable(flags.One.Rate), live.Name(list[0].Info()))
	}
	policies, err := loadFor(flags, list)
	if err != nil {
		return err
	}
	a, err := amendFor(s, list, policies, flags.One.Rate != "", f.List == nil)
	if err != nil {
		return err
	}
	defer a.end() // does nothing after settle
	if confirm > 0 && len(a.resets) > 0 {
		return cli.Usagef("--rate would end a change by shaper set, which a rollback cannot restore: leave out --confirm, or reset the change first (shaper set %s lists it)",
			list[0].Info().Interface)
	}
	if err := a.check(s, flags, confirm > 0); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	live.Announce(list, live.Reload, live.Author("shaper reload"))
	if confirm > 0 {
		return a.reloadAndAwait(ctx, s, confirm, asJSON)
	}
	return a.reload(s, time.Time{}, asJSON)
}

// check returns an error if a shaper cannot have its policy, and prints the warnings about each policy.
func (a *amendment) check(s cli.Streams, flags *cli.PolicyFlags, confirm bool) error {
	for i, sh := range a.list {
		policy := a.policies[i]
		if err := cli.CheckPolicy(policy, []live.Handle{sh}); err != nil {
			return err
		}
		if i == 0 || policy != a.policies[0] {
			if live.IsTap(sh.Info()) {
				flags.NoMarks = process.TapMarks
			}
			flags.Warn(s.Err, policy, sh.Info().Interface)
		}
		if confirm && live.IsTap(sh.Info()) {
			return live.ErrNoConfirm
		}
		if owned, err := sh.Owned(); err != nil || owned {
			continue
		}
		switch {
		case policy.HasRules():
			return fmt.Errorf("%s: %w", live.Name(sh.Info()), process.ErrNoRules)
		case budgets.OnServer(policy.Plan):
			return cli.Usagef("%s has no process to renew its share of a budget on a server: use shaper run",
				live.Name(sh.Info()))
		}
	}
	return nil
}

// reloadAndAwait reloads, and waits until the policies are confirmed. They are rolled back at the end of the
// time, at a signal, and if this process is killed.
func (a *amendment) reloadAndAwait(
	ctx context.Context, s cli.Streams, confirm time.Duration, asJSON bool,
) (err error) {
	name := a.list[0].Info().Interface
	signal.Ignore(syscall.SIGHUP) // the new policy may cut off the terminal
	guard, err := live.StartGuard(name, nil, os.Stderr)
	if err == nil {
		err = guard.Instruct(live.Instructions{Stays: true})
	}
	if err != nil {
		return err
	}
	settled := false
	defer func() {
		if settled {
			guard.End()
		} else {
			guard.Release() // rolls back unless confirmed
		}
	}()
	// A stopped terminal must not prevent the rollback.
	out := output.NewOutbox(s.Out)
	s.Out = out
	defer func() { err = errors.Join(err, cli.AfterChange(out.Flush())) }()
	until := time.Now().Add(confirm).Round(0)
	err = a.reload(s, until, asJSON)
	if err != nil && !errors.As(err, new(*incompleteError)) {
		return err
	}
	if !asJSON {
		fmt.Fprintf(s.Out, "waiting %v for shaper confirm %s\n", confirm, name)
	}
	settled, waited := awaitConfirm(ctx, a.list, until)
	return errors.Join(err, waited)
}

// incompleteError means that a policy is in force, but something about it failed.
type incompleteError struct{ error }

func (e *incompleteError) Unwrap() error { return e.error }

// reload gives each shaper its policy, until the first error, and then prints the changes.
func (a *amendment) reload(s cli.Streams, until time.Time, asJSON bool) error {
	if err := a.overruleTap(); err != nil {
		return err
	}
	var loaded [][]compiled.ClassChange
	var failed error
	var incomplete []error
	for i, sh := range a.list {
		classes, err := a.reloadOne(s, i, until)
		if err != nil && !errors.As(err, new(*dataplane.ActiveError)) {
			failed = cli.ExplainIn(a.policies[i], err)
			break
		}
		if err != nil {
			incomplete = append(incomplete, fmt.Errorf("%s: %w", live.Name(sh.Info()), err))
		}
		loaded = append(loaded, classes)
	}
	if err := a.settle(a.list[len(loaded):]); err != nil {
		fmt.Fprintf(s.Err, "shaper: warning: %v\n", err)
	}
	printed := a.print(s, loaded, asJSON)
	if err := errors.Join(incomplete...); err != nil {
		incomplete = []error{&incompleteError{err}}
	}
	return errors.Join(append(incomplete, failed, cli.AfterChange(printed))...)
}

// reloadOne gives the shaper at an index of the list its policy. The policy is in force also with a
// *dataplane.ActiveError.
func (a *amendment) reloadOne(s cli.Streams, i int, until time.Time) ([]compiled.ClassChange, error) {
	sh, policy := a.list[i], a.policies[i]
	done := sh.Prepare(policy)
	classes, err := sh.Reload(policy.Plan, live.Label(policy, sh.Info().Interface), until)
	done()
	var active *dataplane.ActiveError
	if err != nil && !errors.As(err, &active) {
		return nil, err
	}
	if err := sh.KeepCustomers(policy); err != nil {
		fmt.Fprintf(s.Err, "shaper: warning: %s: the copy of the customers: %v\n", live.Name(sh.Info()), err)
	}
	if active != nil {
		return classes, active
	}
	return classes, nil
}

// print prints the change of each class of the first shapers of the list, and the changes by shaper set
// still in force.
func (a *amendment) print(s cli.Streams, loaded [][]compiled.ClassChange, asJSON bool) error {
	p, rows := say.NewPrinter(s.Out), []control.ReloadedShaper(nil)
	for i, classes := range loaded {
		sh, about, policy := a.list[i], a.list[i].Info(), a.policies[i]
		cli.PrintNotes(s.Err, live.Name(about), sh.Notes())
		inForce, _ := a.books[i].InForce(policy, time.Now())
		rows = append(rows, stats.ReloadedOf(about, policy.Name, classes, inForce))
	}
	stats.PrintReloaded(p, s.Err, rows, asJSON)
	return p.Err
}

// loadFor returns a policy for each shaper: the policy in the flags, or the one that the
// shaper was started with, whose file is read again.
func loadFor(p *cli.PolicyFlags, list []live.Handle) (out []*policyfile.Compiled, err error) {
	if p.Given() {
		c, err := p.Load()
		return slices.Repeat([]*policyfile.Compiled{c}, len(list)), err
	}
	read := map[string]*policyfile.Compiled{} // by path
	for _, sh := range list {
		source, err := policyfile.SourceOf(sh.Info().Label)
		if err != nil {
			return nil, err
		}
		c := read[source.Path]
		switch {
		case source.Path == "":
			c, err = source.Compile() // a one-liner has no file
		case c == nil:
			c, err = (&cli.PolicyFlags{File: source.Path}).Load()
			read[source.Path] = c
		}
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}
