package reload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
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

// confirmedJSON is the output of confirm --json, one line per confirmed direction.
type confirmedJSON struct {
	Interface string `json:"interface"`
	Direction string `json:"direction"`
	State     string `json:"state"` // "confirmed"
	ProgramID uint32 `json:"program_id"`
	Policy    string `json:"policy"`
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
	p := say.NewPrinter(s.Out)
	for _, sh := range confirmed {
		if asJSON {
			err = errors.Join(err, cli.AfterChange(say.WriteJSON(s.Out, confirmedJSON{
				sh.Interface, sh.Direction.String(), "confirmed", uint32(sh.Program),
				live.PolicyName(&sh.About),
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
}
