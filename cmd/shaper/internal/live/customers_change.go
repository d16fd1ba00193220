package live

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel"
)

// PendingCustomers is a request with its answer.
type PendingCustomers struct {
	CustomerRequest
	Reply CustomerReply
	Err   error

	records []*customers.Record
}

// rosterEdits are the edits of requests in one roster, and the shapers with its policy.
type rosterEdits struct {
	*policyfile.Roster
	shapers []Changeable
	edits   []policyfile.CustomerEdit
	undo    []func()
}

// undoTo undoes all but the first n changes.
func (r *rosterEdits) undoTo(n, edits int) {
	for i := len(r.undo) - 1; i >= n; i-- {
		r.undo[i]()
	}
	r.undo, r.edits = r.undo[:n], r.edits[:edits]
}

// rosters returns the rosters of all shapers. Shapers of one policy have one roster.
func (c *Changer) rosters() (out []*rosterEdits, err error) {
	for _, sh := range c.shapers() {
		r, err := sh.Roster()
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(out, func(e *rosterEdits) bool { return e.Roster == r })
		if at < 0 {
			at = len(out)
			out = append(out, &rosterEdits{Roster: r})
		}
		out[at].shapers = append(out[at].shapers, sh)
	}
	if len(out) == 0 {
		return nil, ErrBusy
	}
	return out, nil
}

// ChangeCustomers answers requests in their order, each as a whole or not at all, and writes the file of
// customers once for all of them. It ends before a request that names a customer of an earlier one, and
// returns the number of answered requests. The caller must hold the lock of the file of changes.
func (c *Changer) ChangeCustomers(list []*PendingCustomers, now time.Time) (answered int) {
	rosters, err := c.rosters()
	if err != nil {
		for _, p := range list {
			p.Err = err
		}
		return len(list)
	}
	touched := map[string]bool{}
	var accepted []*PendingCustomers
	var records [][]*customers.Record
	for ; answered < len(list); answered++ {
		p := list[answered]
		names := map[string]bool{}
		for i := range p.Items {
			names[p.Items[i].Name] = true
		}
		meets := false
		for name := range names {
			meets = meets || touched[name]
		}
		// the version of the list is that after all requests before
		if meets || p.Match != "" && len(accepted) > 0 {
			break
		}
		maps.Copy(touched, names)
		if p.Err = c.accept(p, rosters, now); p.Err == nil && len(p.records) > 0 {
			accepted, records = append(accepted, p), append(records, p.records)
		}
	}
	if len(accepted) > 0 {
		c.finishCustomers(accepted, records, rosters, now)
	}
	for _, p := range list[:answered] {
		p.Reply.Version = c.Customers.Version()
	}
	return answered
}

// finishCustomers keeps accepted requests and puts them into force. If that fails, each is tried alone.
func (c *Changer) finishCustomers(
	accepted []*PendingCustomers, records [][]*customers.Record, rosters []*rosterEdits, now time.Time,
) {
	err := c.Customers.Add(records, func() error { return c.putCustomers(rosters, now) })
	if err == nil {
		for _, p := range accepted {
			c.idle.changed(p.records, now)
		}
		return
	}
	for _, r := range rosters {
		r.undoTo(0, 0)
	}
	if len(accepted) == 1 {
		accepted[0].Err = err
		return
	}
	for i, p := range accepted {
		for _, r := range rosters {
			r.edits, r.undo = nil, nil
		}
		if p.Err = c.accept(p, rosters, now); p.Err == nil && len(p.records) > 0 {
			c.finishCustomers(accepted[i:i+1], [][]*customers.Record{p.records}, rosters, now)
		}
	}
}

