package routers

import (
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// testPlatforms are the platforms whose defaults the tests expect.
var testPlatforms = map[string]string{"huawei": "s5700", "h3c": "s6812"}

// frames are configurations with a place for the statements under test.
var frames = map[string]string{
	"cisco":  "policy-map P\n class class-default\n  %s\n",
	"huawei": "traffic classifier c operator or\n if-match any\n#\ntraffic behavior b\n %s\n#\ntraffic policy P\n classifier c behavior b\n",
	"h3c":    "traffic classifier c operator and\n if-match any\n#\ntraffic behavior b\n %s\n#\nqos policy P\n classifier c behavior b\n",
	"junos":  "firewall {\n %s\n family any {\n  filter P {\n   term c {\n    then { THEN; }\n   }\n  }\n }\n}\n",
}

// framed returns a configuration with a statement. In Junos, the term uses the policer p.
func framed(dialect, text string) string {
	frame := strings.Replace(frames[dialect], "%s", text, 1)
	then := "policer p"
	if strings.HasPrefix(text, "three-color") {
		then = "three-color-policer { two-rate p; }"
	}
	return strings.Replace(frame, "THEN", then, 1)
}

// TestMeters checks meters and actions, with values computed by hand from the platforms'
// references.
func TestMeters(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ dialect, text, want string }{
		{"cisco", "police 8000 1500 3000 conform-action transmit exceed-action drop violate-action drop", "meter: {type: srtcm, cir: 8kbit, cbs: 1500, ebs: 3000}, yellow: drop"},
		{"cisco", "police 8000 1500 3000 conform-action transmit exceed-action drop", "meter: {type: token-bucket, rate: 8kbit, burst: 1500}"},
		{"cisco", "police cir 10 mbps bc 1500 pir 20m be 3000", "meter: {type: trtcm, cir: 10mbit, cbs: 1500, pir: 20mbit, pbs: 3000}, yellow: drop"},
		{"cisco", "police cir 1000000", "meter: {type: token-bucket, rate: 1mbit, burst: 31250}"},
		{"cisco", "police cir 8000", "meter: {type: token-bucket, rate: 8kbit, burst: 1500}"}, // 250 B are below the minimum
		{"cisco", "police cir 1000000 pir 4000000 violate-action transmit", "meter: {type: trtcm, cir: 1mbit, cbs: 31250, pir: 4mbit, pbs: 125000}, yellow: drop, red: pass"},
		{"cisco", "police cir 1000000 violate-action drop", "meter: {type: srtcm, cir: 1mbit, cbs: 31250, ebs: 31250}, yellow: drop"},
		{"cisco", "police cir 1.5m bc 20 ms", "meter: {type: token-bucket, rate: 1500kbit, burst: 3750}"},
		{"cisco", "police cir percent 10 bc 20 ms pir percent 20 be 20 ms", "meter: {type: trtcm, cir: 100mbit, cbs: 250000, pir: 200mbit, pbs: 500000}, yellow: drop"},
		{"cisco", "police rate 1 gbps burst 2 mbytes", "meter: {type: token-bucket, rate: 1gbit, burst: 2000000}"},
		{"cisco", "police rate 100 pps burst 20 packets", "meter: {type: token-bucket, rate: 100p/1s, burst: 20, count: packets}"},
		{"cisco", "police cir 12 mbps bc 200 ms conform transmit violate drop", "meter: {type: token-bucket, rate: 12mbit, burst: 300000}"}, // NX-OS
		{"cisco", "police cir 8k bc 1500\n   conform-action set-dscp-transmit af11\n   conform-action set-cos-transmit 3\n   exceed-action set-dscp-transmit default", "meter: {type: token-bucket, rate: 8kbit, burst: 1500}, green: {dscp: 10, pcp: 3}, red: {dscp: 0}"},
		{"cisco", "set dscp ef\n  police 8000 1500 1500 transmit", "meter: {type: token-bucket, rate: 8kbit, burst: 1500}, green: {dscp: ef}"},
		{"cisco", "set cos 5", "green: {pcp: 5}"},
		{"cisco", "drop", "green: drop"},

		{"huawei", "car cir 10000", "meter: {type: trtcm, cir: 10mbit, cbs: 1880000, pir: 10mbit, pbs: 3130000}"},
		{"huawei", "car cir 10000 pir 20000", "meter: {type: trtcm, cir: 10mbit, cbs: 1250000, pir: 20mbit, pbs: 2500000}"},
		{"huawei", "car cir 64 cbs 12032 pbs 20032 green pass yellow pass remark-dscp af12 red pass remark-8021p 1", "meter: {type: trtcm, cir: 64kbit, cbs: 12032, pir: 64kbit, pbs: 20032}, yellow: {dscp: af12}, red: {pcp: 1}"},
		{"huawei", "car cir 64 pir 64 cbs 8000 pbs 8000 yellow discard", "meter: {type: token-bucket, rate: 64kbit, burst: 8000}"},
		{"huawei", "car cir 64 pir 128 cbs 8000 pbs 16000 mode color-blind green pass yellow discard red discard", "meter: {type: trtcm, cir: 64kbit, cbs: 8000, pir: 128kbit, pbs: 16000}, yellow: drop"},
		{"huawei", "remark dscp ef\n car cir 64 pir 64 cbs 8000 pbs 8000", "meter: {type: token-bucket, rate: 64kbit, burst: 8000}, green: {dscp: ef}"},
		{"huawei", "deny", "green: drop"},

		{"h3c", "car cir 10000", "meter: {type: token-bucket, rate: 10mbit, burst: 625152}"}, // 62.5 x 10000 = 625000
		{"h3c", "car cir 8", "meter: {type: token-bucket, rate: 8kbit, burst: 512}"},         // 500
		{"h3c", "car cir 9", "meter: {type: token-bucket, rate: 9kbit, burst: 1024}"},        // 562.5
		{"h3c", "car cir 200 cbs 51200 ebs 512 green pass red remark-dscp-pass 0", "meter: {type: srtcm, cir: 200kbit, cbs: 51200, ebs: 512}, red: {dscp: be}"},
		{"h3c", "car cir 512 cbs 51200 pir 1024 yellow discard", "meter: {type: trtcm, cir: 512kbit, cbs: 51200, pir: 1024kbit, pbs: 64000}, yellow: drop"},
		{"h3c", "car cir 512 pir 1024 ebs 4096", "meter: {type: trtcm, cir: 512kbit, cbs: 32256, pir: 1024kbit, pbs: 4096}"}, // 62.5 x 512 = 32000
		{"h3c", "remark dot1p 4", "green: {pcp: 4}"},

		{"junos", "policer p { if-exceeding { bandwidth-limit 10m; burst-size-limit 15k; } then discard; }", "meter: {type: token-bucket, rate: 10mbit, burst: 15000}, red: drop"},
		{"junos", "policer p { if-exceeding { bandwidth-percent 5; burst-size-limit 1m; } then { loss-priority high; } }", "meter: {type: token-bucket, rate: 50mbit, burst: 1000000}, red: pass"},
		{"junos", "policer p { if-exceeding-pps { pps-limit 1k; packet-burst 100; } then discard; }", "meter: {type: token-bucket, rate: 1000p/1s, burst: 100, count: packets}"},
		{
			"junos", "three-color-policer p { two-rate { color-blind; committed-information-rate 1g; committed-burst-size 2m; peak-information-rate 2g; peak-burst-size 4m; } }",
			"meter: {type: trtcm, cir: 1gbit, cbs: 2000000, pir: 2gbit, pbs: 4000000}, red: pass",
		},
		{
			"junos", "three-color-policer p { action { loss-priority high then discard; } single-rate { color-blind; committed-information-rate 1m; committed-burst-size 2k; excess-burst-size 4k; } }",
			"meter: {type: srtcm, cir: 1mbit, cbs: 2000, ebs: 4000}, red: drop",
		},
	} {
		name := map[string]string{"cisco": "class-default"}[tt.dialect]
		if name == "" {
			name = "c"
		}
		src := Source{
			Name: "x", Text: framed(tt.dialect, tt.text),
			Options: Options{Link: meter.BitRate(1e9), Platform: testPlatforms[tt.dialect]},
		}
		for _, text := range []string{
			src.Text, strings.ReplaceAll(src.Text, "\n", "\r\n"), strings.ReplaceAll(src.Text, " ", "\t"),
		} {
			src.Text = text
			in, err := From(tt.dialect).Import(src)
			if err != nil {
				t.Errorf("%s: %s: %v", tt.dialect, tt.text, err)
				continue
			}
			d, problems, err := in.Pick("P")
			if err != nil || problems != nil {
				t.Errorf("%s: %s: %v %v", tt.dialect, tt.text, err, problems)
				continue
			}
			got := resolved(mustCompile(t, rendered(t, d)))
			if want := resolved(mustCompile(t,
				"classes: [{name: "+name+", "+tt.want+"}]")); strings.TrimSuffix(got, implicitDiscard) != want {
				t.Errorf("%s: %s: got\n%s\nwant\n%s", tt.dialect, tt.text, got, want)
			}
		}
	}
}

