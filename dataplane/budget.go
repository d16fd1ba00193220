package dataplane

import (
	"cmp"
	"fmt"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter"
)

// Budget is a limit that several meters share: those of one host, or those of all
// hosts that reach a server.
type Budget struct {
	Name  string
	Store Store

	// The rest is for budgets on a server. Zero values are the defaults below.
	Interval time.Duration // between two reports to the server
	Rescue   Share         // of the budget, for all hosts together while none reaches the server
	Weight   int           // of this host's share, 1 to MaxWeight; 0 is 1
	Hosts    int           // number of hosts, assumed until the server has reported it
}

// Defaults and bounds of a Budget.
const (
	DefaultInterval = 100 * time.Millisecond
	MinInterval     = 10 * time.Millisecond
	MaxInterval     = 10 * time.Second
	DefaultHosts    = 16
	MaxHosts        = 4096
	MaxWeight       = 1000
	maxBudgetName   = 64
)

// DefaultRescue is the Rescue of a Budget that has none.
var DefaultRescue = Share{10, 100}

// Store is where the state of a budget is kept: in the kernel of this host if URL is
// empty, otherwise on a Redis or Valkey server. The files have one line each.
type Store struct {
	URL          string // rediss://user:password@host:6379/0
	PasswordFile string
	CAFile       string // of the server's certificate, PEM
	CertFile     string // of the client, PEM
	KeyFile      string
}

// Resolved returns the budget with its defaults.
func (b Budget) Resolved() Budget {
	b.Interval = cmp.Or(b.Interval, DefaultInterval)
	b.Rescue = cmp.Or(b.Rescue, DefaultRescue)
	b.Weight = cmp.Or(b.Weight, 1)
	b.Hosts = cmp.Or(b.Hosts, DefaultHosts)
	return b
}

// OnHost reports whether the meters of one host share the budget.
func (b *Budget) OnHost() bool { return b.Store.URL == "" }

// check returns the errors of a budget, and of the meter as one that can share it.
func (b *Budget) check(errs *errorList, m *Meter, kind meter.Kind) {
	if reason := nameFault(b.Name); reason != "" {
		errs.add(b, "budget", reason)
	}
	state := kind.Info().State
	switch {
	case m.Per.By != NoKey:
		errs.add(m, "share", "does not go with per: a budget has one meter, not one for each key")
	case m.Envelope != nil:
		errs.add(m, "share", "does not go with an envelope")
	case state != meter.StateBuckets && state != meter.StateCounts:
		errs.add(m, "share", "needs a meter of buckets, fixed-window or sliding-counter, not "+kind.String())
	}
	if b.OnHost() {
		return
	}
	if state == meter.StateCounts {
		errs.add(m, "share", "needs a meter of buckets: the shares of a window's limit do not add up, use token-bucket or store: host")
	}
	if t, ok := m.Params.(meter.TokenBucket); ok && t.Warmup > 0 {
		errs.add(m, "warmup", "does not go with a budget on a server: the server sets the rate")
	}
	if m.Initial.Den != 0 {
		errs.add(m, "initial", "does not go with a budget on a server: a share begins empty")
	}
	if b.Interval != 0 && (b.Interval < MinInterval || b.Interval > MaxInterval) {
		errs.add(b, "interval", fmt.Sprintf("%v is not between %v and %v", b.Interval, MinInterval, MaxInterval))
	}
	if !b.Rescue.valid() {
		errs.add(b, "rescue", "must be between nothing and all of the budget")
	}
	if b.Weight < 0 || b.Weight > MaxWeight {
		errs.add(b, "weight", fmt.Sprintf("%d is not between 1 and %d", b.Weight, MaxWeight))
	}
	if b.Hosts < 0 || b.Hosts > MaxHosts {
		errs.add(b, "hosts", fmt.Sprintf("%d is not between 1 and %d", b.Hosts, MaxHosts))
	}
}

// nameFault is why a budget or host cannot have a name, or "". Names are parts of keys
// on servers, where braces select the slot, and of file names.
func nameFault(name string) string {
	if name == "" || len(name) > maxBudgetName {
		return fmt.Sprintf("%.80q is not a name of 1 to %d characters", name, maxBudgetName)
	}
	for i, r := range name {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		case i > 0 && (r == '.' || r == '_' || r == '-' || r == ':' || r == '@'):
		default:
			return fmt.Sprintf("%q: a name has letters, digits and . _ - : @ and begins with a letter or digit", name)
		}
	}
	return ""
}

// Shared meters packets in place of a meter of the policy whose state is not the
// pipeline's alone, such as a budget of the host. One goroutine at a time calls it.
type Shared interface {
	// Color is that of meter.Meter. It allocates nothing.
	Color(now int64, n int, in meter.Color) meter.Color
	// Tokens is that of meter.Meter.
	Tokens(now int64) (tc, te int64)
}

// Share has s meter the packets of a stage of the plan from now on. Without it a meter
// with a budget of the host is one of the pipeline's own.
func (l *Pipeline) Share(stage int, s Shared) { l.stages[stage].shared = s }
