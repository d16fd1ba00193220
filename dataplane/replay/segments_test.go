package replay

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// tcp describes the packets of one side of a TCP connection.
type tcp struct {
	v6         bool
	tagged     bool   // with a VLAN tag
	options    []byte // of data packets, a multiple of 4 bytes
	port, peer uint16
}

const (
	flagSYN = 0x02
	flagACK = 0x10
)

// frame returns an Ethernet frame. jumbo adds the hop-by-hop header of BIG TCP.
func (c tcp) frame(flags byte, options []byte, payload int, jumbo bool) []byte {
	head := []byte{
		byte(c.port >> 8), byte(c.port), byte(c.peer >> 8), byte(c.peer), 0, 0, 0, 0, 0, 0, 0, 0,
		byte(5+len(options)/4) << 4, flags, 0, 0, 0, 0, 0, 0,
	}
	segment := slices.Concat(head, options, make([]byte, payload))
	frame := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	if c.tagged {
		frame = append(frame, 0x81, 0, 0, 5)
	}
	if !c.v6 {
		n := 20 + len(segment)
		if n > 1<<16-1 {
			n = 0 // BIG TCP
		}
		ip := []byte{
			0x45, 0, byte(n >> 8), byte(n), 0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1,
		}
		return slices.Concat(frame, []byte{8, 0}, ip, segment)
	}
	next, hop := byte(6), []byte(nil)
	n := len(segment)
	if jumbo {
		total := n + 8
		next, hop, n = 0, []byte{
			6, 0, 0xc2, 4, byte(total >> 24), byte(total >> 16), byte(total >> 8), byte(total),
		}, 0
	}
	ip := append([]byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), next, 64}, make([]byte, 32)...)
	ip[8], ip[24] = 0x20, 0x20
	return slices.Concat(frame, []byte{0x86, 0xdd}, ip, hop, segment)
}

func mssOption(mss int) []byte { return []byte{1, 1, 1, 1, 2, 4, byte(mss >> 8), byte(mss)} }

var timestamps = []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}

// totals runs a capture and returns its counts by each length rule.
func totals(t *testing.T, in []byte, cfg Config) (counts [3]dataplane.Count, s Summary) {
	t.Helper()
	for i, base := range []dataplane.LengthBase{dataplane.L3, dataplane.L2, dataplane.L1} {
		p, err := pipeline.New(&dataplane.Policy{
			Classes: []dataplane.Class{{
				Name:  "all",
				Meter: &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: byteRate, Burst: 1 << 30}},
			}},
			Length: dataplane.LengthRule{Base: base},
		})
		if err != nil {
			t.Fatal(err)
		}
		if s, err = Run(t.Context(), bytes.NewReader(in), Go{p}, cfg); err != nil {
			t.Fatal(err)
		}
		counts[i] = p.Stats()[0].Total()
	}
	return counts, s
}

// TestCut compares captures with super-packets and the captures of the same traffic after
// segmentation: all lengths must be counted alike.
func TestCut(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 60 {
		ours, theirs := 536+r.IntN(8960-536), 536+r.IntN(8960-536)
		if i%2 == 0 {
			ours, theirs = 1460, 1400+r.IntN(61)
		}
		c := tcp{v6: i%3 == 0, tagged: i%5 == 0, port: 40000, peer: 443}
		if i%4 != 0 {
			c.options = timestamps
		}
		back := tcp{v6: c.v6, tagged: c.tagged, port: 443, peer: 40000}
		if !c.v6 {
			back = c // the addresses of IPv4 differ
			back.port, back.peer = c.peer, c.port
		}
		super, wire := littleEndian().pcap(magicMicro, ethernet), littleEndian().pcap(magicMicro, ethernet)
		both := func(frame []byte) {
			super.packet(1, 0, frame)
			wire.packet(1, 0, frame)
		}
		both(c.frame(flagSYN, mssOption(ours), 0, false))
		both(reversed(back, flagSYN|flagACK, mssOption(theirs)))
		size := min(ours, theirs) - len(c.options)
		cut := int64(0)
		for range 1 + r.IntN(40) {
			payload := r.IntN(2 * size)
			if r.IntN(3) == 0 {
				payload = r.IntN(200_000)
			}
			if payload > size && payload <= max(ours, theirs)-len(c.options) {
				continue // it could be one segment, see cutter
			}
			if payload > size {
				cut++
			}
			super.packet(1, 0, c.frame(flagACK, c.options, payload, payload > 65_000))
			for first := true; first || payload > 0; first = false {
				n := min(payload, size)
				wire.packet(1, 0, c.frame(flagACK, c.options, n, false))
				payload -= n
			}
		}
		got, s := totals(t, super.bytes, Config{})
		want, plain := totals(t, wire.bytes, Config{})
		if got != want || s.Cut != cut || plain.Cut != 0 || len(s.Warnings)+len(plain.Warnings) > 0 {
			t.Errorf("%d: %+v, MSS %d and %d: got %v with %d cut, want %v with %d: %q %q", i, c, ours, theirs,
				got, s.Cut, want, cut, s.Warnings, plain.Warnings)
		}
	}
}

