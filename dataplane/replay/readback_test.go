package replay

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/csv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

const (
	ownPcaps    = "../../testdata/pcaps"
	sharedPcaps = "../../../shared/pcaps" // real captures beside the checkout
)

// readCapture returns a file's content, decompressed if it is gzipped.
func readCapture(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(path, ".gz") {
		return raw
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = io.ReadAll(z); err != nil {
		t.Fatal(err)
	}
	return raw
}

func captures(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.pcap*"))
	if err != nil || len(files) == 0 {
		t.Skipf("no captures in %s: put the real captures there to test with them", dir)
	}
	return files
}

// unsectioned sets the lengths of pcapng sections to -1 (unspecified).
func unsectioned(raw []byte) []byte {
	raw = bytes.Clone(raw)
	if !bytes.HasPrefix(raw, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
		return raw
	}
	var order binary.ByteOrder = binary.LittleEndian
	for b := raw; len(b) >= 12; {
		if binary.LittleEndian.Uint32(b) == 0x0a0d0d0a {
			order = binary.LittleEndian
			if order.Uint32(b[8:]) != 0x1a2b3c4d {
				order = binary.BigEndian
			}
			copy(b[16:24], bytes.Repeat([]byte{0xff}, 8))
		}
		b = b[order.Uint32(b[4:]):]
	}
	return raw
}

// TestOutputEqualsInput checks that a replay that changes no packet writes the bytes of
// the input, decompressed.
func TestOutputEqualsInput(t *testing.T) {
	for _, dir := range []string{ownPcaps, sharedPcaps} {
		t.Run(filepath.Base(filepath.Dir(dir)), func(t *testing.T) {
			for _, path := range captures(t, dir) {
				if filepath.Base(path) == "back.pcap" {
					continue // has a fraction over one second, which is carried
				}
				raw, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				out, _ := mustReplay(t, raw, transparent(t))
				want := unsectioned(readCapture(t, path))
				if !bytes.Equal(out, want) {
					t.Errorf("%s: output differs: got %d bytes, want %d", filepath.Base(path), len(out),
						len(want))
				}
			}
		})
	}
}

// TestIndex compares the packet counts of the real captures with those of
// capinfos.
func TestIndex(t *testing.T) {
	f, err := os.Open(filepath.Join(sharedPcaps, "INDEX.tsv"))
	if err != nil {
		t.Skipf("put the real captures and their index beside the checkout to test with them: %v", err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma, r.LazyQuotes, r.FieldsPerRecord = '\t', true, -1
	rows, err := r.ReadAll()
	if err != nil || len(rows) < 2 {
		t.Fatalf("read the index: %v", err)
	}
	name, count := slices.Index(rows[0], "file"), slices.Index(rows[0], "packets")
	for _, row := range rows[1:] {
		want, err := strconv.ParseInt(row[count], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(sharedPcaps, row[name]))
		if err != nil {
			t.Error(err)
			continue
		}
		out, s := mustReplay(t, raw, transparent(t))
		if s.Packets != want {
			t.Errorf("%s: %d packets, in the index %d", row[name], s.Packets, want)
		}
		if back, err := independent(out); err == nil && int64(len(back)) != want {
			t.Errorf("%s: gopacket reads %d packets of the output, want %d", row[name], len(back), want)
		}
	}
}

// TestDroppedMarkedQueued reads a replay's output with gopacket and compares
// every packet with its verdict.
func TestDroppedMarkedQueued(t *testing.T) {
	for _, name := range []string{
		"bursts.pcap", "voice-bulk.pcapng", "big-endian.pcap", "big-endian.pcapng.gz",
	} {
		t.Run(name, func(t *testing.T) {
			raw := readCapture(t, filepath.Join(ownPcaps, name))
			input := readBack(t, raw)
			p := newPipeline(t, dataplane.Class{
				Name: "all",
				Meter: &dataplane.Meter{Name: "m", Params: meter.TRTCM{
					CIR: meter.BitRate(1e5), CBS: 4000, PIR: meter.BitRate(2e5), PBS: 9000,
				}},
				Green: &dataplane.Action{Marks: []dataplane.Mark{{Field: dataplane.DSCP, Value: af12}}},
				Yellow: &dataplane.Action{Queue: &dataplane.Queue{
					Name: "q", Config: queue.Config{Rate: meter.BitRate(15e4), Time: time.Second},
				}},
			})
			type departing struct {
				packet
				number int64
			}
			var want []departing
			seen := map[dataplane.Done]int{}
			each := func(pkt *dataplane.Packet, v *dataplane.Verdict) error {
				seen[v.Done]++
				in := input[pkt.ID-1]
				if pkt.Time != in.at {
					t.Errorf("packet %d: got time %d, want %d as by gopacket", pkt.ID, pkt.Time, in.at)
				}
				if v.Done.Dropped() {
					return nil
				}
				at := in.at
				if v.Done&dataplane.Queued != 0 {
					at = v.Departure
				}
				want = append(want, departing{packet{at, in.wire, bytes.Clone(pkt.Data)}, pkt.ID})
				return nil
			}
			var out bytes.Buffer
			if _, err := Run(t.Context(), bytes.NewReader(raw), p,
				Config{Output: &out, Each: each}); err != nil {
				t.Fatal(err)
			}
			for _, done := range []dataplane.Done{
				0, dataplane.Pass | dataplane.Marked, dataplane.Pass | dataplane.Queued,
			} {
				if seen[done] == 0 {
					t.Fatalf("no packet had the verdict %04b: %v", done, seen)
				}
			}
			slices.SortStableFunc(want, func(a, b departing) int { return int(a.at - b.at) })
			got := readBack(t, out.Bytes())
			if len(got) != len(want) {
				t.Fatalf("gopacket reads %d packets, %d were sent", len(got), len(want))
			}
			unit := int64(1000)
			if name == "bursts.pcap" || name == "voice-bulk.pcapng" {
				unit = 1
			}
			for i, g := range got {
				w := want[i]
				w.at = (w.at + unit - 1) / unit * unit
				if g.at != w.at || g.wire != w.wire || !bytes.Equal(g.data, w.data) {
					t.Fatalf("place %d, packet %d: at %d with %d of %d bytes, want at %d with %d of %d", i+1,
						w.number, g.at, len(g.data), g.wire, w.at, len(w.data), w.wire)
				}
			}
		})
	}
}

// TestGzip replays a capture of several gzip members.
func TestGzip(t *testing.T) {
	in := littleEndian().pcap(magicNano, ethernet).packet(1, 1,
		ethernetFrame(ipv4(40, 0, 1))).packet(2, 2, ethernetFrame(ipv4(40, 0, 2))).bytes
	var zipped bytes.Buffer
	for _, part := range [][]byte{in[:50], in[50:]} {
		z := gzip.NewWriter(&zipped)
		z.Write(part)
		z.Close()
	}
	out, s := mustReplay(t, zipped.Bytes(), transparent(t))
	if !bytes.Equal(out, in) || s.Packets != 2 {
		t.Errorf("got %d packets, %d bytes, want 2 and the %d bytes of the input", s.Packets, len(out),
			len(in))
	}
}
