package compiled

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane"
	"github.com/a-seed-32e5a53f/shaper/meter"
	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
)

// errorList collects the errors of a policy.
type errorList []error

func (l *errorList) add(object any, field, reason string) {
	*l = append(*l, &dataplane.FieldError{Object: object, Field: field, Reason: reason})
}

// addError adds an error of package meter or queue. Each meter.FieldError in it keeps
// its own field; any other error is an error of the given field.
func (l *errorList) addError(object any, field string, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			l.addError(object, field, err)
		}
		return
	}
	var e *meter.FieldError
	if errors.As(err, &e) {
		l.add(object, strings.ToLower(e.Field), e.Reason)
		return
	}
	l.add(object, field, err.Error())
}

// checkLength adds the errors of a length rule.
func (l *errorList) checkLength(r *dataplane.LengthRule) {
	if r.Base > dataplane.L1 {
		l.add(r, "base", "is unknown: use L3, L2 or L1")
	}
	if r.Overhead < -maxAdded || r.Overhead > maxAdded {
		l.add(r, "overhead",
			fmt.Sprintf("%d is not between %d and %d bytes", r.Overhead, -maxAdded, maxAdded))
	}
	switch {
	case r.MPU < 0:
		l.add(r, "mpu", fmt.Sprintf("%d is negative", r.MPU))
	case r.MPU > maxAdded:
		l.add(r, "mpu", fmt.Sprintf("%d is above %d bytes", r.MPU, maxAdded))
	}
}

// maxAdded bounds Overhead and MPU of a LengthRule, bytes: far above any real header or frame.
const maxAdded = 1 << 15

// maxBudgetName is the largest length of the name of a budget, bytes.
const maxBudgetName = 64

// maxRank is the largest Rank. Ranks differ, so an envelope has at most 64 flows. Each
// packet refills all of them.
const maxRank = 64

// validFraction reports whether a fraction is between 0 and 1.
func validFraction(f dataplane.Fraction) bool { return 0 <= f.Num && f.Num <= f.Den }

// checkAction adds the errors of an action.
func (l *errorList) checkAction(a *dataplane.Action) {
	if a.Drop && (a.ECN != dataplane.NoECN || len(a.Marks) > 0 || a.Queue != nil) {
		l.add(a, "drop", "cannot be combined with other actions")
	}
	if a.ECN > dataplane.CEOrDrop {
		l.add(a, "ecn", "is unknown: use NoECN, CE or CEOrDrop")
	}
	seen := map[dataplane.Field]bool{}
	for _, m := range a.Marks {
		largest, known := m.Field.Max()
		if !known {
			l.add(a, "mark", fmt.Sprintf("%v is not a known field", m.Field))
			continue
		}
		if m.Value > largest {
			l.add(a, m.Field.String(), fmt.Sprintf("%d is above %d", m.Value, largest))
		}
		if seen[m.Field] {
			l.add(a, m.Field.String(), "is set twice")
		}
		seen[m.Field] = true
	}
}

// checkMatch adds the errors of a match.
func (l *errorList) checkMatch(m *dataplane.Match) {
	for _, field := range dataplane.MatchFields {
		for _, r := range *field.List(m) {
			if r.First > r.Last {
				l.add(m, field.Name,
					fmt.Sprintf("range %s-%s is empty: put the smaller number first", number(field.Name, r.First),
						number(field.Name, r.Last)))
			} else if r.Last > field.Max {
				l.add(m, field.Name, fmt.Sprintf("%d is above %d", r.Last, field.Max))
			}
		}
	}
	l.checkPrefixes(m, "src", m.Src)
	l.checkPrefixes(m, "dst", m.Dst)
	for _, name := range m.Cgroups {
		if reason := dataplane.InvalidCgroup(name); reason != "" {
			l.add(m, "cgroup", fmt.Sprintf("%.200q %s", name, reason))
		}
	}
}

// number writes a value of a field in an error.
func number(field string, v uint64) string {
	if strings.HasSuffix(field, "mac") && v <= dataplane.MaxMAC {
		return string(dataplane.AppendMAC(nil, v))
	}
	return fmt.Sprint(v)
}

func (l *errorList) checkPrefixes(m *dataplane.Match, name string, list []netip.Prefix) {
	for _, p := range list {
		if !p.IsValid() {
			l.add(m, name, "contains an invalid prefix")
		}
	}
}

// invalidKey returns the reason why a key is invalid, or "".
func invalidKey(k dataplane.Key) string {
	switch {
	case k.By > dataplane.ByCgroup:
		return "is unknown: use src, dst, flow, vlan, dscp, hosts, address, mac, [vlan, mac], vni, teid, mark or cgroup"
	case (k.V4 > 0 || k.V6 > 0) && !k.By.HasPrefix():
		return "has a prefix length, but only src, dst and address can have one"
	case k.V4 > 32 || k.V6 > 128:
		return "has a prefix length above 32 for IPv4 or 128 for IPv6"
	}
	return ""
}

// checkLone adds the errors of fields without effect unless another field is set.
func (l *errorList) checkLone(m *dataplane.Meter) {
	if m.Per.By == dataplane.NoKey {
		if m.Per != (dataplane.Key{}) {
			l.add(m, "per", invalidKey(m.Per))
		}
		if m.Keys != 0 {
			l.add(m, "keys", "needs per: a meter without keys has no table")
		}
		if m.Idle {
			l.add(m, "evict", "needs per: a meter without keys has no table")
		}
	}
	if m.Rank != 0 && m.Envelope == nil && m.CIRMax == nil && m.EIRMax == nil { // these report it
		l.add(m, "rank", "needs envelope: it orders the flows of one")
	}
}

