package replay

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/dataplane/pipeline"
)

// TestWarnings checks that each oddity of a capture causes one warning, or one note, with the
// first packet's number, and no error.
func TestWarnings(t *testing.T) {
	const day = 24 * 3600
	data := ethernetFrame(ipv4(40, 0, 1))
	pcap := func() *capture { return littleEndian().pcap(magicMicro, ethernet) }
	for _, test := range []struct {
		name string
		in   *capture
		gap  time.Duration
		want []string // start of each warning ... substring
	}{
		{"nothing odd", pcap().packet(1, 0, data).packet(1, 0, data).packet(1, 1, data), 0, nil},
		{"a timestamp goes back", pcap().packet(2, 0, data).packet(1, 999_999, data), 0, []string{"packet 2: ...goes backwards"}},
		{"timestamps behind the largest", pcap().packet(3, 0, data).packet(2, 0, data).packet(2, 1, data).packet(3, 0, data), 0, []string{"2 packets (first: 2): ...goes backwards"}},
		{"a day ahead", pcap().packet(1, 0, data).packet(1+day, 0, data), 0, nil},
		{"more than a day ahead", pcap().packet(1, 0, data).packet(1+day, 1, data).packet(2, 0, data), 0, []string{"packet 2: ...steps ahead by 24h0m0.000001s, more than 24h0m0s", "packet 3: ...an earlier clock"}},
		{"steps back", pcap().packet(9, 0, data).packet(7, 0, data).packet(4, 0, data), 0, []string{"2 packets (first: 2): ...steps back by up to 3s, more than 1s"}},
		{"late packets", pcap().packet(9, 0, data).packet(7, 0, data).packet(9, 1, data).packet(7, 1, data), 0, []string{"packet 2: ...steps back by 2s", "2 packets (first: 3): ...an earlier clock"}},
		{"MaxGap", pcap().packet(1, 0, data).packet(2, 0, data).packet(3, 1, data), time.Second, []string{"packet 3: ...steps ahead by 1.000001s, more than 1s"}},
		{"a first timestamp is never ahead", pcap().packet(4_000_000_000, 0, data), 0, nil},
		{"a fraction over one second", pcap().packet(1, 1_000_000, data), 0, []string{"packet 1: ...added to the seconds"}},
		{"truncated by the snap length", pcap().packet(1, 0, data).words(1, 0, 20, 54).rawBytes(data[:20]...), 0, []string{"packet 2: ...headers", "note: packet 2: ...original length"}},
		{"truncated behind the headers", pcap().packet(1, 0, data).words(1, 0, 42, 54).rawBytes(data[:42]...), 0, []string{"note: packet 2: ...original length"}},
		{"longer than the original length", pcap().words(1, 0, 54, 20).rawBytes(data...), 0, []string{"packet 1: ...captured length"}},
		{"unknown link type", littleEndian().pcap(magicMicro, usb).packet(1, 0, data).packet(1, 0, data), 0, []string{"2 packets (first: 1): ...link type 147"}},
		{"unknown link type of an interface", littleEndian().section().iface(ethernet, 0).iface(usb, 0).enhanced(0, 1, data).enhanced(1, 1, data), 0, []string{"packet 2: ...link type 147"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := Run(t.Context(), bytes.NewReader(test.in.bytes), transparent(t),
				Config{MaxGap: test.gap})
			if err != nil {
				t.Fatal(err)
			}
			got := s.Warnings
			for _, note := range s.Notes {
				got = append(got, "note: "+note)
			}
			if !slices.EqualFunc(got, test.want, func(got, want string) bool {
				begin, part, _ := strings.Cut(want, "...")
				return strings.HasPrefix(got, begin) && strings.Contains(got, part) &&
					!strings.Contains(got, "\n")
			}) {
				t.Errorf("warnings %q, want %q", got, test.want)
			}
		})
	}
}

// TestFractionOverOneSecond checks that the excess is carried to the seconds,
// in the verdict and in the output, queued or not.
func TestFractionOverOneSecond(t *testing.T) {
	for name, p := range map[string]func(testing.TB) Go{"passed": transparent, "queued": queued} {
		in := bigEndian().pcap(magicMicro, ethernet).packet(10, 2_500_000,
			ethernetFrame(ipv4(40, 0, 1))).bytes
		out, s := mustReplay(t, in, p(t))
		want := bigEndian().pcap(magicMicro, ethernet).packet(12, 500_000,
			ethernetFrame(ipv4(40, 0, 1))).bytes
		if !bytes.Equal(out, want) || s.First != 12.5e9 {
			t.Errorf("%s: got first time %d, output % x", name, s.First, out[24:32])
		}
	}
}

// TestLengths checks that a truncated packet is metered by its original length,
// or by its captured length if that is larger.
func TestLengths(t *testing.T) {
	data := ethernetFrame(ipv4(400, 0, 1))
	in := littleEndian().pcap(magicMicro, ethernet).
		words(1, 0, 60, 1414).rawBytes(data[:60]...).
		words(1, 0, 414, 20).rawBytes(data...).
		packet(1, 0, nil).bytes
	var got []int
	_, err := Run(t.Context(), bytes.NewReader(in), transparent(t), Config{
		Each: func(_ *dataplane.Packet, v *dataplane.Verdict) error {
			got = append(got, v.Length)
			return nil
		},
	})
	if want := []int{1400, 400, 0}; err != nil || !slices.Equal(got, want) {
		t.Errorf("lengths %d, want %d: %v", got, want, err)
	}
}

// TestLengthRuleWantsEthernet checks that Run fails on a packet of a link layer
// without frame lengths if the length rule counts frames.
func TestLengthRuleWantsEthernet(t *testing.T) {
	for _, base := range []dataplane.LengthBase{dataplane.L2, dataplane.L1} {
		p, err := pipeline.New(&dataplane.Policy{
			Length: dataplane.LengthRule{Base: base}, Classes: []dataplane.Class{{Name: "all"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		c := littleEndian().section().iface(rawIP, 0).iface(ethernet, 0)
		c.enhanced(1, 1, ethernetFrame(ipv4(40, 0, 1))).enhanced(0, 2, ipv4(40, 0, 2))
		out, s, err := replay(t, c.bytes, Go{p})
		if err == nil || !strings.Contains(err.Error(), "link type 101") {
			t.Errorf("got %v, want an error that names the link type", err)
		}
		if n := len(readBack(t, out)); n != 1 || s.Packets != 1 {
			t.Errorf("got %d packets, %d in the output, want 1", s.Packets, n)
		}
	}
}

// TestSummary checks the start, which is the time of the first packet, and the largest time.
func TestSummary(t *testing.T) {
	data := ethernetFrame(ipv4(40, 0, 1))
	in := littleEndian().pcap(magicNano, ethernet).packet(5, 7, data).packet(4, 999_999_999,
		data).packet(9, 2, data).packet(8, 4, data).bytes
	_, s := mustReplay(t, in, transparent(t))
	if s.Packets != 4 || s.First != 5e9+7 || s.Last != 9e9+2 || s.Steps != 0 {
		t.Errorf("got %+v, want 4 packets from 5000000007 to 9000000002", s)
	}
}
