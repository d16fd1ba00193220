package dataplane_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/internal/frametest"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// TestAgainstGopacket compares Parse with gopacket, for the layers that gopacket decodes.
func TestAgainstGopacket(t *testing.T) {
	for _, dir := range []string{"../testdata/pcaps", "../../shared/pcaps"} {
		files, _ := filepath.Glob(filepath.Join(dir, "*.pcap*"))
		if files == nil {
			t.Logf("no captures in %s to compare", dir)
		}
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) {
				packets, compared := 0, 0
				capture(t, file, func(p *dataplane.Packet) {
					packets++
					dataplane.Parse(p)
					if agreesWithGopacket(t, packets, p) {
						compared++
					}
				})
				t.Logf("%d packets, gopacket finds IP in %d", packets, compared)
			})
		}
	}
}

// capture calls do for each packet of a file that pcapgo can read.
func capture(t *testing.T, file string, do func(*dataplane.Packet)) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := bufio.NewReader(f)
	if strings.HasSuffix(file, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		r = bufio.NewReader(z)
	}
	var source gopacket.PacketDataSource
	var linkOf func(gopacket.CaptureInfo) layers.LinkType
	if magic, _ := r.Peek(4); bytes.Equal(magic, []byte{10, 13, 13, 10}) {
		ng, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{WantMixedLinkType: true})
		if err != nil {
			t.Skipf("pcapgo cannot read it: %v", err)
		}
		source, linkOf = ng,
			func(ci gopacket.CaptureInfo) layers.LinkType { return ci.AncillaryData[0].(layers.LinkType) }
	} else {
		old, err := pcapgo.NewReader(r)
		if err != nil {
			t.Skipf("pcapgo cannot read it: %v", err)
		}
		source, linkOf = old, func(gopacket.CaptureInfo) layers.LinkType { return old.LinkType() }
	}
	for {
		data, ci, err := source.ReadPacketData()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Logf("pcapgo stopped: %v", err)
			}
			return
		}
		link := dataplane.LinkType(linkOf(ci))
		if link == dataplane.LinkSLL2&0xff { // pcapgo keeps 8 bits of the link type
			link = dataplane.LinkSLL2
		}
		do(&dataplane.Packet{Data: data, WireLen: ci.Length, Time: ci.Timestamp.UnixNano(), Link: link})
	}
}

// outside contains the layers that may precede the outer IP header.
var outside = map[gopacket.LayerType]bool{
	layers.LayerTypeEthernet: true, layers.LayerTypeLinuxSLL: true, layers.LayerTypeLoopback: true,
	layers.LayerTypeDot1Q: true, layers.LayerTypeMPLS: true, layers.LayerTypePPPoE: true,
	layers.LayerTypePPP: true,
}

