package oracle

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// writePcap writes a little-endian capture with nanosecond timestamps.
func writePcap(t *testing.T, link uint32, records []packetRecord) string {
	t.Helper()
	order := binary.LittleEndian
	data := pcapHeader(order, 0xa1b23c4d)
	order.PutUint32(data[20:], link)
	for _, r := range records {
		data = order.AppendUint32(data, uint32(r.ns/1e9))
		data = order.AppendUint32(data, uint32(r.ns%1e9))
		data = order.AppendUint32(data, uint32(len(r.data)))
		data = order.AppendUint32(data, uint32(max(r.wire, len(r.data))))
		data = append(data, r.data...)
	}
	path := filepath.Join(t.TempDir(), "in.pcap")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

type packetRecord struct {
	ns   int64
	wire int
	data []byte
}

// TestRows checks whole rows that were computed by hand: IPv4 packets of 28 bytes and more, at
// 8 kbit/s, which is one byte per ms.
func TestRows(t *testing.T) {
	afx1 := hexBytes(t, macs, "0800", udp4)                                       // DSCP 10, ECN 1
	notECN := hexBytes(t, macs, "0800", strings.Replace(udp4, "4529", "4528", 1)) // DSCP 10, ECN 0
	longer := hexBytes(t, macs, "0800", strings.Replace(udp4, "001c", "001d", 1), "00")
	longerNotECN := bytes.Clone(longer)
	longerNotECN[15] = 0x28
	afx2 := hexBytes(t, macs, "0800", strings.Replace(udp4, "4529", "4531", 1)) // DSCP 12, ECN 1
	arp := hexBytes(t, macs, "0806", hexZeros(46))
	tagged := hexBytes(t, macs, "8100 6064 0806", hexZeros(28))
	broken := hexBytes(t, macs, "0800 4500")

	tests := []struct {
		name, policy string
		records      []packetRecord
		want         string // fields 3 to 11 of each row; a blank is a comma
	}{
		{
			"mark and default actions",
			`
classes:
  - name: all
    meter: {type: srtcm, cir: 8kbit, cbs: 28, ebs: 28}
    yellow: {dscp: af12}`,
			[]packetRecord{{1000, 0, afx1}, {1000, 0, afx1}, {1000, 0, afx1}, {28001000, 0, afx1}},
			`
28,all,green,green,pass,10,10,1000,rfc2697-green
28,all,green,yellow,mark,10,12,1000,rfc2697-yellow
28,all,green,red,drop,10,,,rfc2697-red
28,all,green,green,pass,10,10,28001000,rfc2697-green`,
		},
		{
			"what no class takes",
			`
classes:
  - name: tcp
    match: {proto: tcp}`,
			[]packetRecord{{1, 0, afx1}, {2, 0, arp}, {3, 100, broken}},
			`
28,-,,,pass,10,10,1,no-meter
46,-,,,pass,,,2,not-ip
86,-,,,pass,,,3,malformed`,
		},
		{
			"beside IP",
			`
classes:
  - {name: rest, green: {dscp: 3}}
  - {name: tag, match: {vlan: 100}, green: {dscp: 3, pcp: 1}}
  - {name: arp, match: {ethertype: arp}, green: {dscp: 3}}
  - {name: long, match: {length: 80-99}, green: drop}`,
			[]packetRecord{{1, 0, afx1}, {2, 0, arp}, {3, 0, tagged}, {4, 100, broken}, {5, 60, broken}},
			`
28,rest,green,green,mark,10,3,1,no-meter
46,arp,green,green,pass,,,2,no-meter
28,tag,green,green,mark,,,3,no-meter
86,long,green,green,drop,,,,no-meter
46,-,,,pass,,,5,malformed`,
		},
		{
			"chain",
			`
classes:
  - name: all
    meter: {type: token-bucket, rate: 8kbit, burst: 84, color: aware}
    then: second
    red: {dscp: cs1}
meters:
  second: {type: trtcm, cir: 8kbit, cbs: 100, pir: 8kbit, pbs: 56, color: aware, then: third}
  third: {type: srtcm, cir: 8kbit, cbs: 0, ebs: 28, color: aware}`,
			[]packetRecord{{1, 0, afx2}, {1, 0, afx1}, {1, 0, afx1}, {1, 0, afx1}},
			`
28,all,yellow,yellow,pass,12,12,1,rfc2697-pre-yellow
28,all,green,red,mark,10,8,1,rfc2697-red
28,all,green,red,mark,10,8,1,rfc2698-red
28,all,green,red,mark,10,8,1,token-bucket-red`,
		},
		{
			"queue, ECN, and time that goes back",
			`
classes:
  - name: ecn
    match: {dscp: 12}
    green: {queue: q, ecn: ce, else: drop, dscp: 20, mark: 1}
  - name: all
    green: {ecn: ce, queue: q}
queues:
  q: {rate: 8kbit, limit: 28ms, fair: false}`,
			[]packetRecord{
				{5000, 0, afx1}, {4000, 0, notECN}, {5000, 0, afx1}, {1005001, 0, afx2}, {28005001, 0, afx2},
			},
			`
28,all,green,green,ecn+queue,10,10,5000,no-meter
28,all,green,green,queue,10,10,28005000,no-meter
28,all,green,green,drop,10,,,queue-full
28,ecn,green,green,drop,12,,,queue-full
28,ecn,green,green,ecn+mark+queue,12,20,56005000,no-meter`,
		},
		{
			"WRED, by the color after the meter",
			`
classes:
  - name: all
    meter: {type: srtcm, cir: 8kbit, cbs: 28, ebs: 28}
    green: {queue: q}
    yellow: {dscp: af12, queue: q}
    red: {ecn: ce, dscp: af13, queue: q}
queues:
  q: {rate: 8kbit, limit: 2p, ecn: true, seed: 7, wred: {yellow: {min: 0p, max: 0p, probability: 0}, red: {min: 0p, max: 2p, probability: 1}}}`,
			// Only red draws: number 1 of seed 7 with an empty queue; 2 is below 1/2, 3 is not.
			[]packetRecord{
				{1000, 0, afx1}, {1000, 0, afx1}, {1000, 0, longer}, {1000, 0, longerNotECN}, {1000, 0, longer}, {1000, 0, longer},
			},
			`
28,all,green,green,queue,10,10,1000,rfc2697-green
28,all,green,yellow,drop,10,,,wred
29,all,green,red,ecn+mark+queue,10,14,28001000,rfc2697-red
29,all,green,red,drop,10,,,wred
29,all,green,red,ecn+mark+queue,10,14,57001000,rfc2697-red
29,all,green,red,drop,10,,,queue-full`,
		},
		{
			"link: what is decided later",
			`
classes:
  - {name: hi, match: {dscp: 12}, green: {queue: fast}}
  - {name: all, green: {dscp: 20, queue: slow}}
links:
  wan: {rate: 2000B/28ms}
length: {overhead: 1972}
queues:
  fast: {link: wan, limit: 1p}
  slow: {link: wan, priority: 1, limit: 10p, ecn: true, codel: {target: 28ms, interval: 28ms}}`,
			[]packetRecord{
				{1000, 0, afx1},
				{1000, 0, notECN},
				{1000, 0, notECN}, // a victim at 56 ms; the next one is at 84 ms or later
				{1000, 0, afx1},
				{1000, 0, afx1}, // a victim at 112 ms
				{1000, 0, afx1}, // not dropped: nothing is queued behind it
				{56_002_000, 0, afx2},
				{56_002_000, 0, afx2},
			},
			`
2000,all,green,green,mark+queue,10,20,1000,no-meter
2000,all,green,green,mark+queue,10,20,28001000,no-meter
2000,all,green,green,drop,10,,,codel
2000,all,green,green,mark+queue,10,20,56001000,no-meter
2000,all,green,green,ecn+mark+queue,10,20,112001000,no-meter
2000,all,green,green,mark+queue,10,20,140001000,no-meter
2000,hi,green,green,queue,12,12,84001000,no-meter
2000,hi,green,green,drop,12,,,queue-full`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkRows(t, Site{}, test.policy, test.records, test.want)
		})
	}
}

