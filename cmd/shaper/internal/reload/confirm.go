package reload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// awaitConfirm waits until the new policy is confirmed. At the deadline, or on a signal, it rolls back.
// settled: there is nothing left to roll back.
func awaitConfirm(ctx context.Context, list []live.Handle, until time.Time) (settled bool, err error) {
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

// Confirm makes the unconfirmed policies of an interface, or of the only shaped one, permanent.
func Confirm(s cli.Streams, f *live.Flags, name string, asJSON bool) error {
	list, err := f.Choose(name)
	if err != nil {
		return err
	}
	defer live.CloseAll(list)
	live.Announce(list, live.Confirm, live.Author("shaper confirm"))
	confirmed, err := live.ConfirmPolicies(list)
	var rows []control.Confirmed
	for _, sh := range confirmed {
		rows = append(rows, control.ConfirmedOf(&sh.About))
	}
	if err == nil && len(confirmed) == 0 {
		err = fmt.Errorf("%s: %w", list[0].Info().Interface, control.ErrNothing)
	}
	return errors.Join(err, cli.AfterChange(PrintConfirmed(s, rows, asJSON)))
}

// PrintConfirmed prints the shapers whose policies were confirmed.
func PrintConfirmed(s cli.Streams, list []control.Confirmed, asJSON bool) error {
	p := say.NewPrinter(s.Out)
	for _, row := range list {
		if asJSON {
			p.Err = errors.Join(p.Err, say.WriteJSON(s.Out, row))
		} else {
			p.Printf("%s %s: confirmed\n", row.Interface, row.Direction)
		}
	}
	return p.Err
}
