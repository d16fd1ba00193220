package live

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
)

// CustomerRequest is a list of changes of customers, made as a whole or not at all.
type CustomerRequest struct {
	Items  []CustomerItem
	Match  string // version that the list of changes must have; "": any
	Author changes.Author
}

// CustomerItem is a change of one customer.
type CustomerItem struct {
	Name string
	Do   CustomerVerb
	// cells of a row of a file of customers, by column, without the name; for Put and Patch. With Patch an
	// empty cell removes a parameter.
	Cells map[string]string
	Idle  *time.Duration // as in customers.Record; nil: as it is, or never
	Match string         // version that the customer must have; "": any, AnyVersion: it must exist
}

// AnyVersion is the CustomerItem.Match of a customer that must exist.
const AnyVersion = "*"

// CustomerVerb is what a CustomerItem does.
type CustomerVerb string

const (
	Put    CustomerVerb = "put"    // add the customer, or replace all of it
	Patch  CustomerVerb = "patch"  // change some cells of a customer
	Remove CustomerVerb = "remove" // remove a customer, also one of the policy's file
	Reset  CustomerVerb = "reset"  // make the customer as in the policy's file; without one there, remove it
)

// CustomerResult is the effect of a CustomerItem.
type CustomerResult struct {
	Name    string
	Done    CustomerEffect
	Version string // of the customer; "" if there is none
}

// CustomerEffect is the effect of a CustomerItem.
type CustomerEffect string

const (
	Added     CustomerEffect = "added"
	Replaced  CustomerEffect = "replaced"
	Removed   CustomerEffect = "removed"
	Unchanged CustomerEffect = "unchanged" // it was like that before
)

// CustomerReply is the answer to a CustomerRequest.
type CustomerReply struct {
	Results []CustomerResult // by item
	Version string           // of the list of changes
}

// CustomerError is the error of one item of a request.
type CustomerError struct {
	Item int // from 0
	Of   int // number of items
	Err  error
}

func (e *CustomerError) Error() string {
	if e.Of == 1 {
		return e.Err.Error()
	}
	return fmt.Sprintf("item %d: %v", e.Item+1, e.Err)
}

func (e *CustomerError) Unwrap() error { return e.Err }

// Causes of errors of a CustomerRequest.
var (
	ErrNoCustomer = errors.New("there is no such customer")
	ErrVersion    = errors.New("it has changed since")
)

// CustomerTerms are the terms of a customer, with who set them.
type CustomerTerms struct {
	Name    string
	Cells   map[string]string // as in CustomerItem
	Idle    time.Duration
	Added   bool // by a request; otherwise the customer is in the policy's file
	Since   time.Time
	Author  changes.Author
	Version string
}

// version sets the version of terms: customers with equal terms have equal versions.
func (t *CustomerTerms) version() {
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(t.Cells)) {
		_, _ = fmt.Fprintf(h, "%q=%q ", name, t.Cells[name]) // never fails
	}
	_, _ = fmt.Fprint(h, int64(t.Idle))
	t.Version = fmt.Sprintf("%016x", h.Sum64())
}

// termsOf returns the terms of a customer of a roster with a book, or nil if there is none.
func termsOf(r *policyfile.Roster, book customers.Book, name string) *CustomerTerms {
	cells, ok := r.Definition(name)
	if !ok {
		return nil
	}
	out := &CustomerTerms{Name: name, Cells: cells}
	if record := book[name]; record != nil {
		out.Added, out.Idle, out.Since, out.Author = true, record.Idle, record.Since, record.Author
	}
	out.version()
	return out
}

// HasKey reports whether one of the keys of a customer, in these columns, is a text such as 100,7 for two
// VLAN IDs.
func (t *CustomerTerms) HasKey(columns []string, text string) bool {
	if len(columns) == 2 {
		first, second, _ := strings.Cut(text, ",")
		return strings.EqualFold(t.Cells[columns[0]], strings.TrimSpace(first)) &&
			strings.EqualFold(t.Cells[columns[1]], strings.TrimSpace(second))
	}
	return len(columns) == 1 && slices.ContainsFunc(strings.Fields(t.Cells[columns[0]]),
		func(key string) bool { return strings.EqualFold(key, text) })
}