// reversed returns a packet in the other direction.
func reversed(c tcp, flags byte, options []byte) []byte {
	frame := c.frame(flags, options, 0, false)
	at, size := 14+12, 4
	if c.v6 {
		at, size = 14+8, 16
	}
	if c.tagged {
		at += 4
	}
	src, dst := bytes.Clone(frame[at:at+size]), bytes.Clone(frame[at+size:at+2*size])
	copy(frame[at:], dst)
	copy(frame[at+size:], src)
	return frame
}

// TestNotCut checks packets that must stay whole, and their warnings.
func TestNotCut(t *testing.T) {
	c := tcp{port: 40000, peer: 443, options: timestamps}
	syn := func(options []byte) []byte { return c.frame(flagSYN, options, 0, false) }
	fragment := c.frame(flagACK, nil, 4000, false)
	fragment[14+6] = 0x20                             // more fragments
	zero := c.frame(flagACK, timestamps, 2896, false) // as hardware TSO of some drivers
	zero[16], zero[17] = 0, 0
	udp := c.frame(flagACK, nil, 4000, false)
	udp[14+9] = 17
	for name, test := range map[string]struct {
		frames  [][]byte
		mss     int
		cut     int64
		packets int64
		warns   int
	}{
		"jumbo frames":            {[][]byte{syn(mssOption(8960)), c.frame(flagACK, timestamps, 8948, false)}, 0, 0, 2, 0},
		"smaller of two":          {[][]byte{syn(mssOption(1440)), reversed(tcp{port: 443, peer: 40000}, flagSYN|flagACK, mssOption(1460)), c.frame(flagACK, timestamps, 1448, false)}, 0, 0, 3, 0},
		"trailer":                 {[][]byte{syn(mssOption(1460)), append(c.frame(flagACK, timestamps, 1448, false), make([]byte, 22)...)}, 0, 0, 2, 0},
		"length of 0":             {[][]byte{syn(mssOption(1460)), zero}, 0, 1, 3, 0},
		"full segment":            {[][]byte{syn(mssOption(1460)), c.frame(flagACK, timestamps, 1448, false)}, 0, 0, 2, 0},
		"one byte more":           {[][]byte{syn(mssOption(1460)), c.frame(flagACK, timestamps, 1449, false)}, 0, 1, 3, 0},
		"no SYN":                  {[][]byte{c.frame(flagACK, timestamps, 2896, false)}, 0, 0, 1, 1},
		"no SYN, small":           {[][]byte{c.frame(flagACK, timestamps, 1448, false)}, 0, 0, 1, 0},
		"no SYN, --mss":           {[][]byte{c.frame(flagACK, timestamps, 2896, false)}, 1460, 1, 2, 0},
		"no SYN, small --mss":     {[][]byte{c.frame(flagACK, timestamps, 1448, false)}, 736, 1, 2, 0},
		"SYN and --mss":           {[][]byte{syn(mssOption(8960)), c.frame(flagACK, timestamps, 2896, false)}, 1460, 0, 2, 0},
		"SYN without the option":  {[][]byte{syn(nil), c.frame(flagACK, timestamps, 1448, false), c.frame(flagACK, timestamps, 2896, false)}, 0, 0, 3, 1},
		"SYN with broken options": {[][]byte{syn([]byte{3, 0, 2, 4}), c.frame(flagACK, timestamps, 2896, false)}, 0, 0, 2, 1},
		"other connection":        {[][]byte{syn(mssOption(1460)), tcp{port: 40001, peer: 443}.frame(flagACK, nil, 2920, false)}, 0, 0, 2, 1},
		"new SYN":                 {[][]byte{syn(mssOption(1460)), syn(mssOption(8960)), c.frame(flagACK, timestamps, 2896, false), c.frame(flagACK, timestamps, 2*8948, false)}, 0, 1, 5, 0},
		"fragment":                {[][]byte{syn(mssOption(1460)), fragment}, 0, 0, 2, 0},
		"UDP":                     {[][]byte{syn(mssOption(1460)), udp}, 0, 0, 2, 1},
		"MSS of an attacker":      {[][]byte{syn(mssOption(1)), c.frame(flagACK, nil, 96, false)}, 0, 1, 3, 0},
	} {
		in := littleEndian().pcap(magicMicro, ethernet)
		for _, frame := range test.frames {
			in.packet(1, 0, frame)
		}
		got, s := totals(t, in.bytes, Config{MSS: test.mss})
		if s.Cut != test.cut || got[0].Packets != test.packets || len(s.Warnings) != test.warns {
			t.Errorf("%s: got %d cut, %d packets, warnings %q, want %d, %d and %d warnings", name, s.Cut,
				got[0].Packets, s.Warnings, test.cut, test.packets, test.warns)
		}
		if test.warns > 0 && !strings.Contains(strings.Join(s.Warnings, ""), "longer than 1,500 bytes") {
			t.Errorf("%s: got %q", name, s.Warnings)
		}
	}
}