// accept makes a request in the rosters, or nothing at all. The records are those of the request that change
// something.
func (c *Changer) accept(p *PendingCustomers, rosters []*rosterEdits, now time.Time) error {
	if p.Match != "" && p.Match != c.Customers.Version() {
		return fmt.Errorf("the list of changes: %w", ErrVersion)
	}
	p.records, p.Reply = nil, CustomerReply{}
	of := map[string]int{} // item by name
	for i := range p.Items {
		item := &p.Items[i]
		if _, twice := of[item.Name]; twice {
			return &CustomerError{i, len(p.Items), fmt.Errorf("customer %q is named twice", item.Name)}
		}
		of[item.Name] = i
		record, result, err := c.recordOf(item, rosters)
		if err != nil {
			return &CustomerError{i, len(p.Items), err}
		}
		if p.Reply.Results = append(p.Reply.Results, result); record != nil {
			record.Since, record.Author = now.Round(0), p.Author
			p.records = append(p.records, record)
		}
	}
	if len(p.records) == 0 {
		return nil
	}
	undone := func() {
		for _, r := range rosters {
			r.undoTo(len(r.undo)-1, len(r.edits)-len(p.records))
		}
	}
	none := 0
	for at, r := range rosters {
		edits, undo, err := r.Change(p.records)
		if errors.Is(err, policyfile.ErrNoTable) {
			none++
			undo = func() {}
			edits, err = make([]policyfile.CustomerEdit, len(p.records)), nil
		}
		if err == nil && none == len(rosters) {
			err = policyfile.ErrNoTable
		}
		if err != nil {
			rosters = rosters[:at]
			undone()
			var one *policyfile.CustomerError
			if errors.As(err, &one) {
				return &CustomerError{of[one.Name], len(p.Items), err}
			}
			return err
		}
		r.edits, r.undo = append(r.edits, edits...), append(r.undo, undo)
	}
	for i := range p.Reply.Results {
		switch result := &p.Reply.Results[i]; {
		case result.Done == Removed:
			result.Version = ""
		case p.Items[i].Do == Reset && result.Done != Unchanged:
			result.Version = ""
			for _, r := range rosters {
				if now := termsOf(r.Roster, nil, result.Name); now != nil {
					result.Version = now.Version
				}
			}
		}
	}
	return nil
}

// recordOf returns the record that an item makes, nil if it changes nothing.
func (c *Changer) recordOf(
	item *CustomerItem, rosters []*rosterEdits,
) (record *customers.Record, result CustomerResult, err error) {
	result = CustomerResult{Name: item.Name, Done: Unchanged}
	var now *CustomerTerms
	var roster *policyfile.Roster // with a table
	inFile := false
	for _, r := range rosters {
		if now == nil {
			now = termsOf(r.Roster, c.Customers.Book, item.Name)
		}
		inFile = inFile || r.InFile(item.Name)
		if roster == nil && r.HasTable() {
			roster = r.Roster
		}
	}
	switch {
	case roster == nil:
		return nil, result, policyfile.ErrNoTable
	case item.Name == "":
		return nil, result, errors.New("the name of the customer is missing")
	case now == nil && (item.Do == Remove || item.Do == Patch || item.Match != ""):
		return nil, result, fmt.Errorf("customer %q: %w%s", item.Name, ErrNoCustomer, nearCustomer(roster, item.Name))
	case item.Match != "" && item.Match != AnyVersion && item.Match != now.Version:
		return nil, result, fmt.Errorf("customer %q: %w", item.Name, ErrVersion)
	}
	if now != nil {
		result.Version = now.Version
	}
	record = &customers.Record{Name: item.Name}
	switch item.Do {
	case Remove:
		result.Done = Removed
		record.Removed, record.Reset = inFile, !inFile
		return record, result, nil
	case Reset:
		if c.Customers.Book[item.Name] == nil {
			return nil, result, nil
		}
		switch result.Done = Removed; {
		case inFile && now == nil:
			result.Done = Added
		case inFile:
			result.Done = Replaced
		}
		record.Reset = true
		return record, result, nil
	case Put, Patch:
	default:
		return nil, result, fmt.Errorf("customer %q: unknown change %q", item.Name, item.Do)
	}
	cells := map[string]string{}
	if item.Do == Patch {
		record.Idle = now.Idle
		maps.Copy(cells, now.Cells)
		if plan := item.Cells["plan"]; plan != "" && plan != now.Cells["plan"] {
			roster.DropParameters(cells) // they belonged to the plan before
		}
	}
	maps.Copy(cells, item.Cells)
	maps.DeleteFunc(cells, func(_, cell string) bool { return cell == "" })
	if record.Cells = cells; item.Idle != nil {
		record.Idle = *item.Idle
	}
	if record.Idle < 0 {
		return nil, result, fmt.Errorf("customer %q: idle is below 0", item.Name)
	}
	next := CustomerTerms{Name: item.Name, Idle: record.Idle}
	if next.Cells, err = roster.Canonical(record); err != nil {
		return nil, result, err
	}
	next.version()
	if record.Cells = next.Cells; now != nil && now.Version == next.Version {
		return nil, result, nil
	}
	if result.Done = Added; now != nil {
		result.Done = Replaced
	}
	result.Version = next.Version
	return record, result, nil
}

