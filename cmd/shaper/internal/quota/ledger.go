// Package quota counts the bytes that customers have used in windows of the calendar.
package quota

import (
	"iter"
	"maps"
	"math"
	"time"
)

// Sources is the number of counters that a customer can have, such as one for each direction.
const Sources = 2

// Ledger has the used bytes of customers by name. A customer has one count, for the window in
// which it was observed last; it begins at 0 in each window. The zero value is not usable. A
// Ledger is not safe for concurrent use.
type Ledger struct{ accounts map[string]*account }

// account is the count of a customer.
type account struct {
	Span
	used     uint64
	counters [Sources]uint64 // last values
}

// Span is a window of the calendar, in seconds since 1970. Windows begin and end at whole
// seconds.
type Span struct{ Start, End int64 }

// SpanOf returns the window between two moments, as of calendar.Window.Bounds. Many customers
// have the same window, so a caller needs it once for each quota.
func SpanOf(start, end time.Time) Span { return Span{start.Unix(), end.Unix()} }

// clockSet is the beginning of 2026, in seconds since 1970. A host without a battery starts with
// an earlier time, until it knows the right one. Then counts stay in their windows.
const clockSet = 1_767_225_600

// New returns an empty Ledger.
func New() *Ledger { return &Ledger{map[string]*account{}} }

// Customers yields the names of all customers.
func (l *Ledger) Customers() iter.Seq[string] { return maps.Keys(l.accounts) }

// Len returns the number of customers.
func (l *Ledger) Len() int { return len(l.accounts) }

// Observe adds the growth of a counter of a customer since the last call, and returns the bytes
// used in the window. source is from 0 to Sources-1. The counter has the bytes that were not
// dropped. If it is smaller than before, it began again at 0. The first value of a customer
// counts as a whole. In another window than before the count begins at 0, with the growth since
// the last call.
func (l *Ledger) Observe(customer string, source int, counter uint64, window Span) (used int64) {
	a := l.account(customer, window)
	grown := counter
	if last := a.counters[source]; counter >= last {
		grown -= last
	}
	a.counters[source] = counter
	return a.add(grown)
}

// Add adds bytes to the count of a customer in a window, and returns the bytes used in it.
func (l *Ledger) Add(customer string, bytes uint64, window Span) (used int64) {
	return l.account(customer, window).add(bytes)
}

// Used returns the bytes that a customer has used in the window that contains now: 0 if it was
// not observed in it.
func (l *Ledger) Used(customer string, now time.Time) int64 {
	a := l.accounts[customer]
	if a == nil || now.Unix() >= a.End {
		return 0
	}
	return a.value()
}

// Reset sets the count of a customer to 0. Its counters continue.
func (l *Ledger) Reset(customer string) {
	if a := l.accounts[customer]; a != nil {
		a.used = 0
	}
}

// Restarted says that all counters of a source began again at 0, as in new maps. Without it, a
// counter that already exceeds its last value would lose the bytes up to that value.
func (l *Ledger) Restarted(source int) {
	for _, a := range l.accounts {
		a.counters[source] = 0
	}
}

// Prune removes customers whose window has ended: those that were not observed since. A customer
// that was removed and added again in the same window keeps its count.
func (l *Ledger) Prune(now time.Time) {
	if now.Unix() < clockSet {
		return
	}
	for customer, a := range l.accounts {
		if now.Unix() >= a.End {
			delete(l.accounts, customer)
		}
	}
}

// account returns the account of a customer in a window.
func (l *Ledger) account(customer string, window Span) *account {
	a := l.accounts[customer]
	switch {
	case a == nil:
		a = &account{Span: window}
		l.accounts[customer] = a
	case a.Span != window && window.Start >= clockSet:
		a.Span, a.used = window, 0
	}
	return a
}

// add adds bytes. The count stays at the largest value instead of overflowing.
func (a *account) add(bytes uint64) int64 {
	if bytes > math.MaxUint64-a.used {
		bytes = math.MaxUint64 - a.used
	}
	a.used += bytes
	return a.value()
}

func (a *account) value() int64 { return int64(min(a.used, math.MaxInt64)) }
