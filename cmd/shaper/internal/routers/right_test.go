package routers

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// TestRightValues checks configurations as people paste them, against policies computed by hand from the
// makers' guides.
func TestRightValues(t *testing.T) {
	t.Parallel()
	const police = "policy-map P\n class class-default\n  police "
	const policer = "set firewall policer p if-exceeding bandwidth-limit 1m burst-size-limit 15k\nset firewall policer p then discard\n"
	all := func(meter string) string { return "classes: [{name: c, meter: {" + meter + "}}]" }
	for _, tt := range []struct{ name, dialect, platform, text, want string }{
		{"NX-OS, bc left out", "cisco", "", police + "cir 256000 conform transmit violate drop\n", all("type: token-bucket, rate: 256kbit, burst: 6400")},
		{"NX-OS, two rates", "cisco", "", police + "cir 1 mbps pir 2 mbps conform transmit exceed transmit violate drop\n", all("type: trtcm, cir: 1mbit, cbs: 25000, pir: 2mbit, pbs: 50000")},
		{"NX-OS by flag", "cisco", "nx-os", police + "cir 256000\n", all("type: token-bucket, rate: 256kbit, burst: 6400")},
		{"NX-OS by the type", "cisco", "", "policy-map type qos P\n class class-default\n  police cir 256000\n", all("type: token-bucket, rate: 256kbit, burst: 6400")},
		{"IOS XR", "cisco", "", police + "rate 10000000 bps burst 125000 bytes\n end-policy-map\n", all("type: token-bucket, rate: 10mbit, burst: 125000")},
		{"IOS XR, two rates", "cisco", "", police + "rate 10 mbps burst 125 kbytes peak-rate 20 mbps peak-burst 250 kbytes\n   conform-action transmit\n   exceed-action set dscp af12\n  !\n !\n end-policy-map\n!\n", "classes: [{name: c, meter: {type: trtcm, cir: 10mbit, cbs: 125000, pir: 20mbit, pbs: 250000}, yellow: {dscp: af12}}]"},
		{"IOS XR, peak-burst alone", "cisco", "", police + "rate 1 mbps burst 10 ms peak-burst 20 ms\n end-policy-map\n", "classes: [{name: c, meter: {type: srtcm, cir: 1mbit, cbs: 1250, ebs: 2500}, yellow: drop}]"},
		{"IOS XR lists", "cisco", "", "ipv4 access-list L\n 10 permit ipv4 192.0.2.0/24 any\n 20 permit tcp any any eq 22\n!\nclass-map match-any X\n match access-group ipv4 L\n match dscp ipv4 ef\n end-class-map\n!\npolicy-map P\n class X\n  police rate 1 mbps burst 1500 bytes\n  !\n !\n class class-default\n !\n end-policy-map\n!\n", "classes: [{name: X-1, match: {src: 192.0.2.0/24}, meter: m}, {name: X-2, match: {ethertype: ipv4, proto: tcp, dport: 22}, meter: m}, {name: X-3, match: {dscp: ef, ethertype: ipv4}, meter: m}, {name: class-default}]\nmeters: {m: {type: token-bucket, rate: 1mbit, burst: 1500}}"},
		{"NCS 5500", "cisco", "ncs5500", police + "rate 100 mbps\n end-policy-map\n", all("type: token-bucket, rate: 100mbit, burst: 125000")},
		{"NCS 5500, two rates", "cisco", "ncs5500", police + "rate 300 mbps peak-rate 500 mbps\n end-policy-map\n", "classes: [{name: c, meter: {type: trtcm, cir: 300mbit, cbs: 375000, pir: 500mbit, pbs: 625000}, yellow: drop}]"},
		{"IOS XR, violate alone", "cisco", "", police + "rate 100 mbps burst 125000 bytes\n   conform-action transmit\n   violate-action drop\n end-policy-map\n", all("type: token-bucket, rate: 100mbit, burst: 125000")},
		{"comments behind statements", "cisco", "", police + "rate 1 mbps burst 1500 bytes   ! one megabit\n   conform-action set dscp ef ! x\n end-policy-map\n", "classes: [{name: c, meter: {type: token-bucket, rate: 1mbit, burst: 1500}, green: {dscp: ef}}]"},
		{"EOS lists", "cisco", "", "ip access-list L\n 10 permit ip 192.0.2.0/24 any\nclass-map type qos match-any X\n match ip access-group L\npolicy-map type quality-of-service P\n class X\n  police rate 1 mbps burst-size 1500 bytes\n", "classes: [{name: X, match: {src: 192.0.2.0/24}, meter: {type: token-bucket, rate: 1mbit, burst: 1500}}]"},
		{"EOS", "cisco", "", "policy-map type quality-of-service P\n   class built-in class-default\n      police rate 10 kbps burst-size 260 kbytes\n", all("type: token-bucket, rate: 10kbit, burst: 260000")},
		{"DEI", "cisco", "", police + "cir 6000000 bc 187500\n   exceed-action set-dei-transmit 1\n", "classes: [{name: c, meter: {type: token-bucket, rate: 6mbit, burst: 187500}, red: {dei: 1}}]"},
		{"CAR without extended burst", "cisco", "", "interface FastEthernet0/1\n rate-limit input 900000 5000 5000 conform-action transmit exceed-action drop\n", all("type: token-bucket, rate: 900kbit, burst: 5000")},
		{"CAR of a list", "cisco", "", "access-list 101 permit udp any any eq 53\ninterface e0\n rate-limit output access-group 101 8000 1500 1500 conform-action transmit exceed-action set-dscp-transmit 8\n rate-limit output 16000 3000 3000 conform-action transmit exceed-action drop\n", "classes: [{name: a, match: {ethertype: ipv4, proto: udp, dport: 53}, meter: {type: token-bucket, rate: 8kbit, burst: 1500}, red: {dscp: cs1}}, {name: b, meter: {type: token-bucket, rate: 16kbit, burst: 3000}}]"},
		{"lists for IPv4 and IPv6 with one name, ipv4", "cisco", "", "ipv4 access-list A\n 10 permit tcp any any\nipv6 access-list A\n 10 permit udp any any\nclass-map match-any C\n match access-group ipv4 A\n end-class-map\npolicy-map P\n class C\n  police rate 10 mbps burst 100000 bytes\n end-policy-map\n", "classes: [{name: C, match: {proto: tcp, ethertype: ipv4}, meter: {type: token-bucket, rate: 10mbit, burst: 100000}}]"},
		{"lists for IPv4 and IPv6 with one name, ipv6", "cisco", "", "ipv4 access-list A\n 10 permit tcp any any\nipv6 access-list A\n 10 permit udp any any\nclass-map match-any C\n match access-group ipv6 A\n end-class-map\npolicy-map P\n class C\n  police rate 10 mbps burst 100000 bytes\n end-policy-map\n", "classes: [{name: C, match: {proto: udp, ethertype: ipv6}, meter: {type: token-bucket, rate: 10mbit, burst: 100000}}]"},
		{"a class beside a shaped class-default", "cisco", "", "class-map V\n match dscp ef\npolicy-map P\n class V\n  police 1000000 31250\n class class-default\n  shape average 5000000\n", "classes: [{name: V, match: {dscp: ef}, meter: {type: token-bucket, rate: 1mbit, burst: 31250}, green: {queue: class-default}}, {name: c, green: {queue: class-default}}]\nqueues: {class-default: {rate: 5mbit, limit: 64p, fair: false}}"},
		{"ranges of codepoints", "cisco", "", "class-map V\n match dscp 10,12-14 af42\npolicy-map P\n class V\n  drop\n", "classes: [{name: V, match: {dscp: [10, 12-14, af42]}, green: drop}]"},
		{"counters of a list", "cisco", "", "ip access-list L\n statistics per-entry\n 10 permit tcp any any eq cmd\nclass-map V\n match access-group name L\npolicy-map P\n class V\n  drop\n", "classes: [{name: V, match: {proto: tcp, dport: 514, ethertype: ipv4}, green: drop}]"},
		{"a text", "cisco", "", "banner motd ^C\npolicy-map X\n class class-default\n  police 9000 1500\n^C\nbanner login # one line #\n" + police + "8000 1500\n", all("type: token-bucket, rate: 8kbit, burst: 1500")},
		{"IOS XR, exceed alone", "cisco", "", police + "rate 10 mbps burst 100000 bytes\n   exceed-action transmit\n end-policy-map\n", "classes: [{name: c, meter: {type: token-bucket, rate: 10mbit, burst: 100000}, red: pass}]"},
		{"a limit in kbytes", "cisco", "ncs5500", "policy-map P\n class class-default\n  shape average 1000000\n  queue-limit 100 kbytes\n", "classes: [{name: c, green: {queue: class-default}}]\nqueues: {class-default: {rate: 1mbit, limit: 100000, fair: false}}"},
		{"with prompts", "cisco", "", "R1(config)#policy-map P\nR1(config-pmap)#class class-default\nR1(config-pmap-c)#police cir 1000000 bc 31250\nR1(config-pmap-c-police)#conform-action transmit\nR1(config-pmap-c-police)#exceed-action drop\n", all("type: token-bucket, rate: 1mbit, burst: 31250")},
		{"with prompts of IOS XR", "cisco", "", "RP/0/RSP0/CPU0:r1(config)#policy-map P\nRP/0/RSP0/CPU0:r1(config-pmap)#class class-default\nRP/0/RSP0/CPU0:r1(config-pmap-c)#police rate 1 mbps burst 5000 bytes\nRP/0/RSP0/CPU0:r1(config-pmap-c)#end-policy-map\n", all("type: token-bucket, rate: 1mbit, burst: 5000")},

		{"a comment in a list", "cisco", "", "ip access-list extended W\n permit tcp any any eq 80\n! also https\n permit tcp any any eq 443\nclass-map W\n match access-group name W\npolicy-map P\n class W\n  drop\n", "classes: [{name: W, match: {proto: tcp, ethertype: ipv4, dport: [80, 443]}, green: drop}]"},
		{"lines of the terminal", "cisco", "", "class-map match-any V\n match dscp ef\n--More--\n match dscp cs3\n*Mar  1 00:05:11.123: %LINK-3-UPDOWN: Interface e0, changed state to up\n match dscp af11\n# x\n match dscp af12\npolicy-map P\n class V\n  drop\n! signalling\n class class-default\n  set dscp 8\n", "classes: [{name: V, match: {dscp: [ef, cs3, af11, af12]}, green: drop}, {name: rest, green: {dscp: cs1}}]"},
		{"descriptions without indentation", "cisco", "", "class-map match-any V\ndescription foo\nmatch dscp ef\ndescription bar\nmatch dscp cs3\npolicy-map P\nclass V\ndrop\n", "classes: [{name: V, match: {dscp: [ef, cs3]}, green: drop}]"},
		{"IOS XR, a class map without operator", "cisco", "", "class-map V\n match dscp ef\n match cos 5\n end-class-map\npolicy-map P\n class V\n  drop\n end-policy-map\n", "classes: [{name: V-1, match: {dscp: ef}, green: drop}, {name: V-2, match: {pcp: 5}, green: drop}]"},
		{"IOS XR, a limit in packets", "cisco", "ncs5500", "policy-map P\n class class-default\n  shape average 100 mbps\n  queue-limit 1000 packets\n", "classes: [{name: c, green: {queue: class-default}}]\nqueues: {class-default: {rate: 100mbit, limit: 256000, fair: false}}"},
		{"IOS XE, no queue-limit", "cisco", "", "policy-map P\n class class-default\n  shape average 100000000\n", "classes: [{name: c, green: {queue: class-default}}]\nqueues: {class-default: {rate: 100mbit, limit: 416p, fair: false}}"},
		{"a banner", "cisco", "", "banner motd #\nUnauthorized access\nprohibited.#\n" + police + "8000 1500\n", all("type: token-bucket, rate: 8kbit, burst: 1500")},
		{"sequence numbers", "cisco", "", "ip access-list extended A\n 20 permit udp any any eq 53\n 10 permit tcp any any eq 80\n permit tcp any any eq 81\nclass-map V\n match access-group name A\npolicy-map P\n class V\n  drop\n", "classes: [{name: V-1, match: {proto: tcp, ethertype: ipv4, dport: 80}, green: drop}, {name: V-2, match: {proto: udp, ethertype: ipv4, dport: 53}, green: drop}, {name: V-3, match: {proto: tcp, ethertype: ipv4, dport: 81}, green: drop}]"},
		{"packets per second of IOS", "cisco", "", police + "rate 100 pps burst 20 packets peak-rate 200 pps peak-burst 40 packets\n", "classes: [{name: c, meter: {type: trtcm, cir: 100p/1s, cbs: 20, pir: 200p/1s, pbs: 40, count: packets}, yellow: drop}]"},
		{"CAR without indentation", "cisco", "", "int GigabitEthernet0/0\nrate-limit output 8000000 16000 16000 conform-action transmit exceed-action drop\n", all("type: token-bucket, rate: 8mbit, burst: 16000")},
		{"an abbreviated list", "cisco", "", "ip access-list ext A\n permit tcp any any eq 80\nclass-map V\n match access-group name A\npolicy-map P\n class V\n  drop\n", "classes: [{name: V, match: {proto: tcp, ethertype: ipv4, dport: 80}, green: drop}]"},
		{"class maps in class maps", "cisco", "", "class-map match-any A\n match dscp 10\n match dscp 12\n match dscp 14\nclass-map match-any B\n match class-map A\n match dscp 46\nclass-map match-any C\n match class-map A\n match dscp 0\nclass-map match-any D\n match class-map B\n match class-map C\npolicy-map P\n class D\n  drop\n", "classes: [{name: D, match: {dscp: [0, 10, 12, 14, 46]}, green: drop}]"},
		{"a statement behind the pager", "cisco", "", "policy-map P\n class class-default\n --More-- \b\b\b\b\b\b\b\b\b         \b\b\b\b\b\b\b\b\b  police cir 1000000 bc 1500\n", all("type: token-bucket, rate: 1mbit, burst: 1500")},
		{"the pager without what removes it", "cisco", "", "policy-map P\n class class-default\n <--- More --->   police cir 1000000 bc 1500\n", all("type: token-bucket, rate: 1mbit, burst: 1500")},
		{"banners of other kinds", "cisco", "", "parameter-map type webauth global\n banner file flash:login.html\n" + police + "8000 1500\n", all("type: token-bucket, rate: 8kbit, burst: 1500")},
		{"names of other kinds", "cisco", "", "hostname R1\nrouter isis 1\n hostname dynamic\n" + police + "8000 1500\n", all("type: token-bucket, rate: 8kbit, burst: 1500")},
		{"a command between", "cisco", "", "R1#sh run | s class-map\nclass-map match-any A\nmatch dscp ef\nR1#sh clock\nR1#sh run | s policy-map\npolicy-map P\nclass A\ndrop\nR1#sh clock\n", "classes: [{name: A, match: {dscp: ef}, green: drop}]"},
		{"a list named like a kind", "cisco", "", "ip access-list EXT\n 10 permit tcp any any eq 80\n exit\nclass-map A\n match access-group name EXT\n exit\npolicy-map P\n class A\n  drop\n", "classes: [{name: A, match: {proto: tcp, ethertype: ipv4, dport: 80}, green: drop}]"},
		{"an interface behind a class map", "cisco", "", "R1(config-if)#class-map match-any V\nR1(config-cmap)#match dscp ef\nR1(config-cmap)#interface Gi0/1\nR1(config-if)#ip address 2.2.2.2 255.0.0.0\nR1(config-if)#policy-map P\nR1(config-pmap)#class V\nR1(config-pmap-c)#drop\n", "classes: [{name: V, match: {dscp: ef}, green: drop}]"},
		{"parts of other statements", "cisco", "", "arp access-list DAI\n permit ip host 10.1.1.1 mac host 0000.1111.2222\nip dhcp pool X\n class C1\n  address range 10.0.0.10 10.0.0.20\nroute-map X permit 10\n match ip address prefix-list P\n set mpls-label\npolicy-map type inspect ZP\nclass type inspect C1\ninspect\nclass class-default\ndrop log\n" + police + "8000 1500\n", all("type: token-bucket, rate: 8kbit, burst: 1500")},
		{"prompts of several depths", "cisco", "", "R1(config)#class-map A\nR1(config-cmap)#match dscp ef\nR1(config-ext-nacl)#policy-map P\nR1(config-pmap)#class A\nR1(config-pmap-c)#set cos 3\nR1(config-pmap-c)#set dscp 8\n", "classes: [{name: A, match: {dscp: ef}, green: {pcp: 3, dscp: 8}}]"},
		{"peak-rate of IOS", "cisco", "", "class-map A\n match dscp 10\n match cos 1\npolicy-map P\n class A\n  police rate 1000000 bps burst 10000 bytes peak-rate 2000000 bps peak-burst 20000 bytes\n", "classes: [{name: A, match: {dscp: 10, pcp: 1}, meter: {type: trtcm, cir: 1mbit, cbs: 10000, pir: 2mbit, pbs: 20000}, yellow: drop}]"},
		{"braces below a level", "junos", "", policer + "[edit firewall family inet6]\nfilter f {\n    term t {\n        then policer p;\n    }\n}\n", "classes: [{name: t, match: {ethertype: ipv6}, meter: {type: token-bucket, rate: 1mbit, burst: 15000}}]"},
		{"icmp behind IPv6", "junos", "", "set firewall family inet6 filter f term t from next-header icmp\nset firewall family inet6 filter f term t then discard\nset firewall family inet6 filter f term z then accept\n", "classes: [{name: t, match: {ethertype: ipv6, proto: icmp}, green: drop}, {name: z, match: {ethertype: ipv6}}]"},
		{"run show below a level", "junos", "", "[edit interfaces ge-0/0/0 unit 0]\nuser@r# run show configuration firewall\npolicer p {\n    if-exceeding {\n        bandwidth-limit 1m;\n        burst-size-limit 2k;\n    }\n    then discard;\n}\n", all("type: token-bucket, rate: 1mbit, burst: 2000")},
		{"a whole hierarchy below a level", "junos", "", "[edit firewall]\nfirewall {\n    policer p {\n        if-exceeding {\n            bandwidth-limit 1m;\n            burst-size-limit 2k;\n        }\n        then discard;\n    }\n}\n", all("type: token-bucket, rate: 1mbit, burst: 2000")},
		{"groups of routing engines", "junos", "", policer + "set groups re0 interfaces fxp0 unit 0 family inet filter input F\n", all("type: token-bucket, rate: 1mbit, burst: 15000")},
		{"deletion of a part with a known name", "junos", "", "set firewall family inet filter f term t then count p-tcp\nset firewall family inet filter f term t then accept\ndelete firewall family inet filter f term p-tcp\n", "classes: [{name: t, match: {ethertype: ipv4}}]"},
		{"other logical systems", "junos", "", "set policy-options community C members 1:1\nset logical-systems A firewall policer p if-exceeding bandwidth-limit 1m burst-size-limit 15k\nset logical-systems A firewall policer p then discard\nset system syslog file messages firewall any\nset groups G system syslog file messages firewall any\n", all("type: token-bucket, rate: 1mbit, burst: 15000")},
		{"default-class is the last", "huawei", "s7700", "traffic classifier c\n if-match dscp ef\ntraffic behavior d\n deny\ntraffic behavior b\n car cir 64 pir 128 cbs 8000 pbs 16000\ntraffic policy P\n classifier default-class behavior d\n classifier c behavior b\n", "classes: [{name: c, match: {dscp: ef}, meter: {type: trtcm, cir: 64kbit, cbs: 8000, pir: 128kbit, pbs: 16000}}, {name: rest, green: drop}]"},
		{"NE, IPv4 only", "huawei", "ne", "traffic classifier c\n if-match dscp ef\n if-match ipv6 any\ntraffic behavior d\n deny\ntraffic policy P\n classifier c behavior d\n", "classes: [{name: a, match: {dscp: ef, ethertype: ipv4}, green: drop}, {name: b, match: {ethertype: ipv6}, green: drop}]"},
		{"NE, pir 0", "huawei", "ne", "traffic classifier c\n if-match any\ntraffic behavior b\n car cir 1000 pir 0 cbs 187000 pbs 0\ntraffic policy P\n classifier c behavior b\n", "classes: [{name: c, match: {ethertype: ipv4}, meter: {type: token-bucket, rate: 1mbit, burst: 187000}}]"},
		{"lines of the terminal", "huawei", "", "[HUAWEI] traffic classifier c operator or\n[HUAWEI-classifier-c] if-match dscp ef\nInfo: This operation may take a few seconds.\n[HUAWEI-classifier-c] if-match dscp af41\n[HUAWEI-classifier-c] commit\n[HUAWEI-classifier-c] quit\n[HUAWEI] traffic behavior b\nJul  1 2024 10:00:00 HUAWEI %%01SHELL/5/CMDRECORD(s)[3]: x\n[HUAWEI-behavior-b] deny\n[HUAWEI] traffic policy p\n[HUAWEI-trafficpolicy-p] classifier c behavior b\n", "classes: [{name: c, match: {dscp: [ef, af41]}, green: drop}]"},
		{"descriptions without indentation, of Huawei", "huawei", "", "traffic classifier c\nif-match dscp ef\ndescription x\nif-match dscp af41\ntraffic behavior b\ndeny\ntraffic policy P\nclassifier c behavior b\n", "classes: [{name: c, match: {dscp: [ef, af41]}, green: drop}]"},
		{"route policies", "huawei", "", "route-policy RP permit node 10\n if-match ip-prefix P1\n if-match acl 2000\n apply cost 10\n#\nrole name ops\n rule 1 permit read feature\n#\ntraffic classifier c\n if-match dscp ef\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n", "classes: [{name: c, match: {dscp: ef}, green: drop}]"},
		{"a pager in lines of Windows", "huawei", "", "traffic classifier c\r\n if-match dscp ef\r\n#\r\ntraffic behavior b\r\n  ---- More ----\x1b[42D   \x1b[42D deny\r\n#\r\ntraffic policy P\r\n classifier c behavior b\r\n", "classes: [{name: c, match: {dscp: ef}, green: drop}]"},
		{"a list with the number of a router", "huawei", "", "acl name web advance number 42768\n rule 5 permit tcp destination-port eq 80\n#\ntraffic classifier c\n if-match acl name web\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n", "classes: [{name: c, match: {proto: tcp, dport: 80, ethertype: ipv4}, green: drop}]"},
		{"lists of other kinds", "huawei", "", "acl name x ucl 6001\n rule 5 permit\nacl ip-pool p1\nacl number 10001\n rule 5 permit\ntraffic classifier c\n if-match dscp ef\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n", "classes: [{name: c, match: {dscp: ef}, green: drop}]"},
		{"several leaves", "junos", "", "set firewall policer p if-exceeding bandwidth-limit 1m burst-size-limit 15k\nset firewall policer p then discard\nset firewall family inet filter f term t then policer p\n", "classes: [{name: t, match: {ethertype: ipv4}, meter: {type: token-bucket, rate: 1mbit, burst: 15000}}]"},
		{"several leaves of a term", "junos", "", "set firewall family inet filter f term t from protocol [ tcp udp ] destination-port 22 source-address 192.0.2.0/24\nset firewall family inet filter f term t then count c policer p accept\nset firewall policer p if-exceeding burst-size-limit 15k bandwidth-limit 1m\nset firewall policer p then discard\nset firewall family inet filter f term u then accept\n", "classes: [{name: t, match: {proto: [tcp, udp], dport: 22, src: 192.0.2.0/24}, meter: {type: token-bucket, rate: 1mbit, burst: 15000}}, {name: u, match: {ethertype: ipv4}}]"},
		{"show at a level", "junos", "", "[edit firewall]\nuser@host# show\npolicer TEST {\n    if-exceeding {\n        bandwidth-limit 900m;\n        burst-size-limit 128k;\n    }\n    then discard;\n}\nfamily inet {\n    filter F {\n        term T {\n            then policer TEST;\n        }\n    }\n}\n", "classes: [{name: T, match: {ethertype: ipv4}, meter: {type: token-bucket, rate: 900mbit, burst: 128000}}]"},
		{"show of a part", "junos", "", "[edit]\nuser@host# show firewall policer p | no-more\nif-exceeding {\n    bandwidth-limit 1m;\n    burst-size-limit 2k;\n}\nthen discard;\n\n[edit]\nuser@host# show firewall family inet\nfilter F {\n    term T {\n        then policer p;\n    }\n}\n", "classes: [{name: T, match: {ethertype: ipv4}, meter: {type: token-bucket, rate: 1mbit, burst: 2000}}]"},
		{"set at a level, with prompts", "junos", "", "[edit firewall policer p]\nuser@host# set if-exceeding bandwidth-limit 1m burst-size-limit 2k\n\n[edit firewall policer p]\nuser@host# set then discard\n\n[edit firewall policer p]\nuser@host# up 1\n", all("type: token-bucket, rate: 1mbit, burst: 2000")},
		{"ranges of protocols", "junos", "", "set firewall family inet filter f term t from protocol [ 2-5 17 ]\nset firewall family inet filter f term t then discard\n", "classes: [{name: t, match: {ethertype: ipv4, proto: [2-5, 17]}, green: drop}, {name: rest, match: {ethertype: ipv4}, green: drop}]"},
		{"any address", "junos", "", "set firewall family inet6 filter f term t from source-address ::/0\nset firewall family inet6 filter f term t then accept\n", "classes: [{name: t, match: {ethertype: ipv6}}, {name: rest, match: {ethertype: ipv6}, green: drop}]"},
		{"policer of an interface", "junos", "", "set firewall policer p if-exceeding bandwidth-limit 1m burst-size-limit 2k\nset firewall policer p then discard\nset interfaces ge-0/0/0 unit 0 family inet policer input p\n", "classes: [{name: p, match: {ethertype: ipv4}, meter: {type: token-bucket, rate: 1mbit, burst: 2000}}]"},

		{"a policer of two families of an interface", "junos", "", "set firewall policer p if-exceeding bandwidth-limit 1m burst-size-limit 15k\nset firewall policer p then discard\nset firewall policer p logical-interface-policer\nset interfaces ge-0/0/0 unit 0 family inet policer input p\nset interfaces ge-0/0/0 unit 0 family inet6 policer input p\n", "meters: {p: {type: token-bucket, rate: 1mbit, burst: 15000}}\nclasses: [{name: a, match: {ethertype: ipv4}, meter: p}, {name: b, match: {ethertype: ipv6}, meter: p}]"},
		{"physical-interface-policer", "junos", "", "set firewall policer p if-exceeding bandwidth-limit 1m burst-size-limit 15k\nset firewall policer p then discard\nset firewall policer p physical-interface-policer\nset firewall family inet filter F physical-interface-filter\nset firewall family inet filter F term a from protocol tcp\nset firewall family inet filter F term a then policer p\nset firewall family inet filter F term b then policer p\n", "meters: {p: {type: token-bucket, rate: 1mbit, burst: 15000}}\nclasses: [{name: a, match: {proto: tcp, ethertype: ipv4}, meter: p}, {name: b, match: {ethertype: ipv4}, meter: p}]"},
		{"hexadecimal codepoints", "junos", "", "set firewall family inet filter f term t from dscp 0x10\nset firewall family inet filter f term t then discard\nset firewall family inet filter f term u then accept\n", "classes: [{name: t, match: {dscp: 16, ethertype: ipv4}, green: drop}, {name: u, match: {ethertype: ipv4}}]"},

		{"predefined by H3C", "h3c", "", "traffic behavior d\n filter deny\nqos policy P\n classifier ef behavior be\n classifier ip-prec1 behavior d\n classifier default-class behavior be\n", "classes: [{name: ef, match: {dscp: ef}}, {name: p, match: {dscp: 8-15}, green: drop}, {name: rest}]"},
		{"the command behind top", "junos", "", policer + "edit firewall family inet filter f\nset term a then policer p\ntop set firewall policer p if-exceeding bandwidth-limit 5m\nset term a from protocol tcp\n", "classes: [{name: a, match: {ethertype: ipv4, proto: tcp}, meter: {type: token-bucket, rate: 5mbit, burst: 15000}}, {name: rest, match: {ethertype: ipv4}, green: drop}]"},
		{"exit and up", "junos", "", "edit firewall policer p\nset if-exceeding bandwidth-limit 1m burst-size-limit 15k\nset then discard\nup\nedit family inet filter f term t\nexit\nexit\nset firewall family inet filter g term t then policer p\n", "classes: [{name: t, match: {ethertype: ipv4}, meter: {type: token-bucket, rate: 1mbit, burst: 15000}}]"},
		{"deletion of a list", "junos", "", "set firewall family inet filter f term t from protocol [ tcp udp ]\nset firewall family inet filter f term t then discard\nset firewall family inet filter f term z then accept\ndelete firewall family inet filter f term t from protocol [ tcp udp ]\n", "classes: [{name: t, match: {ethertype: ipv4}, green: drop}, {name: z, match: {ethertype: ipv4}}]"},
		{"the last terminating action", "junos", "", "set firewall family inet filter f term t then discard\nset firewall family inet filter f term t then accept\n", "classes: [{name: t, match: {ethertype: ipv4}}]"},
		{"the last policer", "junos", "", policer + "set firewall family inet filter f term t then policer q\nset firewall family inet filter f term t then policer p\n", "classes: [{name: t, match: {ethertype: ipv4}, meter: {type: token-bucket, rate: 1mbit, burst: 15000}}]"},
		{"prompts of EX", "junos", "", "{master:0}[edit]\nuser@switch# show firewall\npolicer p {\n    if-exceeding {\n        bandwidth-limit 1m;\n        burst-size-limit 2k;\n    }\n    then discard;\n}\n", all("type: token-bucket, rate: 1mbit, burst: 2000")},
		{"display set at a level", "junos", "", "[edit firewall]\nuser@host# show | display set\n" + policer, all("type: token-bucket, rate: 1mbit, burst: 15000")},
		{"names in quotes", "junos", "", "set firewall family inet filter f term \"my term\" from protocol tcp\nset firewall family inet filter f term \"my term\" then discard\nset firewall family inet filter f term z then accept\n", "classes: [{name: my term, match: {ethertype: ipv4, proto: tcp}, green: drop}, {name: z, match: {ethertype: ipv4}}]"},
		{"permit behind deny", "huawei", "", "traffic classifier c\n if-match dscp ef\ntraffic behavior b\n deny\n permit\ntraffic policy P\n classifier c behavior b\n", "classes: [{name: c, match: {dscp: ef}}]"},
		{"a platform in a description", "huawei", "", "sysname NE40E-1\ninterface GE1/0/0\n description to-S9306\n qos car cir 1000 inbound\n", all("type: token-bucket, rate: 1mbit, burst: 187000")},
		{"a list of a vty", "huawei", "", "acl number 2000 name x\n rule 5 permit source 10.0.0.0 0.0.0.255\n#\ntraffic classifier c\n if-match acl name x\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n#\nuser-interface vty 0 4\n acl 2000 inbound\n authentication-mode aaa\n", "classes: [{name: c, match: {src: 10.0.0.0/24}, green: drop}]"},
		{"statistics before car", "huawei", "s7700", "traffic classifier c\nif-match any\ntraffic behavior b\nstatistics enable\ncar cir 64 cbs 8000 pbs 16000\ntraffic policy P\nclassifier c behavior b\n", all("type: trtcm, cir: 64kbit, cbs: 8000, pir: 64kbit, pbs: 16000")},
		{"marks of changes", "junos", "", "firewall {\n    replace: policer p {\n        if-exceeding {\n            bandwidth-limit 1m;\n            burst-size-limit 2k;\n        }\n        protect: then discard;\n    }\n}\n", all("type: token-bucket, rate: 1mbit, burst: 2000")},
		{"units of CloudEngine", "huawei", "", "interface GE1/0/1\n qos car cir 390 mbps cbs 100 kbytes pbs 200 kbytes inbound\n", all("type: trtcm, cir: 390mbit, cbs: 100000, pir: 390mbit, pbs: 200000")},
		{"CloudEngine", "huawei", "ce", "interface GE1/0/1\n qos car inbound cir 10000\n", all("type: token-bucket, rate: 10mbit, burst: 80000")},
		{"CloudEngine, pbs left out", "huawei", "ce", "interface GE1/0/1\n qos car inbound cir 10000 cbs 20000\n", all("type: token-bucket, rate: 10mbit, burst: 20000")},
		{"CloudEngine, the smallest burst", "huawei", "ce", "interface GE1/0/1\n qos lr inbound cir 100\n", all("type: token-bucket, rate: 100kbit, burst: 10000")},
		{"S5700, the smallest burst", "huawei", "s5700", "interface GE1/0/1\n qos car inbound cir 16\n", all("type: trtcm, cir: 16kbit, cbs: 4000, pir: 16kbit, pbs: 5008")},
		{"S5700 by its name", "huawei", "", "sysname S5720-EI\ninterface GE1/0/1\n qos car inbound cir 64\n", all("type: trtcm, cir: 64kbit, cbs: 12032, pir: 64kbit, pbs: 20032")},
		{"S7700, the smallest burst", "huawei", "s7700", "interface GE1/0/1\n qos car inbound cir 16 pir 160\n", all("type: trtcm, cir: 16kbit, cbs: 10000, pir: 160kbit, pbs: 20000")},
		{"NE, one bucket", "huawei", "ne", "interface GE1/0/1\n qos car cir 1000 inbound\n", all("type: token-bucket, rate: 1mbit, burst: 187000")},
		{"NE, the largest burst", "huawei", "ne", "interface GE1/0/1\n qos car cir 200000 pir 300000 inbound\n", all("type: trtcm, cir: 200mbit, cbs: 18700000, pir: 300mbit, pbs: 18700000")},
		{"with prompts", "huawei", "s7700", "<HUAWEI> system-view\n[HUAWEI] traffic classifier c1\n[HUAWEI-classifier-c1] if-match any\n[HUAWEI-classifier-c1] quit\n[HUAWEI] traffic behavior b1\n[HUAWEI-behavior-b1] car cir 64 cbs 8000 pbs 16000\n[HUAWEI-behavior-b1] quit\n[HUAWEI] traffic policy P\n[HUAWEI-trafficpolicy-P] classifier c1 behavior b1\n", all("type: trtcm, cir: 64kbit, cbs: 8000, pir: 64kbit, pbs: 16000")},
		{"CloudEngine, type and", "huawei", "", "traffic classifier c1 type and\n if-match 8021p 2\n if-match vlan 10\ntraffic behavior b1\n car cir 2000 kbps pir 10000 kbps cbs 20000 bytes pbs 100000 bytes\n statistics enable\ntraffic policy P\n statistics enable\n classifier c1 behavior b1 precedence 5\n", "classes: [{name: c, match: {pcp: 2, vlan: 10}, meter: {type: trtcm, cir: 2mbit, cbs: 20000, pir: 10mbit, pbs: 100000}}]"},
		{"a list with a name and a number", "huawei", "", "acl name x 3000\n rule 5 permit ip source 192.0.2.0 0.0.0.255\ntraffic classifier c\n if-match acl 3000\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n", "classes: [{name: c, match: {src: 192.0.2.0/24}, green: drop}]"},
		{"percent, bursts in ms", "h3c", "", "traffic classifier c\n if-match any\n#\ntraffic behavior b\n car cir percent 20 cbs 100 pir percent 40 ebs 200\n#\nqos policy P\n classifier c behavior b\n", all("type: trtcm, cir: 200mbit, cbs: 2500000, pir: 400mbit, pbs: 5000000")},
		{"inner tags", "h3c", "", "traffic classifier c\n if-match customer-vlan-id 7\n#\ntraffic behavior b\n filter deny\n#\nqos policy P\n classifier c behavior b\n", "classes: [{name: c, match: {inner-vlan: 7}, green: drop}]"},
		{"S5130", "h3c", "s5130", "interface GE1\n qos car inbound any cir 10000\n", all("type: srtcm, cir: 10mbit, cbs: 625152, ebs: 512")},
		{"MSR", "h3c", "msr", "interface GE1\n qos car inbound any cir 8\n", all("type: token-bucket, rate: 8kbit, burst: 1875")},
	} {
		in, err := From(tt.dialect).Import(Source{
			Name: "x", Text: tt.text, Options: Options{Link: meter.BitRate(1e9), Platform: tt.platform},
		})
		if err != nil {
			t.Errorf("%s, %s: %v", tt.dialect, tt.name, err)
			continue
		}
		d, problems, err := in.Pick("")
		if err != nil || problems != nil {
			t.Errorf("%s, %s: %v %v", tt.dialect, tt.name, err, problems)
			continue
		}
		nameless := func(text string) string {
			p := mustCompile(t, text)
			for i := range p.Classes {
				p.Classes[i].Name = "class"
			}
			return resolved(p)
		}
		out := rendered(t, d)
		if got, want := nameless(out), nameless(tt.want); got != want {
			t.Errorf("%s, %s: got\n%s\nwant\n%s\n%s", tt.dialect, tt.name, got, want, out)
		}
	}
}

