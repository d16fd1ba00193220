package dataplane

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/unsaid"
	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Budget is a limit that several meters share: meters of one host, or of all hosts that use
// the same server.
type Budget struct {
	Name  string
	Store Store

	// For a budget on a server. Zero values mean the defaults below.
	Interval time.Duration // time between two reports to the server
	Rescue   Fraction      // share of the budget that all hosts together may use while the server is unreachable
	Weight   int           // weight of this host, 1 to MaxWeight; 0 means 1
	Hosts    int           // number of hosts, until the server reports it
}

// Defaults and bounds of a Budget.
const (
	DefaultInterval = 100 * time.Millisecond
	MinInterval     = 10 * time.Millisecond
	MaxInterval     = 10 * time.Second
	DefaultHosts    = 16
	MaxHosts        = 4096
	MaxWeight       = 1000
	maxBudgetName   = 64 // bytes
)

// DefaultRescue is the default for Rescue. With half of the budget, neither the loss of the server
// nor that of hosts costs much more than the other half: the server keeps the rescue shares of
// hosts that died.
var DefaultRescue = Fraction{50, 100}

// Store is the place of a budget's state: a Redis or Valkey server, or the kernel of this
// host if URL is empty.
type Store struct {
	URL          string // such as rediss://user:password@host:6379/0
	PasswordFile string // file with the password in one line
	CAFile       string // file with the certificates of trusted CAs, PEM
	CertFile     string // file with the client's certificate, PEM
	KeyFile      string // file with the client's private key, PEM
}

// Resolved returns the budget with defaults filled in.
func (b Budget) Resolved() Budget {
	b.Interval = cmp.Or(b.Interval, DefaultInterval)
	b.Rescue = cmp.Or(b.Rescue, DefaultRescue)
	b.Weight = cmp.Or(b.Weight, 1)
	b.Hosts = cmp.Or(b.Hosts, DefaultHosts)
	return b
}

// OnHost reports whether the budget is in the kernel of this host.
func (b *Budget) OnHost() bool { return b.Store.URL == "" }

// check adds the errors of the budget, and those of a meter of some kind that uses it.
func (b *Budget) check(errs *errorList, m *Meter, kind meter.Kind) {
	if reason := invalidName(b.Name); reason != "" {
		errs.add(b, "budget", reason)
	}
	state := kind.Info().State
	switch {
	case m.Per.By != NoKey:
		errs.add(m, "share", "cannot be combined with per: a budget is one meter, not one per key")
	case m.Envelope != nil:
		errs.add(m, "share", "cannot be combined with envelope")
	case state != meter.StateBuckets && state != meter.StateCounts:
		errs.add(m, "share", "is not supported by type "+kind.String()+": use token buckets, fixed-window or sliding-counter")
	}
	if b.OnHost() {
		return
	}
	if state == meter.StateCounts {
		errs.add(m, "share", "cannot use a server with type "+kind.String()+": shares of a window's limit do not add up; use token-bucket, or store: host")
	}
	if t, ok := m.Params.(meter.TokenBucket); ok && t.Warmup > 0 {
		errs.add(m, "warmup", "cannot be combined with a budget on a server: the server sets the rate")
	}
	for _, name := range notLeased(m.Params) {
		errs.add(m, strings.ToLower(name), "cannot be combined with a budget on a server: a lease has rates and bursts")
	}
	if m.Initial.Den != 0 {
		errs.add(m, "initial", "cannot be combined with a budget on a server: each share begins empty")
	}
	if b.Interval != 0 && (b.Interval < MinInterval || b.Interval > MaxInterval) {
		errs.add(b, "interval", fmt.Sprintf("%v is not between %v and %v", b.Interval, MinInterval, MaxInterval))
	}
	if !b.Rescue.valid() {
		errs.add(b, "rescue", "must be between 0 and 100 % of the budget")
	}
	if b.Weight < 0 || b.Weight > MaxWeight {
		errs.add(b, "weight", fmt.Sprintf("%d is not between 1 and %d", b.Weight, MaxWeight))
	}
	if b.Hosts < 0 || b.Hosts > MaxHosts {
		errs.add(b, "hosts", fmt.Sprintf("%d is not between 1 and %d", b.Hosts, MaxHosts))
	}
}

// notLeased returns the parameters that are set, and that neither a lease nor a leased meter has.
func notLeased(p Params) []string {
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
			return fmt.Sprintf("%q contains other characters than letters, digits and . _ - : @, or does not begin with a letter or digit", name)
		}
	}
	return ""
}

// Shared is a meter whose state is outside the pipeline, such as a budget of the host. It
// need not be safe for concurrent use.
type Shared interface {
	// Color is meter.Meter.Color. It must not allocate.
	Color(now int64, n int, in meter.Color) meter.Color
	// Refund is meter.Meter.Refund. It must not allocate.
	Refund(c meter.Charge)
	// Tokens is meter.Meter.Tokens.
	Tokens(now int64) (tc, te int64)
}

// ReplaceMeter replaces the meter of a stage of the plan with s. By default a stage whose budget
// is on the host has a meter of its own.
func (l *Pipeline) ReplaceMeter(stage int, s Shared) { l.stages[stage].shared = s }
