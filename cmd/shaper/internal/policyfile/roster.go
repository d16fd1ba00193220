package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/customers"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
)

// Roster holds the customers of a running policy, which come and go without compiling all of them. All copies
// of a Compiled share it. It is safe for concurrent use.
type Roster struct {
	mu   sync.Mutex
	from *Compiled // the policy when it was loaded, without changes
	file *Compiled // from without the customers of a book

	live  *compiled.Roster     // nil until it is needed
	added map[string]*addition // customers of a book, by name
	plans map[string]*ownPlan  // plans with own parameters, by planKey
	named map[string]*ownPlan  // by customer
	now   *Compiled            // the policy with the present customers; nil: to be made
}

// addition is what a book says about a customer.
type addition struct {
	removed bool
	quota   int64 // own limit, bytes; 0: none
}

// ownPlan is a plan with own parameters that customers of a book have.
type ownPlan struct {
	key     string
	source  *dataplane.ServicePlan
	service *compiled.Service
	cells   map[string]string
	users   int
}

// CustomerError is the error of a record.
type CustomerError struct {
	Name string
	Err  error
}

func (e *CustomerError) Error() string { return fmt.Sprintf("customer %q: %v", e.Name, e.Err) }
func (e *CustomerError) Unwrap() error { return e.Err }

// ErrNoTable is the error for a customer of a policy without a table of customers.
var ErrNoTable = errors.New("the policy has no customers: it needs the keys customers and plans")

// newRoster returns the roster of a policy as it is in its file.
func newRoster(c *Compiled) *Roster {
	base := *c
	base.Plan, base.base = cmp.Or(c.base, c.Plan), nil
	base.roster = &Roster{
		from: &base, file: &base,
		added: map[string]*addition{}, plans: map[string]*ownPlan{}, named: map[string]*ownPlan{},
	}
	return base.roster
}

// Roster returns the customers of the policy.
func (c *Compiled) Roster() *Roster { return c.roster }

// Prepare makes the first change as fast as the others: without it, the first one copies the table of
// customers.
func (r *Roster) Prepare() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.begin() // without a table there is nothing to prepare
}

// Current returns the policy with its present customers: c, or one without changes.
func (c *Compiled) Current() *Compiled {
	if c.roster == nil {
		return c
	}
	if now, err := c.roster.policy(); err == nil && now != c.roster.from {
		return now
	}
	return c
}

// policy returns the policy with the present customers: from, if there were no changes.
func (r *Roster) policy() (*Compiled, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current()
}

// current is policy for a caller with the lock.
func (r *Roster) current() (*Compiled, error) {
	if r.live == nil {
		return r.from, nil
	}
	if r.now == nil {
		now, err := r.compile()
		if err != nil {
			return nil, err
		}
		r.now = now
	}
	return r.now, nil
}

// ErrCgroups is the error for a change of customers that are known by cgroup.
var ErrCgroups = errors.New("customers by cgroup do not come and go: change their file, and reload")

// begin makes the table in which customers come and go.
func (r *Roster) begin() error {
	if r.from.Plan.Customers == nil {
		return ErrNoTable
	}
	if r.live == nil {
		r.live = compiled.NewRoster(r.from.Plan)
		r.now = r.from
	}
	return nil
}

// compile returns the policy with the present customers.
func (r *Roster) compile() (*Compiled, error) {
	l := *r.from.loader
	policy, table := *r.from.Policy, *r.from.Policy.Customers
	table.List = r.live.List()
	policy.Customers = &table
	l.rows = r.rows(&table)
	next := *r.from
	next.File = &File{Policy: &policy, Flags: r.from.Flags, loader: &l}
	if r.live.NeedsCompile() {
		plan, err := next.File.Compile()
		if err != nil {
			return nil, err
		}
		next.Plan = plan
	} else {
		next.Plan = r.live.Plan(r.from.Plan, &policy)
	}
	return &next, nil
}

// rows returns the rows of the file with a table, with the own parameters and quotas of the book.
func (r *Roster) rows(table *dataplane.Customers) *rows {
	out := *r.file.loader.rows
	lines := map[string]int32{}
	for i, line := range out.lines {
		lines[out.table.List[i].Name] = line
	}
	out.table, out.lines = table, make([]int32, len(table.List))
	for i := range table.List {
		if name := table.List[i].Name; r.added[name] == nil {
			out.lines[i] = lines[name]
		}
	}
	out.cells = map[*dataplane.ServicePlan]map[string]string{}
	for _, p := range r.plans {
		out.cells[p.source] = p.cells
	}
	out.quotas = maps.Clone(out.quotas)
	for name, a := range r.added {
		if delete(out.quotas, name); a.quota > 0 {
			out.quotas[name] = a.quota
		}
	}
	return &out
}

