package budgets

import (
	"fmt"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/say"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

// State is a shaper's share of a budget on a server, for status --json and for other
// processes. Rates are in bit/s, bursts in bytes. If Packets is set, rates are in eighths of
// a packet per second, and bursts in packets.
type State struct {
	Name    string `json:"name"`
	Store   string `json:"store"` // URL without a password
	Host    string `json:"host"`  // name of the shaper among the hosts
	Packets bool   `json:"packets"`
	// a process renews the share; otherwise only share, rescue and the policy's size are known
	Renewed  bool     `json:"renewed"`
	Heard    bool     `json:"heard"`    // the server answered
	Rescued  bool     `json:"rescued"`  // limited to the rescue share
	Learning bool     `json:"learning"` // the server is learning the hosts' shares: no share grows
	Share    Amounts  `json:"share"`
	Rescue   Amounts  `json:"rescue"`
	Size     Amounts  `json:"size"`
	Bound    Amounts  `json:"bound,omitzero"` // upper bound for all hosts together
	Once     [2]int64 `json:"once,omitzero"`  // tokens beyond the bound after a failover
	// upper bound if no host reaches the server; set while rescued
	Without  Amounts `json:"bound_without_server,omitzero"`
	Hosts    int64   `json:"hosts"` // number of hosts
	Late     int64   `json:"late"`  // hosts no longer calling the server
	Replicas int64   `json:"replicas"`
	Smallest string  `json:"smallest,omitempty"` // host with the smallest size, if hosts disagree
	Calls    uint64  `json:"calls"`
	Lost     uint64  `json:"lost_calls"`
	Error    string  `json:"error,omitempty"` // error of the last call
}

// StateOf converts the status of a budget.
func StateOf(st *shared.Status, store string) State {
	b := State{
		Name: st.Budget, Store: store, Host: st.Host, Packets: bool(UnitOf(st.Floor)), Renewed: true,
		Heard: st.Heard, Rescued: st.Rescued, Learning: st.Learning,
		Share: Amounts(st.Share), Rescue: Amounts(st.Rescue), Size: Amounts(st.Size),
		Bound: Amounts(st.Bound.Sum), Once: st.Bound.Once,
		Hosts: st.Hosts, Late: st.Late, Replicas: st.Replicas, Smallest: st.Smallest, Calls: st.Calls,
		Lost: st.Lost,
	}
	if st.Rescued {
		b.Without = Amounts(st.Without.Sum)
	}
	if st.Err != nil {
		b.Error = strings.TrimPrefix(st.Err.Error(), store+": ")
	}
	return b
}

// rates writes rates in the budget's unit.
func (b *State) rates(a Amounts) string { return Unit(b.Packets).Rates(lease.Amounts(a)) }

// limits writes rates, and exact bursts, in the budget's unit.
func (b *State) limits(a Amounts) string {
	unit := " bytes"
	if b.Packets {
		unit = " packets"
	}
	return b.rates(a) + " with a burst of " + byBucket(a.Burst, say.Grouped) + unit
}

// String describes the state on one line, without the budget's name.
func (b *State) String() string {
	var out strings.Builder
	printf := func(format string, args ...any) { fmt.Fprintf(&out, format, args...) }
	none := Amounts{}
	switch {
	case b.Share == none && b.Rescue == none:
		printf("no share")
	case b.Rescued && b.Share == b.Rescue:
		printf("the rescue share of %s", b.rates(b.Share))
	case b.Rescued || !b.Renewed:
		printf("%s, then the rescue share of %s", b.rates(b.Share), b.rates(b.Rescue))
	default:
		printf("%s of %s, %s", b.rates(b.Share), b.rates(b.Size), say.Count(b.Hosts, "host"))
		if b.Late > 0 {
			printf(", %d late", b.Late)
		}
	}
	if b.Bound != none {
		printf("; all together at most %s", b.limits(b.Bound))
		if b.Without != none {
			printf(", %s if no host reaches the server", b.limits(b.Without))
		}
		if b.Once != [2]int64{} {
			printf(", and once %s after a failover", Unit(b.Packets).Bursts(lease.Amounts{Burst: b.Once}))
		}
	}
	if b.Learning {
		printf("; the server is learning the hosts' shares: no share grows")
	}
	if b.Smallest != "" {
		printf("; hosts disagree about the size: %s has the smallest", b.Smallest)
	}
	switch {
	case b.Error != "" && b.Renewed:
		printf("; last call: %s", b.Error)
	case b.Error != "":
		printf("; %s", b.Error)
	}
	return out.String()
}

// Amounts are the rates and bursts of both buckets.
type Amounts struct {
	Rate  [2]int64 `json:"rate"`
	Burst [2]int64 `json:"burst"`
}
