package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/strictjson"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// runPrefix is the beginning of the abstract socket name of a shaper run. The rest is its
// process ID.
const runPrefix = "@shaper-run:"

func runSocket(process int) string { return fmt.Sprint(runPrefix, process) }

// Run serves a shaper run to other processes. The goroutine that owns the shapers
// must receive from the channels.
type Run struct {
	Shares  *budgets.Agents
	Name    string               // interface in the names of hosts
	Wake    chan<- chan struct{} // receives a channel to close after the next check of the shapers
	Calls   chan<- func()        // receives functions to call
	Changer *Changer             // used by Calls
	Problem func() string        // used by Calls; as in Changes
	Heard   *Heard               // announcements of other processes
}

// Serve lets other processes call this shaper run, whose process ID is process.
func (c *Run) Serve(process int) (io.Closer, error) { return serve(runSocket(process), c.methods()) }

func (c *Run) methods() methods {
	return methods{"Take": method(c.take), "Prepare": method(c.prepare), "Look": method(c.look), "Set": method(c.set), "Changes": method(c.changes), "Announce": method(c.Heard.announce)}
}

// take returns the budgets of a direction.
func (c *Run) take(direction dataplane.Direction, out *[]budgets.State) error {
	*out = c.Shares.States(budgets.HostName(c.Name, direction.String()))
	return nil
}

// prepare must be called before a direction gets another policy, so that new budgets have
// shares.
func (c *Run) prepare(in Policy, _ *struct{}) error {
	policy, err := policyfile.CompileLabel(in.Label)
	if err != nil {
		return err
	}
	return c.Shares.Prepare(context.Background(), budgets.Shaper{Plan: policy.Plan, Name: budgets.HostName(c.Name, in.Direction.String())})
}

// look must be called after a direction got another policy. When it returns, this process
// knows the new program, and new meters follow their leases.
func (c *Run) look(struct{}, *struct{}) error {
	looked, late := make(chan struct{}), time.After(askTimeout)
	select {
	case c.Wake <- looked:
	case <-late:
		return nil
	}
	select {
	case <-looked:
	case <-late:
	}
	return nil
}

// set makes changes, a JSON list.
func (c *Run) set(in json.RawMessage, out *setReply) error {
	var list []changes.Change
	if err := strictjson.Unmarshal(in, &list, changes.MaxList); err != nil {
		return err
	}
	return out.of(c.Set(list))
}

// setReply is the answer to changes that are in force.
type setReply struct {
	Unkept string // why they are not kept; "": they are
}

// of returns the error of changes, unless they are in force.
func (r *setReply) of(err error) error {
	var unkept *changes.UnkeptError
	if errors.As(err, &unkept) {
		r.Unkept = unkept.Err.Error()
		return nil
	}
	return err
}

// changes returns the changes in the shapers.
func (c *Run) changes(_ struct{}, out *changesReply) error {
	var now Changes
	if err := c.call(func() error {
		now = Changes{Book: maps.Clone(c.Changer.Book), Problem: c.Problem()}
		return nil
	}); err != nil {
		return err
	}
	reply, err := now.reply()
	*out = reply
	return err
}

// Set makes changes, as Changer.Set does.
func (c *Run) Set(list []changes.Change) error {
	path := ""
	if err := c.call(func() error { path = c.Changer.Path; return nil }); err != nil {
		return err
	}
	lock, unlocked := changes.LockWithin(path, setPatience)
	if unlocked == nil {
		defer lock.Close()
	}
	return c.call(func() error {
		switch {
		case c.Changer.Path != path: // the interface has returned
			return ErrBusy
		case unlocked != nil:
			return c.Changer.SetUnlocked(list, unlocked)
		}
		return c.Changer.Set(list)
	})
}

// setPatience is the time that a change waits for the lock of the file. A reload takes less.
const setPatience = time.Second

// call calls f in the goroutine that owns the shapers.
func (c *Run) call(f func() error) error {
	done, late := make(chan error, 1), time.After(askTimeout)
	select {
	case c.Calls <- func() { done <- f() }:
		return <-done
	case <-late:
		return ErrBusy
	}
}

// ErrBusy means that the goroutine that owns the shapers does not answer.
var ErrBusy = errors.New("the process is busy, or waits for the interface")

// askTimeout is the time to wait for another process, which may be stopped. An answer may
// take a second.
const askTimeout = 3 * time.Second

// askRun calls a method of a shaper run. ok reports whether it answered.
func askRun[In, Out any](process int, method string, in In) (out Out, ok bool) {
	client := connect(runSocket(process), process)
	if client == nil {
		return out, false
	}
	defer client.Close()
	client.within(askTimeout)
	if err := client.call(method, in, &out); err != nil {
		return *new(Out), false
	}
	return out, true
}

// PrepareRun prepares the process of a shaper for a new policy, if it has one. Without that,
// new budgets would have no share for a moment. The caller must call done after the reload:
// then the process knows the new program, and can tell later who detached it.
func PrepareRun(sh Shaper, policy *policyfile.Compiled) (done func()) {
	k, ok := sh.(*kernel.Shaper)
	if !ok {
		return func() {}
	}
	if owned, err := Owned(sh); err != nil || !owned { // its ID may belong to another process
		return func() {}
	}
	if budgets.OnServer(policy.Plan) {
		if _, ok := askRun[Policy, struct{}](k.Process, "Prepare", Policy{k.Direction, policy.Label()}); !ok {
			return func() {}
		}
	}
	return func() { askRun[struct{}, struct{}](k.Process, "Look", struct{}{}) }
}

// ServerBudgets returns the budgets on servers of a shaper in the kernel, as its process
// reports them. If the process does not answer or is 0, it returns the data in the kernel.
func ServerBudgets(sh *kernel.Shaper, process int) (out []budgets.State) {
	names := sh.OnServers()
	if len(names) == 0 {
		return nil
	}
	why := "no process renews its share"
	if process != 0 {
		var answered bool
		why = fmt.Sprintf("process %d does not answer", process)
		if out, answered = askRun[dataplane.Direction, []budgets.State](process, "Take", sh.Direction); answered {
			why = fmt.Sprintf("process %d has not asked for it yet", process)
		}
	}
	reported := func(name string) bool {
		return slices.ContainsFunc(out, func(b budgets.State) bool { return b.Name == name })
	}
	out = slices.DeleteFunc(out, func(b budgets.State) bool { return !slices.Contains(names, b.Name) })
	if len(out) == len(names) {
		return out
	}
	policy, err := policyfile.CompileLabel(sh.Label)
	if err != nil {
		return out // statusOf omits the budgets, too
	}
	for _, s := range budgets.OnServers(policy.Plan) {
		if reported(s.BudgetName) {
			continue
		}
		b := budgets.State{
			Name: s.BudgetName, Store: shared.Server(s.Budget.Store).String(), Host: budgets.HostName(sh.Interface, sh.Direction.String()), Packets: s.Packets,
			Size: budgets.Amounts(budgets.TermsOf(s).Size), Error: why,
		}
		now, last, err := sh.Leased(b.Name)
		if err != nil {
			b.Error += "; " + err.Error()
		}
		b.Share, b.Rescue = budgets.Amounts(budgets.AmountsOf(now)), budgets.Amounts(budgets.AmountsOf(last))
		b.Rescued = b.Share == b.Rescue
		out = append(out, b)
	}
	return out
}
