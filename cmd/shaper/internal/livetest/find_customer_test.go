package livetest

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLiveFindCustomer looks up one customer with its counters, by name, address and VLAN ID, at the
// interface and through the control socket.
func TestLiveFindCustomer(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	s := newControlSockets(t)
	policy, _ := writeTable(t, "green: pass", setPlans, setTable+"d/e,192.0.2.4 2001:db8:4::/48,ample\n")
	r := p.runShaper(s.flags("--policy", policy, "--direction", "both")...)
	for range 3 {
		p.near.Inject("v0", placements[0].frameOf("192.0.2.3"))
	}
	eventually(t, func() error {
		if n := p.customers("--direction", "egress")["c d"].Packets; n != 3 {
			return fmt.Errorf("%d packets, want 3", n)
		}
		return nil
	})
	for _, by := range [][]string{nil, {"--control", s.write}} {
		show := func(code int, args ...string) (out, errs string) {
			t.Helper()
			return p.wantExit(code, append(append([]string{"stats", "v0", "--customers"}, args...), by...)...)
		}
		for _, tt := range []struct{ search, name, plan string }{
			{"c d", "c d", "large"},
			{"192.0.2.3", "c d", "large"},
			{"d/e", "d/e", "ample"},
			{"192.0.2.4", "d/e", "ample"},
			{"2001:db8:4::1", "d/e", "ample"},
		} {
			out, _ := show(0, tt.search, "--json")
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != 2 {
				t.Fatalf("%v %s: %q, want a line for each direction", by, tt.search, out)
			}
			for i, direction := range []string{"egress", "ingress"} {
				row := decodeJSON[struct {
					Interface, Direction string
					Number               int
					Customers            []customerRow
				}](t, lines[i])
				packets := int64(0)
				if tt.name == "c d" && direction == "egress" {
					packets = 3
				}
				if row.Interface != "v0" || row.Direction != direction || row.Number != 1 ||
					len(row.Customers) != 1 || row.Customers[0].Name != tt.name ||
					row.Customers[0].Plan != tt.plan ||
					row.Customers[0].packetCount != sentPackets(packets) {
					t.Errorf("%v %s: %s, want %s with %d packets at %s", by, tt.search, lines[i], tt.name, packets,
						direction)
				}
			}
		}
		out, _ := show(0, "192.0.2.3", "--direction", "egress")
		if !strings.HasPrefix(out, "v0 egress: 1 customer\n") || !strings.Contains(out, "c d") ||
			strings.Contains(out, "d/e") || strings.Contains(out, "more") {
			t.Errorf("%v: it prints %q", by, out)
		}
		if _, errs := show(1, "CD"); !strings.Contains(errs,
			`v0: no customer has the name or the address CD (did you mean "c d"?)`) {
			t.Errorf("%v: an unknown customer: %q", by, errs)
		}
	}
	if out, _ := p.wantExit(0, "stats", "v0", "--customers", "a", "--by", "rate", "--json"); !strings.Contains(out,
		`"rate_bit_s":0`) {
		t.Errorf("with a rate: %q", out)
	}
	// its definition, and what is in force instead
	show := func(by []string, args ...string) string {
		t.Helper()
		out, _ := p.wantExit(0, append(append([]string{"customer", "show", "v0", "c d"}, args...), by...)...)
		return out
	}
	for _, by := range [][]string{nil, {"--control", s.write}} {
		if out := show(by); !strings.Contains(out, "large") || strings.Contains(out, "changed") {
			t.Errorf("%v: without a change: %q", by, out)
		}
		if out := show(by, "--json"); !strings.Contains(out, `"changes":[]`) {
			t.Errorf("%v: without a change: %q", by, out)
		}
		p.wantExit(0, "set", "v0", "customer", "c d", "plan=small", "--for", "1h")
		p.wantExit(0, "set", "v0", "customer", "a", "off")
		out := show(by)
		if !regexp.MustCompile(`(?m)^  plan      large\n(.*\n)*  changed   customer "c d": plan small, until .*, since .* with shaper set$`).
			MatchString(out) || strings.Contains(out, "off") {
			t.Errorf("%v: with a change: %q", by, out)
		}
		row := decodeJSON[struct {
			Plan    string
			Changes []struct{ Kind, Name, Plan string }
		}](t, show(by, "--json"))
		if row.Plan != "large" || fmt.Sprint(row.Changes) != "[{customer c d small}]" {
			t.Errorf("%v: with a change: %+v", by, row)
		}
		p.wantExit(0, "set", "v0", "customer", "c d", "reset")
		p.wantExit(0, "set", "v0", "customer", "a", "reset")
	}
	p.wantError(2, `unexpected argument "a": a customer needs --customers`, "stats", "v0", "a")
	r.stopBySIGTERM()

	for key, table := range map[string]string{
		"vlan":           "customer,vlan,plan\na,7,small\nb,8 3000,small\n",
		"[svlan, cvlan]": "customer,svlan,cvlan,plan\na,7,9,small\nb,3000,7,small\n",
	} {
		policy := writePolicy(t, "classes: [{name: all, per: customer, meter: plan}]\ncustomers: {file: c.csv, key: "+
			key+"}\nplans:\n"+setPlans)
		rewriteFile(t, filepath.Join(filepath.Dir(policy), "c.csv"), table)
		r := p.runShaper("--policy", policy)
		search := map[string]string{"vlan": "3000", "[svlan, cvlan]": "3000,7"}[key]
		for _, command := range [][]string{{"stats", "v0", "--customers"}, {"customer", "show", "v0"}} {
			if out, _ := p.wantExit(0, append(command, search, "--json")...); !strings.Contains(out, `"name":"b"`) ||
				strings.Contains(out, `"name":"a"`) {
				t.Errorf("%v by %s: %q", command, key, out)
			}
			p.wantError(1, "v0: no customer has the name or the address 9.*", append(command, "9")...)
		}
		r.stopBySIGTERM()
	}
}

