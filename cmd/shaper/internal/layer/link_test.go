package layer

import (
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestLinks decodes an IPv4 packet in each link header that dataplane.Parse reads. Both find the packet
// at the same place.
func TestLinks(t *testing.T) {
	ip := []byte{
		0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1, 3, 232, 7, 208, 0, 8, 0, 0,
	}
	llcHeader := []byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}
	type row struct {
		header []byte
		want   string
	}
	rows := map[dataplane.LinkType][]row{
		dataplane.LinkEthernet: {{append(make([]byte, 12), 8, 0), "Ethernet"}},
		dataplane.LinkSLL:      {{append(make([]byte, 14), 8, 0), "Linux SLL"}},
		dataplane.LinkSLL2:     {{append([]byte{8, 0}, make([]byte, 18)...), "Linux SLL2"}},
		dataplane.LinkNull:     {{[]byte{2, 0, 0, 0}, "Loopback"}},
		dataplane.LinkLoop:     {{[]byte{0, 0, 0, 2}, "Loopback"}},
		dataplane.LinkRaw:      {{nil, ""}}, dataplane.LinkRawBSD: {{nil, ""}},
		dataplane.LinkRawOBSD: {{nil, ""}}, dataplane.LinkIPv4: {{nil, ""}},
		dataplane.LinkPPP:       {{[]byte{0xff, 3, 0, 0x21}, "PPP"}, {[]byte{0x21}, "PPP"}},
		dataplane.LinkPPPHDLC:   {{[]byte{0xff, 3, 0, 0x21}, "PPP"}, {[]byte{0x8f, 0, 8, 0}, "PPP"}},
		dataplane.LinkPPPD:      {{[]byte{1, 3, 0, 0x21}, "PPP"}},
		dataplane.LinkPPPoE:     {{[]byte{0x11, 0, 0, 1, 0, 30, 0, 0x21}, "PPPoE PPP"}},
		dataplane.LinkCiscoHDLC: {{[]byte{0x0f, 0, 8, 0}, "CiscoHDLC"}},
		dataplane.LinkFrameRelay: {
			{[]byte{0x18, 0x41, 3, 0xcc}, "FrameRelay"},
			{[]byte{0x18, 0x40, 0x11, 3, 0, 0xcc}, "FrameRelay"},
			{[]byte{0x18, 0x40, 0x10, 0x21, 3, 0xcc}, "FrameRelay"},
			{[]byte{0x18, 0x41, 8, 0}, "FrameRelay"},
			{[]byte{0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 8, 0}, "FrameRelay SNAP"},
			{[]byte{0x18, 0x41, 3, 0xcf, 0, 0x21}, "FrameRelay PPP"},
		},
		dataplane.LinkIPoIB:    {{append(make([]byte, 40), 8, 0, 0, 0), "IPoIB"}},
		dataplane.LinkIEEE1394: {{append(make([]byte, 16), 8, 0), "IEEE1394"}},
		dataplane.LinkSymantec: {
			{slices.Concat(make([]byte, 6), []byte{8, 0}, make([]byte, 36)), "Symantec"},
		},
		dataplane.LinkDSA:      {{append(make([]byte, 16), 8, 0), "DSA"}},
		dataplane.LinkDSABrcm:  {{append(make([]byte, 16), 8, 0), "DSA"}},
		dataplane.LinkDSAEther: {{append(make([]byte, 20), 8, 0), "DSA"}},
		dataplane.LinkFDDI:     {{append(make([]byte, 13), llcHeader...), "FDDI LLC SNAP"}},
		dataplane.LinkIPOverFC: {{append(make([]byte, 16), llcHeader...), "FibreChannel LLC SNAP"}},
		dataplane.LinkSunATM:   {{append(make([]byte, 4), llcHeader...), "SunATM LLC SNAP"}},
		dataplane.LinkATM:      {{llcHeader, "LLC SNAP"}},
		dataplane.LinkATMCLIP:  {{llcHeader, "LLC SNAP"}, {nil, ""}},
		dataplane.LinkIPv6:     nil,
	}
	for link := range dataplane.LinkType(512) {
		list, tested := rows[link]
		if tested != link.Known() {
			t.Errorf("link type %v: known: %v, tested: %v", link, link.Known(), tested)
		}
		for _, r := range list {
			data := slices.Concat(r.header, ip)
			p := dataplane.Packet{Data: data, Link: link}
			if dataplane.Parse(&p); p.Kind != dataplane.IPv4 || p.L3 != len(r.header) {
				t.Errorf("link type %v, % x: %v at byte %d", link, r.header, p.Kind, p.L3)
			}
			var got []string
			for _, l := range Decode(link, data) {
				got = append(got, l.LayerType().String())
			}
			if want := strings.TrimSpace(r.want + " IPv4 UDP"); strings.Join(got, " ") != want {
				t.Errorf("link type %v, % x: got %q, want %s", link, r.header, got, want)
			}
		}
	}
}

// TestShortTotalLength decodes an IPv4 header whose total length is below its own length, or 0.
func TestShortTotalLength(t *testing.T) {
	for total, want := range map[byte]string{0: "IPv4 UDP", 19: "IPv4 DecodeFailure", 20: "IPv4"} {
		ip := []byte{
			0x45, 0, 0, total, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1, 3, 232, 7, 208, 0, 8,
			0, 0,
		}
		var got []string
		for _, l := range Decode(dataplane.LinkIPv4, ip) {
			got = append(got, l.LayerType().String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("total length %d: got %q, want %s", total, got, want)
		}
	}
}
