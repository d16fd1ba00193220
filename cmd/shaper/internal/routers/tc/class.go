package tc

import (
	"slices"
	"strings"
)

// class reads a class command after its verb.
func (t *tcImport) class(d *tcDevice, c tcCommand, verb string, a *tcArgs) {
	k := &tcClass{tcCommand: c, parent: tcRoot}
	kind := ""
	for kind == "" && a.more() {
		switch w := a.next(); w {
		case "root":
		case "parent":
			k.parent = a.handle()
		case "classid":
			k.id = a.handle()
		case "estimator":
			a.next()
			a.next()
		default:
			kind = w
		}
	}
	if verb == "delete" {
		d.classes = slices.DeleteFunc(d.classes, func(o *tcClass) bool { return o.id == k.id })
		return
	}
	switch {
	case a.err != nil:
		return
	case kind != "htb":
		a.fail("class of kind %q cannot be expressed", kind)
		return
	case k.id&0xffff == 0:
		a.fail("classid is missing")
		return
	}
	k.options(a, t)
	if a.err != nil {
		return
	}
	if k.parent&0xffff == 0 {
		k.parent = tcRoot // the qdisc itself
	}
	if i := slices.IndexFunc(d.classes, func(o *tcClass) bool { return o.id == k.id }); i >= 0 {
		if verb == "add" {
			a.fail("the class exists, from line %d", d.classes[i].Number)
			return
		}
		d.classes[i] = k
		return
	}
	d.classes = append(d.classes, k)
}

// options reads the options of a class of htb.
func (k *tcClass) options(a *tcArgs, t *tcImport) {
	for a.more() {
		w := a.next()
		switch {
		case w == "rate":
			k.rate = a.rate(t.link)
		case w == "ceil":
			k.ceil = a.rate(t.link)
		case complete(w, []string{"prio"}) != "":
			k.prio = min(a.number(32), 7) // TC_HTB_NUMPRIO
		case complete(w, []string{"quantum"}) != "":
			k.quantum = a.number(32)
		case complete(w, []string{"overhead"}) != "":
			k.length.overhead = int(a.number(16))
		case complete(w, []string{"mpu"}) != "":
			k.length.mpu = int(a.number(16))
		case complete(w, []string{"linklayer"}) != "":
			if l := a.next(); !strings.HasPrefix("ethernet", l) {
				a.fail("linklayer %s rounds packets to cells of 53 bytes", l)
			}
		case complete(w, []string{"burst", "cburst"}) != "", w == "buffer", w == "cbuffer", w == "maxburst",
			w == "cmaxburst":
			k.burst = strings.TrimPrefix(k.burst+" "+w+" "+a.next(), " ")
		case complete(w, []string{"mtu", "slot", "pslot"}) != "":
			k.burst = strings.TrimPrefix(k.burst+" "+w+" "+a.next(), " ")
		default:
			a.unknown(w)
		}
	}
	switch {
	case k.rate == nil:
		a.fail("rate is missing")
	case k.ceil == nil:
		k.ceil = k.rate
	}
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
