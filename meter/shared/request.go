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

// Every script on a budget has one key. What is in braces selects the slot of a cluster.
const keyBegin, keyEnd = "{shaper:", "}:lease"

// key is where a budget is kept.
func key(budget string) string { return keyBegin + budget + keyEnd }

const maxMember = 128 // bytes of the name of a budget or a host

// checkMember returns why a budget or a host cannot have a name. Names are parts of keys,
// where braces select the slot, and of lines that people read.
func checkMember(name string) error {
	if name == "" || len(name) > maxMember {
		return fmt.Errorf("%.80q is not a name of 1 to %d characters", name, maxMember)
	}
	for _, r := range name {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("._-:@", r):
		default:
			return fmt.Errorf("%q: a name has letters, digits and . _ - : @ only", name)
		}
	}
	return nil
}

// arguments appends a request in the order of store.lua.
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

// reply reads what store.lua returns for one budget.
func reply(v any) (r lease.Reply, err error) {
	values, ok := v.([]any)
	if !ok {
		return r, fmt.Errorf("the store answered %T, not a list", v)
	}
	l := list{values: values}
	switch refused := lease.Refusal(l.number()); len(values) {
	case 1:
		r.Refused = refused
		if l.err == nil && (refused <= lease.Granted || refused > lease.Stale) {
			l.err = fmt.Errorf("the store answered %d", refused)
		}
	case 3:
		r.Time, r.Epoch = l.number(), l.number()
	case 22:
		r = lease.Reply{
			Time: l.number(), Epoch: l.number(), Share: l.amounts(), Rescue: l.amounts(), Spare: [2]int64{l.number(), l.number()}, Size: l.amounts(),
			Hosts: l.number(), Late: l.number(), Learning: l.number() == 1, Replicas: l.number(), Smallest: l.text(),
		}
	default:
		l.err = fmt.Errorf("the store answered a list of %d", len(values))
	}
	return r, l.err
}

// list reads the values of a list one by one. Its error is the first.
type list struct {
	values []any
	err    error
}

func next[T any](l *list) (v T) {
	if len(l.values) == 0 {
		l.fail(fmt.Errorf("the store's answer is too short"))
		return v
	}
	v, ok := l.values[0].(T)
	if !ok {
		l.fail(fmt.Errorf("the store answered %T, not %T", l.values[0], v))
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

// duration is a number of µs.
func (l *list) duration() time.Duration { return time.Duration(l.number()) * time.Microsecond }

func (l *list) amounts() lease.Amounts {
	return lease.Amounts{Rate: [2]int64{l.number(), l.number()}, Burst: [2]int64{l.number(), l.number()}}
}
