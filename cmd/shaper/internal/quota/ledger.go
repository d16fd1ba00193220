// Package quota counts the bytes used by customers in windows of the calendar.
package quota

import (
	"strings"
	"time"
)

// Sources is the number of places where the packets of a customer are counted, such as one for each
// direction.
const Sources = 2

// Ledger counts the used bytes of customers by name. Each customer's count is for the window in
// which it was counted last; it begins at 0 in each window. A Ledger is not safe for concurrent
// use.
type Ledger struct {
	accounts map[string]*account
	known    [Sources]bool // sources whose customers without an account had counters of 0
}

// account is the count of a customer.
type account struct {
	Span
	used int64 // bytes; negative if packets of the last window were dropped in this one
	last [Sources]Counters
	seen [Sources]bool // in the present pass
}

// Counters are the counters of a customer at one source, in bytes. They grow while the source knows
// the customer.
type Counters struct {
	All     int64
	Dropped int64 // part of All
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

// New returns an empty Ledger, whose sources may have counted before.
func New() *Ledger { return &Ledger{accounts: map[string]*account{}} }

// Empty reports whether the Ledger is like a new one.
func (l *Ledger) Empty() bool { return len(l.accounts) == 0 && l.known == [Sources]bool{} }

// Len returns the number of customers with a count.
func (l *Ledger) Len() int { return len(l.accounts) }

// Observe adds the bytes passed at a source since the last call to the count of a customer, and
// returns the bytes used in the window. If the counters are smaller than before, they began again
// at 0. In another window than before the count begins at 0, with the growth since the last call.
func (l *Ledger) Observe(customer string, source int, now Counters, window Span) (used int64) {
	a := l.account(customer)
	if a.Span == (Span{}) || a.Span != window && window.Start >= clockSet {
		a.Span, a.used = window, 0
	}
	was := a.last[source]
	if now.All < was.All {
		was = Counters{}
	}
	a.see(source, now)
	if l.known[source] {
		a.used += now.All - was.All - (now.Dropped - was.Dropped)
	}
	return a.used
}

// Skip observes a customer whose bytes since the last call do not count.
func (l *Ledger) Skip(customer string, source int, now Counters) {
	if now != (Counters{}) || l.accounts[customer] != nil {
		l.account(customer).see(source, now)
	}
}

func (l *Ledger) account(customer string) *account {
	a := l.accounts[customer]
	if a == nil {
		a = &account{}
		l.accounts[strings.Clone(customer)] = a // it may be part of a large text
	}
	return a
}

func (a *account) see(source int, now Counters) {
	a.last[source], a.seen[source] = now, true
}

// End ends a pass, in which all customers of a source were observed or skipped. The source does not
// know the others: its counters will begin at 0. End forgets customers unknown to all sources after
// their window. A customer removed and added again in the same window keeps its count.
func (l *Ledger) End(source int, now time.Time) {
	for customer, a := range l.accounts {
		if !a.seen[source] {
			a.last[source] = Counters{}
		}
		a.seen[source] = false
		if a.last == [Sources]Counters{} && now.Unix() >= a.End {
			delete(l.accounts, customer)
		}
	}
	l.known[source] = true
}

// Restarted notes that all counters of a source began again at 0, as in new maps. Without it, a
// counter already above its last value would lose the bytes up to this value.
func (l *Ledger) Restarted(source int) {
	for _, a := range l.accounts {
		a.last[source] = Counters{}
	}
	l.known[source] = true
}

// Unknown marks unobserved counters at a source. The next pass takes them as they are, and counts
// from there on.
func (l *Ledger) Unknown(source int) { l.known[source] = false }
