package routers

import (
	"slices"
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

// TestReasonsOfConditions checks that the reason for a refused condition is true, and names it by its key in
// policies.
func TestReasonsOfConditions(t *testing.T) {
	t.Parallel()
	for name, dialect := range All {
		if name == "tc" {
			continue // it refuses all classes of customers
		}
		policy := mustCompile(t, "classes: [{name: c, green: drop}]")
		policy.Classes[0].Match.Customer = true
		if problems := dialect.Export(policy, "P").Problems; !slices.ContainsFunc(problems,
			func(p string) bool { return strings.Contains(p, "class c: per: customer") }) {
			t.Errorf("%s: got problems %q, want one of per: customer", name, problems)
		}
	}
	policy := mustCompile(t, "classes: [{name: c, match: {ethertype: mpls}, green: drop}]")
	want := []string{"class c: ethertype: a filter of an IP family has ipv4 and ipv6 only"}
	if problems := All["junos"].Export(policy, "P").Problems; !slices.Equal(problems, want) {
		t.Errorf("junos: got problems %q, want %q", problems, want)
	}
}
