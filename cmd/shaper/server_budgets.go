package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// serverBudget is a shaper's share of a budget on a server: in status --json, and as one
// process tells another. Amounts are those of budgetStateJSON.
type serverBudget struct {
	Name     string      `json:"name"`
	Store    string      `json:"store"` // without a password
	Host     string      `json:"host"`  // the shaper's name there
	Packets  bool        `json:"packets"`
	Renewed  bool        `json:"renewed"` // a process renews it; otherwise only share, rescue and the policy's size are known
	Heard    bool        `json:"heard"`
	Rescued  bool        `json:"rescued"`
	Learning bool        `json:"learning"`
	Share    amountsJSON `json:"share"`
	Rescue   amountsJSON `json:"rescue"`
	Size     amountsJSON `json:"size"`
	Bound    amountsJSON `json:"bound,omitzero"`                // of all hosts together
	Once     [2]int64    `json:"once,omitzero"`                 // tokens beyond it after a failover
	Without  amountsJSON `json:"bound_without_server,omitzero"` // of all hosts, if none reaches the server; while rescued
	Hosts    int64       `json:"hosts"`
	Late     int64       `json:"late"`
	Replicas int64       `json:"replicas"`
	Smallest string      `json:"smallest,omitempty"`
	Calls    uint64      `json:"calls"`
	Lost     uint64      `json:"lost_calls"`
	Error    string      `json:"error,omitempty"` // of the last call
}

// budgetOf is the state of a budget in words for other processes.
func budgetOf(st *shared.Status, store string) serverBudget {
	b := serverBudget{
		Name: st.Budget, Store: store, Host: st.Host, Packets: bool(unitOf(st.Floor)), Renewed: true,
		Heard: st.Heard, Rescued: st.Rescued, Learning: st.Learning,
		Share: amountsJSON(st.Share), Rescue: amountsJSON(st.Rescue), Size: amountsJSON(st.Size),
		Bound: amountsJSON(st.Bound.Sum), Once: st.Bound.Once,
		Hosts: st.Hosts, Late: st.Late, Replicas: st.Replicas, Smallest: st.Smallest, Calls: st.Calls, Lost: st.Lost,
	}
	if st.Rescued {
		b.Without = amountsJSON(st.Without.Sum)
	}
	if st.Err != nil {
		b.Error = strings.TrimPrefix(st.Err.Error(), store+": ")
	}
	return b
}

// rates writes rates in the budget's unit.
func (b *serverBudget) rates(a amountsJSON) string { return unit(b.Packets).rates(lease.Amounts(a)) }

// String is a line without the budget's name.
func (b *serverBudget) String() string {
	var out strings.Builder
	printf := func(format string, args ...any) { fmt.Fprintf(&out, format, args...) }
	none := amountsJSON{}
	switch {
	case b.Share == none && b.Rescue == none:
		printf("no share")
	case b.Rescued && b.Share == b.Rescue:
		printf("the rescue share of %s", b.rates(b.Share))
	case b.Rescued || !b.Renewed:
		printf("%s, then the rescue share of %s", b.rates(b.Share), b.rates(b.Rescue))
	default:
		printf("%s of %s, %s", b.rates(b.Share), b.rates(b.Size), say.Count(b.Hosts, "host"))
		if b.Late > 0 {
			printf(", %d late", b.Late)
		}
	}
	if b.Bound != none {
		printf("; all together at most %s", b.rates(b.Bound))
		if b.Without != none {
			printf(", %s if no host reaches the server", b.rates(b.Without))
		}
		if b.Once != [2]int64{} {
			printf(", and once %s after a failover", unit(b.Packets).bursts(lease.Amounts{Burst: b.Once}))
		}
	}
	if b.Learning {
		printf("; the server learns what hosts hold: no share grows")
	}
	if b.Smallest != "" {
		printf("; hosts disagree about the size: %s has the smallest", b.Smallest)
	}
	switch {
	case b.Error != "" && b.Renewed:
		printf("; last call: %s", b.Error)
	case b.Error != "":
		printf("; %s", b.Error)
	}
	return out.String()
}

