package policyfile

import (
	"strconv"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// idList returns the numbers of a row by which its customer is known: Customer.IDs.
func (r *rowReader) idList() []uint64 {
	switch r.table.Key {
	case dataplane.ByOuterVLAN:
		words(r.cell(r.vlan), func(word string) { r.ids.add(r.vlanID("vlan", word)) })
	case dataplane.ByTwoVLANs:
		r.vlanPair(r.cell(r.svlan), r.cell(r.cvlan))
	case dataplane.CustomerByMAC:
		words(r.cell(r.mac), func(word string) { r.ids.add(r.macOf(word)) })
	case dataplane.CustomerByVLANMAC:
		r.vlanAndMACs(r.cell(r.vlan), r.cell(r.mac))
	case dataplane.CustomerByMark:
		words(r.cell(r.mark), r.addMark)
	case dataplane.CustomerByCgroup:
		words(r.cell(r.cgroup), r.addCgroup)
	}
	return r.ids.end()
}

// vlanPair adds the IDs of the outer and of the inner tag as one number.
func (r *rowReader) vlanPair(outer, inner string) {
	switch {
	case outer == "" && inner == "":
	case outer == "" || inner == "":
		r.fail("svlan and cvlan go together: fill both cells, or none")
	default:
		r.ids.add(r.vlanID("svlan", outer)<<12 | r.vlanID("cvlan", inner))
	}
}

// vlanAndMACs adds the MAC addresses in a VLAN.
func (r *rowReader) vlanAndMACs(vlan, macs string) {
	switch {
	case vlan == "" && macs == "":
		return
	case vlan == "" || macs == "":
		r.fail("vlan and mac go together: fill both cells, or none")
		return
	}
	id := r.vlanID("vlan", vlan)
	words(macs, func(word string) { r.ids.add(id<<48 | r.macOf(word)) })
}

func (r *rowReader) vlanID(column, s string) uint64 {
	v, err := strconv.ParseUint(s, 10, 12)
	if err != nil {
		r.fail("%s: %q is not a VLAN ID from 0 to 4095", column, s)
	}
	return v
}

func (r *rowReader) macOf(s string) uint64 {
	v, err := parseMAC(s)
	if err != nil {
		r.fail("mac: %v", err)
	}
	return v
}

// addMark adds an skb mark, decimal or hexadecimal.
func (r *rowReader) addMark(s string) {
	v, err := strconv.ParseUint(s, 0, 32)
	if err != nil || len(s) > 1 && s[0] == '0' && s[1] != 'x' {
		r.fail("mark: %q is not a mark from 0 to 0xffffffff, decimal or with 0x", s)
	}
	r.ids.add(v)
}

// addCgroup adds a cgroup as its index in the table of customers.
func (r *rowReader) addCgroup(s string) {
	name, err := parseCgroup(s)
	if err != nil {
		r.fail("cgroup: %v", err)
		return
	}
	index, known := r.cgroups[name]
	if !known {
		name = strings.Clone(name)
		index = uint64(len(r.table.Cgroups))
		r.cgroups[name], r.table.Cgroups = index, append(r.table.Cgroups, name)
	}
	r.ids.add(index)
}
