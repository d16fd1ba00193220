package routers

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
)

// fallback is the value of a parameter that a statement leaves out, on a platform.
type fallback struct {
	language, platform, statement, parameter string
	rule, source                             string
	value                                    burstRule // zero: the value must be written, or the row explains
}

// burstRule computes the bytes of a burst: a number, a multiple of the rate, or the first burst of the
// statement.
type burstRule struct {
	fixed       int64 // bytes, if nothing else is set
	ms          int64 // time at the rate
	tenths      int64 // of the rate in kbit/s, rounded up to a multiple of step
	step        int64
	least, most int64 // bytes; 0: any
	first       bool
	none        bool // zero bytes
}

// kbits is the rule for a multiple of a rate in kbit/s, in tenths.
func kbits(tenths, step, least, most int64) burstRule {
	return burstRule{tenths: tenths, step: step, least: least, most: most}
}

// of returns the bytes for a rate in bit/s.
func (b burstRule) of(rate, first int64) int64 {
	n := b.fixed
	switch {
	case b.first:
		return first
	case b.ms > 0:
		n = rate * b.ms / 8000
	case b.tenths > 0:
		n = (rate/1000*b.tenths + 9) / 10
		n = (n + b.step - 1) / b.step * b.step
	}
	if n = max(n, b.least); b.most > 0 {
		n = min(n, b.most)
	}
	return n
}

// Default is a row of Defaults.
type Default struct {
	Language  string `json:"language"`
	Platform  string `json:"platform,omitempty"`
	Models    string `json:"models,omitempty"` // of the platform
	Statement string `json:"statement"`
	Parameter string `json:"parameter"`
	Rule      string `json:"rule"`
	Source    string `json:"source"`
}

// Limits of bursts (command references of Huawei S and NE, and of H3C S6812).
const (
	mostHuaweiBurst = 1<<32 - 1
	mostNEBurst     = 18_700_000
	mostH3CBurst    = 256_000_000
)

// The guides from which the defaults are.
const (
	xeGuide     = "Cisco IOS XE QoS: Congestion Management, queue limits"
	iosGuide    = "Cisco IOS Quality of Service Solutions Command Reference, police"
	nxGuide     = "Cisco Nexus 9000 NX-OS Quality of Service Configuration Guide 10.5, Configuring Policing"
	xrGuide     = "QoS Configuration Guide for Cisco NCS 540, police rate"
	eosGuide    = "Arista AVD, platform settings and QoS, policers"
	s7700Guide  = "Huawei S7700, S9300 and S12700 command reference, car (traffic behavior view)"
	s5700Guide  = "Huawei S5700 and S6700 command reference, car (QoS profile view)"
	ceGuide     = "Huawei CloudEngine 6800 V300R023 command reference, qos car"
	ceLRGuide   = "Huawei CloudEngine 6800 V300R023 command reference, qos lr"
	neGuide     = "Huawei NE40E V800R012 command reference, car (QoS profile view)"
	s6812Guide  = "H3C S6812 command reference, car"
	s5130Guide  = "HPE 5130 HI command reference, car"
	e4510Guide  = "HP E4510 command reference, car"
	junosGuide  = "Junos, Policer Limits for Layer 2 Traffic, and burst-size-limit"
	junosColors = "Junos, Policer Color-Marking and Actions"
	msrGuide    = "H3C MSR 20/30/50 command reference, car"
)

