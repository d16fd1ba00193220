package customers

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
)

// Record is what a Book says about the customer of a name.
type Record struct {
	Name string `json:"name"`
	// cells of a row of a file of customers, by column, without the name, such as address: 192.0.2.7
	Cells   map[string]string `json:"cells,omitempty"`
	Removed bool              `json:"removed,omitempty"` // the customer of the policy's file does not exist
	Reset   bool              `json:"reset,omitempty"`   // discards what the book says
	Idle    time.Duration     `json:"idle,omitempty"`    // remove the customer after this time without a packet; 0: never
	Since   time.Time         `json:"since,omitzero"`    // time of the change; zero means unknown
	Author  changes.Author    `json:"author,omitzero"`
}

// Check returns an error if a record cannot be meant.
func (r *Record) Check() error {
	switch {
	case r.Name == "":
		return errors.New("the name of a customer is missing")
	case r.Removed && r.Reset, (r.Removed || r.Reset) && (len(r.Cells) > 0 || r.Idle != 0):
		return fmt.Errorf("customer %q: a removal has nothing else", r.Name)
	case !r.Removed && !r.Reset && r.Cells["plan"] == "":
		return fmt.Errorf("customer %q: plan is missing", r.Name)
	case r.Idle < 0:
		return fmt.Errorf("customer %q: idle is below 0", r.Name)
	}
	return nil
}

// Book holds records by name, without those that Reset. Records in a book are never modified: copies by
// maps.Clone share them.
type Book map[string]*Record

// Apply puts a record into the book.
func (b Book) Apply(r *Record) {
	if r.Reset {
		delete(b, r.Name)
	} else {
		b[r.Name] = r
	}
}

// Records returns all records by the time of their changes, then by name.
func (b Book) Records() []*Record {
	return slices.SortedFunc(maps.Values(b), func(x, y *Record) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Name, y.Name))
	})
}

// Added returns the number of customers in the book, without the removed ones.
func (b Book) Added() (n int) {
	for _, r := range b {
		if !r.Removed {
			n++
		}
	}
	return n
}
