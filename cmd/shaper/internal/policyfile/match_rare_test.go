package policyfile

import (
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// inRanges returns the values below 256 of ranges.
func inRanges(list []dataplane.Range) (out [256]bool) {
	for v := range out {
		out[v] = slices.ContainsFunc(list, func(r dataplane.Range) bool {
			return r.First <= uint64(v) && uint64(v) <= r.Last
		})
	}
	return out
}

// TestTCPFlags compares parsed flags with the bits that they name.
func TestTCPFlags(t *testing.T) {
	const fin, syn, rst, ack, cwr = 0x01, 0x02, 0x04, 0x10, 0x80
	for _, test := range []struct {
		text     string
		accepted func(v int) bool
	}{
		{"syn", func(v int) bool { return v&syn != 0 }},
		{"fin", func(v int) bool { return v&fin != 0 }},
		{"syn+ack", func(v int) bool { return v&syn != 0 && v&ack != 0 }},
		{"syn/syn+ack", func(v int) bool { return v&syn != 0 && v&ack == 0 }},
		{"0/syn+rst", func(v int) bool { return v&(syn|rst) == 0 }},
		{"cwr/cwr", func(v int) bool { return v&cwr != 0 }},
		{"0x12", func(v int) bool { return v == 0x12 }},
		{"16-31", func(v int) bool { return 16 <= v && v <= 31 }},
	} {
		list, err := parseTCPFlags(test.text)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		got := inRanges(list)
		for v := range got {
			if got[v] != test.accepted(v) {
				t.Errorf("%s: %#x is accepted: %v", test.text, v, got[v])
			}
		}
	}
}

// TestTCPFlagsText checks that text of flags reads back as the same values, and that simple sets have simple
// text.
func TestTCPFlagsText(t *testing.T) {
	for _, text := range []string{"syn", "fin", "syn+ack", "syn/syn+ack", "0/syn+rst", "0x12"} {
		list, err := parseTCPFlags(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := TCPFlagsText(list); len(got) != 1 || got[0] != text {
			t.Errorf("%s: got %q", text, got)
		}
	}
	for first := uint64(0); first < 256; first += 7 {
		for last := first; last < 256; last += 13 {
			want := []dataplane.Range{{First: first, Last: last}, {First: 200, Last: 202}}
			var got []dataplane.Range
			for _, text := range TCPFlagsText(want) {
				list, err := parseTCPFlags(text)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, list...)
			}
			if inRanges(got) != inRanges(want) {
				t.Errorf("%v: %q", want, TCPFlagsText(want))
			}
		}
	}
}

// TestICMPTypes checks types of ICMP and ICMPv6, and that their text reads back.
func TestICMPTypes(t *testing.T) {
	const six = dataplane.ICMPv6Type
	for text, want := range map[string][]dataplane.Range{
		"echo-request":         {{First: 0x800, Last: 0x8ff}, {First: six + 0x8000, Last: six + 0x80ff}},
		"icmp:8":               {{First: 0x800, Last: 0x8ff}},
		"icmp:3/4":             {{First: 0x304, Last: 0x304}},
		"icmp:3-5":             {{First: 0x300, Last: 0x5ff}},
		"icmpv6:1/2-3/4":       {{First: six + 0x102, Last: six + 0x304}},
		"icmpv6:255":           {{First: six + 0xff00, Last: six + 0xffff}},
		"packet-too-big":       {{First: 0x304, Last: 0x304}, {First: six + 0x200, Last: six + 0x2ff}},
		"router-advertisement": {{First: six + 0x8600, Last: six + 0x86ff}},
	} {
		got, err := parseICMPType(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
		var again []dataplane.Range
		for _, r := range got {
			for _, part := range ICMPTypeText(r) {
				list, err := parseICMPType(part)
				if err != nil {
					t.Error(err)
				}
				again = append(again, list...)
			}
		}
		if !slices.Equal(again, want) {
			t.Errorf("%s: the text reads back as %v", text, again)
		}
	}
	if got := ICMPTypeText(dataplane.Range{First: 0, Last: six + 0xffff}); strings.Join(got, " ") != "icmp:0-255 icmpv6:0-255" {
		t.Errorf("got %q", got)
	}
}

// TestRareErrors checks the errors of rare fields.
func TestRareErrors(t *testing.T) {
	for _, test := range []struct{ match, want string }{
		{"mac: 02:00:5e:10:00", `mac: "02:00:5e:10:00" is not a MAC address such as 02:00:5e:10:00:01`},
		{"src-mac: 02-00-5e-10-00-01", `src-mac: "02" is not a MAC address such as 02:00:5e:10:00:01`},
		{"inner-vlan: 4096", "inner-vlan 4096 is above 4095"},
		{"vni: 0x1000000", "vni 16777216 is above 16777215"},
		{"teid: 5-4", "teid range 5-4 is empty"},
		{"teid: 4294967296", `teid: "4294967296" is not a number`},
		{"tcp-flags: syn-ack", `tcp-flags: "syn-ack": "syn-ack" is not a flag: want names of fin syn rst psh ack urg ece cwr`},
		{"tcp-flags: syn+fin/syn", "a flag before the slash is missing behind it"},
		{"tcp-flags: 0x100", "tcp-flags 256 is above 255"},
		{"icmp-type: 8", `"8" is a type of ICMP or of ICMPv6, which differ: write icmp:8 or icmpv6:8`},
		{"icmp-type: icmp:256", `"icmp:256": "256" is not a type, or a type and a code such as 3/4, from 0 to 255`},
		{"icmp-type: icmp:9-8", `icmp-type: "icmp:9-8" is empty: put the smaller type first`},
		{"mac: 02:00:00:00:00:02-02:00:00:00:00:01", "mac range 02:00:00:00:00:02-02:00:00:00:00:01 is empty: put the smaller number first"},
		{"cgroup: system.slice", `cgroup: "system.slice" must begin with /`},
		{"cgroup: /sys/fs/cgroup/a", `leave out the mount point: write /a`},
		{"cgroup: /a/../b", `is not a clean path: write /b`},
		{"cgroup: " + strings.Repeat("/a", 33), "is too deep: the limit is 32"},
	} {
		f, err := Load("p.yaml", []byte("classes:\n  - {name: a, match: {"+test.match+"}}\n"))
		if err == nil {
			_, err = f.Compile()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "p.yaml:2:") {
			t.Errorf("%s: got %v, want %s", test.match, err, test.want)
		}
	}
}
