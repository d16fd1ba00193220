package policyfile

import (
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/spelling"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// planMeter is the name and the type of the meter of a customer's plan.
const planMeter = "plan"

// customerKeys are the parts of a packet from which its customer is known.
var customerKeys = map[string]dataplane.CustomerKey{
	"address": dataplane.ByInside, "src": dataplane.BySource, "dst": dataplane.ByDestination,
	"vlan": dataplane.ByOuterVLAN, "svlan, cvlan": dataplane.ByTwoVLANs, "mac": dataplane.CustomerByMAC,
	"vlan, mac": dataplane.CustomerByVLANMAC, "mark": dataplane.CustomerByMark,
	"cgroup": dataplane.CustomerByCgroup, "vni": dataplane.CustomerByVNI, "teid": dataplane.CustomerByTEID,
	"inner-address": dataplane.CustomerByInner,
}

// customers reads the key customers, and then the file named there.
func (l *loader) customers(n *yaml.Node) {
	c := l.file.Policy.Customers
	l.keepPlaces(c, n)
	var file, columns, plan *yaml.Node
	var path string
	var form tableForm
	if !l.mapping(n, "customers", keys{
		{"file", func(n *yaml.Node) { file, path = n, l.path(n) }},
		{"columns", func(n *yaml.Node) { columns = n }},
		{"unit", func(n *yaml.Node) { form.unit, _ = parsed(l, n, "unit", parseRateUnit) }},
		{"plan", func(n *yaml.Node) { plan, form.plan = n, l.name(n) }},
		{"key", func(n *yaml.Node) { c.Key = l.customerKey(n) }},
		{"nested", func(n *yaml.Node) { c.Nested, _ = l.boolean(n, "nested") }},
	}) {
		return
	}
	if file == nil {
		l.fail(n, "customers needs a file, such as file: customers.csv")
	}
	if l.plans == nil {
		l.fail(n, "customers need plans: define them under plans:")
	}
	l.form(&form, c.Key, columns, plan)
	if l.errs != nil { // each customer could repeat an error of its plan
		return
	}
	if l.readFile == nil {
		l.fail(file, "the file of customers cannot be read here")
		return
	}
	text, err := l.readFile(path)
	l.readFile = nil // it may keep the text
	if err != nil {
		l.fail(file, "file %q: %v", path, err)
		return
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(l.fileName), path)
	}
	l.rows = l.readRows(path, text, c, form)
}

// form checks the plan of rows without one, and reads the names of columns. The nodes may be nil.
func (l *loader) form(f *tableForm, key dataplane.CustomerKey, columns, plan *yaml.Node) {
	names := func() (out []string) {
		for _, p := range l.plans {
			out = append(out, p.Name)
		}
		return out
	}
	if plan != nil && plan.Kind == yaml.ScalarNode && !slices.Contains(names(), f.plan) {
		l.fail(plan, "no plan named %q%s: define it under plans:", f.plan, l.didYouMean("plan", f.plan, names))
	}
	if columns != nil {
		f.named = l.columns(columns, key, f.plan)
	}
}

// path reads the name of a file.
func (l *loader) path(n *yaml.Node) string {
	s, ok := l.text(n, "file")
	switch {
	case ok && s == "":
		l.fail(n, "file needs a name, such as file: customers.csv")
	case strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		l.fail(n, "file %q has unprintable characters", s)
	}
	return s
}

// customerKey reads a key such as address or [svlan, cvlan].
func (l *loader) customerKey(n *yaml.Node) dataplane.CustomerKey {
	words := []string{n.Value}
	if n.Kind == yaml.SequenceNode {
		words = listWords(n)
	}
	k, ok := customerKeys[strings.Join(words, ", ")]
	two := k == dataplane.ByTwoVLANs || k == dataplane.CustomerByVLANMAC
	if !ok || two != (len(words) == 2) {
		l.fail(n, "key must be one of address, src, dst, vlan, [svlan, cvlan], mac, [vlan, mac], vni, teid, inner-address, mark, cgroup")
	}
	return k
}

// listWords returns the words of a list.
func listWords(n *yaml.Node) (words []string) {
	for _, entry := range n.Content {
		words = append(words, target(entry).Value)
	}
	return words
}

// perCustomer reads the meter of a class with per: customer. per is the value of per, n the value
// of meter, or nil.
func (l *loader) perCustomer(c *dataplane.Class, per, n *yaml.Node) {
	if l.file.Policy.Customers == nil {
		l.fail(per, "per: customer needs customers: define them under customers:")
	}
	c.Meter = &dataplane.Meter{Name: c.Name}
	const want = "per: customer needs meter: plan, the meter of the customer's plan"
	if n == nil {
		l.fail(per, want)
		return
	}
	l.keepPlaces(c.Meter, n)
	if n.Kind == yaml.ScalarNode {
		if n.Value != planMeter {
			l.fail(n, want)
		}
		return
	}
	if kind := target(lookup(n, "type")); kind == nil || kind.Value != planMeter {
		l.fail(n, "%s", want+", or {type: plan} with the options color, precolor, count and then")
		return
	}
	l.mapping(n, "a meter of type plan", l.stageKeys(c.Meter))
	l.checkPreColor(c.Meter, n)
}

// customersCount reports whether the meters of plans count packets. Classes share the tokens
// of a customer, so all of them must count alike.
func (l *loader) customersCount() (packets bool) {
	var first *dataplane.Class
	for i := range l.file.Policy.Classes {
		c := &l.file.Policy.Classes[i]
		switch {
		case !c.Match.Customer:
		case first == nil:
			first, packets = c, c.Meter.Packets
		case packets != c.Meter.Packets:
			l.failAt(l.place(c.Meter, "count"),
				"class %q and class %q share the tokens of customers, so they need the same count",
				first.Name, c.Name)
		}
	}
	return packets
}

// inRows reports whether an object is in the file of customers: a customer, or a plan with
// parameters of a customer's own.
func (l *loader) inRows(object any) bool {
	object = l.original(object)
	switch object.(type) {
	case *dataplane.Customer:
		return l.rows != nil
	case *dataplane.ServicePlan:
		_, named := l.parts[object]
		return l.rows != nil && !named
	}
	return false
}

// NearColumn returns the column that a misspelled one in the file of customers may mean, or "".
func (f *File) NearColumn(name string) string {
	all, _ := contents(f.Policy.Customers.Key, "")
	return spelling.Nearest(name, all)
}

// Ignored returns the ignored columns of the file of customers, and the place of its header.
func (f *File) Ignored() (place string, columns []string) {
	if r := f.loader.rows; r != nil {
		return r.place(r.header), r.ignored
	}
	return "", nil
}

// OwnParameters returns the parameters of a customer's own in its row, by name, if p is its plan in the
// file.
func (f *File) OwnParameters(p *dataplane.ServicePlan) map[string]string {
	if f.loader.rows == nil {
		return nil
	}
	return f.loader.rows.ownParameters(p)
}
