package process

import (
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// useChanges makes the changer, with the changes in a file and the saved quotas.
func (s *service) useChanges(file *changes.File) {
	s.changer = &live.LockedChanger{Changer: live.NewChanger(file, func() (out []live.Changeable) {
		for _, d := range s.plane.directions() {
			out = append(out, d)
		}
		return out
	})}
	s.changer.Report = s.logChanges
	err := s.changer.CustomersError()
	if err != nil && (s.state.dir != "" || !errors.Is(err, os.ErrPermission)) { // attaching explains this one
		s.warn("%v", err)
	}
	if err := s.state.restoreQuotas(s.stateName, s.changer.Changer); err != nil {
		s.warn("%v", err)
	}
}

// changes returns the changes. The caller must hold the lock while it uses them.
func (s *service) changes() live.Changes {
	return live.Changes{
		Book: s.changer.Book, Problem: s.changer.Problem(),
		Customers: live.CountCustomers(s.changer.Customers.Book),
	}
}

// amend returns a policy with the changes in force. The lock of the changes must be held.
func (s *service) amend(policy *policyfile.Compiled) *policyfile.Compiled {
	policy, stale := s.changer.Amend(policy)
	cli.WarnStale(s.err, stale)
	return policy
}

// advanceChanges ends changes whose time is over, and follows quotas and schedules.
func (s *service) advanceChanges() {
	s.changer.Lock()
	defer s.changer.Unlock()
	err := s.changer.Advance(time.Now())
	for _, d := range s.plane.directions() {
		err = errors.Join(err, d.PrepareCustomerPlans(), s.prepareCustomers(d))
	}
	err = errors.Join(err, s.changer.TightenCustomers(), s.removeIdle())
	if errors.Is(err, kernel.ErrDetached) { // the next check reports it
		err = nil
	}
	if s.state.due() {
		_ = s.saveState()
	}
	err = errors.Join(err, s.state.failed)
	s.changeProblem.report(err, s.warn)
	s.changer.SetProblem(string(s.changeProblem))
}

// report prints a new error of advanceChanges, and the end of errors, by warn.
func (p *problem) report(err error, warn func(string, ...any)) {
	was := *p
	switch {
	case p.isNew(err):
		warn("changes, quotas, schedules and state: %v", err)
	case err == nil && was != "":
		warn("changes, quotas, schedules and state work again")
	}
}

// keepState counts the bytes used by customers with quotas, and saves the state.
func (s *service) keepState() error {
	s.changer.Lock()
	defer s.changer.Unlock()
	return errors.Join(s.changer.CountNow(), s.saveState())
}

// saveState saves the used quotas and the tokens of customers. The lock of the changes must be
// held.
func (s *service) saveState() error {
	tokens := map[string]func() ([]byte, error){}
	for _, d := range s.plane.directions() {
		tokens[directionName(s.host, d.Info().Direction)] = d.SaveCustomers
	}
	return s.state.save(s.stateName, s.changer.Changer, tokens)
}

// logChanges prints changes just made.
func (s *service) logChanges(list []changes.Change) {
	for i := range list {
		if i == live.ShownChanges {
			s.warn("%s: and %d more changes", s.name, len(list)-i)
			return
		}
		c := list[i]
		c.Since = time.Time{}
		s.warn("%s: %s", s.name, live.ChangeInWords(&c))
	}
}

// keptPrinter prints the changes that a reload by the process itself leaves in force, unless it printed
// the same ones after the last reload.
type keptPrinter struct{ last []string }

func (k *keptPrinter) print(to io.Writer, c *live.Changer, policy *policyfile.Compiled, iface string) {
	all := live.Changes{Book: c.Book}
	list, _ := all.InForce(policy, time.Now())
	if notes := live.KeptNotes(list, iface); !slices.Equal(notes, k.last) {
		k.last = notes
		cli.PrintNotes(to, iface, notes)
	}
}
