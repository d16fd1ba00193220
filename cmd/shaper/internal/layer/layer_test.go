package layer

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

type frame struct {
	name string
	link dataplane.LinkType
	data []byte
}

// captured returns the packets of the captures of the repository.
func captured(t *testing.T) (frames []frame) {
	t.Helper()
	names, err := filepath.Glob("../../../../testdata/pcaps/*.pcap*")
	if err != nil || len(names) < 8 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		var r interface {
			ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
		}
		var link func(gopacket.CaptureInfo) layers.LinkType
		switch filepath.Ext(name) {
		case ".pcap":
			in, err := pcapgo.NewReader(file)
			if err != nil {
				t.Fatal(name, err)
			}
			r, link = in, func(gopacket.CaptureInfo) layers.LinkType { return in.LinkType() }
		case ".pcapng":
			in, err := pcapgo.NewNgReader(file, pcapgo.NgReaderOptions{WantMixedLinkType: true})
			if err != nil {
				t.Fatal(name, err)
			}
			r, link = in,
				func(i gopacket.CaptureInfo) layers.LinkType { return i.AncillaryData[0].(layers.LinkType) }
		default:
			continue
		}
		for n := 1; ; n++ {
			data, info, err := r.ReadPacketData()
			if err == io.EOF {
				break
			} else if err != nil {
				t.Log(name, n, err) // edges.pcap ends so
				break
			}
			frames = append(frames, frame{
				fmt.Sprintf("%s packet %d", filepath.Base(name), n), dataplane.LinkType(link(info)), data,
			})
		}
	}
	return frames
}

// built returns a frame with the layers after IPv4.
func built(t *testing.T, name string, list ...gopacket.SerializableLayer) frame {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	ip := &layers.IPv4{
		Version: 4, TTL: 9, SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{192, 0, 2, 2},
		Protocol: layers.IPProtocolUDP,
	}
	all := []gopacket.SerializableLayer{&layers.Ethernet{
		SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4,
	}, ip}
	if p, ok := list[0].(interface {
		SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	}); ok {
		if err := p.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
	}
	switch list[0].LayerType() {
	case layers.LayerTypeTCP:
		ip.Protocol = layers.IPProtocolTCP
	case layers.LayerTypeGRE:
		ip.Protocol = layers.IPProtocolGRE
	case layers.LayerTypeIGMP:
		ip.Protocol = layers.IPProtocolIGMP
	}
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		append(all, list...)...); err != nil {
		t.Fatal(name, err)
	}
	return frame{name, dataplane.LinkEthernet, slices.Clone(b.Bytes())}
}

