package dataplane

import "strconv"

// ProtoNames are the names of IP protocols (IANA) as policies spell them, "" for none. Do not
// change it.
var ProtoNames = [256]string{
	1: "icmp", 2: "igmp", 4: "ipip", 6: "tcp", 17: "udp", 33: "dccp", 46: "rsvp", 47: "gre",
	50: "esp", 51: "ah", 58: "icmpv6", 88: "eigrp", 89: "ospf", 103: "pim", 112: "vrrp",
	115: "l2tp", 132: "sctp", 136: "udplite",
}

// AppendProto appends the name of an IP protocol, or its number as in "proto 253" if it has none.
func AppendProto(b []byte, proto uint8) []byte {
	if name := ProtoNames[proto]; name != "" {
		return append(b, name...)
	}
	return strconv.AppendUint(append(b, "proto "...), uint64(proto), 10)
}

// enumName returns the name of a value of an enumeration, or its type and number if it has none.
func enumName[T ~uint8](v T, typ string, names []string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return typ + "(" + strconv.Itoa(int(v)) + ")"
}
