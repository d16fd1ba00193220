package image

import (
	"fmt"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/bpf"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/compiled"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/engine"
	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/remedy"
)

// Values of bpf/src/policy.h.
const (
	rareCgroup = compiled.NumRare // of enum rare; the fields before it are those of compiled.Tables.Rare
	maxLevels  = 8
)

// keyBy are the values of enum key_by in bpf/src/policy.h.
var keyBy = map[dataplane.KeyField]uint8{
	dataplane.ByMAC: 1, dataplane.ByVLANMAC: 2, dataplane.ByMark: 3, dataplane.ByCgroup: 4,
	dataplane.ByVNI: 5, dataplane.ByTEID: 6,
}

// notOfCgroup is why a hook cannot know the cgroup of packets.
const notOfCgroup = "needs the sending socket of packets, which only the hook tc at egress knows: use direction egress"

// checkIdentity refuses the keys and conditions that the hook does not know.
func (e *encoder) checkIdentity() {
	e.Constants.Ingress = engine.Flag(e.Plan.Direction == dataplane.Ingress)
	sockets := e.entry == EgressEntry && e.Plan.Direction == dataplane.Egress
	if c := e.Plan.Customers; c != nil {
		switch {
		case c.Key == dataplane.CustomerByCgroup && !sockets:
			e.fail(c.Source, "key", "cgroup "+notOfCgroup)
		case c.Key == dataplane.CustomerByMark && e.entry == XdpEntry:
			e.refuse(c.Source, "key", "mark "+noMark, remedy.UseTC)
		}
	}
	for i := range e.Plan.Classes {
		if m := &e.Plan.Classes[i].Source.Match; len(m.Cgroups) > 0 && !sockets {
			e.fail(m, "cgroup", notOfCgroup)
		}
	}
	for i := range e.Plan.Stages {
		switch s := &e.Plan.Stages[i]; {
		case s.Key.By == dataplane.ByCgroup && !sockets:
			e.fail(s.Source, "per", "cgroup "+notOfCgroup)
		case s.Key.By == dataplane.ByMark && e.entry == XdpEntry:
			e.refuse(s.Source, "per", "mark "+noMark, remedy.UseTC)
		}
	}
}

// encodeRare encodes the tables of rare fields and of cgroups.
func (e *encoder) encodeRare(t *compiled.Tables) {
	for i := range t.Rare {
		if t.Rare[i].Bounds != nil {
			e.addRare(i, t.Rare[i].Bounds, t.Rare[i].Offset)
		}
	}
	e.encodeCgroups(&t.Cgroups)
}

// addRare adds the bounds of a rare field and their vectors.
func (e *encoder) addRare(field int, bounds []uint64, vectors []uint32) {
	e.checkBounds(len(bounds))
	e.Constants.Rare |= 1 << field
	s := &e.Constants.RareSearch[field]
	s.First, s.Count, s.Offsets = uint32(len(e.vectors)), uint32(len(bounds)), uint32(len(e.tables))
	e.vectors = append(slices.Clip(e.vectors), bounds...)
	e.tables = append(e.tables, vectors...)
}

// encodeCgroups encodes the vectors of cgroups, by ID.
func (e *encoder) encodeCgroups(t *compiled.Cgroups) {
	if t.Paths == nil {
		return
	}
	vectors := map[uint64]uint32{}
	var ids []uint64
	var levels []uint8
	for i, path := range t.Paths {
		g, err := e.findCgroup(path)
		if err != nil {
			e.fail(e.matchOf(path), "cgroup", err.Error())
		}
		if g.id == 0 {
			continue
		}
		ids, vectors[g.id] = append(ids, g.id), t.Vectors[i]
		if !slices.Contains(levels, g.depth) {
			levels = append(levels, g.depth)
		}
	}
	if len(levels) > maxLevels {
		e.fail(e.Plan.Source, "classes", fmt.Sprintf(
			"match cgroups of %d different depths: the kernel plane's limit is %d", len(levels), maxLevels))
		return
	}
	slices.Sort(levels)
	slices.Reverse(levels)
	e.Constants.Levels = uint8(copy(e.Constants.Level[:], levels))
	slices.Sort(ids)
	bounds, offsets := []uint64{0}, []uint32{t.None}
	for _, id := range ids {
		if last := len(bounds) - 1; bounds[last] == id {
			offsets[last] = vectors[id]
		} else {
			bounds, offsets = append(bounds, id), append(offsets, vectors[id])
		}
		bounds, offsets = append(bounds, id+1), append(offsets, t.None)
	}
	e.addRare(rareCgroup, bounds, offsets)
	e.Constants.RareSearch[rareCgroup].None = t.None
}

// matchOf returns the first match that names a cgroup.
func (e *encoder) matchOf(path string) *dataplane.Match {
	for i := range e.Plan.Classes {
		if m := &e.Plan.Classes[i].Source.Match; slices.Contains(m.Cgroups, path) {
			return m
		}
	}
	return nil
}

// customerCgroups finds the cgroups of customers.
func (e *encoder) customerCgroups(from *dataplane.Customers) {
	if from.Key != dataplane.CustomerByCgroup {
		return
	}
	e.cgroups = make([]cgroup, len(from.Cgroups))
	for i, path := range from.Cgroups {
		var err error
		if e.cgroups[i], err = e.findCgroup(path); err != nil {
			e.fail(from, "cgroup", err.Error())
		}
	}
}

// The table of a policy has fields of these numbers.
var _ = [1]struct{}{}[len(bpf.ShaperConstants{}.RareSearch)-1-rareCgroup]
