package shared

import (
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

//go:embed layout.lua
var layoutScript string

//go:embed store.lua
var storeScript string

// Every script for budgets has one key. The part in braces selects its slot in
// a cluster.
const keyBegin, keyEnd = "{shaper:", "}:lease"

// key returns the key of a budget.
func key(budget string) string { return keyBegin + budget + keyEnd }

const maxMember = 128 // bytes in the name of a budget or a host

// checkMember returns an error if the name of a budget or a host is invalid.
// Names are parts of keys, in which braces select the slot, and of output.
func checkMember(name string) error {
	if name == "" || len(name) > maxMember {
		return fmt.Errorf("the name %.80q must have 1 to %d characters", name, maxMember)
	}
	for _, r := range name {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("._-:@", r):
		default:
			return fmt.Errorf("the name %q may have only letters, digits and . _ - : @", name)
		}
	}
	return nil
}

// arguments appends a request, in the order of store.lua.
func arguments(args []any, r *lease.Request) []any {
	t := &r.Terms
	args = append(args, r.Host, r.Instance, r.Sequence, r.Seen, t.Interval/1000, t.Deadline/1000, t.Weight, t.Floor, t.Rescue)
	for _, a := range []lease.Amounts{t.Size, r.Holds, r.Rescue} {
		args = append(args, a.Rate[0], a.Rate[1], a.Burst[0], a.Burst[1])
	}
	leave := "0"
	if r.Leave {
		leave = "1"
	}
	return append(args, r.Demand[0], r.Demand[1], leave)
}

// reply parses the result of store.lua for one budget.
func reply(v any) (r lease.Reply, err error) {
	values, ok := v.([]any)
	if !ok {
		return r, fmt.Errorf("the store replied with %T instead of a list", v)
	}
	l := list{values: values}
	switch refused := lease.Refusal(l.number()); len(values) {
	case 1:
		r.Refused = refused
		if l.err == nil && (refused <= lease.Granted || refused > lease.Stale) {
			l.err = fmt.Errorf("the store replied with %d", refused)
		}
	case 3:
		r.Time, r.Epoch = l.number(), l.number()
	case 22:
		r = lease.Reply{
			Time: l.number(), Epoch: l.number(), Share: l.amounts(), Rescue: l.amounts(), Spare: [2]int64{l.number(), l.number()}, Size: l.amounts(),
			Hosts: l.number(), Late: l.number(), Learning: l.number() == 1, Replicas: l.number(), Smallest: l.text(),
		}
	default:
		l.err = fmt.Errorf("the store replied with a list of %d", len(values))
	}
	return r, l.err
}

// list parses the values of a list one by one. Its error is the first one.
type list struct {
	values []any
	err    error
}

func next[T any](l *list) (v T) {
	if len(l.values) == 0 {
		l.fail(fmt.Errorf("the store's reply is too short"))
		return v
	}
	v, ok := l.values[0].(T)
	if !ok {
		l.fail(fmt.Errorf("the store replied with %T instead of %T", l.values[0], v))
	}
	l.values = l.values[1:]
	return v
}

func (l *list) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

func (l *list) number() int64 { return next[int64](l) }
func (l *list) text() string  { return next[string](l) }
func (l *list) list() list    { return list{values: next[[]any](l)} }

// duration returns a number of µs.
func (l *list) duration() time.Duration { return time.Duration(l.number()) * time.Microsecond }

func (l *list) amounts() lease.Amounts {
	return lease.Amounts{Rate: [2]int64{l.number(), l.number()}, Burst: [2]int64{l.number(), l.number()}}
}
