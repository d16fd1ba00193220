package routers

import (
	"strings"
	"testing"
)

// TestForeignEtherTypes checks that a class of packets other than IP is refused, and not widened to
// the IP packets that its other conditions match.
func TestForeignEtherTypes(t *testing.T) {
	t.Parallel()
	for name, dialect := range All {
		for _, match := range []string{
			"proto: udp, ethertype: mpls",
			"src: 192.0.2.0/24, ethertype: pppoe",
			"src: 192.0.2.0/24, ethertype: arp",
			"dport: 53, ethertype: [pppoe, ipv4]",
			"ethertype: mpls",
			"ethertype: arp, length: 0-100",
		} {
			if name == "tc" && match == "ethertype: mpls" {
				continue // filters of tc match any EtherType
			}
			policy := mustCompile(t, "classes: [{name: c, match: {"+match+"}, green: drop}]")
			problems := strings.Join(dialect.Export(policy, "P").Problems, "\n")
			if !strings.Contains(problems, "ethertype") && !strings.Contains(problems, "length") {
				t.Errorf("%s: %s: got problems %q", name, match, problems)
			}
		}
	}
}