// TestRefusals checks statements whose import would mean another limit.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const class = "policy-map P\n class class-default\n  "
	const policer = "set firewall policer p if-exceeding bandwidth-limit 1m burst-size-limit 15k\nset firewall policer p then discard\n"
	for _, tt := range []struct {
		dialect, text string
		line          int
		want          string
	}{
		{"cisco", class + "shape average 10000000 account user-defined 18\n", 3, "account adds bytes"},
		{"cisco", class + "shape average 10000000 account qinq aal5 snap-rbe\n", 3, "account adds bytes"},
		{"cisco", class + "police cir 8000 bc 1500 account user-defined 4\n", 3, "account adds bytes"},
		{"cisco", class + "shape average 10000000 foo bar\n", 3, `"foo" is not`},
		{"cisco", class + "shape average 1000000\n  queue-limit 100 packets foo\n", 4, `"foo" is not understood`},
		{"cisco", class + "police cir 8000000\nbc 100000 conform-action transmit exceed-action drop\n", 4, "the rest of the line"},
		{"cisco", "policy-map P\nclass class-default\npol cir 8000000\n", 3, "abbreviated"},
		{"cisco", "policy-map P\n cl V\n  police cir 8000000\n", 2, "not understood"},
		{"cisco", "class-map match-any V\nmatch dscp ef\nno match dscp ef\nmatch dscp cs3\n", 3, "no changes"},
		{"cisco", "ip access-list extended A\npermit tcp any any eq 80\nno permit tcp any any eq 80\n", 3, "no changes"},
		{"cisco", "ip access-list extended A\npermit tcp any any eq 80\nevaluate X\n", 3, "not understood"},
		{"cisco", "policy-map P\nclass class-default\npolice rate 10 mbps burst 125000 bytes\nchild-conform-aware\nend-policy-map\n", 4, "not understood"},
		{"cisco", class + "police rate 100 mbps\n end-policy-map\npolicy-map type qos Q\n", 3, "burst is left out"},
		{"cisco", class + "bandwidth percent 30\n  bandwidth remaining percent 60\n", 4, "already, in line 3"},
		{"cisco", class + "priority level 1\n  bandwidth 10000\n", 4, "already, in line 3"},
		{"cisco", "class-map T\n match protocol l2tp\npolicy-map P\n class T\n  drop\n", 4, "NBAR"},
		{"cisco", "ip access-list extended A\n 10 permit tcp any any\n 10 permit udp any any\nclass-map V\n match access-group name A\npolicy-map P\n class V\n  drop\n", 7, "number of the entry in line 2"},
		{"cisco", "mac access-list extended M\n permit host 0000.0000.0001 any\nclass-map V\n match access-group name M\npolicy-map P\n class V\n  drop\n", 6, "list of frames"},
		{"cisco", "class-map match-all V\n match dscp ef\nclass-map match-any V\n match cos 5\n", 3, "is also match-all"},
		{"cisco", "hostname R1\n" + class + "police 8000 1500\nhostname R2\n", 5, "another router"},
		{"cisco", class + "shape average 10000000\n  service-policy CHILD\n", 4, "if its policy map is there"},
		{"cisco", "interface ATM0/0/0\n pvc 0/38\n  vbr-nrt 832 832 1\n", 3, outsideReason},
		{"cisco", "tunnel tos 46\n", 1, outsideReason},
		{"cisco", "ip access-list extended A\n permit tcp 10.0.0.0 0.0.0.255 any\neq 443\n", 3, "the rest of the line"},
		{"cisco", "class-map A\nmatch dscp ef\npolicy-map P\nclass A\nstrange\nset cos 5\n", 6, "in no policy map"},
		{"cisco", "R1(config-pmap-c-police)#ip access-list extended A\nR1(config-ext-nacl)#permit tcp any any eq 80\nR1(config-ext-nacl)#interface Gi0/0\nR1(config-if)#traffic-shape rate 1000000\n", 4, outsideReason},
		{"cisco-show", " GigabitEthernet0/0\n  Service-policy output: P\n    Class-map: V (match-any)\n      Match: dscp ef (46)\n      Priority: 1000 kbps, burst bytes 25000, b/w exceed drops: 0\n      Priority Level: 1\n", 5, "only while the interface is congested"},
		{"cisco", class + "shape average 1000000\n  queue-limit 70000 packets\n", 4, "above 65536 packets"},
		{"huawei", "traffic classifier c\nif-match dscp ef\nstrange\nif-match dscp af41\n", 4, "in no classifier"},
		{"huawei", "acl number 10001\n rule 5 permit\ntraffic classifier c\n if-match acl 10001\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n", 8, "list of frames"},
		{"junos", policer + "term t {\n    then policer p;\n}\n", 3, "no filter"},
		{"cisco", class + "set drop-precedence 1\n", 3, "internal to the router"},
		{"cisco", class + "set precedence 1\n", 3, "three bits"},
		{"cisco", class + "police rate 10 kbps burst-size 26 kbytes action set drop-precedence rate 20 kbps burst-size 26 kbytes\n", 3, "EOS"},
		{"cisco", class + "police rate 10 mbps\n end-policy-map\n", 3, "burst is left out"},
		{"cisco", "policy-map type quality-of-service P\n class class-default\n  police rate 10 mbps\n", 3, "burst-size is left out"},
		{"cisco", "interface e0\n traffic-shape rate 1000000 8000 8000 1000\n", 2, outsideReason},
		{"cisco", "interface e0\n storm-control broadcast level 10\n" + class + "police 8000 1500\n", 2, outsideReason},
		{"cisco", "interface e0\n srr-queue bandwidth limit 20\n" + class + "police 8000 1500\n", 2, outsideReason},
		{"cisco", "interface e0\n rate-limit input 8000 1500 1500 conform-action continue exceed-action drop\n", 2, "continue"},
		{"cisco", "ip access-list extended L\n permit ip any eq 80 any\nclass-map X\n match access-group name L\npolicy-map P\n class X\n", 6, "only tcp, udp and sctp have ports"},
		{"cisco", "class-map V\n match dscp ef\n" + class + "police 8000 1500\nno class-map V\n", 6, "no changes the configuration before it"},
		{"cisco", class + "police 8000 1500\nno policy-map P\n", 4, "no changes"},
		{"cisco", "access-list 100 permit ip any any\nno access-list 100\n" + class + "police 8000 1500\n", 2, "no changes"},
		{"cisco", "ip access-list extended A\n permit ip any any\nno ip access-list extended A\n" + class + "police 8000 1500\n", 3, "no changes"},
		{"cisco", class + "police 8000 1500\n no class class-default\n", 4, "no changes"},
		{"cisco", "interface e0\n rate-limit input 8000 1500 1500 conform-action transmit exceed-action drop\n no rate-limit input 8000 1500 1500 conform-action transmit exceed-action drop\n", 3, "no changes"},
		{"cisco", "interface e0\n ip rtp priority 16384 16383 100\n" + class + "police 8000 1500\n", 2, outsideReason},
		{"cisco", "interface e0\n mls qos cos override\n" + class + "police 8000 1500\n", 2, outsideReason},
		{"cisco", "route-map X permit 10\n set ip precedence 5\n" + class + "police 8000 1500\n", 2, outsideReason},
		{"cisco", "ipv4 access-list A\n 10 permit ipv4 any any\nclass-map C\n match access-group ipv6 A\npolicy-map P\n class C\n  police rate 8000 burst 1500\n", 6, "no such access list"},
		{"cisco", "R1(config-pmap)#policy-map P\nR1(config-pmap)#class class-default\nR1(config-pmap-c)#strange 5\n", 3, "not understood"},
		{"junos", "set firewall three-color-policer p two-rate committed-information-rate 1m committed-burst-size 2k peak-information-rate 2m peak-burst-size 4k\n", 1, "color-aware"},
		{"junos", "set firewall policer p then discard\nset firewall hierarchical-policer hp aggregate if-exceeding bandwidth-limit 1m\n", 2, "hierarchical-policer is not supported"},
		{"junos", "set class-of-service interfaces ge-0/0/0 unit 0 shaping-rate 100m\nset firewall family inet filter F term T then accept\n", 1, "class-of-service are not imported"},
		{"junos", "set interfaces ge-0/0/0 unit 0 family ethernet-switching storm-control default\nset firewall family inet filter F term T then accept\n", 1, outsideReason},
		{"junos", "set firewall family mpls filter F term T then accept\n", 1, "family mpls"},
		{"junos", "set groups G firewall policer p then discard\nset firewall family inet filter F term T then accept\n", 1, "not expanded"},
		{"junos", "set firewall family bridge filter F term T from user-vlan-id 10\nset firewall family bridge filter F term T then accept\n", 1, "which tag"},
		{"junos", "set firewall family bridge filter F term T from user-vlan-1p-priority 3\nset firewall family bridge filter F term T then accept\n", 1, "which tag"},
		{"junos", "set firewall family inet6 filter F term T from next-header 44\nset firewall family inet6 filter F term T then accept\n", 1, "extension header"},
		{"junos", "set firewall family inet filter F term T from dscp ef\nset firewall family inet filter F term T from precedence 3\nset firewall family inet filter F term T then accept\n", 1, "no packet matches"},
		{"junos", "set firewall family inet filter G term x then accept\nset firewall family inet filter H term x then accept\nset interfaces ge-0/0/0 unit 0 family inet filter input-list [ G H ]\n", 1, "list of filters"},
		{"junos", policer + "set firewall family inet filter f term t then policer p\nset firewall family inet filter g term t then forwarding-class x\n", 4, "forwarding class"},
		{"junos", policer + "set firewall family inet filter f term t then policer p\nset firewall family inet filter f term u then hierarchical-policer h\n", 4, "not supported"},
		{"junos", policer + "set firewall family inet filter f term t then count c policer p accept\ndelete firewall family inet filter f term t then policer\n", 4, "removes a part"},
		{"junos", "set logical-systems A firewall policer p then discard\nset logical-systems B firewall policer p then discard\n", 2, "another logical system"},
		{"junos", policer + "set firewall family inet filter f term t then next term\n", 3, "next term"},
		{"junos", policer + "set firewall family inet filter f term t from source-prefix-list L\n", 3, "no such prefix list"},
		{"junos", policer + "set interfaces e0 unit 0 family inet policer arp a\n", 3, outsideReason},
		{"huawei", "acl 3000\nrule 5 permit ip source 10.0.0.0 0.0.0.255\nundo rule 5\n", 3, "undo changes"},
		{"huawei", "traffic classifier c\nif-match dscp ef\nundo if-match dscp ef\n", 3, "undo changes"},
		{"huawei", "traffic policy P\nclassifier c behavior b\nundo classifier c\n", 3, "not understood"},
		{"huawei", "acl 3000\n rule permit ip dscp ef precedence 3\ntraffic classifier c\n if-match acl 3000\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n", 8, "line 2"},
		{"huawei", "acl mac 4000\n rule permit\ntraffic classifier c\n if-match acl 4000\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n", 8, "list of frames"},
		{"huawei", "interface GE1\n qos car cir 64 cbs 8000 pbs 16000 inbound\n", 2, "meaning of pbs"},
		{"h3c", "traffic behavior x\n filter deny\nqos policy P\n classifier default-class behavior x\n classifier default-class behavior be\n", 4, "line 5 replaces it"},
		{"huawei", "acl 3001\n rule 5 permit ip source 10.1.0.0 0.0.255.255\n rule 10 deny ip\ntraffic classifier c\n if-match acl 3001\ntraffic behavior b\n car cir 64 cbs 8000 pbs 8000\ntraffic policy P\n classifier c behavior b\n", 9, "deny rule"},
		{"huawei", "acl 3001\n rule 5 permit tcp\n rule 5 permit udp\ntraffic classifier c\n if-match acl 3001\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n", 9, "changes the rule with its number in line 2"},
		{"huawei", "acl 3001\n rule permit tcp\nacl 3002\n rule permit udp\ntraffic classifier c operator and\n if-match acl 3001\n if-match acl 3002\ntraffic behavior b\n deny\ntraffic policy P\n classifier c behavior b\n", 11, "several acl with operator and"},
		{"h3c", "traffic classifier c\n if-match service-vlan-id 5\n if-match service-vlan-id 6\ntraffic behavior b\n filter deny\nqos policy P\n classifier c behavior b\n", 7, "several service-vlan-id"},
		{"h3c", "interface GE1\n qos lr inbound cir 1000 cbs 100000 ebs 50000\n", 2, "second bucket"},
		{"huawei", "interface GE1\n traffic-remark inbound acl 3000 dscp 10\n qos lr outbound cir 64\n", 2, outsideReason},
		{"huawei", "interface GE1\n qos car inbound cir 64\n", 2, "give --platform: s7700, s5700, ce, ne"},
		{"huawei", "interface GE1\n qos car inbound strange cir 64 cbs 8000 pbs 8000\n", 2, "not understood"},
		{"huawei", "traffic-limit inbound acl 3000 cir 64\n", 1, outsideReason},
		{"huawei", "interface GE1\n user-queue cir 64 inbound\n qos lr cir 64 outbound\n", 2, outsideReason},
		{"huawei", "traffic behavior b\n car cir 64 cbs 8000 pbs 8000\ntraffic policy P\n classifier c behavior b precedence\n", 4, "not complete"},
		{"h3c", "interface GE1\n line-rate outbound 64\n qos lr outbound cir 64\n", 2, outsideReason},
		{"h3c", "interface GE1\n qos car inbound any cir 64 cbs 8000\n", 2, "give --platform"},
		{"h3c", "traffic classifier c\n if-match customer-dot1p 5\n#\ntraffic behavior b\n filter deny\n#\nqos policy P\n classifier c behavior b\n", 8, "not understood"},
	} {
		in, err := From(tt.dialect).Import(Source{Text: tt.text})
		if err != nil {
			at := fmt.Sprintf("line %d: ", tt.line)
			if !strings.Contains(err.Error(), at) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got %v, want line %d: %q", tt.text, err, tt.line, tt.want)
			}
			continue
		}
		problems := slices.Clone(in.Problems)
		for _, d := range in.Drafts {
			problems = append(problems, d.Problems...)
		}
		if !slices.ContainsFunc(problems, func(p Problem) bool {
			return p.Line == tt.line && strings.Contains(p.String(), tt.want)
		}) {
			t.Errorf("%s: got %+v, want line %d: %q", tt.text, problems, tt.line, tt.want)
		}
	}
}

