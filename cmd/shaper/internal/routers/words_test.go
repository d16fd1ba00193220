package routers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/routers"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// corpus are configurations by language. Lines that begin with ~ have no effect on packets, or name parts.
// Words with a prime mean the same without it: a router accepts the statement with or without the word.
var corpus = map[string][]string{
	"cisco": {`
~policy-map P
~ class class-default
  police cir' 8000 bc' 1500 be' 3000 conform-action' transmit' exceed-action drop violate-action drop
`, `
~policy-map P
~ class class-default
  police cir' 1 mbps bc' 20 ms pir 2 mbps be 30 ms
   conform-action set-dscp-transmit af11
   exceed-action set-dscp-transmit af12
   violate-action drop'
`, `
~policy-map P
~ class class-default
  police rate' 100 pps burst' 20 packets'
`, `
~policy-map P
~ class class-default
  police' 10000000 1500 1500 transmit'
`, `
~policy-map P
~ class class-default
  set ip' dscp ef
  set cos 5
  shape average' 1000000
  queue-limit 100 packets'
`, `
~class-map match-all D
 match ip dscp ef af11
 match vlan 10 20-22
~policy-map P
~ class D
  drop
`, `
~class-map match-any D
 match cos 5
 match access-group name' L
 match packet length min 10 max 20
 match vlan inner 7
 match protocol arp
~ip access-list extended L
 10' permit tcp host 192.0.2.1 eq 80 any range 1 2
 permit udp 10.0.0.0 0.255.255.255 any dscp ef log'
~policy-map P
~ class D
  police 8000 2500
`, `
~class-map match-all D
 match dscp af41
~policy-map P
~ class D
  priority level 2
  police cir' 8000 bc' 1500
~ class class-default
  bandwidth remaining' percent 30
  queue-limit 50 ms
  fair-queue
`, `
~interface GigabitEthernet0/1
 rate-limit input 8000 1500 1500 conform-action transmit exceed-action drop
`},
	"junos": {`
set firewall' policer p if-exceeding bandwidth-limit 1m burst-size-limit 15k
set firewall' policer p then discard
set firewall' family inet filter F term t from source-address 192.0.2.0/24 destination-port 80
set firewall' family inet filter F term t from protocol tcp
set firewall' family inet filter F term t then policer p
~set firewall' family inet filter F term t then accept
set firewall' family inet filter F term u from dscp ef
set firewall' family inet filter F term u then dscp af11
set firewall' family inet filter F term v then discard
`, `
set firewall' three-color-policer p two-rate color-blind committed-information-rate 1m committed-burst-size 15k
set firewall' three-color-policer p two-rate peak-information-rate 2m peak-burst-size 30k
set firewall' three-color-policer p action loss-priority high then discard
set firewall' family any filter F term t then three-color-policer two-rate p
`},
	"huawei": {`
~traffic classifier c
 if-match dscp ef af11
 if-match vlan-id 10 to 20
~traffic behavior b
 car cir 64 pir 128 cbs 8000 pbs 16000 green' pass' yellow pass' remark-dscp af12 red' discard'
~traffic policy P
 classifier c behavior b precedence 5
`, `
~traffic classifier c
 if-match acl 3000
~acl number 3000
 rule 5' permit tcp source 192.0.2.0 0.0.0.255 destination-port range 80 90
~traffic behavior b
 remark dscp ef
 remark 8021p 5
 gts cir 1000 queue-length 32
~traffic policy P
 classifier c behavior b
`, `
~interface GE1/0/1
 qos lr cir 390 mbps cbs 100 kbytes outbound
 qos car inbound cir 64 cbs 8000 pbs 16000 red remark-8021p 1
`},
	"h3c": {`
~traffic classifier c operator and
 if-match service-dot1p 5
 if-match service-vlan-id 10
~traffic behavior b
 car cir 512 cbs 51200 pir 1024 ebs 4096 yellow remark-dscp-pass af12
~qos policy P
 classifier c behavior b
`, `
~interface GE1
 qos car inbound any' cir 8 cbs 1500 ebs 0 green' pass' red' discard'
`},
	"tc": {`
tc' qdisc add dev eth0 root handle 1: htb default 30 r2q 5
tc' class add dev eth0 parent 1: classid 1:1 htb rate 10mbit overhead 4
tc' class add dev eth0 parent 1:1 classid 1:30 htb rate 3mbit ceil 6mbit prio 2 quantum 3000 overhead 4
tc' qdisc add dev eth0 parent 1:30 fq_codel limit 100 target 10ms interval 50ms noecn
tc' filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.0.0.0/8 match ip protocol 6 0xff flowid 1:30
tc' filter add dev eth0 parent 1: protocol ip prio 2 flower ip_proto udp dst_port 53 action' police rate 1mbit burst 10k conform-exceed drop/ok overhead 4
`, `
tc' qdisc add dev eth0 root tbf rate 10mbit burst 16kb latency 50ms
`, `
tc' qdisc add dev eth0 root cake bandwidth 10mbit besteffort dual-srchost rtt 50ms wash
`},
}