var fallbacks = []fallback{
	{"cisco", "ios", "police", "bc", "CIR/32 bytes (250 ms), at least 1500", iosGuide, burstRule{ms: 250, least: 1500}},
	{"cisco", "ios", "police", "be", "bc", iosGuide, burstRule{first: true}},
	{"cisco", "ios", "police with pir", "bc", "CIR/32 bytes (250 ms), at least 1500", iosGuide, burstRule{ms: 250, least: 1500}},
	{"cisco", "ios", "police with pir", "be", "PIR/32 bytes (250 ms), at least 1500", iosGuide, burstRule{ms: 250, least: 1500}},
	{"cisco", "ios", "police", "unit", "bit/s, and bytes", iosGuide, burstRule{}},
	{"cisco", "ios", "police", "action", "conform transmit, exceed drop, violate drop", iosGuide, burstRule{}},
	{"cisco", "ios", "class", "queue-limit", "50 ms of packets of 1500 bytes at the rate of shape or of the link, at least 64 packets; 512 with priority", xeGuide, burstRule{ms: 50, least: 1}},
	{"cisco", "nx-os", "police", "bc", "200 ms of CIR", nxGuide, burstRule{ms: 200}},
	{"cisco", "nx-os", "police with pir", "bc", "200 ms of CIR", nxGuide, burstRule{ms: 200}},
	{"cisco", "nx-os", "police with pir", "be", "200 ms of PIR", nxGuide, burstRule{ms: 200}},
	{"cisco", "nx-os", "police", "unit", "bit/s, and bytes; a kbyte is assumed to be 1000 bytes", nxGuide, burstRule{}},
	{"cisco", "nx-os", "police", "action", "conform transmit, violate drop", nxGuide, burstRule{}},
	{"cisco", "ios-xr", "police", "unit", "bit/s, and bytes; a kbyte is assumed to be 1000 bytes", "Cisco CRS QoS command reference, police rate", burstRule{}},
	{"cisco", "ios-xr", "police", "action", "conform transmit, exceed drop, violate drop", "Cisco CRS QoS command reference, police rate", burstRule{}},
	{"cisco", "ios-xr", "police", "burst", "unknown: write it, or say ncs5500", xrGuide, burstRule{}},
	{"cisco", "ncs5500", "police", "burst", "10 ms of the rate", xrGuide, burstRule{ms: 10}},
	{"cisco", "ncs5500", "police with pir", "burst", "10 ms of the rate", xrGuide, burstRule{ms: 10}},
	{"cisco", "ncs5500", "police with pir", "peak-burst", "10 ms of the peak rate", xrGuide, burstRule{ms: 10}},
	{"cisco", "eos", "police", "burst-size", "none: write it", eosGuide, burstRule{}},

	{"junos", "", "policer", "unit", "bit/s, and bytes; k, m and g are decimal", junosGuide, burstRule{}},
	{"junos", "", "policer", "burst-size-limit", "none: write it", junosGuide, burstRule{}},
	{"junos", "", "three-color-policer", "action", "red packets are forwarded", junosColors, burstRule{}},

	{"huawei", "", "car", "unit", "kbit/s, and bytes; a kbyte is assumed to be 1000 bytes", s7700Guide, burstRule{}},
	{"huawei", "", "car", "action", "green pass, yellow pass, red discard", s7700Guide, burstRule{}},
	{"huawei", "", "gts", "queue-length", "64 packets", "Huawei AR command reference, gts", burstRule{fixed: 64}},
	{"huawei", "s7700", "car", "pir", "cir", s7700Guide, burstRule{}},
	{"huawei", "s5700", "car", "pir", "cir", s5700Guide, burstRule{}},
	{"huawei", "ce", "car", "pir", "cir, as on the other switches: the reference does not say it", ceGuide, burstRule{}},
	{"huawei", "ne", "car", "pir", "none: one rate, and pbs is the EBS of RFC 2697", neGuide, burstRule{}},
	{"huawei", "s7700", "car", "cbs", "188 x CIR in kbit/s, at least 10000", s7700Guide, kbits(1880, 1, 10000, mostHuaweiBurst)},
	{"huawei", "s7700", "car", "pbs", "313 x CIR in kbit/s, at least 10000", s7700Guide, kbits(3130, 1, 10000, mostHuaweiBurst)},
	{"huawei", "s7700", "car with pir", "cbs", "125 x CIR in kbit/s, at least 10000", s7700Guide, kbits(1250, 1, 10000, mostHuaweiBurst)},
	{"huawei", "s7700", "car with pir", "pbs", "125 x PIR in kbit/s, at least 10000", s7700Guide, kbits(1250, 1, 10000, mostHuaweiBurst)},
	{"huawei", "s5700", "car", "cbs", "188 x CIR in kbit/s, at least 4000", s5700Guide, kbits(1880, 1, 4000, mostHuaweiBurst)},
	{"huawei", "s5700", "car", "pbs", "313 x CIR in kbit/s, at least 4000", s5700Guide, kbits(3130, 1, 4000, mostHuaweiBurst)},
	{"huawei", "s5700", "car with pir", "cbs", "125 x CIR in kbit/s, at least 4000", s5700Guide, kbits(1250, 1, 4000, mostHuaweiBurst)},
	{"huawei", "s5700", "car with pir", "pbs", "125 x PIR in kbit/s, at least 4000", s5700Guide, kbits(1250, 1, 4000, mostHuaweiBurst)},
	{"huawei", "ce", "car", "cbs", "8 x CIR in kbit/s (64 ms), at least 10000", ceGuide, kbits(80, 1, 10000, 33554432)},
	{"huawei", "ce", "car", "pbs", "cbs", ceGuide, burstRule{first: true}},
	{"huawei", "ce", "car with pir", "cbs", "8 x CIR in kbit/s (64 ms), at least 10000", ceGuide, kbits(80, 1, 10000, 33554432)},
	{"huawei", "ce", "car with pir", "pbs", "8 x PIR in kbit/s (64 ms), at least 10000", ceGuide, kbits(80, 1, 10000, 33554432)},
	{"huawei", "ce", "lr", "cbs", "8 x CIR in kbit/s (64 ms), at least 10000", ceLRGuide, kbits(80, 1, 10000, 33554432)},
	{"huawei", "ne", "car", "cbs", "187 x CIR in kbit/s, at most 18700000", neGuide, kbits(1870, 1, 0, mostNEBurst)},
	{"huawei", "ne", "car", "pbs", "0: one bucket", neGuide, burstRule{none: true}},
	{"huawei", "ne", "car with pir", "cbs", "187 x CIR in kbit/s, at most 18700000", neGuide, kbits(1870, 1, 0, mostNEBurst)},
	{"huawei", "ne", "car with pir", "pbs", "187 x PIR in kbit/s, at most 18700000", neGuide, kbits(1870, 1, 0, mostNEBurst)},

	{"h3c", "", "car", "unit", "kbit/s, and bytes", s6812Guide, burstRule{}},
	{"h3c", "", "car", "action", "green pass, yellow pass, red discard", s6812Guide, burstRule{}},
	{"h3c", "", "gts", "queue-length", "50 packets", "HPE MSR V7 ACL and QoS command reference, gts", burstRule{fixed: 50}},
	{"h3c", "s6812", "car", "cbs", h3cRule, s6812Guide, kbits(625, 512, 0, mostH3CBurst)},
	{"h3c", "s6812", "car", "ebs", "0", s6812Guide, burstRule{none: true}},
	{"h3c", "s6812", "car with pir", "cbs", h3cRule, s6812Guide, kbits(625, 512, 0, mostH3CBurst)},
	{"h3c", "s6812", "car with pir", "ebs", h3cPIRRule, s6812Guide, kbits(625, 512, 0, mostH3CBurst)},
	{"h3c", "s6812", "lr", "cbs", h3cRule, s6812Guide, kbits(625, 512, 0, 134217728)},
	{"h3c", "s5130", "car", "cbs", h3cRule, s5130Guide, kbits(625, 512, 0, mostH3CBurst)},
	{"h3c", "s5130", "car", "ebs", "512", s5130Guide, burstRule{fixed: 512}},
	{"h3c", "s5130", "car with pir", "cbs", h3cRule, s5130Guide, kbits(625, 512, 0, mostH3CBurst)},
	{"h3c", "s5130", "car with pir", "ebs", h3cPIRRule, s5130Guide, kbits(625, 512, 0, mostH3CBurst)},
	{"h3c", "s5130", "lr", "cbs", h3cRule, s5130Guide, kbits(625, 512, 0, 134217728)},
	{"h3c", "e4510", "car", "cbs", "4000", e4510Guide, burstRule{fixed: 4000}},
	{"h3c", "e4510", "car", "ebs", "4000", e4510Guide, burstRule{fixed: 4000}},
	{"h3c", "msr", "car", "cbs", "500 ms of CIR, at least 1875", msrGuide, burstRule{ms: 500, least: 1875}},
	{"h3c", "msr", "car", "ebs", "0", msrGuide, burstRule{none: true}},
}