func payload(t *testing.T, text string) gopacket.Payload {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// protocolFrames returns frames with protocols that the captures lack.
func protocolFrames(t *testing.T) []frame {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	inner := []gopacket.SerializableLayer{
		&layers.Ethernet{SrcMAC: mac, DstMAC: mac, EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{
			Version: 4, TTL: 3, Protocol: 253, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2},
		},
		gopacket.Payload("data"),
	}
	udp := func(port layers.UDPPort) *layers.UDP { return &layers.UDP{SrcPort: 40000, DstPort: port} }
	with := func(first ...gopacket.SerializableLayer) []gopacket.SerializableLayer {
		return append(first, inner...)
	}
	return []frame{
		built(t, "VXLAN", with(udp(4789), &layers.VXLAN{ValidIDFlag: true, VNI: 77})...),
		built(t, "Geneve", udp(6081), payload(t, "0240 6558 00004d00 01020301aabbccdd"),
			gopacket.Payload(make([]byte, 12)), payload(t, "0800"), inner[1], inner[2]),
		built(t, "GTPv1U", udp(2152), payload(t, "32ff 001c 00000007 0001 00 00"), inner[1], inner[2]),
		built(t, "GRE", &layers.GRE{
			KeyPresent: true, SeqPresent: true, Key: 5, Seq: 6, Protocol: layers.EthernetTypeIPv4,
		}, inner[1], inner[2]),
		built(t, "DNS", udp(53), &layers.DNS{ID: 7, RD: true, Questions: []layers.DNSQuestion{
			{Name: []byte("www.example.com"), Type: layers.DNSTypeAAAA, Class: layers.DNSClassIN},
		}}),
		built(t, "DHCPv4", udp(67), &layers.DHCPv4{
			Operation: layers.DHCPOpRequest, HardwareType: layers.LinkTypeEthernet, ClientHWAddr: mac,
			Xid: 99, ServerName: make([]byte, 64), File: make([]byte, 128),
			Options: layers.DHCPOptions{
				layers.NewDHCPOption(layers.DHCPOptMessageType, []byte{1}),
				layers.NewDHCPOption(layers.DHCPOptHostname, []byte("host")),
			},
		}),
		built(t, "NTP", udp(123),
			&layers.NTP{Version: 4, Mode: 3, Poll: 6, Precision: -20, TransmitTimestamp: 5}),
		built(t, "BFD", udp(3784), &layers.BFD{
			Version: 1, State: layers.BFDStateUp, DetectMultiplier: 3, MyDiscriminator: 1,
			YourDiscriminator: 2, DesiredMinTxInterval: 1000,
		}),
		built(t, "RADIUS", udp(1812), payload(t, "0105 0017 000102030405060708090a0b0c0d0e0f 010361")),
		built(t, "DHCPv6", udp(547), payload(t, "01 abcdef 0008 0002 0000")),
		built(t, "SIP", udp(5060), gopacket.Payload("INVITE sip:a@b SIP/2.0\r\nFrom: x\r\n\r\nbody")),
		built(t, "TCP", &layers.TCP{
			SrcPort: 1, DstPort: 2, SYN: true, Window: 500, Seq: 8,
			Options: []layers.TCPOption{{OptionType: 2, OptionLength: 4, OptionData: []byte{5, 0xb4}}},
		}, gopacket.Payload("x")),
		{"LLC and SNAP", dataplane.LinkEthernet, payload(t, "020000000001 020000000002 000c aaaa03 000000 0800 01020304")},
		{"STP", dataplane.LinkEthernet, payload(t, "0180c2000000 020000000002 0007 424203 00000000 00")},
		{"PPP", 9, payload(t, "ff03 0057 6000000000003b40 00000000000000000000000000000001 00000000000000000000000000000002")},
		{"loopback", dataplane.LinkNull, payload(t, "02000000 45000014 00000000 09fd0000 01020304 05060708")},
		{"VRRP", dataplane.LinkIPv4, payload(t, "45000020 00000000 ff700000 01020304 e0000012 21010164 01010000 01020304")},
		{"IPv6 routing", dataplane.LinkIPv6, payload(t, "60000000 00182b40 00000000000000000000000000000001 00000000000000000000000000000002 3b020001 00000000 00000000000000000000000000000003")},
		{"AH", dataplane.LinkIPv4, payload(t, "4500002c 00000000 ff330000 01020304 05060708 3b040000 00000001 00000002 000102030405060708090a0b")},
		{"UDPLite", dataplane.LinkIPv4, payload(t, "4500001c 00000000 ff880000 01020304 05060708 00010002 00080000")},
		{"IGMP", dataplane.LinkIPv4, payload(t, "4500001c 00000000 01020000 01020304 e0000001 16000000 e0000005")},
		{"EtherIP", dataplane.LinkIPv4, payload(t, "45000024 00000000 01610000 01020304 05060708 3000 020000000001 020000000002 fffe")},
		{"OSPF", dataplane.LinkIPv4, payload(t, "45000040 00000000 01590000 01020304 e0000005 0201002c 01020304 00000000 00000000 0000000000000000 ffffff00 000a0201 00000028 01020304 00000000")},
	}
}

// elsewhere are fields of gopacket/layers that have another name or form here: lists, bytes
// in hex, names instead of sums of bits, parts of other layers, and values that follow from others.
var elsewhere = strings.Fields(`
	Ethernet.Length IPv4.Length Geneve.Protocol PPP.HasPPTPHeader LLC.IG LLC.CR
	IPv4.Options IPv6.HopByHop IPv6HopByHop.Options IPv6Destination.Options
	IPv6Routing.Reserved IPv6Routing.SourceRoutingIPs IPSecESP.Encrypted
	TCP.Options ICMPv4.TypeCode ICMPv6.TypeCode IGMP.Type IGMP.Version IGMP.MaxResponseTime
	GRE.Checksum GRE.Offset GRE.Key GRE.Seq GRE.Ack VXLAN.ValidIDFlag VXLAN.GBPExtension VXLAN.GBPDontLearn VXLAN.GBPApplied Geneve.Options
	DNS.Questions DHCPv4.ServerName DHCPv4.File DHCPv4.Options
	DHCPv6.HopCount DHCPv6.LinkAddr DHCPv6.PeerAddr DHCPv6.Options RADIUS.Attributes BFD.AuthHeader
	SIP.Version SIP.Method SIP.Headers SIP.RequestURI SIP.IsResponse SIP.ResponseCode SIP.ResponseStatus`)

// absent are layers that only gopacket/layers decodes; ICMPv6Neighbor is both of its layers.
var absent = []string{
	"STP", "LinkLayerDiscovery", "ICMPv6NeighborSolicitation", "ICMPv6NeighborAdvertisement",
	"MLDv2MulticastListenerReport",
}

// values returns the forms of a field's value that are accepted.
func values(v reflect.Value) (out []string) {
	text := fmt.Sprint(v.Interface())
	out = append(out, text)
	for _, s := range []string{"Unicast", "Multicast", "Session", "Discovery"} { // of the names of EtherTypes
		out = append(out, strings.TrimSuffix(text, s))
	}
	switch v.Kind() {
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		out = append(out, fmt.Sprint(v.Uint()), fmt.Sprintf("%#x", v.Uint()))
	case reflect.Array:
		out = append(out, fmt.Sprintf("%x", v.Interface()))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			out = append(out, fmt.Sprintf("%x", v.Bytes()), net.IP(v.Bytes()).String())
		}
	}
	return out
}