// TestNamedPolicies checks that selecting one of two policies by its name hides no error of its parts.
func TestNamedPolicies(t *testing.T) {
	t.Parallel()
	const cisco = "policy-map P\n class A\n  police 8000 1500\npolicy-map Q\n class class-default\n  police 8000 1500\n"
	const huawei = "traffic behavior b\n car cir 64 cbs 8000 pbs 8000\ntraffic policy P\n classifier c behavior b\ntraffic policy Q\n classifier c behavior b\n"
	for _, tt := range []struct{ dialect, text, name, want string }{
		{"cisco", "class-map match-all A foo\n match dscp ef\n" + cisco, "P", `"foo" is not understood`},
		{"cisco", "class-map A\n match access-group name L\nip access-list extended L bar\n permit ip any any\n" + cisco, "P", `bar`},
		{"cisco", "class-map A\n match dscp ef\n" + strings.Replace(cisco, "class A", "class A insert-before B", 1), "P", "insert-before"},
		{"cisco", strings.Replace(cisco, "map P", "map P foo", 1), "P", `"foo" is not understood`},
		{"cisco", "interface e1\n rate-limit input access-group rate-limit 1 8000 1500 1500 conform-action transmit exceed-action drop\n rate-limit input 8000 1500 1500 conform-action transmit exceed-action drop\ninterface e2\n rate-limit input 8000 1500 1500 conform-action transmit exceed-action drop\n", "e1 input", "rate-limit 1"},
		{"huawei", "traffic classifier c operator and precedence 10\n if-match any\n" + huawei, "P", "precedence 10"},
		{"huawei", "traffic classifier c operator foo\n if-match any\n" + huawei, "P", "operator"},
		{"huawei", "interface GE1\n qos car inbound cir 64 cbs 8000 pbs 8000\n qos car inbound acl 2222 cir 64\ninterface GE2\n qos car inbound cir 64 cbs 8000 pbs 8000\n", "GE1 inbound", "acl 2222"},
	} {
		in, err := From(tt.dialect).Import(Source{Text: tt.text})
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		_, problems, err := in.Pick(tt.name)
		wanted := func(p Problem) bool { return strings.Contains(p.String(), tt.want) }
		if err != nil || !slices.ContainsFunc(problems, wanted) {
			t.Errorf("%s: got %v %v, want %q", tt.text, problems, err, tt.want)
		}
	}
}

