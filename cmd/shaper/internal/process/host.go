package process

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/detach"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/stats"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/watch"
)

// Host is a process with a service at each of several interfaces. Its methods must be called by one
// goroutine.
type Host struct {
	*process
	options Options // without a policy
	notify  notifier
	hangups *hangups
	board   *metrics.Board // nil without metrics
	turn    chan struct{}  // to attach
}

// NewHost makes a Host with the options of a configuration. It drops all privileges of the process that it
// does not need. files are read again later.
func NewHost(s cli.Streams, c *policyfile.Serve, files []string) (*Host, error) {
	h := &Host{turn: make(chan struct{}, runtime.NumCPU())}
	h.options = Options{
		Metrics: Metrics{text: c.Metrics, customers: c.MetricsCustomers},
		Control: ControlOptions{c.Control, c.ControlGroup, c.ControlRead, c.ReadGroup},
		State:   StateOptions{command: "run", dir: c.State}, // shaper run can continue the state
	}
	if err := h.options.check(); err != nil {
		return nil, err
	}
	dropPrivileges(s, serveCapabilities, &h.options, files...)
	if err := h.options.State.open(); err != nil {
		return nil, err
	}
	h.process, h.notify = newProcess(s), newNotifier()
	h.guards.Name, h.programs = "serve", &kernel.Programs{}
	h.hangups = watchHangups(h.notify)
	return h, nil
}

// Serve serves the API and the metrics while next runs.
func (h *Host) Serve(a control.API, next func() error) error {
	return h.options.Control.during(a, func() error {
		return h.options.Metrics.during(h.err, &h.board, next)
	})
}

// Requests returns a channel. Publish must be called for each value received from it.
func (h *Host) Requests() <-chan struct{} { return h.board.Requests() }

// Publish publishes metrics.
func (h *Host) Publish(list []metrics.Observation, err error) { h.board.Publish(list, err) }

// Reloads returns a channel that receives a value for each SIGHUP.
func (h *Host) Reloads() <-chan os.Signal { return h.hangups.reload }

// Lost returns a channel that receives a value when the terminal is lost.
func (h *Host) Lost() <-chan os.Signal { return h.hangups.lost }

// Links calls functions for changed interfaces, as watch.Watcher does.
func (h *Host) Links(each func(watch.Link), unknown func()) error {
	w := h.watch()
	if w == nil {
		return errors.New("netlink: interfaces that appear cannot be seen")
	}
	w.Links(each, unknown)
	return nil
}

// Warn prints a line on stderr.
func (h *Host) Warn(format string, args ...any) { h.warn(format, args...) }

// Errors is the standard error output, which a stopped reader does not block.
func (h *Host) Errors() interface{ Write([]byte) (int, error) } { return h.err }

// Ready tells the service manager that the process is ready, with a status line.
func (h *Host) Ready(status string) { h.notify.ready(status) }

// Stopping tells the service manager that the process ends.
func (h *Host) Stopping() { h.notify.stopping() }

// Reload tells the service manager about a reload.
func (h *Host) Reload(status string, do func() error) error { return h.notify.reload(status, do) }

// Alive tells the service manager that the process is alive, if it watches that.
func (h *Host) Alive() { h.notify.alive() }

// Close prints what is left to print.
func (h *Host) Close() error {
	h.hangups.stop()
	h.close()
	return h.flush()
}

// Service shapes one interface. Its methods can be called concurrently.
type Service struct {
	k        *kernelPlane
	stop     context.CancelFunc
	attached chan struct{}
	ended    chan struct{}
	err      error
}

// Start starts to shape an interface with the options of shaper run. The policy must be checked.
func (h *Host) Start(o *RunOptions, name string, policy *policyfile.Compiled) *Service {
	ctx, stop := context.WithCancel(context.Background())
	o.State, o.Control = h.options.State, h.options.Control
	k := newKernelPlane(h.process, notifier{}, o, name, policy)
	k.alone, k.turn, k.singleCustomers = false, h.turn, h.options.Metrics.customers > 0
	s := &Service{k: k, stop: stop, attached: make(chan struct{}), ended: make(chan struct{})}
	k.turns.over = s.ended
	go func() {
		defer close(s.ended)
		defer stop()
		s.err = k.shape(ctx, func() { close(s.attached) })
	}()
	return s
}

// Check returns an error if a policy cannot run as the options say, at any interface.
func (o *RunOptions) Check(policy *policyfile.Compiled) error { return o.checkProcess(policy) }

// Attached is closed when the interface is shaped.
func (s *Service) Attached() <-chan struct{} { return s.attached }

// Ended is closed when the service has ended.
func (s *Service) Ended() <-chan struct{} { return s.ended }

// Stop ends the service. A pinned policy stays in force.
func (s *Service) Stop() { s.stop() }

// Detach ends the service together with its policy.
func (s *Service) Detach() {
	go func() {
		_ = s.k.turns.ask(context.Background(), s.k.turns.reads, func() error { s.k.pin = false; return nil })
		s.stop()
	}()
}

// Outcome says how a service ended.
type Outcome int

