package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/explain"
)

// whyTree is a policy with three levels: a byte takes site 1 us, ap-7 2 us and voice 4 us.
const whyTree = `
links:
  site: {rate: 8mbit}
  ap-7: {link: site, rate: 4mbit}
  ap-8: {link: site}
queues:
  voice: {link: ap-7, rate: 2mbit, limit: 60000p}
  rest:  {link: ap-7, priority: 1, limit: 60000p}
  other: {link: ap-8, limit: 60000p}
classes:
  - {name: voice, match: {dport: 1}, green: {queue: voice}}
  - {name: rest, match: {dport: 2}, green: {queue: rest}}
  - {name: other, match: {dport: 3}, green: {queue: other}}
`

// whyPacket is a UDP packet of a capture.
type whyPacket struct {
	at   int64 // ns
	port uint16
	size int // of the IP packet, bytes
}

// whyCapture writes a policy and a capture, and returns their paths.
func whyCapture(t *testing.T, policy string, packets ...whyPacket) (policyPath, capture string) {
	t.Helper()
	little, big := binary.LittleEndian, binary.BigEndian
	raw := little.AppendUint32(nil, 0xa1b23c4d) // timestamps in ns
	raw = append(raw, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0)
	for _, p := range packets {
		frame := append(make([]byte, 12), 8, 0, 0x45, 0)
		frame = big.AppendUint16(frame, uint16(p.size))
		frame = append(frame, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 203, 0, 113, 1, 0, 9)
		frame = append(big.AppendUint16(frame, p.port), 0, 0, 0, 0)
		at := int64(1e18) + p.at
		raw = little.AppendUint32(little.AppendUint32(raw, uint32(at/1e9)), uint32(at%1e9))
		raw = little.AppendUint32(little.AppendUint32(raw, uint32(len(frame))), uint32(14+p.size))
		raw = append(raw, frame...)
	}
	dir := t.TempDir()
	policyPath, capture = filepath.Join(dir, "p.yaml"), filepath.Join(dir, "c.pcap")
	err := errors.Join(os.WriteFile(policyPath, []byte(policy), 0o600), os.WriteFile(capture, raw, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return policyPath, capture
}

// TestWhyHeld checks which rate why names for the last packet, in a tree of three levels. The times follow
// from the rates and lengths alone.
func TestWhyHeld(t *testing.T) {
	t.Parallel()
	voice, rest, other := whyPacket{0, 1, 1000}, whyPacket{0, 2, 1000}, whyPacket{0, 3, 1000}
	later := rest
	later.at = 1_500_000
	for name, c := range map[string]struct {
		packets          []whyPacket
		by               string
		own, ap7, site   int64 // ns for which the rates were not free; -1 for none on the way
		ap8              int64
		sent7, sentBySum int64 // other packets sent meanwhile by ap-7, and by site
	}{
		"own rate":     {[]whyPacket{voice, voice}, "queue voice", 4e6, 2e6, 1e6, -1, 0, 0},
		"access point": {[]whyPacket{rest, rest}, "link site/ap-7", -1, 2e6, 1e6, -1, 0, 0},
		"served first": {[]whyPacket{rest, rest, voice}, "link site/ap-7", 0, 2e6, 1e6, -1, 0, 0},
		// The second packet of rest is sent at 4 ms, after that of voice.
		"priority": {[]whyPacket{rest, voice, rest}, "link site/ap-7", -1, 4e6, 2e6, -1, 1, 1},
		"site":     {[]whyPacket{rest, other}, "link site", -1, -1, 1e6, 0, 0, 0},
		"not held": {[]whyPacket{voice}, "", 0, 0, 0, -1, 0, 0},
		"in part":  {[]whyPacket{rest, later}, "link site/ap-7", -1, 5e5, 0, -1, 0, 0},
	} {
		policy, capture := whyCapture(t, whyTree, c.packets...)
		got := whyJSON(t, capture, len(c.packets), "--policy", policy)
		q := got.Queue
		if q.HeldBy != c.by {
			t.Errorf("%s: held by %q, want %q: %+v", name, q.HeldBy, c.by, q)
		}
		if own := q.OwnHeldNS; (own != nil) != (c.own >= 0) || own != nil && *own != c.own {
			t.Errorf("%s: own rate: got %v, want %d", name, own, c.own)
		}
		want := map[string][2]int64{"site": {c.site, c.sentBySum}}
		if c.ap7 >= 0 {
			want["site/ap-7"] = [2]int64{c.ap7, c.sent7}
		}
		if c.ap8 >= 0 {
			want["site/ap-8"] = [2]int64{c.ap8, 0}
		}
		for _, l := range q.Links {
			w, ok := want[l.Path]
			if !ok || l.HeldNS != w[0] || l.SentPackets != w[1] || l.SentBytes != 1000*w[1] {
				t.Errorf("%s: link %+v, want %d ns and %d packets", name, l, w[0], w[1])
			}
			delete(want, l.Path)
		}
		if len(want) > 0 {
			t.Errorf("%s: missing links: %v", name, want)
		}
	}
}

// rated is the rate of a node, as the rules in docs/EXACT.md define it.
type rated struct {
	perByte *big.Rat // ns; nil for none
	above   int64    // number of links above
	next    *big.Rat
	queued  int
	busy    [][2]int64 // times at which it is not free, ns
}

func (n *rated) up(at int64) {
	if n.next.Cmp(new(big.Rat).SetInt64(at)) < 0 {
		n.next.SetInt64(at)
	}
}

// send charges a packet.
func (n *rated) send(at, bytes, longest int64) {
	if n.perByte == nil {
		return
	}
	if n.above == 0 {
		if roundedUp(n.next) < at {
			n.next.SetInt64(at)
		}
	} else {
		missed := new(big.Rat).Mul(n.perByte, new(big.Rat).SetInt64(n.above*longest))
		n.up(at - new(big.Int).Quo(missed.Num(), missed.Denom()).Int64())
	}
	n.next.Add(n.next, new(big.Rat).Mul(n.perByte, new(big.Rat).SetInt64(bytes)))
	if end := roundedUp(n.next); end > at {
		n.busy = append(n.busy, [2]int64{at, end})
	}
}

// during returns how long the rate is not free between two times.
func (n *rated) during(from, to int64) (sum int64) {
	for _, b := range n.busy {
		sum += max(0, min(b[1], to)-max(b[0], from))
	}
	return sum
}

func roundedUp(r *big.Rat) int64 {
	n := new(big.Int).Add(r.Num(), r.Denom())
	return n.Sub(n, big.NewInt(1)).Quo(n, r.Denom()).Int64()
}

// TestWhyHeldRandom compares the times of why with those that follow from the rules for rates and the
// departures of all packets.
func TestWhyHeldRandom(t *testing.T) {
	t.Parallel()
	r := seededRand(t)
	var packets []whyPacket
	for at := int64(0); len(packets) < 150; at += r.Int64N(3) * r.Int64N(3_000_000) {
		phase := [][]uint16{{1, 1, 1, 2, 3}, {1, 2, 2, 2, 3}, {1, 2, 3, 3, 3}}[len(packets)/50]
		port := phase[r.IntN(5)]
		packets = append(packets, whyPacket{at, port, 28 + r.IntN(1473)})
	}
	policy, capture := whyCapture(t, whyTree, packets...)
	rows := decisionsOf(t, capture, "--policy", policy)
	nodes := map[string]*rated{}
	for name, level := range map[string]int64{"site": 0, "site/ap-7": 1, "site/ap-8": 1, "voice": 2} {
		nodes[name] = &rated{above: level, next: new(big.Rat)}
	}
	nodes["site"].perByte, nodes["site/ap-7"].perByte = big.NewRat(1000, 1), big.NewRat(2000, 1)
	nodes["voice"].perByte = big.NewRat(4000, 1)
	paths := map[string][]string{
		"voice": {"voice", "site/ap-7", "site"}, "rest": {"site/ap-7", "site"},
		"other": {"site/ap-8", "site"},
	}
	type event struct {
		at, packet int64
		sent       bool
	}
	var events []event
	for _, row := range rows {
		events = append(events,
			event{row.TimeNS, row.Packet, false}, event{*row.DepartureNS, row.Packet, true})
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.packet, b.packet))
	})
	longest := int64(0)
	for _, e := range events {
		row := &rows[e.packet-1]
		longest = max(longest, int64(packets[e.packet-1].size))
		idle := true
		for _, name := range paths[row.Class] {
			n := nodes[name]
			if e.sent {
				n.queued--
				n.send(e.at, int64(row.Length), longest)
				continue
			}
			if idle = idle && n.queued == 0; idle && n.above > 0 {
				n.up(e.at)
			}
			n.queued++
		}
	}
	held := map[string]int{}
	for _, row := range rows {
		q := whyJSON(t, capture, int(row.Packet), "--policy", policy).Queue
		checkHeld(t, &row, q, paths[row.Class], nodes)
		held[q.HeldBy]++
	}
	for _, by := range []string{"", "queue voice", "link site/ap-7", "link site"} {
		if held[by] == 0 {
			t.Errorf("no packet was held by %q: %v", by, held)
		}
	}
}

// checkHeld compares the times of one packet.
func checkHeld(
	t *testing.T, row *explain.Row, q *explain.QueuedJSON, path []string, nodes map[string]*rated,
) {
	t.Helper()
	by, longest := "", int64(0)
	for _, name := range path {
		want, got := nodes[name].during(row.TimeNS, *row.DepartureNS), int64(-1)
		kind := "link"
		if name == "voice" {
			kind, got = "queue", *q.OwnHeldNS
		}
		for _, l := range q.Links {
			if l.Path == name {
				got = l.HeldNS
			}
		}
		if got != want {
			t.Errorf("packet %d: %s held it for %d ns, want %d", row.Packet, name, got, want)
		}
		if want > longest {
			by, longest = fmt.Sprintf("%s %s", kind, name), want
		}
	}
	if q.HeldBy != by {
		t.Errorf("packet %d: held by %q, want %q", row.Packet, q.HeldBy, by)
	}
}
