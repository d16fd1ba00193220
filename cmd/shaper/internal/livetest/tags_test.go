package livetest

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// TestLiveTags holds that VLAN priorities and MPLS traffic classes are written
// where they are: inside the frame at egress and XDP, beside it at tc ingress,
// and in the outer tag of two.
func TestLiveTags(t *testing.T) {
	t.Parallel()
	for _, m := range methods {
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, _ := p.sides(m)
			source := byte(1)
			if m.direction == "ingress" {
				source = 2
			}
			r := p.run(m.args("--policy", file(t, `
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
				sniffer = p.relay()
			}
			sent := [][]byte{
				tagged(source, 0x8100_a007), // PCP 5, VLAN 7
				tagged(source, 0x8100_1008), // DEI, VLAN 8
				tagged(source, 0x88a8_0007, 0x8100_e009),
				tagged(source, 0x88a8_2008, 0x8100_e007),
				tagged(source),
				labeled(source, 100<<12|7<<9|64, 200<<12|1<<9|1<<8|64),
			}
			from.Inject("v0", sent...)
			if !sniffer.Wait(len(sent), patience) {
				t.Fatalf("%d of %d frames arrived", len(sniffer.Stop()), len(sent))
			}
			want := [][]byte{
				tagged(source, 0x8100_7007),
				tagged(source, 0x8100_d008),
				tagged(source, 0x88a8_7007, 0x8100_e009),
				tagged(source, 0x88a8_c008, 0x8100_e007),
				tagged(source),
				labeled(source, 100<<12|4<<9|64, 200<<12|1<<9|1<<8|64),
			}
			for _, i := range []int{0, 2} { // these have the code point, too
				at := bytes.Index(want[i], []byte{0x45, 0, 0, 48})
				ip := want[i][at : at+20]
				ip[1], ip[10], ip[11] = af11, 0, 0
				binary.BigEndian.PutUint16(ip[10:], ^fold(0, ip))
			}
			total := int64(0)
			for i, f := range sniffer.Stop() {
				total += int64(len(sent[i]))
				if !bytes.Equal(f.Data, want[i]) {
					t.Errorf("frame %d came as\n%x: want\n%x", i, f.Data, want[i])
				}
			}
			s := p.stats()
			if got := s.sum(); got != (count{6, total}) || s.class(t, "seven").Packets != 2 || s.class(t, "seven").Marked.Packets != 2 ||
				s.class(t, "rest").Marked.Packets != 2 || s.class(t, "mpls").Marked.Packets != 1 {
				t.Errorf("counted %+v, in all %+v: want %d bytes", s.Classes, got, total)
			}
			r.term()
		})
	}
}

// TestLiveMark holds that skb marks match and are set: at egress for programs
// behind, at ingress for sockets.
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
	for _, m := range methods {
		if m.hook == "xdp" {
			continue
		}
		t.Run(m.hook+"-"+m.direction, func(t *testing.T) {
			m.need(t)
			p := newPair(t)
			from, to := p.sides(m)
			_, at := p.addresses(m, false)
			r := p.run(m.args("--policy", file(t, policy))...)
			behind := newForeign(t, ebpf.SchedCLS, -1, 0)
			behind.filter(p.near, m.direction)
			in := listen(t, to, at)
			want := map[int]uint64{0: 9, 5: 9} // a veth pair between namespaces takes marks away
			if m.direction == "egress" {
				want[5] = 7
			}
			for mark, want := range want {
				send(t, sender(t, from, at, 0, mark), 1, 100)
				got := in.take()
				if len(got) != 1 || behind.mark() != want || m.direction == "ingress" && got[0].mark != int(want) {
					t.Errorf("mark %d: %+v arrived, behind is %d: want %d", mark, got, behind.mark(), want)
				}
			}
			r.term()
		})
	}
}

// TestLiveGenericXDP holds that a device whose driver has no XDP is shaped all
// the same, and that this is said.
func TestLiveGenericXDP(t *testing.T) {
	p := newPair(t)
	r := p.start("run", "lo", "--direction", "ingress", "--hook", "xdp", "--meter", "token-bucket count=packets rate=1p/1000s burst=3")
	r.attached()
	r.out.await(t, `lo ingress: attached by xdp generic, .*\n.*the kernel's generic XDP is slower than tc\n`)
	p.near.Do(func() {
		conn, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 5 {
			_, _ = conn.Write([]byte("x")) // what passes is answered by an ICMP error
		}
	})
	s := p.stats("lo")
	if c := s.class(t, "all"); c.Green.Packets != 3 || c.Dropped.Packets < 2 {
		t.Errorf("%+v: want 3 green packets, the others dropped", c)
	}
	r.term()
}