// WithCustomers returns the policy with the customers of a book on top of those of its file. stale lists the
// errors of records that the policy cannot use, and the keys that customers of the file lose because a
// customer of the book has them.
func (c *Compiled) WithCustomers(book customers.Book) (out *Compiled, stale []error) {
	file := c
	if c.roster != nil {
		file = c.roster.file
	}
	r := newRoster(file)
	next := *r.from
	if len(book) == 0 || r.from.Plan.Customers == nil {
		if len(book) > 0 {
			stale = append(stale, ErrNoTable)
		}
		return &next, stale
	}
	_ = r.begin() // there is a table
	var list []*customers.Record
	for _, record := range book.Records() {
		if r.live.Remove(record.Name); record.Removed {
			r.added[record.Name] = &addition{removed: true}
		} else {
			list = append(list, record)
		}
	}
	for _, read := range r.file.loader.readRecords(list) {
		lost, err := r.load(&read)
		if stale = append(stale, lost...); err != nil {
			stale = append(stale, &CustomerError{read.Name, err})
		}
	}
	r.now = nil
	now, err := r.current()
	if err != nil { // customers on links do not fit together: the file alone does
		return &next, append(stale, fmt.Errorf("the customers that were added: %w", err))
	}
	r.from = now
	r.live = nil // until the next change
	return now, stale
}

