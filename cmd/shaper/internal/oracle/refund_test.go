package oracle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestQueueFirst checks rows that were computed by hand: what packets pay that a queue or a meter
// drops. Packets of 28 and 29 bytes go to 192.0.2.1, at 8 kbit/s, which is one byte per ms.
func TestQueueFirst(t *testing.T) {
	packet := hexBytes(t, macs, "0800", udp4)
	longer := hexBytes(t, macs, "0800", strings.Replace(udp4, "001c", "001d", 1), "00")
	other := hexBytes(t, macs, "0800", strings.Replace(udp4, "0a000001", "0a000002", 1)) // another source
	af12 := hexBytes(t, macs, "0800", strings.Replace(udp4, "4529", "4531", 1))
	dir := t.TempDir()
	table := "customer,address,plan\na,192.0.2.1,paced\n"
	if err := os.WriteFile(filepath.Join(dir, "c.csv"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, policy string
		records      []packetRecord
		want         string
	}{
		{
			"a queue behind a chain",
			`
classes:
  - name: all
    meter: {type: srtcm, cir: 8kbit, cbs: 56, ebs: 29}
    then: sum
    green: {queue: q}
    yellow: {queue: q}
meters:
  sum: {type: fixed-window, limit: 113, window: 1h, color: aware}
queues:
  q: {rate: 8kbit, limit: 1p, fair: false}`,
			// Two green packets take all of C: one departs at once, one fills the queue until 28001000. Three
			// yellow ones find it full. Each needs what the one before gave back of E, which has 29, and the
			// last one what both gave back of the window. At 28001000 C has 28 again.
			[]packetRecord{
				{1000, 0, packet},
				{1000, 0, packet},
				{1000, 0, packet},
				{1000, 0, longer},
				{1000, 0, longer},
				{28001000, 0, packet},
			},
			`
28,all,green,green,queue,10,10,1000,fixed-window-green
28,all,green,green,queue,10,10,28001000,fixed-window-green
28,all,green,yellow,drop,10,,,queue-full
29,all,green,yellow,drop,10,,,queue-full
29,all,green,yellow,drop,10,,,queue-full
28,all,green,green,queue,10,10,56001000,fixed-window-green`,
		},
		{
			"a customer's queue, which decides first",
			`
customers: {file: c.csv}
plans: {paced: {queue: {rate: 8kbit, limit: 28ms}}}
classes:
  - {name: all, per: customer, meter: {type: plan, color: aware, precolor: {from: dscp, map: {12: yellow}}}, then: sum, yellow: drop}
meters:
  sum: {type: fixed-window, limit: 112, window: 1h, color: aware}`,
			// Packets 1 and 2 depart. Packets 3 and 6 find the queue full and pay nothing. Packet 4 would
			// depart at 56001000, but its color drops it: it pays the window and takes no time, so packet
			// 5 departs then. That makes four of 28 bytes, all of the window, so the last packet is red
			// although the queue is free.
			[]packetRecord{
				{1000, 0, packet},
				{1000, 0, packet},
				{1000, 0, af12},
				{28001000, 0, af12},
				{28001000, 0, packet},
				{28001000, 0, packet},
				{84001000, 0, packet},
			},
			`
28,all,green,green,queue,10,10,1000,fixed-window-green
28,all,green,green,queue,10,10,28001000,fixed-window-green
28,all,yellow,yellow,drop,12,,,queue-full
28,all,yellow,yellow,drop,12,,,fixed-window-pre-yellow
28,all,green,green,queue,10,10,56001000,fixed-window-green
28,all,green,green,drop,10,,,queue-full
28,all,green,red,drop,10,,,fixed-window-red`,
		},
		{
			"a fair queue drops another packet",
			`
classes:
  - {name: all, meter: {type: fixed-window, limit: 112, window: 1h, per: src}, green: {queue: q}}
queues:
  q: {rate: 8kbit, limit: 2p, fair: src}`,
			// The first packet is being sent, the next two wait. The fourth, of the other source, makes
			// the queue drop the second, the first of the flow with the most bytes. The fifth to seventh
			// drop one of their own source each. All find room in the window, because the tokens of
			// dropped packets come back: without that the fifth would be the last. The first source's
			// flow still has a deficit, so it is sent first.
			[]packetRecord{
				{1000, 0, packet}, {1000, 0, packet}, {1000, 0, packet}, {1000, 0, other}, {1000, 0, packet}, {1000, 0, packet}, {1000, 0, packet},
			},
			`
28,all,green,green,queue,10,10,1000,fixed-window-green
28,all,green,green,drop,10,,,queue-full
28,all,green,green,drop,10,,,queue-full
28,all,green,green,queue,10,10,56001000,fixed-window-green
28,all,green,green,drop,10,,,queue-full
28,all,green,green,drop,10,,,queue-full
28,all,green,green,queue,10,10,28001000,fixed-window-green`,
		},
		{
			"a meter that drops takes no time of a customer's queue",
			`
customers: {file: c.csv}
plans: {paced: {queue: {rate: 8kbit, limit: 1s, codel: {target: 1ms, interval: 50ms}}}}
classes:
  - {name: all, per: customer, meter: plan, then: sum}
meters:
  sum: {type: token-bucket, rate: 8kbit, burst: 57, color: aware}`,
			// C has 57: packets 1 and 2 depart at 1000 and 28001000, and 1 token is left. Packets 3 and 4
			// are red. For the queue they had not arrived: at 29001000 C has 30, packet 5 departs at
			// 56001000, and is the second one above CoDel's target. The first was packet 2, so CoDel may
			// drop from 78001000 on. At 57001000 C has 30, and packet 6 departs at 84001000 with a delay
			// of 27 ms: CoDel drops it, and it pays nothing, so the longer packet 7 conforms, which CoDel
			// does not select.
			[]packetRecord{
				{1000, 0, packet},
				{1000, 0, packet},
				{1000, 0, packet},
				{1000, 0, packet},
				{29001000, 0, packet},
				{57001000, 0, packet},
				{57001000, 0, longer},
			},
			`
28,all,green,green,queue,10,10,1000,token-bucket-green
28,all,green,green,queue,10,10,28001000,token-bucket-green
28,all,green,red,drop,10,,,token-bucket-red
28,all,green,red,drop,10,,,token-bucket-red
28,all,green,green,queue,10,10,56001000,token-bucket-green
28,all,green,green,drop,10,,,codel
29,all,green,green,queue,10,10,84001000,token-bucket-green`,
		},
	} {
		t.Run(test.name,
			func(t *testing.T) { checkRows(t, Site{Dir: dir}, test.policy, test.records, test.want) })
	}
}