// TestLiveComplete completes names of parts of a running shaper, their parameters and plans.
func TestLiveComplete(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	text := strings.Replace(linksPolicy, "classes:\n", "classes:\n  - {name: customers, per: customer, meter: plan}\n", 1)
	policy := writePolicy(t, text+"customers: {file: c.csv}\nplans:"+setPlans)
	rewriteFile(t, filepath.Join(filepath.Dir(policy), "c.csv"), setTable)
	r := p.runShaper("--policy", policy)
	const noSpace = " :38"
	for _, tt := range []struct {
		line, want string // words are separated by |
	}{
		{"set|", "v0 :4"},
		{"set|v0|", "customer link queue :4"},
		{"set|--all|", "customer link queue :4"},
		{"set|v0|cu", "customer :4"},
		{"set|v0|customer|", "a b c d :4"},
		{"set|v0|customer|c", "c d :4"},
		{"set|--all|link|", "ap site :4"},
		{"set|v0|link|", "ap site :4"},
		{"set|v0|queue|", "a b :4"},
		{"set|v0|class|", ":4"},
		{"set|v0|customer|a|", "plan= burst= down= rate= up= off on reset for=" + noSpace},
		{"set|v0|customer|a|rate=1mbit|", "plan= burst= down= up= off on reset for=" + noSpace},
		{"set|v0|customer|a|plan=", "plan=small plan=large plan=ample" + noSpace},
		{"set|v0|customer|a|plan=l", "plan=large" + noSpace},
		{"set|v0|customer|a|r", "rate= reset" + noSpace},
		{"set|v0|link|ap|", "rate= guarantee= priority= weight= down= up= down-guarantee= up-guarantee= reset for=" + noSpace},
		{"stats|v0|--customers|", "a b c d :4"},
		{"stats|v0|--by|", "bytes dropped rate :36"},
		{"customer|show|", "v0 :4"},
		{"customer|show|v0|", "a b c d :4"},
		{"customer|show|--policy|" + policy + "|", "a b c d :4"},
		{"customer|remove|v0|a|", "b c d :4"},
		{"customer|add|v0|x|", "plan= address= burst= down= rate= up= quota= idle=" + noSpace},
		{"customer|add|v0|x|plan=s", "plan=small" + noSpace},
		{"customer|list|v0|--plan|", "small large ample :4"},
		{"customer|list|v0|--plan|a", "ample :4"},
		{"confirm|", "v0 :4"},
		{"reload|", "v0 :4"},
		{"detach|", "v0 :4"},
	} {
		out, _ := p.wantExit(0, append([]string{"__completeNoDesc"}, strings.Split(tt.line, "|")...)...)
		if got := strings.Join(strings.Fields(out), " "); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.line, got, tt.want)
		}
	}
	r.stopBySIGTERM()
}
