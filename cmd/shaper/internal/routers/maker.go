package routers

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/pattern"
)

// begins returns a pattern for the beginning of a line, behind a prompt if there is one.
func begins(with ...string) func() *regexp.Regexp {
	return pattern.Lazy(`(?mi)^[ \t]*(?:(?:[\w.@/:()-]+[#>]|<\S+>|\[\S+\]) ?)?(?:` + strings.Join(with, "|") + `)`)
}

// signs are statements by which a language is recognized, the more special languages first.
var signs = []struct {
	name string
	sign func() *regexp.Regexp
}{
	{"libreqos", pattern.Lazy(`^\s*\{[^\x00]*"downloadBandwidthMbps"`)},
	{"cisco-show", pattern.Lazy(`(?mi)^\s*service-policy (input|output): |^\s*class-map: .* \(match-(any|all)\)`)},
	{
		"junos",
		begins(`set (?:firewall|class-of-service) `, `\[edit\b`, `(?:firewall|class-of-service|policer \S+|three-color-policer \S+|hierarchical-policer \S+|family inet6?|if-exceeding|filter \S+) \{`),
	},
	{"tc", pattern.Lazy(`(?m)^\s*(?:sudo )?(?:(?:\S*/)?tc |\$TC )?(qdisc|class|filter) (add|replace|change|del|\S+ \S+: (dev|root|parent) )|^\s*(qdisc|class) \S+ \S+:\S* `)},
	{
		"h3c",
		begins(`qos policy \S`, `qos apply policy `, `.* remark-\S+-pass `, `car cir .* ebs `, `gts any `, `qos (?:gts|car) (?:inbound |outbound )?any `,
			`acl (?:basic|advanced) `, `line-rate `),
	},
	{
		"huawei",
		begins(`traffic (?:policy|behavior|classifier) \S`, `traffic-policy \S`, `qos (?:car|lr|gts) `, `car cir `,
			`sysname `, `traffic-limit `, `user-queue `),
	},
	{
		"cisco",
		begins(`policy-map `, `class-map `, `service-policy `, `police (?:cir|rate|\d)`, `ip access-list `,
			`rate-limit (?:input|output) `, `hostname `, `interface (?:Fast|Gigabit)Ethernet`),
	},
}

// Guess returns the language of a text that shows it, or "".
func Guess(text string) string {
	for _, s := range signs {
		if s.sign().MatchString(text) && From(s.name) != nil {
			return s.name
		}
	}
	return ""
}

// Misread adds the probable language to an error of importing a text as another one, if the text has
// policies in that language only.
func Misread(err error, as string, s Source) error {
	is := Guess(s.Text)
	if is == "" || is == as || is == "libreqos" || policies(as, s) || !policies(is, s) {
		return err
	}
	return fmt.Errorf("%w: it looks like %s: import it with --from %s", err, is, is)
}

// policies reports whether a text has policies in a language.
func policies(language string, s Source) bool {
	in, err := From(language).Import(s)
	return err == nil && len(in.Drafts) > 0
}

// errNone is the error of a text without policies.
var errNone = errors.New("it has no policy, policer, shaper or queue")