// load adds a record to the table. A customer of the file loses the keys that it shares with the record.
func (r *Roster) load(read *readRecord) (lost []error, err error) {
	if read.err != nil {
		return nil, read.err
	}
	service, err := r.planOf(read)
	if err != nil {
		return nil, err
	}
	if err := r.live.Check(read.customer); err != nil {
		return nil, withoutObject(err)
	}
	owners := map[string]bool{}
	r.live.Conflicts(read.customer, func(c compiled.Conflict) {
		if owners[c.Owner] = true; r.added[c.Owner] != nil {
			err = errors.New(c.Reason)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(owners)) {
		other, plan := r.live.Customer(name)
		kept := *other
		kept.IDs = slices.DeleteFunc(slices.Clone(other.IDs),
			func(id uint64) bool { return slices.Contains(read.customer.IDs, id) })
		kept.Prefixes = slices.DeleteFunc(slices.Clone(other.Prefixes), func(p netip.Prefix) bool {
			return slices.ContainsFunc(read.customer.Prefixes, func(q netip.Prefix) bool {
				return p == q || p.Overlaps(q) && !r.from.Policy.Customers.Nested
			})
		})
		r.live.Put(&kept, plan)
		lost = append(lost, &CustomerError{name, fmt.Errorf(
			"its addresses that customer %q has, which was added while the shaper ran, are left out", read.Name)})
	}
	r.put(read, service)
	return lost, nil
}

// put adds or replaces a customer of a record.
func (r *Roster) put(read *readRecord, p *ownPlan) {
	r.leave(read.Name)
	c := *read.customer
	if c.Plan = p.source; p.key != "" {
		p.users++
		r.plans[p.key], r.named[c.Name] = p, p
	}
	r.added[c.Name] = &addition{quota: read.quota}
	r.live.Put(&c, p.service)
}

// leave takes a customer from its plan with own parameters.
func (r *Roster) leave(name string) {
	if p := r.named[name]; p != nil {
		if p.users--; p.users == 0 {
			delete(r.plans, p.key)
		}
		delete(r.named, name)
	}
}

// planOf returns the plan of a record. Records with equal parameters have the same plan.
func (r *Roster) planOf(read *readRecord) (*ownPlan, error) {
	l := r.file.loader
	i := slices.IndexFunc(l.plans, func(p *plan) bool { return p.Name == read.customer.Plan.Name })
	if i < 0 {
		return nil, l.noPlan(read.customer.Plan.Name)
	}
	named := &r.from.Plan.Customers.Plans[i]
	if read.customer.Plan == l.plans[i].ServicePlan {
		if read.customer.Plan.InTree() {
			return &ownPlan{source: read.customer.Plan, service: named}, nil
		}
		if err := named.Replaces(named); err != nil {
			return nil, err
		}
		return &ownPlan{source: read.customer.Plan, service: named}, nil
	}
	key := fmt.Sprintf("%q", read.customer.Plan.Name)
	for _, name := range slices.Sorted(maps.Keys(read.cells)) {
		key += fmt.Sprintf(" %s=%q", name, read.cells[name])
	}
	if known := r.plans[key]; known != nil {
		return known, nil
	}
	own := &ownPlan{key: key, source: read.customer.Plan, cells: read.cells}
	if own.source.InTree() { // only a whole compilation can tell
		own.service = &compiled.Service{Name: own.source.Name, Source: own.source}
		return own, nil
	}
	var err error
	if own.service, err = r.from.Plan.Variant(named, own.source, false); err != nil {
		return nil, withoutObject(err)
	}
	return own, nil
}

// CustomerEdit is what a change did to a customer of a roster.
type CustomerEdit struct {
	Name          string
	Before, After *dataplane.Customer // nil: there is none
	plan          *compiled.Service   // of After
	inTree        bool                // the plan before or after has its queue in a tree of links
}

// Change puts records into the roster, all or none; their names must differ. It returns what changed, and a
// function to undo it. The error is a *CustomerError, or ErrNoTable.
func (r *Roster) Change(list []*customers.Record) (edits []CustomerEdit, undo func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(); err != nil {
		return nil, nil, err
	}
	if r.from.Policy.Customers.Key == dataplane.CustomerByCgroup {
		return nil, nil, ErrCgroups
	}
	restore := make([]func(), 0, len(list))
	undoAll := func() {
		for _, record := range list { // first, so that no keys meet
			r.live.Remove(record.Name)
			r.leave(record.Name)
			delete(r.added, record.Name)
		}
		for _, f := range restore {
			f()
		}
		r.now = nil
	}
	edits = make([]CustomerEdit, len(list))
	var put []*customers.Record
	for i, record := range list {
		edits[i].Name = record.Name
		before, plan := r.live.Customer(record.Name)
		edits[i].Before, edits[i].inTree = before, plan != nil && plan.Tree >= 0
		own, added := r.named[record.Name], r.added[record.Name]
		restore = append(restore, func() {
			if added != nil {
				r.added[record.Name] = added
			}
			if own != nil {
				r.plans[own.key], r.named[record.Name] = own, own
				own.users++
			}
			if before != nil {
				r.live.Put(before, plan)
			}
		})
		r.live.Remove(record.Name)
		r.leave(record.Name)
		delete(r.added, record.Name)
		switch {
		case record.Removed:
			r.added[record.Name] = &addition{removed: true}
		case !record.Reset:
			put = append(put, record)
		}
	}
	if err = r.changeAll(list, put); err == nil {
		r.now = nil
		if r.live.NeedsCompile() {
			_, err = r.current()
		}
	}
	if err != nil {
		undoAll()
		return nil, nil, err
	}
	for i := range edits {
		e := &edits[i]
		e.After, e.plan = r.live.Customer(e.Name)
		e.inTree = e.inTree || e.plan != nil && e.plan.Tree >= 0
	}
	return edits, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		undoAll()
	}, nil
}

// changeAll puts the customers of the file that a list resets, and those of records.
func (r *Roster) changeAll(list, put []*customers.Record) error {
	fits := func(c *dataplane.Customer) error {
		if err := r.live.Check(c); err != nil {
			return &CustomerError{c.Name, withoutObject(err)}
		}
		var err error
		r.live.Conflicts(c, func(other compiled.Conflict) {
			if err == nil {
				err = &CustomerError{c.Name, errors.New(other.Reason)}
			}
		})
		if err == nil && r.live.Len() >= dataplane.MaxCustomers {
			err = &CustomerError{c.Name, fmt.Errorf("there are %d customers, the maximum", dataplane.MaxCustomers)}
		}
		return err
	}
	for _, record := range list {
		from := r.file.Plan.Customers
		number := from.Number(record.Name)
		if !record.Reset || number == 0 {
			continue
		}
		c := from.Source.List[number-1]
		if err := fits(&c); err != nil {
			return err
		}
		service := from.Service(number)
		r.live.Put(&c, service)
	}
	for _, read := range r.file.loader.readRecords(put) {
		if read.err != nil {
			return &CustomerError{read.Name, read.err}
		}
		plan, err := r.planOf(&read)
		if err != nil {
			return &CustomerError{read.Name, err}
		}
		if err := fits(read.customer); err != nil {
			return err
		}
		r.put(&read, plan)
	}
	return nil
}

// Services returns the changes of edits for the shapers of one direction, with the changes of a book in force
// at a time.
func (r *Roster) Services(
	edits []CustomerEdit, d dataplane.Direction, book changes.Book, now time.Time,
) []compiled.CustomerChange {
	a := r.from.ChangeCompiler(book, now)
	out := make([]compiled.CustomerChange, len(edits))
	for i, e := range edits {
		out[i] = compiled.CustomerChange{Name: e.Name, Before: e.Before, After: e.After, InTree: e.inTree}
		if e.After == nil {
			continue
		}
		terms := book.Terms(changes.Target{Kind: changes.Customer, Name: e.Name}, now)
		service, err := a.service(e.plan, terms)
		if err != nil {
			service = a.allowed(e.plan, terms)
		}
		out[i].Plan = r.from.Plan.ServiceFor(d, service)
	}
	return out
}

// Definition returns the cells of a customer, by column, without its name. ok is false if there is none.
func (r *Roster) Definition(name string) (cells map[string]string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begin() != nil {
		return nil, false
	}
	return r.definition(name)
}

func (r *Roster) definition(name string) (cells map[string]string, ok bool) {
	c, _ := r.live.Customer(name)
	if c == nil {
		return nil, false
	}
	return r.cellsOf(c), true
}

// cellsOf returns the cells of a customer of the roster.
func (r *Roster) cellsOf(c *dataplane.Customer) map[string]string {
	cells := KeyCells(r.from.Policy.Customers, c)
	cells["plan"] = c.Plan.Name
	own := r.file.loader.rows.ownParameters(c.Plan)
	if p := r.named[c.Name]; p != nil {
		own = p.cells
	}
	maps.Copy(cells, own)
	quota := r.file.loader.rows.quotas[c.Name]
	if a := r.added[c.Name]; a != nil {
		quota = a.quota
	}
	if quota > 0 {
		cells["quota"] = fmt.Sprint(quota)
	}
	return cells
}

// Select returns the first names, sorted, of the customers that are wanted, at most so many.
func (r *Roster) Select(most int, wanted func(name, plan string) bool) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begin() != nil {
		return nil
	}
	var out []string
	last := "" // a name that is not before this one is not among the first; "": unknown
	for c := range r.live.All() {
		if last != "" && c.Name >= last || !wanted(c.Name, c.Plan.Name) {
			continue
		}
		if out = append(out, c.Name); len(out) == 4*most {
			FirstNames(&out, most)
			last = out[most-1]
		}
	}
	FirstNames(&out, most)
	return out
}

