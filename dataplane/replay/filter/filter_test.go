package filter

import (
	"errors"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// TestErrors checks that what is not supported is rejected, with its column.
func TestErrors(t *testing.T) {
	for expression, want := range map[string]string{
		"":                                   "1: the filter ends too early: want an expression",
		"  ":                                 "3: the filter ends too early: want an expression",
		"hos 192.0.2.1":                      `1: unknown word "hos"`,
		"192.0.2.1":                          `1: write host or net before "192.0.2.1"`,
		"udp and 2001:db8::1":                `9: write host or net before "2001:db8::1"`,
		"host":                               "5: the filter ends too early: want a value",
		"host example.net":                   `6: "example.net": want an IPv4 or IPv6 address; names are not resolved`,
		"host 10.0":                          `6: "10.0": want an IPv4 or IPv6 address`,
		"host 10.0.0.256":                    `6: "10.0.0.256": want an IPv4`,
		"host fe80::1%eth0":                  `13: unexpected "%": want and, or, or the end`,
		"host 10.0.0.0/8":                    `14: a host has no mask: write net before "10.0.0.0"`,
		"src 10.0.0.0/8":                     `13: a host has no mask`,
		"net 10.0.0.1/8":                     `5: "10.0.0.1" has bits beyond its mask`,
		"net 10.0.0.0/33":                    `14: unexpected "33": want a number up to 32`,
		"net 10.0.0.0 mask 255":              `19: unexpected "255": want a mask such as 255.255.0.0`,
		"net 2001:db8::/129":                 `16: unexpected "129": want a number up to 128`,
		"ip host ::1":                        `9: "::1" is no address of ip`,
		"ip6 net 10":                         `9: "10" is no address of ip6`,
		"tcp host 192.0.2.1":                 `10: tcp has no addresses`,
		"ether host 192.0.2.1":               `12: "192.0.2.1": want a hardware address`,
		"ether":                              "6: the filter ends too early: want host, src, dst, proto or [ after ether",
		"port http":                          `6: port "http": names are not supported: write 80`,
		"port nothing":                       `6: port "nothing": want a number`,
		"port 65536":                         "6: port 65536 is above 65535",
		"ip port 80":                         "9: ip has no ports",
		"portrange 80":                       `11: "80": want a range such as 5000-5999`,
		"portrange 80-":                      `11: port "": want a number`,
		"src proto 6":                        "1: proto has no direction",
		"proto 256":                          `7: "256": want the number of a protocol up to 255`,
		"tcp proto 6":                        "11: proto needs ip, ip6, ether or nothing before it, not tcp",
		"ether proto 5":                      `13: "5": want an EtherType`,
		"vlan 4096":                          `6: unexpected "4096": want a number up to 4095`,
		"less":                               "5: the filter ends too early: want a number up to 4294967295",
		"greater 4294967296":                 `9: unexpected "4294967296": want a number`,
		"len":                                `1: "len" is a number: compare it`,
		"80":                                 `1: "80" is a number: compare it`,
		"tcp or 80":                          `8: "80" is a number: compare it`,
		"len > ":                             "7: the filter ends too early",
		"len > tcp":                          `7: "tcp" is not a number`,
		"tcp > 5":                            `5: unexpected ">": want and, or, or the end`,
		"len + tcp > 5":                      `7: "tcp" is not a number`,
		"4294967296 > len":                   "1: 4294967296 does not fit in 32 bits",
		"len / 0 = 1":                        "7: division by zero",
		"len >> 32 = 1":                      "8: shift by more than 31 bits",
		"tcp[0:3] = 1":                       "7: the size of a field is 1, 2 or 4 bytes",
		"tcp[0 = 1":                          `7: unexpected "=": want "]"`,
		"ah[0] = 1":                          "1: ah has no fields",
		"(tcp":                               `5: the filter ends too early: want ")"`,
		"tcp)":                               `4: unexpected ")": want and, or, or the end`,
		"host (192.0.2.1":                    `16: the filter ends too early: want ")"`,
		"tcp and":                            "8: the filter ends too early",
		"tcp udp":                            `5: unexpected "udp": want and, or, or the end`,
		"tcp ; udp":                          `5: unexpected ";"`,
		"broadcast":                          `1: unknown word "broadcast"`,
		"gateway 192.0.2.1":                  `1: unknown word "gateway"`,
		"mpls":                               `1: unknown word "mpls"`,
		strings.Repeat("(", 300):             "more than 200 levels",
		strings.Repeat("not ", 300) + "tcp":  "more than 200 levels",
		strings.Repeat("tcp[", 300):          "more than 200 levels",
		"len > " + strings.Repeat("-", 300):  "more than 200 levels",
		"port " + strings.Repeat("(", 300):   "more than 200 levels",
		"1 " + strings.Repeat("^ 1 ", 300):   "more than 200 levels",
		"host 192.0.2.1 or 5":                `19: "5": want an IPv4 or IPv6 address`,
		"\\tcp":                              `1: unknown word "tcp"`,
		"port 80 and \xff":                   "13: unexpected",
		"tcp and \\":                         `9: unexpected "\\"`,
		"not":                                "4: the filter ends too early",
		"tcp and not 80":                     `13: "80" is a number`,
		"ip proto \\foo":                     `10: "foo": want the number of a protocol`,
		"ether proto \\tcp":                  `13: "tcp": want an EtherType`,
		"src and src host 192.0.2.1":         `5: "and": want an IPv4`,
		"ether host 02:00:00:00:00:00:00:01": `12: "02:00:00:00:00:00:00:01": want a hardware address`,
	} {
		f, err := New(expression)
		var e *Error
		if f != nil || !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %s", expression, err, want)
		}
	}
}