// checkRows compares fields 3 to 11 of each row of a capture with lines.
func checkRows(t *testing.T, s Site, policy string, records []packetRecord, lines string) {
	t.Helper()
	rows, err := s.Decide([]byte(policy), writePcap(t, 1, records))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range rows {
		got = append(got, strings.Join(row[2:11], ","))
	}
	want := strings.Split(strings.TrimSpace(lines), "\n")
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// mixedPackets returns bursts of packets of many kinds, 64 to 1500 bytes, over about 4 s.
func mixedPackets(t *testing.T) []packetRecord {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	var records []packetRecord
	ns := int64(1e18)
	for len(records) < 1500 {
		if random.IntN(4) == 0 {
			ns += random.Int64N(20e6)
		}
		if random.IntN(100) == 0 {
			ns -= 5e6
		}
		below := pick(
			macs, macs, macs, macs,
			macs+pick("8100 6064", "88a8 a00a", "8100 2005", "8100 4005", "8100 e032 8100 0001"),
		)
		ip := hexBytes(t, pick(udp4, udp6))
		tos := byte(random.IntN(2)*random.IntN(16)<<2 | random.IntN(4)*random.IntN(2))
		protocol := []byte{6, 6, 17, 1}[random.IntN(4)]
		link := ""
		if ip[0]>>4 == 4 {
			link = pick("0800", "0800", "0800", "0800", "8847 00010740", "8847 00010e40 00010140",
				"8864 11000001 0000 0021")
			ip[1], ip[9] = tos, protocol
			if protocol == 17 && random.IntN(8) == 0 {
				ip[6], ip[7] = 0x20, byte(random.IntN(2))
			}
		} else {
			link = pick("86dd", "86dd", "8847 00010940")
			ip[0], ip[1] = ip[0]&0xf0|tos>>4, tos<<4
			ip[6] = protocol
		}
		body := 4 + random.IntN(300)
		if random.IntN(3) == 0 {
			body = 1440 - random.IntN(900)
		}
		ip = append(ip, make([]byte, body)...)
		if ip[0]>>4 == 4 {
			binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		} else {
			binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
		}
		data := append(hexBytes(t, below, link), ip...)
		switch random.IntN(30) {
		case 0:
			data = hexBytes(t, macs, pick("0806", "8100 2005 0806", "88cc"), hexZeros(46))
		case 1:
			data = data[:14+random.IntN(20)]
		}
		r := packetRecord{ns, len(data), data}
		if len(data) < 60 {
			r.data = append(data, make([]byte, 60-len(data))...)
		}
		r.data = r.data[:min(len(r.data), 96)]
		records = append(records, r)
	}
	return records
}

// TestPolicies runs every policy of testdata over the traffic. Each must have all colors and
// drops, and all together every action and reason.
func TestPolicies(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no policies: %v", err)
	}
	capture := writePcap(t, 1, mixedPackets(t))
	seen := map[string]bool{}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if lines := strings.Count(string(text), "\n"); lines > 40 {
				t.Errorf("got %d lines, want at most 40", lines)
			}
			rows, err := Site{Dir: "testdata"}.Decide(text, capture)
			if err != nil {
				t.Fatal(err)
			}
			here := map[string]int{}
			for _, row := range rows {
				checkRow(t, row)
				here["class "+row[3]]++
				for _, value := range []string{row[5], row[6], row[10]} {
					here[value]++
					seen[value] = true
				}
			}
			for _, value := range []string{"green", "yellow", "red", "drop", "pass"} {
				if here[value] == 0 && here[strings.Replace(value, "pass", "mark", 1)] == 0 {
					t.Errorf("got no row with %s", value)
				}
			}
			t.Log(here)
		})
	}
	for _, value := range []string{
		"rfc2697-green", "rfc2697-yellow", "rfc2697-red", "rfc2697-pre-yellow", "rfc2697-pre-red",
		"rfc2698-green", "rfc2698-yellow", "rfc2698-red", "rfc2698-pre-yellow", "rfc2698-pre-red",
		"rfc4115-green", "rfc4115-yellow", "rfc4115-red", "rfc4115-pre-yellow", "rfc4115-pre-red",
		"token-bucket-green", "token-bucket-red", "token-bucket-pre-yellow", "token-bucket-pre-red",
		"gcra-green", "gcra-red", "gcra-pre-yellow", "gcra-pre-red",
		"fixed-window-green", "fixed-window-red", "fixed-window-pre-yellow", "fixed-window-pre-red",
		"sliding-window-green", "sliding-window-red", "sliding-window-pre-yellow", "sliding-window-pre-red",
		"sliding-counter-green", "sliding-counter-red", "sliding-counter-pre-yellow", "sliding-counter-pre-red",
		"sliding-log-green", "sliding-log-red", "sliding-log-pre-yellow", "sliding-log-pre-red",
		"tswtcm-green", "tswtcm-yellow", "tswtcm-red", "tswtcm-pre-yellow", "tswtcm-pre-red",
		"no-meter", "not-ip", "malformed", "queue-full", "wred", "codel",
		"pass", "drop", "mark", "ecn", "queue", "ecn+mark", "mark+queue", "ecn+queue", "ecn+mark+queue",
	} {
		if !seen[value] {
			t.Errorf("no policy has a row with %s", value)
		}
	}
}

