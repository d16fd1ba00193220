package routers

import (
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestPolicies checks whole configurations against policies written by hand: conditions, access
// lists, and the sharing of a link.
func TestPolicies(t *testing.T) {
	t.Parallel()
	const green = "meter: {type: token-bucket, rate: 8kbit, burst: 1500}"
	for _, tt := range []struct{ name, dialect, text, want string }{
		{"addresses and ports", "cisco", `
ip access-list extended L
 10 permit tcp host 192.0.2.1 eq www 10.0.0.0 0.255.255.255 range 5000 5999 log
 20 permit tcp host 192.0.2.1 eq www 172.16.0.0 0.15.255.255 range 5000 5999
 30 deny ip any any
class-map X
 match access-group name L
policy-map P
 class X
  police 8000 1500
`, "classes: [{name: X, match: {proto: tcp, src: 192.0.2.1, sport: 80, dst: [10.0.0.0/8, 172.16.0.0/12], dport: 5000-5999}, " + green + "}]"},
		{"numbered lists", "cisco", `
access-list 10 permit 192.0.2.0 0.0.0.255
access-list 101 permit udp any any gt 1023
class-map match-any X
 match access-group 10
 match access-group 101
policy-map P
 class X
  police 8000 1500
`, "classes: [{name: X-1, match: {src: 192.0.2.0/24}, meter: X}, {name: X-2, match: {proto: udp, dport: 1024-65535, ethertype: ipv4}, meter: X}]\nmeters: {X: {type: token-bucket, rate: 8kbit, burst: 1500}}"},
		{"IPv4 and IPv6 are IP", "cisco", `
ip access-list extended A
 permit tcp any any eq 22
ipv6 access-list B
 permit tcp any any eq 22
class-map match-any X
 match access-group name A
 match access-group name B
policy-map P
 class X
  police 8000 1500
`, "classes: [{name: X, match: {proto: tcp, dport: 22}, " + green + "}]"},
		{"all and any", "cisco", `
class-map match-any VOICE
 match dscp ef
 match precedence 5
class-map match-all X
 match class-map VOICE
 match vlan 10 20-22
 match cos 5
policy-map P
 class X
  police 8000 1500
`, "classes: [{name: X, match: {dscp: [46, 40-47], vlan: [10, 20-22], pcp: 5}, " + green + "}]"},
		{"names that are the same", "cisco", `
class-map X-1
 match cos 1
class-map match-any X
 match dscp ef
 match cos 2
policy-map P
 class X-1
 class X
`, "classes: [{name: X-1, match: {pcp: 1}}, {name: X-1-b, match: {dscp: ef}}, {name: X-2, match: {pcp: 2}}]"},
		{"shares of a link", "cisco", `
class-map V
 match dscp ef
class-map D
 match dscp af41
policy-map P
 class V
  priority
  police cir 8000 bc 1500
 class D
  bandwidth percent 30
  queue-limit 100 ms
 class class-default
  fair-queue
`, `
classes:
  - {name: V, match: {dscp: ef}, meter: {type: token-bucket, rate: 8kbit, burst: 1500}, green: {queue: V}}
  - {name: D, match: {dscp: af41}, green: {queue: D}}
  - {name: class-default, green: {queue: class-default}}
queues:
  V: {link: link, priority: 0, limit: 512p}
  D: {link: link, priority: 1, weight: 3, limit: 100ms}
  class-default: {link: link, priority: 1, weight: 7, limit: 4166p, fair: flow, codel: false}
links: {link: {rate: 1gbit}}
`},
		{"a parent that shapes", "cisco", `
class-map D
 match dscp af41
policy-map CHILD
 class D
  bandwidth 3000
policy-map PARENT
 class class-default
  shape average 10000000
  service-policy CHILD
`, `
classes:
  - {name: D, match: {dscp: af41}, green: {queue: D}}
  - {name: class-default, green: {queue: class-default}}
queues:
  D: {link: link, weight: 3, limit: 64p}
  class-default: {link: link, weight: 7, limit: 64p}
links: {link: {rate: 10mbit}}
`},
		{"percent of the parent, class-default first", "cisco", `
class-map D
 match dscp af41
policy-map CHILD
 class class-default
  set dscp default
 class D
  police cir percent 10 bc 100 ms
  bandwidth remaining ratio 4
policy-map PARENT
 class class-default
  service-policy CHILD
  shape average 10m
`, `
classes:
  - {name: D, match: {dscp: af41}, meter: {type: token-bucket, rate: 1mbit, burst: 12500}, green: {queue: D}}
  - {name: class-default, green: {dscp: be, queue: class-default}}
queues:
  D: {link: link, weight: 4, limit: 64p}
  class-default: {link: link, weight: 1, limit: 64p}
links: {link: {rate: 10mbit}}
`},
		{"show policy-map", "cisco", `
  Policy Map P
    Class class-default
      Average Rate Traffic Shaping
      cir 80%
`, "classes: [{name: class-default, green: {queue: q}}]\nqueues: {q: {rate: 800mbit, limit: 3333p, fair: false}}"},
		{"show policy-map interface", "cisco-show", `
 GigabitEthernet0/1
  Service-policy output: P
    Class-map: V (match-any)
      12 packets, 1200 bytes
      Match:  dscp ef (46)
      Match:  dscp cs5 (40)
      Queueing
      queue limit 32 packets
      (queue depth/total drops/no-buffer drops) 0/0/0
      shape (average) cir 5000000, bc 20000, be 20000
      QoS Set
        dscp af11
          Packets marked 12
      police:
          cir 10 %
          cir 100000000 bps, bc 3125000 bytes
        conformed 10 packets, 1000 bytes; actions:
          transmit
        exceeded 2 packets, 200 bytes; actions:
          set-dscp-transmit af12
        conformed 0000 bps, exceeded 0000 bps
`, "classes: [{name: V, match: {dscp: [ef, cs5]}, meter: {type: token-bucket, rate: 100mbit, burst: 3125000}, green: {dscp: af11, queue: q}, red: {dscp: af12, queue: q}}]\nqueues: {q: {rate: 5mbit, limit: 32p, fair: false}}"},

		{"prefix lists and implicit discard", "junos", `
policy-options { prefix-list L { 192.0.2.0/24; 198.51.100.0/24; } }
firewall {
    policer p { if-exceeding { bandwidth-limit 8k; burst-size-limit 1500; } then discard; }
    filter F {
        term a { from { source-prefix-list { L; } destination-port [ ssh 5000-5999 ]; protocol [ tcp udp ]; } then policer p; }
        term b { from { precedence 5; } then { count c; accept; } }
        inactive: term c { then accept; }
    }
}
`, "classes: [{name: a, match: {src: [192.0.2.0/24, 198.51.100.0/24], proto: [tcp, udp], dport: [22, 5000-5999]}, " + green + "}, {name: b, match: {dscp: 40-47, ethertype: ipv4}}, {name: implicit-discard, match: {ethertype: ipv4}, green: drop}]"},
		{"one policer for all terms", "junos", `
set firewall policer p filter-specific
set firewall policer p if-exceeding bandwidth-limit 8k
set firewall policer p if-exceeding burst-size-limit 1500
set firewall policer p then discard
set firewall family inet6 filter F term a from next-header icmp6
set firewall family inet6 filter F term a then policer p
set firewall family inet6 filter F term b from source-address 2001:db8::/32
set firewall family inet6 filter F term b then policer p
set firewall family inet6 filter F term c then accept
set firewall family inet6 filter F term d then discard
deactivate firewall family inet6 filter F term d
set firewall family inet filter G term d then policer p
delete firewall family inet filter G
`, "classes: [{name: a, match: {proto: icmpv6, ethertype: ipv6}, meter: p}, {name: b, match: {src: \"2001:db8::/32\"}, meter: p}, {name: c, match: {ethertype: ipv6}}]\nmeters: {p: {type: token-bucket, rate: 8kbit, burst: 1500}}"},

		{"rules and operators", "huawei", `
acl number 3000
 description x
 rule 5 permit tcp source 192.0.2.0 0.0.0.255 destination 203.0.113.9 0 destination-port eq www
 rule 10 permit tcp source 192.0.2.0 0.0.0.255 destination 203.0.113.9 0 destination-port range 8000 8080
#
traffic classifier x operator and
 if-match acl 3000
 if-match vlan-id 10 to 12
#
traffic classifier y
 if-match 8021p 5
 if-match 8021p 6
#
traffic behavior b
 car cir 8 pir 8 cbs 1500 pbs 1500
#
traffic behavior s
 gts cir 1000
#
traffic policy P match-order config
 classifier x behavior b
 classifier y behavior s
`, "classes: [{name: x, match: {proto: tcp, src: 192.0.2.0/24, dst: 203.0.113.9, dport: [80, 8000-8080], vlan: 10-12}, " + green + "}, {name: y, match: {pcp: [5, 6]}, green: {queue: q}}]\nqueues: {q: {rate: 1mbit, limit: 64p, fair: false}}"},
		{"precedence", "huawei", `
traffic classifier x
 if-match any
traffic classifier y
 if-match dscp ef
traffic behavior b
 remark 8021p 5
traffic policy P
 classifier x behavior b precedence 20
 classifier y behavior b precedence 10
`, "classes: [{name: y, match: {dscp: ef}, green: {pcp: 5}}, {name: x, green: {pcp: 5}}]"},
		{"rules and operators", "h3c", `
acl basic 2000
 rule 0 permit source 192.0.2.0 0.0.0.255
#
acl ipv6 advanced 3001
 rule 0 permit udp destination 2001:db8:: 32
#
traffic classifier x operator or
 if-match acl 2000
 if-match acl ipv6 3001
#
traffic behavior b
 car cir 8 cbs 1500 ebs 0
#
qos policy P
 classifier x behavior b
`, "classes: [{name: x-1, match: {src: 192.0.2.0/24}, meter: x}, {name: x-2, match: {proto: udp, dst: \"2001:db8::/32\"}, meter: x}]\nmeters: {x: {type: token-bucket, rate: 8kbit, burst: 1500}}"},
		{"an interface", "huawei", "interface GE1\n qos lr cir 2000 cbs 16000 outbound\n", "classes: [{name: all, green: {queue: q}}]\nqueues: {q: {rate: 2mbit, limit: 100ms, fair: false}}"},
		{"a profile", "huawei", "qos car c cir 8 pir 8 cbs 1500 pbs 1500\ninterface GE1\n qos car inbound c\n", "classes: [{name: all, " + green + "}]"},
		{"an interface", "h3c", "interface GE1\n qos car inbound any cir 8 cbs 1500 ebs 0 green pass red discard\n", "classes: [{name: all, " + green + "}]"},
	} {
		in, err := From(tt.dialect).Import(Source{Text: tt.text, Options: Options{Link: meter.BitRate(1e9)}})
		if err != nil {
			t.Errorf("%s, %s: %v", tt.dialect, tt.name, err)
			continue
		}
		d, problems, err := in.Pick("")
		if err != nil || problems != nil {
			t.Errorf("%s, %s: %v %+v", tt.dialect, tt.name, err, problems)
			continue
		}
		out := rendered(t, d)
		if got, want := resolved(mustCompile(t, out)), resolved(mustCompile(t, tt.want)); got != want {
			t.Errorf("%s, %s: got\n%s\nwant\n%s\n%s", tt.dialect, tt.name, got, want, out)
		}
	}
}

// TestCounters checks the counters of show policy-map interface. A platform may print only bytes.
func TestCounters(t *testing.T) {
	t.Parallel()
	text := samples()["cisco-show"]
	text = strings.Replace(text, "conformed 3", "conformed 2", 1) + text // the last output counts
	in, err := From("cisco-show").Import(Source{Text: text})
	if err != nil {
		t.Fatal(err)
	}
	d, _, err := in.Pick("")
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Counters) != 1 || d.Counters[0].Class != "class-default" {
		t.Fatalf("got %+v", d.Counters)
	}
	c := d.Counters[0].Colors
	if *c[0].Packets != 3 || *c[0].Bytes != 300 || c[1].Packets != nil || *c[1].Bytes != 1 || c[2] != nil {
		t.Errorf("got %+v %+v %+v, want 3 packets of 300 bytes, and 1 byte", c[0], c[1], c[2])
	}
}