// TestLinks checks links without an Ethernet header, on which tcpdump differs between systems.
func TestLinks(t *testing.T) {
	v4 := append([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1}, 0, 53, 0x9c,
		0x40, 0, 8, 0, 0)
	v6 := append([]byte{0x60, 0, 0, 0, 0, 8, 17, 64}, make([]byte, 40)...)
	for name, test := range map[string]struct {
		link  dataplane.LinkType
		data  []byte
		yes   []string
		not   []string
		never bool
	}{
		"NULL, IPv4":          {dataplane.LinkNull, append([]byte{2, 0, 0, 0}, v4...), []string{"ip", "udp port 53", "src 192.0.2.1"}, []string{"ip6", "arp", "ether host 2:0:0:0:0:1"}, false},
		"NULL, big-endian":    {dataplane.LinkNull, append([]byte{0, 0, 0, 2}, v4...), []string{"ip and udp"}, []string{"ip6"}, false},
		"NULL, IPv6 of BSD":   {dataplane.LinkNull, append([]byte{24, 0, 0, 0}, v6...), []string{"ip6 and udp"}, []string{"ip"}, false},
		"LOOP, IPv6 of macOS": {dataplane.LinkLoop, append([]byte{0, 0, 0, 30}, v6...), []string{"ip6", "udp"}, []string{"ip"}, false},
		"NULL, cut":           {dataplane.LinkNull, []byte{2, 0, 0}, nil, []string{"ip", "not ip", "not (tcp or udp)"}, false},
		"raw":                 {dataplane.LinkRaw, v4, []string{"ip", "not ip6", "ip[8] = 64"}, []string{"arp", "vlan", "ether proto 0x88cc"}, false},
		"USB":                 {189, v4, nil, []string{"ip", "not ip", "len > 0"}, false},
		"cut to nothing":      {dataplane.LinkEthernet, nil, []string{"len = 1000", "less 1000"}, []string{"ip", "not ip", "ether[0] = 0", "not ether[0] = 0"}, false},
	} {
		p := &dataplane.Packet{Data: test.data, WireLen: 1000, Link: test.link}
		for i, list := range [][]string{test.yes, test.not} {
			for _, expression := range list {
				f, err := New(expression)
				if err != nil {
					t.Fatal(err)
				}
				if got := f.Match(p); got != (i == 0) {
					t.Errorf("%s: %s: got %t", name, expression, got)
				}
			}
		}
	}
}

// FuzzFilter compiles arbitrary expressions and tests arbitrary packets. Nothing may panic, and
// errors must have a column within the expression.
func FuzzFilter(f *testing.F) {
	for i, expression := range expressions {
		f.Add(expression, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, byte(i)},
			uint16([]int{1, 113, 276, 101, 0}[i%5]))
	}
	f.Fuzz(func(t *testing.T, expression string, data []byte, link uint16) {
		filter, err := New(expression)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Column < 1 || e.Column > len(expression)+1 || e.Reason == "" {
				t.Fatalf("%q: %v", expression, err)
			}
			return
		}
		p := dataplane.Packet{Data: data, WireLen: len(data) + int(link), Link: dataplane.LinkType(link)}
		first := filter.Match(&p)
		if filter.Match(&p) != first {
			t.Fatalf("%q: two results for % x", expression, data)
		}
	})
}

// TestMatchAllocatesNothing also covers loopback headers, which dataplane parses.
func TestMatchAllocatesNothing(t *testing.T) {
	f, err := New("(host 192.0.2.1 or net 2001:db8::/32) and not port 53 or tcp[tcpflags] & tcp-syn != 0")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range []dataplane.LinkType{dataplane.LinkEthernet, dataplane.LinkNull} {
		p := dataplane.Packet{Data: make([]byte, 100), Link: link}
		if n := testing.AllocsPerRun(100, func() { f.Match(&p) }); n > 0 {
			t.Errorf("link type %v: %v allocations", link, n)
		}
	}
}

// BenchmarkMatch tests one packet.
func BenchmarkMatch(b *testing.B) {
	f, err := New("host 192.0.2.1 and udp and not port 53")
	if err != nil {
		b.Fatal(err)
	}
	p := dataplane.Packet{Link: dataplane.LinkEthernet, Data: append([]byte{12: 8, 13: 0}, 0x45, 0, 0, 28, 0,
		0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1, 0, 80, 0x9c, 0x40, 0, 8, 0, 0)}
	for b.Loop() {
		if !f.Match(&p) {
			b.Fatal("no match")
		}
	}
}