// runPrefix begins the abstract names of the sockets by which a shaper run tells of its
// budgets on servers. The rest is its process ID.
const runPrefix = "@shaper-run:"

func runSocket(process int) string { return fmt.Sprint(runPrefix, process) }

// runControl has the methods of a shaper run that other processes may call.
type runControl struct {
	shares *shares
	iface  string // as among the names of hosts
	wake   chan<- chan struct{}
}

func (c *runControl) methods() methods {
	return methods{"Take": method(c.Take), "Prepare": method(c.Prepare), "Look": method(c.Look)}
}

// Take answers with the budgets of a direction.
func (c *runControl) Take(direction kernel.Hook, out *[]serverBudget) error {
	*out = c.shares.budgets(hostName(c.iface, direction.String()))
	return nil
}

// Prepare is to be called before a direction gets another policy: its new budgets have
// shares then.
func (c *runControl) Prepare(in Policy, _ *struct{}) error {
	policy, err := policyOf(in.Label)
	if err != nil {
		return err
	}
	return c.shares.prepare(context.Background(), shareOf{policy.plan, hostName(c.iface, in.Direction.String())})
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

// tell has status see the budgets on servers, and a reload prepare those that it brings.
// Without that the shaper works as well.
func (r *running) tell() {
	if r.told {
		return
	}
	r.told = true
	control, err := serve(runSocket(os.Getpid()), (&runControl{r.shares, r.host, r.wake}).methods())
	switch {
	case err == nil:
		r.control = control
	case onServer(r.policy.plan):
		r.warn("shaper status cannot show the budgets on servers: %v", err)
	}
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

// prepareRun has the process of a shaper prepare for a policy that it is about to get, if
// it is there: without that, packets of new budgets have no share for a moment. The
// function that it returns is to be called when the shaper has the policy.
func prepareRun(sh live, policy *compiled) (done func()) {
	k, ok := sh.(*kernel.Shaper)
	if !ok || !onServer(policy.plan) {
		return func() {}
	}
	if owned, err := k.Owned(); err != nil || !owned { // its ID may be another process's by now
		return func() {}
	}
	if _, ok := askRun[Policy, struct{}](k.Process, "Prepare", Policy{k.Direction, labelOf(policy)}); !ok {
		return func() {}
	}
	return func() { askRun[struct{}, struct{}](k.Process, "Look", struct{}{}) }
}

// serverBudgets are those of a shaper in the kernel: as its process knows them, 0 for
// none, or else as the kernel does.
func serverBudgets(sh *kernel.Shaper, process int) (out []serverBudget) {
	names := sh.OnServers()
	if len(names) == 0 {
		return nil
	}
	why := "no process renews its share"
	if process != 0 {
		var answered bool
		why = fmt.Sprintf("process %d does not answer", process)
		if out, answered = askRun[kernel.Hook, []serverBudget](process, "Take", sh.Direction); answered {
			why = fmt.Sprintf("process %d has not asked for it yet", process)
		}
	}
	known := func(name string) bool {
		return slices.ContainsFunc(out, func(b serverBudget) bool { return b.Name == name })
	}
	out = slices.DeleteFunc(out, func(b serverBudget) bool { return !slices.Contains(names, b.Name) })
	if !slices.ContainsFunc(names, func(name string) bool { return !known(name) }) {
		return out
	}
	policy, err := policyOf(sh.Label)
	if err != nil {
		return out // statusOf says as little
	}
	for _, s := range onServers(policy.plan) {
		if known(s.BudgetName) {
			continue
		}
		b := serverBudget{
			Name: s.BudgetName, Store: shared.Server(s.Budget.Store).String(), Host: hostName(sh.Interface, sh.Direction.String()), Packets: s.Packets,
			Size: amountsJSON(termsOf(s).Size), Error: why,
		}
		now, last, err := sh.Leased(b.Name)
		if err != nil {
			b.Error += "; " + err.Error()
		}
		b.Share, b.Rescue = amountsJSON(amountsOf(now)), amountsJSON(amountsOf(last))
		b.Rescued = b.Share == b.Rescue
		out = append(out, b)
	}
	return out
}
