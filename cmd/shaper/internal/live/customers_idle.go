package live

import (
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
)

// idleAtOnce is the number of customers whose counters are read at once, a few times a second.
const idleAtOnce = 500

// idleCustomers finds the customers without a packet for the time of their records.
type idleCustomers struct {
	known map[string]*idleCustomer // customers that are to be removed when they are idle
	queue []string                 // of known, in the order of their next reading
}

// idleCustomer is the last known state of a customer.
type idleCustomer struct {
	packets int64
	active  time.Time // time of the last reading with other packets
}

// start begins to watch the customers of a book.
func (w *idleCustomers) start(book customers.Book, now time.Time) {
	if w.known != nil {
		return
	}
	w.known = map[string]*idleCustomer{}
	w.changed(book.Records(), now)
}

// changed notes changed records.
func (w *idleCustomers) changed(list []*customers.Record, now time.Time) {
	if w.known == nil {
		return
	}
	for _, r := range list {
		switch {
		case r.Idle == 0:
			delete(w.known, r.Name)
		case w.known[r.Name] == nil:
			w.known[r.Name] = &idleCustomer{packets: -1, active: now}
			w.queue = append(w.queue, r.Name)
		}
	}
}

// next returns some customers that are idle. packets returns the number of packets of a customer.
func (w *idleCustomers) next(
	book customers.Book, now time.Time, packets func(name string) (int64, error),
) (idle []string, err error) {
	w.start(book, now)
	n := min(len(w.queue), idleAtOnce)
	part := slices.Clone(w.queue[:n])
	w.queue = slices.Delete(w.queue, 0, n)
	for i, name := range part {
		c, r := w.known[name], book[name]
		if c == nil || r == nil || r.Idle == 0 {
			delete(w.known, name)
			continue
		}
		count, err := packets(name)
		if err != nil {
			w.queue = append(w.queue, part[i:]...)
			return idle, err
		}
		if count != c.packets {
			c.packets, c.active = count, now
		} else if now.Sub(c.active) >= r.Idle {
			idle = append(idle, name)
		}
		w.queue = append(w.queue, name)
	}
	return idle, nil
}

// IdleCustomers returns some customers that had no packet for the time of their records: they are to be
// removed. It should be called a few times a second.
func (c *Changer) IdleCustomers(
	now time.Time, packets func(name string) (int64, error),
) ([]string, error) {
	return c.idle.next(c.Customers.Book, now, packets)
}
