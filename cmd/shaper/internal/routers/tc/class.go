package tc

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers/form"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// classRead is a class that is read.
type classRead struct {
	*tcClass
	link meter.Rate
	kind string
}

var classWords = &routers.Reader[*classRead]{Kinds: &kinds, Statements: []routers.Statement[*classRead]{
	{Form: "root"},
	{Form: "estimator <word> <word>"},
	{Form: "parent <classid:parent>", Do: (*classRead).take},
	{Form: "classid <classid:id>", Do: (*classRead).take},
	{Form: "htb:kind {rate <word:rate> | ceil <word:ceil> | prio~ <number:prio> | quantum~ <number:quantum>" +
		" | overhead~ <u16:overhead> | mpu~ <u16:mpu> | linklayer~ <word:layer> | burst~ <word:burst> | buffer <word:burst>" +
		" | maxburst <word:burst> | cburst~ <word:burst> | cbuffer <word:burst> | cmaxburst <word:burst>" +
		" | mtu~ <word> | slot~ <word:burst> | pslot~ <word:burst>}", Do: (*classRead).take},
	{Form: "<foreign> [<word>...]", Do: func(_ *classRead, l routers.Line, _ form.Values) error {
		return fmt.Errorf("class of kind %q cannot be expressed", l.Words[0])
	}},
}}

// take takes the values of a part of the command.
func (k *classRead) take(l routers.Line, v form.Values) (err error) {
	for _, x := range v {
		switch x.Name {
		case "kind":
			k.kind = "htb"
		case "parent":
			k.parent = x.Value.(uint32)
		case "id":
			k.id = x.Value.(uint32)
		case "rate":
			k.rate, err = positiveRate(x.Value.(string), k.link)
		case "ceil":
			k.ceil, err = positiveRate(x.Value.(string), k.link)
		case "prio":
			k.prio = min(x.Value.(uint32), 7) // TC_HTB_NUMPRIO
		case "quantum":
			k.quantum = x.Value.(uint32)
		case "overhead":
			k.length.overhead = int(x.Value.(uint32))
		case "mpu":
			k.length.mpu = int(x.Value.(uint32))
		case "layer":
			if !strings.HasPrefix("ethernet", x.Value.(string)) {
				err = fmt.Errorf("linklayer %s rounds packets to cells of 53 bytes", x.Value)
			}
		case "burst":
			k.burst = strings.TrimPrefix(k.burst+" "+l.Words[x.At-1]+" "+x.Value.(string), " ")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// class reads a class command after its verb.
func (t *tcImport) class(d *tcDevice, c tcCommand, verb string, words routers.Line) error {
	k := &classRead{tcClass: &tcClass{tcCommand: c, parent: tcRoot}, link: t.link}
	err := classWords.ReadEach(k, words)
	k.id, k.parent = d.ofRoot(k.id), d.ofRoot(k.parent)
	i := slices.IndexFunc(d.classes, func(o *tcClass) bool { return o.id == k.id })
	switch {
	case err != nil:
		d.refused = append(d.refused, k.id)
		return err
	case slices.Contains(d.refused, k.parent) && i < 0:
		d.refused = append(d.refused, k.id)
		return fmt.Errorf("its parent %s was refused", handleName(k.parent))
	case verb == "delete":
		child := func(o *tcClass) bool { return o.parent == k.id }
		user := func(f *tcFilter) bool { return f.class == k.id && f.bound }
		if slices.ContainsFunc(d.classes, child) || slices.ContainsFunc(d.filters, user) {
			d.note(c.Line, "tc rejects it, and it has no effect: a filter or another class uses the class")
		} else if i >= 0 {
			d.classes = slices.Delete(d.classes, i, i+1)
			d.qdiscs = slices.DeleteFunc(d.qdiscs, func(q *tcQdisc) bool { return q.parent == k.id })
		}
		return nil
	case k.kind == "":
		return errors.New("the kind of the class is missing")
	case k.id&0xffff == 0:
		return errors.New("classid is missing")
	case k.rate == nil:
		return errors.New("rate is missing")
	case i >= 0 && verb == "add":
		return fmt.Errorf("the class exists, from line %d", d.classes[i].Number)
	}
	if k.ceil == nil {
		k.ceil = k.rate
	}
	if k.parent&0xffff == 0 {
		k.parent = tcRoot // the qdisc itself
	}
	above := func(o *tcClass) bool { return o.id == k.parent }
	if i < 0 && k.parent != tcRoot && !slices.ContainsFunc(d.classes, above) {
		d.note(c.Line, "there is no class %s yet: tc puts the class below the root qdisc", handleName(k.parent))
		k.parent = tcRoot
	}
	if i < 0 && verb == "change" {
		return errors.New("there is no such class to change")
	}
	if i >= 0 {
		if k.parent != d.classes[i].parent && k.parent != tcRoot {
			d.note(c.Line, "tc keeps the parent of the class, from line %d", d.classes[i].Number)
		}
		k.parent = d.classes[i].parent
		d.classes[i] = k.tcClass
	} else {
		d.classes = append(d.classes, k.tcClass)
	}
	return nil
}

// ofRoot completes the ID of a class without the number of its qdisc: that of the root qdisc.
func (d *tcDevice) ofRoot(id uint32) uint32 {
	for _, q := range d.qdiscs {
		if q.parent == tcRoot && id>>16 == 0 && id != 0 {
			return q.handle | id
		}
	}
	return id
}

// index fills the maps of classes, which do not change any more.
func (d *tcDevice) index() {
	d.byID, d.below = map[uint32]*tcClass{}, map[uint32][]*tcClass{}
	for _, k := range d.classes {
		d.byID[k.id] = k
		d.below[k.parent] = append(d.below[k.parent], k)
	}
}

// find returns the class with an ID, or nil.
func (d *tcDevice) find(id uint32) *tcClass { return d.byID[id] }

// leaves returns the classes without children below a class, or below the root qdisc.
func (d *tcDevice) leaves(parent uint32) (list []*tcClass) {
	for _, k := range d.below[parent] {
		if len(d.below[k.id]) > 0 {
			list = append(list, d.leaves(k.id)...)
		} else {
			list = append(list, k)
		}
	}
	return list
}

// checkTree reports and removes classes without their parent, and classes among their own
// ancestors.
func (d *tcDevice) checkTree() {
	for again := true; again; {
		again = false
		d.index()
		d.classes = slices.DeleteFunc(d.classes, func(k *tcClass) bool {
			if k.parent == tcRoot || d.top(k) != nil {
				return false
			}
			d.cannot(k.Line, "class %s has no parent %s", handleName(k.id), handleName(k.parent))
			again = true
			return true
		})
	}
	d.index()
}

// top returns the ancestor of a class below the root qdisc, or nil.
func (d *tcDevice) top(k *tcClass) *tcClass {
	for range d.classes {
		if k.parent == tcRoot {
			return k
		}
		if k = d.find(k.parent); k == nil {
			return nil
		}
	}
	return nil
}
