package advise

import (
	"math"
	"net"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// tape feeds packets of one TCP connection to Connections, at the place of the capture.
type tape struct {
	t *testing.T
	c *Connections
}

// options of a segment.
type options struct {
	syn, ack    bool
	mss         uint16
	val, ecr    uint32 // timestamps; none if both are 0
	sack        bool
	toClient    bool
	excluded    bool
	payload     int
	seq, acking uint32
}

func (p *tape) send(at time.Duration, o options) {
	p.t.Helper()
	client, server := net.IP{192, 0, 2, 1}, net.IP{198, 51, 100, 1}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: client, DstIP: server}
	seg := &layers.TCP{SrcPort: 40000, DstPort: 443, Seq: o.seq, Ack: o.acking, SYN: o.syn, ACK: o.ack}
	if o.toClient {
		ip.SrcIP, ip.DstIP, seg.SrcPort, seg.DstPort = server, client, 443, 40000
	}
	if o.mss > 0 {
		seg.Options = append(seg.Options, layers.TCPOption{
			OptionType: layers.TCPOptionKindMSS, OptionData: []byte{byte(o.mss >> 8), byte(o.mss)},
		})
	}
	if o.val|o.ecr != 0 {
		d := []byte{
			byte(o.val >> 24), byte(o.val >> 16), byte(o.val >> 8), byte(o.val), byte(o.ecr >> 24),
			byte(o.ecr >> 16), byte(o.ecr >> 8), byte(o.ecr),
		}
		seg.Options = append(seg.Options,
			layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionData: d})
	}
	if o.sack {
		seg.Options = append(seg.Options,
			layers.TCPOption{OptionType: layers.TCPOptionKindSACK, OptionData: make([]byte, 8)})
	}
	if err := seg.SetNetworkLayerForChecksum(ip); err != nil {
		p.t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, ip, seg,
		gopacket.Payload(make([]byte, o.payload))); err != nil {
		p.t.Fatal(err)
	}
	packet := dataplane.Packet{
		Data: buf.Bytes(), WireLen: len(buf.Bytes()), Link: dataplane.LinkRaw, Time: int64(at),
	}
	dataplane.Parse(&packet)
	p.c.Watch(&packet)
	if !o.excluded {
		p.c.Choose(&packet, dataplane.Count{Packets: 1, Bytes: int64(packet.L3Len)})
	}
}

// TestRTT measures 10 ms from the client to the capture and back, and 30 ms to the server and
// back, by handshakes, timestamps and acknowledgements.
func TestRTT(t *testing.T) {
	const near, far, rtt = 10 * time.Millisecond, 30 * time.Millisecond, 40 * time.Millisecond
	const start = uint32(math.MaxUint32 - 3000) // sequence numbers wrap
	for name, run := range map[string]func(p *tape){
		"handshake, client only": func(p *tape) {
			p.send(0, options{syn: true, seq: start, mss: 1460})
			p.send(rtt, options{ack: true, seq: start + 1, acking: 1})
		},
		"timestamps, no handshake": func(p *tape) {
			p.send(0, options{ack: true, seq: start, payload: 1000, val: 7, ecr: 1})
			p.send(far, options{toClient: true, ack: true, acking: start + 1000, val: 9, ecr: 7})
			p.send(far+near, options{ack: true, seq: start + 1000, payload: 1000, val: 8, ecr: 9})
		},
		"a timestamp of an earlier packet": func(p *tape) {
			p.send(0, options{ack: true, seq: start, payload: 1000, val: 7, ecr: 1})
			p.send(20*time.Millisecond, options{ack: true, seq: start + 1000, payload: 1000, val: 7, ecr: 1})
			p.send(far, options{toClient: true, ack: true, acking: start + 1000, val: 9, ecr: 7})
			p.send(far+near, options{ack: true, seq: start + 2000, payload: 1000, val: 8, ecr: 9})
		},
		"acknowledgements of both": func(p *tape) {
			p.send(0, options{ack: true, seq: start, payload: 1000, acking: 1})
			p.send(far, options{toClient: true, ack: true, seq: 1, payload: 1000, acking: start + 1000})
			p.send(far+near, options{ack: true, seq: start + 1000, acking: 1001})
		},
		"a SYN sent twice": func(p *tape) {
			p.send(0, options{syn: true, seq: start})
			p.send(time.Second, options{syn: true, seq: start})
			p.send(time.Second+far, options{toClient: true, syn: true, ack: true, seq: 0, acking: start + 1})
			p.send(time.Second+rtt, options{ack: true, seq: start + 1, acking: 1})
		},
	} {
		p := &tape{t, newConnections()}
		run(p)
		want := rtt
		if name == "a SYN sent twice" {
			want = 0
		}
		if got := time.Duration(p.c.list[0].rtt()); got != want {
			t.Errorf("%s: got an RTT of %v, want %v", name, got, want)
		}
	}
}