// TestSeveralPolicies checks configurations from which only a choice can make one policy.
func TestSeveralPolicies(t *testing.T) {
	t.Parallel()
	const policer = "set firewall policer %s if-exceeding bandwidth-limit 1m burst-size-limit 15k\nset firewall policer %[1]s then discard\n"
	p, q := fmt.Sprintf(policer, "p"), fmt.Sprintf(policer, "q")
	const filter = "set firewall family inet filter %s term x then %s\n"
	for name, text := range map[string]string{
		"a policer of an interface beside a filter": p + q + fmt.Sprintf(filter, "G", "policer p") +
			"set interfaces e unit 0 family inet policer input q\n",
		"a policer of an interface and of a filter": p + fmt.Sprintf(filter, "G", "policer p") +
			"set interfaces e unit 0 family inet policer input p\n",
		"a filter in a filter": p + fmt.Sprintf(filter, "G", "policer p") +
			"set firewall family inet filter F term b filter G\n" + fmt.Sprintf(filter, "F", "accept"),
		"a policer of each filter": p +
			"set firewall policer p filter-specific\n" + fmt.Sprintf(filter, "F", "policer p") +
			"set firewall family inet6 filter F term y then policer p\n",
	} {
		in, err := From("junos").Import(Source{Text: text})
		if err != nil {
			t.Fatal(name, err)
		}
		if _, _, err := in.Pick(""); err == nil || !strings.Contains(err.Error(), "--name") {
			t.Errorf("%s: %v, want a choice by --name", name, err)
		}
	}
}

