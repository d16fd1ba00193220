package livetest

import (
	"cmp"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/tcpmodel"
	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// writeCapture writes frames to a file in the order of their times.
func writeCapture(t *testing.T, frames []nettest.Frame) string {
	t.Helper()
	slices.SortStableFunc(frames, func(a, b nettest.Frame) int { return cmp.Compare(a.Time, b.Time) })
	path := filepath.Join(t.TempDir(), "capture.pcap")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := pcapgo.NewWriterNanos(file)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if err := w.WritePacket(gopacket.CaptureInfo{
			Timestamp: time.Unix(0, f.Time), CaptureLength: len(f.Data), Length: len(f.Data),
		}, f.Data); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// TestQuietAdvise advises on captures of a TCP connection, before and behind a policer. If its burst
// is small, they were throttled, at the RTT of the path and about the goodput of the receiver. A
// transfer that fits the burst was not.
func TestQuietAdvise(t *testing.T) {
	nettest.Quiet(t)
	skipInVM(t)
	t.Parallel()
	const rtt = 20 * time.Millisecond
	for name, c := range map[string]tcpCase{
		"policed": {rtt: rtt, burst: 10_000, paced: true, during: 8 * time.Second},
		"short":   {rtt: rtt, burst: 4 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, end := c.attach(t)
			defer end()
			policed := name == "policed"
			var answers, before, behind []nettest.Frame
			atMost := c.quiet() + 5*time.Millisecond // how late the delay may be
			judged := false
			for attempt, disturbed := 0, true; disturbed; attempt++ {
				switch {
				case attempt == 6 && judged:
					t.Fatal("TCP sent packets again in each run")
				case attempt == 6:
					t.Skip("the machine is too busy: the delay was late in each run")
				}
				time.Sleep(time.Duration(attempt) * time.Second)
				sniffers := []*nettest.Sniffer{p.from.Sniff("d0"), p.near.Sniff("up"), p.to.Sniff("v0")}
				if disturbed = false; policed {
					p.goodput(tcpmodel.CUBIC, c)
				} else { // on a busy machine TCP sends packets again that were only late
					p.back.lateness() // of earlier flows
					resent := p.transfer(2 << 20)
					late := p.back.lateness() > atMost
					disturbed, judged = resent > 0 || late, judged || !late
				}
				answers, before, behind = sniffers[0].Stop(), sniffers[1].Stop(), sniffers[2].Stop()
			}
			for place, data := range map[string][]nettest.Frame{"before": before, "behind": behind} {
				capture := writeCapture(t, slices.Concat(answers, data))
				stdout, _ := p.wantExit(0, "advise", capture, "--rate", "50mbit", "--json")
				got := decodeJSON[struct {
					LowerBound bool `json:"lower_bound"`
					Capture    struct {
						TCP struct {
							Throttled bool
							Senders   int
							RTT       time.Duration `json:"rtt_ns"`
							Rate      float64       `json:"rate_bit_s"`
						}
					}
					ClosedLoop *struct{} `json:"closed_loop"`
				}](t, stdout)
				tcp := got.Capture.TCP
				if tcp.Throttled != policed || got.LowerBound != policed || tcp.Senders != 1 ||
					got.ClosedLoop == nil {
					t.Errorf("%s: got %+v, want one sender, throttled: %v", place, got, policed)
				}
				if tcp.RTT < rtt || tcp.RTT > rtt+atMost {
					t.Errorf("%s: got an RTT of %v, want %v", place, tcp.RTT, rtt)
				}
				if want := rateOf(data); tcp.Rate < want*0.95 || tcp.Rate > want*1.05 {
					t.Errorf("%s: the sender sends %.3g bit/s, want %.3g", place, tcp.Rate, want)
				}
				text, _ := p.wantExit(0, "advise", capture, "--rate", "50mbit")
				model, bursts := strings.Index(text, "What TCP gets"), strings.Index(text, "Burst and loss")
				if model < 0 || bursts < 0 || (model < bursts) != policed {
					t.Errorf("%s: what TCP gets is at %d, the bursts of the capture at %d, in\n%s", place,
						model, bursts, text)
				}
			}
		})
	}
}

// rateOf returns the rate of the IP packets with data, from the first to the last, bit/s.
func rateOf(frames []nettest.Frame) float64 {
	const ethernet, bare = 14, 100 // bytes of the header, and of the largest frame without data
	sum, first, last := 0, int64(0), int64(0)
	for _, f := range frames {
		if len(f.Data) > bare {
			if sum == 0 {
				first = f.Time
			}
			last = f.Time
			sum += len(f.Data) - ethernet
		}
	}
	return float64(sum) * 8e9 / float64(last-first)
}

// transfer sends n bytes over a connection and waits until they have arrived. It returns the number
// of packets that TCP sent again.
func (p *tcpPath) transfer(n int64) (repeated uint32) {
	p.t.Helper()
	out, in := p.connect(&net.Dialer{})
	defer out.Close()
	defer in.Close()
	go func() { _, _ = out.Write(make([]byte, n)) }() // the reader counts
	if got, err := io.CopyN(io.Discard, in, n); err != nil {
		p.t.Fatalf("%d of %d bytes arrived: %v", got, n, err)
	}
	raw, err := out.(*net.TCPConn).SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	if failed := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			repeated = info.Total_retrans
		}
	}); cmp.Or(failed, err) != nil {
		p.t.Fatal(failed, err)
	}
	return repeated
}
