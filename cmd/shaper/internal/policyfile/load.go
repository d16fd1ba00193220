package policyfile

import (
	"errors"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"go.yaml.in/yaml/v3"
)

// Error is an error in a policy. Its text is one line.
type Error struct {
	Place  string // file:line:column
	Reason string

	at position // by which errors are sorted
}

func (e *Error) Error() string { return e.Place + ": " + shortened(e.Reason) }

// shortened leaves out the middle of a reason with a quoted value of thousands of bytes. The remedy
// is at the end.
func shortened(reason string) string {
	const most, part = 1000, 400 // bytes
	if len(reason) <= most {
		return reason
	}
	return strings.ToValidUTF8(reason[:part], "") + "…" + strings.ToValidUTF8(reason[len(reason)-part:], "")
}

// File is a policy with the places of its parts.
type File struct {
	Policy *dataplane.Policy
	Flags  bool // the policy was given by flags

	loader *loader
}

// Place returns the place of a key in a part of the policy: a *dataplane.Class, *Meter,
// *Match, *Action, *Queue, *Link, *Envelope, *Customers, *ServicePlan or *Customer. If the
// part does not have the key, it returns the place where the part begins. The place of a
// customer is file:line.
func (f *File) Place(object any, key string) string {
	return f.loader.placeText(f.loader.place(object, key))
}

// Compile compiles the policy. Its errors have places.
func (f *File) Compile() (*compiled.Plan, error) {
	plan, err := compiled.Compile(f.Policy)
	if err == nil && plan.Up != nil {
		f.loader.up = plan.Up.Source
	}
	return plan, f.Placed(err)
}

// Of returns the file with the policy of a plan for one direction. Places are those of the file.
func (f *File) Of(plan *compiled.Plan) *File {
	return &File{Policy: plan.Source, Flags: f.Flags, loader: f.loader}
}

// Placed adds places to errors found in the policy by dataplane or a plane. It removes duplicates,
// because all parts of a policy by --rate have the same place.
func (f *File) Placed(err error) error {
	return f.PlacedWith(err, func(error) string { return "" })
}

// PlacedWith is like Placed and adds advice to each error.
func (f *File) PlacedWith(err error, advice func(error) string) error {
	if err == nil {
		return nil
	}
	var out []error
	var inRows []rowError
	seen := map[string]bool{}
	for _, err := range unjoin(err) {
		var e *dataplane.FieldError
		if errors.As(err, &e) {
			if f.loader.inRows(e.Object) {
				inRows = append(inRows, rowError{FieldError: e, advice: advice(err)})
				continue
			}
			err = f.loader.errorAt(f.loader.place(e.Object, e.Field), e.Field+" "+e.Phrase("")+advice(err))
		}
		if text := err.Error(); !seen[text] && len(out) < maxErrors {
			seen[text] = true
			out = append(out, err)
		}
	}
	slices.SortStableFunc(out, compareErrors)
	if inRows != nil {
		var found faults
		f.loader.addConflicts(&found, inRows)
		out = append(out, found.errors(f.loader.rows.place)...)
	}
	return errors.Join(out...)
}

