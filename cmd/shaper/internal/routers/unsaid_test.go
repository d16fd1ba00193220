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

// TestLengthsOfNoPacket checks that metered lengths are refused if the total length of IPv4 in them is below
// 0, or above 65,535 bytes.
func TestLengthsOfNoPacket(t *testing.T) {
	t.Parallel()
	for name, dialect := range All {
		for rule, list := range map[string][]string{
			"{base: l3, overhead: 20}":     {"0", "0-10", "1-2", "0-19", "5-30", "4294967295"},
			"{base: l2, overhead: 4}":      {"0", "0-17", "5-4294967295"},
			"{base: l3, overhead: 32768}":  {"0-32767", "1-65535"},
			"{base: l3, overhead: -32768}": {"1-65535", "4294967295"},
		} {
			for _, lengths := range list {
				policy := mustCompile(t, "length: "+rule+
					"\nclasses: [{name: c, match: {ethertype: ipv4, length: "+lengths+"}, green: drop}]")
				problems := strings.Join(dialect.Export(policy, "P").Problems, "\n")
				if !strings.Contains(problems, "length") {
					t.Errorf("%s: %s, length %s: got problems %q", name, rule, lengths, problems)
				}
			}
		}
	}
}