const (
	h3cRule    = "62.5 x CIR in kbit/s, rounded up to a multiple of 512"
	h3cPIRRule = "62.5 x PIR in kbit/s, rounded up to a multiple of 512"
)

// platformSigns are names of models, which configurations have in their names and comments.
var platformSigns = map[string][]struct {
	platform string
	sign     func() *regexp.Regexp
}{
	"huawei": {
		{"s7700", pattern.Lazy(`\bS(?:77|93|97|127)\d\d\b`)},
		{"s5700", pattern.Lazy(`\bS[56][78]\d\d\b`)},
		{"ce", pattern.Lazy(`\bCE\d{4,5}\b|\bCloudEngine\b`)},
		{"ne", pattern.Lazy(`\bNE\d+E\b|\bNetEngine\b`)},
	},
	"h3c": {
		{"s6812", pattern.Lazy(`\bS6812\b`)},
		{"s5130", pattern.Lazy(`\b(?:S?5130|S5820)`)},
		{"e4510", pattern.Lazy(`\bE4510\b`)},
		{"msr", pattern.Lazy(`\bMSR ?\d`)},
	},
}

// platformNamed returns the platform whose models a text names, or "".
func platformNamed(language, text string) string {
	for _, p := range platformSigns[language] {
		if p.sign().MatchString(text) {
			return p.platform
		}
	}
	return ""
}