// putCustomers puts the edits of rosters into force in their shapers. After an error the shapers are as
// before.
func (c *Changer) putCustomers(rosters []*rosterEdits, now time.Time) error {
	for at, r := range rosters {
		for i, sh := range r.shapers {
			err := c.putInto(sh, r, r.edits, now)
			if err == nil {
				continue
			}
			for _, undo := range rosters {
				undo.undoAll()
			}
			for _, changed := range rosters[:at+1] { // this shaper, too: its maps may differ
				last := len(changed.shapers)
				if changed == r {
					if last = i + 1; errors.As(err, new(*dataplane.FieldError)) {
						last = i // refused before anything changed
					}
				}
				for _, sh := range changed.shapers[:last] {
					_ = c.replaceCustomers(sh)
				}
			}
			return err
		}
	}
	return nil
}

// undoAll undoes all changes of the roster.
func (r *rosterEdits) undoAll() { r.undoTo(0, 0) }

// putInto puts edits into force in one shaper.
func (c *Changer) putInto(
	sh Changeable, r *rosterEdits, edits []policyfile.CustomerEdit, now time.Time,
) error {
	edits = slices.DeleteFunc(slices.Clone(edits), func(e policyfile.CustomerEdit) bool {
		return e.Before == nil && e.After == nil
	})
	if len(edits) == 0 {
		return nil
	}
	var list []compiled.CustomerChange = r.Services(edits, sh.Info().Direction, c.Book, now)
	err := sh.ChangeCustomers(list)
	var unlocked *kernel.UnlockedError
	switch {
	case errors.Is(err, kernel.ErrNoRoom):
		return c.replaceCustomers(sh)
	case errors.As(err, &unlocked):
		c.customersLoose = true
		return nil
	}
	return err
}

// replaceCustomers reloads a shaper with its customers and all changes.
func (c *Changer) replaceCustomers(sh Changeable) error {
	policy, err := sh.Policy()
	if err != nil {
		return err
	}
	policy, _ = policy.Amended(c.Path, c.Book, time.Now())
	return sh.Replace(policy)
}

// TightenCustomers repeats changes of customers made without the lock of the interface, which a process that
// loaded a policy meanwhile may not have seen.
func (c *Changer) TightenCustomers() error {
	if !c.customersLoose {
		return nil
	}
	for _, sh := range c.shapers() {
		if err := c.replaceCustomers(sh); err != nil {
			return err
		}
	}
	c.customersLoose = false
	return nil
}

// CustomerTerms returns the terms of a customer, or nil if there is none.
func (c *Changer) CustomerTerms(name string) (*CustomerTerms, error) {
	rosters, err := c.rosters()
	if err != nil {
		return nil, err
	}
	for _, r := range rosters {
		if t := termsOf(r.Roster, c.Customers.Book, name); t != nil {
			return t, nil
		}
	}
	return nil, nil
}
