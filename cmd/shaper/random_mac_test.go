package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
)

// macCapture writes a capture of frames with few MAC addresses, a third of them tagged.
func macCapture(t *testing.T, r *rand.Rand) string {
	t.Helper()
	return burstCapture(t, r, func(size int) (frame []byte, wire int) {
		frame = []byte{2, 0, 0, 0, 0, byte(r.IntN(4)), 2, 0, 0, 0, 0, byte(r.IntN(4))}
		for range r.IntN(3) * r.IntN(2) {
			frame = append(frame, 0x81, 0, 0, byte(r.IntN(3)))
		}
		head := len(frame) + 2
		frame = append(frame, 8, 0, 0x45, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(size))
		frame = append(frame, 0, 0, 0x40, 0, 64, 17, 0, 0)
		frame = append(frame, 192, 0, 2, byte(r.IntN(4)), 203, 0, 113, byte(r.IntN(4)))
		return append(frame, 0, 1, 0, 53, 0, 0, 0, 0), head + size
	})
}

// bothAgainstModel compares a policy at path and its file of customers with the reference model, in each
// direction with another capture. It returns the number of rows.
func bothAgainstModel(t *testing.T, path, policy, customers string, capture func() string) (rows int) {
	t.Helper()
	file := filepath.Join(filepath.Dir(path), "customers.csv")
	for name, text := range map[string]string{path: policy, file: customers} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, direction := range []dataplane.Direction{dataplane.Egress, dataplane.Ingress} {
		rows += againstModel(t, policy, path, capture(), direction)
		if t.Failed() {
			t.Fatal(policy, customers)
		}
	}
	return rows
}

// TestMACsAgainstModel compares matches, keys and customers of the inner side with the reference model, in
// both directions.
func TestMACsAgainstModel(t *testing.T) {
	t.Parallel()
	r, path := seededRand(t), filepath.Join(t.TempDir(), "policy.yaml")
	rows := 0
	for range *randomPolicyCount {
		key := pickWord(r, "mac", "[vlan, mac]")
		policy := fmt.Sprintf(`
classes:
  - {name: a, match: {%s: "02:00:00:00:00:0%d"}, meter: {type: token-bucket, rate: 200kbit, burst: 2kB}}
  - {name: c, per: customer, meter: plan, match: {inner-vlan: %s}}
  - {name: d, per: customer, meter: plan}
  - {name: s, meter: {type: srtcm, cir: 100kbit, cbs: 3kB, ebs: 1kB, per: %s, keys: %d}}
customers: {file: customers.csv, key: %s}
plans:
  p: {type: token-bucket, rate: 100kbit, burst: 4kB}
`, pickWord(r, "mac", "src-mac", "dst-mac"), r.IntN(4), pickWord(r, "1", "0-4095", "[0, 2]"),
			pickWord(r, "mac", `[vlan, mac]`, "address", "address/31", "src"), 1+r.IntN(20), key)
		customers := "customer,vlan,mac,plan\n"
		if key == "mac" {
			customers += "x,,02:00:00:00:00:01,p\ny,,02:00:00:00:00:02 02:00:00:00:00:00,p\n"
		} else {
			customers += "x,0,02:00:00:00:00:01,p\ny,1,02:00:00:00:00:02 02:00:00:00:00:01,p\n"
		}
		rows += bothAgainstModel(t, path, policy, customers, func() string { return macCapture(t, r) })
		againstModel(t, policy, path, "../../testdata/pcaps/"+"cooked.pcapng", dataplane.Egress)
	}
	if rows < 100**randomPolicyCount {
		t.Errorf("only %d rows were compared", rows)
	}
}
