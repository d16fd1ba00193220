package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
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
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/standby"
	"github.com/spf13/cobra"
)

func newReload(s cli.Streams) *cobra.Command {
	var f live.Flags
	var all live.AllFlag
	var policy cli.PolicyFlags
	var confirm time.Duration
	asJSON := false
	cmd := &cobra.Command{
		Use:     "reload [IFACE]",
		GroupID: "shape",
		Short:   "Replace the policy of a running shaper",
		Long: `Replace the policy of a running shaper in one step: each packet is handled by
the old policy or by the new one. A class that keeps its name keeps its
counters, and its meters keep their tokens, capped at the new bursts. A policy
that does not compile changes nothing. Without --policy, --rate or --meter, read
the policy file again that the shaper was started with.`,
		Example: `  shaper reload eth0 --policy docs/uplink.yaml
  shaper reload eth0 --policy docs/uplink.yaml --confirm 60s`,
		Args: cli.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all.All && confirm > 0 {
				return cli.Usagef("--confirm needs one interface: name it instead of --all")
			}
			return all.Each(&f, func(cmd *cobra.Command, name string) error {
				own := policy // each interface may have its own file
				return reload(cmd.Context(), s, &f, name, &own, confirm, asJSON)
			})(cmd, args)
		},
	}
	f.Add(cmd)
	all.Add(cmd, &f, "reload all shaped interfaces")
	policy.Add(cmd)
	cmd.Flags().Var(cli.NewTimeFlag(&confirm, 0), "confirm",
		"wait, and roll back to the previous policy unless you run shaper confirm within `TIME`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the change of each class as JSON")
	return cmd
}

// changed is the output of reload --json, one line per shaper.
type changed struct {
	Interface string                 `json:"interface"`
	Direction string                 `json:"direction"`
	Program   uint32                 `json:"program_id"`
	Policy    string                 `json:"policy"`
	Classes   []compiled.ClassChange `json:"classes"`
	Kept      []control.Change       `json:"changes"` // by shaper set, still in force
}