// TestClaims checks messages such as "has no burst": they are not printed if there is a burst.
func TestClaims(t *testing.T) {
	t.Parallel()
	lr := "interface GigabitEthernet0/0/1\n qos lr inbound cir 10240 cbs 1280000\n qos lr outbound cir 10240 cbs 1280000\n"
	in, err := From("huawei").Import(Source{Text: lr})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = in.Pick("")
	if got := Misread(err, "huawei", Source{Text: lr}); got != err {
		t.Errorf("a configuration of Huawei: %v", got)
	}
	for _, tt := range []struct{ dialect, text, untrue string }{
		{"junos", "set firewall hierarchical-policer p premium if-exceeding bandwidth-limit 1m\n", "has no policy"},
		{"cisco", "interface e0\n traffic-shape rate 1000000\n", "has no policy"},
		{"cisco", "interface e0\n platform qos queue-stats\n no rate-limit input 8000 1500 1500 conform-action transmit exceed-action drop\n" + "policy-map P\n class class-default\n  police cir 8000 bc 1500\n", "limits or marks"},
		{"huawei", "interface e0\n user-queue cir 1000\n", "has no policy"},
		{"h3c", "interface e0\n line-rate outbound 64\n", "has no policy"},
		{"junos", "set firewall policer p if-exceeding bandwidth-limit 1m burst-size-limit 15k\n", "has no burst"},
		{"cisco", "policy-map P\n class class-default\n  police cir 8000 bc 1500\n   exceed-action set-dei-transmit 1\n", "no such action"},
		{"tc", "tc qdisc add dev eth0 root netem rate 5mbit delay 20ms\n", "has no rate"},
	} {
		if From(tt.dialect) == nil {
			continue // tc adds itself
		}
		in, err := From(tt.dialect).Import(Source{Text: tt.text})
		text := ""
		if err == nil {
			_, problems, pick := in.Pick("")
			for _, p := range problems {
				text += p.String()
			}
			err = pick
		}
		if err != nil {
			text += err.Error()
		}
		if strings.Contains(text, tt.untrue) {
			t.Errorf("%q: %q is untrue: %s", tt.text, tt.untrue, text)
		}
	}
}