// Few returns the names of all customers, or nil if there are more than most.
func (r *Roster) Few(most int) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begin() != nil || r.live.Len() > most {
		return nil
	}
	for c := range r.live.All() {
		names = append(names, c.Name)
	}
	return names
}

// FirstNames sorts names, and keeps the first ones, at most so many.
func FirstNames(names *[]string, most int) {
	slices.Sort(*names)
	*names = (*names)[:min(len(*names), most)]
}

// ParseCustomerAddress reads an address or a prefix of a customer.
func ParseCustomerAddress(text string) (netip.Prefix, error) {
	p, err := parsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("address: %w", err)
	}
	return p, nil
}

// Of returns the name of the customer of an address or a prefix; "" for none.
func (r *Roster) Of(p netip.Prefix) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begin() != nil {
		return ""
	}
	return r.live.Of(p)
}

// KeyColumns returns the columns of the file of customers with their keys.
func (r *Roster) KeyColumns() []string { return keyColumns(r.file.Policy.Customers.Key) }

// HasTable reports whether the policy has a table of customers.
func (r *Roster) HasTable() bool { return r.file.Plan.Customers != nil }

// DropParameters removes the own parameters and the quota from the cells of a customer.
func (r *Roster) DropParameters(cells map[string]string) {
	maps.DeleteFunc(cells, func(name, _ string) bool {
		return name == "quota" || slices.Contains(ownNames, name)
	})
}

// InFile reports whether the file of customers has a customer of a name.
func (r *Roster) InFile(name string) bool {
	c := r.file.Plan.Customers
	return c != nil && c.Number(name) != 0
}

// Canonical returns the cells of a record as Definition will return them.
func (r *Roster) Canonical(record *customers.Record) (map[string]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from.Plan.Customers == nil {
		return nil, ErrNoTable
	}
	read := r.file.loader.readRecords([]*customers.Record{record})[0]
	if read.err != nil {
		return nil, &CustomerError{record.Name, read.err}
	}
	cells := KeyCells(r.from.Policy.Customers, read.customer)
	cells["plan"] = read.customer.Plan.Name
	maps.Copy(cells, read.cells)
	if read.quota > 0 {
		cells["quota"] = fmt.Sprint(read.quota)
	}
	return cells, nil
}
