package replay

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// withFCS is the link type word of a pcap header for Ethernet frames with an
// FCS of this length.
func withFCS(bytes uint32) uint32 { return ethernet | 1<<26 | bytes/2<<28 }

// fcsOf computes the FCS of an Ethernet frame bit by bit, in wire order (IEEE
// 802.3 §3.2.9).
func fcsOf(frame []byte) []byte {
	sum := ^uint32(0)
	for _, b := range frame {
		sum ^= uint32(b)
		for range 8 {
			if sum&1 != 0 {
				sum = sum>>1 ^ 0xedb88320
			} else {
				sum >>= 1
			}
		}
	}
	return binary.LittleEndian.AppendUint32(nil, ^sum)
}

func sealed(frame []byte) []byte { return slices.Concat(frame, fcsOf(frame)) }

// padded pads a frame to 60 bytes.
func padded(frame []byte) []byte {
	return append(bytes.Clone(frame), make([]byte, max(60-len(frame), 0))...)
}

// lengths returns the length that a length rule counts for each packet of a
// capture.
func lengths(t *testing.T, in []byte, base dataplane.LengthBase) []int {
	t.Helper()
	l, err := pipeline.New(&dataplane.Policy{
		Length: dataplane.LengthRule{Base: base}, Classes: []dataplane.Class{{Name: "all"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	if _, err = Run(t.Context(), bytes.NewReader(in), Go{l},
		Config{Each: func(_ *dataplane.Packet, v *dataplane.Verdict) error {
			out = append(out, v.Length)
			return nil
		}}); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFCSIsNotMetered checks that lengths do not include the FCS that a capture
// declares.
func TestFCSIsNotMetered(t *testing.T) {
	f := ethernetFrame(ipv4(100, 0, 1))
	short := padded(ethernetFrame(ipv4(29, 0, 1)))
	whole := [3]int{100, 114, 138}   // by l3, l2 and l1, without FCS
	counted := [3]int{104, 118, 142} // if the 4 bytes of the FCS are counted
	two := [3]int{102, 116, 140}     // if 2 bytes of it are counted
	classic := func(link uint32) *capture { return littleEndian().pcap(magicMicro, link) }
	ng := func(options ...[]byte) *capture { return bigEndian().section().iface(ethernet, 0, options...) }
	fcsLen := func(v byte) []byte { return bigEndian().option(13, v) }
	flagged := func(c *capture, flags uint32) *capture { // adds a packet with epb_flags
		data := sealed(f)
		n := uint32(len(data))
		b := c.body(0, 0, 0, n, n).rawBytes(data...).rawBytes(make([]byte, -len(data)&3)...)
		comment := c.option(1, 'x')
		return c.block(6,
			b.rawBytes(comment...).rawBytes(c.option(2, c.AppendUint32(nil, flags)...)...).words(0).bytes)
	}
	obsolete := func(c *capture, flags uint32) *capture {
		data := sealed(f)
		n := uint32(len(data))
		b := c.body(0, 0, 0, n, n).rawBytes(data...).rawBytes(make([]byte, -len(data)&3)...)
		return c.block(2, b.rawBytes(c.option(2, c.AppendUint32(nil, flags)...)...).words(0).bytes)
	}
	for _, test := range []struct {
		name string
		in   *capture
		want [3]int
	}{
		{"pcap", classic(withFCS(4)).packet(1, 0, sealed(f)), whole},
		{"pcap, big-endian", bigEndian().pcap(magicNano, withFCS(4)).packet(1, 0, sealed(f)), whole},
		{"pcap, not declared", classic(ethernet).packet(1, 0, sealed(f)), counted},
		{"pcap, declared as 0 bytes", classic(withFCS(0)).packet(1, 0, sealed(f)), counted},
		{"pcap, length without its valid bit", classic(withFCS(4)&^(1<<26)).packet(1, 0, sealed(f)), counted},
		{"pcap, 2 bytes", classic(withFCS(2)).packet(1, 0, sealed(f)), two},
		{"pcap, padded", classic(withFCS(4)).packet(1, 0, sealed(short)), [3]int{29, 60, 84}},
		{"pcap, not captured", classic(withFCS(4)).words(1, 0, 114, 118).rawBytes(f...), whole},
		{"pcap, FCS truncated", classic(withFCS(4)).words(1, 0, 116, 118).rawBytes(sealed(f)[:116]...), whole},
		{"pcap, frame truncated", classic(withFCS(4)).words(1, 0, 54, 118).rawBytes(f[:54]...), whole},
		{"pcap, captured length above original length", classic(withFCS(4)).words(1, 0, 118, 60).rawBytes(sealed(f)...), whole},
		{"pcap, shorter than an FCS", classic(withFCS(4)).packet(1, 0, []byte{1, 2, 3}), [3]int{0, 0, 84}},
		{"pcap, FCS longer than the frame", classic(withFCS(30)).packet(1, 0, f[:20]), [3]int{0, 0, 84}},
		{"pcapng, not declared", ng().enhanced(0, 0, sealed(f)), counted},
		{"pcapng, 32 bits", ng(fcsLen(32)).enhanced(0, 0, sealed(f)), whole},
		{"pcapng, 16 bits", ng(fcsLen(16)).enhanced(0, 0, sealed(f)), two},
		{"pcapng, 4 bytes", ng(fcsLen(4)).enhanced(0, 0, sealed(f)), whole},
		{"pcapng, 0", ng(fcsLen(0)).enhanced(0, 0, sealed(f)), counted},
		{"pcapng, simple block", ng(fcsLen(32)).simple(sealed(f)), whole},
		{"pcapng, flags of the packet", flagged(ng(), 4<<5|1), whole},
		{"pcapng, flags override the interface", flagged(ng(fcsLen(16)), 4<<5), whole},
		{"pcapng, flags without an FCS length", flagged(ng(fcsLen(32)), 0xffff_fe1f), whole},
		{"pcapng, flags of an obsolete block", obsolete(ng(), 4<<5), whole},
	} {
		for base, want := range test.want {
			if got := lengths(t, test.in.bytes, dataplane.LengthBase(base)); len(got) != 1 || got[0] != want {
				t.Errorf("%s: by %d, %d bytes, want %d", test.name, base, got, want)
			}
		}
		if out, s := mustReplay(t, test.in.bytes,
			transparent(t)); !bytes.Equal(out, unsectioned(test.in.bytes)) {
			t.Errorf("%s: got another output % x for unmarked packets (warnings %v)", test.name, out,
				s.Warnings)
		}
	}
}

// TestFCSWarnings checks that the link type is recognized beside FCS bits, and
// that a frame without only its FCS counts as whole.
func TestFCSWarnings(t *testing.T) {
	f := ethernetFrame(ipv4(100, 0, 1))
	in := littleEndian().pcap(magicMicro,
		withFCS(4)).packet(1, 0, sealed(f)).words(1, 0, 114, 118).rawBytes(f...).bytes
	if _, s := mustReplay(t, in, transparent(t)); len(s.Warnings) > 0 {
		t.Errorf("got warnings %q, want none", s.Warnings)
	}
}

// TestFCSOfMarked checks that marking corrects the FCS of a frame that was
// captured whole with a correct FCS, and changes no other.
func TestFCSOfMarked(t *testing.T) {
	if got := fcsOf([]byte("123456789")); !bytes.Equal(got, []byte{0x26, 0x39, 0xf4, 0xcb}) {
		t.Fatalf("the test's own CRC is % x", got)
	}
	mark := func(q *dataplane.Queue) func(testing.TB) Go {
		return func(t testing.TB) Go {
			return newPipeline(t, dataplane.Class{Name: "all", Green: &dataplane.Action{
				Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: ef}}, Queue: q,
			}})
		}
	}
	paced := &dataplane.Queue{Name: "q", Config: queue.Config{Rate: byteRate, Time: time.Hour}}
	shared := &dataplane.Queue{
		Name: "q", Config: queue.Config{Packets: 1000}, Link: &dataplane.Link{Name: "wan", Rate: byteRate},
	}
	before, after := ethernetFrame(ipv4(101, 0, 1)), ethernetFrame(ipv4(101, ef, 1))
	wrong := slices.Concat(before, []byte{1, 2, 3, 4})
	for name, open := range map[string]func(testing.TB) Go{
		"passed": mark(nil), "queued": mark(paced), "linked": mark(shared),
	} {
		for format, one := range map[string]func(data []byte, wire uint32) []byte{
			"pcap": func(data []byte, wire uint32) []byte {
				return bigEndian().pcap(magicMicro, withFCS(4)).words(1, 0, uint32(len(data)),
					wire).rawBytes(data...).bytes
			},
			"pcapng": func(data []byte, wire uint32) []byte {
				c := littleEndian().section()
				c.iface(ethernet, 0, c.option(13, 32))
				return c.block(6, c.body(0, 0, 0, uint32(len(data)), wire).rawBytes(data...).bytes).bytes
			},
			"simple": func(data []byte, wire uint32) []byte {
				c := littleEndian().section()
				c.iface(ethernet, uint32(len(data)), c.option(13, 32))
				return c.block(3, c.body(wire).rawBytes(data...).bytes).bytes
			},
		} {
			for _, test := range []struct {
				name     string
				in, want []byte
			}{
				{"right", sealed(before), sealed(after)},
				{"wrong", wrong, slices.Concat(after, []byte{1, 2, 3, 4})},
				{"cut", sealed(before)[:118], slices.Concat(after, fcsOf(before)[:3])},
				{"not captured", before, after},
				{"frame cut", before[:60], after[:60]},
			} {
				out, _ := mustReplay(t, one(test.in, 119), open(t))
				got := readBack(t, out)
				if len(got) != 1 || !bytes.Equal(got[0].data, test.want) || got[0].wire != 119 {
					t.Errorf("%s, %s, %s: got % x, want % x", format, name, test.name, got, test.want)
				}
			}
		}
	}
	// An FCS of another link type is unknown.
	in := littleEndian().pcap(magicMicro, rawIP|1<<26|2<<28).packet(1, 0, sealed(before[14:])).bytes
	out, _ := mustReplay(t, in, mark(nil)(t))
	if got := readBack(t, out); !bytes.Equal(got[0].data, slices.Concat(after[14:], fcsOf(before[14:]))) {
		t.Errorf("raw IP: got % x, want the FCS of the frame", got[0].data)
	}
}

// TestFCSOfLateCE checks the FCS of a packet on which a link sets CE at
// departure.
func TestFCSOfLateCE(t *testing.T) {
	c := littleEndian().pcap(magicMicro, withFCS(4))
	for i := range uint16(60) {
		c.packet(1, 0, sealed(ethernetFrame(tos(400, 2, i))))
	}
	out, _ := mustReplay(t, c.bytes, sharedLink(t))
	marked := 0
	for _, p := range readBack(t, out) {
		f := p.data[:len(p.data)-4]
		if !bytes.Equal(p.data[len(f):], fcsOf(f)) {
			t.Fatalf("packet %d: got FCS % x for % x", p.id(), p.data[len(f):], f)
		}
		if p.data[15]&3 == 3 {
			marked++
		}
	}
	if marked == 0 {
		t.Error("no packet has CE: the test lost its purpose")
	}
}

// TestFCSNoticed checks the warnings about an FCS or a trailer that the capture does not declare, and about a
// declared FCS that is not there, and that Config.FCS decides.
func TestFCSNoticed(t *testing.T) {
	frame := func(i int) []byte {
		return padded(ethernetFrame(ipv4([...]int{40, 100, 1400}[i%3], 0, uint16(i))))
	}
	short := func(n int) func(i int) []byte { // without the last n bytes
		return func(i int) []byte { f := ethernetFrame(ipv4(200, 0, uint16(i))); return f[:len(f)-n] }
	}
	odd := func(i int) []byte { return append(ethernetFrame(ipv4(200, 0, uint16(i))), make([]byte, i%4)...) }
	for name, test := range map[string]struct {
		link  uint32
		given int
		frame func(i int) []byte
		wrong int    // bytes that each packet above 60 is metered too long
		want  string // of the warning; "" for none
	}{
		"plain":                 {ethernet, 0, frame, 0, ""},
		"declared":              {withFCS(4), 0, func(i int) []byte { return sealed(frame(i)) }, 0, ""},
		"undeclared":            {ethernet, 0, func(i int) []byte { return sealed(frame(i)) }, 4, "300 packets (first: 1): the frame ends with its own CRC-32"},
		"undeclared, given":     {ethernet, 4, func(i int) []byte { return sealed(frame(i)) }, 0, ""},
		"undeclared, kept":      {ethernet, NoFCS, func(i int) []byte { return sealed(frame(i)) }, 4, ""},
		"undeclared, wrong CRC": {ethernet, 0, func(i int) []byte { return append(frame(i), 1, 2, 3, 4) }, 4, "--fcs 4 removes them"},
		"trailer":               {ethernet, 0, func(i int) []byte { return append(frame(i), make([]byte, 12)...) }, 12, "the frame has 12 bytes behind the IP packet"},
		"trailer, given":        {ethernet, 12, func(i int) []byte { return append(frame(i), make([]byte, 12)...) }, 0, ""},
		"odd padding":           {ethernet, 0, odd, 0, ""},
		"declared, not there":   {withFCS(4), 0, short(0), -4, "reaches into the FCS that the capture declares"},
		"declared, denied":      {withFCS(4), NoFCS, short(0), 0, ""},
		"no Ethernet":           {rawIP, 4, func(i int) []byte { return ipv4(200, 0, uint16(i)) }, 0, "--fcs 4 removes nothing: no packet is an Ethernet frame"},
		"no Ethernet, kept":     {rawIP, NoFCS, func(i int) []byte { return ipv4(200, 0, uint16(i)) }, 0, ""},
	} {
		in := littleEndian().pcap(magicMicro, test.link)
		ng := bigEndian().section()
		var options [][]byte
		if test.link>>28 > 0 {
			options = append(options, ng.option(13, 32))
		}
		ng.iface(uint16(test.link), 0, options...)
		for i := range 300 {
			in.packet(1, 0, test.frame(i))
			ng.enhanced(0, 1e6, test.frame(i))
		}
		for format, raw := range map[string][]byte{"pcap": in.bytes, "pcapng": ng.bytes} {
			var wrong []int
			s, err := Run(t.Context(), bytes.NewReader(raw), transparent(t),
				Config{FCS: test.given, Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
					dataplane.Parse(p)
					if stated := int(binary.BigEndian.Uint16(p.Data[p.L3+2:])); stated > 46 &&
						v.Length-stated != test.wrong && name != "odd padding" {
						wrong = append(wrong, v.Length-stated)
					}
					return nil
				}})
			if err != nil || len(wrong) > 0 {
				t.Errorf("%s, %s: lengths are off by %v, want %d: %v", name, format, wrong, test.wrong, err)
			}
			if got := strings.Join(s.Warnings, "\n"); (test.want == "") != (got == "") ||
				!strings.Contains(got, strings.Replace(test.want, "300", "256", 1)) {
				t.Errorf("%s, %s: got %q, want %q", name, format, got, test.want)
			}
		}
	}
}

// TestFCSWrapped checks that Config.FCS removes the FCS of Ethernet frames behind a pseudo-header, and of
// those with the tag of a switch, if the program advises it, that a marked packet gets a correct one, and
// that nothing is removed from other packets.
func TestFCSWrapped(t *testing.T) {
	marking := newPipeline(t, dataplane.Class{
		Name: "all", Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: ef}}},
	})
	frame := func(dscp byte, i int, tag ...byte) []byte {
		return slices.Concat(macs, tag, ip0, ipv4(200, dscp, uint16(i)))
	}
	ppi := func(link byte) []byte { return []byte{0, 0, 8, 0, link, 0, 0, 0} }
	pktap := append([]byte{108, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}, make([]byte, 96)...)
	for name, test := range map[string]struct {
		link        uint32
		before, tag []byte
		raw         bool // the packet is no frame
	}{
		"Ethernet":                   {1, nil, nil, false},
		"PKTAP":                      {258, pktap, nil, false},
		"PPI":                        {192, ppi(1), nil, false},
		"PPI, DSA":                   {192, []byte{0, 0, 8, 0, 28, 1, 0, 0}, make([]byte, 4), false},
		"PPI, raw IP":                {192, ppi(101), nil, true},
		"DSA of Broadcom, prepended": {282, make([]byte, 4), nil, false},
		"DSA of Broadcom":            {281, nil, make([]byte, 4), false},
		"DSA":                        {284, nil, make([]byte, 4), false},
		"DSA with EtherType":         {285, nil, make([]byte, 8), false},
	} {
		packet := func(dscp byte, i int) []byte {
			if test.raw {
				return slices.Concat(test.before, ipv4(200, dscp, uint16(i)))
			}
			return slices.Concat(test.before, sealed(frame(dscp, i, test.tag...)))
		}
		captures := func(dscp byte) map[string][]byte {
			in, ng := littleEndian().pcap(magicMicro, test.link), bigEndian().section()
			ng.iface(uint16(test.link), 0)
			for i := range 20 {
				in.packet(1, 0, packet(dscp, i))
				ng.enhanced(0, 1e6, packet(dscp, i)).simple(packet(dscp, i))
			}
			return map[string][]byte{"pcap": in.bytes, "pcapng": ng.bytes}
		}
		want := captures(ef)
		for format, in := range captures(0) {
			for _, given := range []int{0, 4} {
				off, warns := 0, ""
				switch {
				case given == 0 && !test.raw:
					off, warns = 4, "--fcs 4 removes it from all frames"
				case given > 0 && test.raw:
					warns = "--fcs 4 removes nothing"
				}
				var out bytes.Buffer
				each := func(_ *dataplane.Packet, v *dataplane.Verdict) error {
					if v.Length != 200+off {
						t.Errorf("%s, %s, --fcs %d: %d bytes, want %d", name, format, given, v.Length, 200+off)
					}
					return nil
				}
				cfg := Config{FCS: given, Output: &out, Each: each}
				s, err := Run(t.Context(), bytes.NewReader(in), marking, cfg)
				if got := strings.Join(s.Warnings, "\n"); err != nil || (warns == "") != (got == "") ||
					!strings.Contains(got, warns) {
					t.Errorf("%s, %s, --fcs %d: warnings %q, want %q: %v", name, format, given, got, warns,
						err)
				}
				if (given > 0 || test.raw) && !bytes.Equal(out.Bytes(), unsectioned(want[format])) {
					t.Errorf("%s, %s: the output is not as if marked before the FCS", name, format)
				}
			}
		}
	}
}

// TestFCSFew checks that a trailer of one frame is no reason to advise --fcs.
func TestFCSFew(t *testing.T) {
	in := littleEndian().pcap(magicMicro, ethernet).packet(1, 0,
		append(ethernetFrame(ipv4(100, 0, 1)), make([]byte, 6)...))
	if _, s := mustReplay(t, in.bytes, transparent(t)); len(s.Warnings) > 0 {
		t.Errorf("got %q, want no warning", s.Warnings)
	}
}

// TestFCSLater checks that an FCS is noticed that only later frames have.
func TestFCSLater(t *testing.T) {
	in := littleEndian().pcap(magicMicro, ethernet)
	for i := range 4000 {
		frame := ethernetFrame(ipv4(100, 0, uint16(i)))
		if i > 2000 {
			frame = sealed(frame)
		}
		in.packet(1, 0, frame)
	}
	if _, s := mustReplay(t, in.bytes, transparent(t)); len(s.Warnings) != 1 ||
		!strings.Contains(s.Warnings[0], "its own CRC-32") {
		t.Errorf("got %q, want one about the CRC-32", s.Warnings)
	}
}
