package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// ErrIdleProcess reports that there is no process to remove an idle customer.
var ErrIdleProcess = errors.New("idle needs a process, which removes the customer: the shaper runs without one")

// customerCaller returns who changes the customers of the shapers of one interface: their process, or, for
// pinned shapers without one, a list of them with the path of their file. The caller must close client.
func customerCaller(list []Handle) (client *caller, here []*kernel.Shaper, path string, err error) {
	var process *kernel.About
	for i, sh := range list {
		k, err := sh.keeper()
		switch {
		case err != nil:
			return nil, nil, "", err
		case i == 0 && k.tap != nil:
			return k.tap, nil, "", nil
		case i > 0 && k.path != path:
			return nil, nil, "", ErrSeveralRuns
		}
		path = k.path
		if k.process != 0 {
			process = sh.Info()
		}
	}
	if process == nil {
		return nil, inKernel(list), path, nil
	}
	if client = connectRun(process); client == nil {
		return nil, nil, "", fmt.Errorf("process %d does not answer", process.Process)
	}
	return client, nil, "", nil
}

// callCustomers calls a method by JSON: the codec of other calls sends no pointer to false or 0.
func callCustomers(client *caller, method string, in, out any) error {
	question, err := json.Marshal(in)
	if err != nil {
		return err
	}
	var text json.RawMessage
	client.within(setTimeout)
	err = client.call(method, json.RawMessage(question), &text)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the process has not answered for %v: shaper customer list shows what is in force", setTimeout)
	case errors.Is(err, errNoMethod):
		return errors.New("the process is another version of shaper, without customers that come and go: restart it")
	case err != nil:
		return err
	}
	return json.Unmarshal(text, out)
}

// ChangeCustomers adds, replaces and removes customers in the shapers of one interface, all or none: by their
// process, or by this one if they are pinned and have none.
func ChangeCustomers(list []Handle, request CustomerRequest) (reply CustomerReply, err error) {
	client, here, path, err := customerCaller(list)
	if err != nil {
		return reply, err
	}
	if client != nil {
		if !isTapCaller(list) {
			defer client.Close()
		}
		return reply, callCustomers(client, "ChangeCustomers", request, &reply)
	}
	for i := range request.Items {
		if idle := request.Items[i].Idle; idle != nil && *idle > 0 {
			return reply, ErrIdleProcess
		}
	}
	err = changeHere(here, path, func(c *Changer) error {
		p := &PendingCustomers{CustomerRequest: request}
		c.ChangeCustomers([]*PendingCustomers{p}, time.Now())
		reply = p.Reply
		return p.Err
	})
	return reply, err
}

// isTapCaller reports whether the shapers are those of a shaper tap, whose handles own their connections.
func isTapCaller(list []Handle) bool { return len(list) > 0 && list[0].shaper() == nil }

// QueryCustomers returns customers of the shapers of one interface.
func QueryCustomers(list []Handle, q CustomerQuery) (page CustomerPage, err error) {
	client, here, path, err := customerCaller(list)
	if err != nil {
		return page, err
	}
	if client != nil {
		if !isTapCaller(list) {
			defer client.Close()
		}
		return page, callCustomers(client, "CustomerTerms", q, &page)
	}
	err = changeHere(here, path, func(c *Changer) error {
		page, err = c.CustomerPage(q)
		return err
	})
	return page, err
}

// EachCustomer calls f for all customers that a query selects, by name. It returns the columns of a file of
// customers with their keys.
func EachCustomer(
	ctx context.Context, list []Handle, q CustomerQuery, f func(*CustomerTerms) error,
) (keys []string, err error) {
	for {
		page, err := QueryCustomers(list, q)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Customers {
			if err := f(t); err != nil {
				return nil, err
			}
		}
		if q.After = page.Next; q.After == "" {
			return page.Columns, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}
