package process

import (
	"context"
	"errors"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// plane shapes the packets of a service: in the kernel, or in this process.
type plane interface {
	directions() []serviceDirection // attached now
	// policyOf returns the policy of a direction, with or without changes.
	policyOf(*kernel.About) (*policyfile.Compiled, error)
	problemOf(*kernel.About) string // why packets bypass a direction; "" if none does
	policyName() string             // of the last policy
	status() string                 // line for the service manager

	// follow makes the meters of budgets on servers follow their leases.
	follow(context.Context) error
	// reloaded is called after all directions got a policy, and settle after everything about it
	// was printed.
	reloaded(*policyfile.Compiled)
	settle(context.Context) error

	// read calls a function with the directions. Meanwhile the directions and the book of changes
	// stay as they are. Other goroutines call read, and set, which makes changes.
	read(context.Context, func([]serviceDirection) error) error
	locksToRead() bool // read holds the lock of the changes
	set([]changes.Change) error
	// commitCustomers makes requests, and answers all of them. Any goroutine may call it, one at a time.
	commitCustomers([]*live.PendingCustomers)

	// poll returns a channel receiving when check must be called.
	poll() (look <-chan struct{}, stop func())
	// check checks whether the packets are still shaped. over: the service must end.
	check(context.Context) (over bool, err error)
	// try prepares a reload with a policy that rolls back at a time unless it is confirmed. endTrial rolls it
	// back, for a reason.
	try(until time.Time) error
	endTrial(why string)
	// confirmNow makes policies permanent that would roll back, and remove detaches directions (nil: all).
	// Any goroutine may call them.
	confirmNow(context.Context, changes.Author) ([]control.Confirmed, error)
	remove(context.Context, []dataplane.Direction, changes.Author) (*detach.Detached, error)
	dueWithin(time.Duration) bool     // a deadline passes within this time: check would delay it
	settled() bool                    // no policy waits for confirmation
	rollBack() (over bool, err error) // the time of confirmation is over
	expired()                         // the time of --for is over
	keepReadings()                    // keeps counters for other processes
}

// serviceDirection is one direction of a service.
type serviceDirection interface {
	live.Changeable
	Handle() live.Handle
	// Customer returns a customer with the changes of a book. The error is a
	// *policyfile.UnknownError if there is none of that name.
	Customer(name string, book changes.Book) (live.Customer, error)
	// CustomerReader returns access to the counters of the customers, for use in another goroutine.
	CustomerReader() (customerReader, error)

	// reload replaces the policy. If until is not zero, the policy
	// rolls back at that time, unless it is confirmed.
	reload(policy *policyfile.Compiled, until time.Time) ([]compiled.ClassChange, error)
	PrepareCustomerPlans() error    // prepares SetCustomerPlans for the next program
	SaveCustomers() ([]byte, error) // returns their tokens; nil if there are none
	observeCustomers(*metrics.Observation) error
	packetsOf(name string) (int64, error) // of a customer, since it has been attached
}

// customerReader reads the customers of a direction, as the handle of a shaper in the kernel does.
type customerReader interface {
	Customers() (at int64, list []live.Customer, err error)
	Close()
}

// service is a policy at one interface or TAP device, with everything kept for it by its process.
type service struct {
	*process
	plane   plane
	options *Options
	notify  notifier // of the service manager; the zero value for one of several services
	hangups *hangups
	board   *metrics.Board // nil without --metrics, and for one of several services
	turns   turns
	name    string // current name of the interface
	host    string // name in the names of files and of hosts of budgets: a rename does not change it
	// wanted are the directions to shape: those of the options, without those that another process ended
	// while the interface was gone
	wanted []dataplane.Direction

	changer       *live.LockedChanger // nil until the interface exists
	changeProblem problem             // of advanceChanges
	state         savedState
	stateName     string // name of the files of state of all directions
	kept          keptPrinter
	heard         live.Heard // announcements of other processes
	shares        *budgets.Agents

	end, rollback, trial <-chan time.Time // deadlines of serve; nil: none

	reloadFailed time.Time // of the last call of reread; zero: it did not fail

	singleCustomers bool // metrics of single customers are wanted
}

func newService(p *process, n notifier, o *Options, name string, clock func() int64) *service {
	return &service{
		process: p, options: o, name: name, host: name, wanted: o.Directions.List,
		notify: n, hangups: &hangups{}, turns: newTurns(),
		state: savedState{StateOptions: &o.State}, shares: budgets.New(clock, p.warn),
	}
}

// withAPI serves the API while next runs, which owns the service.
func (s *service) withAPI(next func() error) error {
	over := make(chan struct{})
	s.turns.over = over
	return s.options.Control.during(api{s}, func() error {
		defer close(over) // a request to detach may wait for the owner, whose end it caused
		return next()
	})
}

// withMetrics serves the metrics while next runs.
func (s *service) withMetrics(next func() error) error {
	s.singleCustomers = s.options.Metrics.customers > 0
	return s.options.Metrics.during(s.err, &s.board, next)
}

// serve waits for the end. Until then it checks the shapers, reloads on SIGHUP, answers other goroutines
// and publishes metrics. A lost terminal is the end, too, but it may be lost because of the policy: then
// the rollback comes first.
func (s *service) serve(ctx context.Context) error {
	look, stop := s.plane.poll()
	defer stop()
	asked, lost := false, false
	for !lost || !s.plane.settled() {
		var looked chan struct{}
		select {
		case <-ctx.Done():
			return nil
		case <-s.end:
			s.plane.expired()
			return nil
		case <-s.rollback:
			if over, err := s.plane.rollBack(); over {
				return err
			}
		case <-s.trial:
			s.trial = nil
			s.plane.endTrial(unconfirmed)
		case <-s.hangups.lost:
			lost = true
		case <-s.hangups.reload:
			if _, err := s.reread(ctx, time.Time{}); err != nil {
				s.warn("%v: the policy is unchanged", err)
			}
		case <-s.board.Requests():
			asked = true
		case <-look:
		case looked = <-s.turns.looks:
		case call := <-s.turns.calls:
			call()
			continue
		case read := <-s.turns.reads:
			read()
			continue
		}
		due := s.plane.dueWithin(live.PollInterval)
		over, err := false, error(nil)
		if !due {
			if over, err = s.plane.check(ctx); !over {
				s.advanceChanges()
			}
		}
		if looked != nil {
			close(looked)
		}
		switch {
		case over:
			return err
		case due:
			continue
		}
		s.plane.keepReadings()
		if asked {
			asked = false
			s.board.Publish(s.observe())
		}
	}
	return nil
}

// reread reads the policy file again and reloads all directions, as use does.
func (s *service) reread(ctx context.Context, until time.Time) (out []control.ReloadedShaper, err error) {
	err = s.notify.reload(s.plane.status(), func() error {
		out, err = s.reload(ctx, until)
		return err
	})
	if s.reloadFailed = (time.Time{}); err != nil {
		s.reloadFailed = time.Now()
	}
	return out, err
}

func (s *service) reload(ctx context.Context, until time.Time) ([]control.ReloadedShaper, error) {
	policy, err := s.options.Policy.Load()
	if err != nil {
		return nil, err
	}
	s.options.Policy.Warn(s.err, policy, "")
	return s.use(ctx, policy, until)
}

// use reloads all directions with a policy, or none if one of them cannot run it. If until is not zero, the
// policy rolls back at that time, unless it is confirmed.
func (s *service) use(
	ctx context.Context, policy *policyfile.Compiled, until time.Time,
) (out []control.ReloadedShaper, err error) {
	s.changer.Lock()
	defer s.changer.Unlock()
	has := policy.Roster().InFile
	policy = s.amend(policy)
	list := s.plane.directions()
	if err := cli.CheckPolicy(policy, handlesOf(list)); err != nil {
		return nil, err
	}
	if !until.IsZero() {
		if err := s.plane.try(until); err != nil {
			return nil, err
		}
		s.trial = after(until)
	}
	if err := s.changer.PruneCustomers(has); err != nil {
		s.warn("%v", err)
	}
	var hosts []budgets.Host
	for _, d := range list {
		hosts = append(hosts, budgets.Host{Plan: policy.Plan, Name: s.budgetHost(d.Info().Direction)})
	}
	if err := s.shares.Prepare(ctx, hosts...); err != nil {
		return nil, errors.Join(err, s.plane.follow(ctx))
	}
	inForce, _ := (&live.Changes{Book: s.changer.Book}).InForce(policy, time.Now())
	p := s.print()
	for _, d := range list {
		list, err := d.reload(policy, until)
		var active *dataplane.ActiveError
		if err != nil && !errors.As(err, &active) {
			if !until.IsZero() {
				s.plane.endTrial("not reloaded in all directions")
			}
			return out, errors.Join(cli.ExplainIn(policy, err), s.plane.follow(ctx))
		}
		about := d.Info()
		live.PrintReloadedLine(p, about, policy, list)
		out = append(out, stats.ReloadedOf(about, policy.Name, list, inForce))
		cli.PrintNotes(s.err, live.Name(about), d.Handle().Notes())
		if active != nil {
			s.warn("%s: %v", live.Name(about), active)
		}
	}
	s.plane.reloaded(policy)
	s.kept.print(s.err, s.changer.Changer, policy, s.name)
	return out, s.plane.settle(ctx)
}

// handlesOf returns the handles of directions.
func handlesOf(list []serviceDirection) (out []live.Handle) {
	for _, d := range list {
		out = append(out, d.Handle())
	}
	return out
}

// budgetHost returns the name of a direction among the hosts of budgets on servers.
func (s *service) budgetHost(d dataplane.Direction) string {
	return budgets.HostName(s.host, d.String())
}

// observe reads all directions for the metrics.
func (s *service) observe() (out []metrics.Observation, err error) {
	list := s.plane.directions()
	if len(list) == 0 {
		for _, direction := range s.wanted {
			out = append(out, metrics.Absent(s.name, direction, "the interface is gone"))
		}
	}
	for _, d := range list {
		sh := d.Handle()
		policy, err := s.plane.policyOf(sh.Info())
		if err != nil {
			return nil, err
		}
		o, err := metrics.Observe(sh, policy, s.plane.problemOf(sh.Info()))
		if err != nil {
			return nil, err
		}
		o.Shares = s.shares.Statuses(s.host, o.About.Direction.String())
		o.ReloadFailed = !s.reloadFailed.IsZero() && !o.About.Loaded.After(s.reloadFailed)
		s.changer.Lock()
		now := s.changes()
		o.Changes = now.Count(policy, time.Now())
		if s.state.Given() {
			saved := s.state.failed == nil
			o.State = &saved
		}
		s.changer.Unlock()
		if s.singleCustomers {
			if err := d.observeCustomers(&o); err != nil {
				return nil, err
			}
		}
		out = append(out, o)
	}
	return out, nil
}