// TestLossyExport checks that a class whose condition cannot be expressed is omitted: it would match other
// packets.
func TestLossyExport(t *testing.T) {
	t.Parallel()
	p := mustCompile(t, "classes: [{name: secret, match: {src-mac: '02:00:00:00:00:01', dscp: ef}, green: drop}, {name: other, green: {dscp: cs1}}]")
	for name, d := range All {
		e := d.Export(p, "P")
		if len(e.Problems) != 1 || strings.Contains(e.Text, "secret") || !strings.Contains(e.Text, "other") {
			t.Errorf("%s: %q\n%s", name, e.Problems, e.Text)
		}
	}
}

// TestZeroBurst checks that an srTCM whose EBS is 0 is exported as a bucket: routers refuse a burst of 0.
func TestZeroBurst(t *testing.T) {
	t.Parallel()
	p := mustCompile(t, "classes: [{name: c, meter: {type: srtcm, cir: 1mbit, cbs: 15000, ebs: 0}}]")
	for _, name := range []string{"cisco", "junos", "huawei"} {
		text := All[name].Export(p, "P").Text
		for w := range strings.FieldsSeq(strings.ReplaceAll(text, ";", " ")) {
			if w == "0" {
				t.Errorf("%s: a value is 0:\n%s", name, text)
			}
		}
	}
}

