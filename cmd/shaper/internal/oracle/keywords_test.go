package oracle

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestKeyWords(t *testing.T) {
	for _, test := range []struct {
		per  string
		a    arrival
		want string
	}{
		{"src", arrival{src: "10.0.0.1", dst: "10.0.0.2"}, "src 10.0.0.1"},
		{"dst", arrival{src: "::1", dst: "2001:db8::2"}, "dst 2001:db8::2"},
		{"src/24", arrival{src: "10.0.0.1", dst: "10.0.0.2"}, "src 10.0.0.0/24"},
		{"src/24", arrival{src: "2001:db8::2", dst: "::1"}, "src 2001:db8::2"},
		{"dst/32,64", arrival{src: "10.0.0.1", dst: "10.0.0.2"}, "dst 10.0.0.2/32"},
		{"dst/32,64", arrival{src: "::1", dst: "2001:db8::2"}, "dst 2001:db8::/64"},
		{"flow", arrival{src: "10.0.0.1", dst: "10.0.0.2"}, "flow 10.0.0.1:53 > 10.0.0.2:53 udp"},
		{"flow", arrival{src: "::1", dst: "::2"}, "flow [::1]:53 > [::2]:53 udp"},
		{"vlan", arrival{src: "::1", dst: "::2", tags: "8100 000c"}, "vlan 12"},
		{"vlan", arrival{src: "::1", dst: "::2"}, ""},
		{"dscp", arrival{src: "::1", dst: "::2", dscp: 46}, "dscp 46"},
	} {
		policy := fmt.Sprintf(`classes: [{name: a, meter: {type: gcra, rate: 8kbit, burst: 1000}, then: k}]
meters:
  k: {type: gcra, rate: 8kbit, burst: 1000, color: aware, per: %q, then: l}
  l: {type: gcra, rate: 8kbit, burst: 1000, color: aware, per: dscp}`, test.per)
		row := decideWith(t, false, policy, "", []arrival{test.a})[0]
		if !strings.HasSuffix(row, "gcra-green,"+test.want) {
			t.Errorf("per %s, %+v: got %s, want the key %q", test.per, test.a, row, test.want)
		}
	}
	a := netip.MustParseAddr("10.0.0.1")
	fragment := frame{src: a, dst: a, proto: 60, sport: 1, dport: 2, fragmented: true, fragmentProto: 17}
	if got, want := keyWords("flow", fragment), "flow 10.0.0.1:0 > 10.0.0.1:0 udp"; got != want {
		t.Errorf("fragment: got %s, want %s", got, want)
	}
}
