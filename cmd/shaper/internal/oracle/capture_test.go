package oracle

import (
	"encoding/binary"
	"encoding/csv"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

const sharedCaptures = "../../../../../shared/pcaps"

// captureIndex returns the rows of INDEX.tsv, as maps from column to value.
func captureIndex(t *testing.T) []map[string]string {
	t.Helper()
	file, err := os.Open(filepath.Join(sharedCaptures, "INDEX.tsv"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("the shared captures are not in %s", sharedCaptures)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := csv.NewReader(file)
	r.Comma, r.LazyQuotes = '\t', true
	lines, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]string
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, column := range lines[0] {
			row[column] = line[i]
		}
		rows = append(rows, row)
	}
	return rows
}

// TestSharedCaptures compares each file with the index.
func TestSharedCaptures(t *testing.T) {
	for _, row := range captureIndex(t) {
		t.Run(row["file"], func(t *testing.T) {
			packets, err := readCapture(filepath.Join(sharedCaptures, row["file"]))
			if err != nil {
				t.Fatal(err)
			}
			var truncated, backward, equal int
			var wireMin, wireMax int64
			links := map[string]bool{}
			for i, p := range packets {
				if int64(len(p.data)) < p.wire {
					truncated++
				}
				if i == 0 || p.wire < wireMin {
					wireMin = p.wire
				}
				wireMax = max(wireMax, p.wire)
				links[strconv.Itoa(p.linkType)] = true
				if i > 0 {
					switch p.time.Cmp(packets[i-1].time) {
					case -1:
						backward++
					case 0:
						equal++
					}
				}
			}
			expect := func(column string, got int64) {
				if want := row[column]; want != strconv.FormatInt(got, 10) {
					t.Errorf("%s: %d, the index says %q", column, got, want)
				}
			}
			expect("packets", int64(len(packets)))
			expect("truncated", int64(truncated))
			expect("backward_ts", int64(backward))
			if len(packets) == 0 {
				return
			}
			expect("wire_min", wireMin)
			expect("wire_max", wireMax)
			if !strings.HasPrefix(row["file"], "pcapngtest-be-test010") { // no timestamps there
				expect("equal_ts", int64(equal))
			}
			last := packets[len(packets)-1].time
			span := new(big.Rat).SetFrac(new(big.Int).Sub(last, packets[0].time), big.NewInt(1e9))
			if got := span.FloatString(6); got != row["duration_s"] {
				t.Errorf("got duration_s %s, want %s as in the index", got, row["duration_s"])
			}
			for _, link := range strings.Split(row["link_types"], ",") {
				if !links[link] && !strings.Contains(row["link_types"], ",") {
					t.Errorf("got no packet of link type %s", link)
				}
			}
		})
	}
}

// TestAgainstGopacket parses the headers of the same captures with gopacket.
func TestAgainstGopacket(t *testing.T) {
	for _, row := range captureIndex(t) {
		t.Run(row["file"], func(t *testing.T) {
			packets, err := readCapture(filepath.Join(sharedCaptures, row["file"]))
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range packets {
				compareHeaders(t, i+1, p)
			}
		})
	}
}

// compareHeaders compares the outer IP header and the ports after it.
func compareHeaders(t *testing.T, number int, p packet) {
	if p.linkType != linkEthernet && p.linkType != linkSLL {
		return
	}
	decoded := gopacket.NewPacket(p.data, layers.LinkType(p.linkType), gopacket.NoCopy)
	f := parseFrame(p.linkType, p.data, p.wire)
	for i, layer := range decoded.Layers() {
		var src, dst string
		var trafficClass byte
		switch ip := layer.(type) {
		case *layers.IPv4:
			src, dst, trafficClass = ip.SrcIP.String(), ip.DstIP.String(), ip.TOS
		case *layers.IPv6:
			src, dst, trafficClass = ip.SrcIP.String(), ip.DstIP.String(), ip.TrafficClass
		default:
			continue
		}
		if !f.isIP() || f.src.String() != src || f.dst.String() != dst || f.trafficClass != trafficClass {
			t.Errorf("packet %d: got kind %d, %s to %s, want %s to %s as by gopacket", number, f.kind, f.src,
				f.dst, src, dst)
		}
		if i+1 == len(decoded.Layers()) {
			return
		}
		var sport, dport int
		switch transport := decoded.Layers()[i+1].(type) {
		case *layers.TCP:
			sport, dport = int(transport.SrcPort), int(transport.DstPort)
		case *layers.UDP:
			sport, dport = int(transport.SrcPort), int(transport.DstPort)
		default:
			return
		}
		if !f.hasPorts || f.sport != sport || f.dport != dport {
			t.Errorf("packet %d: got ports %d and %d, want %d and %d as by gopacket", number, f.sport,
				f.dport, sport, dport)
		}
		return
	}
	if f.isIP() && f.tags == 0 && !f.hasMPLS {
		t.Errorf("packet %d: got kind %d, want no IP header as by gopacket", number, f.kind)
	}
}

// pcapng builds blocks in a given byte order.
type pcapng struct {
	order binary.AppendByteOrder
	bytes []byte
}

func (w *pcapng) block(kind uint32, body []byte) {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	size := uint32(len(body) + 12)
	w.bytes = w.order.AppendUint32(w.bytes, kind)
	w.bytes = w.order.AppendUint32(w.bytes, size)
	w.bytes = append(w.bytes, body...)
	w.bytes = w.order.AppendUint32(w.bytes, size)
}

func (w *pcapng) section(order binary.AppendByteOrder) {
	w.order = order
	body := order.AppendUint32(nil, 0x1a2b3c4d)
	body = order.AppendUint16(body, 1)
	body = order.AppendUint16(body, 0)
	w.block(blockSection, order.AppendUint64(body, 1<<64-1))
}

// iface writes an interface; a resolution of 6 and an offset of 0 are omitted.
func (w *pcapng) iface(link uint16, snapLen uint32, resolution byte, offset int64) {
	body := w.order.AppendUint16(nil, link)
	body = w.order.AppendUint16(body, 0)
	body = w.order.AppendUint32(body, snapLen)
	if resolution != 6 {
		body = w.order.AppendUint16(body, 9)
		body = w.order.AppendUint16(body, 1)
		body = append(body, resolution, 0, 0, 0)
	}
	if offset != 0 {
		body = w.order.AppendUint16(body, 14)
		body = w.order.AppendUint16(body, 8)
		body = w.order.AppendUint64(body, uint64(offset))
	}
	w.block(blockInterface, body)
}

func (w *pcapng) enhanced(id uint32, ticks uint64, wire uint32, data []byte) {
	body := w.order.AppendUint32(nil, id)
	body = w.order.AppendUint32(body, uint32(ticks>>32))
	body = w.order.AppendUint32(body, uint32(ticks))
	body = w.order.AppendUint32(body, uint32(len(data)))
	body = w.order.AppendUint32(body, wire)
	w.block(blockEnhanced, append(body, data...))
}

func (w *pcapng) simple(wire uint32, data []byte) {
	w.block(blockSimple, append(w.order.AppendUint32(nil, wire), data...))
}

func (w *pcapng) obsolete(id uint16, ticks uint64, wire uint32, data []byte) {
	body := w.order.AppendUint16(nil, id)
	body = w.order.AppendUint16(body, 0xffff)
	body = w.order.AppendUint32(body, uint32(ticks>>32))
	body = w.order.AppendUint32(body, uint32(ticks))
	body = w.order.AppendUint32(body, uint32(len(data)))
	body = w.order.AppendUint32(body, wire)
	w.block(blockPacket, append(body, data...))
}

func TestPcapngBlocks(t *testing.T) {
	var w pcapng
	w.section(binary.LittleEndian)
	w.iface(1, 0, 6, 0)
	w.iface(101, 5, 0x8a, -1) // 1/1024 s, one second early
	w.enhanced(0, 1_500_000, 7, []byte("seven.."))
	w.simple(3, []byte("abc"))
	w.enhanced(1, 2049, 100, []byte("four"))
	w.obsolete(1, 1024, 9, []byte("oldish"))
	w.section(binary.BigEndian)
	w.iface(113, 2, 12, 0) // picoseconds
	w.simple(10, []byte("ab"))
	w.enhanced(0, 5_001_999, 1, []byte("p"))

	type seen struct {
		time       int64
		link, wire int
		data       string
	}
	want := []seen{
		{1_500_000_000, 1, 7, "seven.."},
		{1_500_000_000, 1, 3, "abc"},
		{1_000_976_562, 101, 100, "four"}, // 2049/1024 s - 1 s, rounded down to ns
		{0, 101, 9, "oldish"},
		{0, 113, 10, "ab"},
		{5001, 113, 1, "p"},
	}

	path := filepath.Join(t.TempDir(), "blocks.pcapng")
	for cut := range 2 {
		if err := os.WriteFile(path, w.bytes[:len(w.bytes)-cut], 0o600); err != nil {
			t.Fatal(err)
		}
		packets, err := readCapture(path)
		if cut > 0 {
			want = want[:len(want)-1]
			if !errors.Is(err, errCut) {
				t.Errorf("truncated file: got %v, want errCut", err)
			}
		} else if err != nil {
			t.Fatal(err)
		}
		if len(packets) != len(want) {
			t.Fatalf("got %d packets, want %d", len(packets), len(want))
		}
		for i, p := range packets {
			if got := (seen{p.time.Int64(), p.linkType, int(p.wire), string(p.data)}); got != want[i] {
				t.Errorf("packet %d: got %+v, want %+v", i+1, got, want[i])
			}
		}
	}
}

// TestFCS checks packets of 8 bytes, 7 of them captured, with different lengths of the FCS.
func TestFCS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fcs.pcapng")
	for _, test := range []struct {
		length byte // if_fcslen
		flags  uint32
		wire   int64
		data   string
		check  string
	}{
		{0, 0, 8, "seven..", ""},
		{32, 0, 4, "seve", "n.."},
		{4, 0, 4, "seve", "n.."},
		{16, 0, 6, "seven.", "."},
		{8, 0, 7, "seven..", ""},
		{0, 4 << 5, 4, "seve", "n.."},
		{16, 4 << 5, 4, "seve", "n.."},
		{32, 0xfffffe1f, 4, "seve", "n.."},
		{255, 0, 0, "", "seven.."},
	} {
		var w pcapng
		w.section(binary.BigEndian)
		body := append([]byte{0, 1, 0, 0, 0, 0, 0, 0}, 0, 13, 0, 1, test.length, 0, 0, 0, 0, 0, 0, 0)
		w.block(blockInterface, body)
		body = append(make([]byte, 12), 0, 0, 0, 7, 0, 0, 0, 8, 's', 'e', 'v', 'e', 'n', '.', '.', 0, 0, 2, 0,
			4)
		w.block(blockEnhanced, binary.BigEndian.AppendUint32(body, test.flags))
		if err := os.WriteFile(path, w.bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		packets, err := readCapture(path)
		if err != nil || len(packets) != 1 {
			t.Fatalf("%+v: %d packets, %v", test, len(packets), err)
		}
		if p := packets[0]; p.wire != test.wire || string(p.data) != test.data ||
			string(p.check) != test.check {
			t.Errorf("%+v: got %d bytes, %q and %q", test, p.wire, p.data, p.check)
		}
	}
	if got := ethernetFCS([]byte("123456789")); string(got) != "\x26\x39\xf4\xcb" { // check value of CRC-32
		t.Errorf("got % x, want the check value of CRC-32", got)
	}
}

// pcapHeader returns the file header. The high bits of the link type mean that there is an FCS
// of 10 bytes.
func pcapHeader(order binary.AppendByteOrder, magic uint32) []byte {
	data := order.AppendUint32(nil, magic)
	data = order.AppendUint32(data, 2|4<<16)
	data = append(data, make([]byte, 8)...)
	data = order.AppendUint32(data, 65535)
	return order.AppendUint32(data, 0x54000001)
}

func TestPcapFormats(t *testing.T) {
	path := filepath.Join(t.TempDir(), "formats.pcap")
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for magic, want := range map[uint32]int64{0xa1b2c3d4: 5_002_000_000, 0xa1b23c4d: 3_002_000_000} {
			data := pcapHeader(order, magic)
			for _, field := range []uint32{3, 2_002_000, 4, 60} { // more than a second in µs
				if magic == 0xa1b23c4d && field == 2_002_000 {
					field = 2_000_000
				}
				data = order.AppendUint32(data, field)
			}
			data = append(data, "data"...)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			packets, err := readCapture(path)
			if err != nil || len(packets) != 1 {
				t.Fatalf("%v, %#x: %d packets, %v", order, magic, len(packets), err)
			}
			p := packets[0]
			if p.time.Int64() != want || p.linkType != 1 || p.wire != 50 || p.fcs != 10 ||
				string(p.data) != "data" {
				t.Errorf("%v, %#x: got %+v, want time %d", order, magic, p, want)
			}
		}
	}
}