// platformNames are the names of platforms by the values of --platform.
var platformNames = map[string]string{
	"ncs5500": "Cisco NCS 540 or 5500 (IOS XR)",
	"ios":     "Cisco IOS or IOS XE", "ios-xr": "Cisco IOS XR", "nx-os": "Cisco NX-OS", "eos": "Arista EOS",
	"s7700": "Huawei S7700, S9300 or S12700", "s5700": "Huawei S5700 or S6700", "ce": "Huawei CloudEngine",
	"ne":    "Huawei NE40E or NetEngine 8000",
	"s6812": "H3C S6812", "s5130": "H3C S5130 or S5820X", "e4510": "HP E4510", "msr": "H3C MSR",
}

// Platforms returns the platforms of a language, whose defaults differ.
func Platforms(language string) (names []string) {
	for _, f := range fallbacks {
		if f.language == language && f.platform != "" && !slices.Contains(names, f.platform) {
			names = append(names, f.platform)
		}
	}
	return names
}

// Defaults returns the table of the values that statements of a language leave out.
func Defaults(language string) (rows []Default) {
	for _, f := range fallbacks {
		if f.language == language {
			rows = append(rows, Default{
				f.language, f.platform, platformNames[f.platform], f.statement, f.parameter, f.rule, f.source,
			})
		}
	}
	return rows
}

// defaultOf returns the value of a parameter that is left out, for a rate in bit/s.
func defaultOf(language, platform, statement, parameter string, rate, first int64) (amount, error) {
	i := slices.IndexFunc(fallbacks, func(f fallback) bool {
		return f.language == language && f.platform == platform && f.statement == statement &&
			f.parameter == parameter
	})
	switch {
	case i < 0:
		return amount{}, fmt.Errorf("%s is left out, and the default of %s is not known: write it", parameter,
			platformNames[platform])
	case fallbacks[i].value == burstRule{}:
		return amount{}, fmt.Errorf("%s is left out; default: %s", parameter, fallbacks[i].rule)
	case rate > maxNumber/10_000:
		return amount{}, fmt.Errorf("%s is left out, and its default is too large", parameter)
	}
	return amount{fallbacks[i].value.of(rate, first), fmt.Sprintf("left out; default: %s", fallbacks[i].rule), true}, nil
}
