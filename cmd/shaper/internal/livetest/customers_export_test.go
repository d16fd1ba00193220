package livetest

import (
	"fmt"
	"strings"
	"testing"
)

// exportedRows returns a file of customers as spreadsheets and billing systems export it: with a
// byte order mark, CRLF, quotes, comments, blank lines, lines of empty cells, and a column that
// shaper does not know.
func exportedRows(n int) string {
	var b strings.Builder
	b.WriteString("\ufeff# Exported, \"all\" customers; page 1\r\n\r\n\"Customer\",\"Addresses\",\"Plan\",\"Rate\",\"Note\"\r\n")
	for i := range n {
		v4, v6 := exportedAddresses(i)
		switch i % 4 {
		case 0:
			fmt.Fprintf(&b, "\"%08d\",\"%s, %s/64\",\"home\",\"\",\"\"\r\n", i, v4, v6)
		case 1:
			fmt.Fprintf(&b, "%08d , %s %s/64,home\r\n", i, v4, v6)
		case 2:
			fmt.Fprintf(&b, "\"%08d\",\"%s\r\n%s/64\",home,,\"says \"\"hello, all\"\"\r\nin two lines\"\r\n",
				i, v4, v6)
		default:
			fmt.Fprintf(&b, "\t%08d,%s;%s/64, \"home\" ,%dB/1000s,x\r\n", i, v4, v6, 2+i%100)
		}
		if i%1000 == 0 {
			b.WriteString("\r\n# Page\r\n,,,,\r\n \t \r\n")
		}
	}
	return b.String()
}

// exportedAddresses returns an IPv4 address and the first IPv6 address of a customer.
func exportedAddresses(i int) (v4, v6 string) {
	return fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255),
		fmt.Sprintf("2001:db8:%x:%x::", i>>16, i&0xffff)
}

// TestLiveCustomersExport shapes 100,000 customers of an exported file. Packets of all kinds of
// rows are metered by the customer's bucket, in both families. One customer changes by shaper set,
// and another by an edit of the file and SIGHUP.
func TestLiveCustomersExport(t *testing.T) {
	skipInVM(t)
	const number = 100_000
	p := newPair(t)
	text := exportedRows(number)
	policy, table := writeTable(t, "green: pass",
		"  home: {type: token-bucket, rate: 1B/1000s, burst: 300B}\n  large: {type: token-bucket, rate: 1B/1000s, burst: 900B}\n",
		text)
	r := p.runShaper("--policy", policy)
	m := placements[0]
	some := []int{0, 1, 2, 3, 4567, 50_002, 65_535, 65_536, number - 1}
	for _, i := range some {
		v4, v6 := exportedAddresses(i)
		p.near.Inject("v0", m.frameOf(v4), m.frameOf(v6+"1"), m.frameOf(v4), m.frameOf(v6+"2")) // 3 of 4 pass
	}
	v4, _ := exportedAddresses(number)
	p.near.Inject("v0", m.frameOf(v4)) // a stranger
	want := func(rows map[string]customerRow, i int, plan string, packets, dropped int64) {
		t.Helper()
		name := fmt.Sprintf("%08d", i)
		w := customerRow{
			name, plan, sentPackets(packets), sentPackets(packets - dropped),
			packetCount{},
			sentPackets(dropped), sentPackets(dropped),
		}
		if rows[name] != w {
			t.Errorf("counted %+v: want %+v", rows[name], w)
		}
	}
	rows := p.customers()
	for _, i := range some {
		want(rows, i, "home", 4, 1)
	}
	total := int64(0)
	for _, c := range rows {
		total += c.Packets
	}
	s := p.stats()
	if len(rows) != number || total != int64(4*len(some)) ||
		s.classNamed(t, "strangers").packetCount != sentPackets(1) {
		t.Errorf("%d customers with %d packets, strangers %+v: want %d with %d, and one stranger", len(rows),
			total, s.classNamed(t, "strangers"), number, 4*len(some))
	}

	p.wantExit(0, "set", "v0", "customer", "00000003", "plan=large")
	edited := strings.Replace(text, "00065536\",\"10.1.0.0, 2001:db8:1:0::/64\",\"home\"",
		"00065536\",\"10.1.0.0, 2001:db8:1:0::/64\",\"large\"", 1)
	if edited == text {
		t.Fatal("the row to edit is missing")
	}
	rewriteFile(t, table, edited)
	r.reloadBySIGHUP()
	// No bucket got tokens by a change or a reload.
	for _, i := range []int{0, 3, 65_536} {
		v4, _ := exportedAddresses(i)
		p.near.Inject("v0", m.frameOf(v4))
	}
	rows = p.customers()
	want(rows, 0, "home", 5, 2)
	want(rows, 3, "large", 5, 2)
	want(rows, 65_536, "large", 5, 2)
	want(rows, 4567, "home", 4, 1)
	if len(rows) != number {
		t.Errorf("%d customers after the reload: want %d", len(rows), number)
	}
	r.stopBySIGTERM()
	p.wantNothingLeft()
}