// reload gives new policies to the shapers of an interface. With confirm it then waits, and
// rolls back unless they are confirmed in time.
func reload(
	ctx context.Context, s cli.Streams, f *live.Flags, name string, flags *cli.PolicyFlags,
	confirm time.Duration, asJSON bool,
) (err error) {
	list, err := f.Choose(name)
	if err != nil {
		return err
	}
	defer live.CloseAll(list)
	policies, err := loadFor(flags, list)
	if err != nil {
		return err
	}
	amended, err := amendFor(s, list, policies, flags.One.Rate != "", f.List == nil)
	if err != nil {
		return err
	}
	defer amended.end() // again does nothing
	if confirm > 0 && len(amended.resets) > 0 {
		return cli.Usagef("--rate would end a change by shaper set, which a rollback cannot restore: leave out --confirm, or reset the change first (shaper set %s lists it)",
			list[0].Info().Interface)
	}
	for i, sh := range list {
		if err := cli.CheckPolicy(policies[i], []live.Handle{sh}); err != nil {
			return err
		}
		if i == 0 || policies[i] != policies[0] {
			if live.IsTap(sh.Info()) {
				flags.NoMarks = process.TapMarks
			}
			flags.Warn(s.Err, policies[i], sh.Info().Interface)
		}
		if confirm > 0 && live.IsTap(sh.Info()) {
			return live.ErrNoConfirm
		}
		owned, err := sh.Owned()
		if err == nil && !owned && policies[i].HasRules() {
			return fmt.Errorf("%s: %w", live.Name(sh.Info()), process.ErrNoRules)
		}
		if err == nil && !owned && budgets.OnServer(policies[i].Plan) {
			return cli.Usagef("%s has no process to renew its share of a budget on a server: use shaper run",
				live.Name(sh.Info()))
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	live.Announce(list, live.Reload, live.Author("shaper reload"))
	if confirm == 0 {
		return amended.reload(s, list, policies, time.Time{}, asJSON)
	}
	name = list[0].Info().Interface
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
	err = amended.reload(s, list, policies, until, asJSON)
	if err != nil && !errors.As(err, new(*incompleteError)) {
		return err
	}
	if !asJSON {
		fmt.Fprintf(s.Out, "waiting %v for shaper confirm %s\n", confirm, name)
	}
	settled, waited := awaitConfirm(ctx, list, until)
	return errors.Join(err, waited)
}

// incompleteError means that a policy is in force, but something about it failed.
type incompleteError struct{ error }

func (e *incompleteError) Unwrap() error { return e.error }

// reload gives each shaper its policy, until the first error, and then prints the changes.
func (a *amendment) reload(
	s cli.Streams, list []live.Handle, policies []*policyfile.Compiled, until time.Time, asJSON bool,
) (err error) {
	var loaded [][]compiled.ClassChange
	var incomplete []error
	if err := a.overruleTap(); err != nil {
		return err
	}
	for i, sh := range list {
		done := sh.Prepare(policies[i])
		var changes []compiled.ClassChange
		changes, err = sh.Reload(policies[i].Plan, live.Label(policies[i], sh.Info().Interface), until)
		done()
		var active *dataplane.ActiveError
		if err != nil && !errors.As(err, &active) {
			err = cli.ExplainIn(policies[i], err)
			break
		}
		if err := sh.KeepCustomers(policies[i]); err != nil {
			fmt.Fprintf(s.Err, "shaper: warning: %s: the copy of the customers: %v\n", live.Name(sh.Info()),
				err)
		}
		if active != nil {
			incomplete = append(incomplete, fmt.Errorf("%s: %w", live.Name(sh.Info()), active))
		}
		err = nil
		loaded = append(loaded, changes)
	}
	if err := a.settle(list[len(loaded):]); err != nil {
		fmt.Fprintf(s.Err, "shaper: warning: %v\n", err)
	}
	p := newPrinter(s.Out)
	for i, changes := range loaded {
		sh, about := list[i], list[i].Info()
		cli.PrintNotes(s.Err, live.Name(about), sh.Notes())
		all := a.books[sh]
		inForce, _ := all.InForce(policies[i], time.Now())
		cli.PrintNotes(s.Err, live.Name(about), live.KeptNotes(inForce, about.Interface))
		if !asJSON {
			live.PrintReloaded(p.Printer, about, policies[i], changes)
			continue
		}
		row := changed{
			about.Interface, about.Direction.String(), uint32(about.Program), policies[i].Name, changes,
			[]control.Change{},
		}
		for i := range inForce {
			row.Kept = append(row.Kept, stats.InForceJSON(&inForce[i]))
		}
		p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, row))
	}
	if err := errors.Join(incomplete...); err != nil {
		incomplete = []error{&incompleteError{err}}
	}
	return errors.Join(append(incomplete, err, cli.AfterChange(p.Err))...)
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

// awaitConfirm waits until the new policy is confirmed. At the deadline, or on a signal, it
// rolls back. done reports that the policy was confirmed or rolled back.
func awaitConfirm(ctx context.Context, list []live.Handle, until time.Time) (bool, error) {
	timeout := time.After(time.Until(until))
	for {
		confirmed, replaced := true, false
		for _, sh := range list {
			err := sh.Refresh()
			if errors.Is(err, kernel.ErrDetached) {
				return false, err
			}
			now := sh.Info().Until
			confirmed = confirmed && err == nil && !now.Equal(until)
			replaced = replaced || err == nil && !now.Equal(until) && !now.IsZero()
		}
		if confirmed && replaced {
			return true, errors.New("not confirmed: replaced by another policy with --confirm")
		}
		if confirmed {
			return true, nil
		}
		select {
		case <-time.After(live.PollInterval):
			continue
		case <-ctx.Done():
		case <-timeout:
		}
		unconfirmed, err := live.RollBack(list, until)
		return err == nil, errors.Join(unconfirmed, err) // unconfirmed is nil if it was confirmed just now
	}
}

// confirmedJSON is the output of confirm --json, one line per confirmed direction.
type confirmedJSON struct {
	Interface string `json:"interface"`
	Direction string `json:"direction"`
	State     string `json:"state"` // "confirmed"
	ProgramID uint32 `json:"program_id"`
	Policy    string `json:"policy"`
}

func newConfirm(s cli.Streams) *cobra.Command {
	var f live.Flags
	asJSON := false
	cmd := &cobra.Command{
		Use:     "confirm [IFACE]",
		GroupID: "shape",
		Short:   "Make a policy applied with --confirm permanent",
		Long: `Make a policy that was applied with --confirm permanent. Run it from a new
session: that proves that you can still log in. It fails if the policy was
rolled back already.`,
		Example: "  shaper confirm eth0",
		Args:    cli.AtMostOne,
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := f.Choose(cli.InterfaceArg(args))
			if err != nil {
				return err
			}
			defer live.CloseAll(list)
			live.Announce(list, live.Confirm, live.Author("shaper confirm"))
			confirmed, err := live.ConfirmPolicies(list)
			p := newPrinter(s.Out)
			for _, sh := range confirmed {
				if asJSON {
					err = errors.Join(err, cli.AfterChange(say.WriteJSON(s.Out, confirmedJSON{
						sh.Interface, sh.Direction.String(), "confirmed", uint32(sh.Program),
						policyName(&sh.About),
					})))
					continue
				}
				p.Printf("%s: confirmed\n", live.Name(sh.Info()))
			}
			if err == nil && len(confirmed) == 0 {
				err = fmt.Errorf(
					"%s: nothing to confirm: confirmed already, rolled back, or applied without --confirm",
					list[0].Info().Interface)
			}
			return errors.Join(err, cli.AfterChange(p.Err))
		},
	}
	f.Add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line per confirmed direction")
	return cmd
}