// compareErrors compares errors by their places. Errors without a place are last.
func compareErrors(a, b error) int {
	var e, f *Error
	switch first, second := errors.As(a, &e), errors.As(b, &f); {
	case first && second:
		return e.at.compare(f.at)
	case first:
		return -1
	case second:
		return 1
	}
	return 0
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// ReadFile returns the text of a file named in a policy. path is as in the policy. Errors do not
// contain the path.
type ReadFile func(path string) (string, error)

// Load reads a policy file without customers. Errors use name for the file. The returned
// error joins all errors of syntax and units; Compile finds the others.
func Load(name string, text []byte) (*File, error) { return LoadWith(name, text, nil) }

// LoadWith is like Load, and reads the file of customers with readFile.
func LoadWith(name string, text []byte, readFile ReadFile) (*File, error) {
	return load(name, text, readFile, false)
}

func load(name string, text []byte, readFile ReadFile, namesOnly bool) (*File, error) {
	l, root, err := read(name, text, "policy")
	if err != nil {
		return nil, err
	}
	l.fileName, l.readFile, l.namesOnly = name, readFile, namesOnly
	return l.policy(root)
}

// partKinds are the keys of a policy whose values are its parts.
var partKinds = []string{"classes", "meters", "queues", "links", "envelopes", "plans"}

// policy reads a whole policy. It reads links, queues and meters before their users, in any order
// of the file.
func (l *loader) policy(root *yaml.Node) (*File, error) {
	p := l.file.Policy
	l.keepPlaces(p, root)
	if !l.checkAliases(root) {
		return nil, l.joined()
	}
	known := keys{
		{"length", l.lengthRule},
		{"otherwise", func(n *yaml.Node) { p.DropUnclassified = l.second(n, "otherwise", "pass", "drop") }},
	}
	var customers *yaml.Node
	known = append(known, entry{"customers", func(n *yaml.Node) {
		customers, p.Customers = n, &dataplane.Customers{}
	}})
	parts := map[string]*yaml.Node{}
	for _, what := range partKinds {
		known = append(known, entry{what, func(n *yaml.Node) { parts[what] = n }})
	}
	l.entries(root, "a policy", func(key, value *yaml.Node) {
		if !strings.HasPrefix(key.Value, "x-") { // a holder of anchors
			l.knownKey(key, value, "a policy", known)
		}
	})
	for _, what := range partKinds {
		if n := parts[what]; n != nil && !l.checkCount(n, what) {
			return nil, l.joined()
		}
	}
	named := func(what string, read func(name string, n *yaml.Node)) {
		if n := parts[what]; n != nil {
			l.entries(n, what, func(key, value *yaml.Node) {
				if key.Value == "" {
					l.fail(key, "each of the %s needs a name", what)
				}
				read(l.name(key), value)
			})
		}
	}
	named("envelopes", l.envelope)
	var links []func() // a link can name any other, so all names are read before
	named("links", func(name string, n *yaml.Node) {
		link := &dataplane.Link{Name: name}
		l.links[name] = link
		p.Links = append(p.Links, link)
		l.keepPlaces(link, n)
		links = append(links, func() { l.link(link, n) })
	})
	for _, read := range links {
		read()
	}
	named("queues", l.queue)
	var meters []func() // likewise
	named("meters", func(name string, n *yaml.Node) {
		m := &dataplane.Meter{Name: name}
		l.meters[name] = m
		p.Meters = append(p.Meters, m)
		meters = append(meters, func() { l.meter(m, n) })
	})
	for _, read := range meters {
		read()
	}
	switch classes := parts["classes"]; {
	case classes == nil && len(l.errs) == 0:
		l.fail(root, "classes are missing: a policy needs at least one")
	case classes == nil:
	case classes.Kind != yaml.SequenceNode:
		l.fail(classes, "classes must be a list, not %s", kindName(classes))
	default:
		p.Classes = make([]dataplane.Class, len(classes.Content))
		for i, n := range classes.Content {
			l.class(&p.Classes[i], n)
			classes.Content[i] = nil // to free the nodes of a large policy early
		}
	}
	packets := l.customersCount()
	if n := parts["plans"]; n != nil && customers == nil {
		l.fail(n, "plans need customers: define them under customers:")
	}
	named("plans", func(name string, n *yaml.Node) { l.plan(name, n, packets) })
	l.checkRules()
	if customers != nil {
		l.customers(customers)
	}
	if l.rows != nil && !l.rows.faults.none() {
		l.conflicts()
		return nil, l.joined()
	}
	if l.errs != nil {
		return nil, l.joined()
	}
	return l.file, nil
}

var lengthBases = map[string]dataplane.LengthBase{"l3": dataplane.L3, "l2": dataplane.L2, "l1": dataplane.L1}

func (l *loader) lengthRule(n *yaml.Node) {
	rule := &l.file.Policy.Length
	l.keepPlaces(rule, n)
	base := func(n *yaml.Node) {
		if s, ok := l.word(n, "length", "l3", "l2", "l1"); ok {
			rule.Base = lengthBases[s]
		}
	}
	if n.Kind == yaml.ScalarNode {
		base(n)
		return
	}
	l.mapping(n, "length", keys{
		{"base", base},
		{"overhead", func(n *yaml.Node) { rule.Overhead, _ = parsed(l, n, "overhead", parseInt) }},
		{"mpu", func(n *yaml.Node) { rule.MPU, _ = parsed(l, n, "mpu", parseInt) }},
	})
}

func (l *loader) class(c *dataplane.Class, n *yaml.Node) {
	l.keepPlaces(c, n)
	var inline, then, per *yaml.Node
	ok := l.mapping(n, "a class", keys{
		{"name", func(n *yaml.Node) { c.Name = l.name(n) }},
		{"match", func(n *yaml.Node) { l.match(&c.Match, n) }},
		{"meter", func(n *yaml.Node) { inline = n }},
		{"then", func(n *yaml.Node) { then = n }},
		{"per", func(n *yaml.Node) {
			per = n
			c.Match.Customer = true
			l.word(n, "per", "customer")
		}},
		{"green", func(n *yaml.Node) { c.Green = l.action(n) }},
		{"yellow", func(n *yaml.Node) { c.Yellow = l.action(n) }},
		{"red", func(n *yaml.Node) { c.Red = l.action(n) }},
	})
	if ok && c.Name == "" {
		l.fail(n, "a class needs a name")
	}
	switch {
	case c.Match.Customer:
		l.perCustomer(c, per, inline)
	case inline == nil:
		if then != nil {
			l.fail(then, "then needs a meter")
		}
		return
	case inline.Kind == yaml.ScalarNode:
		c.Meter = l.namedMeter(inline)
		if then != nil {
			l.fail(then, "then belongs to meter %q: move it there", inline.Value)
		}
		return
	default:
		c.Meter = &dataplane.Meter{Name: c.Name}
		l.meter(c.Meter, inline)
	}
	if then != nil {
		if c.Meter.Then != nil {
			l.fail(then, "duplicate then, here and in the meter")
		}
		c.Meter.Then = l.namedMeter(then)
	}
}

// namedMeter returns the meter of a name.
func (l *loader) namedMeter(n *yaml.Node) *dataplane.Meter {
	name, ok := l.text(n, "a meter's name")
	if !ok {
		return nil
	}
	m := l.meters[name]
	switch {
	case m == nil && name == planMeter:
		l.fail(n,
			"no meter named %q: meter: plan, the meter of a customer's plan, needs per: customer in a class",
			name)
	case m == nil:
		l.fail(n, "no meter named %q: define it under meters:", name)
	}
	return m
}
