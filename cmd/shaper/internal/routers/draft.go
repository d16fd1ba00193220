package routers

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policywriter"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Draft is a policy under import.
type Draft struct {
	Name string // in the configuration
	Line int    // where it begins
	Part bool   // other policies of the configuration contain it

	// Policy lacks the classes until Render.
	Policy    dataplane.Policy
	Classes   []*dataplane.Class
	Comments  policywriter.Comments
	Customers string    // text of the file of customers, or ""
	Remarks   []string  // comments at the top of the file
	Notes     []Problem // differences that remain, also comments at the top
	Problems  []Problem
	Counters  []Counter       // of show policy-map interface
	used      map[string]bool // names of classes
}

// Cannot adds a statement that a policy cannot express, or that is not understood.
func (d *Draft) Cannot(line Line, format string, args ...any) {
	d.Problems = append(d.Problems, line.Problem(format, args...))
}

// Omit adds a class that a policy cannot express, with its statements in the lines up to last.
func (d *Draft) Omit(line Line, last int, reason error) {
	p := line.Problem("%v: the class is omitted, and later classes take its packets", reason)
	p.Last = last
	d.Problems = append(d.Problems, p)
}

// Note adds a statement whose effect on packets differs in the policy, or a part of it that is left
// out. It does not fail the import.
func (d *Draft) Note(line Line, format string, args ...any) {
	if p := line.Problem(format, args...); !slices.Contains(d.Notes, p) {
		d.Notes = append(d.Notes, p)
	}
}

// Remark adds a comment at the top of the file.
func (d *Draft) Remark(format string, args ...any) { add(&d.Remarks, fmt.Sprintf(format, args...)) }

// From sets the comment of a key of a part: the statement, and how its value was converted.
func (d *Draft) From(part any, key string, line Line, format string, args ...any) {
	if d.Comments == nil {
		d.Comments = policywriter.Comments{}
	}
	d.Comments.Set(part, key, line.Number, format, args...)
}

// NewClass returns a class for Class, with the statement that it was made from.
func (d *Draft) NewClass(name string, line Line, format string, args ...any) *dataplane.Class {
	c := &dataplane.Class{Name: name}
	d.From(c, "", line, format, args...)
	return c
}

// Class adds a class for each condition. They share one meter.
func (d *Draft) Class(class *dataplane.Class, when []Condition) {
	when = Merge(when)
	if n := len(when); n > 1 && class.Meter != nil && !slices.Contains(d.Policy.Meters, class.Meter) {
		class.Meter.Name = class.Name
		d.Policy.Meters = append(d.Policy.Meters, class.Meter)
		was := d.Comments[class]["meter"]
		d.From(class.Meter, "", Line{Number: was.Line}, "%s", was.Text)
		d.From(class, "meter", Line{Number: was.Line}, "shared by the classes %s-1 to %[1]s-%d", class.Name, n)
	}
	for i, m := range when {
		name := class.Name
		if len(when) > 1 {
			name = fmt.Sprintf("%s-%d", name, i+1)
		}
		c := *class
		c.Name, c.Match = d.unused(name), m.Match
		for key, comment := range d.Comments[class] {
			d.From(&c, key, Line{Number: comment.Line}, "%s", comment.Text)
		}
		for key, comment := range m.from {
			d.From(&c, "match."+key, Line{Number: comment.Line}, "%s", comment.Text)
		}
		d.Classes = append(d.Classes, &c)
	}
}

// unused changes a name that is in use: the part of one class may be named like another class.
func (d *Draft) unused(name string) string {
	for d.used[name] {
		name += "-b"
	}
	if d.used == nil {
		d.used = map[string]bool{}
	}
	d.used[name] = true
	return name
}

// Queue adds a queue.
func (d *Draft) Queue(q *dataplane.Queue, line Line, format string, args ...any) {
	d.From(q, "", line, format, args...)
	d.Policy.Queues = append(d.Policy.Queues, q)
}

// Render writes the draft as a policy file. title is its first comment; customers is the name of the file of
// customers.
func (d *Draft) Render(title, customers string) (*policywriter.Text, error) {
	p := d.Policy
	comments := policywriter.Comments{}
	maps.Copy(comments, d.Comments)
	for _, c := range d.Classes {
		p.Classes = append(p.Classes, *c)
	}
	for i, c := range d.Classes {
		comments[&p.Classes[i]] = d.Comments[c]
	}
	head := append([]string{title}, d.Remarks...)
	for _, n := range byLine(d.Notes) {
		place := fmt.Sprintf("Line %d", n.Line)
		if n.File != "" {
			place = fmt.Sprintf("%s:%d", n.File, n.Line)
		}
		head = append(head, place+": "+n.Reason)
	}
	return policywriter.Write(&p, policywriter.Options{Comments: comments, Head: head, Customers: customers})
}

// EthernetHeader is the length of an Ethernet header without VLAN tags, bytes.
const EthernetHeader = 14

// CountAs sets what the policy counts of packets. Conditions on their length, which counts the same, are
// converted.
func (d *Draft) CountAs(base dataplane.LengthBase) error {
	was := d.Policy.Length
	d.Policy.Length = dataplane.LengthRule{Base: base}
	headers := map[dataplane.LengthBase]int64{dataplane.L3: 0, dataplane.L2: EthernetHeader}
	from, known := headers[was.Base]
	to, ok := headers[base]
	for _, c := range d.Classes {
		c.Match.Length = slices.Clone(c.Match.Length)
		for i := range c.Match.Length {
			r := &c.Match.Length[i]
			if r.First == 0 && r.Last == math.MaxUint32 { // all packets
				continue
			}
			if !known || !ok || was.Overhead != 0 || was.MPU != 0 {
				return fmt.Errorf("class %s compares the length of packets: edit the policy instead", c.Name)
			}
			if r.First > 0 {
				r.First = uint64(max(int64(r.First)+to-from, 0))
			}
			r.Last = uint64(max(int64(r.Last)+to-from, 0))
		}
		if comment, ok := d.Comments[c]["match.length"]; ok && to != from {
			d.From(c, "match.length", Line{Number: comment.Line}, "%s; counted as %v", comment.Text, base)
		}
	}
	return nil
}

// AssumedLimit is the limit of queues that have an unknown one.
const AssumedLimit = 100 * time.Millisecond

// BitRate writes a rate of n bit/s.
func BitRate(n int64) string { return meter.BitRate(n).String() }
