package explain

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// checkLayers decodes a packet of a link type and checks the bounds and the text.
func checkLayers(t *testing.T, link uint16, data []byte) []Layer {
	t.Helper()
	p := dataplane.Packet{Link: dataplane.LinkType(link), Data: data, WireLen: len(data)}
	dataplane.Parse(&p)
	list := layersOf(&p)
	if len(list) > mostLayers+2 {
		t.Fatalf("link type %d, % x: %d layers", link, data, len(list))
	}
	for _, l := range list {
		if len(l.Fields) > 4*mostLayerText || say.Printable(l.Fields) != l.Fields ||
			strings.Contains(l.Fields, "goroutine") {
			t.Fatalf("link type %d, % x: %+v", link, data, l)
		}
	}
	return list
}

// frames returns the first packets of each pcap of the repository, with their link types.
func frames(t testing.TB) (links []uint16, data [][]byte) {
	t.Helper()
	names, err := filepath.Glob("../../../../testdata/pcaps/*.pcap")
	if err != nil || names == nil {
		t.Fatal("no captures", err)
	}
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		r, err := pcapgo.NewReader(file)
		if err != nil {
			continue // a capture that pcapgo cannot read
		}
		header := make([]byte, 24)
		if _, err := file.ReadAt(header, 0); err != nil {
			t.Fatal(err)
		}
		order := binary.ByteOrder(binary.LittleEndian)
		if header[0] == 0xa1 {
			order = binary.BigEndian
		}
		for range 100 {
			frame, _, err := r.ReadPacketData()
			if err == io.EOF || err != nil {
				break
			}
			links, data = append(links, uint16(order.Uint32(header[20:]))), append(data, frame)
		}
	}
	return links, data
}

// TestLayersOfAnything decodes packets with random changes by decoders of all link types.
func TestLayersOfAnything(t *testing.T) {
	links, data := frames(t)
	r := rand.New(rand.NewPCG(1, 2))
	failures := 0
	for range 40_000 {
		i := r.IntN(len(data))
		link, frame := links[i], append([]byte{}, data[i]...)
		switch r.IntN(4) {
		case 0:
			link = uint16(r.IntN(300))
		case 1:
			link = []uint16{
				0, 1, 9, 10, 12, 14, 50, 51, 99, 101, 104, 105, 106, 107, 108, 113, 127, 166, 220, 228, 229,
				242, 276, 285,
			}[r.IntN(24)]
		}
		for range r.IntN(8) {
			if len(frame) > 0 {
				frame[r.IntN(min(len(frame), 80))] = byte(r.Uint32())
			}
		}
		frame = frame[:r.IntN(len(frame)+1)]
		for _, l := range checkLayers(t, link, frame) {
			if l.Type == "DecodeFailure" {
				failures++
			}
		}
	}
	if failures < 1000 {
		t.Errorf("%d packets could not be decoded: the test is too easy", failures)
	}
}

// TestLayersAreBounded decodes packets with more layers, and more bytes, than are shown.
func TestLayersAreBounded(t *testing.T) {
	tags := append(make([]byte, 12), []byte(strings.Repeat("\x81\x00\x00\x01", 50_000))...)
	if list := checkLayers(t, 1, tags); len(list) != mostLayers+1 || list[mostLayers].Type != "more layers" ||
		list[1].Type != "Dot1Q" {
		t.Errorf("%d layers, the last is %+v", len(list), list[len(list)-1])
	}
}

// TestLayersArePrintable decodes a SIP header with control characters.
func TestLayersArePrintable(t *testing.T) {
	text := []byte("REGISTER sip:a SIP/2.0\r\nFrom: \x1b[31m\r\n\r\n")
	udp := append([]byte{0x13, 0xc4, 0x13, 0xc4, 0, byte(8 + len(text)), 0, 0}, text...)
	ip := append([]byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8},
		udp...)
	for link, l := range map[uint16]int{101: 2, 276: 3} { // raw, and SLL2, which gopacket does not know
		data := ip
		if link == 276 {
			data = append(append([]byte{8, 0}, make([]byte, 18)...), ip...)
		}
		list := checkLayers(t, link, data)
		if len(list) != l+1 || list[l].Type != "SIP" || !strings.Contains(list[l].Fields, `\x1b[31m`) {
			t.Errorf("link type %d: %+v", link, list)
		}
	}
}

func FuzzLayers(f *testing.F) {
	links, data := frames(f)
	for i := range links {
		if i%50 == 0 {
			f.Add(links[i], data[i])
		}
	}
	f.Fuzz(func(t *testing.T, link uint16, data []byte) { checkLayers(t, link, data) })
}