// implicitDiscard is the last class of a Junos filter.
const implicitDiscard = "implicit-discard: src [] dst []\n  green true []\n"

// TestComments checks that defaults are named, with the platform's rule.
func TestComments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ dialect, text, want string }{
		{"cisco", "police cir 1000000", "bc left out; default: CIR/32 bytes (250 ms)"},
		{"cisco", "police cir 8000", "bc left out; default: CIR/32 bytes (250 ms), at least 1500"},
		{"cisco", "police cir 1000000 violate-action drop", "be left out; default: bc"},
		{"cisco", "police cir 1000000", "no violate-action, so two colors"},
		{"huawei", "car cir 64", "cbs left out; default: 188 x CIR"},
		{"huawei", "car cir 64", "pbs left out; default: 313 x CIR"},
		{"huawei", "car cir 64 pir 128", "pbs left out; default: 125 x PIR"},
		{"h3c", "car cir 64", "cbs left out; default: 62.5 x CIR in kbit/s, rounded up to a multiple of 512"},
		{"junos", "three-color-policer p { two-rate { color-blind; committed-information-rate 1g; committed-burst-size 2m; peak-information-rate 2g; peak-burst-size 4m; } }", "red: pass"},
		{"junos", "three-color-policer p { two-rate { color-blind; committed-information-rate 1g; committed-burst-size 2m; peak-information-rate 2g; peak-burst-size 4m; } }", "without action loss-priority high then discard"},
	} {
		in, err := From(tt.dialect).Import(Source{
			Text: framed(tt.dialect, tt.text), Options: Options{Platform: testPlatforms[tt.dialect]},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := rendered(t, in.Drafts[0]); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s: got\n%s\nwant %q", tt.dialect, tt.text, got, tt.want)
		}
	}
}

