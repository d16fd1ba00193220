package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/control"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/metrics"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/process"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/watch"
)

// supervisor starts and ends services as interfaces appear and disappear. One goroutine, that of run, uses
// its fields; others use do.
type supervisor struct {
	host      *process.Host
	files     *files
	links     *linkQueue
	members   map[int]*member // by index of the interface
	idle      map[int]*idle   // chosen interfaces that are not shaped, by index
	attached  chan *member
	ended     chan *member
	calls     chan func()
	starting  map[*member]bool // those of the first round
	summary   string           // for the service manager
	reloading bool
	trials    []*trial // reloads that may be confirmed
	observes  bool     // a reading for metrics is running
	failed    bool     // the last reload had an error
	works     bool     // some interface was shaped

	list    func() ([]watch.Link, error) // lists all interfaces
	missed  bool                         // some interfaces may not be known yet: list must be called again
	listing string                       // last error of list, "" for none
}

// member is the service of an interface.
type member struct {
	*process.Service
	watch.Link                             // now
	chosen     string                      // name by which it was chosen: a rename does not change that
	entry      *policyfile.ServeInterfaces // of the configuration
	policy     *policy
	ready      bool
	failures   int    // of earlier services of the interface, since the last one that was ready
	why        string // of the last failure
	ending     bool   // it was asked to end
	again      bool   // start it again when it has ended
	off        string // who detached it before it was attached; "": nobody
}

// idle is a chosen interface that is not shaped.
type idle struct {
	watch.Link
	why      string
	failures int
	retry    time.Time // zero: not before the next reload
}

func newSupervisor(host *process.Host, f *files) *supervisor {
	return &supervisor{
		host: host, files: f, links: newLinkQueue(), members: map[int]*member{}, idle: map[int]*idle{},
		attached: make(chan *member), ended: make(chan *member), calls: make(chan func()),
		starting: map[*member]bool{}, list: listLinks,
	}
}

// aliveInterval is the interval of messages to the watchdog of the service manager.
const aliveInterval = 5 * time.Second

// listTries is the number of attempts to list all interfaces before the service manager is told that they
// are shaped.
const listTries = 20

// run shapes interfaces until ctx is done.
func (v *supervisor) run(ctx context.Context) error {
	if err := v.host.Links(v.links.add, v.links.lose); err != nil {
		return err
	}
	v.lookAtAll()
	for try := 1; v.missed && try < listTries; try++ {
		v.lookAtAll()
	}
	for _, m := range v.members {
		v.starting[m] = true
	}
	v.started()
	alive := time.NewTicker(aliveInterval)
	defer alive.Stop()
	ticks := time.NewTicker(live.PollInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			v.host.Stopping()
			return v.stopAll()
		case <-v.host.Lost():
			v.host.Stopping()
			return v.stopAll()
		case <-v.host.Reloads():
			v.reload("", ignore)
		case <-v.links.ready:
			v.follow()
		case m := <-v.attached:
			m.ready, m.failures, v.works = true, 0, true
			v.arrived(m)
			if !v.reloading && v.newer(m) != nil {
				v.reloading = true
				v.update(v.files, nil, nil, ignore)
			}
		case m := <-v.ended:
			err := v.end(m)
			v.arrived(m)
			if err != nil {
				v.host.Stopping()
				return errors.Join(err, v.stopAll())
			}
		case <-v.host.Requests():
			v.observe(ctx)
		case call := <-v.calls:
			call()
		case <-ticks.C:
			v.tick()
		case <-alive.C:
			v.host.Alive()
		}
	}
}

// ignore is a reloaded of nobody.
func ignore([]control.ReloadedShaper, error) {}

// do calls a function in the goroutine of run.
func (v *supervisor) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case v.calls <- func() { f(); close(done) }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(3 * time.Second):
		return live.ErrBusy
	}
}

// arrived notes that a member is ready, or has ended.
func (v *supervisor) arrived(m *member) {
	if v.starting[m] {
		delete(v.starting, m)
		v.started()
	}
}

// started tells the service manager once all interfaces of the first round are shaped, or have failed.
func (v *supervisor) started() {
	if len(v.starting) == 0 {
		v.summary = "shaping the interfaces of " + v.files.path
		v.host.Ready(v.summary)
	}
}

// follow handles the announced changes of interfaces.
func (v *supervisor) follow() {
	list, unknown := v.links.take()
	if unknown {
		v.lookAtAll()
		return
	}
	for _, l := range list {
		v.look(l)
	}
}

// lookAtAll looks at all interfaces, and forgets interfaces that are gone. If the list is incomplete, it
// looks at the listed ones, and the next tick tries again.
func (v *supervisor) lookAtAll() {
	list, err := v.list()
	there := map[int]bool{}
	for _, l := range list {
		there[l.Index] = true
		v.look(l)
	}
	was := v.listing
	if v.missed, v.listing = err != nil, ""; err == nil {
		maps.DeleteFunc(v.idle, func(index int, _ *idle) bool { return !there[index] })
		return
	}
	// an interrupted list is no fault: interfaces were added or deleted meanwhile
	if !errors.Is(err, netlink.ErrDumpInterrupted) {
		if v.listing = err.Error(); v.listing != was {
			v.host.Warn("interfaces: %v", err)
		}
	}
}

