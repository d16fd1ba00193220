package routers

import (
	"fmt"
	"regexp"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
)

// signs are statements by which people recognize a language.
var signs = []struct {
	name string
	sign func() *regexp.Regexp
}{
	{
		"cisco-show",
		pattern.Lazy(`(?mi)^\s*service-policy (input|output): |^\s*class-map: .* \(match-(any|all)\)`),
	},
	{
		"junos",
		pattern.Lazy(`(?m)^\s*(set firewall |(firewall|policer \S+|three-color-policer \S+|family inet6?|if-exceeding|filter \S+) \{)`),
	},
	{
		"tc",
		pattern.Lazy(`(?m)^\s*(tc )?(qdisc|class|filter) (add|replace|change|del|\S+ \S+: (dev|root|parent) )|^\s*(qdisc|class) \S+ \S+:\S* `),
	},
	{
		"h3c",
		pattern.Lazy(`(?mi)^\s*(qos policy \S+|qos apply policy |remark-dscp-pass|.* remark-\S+-pass |car cir .* ebs |gts any |qos gts |acl (basic|advanced) )`),
	},
	{"huawei", pattern.Lazy(
		`(?mi)^\s*(traffic (policy|behavior|classifier) \S+|traffic-policy \S+|qos car |car cir |sysname )`)},
	{
		"cisco",
		pattern.Lazy(`(?mi)^\s*(policy-map |class-map |service-policy |police (cir|rate|\d)|ip access-list |hostname |interface (Fast|Gigabit)Ethernet)`),
	},
}

// guess returns the probable language of a text, or "".
func guess(text string) string {
	for _, s := range signs {
		if s.sign().MatchString(text) {
			return s.name
		}
	}
	return ""
}

// Misread adds the probable language of a text to an error of importing it as another.
func Misread(err error, as, text string) error {
	if is := guess(text); is != "" && is != as && From(is) != nil {
		return fmt.Errorf("%w: it looks like %s: import it with --from %s", err, is, is)
	}
	return err
}
