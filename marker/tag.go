package marker

// PCP returns the priority of a VLAN tag. tci is its tag control information,
// two bytes.
func PCP(tci []byte) uint8 { return tci[0] >> 5 }

// DEI returns the drop eligible indicator of a VLAN tag, 0 or 1.
func DEI(tci []byte) uint8 { return tci[0] >> 4 & 1 }

// SetPCP writes the priority of a VLAN tag, 0 to 7.
func SetPCP(tci []byte, pcp uint8) { tci[0] = pcp<<5 | tci[0]&0x1f }

// SetDEI writes the drop eligible indicator of a VLAN tag, 0 or 1.
func SetDEI(tci []byte, dei uint8) { tci[0] = tci[0]&^0x10 | dei&1<<4 }

// TC returns the traffic class of an MPLS label stack entry, four bytes.
func TC(entry []byte) uint8 { return entry[2] >> 1 & 7 }

// SetTC writes the traffic class of an MPLS label stack entry, 0 to 7.
func SetTC(entry []byte, tc uint8) { entry[2] = entry[2]&^0x0e | tc&7<<1 }