// look handles an interface that exists, or that is just gone. The service of one that is gone notices
// that itself.
func (v *supervisor) look(l watch.Link) {
	if l.Gone {
		delete(v.idle, l.Index)
		return
	}
	if m := v.members[l.Index]; m != nil {
		m.Link = l
		return
	}
	if i := v.idle[l.Index]; i != nil && i.Name == l.Name {
		return
	}
	v.choose(l, 0)
}

// choose starts a service at an interface, if an entry of the configuration matches. failures is the number
// of earlier ones that have failed.
func (v *supervisor) choose(l watch.Link, failures int) *member {
	delete(v.idle, l.Index)
	e := v.files.config.Of(l.Name, l.Loopback)
	if e == nil || isOurs(l.Name) {
		return nil
	}
	m := v.start(l, l.Name, e)
	m.failures = failures
	return m
}

// isOurs reports whether an interface is the ifb device of a shaper.
func isOurs(name string) bool {
	if !strings.HasPrefix(name, "shaper-") {
		return false
	}
	l, err := netlink.LinkByName(name)
	return err == nil && kernel.IsIFB(l)
}

// start starts a service at an interface.
func (v *supervisor) start(l watch.Link, chosen string, e *policyfile.ServeInterfaces) *member {
	p := v.files.policies[source(e)]
	m := &member{Link: l, chosen: chosen, entry: e, policy: p}
	m.Service = v.host.Start(v.files.options(e), l.Name, p.compiled)
	v.members[l.Index] = m
	go func() {
		select {
		case <-m.Attached():
			v.attached <- m
		case <-m.Ended():
		}
		<-m.Ended()
		v.ended <- m
	}()
	return m
}

// end forgets a service that has ended, and decides whether its interface gets another one. It returns an
// error if this process may be unable to shape any interface, and the next one may be able to.
func (v *supervisor) end(m *member) error {
	delete(v.members, m.Index)
	outcome, err := m.Outcome()
	switch {
	case outcome == process.InterfaceGone:
		if !m.entry.Named() {
			if err := m.Forget(); err != nil {
				v.host.Warn("%s: %v", m.Name, err)
			}
		}
		// renamed just before it was attached, or replaced by another one of this name
		if l, err := netlink.LinkByIndex(m.Index); err == nil {
			m.Link.Name = l.Attrs().Name
			v.look(m.Link)
		}
	case outcome == process.Detached, m.off != "":
		v.idle[m.Index] = &idle{Link: m.Link, why: "detached by " + cmp.Or(m.off, m.DetachedBy())}
		v.host.Warn("%s: not shaped until the next reload", m.Name)
	case outcome == process.Failed && !v.works && kernel.Lasting(err):
		return fmt.Errorf("%s: %w", m.Name, cli.Advised(err))
	case outcome == process.Failed:
		i := &idle{Link: m.Link, why: cli.Advised(err).Error(), failures: m.failures + 1}
		i.retry = time.Now().Add(retry(i.failures))
		if v.idle[m.Index] = i; i.failures == 1 || i.why != m.why {
			v.host.Warn("%s: %s", m.Name, i.why)
		}
	case m.again:
		v.look(m.Link)
	}
	return nil
}

// tick lists the interfaces again after an error, and starts services again that have failed.
func (v *supervisor) tick() {
	if v.missed {
		v.lookAtAll()
	}
	now := time.Now()
	for _, i := range v.idle {
		if i.retry.IsZero() || now.Before(i.retry) {
			continue
		}
		if m := v.choose(i.Link, i.failures); m != nil {
			m.why = i.why
		}
	}
}

// stopAll ends all services, and waits for them. Pinned policies stay in force.
func (v *supervisor) stopAll() (err error) {
	for _, m := range v.members {
		m.Stop()
	}
	for len(v.members) > 0 {
		select {
		case m := <-v.ended:
			delete(v.members, m.Index)
			if outcome, e := m.Outcome(); outcome == process.Failed {
				err = errors.Join(err, fmt.Errorf("%s: %w", m.Name, e))
			}
		case <-v.attached:
		case call := <-v.calls:
			call()
		}
	}
	return err
}

// shaped returns the members that shape, by name. pattern chooses some, "" all.
func (v *supervisor) shaped(pattern string) (out []*member) {
	for _, m := range v.members {
		if m.ready && control.Chooses(pattern, m.Name) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *member) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// observe reads the counters of all members for the metrics.
func (v *supervisor) observe(ctx context.Context) {
	if v.observes {
		return
	}
	v.observes = true
	list, failed, all := v.shaped(""), v.failed, v.absent()
	go func() {
		var errs error
		for _, m := range list {
			o, err := m.Observe(ctx)
			if errors.Is(err, live.ErrBusy) {
				continue // it has just ended
			}
			all, errs = append(all, o...), errors.Join(errs, err)
		}
		for i := range all {
			all[i].ReloadFailed = all[i].ReloadFailed || failed
		}
		v.host.Publish(all, errs)
		_ = v.do(ctx, func() { v.observes = false })
	}()
}

// absent returns the observations of the chosen interfaces that are not shaped.
func (v *supervisor) absent() (out []metrics.Observation) {
	for _, i := range v.idle {
		if e := v.files.config.Of(i.Name, i.Loopback); e != nil {
			for _, d := range v.files.options(e).Directions.List {
				out = append(out, metrics.Absent(i.Name, d, i.why))
			}
		}
	}
	return out
}