// policyName returns the name of a shaper's policy, or "" if its record has none.
func policyName(about *kernel.About) string {
	source, _ := policyfile.SourceOf(about.Label)
	return source.Name
}

func newDetach(s cli.Streams) *cobra.Command {
	var f live.Flags
	asJSON := false
	all := live.AllFlag{IncludeLeft: true}
	cmd := &cobra.Command{
		Use:     "detach [IFACE]",
		GroupID: "shape",
		Short:   "Detach a running shaper, or clean up after one that died",
		Long: `Detach the shaper from an interface and restore the previous qdiscs and limits.
It does the same for state that a killed shaper left behind, and ends a shaper
that waits for its interface. You can omit IFACE if only one is shaped.`,
		Example: "  shaper detach eth0",
		Args:    cli.AtMostOne,
		RunE: all.Each(&f,
			func(_ *cobra.Command, name string) error { return detach(s, &f, name, asJSON) }),
	}
	f.Add(cmd)
	all.Add(cmd, &f, "detach all shaped interfaces, and clean up those with something left behind")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one line per interface")
	return cmd
}

// detachedJSON is the output of detach --json, one line per interface.
type detachedJSON struct {
	Interface   string              `json:"interface"`
	Directions  []detachedDirection `json:"directions"`
	LostPackets uint32              `json:"lost_packets"` // dropped with their queues
	LostAtMost  bool                `json:"lost_at_most"` // lost_packets is an upper bound
	Removed     []string            `json:"removed"`
	Restored    []string            `json:"restored"` // previous qdiscs and limits
	Warnings    []string            `json:"warnings"`
	Errors      []string            `json:"errors"`
}