// TestNotes checks that differences are said.
func TestNotes(t *testing.T) {
	t.Parallel()
	const policer = "set firewall policer p if-exceeding bandwidth-limit 1m burst-size-limit 15k\nset firewall policer p then discard\nset firewall policer p logical-interface-policer\n"
	for _, tt := range []struct{ dialect, text, want string }{
		{"cisco", "policy-map P\n class A\n  priority\n class B\n  priority\nclass-map A\n match dscp ef\nclass-map B\n match dscp cs5\n", "one queue"},
		{"cisco", "class-map A\n match dscp ef\npolicy-map P\n class A\n  set ip dscp cs1\n", "IPv4 only"},
		{"cisco", "class-map A\n match ip dscp ef\npolicy-map P\n class A\n  set ip dscp cs1\n", ""},
		{"cisco", "policy-map P\n class A\n  priority level 1\n class B\n  priority level 2\nclass-map A\n match dscp ef\nclass-map B\n match dscp cs5\n", ""},
		{"junos", policer + "set firewall family inet filter F term a then policer p\nset firewall family inet filter G term a then policer p\n", ""},
		{"junos", policer + "set firewall family inet filter F term a from source-port 53\nset firewall family inet filter F term a then policer p\n", "any protocol"},
		{"junos", policer + "set firewall family inet filter F term a then policer p\nset firewall family inet6 filter G term a then policer p\n", "filters F and G share"},
		{"junos", policer + "set firewall family inet filter F term a then policer p\nset firewall family inet6 filter F term a then policer p\n", ""},
	} {
		in, err := From(tt.dialect).Import(Source{Text: tt.text, Options: Options{Link: meter.BitRate(1e9)}})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, d := range in.Drafts {
			for _, n := range d.Notes {
				if !strings.Contains(n.Reason, "queue-limit") {
					got += n.Reason
				}
			}
		}
		if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: notes %q, want %q", tt.text, got, tt.want)
		}
	}
}

