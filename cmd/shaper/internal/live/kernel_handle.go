package live

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/tap"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// kernelHandle is a shaper in the kernel.
type kernelHandle struct{ *kernel.Shaper }

// InKernel returns the handle of a shaper in the kernel.
func InKernel(sh *kernel.Shaper) Handle { return kernelHandle{sh} }

// inKernel returns the shapers in the kernel.
func inKernel(list []Handle) (out []*kernel.Shaper) {
	for _, sh := range list {
		if k := sh.shaper(); k != nil {
			out = append(out, k)
		}
	}
	return out
}

// ConfirmPolicies confirms the policies of shapers in the kernel, as kernel.Confirm does.
func ConfirmPolicies(list []Handle) ([]*kernel.Shaper, error) {
	return kernel.Confirm(inKernel(list)...)
}

// ErrRolledBack means that a policy was not confirmed.
var ErrRolledBack = errors.New("not confirmed in time: rolled back")

// RolledBack returns ErrRolledBack if shapers were rolled back.
func RolledBack(back []*kernel.Shaper) error {
	if len(back) == 0 {
		return nil
	}
	return ErrRolledBack
}

// RollBack rolls back the shapers in the kernel whose rollback is due at a time. unconfirmed is
// ErrRolledBack if there are any.
func RollBack(list []Handle, until time.Time) (unconfirmed, err error) {
	back, err := kernel.RollBack(policyfile.PlanOf, until, inKernel(list)...)
	return RolledBack(back), err
}

func (h kernelHandle) shaper() *kernel.Shaper { return h.Shaper }
func (h kernelHandle) Lost() tap.Lost         { return tap.Lost{} }
func (h kernelHandle) Notes() []string        { return h.Shaper.Notes }

// Owned reports whether a process holds the shaper: it holds the lock or, if somebody removed the
// file of the lock, it still serves calls.
func (h kernelHandle) Owned() (bool, error) {
	owned, err := h.Shaper.Owned()
	if !owned && err == nil && h.Process != 0 {
		if client := connectRun(&h.About); client != nil {
			client.Close()
			return true, nil
		}
	}
	return owned, err
}

func (h kernelHandle) Guarded() bool {
	return h.Shaper.Guarded() || h.Refresh() == nil && h.Until.IsZero()
}

func (h kernelHandle) Sample() (out Sample, err error) {
	if out.Reading, err = h.Read(); err != nil {
		return out, err
	}
	out.Tokens, err = h.Tokens()
	return out, err
}

func (h kernelHandle) Shares(process int) (out []budgets.State) {
	names := h.OnServers()
	if len(names) == 0 {
		return nil
	}
	why := "no process renews its share"
	if process != 0 {
		var answered bool
		of := h.About
		of.Process = process
		why = fmt.Sprintf("process %d does not answer", process)
		if out, answered = askRun[dataplane.Direction, []budgets.State](&of, "Take",
			h.Direction); answered {
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
	policy, err := policyfile.CompileLabel(h.Label)
	if err != nil {
		return out // statusOf omits the budgets, too
	}
	for _, s := range budgets.OnServers(policy.Plan) {
		if reported(s.BudgetName) {
			continue
		}
		b := budgets.State{
			Name: s.BudgetName, Store: shared.Server(s.Budget.Address).String(),
			Host: budgets.HostName(h.Interface, h.Direction.String()), Packets: s.Packets,
			Size: budgets.Amounts(budgets.TermsOf(s).Size), Error: why,
		}
		now, last, err := h.Leased(b.Name)
		if err != nil {
			b.Error += "; " + err.Error()
		}
		b.Share, b.Rescue = budgets.Amounts(budgets.AmountsOf(now)), budgets.Amounts(budgets.AmountsOf(last))
		b.Rescued = b.Share == b.Rescue
		out = append(out, b)
	}
	return out
}

func (h kernelHandle) Customers() (at int64, list []Customer, err error) {
	policy, err := policyfile.CompileNames(h.Label)
	if err != nil {
		return 0, nil, err
	}
	if policy.Plan.Customers == nil {
		return 0, nil, ErrNoCustomers
	}
	at = kernel.Now()
	stats, err := h.Shaper.Customers(policy.Plan.Customers)
	return at, ListCustomers(policy.Plan.Customers, stats), err
}

func (h kernelHandle) Links() (at int64, list []dataplane.LinkState, err error) {
	at = kernel.Now()
	list, err = h.LinkStates()
	return at, list, err
}

func (h kernelHandle) Changes() (Changes, error) {
	source, err := policyfile.SourceOf(h.Label)
	if err != nil {
		return Changes{}, err
	}
	problem := ""
	if owned, err := h.Owned(); err == nil && owned {
		if reply, ok := askRun[struct{}, changesReply](&h.About, "Changes", struct{}{}); ok {
			return reply.read()
		}
		problem = fmt.Sprintf("process %d does not answer: the changes are those in its file", h.Process)
	}
	book, interrupted, err := changes.Read(source.Changes)
	added, addedErr := customers.Read(customers.PathOf(source.Changes))
	return Changes{book, interrupted, problem, CountCustomers(added)}, errors.Join(err, addedErr)
}

func (h kernelHandle) Prepare(policy *policyfile.Compiled) (done func()) {
	if owned, err := h.Owned(); err != nil || !owned { // its ID may belong to another process
		return func() {}
	}
	if budgets.OnServer(policy.Plan) {
		if _, ok := askRun[Policy, struct{}](&h.About, "Prepare", Policy{h.Direction, policy.Label()}); !ok {
			return func() {}
		}
	}
	return func() { askRun[struct{}, struct{}](&h.About, "Look", struct{}{}) }
}

func (h kernelHandle) KeepCustomers(policy *policyfile.Compiled) error {
	c := policy.Source.Customers
	if !c.Large() {
		return nil
	}
	text, err := c.Read()
	if err != nil {
		return err
	}
	return h.KeepText(c.SHA256, text)
}

func (h kernelHandle) keeper() (keeper, error) {
	source, err := policyfile.SourceOf(h.Label)
	if err != nil {
		return keeper{}, err
	}
	k := keeper{path: source.Changes}
	owned, err := h.Owned()
	if owned {
		k.process = h.Process
	}
	return k, err
}

func (h kernelHandle) Settle(path string) error {
	if owned, err := h.Owned(); err != nil || owned || path == "" {
		return err
	}
	file, err := changes.Open(path)
	if err != nil {
		return err
	}
	file.Volatile = filepath.Dir(path) == kernel.StateDir
	ends := file.Book.Ends(time.Now())
	if len(ends)+len(file.Interrupted) == 0 {
		return nil
	}
	return file.Add(ends, func() error { return nil })
}

func (h kernelHandle) announceTo() *caller {
	if owned, err := h.Owned(); err != nil || !owned {
		return nil
	}
	return connectRun(&h.About)
}