// TestCannot checks the reasons of statements that a policy cannot express, with their lines.
func TestCannot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dialect, text string
		line          int
		want          string
	}{
		{"cisco", "interface e0\n rate-limit input 8000 1500 2000 conform-action transmit exceed-action drop\n", 2, "CAR with an extended burst is another algorithm"},
		{"cisco", framed("cisco", "police cir percent 10"), 3, "--link"},
		{"cisco", framed("cisco", "police cir 8000 bc 1500 frobnicate"), 3, `"frobnicate" is not understood`},
		{"cisco", framed("cisco", "police cir 8000 bc 1500 exceed-action set-prec-transmit 4"), 3, "precedence"},
		{"cisco", framed("cisco", "set qos-group 4"), 3, "internal to the router"},
		{"cisco", framed("cisco", "random-detect dscp-based"), 3, "WRED"},
		{"cisco", framed("cisco", "shape peak 1000000"), 3, "excess burst"},
		{"cisco", framed("cisco", "bandwidth percent 20"), 1, "--link"},
		{"cisco", framed("cisco", "priority percent 20"), 3, "only while the interface is congested"},
		{"cisco", framed("cisco", "police cir 8000\n   conform-color hipri"), 4, "color-aware"},
		{"cisco", "policy-map P\n class X\n  set cos 5\n", 2, "there is no class-map X"},
		{"cisco", "class-map X\n match not dscp ef\npolicy-map P\n class X\n", 4, "negation"},
		{"cisco", "class-map X\n match protocol http\npolicy-map P\n class X\n", 4, "contents of packets"},
		{"cisco", "ip access-list extended L\n deny tcp any any\n permit ip any any\nclass-map X\n match access-group name L\npolicy-map P\n class X\n", 7, "negation"},
		{"cisco", "class-map match-all X\n match dscp ef\n match dscp af11\npolicy-map P\n class X\n", 5, "no packet matches"},
		{"huawei", "car cir 64\n", 1, "outside of a policy"},
		{"huawei", framed("huawei", "car cir 64 color-aware"), 5, "color-aware"},
		{"huawei", framed("huawei", "car cir x"), 5, "not a rate in kbit/s"},
		{"huawei", framed("huawei", "queue af bandwidth 1000"), 5, "queues of the interface"},
		{"h3c", framed("h3c", "car cir 64 green remark-lp-pass 3"), 5, "not understood"},
		{"junos", framed("junos", "policer p { if-exceeding { bandwidth-limit 1m; burst-size-limit 15k; } then forwarding-class bulk; }"), 2, "internal to the router"},
		{"junos", framed("junos", "policer p { if-exceeding { bandwidth-limit 1m; } then discard; }"), 6, "policer p has no burst"},
		{"junos", framed("junos", "three-color-policer p { two-rate { color-aware; committed-information-rate 1g; committed-burst-size 2m; peak-information-rate 2g; peak-burst-size 4m; } }"), 2, "precolor"},
		{"junos", "set firewall family inet filter P term a from tcp-established\nset firewall family inet filter P term a then policer p\n", 1, "not understood"},
	} {
		in, err := From(tt.dialect).Import(Source{Text: tt.text})
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		_, problems, err := in.Pick("")
		if err != nil || len(problems) == 0 {
			t.Errorf("%s: got %v, problems %v", tt.text, err, problems)
			continue
		}
		found := false
		for _, p := range problems {
			found = found || p.Line == tt.line && strings.Contains(p.String(), tt.want)
		}
		if !found {
			t.Errorf("%s: got %+v, want line %d: %q", tt.text, problems, tt.line, tt.want)
		}
	}
}
