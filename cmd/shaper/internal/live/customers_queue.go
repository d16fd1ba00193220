package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/strictjson"
)

// customerQueue collects requests, so that many of them are made and kept at once: a disk needs milliseconds
// to keep one or a hundred.
type customerQueue struct {
	mu      sync.Mutex
	pending []queuedCustomers
	busy    bool // a goroutine makes requests
}

// queuedCustomers is a request whose answer somebody waits for.
type queuedCustomers struct {
	*PendingCustomers
	done chan struct{} // closed when there is an answer
}

// mostCustomers is the maximum number of customers that are changed at once, beyond those of one request.
const mostCustomers = 1000

// SubmitCustomers makes a request, together with those of others. commit makes requests, as
// Changer.ChangeCustomers does, and answers all of them. After ctx ends the request may still be made.
func (c *LockedChanger) SubmitCustomers(
	ctx context.Context, request CustomerRequest, commit func([]*PendingCustomers),
) (CustomerReply, error) {
	if len(request.Items) > changes.MaxList {
		return CustomerReply{}, fmt.Errorf("more than %d customers: send several lists", changes.MaxList)
	}
	q := queuedCustomers{&PendingCustomers{CustomerRequest: request}, make(chan struct{})}
	c.requests.add(q, commit)
	select {
	case <-q.done:
		return q.Reply, q.Err
	case <-ctx.Done():
		return CustomerReply{}, ctx.Err()
	}
}

func (q *customerQueue) add(one queuedCustomers, commit func([]*PendingCustomers)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = append(q.pending, one)
	if !q.busy {
		q.busy = true
		go q.run(commit)
	}
}

// run makes requests until there are none.
func (q *customerQueue) run(commit func([]*PendingCustomers)) {
	for {
		part := q.take()
		if len(part) == 0 {
			return
		}
		list := make([]*PendingCustomers, len(part))
		for i := range part {
			list[i] = part[i].PendingCustomers
		}
		commit(list)
		for i := range part {
			close(part[i].done)
		}
	}
}

// take returns the next requests, none if there are none.
func (q *customerQueue) take() []queuedCustomers {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, items := 0, 0
	for n < len(q.pending) && (n == 0 || items+len(q.pending[n].Items) <= mostCustomers) {
		items += len(q.pending[n].Items)
		n++
	}
	part := q.pending[:n:n]
	q.pending = q.pending[n:]
	q.busy = n > 0
	return part
}

// changeAll is ChangeCustomers for all requests.
func (c *Changer) changeAll(list []*PendingCustomers) {
	for len(list) > 0 {
		list = list[c.ChangeCustomers(list, time.Now()):]
	}
}

// CommitCustomers makes requests, and answers all of them.
func (c *Run) CommitCustomers(list []*PendingCustomers) {
	err := c.commitCustomers(list)
	for _, p := range list {
		if err != nil {
			p.Err = err
		}
	}
}

func (c *Run) commitCustomers(list []*PendingCustomers) error {
	path := ""
	if err := c.call(func() error { path = c.Changer.Path; return nil }); err != nil {
		return err
	}
	lock, err := changes.LockWithin(path, setPatience)
	if err != nil {
		if errors.Is(err, changes.ErrLocked) {
			return fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return err
	}
	defer lock.Close()
	return c.call(func() error {
		c.Changer.Lock()
		defer c.Changer.Unlock()
		if c.Changer.Path != path { // the interface returned
			return ErrBusy
		}
		c.Changer.changeAll(list)
		return nil
	})
}

// CommitCustomers makes requests of a shaper tap, and answers all of them.
func (c *LockedChanger) CommitCustomers(list []*PendingCustomers) {
	c.Lock()
	defer c.Unlock()
	c.changeAll(list)
}

// submitter returns a method to make a request, as JSON.
func submitter(
	submit func(context.Context, CustomerRequest) (CustomerReply, error),
) func(json.RawMessage, *json.RawMessage) error {
	return func(in json.RawMessage, out *json.RawMessage) error {
		var request CustomerRequest
		if err := strictjson.Unmarshal(in, &request, changes.MaxList); err != nil {
			return err
		}
		ctx, stop := context.WithTimeout(context.Background(), setTimeout)
		defer stop()
		reply, err := submit(ctx, request)
		if err != nil {
			return err
		}
		*out, err = json.Marshal(reply)
		return err
	}
}

// pager returns a method to read a page of customers, as JSON.
func pager(read func(CustomerQuery) (CustomerPage, error)) func(json.RawMessage, *json.RawMessage) error {
	return func(in json.RawMessage, out *json.RawMessage) error {
		var q CustomerQuery
		if err := strictjson.Unmarshal(in, &q, 0); err != nil {
			return err
		}
		page, err := read(q)
		if err == nil {
			*out, err = json.Marshal(page)
		}
		return err
	}
}

// CustomerCounts are the numbers of customers of a book.
type CustomerCounts struct {
	Added   int // customers added or replaced
	Removed int // customers of the policy's file that were removed
}

// CountCustomers returns the numbers of customers of a book.
func CountCustomers(book customers.Book) CustomerCounts {
	added := book.Added()
	return CustomerCounts{added, len(book) - added}
}

// CustomersError returns the error of opening the file of customers.
func (c *Changer) CustomersError() error { return c.customersErr }

// SetPath sets the paths of the files.
func (c *Changer) SetPath(path string) {
	c.Path, c.Customers.Path = path, customers.PathOf(path)
}

// KeepFiles writes the files if they lack something.
func (c *Changer) KeepFiles() error { return errors.Join(c.Keep(), c.Customers.Keep()) }

// PruneCustomers forgets removed customers of a file that a policy, loaded from it, does not have any more.
func (c *Changer) PruneCustomers(has func(name string) bool) error {
	var gone []*customers.Record
	for _, r := range c.Customers.Book.Records() {
		if r.Removed && !has(r.Name) {
			gone = append(gone, &customers.Record{Name: r.Name, Reset: true})
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return c.Customers.Add([][]*customers.Record{gone}, func() error { return nil })
}