// TestRetransmissions counts the packets that were sent again, before and behind the loss.
func TestRetransmissions(t *testing.T) {
	const ms = time.Millisecond
	data := func(i uint32) options { return options{ack: true, seq: i * 1000, payload: 1000} }
	for _, c := range []struct {
		name string
		run  func(p *tape)
		want int64
	}{
		{"none", func(p *tape) {
			for i := range uint32(10) {
				p.send(time.Duration(i)*ms, data(i))
			}
		}, 0},
		{"sent again at the sender, at once", func(p *tape) {
			p.send(0, data(0))
			p.send(ms, data(1))
			p.send(ms+1, data(0))
		}, 1},
		{"overtaken by the next", func(p *tape) {
			p.send(0, data(0))
			p.send(ms, data(2))
			p.send(ms+100*time.Microsecond, data(1))
		}, 0},
		{"lost before the capture, and sent again", func(p *tape) {
			p.send(0, data(0))
			p.send(ms, data(3))
			p.send(40*ms, data(1))
			p.send(41*ms, data(2))
			p.send(42*ms, data(2))
		}, 3},
		{"bare acknowledgements", func(p *tape) {
			p.send(0, data(0))
			for range 5 {
				p.send(ms, options{ack: true, seq: 1000})
			}
		}, 0},
	} {
		p := &tape{t, newConnections()}
		c.run(p)
		side := &p.c.list[0].side
		if got := side[0].retransmitted + side[1].retransmitted; got != c.want {
			t.Errorf("%s: got %d packets sent again, want %d", c.name, got, c.want)
		}
	}
}

// TestFlight sends 3 packets before an acknowledgement of 1 arrives, twice.
func TestFlight(t *testing.T) {
	p := &tape{t, newConnections()}
	p.send(0, options{toClient: true, syn: true, ack: true, acking: 0, mss: 1400})
	p.send(1, options{ack: true, seq: 0})
	for i := range uint32(3) {
		p.send(time.Duration(i+2), options{ack: true, seq: i * 1000, payload: 1000})
	}
	p.send(10, options{toClient: true, ack: true, seq: 1, acking: 1000, sack: true})
	p.send(11, options{ack: true, seq: 3000, payload: 1000})
	side := &p.c.list[0].side
	flight, selective := max(side[0].flight, side[1].flight), side[0].selective+side[1].selective
	if flight != 3000 || selective != 1 {
		t.Errorf("got %d bytes in flight and %d SACKs, want 3000 and 1", flight, selective)
	}
}

// TestThrottled checks the share of bytes from which on a capture counts as throttled.
func TestThrottled(t *testing.T) {
	for _, lost := range []int{0, 1} {
		p := &tape{t, newConnections()}
		for i := range uint32(200) {
			p.send(time.Duration(i)*time.Millisecond, options{ack: true, seq: i * 1000, payload: 1000})
		}
		for range lost {
			p.send(time.Second, options{ack: true, seq: 0, payload: 1000})
		}
		got := p.c.Throttle()
		if got.Throttled != (lost > 0) || got.Senders != 1 || got.Concurrent != 1 ||
			got.Retransmitted != int64(lost) {
			t.Errorf("with %d lost: got %+v", lost, got)
		}
	}
}

// TestExcluded excludes the acknowledgements, or the data: the RTT is known with the data only.
func TestExcluded(t *testing.T) {
	for _, excluded := range []options{{toClient: true}, {}} {
		p := &tape{t, newConnections()}
		send := func(at time.Duration, o options) {
			o.excluded = o.toClient == excluded.toClient
			p.send(at, o)
		}
		send(0, options{syn: true, seq: 0})
		send(30*time.Millisecond, options{toClient: true, syn: true, ack: true, acking: 1})
		send(40*time.Millisecond, options{ack: true, seq: 1, acking: 1})
		for n := range uint32(200) {
			send(50*time.Millisecond, options{ack: true, seq: 1 + n*1000, payload: 1000, acking: 1})
		}
		want := Throttle{}
		if excluded.toClient {
			want = Throttle{Senders: 1, RTT: int64(40 * time.Millisecond)}
		}
		if got := p.c.Throttle(); got.Senders != want.Senders || got.RTT != want.RTT {
			t.Errorf("without packets to the client: %v: got %+v, want %+v", excluded.toClient, got, want)
		}
	}
}

// TestPortsUsedAgain has two connections with the same ports, one after the other.
func TestPortsUsedAgain(t *testing.T) {
	p := &tape{t, newConnections()}
	for i, start := range []uint32{5_000_000, 1000} {
		at := time.Duration(i) * time.Minute
		p.send(at, options{syn: true, seq: start - 1})
		for n := range uint32(200) {
			p.send(at+time.Second, options{ack: true, seq: start + n*1000, payload: 1000})
		}
	}
	if got := p.c.Throttle(); got.Senders != 2 || got.Retransmitted != 0 || got.Concurrent != 1 {
		t.Errorf("got %+v, want two senders, one at a time, that send nothing again", got)
	}
}

// FuzzSegment checks that no TCP header makes the tracker panic.
func FuzzSegment(f *testing.F) {
	f.Add([]byte{
		0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 2, 2, 0, 0, 0, 1, 0, 0, 0, 2,
		0x60, 0x12, 1, 1, 0, 0, 0, 0, 2, 4, 5, 0xb4,
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := newConnections()
		for i := range int64(3) {
			p := dataplane.Packet{Data: data, WireLen: len(data), Link: dataplane.LinkRaw, Time: i * 1e7}
			dataplane.Parse(&p)
			c.Watch(&p)
			c.Choose(&p, dataplane.Count{Packets: 1, Bytes: int64(p.L3Len)})
		}
		if got := c.Throttle(); got.Rate < 0 || math.IsNaN(got.Rate) || math.IsInf(got.Rate, 0) {
			t.Errorf("got a rate of %v", got.Rate)
		}
	})
}
