package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/output"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/watch"
)

// process holds everything that exists once per process, for all of its services.
type process struct {
	out, err *output.Outbox // a stopped reader, such as a terminal, does not stop the shaper
	colored  bool           // the output shows colors
	services atomic.Int32   // number of services that check their shapers
	guards   live.Guards
	calls    live.Calls
	programs *kernel.Programs // nil: each service has programs of its own

	watching sync.Once
	watcher  *watch.Watcher // nil: netlink cannot be used, or no service needs it yet
}

func newProcess(s cli.Streams) *process {
	return &process{
		out: output.NewOutbox(s.Out), err: output.NewOutbox(s.Err), colored: say.Colored(s.Out),
		guards: live.Guards{Stderr: os.Stderr},
	}
}

// watch returns the watcher of all services, nil if netlink cannot be used: then checks at intervals must
// suffice.
func (p *process) watch() *watch.Watcher {
	p.watching.Do(func() { p.watcher, _ = watch.New() })
	return p.watcher
}

// close ends the watcher.
func (p *process) close() {
	p.watching.Do(func() {})
	if p.watcher != nil {
		p.watcher.Close()
	}
}

// checkedAtOnce is the number of services that are checked at the shortest interval. A process with more
// checks each less often, to use the same time.
const checkedAtOnce = 20

// scaled returns an interval of checks of one service.
func (p *process) scaled(interval time.Duration) time.Duration {
	return interval * time.Duration(max(checkedAtOnce, p.services.Load())) / checkedAtOnce
}

// flush waits until everything is printed.
func (p *process) flush() error { return errors.Join(p.out.Flush(), p.err.Flush()) }

// print returns a printer on stdout.
func (p *process) print() *say.Printer { return &say.Printer{W: p.out} }

// warn prints a line on stderr.
func (p *process) warn(format string, args ...any) {
	fmt.Fprintf(p.err, "shaper: "+format+"\n", args...)
}

// problem is the error of the latest of repeated attempts; "" for none.
type problem string

// isNew keeps the error of an attempt, or nil. It reports whether there is an error other than the
// last one.
func (p *problem) isNew(err error) bool {
	was := *p
	if *p = ""; err != nil {
		*p = problem(err.Error())
	}
	return *p != "" && *p != was
}

// turns passes functions of other goroutines to the goroutine owning a service.
type turns struct {
	calls chan func()        // received while the interface exists
	reads chan func()        // received at any time
	looks chan chan struct{} // requests for a check; the received channel is closed after the check
	over  <-chan struct{}    // closed when the owner has ended
}

func newTurns() turns {
	return turns{calls: make(chan func()), reads: make(chan func()), looks: make(chan chan struct{})}
}

// Times to wait until the owner takes a function. It may be reading a policy.
const (
	turnTime  = 3 * time.Second // for a client, who can try again
	serveTime = time.Minute     // for a reload of all interfaces, which would fail at all of them
)

// ask calls a function in the goroutine receiving from a channel.
func (t *turns) ask(ctx context.Context, to chan<- func(), f func() error) error {
	return t.within(ctx, turnTime, to, f)
}

// within is ask with another time to wait.
func (t *turns) within(ctx context.Context, limit time.Duration, to chan<- func(), f func() error) error {
	done := make(chan error, 1)
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case to <- func() { done <- f() }:
		return <-done
	case <-late.C:
		return live.ErrBusy
	case <-t.over:
		return live.ErrBusy
	case <-ctx.Done():
		return ctx.Err()
	}
}
