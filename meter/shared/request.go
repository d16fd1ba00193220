package shared

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
)

//go:embed layout.lua
var layoutScript string

//go:embed store.lua
var storeScript string

// Every script for budgets takes one key. The part in braces selects its slot in a cluster.
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
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9',
			strings.ContainsRune("._-:@", r):
		default:
			return fmt.Errorf("the name %q may have only letters, digits and . _ - : @", name)
		}
	}
	return nil
}

// arguments appends a request, in the order of store.lua.
func arguments(args []any, r *lease.Request) []any {
	t := &r.Terms
	args = append(args, r.Host, r.Instance, r.Sequence, r.Seen, t.Interval/1000, t.Deadline/1000, t.Weight,
		t.Floor, t.Rescue)
	for _, a := range []lease.Amounts{t.Size, r.Holds, r.Rescue} {
		args = append(args, a.Rate[0], a.Rate[1], a.Burst[0], a.Burst[1])
	}
	leave := "0"
	if r.Leave {
		leave = "1"
	}
	return append(args, r.Demand[0], r.Demand[1], leave)
}

// reply parses the result of store.lua for the budget of a request. It returns
// only replies that pass lease.Reply.Check.
func reply(v any, leave bool) (r lease.Reply, err error) {
	l := listOf(v)
	refused := lease.Refusal(l.raw())
	switch n := len(l.values) + 1; {
	case l.err != nil:
	case n == 1 && refused != lease.Granted:
		r.Refused = refused
		l.check(r.Check())
	case n == 3 && refused == lease.Granted && leave:
		r.Time, r.Epoch = l.raw(), l.raw() // neither is used
	case n == 22 && refused == lease.Granted && !leave:
		r = lease.Reply{
			Time: l.raw(), Epoch: l.raw(), Share: l.four(), Rescue: l.four(),
			Spare: [2]int64{l.raw(), l.raw()}, Size: l.four(), Hosts: l.raw(), Late: l.raw(),
			Learning: l.flag(), Replicas: l.raw(), Smallest: l.name(),
		}
		l.check(r.Check())
	default:
		l.check(fmt.Errorf("a list of %d that begins with %d", n, refused))
	}
	if l.err != nil {
		return lease.Reply{}, l.err
	}
	return r, nil
}

// list parses the values of a list one by one. Its error is the first one;
// after an error it returns zeros. Callers of raw must check the number.
type list struct {
	values []any
	err    error
}

// listOf returns a parser for a value expected to be a list.
func listOf(v any) *list {
	values, ok := v.([]any)
	l := &list{values: values}
	if !ok {
		l.check(fmt.Errorf("%T instead of a list", v))
	}
	return l
}

// check makes an error that describes a noun the list's, unless it has one.
func (l *list) check(err error) {
	if l.err == nil && err != nil {
		l.err = fmt.Errorf("the store replied with %w", err)
	}
}

func next[T any](l *list) (v T) {
	if l.err != nil {
		return v
	}
	if len(l.values) == 0 {
		l.check(errors.New("too short a list"))
		return v
	}
	v, ok := l.values[0].(T)
	if !ok {
		l.check(fmt.Errorf("%T instead of %T", l.values[0], v))
	}
	l.values = l.values[1:]
	return v
}

func (l *list) raw() int64 { return next[int64](l) }

// number returns a number between least and most.
func (l *list) number(least, most int64) int64 {
	n := next[int64](l)
	if l.err == nil && (n < least || n > most) {
		l.check(fmt.Errorf("%d instead of a number from %d to %d", n, least, most))
	}
	if l.err != nil {
		return 0
	}
	return n
}

func (l *list) flag() bool { return l.number(0, 1) == 1 }

// time returns a number of µs within a time.Duration.
func (l *list) time() int64 { return l.number(0, lease.MaxNumber) }

// duration returns a number of µs.
func (l *list) duration() time.Duration { return time.Duration(l.time()) * time.Microsecond }

// name returns the name of a host, or "".
func (l *list) name() string {
	name := next[string](l)
	if name != "" {
		l.check(checkMember(name))
	}
	if l.err != nil {
		return ""
	}
	return name
}

// list returns a parser for a list in the list.
func (l *list) list() *list { return &list{values: next[[]any](l), err: l.err} }

// four returns amounts that the caller must check.
func (l *list) four() lease.Amounts {
	return lease.Amounts{Rate: [2]int64{l.raw(), l.raw()}, Burst: [2]int64{l.raw(), l.raw()}}
}

// amounts returns amounts that n hosts together can hold.
func (l *list) amounts(n int64) (a lease.Amounts) {
	for _, of := range []*[2]int64{&a.Rate, &a.Burst} {
		for i := range of {
			of[i] = l.number(0, n*max(lease.MaxRate, lease.MaxBurst))
		}
	}
	return a
}