// TestEveryWord adds a word at each place of a corpus, which must be refused, and removes each word, which
// must be refused or change what Import reports.
func TestEveryWord(t *testing.T) {
	t.Parallel()
	for name, texts := range corpus {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := edge{name: name, dialect: routers.All[name]}
			places := 0
			for _, text := range texts {
				plain := strings.NewReplacer("~", "", "'", "").Replace(text)
				before, refused := e.read(t, plain)
				if refused {
					t.Fatalf("%s\n%s", plain, before)
				}
				lines := strings.SplitAfter(text, "\n")
				change := func(i int, words []string) (string, bool) {
					indent := lines[i][:len(lines[i])-len(strings.TrimLeft(lines[i], "~ "))]
					changed := slices.Clone(lines)
					changed[i] = indent + strings.Join(words, " ") + "\n"
					places++
					return e.read(t, strings.NewReplacer("~", "", "'", "").Replace(strings.Join(changed, "")))
				}
				for i, line := range lines {
					words := strings.Fields(line)
					if len(words) == 0 || strings.HasPrefix(line, "~") {
						continue
					}
					for at := range len(words) + 1 {
						added := slices.Insert(slices.Clone(words), at, word)
						if after, refused := change(i, added); !refused {
							t.Errorf("not refused: %q\n%s", added, after)
						}
					}
					for at, w := range words {
						removed := slices.Delete(slices.Clone(words), at, at+1)
						after, refused := change(i, removed)
						if after == before && !refused && !strings.HasSuffix(w, "'") {
							t.Errorf("%q is the same without %q:\n%s", words, w, after)
						}
					}
				}
			}
			t.Logf("%d places", places)
		})
	}
}

// read imports all policies of a configuration, writes what Import reports, and tells whether something was
// refused.
func (e *edge) read(t *testing.T, text string) (out string, refused bool) {
	t.Helper()
	in, err := e.dialect.Import(routers.Source{
		Name: "x", Text: text, Options: routers.Options{Link: meter.BitRate(1e9)},
	})
	if err != nil {
		return err.Error(), true
	}
	refused = len(in.Problems) > 0 || len(in.Drafts) == 0
	for _, d := range in.Drafts {
		refused = refused || len(d.Problems) > 0
		policy, err := d.Render("", "")
		if err != nil {
			return err.Error(), true
		}
		out += fmt.Sprintln(d.Name, d.Problems, comments.ReplaceAllString(policy.Text, ""))
		for _, n := range d.Notes {
			out += n.Reason + "\n"
		}
	}
	return out, refused
}

// TestCommentLines checks that each value is said to be from the line that has it.
func TestCommentLines(t *testing.T) {
	t.Parallel()
	noWords := []string{
		"within the limit", "low loss priority", "medium-high loss priority", "assumed", "normal burst", "all packets",
		"rate 8kbit", "cake's default",
	}
	for name, texts := range corpus {
		for _, text := range texts {
			text = strings.NewReplacer("'", "", "~", "").Replace(text)
			in, err := routers.From(name).Import(
				routers.Source{Text: text, Options: routers.Options{Link: meter.BitRate(1e9)}})
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(text, "\n")
			for _, d := range in.Drafts {
				out, err := d.Render("x", "")
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range out.Conversions {
					if c.Line == 0 || c.Text == "" {
						continue
					}
					own := func(word string) bool { return slices.Contains(strings.Fields(c.Text), word) }
					none := func(text string) bool { return strings.HasPrefix(c.Text, text) }
					words := strings.Fields(lines[c.Line-1])
					if !slices.ContainsFunc(words, own) && !slices.ContainsFunc(noWords, none) {
						t.Errorf("%s\n%q is not of line %d, %q", text, c.Text, c.Line, lines[c.Line-1])
					}
				}
			}
		}
	}
}
