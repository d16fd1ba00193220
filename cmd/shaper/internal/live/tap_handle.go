package live

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
)

// tapHandle is one direction of a shaper tap.
type tapHandle struct {
	Snapshot
	client *caller   // nil for the shaper tap of this process
	local  *LocalTap // of this process; nil for others
}

// ErrNoConfirm is the error for a rollback timer, which shaper tap does not support.
var ErrNoConfirm = errors.New("--confirm is not supported by shaper tap")

// listTaps returns all directions of shaper taps in this network namespace.
func listTaps() []Handle {
	file, err := os.Open("/proc/thread-self/net/unix")
	if err != nil {
		return nil
	}
	defer file.Close()
	var out []Handle
	seen := map[string]bool{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		_, name, ok := strings.Cut(lines.Text(), tapPrefix)
		if !ok || seen[name] {
			continue
		}
		seen[name] = true
		out = append(out, openTap(name)...)
	}
	return out
}

// hasTap reports whether a device has a shaper tap, even one that does not answer.
func hasTap(name string) bool {
	client := connect(tapPrefix+name, 0)
	if client != nil {
		client.Close()
	}
	return client != nil
}

// openTap returns the directions of the shaper tap of a device; none if it is just
// ending, or does not answer: a stopped process must not block the commands for other interfaces.
func openTap(name string) (out []Handle) {
	client := connect(tapPrefix+name, 0)
	if client == nil {
		return nil
	}
	var list []Snapshot
	client.within(askTimeout)
	if err := client.call("Take", struct{}{}, &list); err != nil {
		client.Close()
		return nil
	}
	client.patiently()
	for _, s := range list {
		if client == nil { // each direction needs its own connection
			if client = connect(tapPrefix+name, 0); client == nil {
				break
			}
		}
		out = append(out, &tapHandle{Snapshot: s, client: client})
		client = nil
	}
	return out
}

// Handle returns a read-only handle of this direction, with its shares of budgets on servers. Its
// state is the current one.
func (c *LocalTap) Handle(shares []budgets.State) Handle {
	h := &tapHandle{Snapshot: c.Snapshot(), local: c}
	h.Snapshot.Shares = shares
	return h
}

func (h *tapHandle) Info() *kernel.About  { return &h.About }
func (h *tapHandle) Owned() (bool, error) { return true, nil }
func (h *tapHandle) Guarded() bool        { return false }

// Close ignores errors: Detach may have closed the connection.
func (h *tapHandle) Close()                                   { _ = h.client.Close() }
func (h *tapHandle) Lost() tap.Lost                           { return h.Now.Lost }
func (h *tapHandle) Shares(int) []budgets.State               { return h.Snapshot.Shares }
func (h *tapHandle) Notes() []string                          { return nil } // the process prints them
func (h *tapHandle) KeepCustomers(*policyfile.Compiled) error { return nil }
func (h *tapHandle) Settle(string) error                      { return nil }
func (h *tapHandle) shaper() *kernel.Shaper                   { return nil }
func (h *tapHandle) keeper() (keeper, error)                  { return keeper{tap: h.client}, nil }
func (h *tapHandle) announceTo() *caller {
	return connect(tapPrefix+h.About.Interface, 0)
}

// Attached reports whether the process still answers.
func (h *tapHandle) Attached() (bool, error) { return h.client == nil || h.Refresh() == nil, nil }

// Problems returns none: the process moves the frames itself.
func (h *tapHandle) Problems() ([]kernel.Problem, error) { return nil, nil }

// Prepare does nothing: Reload waits for the shares.
func (h *tapHandle) Prepare(*policyfile.Compiled) (done func()) { return func() {} }

// Earlier returns none.
func (h *tapHandle) Earlier(kernel.Reading) (r kernel.Reading, ok bool) { return r, false }

// Keep does nothing.
func (h *tapHandle) Keep(kernel.Reading) {}

// Sample returns the counters as of the last Refresh.
func (h *tapHandle) Sample() (Sample, error) {
	return Sample{
		Reading: kernel.Reading{At: kernel.Now(), Stats: h.Now.Stats, Queues: h.Now.Queues},
		Tokens:  h.Now.Tokens,
		Keys:    h.Now.Keys,
	}, h.readable()
}

func (h *tapHandle) Customers() (at int64, list []Customer, err error) {
	if err := h.readable(); err != nil {
		return 0, nil, err
	}
	at = kernel.Now()
	if err := h.client.call("Customers", h.About.Direction, &list); err != nil {
		return 0, nil, err
	}
	if len(list) == 0 {
		err = ErrNoCustomers
	}
	return at, list, err
}

func (h *tapHandle) Links() (at int64, list []dataplane.LinkState, err error) {
	if err := h.readable(); err != nil {
		return 0, nil, err
	}
	at = kernel.Now()
	if h.local != nil {
		return at, h.local.Shaper.Links(), nil
	}
	return at, list, h.client.call("Links", h.About.Direction, &list)
}

func (h *tapHandle) Changes() (Changes, error) {
	reply := changesReply{Problem: h.Problem, Customers: h.Snapshot.Customers}
	h.client.within(askTimeout)
	defer h.client.patiently()
	if err := h.client.call("Changes", struct{}{}, &reply.List); err != nil {
		return Changes{}, err
	}
	return reply.read()
}

// readable returns an error if the process is of another version, with unreadable counters.
func (h *tapHandle) readable() error {
	if h.Version != snapshotVersion {
		return fmt.Errorf("process %d is another version of shaper: use that one, or restart it",
			h.About.Process)
	}
	return nil
}

// Check accepts every compiled policy.
func (h *tapHandle) Check(plan *compiled.Plan) error { return plan.InUserSpace() }

// Refresh reads the state again.
func (h *tapHandle) Refresh() error {
	var list []Snapshot
	if err := h.client.call("Take", struct{}{}, &list); err != nil {
		return kernel.ErrDetached
	}
	for _, s := range list {
		if s.About.Direction == h.About.Direction {
			h.Snapshot = s
		}
	}
	return nil
}

// Reload replaces the policy of the direction. It does not support rollback timers.
func (h *tapHandle) Reload(
	_ *compiled.Plan, label json.RawMessage, until time.Time,
) ([]compiled.ClassChange, error) {
	if !until.IsZero() {
		return nil, ErrNoConfirm
	}
	var changes []compiled.ClassChange
	err := h.client.call("Reload", Policy{h.About.Direction, label}, &changes)
	return changes, errors.Join(err, h.Refresh())
}

// Detach ends the other process's command.
func (h *tapHandle) Detach() error {
	defer h.Close()
	err := h.client.call("End", struct{}{}, &struct{}{})
	if errors.Is(err, errProcessEnded) {
		return nil
	}
	return err
}
