package iface

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// Forwards reports whether this network namespace may forward packets of one interface to another one:
// it routes packets of IPv4 or IPv6, or both are in a bridge, or below ports of it. Without a
// permission to find out it reports false.
func Forwards(from, to string) bool {
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, name := range []string{"all", from} {
			text, err := os.ReadFile(filepath.Join("/proc/sys/net", family, "conf", name, "forwarding"))
			if err == nil && strings.TrimSpace(string(text)) == "1" {
				return true
			}
		}
	}
	links, err := ListLinks()
	if err != nil {
		return false
	}
	bridges := bridgesOf(links, to)
	for _, i := range bridgesOf(links, from) {
		if slices.Contains(bridges, i) {
			return true
		}
	}
	return false
}

// bridgesOf returns the indexes of the bridges that have a device as a port, or a VLAN device above it.
func bridgesOf(links []netlink.Link, name string) (bridges []int) {
	var masters []int
	at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name })
	if at < 0 {
		return nil
	}
	own := links[at].Attrs().Index
	for _, l := range links {
		a := l.Attrs()
		_, vlan := l.(*netlink.Vlan)
		if a.MasterIndex != 0 && (a.Index == own || vlan && a.ParentIndex == own) {
			masters = append(masters, a.MasterIndex)
		}
	}
	for _, l := range links {
		if _, ok := l.(*netlink.Bridge); ok && slices.Contains(masters, l.Attrs().Index) {
			bridges = append(bridges, l.Attrs().Index)
		}
	}
	return bridges
}