// checkBudget adds the errors of a budget, and those of a meter of some kind that uses it.
func (l *errorList) checkBudget(b *dataplane.Budget, m *dataplane.Meter, kind meter.Kind) {
	if reason := invalidName(b.Name); reason != "" {
		l.add(b, "budget", reason)
	}
	state := kind.Info().State
	switch {
	case m.Per.By != dataplane.NoKey:
		l.add(m, "share", "cannot be combined with per: a budget is one meter, not one per key")
	case m.Envelope != nil:
		l.add(m, "share", "cannot be combined with envelope")
	case state != meter.StateBuckets && state != meter.StateCounts:
		l.add(m, "share",
			"is not supported by type "+kind.String()+": use token buckets, fixed-window or sliding-counter")
	}
	if b.OnHost() {
		for _, name := range slices.Concat(unsaid.Fields(b, "Name", "Address", "Once"), unsaid.Fields(&b.Address)) {
			l.add(b, strings.ToLower(name), "is only for a budget on a server, not for store: host")
		}
		return
	}
	if b.Once {
		l.add(b, "count", "once is only for store: host: a packet carries the note of a charge through one host")
	}
	if state == meter.StateCounts {
		l.add(m, "share",
			"cannot use a server with type "+kind.String()+
				": shares of a window's limit do not add up; use token-bucket, or store: host")
	}
	if t, ok := m.Params.(meter.TokenBucket); ok && t.Warmup > 0 {
		l.add(m, "warmup", "cannot be combined with a budget on a server: the server sets the rate")
	}
	for _, name := range notLeased(m.Params) {
		l.add(m, strings.ToLower(name),
			"cannot be combined with a budget on a server: a lease has rates and bursts")
	}
	if m.Initial.Den != 0 {
		l.add(m, "initial", "cannot be combined with a budget on a server: each share begins empty")
	}
	if b.Interval != 0 && (b.Interval < dataplane.MinInterval || b.Interval > dataplane.MaxInterval) {
		l.add(b, "interval", fmt.Sprintf("%v is not between %v and %v", b.Interval, dataplane.MinInterval,
			dataplane.MaxInterval))
	}
	if !validFraction(b.Rescue) {
		l.add(b, "rescue", "must be between 0 and 100 % of the budget")
	}
	if b.Weight < 0 || b.Weight > dataplane.MaxWeight {
		l.add(b, "weight", fmt.Sprintf("%d is not between 1 and %d", b.Weight, dataplane.MaxWeight))
	}
	if b.Hosts < 0 || b.Hosts > dataplane.MaxHosts {
		l.add(b, "hosts", fmt.Sprintf("%d is not between 1 and %d", b.Hosts, dataplane.MaxHosts))
	}
}

// checkOnce rejects a chain with several budgets that charge a packet once. The packet carries the note
// of one.
func (c *compiler) checkOnce(stage int) {
	var first *dataplane.Budget
	for ; stage >= 0; stage = c.plan.Stages[stage].Then {
		switch b := c.plan.Stages[stage].Source.Budget; {
		case b == nil || !b.Once:
		case first == nil:
			first = b
		case !c.twice[b]:
			c.twice[b] = true
			c.add(b, "count", fmt.Sprintf(
				"once cannot be in a chain with budget %q, which also has count: once: a packet carries the note of one charge; leave it out here, and use this budget in one direction only",
				first.Name))
		}
	}
}

// notLeased returns the set parameters unknown to leases and leased meters.
func notLeased(p meter.Params) []string {
	var leased []string
	switch p.(type) {
	case meter.TokenBucket:
		leased = []string{"Rate", "Burst", "Warmup", "GCRA"} // Warmup is refused with its reason
	case meter.SRTCM:
		leased = []string{"CIR", "CBS", "EBS"}
	case meter.TRTCM:
		leased = []string{"CIR", "CBS", "PIR", "PBS"}
	case meter.TRTCM4115:
		leased = []string{"CIR", "CBS", "EIR", "EBS", "Coupling"}
	default:
		return nil // the kind is refused
	}
	return unsaid.Fields(p, leased...)
}

// invalidName returns the reason why a budget cannot have a name, or "". Names are part of
// file names, and of keys on servers, where braces would select the slot of a cluster.
func invalidName(name string) string {
	if name == "" || len(name) > maxBudgetName {
		return fmt.Sprintf("%.80q must have 1 to %d characters", name, maxBudgetName)
	}
	for i, r := range name {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		case i > 0 && (r == '.' || r == '_' || r == '-' || r == ':' || r == '@'):
		default:
			return fmt.Sprintf("%q contains other characters than letters, digits and . _ - : @, or does not begin with a letter or digit",
				name)
		}
	}
	return ""
}

// invalidFair is invalidKey for a key of a fair queue.
func invalidFair(k dataplane.Key) string {
	if k.By > dataplane.ByHosts && k.By <= dataplane.ByCgroup {
		return "cannot be " + k.By.String() + ", a key of meters: use src, dst, flow, vlan, dscp or hosts"
	}
	return invalidKey(k)
}