// Outcomes.
const (
	Stopped       Outcome = iota
	InterfaceGone         // deleted, or moved to another network namespace
	Detached              // by another process
	Failed
)

// Outcome returns how the service ended, after Ended is closed.
func (s *Service) Outcome() (Outcome, error) {
	switch {
	case errors.As(s.err, new(*kernel.NoInterfaceError)):
		return InterfaceGone, nil
	case s.err != nil:
		return Failed, s.err
	case s.k.over == interfaceGone:
		return InterfaceGone, nil
	case s.k.over == detached:
		return Detached, nil
	}
	return Stopped, nil
}

// API returns the API of the service alone.
func (s *Service) API() control.API { return api{s.k.service} }

// Customers reads the customers of all directions, as control.API does.
func (s *Service) Customers(ctx context.Context, top int, by string) ([]stats.RankedCustomers, error) {
	return api{s.k.service}.ranked(ctx, top, by)
}

// MergeCustomers returns the answers of several services about one customer as one.
func MergeCustomers(answers []any) any {
	out := answers[0].(customerJSON)
	for _, a := range answers[1:] {
		c := a.(customerJSON)
		out.Changes = append(out.Changes, c.Changes...)
		out.Directions = append(out.Directions, c.Directions...)
	}
	return out
}

// Observe reads the directions for the metrics.
func (s *Service) Observe(ctx context.Context) (out []metrics.Observation, err error) {
	err = s.k.turns.ask(ctx, s.k.turns.reads, func() error {
		out, err = s.k.observe()
		return err
	})
	return out, err
}

// Has reports whether all directions have a policy already that does not wait for confirmation.
func (s *Service) Has(ctx context.Context, policy *policyfile.Compiled) (has bool, err error) {
	err = s.k.turns.within(ctx, serveTime, s.k.turns.calls, func() error {
		s.k.changer.Lock()
		policy, _ := s.k.changer.Amend(policy)
		s.k.changer.Unlock()
		has = len(s.k.list) > 0
		for _, sh := range s.k.list {
			has = has && sh.Until.IsZero() && bytes.Equal(sh.Label, live.Label(policy, sh.Interface))
		}
		return nil
	})
	return has, err
}

// Accepts returns an error if a direction cannot run a policy.
func (s *Service) Accepts(ctx context.Context, policy *policyfile.Compiled) error {
	return s.k.turns.within(ctx, serveTime, s.k.turns.calls, func() error {
		s.k.changer.Lock()
		defer s.k.changer.Unlock()
		policy, _ := s.k.changer.Amend(policy)
		return cli.CheckPolicy(policy, handlesOf(s.k.directions()))
	})
}

// Use reloads all directions with a policy. If until is not zero, the policy
// rolls back at that time, unless it is confirmed.
func (s *Service) Use(
	ctx context.Context, policy *policyfile.Compiled, until time.Time,
) (out []control.ReloadedShaper, err error) {
	err = s.k.turns.within(ctx, serveTime, s.k.turns.calls, func() error {
		out, err = s.k.use(context.WithoutCancel(ctx), policy, until)
		return err
	})
	return out, err
}

// RollBack rolls back a policy of Use at once, unless it was confirmed.
func (s *Service) RollBack(ctx context.Context) error {
	return s.k.turns.within(ctx, serveTime, s.k.turns.calls, func() error {
		if !s.k.deadline.trial.IsZero() {
			s.k.endTrial("not reloaded at all interfaces")
		}
		return nil
	})
}

// Remove detaches some directions, nil means all, and waits until the service has noticed it, or has
// ended.
func (s *Service) Remove(
	ctx context.Context, directions []dataplane.Direction, author changes.Author,
) (*detach.Detached, error) {
	out, err := s.k.remove(ctx, directions, author)
	select {
	case s.k.turns.reads <- func() {}: // it goes on with the other direction
	case <-s.ended:
	case <-ctx.Done():
	}
	return out, err
}

// DetachedBy says who detached the interface, if that was the outcome.
func (s *Service) DetachedBy() string { return cmp.Or(s.k.by, "another program") }

// Forget removes the saved state of an interface that will not return, after Ended is closed.
func (s *Service) Forget() error {
	if !s.k.state.Given() {
		return nil
	}
	names := map[string]string{stateChanges: s.k.stateName, stateQuotas: s.k.stateName}
	errs := []error{removeFile(customers.PathOf(s.k.state.path(s.k.stateName, stateChanges)))}
	for kind, name := range names {
		errs = append(errs, removeFile(s.k.state.path(name, kind)))
	}
	for _, d := range s.k.options.Directions.List {
		errs = append(errs, removeFile(s.k.state.path(directionName(s.k.host, d), stateCustomers)))
	}
	return errors.Join(errs...)
}

func removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// CheckChanges returns the error that the API's Set would return, and changes nothing.
func (s *Service) CheckChanges(ctx context.Context, list []changes.Change) error {
	return s.k.turns.ask(ctx, s.k.turns.calls, func() error {
		s.k.changer.Lock()
		defer s.k.changer.Unlock()
		return s.k.changer.Check(list)
	})
}