// TestCutOneVerdict checks that a super-packet has one verdict, and stays whole in the output.
func TestCutOneVerdict(t *testing.T) {
	c := tcp{port: 40000, peer: 443}
	in := littleEndian().section().iface(ethernet, 0)
	in.enhanced(0, 0, c.frame(flagSYN, mssOption(1460), 0, false))
	for range 3 {
		in.simple(c.frame(flagACK, nil, 14600, false))
	}
	p := newPipeline(t, dataplane.Class{
		Name:  "all",
		Meter: &dataplane.Meter{Name: "m", Params: meter.TokenBucket{Rate: byteRate, Burst: 2*15_000 + 48}},
		Green: toQueue(), // restamps simple blocks
	})
	var out bytes.Buffer
	var verdicts []string
	_, err := Run(t.Context(), bytes.NewReader(in.bytes), p,
		Config{Output: &out, Each: func(p *dataplane.Packet, v *dataplane.Verdict) error {
			verdicts = append(verdicts, fmt.Sprint(v.ID, v.Packets, v.Length, v.Color))
			return nil
		}})
	if want := []string{
		"1 1 48 green", "2 10 15000 green", "3 10 15000 green", "4 10 15000 red",
	}; err != nil ||
		!slices.Equal(verdicts, want) {
		t.Errorf("got %q, %v, want %q", verdicts, err, want)
	}
	for i, q := range readBack(t, out.Bytes()) {
		if want := []int{62, 14654, 14654}[i]; q.wire != want || len(q.data) != want {
			t.Errorf("packet %d of the output has %d of %d bytes, want %d", i+1, len(q.data), q.wire, want)
		}
	}
}

