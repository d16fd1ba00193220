package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/budgets"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/strictjson"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// runPrefix is the beginning of the abstract socket name of a shaper run. The rest is its
// process ID.
const runPrefix = "@shaper-run:"

func runSocket(process int) string { return fmt.Sprint(runPrefix, process) }

// Run serves a shaper run to other processes. The goroutine owning the shapers must receive from
// the channels.
type Run struct {
	Shares  *budgets.Agents
	Name    string               // interface in the names of hosts
	Wake    chan<- chan struct{} // receives a channel to close after the next check of the shapers
	Calls   chan<- func()        // receives functions to call
	Changer *LockedChanger
	Heard   *Heard // announcements of other processes
}

// Calls lets other processes call the shapers of this process: those of each interface are a Run. The
// zero value is ready for use.
type Calls struct {
	mu     sync.Mutex
	runs   map[int]*Run // by index of the interface
	server io.Closer    // nil: none
}

// Add serves calls for an interface, and for no other one by the same Run.
func (c *Calls) Add(index int, r *Run) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		if c.server, err = serve(runSocket(os.Getpid()), c.session); err != nil {
			return err
		}
		c.runs = map[int]*Run{}
	}
	maps.DeleteFunc(c.runs, func(_ int, o *Run) bool { return o == r })
	c.runs[index] = r
	return nil
}

// Remove ends the calls for a Run. Without any, the socket is closed.
func (c *Calls) Remove(r *Run) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.runs, func(_ int, o *Run) bool { return o == r })
	if len(c.runs) == 0 && c.server != nil {
		err = c.server.Close()
		c.server = nil
	}
	return err
}

// chooseMethod is the first call of a connection: it names the interface of the next ones. A connection
// without it is for the only interface.
const chooseMethod = "Choose"

// session returns the methods of a connection.
func (c *Calls) session() methods {
	out := methods{}
	choose := func(index int, _ *struct{}) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		r := c.runs[index]
		if r == nil {
			return fmt.Errorf("process %d does not shape interface %d any more", os.Getpid(), index)
		}
		maps.Copy(out, r.methods())
		return nil
	}
	c.mu.Lock()
	for _, r := range c.runs {
		if len(c.runs) == 1 {
			maps.Copy(out, r.methods())
		}
	}
	c.mu.Unlock()
	out[chooseMethod] = method(choose)
	return out
}

// connectRun connects to the process of a shaper. It returns nil if there is none, if it is not trusted, or
// if it has no shapers at the interface.
func connectRun(a *kernel.About) *caller {
	client := connect(runSocket(a.Process), a.Process)
	if client == nil {
		return nil
	}
	client.within(askTimeout)
	err := client.call(chooseMethod, a.Index, &struct{}{})
	client.patiently()
	if err != nil && !errors.Is(err, errNoMethod) { // an earlier version has one interface
		client.Close()
		return nil
	}
	return client
}

func (c *Run) methods() methods {
	return methods{
		"Take": method(c.take), "Prepare": method(c.prepare), "Look": method(c.look),
		"Set":     method(setter(c.Set)),
		"Changes": method(c.changes), "Announce": method(c.Heard.announce),
		"ChangeCustomers": method(submitter(c.ChangeCustomers)), "CustomerTerms": method(pager(c.customerTerms)),
	}
}

// take returns the budgets of a direction.
func (c *Run) take(direction dataplane.Direction, out *[]budgets.State) error {
	*out = c.Shares.States(budgets.HostName(c.Name, direction.String()))
	return nil
}

// prepare must be called before a direction gets another policy, to give new budgets shares.
func (c *Run) prepare(in Policy, _ *struct{}) error {
	policy, err := policyfile.CompileLabel(in.Label)
	if err != nil {
		return err
	}
	return c.Shares.Prepare(context.Background(),
		budgets.Host{Plan: policy.Plan, Name: budgets.HostName(c.Name, in.Direction.String())})
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

// setter returns a method to make changes, a JSON list, by a function.
func setter(set func([]changes.Change) error) func(json.RawMessage, *setReply) error {
	return func(in json.RawMessage, out *setReply) error {
		var list []changes.Change
		if err := strictjson.Unmarshal(in, &list, changes.MaxList); err != nil {
			return err
		}
		return out.of(set(list))
	}
}

// setReply is the answer to changes in force.
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
	if err := c.call(func() error { now = c.Changer.Now(); return nil }); err != nil {
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
		c.Changer.Lock()
		defer c.Changer.Unlock()
		switch {
		case c.Changer.Path != path: // the interface returned
			return ErrBusy
		case unlocked != nil:
			return c.Changer.setUnlocked(list, unlocked)
		}
		return c.Changer.Set(list)
	})
}

// ChangeCustomers makes a request.
func (c *Run) ChangeCustomers(ctx context.Context, request CustomerRequest) (CustomerReply, error) {
	return c.Changer.SubmitCustomers(ctx, request, c.CommitCustomers)
}

// customerTerms returns a page of customers.
func (c *Run) customerTerms(q CustomerQuery) (page CustomerPage, err error) {
	err = c.call(func() (err error) {
		c.Changer.Lock()
		defer c.Changer.Unlock()
		page, err = c.Changer.CustomerPage(q)
		return err
	})
	return page, err
}

// setPatience is the longest wait of a change for the lock of the file. Most reloads take less.
const setPatience = time.Second

// call calls f in the goroutine owning the shapers.
func (c *Run) call(f func() error) error {
	done, late := make(chan error, 1), time.After(askTimeout)
	select {
	case c.Calls <- func() { done <- f() }:
		return <-done
	case <-late:
		return ErrBusy
	}
}

// ErrBusy reports that the goroutine owning the shapers does not answer.
var ErrBusy = errors.New("the process is busy, or waits for the interface")

// askTimeout is the time to wait for another process, which may be stopped. An answer may
// take a second.
const askTimeout = 3 * time.Second

// askRun calls a method of the process of a shaper. ok reports whether it answered.
func askRun[In, Out any](a *kernel.About, method string, in In) (out Out, ok bool) {
	client := connectRun(a)
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