// checkRow checks properties of every row.
func checkRow(t *testing.T, row []string) {
	t.Helper()
	if len(row) != 12 {
		t.Fatalf("got %d fields, want 12: %q", len(row), row)
	}
	dropped := row[6] == "drop"
	queued := strings.HasSuffix(row[6], "queue")
	switch {
	case dropped != (row[9] == ""),
		dropped && row[8] != "",
		!dropped && (row[7] == "") != (row[8] == ""),
		!dropped && !queued && row[9] != row[1],
		row[3] == "-" && (row[4]+row[5] != "" || row[6] != "pass" && row[6] != "drop"),
		row[3] != "-" && (row[4] == "" || row[5] == ""),
		slices.Contains([]string{"queue-full", "wred", "codel"}, row[10]) && !dropped,
		row[4] == "red" && row[5] != "red",
		row[4] == "yellow" && row[5] == "green",
		row[5] == "" && row[3] != "-":
		t.Errorf("got an inconsistent row %q", row)
	}
}

// TestBlindIsAwareWithGreen checks that a blind meter decides like an aware one whose packets
// are all green.
func TestBlindIsAwareWithGreen(t *testing.T) {
	capture := writePcap(t, 1, mixedPackets(t))
	for _, meter := range []string{
		"type: srtcm, cir: 200kbit, cbs: 3000, ebs: 3000",
		"type: trtcm, cir: 200kbit, cbs: 3000, pir: 300kbit, pbs: 4000",
		"type: trtcm4115, cir: 200kbit, cbs: 3000, eir: 100kbit, ebs: 3000, coupling: true",
		"type: token-bucket, rate: 200kbit, burst: 3000",
		"type: token-bucket, rate: 200kbit, burst: 3000, warmup: 15ms",
		"type: gcra, rate: 200kbit, burst: 3000, per: flow",
		"type: fixed-window, limit: 3000, window: 50ms",
		"type: sliding-window, limit: 3000, window: 50ms, per: dscp, keys: 3",
		"type: sliding-counter, limit: 3000, window: 50ms",
		"type: sliding-log, limit: 3000, window: 50ms, entries: 4",
		"type: tswtcm, cir: 200kbit, pir: 300kbit, window: 50ms",
	} {
		var rows [2][][]string
		for i, option := range []string{"", ", color: aware, precolor: {from: mark}"} {
			policy := "classes: [{name: all, meter: {" + meter + option + "}}]"
			var err error
			if rows[i], err = Decide([]byte(policy), capture); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(rows[0], rows[1]) {
			t.Errorf("%s: got different rows for color blind and aware", meter)
		}
	}
}
