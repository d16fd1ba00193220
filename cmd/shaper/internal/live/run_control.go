package live

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// runPrefix begins the abstract names of the sockets by which a shaper run tells of its
// budgets on servers. The rest is its process ID.
const runPrefix = "@shaper-run:"

func runSocket(process int) string { return fmt.Sprint(runPrefix, process) }

// runControl has the methods of a shaper run that other processes may call.
type runControl struct {
	shares *budgets.Agents
	iface  string // as among the names of hosts
	wake   chan<- chan struct{}
}

// ServeRun has other processes call the shaper run with a process ID. An element of wake
// asks for a look at the shapers, and is closed after it.
func ServeRun(process int, shares *budgets.Agents, iface string, wake chan<- chan struct{}) (io.Closer, error) {
	return serve(runSocket(process), (&runControl{shares, iface, wake}).methods())
}

func (c *runControl) methods() methods {
	return methods{"Take": method(c.Take), "Prepare": method(c.Prepare), "Look": method(c.Look)}
}

// Take answers with the budgets of a direction.
func (c *runControl) Take(direction kernel.Direction, out *[]budgets.State) error {
	*out = c.shares.States(budgets.HostName(c.iface, direction.String()))
	return nil
}

// Prepare is to be called before a direction gets another policy: its new budgets have
// shares then.
func (c *runControl) Prepare(in Policy, _ *struct{}) error {
	policy, err := policyfile.CompileLabel(in.Label)
	if err != nil {
		return err
	}
	return c.shares.Prepare(context.Background(), budgets.Shaper{Plan: policy.Plan, Name: budgets.HostName(c.iface, in.Direction.String())})
}

// Look is to be called after that. When it returns the new meters follow their leases.
func (c *runControl) Look(struct{}, *struct{}) error {
	looked, late := make(chan struct{}), time.After(askTimeout)
	select {
	case c.wake <- looked:
	case <-late:
		return nil
	}
	select {
	case <-looked:
	case <-late:
	}
	return nil
}

// askTimeout is how long another process is waited for, which may be stopped. It may take
// a second to answer.
const askTimeout = 3 * time.Second

// askRun calls a method of a shaper run, and says whether it answered.
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

// PrepareRun has the process of a shaper prepare for a policy that it is about to get, if
// it is there: without that, packets of new budgets have no share for a moment. The
// function that it returns is to be called when the shaper has the policy.
func PrepareRun(sh Shaper, policy *policyfile.Compiled) (done func()) {
	k, ok := sh.(*kernel.Shaper)
	if !ok || !budgets.OnServer(policy.Plan) {
		return func() {}
	}
	if owned, err := k.Owned(); err != nil || !owned { // its ID may be another process's by now
		return func() {}
	}
	if _, ok := askRun[Policy, struct{}](k.Process, "Prepare", Policy{k.Direction, policy.Label()}); !ok {
		return func() {}
	}
	return func() { askRun[struct{}, struct{}](k.Process, "Look", struct{}{}) }
}

// ServerBudgets are those of a shaper in the kernel: as its process knows them, 0 for
// none, or else as the kernel does.
func ServerBudgets(sh *kernel.Shaper, process int) (out []budgets.State) {
	names := sh.OnServers()
	if len(names) == 0 {
		return nil
	}
	why := "no process renews its share"
	if process != 0 {
		var answered bool
		why = fmt.Sprintf("process %d does not answer", process)
		if out, answered = askRun[kernel.Direction, []budgets.State](process, "Take", sh.Direction); answered {
			why = fmt.Sprintf("process %d has not asked for it yet", process)
		}
	}
	known := func(name string) bool {
		return slices.ContainsFunc(out, func(b budgets.State) bool { return b.Name == name })
	}
	out = slices.DeleteFunc(out, func(b budgets.State) bool { return !slices.Contains(names, b.Name) })
	if !slices.ContainsFunc(names, func(name string) bool { return !known(name) }) {
		return out
	}
	policy, err := policyfile.CompileLabel(sh.Label)
	if err != nil {
		return out // statusOf says as little
	}
	for _, s := range budgets.OnServers(policy.Plan) {
		if known(s.BudgetName) {
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
