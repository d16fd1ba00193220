package tcpmodel

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/queue"
)

// Control is a congestion control algorithm.
type Control uint8

const (
	CUBIC Control = iota // RFC 9438; the default of Linux, Windows and Apple's systems
	Reno                 // RFC 5681
)

func (c Control) String() string {
	if c == Reno {
		return "reno"
	}
	return "cubic"
}

// ParseControl returns the algorithm with a name, in any case.
func ParseControl(name string) (Control, error) {
	switch strings.ToLower(name) {
	case "cubic":
		return CUBIC, nil
	case "reno", "newreno":
		return Reno, nil
	case "bbr", "bbr2", "bbr3":
		return 0,
			fmt.Errorf("congestion control %q is not supported: it ignores most losses, so its throughput depends on its version; use cubic or reno",
				name)
	}
	return 0, fmt.Errorf("unknown congestion control %q: want cubic or reno", name)
}

// Defaults of a Path.
const (
	DefaultMSS      = 1448 // MTU 1500, less 40 bytes of headers and 12 of timestamps
	DefaultHeader   = 52   // IPv4, TCP, timestamps (RFC 7323)
	DefaultDuration = 20 * time.Second
	DefaultSettle   = 5 * time.Second
	DefaultWindow   = 32 << 20 // bytes; more than the receive buffers of most systems
)

// Path is a number of TCP flows and the path of their packets. Zero fields other than RTT have
// defaults.
type Path struct {
	RTT     time.Duration // round-trip time without queueing, 10 µs to 10 s
	MSS     int           // payload of a packet, bytes
	Header  int           // metered bytes of a packet in addition to the payload
	Line    meter.Rate    // rate of the line before the bottleneck, in metered bytes; zero: unlimited
	Flows   int           // flows, which start within one RTT; default 1, at most MaxFlows
	Control Control
	// Paced spreads the packets of a window over the round-trip time, as Linux does with the qdisc
	// fq, SO_MAX_PACING_RATE, or if a connection began with BBR. Otherwise they depart in bursts.
	Paced  bool
	Window int64 // largest window of a flow (the receive buffer), bytes

	// The result is an average over Duration. It begins after Settle, which excludes the start of
	// the flows; a negative Settle includes it.
	Settle, Duration time.Duration
}

// MaxFlows is the maximum number of flows of a Path.
const MaxFlows = 1000

// maxPackets limits the packets sent in one run, and so its time, to about 10 s.
const maxPackets = 1 << 25

// ErrTooFast is the error for a path with too many packets to simulate.
var ErrTooFast = errors.New("too many packets to simulate: use a shorter duration or a lower rate")

// withDefaults returns the path with all fields set, or an error.
func (p Path) withDefaults() (Path, error) {
	p.MSS = orDefault(p.MSS, DefaultMSS)
	p.Header = orDefault(p.Header, DefaultHeader)
	p.Flows = orDefault(p.Flows, 1)
	p.Window = orDefault(p.Window, DefaultWindow)
	p.Settle = max(0, orDefault(p.Settle, DefaultSettle))
	p.Duration = orDefault(p.Duration, DefaultDuration)
	switch {
	case p.RTT < 10*time.Microsecond || p.RTT > 10*time.Second:
		return p, fmt.Errorf("rtt %v: want 10µs to 10s", p.RTT)
	case p.MSS < 1 || p.MSS > 1<<16 || p.Header < 0 || p.Header > 1<<10:
		return p, fmt.Errorf("mss %d and %d bytes of headers: want 1 to 65536 and at most 1024", p.MSS,
			p.Header)
	case p.Flows < 1 || p.Flows > MaxFlows:
		return p, fmt.Errorf("%d flows: want 1 to %d", p.Flows, MaxFlows)
	case p.Control > Reno:
		return p, fmt.Errorf("unknown congestion control %d", p.Control)
	case p.Window < int64(p.MSS) || p.Window > 1<<40:
		return p, fmt.Errorf("window %d: want one segment to 1 TiB", p.Window)
	case p.Duration < 0 || p.Duration > time.Hour || p.Settle > time.Hour:
		return p, fmt.Errorf("duration %v after %v: want at most 1h each", p.Duration, p.Settle)
	}
	return p, nil
}

func orDefault[T int | int64 | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// packet returns the metered length of a packet, in bytes.
func (p Path) packet() int { return p.MSS + p.Header }

// Bottleneck makes the policer or queue of a run. See Policer and Queue.
type Bottleneck func() (gate, error)

// gate decides about packets arriving at now, in ns. It returns the time of departure, or false for
// a drop. Arrivals and departures are in order.
type gate func(now int64, bytes int) (depart int64, ok bool)

// Policer drops the packets colored red by a meter. Green and yellow ones pass.
func Policer(p *meter.Profile) Bottleneck {
	return func() (gate, error) {
		m := meter.New(p)
		return func(now int64, bytes int) (int64, bool) {
			return now, m.Color(now, bytes, meter.Green) != meter.Red
		}, nil
	}
}

// Queue is a queue with a rate of its own. Packets are green and not ECN-capable.
func Queue(c queue.Config) Bottleneck {
	return func() (gate, error) {
		q, err := queue.New(c)
		if err != nil {
			return nil, err
		}
		return func(now int64, bytes int) (int64, bool) {
			depart, fate := q.Admit(now, queue.Packet{Bytes: bytes})
			return depart, !fate.Dropped()
		}, nil
	}
}

// Result is the outcome of a run, measured over Path.Duration after Path.Settle.
type Result struct {
	Goodput     int64   // payload arrived, of all flows, without duplicates, bit/s
	Passed      int64   // metered bytes passed by the bottleneck, as bit/s
	Packets     int64   // packets arrived at the bottleneck
	Dropped     int64   // packets dropped by it
	Retransmits int64   // packets sent again
	Timeouts    int64   // retransmission timeouts
	Flows       []int64 // goodput of each flow, bit/s
}

// Loss returns the dropped part of the packets, 0 to 1.
func (r Result) Loss() float64 { return float64(r.Dropped) / float64(max(1, r.Packets)) }

// Run simulates the flows of a path.
func Run(p Path, b Bottleneck) (Result, error) {
	p, err := p.withDefaults()
	if err != nil {
		return Result{}, err
	}
	admit, err := b()
	if err != nil {
		return Result{}, err
	}
	n, err := newNetwork(p, admit)
	if err != nil {
		return Result{}, err
	}
	if err := n.run(int64(p.Settle)); err != nil {
		return Result{}, err
	}
	before := n.totals()
	if err := n.run(int64(p.Settle + p.Duration)); err != nil {
		return Result{}, err
	}
	return n.totals().since(before, p), nil
}