// TestShowParent checks a policy that shapes everything, of which the router prints a limit, too.
func TestShowParent(t *testing.T) {
	t.Parallel()
	const text = ` GigabitEthernet0/1
  Service-policy output: P
    Class-map: class-default (match-any)
      Match: any
      queue limit 64 packets
      shape (average) cir 10000000, bc 40000, be 40000
      Service-policy : CHILD
        Class-map: V (match-any)
          Match: dscp ef (46)
          police:
              cir 1000000 bps, bc 31250 bytes
            conformed 0 packets, 0 bytes; actions:
              transmit
            exceeded 0 packets, 0 bytes; actions:
              drop
`
	in, err := From("cisco-show").Import(Source{Text: text})
	if err != nil {
		t.Fatal(err)
	}
	if _, problems, err := in.Pick(""); err != nil || problems != nil {
		t.Error(err, problems)
	}
}

// TestShowQueues checks limits of queues that are printed away from the rate: of all priority classes, and of
// class-default.
func TestShowQueues(t *testing.T) {
	t.Parallel()
	const text = ` GigabitEthernet0/0/0
  Service-policy output: P
    queue stats for all priority classes:
      Queueing
      queue limit 512 packets
    Class-map: V (match-any)
      Match: dscp ef (46)
      Priority: Strict, b/w exceed drops: 0
    Class-map: class-default (match-any)
      Match: any
      queue limit 416 packets
      (queue depth/total drops/no-buffer drops) 0/0/0
port-channel10
  Service-policy output: P
    Class-map: V (match-any)
      Match: dscp cs3 (24)
      police:
          cir 9000000 bps, bc 250000 bytes
        conformed 10 packets, 1000 bytes; actions:
          transmit
        exceeded 0 packets, 0 bytes; actions:
          drop
`
	in, err := From("cisco-show").Import(Source{Text: text, Options: Options{Link: meter.BitRate(100e6)}})
	if err != nil || len(in.Drafts) != 2 {
		t.Fatalf("%v: %+v, want two policies", err, in)
	}
	for i, want := range []string{
		"classes: [{name: V, match: {dscp: ef}, green: {queue: v}}, {name: class-default, green: {queue: c}}]\n" +
			"queues: {v: {link: l, limit: 512p, fair: false}, c: {link: l, priority: 1, limit: 416p, fair: false}}\nlinks: {l: {rate: 100mbit}}",
		"classes: [{name: V, match: {dscp: cs3}, meter: {type: token-bucket, rate: 9mbit, burst: 250000}}]",
	} {
		d := in.Drafts[i]
		text, err := d.Render("", "")
		if err != nil || d.Problems != nil {
			t.Fatal(err, d.Problems)
		}
		if got, want := resolved(mustCompile(t, text.Text)), resolved(mustCompile(t, want)); got != want {
			t.Errorf("%s: got %s, want %s", d.Name, got, want)
		}
	}
}
