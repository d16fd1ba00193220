//go:build linux && amd64

package chaos

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"github.com/a-seed-32e5a53f/shaper/dataplane/nettest"
)

// UDP ports of probes.
const (
	portA      = 7777 // dropped by policy a
	portB      = 7778 // dropped by policy b
	portQueued = 7779 // queued by policies with a queue
	portOther  = 7780 // passed by all
)

var ports = []int{portA, portB, portQueued, portOther}

// Results of a probe.
const (
	nothing = "nothing" // every packet passes
	policyA = "a"
	policyB = "b"
)

// grace returns how much later a packet can arrive than one that was sent after it.
func grace() time.Duration { return nettest.Slower(40 * time.Millisecond) }

// prober sends packets through the veth pair in both directions.
type prober struct {
	side      [2]side                 // near, far
	customers map[string]*net.UDPConn // listeners at portOther
	round     uint64
}

// side is one end of the veth pair.
type side struct {
	address   net.IP
	sender    *net.UDPConn
	listeners map[int]*net.UDPConn
}

// newProber opens the sockets of both ends.
func newProber(w *world) *prober {
	w.t.Helper()
	p := &prober{customers: map[string]*net.UDPConn{}}
	for i, n := range []*nettest.Namespace{w.near, w.far} {
		s := side{address: net.IP{10, 0, 0, byte(i + 1)}, listeners: map[int]*net.UDPConn{}}
		open := func(address net.IP, port int) (conn *net.UDPConn) {
			var err error
			n.Do(func() { conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: address, Port: port}) })
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { conn.Close() })
			return conn
		}
		s.sender = open(s.address, 0)
		for _, port := range ports {
			s.listeners[port] = open(s.address, port)
		}
		if n == w.far {
			for name, address := range customers {
				p.customers[name] = open(address, portOther)
			}
		}
		p.side[i] = s
	}
	return p
}

// inForce returns the policy in force in a direction, as its drops show. Any result other than
// nothing, policyA and policyB describes a problem.
func (p *prober) inForce(d direction) string {
	var found string
	for range 3 { // a change may be in progress
		var drops [2]string
		for i := range drops {
			drops[i] = p.dropped(d)
		}
		if found = drops[0]; found == drops[1] {
			break
		}
		found = fmt.Sprintf("%s, then %s", drops[0], drops[1])
	}
	return found
}

// dropped sends a packet to each port and names the policy that drops the missing ones.
func (p *prober) dropped(d direction) string {
	from, to := &p.side[d], &p.side[1-d]
	p.round++
	var payload [8]byte
	binary.NativeEndian.PutUint64(payload[:], p.round)
	send := func(port int) {
		// a drop may be an error
		_, _ = from.sender.WriteToUDP(payload[:], &net.UDPAddr{IP: to.address, Port: port})
	}
	for _, port := range ports {
		send(port)
	}
	if !p.arrives(to, portOther, patience) {
		send(portOther)
		if !p.arrives(to, portOther, patience) {
			return "no packet passes"
		}
	}
	var missing []int
	limit := grace()
	for _, port := range []int{portQueued, portA, portB} {
		if !p.arrives(to, port, limit) {
			missing = append(missing, port)
			limit = 0 // the other ports had the same time
		}
	}
	switch {
	case len(missing) == 0:
		return nothing
	case len(missing) == 1 && missing[0] == portA:
		return policyA
	case len(missing) == 1 && missing[0] == portB:
		return policyB
	}
	return fmt.Sprintf("packets to ports %v do not pass", missing)
}

// arrives reports whether the packet of this round arrives within limit.
func (p *prober) arrives(to *side, port int, limit time.Duration) bool {
	conn := to.listeners[port]
	_ = conn.SetReadDeadline(time.Now().Add(limit + time.Millisecond))
	for {
		var b [8]byte
		if _, err := conn.Read(b[:]); err != nil {
			return false
		}
		if binary.NativeEndian.Uint64(b[:]) == p.round {
			return true
		}
	}
}
