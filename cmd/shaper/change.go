package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

func newReload(s streams) *cobra.Command {
	var f liveFlags
	var policy policyFlags
	var confirm time.Duration
	asJSON := false
	cmd := &cobra.Command{
		Use:     "reload [IFACE]",
		GroupID: "shape",
		Short:   "Give a running shaper a new policy",
		Long: `Replace the policy of a running shaper, at once: no packet sees a part of it.
Classes that keep their name keep their counters, and the tokens of their meters,
cut to the new bursts. A policy that does not compile changes nothing. Without
--policy or --meter the policy file that it was started with is read again.`,
		Example: `  shaper reload eth0 --policy docs/uplink.yaml
  shaper reload eth0 --policy docs/uplink.yaml --confirm 60s`,
		Args: atMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.reload(cmd.Context(), s, args, &policy, confirm, asJSON)
		},
	}
	f.add(cmd)
	policy.add(cmd)
	cmd.Flags().Var(newSpan(&confirm, 0), "confirm", "wait, and go back to the policy before unless shaper confirm comes within `TIME`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what became of each class as JSON")
	return cmd
}

// changed is what reload --json prints, a line a shaper.
type changed struct {
	Interface string             `json:"interface"`
	Direction string             `json:"direction"`
	Program   uint32             `json:"program_id"`
	Policy    string             `json:"policy"`
	Classes   []dataplane.Change `json:"classes"`
}

func (f *liveFlags) reload(ctx context.Context, s streams, args []string, flags *policyFlags, confirm time.Duration, asJSON bool) error {
	list, err := f.choose(args)
	if err != nil {
		return err
	}
	defer closeAll(list)
	policy, err := flags.loadOr(list[0].Info())
	if err != nil {
		return err
	}
	if err := suits(policy, list); err != nil {
		return err
	}
	for _, sh := range list {
		if confirm > 0 && sh.Info().Place.Method == byTap {
			return errNoPromise
		}
	}
	if confirm > 0 {
		signal.Ignore(syscall.SIGHUP) // the terminal may be what the new policy cuts off
		guard, err := startGuard(list[0].Info().Interface)
		if err != nil {
			return err
		}
		defer guard.end()
	}
	until := time.Now().Add(confirm)
	p := &printer{w: s.out}
	for _, sh := range list {
		before := sh.Info().Now()
		changes, err := sh.Reload(policy.Policy, labelOf(policy))
		if err != nil {
			return policy.explain(err)
		}
		if confirm > 0 {
			if err := sh.Promise(before, until); err != nil {
				return err
			}
		}
		if asJSON {
			if err := writeJSON(s.out, changed{sh.Info().Interface, sh.Info().Direction.String(), uint32(sh.Info().Program), policy.Name, changes}); err != nil {
				return err
			}
			continue
		}
		p.reloaded(sh.Info(), policy, changes)
	}
	if confirm > 0 {
		if !asJSON {
			p.printf("waiting %v for shaper confirm %s\n", confirm, list[0].Info().Interface)
		}
		return awaitConfirm(ctx, list, until)
	}
	return p.err
}

// loadOr reads the policy that the flags give, or again the file that a shaper
// was started with.
func (p *policyFlags) loadOr(about *kernel.About) (*compiled, error) {
	if p.file == "" && p.one.Meter == "" {
		old, err := policyOf(about.Label)
		if err != nil {
			return nil, err
		}
		if old.Path == "" {
			return nil, usagef("a policy is missing: give --policy FILE or --meter \"...\"")
		}
		p.file = old.Path
	}
	return p.load()
}

// awaitConfirm waits until the new policy is confirmed, or goes back to the one
// before: at the time, and on a signal.
func awaitConfirm(ctx context.Context, list []live, until time.Time) error {
	timeout := time.After(time.Until(until))
	for {
		confirmed := true
		for _, sh := range list {
			if err := sh.Refresh(); err != nil {
				return err
			}
			confirmed = confirmed && !sh.Info().Until.Equal(until)
		}
		if confirmed {
			return nil
		}
		select {
		case <-time.After(pollInterval):
			continue
		case <-ctx.Done():
		case <-timeout:
		}
		errs := []error{errUnconfirmed}
		for _, sh := range list {
			errs = append(errs, goBack(sh))
		}
		return errors.Join(errs...)
	}
}

func newConfirm(s streams) *cobra.Command {
	var f liveFlags
	cmd := &cobra.Command{
		Use:     "confirm [IFACE]",
		GroupID: "shape",
		Short:   "Keep a policy that was given with --confirm",
		Example: "  shaper confirm eth0",
		Args:    atMostOne,
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := f.choose(args)
			if err != nil {
				return err
			}
			defer closeAll(list)
			waited := false
			for _, sh := range list {
				if sh.Info().Until.IsZero() {
					continue
				}
				waited = true
				if err := sh.Promise(nil, time.Time{}); err != nil {
					return err
				}
				if _, err := fmt.Fprintf(s.out, "%s: confirmed\n", where(sh.Info())); err != nil {
					return err
				}
			}
			if !waited {
				return fmt.Errorf("%s waits for no confirmation", list[0].Info().Interface)
			}
			return nil
		},
	}
	f.add(cmd)
	return cmd
}

func newDetach(s streams) *cobra.Command {
	var f liveFlags
	cmd := &cobra.Command{
		Use:     "detach [IFACE]",
		GroupID: "shape",
		Short:   "Remove a running shaper, and what one left behind",
		Example: "  shaper detach eth0",
		Args:    atMostOne,
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := f.choose(args)
			if err != nil && len(args) > 0 && !errors.Is(err, os.ErrPermission) {
				if found, e := f.tidy(args[0]); e != nil || found {
					return e
				}
			}
			if err != nil {
				return err
			}
			var errs []error
			p := &printer{w: s.out}
			for _, sh := range list {
				errs = append(errs, sh.Detach())
				p.detached(sh.Info())
			}
			return errors.Join(append(errs, p.err)...)
		},
	}
	f.add(cmd)
	return cmd
}
