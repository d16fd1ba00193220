package livetest

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveTags checks that VLAN priorities and MPLS traffic classes are written at their place:
// in the frame at egress and XDP, in skb metadata at tc ingress, and in the outer one of two
// tags.
func TestLiveTags(t *testing.T) {
	t.Parallel()
	for _, m := range placements {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, _ := p.senderAndReceiver(m)
			source := byte(1)
			if m.direction == "ingress" {
				source = 2
			}
			r := p.runShaper(m.flags("--policy", writePolicy(t, `
classes:
  - name: mpls
    match: {ethertype: mpls}
    green: {mpls: 4}
  - name: seven
    match: {vlan: 7}
    green: {pcp: 3, dei: 1, dscp: af11}
  - name: rest
    green: {pcp: 6}
length: l2
`))...)
			var sniffer *nettest.Sniffer
			switch {
			case m.direction == "egress":
				sniffer = p.far.Sniff("v0")
			case m.hook == "xdp":
				sniffer = p.near.Sniff("v0")
			default:
				sniffer = p.sniffAfterTC()
			}
			sent := [][]byte{
				taggedFrame(source, 0x8100_a007), // PCP 5, VLAN 7
				taggedFrame(source, 0x8100_1008), // DEI, VLAN 8
				taggedFrame(source, 0x88a8_0007, 0x8100_e009),
				taggedFrame(source, 0x88a8_2008, 0x8100_e007),
				taggedFrame(source),
				mplsFrame(source, 100<<12|7<<9|64, 200<<12|1<<9|1<<8|64),
			}
			from.Inject("v0", sent...)
			if !sniffer.Wait(len(sent), waitLimit) {
				t.Fatalf("%d of %d frames arrived", len(sniffer.Stop()), len(sent))
			}
			want := [][]byte{
				taggedFrame(source, 0x8100_7007),
				taggedFrame(source, 0x8100_d008),
				taggedFrame(source, 0x88a8_7007, 0x8100_e009),
				taggedFrame(source, 0x88a8_c008, 0x8100_e007),
				taggedFrame(source),
				mplsFrame(source, 100<<12|4<<9|64, 200<<12|1<<9|1<<8|64),
			}
			for _, i := range []int{0, 2} { // these frames also have a DSCP
				at := bytes.Index(want[i], []byte{0x45, 0, 0, 48})
				ip := want[i][at : at+20]
				ip[1], ip[10], ip[11] = af11, 0, 0
				binary.BigEndian.PutUint16(ip[10:], ^foldSum(0, ip))
			}
			total := int64(0)
			for i, f := range sniffer.Stop() {
				total += int64(len(sent[i]))
				if !bytes.Equal(f.Data, want[i]) {
					t.Errorf("frame %d is\n%x: want\n%x", i, f.Data, want[i])
				}
			}
			s := p.stats()
			if got := s.sumOfClasses(); got != (packetCount{6, total}) ||
				s.classNamed(t, "seven").Packets != 2 || s.classNamed(t, "seven").Marked.Packets != 2 ||
				s.classNamed(t, "rest").Marked.Packets != 2 || s.classNamed(t, "mpls").Marked.Packets != 1 {
				t.Errorf("counted %+v, sum %+v: want %d bytes", s.Classes, got, total)
			}
			r.stopBySIGTERM()
		})
	}
}

// TestLiveMark checks that skb marks are matched and set: at egress for later programs, at
// ingress for sockets.
func TestLiveMark(t *testing.T) {
	t.Parallel()
	policy := `
classes:
  - name: five
    match: {mark: 5}
    green: {mark: 7}
  - name: rest
    green: {mark: 9}
`
	for _, m := range placements {
		if m.hook == "xdp" {
			continue
		}
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.skipIfUnsupported(t)
			p := newPair(t)
			from, to := p.senderAndReceiver(m)
			_, at := p.addresses(m, false)
			r := p.runShaper(m.flags("--policy", writePolicy(t, policy))...)
			behind := newForeign(t, ebpf.SchedCLS, -1, 0)
			behind.attachFilter(p.near, m.direction)
			in := listenUDP(t, to, at)
			want := map[int]uint64{0: 9, 5: 9} // a veth pair between namespaces removes marks
			if m.direction == "egress" {
				want[5] = 7
			}
			for mark, want := range want {
				sendUDP(t, newSender(t, from, at, 0, mark), 1, 100)
				got := in.receiveAll()
				if len(got) != 1 || behind.lastMark() != want || m.direction == "ingress" &&
					got[0].mark != int(want) {
					t.Errorf("mark %d: %+v arrived, a later program saw mark %d: want %d", mark, got,
						behind.lastMark(), want)
				}
			}
			r.stopBySIGTERM()
		})
	}
}

// TestLiveGenericXDP checks that a device whose driver does not support XDP is shaped by
// generic XDP, and that shaper reports this.
func TestLiveGenericXDP(t *testing.T) {
	p := newPair(t)
	r := p.startShaper("run", "lo", "--direction", "ingress", "--hook", "xdp", "--meter",
		"token-bucket count=packets rate=1p/1000s burst=3")
	r.awaitAttached()
	r.out.awaitMatch(t,
		`lo ingress: attached by xdp generic, .*\n.*the kernel's generic XDP is slower than tc\n`)
	p.near.Do(func() {
		conn, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 5 {
			_, _ = conn.Write([]byte("x")) // packets that pass cause an ICMP error
		}
	})
	s := p.stats("lo")
	if c := s.classNamed(t, "all"); c.Green.Packets != 3 || c.Dropped.Packets < 2 {
		t.Errorf("counted %+v: want 3 green packets, the others dropped", c)
	}
	r.stopBySIGTERM()
}