// TestCutBounded opens more connections than the cutter may remember. The latest ones are
// known, and so are older ones that send.
func TestCutBounded(t *testing.T) {
	in := littleEndian().pcap(magicMicro, ethernet)
	first := tcp{port: 1, peer: 1}
	in.packet(1, 0, first.frame(flagSYN, mssOption(1460), 0, false))
	for i := range 3 * maxConnections {
		c := tcp{port: uint16(i), peer: 1000 + uint16(i>>16)}
		in.packet(1, 0, c.frame(flagSYN, mssOption(1460), 0, false))
		if i%10_000 == 0 {
			in.packet(1, 0, first.frame(flagACK, nil, 2920, false))
		}
	}
	in.packet(1, 0, tcp{port: 65535, peer: 1002}.frame(flagACK, nil, 2920, false))
	r := run{cutter: newCutter(0, 0)}
	most := 0
	w := newWindow(t.Context(), bytes.NewReader(in.bytes))
	f, err := openCapture(w, 0)
	for rec := (record{Packet: &dataplane.Packet{}}); err == nil; w.release() {
		if err = f.next(&rec); err == nil && rec.isPacket {
			r.count(&rec)
			r.cutter.packet(&r, rec.Packet)
			most = max(most, len(r.cutter.latest)+len(r.cutter.earlier))
		}
	}
	if want := int64(3*maxConnections/10_000 + 2); r.cutter.count != want || r.seen[uncut].packets > 0 {
		t.Errorf("cut %d packets, not %d, want %d and 0", r.cutter.count, r.seen[uncut].packets, want)
	}
	if most > 2*maxConnections {
		t.Errorf("%d connections in memory, want at most %d", most, 2*maxConnections)
	}
}

// datagram returns a frame with an IP packet of a protocol, with ports and n bytes behind the header of
// UDP. With tags it has that number of VLAN tags.
func datagram(v6 bool, tags int, proto byte, port uint16, n int) []byte {
	frame := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	for range tags {
		frame = append(frame, 0x81, 0, 0, 5)
	}
	total := n + 8
	body := append([]byte{0x9c, 0x40, byte(port >> 8), byte(port), byte(total >> 8), byte(total), 0, 0},
		make([]byte, n)...)
	if v6 {
		ip := append([]byte{0x60, 0, 0, 0, byte(total >> 8), byte(total), proto, 64}, make([]byte, 32)...)
		return slices.Concat(frame, []byte{0x86, 0xdd}, ip, body)
	}
	ip := []byte{
		0x45, 0, byte((total + 20) >> 8), byte(total + 20), 0, 0, 0x40, 0, 64, proto, 0, 0, 192, 0, 2, 1, 198,
		51, 100, 1,
	}
	return slices.Concat(frame, []byte{8, 0}, ip, body)
}

// TestCutUDP compares captures with UDP super-packets and the captures of the same traffic after
// segmentation: all lengths must be counted alike.
func TestCutUDP(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		size := 500 + r.IntN(950)
		v6, tags := r.IntN(2) == 0, r.IntN(3)
		super, wire := littleEndian().pcap(magicMicro, ethernet), littleEndian().pcap(magicMicro, ethernet)
		cut := int64(0)
		for range 1 + r.IntN(40) {
			payload := r.IntN(size + 1)
			if r.IntN(2) == 0 {
				payload = 1 + r.IntN(min(maxDatagrams*size, 65_000))
			}
			super.packet(1, 0, datagram(v6, tags, 17, 443, payload))
			if payload > size {
				cut++
			}
			for first := true; first || payload > 0; first = false {
				n := min(payload, size)
				wire.packet(1, 0, datagram(v6, tags, 17, 443, n))
				payload -= n
			}
		}
		got, s := totals(t, super.bytes, Config{UDPSegment: size})
		want, plain := totals(t, wire.bytes, Config{UDPSegment: size})
		if got != want || s.Cut != cut || plain.Cut != 0 || len(plain.Warnings) > 0 {
			t.Errorf("v6 %v, %d tags, segments of %d: got %v with %d cut, want %v with %d: %q", v6, tags,
				size, got, s.Cut, want, cut, plain.Warnings)
		}
	}
}

// TestUncutWithoutEtherType checks that the warning about a long packet names no EtherType if there is none.
func TestUncutWithoutEtherType(t *testing.T) {
	for link, before := range map[uint32][]byte{
		0: {7, 0, 0, 0}, 9: {0xff, 3, 0xc0, 0x21}, 107: {0, 1, 3, 8},
	} {
		in := littleEndian().pcap(magicMicro, link)
		in.packet(1, 0, slices.Concat([]byte{2, 0, 0, 0},
			ipv4(100, 0, 1))).packet(2, 0, append(before, make([]byte, 1700)...))
		_, s := mustReplay(t, in.bytes, transparent(t))
		if len(s.Warnings) != 1 ||
			!strings.Contains(s.Warnings[0], "neither TCP nor plain UDP (no IP packet)") {
			t.Errorf("link type %d: %q", link, s.Warnings)
		}
	}
}

