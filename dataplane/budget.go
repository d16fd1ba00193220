package dataplane

import (
	"cmp"
	"time"
)

// Budget is a limit shared by several meters: meters of one host, or of all hosts that use the same
// server.
type Budget struct {
	Name    string
	Address Address
	// Once, for a budget of the host: a packet is judged and charged once on its way through the
	// host, by the first of the budget's meters. The others give it the same color, or a worse input
	// color.
	Once bool

	// For a budget on a server. Zero values mean the defaults below.
	Interval time.Duration // time between two reports to the server
	// share of the budget for all hosts together while the server is unreachable
	Rescue Fraction
	Weight int // weight of this host, 1 to MaxWeight; 0 means 1
	Hosts  int // number of hosts, until the server reports it
}

// Defaults and bounds of a Budget.
const (
	DefaultInterval = 100 * time.Millisecond
	MinInterval     = 10 * time.Millisecond
	MaxInterval     = 10 * time.Second
	DefaultHosts    = 16
	MaxHosts        = 4096
	MaxWeight       = 1000
)

// DefaultRescue is the default for Rescue. With half of the budget, neither the loss of the server
// nor that of hosts costs much more than the other half: the server keeps the rescue shares of dead
// hosts.
var DefaultRescue = Fraction{50, 100}

// Address is the place of a budget's state: a Redis or Valkey server, or the kernel of this host if
// URL is empty. The files are for the program connecting to the server; planes do not read them.
type Address struct {
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
func (b *Budget) OnHost() bool { return b.Address.URL == "" }
