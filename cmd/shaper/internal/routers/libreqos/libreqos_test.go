package libreqos

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
)

// importLibreQoS imports two texts.
func importLibreQoS(network, devices string) (*routers.Import, error) {
	second := &routers.Source{Name: "ShapedDevices.csv", Text: devices}
	return libreQoS{}.Import(routers.Source{Name: "network.json", Text: network, Companion: second})
}

// TestLibreQoS compares the policy and the customers made of two files with texts written by hand.
func TestLibreQoS(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	in, err := importLibreQoS(read("network.json"), read("ShapedDevices.csv"))
	if err != nil {
		t.Fatal(err)
	}
	d, problems, err := in.Pick("")
	if err != nil || problems != nil {
		t.Fatal(err, problems)
	}
	out, err := d.Render("test", "isp.csv")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.Text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimRight(line, " \n"); line != "" {
			lines = append(lines, line)
		}
	}
	const policy = `classes:
  - name: customers
    per: customer
    meter: plan
links:
  North:
    rate: {down: 1gbit, up: 500mbit}
  North-AP1:
    link: North
    rate: {down: 200mbit, up: 100mbit}
    guarantee: {down: 50mbit, up: 25mbit}
    weight: 200
  North-AP2:
    link: North
    rate: {down: 2500kbit, up: 2500kbit}
    weight: 3
  "South: yes":
    rate: {down: 300mbit, up: 300mbit}
plans:
  default:
    queue:
      rate: {down: 105mbit, up: 18mbit}
      guarantee: {down: 1mbit, up: 1mbit}
      limit: 100ms
      fair: flow
      ecn: true
  fifo:
    queue:
      rate: {down: 100mbit, up: 50mbit}
      guarantee: {down: 10mbit, up: 5mbit}
      limit: 100ms
  default-flat:
    queue:
      rate: {down: 50mbit, up: 10mbit}
      limit: 100ms
      fair: flow
      ecn: true
customers: {file: isp.csv}`
	if got := strings.Join(lines, "\n"); got != policy {
		t.Errorf("policy\n%s\nwant\n%s", got, policy)
	}
	const customers = `customer,address,plan,link,down,up,down-guarantee,up-guarantee,weight
1,192.0.2.1 192.0.2.8/30 2001:db8:1::/48,default,North-AP1,,,,,105
2,192.0.2.2,default,North-AP1,,,,,105
3,192.0.2.3,default,North-AP2,2500kbit,1mbit,500kbit,500kbit,3
4,192.0.2.4 198.51.100.0/25 2001:db8:4::1,fifo,North,,,,,100
south/5,192.0.2.6,default,South: yes,,,,,105
6,192.0.2.7 192.0.2.12,default-flat,,,,,,
`
	if d.Customers != customers {
		t.Errorf("customers\n%s\nwant\n%s", d.Customers, customers)
	}
	slices.SortStableFunc(d.Notes, func(a, b routers.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	var notes []string
	for _, n := range d.Notes {
		notes = append(notes, fmt.Sprintf("%s:%d: %s", n.File, n.Line, n.Reason))
	}
	for i, want := range []string{
		"ShapedDevices.csv:2: columns left out: Circuit Name, Device ID, Device Name, MAC, Comment",
		"ShapedDevices.csv:9: sqm /none: a plan has one kind of queue",
		"ShapedDevices.csv:10: circuits without a parent node",
		`ShapedDevices.csv:11: circuit "6" has the rates and sqm of line 10`,
		"network.json:1: cake's tins",
		`network.json:3: key "id" of nodes is left out`,
		"network.json:5: virtual nodes have no rate, and are left out: Village",
		"network.json:13: nodes without circuits are left out: North-AP3",
	} {
		if i >= len(notes) || !strings.HasPrefix(notes[i], want) {
			t.Fatalf("notes %q, want %q", notes, want)
		}
	}
}

const (
	goodNetwork = `{"A": {"downloadBandwidthMbps": 10, "uploadBandwidthMbps": 10}}`
	goodHeader  = "Circuit ID,Parent Node,IPv4,IPv6,Download Min Mbps,Upload Min Mbps,Download Max Mbps,Upload Max Mbps,sqm\n"
	goodRow     = "1,A,192.0.2.1,,1,1,5,5,\n"
)

// TestLibreQoSProblems checks that bad input is named with its file and line.
func TestLibreQoSProblems(t *testing.T) {
	t.Parallel()
	deep := goodNetwork
	for i := range 7 {
		deep = fmt.Sprintf(`{"N%d": {"downloadBandwidthMbps": 10, "uploadBandwidthMbps": 10, "children":`+"\n%s}}", i, deep)
	}
	for _, c := range []struct{ network, devices, want string }{
		{goodNetwork, goodHeader + goodRow, ""},
		{"{}", goodHeader + "1,,192.0.2.1,,1,1,5,5,\n", ""},
		{"\ufeff" + goodNetwork, "\ufeff" + strings.ToUpper(goodHeader) + goodRow, ""},
		{goodNetwork, strings.ReplaceAll(goodHeader+goodRow, "\n", "\r\n"), ""},
		{goodNetwork, goodHeader + goodRow + "2,B,192.0.2.2,,1,1,5,5,\n", `ShapedDevices.csv:3: parent node "B" is not in network.json`},
		{goodNetwork, goodHeader + goodRow + "1,,192.0.2.2,,1,1,5,5,\n", `ShapedDevices.csv:3: circuit "1" has parent node "" here, and "A" in line 2`},
		{goodNetwork, goodHeader + goodRow + "2,A,192.0.2.1,,1,1,5,5,\n", "ShapedDevices.csv:3: ipv4: 192.0.2.1 is in line 2 too"},
		{goodNetwork, goodHeader + ",A,192.0.2.1,,1,1,5,5,\n", "ShapedDevices.csv:2: Circuit ID is missing"},
		{goodNetwork, goodHeader + strings.Repeat("x", 65) + ",A,192.0.2.1,,1,1,5,5,\n", "is longer than 64 characters"},
		{goodNetwork, goodHeader + "1,A,,,1,1,5,5,\n", `ShapedDevices.csv:2: circuit "1": a device has neither`},
		{goodNetwork, goodHeader + "1,A,192.0.2.256,,1,1,5,5,\n", `ShapedDevices.csv:2: ipv4: "192.0.2.256" is not an address or a prefix`},
		{goodNetwork, goodHeader + "1,A,::1,,1,1,5,5,\n", `ShapedDevices.csv:2: ipv4: "::1"`},
		{goodNetwork, goodHeader + "1,A,,::ffff:1.2.3.4,1,1,5,5,\n", `ShapedDevices.csv:2: ipv6: "::ffff:1.2.3.4"`},
		{goodNetwork, goodHeader + "1,A,192.0.2.1,,1,1,5M,5,\n", `ShapedDevices.csv:2: download max mbps: "5M" is not a number of Mbit/s`},
		{goodNetwork, goodHeader + "1,A,192.0.2.1,,1,1,,5,\n", `ShapedDevices.csv:2: download max mbps: "" is not a number`},
		{goodNetwork, goodHeader + "1,A,192.0.2.1,,1,1,-5,5,\n", "ShapedDevices.csv:2: download max mbps: -5 Mbit/s is negative"},
		{goodNetwork, goodHeader + "1,A,192.0.2.1,,1,1,5.0000001,5,\n", "is not a whole number of bits per second"},
		{goodNetwork, goodHeader + "1,A,192.0.2.1,,0,1,5,5,\n", "the rates must be above zero"},
		{goodNetwork, goodHeader + "1,A,192.0.2.1,,6,1,5,5,\n", "a minimum is above the maximum"},
		{goodNetwork, goodHeader + "1,A,192.0.2.1,,1,1,5,5,pie\n", `ShapedDevices.csv:2: sqm "pie" is not known`},
		{goodNetwork, goodHeader + "1,A,192.0.2.1,,1,1,5,5,,x\n", "ShapedDevices.csv:2: the line has 10 cells, the first line 9"},
		{goodNetwork, goodHeader + "\"1,A\n", "ShapedDevices.csv:2: extraneous or missing"},
		{goodNetwork, goodHeader + goodRow + "2,A\"B,1", "ShapedDevices.csv:3: bare"},
		{goodNetwork, "", "ShapedDevices.csv is empty"},
		{goodNetwork, goodHeader, "ShapedDevices.csv has no circuits"},
		{goodNetwork, "Circuit ID,IPv4\n", "ShapedDevices.csv:1: the first line must name the columns: parent node, ipv6, "},
		{goodNetwork, "Circuit ID,circuit id\n", `ShapedDevices.csv:1: column "circuit id" comes twice`},
		{goodNetwork, "\xff", "ShapedDevices.csv is not text"},
		{"", goodHeader + goodRow, "line 1: the JSON ends too early"},
		{"\xff", goodHeader + goodRow, "it is not text"},
		{"[]", goodHeader + goodRow, "line 1: network.json must be an object"},
		{"{\n\"A\": 1}", goodHeader + goodRow, `line 2: node "A" must be an object`},
		{"{\n\"A\": {]}", goodHeader + goodRow, "line 2: it is not JSON"},
		{goodNetwork + "\n{}", goodHeader + goodRow, "line 2: there is more after the end"},
		{"{\"A\": {},\n\"A\": {}}", goodHeader + goodRow, `line 2: duplicate name "A"`},
		{"{\"A\": {\"children\":\n{\"A\": {}}}}", goodHeader + goodRow, `line 2: node "A" is in line 1 too`},
		{"{\"A\": {\n\"downloadBandwidthMbps\": \"10\"}}", goodHeader + goodRow, `line 2: downloadBandwidthMbps of node "A" must be a number`},
		{"{\"A\": {\n\"downloadBandwidthMbps\": 1e3}}", goodHeader + goodRow, `line 2: downloadBandwidthMbps of node "A": "1e3"`},
		{"{\"A\": {\n\"virtual\": 1}}", goodHeader + goodRow, `line 2: virtual of node "A" must be true or false`},
		{"{\"A\": {\n\"AP\": {}}}", goodHeader + goodRow, `line 2: "AP" of node "A" is not known: nodes below it belong into "children"`},
		{"{\n\"A\": {}}", goodHeader + goodRow, `network.json:2: node "A" needs downloadBandwidthMbps`},
		{`{"A": {"downloadBandwidthMbps": 1, "uploadBandwidthMbps": 1, "downloadBandwidthMbpsMin": 1, "uploadBandwidthMbpsMin": 2}}`, goodHeader + goodRow, `network.json:1: node "A" has a minimum above its maximum`},
		{deep, goodHeader + goodRow, `network.json:8: node "A" has 7 nodes above it: a tree has at most 8 levels`},
		{strings.Repeat(`{"A": {"children": `, 200), goodHeader + goodRow, `is in line 1 too`},
	} {
		in, err := importLibreQoS(c.network, c.devices)
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case len(in.Drafts[0].Problems) > 0:
			p := in.Drafts[0].Problems[0]
			got = fmt.Sprintf("%s:%d: %v", p.File, p.Line, p)
		}
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%q, %q: %q, want %q", c.network, c.devices, got, c.want)
		}
	}
	if _, err := (libreQoS{}).Import(routers.Source{Text: goodNetwork}); err == nil {
		t.Error("no error without devices")
	}
}

