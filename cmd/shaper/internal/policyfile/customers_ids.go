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
		r.eachWord(r.vlan, func(word string) { r.addID(r.vlanID("vlan", word)) })
	case dataplane.ByTwoVLANs:
		r.vlanPair(r.cell(r.svlan), r.cell(r.cvlan))
	case dataplane.CustomerByMAC:
		r.eachWord(r.mac, func(word string) { r.addID(r.macOf(word)) })
	case dataplane.CustomerByVLANMAC:
		r.vlanAndMACs()
	case dataplane.CustomerByVNI:
		r.eachWord(r.vni, func(word string) { r.addID(r.number("vni", "a VNI from 0 to 16777215", 24, word)) })
	case dataplane.CustomerByTEID:
		r.eachWord(r.teid, func(word string) { r.addID(r.number("teid", "a TEID from 0 to 0xffffffff", 32, word)) })
	case dataplane.CustomerByMark:
		r.eachWord(r.mark, func(word string) { r.addID(r.number("mark", "a mark from 0 to 0xffffffff", 32, word)) })
	case dataplane.CustomerByCgroup:
		r.eachWord(r.cgroup, func(word string) { r.addID(r.cgroupOf(word)) })
	}
	return r.ids.end()
}

// eachWord calls read for each word of some cells.
func (r *rowReader) eachWord(columns []int, read func(string)) {
	for _, at := range columns {
		words(r.cell(at), read)
	}
}

func (r *rowReader) addID(id uint64, ok bool) {
	if ok {
		r.ids.add(id)
	}
}

// vlanPair adds the IDs of the outer and of the inner tag as one number.
func (r *rowReader) vlanPair(outer, inner string) {
	switch {
	case outer == "" && inner == "":
		return
	case outer == "" || inner == "":
		r.fail("svlan and cvlan go together: fill both cells, or none")
		return
	}
	first, ok := r.vlanID("svlan", outer)
	second, both := r.vlanID("cvlan", inner)
	r.addID(first<<12|second, ok && both)
}

// vlanAndMACs adds the MAC addresses in each VLAN.
func (r *rowReader) vlanAndMACs() {
	given := 0
	for _, list := range [][]int{r.vlan, r.mac} {
		for _, at := range list {
			if r.cell(at) != "" {
				given++
				break
			}
		}
	}
	if given == 1 {
		r.fail("vlan and mac go together: fill both cells, or none")
		return
	}
	r.eachWord(r.vlan, func(word string) {
		vlan, ok := r.vlanID("vlan", word)
		r.eachWord(r.mac, func(word string) {
			mac, both := r.macOf(word)
			r.addID(vlan<<48|mac, ok && both)
		})
	})
}

func (r *rowReader) vlanID(column, s string) (id uint64, ok bool) {
	v, err := strconv.ParseUint(s, 10, 12)
	if err != nil {
		r.fail("%s: %q is not a VLAN ID from 0 to 4095", column, s)
	}
	return v, err == nil
}

func (r *rowReader) macOf(s string) (mac uint64, ok bool) {
	mac, err := parseMAC(s)
	if err != nil {
		r.fail("mac: %v", err)
	}
	return mac, err == nil
}

// number reads a number of some bits, decimal or hexadecimal. what describes it.
func (r *rowReader) number(column, what string, bits int, s string) (v uint64, ok bool) {
	v, err := strconv.ParseUint(s, 0, bits)
	if err != nil || len(s) > 1 && s[0] == '0' && s[1] != 'x' {
		r.fail("%s: %q is not %s, decimal or with 0x", column, s, what)
		return 0, false
	}
	return v, true
}

// cgroupOf returns the index of a cgroup in the table of customers.
func (r *rowReader) cgroupOf(s string) (index uint64, ok bool) {
	name, err := parseCgroup(s)
	if err != nil {
		r.fail("cgroup: %v", err)
		return 0, false
	}
	index, known := r.cgroups[name]
	if !known {
		name = strings.Clone(name)
		index = uint64(len(r.table.Cgroups))
		r.cgroups[name], r.table.Cgroups = index, append(r.table.Cgroups, name)
	}
	return index, true
}
