package main

import (
	"os"
	"strconv"
	"testing"
)

// ratesOf replays a capture of a second, and returns the rates of packets that arrive and that depart in it,
// Mbit/s, by name.
func ratesOf(
	t *testing.T, capture, policy string, name func(packet int, key string) string,
) (arrived, departed map[string]float64) {
	t.Helper()
	const second = int64(1e9)
	rows := decisionsOf(t, capture, "--policy", policy)
	arrived, departed = map[string]float64{}, map[string]float64{}
	for i, row := range rows {
		of, mbit := name(i, row.Key), float64(row.Length)*8/1e6
		arrived[of] += mbit
		if row.DepartureNS != nil && *row.DepartureNS < rows[0].TimeNS+second {
			departed[of] += mbit
		}
	}
	return arrived, departed
}

// TestISP sends 2 Gbit/s to a neighbor of customer 4711 in docs/isp.yaml, and to the customer 40 of its
// 50 Mbit/s. It gets them: at least 39.9 Mbit/s depart during the second of virtual time.
func TestISP(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		address  byte
		neighbor string
		plan     float64 // of the neighbor, Mbit/s
	}{{12, "4712", 50}, {13, "4713", 20}} {
		t.Run(test.neighbor, func(t *testing.T) {
			t.Parallel()
			capture := writeTraffic(t, sender{test.address, 2000}, sender{11, 40})
			arrived, departed := ratesOf(t, capture, "../../docs/isp.yaml",
				func(_ int, key string) string { return key })
			got := departed["4711"]
			t.Logf("4711 gets %.2f of %.2f Mbit/s, %s %.2f of %.2f", got, arrived["4711"], test.neighbor,
				departed[test.neighbor], arrived[test.neighbor])
			if arrived["4711"] > 40.1 || got < 39.9 {
				t.Errorf("4711 gets %.2f of %.2f Mbit/s, want at least 39.9 of 40", got, arrived["4711"])
			}
			if got := departed[test.neighbor]; got < 0.99*test.plan || got > 1.001*test.plan {
				t.Errorf("%s gets %.2f Mbit/s, want its %v", test.neighbor, got, test.plan)
			}
		})
	}
}

// TestHome sends eight flows to one device of docs/home.yaml and one to another, 30 Mbit/s each but 100 for
// the last. Each device gets half of 95 Mbit/s.
func TestHome(t *testing.T) {
	t.Parallel()
	senders := []sender{{12, 100}}
	for range 8 {
		senders = append(senders, sender{11, 30})
	}
	capture := writeTraffic(t, senders...)
	data, err := os.ReadFile(capture)
	if err != nil {
		t.Fatal(err)
	}
	const header, record, address = 24, 16 + 28, 16 + 19 // of the last byte of the destination
	_, departed := ratesOf(t, capture, "../../docs/home.yaml", func(i int, _ string) string {
		return strconv.Itoa(int(data[header+i*record+address]))
	})
	t.Logf("%.2f and %.2f Mbit/s", departed["11"], departed["12"])
	for _, device := range []string{"11", "12"} {
		if got := departed[device]; got < 0.99*47.5 || got > 1.01*47.5 {
			t.Errorf("192.0.2.%s gets %.2f Mbit/s, want 47.5", device, got)
		}
	}
}
