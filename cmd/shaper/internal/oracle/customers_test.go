package oracle

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// arrival is a packet of 28 bytes of IPv4, of 48 bytes of IPv6, or of 46 bytes of ARP.
type arrival struct {
	ms       int64
	src, dst string // "" for ARP
	dscp     int
	ecn      int
	tags     string // in hex
	rest     string // bytes before the IP header, in hex, instead of its type
}

func (a arrival) record(t *testing.T) packetRecord {
	t.Helper()
	class := a.dscp<<2 | a.ecn
	kind, ip := "0806", hexZeros(46)
	if a.dst != "" {
		src, dst := netip.MustParseAddr(a.src), netip.MustParseAddr(a.dst)
		addresses := hex.EncodeToString(src.AsSlice()) + hex.EncodeToString(dst.AsSlice())
		kind, ip = "86dd", fmt.Sprintf("6%02x00000 00081140%s", class, addresses)
		if dst.Is4() {
			kind, ip = "0800", fmt.Sprintf("45%02x001c 00000000 40110000%s", class, addresses)
		}
		ip += "003500350008 0000"
	}
	if a.rest != "" {
		kind = a.rest
	}
	return packetRecord{a.ms * 1e6, 0, hexBytes(t, macs, a.tags, kind, ip)}
}

// decideWith returns the fields from the third of each row; a blank is a comma. In the policy
// the CSV file is called c.csv.
func decideWith(t *testing.T, ingress bool, policy, table string, packets []arrival) []string {
	t.Helper()
	site := Site{Dir: t.TempDir(), Ingress: ingress}
	if err := os.WriteFile(filepath.Join(site.Dir, "c.csv"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	var records []packetRecord
	for _, a := range packets {
		records = append(records, a.record(t))
	}
	rows, err := site.Decide([]byte(policy), writePcap(t, 1, records))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, row := range rows {
		out = append(out, strings.Join(row[2:], ","))
	}
	return out
}

// A rate of 8kbit is one byte per ms.
const perCustomer = `
customers: {file: c.csv}
classes:
  - {name: c, per: customer, meter: plan}
`

func TestCustomerRows(t *testing.T) {
	const away = "198.51.100.9"
	tests := []struct {
		name, policy, table string
		packets             []arrival
		want                string
	}{
		{
			"one bucket for all addresses",
			perCustomer + `
  - {name: strangers, meter: {type: token-bucket, rate: 8kbit, burst: 28}}
plans: {p: {type: token-bucket, rate: 8kbit, burst: 76}}`,
			"customer,address,plan\na,10.0.0.1 10.1.0.0/16;2001:db8::/32,p\nb,10.0.0.2,p\nc,,p\n",
			[]arrival{
				{ms: 0, src: away, dst: "10.0.0.1"},
				{ms: 0, src: away, dst: "10.0.0.3"},
				{ms: 0, src: away, dst: "10.0.0.3"},
				{ms: 0, src: "2001::1", dst: "2001:db8::7"}, // empties the bucket
				{ms: 0, src: away, dst: "10.1.2.3"},
				{ms: 0, src: away, dst: "10.0.0.2"},
				{ms: 0, src: "10.0.0.1", dst: away},
				{ms: 27, src: away, dst: "10.0.0.1"},
				{ms: 28, src: away, dst: "10.0.0.1"},
				{ms: 28},
			},
			`
28,c,green,green,pass,0,0,0,token-bucket-green,a
28,strangers,green,green,pass,0,0,0,token-bucket-green,
28,strangers,green,red,drop,0,,,token-bucket-red,
48,c,green,green,pass,0,0,0,token-bucket-green,a
28,c,green,red,drop,0,,,token-bucket-red,a
28,c,green,green,pass,0,0,0,token-bucket-green,b
28,strangers,green,red,drop,0,,,token-bucket-red,
28,c,green,red,drop,0,,,token-bucket-red,a
28,c,green,green,pass,0,0,28000000,token-bucket-green,a
46,-,,,pass,,,28000000,not-ip,`,
		},
		{
			"own parameters, and a burst as a time at the new rate",
			perCustomer + "plans: {p: {type: gcra, rate: 8kbit, burst: 28ms}, w: {type: fixed-window, limit: 28, window: 1s}}",
			"customer,address,plan,rate,limit\na,10.0.0.1,p,,\nb,10.0.0.2,p,16kbit,\nc,10.0.0.3,w,,\nd,10.0.0.4,w,,56\n",
			[]arrival{
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.2", src: away},
				{dst: "10.0.0.2", src: away},
				{dst: "10.0.0.2", src: away},
				{dst: "10.0.0.3", src: away},
				{dst: "10.0.0.3", src: away},
				{dst: "10.0.0.4", src: away},
				{dst: "10.0.0.4", src: away},
				{ms: 14, dst: "10.0.0.2", src: away},
			},
			`
28,c,green,green,pass,0,0,0,gcra-green,a
28,c,green,red,drop,0,,,gcra-red,a
28,c,green,green,pass,0,0,0,gcra-green,b
28,c,green,green,pass,0,0,0,gcra-green,b
28,c,green,red,drop,0,,,gcra-red,b
28,c,green,green,pass,0,0,0,fixed-window-green,c
28,c,green,red,drop,0,,,fixed-window-red,c
28,c,green,green,pass,0,0,0,fixed-window-green,d
28,c,green,green,pass,0,0,0,fixed-window-green,d
28,c,green,green,pass,0,0,14000000,gcra-green,b`,
		},
		{
			"the longest prefix wins",
			strings.Replace(perCustomer, "c.csv", "c.csv, nested: true",
				1) + "plans: {p: {type: token-bucket, rate: 8kbit, burst: 100}}",
			"customer,address,plan\nall,0.0.0.0/0,p\nhost,10.0.0.1,p\nsite,10.0.0.0/24,p\nsix,::/0,p\n",
			[]arrival{
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.2", src: away},
				{dst: "10.0.1.2", src: away},
				{dst: "::1", src: "::2"},
			},
			`
28,c,green,green,pass,0,0,0,token-bucket-green,host
28,c,green,green,pass,0,0,0,token-bucket-green,site
28,c,green,green,pass,0,0,0,token-bucket-green,all
48,c,green,green,pass,0,0,0,token-bucket-green,six`,
		},
		{
			"actions of the plan replace those of the class",
			`
customers: {file: c.csv}
classes:
  - {name: c, per: customer, meter: plan, green: {dscp: 1}, yellow: {dscp: 2}, red: {dscp: 3}}
plans:
  p: {type: srtcm, cir: 8kbit, cbs: 28, ebs: 28}
  q: {type: trtcm, cir: 8kbit, cbs: 28, pir: 8kbit, pbs: 56, yellow: drop, red: {dscp: 9, ecn: ce}}`,
			"customer,address,plan\na,10.0.0.1,p\nb,10.0.0.2,q\n",
			[]arrival{
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.2", src: away},
				{dst: "10.0.0.2", src: away},
				{dst: "10.0.0.2", src: away},
				{dst: "10.0.0.2", src: away, ecn: 1},
			},
			`
28,c,green,green,mark,0,1,0,rfc2697-green,a
28,c,green,yellow,mark,0,2,0,rfc2697-yellow,a
28,c,green,red,mark,0,3,0,rfc2697-red,a
28,c,green,green,mark,0,1,0,rfc2698-green,b
28,c,green,yellow,drop,0,,,rfc2698-yellow,b
28,c,green,red,mark,0,9,0,rfc2698-red,b
28,c,green,red,ecn+mark,0,9,0,rfc2698-red,b`,
		},
		{
			"several classes share the bucket, and the chain is the class's",
			`
customers: {file: c.csv}
classes:
  - name: voice
    match: {dscp: [ef, af12]}
    per: customer
    meter: {type: plan, color: aware, precolor: {ef: green, af12: yellow}, then: all}
  - {name: c, per: customer, meter: plan, then: all}
  - {name: hosts, meter: {type: token-bucket, rate: 8kbit, burst: 28, per: "src/24,64"}}
meters:
  all: {type: token-bucket, rate: 8kbit, burst: 84, color: aware}
plans: {p: {type: srtcm, cir: 8kbit, cbs: 28, ebs: 56}}`,
			"customer,address,plan\na,10.0.0.1,p\nb,10.0.0.2,p\n",
			[]arrival{
				{dst: "10.0.0.1", src: away, dscp: 12},
				{dst: "10.0.0.1", src: away, dscp: 46},
				{dst: "10.0.0.1", src: away}, // E has 28
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.2", src: away, dscp: 46}, // the chain's meter is empty
				{dst: "10.9.0.1", src: away},
				{dst: "2001::1", src: "2001:db8::1"},
			},
			`
28,voice,yellow,yellow,pass,12,12,0,token-bucket-pre-yellow,a
28,voice,green,green,pass,46,46,0,token-bucket-green,a
28,c,green,yellow,pass,0,0,0,token-bucket-pre-yellow,a
28,c,green,red,drop,0,,,rfc2697-red,a
28,voice,green,red,drop,46,,,token-bucket-red,b
28,hosts,green,green,pass,0,0,0,token-bucket-green,src 198.51.100.0/24
48,hosts,green,red,drop,0,,,token-bucket-red,src 2001:db8::/64`,
		},
		{
			"plans that count packets",
			`
customers: {file: c.csv}
classes:
  - {name: c, per: customer, meter: {type: plan, count: packets}}
plans: {p: {type: trtcm4115, cir: 1p/1s, cbs: 1, eir: 1p/1s, ebs: 0, coupling: true}, q: {queue: {rate: 8kbit, limit: 1s}}}`,
			"customer,address,plan,ebs\na,10.0.0.1,p,1\nb,10.0.0.2,q,\nc,10.0.0.3,p,\n",
			[]arrival{
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.1", src: away},
				{dst: "10.0.0.2", src: away},
				{dst: "10.0.0.2", src: away},
				{dst: "10.0.0.3", src: away},
				{dst: "10.0.0.3", src: away},
			},
			`
28,c,green,green,pass,0,0,0,rfc4115-green,a
28,c,green,yellow,pass,0,0,0,rfc4115-yellow,a
28,c,green,red,drop,0,,,rfc4115-red,a
28,c,green,green,queue,0,0,0,no-meter,b
28,c,green,green,queue,0,0,28000000,no-meter,b
28,c,green,green,pass,0,0,0,rfc4115-green,c
28,c,green,red,drop,0,,,rfc4115-red,c`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := strings.Join(decideWith(t, false, test.policy, test.table, test.packets), "\n")
			if want := strings.TrimSpace(test.want); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestPacedCustomers(t *testing.T) {
	const policy = `
customers: {file: c.csv}
classes:
  - name: marked
    match: {dscp: 1-63}
    per: customer
    meter: {type: plan, color: aware, then: all}
    yellow: {dscp: 1, queue: shared}
    red: {dscp: 2, queue: shared}
  - {name: c, per: customer, meter: plan, green: {queue: shared}}
queues: {shared: {rate: 8kbit, limit: 1s, fair: false}}
meters: {all: {type: srtcm, cir: 8kbit, cbs: 28, ebs: 28, color: aware}}
plans:
  p: {queue: {rate: 8kbit, limit: 28ms}}
  e: {queue: {rate: 8kbit, limit: 1s, codel: {target: 28ms, interval: 28ms}, ecn: true}, red: drop}
  m: {type: token-bucket, rate: 8kbit, burst: 56}`
	const table = "customer,address,plan,rate,limit\na,10.0.0.1 10.0.1.1,p,,\nb,10.0.0.2,p,,56ms\nd,10.0.0.4,p,16kbit,\ne,10.0.0.3,e,,\nm,10.0.0.5,m,,\n"
	const away = "198.51.100.9"
	got := decideWith(t, false, policy, table, []arrival{
		{dst: "10.0.0.1", src: away},
		{dst: "10.0.1.1", src: away}, // the same queue
		{dst: "10.0.0.1", src: away},
		{dst: "10.0.0.5", src: away}, // the shared queue is empty
		{dst: "10.0.0.5", src: away},
		{dst: "10.0.0.2", src: away}, // a queue of its own, limit 56 ms
		{dst: "10.0.0.2", src: away},
		{dst: "10.0.0.2", src: away},
		{dst: "10.0.0.2", src: away},
		{dst: "10.0.0.4", src: away},
		{dst: "10.0.0.4", src: away},
		{dst: "10.0.0.4", src: away}, // 28 ms at the double rate
		{ms: 60, dst: "10.0.0.1", src: away, dscp: 10},
		{ms: 60, dst: "10.0.0.1", src: away, dscp: 10},            // yellow by the chain
		{ms: 60, dst: "10.0.0.3", src: away, dscp: 14},            // red input: skips the chain
		{ms: 60, dst: "10.0.0.4", src: away, dscp: 14},            // the class's action for red
		{ms: 60, dst: "10.0.0.3", src: away, dscp: 12},            // red by the chain
		{ms: 100, dst: "10.0.0.3", src: away, ecn: 1},             // departs at once
		{ms: 100, dst: "10.0.0.3", src: away, ecn: 1},             // 128 ms: above the target
		{ms: 100, dst: "10.0.0.3", src: away, ecn: 1},             // 156 ms: an interval later
		{ms: 100, dst: "10.0.0.3", src: away},                     // 184 ms: the next victim, not capable
		{ms: 100, dst: "10.0.0.3", src: away},                     // 184 ms again, before the next drop
		{ms: 100, dst: "10.0.0.5", src: away, dscp: 14},           // metered: red
		{ms: 100, dst: "10.0.0.9", src: "10.0.0.1", dscp: 14},     // no customer
		{ms: 100, dst: "10.0.0.1", src: "10.0.0.2", rest: "0806"}, // not IP
	})
	want := strings.Split(strings.TrimSpace(`
28,c,green,green,queue,0,0,0,no-meter,a
28,c,green,green,queue,0,0,28000000,no-meter,a
28,c,green,green,drop,0,,,queue-full,a
28,c,green,green,queue,0,0,0,token-bucket-green,m
28,c,green,green,queue,0,0,28000000,token-bucket-green,m
28,c,green,green,queue,0,0,0,no-meter,b
28,c,green,green,queue,0,0,28000000,no-meter,b
28,c,green,green,queue,0,0,56000000,no-meter,b
28,c,green,green,drop,0,,,queue-full,b
28,c,green,green,queue,0,0,0,no-meter,d
28,c,green,green,queue,0,0,14000000,no-meter,d
28,c,green,green,queue,0,0,28000000,no-meter,d
28,marked,green,green,queue,10,10,60000000,rfc2697-green,a
28,marked,green,yellow,mark+queue,10,1,88000000,rfc2697-yellow,a
28,marked,red,red,drop,14,,,no-meter,e
28,marked,red,red,mark+queue,14,2,60000000,no-meter,d
28,marked,yellow,red,drop,12,,,rfc2697-red,e
28,c,green,green,queue,0,0,100000000,no-meter,e
28,c,green,green,queue,0,0,128000000,no-meter,e
28,c,green,green,ecn+queue,0,0,156000000,no-meter,e
28,c,green,green,drop,0,,,codel,e
28,c,green,green,queue,0,0,184000000,no-meter,e
28,marked,red,red,mark+queue,14,2,100000000,token-bucket-pre-red,m
28,-,,,pass,14,14,100000000,no-meter,
28,-,,,pass,,,100000000,not-ip,`), "\n")
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("packet %d: got %s, want %s", i+1, got[i], want[i])
		}
	}
}

func TestCustomerKeys(t *testing.T) {
	const away = "198.51.100.9"
	addresses := "customer,address,vlan,svlan,cvlan,plan\na,10.0.0.1,12,12,34,p\nb,10.0.0.2,\"34, 0\",34,12,p\nc,,13,12,0,p\n"
	packets := []arrival{
		{src: "10.0.0.1", dst: "10.0.0.2", tags: "8100 000c"},
		{src: "10.0.0.2", dst: away, tags: "88a8 200c 8100 e022"},
		{src: away, dst: "10.0.0.1", tags: "88a8 0022 8100 000c 8100 0001"},
		{src: away, dst: away},
		{tags: "8100 0000"},
	}
	for _, test := range []struct {
		key     string
		ingress bool
		want    string
	}{
		{"address", false, "b - a - -"},
		{"[address]", true, "a b - - -"},
		{"src", false, "a b - - -"},
		{"src", true, "a b - - -"},
		{"[dst]", false, "b - a - -"},
		{"dst", true, "b - a - -"},
		{"vlan", false, "a a b - -"},
		{"[vlan]", true, "a a b - -"},
		{"[svlan, cvlan]", false, "- a b - -"},
	} {
		policy := strings.Replace(perCustomer, "c.csv", "c.csv, key: "+test.key, 1) +
			"plans: {p: {type: token-bucket, rate: 8kbit, burst: 1000}}"
		var got []string
		for _, row := range decideWith(t, test.ingress, policy, addresses, packets) {
			got = append(got, row[strings.LastIndex(row, ",")+1:])
			if got[len(got)-1] == "" {
				got[len(got)-1] = "-"
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("key %s, ingress %v: got %v, want %s", test.key, test.ingress, got, test.want)
		}
	}
	// A class whose match has a key of the link layer takes ARP of a customer, like other classes.
	policy := `
customers: {file: c.csv, key: vlan}
classes:
  - {name: c, match: {pcp: 0-7}, per: customer, meter: plan}
plans: {p: {type: token-bucket, rate: 8kbit, burst: 1000}}`
	got := decideWith(t, false, policy, addresses, []arrival{{tags: "8100 0000"}, {tags: "8100 0001"}})
	if !slices.Equal(got,
		[]string{"46,c,green,green,pass,,,0,token-bucket-green,b", "46,-,,,pass,,,0,not-ip,"}) {
		t.Errorf("ARP: got %q", got)
	}
}
