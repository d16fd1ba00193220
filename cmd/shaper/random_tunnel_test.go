package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
)

// tunnelCapture writes a capture of datagrams, most of them in tunnels.
func tunnelCapture(t *testing.T, r *rand.Rand) string {
	t.Helper()
	return burstCapture(t, r, func(size int) (frame []byte, wire int) {
		pick := func(list ...byte) byte { return list[r.IntN(len(list))] }
		ipv4 := func(b []byte, n byte) []byte {
			b = append(b, 0x45, 0, 0, 200, 0, 0, 0x40, 0, 64, 17, 0, 0)
			return append(b, 192, 0, 2, n, 203, 0, 113, byte(r.IntN(4)))
		}
		inner := ipv4(nil, byte(r.IntN(4)))
		ethertype := uint16(0x800)
		if r.IntN(3) == 0 {
			inner = append(append([]byte{0x60, 0, 0, 0, 0, 0, 17, 9}, make([]byte, 32)...), 0)
			inner[8], inner[23], inner[24], inner[39] = 0x20, byte(r.IntN(4)), 0x20, byte(r.IntN(4))
			ethertype = 0x86dd
		}
		ethernet := make([]byte, 12)
		for range r.IntN(4) * r.IntN(2) {
			ethernet = append(ethernet, pick(0x81, 0x81, 0x88), 0, 0, 7)
			if ethernet[len(ethernet)-4] == 0x88 {
				ethernet[len(ethernet)-3] = 0xa8
			}
		}
		ethernet = append(binary.BigEndian.AppendUint16(ethernet, ethertype), inner...)
		id := []byte{0, 0, byte(r.IntN(4)), byte(r.IntN(4))}
		port := []uint16{4789, 8472, 6081, 2152, 2152, 53}[r.IntN(6)]
		var tunnel []byte
		switch port {
		case 6081:
			options := r.IntN(3)
			tunnel = append([]byte{byte(options) | pick(0, 0, 0, 0x80), 0, 0x65, 0x58}, id...)
			tunnel = append(tunnel, make([]byte, 4*options)...)
			if r.IntN(2) == 0 {
				binary.BigEndian.PutUint16(tunnel[2:], ethertype)
				tunnel = append(tunnel, inner...)
			} else {
				tunnel = append(tunnel, ethernet...)
			}
		case 2152:
			flags, message := pick(0x30, 0x30, 0x32, 0x34, 0x36, 0x20), pick(255, 255, 255, 1)
			tunnel = append([]byte{flags, message, 0, 0}, id...)
			if tunnel[0]&7 != 0 {
				tunnel = append(tunnel, 0, 0, 0, pick(0, 0x85))
				if tunnel[0]&4 != 0 && tunnel[11] != 0 {
					tunnel = append(tunnel, pick(1, 1, 1, 0), 9, 9, 0)
				}
			}
			tunnel = append(tunnel, inner...)
		default:
			tunnel = append(append([]byte{pick(8, 8, 8, 0), 0, 0, 0}, id...), ethernet...)
		}
		frame = ipv4(append(make([]byte, 12), 8, 0), 9)
		binary.BigEndian.PutUint16(frame[16:], uint16(size))
		frame = binary.BigEndian.AppendUint16(append(frame, 0, 1), port)
		frame = append(append(frame, 0, 0, 0, 0), tunnel...)
		if len(frame) > 14+size || r.IntN(10) == 0 {
			frame = frame[:14+r.IntN(min(size, len(frame)-14)+1)]
		}
		return frame, 14 + size
	})
}

// TestTunnelsAgainstModel compares matches, keys and customers of tunnels with the reference model, in both
// directions.
func TestTunnelsAgainstModel(t *testing.T) {
	t.Parallel()
	r, path := seededRand(t), filepath.Join(t.TempDir(), "policy.yaml")
	rows := 0
	for range *randomPolicyCount {
		key := pickWord(r, "vni", "teid", "inner-address")
		policy := fmt.Sprintf(`
classes:
  - {name: a, match: {%s: %s}, meter: {type: token-bucket, rate: 200kbit, burst: 2kB}}
  - {name: d, per: customer, meter: plan}
  - {name: s, meter: {type: srtcm, cir: 100kbit, cbs: 3kB, ebs: 1kB, per: %s, keys: %d}}
customers: {file: customers.csv, key: %s}
plans:
  p: {type: token-bucket, rate: 100kbit, burst: 4kB}
`, pickWord(r, "vni", "teid"), pickWord(r, "1", "[0, 3]", "0x100-0x1ff", "2-1000"),
			pickWord(r, "vni", "teid", "address"), 1+r.IntN(20), key)
		customers := "customer," + key + ",plan\nx,1 2,p\ny,0x3 256;513,p\n"
		if key == "inner-address" {
			customers = "customer,address,plan\nx,192.0.2.1 203.0.113.0/31,p\ny,192.0.2.2-3 2000::/15 203.0.113.3,p\n"
		}
		rows += bothAgainstModel(t, path, policy, customers, func() string { return tunnelCapture(t, r) })
	}
	if rows < 100**randomPolicyCount {
		t.Errorf("only %d rows were compared", rows)
	}
}