// TestLibreQoSMinimums checks the note on circuits whose minimum rates do not fit their node.
func TestLibreQoSMinimums(t *testing.T) {
	t.Parallel()
	rows := goodHeader + "1,A,192.0.2.1,,6,1,8,8,\n2,A,192.0.2.2,,6,1,8,8,\n"
	in, err := importLibreQoS(goodNetwork, rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range in.Drafts[0].Notes {
		if strings.Contains(n.Reason, `below node "A" add up to {down: 12mbit, up: 2mbit}, above its rate`) {
			return
		}
	}
	t.Errorf("notes %q", in.Drafts[0].Notes)
}

// FuzzLibreQoS imports any two texts. Problems have lines, and the customers are as many as the circuits.
func FuzzLibreQoS(f *testing.F) {
	f.Add(goodNetwork, goodHeader+goodRow)
	f.Add(`{"A": {"virtual": true, "children": {"B": {"type": "AP", "x": [1, {"y": null}]}}}}`, goodHeader+"1,B,::1,,1,1,2,2,/none\n")
	f.Fuzz(func(t *testing.T, network, devices string) {
		in, err := importLibreQoS(network, devices)
		if err != nil {
			return
		}
		d := in.Drafts[0]
		for _, p := range d.Problems {
			if p.Line < 1 || p.File == "" {
				t.Errorf("problem without a place: %+v", p)
			}
		}
		out, err := d.Render("fuzz", "")
		switch {
		case err != nil && len(d.Problems) == 0:
			t.Error(err)
		case err == nil && !utf8.ValidString(out.Text):
			t.Errorf("policy %q", out.Text)
		}
	})
}