// TestSuperPacketWarnings checks that a packet longer than a link carries is cut, or named.
func TestSuperPacketWarnings(t *testing.T) {
	fragment := datagram(false, 0, 17, 443, 4000)
	fragment[14+6] = 0x20
	truncated := datagram(true, 0, 17, 443, 4000)
	other := slices.Concat(make([]byte, 12), []byte{0x88, 0x63}, make([]byte, 2000))
	llc := slices.Concat(make([]byte, 12), []byte{5, 0xdc}, make([]byte, 2000))
	baby := slices.Concat(make([]byte, 12), []byte{0x88, 0xe5}, make([]byte, 1532)) // MACsec
	for name, test := range map[string]struct {
		frame    []byte
		captured int // 0 for all
		size     int
		cut      int64
		want     string
	}{
		"UDP":                       {datagram(false, 0, 17, 443, 4000), 0, 0, 0, "packet 1: UDP longer than 1,500 bytes, not fragmented; "},
		"UDP of 1,500 bytes":        {datagram(false, 0, 17, 443, 1472), 0, 0, 0, ""},
		"UDP, cut":                  {datagram(false, 0, 17, 443, 4000), 0, 1200, 1, ""},
		"UDP, short":                {datagram(false, 0, 17, 443, 1300), 0, 1200, 1, "packet 1: UDP of at most 1,500 bytes, cut by --udp-segment, "},
		"UDP, one segment":          {datagram(false, 0, 17, 443, 1200), 0, 1200, 0, ""},
		"UDP, too many segments":    {datagram(false, 0, 17, 443, 1300), 0, 10, 0, ""},
		"UDP, far too many":         {datagram(false, 0, 17, 443, 20_000), 0, 100, 0, "UDP longer than 1,500 bytes, not fragmented, that --udp-segment does not cut: more than 128 segments, "},
		"UDP, no ports captured":    {truncated, 14 + 40 + 2, 1200, 0, "or truncated before its ports; "},
		"UDP, one long segment":     {datagram(false, 0, 17, 443, 4000), 0, 4000, 0, ""},
		"a fragment":                {fragment, 0, 1200, 0, ""},
		"VXLAN":                     {datagram(false, 0, 17, 4789, 4000), 0, 1200, 0, "neither TCP nor plain UDP (UDP port 4789)"},
		"VXLAN of 1,500 bytes":      {datagram(false, 0, 17, 4789, 1472), 0, 1200, 0, ""},
		"SCTP":                      {datagram(true, 1, 132, 443, 4000), 0, 1200, 0, "neither TCP nor plain UDP (sctp)"},
		"ESP":                       {datagram(false, 0, 50, 443, 4000), 0, 0, 0, "(esp)"},
		"TCP, no ports captured":    {datagram(false, 0, 6, 443, 4000), 14 + 20 + 2, 0, 0, "of a TCP connection whose SYN was not captured"},
		"not IP":                    {other, 0, 0, 0, "(EtherType 0x8863)"},
		"a protocol without a name": {datagram(false, 0, 253, 443, 4000), 0, 0, 0, "(proto 253)"},
		"not IP, with a length":     {llc, 0, 0, 0, "(no IP packet)"},
		"a frame in a larger frame": {baby, 0, 0, 0, ""},
	} {
		in := littleEndian().pcap(magicMicro, ethernet)
		if test.captured == 0 {
			test.captured = len(test.frame)
		}
		in.words(1, 0, uint32(test.captured), uint32(len(test.frame))).rawBytes(test.frame[:test.captured]...)
		_, s := totals(t, in.bytes, Config{UDPSegment: test.size})
		warnings := slices.DeleteFunc(s.Warnings,
			func(w string) bool { return strings.Contains(w, "headers truncated") })
		if got := strings.Join(warnings, "\n"); s.Cut != test.cut || (got == "") != (test.want == "") ||
			!strings.Contains(got, test.want) || strings.Contains(got, "%!") {
			t.Errorf("%s: %d cut, warnings %q, want %d and %q", name, s.Cut, got, test.cut, test.want)
		}
	}
}