// agreesWithGopacket compares packet i and reports whether gopacket found an IP header.
func agreesWithGopacket(t *testing.T, i int, p *dataplane.Packet) bool {
	data := p.Data
	var first gopacket.Decoder
	switch p.Link {
	case dataplane.LinkEthernet:
		first = layers.LayerTypeEthernet
	case dataplane.LinkSLL:
		first = layers.LayerTypeLinuxSLL
	case dataplane.LinkNull, dataplane.LinkLoop:
		first = layers.LayerTypeLoopback
		if len(data) >= 4 && max(data[0], data[3]) == 10 {
			return false // AF_INET6 of Linux, which is not in the registry of link types
		}
	case dataplane.LinkSLL2: // gopacket supports only its payload
		if len(data) < 20 {
			return false
		}
		first, data = layers.EthernetType(binary.BigEndian.Uint16(data)), data[20:]
	case dataplane.LinkIPv4:
		first = layers.LayerTypeIPv4
	case dataplane.LinkIPv6:
		first = layers.LayerTypeIPv6
	case dataplane.LinkRaw, dataplane.LinkRawBSD, dataplane.LinkRawOBSD:
		first = layers.LayerTypeIPv4
		if len(data) > 0 && data[0]>>4 == 6 {
			first = layers.LayerTypeIPv6
		}
	default:
		return false
	}
	check := func(what string, got, want any) {
		if got != want {
			t.Errorf("packet %d: %s is %v, in gopacket %v (%s)", i, what, got, want, frametest.Describe(p))
		}
	}
	stack := gopacket.NewPacket(data, first, gopacket.NoCopy).Layers()
	n := len(stack)
	failed := n > 1 && stack[n-1].LayerType() == gopacket.LayerTypeDecodeFailure
	if failed {
		stack = stack[:n-2] // the last layer but one may be the one that failed
	}
	tags := 0
	for len(stack) > 0 && outside[stack[0].LayerType()] {
		if q, ok := stack[0].(*layers.Dot1Q); ok && p.MPLS == 0 {
			if tags == 0 && p.Tags > 0 {
				vlan, _ := p.VLAN()
				pcp, _ := p.PCP()
				check("VLAN id", vlan, q.VLANIdentifier)
				check("PCP", pcp, q.Priority)
			}
			tags++
		}
		stack = stack[1:]
	}
	check("enough tags", int(p.Tags) >= min(tags, 3), true)
	if len(stack) == 0 {
		return false
	}
	var proto layers.IPProtocol
	switch ip := stack[0].(type) {
	case *layers.IPv4:
		if ip.Version != 4 || tags > 3 {
			return false // gopacket does not check the version
		}
		check("kind", p.Kind, dataplane.IPv4)
		check("source", frametest.Address(dataplane.IPv4, p.Src).String(), ip.SrcIP.String())
		check("destination", frametest.Address(dataplane.IPv4, p.Dst).String(), ip.DstIP.String())
		check("fragment", p.Fragment, ip.FragOffset != 0)
		dscp, _ := p.DSCP()
		check("DSCP", dscp, ip.TOS>>2)
		proto = ip.Protocol
	case *layers.IPv6:
		if ip.Version != 6 || tags > 3 {
			return false
		}
		check("kind", p.Kind, dataplane.IPv6)
		check("source", frametest.Address(dataplane.IPv6, p.Src).String(), ip.SrcIP.String())
		check("destination", frametest.Address(dataplane.IPv6, p.Dst).String(), ip.DstIP.String())
		dscp, _ := p.DSCP()
		check("DSCP", dscp, ip.TrafficClass>>2)
		proto = ip.NextHeader
	default:
		return false
	}
	for _, layer := range stack[1:] {
		var last bool
		switch l := layer.(type) {
		case *layers.IPv6HopByHop:
			proto = l.NextHeader
		case *layers.IPv6Routing:
			proto = l.NextHeader
		case *layers.IPv6Destination:
			proto = l.NextHeader
		case *layers.IPSecAH:
			if p.Kind == dataplane.IPv6 { // an upper-layer protocol in IPv4
				proto = l.NextHeader
			}
		case *layers.IPv6Fragment:
			proto = l.NextHeader
			check("fragment", p.Fragment, l.FragmentOffset != 0)
			last = l.FragmentOffset != 0
		case *layers.TCP:
			check("ports", [2]uint16{p.SrcPort, p.DstPort}, [2]uint16{uint16(l.SrcPort), uint16(l.DstPort)})
			check("has ports", p.HasPorts, true)
			last = true
		case *layers.UDP:
			check("ports", [2]uint16{p.SrcPort, p.DstPort}, [2]uint16{uint16(l.SrcPort), uint16(l.DstPort)})
			check("has ports", p.HasPorts, true)
			last = true
		case *layers.SCTP:
			check("ports", [2]uint16{p.SrcPort, p.DstPort}, [2]uint16{uint16(l.SrcPort), uint16(l.DstPort)})
			check("has ports", p.HasPorts, true)
			last = true
		default:
			last = true
		}
		if last {
			break
		}
	}
	if !failed {
		check("protocol", p.Proto, uint8(proto))
	}
	return true
}