// detachedDirection is a shaper, something that a killed shaper left behind, or a process that waited.
type detachedDirection struct {
	Direction string `json:"direction"`
	State     string `json:"state"` // "detached", "cleaned up" or "no longer waiting"
	What      string `json:"what,omitempty"`
	ProgramID uint32 `json:"program_id,omitempty"`
	Process   int    `json:"process,omitempty"` // ID of the process that waited
	Policy    string `json:"policy,omitempty"`
}

// detach removes everything of shaper from an interface, or from the only one that has
// something.
func detach(s cli.Streams, f *live.Flags, name string, asJSON bool) error {
	v, err := live.Look()
	if err != nil {
		return err
	}
	defer func() { live.CloseAll(v.List) }()
	v.Narrow(name, f.List)
	if name == "" {
		switch names := v.Names(); len(names) {
		case 0:
			return f.NoneError("")
		case 1:
			name = names[0]
		default:
			return f.SeveralError(names)
		}
	}
	p := newPrinter(s.Out)
	if asJSON {
		p = newPrinter(io.Discard)
	}
	out := detachedJSON{Interface: name, Directions: []detachedDirection{}, Errors: []string{}}
	var errs []error
	for _, a := range v.Away {
		if err := standby.EndAway(a); err != nil {
			errs = append(errs, err)
			continue
		}
		p.Printf("%s %v: process %d no longer waits for it\n", a.Interface, a.Direction, a.Process)
		out.Directions = append(out.Directions, detachedDirection{
			Direction: a.Direction.String(), State: "no longer waiting", Process: a.Process, Policy: a.Policy,
		})
	}
	directions := f.List
	if directions == nil {
		directions = []dataplane.Direction{kernel.Egress, kernel.Ingress}
	}
	live.Announce(v.List, live.Detach, live.Author("shaper detach"))
	cleared, err := kernel.Clear(name, directions...)
	if errors.As(err, new(*kernel.NoInterfaceError)) &&
		len(v.Away)+len(v.List)+len(v.Left)+len(cleared.Removed) > 0 {
		err = nil
	}
	errs = append(errs, err)
	out.Removed, out.Restored = append([]string{}, cleared.Removed...),
		append([]string{}, cleared.Restored...)
	out.Warnings = append([]string{}, cleared.Notes...)
	out.LostPackets, out.LostAtMost = cleared.Lost.Packets, cleared.Lost.AtMost
	for _, sh := range v.List {
		failed := err
		if live.IsTap(sh.Info()) { // Clear removed the others
			failed = sh.Detach()
			errs = append(errs, failed)
		}
		if failed != nil {
			continue
		}
		about := sh.Info()
		about.Lost = cleared.Lost
		cleared.Lost = kernel.Lost{}
		live.PrintDetached(p.Printer, about)
		out.Directions = append(out.Directions, detachedDirection{
			Direction: about.Direction.String(), State: "detached", ProgramID: uint32(about.Program),
			Policy: policyName(about),
		})
	}
	if err == nil {
		for _, l := range v.Left {
			out.Directions = append(out.Directions, detachedDirection{
				Direction: l.Direction.String(), State: "cleaned up", What: l.What,
			})
		}
	}
	for _, note := range cleared.Notes {
		fmt.Fprintf(s.Err, "shaper: warning: %s\n", note)
	}
	if len(v.List) == 0 {
		for _, what := range cleared.Removed {
			p.Printf("cleaned up: %s\n", what)
		}
		if len(cleared.Removed) == 0 && len(v.Left) > 0 && err == nil {
			p.Printf("%s: cleaned up\n", name)
		}
	}
	found := len(v.List)+len(v.Left)+len(v.Away)+len(cleared.Removed) > 0
	if !found && err == nil {
		return f.NoneError(name)
	}
	err = errors.Join(errs...)
	if asJSON && found {
		if err != nil {
			out.Errors = strings.Split(err.Error(), "\n")
		}
		return errors.Join(err, cli.AfterChange(say.WriteJSON(s.Out, out)))
	}
	return errors.Join(err, cli.AfterChange(p.Err))
}