// TestAgainstGopacket compares the layers of packets with those of gopacket/layers, field by field.
func TestAgainstGopacket(t *testing.T) {
	compared, seen, used := 0, map[string]bool{}, map[string]bool{}
	for _, f := range append(captured(t), protocolFrames(t)...) {
		first := gopacket.Decoder(layers.LinkType(f.link))
		switch f.link {
		case dataplane.LinkIPv4:
			first = layers.LayerTypeIPv4
		case dataplane.LinkIPv6:
			first = layers.LayerTypeIPv6
		case dataplane.LinkSLL2, 20:
			continue // gopacket/layers has no decoder
		}
		want, got := gopacket.NewPacket(f.data, first, gopacket.Default).Layers(), Decode(f.link, f.data)
		for i, w := range want {
			if w.LayerType() == gopacket.LayerTypeDecodeFailure {
				break
			}
			if i >= len(got) {
				t.Errorf("%s: %d layers, want %v after them", f.name, len(got), w.LayerType())
				break
			}
			g := got[i]
			if slices.Contains(absent, w.LayerType().String()) {
				break
			}
			if w.LayerType() == gopacket.LayerTypePayload && i > 0 &&
				slices.Contains([]string{"ICMPv4", "ICMPv6"}, got[i-1].LayerType().String()) {
				break // more is decoded: the packet that caused an error
			}
			if g.LayerType().String() != w.LayerType().String() {
				t.Errorf("%s: layer %d is %v %v, want %v", f.name, i, g.LayerType(), g, w.LayerType())
				break
			}
			// gopacket/layers reads less of a malformed header, and takes options of an IPv6 packet
			// before its payload. It does not count all bytes of some headers.
			after := ""
			if i+1 < len(want) {
				after = want[i+1].LayerType().String()
			}
			switch same := string(g.LayerPayload()) == string(w.LayerPayload()); {
			case after == "DecodeFailure" || after == "IPv6HopByHop" ||
				slices.Contains([]gopacket.LayerType{icmpv6Echo, igmp, ospf, ppp}, g.LayerType()):
			case !same || len(g.LayerContents()) != len(w.LayerContents()):
				t.Errorf("%s: %v: %d + %d bytes, want %d + %d", f.name, g.LayerType(), len(g.LayerContents()),
					len(g.LayerPayload()), len(w.LayerContents()), len(w.LayerPayload()))
			}
			seen[g.LayerType().String()] = true
			if after == "DecodeFailure" {
				continue
			}
			text := " " + gopacket.LayerString(g) + " "
			v := reflect.Indirect(reflect.ValueOf(w))
			if v.Kind() != reflect.Struct {
				continue
			}
			for i := range v.NumField() {
				field := v.Type().Field(i)
				if field.PkgPath != "" || field.Anonymous {
					continue
				}
				forms := values(v.Field(i))
				if !slices.ContainsFunc(forms, func(s string) bool {
					return strings.Contains(strings.ReplaceAll(text, "\t", " "), " "+field.Name+"="+s+" ")
				}) {
					name := g.LayerType().String() + "." + field.Name
					switch {
					// has no name, or nothing
					case forms[0] == "LLC" || strings.HasPrefix(forms[0], "Unknown") || forms[0] == "[]":
					case slices.Contains(elsewhere, name):
						used[name] = true
					default:
						t.Errorf("%s:%s: no %s=%s", f.name, text, field.Name, forms)
					}
					continue
				}
				compared++
			}
		}
	}
	for _, name := range elsewhere {
		if !used[name] {
			t.Errorf("%s is not elsewhere, or in no packet", name)
		}
	}
	// see TestLinks
	inLinks := []string{
		"CiscoHDLC", "FrameRelay", "IPoIB", "IEEE1394", "Symantec", "DSA", "FDDI", "FibreChannel", "SunATM",
	}
	for _, p := range protocols {
		if !seen[p.name] && !slices.Contains(inLinks, p.name) &&
			!slices.Contains(
				[]string{"Linux SLL2", "DCCP", "SCTPChunk", "ICMPv6Error", "ICMPv6Neighbor", "VRRP"},
				p.name) {
			t.Errorf("no packet has %s", p.name)
		}
	}
	t.Log(compared, "fields of", len(seen), "protocols")
}

// TestLinuxLLC decodes a spanning tree frame of tcpdump -i any: the protocol 4 is Linux's number of
// IEEE 802.2, not a length.
func TestLinuxLLC(t *testing.T) {
	frame := append([]byte{0x42, 0x42, 3}, make([]byte, 35)...)
	for link, header := range map[dataplane.LinkType][]byte{
		dataplane.LinkSLL:  {0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0, 4},
		dataplane.LinkSLL2: {0, 4, 0, 0, 0, 0, 0, 7, 0, 1, 2, 6, 2, 0, 0, 0, 0, 1, 0, 0},
	} {
		var got []int
		for _, l := range Decode(link, append(header, frame...)) {
			got = append(got, len(l.LayerContents()))
		}
		if want := []int{len(header), 3, 35}; !slices.Equal(got, want) {
			t.Errorf("%v: layers of %v bytes, want %v", link, got, want)
		}
	}
}
